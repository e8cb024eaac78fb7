"""Answers what agents ask models: in batches on an engine, and by the model's rule where it cannot. Never blocks.

    service = ModelService(fleet.models, clock, engine, settings.models)
    service.have(unit)                      # a bundle is loaded; see supply.py
    service.ask(agent, body, settle)        # `settle` is called once, at the latest when the model's time is over

Every question has its deadline: then the rule answers, and what the model says later is dropped. Questions wait in a
bounded queue per model version; when it is full, the oldest is answered by the rule. A model that fails several times
in a row rests for a pause that doubles. A thread that hangs is left behind and replaced, so many times.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import encode, printable
from stigmergy.agents.effects import WorkFailed
from stigmergy.agents.messages import SECOND_NS
from stigmergy.base.clock import Clock
from stigmergy.base.errors import ConfigError
from stigmergy.diagnostics.codes import Trouble
from stigmergy.models.engine import Explain, ModelEngine, RowResult
from stigmergy.models.model import (
    FAILED,
    FULL,
    HUNG,
    INPUTS,
    LATE,
    MISSING,
    NOT_FINITE,
    OUT_OF_SHAPE,
    REFUSED,
    RESTING,
    Model,
    ModelAsked,
    ModelSource,
    answer_of,
    by_rule,
    digest_of_inputs,
)
from stigmergy.models.runtime import is_finite

REASON_CHARS_MAX = 300
FAILURES_BEFORE_REST = 3
REST_S, REST_S_MAX = 0.25, 60.0
HANGS_MAX = 3
"""Threads that may hang at once; then the rules answer until one comes back."""
MODEL = "model"
"""The outcome of a question that the model has answered; the others are reasons of fallbacks, and `failed`."""


class ModelSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The bounds of a node's models."""

    waiting_count_max: int = 10_000
    """Questions that wait for one version of a model; one more, and the oldest is answered by the rule."""
    batch_rows_max: int = 256
    """Questions that are answered in one run."""
    hung_s: float = 5.0
    """A run that takes longer hangs: its thread is left behind."""
    drain_s: float = 5.0
    """How long the end of a node waits for the run that is under way; then its thread is left behind."""
    look_s: float = 5.0
    """How often it is looked for new, changed and repaired bundles."""
    memory_bytes_max: int = 1 << 30
    """What all loaded models may take."""
    threads: int = 1
    """That a runtime may use for one run."""

    def __post_init__(self) -> None:
        for name, most in (("waiting_count_max", 1_000_000), ("batch_rows_max", 4_096), ("threads", 64)):
            if not 1 <= getattr(self, name) <= most:
                raise ConfigError(f"settings: models.{name} = {getattr(self, name)!r}; give 1 to {most}")
        for name in ("hung_s", "drain_s", "look_s"):
            if not 0 < getattr(self, name) <= 86_400:
                raise ConfigError(
                    f"settings: models.{name} = {getattr(self, name)!r}; give more than 0 and up to a day"
                )
        if self.memory_bytes_max < 1:
            raise ConfigError(f"settings: models.memory_bytes_max = {self.memory_bytes_max!r}; give a number of bytes")


class ModelAnswer(Struct, frozen=True):
    """What a question has come to."""

    agent: str
    model: str
    outcome: str
    body: bytes
    """The event for the agent: an `Inferred`, or `WorkFailed` where neither model nor rule has answered."""
    version: str = ""
    latency_ns: int = 0
    failed: str = ""
    """Why there is no answer."""


class Choice(Struct, frozen=True):
    """Which version answers an agent."""

    version: str
    arm: str = ""
    revision: int = 0
    """Of the step of a rollout that says so; 0: none is under way."""
    beside: str = ""
    """The version in the shadow."""


class Versions(Protocol):
    """Which versions of a model run here, and who gets which: a rollout, or the newest for everybody."""

    def wanted(self, model: str, usable: Sequence[str], refused: Sequence[str]) -> Sequence[str]:
        """Which of the usable versions to have loaded; they are sorted, the newest last. `refused` are there as well,
        and said to be of no use."""
        ...

    def choose(self, model: str, agent: str, loaded: Sequence[str]) -> Choice:
        """Which of the loaded versions, at least one, answers this agent. Asked for each question: be quick."""
        ...


