"""A trained net as a signed bundle, if it is good enough on rows that nobody trained on.

This is the last check against what clipping cannot bound: a liar that pushes the model a little in every round. The
bundle then goes through the canary like any other. Importing onnx is left to the function that needs it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from stigmergy.base.errors import ModelRefused
from stigmergy.base.trust import Signer
from stigmergy.federated.net import Floats, Net, area_under_curve
from stigmergy.models.bundle import AcceptedMetric, Example, Manifest, ModelClass, Note, write_bundle

EXAMPLES_COUNT = 16
"""Rows whose answers are recorded in the bundle."""
OPSET, IR_VERSION = 17, 9
"""Of ONNX: what runtimes of the last years read."""


class Measured(Struct, frozen=True):
    """Rows that were kept back, and what a model must reach on them."""

    rows: Floats
    labels: Floats
    area_min: float
    """The area under the curve (AUC) below which nothing is packed."""

    def check(self, net: Net, weights: Floats) -> float:
        """The area that the net reaches. Raises ModelRefused below the smallest one allowed."""
        if not np.isfinite(weights).all():
            raise ModelRefused("the model has weights that are no numbers; train again from the last released one")
        area = area_under_curve(self.labels, net.predict(weights, self.rows))
        if area < self.area_min:
            raise ModelRefused(
                f"an AUC of {area:.3f} on rows kept back, {self.area_min:.3f} is asked for; it is not packed"
            )
        return area


def net_as_onnx(net: Net, weights: Floats, output: str, shift: Floats, scale: Floats) -> bytes:
    """The net as an ONNX model over raw inputs: (input - shift) / scale is part of it. Needs the package onnx."""
    from onnx import TensorProto, helper, numpy_helper

    matrix, offsets, last, offset = net.parts(weights)
    constants = {
        "shift": shift.reshape(1, -1),
        "scale": scale.reshape(1, -1),
        "last": last.reshape(-1, 1),
        "offset": np.array([offset]),
    }
    nodes = [helper.make_node("Sub", ["inputs", "shift"], ["moved"])]
    nodes.append(helper.make_node("Div", ["moved", "scale"], ["row"]))
    if net.hidden:
        constants |= {"matrix": matrix, "offsets": offsets}
        nodes.append(helper.make_node("Gemm", ["row", "matrix", "offsets"], ["sum"]))
        nodes.append(helper.make_node("Tanh", ["sum"], ["seen"]))
    nodes.append(helper.make_node("Gemm", ["seen" if net.hidden else "row", "last", "offset"], ["logit"]))
    nodes.append(helper.make_node("Sigmoid", ["logit"], [output]))
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("inputs", TensorProto.FLOAT, ["rows", net.inputs])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["rows", 1])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    return bytes(model.SerializeToString())


def packed(
    net: Net,
    weights: Floats,
    measured: Measured,
    signer: Signer,
    *,
    name: str,
    version: str,
    inputs: Sequence[str],
    output: str,
    shift: Floats,
    scale: Floats,
    notes: Sequence[Note] = (),
    licence: str = "",
) -> bytes:
    """The bundle. `measured.rows` are scaled, as the net saw them. Raises ModelRefused for a model that is not good."""
    area = measured.check(net, weights)
    rows = (measured.rows[:EXAMPLES_COUNT] * scale + shift).astype("<f4")
    answers = net.predict(weights, (rows.astype(np.float64) - shift) / scale)
    manifest = Manifest(
        name=name,
        version=version,
        runtime="onnx",
        model_class=ModelClass.TINY,
        inputs=tuple(inputs),
        outputs=(output,),
        licence=licence,
        metrics=(AcceptedMetric("auc", area),),
        notes=tuple(notes),
        examples=tuple(Example(row.tobytes(), (float(answer),)) for row, answer in zip(rows, answers, strict=True)),
    )
    return write_bundle(manifest, net_as_onnx(net, weights, output, shift, scale), signer)
