"""A set where an addition wins over a concurrent removal: a removal removes the additions that the remover had seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar, cast

from stigmergy.crdt.causality import Dot
from stigmergy.crdt.coding import Coder, coder_of
from stigmergy.crdt.delta import Edit
from stigmergy.crdt.errors import BadDelta
from stigmergy.crdt.payloads import PRESENCE
from stigmergy.crdt.tree import Path
from stigmergy.crdt.value import Removed, SharedValue, argument_of

T = TypeVar("T")


class ORSet(SharedValue, Generic[T]):
    """A set of elements. `in` and `len` are as quick as with a Python set; to go through it decodes each element."""

    __slots__ = ()
    depth = 1

    def __contains__(self, element: object) -> bool:
        key = self._coder.find(element)
        return key is not None and key in self._node.children

    def __len__(self) -> int:
        return len(self._node.children)

    def __iter__(self) -> Iterator[T]:
        """The elements, in the order of their bytes: the same at every replica."""
        for key in sorted(self._node.children):
            yield cast("T", self._coder.from_bytes(key))

    def add(self, element: T) -> Edit:
        """Adds an element. If it is there already, this addition replaces those seen, and outlives removals of them."""
        key = self._coder.to_bytes(element)
        return Edit(self.field, (((*self.path, key), PRESENCE),), self._seen(key))

    def remove(self, element: T) -> Edit:
        """Removes an element: all additions of it that are seen here. If there is none, it changes nothing."""
        return Edit(self.field, (), self._seen(self._coder.to_bytes(element)))

    def clear(self) -> Edit:
        """Removes all elements that are seen here, in one change: LimitReached for some thousands of them."""
        return Edit(self.field, (), tuple(one for key in sorted(self._node.children) for one in self._seen(key)))

    def __repr__(self) -> str:
        return f"ORSet({list(self)!r})"

    @classmethod
    def _types(cls, hint: Any) -> tuple[Coder, Any]:
        return coder_of(argument_of(hint, 0)), None

    def _seen(self, key: bytes) -> Removed:
        node = self._node.children.get(key)
        if node is None:
            return ()
        return (((*self.path, key), tuple([Dot(replica, live[0]) for replica, live in node.dots.items()])),)

    def _check_place(self, path: Path, at: int) -> None:
        super()._check_place(path, at)
        self._coder.check(path[at])

    def _check_payload(self, payload: bytes) -> None:
        if payload:
            raise BadDelta(f"field '{self.field}': an element of a set with something in it")
