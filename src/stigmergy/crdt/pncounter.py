"""A counter that goes up and down. Each replica keeps its own total, with its sign; the value is their sum."""

from __future__ import annotations

from stigmergy.crdt.delta import Edit
from stigmergy.crdt.errors import BadDelta
from stigmergy.crdt.gcounter import check_amount
from stigmergy.crdt.payloads import TOTAL, total_of, total_payload
from stigmergy.crdt.value import SharedValue


class PNCounter(SharedValue):
    """What all replicas have added, less what they have subtracted."""

    __slots__ = ()

    @property
    def value(self) -> int:
        """The sum. Takes as long as there are replicas that have counted."""
        return sum(total_of(payload) for _, payload in self._node.dots.values())

    def __int__(self) -> int:
        return self.value

    def add(self, amount: int = 1) -> Edit:
        """Adds an amount that is not negative. Several changes in one decision add up."""
        check_amount(amount)
        return Edit(self.field, ((self.path, total_payload(amount)),))

    def subtract(self, amount: int = 1) -> Edit:
        """Subtracts an amount that is not negative. The value may go below zero: nobody can prevent that."""
        check_amount(amount)
        return Edit(self.field, ((self.path, total_payload(-amount)),))

    def __repr__(self) -> str:
        return f"PNCounter({self.value})"

    def _check_payload(self, payload: bytes) -> None:
        if not payload or payload[0] != TOTAL:
            raise BadDelta(f"field '{self.field}': no total of a counter")
