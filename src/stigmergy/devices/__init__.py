"""Sensors, actuators, control loops and fences: what connects an agent to a machine."""
