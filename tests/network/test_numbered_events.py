"""Numbered events over a bus: each taken once and in order, gaps waited for within bounds, forged numbers found out."""

import asyncio
import json
from typing import Any

import pytest

from stigmergy.bus.port import BusMessage
from stigmergy.control.live import Live
from stigmergy.network import ordering
from stigmergy.node.declaration import Declaration
from stigmergy.node.settings import BusSettings, Settings
from stigmergy.sim.node import SimNode
from tests.network.subscriber_scenes import BATTERY, counter, heard, numbered, play
from tests.node.fleets import Monitor, Outsider, cloud, monitors


def test_numbered_events_are_taken_once_and_in_order() -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        await outsider.send(BATTERY, numbered(5))
        await outsider.send(BATTERY, numbered(5))
        await outsider.send(BATTERY, numbered(9, previous="7"))  # 7 is missing: this one waits
        assert heard(live) == (5,)
        await outsider.send(BATTERY, numbered(7, previous="5"))
        assert heard(live) == (5, 7, 9)
        await outsider.send(BATTERY, numbered(3))
        assert heard(live) == (5, 7, 9)
        assert counter(live, "bus_early") >= 1
        assert counter(live, "skipped") == 0
        await node.kill()
        again = await node.start()
        for sequence in (5, 7, 9):
            await outsider.send(BATTERY, numbered(sequence))
        assert heard(again) == (5, 7, 9)
        await outsider.send(BATTERY, numbered(11, previous="9", shed="3"))
        assert heard(again) == (5, 7, 9, 11)
        assert counter(again, "bus_lost_by_senders") == 3

    play(monitors, scene)


def test_a_message_that_never_comes_is_waited_for_within_a_bound() -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        await outsider.send(BATTERY, numbered(1))
        await outsider.send(BATTERY, numbered(3, previous="2"))
        await asyncio.sleep(50)
        assert heard(live) == (1,)
        await asyncio.sleep(20)
        assert heard(live) == (1, 3)
        assert counter(live, "bus_gaps") == 1
        assert counter(live, "skipped") == 1
        # Who has left a gap is not waited for again: nobody may hold up the others with numbers.
        await outsider.send(BATTERY, numbered(9, previous="8"))
        assert heard(live) == (1, 3, 9)

    play(monitors, scene)


def test_on_a_link_that_has_been_up_for_long_nobody_waits_long() -> None:
    """What is missing there was dropped by the broker: to wait for it would hold up the others."""

    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        await outsider.send(BATTERY, numbered(1))
        await asyncio.sleep(100)
        await outsider.send(BATTERY, numbered(3, previous="2"))
        assert heard(live) == (1,)
        await asyncio.sleep(2)
        assert heard(live) == (1, 3)

    play(monitors, scene)


def test_while_the_link_is_down_nobodys_time_is_up() -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        assert node.broker is not None
        await outsider.send(BATTERY, numbered(1))
        await outsider.send(BATTERY, numbered(3, previous="2"))
        node.broker.cut("node")
        await asyncio.sleep(200)
        assert heard(live) == (1,)
        await outsider.send(BATTERY, numbered(2, previous="1"))
        node.broker.restore("node")
        await asyncio.sleep(10)
        assert heard(live) == (1, 2, 3)
        assert counter(live, "bus_gaps") == 0

    play(monitors, scene)


def test_one_who_comes_late_does_not_wait_for_what_was_before() -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        await outsider.send(BATTERY, numbered(100, previous="90"))
        assert heard(live) == (100,)
        # In the next run it might be something that the last one was killed over: it waits, for a while.
        await node.kill()
        again = await node.start()
        other = BATTERY.replace("Drone/1", "Drone/2")
        await outsider.send(other, numbered(100, previous="90"))
        assert again.query("Monitor/2", Monitor).numbers == ()
        await outsider.send(other, numbered(90))
        assert again.query("Monitor/2", Monitor).numbers == (90, 100)
        await asyncio.sleep(100)
        await outsider.send(BATTERY.replace("Drone/1", "Drone/3"), numbered(100, previous="90"))
        assert again.query("Monitor/3", Monitor).numbers == (100,)

    play(monitors, scene)


