"""Publishing: in order, within a window, nothing given up while the link is down but the oldest beyond the bound."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from stigmergy.agents.codec import encode
from stigmergy.agents.effects import PUBLISH
from stigmergy.base.errors import LinkDown, StigmergyError, TooLarge
from stigmergy.bus.cloudevents import CloudEvent, read_event
from stigmergy.bus.port import BusMessage, Handler, LinkHeard
from stigmergy.bus.publisher import Publisher, category_attributes
from stigmergy.bus.topics import Topics
from stigmergy.node.settings import BusSettings, Settings
from stigmergy.shard.inputs import EffectsSettled
from stigmergy.shard.outbox import Pending
from stigmergy.sim.loop import VirtualLoop
from tests.node.fleets import Measured, Outsider, Stage, Warned


class Wire:
    """A bus that takes each message when the test says so, and breaks when it says so."""

    def __init__(self) -> None:
        self.is_up = True
        self.last_error: StigmergyError | None = None
        self.taken: list[CloudEvent] = []
        self.waiting: list[tuple[BusMessage, asyncio.Future[None]]] = []
        self.raises: Exception | None = None
        self.by_hand = False

    def on_link(self, heard: LinkHeard) -> None:
        raise NotImplementedError

    async def open(self, will: BusMessage | None = None) -> None:
        raise NotImplementedError

    async def subscribe(self, pattern: str, handler: Handler) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def publish(self, message: BusMessage) -> None:
        if self.raises is not None:
            raise self.raises
        if not self.is_up:
            raise LinkDown("down")
        if self.by_hand:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting.append((message, future))
            await future
        self.taken.append(read_event(message.payload, message.content_type, message.properties))

    def break_all(self) -> None:
        self.is_up = False
        for _, future in self.waiting:
            future.set_exception(LinkDown("broke"))
        self.waiting.clear()


class Rig:
    """A publisher on a wire, and what it has settled."""

    def __init__(self, **options: Any) -> None:
        self.wire = Wire()
        self.settled: list[int] = []
        defaults: dict[str, Any] = {"owed_count_max": 1000}
        self.publisher = Publisher(
            self.wire, Topics("delivery", "local"), self._settle, lambda: 10**18, **defaults | options
        )

    def _settle(self, shard: int, settled: EffectsSettled) -> None:
        assert settled.sink == PUBLISH
        self.settled += settled.sequences

    def owe(self, sequence: int, about: str = "battery", event: Any = None, incarnation: int = 7) -> None:
        body = encode((about, encode(event or Measured(number=sequence))))
        self.publisher.release(0, 3, Pending(incarnation, sequence, 0, "Drone/1", PUBLISH, sequence, body))

    @property
    def sent(self) -> list[int]:
        return [event.number("sequence") or 0 for event in self.wire.taken]

    @property
    def previous(self) -> list[int | None]:
        return [event.number("previous") for event in self.wire.taken]


def play(main: Callable[[], Awaitable[None]]) -> None:
    async def scene() -> None:
        await main()

    VirtualLoop(seed=1, deadline_s=3600).run(scene())


def test_what_is_sent_says_everything_about_itself() -> None:
    async def scene() -> None:
        rig = Rig()
        rig.publisher.start()
        rig.owe(41, event=Warned(severity="high", confidence=0.5))
        await asyncio.sleep(0.1)
        (event,) = rig.wire.taken
        assert (event.id, event.source) == ("7.0.41.0", "/delivery/local/agents/Drone/1")
        assert (event.type, event.subject) == ("Warned@1", "Drone/1")
        assert event.time == "2001-09-09T01:46:40.000Z"
        assert event.number("epoch") == 3
        assert event.number("incarnation") == 7
        assert [event.text(name) for name in ("category", "severity", "confidence")] == ["alert", "high", "0.5"]

    play(scene)


def test_numbers_tell_what_comes_before_on_the_same_topic() -> None:
    async def scene() -> None:
        rig = Rig()
        for sequence, about in ((1, "a"), (2, "b"), (3, "a"), (4, "b")):
            rig.owe(sequence, about)
        assert not rig.sent  # nothing leaves before the start
        rig.publisher.start()
        await asyncio.sleep(0.1)
        numbers = {event.number("sequence"): event.number("previous") for event in rig.wire.taken}
        assert numbers == {1: None, 2: None, 3: 1, 4: 2}
        assert sorted(rig.settled) == [1, 2, 3, 4]
        assert rig.wire.taken[0].time == ""  # when it was decided is not known after a restart
        rig.owe(5, "a", incarnation=8)
        await asyncio.sleep(0.1)
        assert rig.wire.taken[-1].number("previous") is None

    play(scene)


def test_a_link_that_breaks_under_way_sends_again_in_order_and_settles_in_order() -> None:
    async def scene() -> None:
        rig = Rig(in_flight_per_topic_max=4)
        rig.wire.by_hand = True
        rig.publisher.start()
        for sequence in range(1, 11):
            rig.owe(sequence)
        await asyncio.sleep(0.1)
        assert len(rig.wire.waiting) == 4
        rig.wire.waiting.pop(1)[1].set_result(None)  # 2 is taken, 1 is not
        await asyncio.sleep(0.1)
        assert rig.settled == []
        rig.wire.break_all()
        await asyncio.sleep(10)
        assert rig.publisher.owed == 9
        rig.wire.is_up, rig.wire.by_hand = True, False
        rig.publisher.link(True)
        await asyncio.sleep(0.1)
        assert rig.sent == [2, 1, *range(3, 11)]
        assert rig.settled == list(range(1, 11))
        assert rig.previous[rig.sent.index(3)] == 2
        assert rig.publisher.owed == 0

    play(scene)


def test_topics_take_turns_and_the_window_is_kept() -> None:
    async def scene() -> None:
        rig = Rig(in_flight_max=6, in_flight_per_topic_max=4)
        rig.wire.by_hand = True
        rig.publisher.start()
        for sequence in range(1, 51):
            rig.owe(sequence, "loud")
        rig.owe(51, "quiet")
        await asyncio.sleep(0.1)
        topics = [message.topic.rpartition("/")[2] for message, _ in rig.wire.waiting]
        assert topics == ["loud"] * 4 + ["quiet"]
        for sequence in range(52, 60):
            rig.owe(sequence, f"t{sequence}")
        await asyncio.sleep(0.1)
        assert len(rig.wire.waiting) == 6
        rig.wire.break_all()
        await rig.publisher.stop()

    play(scene)


def test_the_oldest_are_shed_beyond_the_bound_and_the_next_says_so() -> None:
    async def scene() -> None:
        rig = Rig(owed_count_max=10)
        rig.wire.is_up = False
        rig.publisher.start()
        for sequence in range(1, 26):
            rig.owe(sequence)
        await asyncio.sleep(0.1)
        assert rig.publisher.owed == 10
        assert rig.settled == list(range(1, 16))
        assert rig.publisher.counters.publish_shed == 15
        rig.wire.is_up = True
        rig.publisher.link(True)
        await asyncio.sleep(0.1)
        assert rig.sent == list(range(16, 26))
        assert rig.wire.taken[0].number("shed") == 15
        assert rig.wire.taken[1].number("shed") is None

    play(scene)


def test_what_was_sent_once_and_then_shed_is_waited_for_by_nobody() -> None:
    async def scene() -> None:
        rig = Rig(owed_count_max=2)
        rig.wire.by_hand = True
        rig.publisher.start()
        rig.owe(1)
        rig.owe(2)
        await asyncio.sleep(0.1)
        rig.wire.break_all()
        await asyncio.sleep(0.1)
        rig.owe(3)
        rig.wire.is_up, rig.wire.by_hand = True, False
        rig.publisher.link(True)
        await asyncio.sleep(0.1)
        assert (rig.sent, rig.previous) == ([2, 3], [None, 2])

    play(scene)


def test_what_cannot_be_published_is_given_up_and_a_driver_that_fails_is_not() -> None:
    async def scene() -> None:
        rig = Rig()
        rig.publisher.start()
        rig.wire.raises = RuntimeError("driver")
        rig.owe(1)
        await asyncio.sleep(3.5)
        assert rig.settled == []
        assert 3 <= rig.publisher.counters.publish_retries <= 5
        rig.wire.raises = None
        await asyncio.sleep(2)
        assert rig.sent == [1]
        rig.wire.raises = TooLarge("large")
        rig.owe(2)
        await asyncio.sleep(0.1)
        assert rig.settled == [1, 2]
        assert rig.publisher.counters.unpublishable == 1

    play(scene)


def test_binary_form_has_its_attributes_as_properties() -> None:
    async def scene() -> None:
        rig = Rig(binary=True)
        rig.publisher.start()
        rig.owe(1)
        await asyncio.sleep(0.1)
        assert rig.wire.taken[0].number("sequence") == 1
        assert rig.wire.taken[0].data == {"number": 1}

    play(scene)


@pytest.mark.parametrize(
    ("tag", "data", "found"),
    [
        ("Unknown@1", {"severity": "x"}, {}),
        ("Warned@1", {"raw": b"packed"}, {"category": "alert"}),
        ("Warned@1", {"severity": True, "confidence": 0.5}, {"category": "alert", "confidence": "0.5"}),
        ("Warned@1", {"severity": "a\nb", "confidence": "x" * 101}, {"category": "alert"}),
        ("Measured@1", {"delta": -2}, {"category": "sensor", "delta": "-2"}),
    ],
)
def test_categories(tag: str, data: Any, found: dict[str, str]) -> None:
    assert category_attributes(tag, encode(data)) == found


def test_a_long_time_offline_never_stops_the_agent() -> None:
    settings = Settings(owed_count_max=100)
    stage = Stage(settings=settings)

    async def scene() -> None:
        live = await stage.sender.start()
        await stage.receiver.start()
        await asyncio.sleep(1)
        stage.broker.cut("drone")
        await asyncio.sleep(1)
        assert live.standing().link.link == "local-only"
        assert "cut" in live.standing().link.why
        for number in range(300):
            await live.observe("Drone/1", Measured(number=number))
        assert live.query("Drone/1").count == 300
        assert live.standing().counters["publish_shed"] == 250
        stage.broker.restore("drone")
        await asyncio.sleep(5)
        assert stage.numbers() == tuple(range(250, 300))
        assert live.standing().owed == 0
        receiver = stage.receiver.live
        assert receiver is not None
        assert receiver.standing().counters["bus_lost_by_senders"] == 250

    stage.world.run(scene())
    stage.check()


def test_after_a_restart_a_message_still_says_what_it_follows() -> None:
    stage = Stage()

    async def scene() -> None:
        live = await stage.sender.start()
        outsider = await Outsider(stage.broker).start("delivery/#")
        await asyncio.sleep(0.1)
        for number in range(4):
            await live.observe(f"Drone/{number % 2}", Measured(number=number))
        await asyncio.sleep(3)
        await stage.sender.kill()
        again = await stage.sender.start()
        await asyncio.sleep(0.1)
        await again.observe("Drone/0", Measured(number=4))
        await asyncio.sleep(1)
        last = outsider.events("Drone/0/events/battery")[-1]
        assert (last.number("sequence"), last.number("previous")) == (5, 3)
        assert last.number("epoch") == 2
        await outsider.bus.close()

    stage.world.run(scene())
    stage.check()


def test_a_node_that_stops_lets_leave_what_is_owed() -> None:
    stage = Stage()

    async def scene() -> None:
        live = await stage.sender.start()
        outsider = await Outsider(stage.broker).start("delivery/#")
        await asyncio.sleep(0.1)
        for number in range(100):
            await live.observe("Drone/1", Measured(number=number))
        await stage.sender.stop()
        await asyncio.sleep(1)
        assert len(outsider.events("/battery")) == 100
        assert outsider.events("/presence")[-1].data["online"] is False
        await outsider.bus.close()

    stage.world.run(scene())
    stage.check()


def test_settings_of_the_bus_are_checked() -> None:
    for wrong in ({"in_flight_max": 0}, {"messages_per_s": 0}, {"presence_gone_s": 10.0}, {"gap_wait_s": -1}):
        with pytest.raises(StigmergyError, match="bus"):
            BusSettings(**wrong)
    assert msgspec.convert({"bus": {"burst": 5}}, Settings).bus.burst == 5


def test_while_some_of_a_topic_are_still_under_way_shedding_goes_on() -> None:
    """The first try of one has failed, its neighbour's is not over: both are in nobody's line just then."""

    async def scene() -> None:
        rig = Rig(owed_count_max=2)
        rig.wire.by_hand = True
        rig.publisher.start()
        rig.owe(1)
        rig.owe(2)
        await asyncio.sleep(0.1)
        rig.wire.waiting.pop(0)[1].set_exception(LinkDown("broke"))
        await asyncio.sleep(0.1)
        rig.owe(3)  # 1 is back and is shed, while 2 is under way
        await asyncio.sleep(0.1)
        assert rig.settled == [1]
        rig.wire.waiting.pop(0)[1].set_result(None)
        await asyncio.sleep(0.1)
        rig.wire.by_hand = False
        await asyncio.sleep(2)
        rig.wire.break_all()
        rig.wire.is_up = True
        rig.publisher.link(True)
        await asyncio.sleep(2)
        assert rig.sent == [2, 3]
        assert sorted(rig.settled) == [1, 2, 3]
        assert rig.publisher.owed == 0

    play(scene)


@pytest.mark.parametrize("about", ["battery", "alerts"])
def test_alerts_and_orders_are_shed_last_and_keep_nobody_else_owed(about: str) -> None:
    async def scene() -> None:
        rig = Rig(owed_count_max=10)
        rig.wire.is_up = False
        rig.publisher.start()
        for sequence in range(1, 6):
            rig.owe(sequence, about, event=Warned(severity="high"))
        for sequence in range(6, 1006):
            rig.owe(sequence)
        await asyncio.sleep(0.1)
        assert rig.publisher.owed == 10
        # What is shed is settled at once, also behind an alert of the same topic: else it would stop the agent.
        assert rig.settled == list(range(6, 1001))
        for sequence in range(1006, 1016):
            rig.owe(sequence, about, event=Warned(severity="high"))
        rig.wire.is_up = True
        rig.publisher.link(True)
        await asyncio.sleep(0.1)
        # Only alerts are left: then the oldest of them goes too.
        assert sorted(rig.sent) == list(range(1006, 1016))
        assert rig.publisher.counters.publish_shed == 1005
        assert sorted(rig.settled) == list(range(1, 1016))

    play(scene)


def test_one_that_the_broker_never_answers_holds_up_no_settlement_but_those_of_its_window() -> None:
    async def scene() -> None:
        rig = Rig(owed_count_max=20, in_flight_per_topic_max=4)
        rig.wire.by_hand = True
        rig.publisher.start()
        for sequence in range(1, 101):
            rig.owe(sequence)
            await asyncio.sleep(0.1)
            for one in rig.wire.waiting[1:]:
                one[1].set_result(None)
            del rig.wire.waiting[1:]
        unsettled = 100 - len(rig.settled)
        assert unsettled <= 20 + 4
        rig.wire.break_all()
        await rig.publisher.stop()

    play(scene)


def test_what_cannot_be_written_holds_up_nobody() -> None:
    async def scene() -> None:
        def outlet(agent: str, about: str, body: bytes) -> None:
            if about == "odd":
                raise RuntimeError("no such device")

        rig = Rig(outlet=outlet)
        rig.publisher.start()
        rig.owe(1, "odd")
        rig.owe(2)
        await asyncio.sleep(0.1)
        assert rig.sent == [2]
        assert sorted(rig.settled) == [1, 2]
        assert rig.publisher.counters.unpublishable == 1

    play(scene)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("owe"), st.integers(1, 12), st.booleans()),
            st.tuples(st.just("ack"), st.integers(1, 6), st.booleans()),
            st.tuples(st.just("break"), st.integers(0, 6), st.booleans()),
            st.tuples(st.just("up"), st.integers(0, 3), st.booleans()),
        ),
        max_size=40,
    )
)
@hypothesis_settings(max_examples=150, deadline=None)
def test_whatever_breaks_nobody_waits_for_what_never_comes(steps: list[tuple[str, int, bool]]) -> None:
    """As a receiver behind a broker that takes in order sees it: each message follows one that has come before it."""

    async def scene() -> None:
        rig = Rig(owed_count_max=8, in_flight_per_topic_max=3, in_flight_max=5)
        wire, count = rig.wire, 0
        wire.by_hand = True
        rig.publisher.start()
        for what, number, flag in steps:
            if what == "owe":
                for _ in range(number):
                    count += 1
                    rig.owe(count, "ab"[count % 2], event=Warned(severity="high") if flag else None)
            elif what == "up":
                wire.is_up = True
                rig.publisher.link(True)
            else:
                taken, wire.waiting[:number] = wire.waiting[:number], []
                for message, future in taken:
                    if what == "ack":
                        future.set_result(None)
                    else:  # the broker has it, and we do not know
                        wire.taken.append(read_event(message.payload, message.content_type, message.properties))
                        future.set_exception(LinkDown("broke"))
                if what == "break":
                    wire.break_all()
                    rig.publisher.link(False)
            await asyncio.sleep(0.01 if flag else 3)
            assert rig.publisher.owed <= 8 + 5
        wire.by_hand = False
        for _, future in wire.waiting:
            future.set_result(None)
        wire.is_up = True
        rig.publisher.link(True)
        await asyncio.sleep(60)
        assert sorted(rig.settled) == list(range(1, count + 1))
        assert len(set(rig.sent)) + rig.publisher.counters.publish_shed >= count
        reached: dict[str, int] = {}
        for event in wire.taken:
            sequence, previous, about = event.number("sequence") or 0, event.number("previous"), event.type
            lane = "ab"[sequence % 2]
            if sequence > reached.get(lane, 0):
                assert previous is None or previous <= reached.get(lane, 0), (about, sequence, previous)
                reached[lane] = sequence

    play(scene)
