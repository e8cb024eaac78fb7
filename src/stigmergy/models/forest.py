"""The runtime `forest`: decision trees and forests, boosted or averaged, with numpy if it is there, else without.

The payload is a Forest as msgpack (`model pack` takes the same as JSON). A tree is nodes side by side, the root first:
feature (-1 is a leaf), threshold, left, right, value. Children come after their parent, so every walk ends. A number
that is at most the threshold goes left, everything else, NaN too, goes right. An output is

    base[output] + scale * (sum of the leaves of its trees, in their order)         and its logistic if `sigmoid`

Sums are in double precision and in the order of the trees: the answers with and without numpy, alone and in a batch,
are the same bit for bit.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from stigmergy.base.errors import ModelFailed, ModelRefused
from stigmergy.models.bundle import OUTPUTS_COUNT_MAX, Bundle
from stigmergy.models.runtime import FLOAT_BYTES, LoadedModel, check_rows

TREES_COUNT_MAX: Final = 10_000
NODES_COUNT_MAX: Final = 5_000_000
"""Of all trees together."""
_WALKS_COUNT_MAX = 250_000
"""Rows times trees that are walked at once with numpy, about 10 MB."""
_NODE_BYTES = 36
_LEAF = -1

_Indices = Annotated[tuple[int, ...], Meta(max_length=NODES_COUNT_MAX)]
_Numbers = Annotated[tuple[float, ...], Meta(max_length=NODES_COUNT_MAX)]


class Tree(Struct, frozen=True):
    """One tree: its nodes, side by side."""

    feature: _Indices
    threshold: _Numbers
    left: _Indices
    right: _Indices
    value: _Numbers
    output: Annotated[int, Meta(ge=0, lt=OUTPUTS_COUNT_MAX)] = 0


class Forest(Struct, frozen=True):
    """Trees that are added up."""

    trees: Annotated[tuple[Tree, ...], Meta(min_length=1, max_length=TREES_COUNT_MAX)]
    base: Annotated[tuple[float, ...], Meta(min_length=1, max_length=OUTPUTS_COUNT_MAX)] = (0.0,)
    """One for each output."""
    scale: float = 1.0
    """A learning rate; one divided by the number of trees for an average."""
    sigmoid: bool = False


def make_runtime() -> ForestRuntime:
    """What `find_runtime` calls."""
    return ForestRuntime()


def read_forest(text: bytes) -> Forest:
    """A forest that somebody wrote as JSON. Raises ModelRefused."""
    return _decode(msgspec.json.Decoder(Forest), text)


def write_forest(forest: Forest) -> bytes:
    """The payload of a bundle."""
    return msgspec.msgpack.encode(forest)


class ForestRuntime:
    """The ModelRuntime port. `numpy=False` does without numpy where it is there."""

    name = "forest"

    def __init__(self, *, with_numpy: bool = True) -> None:
        self._with_numpy = with_numpy and find_spec("numpy") is not None  # the base does without it

    def load(self, bundle: Bundle, threads: int = 1) -> LoadedModel:
        """Reads and checks every node. One thread does the work, however many are given."""
        forest = _decode(msgspec.msgpack.Decoder(Forest), bundle.payload)
        manifest = bundle.manifest
        if len(forest.base) != len(manifest.outputs):
            raise ModelRefused(
                f"the forest has {len(forest.base)} outputs, its manifest {len(manifest.outputs)}; pack it again"
            )
        nodes = _Nodes(forest, manifest.row_count)
        return _WithNumpy(forest, nodes) if self._with_numpy else _Plain(forest, nodes)


class _Nodes:
    """The nodes of all trees in one row of arrays, their children as indices into it; checked."""

    def __init__(self, forest: Forest, row_count: int) -> None:
        self.row_count = row_count
        self.feature, self.left, self.right = array("i"), array("i"), array("i")
        self.threshold, self.value = array("d"), array("d")
        self.roots: list[int] = []
        for number, tree in enumerate(forest.trees):
            self.roots.append(len(self.feature))
            self._add(number, tree, len(forest.base))

    def _add(self, number: int, tree: Tree, outputs: int) -> None:
        count = len(tree.feature)
        first = len(self.feature)
        if not count or {len(tree.threshold), len(tree.left), len(tree.right), len(tree.value)} != {count}:
            raise ModelRefused(f"tree {number} has no nodes, or columns of different lengths; write it again")
        if first + count > NODES_COUNT_MAX:
            raise ModelRefused(f"over {NODES_COUNT_MAX} nodes; grow fewer or smaller trees")
        if tree.output >= outputs:
            raise ModelRefused(f"tree {number} belongs to output {tree.output}, there are {outputs}; give it a base")
        for index, (feature, left, right) in enumerate(zip(tree.feature, tree.left, tree.right, strict=True)):
            if feature == _LEAF:
                continue
            if not 0 <= feature < self.row_count:
                raise ModelRefused(f"tree {number} asks input {feature}, a row has {self.row_count}; pack it again")
            if not (index < left < count and index < right < count):
                raise ModelRefused(f"tree {number}, node {index}: its children do not come after it; write it again")
        if not all(map(math.isfinite, tree.value)):
            raise ModelRefused(f"tree {number} has a leaf that is no number; train it again")
        self.feature.extend(tree.feature)
        self.threshold.extend(tree.threshold)
        self.value.extend(tree.value)
        # A leaf is its own child: a walk in step with others stays there.
        for children, own in ((self.left, tree.left), (self.right, tree.right)):
            pairs = enumerate(zip(tree.feature, own, strict=True))
            children.extend(first + (index if feature == _LEAF else child) for index, (feature, child) in pairs)


class _Loaded:
    """What both ways to run a forest share."""

    def __init__(self, forest: Forest, nodes: _Nodes) -> None:
        self._forest = forest
        self._row_count = nodes.row_count
        self._outputs = [tree.output for tree in forest.trees]
        self._is_closed = False
        self.memory_bytes = len(nodes.feature) * _NODE_BYTES + len(nodes.roots) * 16

    def run(self, rows: Sequence[bytes]) -> list[tuple[float, ...]]:
        """The outputs of each row."""
        if self._is_closed:
            raise ModelFailed("the model is closed; load it again")
        check_rows(rows, self._row_count * FLOAT_BYTES)
        return [self._answer(leaves) for leaves in self._leaves(rows)] if rows else []

    def close(self) -> None:
        """Gives the arrays back."""
        self._is_closed = True
        self._clear()

    def _answer(self, leaves: Sequence[float]) -> tuple[float, ...]:
        forest = self._forest
        sums = [0.0] * len(forest.base)
        for output, leaf in zip(self._outputs, leaves, strict=True):
            sums[output] += leaf
        values = [base + forest.scale * total for base, total in zip(forest.base, sums, strict=True)]
        return tuple(_logistic(value) for value in values) if forest.sigmoid else tuple(values)

    def _leaves(self, rows: Sequence[bytes]) -> Sequence[Sequence[float]]:
        """For each row the value of the leaf that it comes to in each tree."""
        raise NotImplementedError

    def _clear(self) -> None:
        raise NotImplementedError


class _Plain(_Loaded):
    def __init__(self, forest: Forest, nodes: _Nodes) -> None:
        super().__init__(forest, nodes)
        self._nodes: _Nodes | None = nodes
        self._row = struct.Struct(f"<{nodes.row_count}f")

    def _leaves(self, rows: Sequence[bytes]) -> list[list[float]]:
        nodes = self._nodes
        assert nodes is not None
        found: list[list[float]] = []
        for row in rows:
            numbers = self._row.unpack(row)
            leaves: list[float] = []
            for node in nodes.roots:
                while (feature := nodes.feature[node]) != _LEAF:
                    node = nodes.left[node] if numbers[feature] <= nodes.threshold[node] else nodes.right[node]
                leaves.append(nodes.value[node])
            found.append(leaves)
        return found

    def _clear(self) -> None:
        self._nodes = None


class _WithNumpy(_Loaded):
    def __init__(self, forest: Forest, nodes: _Nodes) -> None:
        import numpy

        super().__init__(forest, nodes)
        self._columns: tuple[Any, ...] = (
            numpy.frombuffer(nodes.feature, dtype=numpy.intc),
            numpy.frombuffer(nodes.threshold),
            numpy.frombuffer(nodes.left, dtype=numpy.intc),
            numpy.frombuffer(nodes.right, dtype=numpy.intc),
            numpy.frombuffer(nodes.value),
            numpy.array(nodes.roots, dtype=numpy.intc),
        )

    def _leaves(self, rows: Sequence[bytes]) -> list[list[float]]:
        step = max(1, _WALKS_COUNT_MAX // len(self._outputs))
        return [leaves for start in range(0, len(rows), step) for leaves in self._walk(rows[start : start + step])]

    def _walk(self, rows: Sequence[bytes]) -> list[list[float]]:
        """All rows through all trees, one level at a time."""
        import numpy

        feature, threshold, left, right, value, roots = self._columns
        numbers = numpy.frombuffer(b"".join(rows), dtype="<f4").reshape(len(rows), self._row_count)
        at = numpy.arange(len(rows))[:, None]
        node = numpy.broadcast_to(roots, (len(rows), len(roots)))
        asked = feature[node]
        while (asked != _LEAF).any():  # for a leaf the last input is compared, and both ways lead to itself
            node = numpy.where(numbers[at, asked] <= threshold[node], left[node], right[node])
            asked = feature[node]
        leaves: list[list[float]] = value[node].tolist()
        return leaves

    def _clear(self) -> None:
        self._columns = ()


def _logistic(value: float) -> float:
    if value >= 0:
        return 1.0 / (1.0 + math.exp(-value))
    grown = math.exp(value)
    return grown / (1.0 + grown)


def _decode(decoder: Any, data: bytes) -> Forest:
    try:
        forest: Forest = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelRefused(f"this is no forest ({error}); see `Forest layout` in the manual") from None
    if not all(map(math.isfinite, (*forest.base, forest.scale))):
        raise ModelRefused("its base or scale is no number; write it again")
    return forest
