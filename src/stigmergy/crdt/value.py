"""What all shared types have in common: an immutable view of a place in a store, read by the declared types.

A value never changes: its mutators return an Edit; minting and applying that gives a new store, and `with_store` makes
the next value from it. The file of each type says how it reads the dots in its place.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar, Self, get_args, get_origin

from stigmergy.crdt.bounds import PATH_DEPTH_MAX
from stigmergy.crdt.causality import Dot
from stigmergy.crdt.coding import NO_CODER, Coder
from stigmergy.crdt.delta import Delta
from stigmergy.crdt.errors import BadDelta, WrongHint
from stigmergy.crdt.replicated import Plain, ReplicatedType
from stigmergy.crdt.store import EMPTY, ReplicaStore, read_store
from stigmergy.crdt.tree import Path, TreeNode, entries_of, node_at

Removed = tuple[tuple[Path, tuple[Dot, ...]], ...]


class SharedValue(ReplicatedType):
    """A view of one place of an object. Equal if the types, the place and what is known are."""

    __slots__ = ("_coder", "_inner", "_node", "field", "hint", "path", "store")
    _coder: Coder
    """Of its elements, keys or values; only where it has some."""
    _inner: Any
    """What is below its keys; only where there is something."""
    depth: ClassVar[int] = 0
    """How many keys lie between its place and the dots: 1 for a set, 0 for what is one thing."""
    nests: ClassVar[bool] = False
    """Whether its second argument is a shared type again, one key further down."""

    def __init__(self, hint: Any, field: str, path: Path = (), store: ReplicaStore = EMPTY) -> None:
        self.hint = hint
        self.field = field
        self.path = path
        self.store = store
        self._node: TreeNode = node_at(store.root, path) if path else store.root
        self._coder, self._inner = self._types(hint)

    @staticmethod
    def empty(hint: Any, field: str) -> SharedValue:
        """A value of this type, like ORSet[str], with nothing in it."""
        check_hint(hint)
        return class_of(hint)(hint, field)

    def with_store(self, store: ReplicaStore) -> Self:
        """The same place in another state of the object."""
        other = object.__new__(self.__class__)
        other.hint, other.field, other.path, other.store = self.hint, self.field, self.path, store
        other._coder, other._inner = self._coder, self._inner
        other._node = node_at(store.root, self.path) if self.path else store.root
        return other

    def to_plain(self) -> Plain:
        """What it takes to store the object: read it back with `from_plain`."""
        return self.field, self.store.to_bytes()

    @staticmethod
    def from_plain(hint: Any, plain: Plain) -> SharedValue:
        """The value that was stored so. Raises BadStore if the bytes are no store."""
        field, body = plain
        return SharedValue.empty(hint, field).with_store(read_store(body))

    def check(self, delta: Delta) -> None:
        """Raises BadDelta unless all that a delta names fits the declared types: ask before taking what a peer sent."""
        for path, _, payload in delta.added:
            self._check_place(path, 0)
            self._check_payload(payload)
        for path, _ in delta.removed:
            self._check_place(path, 0)

    def check_store(self, store: ReplicaStore) -> None:
        """The same for a whole store."""
        for path, _, _, payload in entries_of(store.root):
            self._check_place(path, 0)
            self._check_payload(payload)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SharedValue):
            return NotImplemented
        return self.hint == other.hint and self.path == other.path and self.store == other.store

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def _types(cls, hint: Any) -> tuple[Coder, Any]:  # noqa: ARG003
        """The coder and the inner type that the hint asks for."""
        return NO_CODER, None

    def _seen_here(self) -> Removed:
        """All dots in this very place: what a write replaces."""
        dots = self._node.dots
        if not dots:
            return ()
        return ((self.path, tuple([Dot(replica, live[0]) for replica, live in dots.items()])),)

    def _check_place(self, path: Path, at: int) -> None:
        """Raises BadDelta unless path[at:] leads from here to a place that this type writes to."""
        if len(path) - at != self.depth:
            raise BadDelta(f"field '{self.field}' has no place {len(path)} keys deep")

    def _check_payload(self, payload: bytes) -> None:
        """Raises BadDelta unless the payload is one that this type writes."""
        raise NotImplementedError


def argument_of(hint: Any, number: int) -> Any:
    """The argument of a type: str in ORSet[str]. Anything, where none is given."""
    arguments = get_args(hint)
    return arguments[number] if len(arguments) > number else Any


def class_of(hint: Any) -> type[SharedValue]:
    """The class behind a type. Raises WrongHint if it is not one of ours."""
    cls = get_origin(hint) or hint
    if not (isinstance(cls, type) and issubclass(cls, SharedValue)) or cls is SharedValue:
        raise WrongHint(f"{hint} cannot be shared; use one of the types of stigmergy.crdt, like ORSet[str]")
    return cls


@cache
def check_hint(hint: Any) -> None:
    """Raises WrongHint unless the type can be shared, all that is nested in it included."""
    inner, depth = hint, 0
    while True:
        cls = class_of(inner)
        cls(inner, "")
        depth += cls.depth
        if depth > PATH_DEPTH_MAX:
            raise WrongHint(f"{hint} nests deeper than {PATH_DEPTH_MAX} keys")
        if not cls.nests:
            return
        inner = argument_of(inner, 1)
