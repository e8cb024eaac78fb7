"""A register where the last write wins: the one with the highest stamp of the hybrid clock."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

from stigmergy.crdt.bounds import PAYLOAD_BYTES_MAX, SEEN_COUNT_MAX
from stigmergy.crdt.coding import Coder, coder_of
from stigmergy.crdt.delta import Edit
from stigmergy.crdt.errors import BadDelta
from stigmergy.crdt.payloads import STAMP_BYTES, STAMPED, stamp_of, stamped_value, unstamped_payload
from stigmergy.crdt.value import SharedValue, argument_of

T = TypeVar("T")
VALUE_BYTES_MAX = PAYLOAD_BYTES_MAX - STAMP_BYTES - 1


class LWWRegister(SharedValue, Generic[T]):
    """One value. A write replaces all that its writer has seen; of concurrent ones the highest (stamp, dot) is read."""

    __slots__ = ()

    @property
    def value(self) -> T | None:
        """What was written last, or None if nothing was."""
        newest = self._newest()
        return None if newest is None else cast("T", self._coder.from_bytes(stamped_value(newest)))

    def value_or(self, default: T) -> T:
        """What was written last, or the default if nothing was."""
        newest = self._newest()
        return default if newest is None else cast("T", self._coder.from_bytes(stamped_value(newest)))

    @property
    def stamp_ns(self) -> int:
        """When the value was written, by the hybrid clock; 0 if nothing was."""
        newest = self._newest()
        return 0 if newest is None else stamp_of(newest)

    def set(self, value: T) -> Edit:
        """Writes a value. It beats all that are here, and replaces them; of very many, the next writes replace the
        rest, so that a change stays small."""
        payload = unstamped_payload(self._coder.to_bytes(value))
        replaced = self._seen_here()
        if len(self._node.dots) > SEEN_COUNT_MAX:
            replaced = tuple([(path, tuple(sorted(dots)[:SEEN_COUNT_MAX])) for path, dots in replaced])
        return Edit(self.field, ((self.path, payload),), replaced, self.stamp_ns)

    def __repr__(self) -> str:
        return f"LWWRegister({self.value!r})"

    @classmethod
    def _types(cls, hint: Any) -> tuple[Coder, Any]:
        return coder_of(argument_of(hint, 0), VALUE_BYTES_MAX), None

    def _newest(self) -> bytes | None:
        dots = self._node.dots
        if not dots:
            return None
        if len(dots) == 1:
            return next(iter(dots.values()))[1]
        return max((stamp_of(payload), replica, counter, payload) for replica, (counter, payload) in dots.items())[3]

    def _check_payload(self, payload: bytes) -> None:
        if not payload or payload[0] != STAMPED:
            raise BadDelta(f"field '{self.field}': a write to a register without its stamp")
        self._coder.check(stamped_value(payload))
