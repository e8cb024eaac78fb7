"""A fleet with compiled agents on a simulated disk in segments: power losses, failing calls, and what must hold then.

A producer sends batches, some of which make frames of hundreds of KiB; others send notes and commands. Each repeats
what is not acknowledged. The disk forgets what was not synced and tears what was being written, or fails at one call.
Whatever happens, after each start the logbook compares the recovered tables with the fold of all that was durable; in
the end everything is acknowledged, and agents and actions are those of the model.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from msgspec import Struct, structs

from proofs.column_agents import KIND, SETTINGS, Model, Noted, Producer, Take, make_fleet
from proofs.column_node import Release
from proofs.column_receiver import Receiver
from stigmergy import Fleet, Retention, Settings, Snapshots
from stigmergy.agents.codec import pack_envelope
from stigmergy.base.errors import StigmergyError
from stigmergy.control.live import Live
from stigmergy.journal.segments.segment import LARGE_BYTES
from stigmergy.node.column_actuators import Orders
from stigmergy.shard.batches import BATCH_BYTES_MAX
from stigmergy.sim.disk import AfterFailedSync, Call, DiskFault, IoCall
from stigmergy.sim.errors import SimulationError
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run

NAMES = [f"g-{number}" for number in range(24)]
SIZES = (1, 40, 600, 9_000, 20_000)
ROUNDS = 14
ROUNDS_IO = 3
"""Of the piece of work whose every call fails in turn."""
ANSWER_S_MAX = 8.0
END_S_MAX = 120.0
TRIAL_SETTINGS: Settings = structs.replace(
    SETTINGS,
    snapshots=Snapshots(every_events=2_500, tail_ratio=0.0, share_max=1_000.0),
    retention=Retention(keep_s=0.0, reserve_bytes=0, check_every_s=0.2),
    gap_wait_s=600.0,
)
"""Nothing may be declared lost by waiting: everything comes."""


class TrialResult(Struct, frozen=True):
    """What one trial found."""

    violations: list[str]
    calls: int
    reached: bool
    power_losses: int
    torn: int
    lives: int
    records: int
    actions: int


class ColumnTrial:
    """One run."""

    def __init__(
        self, seed: int, fleet: Fleet, *, sync_lies: bool = False, after: AfterFailedSync, keep_all: bool = False
    ) -> None:
        self.world = Run(seed, deadline_s=3_000.0)
        self.chance = random.Random(f"column trial/{seed}")
        self.model = Model()
        self.receiver = Receiver()
        self.findings: list[str] = []
        declared = make_fleet(self._act, self._warn, fleet)
        self.node = SimNode(
            self.world,
            lambda _: declared,
            settings=structs.replace(TRIAL_SETTINGS, retention=Retention()) if keep_all else TRIAL_SETTINGS,
            in_segments=True,
            sync_lies=sync_lies,
            after_failed_sync=after,
        )
        self.records = 0
        self._notes = 0
        self._asked = 0
        self._background: list[asyncio.Future[None]] = []
        self._tails: dict[str, asyncio.Future[None]] = {}
        self._tear = False
        self.torn = 0
        """Losses of power in the middle of a large frame."""
        self.node.disk.on_call = self._on_disk_call

    # ---- hands: the receiver survives the node

    def _act(self, orders: Orders[Any]) -> None:
        self._receive("act", orders, [0] * len(orders))

    def _warn(self, orders: Orders[Any]) -> None:
        self._receive("warn", orders, orders.column("count").tolist())

    def _receive(self, what: str, orders: Orders[Any], counts: list[int]) -> None:
        if self.node.alive:
            sequences, numbers = orders.sequences.tolist(), orders.column("number").tolist()
            self.findings += self.receiver.receive(Release("", orders.shard, what, sequences, numbers, counts))

    # ---- the run

    async def main(self, rounds: int, losses: int) -> None:
        """Works, with so many losses of power on the way; then everything must come to its end."""
        guard = asyncio.ensure_future(self._guard())
        roster = await self._until_done(lambda live: live.enroll(KIND, NAMES))
        producer = Producer(roster, self.model, batch_bytes=BATCH_BYTES_MAX)
        for number in range(rounds):
            if losses and number % max(1, rounds // losses) == 0:
                self._tear = self.chance.random() < 0.5
                if not self._tear:
                    self.node.disk.fail(self.node.disk.calls + self.chance.randint(1, 25), DiskFault.POWER_LOSS)
            self._say(producer)
            await asyncio.sleep(self.chance.choice((0.0, 0.01, 0.3)))
        deadline_s = self.world.loop.time() + END_S_MAX
        while self._tails or self.receiver.count < len(self.model.acts) + len(self.model.warned):
            await asyncio.sleep(0.05)
            if self.world.loop.time() > deadline_s:
                self.findings.append(f"no end: {len(self._tails)} lanes wait, {self.receiver.count} actions were done")
                break
            if not losses and self.world.loop.time() > deadline_s - END_S_MAX / 2:
                self.node.disk.forgive()
        self.node.disk.forgive()
        guard.cancel()
        if self.node.live is not None and self.node.live.failure is None:
            await self.node.stop()
        else:
            await self.node.kill()
        await self.node.start()
        await self.node.stop()

    def _on_disk_call(self, call: IoCall) -> None:
        """If it is its turn, the power goes while this large frame is being written."""
        if self._tear and call.kind is Call.WRITE and call.size >= LARGE_BYTES:
            self._tear = False
            self.torn += 1
            self.node.disk.fail(call.number, DiskFault.POWER_LOSS)

    def _say(self, producer: Producer) -> None:
        """Something is sent, on lanes that keep their own order."""
        count = self.chance.choice(SIZES)
        self.records += count
        for shard, _, data in producer.batches(NAMES, count):
            self._post(f"radio/{shard}", partial(_deliver, data))
        self._notes += 1
        name, number = self.chance.choice(NAMES), (1 << 40) + self._notes
        self.model.noted(name, number)
        note = pack_envelope("notes", [(f"{KIND}/{name}", Noted(number=number))], sequence=self._notes)
        self._post("notes", partial(_deliver, note))
        self._asked += 1
        asked, command_id = (1 << 40) + self._asked, f"c{self._asked}"
        self.model.taken(name, asked)
        self._post("commands", lambda live: live.send(f"{KIND}/{name}", Take(number=asked), command_id=command_id))

    def _post(self, lane: str, call: Callable[[Live], Awaitable[Any]]) -> None:
        before = self._tails.get(lane)

        async def after_the_last() -> None:
            if before is not None:
                await before
            await self._until_done(call)

        tail = self._tails[lane] = asyncio.ensure_future(after_the_last())
        tail.add_done_callback(lambda _: self._tails.pop(lane) if self._tails.get(lane) is tail else None)

    async def _until_done(self, call: Callable[[Live], Awaitable[Any]]) -> Any:
        """Repeats until it is acknowledged."""
        while True:
            live = self.node.live
            if live is not None and live.failure is None:
                life = self.node.lives
                try:
                    async with asyncio.timeout(ANSWER_S_MAX):
                        result = await call(live)
                except (StigmergyError, TimeoutError):
                    result = None
                else:
                    if self.node.lives == life and self.node.alive:
                        return result
            await asyncio.sleep(0.02)

    async def _guard(self) -> None:
        """What an init system does: a node that is down or has stopped is started again."""
        while True:
            live = self.node.live
            if live is None or live.failure is not None:
                await self.node.kill()
                try:
                    await self.node.start()
                except StigmergyError as error:
                    self.node.record("not started", type(error).__name__)
            await asyncio.sleep(0.05)

    def violations(self) -> list[str]:
        """All that is wrong in the end."""
        found = self.findings + self.node.logbook.findings
        return found or (self.model.differences(self.node.logbook.states)[:5] + self.receiver.differences(self.model))


async def _deliver(data: bytes, live: Live) -> None:
    await live.deliver(data)


def run_column_trial(
    seed: int,
    fleet: Fleet,
    *,
    rounds: int = ROUNDS,
    losses: int = 0,
    call: int = 0,
    fault: DiskFault | None = None,
    sync_lies: bool = False,
) -> TrialResult:
    """Runs one trial, with so many losses of power, or with a fault at one call."""
    after = (AfterFailedSync.STALE_CACHE, AfterFailedSync.DROPPED_CACHE)[(seed + call) % 2]
    trial = ColumnTrial(seed, fleet, sync_lies=sync_lies, after=after)
    if fault is not None:
        trial.node.disk.fail(call, fault)
    found: list[str] = []
    try:
        trial.world.run(trial.main(rounds, losses))
    except (StigmergyError, SimulationError) as error:
        found.append(f"ended with {error!r}")
    found += trial.violations()
    disk = trial.node.disk
    where = f"seed {seed}" if fault is None else f"call {call}, {fault.name}"
    return TrialResult(
        violations=[f"{where}: {finding}" for finding in found[:5]],
        calls=disk.calls,
        reached=disk.calls >= call,
        power_losses=disk.power_losses,
        torn=trial.torn,
        lives=trial.node.lives,
        records=trial.records,
        actions=trial.receiver.count,
    )
