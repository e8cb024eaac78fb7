"""Elements, keys and values as canonical bytes: equal bytes are the same element, whatever Python says of equality.

1, 1.0 and True are three elements. A value is first converted to its declared type: 1 in a set of floats is 1.0.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec

from stigmergy.crdt.bounds import ELEMENT_BYTES_MAX
from stigmergy.crdt.errors import BadDelta, LimitReached, WrongHint, WrongType

_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_PLAIN: Final = (str, int, bytes, bool)
"""Types with one way to write each value: no second look needed."""


class Coder:
    """Values of one type to bytes and back."""

    __slots__ = ("_decode", "_plain", "bytes_max", "hint")

    def __init__(self, hint: Any, bytes_max: int) -> None:
        self.hint = hint
        self.bytes_max = bytes_max
        try:
            msgspec.json.schema(hint)  # raises for what has no bytes of its own, somewhere inside as well
            self._decode = msgspec.msgpack.Decoder(hint).decode
        except (TypeError, ValueError, NameError) as error:
            raise WrongHint(f"values of type {_named(hint)} cannot be shared: {error}") from error
        self._plain = hint if hint in _PLAIN else None

    def to_bytes(self, value: Any) -> bytes:
        """The canonical bytes of a value. Raises WrongType, or LimitReached if they are too many."""
        try:
            encoded = _encode(value) if value.__class__ is self._plain else _encode(self._decode(_encode(value)))
        except OverflowError as error:
            raise LimitReached(f"{value!r} has more than 64 bits") from error
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise WrongType(f"{_short(value)} is no {_named(self.hint)}: {error}") from error
        if len(encoded) > self.bytes_max:
            raise LimitReached(f"{_short(value)} takes {len(encoded)} bytes, at most {self.bytes_max}")
        return encoded

    def find(self, value: Any) -> bytes | None:
        """The same for looking something up: none for what cannot be there."""
        try:
            return self.to_bytes(value)
        except (WrongType, LimitReached):
            return None

    def from_bytes(self, encoded: bytes) -> Any:
        """The value. Raises WrongType for bytes of another type: a writer with another declaration."""
        try:
            return self._decode(encoded)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise WrongType(f"what is stored is no {_named(self.hint)}: {error}; check `SharedValue.check`") from error

    def check(self, encoded: bytes) -> None:
        """Raises BadDelta unless these are the canonical bytes of a value of this type, within its bound."""
        try:
            same = len(encoded) <= self.bytes_max and _encode(self._decode(encoded)) == encoded
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise BadDelta(f"no {_named(self.hint)}: {error}") from error
        if not same:
            raise BadDelta(f"no canonical {_named(self.hint)} of at most {self.bytes_max} bytes")


@cache
def coder_of(hint: Any, bytes_max: int = ELEMENT_BYTES_MAX) -> Coder:
    """The coder of a type; one for all its uses."""
    return Coder(hint, bytes_max)


NO_CODER: Final = coder_of(None)
"""For what has no elements, keys or values."""


def _named(hint: Any) -> str:
    return getattr(hint, "__name__", None) or str(hint)


def _short(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 60 else f"{said[:60]}…"
