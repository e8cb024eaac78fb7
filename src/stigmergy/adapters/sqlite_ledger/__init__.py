"""The ledger in one SQLite file that several processes of one machine share.

    ledger = open_ledger("sqlite:ledger.db", "fleet")

See ledger.py for what it promises, file.py for what it refuses.
"""

from stigmergy.adapters.sqlite_ledger.ledger import SqliteLedger, open_ledger

__all__ = ["SqliteLedger", "open_ledger"]
