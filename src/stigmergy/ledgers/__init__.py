"""Ledgers of users' own: entries in one order for everybody, each id once."""
