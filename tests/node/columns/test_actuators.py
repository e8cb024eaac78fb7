"""Batched hands: blocks in order, tried again, given up, counted; confirmed only when all before is over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stigmergy import DeviceRefused
from stigmergy.control.live import Live
from stigmergy.node.column_actuators import Orders
from stigmergy.shard.inputs import ActionsConfirmed
from stigmergy.shard.outbox import BLOCK_INDEX, INDEX_BITS
from stigmergy.sim.node import SimNode
from tests.agents.meters import Alarm, Beep, Glimpsed, Measured
from tests.node.columns.stage import Hand, Honked, Radio, declare, play


async def soon(live: Live) -> None:
    """Until all hands are done, and what they confirm is on disk."""
    for _ in range(200):
        await asyncio.sleep(0.05)
        if (
            not live.host.batched_actuators.busy
            and not live.host.shards.first.state.blocks.count
            and live.host.committer.idle
        ):
            return


def counted(live: Live) -> tuple[int, int, int, int]:
    counters = live.host.batched_actuators.counters
    return counters.batched, counters.batched_done, counters.batched_failed, counters.batched_retries


def test_a_block_goes_to_its_hand_as_a_whole_and_in_order() -> None:
    hand = Hand()

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a", "b"])
        radio = Radio(live)
        for start in (1, 4):
            await radio.send(*(("a" if n % 2 else "b", Glimpsed(level=float(n))) for n in range(start, start + 3)))
        await soon(live)
        assert hand.counts == [[1, 2, 3], [4, 5, 6]]
        assert hand.sequences == [[1, 2, 3], [4, 5, 6]]
        assert [one[0] for one in hand.calls[0]] == ["Meter/a", "Meter/b", "Meter/a"]
        assert counted(live) == (6, 6, 0, 0)
        assert live.host.shards.first.state.blocks.cursor("Meter") == 6

    play(declare(hand), scene)


def test_orders_say_of_which_life_of_the_journal_their_numbers_are() -> None:
    said: list[int] = []

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        await Radio(live).send(("a", Glimpsed(level=1.0)))
        await soon(live)
        assert said == [live.host.journal.identity.incarnation]
        assert said != [0]

    play(declare(lambda orders: said.append(orders.incarnation)), scene)


def test_a_hand_that_raises_is_tried_again_with_the_same_orders_and_what_follows_waits() -> None:
    hand = Hand()

    def first(call: int) -> None:
        if call in (1, 2):
            raise OSError("the line is busy")

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        radio = Radio(live)
        await radio.send(("a", Glimpsed(level=1.0)), ("a", Glimpsed(level=2.0)))
        await radio.send(("a", Glimpsed(level=3.0)))
        await soon(live)
        assert hand.counts == [[1, 2], [1, 2], [1, 2], [3]]
        assert [call[0][5] for call in hand.calls] == [1, 2, 3, 1]
        keys = [[one[2] for one in call] for call in hand.calls]
        assert keys[0] == keys[1] == keys[2] != keys[3]
        assert counted(live) == (3, 3, 0, 2)
        assert "the line is busy" in live.host.batched_actuators.trouble
        assert live.standing().troubles == [], "it has mended itself"

    hand.first = first
    play(declare(hand), scene)


def test_after_so_many_tries_a_block_is_given_up_and_counted_and_the_next_follows() -> None:
    hand = Hand()

    def first(call: int) -> None:
        if call <= 3:
            raise OSError("no")

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        radio = Radio(live)
        await radio.send(("a", Glimpsed(level=1.0)), ("a", Glimpsed(level=2.0)))
        await radio.send(("a", Glimpsed(level=3.0)))
        await soon(live)
        assert hand.counts == [[1, 2], [1, 2], [1, 2], [3]]
        assert counted(live) == (3, 1, 2, 2)
        assert live.host.shards.first.state.blocks.cursor("Meter") == 3
        assert live.standing().troubles == [
            "2 actions of batch actuators were given up, the last because of Beep@1: OSError: no"
        ]

    hand.first = first
    play(declare(hand), scene)


def test_what_a_device_refuses_is_not_tried_again() -> None:
    hand = Hand()

    def first(call: int) -> None:
        if call == 1:
            raise DeviceRefused("the horn is broken")

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        radio = Radio(live)
        await radio.send(("a", Glimpsed(level=1.0)))
        await radio.send(("a", Glimpsed(level=2.0)))
        await soon(live)
        assert hand.counts == [[1], [2]]
        assert counted(live) == (2, 1, 1, 0)
        assert live.host.batched_actuators.trouble == "Beep@1: the horn is broken"

    hand.first = first
    play(declare(hand), scene)


def test_a_type_is_not_repeated_because_another_one_failed() -> None:
    """One block with beeps and alarms; the hand for beeps, which comes later, fails twice."""
    beeps, alarms = Hand(), Hand()

    def first(call: int) -> None:
        if call <= 2:
            raise OSError("no")

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        await Radio(live).send(("a", Glimpsed(level=1.0)), ("a", Measured(level=200.0)), ("a", Glimpsed(level=2.0)))
        await soon(live)
        assert len(alarms.calls) == 1
        assert [one[4] for one in alarms.calls[0]] == [2]
        assert beeps.sequences == [[1, 3]] * 3
        assert [call[0][5] for call in beeps.calls] == [1, 2, 3]
        assert counted(live) == (3, 3, 0, 2)

    beeps.first = first
    play(declare(beeps, alarms), scene)


def test_only_the_type_that_failed_counts_as_failed() -> None:
    beeps, alarms = Hand(), Hand()

    def first(call: int) -> None:
        raise DeviceRefused("no")

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        await Radio(live).send(("a", Glimpsed(level=1.0)), ("a", Measured(level=200.0)), ("a", Glimpsed(level=2.0)))
        await soon(live)
        assert counted(live) == (3, 1, 2, 0)

    beeps.first = first
    play(declare(beeps, alarms), scene)


def test_a_hand_may_wait_and_kinds_do_not_wait_for_each_other() -> None:
    begun: list[str] = []
    done: list[tuple[str, list[int]]] = []

    async def hand(orders: Orders[Beep]) -> None:
        begun.append(orders.kind)
        await asyncio.sleep(1.0 if orders.kind == "Meter" else 0.1)
        done.append((orders.kind, [order.effect.count for order in orders]))

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        await live.enroll("Horn", ["h"])
        meters, horns = Radio(live), Radio(live, "road", "Horn")
        await meters.send(("a", Glimpsed(level=1.0)))
        await meters.send(("a", Glimpsed(level=2.0)))
        await horns.send(("h", Honked(count=7)))
        await soon(live)
        assert begun == ["Meter", "Horn", "Meter"]
        assert done == [("Horn", [7]), ("Meter", [1]), ("Meter", [2])]
        assert counted(live) == (3, 3, 0, 0)

    play(declare(hand), scene)


def test_a_hand_that_takes_too_long_is_given_up_in_time() -> None:
    async def hand(orders: Orders[Beep]) -> None:
        await asyncio.sleep(1_000)

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        await Radio(live).send(("a", Glimpsed(level=1.0)))
        for _ in range(100):
            await asyncio.sleep(1.0)
        assert counted(live) == (1, 0, 1, 2)
        assert "TimeoutError" in live.host.batched_actuators.trouble

    play(declare(hand), scene, effect_within_s=5.0)


def test_what_a_plain_function_returns_is_waited_for_and_not_begun_twice() -> None:
    begun: list[int] = []
    done: list[int] = []

    async def later(attempt: int) -> None:
        await asyncio.sleep(0.1)
        if len(done) == 0 and attempt == 1:
            done.append(-1)
            raise OSError("once")
        done.append(attempt)

    def hand(orders: Orders[Beep]) -> Any:
        begun.append(orders.attempt)
        return later(orders.attempt)

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        await Radio(live).send(("a", Glimpsed(level=1.0)))
        await soon(live)
        assert begun == [1, 2]
        assert done == [-1, 2]

    play(declare(hand), scene)


def test_a_hand_that_is_cancelled_from_within_has_failed_and_nothing_is_passed_over() -> None:
    tries: list[list[int]] = []

    async def hand(orders: Orders[Beep]) -> None:
        tries.append([order.sequence for order in orders])
        await asyncio.sleep(0.01)
        if len(tries) <= 3:
            raise asyncio.CancelledError

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        radio = Radio(live)
        await radio.send(("a", Glimpsed(level=1.0)))
        await radio.send(("a", Glimpsed(level=2.0)))
        await soon(live)
        assert tries == [[1], [1], [1], [2]]
        assert counted(live) == (2, 1, 1, 2)

    play(declare(hand), scene)


@pytest.mark.parametrize("cut", ["kill", "lose_power"])
def test_after_a_crash_what_was_not_confirmed_comes_again_with_the_same_keys(cut: str) -> None:
    calls: list[list[tuple[str, str, int, int]]] = []
    stuck = True

    async def hand(orders: Orders[Beep]) -> None:
        calls.append([(orders.kind, order.key, order.token, order.sequence) for order in orders])
        if stuck and orders.kind == "Meter" and len(calls) > 2:
            await asyncio.sleep(1_000)

    async def scene(node: SimNode) -> None:
        nonlocal stuck
        live = await node.start()
        await live.enroll("Meter", ["a"])
        await live.enroll("Horn", ["h"])
        meters, horns = Radio(live), Radio(live, "road", "Horn")
        await meters.send(("a", Glimpsed(level=1.0)), ("a", Glimpsed(level=2.0)))
        await horns.send(("h", Honked(count=1)))
        await asyncio.sleep(2.0)
        await meters.send(("a", Glimpsed(level=3.0)))
        await meters.send(("a", Glimpsed(level=4.0)), ("a", Glimpsed(level=5.0)))
        await asyncio.sleep(2.0)
        assert [[one[3] for one in call] for call in calls] == [[1, 2], [1], [3]]
        assert live.host.shards.first.state.blocks.cursor("Meter") == 2
        before = calls[-1]
        calls.clear()
        stuck = False
        await getattr(node, cut)()
        live = await node.start()
        await soon(live)
        assert calls[0] == before
        assert [[one[3] for one in call] for call in calls] == [[3], [4, 5]]
        assert live.host.shards.first.state.blocks.cursor("Meter") == 5

    play(declare(hand), scene)


def test_two_kinds_in_one_commit_keep_their_keys_apart() -> None:
    hand = Hand()

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        await live.enroll("Horn", ["h"])
        # Two lives of one source: they share its turn, so their batches lie in the order in which they came.
        meters, horns = Radio(live), Radio(live, kind="Horn", incarnation=7)
        sent = [
            meters.send(("a", Glimpsed(level=1.0)), ("a", Glimpsed(level=2.0))),
            horns.send(("h", Honked(count=3))),
            meters.send(("a", Glimpsed(level=4.0))),
            meters.send(("a", Glimpsed(level=5.0)), incarnation=2, sequence=1),
            horns.send(("h", Honked(count=6)), ("h", Honked(count=7))),
        ]
        await asyncio.gather(*sent)
        await soon(live)
        positions = {one[3] >> 20 for call in hand.calls for one in call}
        assert len(positions) == 1, "this is about one commit"
        by_kind: dict[str, list[tuple[int, int]]] = {}
        for agent, effect, _, _, sequence, _ in (one for call in hand.calls for one in call):
            by_kind.setdefault(agent.partition("/")[0], []).append((effect.count, sequence))
        assert by_kind == {"Meter": [(1, 1), (2, 2), (4, 3), (5, 4)], "Horn": [(3, 1), (6, 2), (7, 3)]}
        keys = [one[2] for call in hand.calls for one in call]
        tokens = [one[3] for call in hand.calls for one in call]
        assert len(set(keys)) == len(set(tokens)) == 7
        # Blocks that lie side by side are one call; what lies between two of them keeps them apart.
        assert hand.counts == [[1, 2], [3], [4, 5], [6, 7]]

    play(declare(hand), scene)


def test_an_ordinary_actuator_takes_over_when_the_batched_one_is_gone() -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        await Radio(live).send(("a", Glimpsed(level=1.0)), ("a", Glimpsed(level=2.0)))
        await asyncio.sleep(0.5)
        await node.kill()
        orders: list[tuple[int, int]] = []

        def beep(order: Any) -> None:
            orders.append((order.effect.count, order.sequence))
            if len(orders) == 2:
                raise OSError("in the middle of a block")

        other = declare(None)
        other.actuator(Beep, tries=3)(beep)
        node.declaration = other
        live = await node.start()
        await soon(live)
        assert orders == [(1, 1), (2, 2), (1, 1), (2, 2)]
        assert live.host.shards.first.state.blocks.cursor("Meter") == 2
        assert counted(live) == (2, 2, 0, 1)

    async def stuck(orders: Orders[Beep]) -> None:
        await asyncio.sleep(1_000)

    play(declare(stuck), scene)


def test_what_nobody_is_registered_for_any_more_has_failed_and_holds_nobody_up() -> None:
    beeps = Hand()

    async def stuck(orders: Orders[Any]) -> None:
        await asyncio.sleep(1_000)

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        await Radio(live).send(("a", Glimpsed(level=1.0)), ("a", Measured(level=200.0)))
        await asyncio.sleep(0.5)
        await node.kill()
        node.declaration = declare(beeps)
        live = await node.start()
        await soon(live)
        assert beeps.sequences == [[1]]
        assert counted(live) == (2, 1, 1, 0)
        assert live.host.batched_actuators.trouble == "nobody is registered to carry out Alarm@1"
        assert live.host.shards.first.state.blocks.cursor("Meter") == 2

    play(declare(stuck, stuck), scene)


def test_a_stop_waits_for_hands_and_one_that_hangs_is_left_to_the_next_start() -> None:
    done: list[int] = []

    async def hand(orders: Orders[Beep]) -> None:
        await asyncio.sleep(0.5)
        done.extend(order.sequence for order in orders)

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        await Radio(live).send(("a", Glimpsed(level=1.0)))
        await node.stop()
        assert done == [1]
        live = await node.start()
        await soon(live)
        assert done == [1], "it was confirmed"

    play(declare(hand), scene)


def test_a_confirmation_never_goes_back_and_never_ahead_of_the_log() -> None:
    hand = Hand()

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        await Radio(live).send(("a", Glimpsed(level=1.0)), ("a", Glimpsed(level=2.0)))
        await soon(live)
        blocks = live.host.shards.first.state.blocks
        for upto in (1, 99):
            await live.host.intake.take(0, ActionsConfirmed("Meter", upto))
            assert blocks.cursor("Meter") == 2

    play(declare(hand), scene)


def test_alarms_have_texts_and_enums() -> None:
    alarms = Hand()

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        await Radio(live).send(("a", Measured(level=250.0)))
        await soon(live)
        (call,) = alarms.calls
        assert isinstance(call[0][1], Alarm)
        assert call[0][1].text == "a at 250.0 in Meter/a"

    play(declare(Hand(), alarms), scene)


def test_after_a_restart_blocks_that_others_lay_between_keep_their_keys() -> None:
    """What is owed comes back kind by kind: blocks of one kind are neighbours then that were none in their commit."""
    calls: list[tuple[str, str, int, int]] = []
    stuck = True

    async def hand(orders: Orders[Beep]) -> None:
        calls.extend((order.agent, order.key, order.token, order.sequence) for order in orders)
        if stuck:
            await asyncio.sleep(1_000)

    async def scene(node: SimNode) -> None:
        nonlocal stuck
        live = await node.start()
        await live.enroll("Meter", ["a"])
        await live.enroll("Horn", ["h"])
        meters, horns = Radio(live), Radio(live, kind="Horn", incarnation=7)
        await asyncio.gather(
            meters.send(("a", Glimpsed(level=1.0))),
            horns.send(("h", Honked(count=1)), ("h", Honked(count=2))),
            meters.send(("a", Glimpsed(level=2.0))),
            horns.send(("h", Honked(count=3))),
        )
        commit = node.logbook.commits[0][-1]
        blocks = [(run.kind, run.first, run.actions_count) for run in commit.columns if run.actions_count]
        assert blocks == [("Meter", 1, 1), ("Horn", 1, 2), ("Meter", 2, 1), ("Horn", 3, 1)]
        await node.kill()
        calls.clear()
        stuck = False
        live = await node.start()
        await soon(live)
        place = {("Meter/a", 1): 0, ("Horn/h", 1): 1, ("Horn/h", 2): 2, ("Meter/a", 2): 3, ("Horn/h", 3): 4}
        assert len(calls) == 5
        for agent, key, token, sequence in calls:
            index = BLOCK_INDEX + place[agent, sequence]
            assert key == f"1.0.{commit.position}.{index}"
            assert token == (commit.position << INDEX_BITS) + index

    play(declare(hand), scene)


def test_nothing_is_confirmed_after_a_halt_that_was_not_done() -> None:
    tried: list[int] = []

    def hand(orders: Orders[Beep]) -> None:
        tried.append(orders.attempt)
        raise OSError("no")

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        confirmed: list[ActionsConfirmed] = []
        hands = live.host.batched_actuators
        hands._confirm = lambda _, upto: confirmed.append(upto)
        await Radio(live).send(("a", Glimpsed(level=1.0)))
        hands.halt()  # while it waits for its next try
        await asyncio.sleep(1.0)
        assert tried == [1]
        assert not confirmed
        assert not hands.busy

    play(declare(hand), scene)
