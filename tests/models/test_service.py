"""The service of a node's models, in virtual time: batches, deadlines, full queues, rests, threads that hang."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given as for_all
from hypothesis import strategies

import stigmergy as st
from stigmergy.agents.codec import encode
from stigmergy.base.errors import ConfigError
from stigmergy.models.engine import Done, Explain, RowResult, ThreadEngine, run_rows
from stigmergy.models.model import ModelAsked, digest_of_inputs
from stigmergy.models.runtime import LoadedModel, unpack_row
from stigmergy.models.service import (
    FAILURES_BEFORE_REST,
    REST_S,
    Choice,
    LoadedVersion,
    ModelAnswer,
    ModelService,
    Newest,
)
from stigmergy.sim.loop import SimClock, VirtualLoop

WITHIN_S = 0.1


class Level(st.Model, within_s=WITHIN_S):
    level: float

    @classmethod
    def fallback(cls, inputs: st.Inputs) -> Level:
        if inputs[0] == 13:
            raise ValueError("an unlucky number")
        return cls(level=-inputs[0])


class Other(st.Model, within_s=WITHIN_S):
    value: float


class TimedEngine:
    """An ModelEngine in virtual time: each run takes `took_s`, and answers what `result` makes of a row."""

    def __init__(self) -> None:
        self.took_s = 0.01
        self.abandoned = 0
        self.batches: list[list[float]] = []
        self.closed: list[Any] = []
        self.result: Callable[[float], RowResult] = lambda value: RowResult((2 * value,))
        self.room = True
        self._run: asyncio.TimerHandle | None = None

    def run(self, loaded: Any, rows: Sequence[bytes], done: Done, explain: Explain | None = None) -> None:
        values = [unpack_row(row)[0] for row in rows]
        self.batches.append(values)
        results = [self.result(value) for value in values]
        self._run = asyncio.get_running_loop().call_later(self.took_s, done, results)

    def abandon(self, freed: Callable[[], None]) -> bool:
        self.abandoned += 1
        self.freed = freed
        return self.room

    def close_model(self, loaded: Any) -> None:
        self.closed.append(loaded)

    def close(self) -> None:
        if self._run is not None:
            self._run.cancel()


class Bench:
    """A service on such an engine, and what it has answered, in order."""

    def __init__(self, **settings: Any) -> None:
        self.loop = asyncio.get_running_loop()
        assert isinstance(self.loop, VirtualLoop)
        self.engine = TimedEngine()
        models = {"level": Level, "other": Other}
        self.service = ModelService(models, SimClock(self.loop), self.engine, st.ModelSettings(**settings))
        self.answers: list[ModelAnswer] = []
        self.lost: list[LoadedVersion] = []
        self.service.lost = self.lost.append
        self.service.have(unit())

    def ask(self, *values: float, agent: str = "Tank/1", model: str = "level") -> None:
        for value in values:
            body = encode(ModelAsked(model=model, inputs=Level.ask([value]).inputs))
            self.service.ask(agent, body, self.answers.append)

    @property
    def levels(self) -> list[float]:
        return [event(answer).answer.level for answer in self.answers]

    @property
    def outcomes(self) -> list[str]:
        return [answer.outcome for answer in self.answers]


def unit(version: str = "1.0.0", model: str = "level", loaded: Any = None) -> LoadedVersion:
    return LoadedVersion(model, version, b"digest", loaded or version, 4, (0,), 1)


def event(answer: ModelAnswer) -> Any:
    return msgspec.msgpack.decode(answer.body, type=st.Inferred[Level])


def virtual(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs a test in virtual time."""

    def run() -> None:
        VirtualLoop(seed=1).run(test())

    run.__name__ = test.__name__
    return run


@virtual
async def test_what_waits_is_answered_in_one_batch() -> None:
    bench = Bench(batch_rows_max=3)
    bench.ask(1, 2, 3, 4)
    assert bench.answers == []
    await asyncio.sleep(0.05)
    assert bench.engine.batches == [[1, 2, 3], [4]]
    assert bench.levels == [2, 4, 6, 8]
    assert bench.outcomes == ["model"] * 4
    assert [answer.latency_ns for answer in bench.answers] == [10_000_000] * 3 + [20_000_000]
    source = event(bench.answers[3]).source
    assert (source.version, source.digest, source.latency_s, source.fallback) == ("1.0.0", b"digest", 0.02, "")


