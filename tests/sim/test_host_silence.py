"""Row 21: without a fresh input for T the safe action is out within T and one tick, whatever the disk does."""

import asyncio
import random

import pytest

from stigmergy.agents.agent import Agent, evolve
from stigmergy.agents.effects import Order
from stigmergy.agents.messages import Action, Event, within
from stigmergy.agents.supervision import WhenStale
from stigmergy.base.errors import JournalUnknown
from stigmergy.node.declaration import Declaration
from stigmergy.sim.disk import DiskFault
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run

TICK_S = 0.001


class Heard(Event, keep=within(seconds=1)):
    number: int


class Noted(Event):
    number: int


class Stop(Action):
    reason: str = "silence"


def make(stale_s: float, seed: int = 0) -> tuple[Run, SimNode, list[float]]:
    """A node whose agents stop after so much silence; the list gets the virtual times of the safe actions."""
    world = Run(seed)
    stops: list[float] = []

    class Watched(Agent, kind="Watched"):
        count: int = 0
        safe = WhenStale(Heard, after_s=stale_s, then=Stop())

        @evolve
        def noted(self, event: Noted) -> None:
            self.count += 1

    fleet = Declaration("silence", agents=[Watched])

    @fleet.actuator(Stop)
    def stop(order: Order[Stop]) -> None:
        stops.append(world.loop.time())

    return world, SimNode(world, lambda node: fleet), stops


@pytest.mark.parametrize("seed", range(25))
def test_the_safe_action_is_out_in_time_for_any_limit_and_phase(seed: int) -> None:
    chance = random.Random(seed)
    stale_s = chance.choice((0.01, 0.1, 0.5, 1.0, 7.7)) * chance.uniform(0.5, 2)
    world, node, stops = make(stale_s, seed)
    node.latency.before_s = chance.choice((0.0, 0.003, 0.2))

    async def main() -> None:
        live = await node.start()
        last = 0.0
        for number in range(chance.randint(1, 8)):
            await asyncio.sleep(chance.uniform(0, 0.9) * stale_s)
            await live.observe("Watched/a", Heard(number=number))
            last = world.loop.time()
        assert not stops
        await asyncio.sleep(3 * stale_s)
        assert len(stops) == 1
        assert last + stale_s - TICK_S <= stops[0] <= last + stale_s + TICK_S
        await node.stop()

    world.run(main())


def test_once_per_silence_and_again_after_the_next() -> None:
    world, node, stops = make(0.5)

    async def main() -> None:
        live = await node.start()
        for _ in range(3):
            await live.observe("Watched/a", Heard(number=1))
            await asyncio.sleep(5.0)
        await node.stop()

    world.run(main())
    assert [round(stop, 2) for stop in stops] == [0.5, 5.5, 10.5]


def test_another_event_does_not_keep_the_silence_from_being_noticed() -> None:
    world, node, stops = make(0.5)

    async def main() -> None:
        live = await node.start()
        for number in range(20):
            await live.observe("Watched/a", Noted(number=number))
            await asyncio.sleep(0.1)
        await node.stop()

    world.run(main())
    assert len(stops) == 1
    assert stops[0] == pytest.approx(0.5, abs=0.01)


def test_a_stalled_disk_does_not_keep_the_safe_action_back() -> None:
    world, node, stops = make(0.5)

    async def main() -> None:
        live = await node.start()
        await live.observe("Watched/a", Heard(number=1))
        await asyncio.sleep(0.1)
        node.latency.jitter = False
        node.latency.before_s = 3.0
        stuck = asyncio.ensure_future(live.observe("Watched/a", Noted(number=1)))
        await asyncio.sleep(1.0)
        assert not stuck.done()
        assert len(stops) == 1
        await stuck
        await node.stop()

    world.run(main())
    assert stops[0] == pytest.approx(0.5, abs=TICK_S)


