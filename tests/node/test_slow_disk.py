"""A disk that takes seconds for a write: nothing can be stepped, so the host waits for the disk and burns no core; what
does not need the disk goes out in time."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rigs.ledger import LedgerFaults, SimLedger
from stigmergy import (
    Action,
    Agent,
    Claim,
    Denied,
    Effects,
    Event,
    Fleet,
    Granted,
    Lost,
    Order,
    Ordered,
    Settings,
    WakeMe,
    WhenStale,
    Woken,
    evolve,
    ordered,
    react,
)
from stigmergy.agents.codec import Envelope, open_envelope, pack_envelope
from stigmergy.claims.memory_ledger import MemoryLedgerStore
from stigmergy.network.replication import Replication
from stigmergy.node.host import Host
from stigmergy.node.ingress import Ingress
from stigmergy.node.wakeups import Waker
from stigmergy.shard.draft import Stepped
from stigmergy.shard.shard import Shard
from stigmergy.sim.node import NodeService, SimNode
from stigmergy.sim.run import Run
from tests.node.rig import play

WRITE_S = 3.0
STALE_S = 1.5
EVERY_S = 0.05


class Seen(Event):
    number: int


class Beat(Event):
    pass


class Halt(Action):
    pass


class Cart(Agent):
    """Wants its dock again at each thing it sees, and sets a timer for each."""

    dock: Ordered[Claim] = ordered(of="dock")
    seen: int = 0
    told: int = 0
    woken_count: int = 0
    stale = WhenStale(Beat, after_s=STALE_S, then=Halt())

    @evolve
    def saw(self, event: Seen) -> None:
        self.seen += 1

    @evolve
    def heard(self, event: Granted | Denied | Lost) -> None:
        self.told += 1

    @evolve
    def woken(self, event: Woken) -> None:
        self.woken_count += 1

    @react
    def wants(self, event: Seen) -> Effects:
        yield self.dock.claim(for_s=1)
        yield WakeMe(name=f"look {event.number}", after_s=0.2)


def declare(settings: Settings, halted: list[float], now_s: Callable[[], float]) -> Fleet:
    """The fleet, whose device notes when it was told to halt."""
    fleet = Fleet("slow", agents=[Cart], settings=settings)

    @fleet.actuator(Halt)
    def halt(order: Order[Halt]) -> None:
        halted.append(now_s())

    return fleet


class Turns:
    """Counts the turns of all hosts, and the waits of zero that their clocks were set to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.zero_waits = 0
        take, arm = Waker._take, Waker.arm

        def counted_take(waker: Waker) -> None:
            self.count += 1
            take(waker)

        def counted_arm(waker: Waker, monotonic_ns: int, due_ns: int) -> None:
            self.zero_waits += due_ns <= monotonic_ns
            arm(waker, monotonic_ns, due_ns)

        monkeypatch.setattr(Waker, "_take", counted_take)
        monkeypatch.setattr(Waker, "arm", counted_arm)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    return Turns(monkeypatch)


@pytest.mark.timeout(60)
def test_a_full_commit_on_a_slow_disk_is_waited_for(turns: Turns) -> None:
    """Timers, a silent agent, gaps and claims come due while the commit is full: each brings a turn or two, and no
    watch sets the clock to now. In virtual time one that did would never end."""
    halted: list[float] = []
    world = Run(1)
    settings = Settings(batch_events_max=4, gap_wait_s=0.5, write_within_s=20.0)
    fleet = declare(settings, halted, world.loop.time)

    def parts(node: SimNode, host: Host) -> Sequence[NodeService]:
        ledger = SimLedger(MemoryLedgerStore("slow"), random.Random(1), LedgerFaults(delay_s_max=0.002))
        return (Replication(host, node.signer, node.entropy, ledger=ledger),)

    node = SimNode(world, lambda _: fleet, in_memory=True, parts=parts)
    node.latency.jitter = False

    async def main() -> None:
        live = await node.start()
        await live.observe("Cart/1", Seen(number=0))
        await live.observe("Cart/1", Beat())
        node.latency.before_s = WRITE_S
        began_s, turns.count, turns.zero_waits = world.loop.time(), 0, 0
        told: list[asyncio.Future[None]] = []
        # Each of these is a gap: the numbers between them never come.
        for sequence in (3, 6, 9):
            body = pack_envelope("sensor", [("Cart/1", Seen(number=sequence))], sequence=sequence)
            told.append(asyncio.ensure_future(live.deliver(body)))
        inputs = int(2 * WRITE_S / EVERY_S)
        for number in range(inputs):
            told.append(asyncio.ensure_future(live.observe("Cart/1", Seen(number=100 + number))))
            await asyncio.sleep(EVERY_S)
        assert turns.zero_waits == 0
        assert turns.count < 20 * inputs, "some for each input, and not as many as a core can take"
        assert halted, "a safe action does not wait for the disk"
        assert STALE_S <= halted[0] - began_s <= STALE_S + 0.01
        node.latency.before_s = 0.0
        await asyncio.gather(*told)
        await asyncio.sleep(1.0)
        assert live.query("Cart/1", Cart).seen == inputs + 4
        assert live.query("Cart/1", Cart).told
        await node.stop()

    world.run(main())


