"""A node's claims: verdicts in time, whatever the ledger and the way to it do."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from rigs.ledger import LedgerFaults
from stigmergy.agents.ordered import Denied, Granted, Lost, Released
from stigmergy.base.errors import LedgerFailed
from stigmergy.claims import acquisition as acquisitions
from stigmergy.claims import claimant as desk
from stigmergy.claims import writer as writing
from stigmergy.claims.service import CLOSED, CONTACT, NO_CONTACT
from stigmergy.claims.state import MARGIN_MS
from tests.claims.stage import CALM, CELL, Stage, simulate


def test_one_holds_and_the_other_is_refused() -> None:
    async def main(stage: Stage) -> None:
        one, other = await stage.node("one"), await stage.node("other")
        one.ask(for_s=5.0)
        granted = await one.wait_granted()
        assert (granted.claim, granted.resource, granted.token) == ("cell", CELL, 1)
        assert 4.9 < granted.for_s <= 5.0
        other.ask()
        denied = await other.wait_denied()
        assert denied.reason.startswith(f"{acquisitions.HELD_BY_OTHERS}: Drone/1 holds it for up to 5.")
        assert (denied.holder, denied.place) == ("Drone/1", 0)
        assert 4.9 < denied.held_s_max <= 5.2
        assert one.claims.believes(CELL) == [("Drone/1", 1)]
        assert other.claims.believes(CELL) == []
        assert one.claims.standing().held == 1
        assert one.owed == other.owed == {}
        counters = one.claims.counters()
        assert (counters["claims_asked"], counters["claims_granted"], counters["ledger_granted"]) == (1, 1, 1)

    simulate(main)


def test_a_lease_ends_by_the_nodes_own_clock_and_goes_to_the_next() -> None:
    async def main(stage: Stage) -> None:
        one, other = await stage.node("one"), await stage.node("other")
        asked_s = stage.loop.time()
        one.ask(for_s=3.0)
        await one.wait_granted()
        other.ask(for_s=3.0, wait_s=10.0)
        granted = await other.wait_granted()
        when = {type(verdict).__name__: at for at, _, verdict in one.told}
        lost = one.verdicts[-1]
        assert isinstance(lost, Lost)
        assert (lost.token, lost.reason) == (1, acquisitions.LEASE_OVER)
        assert asked_s + 2.9 < when["Lost"] <= asked_s + 3.05
        assert granted.token > 1
        assert other.told[-1][0] >= when["Lost"] + MARGIN_MS / 1000

    simulate(main)


def test_what_is_given_back_is_offered_to_who_waits() -> None:
    async def main(stage: Stage) -> None:
        one, other = await stage.node("one"), await stage.node("other")
        one.ask(for_s=60.0)
        granted = await one.wait_granted()
        other.ask(for_s=5.0, wait_s=30.0)
        await asyncio.sleep(2.0)
        assert other.verdicts == []
        assert other.claims.standing().asking == 1
        one.release(granted.token)
        assert isinstance((await one.wait_told(2))[-1], Released)
        given_s = stage.loop.time()
        await other.wait_granted()
        assert stage.loop.time() < given_s + 1.0

    simulate(main)


def test_a_busy_node_gives_back_what_its_agent_released() -> None:
    """A host under load asks what is due at every step, far more often than the desk looks for this."""

    async def main(stage: Stage) -> None:
        one, other = await stage.node("one"), await stage.node("other")
        one.ask(for_s=60.0)
        granted = await one.wait_granted()
        other.ask(for_s=5.0, wait_s=30.0)
        await asyncio.sleep(2.0)
        one.release(granted.token)
        for _ in range(200):
            one.wake()
            await asyncio.sleep(0.001)
        assert [type(verdict) for verdict in other.verdicts] == [Granted]

    simulate(main)


def test_the_ledger_hears_of_it_only_when_the_agent_knows() -> None:
    """The agent believes that it holds until `Released` was stepped; nobody else may hold it before."""

    async def main(stage: Stage) -> None:
        one, other = await stage.node("one"), await stage.node("other")
        one.ask(for_s=60.0)
        granted = await one.wait_granted()
        other.ask(for_s=5.0, wait_s=30.0)
        await asyncio.sleep(1.0)
        one.takes = False  # its disk is slow: what is told is not stepped yet
        one.release(granted.token)
        await asyncio.sleep(2.0)
        assert other.verdicts == []
        one.owed.clear()
        await other.wait_granted()

    simulate(main)


def test_a_renewed_lease_goes_on_until_contact_is_lost() -> None:
    async def main(stage: Stage) -> None:
        one, other = await stage.node("one"), await stage.node("other")
        one.ask(for_s=3.0, renew=True)
        await one.wait_granted()
        await asyncio.sleep(30.0)
        assert one.claims.believes(CELL) == [("Drone/1", 1)]
        one.ledger.cut_off = True
        cut_s = stage.loop.time()
        other.ask(for_s=3.0, wait_s=20.0)
        lost = (await one.wait_told(2))[-1]
        assert isinstance(lost, Lost)
        assert lost.reason == acquisitions.NOT_RENEWED
        assert stage.loop.time() <= cut_s + 3.01
        assert one.claims.standing().ledger == NO_CONTACT
        await other.wait_granted()
        one.ledger.cut_off = False
        await asyncio.sleep(3.0)
        assert one.claims.standing().ledger == CONTACT
        assert len(one.verdicts) == 2

    simulate(main)


def test_no_verdict_means_not_held() -> None:
    async def main(stage: Stage) -> None:
        one, other = await stage.node("one"), await stage.node("other")
        await asyncio.sleep(0.1)
        one.ledger.cut_off = True
        asked_s = stage.loop.time()
        one.ask(for_s=4.0)
        one.ask("Drone/2", for_s=60.0, wait_s=2.0)
        denied = (await one.wait_told(2))[-1]
        assert isinstance(denied, Denied)
        assert denied.reason == acquisitions.NO_VERDICT
        assert [round(at - asked_s, 1) for at, _, _ in one.told] == [2.0, 4.0]
        one.ledger.cut_off = False
        await asyncio.sleep(5.0)
        assert stage.store.end <= 4  # what could have been sent was taken back
        other.ask()
        await other.wait_granted()
        assert len(one.verdicts) == 2

    simulate(main)


def test_who_waited_in_vain_hears_who_holds_it_and_its_place_in_line() -> None:
    async def main(stage: Stage) -> None:
        one, other, third = await stage.node("one"), await stage.node("other"), await stage.node("third")
        one.ask(for_s=60.0)
        await one.wait_granted()
        other.ask("Drone/2", for_s=5.0, wait_s=30.0)
        await asyncio.sleep(0.5)
        third.ask("Drone/3", for_s=5.0, wait_s=10.0)
        denied = await third.wait_denied()
        assert (denied.holder, denied.place) == ("Drone/1", 2)
        assert 49.0 < denied.held_s_max <= 50.0
        assert denied.reason.startswith(f"{acquisitions.NOT_SERVED}: place 2 in line; Drone/1 holds it for up to 49.")
        assert "nobody knows" not in denied.reason

    simulate(main)


def test_a_denial_in_line_says_that_the_ledger_no_longer_answers() -> None:
    async def main(stage: Stage) -> None:
        one, other = await stage.node("one"), await stage.node("other")
        one.ask(for_s=5.0, renew=True)
        await one.wait_granted()
        other.ask("Drone/2", for_s=5.0, wait_s=10.0)
        await asyncio.sleep(0.5)
        other.ledger.cut_off = True
        denied = await other.wait_denied()
        assert (denied.holder, denied.place, denied.held_s_max) == ("Drone/1", 1, 0.0)
        assert denied.reason == f"{acquisitions.NOT_SERVED}: place 1 in line; Drone/1 holds it. {desk.NOT_UP}"

    simulate(main)


def test_a_denial_says_whom_it_is_offered_to() -> None:
    async def main(stage: Stage) -> None:
        one, other, third = await stage.node("one"), await stage.node("other"), await stage.node("third")
        one.ask(for_s=60.0)
        granted = await one.wait_granted()
        other.ask("Drone/2", for_s=5.0, wait_s=30.0)
        await asyncio.sleep(0.5)
        other.ledger.cut_off = True
        one.release(granted.token)
        await asyncio.sleep(0.5)
        third.ask("Drone/3")
        denied = await third.wait_denied()
        assert (denied.holder, denied.held_s_max) == ("Drone/2", 0.0)
        assert denied.reason == f"{acquisitions.HELD_BY_OTHERS}: it is offered to Drone/2"

    simulate(main)


def test_a_question_that_never_left_is_forgotten() -> None:
    async def main(stage: Stage) -> None:
        one = await stage.node("one")
        await asyncio.sleep(0.1)
        one.ledger.cut_off = True
        one.ask("Drone/0", "elsewhere", for_s=60.0)
        await asyncio.sleep(0.5)
        for number in range(50):
            one.ask(f"Drone/{number + 1}", for_s=1.0)
        await asyncio.sleep(3.0)
        assert len(one.verdicts) == 50
        assert one.claims.standing().waiting <= 2
        one.ledger.cut_off = False
        await asyncio.sleep(3.0)
        assert stage.store.end <= 2

    simulate(main)


@pytest.mark.parametrize("seed", range(5))
def test_outcomes_that_nobody_knows_are_found_out(seed: int) -> None:
    async def main(stage: Stage) -> None:
        one = await stage.node("one")
        one.ledger.faults = LedgerFaults(delay_s_max=0.02, unknown_share=0.7, late_share=1.0, late_s_max=3.0)
        for number in range(20):
            one.ask(f"Drone/{number}", f"cell/{number}", for_s=60.0)
            await asyncio.sleep(0.05)
        told = await one.wait_told(20)
        assert all(isinstance(verdict, Granted) for verdict in told)
        assert one.claims.counters()["appends_unknown"] > 0
        one.ledger.faults = CALM
        await asyncio.sleep(10.0)
        assert one.claims.standing().waiting == 0
        assert one.claims.standing().held == 20
        assert len(one.verdicts) == 20

    simulate(main, seed)


def test_a_grant_that_comes_too_late_is_a_refusal() -> None:
    """The host had no turn until the lease was over: the agent never hears that it held."""

    async def main(stage: Stage) -> None:
        one = await stage.node("one")
        one.ask(for_s=1.0)
        one.steps = False
        await asyncio.sleep(2.0)
        one.steps = True
        one.wake()
        assert (await one.wait_denied()).reason == acquisitions.TOO_LATE
        await asyncio.sleep(2.0)
        assert len(one.verdicts) == 1

    simulate(main)


def test_after_a_restart_it_is_granted_anew_under_a_higher_token() -> None:
    async def main(stage: Stage) -> None:
        one, other = await stage.node("one"), await stage.node("other")
        one.ask(for_s=30.0)
        first = await one.wait_granted()
        await one.restart()
        assert one.claims.believes(CELL) == []
        other.ask()
        await other.wait_denied()  # where the agent was, it may still be
        one.ask(for_s=30.0)
        second = await one.wait_granted()
        assert second.token > first.token

    simulate(main)


def test_what_nobody_asks_for_again_expires() -> None:
    async def main(stage: Stage) -> None:
        one, other = await stage.node("one"), await stage.node("other")
        one.ask(for_s=5.0)
        await one.wait_granted()
        await one.restart()
        asked_s = stage.loop.time()
        other.ask(for_s=5.0, wait_s=30.0)
        await other.wait_granted()
        assert stage.loop.time() >= asked_s + 5.0
        assert one.claims.counters()["leases_expired"] + other.claims.counters()["leases_expired"] >= 1

    simulate(main)


def test_a_later_question_answers_for_both() -> None:
    async def main(stage: Stage) -> None:
        holder, one = await stage.node("holder"), await stage.node("one")
        holder.ask(for_s=60.0)
        granted = await holder.wait_granted()
        one.ask(for_s=5.0, wait_s=20.0)
        await asyncio.sleep(1.0)
        one.ask(for_s=8.0, wait_s=20.0)
        await asyncio.sleep(0.1)
        assert one.told[0][2] is None
        holder.release(granted.token)
        assert 7.5 < (await one.wait_granted()).for_s <= 8.0
        assert one.owed == {}

    simulate(main)


def test_taking_a_question_back() -> None:
    async def main(stage: Stage) -> None:
        holder, one = await stage.node("holder"), await stage.node("one")
        holder.ask(for_s=60.0)
        await holder.wait_granted()
        one.ask(for_s=5.0, wait_s=20.0)
        await asyncio.sleep(1.0)
        one.release(0)
        told = await one.wait_told(2)
        assert isinstance(told[0], Released)
        assert isinstance(told[1], Denied)
        assert told[1].reason == desk.TAKEN_BACK
        await asyncio.sleep(1.0)
        assert not one.claims.folded.resource(CELL).queue

    simulate(main)


def test_a_release_of_something_else_changes_nothing() -> None:
    async def main(stage: Stage) -> None:
        one = await stage.node("one")
        one.ask(for_s=60.0)
        granted = await one.wait_granted()
        one.release(granted.token + 7)
        one.release(1, resource="never/asked")
        await asyncio.sleep(1.0)
        assert [type(verdict) for verdict in one.verdicts] == [Granted, Released, Released]
        assert one.claims.believes(CELL) == [("Drone/1", granted.token)]

    simulate(main)


def test_the_line_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "LINE_COUNT_MAX", 3)

    async def main(stage: Stage) -> None:
        one = await stage.node("one")
        one.ledger.cut_off = True
        for number in range(4):
            one.ask(f"Drone/{number}", f"cell/{number}", for_s=60.0)
        assert (await one.wait_denied()).reason == desk.TOO_MANY
        one.ask("D" * 600, for_s=60.0)
        one.ledger.cut_off = False
        told = await one.wait_told(5)
        assert sum(isinstance(verdict, Granted) for verdict in told) == 3
        one.ask("D" * 600, for_s=60.0)
        assert (await one.wait_denied()).reason == desk.NAME_TOO_LONG

    simulate(main)


def test_effects_from_before_the_start_are_taken_at_the_start() -> None:
    async def main(stage: Stage) -> None:
        one = await stage.node("one")
        await one.claims.kill()
        one.claims = one._make()
        one.life += 1
        one.ask()
        await one.start()
        await one.wait_granted()

    simulate(main)


def test_what_was_given_back_leaves_before_a_stop() -> None:
    async def main(stage: Stage) -> None:
        one, other = await stage.node("one"), await stage.node("other")
        one.ask(for_s=60.0)
        granted = await one.wait_granted()
        one.release(granted.token)
        await one.wait_told(2)
        await one.claims.stop(drain_s=2.0)
        await asyncio.sleep(0.1)
        other.ask()
        await other.wait_granted()

    simulate(main)


def test_a_ledger_that_has_lost_its_end_is_not_believed() -> None:
    async def main(stage: Stage) -> None:
        one = await stage.node("one")
        one.ask(for_s=60.0)
        await one.wait_granted()
        stage.store.end = 0
        one.ask("Drone/2", "cell/2", for_s=60.0)
        told = await one.wait_told(3)
        assert isinstance(told[1], Lost)
        assert isinstance(told[2], Denied)
        assert "has lost its end" in told[2].reason
        assert one.claims.standing().ledger == CLOSED
        assert len(one.claims.troubles()) == 1
        one.ask("Drone/3", "cell/3")
        assert "has lost its end" in (await one.wait_denied()).reason

    simulate(main)


def test_a_connection_of_no_more_use_is_a_trouble_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    why = "ledger.db: somebody removed or renamed it; put the file back and start the node again"

    async def main(stage: Stage) -> None:
        one = await stage.node("one")
        one.ask(for_s=60.0)
        await one.wait_granted()

        async def fail(*_: object, **__: object) -> Any:
            raise LedgerFailed(why)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(one.ledger, "read", fail)
            patch.setattr(one.ledger, "append", fail)
            one.ask(resource="cell/2", for_s=5.0)
            denied = await one.wait_denied()
            assert "nobody knows who holds it" in denied.reason
            await asyncio.sleep(20.0)
            assert one.claims.troubles() == [why]
            assert (one.claims.standing().ledger, one.claims.standing().why) == (NO_CONTACT, why)
            assert one.claims.believes(CELL) == [("Drone/1", 1)], "what it holds it holds until the lease is over"

    with caplog.at_level(logging.ERROR, "stigmergy.claims"):
        simulate(main)
    assert [record.getMessage() for record in caplog.records] == [why]
