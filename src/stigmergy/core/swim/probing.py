"""Whom to ask next, and one question under way. Pure."""

from __future__ import annotations

from collections.abc import Callable

NAMES_COUNT_MAX = 8_192
"""Names in a round, of those who are gone since it began too. One more, and it begins anew without those."""


class Probe:
    """One member is being asked: by us, then by us again and through helpers, until the time is up."""

    def __init__(self, target: str, sequence: int, ack_ns: int, until_ns: int) -> None:
        self.target = target
        self.sequence = sequence
        self.is_answered = False
        self.is_repeated = False
        self._ack_ns = ack_ns
        self._until_ns = until_ns

    @property
    def due_ns(self) -> int:
        """When something is to be done about it."""
        return self._until_ns if self.is_repeated or self.is_answered else self._ack_ns

    def hear(self, subject: str) -> None:
        """Somebody said that this member is there."""
        if subject == self.target:
            self.is_answered = True

    def repeat(self) -> None:
        """It is asked again."""
        self.is_repeated = True


class Round:
    """All members in a shuffled order, again and again: nobody waits for longer than two rounds."""

    def __init__(self, choose: Callable[[int], int], is_wanted: Callable[[str], bool]) -> None:
        self._choose = choose
        self._is_wanted = is_wanted
        self._order: list[str] = []
        self._at = 0

    def add(self, node: str) -> None:
        """Puts a new member at some place in what is left of this round."""
        if len(self._order) >= NAMES_COUNT_MAX:
            self._begin()
        if node not in self._order:
            self._order.insert(self._at + self._choose(len(self._order) - self._at + 1), node)

    def next(self) -> str | None:
        """The next one who is wanted; None if nobody is."""
        for _ in range(2):
            while self._at < len(self._order):
                node = self._order[self._at]
                self._at += 1
                if self._is_wanted(node):
                    return node
            self._begin()
        return None

    def _begin(self) -> None:
        """Shuffles those who are still wanted."""
        self._order = [node for node in self._order if self._is_wanted(node)]
        self._at = 0
        for last in range(len(self._order) - 1, 0, -1):
            other = self._choose(last + 1)
            self._order[last], self._order[other] = self._order[other], self._order[last]
