"""Claims on what only one may hold: the rules (pure), the ledger port and its adapters, a node's claim service."""
