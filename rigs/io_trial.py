"""One fault at one I/O call of a short, fixed piece of work: nothing may be acknowledged that should not be.

Run it for every call and every fault. The work is always the same, so a call's number names a place in it: making the
journal, a commit, a snapshot, a checkpoint, a drop. After the fault the node either goes on as if nothing had happened,
or it has stopped: then its agents were made safe, nobody was told a lie, and a restart finds out what was kept.
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct

from rigs.drones import Beaten, Measured, Spotted, StartMission, declare_drones
from rigs.senders import Caller, Sender
from rigs.trial_checkers import CHECKERS, HEALED, Evidence
from stigmergy.base.errors import JournalError, StigmergyError
from stigmergy.node.declaration import Declaration
from stigmergy.node.settings import Retention, Settings, Snapshots
from stigmergy.sim.devices import Receiver, Temper
from stigmergy.sim.disk import AfterFailedSync, DiskFault
from stigmergy.sim.errors import SimulationError
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run

ROUNDS = 6
AGENTS = ("Drone/0", "Drone/1")
SETTINGS = Settings(
    batch_events_max=20,
    effect_pause_s=0.01,
    drain_s=2.0,
    snapshots=Snapshots(every_events=8, tail_ratio=0.0, share_max=1.0),
    retention=Retention(keep_s=0.0, reserve_bytes=0, check_every_s=0.2),
)


class IoResult(Struct, frozen=True):
    """What one fault did."""

    reached: bool
    """Whether the work got as far as that call."""
    stopped: bool
    """Whether the node has stopped, or did not start, because of it."""
    safe: int
    """How many safe actions went out because the node has stopped."""
    calls: int
    violations: list[str]


class IoTrial:
    """The work, and who watches."""

    def __init__(
        self, fault: DiskFault | None, call: int, after_failed_sync: AfterFailedSync, *, in_segments: bool = False
    ) -> None:
        self.world = Run(seed=call)
        self.receiver: Receiver
        self.node = SimNode(self.world, self._declare, after_failed_sync=after_failed_sync, in_segments=in_segments)
        if fault is not None:
            self.node.disk.fail(call, fault)
        self._call = call
        self.sender = Sender(self.node, "block", self.world.chance("sender"), Temper())
        self.caller = Caller(self.node, "caller", self.world.chance("caller"))
        self.evidence = Evidence(self.node, self.receiver, [self.sender], [self.caller], [], [])
        self.findings: list[str] = []
        self.stopped = False
        self.reached = False
        self.safe = 0

    def _declare(self, node: SimNode) -> Declaration:
        self.receiver = Receiver(node, self.world.chance("receiver"))
        return declare_drones(self.receiver, settings=SETTINGS)

    async def main(self) -> None:
        """Works until it is done or stopped, then starts again and does the rest."""
        sending = asyncio.ensure_future(self.sender.run())
        asking: list[asyncio.Future[None]] = []
        try:
            await self.node.start()
            await self._work(asking)
        except StigmergyError:
            self.stopped = True
        self.reached = self.node.disk.calls >= self._call
        if self.node.live is not None:
            await self._look_at_the_stop()
            await self.node.kill()
        self.node.disk.forgive()
        live = await self.node.start()
        for _ in range(200):
            await asyncio.sleep(0.1)
            if self.sender.done and not self.caller.open and not live.standing().owed and live.failure is None:
                break
        else:
            self.findings.append(f"no end after the restart: {live.failure!r}, {live.standing()}")
        sending.cancel()
        await self.node.stop()

    async def _work(self, asking: list[asyncio.Future[None]]) -> None:
        for number in range(1, ROUNDS + 1):
            for agent in AGENTS:
                self.sender.say(agent, Beaten(source="block", number=len(self.sender.items) + 1))
                self.sender.say(agent, Spotted(source="block", number=len(self.sender.items) + 1))
                self.sender.say(agent, Measured(source="block", number=len(self.sender.items) + 1))
            asking.append(asyncio.ensure_future(self.caller.ask(AGENTS[0], StartMission(mission=number))))
            await self._observe(Spotted(source=f"local{number}", number=1))
            await asyncio.sleep(0.3)
            live = self.node.live
            if live is None or live.failure is not None:
                self.stopped = True
                return

    async def _observe(self, event: Any) -> None:
        live = self.node.live
        try:
            if live is not None:
                await live.observe(AGENTS[1], event)
                self.evidence.observed.append((AGENTS[1], event))
        except StigmergyError as error:
            self.node.record("not observed", type(error).__name__)

    async def _look_at_the_stop(self) -> None:
        """A node that has stopped has made every agent safe, at once, and takes nothing more."""
        live = self.node.live
        if live is None or live.failure is None:
            return
        if not isinstance(live.failure, JournalError):
            self.findings.append(f"the node has stopped with {live.failure!r}, which is no error of the journal")
        agents = [address for shard in live.host.shards for address in shard.state.agents]
        for address in agents:
            if address.startswith("Drone/") and address not in self.receiver.safe_tried_ns:
                self.findings.append(f"{address} was not made safe when the node stopped")
        self.safe = len(self.receiver.safe)
        try:
            await live.observe(AGENTS[0], Measured(source="late", number=1))
        except StigmergyError:
            return
        self.findings.append("a node that has stopped has taken an input")


def run_io_trial(
    call: int,
    fault: DiskFault | None,
    *,
    after_failed_sync: AfterFailedSync = AfterFailedSync.STALE_CACHE,
    in_segments: bool = False,
) -> IoResult:
    """Lets the call with this number fail."""
    trial = IoTrial(fault, call, after_failed_sync, in_segments=in_segments)
    try:
        trial.world.run(trial.main())
    except (StigmergyError, SimulationError) as error:
        trial.findings.append(f"ended with {error!r}")
    found = trial.findings + trial.node.logbook.findings
    for checker in (*CHECKERS, *HEALED) if not found else ():
        found += [f"{checker.__name__}: {finding}" for finding in checker(trial.evidence)]
    violations = [f"call {call}, {fault.name if fault else 'no fault'}: {finding}" for finding in found]
    return IoResult(trial.reached, trial.stopped, trial.safe, trial.node.disk.calls, violations)
