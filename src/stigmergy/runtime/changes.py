"""Which agents have changed since the last snapshot, as long as they are the smaller part: then one may add to it.

Names are collected as commits are sealed and merged in bulk, which is cheaper. Once most agents have changed, the next
snapshot holds all of them anyway, and nothing is collected any more.
"""

from __future__ import annotations

from collections.abc import Iterable

MERGED_COUNT_MIN = 1_000
"""So many names at least are collected before they are merged."""


class Changes:
    """The changed agents of one shard."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._lately: list[list[str]] = []
        self._lately_count = 0
        self._are_most = False

    def note(self, touched: Iterable[str], agents_count: int) -> None:
        """A commit has touched these; so many agents there are."""
        if self._are_most:
            return
        names = list(touched)
        if not names:
            return
        self._lately.append(names)
        self._lately_count += len(names)
        if self._lately_count > MERGED_COUNT_MIN + agents_count // 2:
            self._merge(agents_count)

    def few(self, agents_count: int) -> dict[str, None] | None:
        """Their names, if they are at most half of so many agents."""
        self._merge(agents_count)
        return None if self._are_most else self._names

    def add(self, earlier: Changes) -> None:
        """What changed before counts as well: the snapshot that would have held it was given up."""
        self._are_most = self._are_most or earlier._are_most
        if self._are_most:
            self._forget()
        else:
            self._lately += [list(earlier._names), *earlier._lately]
            self._lately_count += len(earlier._names) + earlier._lately_count

    def _merge(self, agents_count: int) -> None:
        for names in self._lately:
            self._names.update(dict.fromkeys(names))
        self._lately, self._lately_count = [], 0
        if 2 * len(self._names) > agents_count:
            self._are_most = True
            self._forget()

    def _forget(self) -> None:
        self._names = {}
        self._lately, self._lately_count = [], 0
