"""The live dots of an object, by place: a persistent tree. A change copies only the path to its place.

A node has the live dots of its place, at most one for each replica, and its children by key. Nodes without dots and
children are not kept, so the children of a node are exactly what is alive below it, and counting them is immediate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from immutables import Map

Path = tuple[bytes, ...]
"""The keys that lead to a place; for the object itself none."""
Live = tuple[int, bytes]
"""Counter and payload."""
Dots = Map[bytes, Live]
"""By replica."""
Entry = tuple[Path, bytes, int, bytes]
"""Place, replica, counter, payload."""

NO_DOTS: Final[Dots] = Map()


class TreeNode:
    """One place and all below it. Never changed."""

    __slots__ = ("children", "dots")

    def __init__(self, dots: Dots, children: Map[bytes, TreeNode]) -> None:
        self.dots = dots
        self.children = children


NO_CHILDREN: Final[Map[bytes, TreeNode]] = Map()
BARE: Final = TreeNode(NO_DOTS, NO_CHILDREN)


def node_at(root: TreeNode, path: Path) -> TreeNode:
    """The node of a place, or a bare one."""
    node = root
    for key in path:
        found = node.children.get(key)
        if found is None:
            return BARE
        node = found
    return node


def with_dots(node: TreeNode, path: Path, at: int, dots: Dots) -> TreeNode:
    """The tree below `node` with these dots in the place that path[at:] leads to."""
    if at == len(path):
        return TreeNode(dots, node.children)
    key, children = path[at], node.children
    old = children.get(key)
    child = with_dots(BARE if old is None else old, path, at + 1, dots)
    if child.dots or child.children:
        return TreeNode(node.dots, children.set(key, child))
    return node if old is None else TreeNode(node.dots, children.delete(key))


def entries_of(node: TreeNode, path: Path = ()) -> Iterator[Entry]:
    """Everything alive from here down, in no particular order."""
    for replica, (counter, payload) in node.dots.items():
        yield path, replica, counter, payload
    for key, child in node.children.items():
        yield from entries_of(child, (*path, key))


def places_of(node: TreeNode, path: Path = ()) -> Iterator[tuple[Path, Dots]]:
    """Places with what is alive in them, sorted."""
    if node.dots:
        yield path, node.dots
    children = node.children
    for key in sorted(children):
        child, below = children[key], (*path, key)
        if child.children:
            yield from places_of(child, below)
        else:
            yield below, child.dots


def differing(one: TreeNode, other: TreeNode, path: Path = ()) -> Iterator[tuple[Path, Dots, Dots]]:
    """Places whose dots may differ, with the dots of both. What the two trees share is passed over."""
    if one is other:
        return
    if one.dots is not other.dots:
        yield path, one.dots, other.dots
    for key, child in one.children.items():
        yield from differing(child, other.children.get(key, BARE), (*path, key))
    for key, child in other.children.items():
        if key not in one.children:
            yield from differing(BARE, child, (*path, key))


def tree_of(places: Iterable[tuple[Path, dict[bytes, Live]]]) -> TreeNode:
    """A tree with these dots in these places."""
    top = _Growing()
    for path, dots in places:
        growing = top
        for key in path:
            growing = growing.children.setdefault(key, _Growing())
        growing.dots = dots
    return top.grown()


class _Growing:
    """A node while a tree is built from its places."""

    __slots__ = ("children", "dots")

    def __init__(self) -> None:
        self.dots: dict[bytes, Live] = {}
        self.children: dict[bytes, _Growing] = {}

    def grown(self) -> TreeNode:
        children = {key: child.grown() for key, child in self.children.items()}
        return TreeNode(Map(self.dots) if self.dots else NO_DOTS, Map(children) if children else NO_CHILDREN)
