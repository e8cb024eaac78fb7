"""An uplink in virtual time: whatever breaks, the gateway has what the rule lets through, once and in order."""

import asyncio
import random

import pytest

from stigmergy.bus.memory import MemoryBroker, MemoryBus
from stigmergy.bus.port import BusMessage
from stigmergy.node.settings import Settings, UplinkSettings
from stigmergy.sim.node import SimNode
from stigmergy.uplink.messages import Batch, Inquiry, Told, UplinkMark, read_up, write_message
from stigmergy.uplink.names import UplinkSource
from stigmergy.uplink.rules import UplinkRule
from tests.uplink.stage import ALL, RULE, Moved, Stage, copy_of, restore, twins

ME = UplinkSource("delivery", "local", "device")
MORE_SEEDS = (0, 4, 6, 7, 8, 9, 10, 11)


def test_what_the_rule_lets_through_arrives() -> None:
    stage = Stage()

    async def scene() -> None:
        await stage.start()
        await stage.fly(200)
        await stage.settle()
        stage.check()
        trail = stage.trail("1")
        assert sum(1 for what in trail if what.startswith("Measured x")) == 3
        assert 35 <= sum(1 for what in trail if what.startswith("moved")) <= 42
        assert stage.standing().to == "gateway"
        live = stage.gateway.live
        assert live is not None
        # What was left out was never for the gateway, so nothing of it counts as lost there.
        assert live.standing().counters["skipped"] == 0

    stage.world.run(scene())


@pytest.mark.parametrize(("rule", "minutes"), [pytest.param(RULE, 60, marks=pytest.mark.prove), (ALL, 10)])
def test_an_hour_offline_arrives_once_and_in_order(rule: UplinkRule, minutes: int) -> None:
    stage = Stage(rule=rule)

    async def scene() -> None:
        await stage.start()
        await stage.fly(30)
        stage.broker.cut("device")
        await stage.fly(60 * minutes, ("1",))
        assert 60 * minutes - 5 < stage.standing().seconds_behind < 60 * minutes + 10
        live = stage.device.live
        assert live is not None
        sent = live.standing().counters["uplink_batches"]
        stage.broker.restore("device")
        await asyncio.sleep(5)
        stage.check()
        await stage.settle()
        batches = live.standing().counters["uplink_batches"] - sent
        assert batches < 20

    stage.world.run(scene())


async def trouble(stage: Stage, chance: random.Random, seconds: int) -> None:
    """Flies on, and every few seconds something happens to somebody."""
    while seconds > 0:
        some = chance.randrange(1, 20)
        await stage.fly(some)
        seconds -= some
        node = chance.choice([stage.device, stage.gateway])
        match chance.randrange(7):
            case 0 | 1:
                await node.kill()
                await asyncio.sleep(chance.choice([0, 0.3, 10]))
                await node.start()
            case 2:
                stage.broker.cut(node.name)
            case 3 | 4:
                stage.broker.restore(node.name)
            case 5:
                stage.broker.drop_acknowledgements(node.name)
            case _:
                await node.stop()
                await node.start()


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.prove) for seed in (2, 3, 5, *MORE_SEEDS))])
def test_random_trouble(seed: int) -> None:
    chance = random.Random(seed)
    broker = MemoryBroker(redeliver_after_s=chance.choice([None, 2.0, 30.0]))
    shards = chance.choice([(1, 1), (3, 1), (1, 2), (2, 3)])
    bounds = UplinkSettings(batch_bytes_max=chance.choice([1, 300, 65536]), batches_max=chance.choice([1, 2, 8]))
    rule, settings = chance.choice([RULE, ALL]), Settings(uplink=bounds)
    stage = Stage(seed, rule=rule, settings=settings, broker=broker, shards=shards)

    async def scene() -> None:
        await stage.start()
        await trouble(stage, chance, 400)
        stage.broker.restore_all()
        await stage.fly(5)
        await asyncio.sleep(150)
        await stage.settle(5000)
        stage.check()

    stage.world.run(scene())


@pytest.mark.parametrize("wait_s", [40, *(pytest.param(long_s, marks=pytest.mark.prove) for long_s in (0, 7200))])
def test_a_gateway_that_is_an_older_copy_gets_the_rest_again(wait_s: int) -> None:
    stage = Stage()

    async def scene() -> None:
        await stage.start()
        await stage.fly(90)
        copy, before = copy_of(stage.gateway), len(stage.trail("1"))
        await stage.fly(100)
        assert len(stage.trail("1")) > before + 15
        await stage.gateway.kill()
        await asyncio.sleep(wait_s)
        await restore(stage.gateway, copy)
        assert len(stage.trail("1")) == before
        await stage.fly(30)
        await stage.settle()
        stage.check()

    stage.world.run(scene())


