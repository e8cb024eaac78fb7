"""Row 3: I/O calls of a short piece of work fail in turn. Nothing false is acknowledged, agents are made safe,
and a restart finds out what was kept."""

import asyncio

import pytest

from rigs.drones import EndMission, Spotted, StartMission, declare_drones
from rigs.io_trial import run_io_trial
from stigmergy.base.errors import JournalFull, JournalUnknown
from stigmergy.node.declaration import Declaration
from stigmergy.shard.inputs import Accepted
from stigmergy.sim.devices import Receiver
from stigmergy.sim.disk import AfterFailedSync, Call, DiskFault
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run

PARTS = 6
EVERY = 3
"""Proofs let every call fail (proofs/io_faults.py); here it is one of so many, each in its own way."""


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.prove) for part in range(1, PARTS))])
@pytest.mark.parametrize("fault", [DiskFault.EIO, DiskFault.ENOSPC], ids=lambda fault: fault.name)
def test_a_fault_at_every_call_in_turn(fault: DiskFault, part: int) -> None:
    stopped = reached = 0
    for call in range(1 + part * EVERY, run_io_trial(0, None).calls, PARTS * EVERY):
        after = AfterFailedSync.STALE_CACHE if call % 2 else AfterFailedSync.DROPPED_CACHE
        result = run_io_trial(call, fault, after_failed_sync=after)
        assert not result.violations, "\n".join(result.violations)
        if not result.reached:
            break
        reached += 1
        stopped += result.stopped
    assert reached > 10
    # Full for one call does not stop a node any more: the journal gives up its reserve for it.
    assert stopped > 0 or fault is DiskFault.ENOSPC


class Bench:
    """A node with drones, for one named case."""

    def __init__(self, seed: int = 1) -> None:
        self.world = Run(seed)
        self.receiver: Receiver

        def declare(node: SimNode) -> Declaration:
            self.receiver = Receiver(node, self.world.chance("receiver"))
            return declare_drones(self.receiver)

        self.node = SimNode(self.world, declare)


def test_a_sync_that_fails_withholds_the_answer_and_the_restart_gives_the_one_that_is_kept() -> None:
    bench = Bench()
    node = bench.node

    async def main() -> None:
        live = await node.start()
        assert await live.send("Drone/1", StartMission(mission=1), command_id="a")
        node.disk.fail_kind(Call.SYNC, node.disk.calls_by_kind[Call.SYNC] + 1, DiskFault.EIO)
        with pytest.raises(JournalUnknown):
            await live.send("Drone/1", EndMission(mission=1), command_id="b")
        assert isinstance(live.failure, JournalUnknown)
        assert [carried.agent for carried in bench.receiver.safe] == ["Drone/1"]
        await node.kill()
        live = await node.start()
        first = await live.send("Drone/1", EndMission(mission=1), command_id="b")
        assert await live.send("Drone/1", EndMission(mission=1), command_id="b") == first
        assert isinstance(first, Accepted)
        assert live.query("Drone/1").mission == 0
        await node.stop()

    bench.world.run(main())
    assert not node.logbook.findings


def test_a_full_disk_stops_the_node_safely_and_room_lets_it_go_on() -> None:
    bench = Bench()
    node = bench.node

    async def main() -> None:
        live = await node.start()
        await live.observe("Drone/1", Spotted(source="x", number=1))
        node.disk.capacity_bytes = node.disk.used_bytes()
        more = [live.observe("Drone/1", Spotted(source="x" * 10_000, number=2)) for _ in range(20)]
        told = await asyncio.gather(*more, return_exceptions=True)
        assert any(isinstance(one, JournalFull) for one in told)
        assert isinstance(live.failure, JournalFull)
        assert bench.receiver.safe
        await node.kill()
        node.disk.capacity_bytes = 1 << 40
        live = await node.start()
        await live.observe("Drone/1", Spotted(source="x", number=3))
        await node.stop()

    bench.world.run(main())
    assert not node.logbook.findings