class Newest:
    """The Versions of a node without a rollout."""

    def wanted(self, model: str, usable: Sequence[str], refused: Sequence[str]) -> Sequence[str]:
        """The newest one."""
        return usable[-1:]

    def choose(self, model: str, agent: str, loaded: Sequence[str]) -> Choice:
        """The newest one; there are two for the moment in which one replaces the other."""
        return Choice(loaded[-1])


class LoadedVersion(Struct, frozen=True):
    """A version of a model that can be run."""

    model: str
    version: str
    digest: bytes
    loaded: Any
    """What the engine runs."""
    row_bytes: int
    """Of its inputs; 0: any."""
    columns: tuple[int, ...]
    """Where among its outputs those are that the model's class names."""
    outputs_count: int
    explain: Explain | None = None
    policy: str = ""
    """The policy that has let it in, with version and digest; empty where nobody was asked."""


_NO_CHOICE = Choice("")


class _Question(Struct):
    """A question that has no answer yet."""

    cls: type[Model]
    agent: str
    row: bytes
    asked_ns: int
    deadline_ns: int
    """When the rule answers instead."""
    settle: Callable[[ModelAnswer], None]
    place: tuple[int, ...]
    choice: Choice = _NO_CHOICE
    is_over: bool = False


class _Lane:
    """What waits for a unit, and how it has fared."""

    def __init__(self, unit: LoadedVersion) -> None:
        self.unit = unit
        self.waiting: deque[_Question] = deque()
        self.open: deque[_Question] = deque()
        """Those that wait and those under way, the oldest first; some are over."""
        self.failures = 0
        """Runs in a row without any answer in time."""
        self.rests_until_ns = 0
        self.why = ""


class _Batch(Struct, frozen=True):
    lane: _Lane
    unit: LoadedVersion
    questions: list[_Question]
    begun_ns: int


