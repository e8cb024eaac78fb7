"""The meaning of exit codes, and which error ends in which. Scripts may rely on these numbers."""

from __future__ import annotations

from stigmergy.base import errors

OK = 0
REFUSED = 1
"""A command was refused, a verification found something, or a node had no room."""
USAGE = 2
"""The command line, a setting, a module or a message is wrong: mend it and try again."""
NOT_RUNNING = 3
"""Nobody runs what is asked for, no server answers, or somebody else has the journal, the ring or the ledger."""
DAMAGED = 4
"""The journal, a ring, a ledger or a store is damaged, foreign, full or failing, or where the output goes is; or the
key is not one of the journal's."""
INTERNAL = 5
"""A bug of ours."""
INTERRUPTED = 130

_CODES: tuple[tuple[int, tuple[type[errors.StigmergyError], ...]], ...] = (
    (INTERNAL, (errors.Bug,)),
    (NOT_RUNNING, (errors.NotAssigned, errors.NotRunning, errors.NotOwned, errors.NoAnswer, errors.LinkDown)),
    (NOT_RUNNING, (errors.JournalLocked, errors.RingLocked, errors.LedgerUnavailable, errors.StoreUnavailable)),
    (NOT_RUNNING, (errors.ViewBehind,)),
    (USAGE, (errors.ConfigError, errors.DefinitionError, errors.PeerError)),
    (REFUSED, (errors.Overloaded, errors.ModelError, errors.PolicyError)),
    (DAMAGED, (errors.JournalError, errors.RingError, errors.LedgerError, errors.StoreError)),
    (DAMAGED, (errors.RecoveryError, errors.TrustError, errors.ViewError)),
)
"""The first row that fits counts: what is locked or away comes before what is damaged."""


def code_of(error: BaseException) -> int:
    """The exit code for an error."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return next((code for code, kinds in _CODES if isinstance(error, kinds)), INTERNAL)
