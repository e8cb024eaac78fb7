"""Workflows: ordered steps that survive restarts, are tried again, and are undone when a later one fails."""
