"""Membership in the simulator: all find all, a crash is noticed in time, nobody is accused in vain, partitions heal."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from rigs.membership_trial import MembershipFleet
from stigmergy.bus.presence import MemberJoined, MemberLeft
from stigmergy.sim.loop import run
from stigmergy.sim.network import LinkFaults

T = TypeVar("T")
BAD = LinkFaults(loss=0.2, duplication=0.1, reordering=0.1, corruption=0.02, jitter_s=0.02)


def trial(play: Callable[[MembershipFleet], Coroutine[Any, Any, T]], count: int, seed: int = 1, **options: Any) -> T:
    async def main() -> T:
        async with MembershipFleet(seed, count, **options) as fleet:
            return await play(fleet)

    return run(main(), seed=seed, deadline_s=3600)


@pytest.mark.parametrize("nodes", [30, pytest.param(100, marks=pytest.mark.prove)])
def test_many_nodes_find_each_other_and_notice_a_crash_in_time(nodes: int) -> None:
    async def play(fleet: MembershipFleet) -> None:
        assert await fleet.wait_complete() < 10
        await asyncio.sleep(20)
        await fleet.crash("node-20")
        told_s = await fleet.wait_gone("node-20", fleet.gone_bound_s())
        assert len(told_s) == nodes - 1
        assert fleet.false_alarms == []
        assert fleet.is_complete()

    trial(play, nodes)


@pytest.mark.parametrize("loss", [0.1, 0.3])
def test_suspicions_under_loss_are_refuted(loss: float) -> None:
    async def play(fleet: MembershipFleet) -> None:
        await fleet.wait_complete()
        await asyncio.sleep(120)
        suspected = sum(node.swim.counters.suspected_count for node in fleet.nodes.values())
        refuted = sum(node.swim.counters.refuted_count for node in fleet.nodes.values())
        assert suspected > 0
        assert refuted > 0
        fleet.network.calm()
        await fleet.wait_complete(30)
        assert len(fleet.false_alarms) <= 2

    trial(play, 20, faults=LinkFaults(loss=loss))


def test_all_faults_at_once_end_in_agreement() -> None:
    async def play(fleet: MembershipFleet) -> None:
        await fleet.wait_complete()
        await fleet.crash("node-1")
        await asyncio.sleep(5)
        await fleet.crash("node-2")
        await fleet.wait_gone("node-2")
        await fleet.start("node-1")
        await fleet.wait_complete()

    trial(play, 15, faults=BAD)


def test_partition_and_its_heal_bring_all_back() -> None:
    async def play(fleet: MembershipFleet) -> None:
        await fleet.wait_complete()
        left, right = fleet.names[:12], fleet.names[12:]
        fleet.network.partition(left, right)
        await asyncio.sleep(60)
        assert fleet.view("node-0") == sorted(left)
        assert fleet.view("node-20") == sorted(right)
        healed = len(fleet.told)
        fleet.network.heal()
        await fleet.wait_complete(60)
        # Nobody on either side lost anybody on its own side because of what the other side believed.
        sides = {name: (left if name in left else right) for name in fleet.names}
        again = [(told.by, told.event.node) for told in fleet.told[healed:] if isinstance(told.event, MemberLeft)]
        assert [(by, node) for by, node in again if node in sides[by]] == []
        assert fleet.false_alarms == []

    trial(play, 24)


def test_one_way_cut_is_bridged_by_helpers() -> None:
    async def play(fleet: MembershipFleet) -> None:
        await fleet.wait_complete()
        fleet.network.cut("node-1", "node-2", both=False)
        await asyncio.sleep(60)
        assert not [told for told in fleet.told if isinstance(told.event, MemberLeft)]

    trial(play, 8)


def test_leave_is_told_at_once_and_is_no_alarm() -> None:
    async def play(fleet: MembershipFleet) -> None:
        await fleet.wait_complete()
        await fleet.leave("node-3")
        assert max(await fleet.wait_gone("node-3", 6)) < 6
        because = {told.event.because for told in fleet.told if isinstance(told.event, MemberLeft)}
        assert because == {"it said so"}
        await fleet.start("node-3")
        await fleet.wait_complete(10)

    trial(play, 30)


@pytest.mark.parametrize("wall_start_ns", [None, 0])
def test_restart_under_the_same_name_is_a_new_join(wall_start_ns: int | None) -> None:
    """Also with a clock that went back to 1970: then others first say what they know of the earlier run."""

    async def play(fleet: MembershipFleet) -> None:
        await fleet.wait_complete()
        await asyncio.sleep(15)
        told = len(fleet.told)
        await fleet.crash("node-4")
        await asyncio.sleep(1)
        await fleet.start("node-4", wall_start_ns=wall_start_ns)
        await asyncio.sleep(25)
        assert fleet.is_complete()
        joins = {t.by for t in fleet.told[told:] if isinstance(t.event, MemberJoined) and t.event.node == "node-4"}
        assert joins == {name for name in fleet.names if name != "node-4"}
        assert not [t for t in fleet.told[told:] if isinstance(t.event, MemberLeft)]
        runs = {m.run for node in fleet.nodes.values() for m in node.members() if m.node == "node-4" and m.run}
        assert len(runs) == 1
        assert fleet.nodes["node-4"].conflict == ""

    trial(play, 12)


def test_two_nodes_of_one_name_find_out() -> None:
    async def play(fleet: MembershipFleet) -> None:
        await fleet.wait_complete()
        first = fleet.nodes["node-5"]
        second = await fleet.start("node-5")
        await asyncio.sleep(60)
        assert "rename one" in first.conflict
        assert "rename one" in second.conflict
        assert fleet.nodes["node-0"].conflict == ""
        await second.kill()
        await asyncio.sleep(60)
        assert first.conflict == ""
        fleet.nodes["node-5"] = first
        await fleet.wait_complete(30)

    trial(play, 8)


@pytest.mark.prove
def test_load_does_not_grow_with_the_fleet() -> None:
    async def play(fleet: MembershipFleet) -> tuple[float, float]:
        await fleet.wait_complete()
        await asyncio.sleep(60)
        load = await fleet.measure_load(60)
        return load.datagrams, load.bytes

    small, large = trial(play, 8), trial(play, 64)
    assert large[0] < small[0] * 1.2
    assert large[1] < small[1] * 1.2


def test_members_say_what_they_are() -> None:
    async def play(fleet: MembershipFleet) -> None:
        await fleet.wait_complete()
        others = [member for member in fleet.nodes["node-0"].members() if member.node != "node-0"]
        assert [(member.version, member.kinds) for member in others] == [("1", ("Drone",))] * 2

    trial(play, 3)


def test_one_seed_is_one_history() -> None:
    async def play(fleet: MembershipFleet) -> list[tuple[float, str, str]]:
        await asyncio.sleep(30)
        return [(told.time_s, told.by, repr(told.event)) for told in fleet.told]

    first = trial(play, 10, seed=3, faults=BAD)
    assert first == trial(play, 10, seed=3, faults=BAD)
    assert first != trial(play, 10, seed=4, faults=BAD)
