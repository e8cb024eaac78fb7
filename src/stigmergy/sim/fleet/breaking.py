"""Carries out what a seed has planned to go wrong, fault by fault, and heals all of it at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from stigmergy.runtime.declaration import Declaration
from stigmergy.sim.disk import Fault as DiskFault
from stigmergy.sim.fleet import faults
from stigmergy.sim.fleet.faults import Planned
from stigmergy.sim.fleet.links import Links
from stigmergy.sim.fleet.machine import MEMORY, WRITE_S, Machine

MS = 1_000
PER_MILLE = 1_000
DEVICE_DELAY_S = 0.5
Began = Callable[[Planned, bool], None]
"""Told when something planned begins (True) and when it ends."""
Lie = Callable[[str, bool], None]
"""Makes a node's replicas lie, or stop it."""


class Breaking:
    """One run's faults at work. `run` it beside everything else, then `heal`."""

    def __init__(
        self,
        plan: Sequence[Planned],
        machines: Mapping[str, Machine],
        links: Links,
        versions: Sequence[Declaration],
        began: Began,
    ) -> None:
        self.plan = list(plan)
        self._machines = machines
        self._links = links
        self._versions = list(versions)
        self._began = began
        self.lie: Lie | None = None
        self._active: list[Planned] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.counts: dict[str, int] = {}

    def start(self) -> None:
        """Sets the clocks for everything that is planned."""
        loop = asyncio.get_running_loop()
        for planned in self.plan:
            loop.call_later(planned.at_ms / MS, self._begin, planned)
            if planned.for_ms:
                loop.call_later((planned.at_ms + planned.for_ms) / MS, self._end, planned)

    def heal(self) -> None:
        """From now on everything works."""
        for planned in list(self._active):
            self._end(planned)
        self._links.calm()
        for machine in self._machines.values():
            machine.heal()

    async def wait_settled(self) -> None:
        """Waits until crashes and upgrades that had begun are over."""
        for task in self._tasks:
            await task

    def _begin(self, planned: Planned) -> None:
        self.counts[planned.fault] = self.counts.get(planned.fault, 0) + 1
        self._began(planned, True)
        if planned.for_ms:
            self._active.append(planned)
            self._adjust(planned)
        else:
            self._tasks.append(asyncio.ensure_future(self._happen(planned)))

    def _end(self, planned: Planned) -> None:
        if planned in self._active:
            self._active.remove(planned)
            self._began(planned, False)
            self._adjust(planned)

    # ------------------------------------------------------------------ what lasts

    def _adjust(self, planned: Planned) -> None:
        """A spell has begun or ended: the node gets the worst of those that are on."""
        for name in planned.node.split(","):
            amounts = [one.amount for one in self._active if one.fault == planned.fault and name in one.node.split(",")]
            self._set(planned.fault, self._machines[name], bool(amounts), max(amounts, key=abs, default=0))

    def _set(self, fault: str, machine: Machine, on: bool, amount: int) -> None:
        name, links = machine.name, self._links
        if fault == faults.LOSS.name:
            links.change(name, loss=amount)
        elif fault == faults.DUPLICATION.name:
            links.change(name, duplication=amount)
            (links.double if on else links.mend)(name)
        elif fault == faults.REORDERING.name:
            links.change(name, reordering=amount)
            links.mend(name)
        elif fault == faults.DELAY.name:
            links.change(name, delay_ms=amount)
        elif fault == faults.PARTITION.name:
            links.change(name, is_cut=on)
        elif fault == faults.ONE_WAY.name:
            links.change(name, is_unheard=on)
        elif fault == faults.DISK_FULL.name:
            disk = machine.node.disk
            disk.capacity_bytes = disk.used_bytes() + amount if on else 1 << 40
        elif fault == faults.SLOW_DISK.name:
            machine.node.latency.before_s = amount / MS if on else WRITE_S
        elif fault == faults.PAUSE.name:
            (machine.hold if on else machine.resume)()
        elif fault == faults.CLOCK_DRIFT.name:
            machine.node.clock.set_drift(amount)
            machine.node.clock.set_monotonic_drift(amount)
        elif fault == faults.DEVICES.name:
            temper = machine.receiver.temper
            temper.fail = amount / PER_MILLE
            temper.delay_s = DEVICE_DELAY_S if on else 0.0
        elif fault == faults.LIAR.name:
            if self.lie is not None:
                self.lie(name, on)
        else:
            raise AssertionError(fault)

    # ------------------------------------------------------------------ what happens in a moment

    async def _happen(self, planned: Planned) -> None:
        machine, amount = self._machines[planned.node], planned.amount
        on_disk = machine.journal != MEMORY
        if planned.fault in (faults.CRASH.name, faults.POWER.name):
            power = planned.fault == faults.POWER.name
            if amount and on_disk:
                machine.plan(DiskFault.POWER_LOSS if power else DiskFault.KILL, amount)
            else:
                await machine.crash("power" if power else "kill")
        elif planned.fault == faults.IO_ERROR.name:
            machine.plan(DiskFault.EIO, amount)
        elif planned.fault == faults.BIT_FLIP.name:
            await machine.crash("kill")
            if on_disk:
                machine.flip(amount)
        elif planned.fault == faults.CLOCK_JUMP.name:
            if amount:
                machine.node.clock.jump(amount / MS)
            else:
                machine.node.clock.boot_in_1970()
        elif planned.fault == faults.VERSIONS.name:
            if self._versions:
                await machine.upgrade(self._versions[amount % len(self._versions)])
        else:
            raise AssertionError(planned.fault)
