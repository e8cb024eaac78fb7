"""Facts on which a handler failed stay facts, and what follows from them can be had once the handler is mended."""

from __future__ import annotations

from typing import Any

import pytest

from stigmergy import (
    Agent,
    Claim,
    Denied,
    Effects,
    Event,
    Events,
    Granted,
    Lost,
    Merged,
    Ordered,
    ORSet,
    Publish,
    Shared,
    Supervise,
    decide,
    evolve,
    ordered,
    react,
)
from stigmergy.agents.codec import encode, tag_of
from stigmergy.agents.shared import SharedChanged, replica_seed
from stigmergy.shard.commit import open_commit
from stigmergy.shard.draft import Ready
from stigmergy.shard.inputs import Delivery, LetterRetried, ResumeAgent, SharedReceived, VerdictCame
from stigmergy.shard.replay import apply
from stigmergy.shard.shard import Shard
from stigmergy.shard.snapshot import digest_of_state
from stigmergy.shard.state import ShardState, plan_agents

NOW_NS = 1_000_000_000_000
broken: list[str] = []
"""Which handlers are not mended yet."""


class Arrived(Event):
    vehicle: str


class Followed(Event):
    what: str


class Gate(Agent):
    vehicles: Shared[ORSet[str]]
    slot: Ordered[Claim] = ordered(of="slot-1")
    quiet: Ordered[Claim] = ordered(of="slot-2")
    supervision = Supervise(stop_after=3)

    @decide
    def arrived(self, event: Arrived) -> Events:
        yield event
        yield self.vehicles.add(event.vehicle)

    @decide
    def merged(self, event: Merged) -> Events:
        if "merged" in broken:
            raise RuntimeError("not mended")
        yield Followed(what=f"merged {len(self.vehicles)}")

    @decide
    def granted(self, verdict: Granted | Denied) -> Events:
        if "granted" in broken:
            raise RuntimeError("not mended")
        yield Followed(what=f"{type(verdict).__name__} {verdict.resource}")

    @evolve
    def lose(self, verdict: Lost) -> None:
        if "evolve lost" in broken:
            raise RuntimeError("not mended")

    @react
    def lost(self, verdict: Lost) -> Effects:
        if "lost" in broken:
            raise RuntimeError("not mended")
        yield Publish(topic="lost", event=Followed(what=verdict.reason))


PLANS = plan_agents([Gate])
GATE = "Gate/1"
GRANTED = Granted(claim="slot", resource="slot-1", token=7, for_s=5)
LOST = Lost(claim="slot", resource="slot-1", token=7, reason="over")


class Node:
    def __init__(self, name: str = "node") -> None:
        broken.clear()
        self.state = ShardState(0, PLANS)
        self.state.replica_seed = replica_seed("fleet", name.encode().ljust(32), 1)
        self.shard = Shard(self.state)
        self.readies: list[Ready] = []
        self.step(Delivery(source="test", items=[(GATE, encode(Arrived(vehicle=name)))]))

    def step(self, *inputs: Any) -> Ready:
        assert not self.shard.step(list(inputs), NOW_NS + len(self.readies)).left
        ready = self.shard.seal()
        assert ready is not None
        self.readies.append(ready)
        return ready

    def fail(self, what: str, one: Any) -> None:
        broken.append(what)
        self.step(one)
        assert self.error == "RuntimeError: not mended"

    @property
    def error(self) -> str:
        return self.state.letters.all()[-1].error

    def retry(self) -> list[str]:
        """Retries the newest letter; returns the tags of what was kept."""
        ready = self.step(LetterRetried(self.state.letters.all()[-1].letter))
        again = ShardState(0, PLANS)
        for one in self.readies:
            apply(again, open_commit(one.sealed.body), one.sealed.digest)
        assert digest_of_state(again) == digest_of_state(self.state)
        return [tag_of(body) for _, body in ready.commit.events]


def written(count: int, size: int = 1) -> SharedReceived:
    """What a peer has written."""
    peer = Node("peer")
    for number in range(count):
        peer.step(Delivery(source="test", items=[(GATE, encode(Arrived(vehicle=f"{number}{'x' * size}")))]))
    return SharedReceived(GATE, "vehicles", state=peer.state.agents[GATE].vehicles.store.to_bytes())