def test_room_that_sealing_makes_is_used_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full commit cannot be sealed while another waits for the disk. When that one is written, it can be, and what
    waits is stepped into the next without waiting for another write."""
    taken: list[int] = []
    step = Shard.step

    def counted(shard: Shard, inputs: Sequence[Any], now_ns: int) -> Stepped:
        taken.append(len(inputs))
        return step(shard, inputs, now_ns)

    monkeypatch.setattr(Shard, "step", counted)

    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.observe("Cart/1", Beat())
        node.latency.jitter = False
        node.latency.before_s = WRITE_S
        taken.clear()
        told = [asyncio.ensure_future(live.observe("Cart/1", Beat())) for _ in range(20)]
        await asyncio.sleep(WRITE_S - 0.5)
        before = sum(taken)
        assert before < 20, "the commits are full"
        await asyncio.sleep(1.0)
        assert sum(taken) == before + 4
        await asyncio.gather(*told)

    fleet = declare(Settings(batch_events_max=4, write_within_s=20.0), [], lambda: 0.0)
    play(fleet, main, in_memory=True)


def test_all_gaps_whose_time_is_over_are_declared_in_one_turn() -> None:
    ingress = Ingress[Envelope](lambda *_: 0, gap_wait_ns=5, gap_deliveries_max=10)
    for sequence in (3, 6, 9):
        envelope = open_envelope(pack_envelope("sensor", [("Cart/1", Beat())], sequence=sequence))
        assert not ingress.admit(envelope, 1, (), monotonic_ns=0)
    assert [one.skip_to for one in ingress.overdue(5)] == [3, 6, 9]
    assert ingress.next_ns is None


async def test_a_real_node_burns_no_core_while_its_disk_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: Turns
) -> None:
    """Every sync of the journal takes three seconds. Claims come due meanwhile, and all that the node does is wait."""
    halted: list[float] = []
    fleet = declare(Settings(batch_events_max=4, write_within_s=60.0, drain_s=60.0), halted, time.monotonic)
    sync_s = 0.0
    real = os.fdatasync

    def slow(file: int) -> None:
        time.sleep(sync_s)
        real(file)

    journal, ledger = f"segments:{tmp_path / 'fleet'}", f"sqlite:{tmp_path / 'ledger.db'}"
    async with fleet.running(journal=journal, ledger=ledger, node="n") as live:
        for number in range(4):
            await live.observe("Cart/1", Seen(number=number))
        while not live.query("Cart/1", Cart).told:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        monkeypatch.setattr(os, "fdatasync", slow)
        sync_s = WRITE_S
        turns.count = 0
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        told = [asyncio.ensure_future(live.observe("Cart/1", Seen(number=10 + number))) for number in range(16)]
        await asyncio.sleep(2 * WRITE_S)
        wall_s, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
        print(f"{cpu_s / wall_s:.2%} of a core in {wall_s:.1f} s, {turns.count} turns")
        assert not all(one.done() for one in told), "the disk was slow"
        sync_s = 0.0
        await asyncio.gather(*told)
    assert turns.count < 1_000, "an old node took ten thousands"
    assert cpu_s < 0.05 * wall_s
    assert halted, "a safe action does not wait for the disk"
