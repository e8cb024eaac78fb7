"""Who is shut out: keys and replicas from which nothing more is taken until an operator lifts it. Pure.

Only proven lies lead here: two different changes under one number, signed by one key, or a state, signed by who sends
it, with a change of ours that we never made. That stores differ proves nothing. A quarantine
lasts until it is lifted or the node is started anew; then the others show it the proof again. It covers what its author
signed, by whatever way it comes. What others hold of it already comes with their states all the same: their word stands
for that.
"""

from __future__ import annotations

from msgspec import Struct

QUARANTINED_COUNT_MAX = 10_000
"""When so many are shut out, the first goes."""


class Quarantined(Struct, frozen=True):
    """One that is shut out, and why."""

    key: bytes
    """Of the node that has signed the lie, or that told it."""
    node: str
    """Its name, as far as it is known."""
    object: str
    replica: bytes
    """Whose changes they were."""
    why: str
    since_ns: int
    """By the wall clock."""


class Quarantine:
    """All that are shut out."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, Quarantined] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._by_key

    def __len__(self) -> int:
        return len(self._by_key)

    def put(self, one: Quarantined) -> bool:
        """Shuts one out; False if it is already."""
        if one.key in self._by_key:
            return False
        if len(self._by_key) >= QUARANTINED_COUNT_MAX:
            del self._by_key[next(iter(self._by_key))]
        self._by_key[one.key] = one
        return True

    def lift(self, key: bytes) -> bool:
        """Lets it take part again; False if it was not shut out."""
        return self._by_key.pop(key, None) is not None

    def all(self) -> list[Quarantined]:
        """All of them, the first first."""
        return list(self._by_key.values())