def test_a_device_that_is_an_older_copy_says_that_it_lost_data_and_sends_nothing() -> None:
    stage = Stage()

    async def scene() -> None:
        await stage.start()
        await stage.fly(60)
        copy = copy_of(stage.device)
        await stage.fly(60)
        await stage.settle()
        before = stage.trail("1")
        await restore(stage.device, copy)
        await stage.fly(30)
        assert "it has lost data" in stage.standing().trouble
        live = stage.device.live
        assert live is not None
        assert any("it has lost data" in trouble for trouble in live.standing().troubles)
        assert stage.trail("1") == before
        # Nor once its log has grown beyond what the gateway has: the gateway knows the old one.
        await stage.fly(200)
        await stage.device.kill()
        await stage.device.start()
        await stage.fly(30)
        assert "it has lost data" in stage.standing().trouble
        assert stage.trail("1") == before

    stage.world.run(scene())


def test_a_device_that_is_a_copy_in_its_own_right_goes_on() -> None:
    """What the original had sent beyond the copy stays; what the copy does has numbers of its own."""
    stage = Stage(rule=ALL)

    async def scene() -> None:
        await stage.start()
        await stage.fly(60)
        stage.broker.cut("device")
        await stage.fly(5)
        copy = copy_of(stage.device)
        stage.broker.restore("device")
        await stage.fly(20)
        await stage.settle()
        before = stage.trail("1")
        shared = stage.expected("1")
        assert before == shared
        in_copy = len(stage.expected_of(list(copy.commits[0]), "1"))
        await restore(stage.device, copy, incarnation=2)
        await stage.fly(30)
        await stage.settle()
        own = stage.expected("1")[in_copy:]
        assert stage.trail("1") == (*before, *own)
        assert own
        # And so again after a restart.
        await stage.device.kill()
        await stage.device.start()
        await stage.fly(30)
        await stage.settle()
        assert stage.trail("1")[: len(before)] == before

    stage.world.run(scene())


def test_a_gateway_that_lost_everything_hears_it_again_also_from_an_idle_device() -> None:
    stage = Stage()

    async def scene() -> None:
        await stage.start()
        copy = copy_of(stage.gateway)
        await stage.fly(90)
        await stage.settle()
        await restore(stage.gateway, copy)
        assert stage.trail("1") == ()
        # The device has nothing to say, so nobody tells it; it asks now and then.
        await asyncio.sleep(330)
        stage.check()
        assert stage.trail("1")

    stage.world.run(scene())


def test_a_batch_is_cut_in_the_middle_of_a_commit_and_a_restart_goes_on_there() -> None:
    """One commit of many events, sent one by one, with a receiver that dies now and then."""
    settings = Settings(uplink=UplinkSettings(batch_bytes_max=1, batches_max=2, linger_s=0.2))
    stage = Stage(rule=ALL, settings=settings)

    async def scene() -> None:
        await stage.start()
        live = stage.device.live
        assert live is not None
        stage.broker.cut("device")
        for number in range(40):
            _ = live.host.intake.observe("Drone/1", Moved(number=number))
        await asyncio.sleep(2)
        stage.broker.restore("device")
        for _ in range(6):
            await asyncio.sleep(1.1)
            await stage.gateway.kill()
            await stage.gateway.start()
            await asyncio.sleep(1.1)
            await stage.device.kill()
            await stage.device.start()
        await stage.settle()
        stage.check(("1",))
        assert len(stage.trail("1")) == 40
        store = stage.device.store
        assert store is not None
        assert max(stored.sealed.events for stored in store.commits[0]) > 30

    stage.world.run(scene())


def test_a_rule_may_change_on_the_way() -> None:
    stage = Stage(rule=UplinkRule(only=("Arrived",)))

    async def scene() -> None:
        await stage.start()
        await stage.fly(100)
        stage.broker.cut("device")
        await stage.fly(30)
        await stage.device.stop()
        stage.device.uplink = ALL
        await stage.device.start()
        stage.broker.restore("device")
        await stage.fly(50)
        await stage.settle()
        # What was confirmed stays as the old rule had it; everything else is as the new one says.
        trail = stage.trail("1")
        everything = stage.expected_by(ALL, "1")
        assert trail[-80:] == everything[-80:]
        arrived = [what for what in everything if what.startswith("arrived")]
        assert [what for what in trail if what.startswith("arrived")] == arrived

    stage.world.run(scene())


def test_it_rests_while_nobody_answers() -> None:
    stage = Stage()

    async def scene() -> None:
        await stage.device.start()
        await stage.fly(600)
        live = stage.device.live
        assert live is not None
        counters = live.standing().counters
        # At 1, 2, 4 … 60 s: and not a byte of the log leaves before anybody has said where to begin.
        assert 10 <= counters["uplink_inquiries"] <= 17
        assert counters["uplink_batches"] == 0
        assert stage.standing().to == ""
        await stage.gateway.start()
        await stage.settle()
        stage.check()

    stage.world.run(scene())


