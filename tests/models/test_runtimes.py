"""Every runtime keeps the contract; what is specific to each; how they are found."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import msgspec
import pytest

from stigmergy.base.errors import ModelFailed, ModelRefused
from stigmergy.models.bundle import Bundle, inspect_bundle, write_bundle
from stigmergy.models.forest import Forest, ForestRuntime, Tree, read_forest, write_forest
from stigmergy.models.onnx_runtime import OnnxRuntime
from stigmergy.models.runtime import ModelRuntime, is_finite, pack_row, unpack_row
from stigmergy.models.runtimes import find_runtime
from stigmergy.testing.runtime_contract import RuntimeContract
from tests.models.nets import ROWS, forest, net, net_manifest, stump


def forest_bundle(*, sigmoid: bool = False) -> Bundle:
    payload, answer = forest(sigmoid=sigmoid)
    return inspect_bundle(write_bundle(net_manifest(answer, runtime="forest"), payload))


def net_bundle(*, batch: int | str = "batch") -> Bundle:
    payload, answer = net(batch=batch)
    return inspect_bundle(write_bundle(net_manifest(answer), payload))


class TestOnnx(RuntimeContract):
    @pytest.fixture
    def runtime(self) -> ModelRuntime:
        return find_runtime("onnx")

    @pytest.fixture(params=["batch", 1])
    def bundle(self, request: pytest.FixtureRequest) -> Bundle:
        return net_bundle(batch=request.param)


class TestForest(RuntimeContract):
    @pytest.fixture(params=[True, False], ids=["numpy", "plain"])
    def runtime(self, request: pytest.FixtureRequest) -> ModelRuntime:
        return ForestRuntime(with_numpy=request.param)

    @pytest.fixture(params=[False, True], ids=["sum", "sigmoid"])
    def bundle(self, request: pytest.FixtureRequest) -> Bundle:
        return forest_bundle(sigmoid=request.param)


def test_a_forest_answers_bit_for_bit_with_and_without_numpy_alone_and_in_a_batch() -> None:
    bundle = forest_bundle(sigmoid=True)
    rows = [pack_row([index / 7, 3 - index / 5, math.nan if index % 9 == 0 else index / 3]) for index in range(200)]
    fast, plain = ForestRuntime().load(bundle), ForestRuntime(with_numpy=False).load(bundle)
    assert fast.run(rows) == plain.run(rows) == [fast.run([row])[0] for row in rows]


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        (Tree((), (), (), (), ()), "no nodes"),
        (Tree((0, -1), (1.0,), (1, 0), (1, 0), (0.0, 1.0)), "different lengths"),
        (Tree((0, -1, -1), (1.0, 0.0, 0.0), (0, 0, 0), (2, 0, 0), (0.0, 1.0, 2.0)), "do not come after"),
        (Tree((0, -1, -1), (1.0, 0.0, 0.0), (1, 0, 0), (3, 0, 0), (0.0, 1.0, 2.0)), "do not come after"),
        (stump(3, 1.0, 0.0, 1.0), "asks input 3"),
        (stump(-2, 1.0, 0.0, 1.0), "asks input -2"),
        (stump(0, 1.0, 0.0, math.nan), "no number"),
        (stump(0, 1.0, 0.0, 1.0, 2), "output 2"),
    ],
)
def test_a_tree_that_a_walk_could_lose_itself_in_is_refused(tree: Tree, sentence: str) -> None:
    bundle = msgspec.structs.replace(forest_bundle(), payload=write_forest(Forest((tree,), (0.0, 0.0))))
    with pytest.raises(ModelRefused, match=sentence):
        ForestRuntime().load(bundle)


def test_a_forest_is_read_from_json() -> None:
    payload, _ = forest()
    written = msgspec.msgpack.decode(payload, type=Forest)
    assert read_forest(msgspec.json.encode(written)) == written
    with pytest.raises(ModelRefused, match="no forest"):
        read_forest(b"{")
    endless = write_forest(msgspec.structs.replace(written, base=(0.0, math.inf)))
    with pytest.raises(ModelRefused, match="base or scale"):
        ForestRuntime().load(msgspec.structs.replace(forest_bundle(), payload=endless))


def test_an_onnx_model_with_several_inputs_or_another_type_is_refused() -> None:
    import onnx
    from onnx import TensorProto, helper

    def packed(kind: int, inputs: int) -> Bundle:
        names = [f"x{index}" for index in range(inputs)]
        graph = helper.make_graph(
            [helper.make_node("Identity", ["x0"], ["y"])],
            "net",
            [helper.make_tensor_value_info(name, kind, ["n", 3]) for name in names],
            [helper.make_tensor_value_info("y", kind, ["n", 3])],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.checker.check_model(model)
        return msgspec.structs.replace(net_bundle(), payload=model.SerializeToString())

    for kind, inputs in ((TensorProto.DOUBLE, 1), (TensorProto.FLOAT, 2)):
        with pytest.raises(ModelRefused, match="one input, of float32"):
            OnnxRuntime().load(packed(kind, inputs))
    with pytest.raises(ModelRefused, match="names 2"):
        OnnxRuntime().load(packed(TensorProto.FLOAT, 1))


def test_a_runtime_of_another_package_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "halves.py").write_text("class Halves:\n    name = 'halves'\n", encoding="utf-8")
    info = tmp_path / "halves-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: halves\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(
        "[stigmergy.model_runtimes]\nhalves = halves:Halves\nlost = nowhere_at_all:Lost\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_runtime("halves").name == "halves"
    with pytest.raises(ModelRefused, match="no runtime 'tract' here, there are forest, halves, lost, onnx"):
        find_runtime("tract")
    with pytest.raises(ModelRefused, match="needs the package 'nowhere_at_all'"):
        find_runtime("lost")


def test_without_its_package_a_runtime_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "stigmergy.models.onnx_runtime", raising=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelRefused, match=r'pip install "stigmergy\[onnx\]"'):
        find_runtime("onnx")


def test_rows_hold_what_float32_holds() -> None:
    assert unpack_row(pack_row([1.5, 1e300, -1e300, 0.0])) == (1.5, math.inf, -math.inf, 0.0)
    assert unpack_row(pack_row(ROWS[2])) == tuple(ROWS[2])
    with pytest.raises(ModelFailed, match="row 0 has 4 bytes"):
        ForestRuntime().load(forest_bundle()).run([pack_row([1.0])])


@pytest.mark.parametrize("other", [0.0, -1.5, 3.4e38, -3.4e38, 1e-45, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 1, 6])
def test_rows_are_finite_or_not(other: float, place: int) -> None:
    numbers = [1.0, -2.0, 3e38, -3e38, 0.1, 1e-45, 2.0]
    numbers[place] = other
    assert is_finite(pack_row(numbers)) == math.isfinite(other)
    assert not is_finite(pack_row([*numbers, 1e39]))


@pytest.mark.parametrize("shape", [["n", 4, 3], ["n", "steps", 3], ["n", 12]])
def test_a_row_of_steps_goes_in_as_the_model_wants_it(shape: list[int | str]) -> None:
    import onnx
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["y"], axis=1)],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 12])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    names = tuple(f"y{index}" for index in range(12))
    manifest = msgspec.structs.replace(net_bundle().manifest, steps=4, outputs=names)
    bundle = msgspec.structs.replace(net_bundle(), manifest=manifest, payload=model.SerializeToString())
    numbers = tuple(float(index) for index in range(12))
    assert OnnxRuntime().load(bundle).run([pack_row(numbers)] * 2) == [numbers, numbers]
    wrong = msgspec.structs.replace(bundle, manifest=msgspec.structs.replace(manifest, steps=5, inputs=("a", "b")))
    with pytest.raises(ModelRefused, match="pack it again"):
        OnnxRuntime().load(wrong)
