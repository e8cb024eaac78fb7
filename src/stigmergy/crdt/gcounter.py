"""A counter that only grows. Each replica keeps its own total; the value is their sum."""

from __future__ import annotations

from stigmergy.crdt.bounds import COUNTER_MAX
from stigmergy.crdt.delta import Edit
from stigmergy.crdt.errors import BadDelta, LimitReached, WrongType
from stigmergy.crdt.payloads import TOTAL, total_of, total_payload
from stigmergy.crdt.value import SharedValue


class GCounter(SharedValue):
    """What all replicas have added."""

    __slots__ = ()

    @property
    def value(self) -> int:
        """The sum, from 0 up. Takes as long as there are replicas that have added."""
        return sum(total_of(payload) for _, payload in self._node.dots.values())

    def __int__(self) -> int:
        return self.value

    def add(self, amount: int = 1) -> Edit:
        """Adds an amount that is not negative. Several in one decision add up."""
        check_amount(amount)
        return Edit(self.field, ((self.path, total_payload(amount)),))

    def __repr__(self) -> str:
        return f"GCounter({self.value})"

    def _check_payload(self, payload: bytes) -> None:
        if not payload or payload[0] != TOTAL or total_of(payload) < 0:
            raise BadDelta(f"field '{self.field}': no total of a counter that only grows")


def check_amount(amount: int) -> None:
    """Raises unless it is an int of at most 63 bits that is not negative."""
    if amount.__class__ is not int:
        raise WrongType(f"{amount!r} is no int; counters count whole things")
    if not 0 <= amount <= COUNTER_MAX:
        raise LimitReached(f"an amount of {amount}: 0 to 2^63 - 1 can be added; a PNCounter can subtract, too")
