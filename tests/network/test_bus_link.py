"""A node on a bus, in virtual time: what is published arrives once and in order, whatever breaks in between."""

import asyncio
import random

import pytest

from stigmergy.bus.memory import MemoryBroker
from tests.node.fleets import Drone, Measured, Stage, Warned


def test_what_an_agent_publishes_reaches_an_agent_elsewhere() -> None:
    stage = Stage()

    async def scene() -> None:
        sender, _ = await stage.sender.start(), await stage.receiver.start()
        await asyncio.sleep(1)
        for number in range(20):
            await sender.observe("Drone/1", Measured(number=number))
            await sender.observe("Drone/2", Measured(number=100 + number))
        await sender.observe("Drone/2", Warned(severity="high", raw=b"\x00"))
        await asyncio.sleep(5)
        assert stage.numbers("1") == tuple(range(20))
        assert stage.numbers("2") == tuple(range(100, 120))
        receiver = stage.receiver.live
        assert receiver is not None
        assert receiver.query("Monitor/all").warnings == ("high",)
        standing = sender.standing()
        assert (standing.owed, standing.link.link, standing.link.owed) == (0, "up", 0)
        assert standing.counters["published"] == 41
        assert standing.counters["unheard"] == 0
        # Nothing was lost, so nothing is said to be lost.
        assert receiver.standing().counters["skipped"] == 0
        await stage.sender.stop()
        await stage.receiver.stop()

    stage.world.run(scene())
    stage.check()


def test_what_was_taken_just_before_a_stop_is_told_before_it() -> None:
    stage = Stage()
    stage.sender.latency.before_s = 0.3

    async def scene() -> None:
        sender, _ = await stage.sender.start(), await stage.receiver.start()
        await asyncio.sleep(1)
        for number in range(3):
            # As a sensor does, which does not wait.
            sender.host.intake.observe("Drone/1", Measured(number=number), "gauge").add_done_callback(
                asyncio.Future.result
            )
        await stage.sender.stop()
        await asyncio.sleep(5)
        assert stage.numbers() == (0, 1, 2)
        await stage.receiver.stop()

    stage.world.run(scene())
    stage.check()


async def fly(stage: Stage, seconds: int, trouble: dict[int, str], *, others: bool = False) -> None:
    """Measures once a second for so long, with trouble at some of the seconds."""
    node, other = stage.sender, stage.receiver
    for second in range(seconds):
        match trouble.get(second):
            case "cut":
                stage.broker.cut("drone")
            case "restore":
                stage.broker.restore("drone")
            case "cut receiver":
                stage.broker.cut("ground")
            case "restore receiver":
                stage.broker.restore("ground")
            case "kill sender":
                await node.kill()
                await node.start()
            case "kill receiver":
                await other.kill()
                await other.start()
            case "no acks":
                stage.broker.drop_acknowledgements("ground")
            case _:
                pass
        live = node.live
        assert live is not None
        # Each is confirmed to be in the journal, so nothing of it may be missing at the other end.
        await live.observe("Drone/1", Measured(number=second))
        if others:
            await live.observe("Drone/2", Measured(number=second))
        await asyncio.sleep(1)


@pytest.mark.prove  # the one below has crashes besides
def test_an_hour_offline_arrives_once_and_in_order() -> None:
    stage = Stage()

    async def scene() -> None:
        await stage.sender.start()
        await stage.receiver.start()
        await asyncio.sleep(1)  # what was published before the broker knew of the receiver is not for it
        await fly(stage, 3700, {30: "cut", 3630: "restore"})
        await asyncio.sleep(5)
        assert stage.numbers() == tuple(range(3700))
        live = stage.sender.live
        assert live is not None
        assert live.standing().counters["publish_shed"] == 0

    stage.world.run(scene())
    stage.check()


@pytest.mark.parametrize("redeliver_after_s", [pytest.param(None, marks=pytest.mark.prove), 30.0])
def test_an_hour_offline_with_crashes_on_both_sides(redeliver_after_s: float | None) -> None:
    """Durable events here: what is acknowledged to the sensor may not be lost by a crash a moment later."""
    stage = Stage(broker=MemoryBroker(redeliver_after_s=redeliver_after_s))
    trouble = {
        5: "kill receiver",
        10: "cut",
        100: "kill sender",
        101: "kill sender",
        1800: "kill receiver",
        3610: "restore",
        3611: "kill receiver",
        3613: "kill sender",
        3615: "no acks",
        3618: "kill receiver",
        3620: "restore receiver",
        3622: "cut receiver",
        3650: "kill receiver",
        3660: "restore receiver",
    }

    async def scene() -> None:
        await stage.sender.start()
        await stage.receiver.start()
        await asyncio.sleep(1)  # what was published before the broker knew of the receiver is not for it
        await fly(stage, 3700, trouble)
        await asyncio.sleep(120)
        numbers = stage.numbers()
        live = stage.sender.live
        assert live is not None
        # What the sender's agent has kept is what the other end has, once each and in order. Events kept `within` a
        # second may be lost with the crash itself; then they are in neither place.
        assert len(numbers) == live.query("Drone/1", Drone).count
        assert numbers == tuple(sorted(set(numbers)))
        assert len(numbers) >= 3690

    stage.world.run(scene())
    stage.check()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.prove) for seed in range(1, 8))])
def test_random_trouble(seed: int) -> None:
    play_random_trouble(seed)


def play_random_trouble(seed: int) -> None:
    """Two drones, so that no topic has all numbers; brokers that repeat first, soon, or late and behind newer ones."""
    chance = random.Random(seed)
    stage = Stage(seed, broker=MemoryBroker(redeliver_after_s=chance.choice([None, 5.0, 30.0])))
    kinds = ["cut", "restore", "cut receiver", "restore receiver", "kill sender", "kill receiver", "no acks"]
    trouble = {chance.randrange(400): chance.choice(kinds) for _ in range(chance.choice([20, 60, 120]))}
    trouble |= {401: "restore", 402: "restore receiver"}

    async def scene() -> None:
        await stage.sender.start()
        await stage.receiver.start()
        await asyncio.sleep(1)  # what was published before the broker knew of the receiver is not for it
        await fly(stage, 410, trouble, others=True)
        await asyncio.sleep(200)
        live = stage.sender.live
        assert live is not None
        for name in ("1", "2"):
            numbers = stage.numbers(name)
            assert len(numbers) == live.query(f"Drone/{name}", Drone).count
            assert numbers == tuple(sorted(set(numbers)))

    stage.world.run(scene())
    stage.check()
