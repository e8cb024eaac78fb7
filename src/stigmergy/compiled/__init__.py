"""Agents compiled from their own source into loops over columns. Needs the extra `compiled`; imported where used."""