class ModelService:
    """The models of a node. Made and called on the event loop."""

    def __init__(
        self,
        models: Mapping[str, type[Model]],
        clock: Clock,
        engine: ModelEngine,
        settings: ModelSettings | None = None,
        versions: Versions | None = None,
    ) -> None:
        self.models = models
        self.versions: Versions = versions or Newest()
        self.unusable: dict[str, tuple[str, str]] = {}
        """Per model without a version that can be used, why: MISSING or REFUSED or another reason, and a sentence."""
        self.refused: Callable[[], list[Trouble]] = list
        """Says which bundles are of no use."""
        self.lost: Callable[[LoadedVersion], None] = lambda _: None
        """Told of a unit whose thread hangs: it is to be loaded anew."""
        self.settings = settings or ModelSettings()
        self._clock = clock
        self._engine = engine
        self._lanes: dict[str, dict[str, _Lane]] = {name: {} for name in models}
        """By model and version, versions in the order in which they came."""
        self._batch: _Batch | None = None
        self._last = -1
        """The place of the lane that ran last: they take turns."""
        self._blocked = self._closed = self._pumps = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._spoke: dict[str, str] = {}
        """Models whose rule has answered last, with the reason."""

    # ------------------------------------------------------------------ which models there are

    def have(self, unit: LoadedVersion) -> None:
        """From now on this version can answer; in the place of one with the same number, if there is one."""
        lanes = self._lanes[unit.model]
        old = lanes.get(unit.version)
        if old is None:
            lanes[unit.version] = _Lane(unit)
        else:
            self._engine.close_model(old.unit.loaded)
            old.unit, old.failures, old.rests_until_ns = unit, 0, 0
        self.unusable.pop(unit.model, None)

    def drop(self, unit: LoadedVersion) -> None:
        """This version answers no more; those who wait for it get the rule's answer."""
        lane = self._lanes[unit.model].pop(unit.version, None)
        if lane is not None:
            for question in list(lane.open):
                self._by_rule(question, MISSING, "its version was taken away", unit)
            self._engine.close_model(lane.unit.loaded)

    def loaded(self, model: str) -> list[str]:
        """The versions that can answer."""
        return list(self._lanes[model])

    @property
    def waiting(self) -> int:
        """Questions that wait for their turn."""
        return sum(len(lane.waiting) for lane in self._all())

    @property
    def abandoned(self) -> int:
        """Threads that hang."""
        return self._engine.abandoned

    def troubles(self) -> list[Trouble]:
        """The models whose rule speaks, and why."""
        found = []
        for name, cls in self.models.items():
            because = self._spoke.get(name, "")
            if not self._lanes[name]:
                because = ": ".join(filter(None, self.unusable.get(name, (MISSING, ""))))
            if because:
                who = "its rule answers" if cls.__model__.has_fallback else "nobody answers"
                found.append(Trouble("model-fallback", f"model {name}: {who} ({because})", past=f"model {name}"))
        # What a rule answers for says why already.
        return [
            *found,
            *(one for one in self.refused() if one.code != "model-refused" or not any(one in x for x in found)),
        ]

    # ------------------------------------------------------------------ questions

    def ask(self, agent: str, body: bytes, settle: Callable[[ModelAnswer], None], place: tuple[int, ...] = ()) -> None:
        """Takes a question of an agent, as the bytes of a `ModelAsked`. `place` is where it is in the agent's log."""
        asked = _read_asked(body)
        cls = self.models.get(asked.model)
        now_ns = self._clock.monotonic_ns()
        if cls is None:
            reason = f"no agent of this fleet has a handler for the answers of {asked.model!r}; write one"
            settle(ModelAnswer(agent, asked.model, FAILED, _work_failed(asked.model, reason), failed=reason))
            return
        deadline_ns = now_ns + int(cls.__model__.within_s * SECOND_NS)
        question = _Question(cls, agent, asked.inputs, now_ns, deadline_ns, settle, place)
        lanes = self._lanes[asked.model]
        if not lanes:
            self._by_rule(question, *self.unusable.get(asked.model, (MISSING, "")))
            return
        choice = question.choice = self.versions.choose(asked.model, agent, list(lanes))
        lane = lanes.get(choice.version)
        if lane is None:
            self._by_rule(question, MISSING, f"version {choice.version} is not loaded")
            return
        row_bytes = lane.unit.row_bytes
        if (row_bytes and len(asked.inputs) != row_bytes) or not is_finite(asked.inputs):
            wrong = f"{len(asked.inputs) // 4} numbers, the model takes {row_bytes // 4}" if row_bytes else ""
            wrong = wrong if len(asked.inputs) != row_bytes else "NaN or infinity"
            self._by_rule(question, INPUTS, wrong, lane.unit)
        elif self._blocked:
            self._by_rule(question, HUNG, f"{HANGS_MAX} threads hang", lane.unit)
        elif now_ns < lane.rests_until_ns:
            self._by_rule(question, RESTING, lane.why, lane.unit)
        else:
            self._enqueue(lane, question)

    def _enqueue(self, lane: _Lane, question: _Question) -> None:
        if len(lane.waiting) >= self.settings.waiting_count_max:
            self._by_rule(lane.waiting.popleft(), FULL, "", lane.unit)
        lane.waiting.append(question)
        lane.open.append(question)
        if self._timer is None or question.deadline_ns < self._timer_ns:
            self._arm(question.deadline_ns)
        if not self._pumps and self._batch is None:
            # Not at once: what the same commit owes comes in the same turn, and goes in one batch.
            self._pumps = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Begins the next batch, if none is under way."""
        self._pumps = False
        if self._batch is not None or self._blocked or self._closed:
            return
        lanes = list(self._all())
        for step in range(1, len(lanes) + 1):
            place = (self._last + step) % len(lanes)
            lane = lanes[place]
            questions: list[_Question] = []
            while lane.waiting and len(questions) < self.settings.batch_rows_max:
                question = lane.waiting.popleft()
                if not question.is_over:
                    questions.append(question)
            if questions:
                self._last = place
                now_ns = self._clock.monotonic_ns()
                batch = self._batch = _Batch(lane, lane.unit, questions, now_ns)
                self._arm(now_ns + self._hung_ns)
                explain = lane.unit.explain if questions[0].cls.__model__.explain else None
                rows = [question.row for question in questions]
                self._engine.run(lane.unit.loaded, rows, partial(self._ran, batch), explain)
                return

    def _ran(self, batch: _Batch, results: list[RowResult]) -> None:
        if self._batch is not batch:
            return
        self._batch = None
        in_time, now_ns = 0, self._clock.monotonic_ns()
        for question, result in zip(batch.questions, results, strict=True):
            if not question.is_over:
                in_time += self._by_model(question, batch.unit, result, now_ns)
        still_open = batch.lane.open
        while still_open and still_open[0].is_over:
            still_open.popleft()
        self._rate(batch.lane, in_time > 0, next((one.failed for one in results if one.failed), LATE))
        self._pump()

    def _rate(self, lane: _Lane, is_well: bool, why: str) -> None:
        """After several runs in a row without any answer in time a model rests, each time longer."""
        lane.failures = 0 if is_well else lane.failures + 1
        rests = lane.failures - FAILURES_BEFORE_REST
        if rests >= 0:
            rest_s = min(REST_S_MAX, REST_S * 2 ** min(rests, 16))
            lane.why = f"{why}; it is asked again after {rest_s:g} s"
            lane.rests_until_ns = self._clock.monotonic_ns() + int(rest_s * SECOND_NS)
            while lane.waiting:
                self._by_rule(lane.waiting.popleft(), RESTING, lane.why, lane.unit)

    # ------------------------------------------------------------------ time

    @property
    def _hung_ns(self) -> int:
        return int(self.settings.hung_s * SECOND_NS)

    def _arm(self, at_ns: int) -> None:
        if self._timer is None or at_ns < self._timer_ns:
            if self._timer is not None:
                self._timer.cancel()
            delay_s = max(0, at_ns - self._clock.monotonic_ns()) / SECOND_NS
            self._timer_ns = at_ns
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        """Deadlines that are over, and a run that hangs."""
        self._timer = None
        if self._closed:
            return
        now_ns = self._clock.monotonic_ns()
        nexts = []
        for lane in list(self._all()):
            while lane.open and (lane.open[0].is_over or lane.open[0].deadline_ns <= now_ns):
                question = lane.open.popleft()
                self._by_rule(question, LATE, "", lane.unit)
            while lane.waiting and lane.waiting[0].is_over:
                lane.waiting.popleft()
            if lane.open:
                nexts.append(lane.open[0].deadline_ns)
        if self._batch is not None:
            ends_ns = self._batch.begun_ns + self._hung_ns
            if ends_ns <= now_ns:
                self._leave_behind(self._batch)
            else:
                nexts.append(ends_ns)
        if nexts:
            self._arm(min(nexts))

    def _leave_behind(self, batch: _Batch) -> None:
        """The thread hangs in a runtime: nobody else waits for it any longer."""
        self._batch = None
        for question in batch.questions:
            self._by_rule(question, HUNG, "", batch.unit)
        lanes, unit = self._lanes[batch.unit.model], batch.unit
        if lanes.get(unit.version) is batch.lane and batch.lane.unit is unit:
            # What hangs there holds it; it is loaded anew, and nobody closes it.
            del lanes[unit.version]
            self.unusable[unit.model] = (HUNG, f"a run took over {self.settings.hung_s:g} s")
            for question in batch.lane.waiting:
                self._by_rule(question, HUNG, "", unit)
            self.lost(unit)
        self._blocked = not self._engine.abandon(self._freed)
        self._pump()

    def _freed(self) -> None:
        self._blocked = False
        self._pump()

    def close(self) -> None:
        """Answers nobody any more: what is open stays owed, and is asked again after the next start."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for lane in self._all():
            lane.waiting.clear()
            self._engine.close_model(lane.unit.loaded)
        self._engine.close()

    # ------------------------------------------------------------------ answers

    def _by_model(self, question: _Question, unit: LoadedVersion, result: RowResult, now_ns: int) -> bool:
        """Gives the model's answer, or the rule's if it is of no use; whether it was of use."""
        if result.failed:
            self._by_rule(question, FAILED, result.failed, unit)
        elif len(result.outputs) != unit.outputs_count:
            counts = f"{len(result.outputs)} numbers, not {unit.outputs_count}"
            self._by_rule(question, OUT_OF_SHAPE, counts, unit)
        else:
            outputs = [result.outputs[column] for column in unit.columns]
            if not all(map(math.isfinite, outputs)):
                self._by_rule(question, NOT_FINITE, "", unit)
                return False
            source = self._source(question, unit, now_ns, explanation=result.explanation)
            try:
                event = answer_of(question.cls, outputs, source)
            except Exception as error:
                self._by_rule(question, FAILED, f"{question.cls.__name__} raised {type(error).__name__}: {error}", unit)
                return False
            self._spoke.pop(source.model, None)
            self._settle(question, MODEL, encode(event), unit, now_ns)
            return True
        return False

    def _by_rule(self, question: _Question, reason: str, detail: str = "", unit: LoadedVersion | None = None) -> None:
        if question.is_over:
            return
        name, now_ns = question.cls.__model__.name, self._clock.monotonic_ns()
        because = printable(f"{reason}: {detail}" if detail else reason, REASON_CHARS_MAX)
        self._spoke[name] = because
        if not question.cls.__model__.has_fallback:
            self._give_up(question, reason, f"{because}, and {name} has no rule", unit)
            return
        try:
            event = by_rule(question.cls, question.row, self._source(question, unit, now_ns, fallback=because))
        except Exception as error:
            text = f"{because}, and its rule failed: {type(error).__name__}: {error}"
            self._give_up(question, FAILED, printable(text, REASON_CHARS_MAX), unit)
            return
        self._settle(question, reason, encode(event), unit, now_ns)

    def _give_up(self, question: _Question, outcome: str, failed: str, unit: LoadedVersion | None) -> None:
        body = _work_failed(question.cls.__model__.name, failed)
        self._settle(question, outcome, body, unit, self._clock.monotonic_ns(), failed)

    def _settle(
        self, question: _Question, outcome: str, body: bytes, unit: LoadedVersion | None, now_ns: int, failed: str = ""
    ) -> None:
        question.is_over = True
        version, latency_ns = "" if unit is None else unit.version, now_ns - question.asked_ns
        question.settle(
            ModelAnswer(question.agent, question.cls.__model__.name, outcome, body, version, latency_ns, failed)
        )

    def _source(
        self,
        question: _Question,
        unit: LoadedVersion | None,
        now_ns: int,
        fallback: str = "",
        explanation: tuple[tuple[str, float], ...] = (),
    ) -> ModelSource:
        choice = question.choice
        return ModelSource(
            model=question.cls.__model__.name,
            version="" if unit is None else unit.version,
            digest=b"" if unit is None else unit.digest,
            inputs=digest_of_inputs(question.row),
            latency_s=(now_ns - question.asked_ns) / SECOND_NS,
            fallback=fallback,
            arm=choice.arm,
            shadow_version=choice.beside,
            policy="" if unit is None else unit.policy,
            explanation=explanation,
            revision=choice.revision,
            asked_by=question.agent if choice.revision else "",
            asked_at=question.place if choice.revision else (),
        )

    def _all(self) -> Iterator[_Lane]:
        return (lane for lanes in self._lanes.values() for lane in lanes.values())


_read_asked = msgspec.msgpack.Decoder(ModelAsked).decode


def _work_failed(model: str, reason: str) -> bytes:
    return encode(WorkFailed(work=model, reason=reason))


__all__ = ["REFUSED", "Choice", "LoadedVersion", "ModelAnswer", "ModelService", "ModelSettings", "Newest", "Versions"]
