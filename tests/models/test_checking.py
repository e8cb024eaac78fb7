"""What a check finds, with a clock and a runtime of the test's own; and how examples are read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.base.errors import ModelRefused
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.models.bundle import ModelClass, inspect_bundle, write_bundle
from stigmergy.models.checking import MEASURE_S_MAX, RUNS_COUNT, check_bundle, difference_of, measure
from stigmergy.models.examples import area_under_curve, read_examples, spread
from stigmergy.models.forest import ForestRuntime
from stigmergy.models.packing import pack, read_file, smallest_class
from stigmergy.models.runtime import pack_row
from tests.models.nets import ROWS, SIGNER, forest, net, net_manifest

PAYLOAD, ANSWER = forest()
MANIFEST = net_manifest(ANSWER, runtime="forest")


def ticks(*steps_s: float) -> Iterator[float]:
    """A clock that moves on by these steps, the last one for ever."""
    now_s = 0.0
    for step_s in steps_s:
        yield now_s
        now_s += step_s
    while True:
        yield now_s
        now_s += steps_s[-1]


@pytest.mark.parametrize(("model_class", "is_slow"), [(ModelClass.TINY, True), (ModelClass.EDGE, False)])
def test_a_model_slower_than_its_class_is_refused(model_class: ModelClass, is_slow: bool) -> None:
    data = write_bundle(msgspec.structs.replace(MANIFEST, model_class=model_class), PAYLOAD, SIGNER)
    clock = ticks(0.02)
    found = check_bundle(data, [SIGNER.public_key], Ed25519Verifier(), now_s=lambda: next(clock))
    assert found.timing is not None
    assert found.timing.p99_s == pytest.approx(0.02)
    assert [("class tiny allows 10 ms here" in finding) for finding in found.findings] == [True] * is_slow


def test_a_model_that_takes_more_memory_than_its_class_is_refused() -> None:
    class Heavy(ForestRuntime):
        def load(self, bundle, threads=1):  # type: ignore[no-untyped-def]
            loaded = super().load(bundle, threads)
            loaded.memory_bytes = 10**9  # type: ignore[misc]
            return loaded

    data = write_bundle(msgspec.structs.replace(MANIFEST, model_class=ModelClass.EDGE), PAYLOAD, SIGNER)
    (finding,) = check_bundle(data, None, Ed25519Verifier(), find=lambda name: Heavy()).findings
    assert "takes 1000000000 bytes of memory, class edge allows" in finding


def test_measuring_ends_by_count_or_by_time() -> None:
    loaded = ForestRuntime().load(inspect_bundle(write_bundle(MANIFEST, PAYLOAD)))
    rows = [pack_row(row) for row in ROWS]
    clock = ticks(1e-6)
    assert measure(loaded, rows, now_s=lambda: next(clock)).runs_count == RUNS_COUNT
    slow = ticks(1.0)
    assert measure(loaded, rows, now_s=lambda: next(slow)).runs_count <= MEASURE_S_MAX


def test_the_99th_percentile_sees_what_the_median_does_not() -> None:
    loaded = ForestRuntime().load(inspect_bundle(write_bundle(MANIFEST, PAYLOAD)))
    steps = [0.0] + [1e-3, 1e-6] * 50 + [1e-6]  # of the first fifty runs each takes a millisecond
    clock = ticks(*steps)
    timing = measure(loaded, [pack_row(ROWS[0])], now_s=lambda: next(clock))
    assert timing.p50_s == pytest.approx(1e-6)
    assert timing.p99_s == pytest.approx(1e-3, rel=0.01)


def test_differences() -> None:
    assert difference_of((1.0, math.nan, math.inf), (1.5, math.nan, math.inf)) == 0.5
    assert difference_of((math.nan,), (1.0,)) == math.inf


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=2, max_size=30))
def test_the_area_is_the_share_of_pairs_in_the_right_order(pairs: list[tuple[bool, int]]) -> None:
    labels, scores = [float(label) for label, _ in pairs], [float(score) for _, score in pairs]
    high = [score for label, score in pairs if label]
    low = [score for label, score in pairs if not label]
    found = area_under_curve(labels, scores)
    if not high or not low:
        assert found is None
        return
    won = sum((one > other) + (one == other) / 2 for one in high for other in low)
    assert found == pytest.approx(won / (len(high) * len(low)))
    assert area_under_curve([0.5, 1.0], [1.0, 2.0]) is None


def test_examples_are_spread_over_a_file() -> None:
    assert spread(4, 10) == [0, 2, 5, 7]
    assert spread(4, 3) == [0, 1, 2]


def test_examples_of_several_steps_are_read_from_both_kinds_of_file(tmp_path: Path) -> None:
    manifest = msgspec.structs.replace(MANIFEST, inputs=("a", "b"), steps=2, examples=())
    (tmp_path / "x.csv").write_text("b[1],a[0],b[0],a[1],co,no2\n4,1,2,3,1,0\n,1,2,3,0,1\n", encoding="utf-8")
    numpy.savez(
        tmp_path / "x.npz", inputs=numpy.array([[[1, 2], [3, 4]], [[1, 2], [3, numpy.nan]]]), outputs=numpy.eye(2)
    )
    found = read_examples(tmp_path / "x.csv", manifest)
    assert found.rows == [pack_row([1, 2, 3, 4]), pack_row([1, 2, 3, math.nan])]
    assert found.labels == [(1.0, 0.0), (0.0, 1.0)]
    assert read_examples(tmp_path / "x.npz", manifest) == found


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("x.csv", b"co,nox,temperature\n1,2,cold\n", "could not convert"),
        ("x.csv", b"co,nox,temperature\n", "none in it"),
        ("x.csv", b"\xff\xfe", "cannot be read"),
        ("x.npz", b"no zip", "cannot be read"),
    ],
)
def test_examples_that_cannot_be_read_are_refused(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelRefused, match=sentence):
        read_examples(tmp_path / name, MANIFEST)


def test_arrays_of_another_shape_are_refused(tmp_path: Path) -> None:
    numpy.savez(tmp_path / "a.npz", inputs=numpy.ones((2, 4)))
    numpy.savez(tmp_path / "b.npz", inputs=numpy.ones((2, 3)), outputs=numpy.ones((2, 3)))
    numpy.savez(tmp_path / "c.npz", rows=numpy.ones((2, 3)))
    for name, sentence in (("a", "takes 3"), ("b", "gives 2"), ("c", "no array 'inputs'")):
        with pytest.raises(ModelRefused, match=sentence):
            read_examples(tmp_path / f"{name}.npz", MANIFEST)


def test_a_file_is_read_only_as_far_as_its_head_says(tmp_path: Path) -> None:
    data = write_bundle(MANIFEST, PAYLOAD, SIGNER)
    (tmp_path / "x").write_bytes(data + bytes(10_000))
    assert len(read_file(tmp_path / "x")) == len(data) + 1  # one more, so that it is refused as too long
    with pytest.raises(ModelRefused, match="No such file"):
        read_file(tmp_path / "nowhere")


def test_the_smallest_class_with_room_is_chosen() -> None:
    sizes = (10_000, 950_000, 29_950_000, 10**9)
    assert [smallest_class(size) for size in sizes] == ["tiny", "edge", "server", "server"]


def test_an_answer_that_is_no_number_is_not_recorded() -> None:
    payload, answer = net()
    with pytest.raises(ModelRefused, match="example 1 of 2 is no number"):
        pack(net_manifest(answer), payload, [pack_row([1, 2, 3]), pack_row([1, 2, math.nan])], SIGNER)
