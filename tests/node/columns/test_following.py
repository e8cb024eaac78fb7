"""What people see of compiled agents is what is on disk, however far ahead the steps are."""

from __future__ import annotations

import asyncio

import pytest

from stigmergy.base.errors import NotRunning, StigmergyError
from stigmergy.shard.commit import open_commit
from stigmergy.sim.disk import DiskFault
from stigmergy.sim.node import SimNode
from tests.agents.meters import Counted
from tests.node.columns.stage import Hand, Radio, declare, play


def test_a_query_never_sees_what_is_not_durable() -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        radio = Radio(live)
        node.latency.after_s, node.latency.jitter = 1.0, False
        durable = 0
        sent: list[asyncio.Future[None]] = []
        for number in range(400):
            sent.append(radio.send(("a", Counted(by=1))))
            await asyncio.sleep(0.013)
            durable = sum(one.done() for one in sent)
            total = live.query("Meter/a").total
            assert durable <= total <= number + 1
            assert total <= on_disk(node), "seen before the disk had it"
        await asyncio.gather(*sent)
        assert live.query("Meter/a").total == 400

    def on_disk(node: SimNode) -> int:
        """How many records the journal holds."""
        assert node.live is not None
        journal = node.live.host.journal
        return sum(run.count for stored in journal.read(0, 1) for run in open_commit(stored.sealed.body).columns)

    play(declare(Hand()), scene, batch_events_max=10)


def test_an_agent_is_not_there_before_its_enrolment_is_durable() -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        node.latency.after_s, node.latency.jitter = 1.0, False
        first = asyncio.ensure_future(live.observe("Meter/new", Counted(by=5)))
        await asyncio.sleep(0.5)
        assert live.agents("Meter") == []
        assert live.standing().agents == 0
        assert live.query("Meter/new").total == 0
        await first
        assert live.agents("Meter") == ["Meter/new"]
        assert live.standing().agents == 1
        assert live.query("Meter/new").total == 5

    play(declare(Hand()), scene)


@pytest.mark.parametrize("restart", [True, False])
def test_what_was_never_durable_was_never_seen(restart: bool) -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        radio = Radio(live)
        await radio.send(("a", Counted(by=1)))
        node.disk.fail(node.disk.calls + 1, DiskFault.POWER_LOSS)
        lost = radio.send(("a", Counted(by=2)))
        newcomer = asyncio.ensure_future(live.observe("Meter/b", Counted(by=4)))
        found = await asyncio.gather(lost, newcomer, return_exceptions=True)
        assert all(isinstance(error, StigmergyError | NotRunning) for error in found), found
        assert live.query("Meter/a").total == 1
        assert live.agents("Meter") == ["Meter/a"]
        await node.lose_power()
        if restart:
            live = await node.start()
            assert live.query("Meter/a").total in (1, 3)

    play(declare(Hand()), scene)


def test_an_enrolment_does_not_become_visible_with_the_commit_before_it() -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        node.latency.after_s, node.latency.jitter = 1.0, False
        before = Radio(live).send(("a", Counted(by=1)))
        await asyncio.sleep(0.1)
        enrolled = asyncio.ensure_future(live.enroll("Meter", ["b"]))
        await before
        await asyncio.sleep(0.1)
        assert live.host.shards.first.state.tables["Meter"].find("b") == 1, "it is stepped, and not durable"
        assert live.agents("Meter") == ["Meter/a"]
        assert live.roster("Meter").shards[0].agents == 1
        await enrolled
        assert live.agents("Meter") == ["Meter/a", "Meter/b"]

    play(declare(Hand()), scene)
