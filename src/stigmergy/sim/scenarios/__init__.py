"""Scenarios that come with stigmergy; `stigmergy sim NAME` runs them."""
