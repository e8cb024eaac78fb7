"""The root class of all shared types, for code that only needs to tell whether something is shared.

It is apart from `SharedValue`, because messages and their codec ask that of every field, and need no store for it.
"""

from __future__ import annotations

from typing import Any

Plain = tuple[str, bytes]
"""A value as it is stored: the name of its field and the bytes of its store."""


class ReplicatedType:
    """A type whose replicas converge. Derive shared types from `SharedValue`, never from this."""

    __slots__ = ()

    def to_plain(self) -> Plain:
        """What it takes to store the value: read it back with `from_plain`."""
        raise NotImplementedError

    @staticmethod
    def from_plain(hint: Any, plain: Plain) -> ReplicatedType:
        """The value that was stored so. Raises BadStore if the bytes are no store."""
        raise NotImplementedError
