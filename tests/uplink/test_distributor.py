"""What sites send up, handed out over a bus to whoever has the agents: once and in order, whatever breaks between."""

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator

from stigmergy import Fleet, Settings, UplinkRule, UplinkSettings
from stigmergy.agents.codec import encode
from stigmergy.base.system import SystemClock
from stigmergy.bus.memory import MemoryBus, memory_broker
from stigmergy.bus.port import BusMessage
from stigmergy.control.live import Live
from stigmergy.store.memory import open_store
from stigmergy.testing.bus_rig import wait_until
from stigmergy.uplink.distributor import Distributor
from stigmergy.uplink.messages import Batch, Inquiry, Told, read_told, write_message
from stigmergy.uplink.names import UplinkSource
from tests.uplink.stage import Arrived, Drone, Twin

QUICK = Settings(
    uplink=UplinkSettings(linger_s=0.01, answer_within_s=0.5, pause_s=0.05, pause_s_max=0.2, batch_bytes_max=200)
)
NAMES = itertools.count(1)


class Stage:
    """Two brokers, a store, and a fleet whose agents are elsewhere."""

    def __init__(self) -> None:
        self.name = f"distributor-{next(NAMES)}"
        self.below, self.bus = f"{self.name}-below", f"{self.name}-bus"
        self.runs = 0
        self.fleet = Fleet("ground", agents=[Twin])
        self.fleet.collect("Drone/{id}", to="Twin/{id}", fleet="delivery", site="+")

    @contextlib.asynccontextmanager
    async def distributing(self) -> AsyncIterator[Distributor]:
        self.runs += 1
        store = await open_store(f"memory:{self.name}", SystemClock())
        keys = await store.key_value("uplinks")
        below = MemoryBus(memory_broker(self.below), "hub")
        bus = MemoryBus(memory_broker(self.bus), "hub")
        distributor = Distributor(
            below, bus, keys, self.fleet, UplinkSource("ground", "local", "hub"), f"run {self.runs}"
        )
        await distributor.start()
        try:
            yield distributor
        finally:
            await distributor.stop()
            await store.close()

    def site(self) -> contextlib.AbstractAsyncContextManager[Live]:
        return Fleet("delivery", agents=[Drone]).running(
            journal=f"memory:{self.name}-site",
            bus=f"memory:{self.name}-site",
            site="north",
            node="gateway",
            settings=QUICK,
            uplink=UplinkRule(only=("Arrived",)),
            uplink_to=f"memory:{self.below}",
        )

    def worker(self) -> contextlib.AbstractAsyncContextManager[Live]:
        return self.fleet.running(journal=f"memory:{self.name}-worker", bus=f"memory:{self.bus}", node="worker")


def trail(live: Live, name: str = "1") -> tuple[str, ...]:
    found: tuple[str, ...] = live.query(f"Twin/{name}", Twin).trail
    return found


def told(count: int) -> tuple[str, ...]:
    return tuple(f"arrived {number}" for number in range(count))


async def test_what_sites_send_reaches_whoever_has_the_agent() -> None:
    stage = Stage()
    async with stage.worker() as worker, stage.site() as site, stage.distributing() as distributor:
        for number in range(20):
            await site.observe("Drone/1", Arrived(number=number))
            await site.observe("Drone/2", Arrived(number=number))
        await wait_until(lambda: trail(worker) == trail(worker, "2") == told(20))
        assert distributor.counters.distributed_events == 40
        uplink = site.standing().link.uplink
        assert uplink is not None
        assert uplink.to == "hub"


async def test_once_and_in_order_through_restarts_and_cuts_of_everybody() -> None:
    stage, chance, sent = Stage(), random.Random(4), 0
    async with stage.worker() as worker, stage.site() as site:
        for _ in range(12):
            async with stage.distributing():
                for _ in range(chance.randrange(1, 30)):
                    await site.observe("Drone/1", Arrived(number=sent))
                    sent += 1
                await asyncio.sleep(chance.random() * 0.05)
                broker = memory_broker(stage.bus if chance.random() < 0.5 else stage.below)
                client = "hub" if chance.random() < 0.7 else "ground:local:worker"
                broker.cut(client)
                await asyncio.sleep(chance.random() * 0.05)
                broker.restore(client)
        async with stage.distributing():
            await wait_until(lambda: len(trail(worker)) >= sent)
            assert trail(worker) == told(sent)
    assert sent > 50


class Ear:
    """A gateway that is none, and says what it likes."""

    def __init__(self, stage: Stage) -> None:
        self.sender = UplinkSource("delivery", "north", "gateway")
        self.bus = MemoryBus(memory_broker(stage.below), "delivery:north:gateway")
        self.heard: list[Told] = []

    async def open(self) -> None:
        await self.bus.subscribe(self.sender.marks_topic, self._hear)
        await self.bus.open()
        await wait_until(lambda: self.bus.is_up)

    async def _hear(self, message: BusMessage) -> None:
        self.heard.append(read_told(message.payload))

    async def say(self, message: Batch | Inquiry | bytes) -> Told:
        count = len(self.heard)
        payload = message if isinstance(message, bytes) else write_message(message)
        await self.bus.publish(BusMessage(self.sender.topic, payload))
        await wait_until(lambda: len(self.heard) > count)
        return self.heard[-1]


