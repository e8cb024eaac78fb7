"""Measures stigmergy against the limits of the machine it runs on. `python -m bench interpreted --json`."""
