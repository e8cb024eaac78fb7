"""A trained net becomes a signed bundle that answers as the net does, unless it is not good enough."""

import numpy as np
import pytest

from stigmergy.base.errors import ModelRefused
from stigmergy.federated import Measured, Net, net_as_onnx, packed
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.models.bundle import read_bundle

SHIFT, SCALE = np.array([100.0, 20.0]), np.array([50.0, 4.0])


def trained(hidden: int) -> tuple[Net, np.ndarray, Measured]:
    draw = np.random.default_rng(1)
    rows = draw.normal(0, 1, (300, 2))
    labels = (rows[:, 0] + rows[:, 1] > 0).astype(float)
    net = Net(2, hidden)
    return net, net.train(net.begin(1), rows, labels, seed=1, epochs=20), Measured(rows, labels, area_min=0.95)


@pytest.mark.parametrize("hidden", [0, 4])
def test_the_bundle_answers_as_the_net_does(hidden: int) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    net, weights, measured = trained(hidden)
    signer = Ed25519Signer(bytes(range(32)))
    data = packed(
        net, weights, measured, signer, name="gas-alarm", version="1.0.0", inputs=("co", "t"), output="over",
        shift=SHIFT, scale=SCALE,
    )  # fmt: skip
    bundle = read_bundle(data, [signer.public_key], Ed25519Verifier())
    assert bundle.manifest.metrics[0].value > 0.95
    session = onnxruntime.InferenceSession(bundle.payload)
    for example in bundle.manifest.examples:
        raw = np.frombuffer(example.inputs, "<f4").reshape(1, -1)
        assert session.run(None, {"inputs": raw})[0].ravel() == pytest.approx(example.outputs, abs=1e-5)


def test_a_model_that_is_not_good_on_rows_kept_back_is_not_packed() -> None:
    net, weights, measured = trained(4)
    with pytest.raises(ModelRefused, match=r"an AUC of 0\.0.* on rows kept back, 0\.950 is asked for"):
        measured.check(net, -weights * np.where(np.arange(len(weights)) < 12, -1, 1))
    with pytest.raises(ModelRefused, match="no numbers"):
        measured.check(net, weights * np.nan)
    assert net_as_onnx(net, weights, "over", SHIFT, SCALE)