def test_what_was_under_way_on_a_lost_link_is_waited_for_before_the_next_one_is_known_to_be_up() -> None:
    """Found on a real broker: the session's messages came before the news of the link, and the first ones were lost."""

    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        assert live.link is not None
        live.link.subscriber.ordering.link(False)
        await outsider.send(BATTERY, numbered(16, previous="13"))
        assert heard(live) == ()
        await outsider.send(BATTERY, numbered(13))
        assert heard(live) == (13, 16)

    play(monitors, scene)


def test_a_repetition_by_a_new_owner_does_not_shut_out_what_the_old_one_sent() -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        await outsider.send(BATTERY, numbered(1))
        await outsider.send(BATTERY, numbered(1, epoch="2"))
        await outsider.send(BATTERY, numbered(2, previous="1"))
        await outsider.send(BATTERY, numbered(3, previous="2", epoch="2"))
        assert heard(live) == (1, 2, 3)
        # From here on the old owner is over, and the new one's copy counts.
        await outsider.send(BATTERY, numbered(4, previous="3"))
        assert heard(live) == (1, 2, 3)
        await outsider.send(BATTERY, numbered(4, previous="3", epoch="2"))
        assert heard(live) == (1, 2, 3, 4)

    play(monitors, scene)


def test_a_fast_stream_does_not_wait_for_the_disk_as_long_as_its_type_allows() -> None:
    """Measured may wait a second for company; a broker's window would then let so few through in a second."""

    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        count = 2000
        messages = [
            BusMessage(BATTERY, json.dumps(numbered(number + 1, previous=str(number))).encode())
            for number in range(count)
        ]
        await asyncio.gather(*(outsider.bus.publish(message) for message in messages))
        await asyncio.sleep(1.5)
        assert len(heard(live)) == count

    play(monitors, scene, Settings(bus=BusSettings(burst=2000)))


def test_a_replaced_owner_and_a_new_incarnation() -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        await outsider.send(BATTERY, numbered(1, epoch="5"))
        await outsider.send(BATTERY, numbered(2, epoch="4"))
        assert heard(live) == (1,)
        assert counter(live, "bus_stale") == 1
        await outsider.send(BATTERY, numbered(2, epoch="5"))
        assert heard(live) == (1, 2)
        await outsider.send(BATTERY, numbered(1, incarnation="8"))
        assert heard(live) == (1, 2, 1)

    play(monitors, scene)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (numbered(1, subject="Drone/2"), "its subject is 'Drone/2'"),
        (numbered(1, source="/delivery/local/agents/Drone/2"), "its source is"),
        (numbered(1, sequence="-1"), "sequence"),
        (numbered(1, sequence="x"), "sequence"),
        (numbered(1, sequence=str(2**63)), "sequence"),
        (numbered(1, type="Secret@1"), "'Secret@1'"),
        (numbered(1, data={"number": "x"}), "does not decode"),
    ],
)
def test_events_in_anothers_name_or_of_no_use_are_refused(event: dict[str, Any], why: str) -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        await outsider.send(BATTERY, event)
        assert live.agents() == []
        (refusal,) = outsider.events("/refusals")
        assert why in refusal.data["reason"]
        # The next one is not held up by the one that was refused.
        await outsider.send(BATTERY, numbered(2, previous="1"))
        assert heard(live) == (2,)

    play(monitors, scene)


