"""What a host takes, in which order, and what it tells whom and when."""

import asyncio

import pytest

from stigmergy.agents.codec import pack_envelope
from stigmergy.agents.effects import Order
from stigmergy.base.command_ids import time_ms_of
from stigmergy.base.errors import Overloaded, SequenceGap, StaleEpoch
from stigmergy.node.mailbox import DROP_OLDEST
from stigmergy.node.settings import Settings
from stigmergy.shard.inputs import Accepted, Refused
from stigmergy.sim.node import SimNode
from tests.node.counting import (
    Add,
    Counted,
    Glimpsed,
    Land,
    Sampled,
    declare,
    envelope,
)
from tests.node.rig import play


class TestTaking:
    def test_an_answer_comes_when_it_is_durable_and_not_before(self) -> None:
        async def main(node: SimNode) -> None:
            node.latency.jitter = False
            node.latency.before_s = 1.0
            live = await node.start()
            asked = asyncio.ensure_future(live.send("Counter/a", Add(number=1)))
            await asyncio.sleep(0.9)
            assert not asked.done()
            assert live.query("Counter/a").numbers == ()
            assert live.agents() == []
            assert isinstance(await asked, Accepted)
            assert live.query("Counter/a").numbers == (1,)
            assert live.agents() == ["Counter/a"]

        play(declare(), main)

    def test_a_refusal_is_durable_too(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            refused = await live.send("Counter/a", Add(number=-1), command_id="x")
            assert refused == Refused("only what is positive is added")
            await node.lose_power()
            live = await node.start()
            assert await live.send("Counter/a", Add(number=-1), command_id="x") == refused

        play(declare(), main)

    def test_another_command_with_the_same_id_is_refused_also_after_a_restart(self) -> None:
        """Its sender must not hear that something was done which was not."""

        async def main(node: SimNode) -> None:
            live = await node.start()
            # At once: each gets the answer to what it asked.
            asks = [live.send("Counter/a", Add(number=number), command_id="x") for number in (1, 2, 1)]
            first, other, again = await asyncio.gather(*asks)
            assert isinstance(first, Accepted)
            assert again == first
            assert other == Refused("another command had the id 'x'; send this one with an id of its own")
            await node.lose_power()
            live = await node.start()
            assert await live.send("Counter/a", Add(number=2), command_id="x") == other
            assert await live.send("Counter/a", Add(number=1), command_id="x") == first
            assert live.query("Counter/a").numbers == (1,)
            assert isinstance(await live.send("Counter/a", Add(number=2), command_id="y"), Accepted)

        play(declare(), main)

    def test_the_same_id_asked_twice_at_once_is_done_once(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            asks = [live.send("Counter/a", Add(number=1), command_id="x") for _ in range(5)]
            answers = await asyncio.gather(*asks)
            assert len(set(answers)) == 1
            assert live.query("Counter/a").numbers == (1,)

        play(declare(), main)

    def test_ids_of_our_own_carry_their_time_and_name_their_client(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            assert await live.send("Counter/a", Add(number=1))
            assert await live.send("Counter/a", Add(number=2), client="gateway")
            state = live.host.shards.first.state
            ids = [one.command_id for one in state.answers.all()]
            assert all(time_ms_of(one) == live.host.clock.wall_ns() // 1_000_000 for one in ids), ids
            assert state.answers.clients() == ["", "gateway"]

        play(declare(), main)

    def test_the_same_id_for_agents_of_different_shards_is_two_commands(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            agents = [f"Counter/{number}" for number in range(8)]
            answers = await asyncio.gather(*(live.send(a, Add(number=1), command_id="x") for a in agents))
            done = [address for address in agents if live.query(address).numbers]
            shards = {live.host.intake.shard_of(address) for address in agents}
            assert len(shards) > 1
            assert len(done) >= len(shards)
            assert all(isinstance(answer, Accepted) for answer in answers)

        play(declare(shards=4), main)

    def test_an_event_that_may_wait_is_taken_at_once_and_written_in_time(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.observe("Counter/b", Counted(number=0))
            for number in range(10):
                await live.observe("Counter/a", Sampled(number=number))
                await asyncio.sleep(0.05)
            assert live.query("Counter/a").numbers == ()
            groups = node.logbook.groups
            await asyncio.sleep(0.6)
            assert live.query("Counter/a").numbers == tuple(range(10))
            assert node.logbook.groups == groups + 1

        play(declare(), main)

    def test_an_envelope_is_acknowledged_when_all_of_it_is_durable(self) -> None:
        """Larger than a commit may be, so that it is split."""

        async def main(node: SimNode) -> None:
            node.latency.before_s = 0.1
            live = await node.start()
            items = [("Counter/a", Counted(number=n, padding=bytes(50_000))) for n in range(15)]
            await live.deliver(pack_envelope("s", list(items), sequence=1))
            assert node.logbook.states[0].marks.consumed("s", 0) == 15
            assert len(node.logbook.states[0].agents["Counter/a"].numbers) == 15
            assert len([commit for commit in node.logbook.commits[0] if commit.events]) > 2

        play(declare(), main)

    @pytest.mark.parametrize("shards", [1, 4])
    def test_what_comes_early_waits_and_everybody_is_told(self, shards: int) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            late = [asyncio.ensure_future(live.deliver(envelope(4, range(3, 6)))) for _ in range(2)]
            await asyncio.sleep(1.0)
            assert not any(one.done() for one in late)
            await live.deliver(envelope(1, range(3)))
            await asyncio.gather(*late)
            assert live.query("Counter/a").numbers == (0, 1, 2, 3, 4, 5)

        play(declare(shards), main)

    @pytest.mark.parametrize("shards", [1, 4])
    def test_a_gap_that_nobody_fills_is_declared_and_what_came_early_is_taken(self, shards: int) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.deliver(envelope(10, range(3)))
            assert node.world.loop.time() >= 5.0
            assert live.query("Counter/a").numbers == (0, 1, 2)
            assert live.standing().counters["skipped"] == 9 * shards
            await live.deliver(envelope(1, range(50, 59)))
            assert live.query("Counter/a").numbers == (0, 1, 2), "what was declared lost comes too late"

        play(declare(shards), main)

    def test_a_releaser_that_was_replaced_is_refused_and_nothing_of_it_is_taken(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.deliver(envelope(1, range(2), epoch=2))
            with pytest.raises(StaleEpoch):
                await live.deliver(envelope(3, range(9), epoch=1))
            assert live.query("Counter/a").numbers == (0, 1)
            await live.deliver(envelope(3, range(2, 4), epoch=2))
            assert live.query("Counter/a").numbers == (0, 1, 2, 3)

        play(declare(), main)

    def test_a_replaced_releaser_cannot_declare_a_gap(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.deliver(envelope(1, range(2), epoch=2))
            with pytest.raises((StaleEpoch, SequenceGap)):
                await live.deliver(envelope(100, range(9), epoch=1))
            await live.deliver(envelope(3, range(2, 4), epoch=2))
            assert live.query("Counter/a").numbers == (0, 1, 2, 3)

        play(declare(), main)

    def test_an_overload_is_told_to_its_sender_and_to_nobody_else(self) -> None:
        small = Settings(telemetry_items_max=10, batch_events_max=5)

        async def main(node: SimNode) -> None:
            node.latency.before_s = 0.05
            live = await node.start()
            told = await asyncio.gather(
                *(live.observe("Counter/a", Counted(number=number)) for number in range(1_500)), return_exceptions=True
            )
            refused = [one for one in told if isinstance(one, Overloaded)]
            assert refused
            assert all(one is None or isinstance(one, Overloaded) for one in told)
            assert len(live.query("Counter/a").numbers) == len(told) - len(refused)
            assert live.failure is None

        play(declare(), main, settings=small)

    def test_envelopes_that_find_no_room_fail_and_come_through_when_repeated(self) -> None:
        """Early ones that were let through together, more than can wait."""
        small = Settings(telemetry_items_max=1, telemetry_bytes_max=200, batch_events_max=1)

        async def main(node: SimNode) -> None:
            node.latency.before_s = 0.2
            live = await node.start()
            late = [asyncio.ensure_future(live.deliver(envelope(n, range(n, n + 1)))) for n in range(2, 60)]
            await asyncio.sleep(0.1)
            first = asyncio.ensure_future(live.deliver(envelope(1, range(1, 2))))
            told = await asyncio.gather(first, *late, return_exceptions=True)
            assert any(isinstance(one, Overloaded) for one in told)
            assert live.failure is None
            for number in range(1, 60):
                await live.deliver(envelope(number, range(number, number + 1)))
            assert live.query("Counter/a").numbers == tuple(range(1, 60))

        play(declare(), main, settings=small)

    def test_shed_telemetry_moves_the_mark_and_is_in_the_log(self) -> None:
        small = Settings(telemetry_items_max=5, batch_events_max=2)

        async def main(node: SimNode) -> None:
            node.latency.before_s = 0.1
            live = await node.start()
            await asyncio.gather(*(live.deliver(envelope(n, range(n, n + 1), "cam")) for n in range(1, 80)))
            taken = live.query("Counter/a").numbers
            assert live.standing().counters["shed_items"] == 79 - len(taken)
            assert taken[-1] == 79
            assert list(taken) == sorted(taken)
            assert node.logbook.states[0].marks.consumed("cam", 0) == 79

        play(declare(cam=DROP_OLDEST), main, settings=small)

    def test_transient_events_do_not_wear_the_disk_out_and_do_not_wedge_the_host(self) -> None:
        async def main(node: SimNode) -> None:
            live = await node.start()
            await live.observe("Counter/a", Counted(number=0))
            groups = node.logbook.groups
            for _ in range(40):
                await asyncio.gather(*(live.observe("Counter/a", Glimpsed(number=0)) for _ in range(200)))
            assert node.logbook.groups == groups
            await live.observe("Counter/a", Glimpsed(number=1))
            assert live.query("Counter/a").numbers == (0, 1)

        play(declare(), main)

    def test_when_too_much_is_owed_no_telemetry_is_taken_and_the_host_does_not_spin(self) -> None:
        fleet = declare()
        go = asyncio.Event()

        @fleet.actuator(Land)
        async def land(order: Order[Land]) -> None:
            await go.wait()

        few = Settings(owed_count_max=1, effect_within_s=1_000.0)

        async def main(node: SimNode) -> None:
            live = await node.start()
            host = live.host
            host.shards[0].state.outbox.count += 1
            told = asyncio.ensure_future(live.observe("Counter/a", Counted(number=1)))
            steps = node.world.loop.steps
            await asyncio.sleep(5.0)
            assert node.world.loop.steps - steps < 1_000
            assert not told.done()
            assert isinstance(await live.send("Counter/b", Add(number=1)), Accepted)
            host.shards[0].state.outbox.count -= 1
            await live.send("Counter/b", Add(number=2))
            await told

        play(fleet, main, settings=few)
