"""A register that keeps concurrent writes side by side, for the application to decide between them."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

from stigmergy.crdt.bounds import PAYLOAD_BYTES_MAX
from stigmergy.crdt.coding import Coder, coder_of
from stigmergy.crdt.delta import Edit
from stigmergy.crdt.errors import BadDelta
from stigmergy.crdt.payloads import VALUE, plain_value, value_payload
from stigmergy.crdt.value import SharedValue, argument_of

T = TypeVar("T")
VALUE_BYTES_MAX = PAYLOAD_BYTES_MAX - 1


class MVRegister(SharedValue, Generic[T]):
    """The newest value, or several where writers did not know of each other. A write replaces all that it has seen."""

    __slots__ = ()

    @property
    def values(self) -> tuple[T, ...]:
        """All that was written and not replaced, in the order of their bytes, equal ones once; empty at first."""
        found = {plain_value(payload): None for _, payload in self._node.dots.values()}
        return tuple(cast("T", self._coder.from_bytes(value)) for value in sorted(found))

    @property
    def in_conflict(self) -> bool:
        """Whether there is more than one."""
        return len(self.values) > 1

    def set(self, value: T) -> Edit:
        """Writes a value instead of all that are seen here."""
        return Edit(self.field, ((self.path, value_payload(self._coder.to_bytes(value))),), self._seen_here())

    def __repr__(self) -> str:
        return f"MVRegister{self.values!r}"

    @classmethod
    def _types(cls, hint: Any) -> tuple[Coder, Any]:
        return coder_of(argument_of(hint, 0), VALUE_BYTES_MAX), None

    def _check_payload(self, payload: bytes) -> None:
        if not payload or payload[0] != VALUE:
            raise BadDelta(f"field '{self.field}': no value of a register")
        self._coder.check(plain_value(payload))
