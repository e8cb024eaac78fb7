"""Who may write into a ledger, and what a node does with one that it cannot believe."""

from __future__ import annotations

import asyncio

import pytest

from stigmergy.agents.ordered import Denied, Granted, Lost
from stigmergy.claims import reader as following
from stigmergy.claims import rules as fold
from stigmergy.claims.entries import Checkpointed
from stigmergy.claims.port import LedgerCheckpoint
from stigmergy.claims.service import CLOSED, life_of, outlive
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.sim.loop import SimEntropy
from tests.claims.stage import CELL, Stage, simulate


def key_of(name: str) -> bytes:
    return Ed25519Signer(SimEntropy(1, name).token(32)).public_key


TRUSTED = (key_of("one"), key_of("other"))


def test_only_trusted_keys_write() -> None:
    async def main(stage: Stage) -> None:
        one, other = await stage.node("one", trusted=TRUSTED), await stage.node("other", trusted=TRUSTED)
        await asyncio.sleep(0.2)
        stranger = await stage.node("stranger")
        await asyncio.sleep(0.2)
        assert stranger.claims.standing().ledger == CLOSED
        stranger.ask()
        assert "not among the 2 that may write" in (await stranger.wait_denied()).reason
        one.ask()
        await one.wait_granted()
        other.ask()
        await other.wait_denied()
        assert one.claims.folded.roster == tuple(sorted(TRUSTED))

    simulate(main)


def test_entries_of_strangers_change_nothing() -> None:
    """A stranger that writes all the same, because it does not look."""

    async def main(stage: Stage) -> None:
        one = await stage.node("one", trusted=TRUSTED)
        await asyncio.sleep(0.2)
        stranger = await stage.node("stranger")
        stranger.claims._check_roster = lambda: None  # type: ignore[method-assign]
        stranger.ask(for_s=2.0)
        await asyncio.sleep(1.0)
        one.ask()
        await one.wait_granted()
        assert one.claims.folded.counts.strangers > 0
        assert isinstance((await stranger.wait_told())[0], Denied)

    simulate(main)


def test_a_ledger_that_takes_entries_of_others_is_not_believed() -> None:
    async def main(stage: Stage) -> None:
        await stage.node("one", trusted=(*TRUSTED, key_of("third")))
        await asyncio.sleep(0.2)
        other = await stage.node("other", trusted=TRUSTED)
        other.ask()
        assert "does not trust" in (await other.wait_denied()).reason

    simulate(main)


def test_two_runs_of_one_node_are_noticed() -> None:
    async def main(stage: Stage) -> None:
        one = await stage.node("one")
        one.ask(for_s=60.0)
        await one.wait_granted()
        clone = await stage.node("clone", key="one", life=2)
        clone.ask("Drone/2", "cell/2")
        await clone.wait_granted()
        told = await one.wait_told(2)
        assert isinstance(told[-1], Lost)
        assert "another run of this node" in told[-1].reason

    simulate(main)


def test_lives_grow_with_epochs_and_are_never_the_same() -> None:
    assert life_of(2, b"\x00\x00\x00\x00") > life_of(1, b"\xff\xff\xff\xff")
    assert life_of(1, b"\x00\x00\x00\x01more") != life_of(1, b"\x00\x00\x00\x02")


def test_a_life_is_higher_than_those_before_and_keeps_what_was_drawn() -> None:
    drawn = b"\x00\x00\x00\x07"
    assert outlive(life_of(3, drawn), life_of(2, b"\xff\xff\xff\xff")) == life_of(3, drawn)
    for before in (life_of(3, drawn), life_of(3, b"\xff\xff\xff\xff")):
        assert outlive(life_of(3, drawn), before) == life_of(4, drawn)


def test_a_node_that_only_observes_may_be_started_again_and_again() -> None:
    """It keeps nothing, so that its epoch stays, and what it draws may be less than the last time."""

    async def main(stage: Stage) -> None:
        for drawn in (9, 5, 5, 1):
            node = await stage.node(f"run-{len(stage.nodes)}", key="one", life=drawn)
            node.ask()
            await node.wait_granted()
            await node.stop()

    simulate(main)