@virtual
async def test_at_the_deadline_the_rule_answers_and_what_comes_late_is_dropped() -> None:
    bench = Bench()
    bench.engine.took_s = 3 * WITHIN_S
    bench.ask(1)
    await asyncio.sleep(WITHIN_S / 2)
    bench.ask(2)
    await asyncio.sleep(WITHIN_S / 2 + 0.001)
    assert (bench.levels, bench.outcomes) == ([-1], ["late"])
    await asyncio.sleep(5)
    assert (bench.levels, bench.outcomes) == ([-1, -2], ["late", "late"])
    assert [round(answer.latency_ns / 1e9, 6) for answer in bench.answers] == [WITHIN_S] * 2
    assert [trouble.code for trouble in bench.service.troubles()] == ["model-fallback"] * 2  # other has no bundle
    bench.engine.took_s = 0.01
    bench.ask(3)
    await asyncio.sleep(1)
    assert bench.levels[-1] == 6
    assert [str(trouble)[:11] for trouble in bench.service.troubles()] == ["model other"]


@virtual
async def test_of_a_full_queue_the_oldest_is_answered_by_the_rule() -> None:
    bench = Bench(waiting_count_max=2)
    bench.ask(1, 2, 3, 4)
    assert (bench.levels, bench.outcomes) == ([-1, -2], ["queue-full", "queue-full"])
    await asyncio.sleep(1)
    assert bench.levels[2:] == [6, 8]


@virtual
async def test_a_full_queue_of_questions_that_are_over_answers_none_of_them_twice() -> None:
    bench = Bench(waiting_count_max=2, hung_s=50)
    bench.engine.took_s = 10
    bench.ask(1)
    await asyncio.sleep(0.01)
    bench.ask(2, 3)
    await asyncio.sleep(1)
    bench.ask(4, 5, 6)
    await asyncio.sleep(20)
    assert sorted(bench.levels, reverse=True) == [-1, -2, -3, -4, -5, -6]


@virtual
async def test_a_model_that_fails_again_and_again_rests_and_is_asked_again() -> None:
    bench = Bench()
    bench.engine.result = lambda _: RowResult(failed="no")
    for _ in range(FAILURES_BEFORE_REST):
        bench.ask(1)
        await asyncio.sleep(0.05)
    bench.ask(1)
    assert bench.outcomes == ["failed"] * FAILURES_BEFORE_REST + ["resting"]
    assert event(bench.answers[-1]).source.fallback == "resting: no; it is asked again after 0.25 s"
    await asyncio.sleep(REST_S)
    bench.ask(1)
    await asyncio.sleep(0.05)
    assert bench.outcomes[-1] == "failed"
    await asyncio.sleep(REST_S)
    bench.ask(1)  # it rests twice as long now
    assert bench.outcomes[-1] == "resting"
    await asyncio.sleep(REST_S)
    bench.engine.result = lambda value: RowResult((value,))
    bench.ask(1)
    await asyncio.sleep(0.05)
    assert bench.outcomes[-1] == "model"
    assert len(bench.engine.batches) == FAILURES_BEFORE_REST + 2


@virtual
async def test_what_the_model_answers_badly_is_answered_by_the_rule() -> None:
    bench = Bench()
    bad = {1: RowResult((math.nan,)), 2: RowResult((math.inf,)), 3: RowResult((1.0, 2.0)), 4: RowResult()}
    bench.engine.result = lambda value: bad.get(int(value), RowResult((value,)))
    bench.ask(1, 2, 3, 4, 5)
    await asyncio.sleep(0.05)
    assert bench.levels == [-1, -2, -3, -4, 5]
    assert bench.outcomes == ["not-finite", "not-finite", "out-of-shape", "out-of-shape", "model"]


@virtual
async def test_inputs_that_no_model_takes_are_answered_at_once() -> None:
    bench = Bench()
    bench.ask(math.inf)
    bench.service.ask("Tank/1", encode(Level.ask([1, 2])), bench.answers.append)
    reasons = [answer.body and event(answer).source.fallback for answer in bench.answers[1:]]
    assert bench.answers[0].failed.startswith("inputs: NaN or infinity, and its rule failed: ValueError")
    assert reasons == ["inputs: 2 numbers, the model takes 1"]


@virtual
async def test_a_rule_that_fails_is_told_to_the_agent() -> None:
    bench = Bench()
    bench.engine.result = lambda _: RowResult(failed="no")
    bench.ask(13)
    bench.ask(13, model="other")
    bench.ask(13, model="unknown")
    await asyncio.sleep(0.05)
    assert [answer.failed for answer in bench.answers] == [
        "missing, and other has no rule",
        "no agent of this fleet has a handler for the answers of 'unknown'; write one",
        "failed: no, and its rule failed: ValueError: an unlucky number",
    ]
    assert all(b"WorkFailed" in answer.body for answer in bench.answers)


