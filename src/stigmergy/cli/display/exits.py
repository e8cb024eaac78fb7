"""The meaning of exit codes, and which error ends in which. Scripts may rely on these numbers."""

from __future__ import annotations

from stigmergy.base.errors import (
    Bug,
    ConfigError,
    DefinitionError,
    JournalError,
    JournalLocked,
    LedgerError,
    LedgerUnavailable,
    LinkDown,
    NoAnswer,
    NotAssigned,
    NotOwned,
    NotRunning,
    Overloaded,
    PeerError,
    RecoveryError,
    RingError,
    RingLocked,
    StigmergyError,
    StoreError,
    StoreUnavailable,
    TrustError,
)

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

_BY_ERROR: tuple[tuple[type[StigmergyError], int], ...] = (
    (Bug, INTERNAL),
    (ConfigError, USAGE),
    (DefinitionError, USAGE),
    (NotAssigned, NOT_RUNNING),
    (PeerError, USAGE),
    (Overloaded, REFUSED),
    (NotRunning, NOT_RUNNING),
    (NotOwned, NOT_RUNNING),
    (NoAnswer, NOT_RUNNING),
    (LinkDown, NOT_RUNNING),
    (JournalLocked, NOT_RUNNING),
    (JournalError, DAMAGED),
    (RingLocked, NOT_RUNNING),
    (RingError, DAMAGED),
    (LedgerUnavailable, NOT_RUNNING),
    (LedgerError, DAMAGED),
    (StoreUnavailable, NOT_RUNNING),
    (StoreError, DAMAGED),
    (RecoveryError, DAMAGED),
    (TrustError, DAMAGED),
)


def code_of(error: BaseException) -> int:
    """The exit code for an error."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), INTERNAL)
