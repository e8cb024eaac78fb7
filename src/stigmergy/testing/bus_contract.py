"""What every bus must do, as tests: inherit them to prove your own adapter. Needs only pytest.

    class TestMyBus(BusContract):
        @pytest.fixture
        def rig(self, tmp_path):
            return MyRig(tmp_path)

A rig stands for one fresh broker and the links to it: see `testing/bus_rig.py`. Test rights, TLS and protocol options
in the adapter's own suite.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from stigmergy.base.errors import Bug, LinkDown, Malformed, Overloaded, StigmergyError, TooLarge
from stigmergy.bus.port import HANDLED_COUNT_MAX, PAYLOAD_BYTES_MAX, PROPERTIES_BYTES_MAX, BusMessage
from stigmergy.testing.bus_rig import (
    WAIT_S,
    BusRig,
    HandlerLog,
    Marking,
    Scene,
    on_a_scene,
    publish_surely,
    wait_until,
    wait_until_heard,
)

QUIET_S = 0.3
"""How long the suite watches for what must not happen."""
TURNS_MAX = 100
"""Of the event loop: what waits for a link, or for the time it gives one, takes more. A busy machine takes no more."""


class BusContract:
    """Every sentence of the port's docstring, one test or more each."""

    @pytest.fixture
    def rig(self) -> BusRig:
        """The broker of this test. A subclass gives it."""
        raise NotImplementedError("give the fixture rig: see the module's docstring")

    # Messages.

    @on_a_scene
    async def test_message_arrives_as_it_was_sent(self, scene: Scene) -> None:
        sender = await scene.bus("sender")
        _, heard = await scene.hearing("receiver", "fleet/a/events")
        payload = bytes(range(256))
        await sender.publish(BusMessage("fleet/a/events", payload, "application/json", (("id", "7"), ("id", "é"))))
        await sender.publish(BusMessage("fleet/b/events", b"of another"))
        await sender.publish(BusMessage("fleet/a/events", b""))
        await wait_until(lambda: len(heard.messages) == 2)
        first, second = heard.messages
        assert (first.topic, first.payload, first.retained) == ("fleet/a/events", payload, False)
        assert (second.payload, second.content_type, second.properties) == (b"", "", ())
        if scene.has_properties:
            assert (first.content_type, first.properties) == ("application/json", (("id", "7"), ("id", "é")))

    @pytest.mark.parametrize(
        ("pattern", "numbers"), [("a/+/c", b"12"), ("a/#", b"1234"), ("+/b/c", b"16"), ("a", b"4"), ("#", b"123456")]
    )
    def test_pattern_matches(self, rig: BusRig, pattern: str, numbers: bytes) -> None:
        async def match(scene: Scene) -> None:
            sender = await scene.bus("sender")
            _, heard = await scene.hearing("receiver", pattern)
            for number, topic in enumerate(("a/b/c", "a/x/c", "a/b", "a", "b/a", "x/b/c"), start=1):
                await sender.publish(BusMessage(topic, b"%d" % number))
            await wait_until(lambda: len(heard.payloads) >= len(numbers))
            await asyncio.sleep(QUIET_S / 3)
            assert sorted(b"".join(heard.payloads)) == sorted(numbers)

        on_a_scene(lambda _, scene: match(scene))(self, rig)

    @on_a_scene
    async def test_two_handlers_and_two_receivers_all_hear_it(self, scene: Scene) -> None:
        sender, second = await scene.bus("sender"), HandlerLog()
        first_bus, first = await scene.hearing("receiver", "a/b")
        await first_bus.subscribe("a/b", second)
        _, other = await scene.hearing("other", "a/b")
        await sender.publish(BusMessage("a/b", b"1"))
        await wait_until(lambda: bool(first.payloads and second.payloads and other.payloads))

    @on_a_scene
    async def test_largest_message_passes(self, scene: Scene) -> None:
        bus, heard = await scene.hearing("both", "a/b")
        await bus.publish(BusMessage("a/b", b"x" * PAYLOAD_BYTES_MAX))
        await wait_until(lambda: [len(payload) for payload in heard.payloads] == [PAYLOAD_BYTES_MAX])

    @on_a_scene
    async def test_what_is_no_message_is_refused(self, scene: Scene) -> None:
        bus = await scene.bus("sender")
        for topic in ("", "a/+", "a/#", "a\x00b", "$SYS/a", "\ud800"):
            with pytest.raises(Malformed):
                await bus.publish(BusMessage(topic, b""))
        for pattern in ("", "a/b+", "a/#/b", "#a", "a\x00b"):
            with pytest.raises(Malformed):
                await bus.subscribe(pattern, HandlerLog())
        for message in (
            BusMessage("a" * 1025, b""),
            BusMessage("a", bytes(PAYLOAD_BYTES_MAX + 1)),
            BusMessage("a", b"", properties=(("name", "x" * PROPERTIES_BYTES_MAX),)),
        ):
            with pytest.raises(TooLarge):
                await bus.publish(message)
        assert bus.is_up

    # Order and concurrency.

    @on_a_scene
    async def test_overlapping_publishes_arrive_in_their_order(self, scene: Scene) -> None:
        sender = await scene.bus("sender")
        _, heard = await scene.hearing("receiver", "a/+")
        numbers = [b"%d" % number for number in range(500)]
        await asyncio.gather(*(sender.publish(BusMessage("a/b", number)) for number in numbers))
        await wait_until(lambda: len(heard.first_payloads) >= 500)
        assert heard.first_payloads == numbers

    @on_a_scene
    async def test_handlers_overlap_within_the_bound_and_begin_in_order(self, scene: Scene) -> None:
        sender, receiver = await scene.bus("sender"), await scene.bus("receiver")
        begun: list[bytes] = []
        done: list[bytes] = []
        go_on = asyncio.Event()

        async def wait_for_the_disk(message: BusMessage) -> None:
            begun.append(message.payload)
            await go_on.wait()
            done.append(message.payload)

        await receiver.subscribe("a", wait_for_the_disk)
        numbers = [b"%d" % number for number in range(HANDLED_COUNT_MAX + 50)]
        await asyncio.gather(*(sender.publish(BusMessage("a", number)) for number in numbers))
        await wait_until(lambda: len(begun) >= 2)
        await asyncio.sleep(QUIET_S)
        assert len(begun) <= HANDLED_COUNT_MAX
        go_on.set()
        await wait_until(lambda: {*done} == {*numbers})
        assert list(dict.fromkeys(begun)) == numbers

    # What was not taken.

    @on_a_scene
    async def test_message_that_was_not_taken_comes_again_before_newer_ones(self, scene: Scene) -> None:
        sender, receiver = await scene.bus("sender"), await scene.bus("receiver")
        calls: list[bytes] = []

        async def take_at_the_third_time(message: BusMessage) -> None:
            calls.append(message.payload)
            if calls.count(message.payload) < 3:
                raise Overloaded("not now")

        await receiver.subscribe("a", take_at_the_third_time)
        for number in (b"1", b"2"):
            await sender.publish(BusMessage("a", number))
            await wait_until(lambda: calls.count(number) == 3)  # noqa: B023 - waited for at once
        await asyncio.sleep(QUIET_S)
        assert calls == [b"1"] * 3 + [b"2"] * 3

    @on_a_scene
    async def test_peers_fault_is_refused_once(self, scene: Scene) -> None:
        sender, receiver = await scene.bus("sender"), await scene.bus("receiver")
        calls: list[bytes] = []

        async def refuse(message: BusMessage) -> None:
            calls.append(message.payload)
            if message.payload == b"bad":
                raise Malformed("no")

        await receiver.subscribe("a", refuse)
        await sender.publish(BusMessage("a", b"bad"))
        await sender.publish(BusMessage("a", b"good"))
        await wait_until(lambda: b"good" in calls)
        await receiver.close()
        _, heard = await scene.hearing("receiver", "a")
        await asyncio.sleep(QUIET_S)
        assert (calls, heard.payloads) == ([b"bad", b"good"], [])

    @on_a_scene
    async def test_early_message_waits_for_the_one_before_it(self, scene: Scene) -> None:
        sender, receiver, marking = await scene.bus("sender"), await scene.bus("receiver"), Marking()
        await receiver.subscribe("a", marking)
        for number in (1, 4, 3, 2, 5):
            await sender.publish(BusMessage("a", b"%d" % number))
        await wait_until(lambda: marking.taken == [1, 2, 3, 4, 5])

    @on_a_scene
    async def test_what_was_not_taken_comes_to_the_next_process(self, scene: Scene) -> None:
        sender, receiver = await scene.bus("sender"), await scene.bus("receiver")
        calls: list[bytes] = []

        async def never_take(message: BusMessage) -> None:
            calls.append(message.payload)
            raise Overloaded("not now")

        await receiver.subscribe("a", never_take)
        for number in (b"1", b"2"):
            await sender.publish(BusMessage("a", number))
        await wait_until(lambda: bool(calls))
        await scene.cut("receiver")
        await receiver.close()
        await scene.restore("receiver")
        _, heard = await scene.hearing("receiver", "a")
        await wait_until(lambda: {b"1", b"2"} <= {*heard.payloads})

    # The link.

    @on_a_scene
    async def test_link_is_told_to_all_who_listen(self, scene: Scene) -> None:
        bus = await scene.rig.bus("node")
        first: list[bool] = []
        second: list[bool] = []
        why: list[StigmergyError | None] = []
        """As it was at each change: the next try, which may end in another way, follows at once."""
        bus.on_link(first.append)
        bus.on_link(second.append)
        bus.on_link(lambda _: why.append(bus.last_error))
        assert not bus.is_up
        await bus.open()
        await wait_until(lambda: first == [True])
        await wait_until(lambda: bus.is_up and bus.last_error is None)
        await scene.cut("node")
        await wait_until(lambda: first == [True, False])
        assert why[0] is None
        assert isinstance(why[1], LinkDown)
        await scene.restore("node")
        await wait_until(lambda: first == [True, False, True])
        await bus.close()
        assert first == second == [True, False, True, False]

    @on_a_scene
    async def test_publish_while_down_fails_at_once(self, scene: Scene) -> None:
        await scene.cut("node")
        bus = await scene.bus("node", up=False)
        with pytest.raises(LinkDown):
            await _at_once(bus.publish(BusMessage("a", b"")))
        await scene.restore("node")
        await wait_until(lambda: bus.is_up)
        await bus.publish(BusMessage("a", b""))

    @on_a_scene
    async def test_publishes_under_way_when_the_link_breaks_end(self, scene: Scene) -> None:
        sender, marking = await scene.bus("sender"), Marking()
        receiver = await scene.bus("receiver")
        await receiver.subscribe("a", marking)
        under_way = [asyncio.ensure_future(sender.publish(BusMessage("a", b"%d" % n))) for n in range(1, 51)]
        await asyncio.sleep(0)
        await scene.cut("sender")
        async with asyncio.timeout(WAIT_S):
            outcomes = await asyncio.gather(*under_way, return_exceptions=True)
        assert all(outcome is None or isinstance(outcome, LinkDown) for outcome in outcomes)
        await scene.restore("sender")
        await publish_surely(sender, "a", range(outcomes.count(None) + 1, 51))
        await wait_until(lambda: marking.taken == [*range(1, 51)])

    @on_a_scene
    async def test_broker_holds_what_comes_while_the_link_is_down(self, scene: Scene) -> None:
        sender = await scene.bus("sender")
        receiver, heard = await scene.hearing("receiver", "a/#")
        await sender.publish(BusMessage("a/b", b"0"))
        await wait_until(lambda: heard.payloads == [b"0"])
        await scene.cut("receiver")
        await wait_until(lambda: not receiver.is_up)
        for number in range(1, 101):
            await sender.publish(BusMessage("a/b", b"%d" % number))
        await scene.restore("receiver")
        await wait_until(lambda: len(heard.first_payloads) >= 101)
        assert heard.first_payloads[1:] == [b"%d" % number for number in range(1, 101)]

    @on_a_scene
    async def test_broker_holds_what_comes_while_the_process_is_away(self, scene: Scene) -> None:
        sender = await scene.bus("sender")
        receiver, heard = await scene.hearing("receiver", "a")
        await sender.publish(BusMessage("a", b"before"))
        await wait_until(lambda: heard.payloads == [b"before"])
        await receiver.close()
        await sender.publish(BusMessage("a", b"meanwhile"))
        _, heard = await scene.hearing("receiver", "a")
        await wait_until(lambda: heard.payloads == [b"meanwhile"])

    @on_a_scene
    async def test_subscription_made_while_down_holds(self, scene: Scene) -> None:
        await scene.cut("receiver")
        sender, receiver, heard = await scene.bus("sender"), await scene.bus("receiver", up=False), HandlerLog()
        await _at_once(receiver.subscribe("a", heard))
        await scene.restore("receiver")
        await wait_until(lambda: receiver.is_up)
        await wait_until_heard(sender, "a", heard)

    @on_a_scene
    async def test_cuts_lose_nothing_and_marks_make_it_once_and_in_order(self, scene: Scene) -> None:
        sender, receiver, marking = await scene.bus("sender"), await scene.bus("receiver"), Marking()
        await receiver.subscribe("a", marking)
        publishing = asyncio.ensure_future(publish_surely(sender, "a", range(1, 201)))
        for client_id in ("sender", "receiver", "receiver", "sender"):
            count = len(marking.taken)
            await wait_until(lambda: len(marking.taken) >= min(200, count + 10))  # noqa: B023 - waited for at once
            await scene.cut(client_id)
            await scene.restore(client_id)
        async with asyncio.timeout(WAIT_S):
            await publishing
        await wait_until(lambda: len(marking.taken) >= 200)
        assert marking.taken == [*range(1, 201)]

    # Wills and retained messages.

    @on_a_scene
    async def test_will_is_published_when_the_link_is_lost(self, scene: Scene) -> None:
        _, heard = await scene.hearing("watcher", "presence/+")
        await scene.bus("node", will=BusMessage("presence/node", b"lost", retained=True))
        await scene.cut("node")
        await wait_until(lambda: heard.payloads == [b"lost"])
        _, later = await scene.hearing("later", "presence/+")
        await wait_until(lambda: later.payloads == [b"lost"])
        assert later.messages[0].retained

    @on_a_scene
    async def test_will_is_not_published_at_a_close(self, scene: Scene) -> None:
        _, heard = await scene.hearing("watcher", "presence/+")
        node = await scene.bus("node", will=BusMessage("presence/node", b"lost"))
        await node.close()
        await asyncio.sleep(QUIET_S)
        assert heard.payloads == []

    @on_a_scene
    async def test_retained_message_is_kept_for_later_subscribers_until_cleared(self, scene: Scene) -> None:
        sender, early = await scene.hearing("sender", "a/+")
        for payload in (b"1", b"2"):
            await sender.publish(BusMessage("a/b", payload, retained=True))
        await wait_until(lambda: early.payloads == [b"1", b"2"])
        assert [message.retained for message in early.messages] == [False, False]
        _, late = await scene.hearing("late", "a/#")
        await wait_until(lambda: late.payloads == [b"2"])
        assert late.messages[0].retained
        await sender.publish(BusMessage("a/b", b"", retained=True))
        _, latest = await scene.hearing("latest", "a/#")
        await asyncio.sleep(QUIET_S)
        assert latest.payloads == []

    # The end.

    @on_a_scene
    async def test_close_lets_handlers_finish_and_tells_the_broker(self, scene: Scene) -> None:
        sender, receiver = await scene.bus("sender"), await scene.bus("receiver")
        begun: list[bytes] = []
        finished: list[bytes] = []

        async def take_a_while(message: BusMessage) -> None:
            begun.append(message.payload)
            await asyncio.sleep(0.1)
            finished.append(message.payload)

        await receiver.subscribe("a", take_a_while)
        await sender.publish(BusMessage("a", b"1"))
        await wait_until(lambda: begun == [b"1"])
        await receiver.close()
        assert finished == [b"1"]
        _, heard = await scene.hearing("receiver", "a")
        await asyncio.sleep(QUIET_S)
        assert heard.payloads == []

    @on_a_scene
    async def test_closed_bus_is_down_and_may_be_closed_again(self, scene: Scene) -> None:
        bus = await scene.bus("node")
        await bus.close()
        await bus.close()
        assert not bus.is_up
        with pytest.raises(LinkDown):
            await bus.publish(BusMessage("a", b""))
        with pytest.raises(Bug):
            await bus.open()


async def _at_once(doing: Coroutine[Any, Any, None]) -> None:
    """Does something that must not wait."""
    task = asyncio.ensure_future(doing)
    for _ in range(TURNS_MAX):
        await asyncio.sleep(0)
    if not task.done():
        task.cancel()
        pytest.fail("it waits")
    await task
