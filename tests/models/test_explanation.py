"""Explanations: exact on models whose shares are known, bounded, and honest about what they cannot say."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.base.errors import ModelFailed
from stigmergy.models.bundle import Manifest, ModelClass, inspect_bundle, write_bundle
from stigmergy.models.explanation import (
    BATCH_COUNT_MAX,
    RUNS_COUNT_MAX,
    SHAPLEY_COLUMNS_COUNT_MAX,
    Explanation,
    ExplanationMethod,
    explain,
)
from stigmergy.models.runtime import LoadedModel, pack_row, unpack_row
from stigmergy.models.runtimes import find_runtime
from tests.models.nets import net, net_manifest


class Formula:
    """A model that is a function of the row; it remembers how long its batches were."""

    memory_bytes = 1

    def __init__(self, function: Callable[[Sequence[float]], tuple[float, ...]]) -> None:
        self._function = function
        self.batches: list[int] = []

    def run(self, rows: Sequence[bytes]) -> list[tuple[float, ...]]:
        self.batches.append(len(rows))
        return [self._function(unpack_row(row)) for row in rows]

    def close(self) -> None:
        pass


def manifest(inputs: int, *, steps: int = 1, outputs: tuple[str, ...] = ("p",)) -> Manifest:
    return Manifest(
        name="formula",
        version="1.0.0",
        runtime="formula",
        model_class=ModelClass.TINY,
        inputs=tuple(f"x{index}" for index in range(inputs)),
        outputs=outputs,
        steps=steps,
    )


def shares(explanation: Explanation) -> dict[str, float]:
    return {one.name: one.value for one in explanation.contributions}


@pytest.mark.parametrize("method", list(ExplanationMethod))
def test_of_a_sum_every_method_finds_the_terms(method: ExplanationMethod) -> None:
    model: LoadedModel = Formula(lambda x: (0.0, 2 * x[0] - 3 * x[1] + x[2]))
    row, usual = pack_row([1.0, 2.0, 5.0]), [0.5, 0.0, 5.0]
    found = explain(model, manifest(3, outputs=("q", "p")), row, usual, output="p", method=method)
    assert found.contributions[0].name == "x1"
    assert shares(found) == {"x1": -6.0, "x0": 1.0, "x2": 0.0}
    assert (found.value, found.baseline_value, found.output) == (1.0, 6.0, "p")


def test_what_only_counts_together_is_shared_by_shapley_and_seen_twice_by_occlusion() -> None:
    model = Formula(lambda x: (x[0] * x[1],))
    row = pack_row([2.0, 3.0])
    assert shares(explain(model, manifest(2), row, [0.0, 0.0])) == {"x0": 3.0, "x1": 3.0}
    assert shares(explain(model, manifest(2), row, [0.0, 0.0], method=ExplanationMethod.OCCLUSION)) == {
        "x0": 6.0,
        "x1": 6.0,
    }


@given(st.lists(st.floats(-3, 3, width=32), min_size=3, max_size=3))
def test_shapley_values_add_up_to_the_whole_difference(row: list[float]) -> None:
    payload, answer = net()
    loaded = find_runtime("onnx").load(inspect_bundle(write_bundle(net_manifest(answer), payload)))
    found = explain(loaded, net_manifest(answer), pack_row(row), [0.1, 0.2, 0.3])
    total = sum(one.value for one in found.contributions)
    assert total == pytest.approx(found.value - found.baseline_value, abs=1e-6)
    loaded.close()


def test_the_steps_of_a_column_move_together() -> None:
    model = Formula(lambda x: (x[0] + x[2] + x[4] + 10 * x[5],))
    found = explain(model, manifest(2, steps=3), pack_row([1.0] * 6), [0.0, 0.0])
    assert shares(found) == {"x1": 10.0, "x0": 3.0}
    whole = explain(model, manifest(2, steps=3), pack_row([1.0] * 6), [0.0, 0.0, 0.0, 0.0, 1.0, 1.0])
    assert shares(whole) == {"x0": 2.0, "x1": 0.0}


def test_runs_are_bounded_and_go_in_batches() -> None:
    model = Formula(lambda x: (sum(x),))
    most = SHAPLEY_COLUMNS_COUNT_MAX
    found = explain(model, manifest(most), pack_row([1.0] * most), [0.0] * most)
    assert (found.method, found.runs_count) == (ExplanationMethod.SHAPLEY, 2**most)
    assert max(model.batches) == BATCH_COUNT_MAX
    assert len(found.contributions) == 5
    many = 4_096
    found = explain(model, manifest(many), pack_row([1.0] * many), [0.0] * many)
    assert (found.method, found.runs_count) == (ExplanationMethod.OCCLUSION, RUNS_COUNT_MAX)
    with pytest.raises(ModelFailed, match=rf"2\*\*{most + 1} runs, there are at most {RUNS_COUNT_MAX}"):
        explain(
            model,
            manifest(most + 1),
            pack_row([1.0] * (most + 1)),
            [0.0] * (most + 1),
            method=ExplanationMethod.SHAPLEY,
        )


def test_what_cannot_be_explained_is_said() -> None:
    model = Formula(lambda x: (math.sqrt(x[0]) if x[0] >= 0 else math.nan,))
    with pytest.raises(ModelFailed, match="no number"):
        explain(model, manifest(1), pack_row([4.0]), [-1.0])
    with pytest.raises(ModelFailed, match="no output 'q'; name one of p"):
        explain(model, manifest(1), pack_row([4.0]), [0.0], output="q")
    with pytest.raises(ModelFailed, match="a baseline of 2 numbers; give 1"):
        explain(model, manifest(1), pack_row([4.0]), [0.0, 0.0])
    with pytest.raises(ModelFailed, match="a row of 8 bytes"):
        explain(model, manifest(1), pack_row([4.0, 4.0]), [0.0])