def batch(after: int, upto: int, *items: tuple[int, str, bytes], epoch: int = 1) -> Batch:
    return Batch(0, 7, epoch, after, upto, list(items))


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[tuple[Stage, Ear, Distributor, Live]]:
    stage = Stage()
    ear = Ear(stage)
    async with stage.worker() as worker, stage.distributing() as distributor:
        await ear.open()
        yield stage, ear, distributor, worker
        await ear.bus.close()


async def test_marks_say_how_far_it_is_and_outlive_a_run() -> None:
    one, two = encode(Arrived(number=0)), encode(Arrived(number=1))
    async with listening() as (stage, ear, _, worker):
        assert (await ear.say(Inquiry("a"))).marks == []
        answer = await ear.say(batch(0, 9, (3, "Drone/1", one)))
        assert [(mark.number, mark.incarnation) for mark in answer.marks] == [(9, 7)]
        assert (await ear.say(batch(12, 20, (15, "Drone/1", two)))).refused == "a batch before it is missing"
        assert (await ear.say(batch(0, 9, (3, "Drone/1", one)))).marks == answer.marks
        assert "epoch" in (await ear.say(batch(9, 20, (15, "Drone/1", two), epoch=0))).refused
        assert (await ear.say(batch(2, 20, (3, "Drone/1", one), (15, "Drone/1", two)))).marks[0].number == 20
        await wait_until(lambda: trail(worker) == told(2))
    ear = Ear(stage)
    async with stage.distributing():
        await ear.open()
        answer = await ear.say(Inquiry("b"))
        assert (answer.nonce, answer.run, answer.marks[0].number) == ("b", "run 2", 20)
        await ear.bus.close()


async def test_one_that_was_held_up_writes_nothing_over_what_the_next_has_written() -> None:
    """It lost its lease while it slept, and goes on for a moment when it wakes."""
    one, two = encode(Arrived(number=0)), encode(Arrived(number=1))
    async with listening() as (stage, ear, held_up, worker):
        store = await open_store(f"memory:{stage.name}", SystemClock())
        broker = f"{stage.name}-next"
        below, bus = MemoryBus(memory_broker(broker), "hub"), MemoryBus(memory_broker(stage.bus), "next")
        keys = await store.key_value("uplinks")
        following = Distributor(below, bus, keys, stage.fleet, UplinkSource("ground", "local", "hub"), "next")
        await following.start()
        other = Ear(stage)
        other.bus = MemoryBus(memory_broker(broker), "site")
        await other.open()
        await other.say(batch(0, 9, (3, "Drone/1", one)))
        assert (await other.say(batch(9, 20, (15, "Drone/1", two), epoch=2))).marks[0].number == 20
        late = await ear.say(batch(0, 9, (3, "Drone/1", one)))
        assert "decide again" in late.refused
        assert [(mark.number, mark.epoch) for mark in late.marks] == [(20, 2)]
        assert held_up.counters.distributed_batches == 0
        await wait_until(lambda: trail(worker) == told(2))
        await other.bus.close()
        await following.stop()
        ear_after = Ear(stage)
        async with stage.distributing():
            await ear_after.open()
            assert (await ear_after.say(Inquiry("c"))).marks[0].number == 20
            await ear_after.bus.close()
        await store.close()


async def test_what_is_no_event_of_a_site_is_refused_and_holds_up_nothing() -> None:
    async with listening() as (_, ear, distributor, worker):
        assert "not an uplink message" in (await ear.say(b"\x01nonsense")).refused
        items = (
            (1, "Drone/1", b"\xc1"),
            (2, "Drone/1", b"\x81\xa4type\xb7stigmergy.AgentStarted@1"),
            (3, "Drone/1", encode(Arrived(number=0))),
        )
        assert (await ear.say(batch(0, 9, *items))).refused == ""
        await wait_until(lambda: trail(worker) == told(1))
        assert distributor.counters.distributed_refused == 3


async def test_a_batch_that_the_bus_does_not_take_is_not_confirmed() -> None:
    async with listening() as (stage, ear, _, worker):
        memory_broker(stage.bus).cut("hub")
        await asyncio.sleep(0.05)
        answer = await ear.say(batch(0, 9, (3, "Drone/1", encode(Arrived(number=0)))))
        assert answer.refused
        assert answer.marks == []
        memory_broker(stage.bus).restore("hub")
        for _ in range(100):
            answer = await ear.say(batch(0, 9, (3, "Drone/1", encode(Arrived(number=0)))))
            if not answer.refused:
                break
            await asyncio.sleep(0.05)
        assert answer.marks[0].number == 9
        await wait_until(lambda: trail(worker) == told(1))
