"""The outbox: which effects are owed to which sink and not yet settled. Rebuilt from commits, so it is never lost.

Sequences of a sink are dense, from 1. A sink may settle out of order; its *cursor* is the sequence below which
everything is settled. After a restart whatever is still owed is released again, in order, with the same effect ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from msgspec import Struct

from stigmergy.core.commit import Owed, Settled


class Pending(Struct, array_like=True, frozen=True):
    """An effect that is owed: where it stands in the log, and what is to be done."""

    incarnation: int
    position: int
    index: int
    agent: str
    sink: str
    sequence: int
    body: bytes


class Outbox:
    """What a shard owes the world."""

    def __init__(self) -> None:
        self._sent: dict[str, int] = {}
        self._pending: dict[str, dict[int, Pending]] = {}
        self.count = 0

    def next_sequence(self, sink: str) -> int:
        """The sequence of the next effect for this sink."""
        return self._sent.get(sink, 0) + 1

    def owe(self, incarnation: int, position: int, index: int, owed: Owed) -> Pending:
        """Takes on an effect."""
        pending = Pending(incarnation, position, index, owed.agent, owed.sink, owed.sequence, owed.body)
        self._sent[owed.sink] = owed.sequence
        self._pending.setdefault(owed.sink, {})[owed.sequence] = pending
        self.count += 1
        return pending

    def get(self, sink: str, sequence: int) -> Pending | None:
        """The effect, if it is still owed."""
        return self._pending.get(sink, {}).get(sequence)

    def settle(self, settled: Settled) -> None:
        """Forgets effects that were carried out or given up; those settled before are passed over."""
        pending = self._pending.get(settled.sink, {})
        for sequence in settled.sequences:
            if pending.pop(sequence, None) is not None:
                self.count -= 1

    def cursor(self, sink: str) -> int:
        """Everything of this sink up to here is settled."""
        pending = self._pending.get(sink)
        return next(iter(pending)) - 1 if pending else self._sent.get(sink, 0)

    def sent(self) -> dict[str, int]:
        """How many effects each sink has been owed so far, in a fixed order."""
        return dict(sorted(self._sent.items()))

    def owed(self) -> Iterator[Pending]:
        """Everything still owed, in the order of the log for each sink."""
        for sink in sorted(self._pending):
            yield from self._pending[sink].values()

    def count_after(self, position: int) -> int:
        """How many of them commits behind this position owe."""
        return sum(
            sum(1 for _ in takewhile(lambda pending: pending.position > position, reversed(owed.values())))
            for owed in self._pending.values()
        )

    def lowest_position(self) -> int | None:
        """The oldest commit that still owes something: retention stops before it."""
        return min((next(iter(owed.values())).position for owed in self._pending.values() if owed), default=None)

    def restore(self, sent: dict[str, int], pending: list[Pending]) -> None:
        """Takes over what a snapshot says."""
        self._sent = dict(sent)
        self._pending = {}
        for effect in pending:
            self._pending.setdefault(effect.sink, {})[effect.sequence] = effect
        self.count = len(pending)
