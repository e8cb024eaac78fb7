"""Commands that were asked again: they get the answer of the first time, once that is durable."""

from __future__ import annotations

from collections.abc import Callable

from stigmergy.core.inputs import Asked, Verdict


class Repeats:
    """Answers to repetitions, by the position that must be durable before they are given."""

    def __init__(self, durable: Callable[[int], int], answer: Callable[[Asked, Verdict], None]) -> None:
        self._durable = durable
        self._answer = answer
        self._waiting: list[tuple[int, int, Asked, Verdict]] = []

    def add(self, shard: int, position: int, command: Asked, verdict: Verdict) -> None:
        """This command of a shard was answered at this position already."""
        self._waiting.append((shard, position, command, verdict))

    def give(self) -> None:
        """Gives the answers that are durable by now."""
        waiting, self._waiting = self._waiting, []
        for shard, position, command, verdict in waiting:
            if position <= self._durable(shard):
                self._answer(command, verdict)
            else:
                self._waiting.append((shard, position, command, verdict))