@pytest.fixture
def milestones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon, so that a short test has some."""
    monkeypatch.setattr(fold, "MILESTONE_ENTRIES", 16)
    monkeypatch.setattr(following, "CHECKPOINT_STAGGER_S", 0.5)


async def be_busy(stage: Stage, node_name: str, count: int) -> None:
    node = next(node for node in stage.nodes if node.name == node_name)
    for number in range(count):
        node.ask("Drone/7", f"busy/{number % 3}", for_s=0.5)
        await asyncio.sleep(0.1)


@pytest.mark.usefixtures("milestones")
def test_the_log_is_cut_and_who_comes_later_begins_with_a_checkpoint() -> None:
    async def main(stage: Stage) -> None:
        one, other = await stage.node("one"), await stage.node("other")
        other.ask("Drone/1", for_s=600.0)
        await other.wait_granted()
        await be_busy(stage, "one", 60)
        await asyncio.sleep(3.0)
        stored = sum(node.claims.counters()["checkpoints_stored"] for node in (one, other))
        assert stored >= 2
        assert stage.store.first > 16
        late = await stage.node("late")
        late.ask()
        assert isinstance((await late.wait_told())[0], Denied)
        await asyncio.sleep(0.1)
        assert late.claims.counters()["checkpoints_taken"] == 1
        assert late.claims.folded == one.claims.folded == other.claims.folded
        assert other.claims.believes(CELL) == [("Drone/1", 1)]

    simulate(main)


@pytest.mark.usefixtures("milestones")
def test_a_reader_that_was_left_behind_jumps() -> None:
    async def main(stage: Stage) -> None:
        await stage.node("one")
        behind = await stage.node("behind")
        behind.ask("Drone/1", for_s=600.0)
        granted = await behind.wait_granted()
        behind.ledger.cut_off = True
        await be_busy(stage, "one", 80)
        await asyncio.sleep(3.0)
        assert stage.store.first > behind.claims.folded.position + 1
        behind.ledger.cut_off = False
        await asyncio.sleep(3.0)
        assert behind.claims.counters()["checkpoints_taken"] == 1
        assert behind.claims.believes(CELL) == [("Drone/1", granted.token)]
        behind.ask("Drone/2", "cell/2")
        await behind.wait_granted()

    simulate(main)


@pytest.mark.usefixtures("milestones")
def test_who_comes_to_another_state_says_so() -> None:
    async def main(stage: Stage) -> None:
        one, other = await stage.node("one"), await stage.node("other")
        other.ask("Drone/1", for_s=600.0)
        await other.wait_granted()
        await be_busy(stage, "one", 20)
        position = next(iter(one.claims._following._milestones))
        one.claims._noted(Checkpointed(position, bytes(32)))
        told = await other.wait_told(2)
        assert isinstance(told[-1], Lost)
        assert "has another state" in told[-1].reason
        assert "has another state" in one.claims.troubles()[0]

    simulate(main)


@pytest.mark.parametrize("body", [b"rubbish", b"\x95\x02\x01\xc4\x00\xc4\x00\xc4\x00"])
def test_a_checkpoint_that_is_none(body: bytes) -> None:
    async def main(stage: Stage) -> None:
        await stage.node("one")
        stage.nodes[0].ask()
        await stage.nodes[0].wait_granted()
        stage.store.checkpoint = LedgerCheckpoint(1, body)
        late = await stage.node("late")
        await asyncio.sleep(0.5)
        assert "checkpoint" in late.claims.troubles()[0]
        assert isinstance(stage.nodes[0].verdicts[0], Granted)

    simulate(main)


@pytest.mark.usefixtures("milestones")
def test_a_checkpoint_of_a_stranger_is_not_believed() -> None:
    async def main(stage: Stage) -> None:
        await stage.node("stranger")
        await be_busy(stage, "stranger", 40)
        await asyncio.sleep(1.0)
        assert stage.store.checkpoint is not None
        one = await stage.node("one", trusted=TRUSTED)
        await asyncio.sleep(0.5)
        assert "does not trust" in one.claims.troubles()[0]

    simulate(main)


def test_entries_gone_without_a_checkpoint() -> None:
    async def main(stage: Stage) -> None:
        one = await stage.node("one")
        one.ask()
        await one.wait_granted()
        one.ask("Drone/2", "cell/2", for_s=60.0)
        await asyncio.sleep(0.5)
        stage.store.checkpoint = LedgerCheckpoint(stage.store.end, b"")
        stage.store.cut(stage.store.end)
        stage.store.checkpoint = None
        late = await stage.node("late")
        await asyncio.sleep(0.5)
        assert "no checkpoint covers them" in late.claims.troubles()[0]

    simulate(main)
