"""The journal on SQLite, for devices: one file that any tool can open, and beside it `-wal`, `-mark` and `-reserve`.

    journal = open_journal("sqlite:fleet.db", identity)

See journal.py for what it promises, opener.py for what it refuses, wal.py and `journal/identity.py` for how it checks.
"""

from stigmergy.journal.sqlite.journal import SqliteJournal
from stigmergy.journal.sqlite.opener import inspect_journal, open_journal, renew_incarnation

__all__ = ["SqliteJournal", "inspect_journal", "open_journal", "renew_incarnation"]
