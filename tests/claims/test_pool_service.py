"""Claims on any of several through a node: one wish, the first that is free, and nothing said twice."""

from __future__ import annotations

import asyncio

import pytest

from stigmergy.agents.codec import encode
from stigmergy.agents.messages import Claimed
from stigmergy.agents.ordered import LEDGER, ClaimAnyAsked, ClaimReleased, Denied, Lost, Released
from stigmergy.claims import acquisition as acquisitions
from stigmergy.control.replication_service import described_resource
from stigmergy.shard.outbox import Pending
from tests.claims.stage import Node, Stage, simulate

DOCKS = ("dock-1", "dock-2")
POOL = "dock-1|dock-2"


def ask(node: Node, agent: str, *, for_s: float = 5.0, wait_s: float = 0.0, renew: bool = False) -> None:
    node.sequence += 1
    node.owed[node.sequence] = agent
    asked = ClaimAnyAsked(claim="dock", resources=DOCKS, for_s=for_s, wait_s=wait_s, renew=renew)
    node.claims.propose(0, Pending(1, node.sequence, 0, agent, LEDGER, node.sequence, encode(asked)))


def release(node: Node, agent: str, resource: str, token: int) -> None:
    node.sequence += 1
    node.owed[node.sequence] = agent
    released = ClaimReleased(claim="dock", resource=resource, token=token)
    node.claims.propose(0, Pending(1, node.sequence, 0, agent, LEDGER, node.sequence, encode(released)))


def test_each_gets_another_one_and_the_third_waits_for_the_first_that_is_free() -> None:
    async def main(stage: Stage) -> None:
        one, other = await stage.node("one"), await stage.node("other")
        ask(one, "Cart/1", for_s=60.0)
        first = await one.wait_granted()
        ask(other, "Cart/2", for_s=60.0)
        second = await other.wait_granted()
        assert [first.resource, second.resource] == ["dock-1", "dock-2"]
        assert (one.claims.believes("dock-1"), one.claims.believes("dock-2")) == ([("Cart/1", first.token)], [])
        ask(one, "Cart/3", for_s=5.0, wait_s=30.0)
        await asyncio.sleep(0.5)
        asking = [belief for belief in one.claims.beliefs() if belief.asking]
        assert [(belief.resource, belief.pool, belief.holds) for belief in asking] == [(POOL, DOCKS, False)]
        shown = described_resource(one.claims, "dock-2", one.claims.folded.resource("dock-2"), asking)
        assert [(waiter.agent, waiter.any_of) for waiter in shown.queue] == [("Cart/3", list(DOCKS))]
        (waiter,) = shown.queue
        assert (waiter.incarnation, waiter.queued_at) == (1, one.claims.folded.position)
        assert waiter.waits_s == pytest.approx(0.5, abs=0.5)
        assert [(belief.agent, belief.any_of) for belief in shown.believed] == [("Cart/3", list(DOCKS))]
        release(other, "Cart/2", "dock-2", second.token)
        third = await one.wait_granted()
        assert third.resource == "dock-2"
        assert not one.claims.folded.pools
        assert [belief.resource for belief in one.claims.beliefs()] == ["dock-1", "dock-2"]
        held = Claimed(field="dock", resource="dock-2", token=third.token)
        assert one.claims.lease_end_ns("Cart/3", held) is not None
        assert one.claims.lease_end_ns("Cart/1", held) is None
        lost = (await one.wait_told(3))[-1]
        assert isinstance(lost, Lost)
        assert (lost.resource, lost.token) == ("dock-2", third.token)

    simulate(main)


def test_a_denial_names_the_one_that_is_over_first_and_the_best_place() -> None:
    async def main(stage: Stage) -> None:
        one, other = await stage.node("one"), await stage.node("other")
        ask(one, "Cart/1", for_s=60.0)
        await one.wait_granted()
        ask(one, "Cart/2", for_s=20.0)
        await one.wait_granted()
        await asyncio.sleep(0.2)
        ask(other, "Cart/3")
        denied = await other.wait_denied()
        assert (denied.resource, denied.holder, denied.place) == (POOL, "Cart/2", 0)
        assert denied.reason.startswith(
            f"{acquisitions.HELD_BY_OTHERS}: all 2 are taken; Cart/2 holds dock-2 for up to 19."
        )
        ask(other, "Cart/4", wait_s=40.0)
        await asyncio.sleep(0.2)
        ask(other, "Cart/3", wait_s=3.0)
        denied = await other.wait_denied()
        assert (denied.holder, denied.place) == ("Cart/2", 2)
        assert denied.reason.startswith(
            f"{acquisitions.NOT_SERVED}: place 2 in line; all 2 are taken; Cart/2 holds dock-2"
        )
        assert 15.0 < denied.held_s_max < 18.0

    simulate(main)


def test_what_is_not_granted_yet_is_taken_back_from_every_line() -> None:
    async def main(stage: Stage) -> None:
        one, other = await stage.node("one"), await stage.node("other")
        for number in (1, 2):
            ask(one, f"Cart/{number}", for_s=60.0)
            await one.wait_granted()
        ask(other, "Cart/3", wait_s=30.0)
        await asyncio.sleep(0.5)
        assert [len(other.claims.folded.resource(name).queue) for name in DOCKS] == [1, 1]
        release(other, "Cart/3", POOL, 0)
        told = await other.wait_told(2)
        assert [type(verdict) for verdict in told] == [Released, Denied]
        await asyncio.sleep(0.5)
        assert [len(other.claims.folded.resource(name).queue) for name in DOCKS] == [0, 0]

    simulate(main)


def test_after_a_restart_it_gets_back_the_one_that_it_had() -> None:
    async def main(stage: Stage) -> None:
        one = await stage.node("one")
        ask(one, "Cart/1", for_s=60.0)
        await one.wait_granted()
        ask(one, "Cart/2", for_s=60.0)
        second = await one.wait_granted()
        await one.restart()
        ask(one, "Cart/2", for_s=60.0)
        again = await one.wait_granted()
        assert again.resource == second.resource == "dock-2"
        assert again.token > second.token

    simulate(main)


def test_a_lease_of_a_pool_is_renewed_and_lost_when_contact_is() -> None:
    async def main(stage: Stage) -> None:
        one, other = await stage.node("one"), await stage.node("other")
        for number in (1, 2):
            ask(one, f"Cart/{number}", for_s=3.0, renew=True)
            await one.wait_granted()
        ask(other, "Cart/3", for_s=3.0, wait_s=60.0)
        await asyncio.sleep(10.0)
        assert len(one.verdicts) == 2
        one.ledger.cut_off = True
        granted = await other.wait_granted()
        assert granted.resource in DOCKS
        lost = [verdict.resource for verdict in one.verdicts if isinstance(verdict, Lost)]
        assert sorted(lost) == list(DOCKS)

    simulate(main)
