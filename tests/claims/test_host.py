"""Claims through the shipping host: agents on two machines and one ledger, with cuts, crashes and wrong clocks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from rigs.ledger import LedgerFaults, SimLedger
from stigmergy import (
    Agent,
    Claim,
    Denied,
    Effects,
    Event,
    Fleet,
    Granted,
    Lost,
    Ordered,
    Released,
    evolve,
    ordered,
    react,
)
from stigmergy.claims.memory_ledger import MemoryLedgerStore
from stigmergy.claims.state import DRIFT_PPM_MAX
from stigmergy.network.replication import Replication
from stigmergy.node.host import Host
from stigmergy.sim.node import NodeService, SimNode
from stigmergy.sim.run import Run

SLOT = "slot-1"


class Wanted(Event):
    for_s: float
    wait_s: float = 0.0
    renew: bool = False


class Left(Event):
    pass


class Looked(Event):
    pass


class Car(Agent):
    slot: Ordered[Claim] = ordered(of=SLOT)
    heard: tuple[str, ...] = ()

    @react
    def ask(self, event: Wanted) -> Effects:
        yield self.slot.claim(for_s=event.for_s, wait_s=event.wait_s, renew=event.renew)

    @react
    def give_back(self, event: Left) -> Effects:
        yield self.slot.release()

    @evolve
    def look(self, event: Looked) -> None:
        self.heard = (*self.heard, f"holds {self.slot.held}")

    @evolve
    def hear(self, event: Granted | Denied | Lost | Released) -> None:
        self.heard = (*self.heard, type(event).__name__)


class Machine:
    """A node with a car on it."""

    def __init__(self, world: Run, store: MemoryLedgerStore, name: str) -> None:
        self.world = world
        self.car = f"Car/{name}"
        self._store = store
        self.faults = LedgerFaults(delay_s_max=0.002)
        self.ledger: SimLedger
        self.replication: Replication
        self.node = SimNode(world, lambda _: Fleet("cars", agents=[Car]), name=name, in_memory=True, parts=self._parts)

    def _parts(self, node: SimNode, host: Host) -> Sequence[NodeService]:
        chance = random.Random(f"{self.world.seed}/{node.name}/{node.lives}")
        self.ledger = SimLedger(self._store, chance, self.faults)
        self.replication = Replication(host, node.signer, node.entropy, ledger=self.ledger)
        return (self.replication,)

    def observe(self, event: Event) -> None:
        live = self.node.live
        assert live is not None
        live.host.intake.observe(self.car, event).add_done_callback(lambda done: done.cancelled() or done.exception())

    @property
    def state(self) -> Car:
        live = self.node.live
        assert live is not None
        car = live.query(self.car)
        assert isinstance(car, Car)
        return car

    @property
    def heard(self) -> tuple[str, ...]:
        live = self.node.live
        car = None if live is None else live.query(self.car)
        return car.heard if isinstance(car, Car) else ()

    async def wait_heard(self, word: str, count: int = 1, within_s: float = 60.0) -> None:
        deadline_s = self.world.loop.time() + within_s
        while self.heard.count(word) < count:
            assert self.world.loop.time() < deadline_s, f"{self.car} heard {self.heard}"
            await asyncio.sleep(0.002)

    def believes(self) -> bool:
        claims = self.replication.claims
        return claims is not None and self.node.live is not None and bool(claims.believes(SLOT))


def play(scene: Callable[[Machine, Machine], Awaitable[None]], seed: int = 1) -> None:
    """Two machines, watched all the time: at no moment do both believe that they hold."""
    world = Run(seed)
    store = MemoryLedgerStore("cars")
    one, other = Machine(world, store, "one"), Machine(world, store, "other")

    async def watch() -> None:
        while True:
            assert not (one.believes() and other.believes()), "two hold at one moment"
            for machine in (one, other):
                if machine.node.live is not None and machine.node.live.query(machine.car) is not None:
                    held, believes = machine.state.slot.held, machine.believes()
                    assert believes or not held or machine.heard[-1:] != ("Granted",), "it acts, and its lease is over"
            await asyncio.sleep(0.01)

    async def main() -> None:
        await one.node.start()
        await other.node.start()
        watching = asyncio.ensure_future(watch())
        await scene(one, other)
        assert not watching.done(), watching.exception()
        watching.cancel()
        for machine in (one, other):
            if machine.node.live is not None:
                await machine.node.stop()

    world.run(main())


def test_one_holds_and_gives_it_to_the_other() -> None:
    async def scene(one: Machine, other: Machine) -> None:
        one.observe(Wanted(for_s=60))
        await one.wait_heard("Granted")
        assert one.believes()
        other.observe(Wanted(for_s=60))
        await other.wait_heard("Denied")
        other.observe(Wanted(for_s=60, wait_s=30))
        await asyncio.sleep(1.0)
        one.observe(Left())
        await other.wait_heard("Granted")
        assert one.heard == ("Granted", "Released")
        assert other.state.slot.token > one.state.slot.token

    play(scene)


def test_contact_lost_means_lost_in_time() -> None:
    async def scene(one: Machine, other: Machine) -> None:
        one.observe(Wanted(for_s=2, renew=True))
        await one.wait_heard("Granted")
        await asyncio.sleep(10.0)
        one.observe(Looked())
        await one.wait_heard("holds True")
        assert one.heard == ("Granted", "holds True")
        one.ledger.cut_off = True
        cut_s = one.world.loop.time()
        other.observe(Wanted(for_s=2, wait_s=20))
        await one.wait_heard("Lost")
        assert one.world.loop.time() <= cut_s + 2.05
        one.observe(Looked())
        await one.wait_heard("holds False")
        await other.wait_heard("Granted")

    play(scene)


def test_after_a_crash_it_asks_again_and_others_wait_for_the_lease() -> None:
    async def scene(one: Machine, other: Machine) -> None:
        one.observe(Wanted(for_s=5))
        await one.wait_heard("Granted")
        token = one.state.slot.token
        await one.node.kill()
        crashed_s = one.world.loop.time()
        other.observe(Wanted(for_s=5, wait_s=20))
        await one.node.start()
        await one.wait_heard("Lost")
        assert not one.state.slot.held
        await other.wait_heard("Granted")
        assert one.world.loop.time() >= crashed_s + 4.9
        one.observe(Wanted(for_s=5, wait_s=30))
        await one.wait_heard("Granted", 2)
        assert one.state.slot.token > token

    play(scene)


def test_what_was_asked_before_a_crash_is_asked_again() -> None:
    async def scene(one: Machine, other: Machine) -> None:
        one.ledger.cut_off = True
        one.observe(Wanted(for_s=30))
        await asyncio.sleep(1.0)
        await one.node.kill()
        await one.node.start()
        await one.wait_heard("Granted")
        other.observe(Wanted(for_s=5))
        await other.wait_heard("Denied")

    play(scene)


@pytest.mark.parametrize("seed", range(3))
def test_wrong_clocks_extend_no_lease(seed: int) -> None:
    """Row 14: wall clocks an hour off, set back, standing still, in 1970; monotonic ones at the bound of drift."""

    async def scene(one: Machine, other: Machine) -> None:
        one.node.clock.set_monotonic_drift(-DRIFT_PPM_MAX)
        other.node.clock.set_monotonic_drift(DRIFT_PPM_MAX)
        faults: list[Callable[[Machine], None]] = [
            lambda machine: machine.node.clock.jump(3600),
            lambda machine: machine.node.clock.jump(-3600),
            lambda machine: machine.node.clock.freeze(),
            lambda machine: machine.node.clock.boot_in_1970(),
        ]
        chance = random.Random(seed)
        chance.shuffle(faults)
        for number, disturb in enumerate(faults, start=1):
            holder, waiter = (one, other) if number % 2 else (other, one)
            granted = holder.heard.count("Granted")
            holder.observe(Wanted(for_s=3))
            await holder.wait_heard("Granted", granted + 1)
            granted_s = holder.world.loop.time()
            disturb(holder)
            disturb(waiter)
            waiter.observe(Wanted(for_s=1, wait_s=20))
            await holder.wait_heard("Lost", holder.heard.count("Lost") + 1, within_s=10.0)
            assert holder.world.loop.time() <= granted_s + 3.05
            granted = waiter.heard.count("Granted")
            await waiter.wait_heard("Granted", granted + 1)
            await waiter.wait_heard("Lost", waiter.heard.count("Lost") + 1)
            for machine in (one, other):
                machine.node.clock.thaw()

    play(scene, seed)