def test_one_that_floods_is_shed_and_the_others_are_not() -> None:
    settings = Settings(bus=BusSettings(messages_per_s=10, burst=20))

    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        other = BATTERY.replace("Drone/1", "Drone/2")
        sends = [outsider.send(BATTERY, numbered(number + 1, previous=str(number))) for number in range(500)]
        sends += [outsider.send(other, numbered(number + 1)) for number in range(10)]
        sends += [outsider.send("ground/local/agents/Monitor/1/commands", cloud("Nothing"))]
        await asyncio.gather(*sends)
        assert live.query("Monitor/2", Monitor).numbers == tuple(range(1, 11))
        assert len(heard(live)) == 20
        assert counter(live, "bus_shed") == 480
        (trouble,) = live.standing().troubles
        assert trouble.startswith("messages from the bus were shed, 480 since 20")
        assert "the last is of 'delivery/local/agents/Drone/1/events': it sends more than bus.messages_per_s" in trouble
        assert outsider.events("/answers")
        # And it is taken again when it has calmed down, without waiting for what was shed.
        await asyncio.sleep(2)
        await outsider.send(BATTERY, numbered(501, previous="500"))
        assert heard(live)[-1] == 501
        assert live.standing().troubles, "what is lost is told for a while"
        await asyncio.sleep(600)
        assert not live.standing().troubles

    play(monitors, scene, settings)


def test_overload_waits_and_loses_nothing() -> None:
    bus = BusSettings(burst=2000)
    settings = Settings(telemetry_items_max=2, telemetry_bytes_max=1000, batch_events_max=1, bus=bus)

    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        count = 2000
        sends = [outsider.send(BATTERY, numbered(number + 1, previous=str(number))) for number in range(count)]
        await asyncio.gather(*sends)
        await asyncio.sleep(60)
        assert heard(live) == tuple(range(1, count + 1))

    play(monitors, scene, settings)


def test_an_early_message_is_paid_for_once_also_where_two_listen() -> None:
    """Otherwise it would be shed when its time has come, and so be lost though its source has kept its quota."""

    def declare(_: SimNode) -> Declaration:
        fleet = Declaration("ground", agents=[Monitor])
        fleet.listen("Drone/{id}/battery", to="Monitor/{id}", fleet="delivery")
        fleet.listen("Drone/+/battery", to="Monitor/all", fleet="delivery")
        return fleet

    settings = Settings(bus=BusSettings(messages_per_s=0.001, burst=8))

    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        await outsider.send(BATTERY, numbered(1))
        await outsider.send(BATTERY, numbered(3, previous="2"))
        await outsider.send(BATTERY, numbered(4, previous="3"))
        await asyncio.sleep(20)
        await outsider.send(BATTERY, numbered(2, previous="1"))
        await asyncio.sleep(5)
        assert counter(live, "bus_shed") == 0
        for name in ("1", "all"):
            assert live.query(f"Monitor/{name}", Monitor).numbers == (1, 2, 3, 4)

    play(declare, scene, settings)


def test_a_message_that_was_refused_for_its_name_moves_no_number() -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        await outsider.send(BATTERY, numbered(1))
        await outsider.send(BATTERY, numbered(2**62, source="/delivery/local/agents/Drone/2"))
        await outsider.send(BATTERY, numbered(2**62, subject="Drone/2"))
        await outsider.send(BATTERY, numbered(3, previous="2"))
        assert heard(live) == (1,)  # it still waits for the one before it
        await outsider.send(BATTERY, numbered(2, previous="1"))
        assert heard(live) == (1, 2, 3)
        assert counter(live, "bus_repeated") == 0

    play(monitors, scene)


def test_what_senders_gave_up_is_counted_once() -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        await outsider.send(BATTERY, numbered(1))
        await outsider.send(BATTERY, numbered(5, previous="3", shed="2"))
        await asyncio.sleep(5)
        await outsider.send(BATTERY, numbered(3, previous="1"))
        await outsider.send(BATTERY, numbered(5, previous="3", shed="2"))
        assert heard(live) == (1, 3, 5)
        assert counter(live, "bus_lost_by_senders") == 2

    play(monitors, scene)


