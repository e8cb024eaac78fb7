"""The shadow, in virtual time: every question that it answered within its bounds counts, and none waits for it."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

import stigmergy as st
from stigmergy.agents.codec import encode
from stigmergy.base.system import SystemThreads
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.models.engine import RowResult
from stigmergy.models.model import ModelAsked
from stigmergy.models.rollout import RolloutRule, Stage, VersionCounts
from stigmergy.models.rollout_agent import KIND, CountsHeard, ModelRollout, RolloutBegan, StageBegan
from stigmergy.models.service import LoadedVersion, ModelAnswer, ModelService
from stigmergy.models.trial import PAIRS_COUNT_MAX, Trial
from stigmergy.models.versions import RecordTrust, RolloutVersions, ShadowVersions
from stigmergy.shard.outbox import TellBody
from stigmergy.sim.loop import SimClock, VirtualLoop
from stigmergy.testing import given as given_agent
from tests.models.gas import SIGNER
from tests.models.test_service import TimedEngine, virtual

WITHIN_S = 0.1


class Smoke(st.Model, name="smoke", within_s=WITHIN_S):
    risk: float

    @classmethod
    def fallback(cls, inputs: st.Inputs) -> Smoke:
        return cls(risk=0.0)


class Here:
    """The rollout of this node: its state, and what it was told."""

    def __init__(self, stage: Stage) -> None:
        began = RolloutBegan(version="1.3.0", stable="1.2.0", rule=RolloutRule(report_s=0.01, canary=1.0))
        self.agent = given_agent(ModelRollout, began, StageBegan(stage=stage, seconds=60), id="smoke").agent
        self.stable = self.candidate = VersionCounts()

    def find(self, model: str) -> ModelRollout | None:
        return self.agent

    async def observe(self, model: str, event: st.Event) -> None:
        assert isinstance(event, CountsHeard)
        self.stable, self.candidate = event.stable, event.candidate


class Bench:
    """A node in the shadow stage. The old version says that a half is too much, the new one 0.7."""

    def __init__(self, stage: Stage = "shadow") -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        clock, models = SimClock(loop), {"smoke": Smoke}
        self.here = Here(stage)
        trust = RecordTrust([SIGNER.public_key], Ed25519Verifier(), SIGNER)
        self.versions = RolloutVersions("city", models, trust, clock, SystemThreads(), source="here")
        self.versions.here = self.here
        self.old, self.new = TimedEngine(), TimedEngine()
        self.old.result = lambda value: RowResult((float(value >= 0.5),))
        self.new.result = lambda value: RowResult((float(value >= 0.7),))
        service = ModelService(models, clock, self.old, versions=self.versions)
        shadow = ModelService(models, clock, self.new, versions=ShadowVersions(self.versions))
        self.shadow = shadow
        for one, versions in ((service, ("1.2.0", "1.3.0")), (shadow, ("1.3.0",))):
            for version in versions:
                one.have(LoadedVersion("smoke", version, b"digest", version, 4, (0,), 1))
        self.trial = Trial(self.versions, service, shadow)
        self.answers: list[tuple[float, ModelAnswer]] = []

    def ask(self, *values: float, first: int = 0) -> None:
        loop = asyncio.get_running_loop()
        for number, value in enumerate(values, first):
            body = encode(ModelAsked(model="smoke", inputs=Smoke.ask([value]).inputs))
            self.trial.ask("A/a", body, lambda one: self.answers.append((loop.time(), one)), (9, number, 0))

    def judge(self, number: int, *, right: bool) -> None:
        source = msgspec.msgpack.decode(self.answers[number][1].body, type=st.Inferred[Smoke]).source
        tell = Smoke.judged(source, right=right)
        self.trial.heard(encode(TellBody(tell.to, encode(tell.message))))

    async def counts(self) -> tuple[VersionCounts, VersionCounts]:
        await asyncio.sleep(2)
        return self.here.stable, self.here.candidate


async def started(stage: Stage = "shadow") -> Bench:
    bench = Bench(stage)
    await bench.versions.start(None)
    await asyncio.sleep(1)
    return bench


@pytest.mark.parametrize("shadow_s", [0.001, 0.09])
def test_a_shadow_that_is_slow_is_compared_as_often_as_a_quick_one(shadow_s: float) -> None:
    async def run() -> None:
        bench = await started()
        bench.new.took_s = shadow_s
        begun_s = asyncio.get_running_loop().time()
        bench.ask(0.1, 0.6, 0.9, 0.8)
        stable, candidate = await bench.counts()
        assert [at_s - begun_s for at_s, _ in bench.answers] == pytest.approx([0.01] * 4), "it waits for nothing"
        assert (candidate.asks, candidate.failed, candidate.compared, candidate.differed) == (4, 0, 4, 1)
        assert candidate.latency_s == pytest.approx(4 * shadow_s)
        assert stable.asks == 4
        assert stable.latency_s == pytest.approx(0.04)
        sources = [msgspec.msgpack.decode(one.body, type=st.Inferred[Smoke]).source for _, one in bench.answers]
        assert {(one.version, one.shadow_version) for one in sources} == {("1.2.0", "1.3.0")}
        await bench.versions.stop()

    VirtualLoop(seed=1).run(run())


@virtual
async def test_an_answer_that_is_right_or_wrong_says_it_of_the_shadow_too_whenever_it_is_judged() -> None:
    """At once, while the shadow still thinks, and afterwards."""
    bench = await started()
    bench.new.took_s = 0.09
    bench.ask(0.6, 0.6, 0.9, 0.9)
    await asyncio.sleep(0.02)
    bench.judge(0, right=False)  # the old one has alarmed in vain, the new one has not
    bench.judge(2, right=False)  # both have
    assert bench.here.candidate.judged == 0
    await asyncio.sleep(0.2)
    bench.judge(1, right=True)  # the new one has missed it
    bench.judge(3, right=True)
    for number in range(4):
        bench.judge(number, right=False)  # said again
    _, candidate = await bench.counts()
    assert (candidate.judged, candidate.wrong) == (4, 2)
    await bench.versions.stop()


@virtual
async def test_what_the_shadow_did_not_answer_within_its_bounds_is_a_failure_and_not_compared() -> None:
    bench = await started()
    bench.new.took_s = 2 * WITHIN_S
    bench.ask(0.6, 0.9)
    await asyncio.sleep(1)
    bench.judge(0, right=False)
    stable, candidate = await bench.counts()
    assert (stable.asks, stable.failed, stable.judged) == (2, 0, 0)
    assert (candidate.asks, candidate.failed, candidate.compared, candidate.judged) == (2, 2, 0, 0)
    await bench.versions.stop()


@virtual
async def test_where_the_rule_spoke_both_count_and_nothing_is_compared() -> None:
    bench = await started()
    bench.old.result = lambda _: RowResult(failed="broken")
    bench.ask(0.9)
    stable, candidate = await bench.counts()
    assert (stable.asks, stable.failed) == (1, 1)
    assert (candidate.asks, candidate.failed, candidate.compared) == (1, 0, 0)
    await bench.versions.stop()


@virtual
async def test_what_the_shadow_was_not_asked_is_no_part_of_the_comparison() -> None:
    bench = await started()
    bench.shadow.drop(LoadedVersion("smoke", "1.3.0", b"digest", "1.3.0", 4, (0,), 1))
    bench.ask(0.9)
    assert await bench.counts() == (VersionCounts(), VersionCounts())
    assert len(bench.answers) == 1
    await bench.versions.stop()


@virtual
async def test_in_the_canary_each_version_counts_its_own_answers() -> None:
    bench = await started("canary")
    bench.ask(0.9, 0.6)
    stable, candidate = await bench.counts()
    assert (stable, candidate.asks, candidate.compared) == (VersionCounts(), 2, 0)
    await bench.versions.stop()


@virtual
async def test_of_questions_beyond_the_limit_the_oldest_are_forgotten() -> None:
    bench = await started()
    bench.old.took_s = bench.new.took_s = 0.000_1
    bench.ask(0.9)
    await asyncio.sleep(1)
    for first in range(1, PAIRS_COUNT_MAX + 1, 4_096):
        bench.ask(*[0.9] * 4_096, first=first)
        await asyncio.sleep(1)
    bench.judge(0, right=True)
    bench.judge(1, right=True)
    _, candidate = await bench.counts()
    assert candidate.compared == PAIRS_COUNT_MAX + 1
    assert candidate.judged == 1
    await bench.versions.stop()


@virtual
async def test_a_tell_that_only_looks_like_a_judgement_is_none() -> None:
    bench = await started()
    bench.ask(0.9)
    await asyncio.sleep(1)
    chance = random.Random(1)
    for _ in range(200):
        bench.trial.heard(b"stigmergy.AnswerJudged" + chance.randbytes(20))
    bench.trial.heard(encode(TellBody(f"{KIND}/smoke", b"stigmergy.AnswerJudged")))
    bench.judge(0, right=True)
    _, candidate = await bench.counts()
    assert candidate.judged == 1
    await bench.versions.stop()