def test_a_receiver_that_stops_confirming_is_asked_and_no_more_than_the_window_is_under_way() -> None:
    stage = Stage(rule=ALL, settings=Settings(uplink=UplinkSettings(batch_bytes_max=200, batches_max=3)))

    async def scene() -> None:
        await stage.start()
        await stage.fly(10)
        await stage.settle()
        await stage.gateway.kill()
        live = stage.device.live
        assert live is not None
        before = live.standing().counters["uplink_batches"]
        await stage.fly(120)
        counters = live.standing().counters
        assert counters["uplink_batches"] == before + 3
        assert counters["uplink_timeouts"] == 1
        await stage.gateway.start()
        await stage.settle()
        stage.check()

    stage.world.run(scene())


def test_a_copy_sends_what_is_older_than_itself_although_the_original_had_a_later_owner() -> None:
    slow = Settings(uplink=UplinkSettings(batch_bytes_max=1, batches_max=1))
    stage = Stage(rule=ALL, settings=slow)

    async def scene() -> None:
        await stage.start()
        stage.broker.cut("device")
        await stage.fly(20)
        copy = copy_of(stage.device)
        for _ in range(2):
            await stage.device.kill()
            await stage.device.start()
            await stage.fly(1)
        stage.broker.restore("device")
        await asyncio.sleep(5)
        some = len(stage.trail("1"))
        assert 0 < some < 15
        await restore(stage.device, copy, incarnation=2)
        await stage.fly(5)
        await stage.settle(5000)
        stage.check()

    stage.world.run(scene())


def test_two_gateways_that_collect_the_same_are_found() -> None:
    stage = Stage(rule=ALL)
    other = SimNode(stage.world, twins(1), name="second", in_memory=True, broker=stage.broker)

    async def scene() -> None:
        await stage.start()
        await stage.fly(5)
        await other.start()
        await stage.fly(5)
        assert "both collect this uplink" in stage.standing().trouble
        await other.stop()
        await stage.fly(310, ("1",))
        await stage.settle()
        stage.check(("1",))

    stage.world.run(scene())


class Scripted:
    """A gateway that says what a test wants."""

    def __init__(self, broker: MemoryBroker, marks: list[UplinkMark]) -> None:
        self._bus = MemoryBus(broker, "scripted")
        self._marks = marks
        self.batches: list[Batch] = []

    async def start(self) -> None:
        await self._bus.subscribe(ME.topic, self._hear)
        await self._bus.open()

    async def _hear(self, message: BusMessage) -> None:
        said = read_up(message.payload)
        if isinstance(said, Inquiry):
            await self.tell(Told("scripted", "1", said.nonce, self._marks))
        else:
            self.batches.append(said)

    async def tell(self, told: Told | bytes) -> None:
        payload = told if isinstance(told, bytes) else write_message(told)
        await self._bus.publish(BusMessage(ME.marks_topic, payload))


def test_a_mark_of_nothing_is_no_mark() -> None:
    stage = Stage(rule=ALL)
    gateway = Scripted(stage.broker, [UplinkMark(0, 1, 0, 0), UplinkMark(0, 99, 5, 0), UplinkMark(77, 1, 1, 5)])

    async def scene() -> None:
        await stage.device.start()
        await gateway.start()
        await stage.fly(5)
        assert gateway.batches[0].after == 0
        assert gateway.batches[0].items
        assert not gateway.batches[0].lost

    stage.world.run(scene())


def test_answers_that_are_none_are_passed_over() -> None:
    stage = Stage(rule=ALL)
    gateway = Scripted(stage.broker, [])

    async def scene() -> None:
        await stage.device.start()
        await gateway.start()
        await stage.fly(3)
        sent = gateway.batches[-1].upto
        await gateway.tell(b"nonsense")
        await gateway.tell(Told("scripted", "1", "another nonce", [UplinkMark(0, 1, 1, sent)]))
        await stage.fly(1)
        assert stage.standing().commits_behind > 3
        assert stage.standing().trouble == ""
        await gateway.tell(
            Told("scripted", "1", "", [UplinkMark(0, 1, 1, gateway.batches[-1].upto), UplinkMark(9, 1, 1, 1)])
        )
        await asyncio.sleep(0.1)
        assert stage.standing().commits_behind <= 1
        await gateway.tell(Told("scripted", "1", "", [], "no room"))
        await asyncio.sleep(0.1)
        assert "refused a batch: no room" in stage.standing().trouble

    stage.world.run(scene())
