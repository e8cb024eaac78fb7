"""The ledger in one SQLite file that several processes of one machine share.

    ledger = open_ledger("sqlite:ledger.db", "fleet")

See ledger.py for what it promises, file.py for what it refuses, inspecting.py for a look that changes nothing.
"""

from stigmergy.adapters.sqlite_ledger.inspecting import LookedAt, inspect_ledger, is_ledger
from stigmergy.adapters.sqlite_ledger.ledger import SqliteLedger, open_ledger

__all__ = ["LookedAt", "SqliteLedger", "inspect_ledger", "is_ledger", "open_ledger"]
