"""Flags: off at first, switched by anybody. The two types differ in which of two concurrent switches wins."""

from __future__ import annotations

from typing import Final

from stigmergy.crdt.delta import Edit
from stigmergy.crdt.errors import BadDelta
from stigmergy.crdt.payloads import PRESENCE, value_payload
from stigmergy.crdt.value import SharedValue

_ENABLED: Final = value_payload(b"\xc3")
_DISABLED: Final = value_payload(b"\xc2")


class EnableWinsFlag(SharedValue):
    """On while an enabling is there that no disabling has seen."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return bool(self._node.dots)

    def enable(self) -> Edit:
        """Switches it on."""
        return Edit(self.field, ((self.path, PRESENCE),), self._seen_here())

    def disable(self) -> Edit:
        """Switches it off: takes back all enablings that are seen here. If it is off, it changes nothing."""
        return Edit(self.field, (), self._seen_here())

    def __repr__(self) -> str:
        return f"EnableWinsFlag({bool(self)})"

    def _check_payload(self, payload: bytes) -> None:
        if payload:
            raise BadDelta(f"field '{self.field}': a flag with something in it")


class DisableWinsFlag(SharedValue):
    """On if it was enabled and no disabling is there that this enabling had not seen."""

    __slots__ = ()

    def __bool__(self) -> bool:
        dots = self._node.dots
        return bool(dots) and all(payload == _ENABLED for _, payload in dots.values())

    def enable(self) -> Edit:
        """Switches it on: replaces all that is seen here. A disabling at the same time wins."""
        return Edit(self.field, ((self.path, _ENABLED),), self._seen_here())

    def disable(self) -> Edit:
        """Switches it off. Also where it is off already: so that it wins over enablings that are not seen here."""
        return Edit(self.field, ((self.path, _DISABLED),), self._seen_here())

    def __repr__(self) -> str:
        return f"DisableWinsFlag({bool(self)})"

    def _check_payload(self, payload: bytes) -> None:
        if payload not in (_ENABLED, _DISABLED):
            raise BadDelta(f"field '{self.field}': a flag that is neither enabled nor disabled")