@virtual
async def test_a_thread_that_hangs_is_left_behind_and_the_model_loaded_anew() -> None:
    bench = Bench(hung_s=1.0)
    bench.engine.took_s = 1000
    bench.ask(1)
    await asyncio.sleep(0.95)
    bench.ask(2)
    await asyncio.sleep(0.1)
    assert (bench.outcomes, bench.engine.abandoned, bench.lost) == (["late", "hung"], 1, [unit()])
    bench.ask(3)
    assert bench.outcomes[-1] == "hung"
    bench.engine.took_s = 0.01
    bench.service.have(unit())
    bench.ask(4)
    await asyncio.sleep(0.05)
    assert bench.levels == [-1, -2, -3, 8]


@virtual
async def test_with_too_many_threads_left_behind_the_rules_answer_until_one_is_back() -> None:
    bench = Bench(hung_s=1.0)
    bench.engine.took_s, bench.engine.room = 1000, False
    bench.ask(1)
    await asyncio.sleep(1.1)
    bench.service.have(unit())
    bench.engine.took_s = 0.01
    bench.ask(2)
    assert bench.outcomes == ["late", "hung"]
    bench.engine.freed()
    bench.ask(3)
    await asyncio.sleep(0.05)
    assert bench.levels == [-1, -2, 6]


@virtual
async def test_versions_are_chosen_per_agent() -> None:
    bench = Bench()

    class Canary(Newest):
        def choose(self, model: str, agent: str, loaded: Sequence[str]) -> Choice:
            return Choice("9.9.9") if agent == "Tank/9" else Choice(loaded[agent == "Tank/7"], arm="canary")

    bench.service.versions = Canary()
    bench.service.have(unit("1.1.0"))
    for agent in ("Tank/1", "Tank/7", "Tank/9"):
        bench.ask(1, agent=agent)
    await asyncio.sleep(1)
    found = [(answer.agent, answer.version, event(answer).source.arm) for answer in bench.answers]
    assert found == [("Tank/9", "", ""), ("Tank/1", "1.0.0", "canary"), ("Tank/7", "1.1.0", "canary")]
    assert event(bench.answers[0]).source.fallback == "missing: version 9.9.9 is not loaded"


@virtual
async def test_a_version_that_is_dropped_leaves_nobody_waiting() -> None:
    bench = Bench()
    bench.ask(1)
    await asyncio.sleep(0.001)
    bench.ask(2)
    bench.service.drop(unit())
    bench.service.drop(unit())
    await asyncio.sleep(1)
    assert bench.levels == [-1, -2]
    assert bench.engine.closed == ["1.0.0"]


@virtual
async def test_a_version_that_is_replaced_answers_with_the_new_one_what_waits() -> None:
    bench = Bench()
    bench.ask(1)
    await asyncio.sleep(0.001)
    bench.ask(2)
    bench.service.have(LoadedVersion("level", "1.0.0", b"other", "new", 4, (0,), 1))
    await asyncio.sleep(1)
    assert [event(answer).source.digest for answer in bench.answers] == [b"digest", b"other"]
    assert bench.engine.closed == ["1.0.0"]


@virtual
async def test_models_take_turns() -> None:
    bench = Bench(batch_rows_max=1)
    bench.service.have(unit(model="other"))
    bench.ask(1, 2)
    bench.ask(10, 20, model="other")
    await asyncio.sleep(1)
    assert bench.engine.batches == [[1], [10], [2], [20]]


@virtual
async def test_closed_it_answers_nobody() -> None:
    bench = Bench()
    bench.ask(1)
    await asyncio.sleep(0.001)
    bench.ask(2)
    bench.service.close()
    await asyncio.sleep(10)
    assert bench.answers == []


@for_all(
    strategies.lists(
        strategies.tuples(strategies.floats(0, 0.2), strategies.floats(0, 0.3), strategies.sampled_from("mfnx")),
        max_size=30,
    ),
    strategies.integers(1, 4),
    strategies.integers(1, 4),
)
def test_every_question_has_one_answer_in_time(script: list[tuple[float, float, str]], waiting: int, rows: int) -> None:
    results = {"m": RowResult((1.0,)), "f": RowResult(failed="f"), "n": RowResult((math.nan,)), "x": RowResult()}

    async def run() -> None:
        bench = Bench(waiting_count_max=waiting, batch_rows_max=rows, hung_s=0.25)
        bench.service.lost = bench.service.have
        for number, (pause_s, took_s, result) in enumerate(script):
            bench.engine.took_s = took_s
            bench.engine.result = lambda _, result=result: results[result]  # type: ignore[misc]
            bench.ask(number + 100.0)
            await asyncio.sleep(pause_s)
        await asyncio.sleep(1)
        asked = [digest_of_inputs(Level.ask([number + 100.0]).inputs) for number in range(len(script))]
        assert sorted(event(answer).source.inputs for answer in bench.answers) == sorted(asked)
        assert all(answer.latency_ns <= WITHIN_S * 1e9 + 1_000 for answer in bench.answers)

    VirtualLoop(seed=1).run(run())


