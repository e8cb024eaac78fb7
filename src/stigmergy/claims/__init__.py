"""Claims on exclusive resources: the rules (pure), the ledger port and its adapters, a node's claim service."""
