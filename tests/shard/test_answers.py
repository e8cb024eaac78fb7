"""Answers of models that come together: each is kept once, as if it had come alone, and decided about."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import field

import stigmergy as st
from stigmergy.agents.codec import encode, tag_of
from stigmergy.agents.effects import MODELS, WorkFailed
from stigmergy.models.model import ModelSource, inferred
from stigmergy.shard.commit import open_commit
from stigmergy.shard.draft import Ready
from stigmergy.shard.inputs import Delivery, EffectSettled, Input, ResultsCame
from tests.shard.shards import Probe

BROKEN = 0.95
"""An answer from which on a handler fails."""


class Level(st.Model, name="answers-level"):
    p: float


class Other(st.Model, name="answers-other"):
    p: float


class Looked(st.Event):
    co: float


class Judged(st.Event):
    p: float
    note: str = ""


class Sensor(st.Agent):
    judged: list[float] = field(default_factory=list)

    @st.react
    def ask(self, event: Looked) -> st.Effects:
        yield Level.ask([event.co, 1.0])

    @st.decide
    def answered(self, result: st.Inferred[Level]) -> st.Events:
        yield Judged(p=result.answer.p, note="x" * int(result.source.latency_s))

    @st.evolve
    def judge(self, event: Judged) -> None:
        self.judged.append(event.p)

    @st.react
    def warn(self, event: Judged) -> st.Effects:
        if event.p >= BROKEN:
            raise RuntimeError("not mended")
        yield st.Publish(topic="levels", event=event)


class Folding(st.Agent):
    """Makes an answer part of its state itself, and decides besides."""

    last: float = 0.0

    @st.react
    def ask(self, event: Looked) -> st.Effects:
        yield Level.ask([event.co, 1.0])

    @st.evolve
    def fold(self, result: st.Inferred[Level]) -> None:
        self.last = result.answer.p

    @st.decide
    def answered(self, result: st.Inferred[Level]) -> st.Events:
        yield Judged(p=self.last + result.answer.p)


def asking(*agents: str, times: int = 1) -> tuple[Probe, Ready]:
    """A shard whose agents have asked."""
    probe = Probe(Sensor, Folding)
    items = [(agent, encode(Looked(co=float(number)))) for number in range(times) for agent in agents]
    probe.step(Delivery("local", items))
    return probe, probe.seal()


def answer(p: float, latency_s: float = 0.5) -> bytes:
    source = ModelSource("answers-level", "1.0.0", bytes(32), bytes(16), latency_s)
    return encode(inferred(Level(p=p), source=source))


def answers(ready: Ready, *bodies: bytes) -> list[EffectSettled]:
    owed = [pending for pending in ready.owed if pending.sink == MODELS]
    return [EffectSettled(MODELS, one.sequence, body) for one, body in zip(owed, bodies, strict=True)]


def tags(ready: Ready) -> list[str]:
    return [tag_of(body) for _, body in open_commit(ready.sealed.body).events]


@pytest.mark.parametrize("kind", ["Sensor", "Folding"])
def test_together_they_leave_the_same_log_as_one_by_one(kind: str) -> None:
    digests = []
    for together in (False, True):
        probe, ready = asking(f"{kind}/a", f"{kind}/b", times=2)
        found = answers(ready, answer(0.1), answer(0.2), answer(BROKEN), answer(0.4))
        inputs: list[Input] = [ResultsCame(found)] if together else [*found]
        probe.step(*inputs)
        ready = probe.seal()
        assert not probe.state.outbox.get(MODELS, 1)
        digests.append(ready.sealed.digest)
    assert digests[0] == digests[1]


def test_each_is_kept_once_in_the_bytes_that_came() -> None:
    probe, ready = asking("Sensor/a", "Sensor/b")
    found = answers(ready, answer(0.1), answer(0.2))
    probe.step(ResultsCame([*found, found[0]]), ResultsCame(found))
    events = open_commit(probe.seal().sealed.body).events
    assert [body for _, body in events] == [
        answer(0.1),
        encode(Judged(p=0.1)),
        answer(0.2),
        encode(Judged(p=0.2)),
    ]
    assert probe.shard.counters.duplicates == 3
    probe.step(ResultsCame(found))
    assert probe.shard.seal() is None
    assert (probe.agent("Sensor/a").judged, probe.agent("Sensor/b").judged) == ([0.1], [0.2])


def test_answers_without_room_wait_for_the_next_commit() -> None:
    names = [f"Sensor/s{number}" for number in range(40)]
    probe, ready = asking(*names)
    waiting: list[Input] = [ResultsCame(answers(ready, *(answer(0.5, 10_000.0) for _ in names)))]
    commits = []
    while waiting:
        waiting = probe.step(*waiting).left
        commits.append(probe.seal())
    assert len(commits) > 1
    kept = [tag for one in commits for tag in tags(one)]
    assert kept == ["stigmergy.Inferred.answers-level@1", "Judged@1"] * len(names)
    assert all(probe.agent(name).judged == [0.5] for name in names)


def test_an_answer_on_which_a_handler_fails_is_kept_and_changes_nothing() -> None:
    probe, ready = asking("Sensor/a", times=2)
    probe.step(ResultsCame(answers(ready, answer(BROKEN), answer(0.3))))
    # A query sees the agent as it is on disk, whatever has failed and followed since.
    assert probe.shard.open_images["Sensor/a"].judged == []
    assert probe.agent("Sensor/a").judged == [0.3]
    ready = probe.seal()
    inferred_tag = "stigmergy.Inferred.answers-level@1"
    assert tags(ready) == [inferred_tag, "stigmergy.InputFailed@1", inferred_tag, "Judged@1"]
    (letter,) = probe.state.letters.all()
    assert letter.input == answer(BROKEN)


def test_a_stopped_agent_learns_of_its_answer_and_decides_nothing() -> None:
    probe, ready = asking("Sensor/a")
    probe.state.stopped["Sensor/a"] = "for the test"
    probe.shard.step([ResultsCame(answers(ready, answer(0.3)))], int(probe.now_s * 1e9))
    sealed = probe.shard.seal()
    assert sealed is not None
    assert tags(sealed) == ["stigmergy.Inferred.answers-level@1"]
    assert probe.agent("Sensor/a").judged == []


def test_what_nobody_has_a_handler_for_is_passed_over_or_a_letter() -> None:
    probe, ready = asking("Sensor/a", "Sensor/b")
    other: Any = inferred(Other(p=0.5))
    failed = encode(WorkFailed(work="answers-level", reason="for the test"))
    probe.step(ResultsCame(answers(ready, encode(other), failed)))
    assert tags(probe.seal()) == ["stigmergy.InputFailed@1"]
    (letter,) = probe.state.letters.all()
    assert "Sensor has no handler for stigmergy.Inferred.answers-other@1" in letter.error
    assert probe.state.outbox.count == 0