@pytest.mark.parametrize("size", [1, 3_000])
def test_what_follows_from_a_merge_is_decided_once_the_handler_is_mended(size: int) -> None:
    received = written(30, size)
    node = Node()
    node.fail("merged", received)
    assert len(node.state.agents[GATE].vehicles) == 32
    assert node.retry() == ["stigmergy.LetterTaken@1", "stigmergy.InputFailed@1"]
    broken.clear()
    assert node.retry() == ["stigmergy.LetterTaken@1", "Followed@1"]
    assert not node.state.letters.all()


@pytest.mark.parametrize("verdict", [GRANTED, Denied(claim="slot", resource="slot-1", reason="taken")])
def test_what_follows_from_a_verdict_is_decided_once_the_handler_is_mended(verdict: Event) -> None:
    node = Node()
    node.fail("granted", VerdictCame(GATE, encode(verdict)))
    broken.clear()
    assert node.retry() == ["stigmergy.LetterTaken@1", "Followed@1"]


def test_effects_of_a_verdict_are_asked_for_once_the_handler_is_mended() -> None:
    node = Node()
    node.step(VerdictCame(GATE, encode(GRANTED)))
    node.fail("lost", VerdictCame(GATE, encode(LOST)))
    assert node.state.agents[GATE].slot.until_ns == 0
    assert node.retry() == ["stigmergy.LetterTaken@1", "stigmergy.InputFailed@1"]
    broken.clear()
    assert node.retry() == ["stigmergy.LetterTaken@1"]
    assert [owed.sink for owed in node.readies[-1].commit.owed] == ["publish"]


def test_a_fact_without_reactions_needs_none() -> None:
    node = Node()
    node.step(VerdictCame(GATE, encode(GRANTED)))
    node.fail("evolve lost", VerdictCame(GATE, encode(LOST)))
    broken.clear()
    node.retry()
    assert not node.state.letters.all()


def test_a_stopped_agent_is_resumed_first() -> None:
    node = Node()
    for token in (1, 2, 3):
        node.fail("granted", VerdictCame(GATE, encode(Granted(claim="slot", resource="s", token=token, for_s=1))))
    assert GATE in node.state.stopped
    broken.clear()
    node.retry()
    assert "is stopped" in node.error
    assert "resume it, then retry this" in node.error
    node.step(ResumeAgent(GATE, "tester"))
    assert "Followed@1" in node.retry()


@pytest.mark.parametrize(
    "forged",
    [
        Granted(claim="slot", resource="slot-1", token=9, for_s=1e6),
        Granted(claim="nothing", resource="slot-1", token=9, for_s=1e6),
        Lost(claim="slot", resource="slot-1", token=9, reason="forged"),
        Merged(field="vehicles", state=b"nonsense"),
        Merged(field="nothing"),
        SharedChanged(field="vehicles", delta=b""),
    ],
)
def test_what_somebody_says_in_the_frameworks_name_is_no_fact_after_a_retry_either(forged: Event) -> None:
    node = Node()
    node.step(Delivery(source="ledger", items=[(GATE, encode(forged))]))
    assert "is said by the framework alone" in node.error
    node.retry()
    assert "is said by the framework alone" in node.error
    assert node.state.agents[GATE].slot == Claim(field="slot", of="slot-1")


def test_a_merge_that_nobody_has_made_is_no_fact() -> None:
    received = written(1)
    node = Node()
    node.step(Delivery(source="peers", items=[(GATE, encode(Merged(field="vehicles", state=received.state)))]))
    node.retry()
    assert "is said by the framework alone" in node.error
    assert len(node.state.agents[GATE].vehicles) == 1


def test_a_letter_for_nobody_and_one_of_nonsense_are_inputs_like_others() -> None:
    node = Node()
    for address, body in (("Gate/2", encode(GRANTED)), (GATE, b"nonsense")):
        node.step(Delivery(source="test", items=[(address, body)]))
        error = node.error
        node.retry()
        assert node.error == error
