"""Small models for tests, built here so that what they must answer can be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.models.bundle import Example, Manifest, ModelClass
from stigmergy.models.forest import Forest, Tree, write_forest
from stigmergy.models.runtime import pack_row

SIGNER = Ed25519Signer(bytes(range(32)))
ROWS = [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [-1.0, 0.5, 4.0], [10.0, -10.0, 0.25]]


def net(
    inputs: int = 3, hidden: int = 8, outputs: int = 2, *, batch: int | str = "batch", seed: int = 7
) -> tuple[bytes, Any]:
    """A net with one hidden layer and a logistic end, and the function it computes, in double precision."""
    random = numpy.random.default_rng(seed)
    first, second = random.normal(size=(inputs, hidden)), random.normal(size=(hidden, outputs)) / hidden**0.5
    bias = random.normal(size=hidden)
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "w2"], ["o"]),
            helper.make_node("Sigmoid", ["o"], ["y"]),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, outputs])],
        [
            numpy_helper.from_array(value.astype("f4"), name)
            for name, value in (("w1", first), ("w2", second), ("b1", bias))
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)

    def answer(rows: Sequence[Sequence[float]]) -> Any:
        hidden_values = numpy.maximum(numpy.asarray(rows) @ first.astype("f4") + bias.astype("f4"), 0)
        return 1 / (1 + numpy.exp(-(hidden_values @ second.astype("f4"))))

    return model.SerializeToString(), answer


def net_manifest(answer: Any, *, runtime: str = "onnx", rows: Sequence[Sequence[float]] = ROWS) -> Manifest:
    """A manifest with recorded answers."""
    return Manifest(
        name="gas-alarm",
        version="1.2.0",
        runtime=runtime,
        model_class=ModelClass.TINY,
        inputs=("co", "nox", "temperature"),
        outputs=("co", "no2"),
        licence="Apache-2.0",
        examples=tuple(
            Example(pack_row(row), tuple(map(float, values))) for row, values in zip(rows, answer(rows), strict=True)
        ),
    )


def stump(feature: int, threshold: float, low: float, high: float, output: int = 0) -> Tree:
    """One question."""
    return Tree((feature, -1, -1), (threshold, 0.0, 0.0), (1, 0, 0), (2, 0, 0), (0.0, low, high), output)


def forest(*, sigmoid: bool = False) -> tuple[bytes, Any]:
    """Three trees for two outputs, and the function they compute."""
    deep = Tree(
        feature=(0, 1, -1, -1, -1),
        threshold=(0.5, 0.25, 0.0, 0.0, 0.0),
        left=(1, 2, 0, 0, 0),
        right=(4, 3, 0, 0, 0),
        value=(0.0, 0.0, 1.0, 2.0, 4.0),
    )
    payload = write_forest(
        Forest((deep, stump(2, 1.0, -1.0, 0.125), stump(1, 0.0, 3.0, 5.0, 1)), (0.5, -0.5), 0.5, sigmoid)
    )

    def answer(rows: Sequence[Sequence[float]]) -> Any:
        found = []
        for a, b, c in rows:
            first = 4.0 if not a <= 0.5 else (1.0 if b <= 0.25 else 2.0)
            values = numpy.array(
                [0.5 + 0.5 * (first + (-1.0 if c <= 1.0 else 0.125)), -0.5 + 0.5 * (3.0 if b <= 0.0 else 5.0)]
            )
            found.append(1 / (1 + numpy.exp(-values)) if sigmoid else values)
        return found

    return payload, answer
