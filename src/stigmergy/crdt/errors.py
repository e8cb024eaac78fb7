"""What the shared types raise; the core translates each into its own tree.

CrdtError
├── BadDelta         bytes that are not a canonical delta within bounds: a peer's fault, refuse it
├── BadStore         the same for the bytes of a store
├── NotContiguous    changes that this delta builds upon are missing: get those first
├── LimitReached     a stated bound would be passed: nothing was changed
├── WrongType        a value is not of the declared type
└── WrongHint        a field is declared with a type that cannot be shared: fix the class
"""

from __future__ import annotations


class CrdtError(Exception):
    """The root of all that is raised here."""


class BadDelta(CrdtError):
    """Bytes that are no canonical delta, or one that does not fit the declared types."""


class BadStore(CrdtError):
    """Bytes that are no canonical store."""


class NotContiguous(CrdtError):
    """A delta builds upon changes that are not here. `missing` names the newest of each replica that is needed."""

    def __init__(self, message: str, missing: tuple[tuple[bytes, int], ...] = ()) -> None:
        super().__init__(message)
        self.missing = missing


class LimitReached(CrdtError):
    """A bound of `crdt.bounds` would be passed."""


class WrongType(CrdtError):
    """A value is not of the type that the field declares."""


class WrongHint(CrdtError):
    """A field is declared with a type that cannot be shared."""