def test_a_disk_that_does_not_answer_at_all_stops_the_node_after_the_safe_action() -> None:
    world, node, stops = make(0.5)

    async def main() -> None:
        live = await node.start()
        await live.observe("Watched/a", Heard(number=1))
        node.latency.jitter = False
        node.latency.before_s = 1_000.0
        began = world.loop.time()
        with pytest.raises(JournalUnknown, match="has not answered"):
            await live.observe("Watched/a", Noted(number=1))
        limit_s = node.settings.write_within_s
        assert began + limit_s <= world.loop.time() <= began + limit_s + TICK_S
        assert stops[0] == pytest.approx(0.5, abs=TICK_S)
        assert len(stops) == 2, "once for the silence, once because the journal has failed"
        await node.kill()

    world.run(main())


def test_a_dead_journal_lets_the_safe_action_out_at_once() -> None:
    world, node, stops = make(30.0)

    async def main() -> None:
        live = await node.start()
        await live.observe("Watched/a", Heard(number=1))
        await asyncio.sleep(2.0)
        node.disk.fail(node.disk.calls + 1, DiskFault.EIO)
        with pytest.raises(JournalUnknown):
            await live.observe("Watched/a", Noted(number=1))
        assert [round(stop, 2) for stop in stops] == [2.0]
        await node.kill()

    world.run(main())


def test_the_count_begins_anew_with_the_start() -> None:
    world, node, stops = make(1.0)

    async def main() -> None:
        live = await node.start()
        await live.observe("Watched/a", Heard(number=1))
        await live.observe("Watched/a", Noted(number=1))
        await asyncio.sleep(0.4)
        await node.lose_power()
        await asyncio.sleep(5.0)
        assert not stops
        await node.start()
        start = world.loop.time()
        await asyncio.sleep(4.0)
        assert len(stops) == 1
        assert start + 1.0 <= stops[0] <= start + 1.0 + TICK_S
        await node.stop()

    world.run(main())


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_a_jump_of_the_wall_clock_changes_nothing(jump_s: float) -> None:
    world, node, stops = make(1.0)

    async def main() -> None:
        live = await node.start()
        await live.observe("Watched/a", Heard(number=1))
        await asyncio.sleep(0.5)
        node.clock.jump(jump_s)
        await asyncio.sleep(2.0)
        await node.stop()

    world.run(main())
    assert [round(stop, 3) for stop in stops] == [1.0]


def test_every_safe_action_has_a_key_of_its_own() -> None:
    world = Run(1)
    keys: list[str] = []

    class Watched(Agent, kind="Watched"):
        safe = WhenStale(Heard, after_s=0.5, then=Stop())

    fleet = Declaration("silence", agents=[Watched])

    @fleet.actuator(Stop)
    def stop(order: Order[Stop]) -> None:
        keys.append(order.key)

    node = SimNode(world, lambda node: fleet)

    async def main() -> None:
        for _ in range(3):
            live = await node.start()
            await live.observe("Watched/a", Heard(number=1))
            await live.observe("Watched/b", Heard(number=1))
            await asyncio.sleep(2.0)
            await node.stop()

    world.run(main())
    assert len(keys) == len(set(keys)) == 6


def test_silence_is_noticed_while_a_backlog_waits_for_the_disk() -> None:
    world, node, stops = make(0.5)

    async def main() -> None:
        live = await node.start()
        await live.observe("Watched/a", Heard(number=1))
        await live.observe("Watched/a", Noted(number=0))
        node.latency.jitter = False
        node.latency.before_s = 3.0
        told = [asyncio.ensure_future(live.observe("Watched/a", Noted(number=number))) for number in range(5_000)]
        await asyncio.sleep(1.0)
        assert len(stops) == 1
        await asyncio.gather(*told)
        await node.stop()

    world.run(main())


def test_what_comes_while_the_disk_is_slow_is_heard_all_the_same() -> None:
    """Single inputs may linger until a write is over; not so long that an agent is taken for one without news."""
    world, node, stops = make(0.5)

    async def main() -> None:
        live = await node.start()
        await live.observe("Watched/a", Heard(number=0))
        node.latency.jitter = False
        node.latency.before_s = 2.0
        slow = asyncio.ensure_future(live.observe("Watched/a", Noted(number=0)))
        for number in range(1, 18):
            await asyncio.sleep(0.1)
            await live.observe("Watched/a", Heard(number=number))
        assert not slow.done()
        assert not stops
        await slow
        await node.stop()

    world.run(main())
