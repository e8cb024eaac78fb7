"""A register where the last write wins: the one with the highest stamp of the hybrid clock."""

from __future__ import annotations

from typing import Generic, TypeVar, cast

from stigmergy.crdt.bounds import PAYLOAD_BYTES_MAX
from stigmergy.crdt.causality import Dot
from stigmergy.crdt.coding import Coder, coder_of
from stigmergy.crdt.delta import Edit, Path
from stigmergy.crdt.errors import BadDelta
from stigmergy.crdt.payloads import STAMP_BYTES, STAMPED, stamp_of, stamped_value, unstamped_payload
from stigmergy.crdt.value import SharedValue, argument_of

T = TypeVar("T")
VALUE_BYTES_MAX = PAYLOAD_BYTES_MAX - STAMP_BYTES - 1


class LWWRegister(SharedValue, Generic[T]):
    """One value. A write replaces all that its writer has seen; of concurrent ones the highest (stamp, dot) is read."""

    __slots__ = ("_coder",)
    _coder: Coder

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
        """Writes a value."""
        dots = self._node.dots
        return Edit(
            self.field,
            ((self.path, unstamped_payload(self._coder.to_bytes(value))),),
            ((self.path, tuple(Dot(replica, counter) for replica, (counter, _) in dots.items())),) if dots else (),
            self.stamp_ns if dots else 0,
        )

    def __repr__(self) -> str:
        return f"LWWRegister({self.value!r})"

    def _read_hint(self) -> None:
        self._coder = coder_of(argument_of(self.hint, 0), VALUE_BYTES_MAX)

    def _newest(self) -> bytes | None:
        dots = self._node.dots
        if not dots:
            return None
        return max((stamp_of(payload), replica, counter, payload) for replica, (counter, payload) in dots.items())[3]

    def _check_payload(self, path: Path, payload: bytes) -> None:
        if not payload or payload[0] != STAMPED:
            raise BadDelta(f"field '{self.field}': a write to a register without its stamp")
        self._coder.check(stamped_value(payload))