def test_what_a_sender_cannot_have_given_up_is_not_counted() -> None:
    """Found by an attack: one forged number, and the counter said nothing any more."""

    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        await outsider.send(BATTERY, numbered(1))
        await outsider.send(BATTERY, numbered(2, previous="1", shed=str(2**63 - 2)))
        assert counter(live, "bus_lost_by_senders") == 0
        assert counter(live, "bus_shed_doubted") == 1
        await outsider.send(BATTERY, numbered(200_003, previous="2", shed="200000"))
        assert counter(live, "bus_lost_by_senders") == 200_000
        # A number far ahead makes no claim plausible.
        await outsider.send(BATTERY, numbered(2**62, previous="200003", shed=str(2**61)))
        assert counter(live, "bus_lost_by_senders") == 200_000
        assert counter(live, "bus_shed_doubted") == 2
        assert heard(live) == (1, 2, 200_003, 2**62)

    play(monitors, scene)


def test_invented_sources_hold_up_nobody_who_is_known() -> None:
    """The marks of a shard are bounded. One too many is refused and said, and does not wait in front of the others."""

    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        live.host.shards[0].state.marks._sources_count_max = 20
        await outsider.send(BATTERY, numbered(1))
        other = BATTERY.replace("Drone/1", "Drone/2")
        await asyncio.gather(*(outsider.send(other, numbered(1, incarnation=str(n))) for n in range(8, 400)))
        await asyncio.sleep(10)
        await outsider.send(BATTERY, numbered(2, previous="1"))
        assert heard(live) == (1, 2)
        assert counter(live, "bus_refused") > 300
        (trouble,) = live.standing().troubles
        assert "as many sources as are remembered" in trouble
        assert "as many sources as are remembered" in outsider.events("/refusals")[0].data["reason"]

    play(monitors, scene)


def test_one_sender_cannot_take_the_place_of_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "STREAMS_PER_SENDER_MAX", 100)

    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        messages = [
            BusMessage(BATTERY, json.dumps(numbered(1, incarnation=str(number + 1))).encode()) for number in range(150)
        ]
        await asyncio.gather(*(outsider.bus.publish(message) for message in messages))
        await asyncio.sleep(60)
        assert len(heard(live)) == 100
        assert counter(live, "bus_refused") == 50
        await outsider.send(BATTERY.replace("Drone/1", "Drone/2"), numbered(1))
        assert live.query("Monitor/2", Monitor).numbers == (1,)

    play(monitors, scene)


def test_a_number_far_ahead_is_found_out() -> None:
    """Whoever may publish on a topic can make its next messages look repeated: that must not go unnoticed."""

    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        await outsider.send(BATTERY, numbered(1))
        await outsider.send(BATTERY, numbered(2**62, previous="1"))
        for number in range(2, 10):
            await outsider.send(BATTERY, numbered(number, previous=str(number - 1)))
        assert live.standing().troubles == []  # a sender may repeat itself for a while
        await node.kill()
        again = await node.start()
        for number in range(10, 20):
            await asyncio.sleep(60)
            await outsider.send(BATTERY, numbered(number, previous=str(number - 1)))
        (trouble,) = again.standing().troubles
        assert BATTERY in trouble
        assert str(2**62) in trouble
        # The sender was restored from a copy, which gives it new numbers: all is well.
        await outsider.send(BATTERY, numbered(20, previous="19", incarnation="8"))
        assert heard(again)[-1] == 20

    play(monitors, scene)


def test_a_sender_that_repeats_itself_for_a_while_is_no_trouble() -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        for _ in range(10):
            for number in range(1, 6):
                await outsider.send(BATTERY, numbered(number, previous=str(number - 1)))
            await asyncio.sleep(60)
        assert live.standing().troubles == []
        assert counter(live, "bus_repeated") == 45

    play(monitors, scene)


def test_a_slow_disk_and_many_handlers_lose_nothing_and_keep_the_order() -> None:
    async def scene(node: SimNode, live: Live, outsider: Outsider) -> None:
        node.latency.before_s = 2.0
        for number in range(1500):
            message = numbered(number + 1, previous=str(number))
            await outsider.bus.publish(BusMessage(BATTERY, json.dumps(message).encode()))
        await asyncio.sleep(10)
        await node.kill()
        again = await node.start()
        await asyncio.sleep(100)
        assert heard(again) == tuple(range(1, 1501))
        assert counter(again, "bus_gaps") == 0

    play(monitors, scene, Settings(bus=BusSettings(burst=1500)))
