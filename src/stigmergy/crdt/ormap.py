"""A map whose values are shared types again. A key exists while something is alive below it: updates win.

Entries are not created: `m[key]` exists for every key, empty at first, and its mutators write below that key. Removing
a key removes everything below it that is seen here; concurrent writes of others stay. A set below a key that has become
empty, or a flag that was switched off, leaves nothing alive, and then the key is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar, cast

from stigmergy.crdt.causality import Dot
from stigmergy.crdt.coding import Coder, coder_of
from stigmergy.crdt.delta import Edit
from stigmergy.crdt.tree import Path, TreeNode, entries_of
from stigmergy.crdt.value import Removed, SharedValue, argument_of, class_of

K = TypeVar("K")
V = TypeVar("V", bound=SharedValue)


class ORMap(SharedValue, Generic[K, V]):
    """Shared values by key, nested as deep as PATH_DEPTH_MAX keys lead."""

    __slots__ = ()
    depth = 1
    nests = True

    def __getitem__(self, key: K) -> V:
        """The value below a key; empty if there is none."""
        return self._below(self._coder.to_bytes(key))

    def __contains__(self, key: object) -> bool:
        encoded = self._coder.find(key)
        return encoded is not None and encoded in self._node.children

    def __len__(self) -> int:
        return len(self._node.children)

    def __iter__(self) -> Iterator[K]:
        """The keys, in the order of their bytes: the same at every replica."""
        for encoded in sorted(self._node.children):
            yield cast("K", self._coder.from_bytes(encoded))

    def keys(self) -> tuple[K, ...]:
        """All keys, in the order of their bytes."""
        return tuple(self)

    def items(self) -> Iterator[tuple[K, V]]:
        """Keys with what is below them, in the order of their bytes."""
        for encoded in sorted(self._node.children):
            yield cast("K", self._coder.from_bytes(encoded)), self._below(encoded)

    def remove(self, key: K) -> Edit:
        """Removes all below a key that is seen here. If there is nothing, it changes nothing."""
        encoded = self._coder.to_bytes(key)
        node = self._node.children.get(encoded)
        return Edit(self.field, (), () if node is None else _all_below(node, (*self.path, encoded)))

    def __repr__(self) -> str:
        return f"ORMap({dict(self.items())!r})"

    def _below(self, encoded: bytes) -> V:
        inner = self._inner
        return cast("V", class_of(inner)(inner, self.field, (*self.path, encoded), self.store))

    @classmethod
    def _types(cls, hint: Any) -> tuple[Coder, Any]:
        return coder_of(argument_of(hint, 0)), argument_of(hint, 1)

    def _check_place(self, path: Path, at: int) -> None:
        if len(path) <= at:
            super()._check_place(path, at)
        self._coder.check(path[at])
        self._template()._check_place(path, at + 1)

    def _check_payload(self, payload: bytes) -> None:
        self._template()._check_payload(payload)

    def _template(self) -> SharedValue:
        return class_of(self._inner)(self._inner, self.field)


def _all_below(node: TreeNode, path: Path) -> Removed:
    places: dict[Path, list[Dot]] = {}
    for place, replica, counter, _ in entries_of(node, path):
        places.setdefault(place, []).append(Dot(replica, counter))
    return tuple((place, tuple(sorted(places[place]))) for place in sorted(places))