async def test_a_thread_that_comes_back_is_counted_once_and_ends() -> None:
    let_go, closed, freed = threading.Event(), threading.Event(), asyncio.Event()
    engine = ThreadEngine(1)
    answers: list[list[RowResult]] = []

    class Hanging(TwoAnswers):
        def run(self, rows: Sequence[bytes]) -> list[tuple[float, ...]]:
            let_go.wait(60)
            return super().run(rows)

        def close(self) -> None:
            closed.set()

    engine.run(Hanging(), [b"1", b"2"], answers.append)
    engine.close_model(Hanging())
    assert not engine.abandon(freed.set)
    assert engine.abandoned == 1
    let_go.set()
    async with asyncio.timeout(60):
        await freed.wait()
    assert await asyncio.to_thread(closed.wait, 60)
    engine.run(TwoAnswers(), [b"1", b"2"], answers.append)
    async with asyncio.timeout(60):
        while not answers:  # noqa: ASYNC110 - a thread tells it
            await asyncio.sleep(0.005)
    assert (answers, engine.abandoned) == ([[RowResult((1.0,)), RowResult((2.0,))]], 0)
    engine.close()


async def test_an_explanation_under_way_ends_with_its_engine() -> None:
    begun, let_go, runs = threading.Event(), threading.Event(), []

    class Slow(TwoAnswers):
        def run(self, rows: Sequence[bytes]) -> list[tuple[float, ...]]:
            runs.append(len(rows))
            if len(rows) == 1:
                begun.set()
                let_go.wait(60)
            return super().run(rows)

    def explain(loaded: LoadedModel, row: bytes) -> tuple[tuple[str, float], ...]:
        return tuple((str(number), loaded.run([row])[0][0]) for number in range(9))

    engine = ThreadEngine(1)
    engine.run(Slow(), [b"1", b"2"], lambda _: None, explain)
    assert await asyncio.to_thread(begun.wait, 60)
    engine.close()
    assert await engine.ended(0.01) == 1
    let_go.set()
    assert await engine.ended(60) == 0
    assert runs == [2, 1]


async def test_an_engine_waits_also_for_a_thread_that_was_left_behind() -> None:
    begun, let_go = threading.Event(), threading.Event()

    class Hanging(TwoAnswers):
        def run(self, rows: Sequence[bytes]) -> list[tuple[float, ...]]:
            begun.set()
            let_go.wait(60)
            return super().run(rows)

    engine = ThreadEngine(2)
    engine.run(Hanging(), [b"1"], lambda _: None)
    assert await asyncio.to_thread(begun.wait, 60)
    assert engine.abandon(lambda: None)
    engine.close()
    assert await engine.ended(0.01) == 1
    let_go.set()
    assert await engine.ended(60) == 0


class TwoAnswers:
    memory_bytes = 1

    def run(self, rows: Sequence[bytes]) -> list[tuple[float, ...]]:
        return [(1.0,), (2.0,)]

    def close(self) -> None: ...


def test_a_runtime_that_answers_another_count_of_rows_has_answered_none() -> None:
    rows = [b"1"] * 3
    assert [one.failed for one in run_rows(TwoAnswers(), rows)] == ["2 answers to 3 rows"] * 3


def test_an_explanation_that_fails_is_left_out() -> None:
    def explain(loaded: Any, row: bytes) -> tuple[tuple[str, float], ...]:
        if row == b"2":
            raise ValueError(row)
        return (("co", 0.5),)

    found = run_rows(TwoAnswers(), [b"1", b"2"], explain)
    assert found == [RowResult((1.0,), "", (("co", 0.5),)), RowResult((2.0,))]


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        ({"waiting_count_max": 0}, "give 1 to 1000000"),
        ({"batch_rows_max": 5_000}, "give 1 to 4096"),
        ({"threads": 0}, "give 1 to 64"),
        ({"hung_s": 0}, "more than 0"),
        ({"drain_s": 0}, "more than 0"),
        ({"look_s": 1e9}, "up to a day"),
        ({"memory_bytes_max": 0}, "a number of bytes"),
    ],
)
def test_bounds_that_are_none_are_refused(bounds: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        st.ModelSettings(**bounds)
