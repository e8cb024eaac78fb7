"""What every runtime of models must do, as tests: inherit them to prove your own. Needs only pytest.

    class TestMyRuntime(RuntimeContract):
        @pytest.fixture
        def runtime(self):
            return MyRuntime()

        @pytest.fixture
        def bundle(self):
            return inspect_bundle(Path("my-model-1.0.0.model").read_bytes())

The bundle must have two examples or more, whose answers differ by more than CONTRACT_TOLERANCE and were worked out by
something other than the runtime; a thousandth of an input must not change an answer.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import msgspec
import pytest

from stigmergy.base.errors import ModelFailed, ModelRefused
from stigmergy.models.bundle import Bundle, Manifest
from stigmergy.models.runtime import CONTRACT_TOLERANCE, ROWS_COUNT_MAX, ModelRuntime, pack_row


def close_to(expected: Sequence[tuple[float, ...]], tolerance: float = CONTRACT_TOLERANCE) -> list[object]:
    """Compares equal with answers that differ by no more than that."""
    return [pytest.approx(answer, rel=tolerance, abs=tolerance, nan_ok=True) for answer in expected]


class RuntimeContract:
    """Every sentence of the port's docstring, one test or more each."""

    @pytest.fixture
    def runtime(self) -> ModelRuntime:
        """The runtime under test. A subclass gives it."""
        raise NotImplementedError("give the fixture runtime: see the module's docstring")

    @pytest.fixture
    def bundle(self) -> Bundle:
        """A model for it, with examples. A subclass gives it."""
        raise NotImplementedError("give the fixture bundle: see the module's docstring")

    @pytest.fixture
    def rows(self, bundle: Bundle) -> list[bytes]:
        """The inputs of the examples."""
        rows = [example.inputs for example in bundle.manifest.examples]
        assert len(rows) >= 2, "record two examples or more"
        return rows

    def test_the_manifest_names_the_runtime(self, runtime: ModelRuntime, bundle: Bundle) -> None:
        assert bundle.manifest.runtime == runtime.name

    def test_examples_are_answered_as_recorded_and_in_order(
        self, runtime: ModelRuntime, bundle: Bundle, rows: list[bytes]
    ) -> None:
        loaded = runtime.load(bundle, 1)
        recorded = [example.outputs for example in bundle.manifest.examples]
        answers = loaded.run(rows)
        assert answers == close_to(recorded, bundle.manifest.tolerance)
        assert loaded.run(rows[::-1]) == close_to(answers[::-1])
        assert all(type(answer) is tuple and all(type(value) is float for value in answer) for answer in answers)
        assert len({tuple(round(value, 4) for value in answer) for answer in answers}) > 1, "answers must differ"
        loaded.close()

    @pytest.mark.parametrize("count", [1, 2, 7, 64, 513])
    def test_a_batch_answers_as_its_rows_one_by_one(
        self, runtime: ModelRuntime, bundle: Bundle, rows: list[bytes], count: int
    ) -> None:
        loaded = runtime.load(bundle, 1)
        batch = [rows[index % len(rows)] for index in range(count)]
        alone = [loaded.run([row])[0] for row in batch]
        assert loaded.run(batch) == close_to(alone)
        loaded.close()

    def test_no_rows_have_no_answers(self, runtime: ModelRuntime, bundle: Bundle) -> None:
        loaded = runtime.load(bundle, 1)
        assert loaded.run([]) == []
        loaded.close()

    def test_threads_of_a_run_change_nothing(self, runtime: ModelRuntime, bundle: Bundle, rows: list[bytes]) -> None:
        one, two = runtime.load(bundle, 1), runtime.load(bundle, 2)
        assert two.run(rows) == close_to(one.run(rows))
        one.close()
        two.close()

    @pytest.mark.parametrize("wrong", [-4, -1, 1, 4])
    def test_a_row_of_another_size_is_refused_and_the_next_batch_runs(
        self, runtime: ModelRuntime, bundle: Bundle, rows: list[bytes], wrong: int
    ) -> None:
        loaded = runtime.load(bundle, 1)
        before = loaded.run(rows)
        with pytest.raises(ModelFailed, match="row 1"):
            loaded.run([rows[0], bytes(len(rows[0]) + wrong)])
        assert loaded.run(rows) == before
        loaded.close()

    def test_too_many_rows_are_refused(self, runtime: ModelRuntime, bundle: Bundle, rows: list[bytes]) -> None:
        loaded = runtime.load(bundle, 1)
        with pytest.raises(ModelFailed, match=str(ROWS_COUNT_MAX)):
            loaded.run([rows[0]] * (ROWS_COUNT_MAX + 1))
        loaded.close()

    @pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
    def test_what_is_no_number_passes_and_leaves_its_neighbours_alone(
        self, runtime: ModelRuntime, bundle: Bundle, rows: list[bytes], number: float
    ) -> None:
        loaded = runtime.load(bundle, 1)
        strange = pack_row([number] * bundle.manifest.row_count)
        before, answer, after = loaded.run([rows[0], strange, rows[1]])
        assert [before, after] == close_to(loaded.run(rows[:2]))
        assert len(answer) == len(bundle.manifest.outputs)
        assert [answer] == close_to(loaded.run([strange]))
        loaded.close()

    def test_closing_twice_is_no_error_and_running_afterwards_is(
        self, runtime: ModelRuntime, bundle: Bundle, rows: list[bytes]
    ) -> None:
        loaded, other = runtime.load(bundle, 1), runtime.load(bundle, 1)
        loaded.close()
        loaded.close()
        with pytest.raises(ModelFailed, match="closed"):
            loaded.run(rows)
        assert len(other.run(rows)) == len(rows)
        other.close()

    def test_it_says_what_memory_it_takes(self, runtime: ModelRuntime, bundle: Bundle) -> None:
        loaded = runtime.load(bundle, 1)
        assert 0 < loaded.memory_bytes <= bundle.manifest.class_limits.memory_bytes_max
        loaded.close()

    def test_another_thread_may_run_it(self, runtime: ModelRuntime, bundle: Bundle, rows: list[bytes]) -> None:
        loaded = runtime.load(bundle, 1)
        found: list[list[tuple[float, ...]]] = []
        thread = threading.Thread(target=lambda: found.append(loaded.run(rows)))
        thread.start()
        thread.join()
        assert found == [loaded.run(rows)]
        loaded.close()

    @pytest.mark.parametrize("cut", [0, 1, 10])
    def test_a_damaged_payload_is_refused(self, runtime: ModelRuntime, bundle: Bundle, cut: int) -> None:
        for payload in (bundle.payload[:cut], bundle.payload[: len(bundle.payload) * cut // 11], b"\xff" * 100):
            with pytest.raises(ModelRefused):
                runtime.load(msgspec.structs.replace(bundle, payload=payload), 1)

    def test_a_manifest_of_another_model_is_refused(self, runtime: ModelRuntime, bundle: Bundle) -> None:
        manifest = bundle.manifest
        others: tuple[Manifest, ...] = (
            msgspec.structs.replace(manifest, outputs=(*manifest.outputs, "one more")),
            msgspec.structs.replace(manifest, inputs=manifest.inputs[:1], steps=1),
        )
        for other in others:
            with pytest.raises(ModelRefused):
                runtime.load(msgspec.structs.replace(bundle, manifest=other), 1)
