"""Safe actions of many agents when the journal fails: hands that block hold up no others for longer than they must."""

from __future__ import annotations

import asyncio
import time

from stigmergy import Action, Agent, Event, Order, SafeAction, evolve
from stigmergy.app.fleet import Fleet
from stigmergy.base.errors import JournalUnknown
from stigmergy.node.effector import SAFE_SLICE_S


class Seen(Event):
    pass


class Stop(Action):
    pass


class Land(Action):
    pass


class Pump(Agent):
    safe = SafeAction(then=Stop())

    @evolve
    def seen(self, event: Seen) -> None:
        pass


class Drone(Agent):
    safe = SafeAction(then=Land())

    @evolve
    def seen(self, event: Seen) -> None:
        pass


PUMPS = 8


async def test_hands_that_block_do_not_keep_drones_in_the_air() -> None:
    fleet = Fleet("yard", agents=[Pump, Drone])
    made_safe: list[str] = []

    @fleet.actuator(Stop)
    def stop(order: Order[Stop]) -> None:
        time.sleep(2 * SAFE_SLICE_S)
        made_safe.append(order.agent)

    @fleet.actuator(Land)
    async def land(order: Order[Land]) -> None:
        made_safe.append(order.agent)

    async with fleet.running(journal="memory:") as live:
        for number in range(PUMPS):
            await live.observe(f"Pump/{number}", Seen())
        await live.observe("Drone/d", Seen())
        live.host.fail(JournalUnknown("the disk is gone"))
        assert made_safe == ["Pump/0"], "the first goes out at once"
    assert made_safe.index("Drone/d") <= 2
    pumps = [agent for agent in made_safe if agent != "Drone/d"]
    assert pumps == [f"Pump/{number}" for number in range(PUMPS)], "in order, and all of them before the node ends"
    assert live.standing().counters["safe_failed"] == 0


async def test_quick_hands_make_all_agents_safe_at_once() -> None:
    fleet = Fleet("yard", agents=[Pump])
    made_safe: list[str] = []
    fleet.actuator(Stop)(lambda order: made_safe.append(order.agent))
    async with fleet.running(journal="memory:") as live:
        for number in range(3):
            await live.observe(f"Pump/{number}", Seen())
        live.host.fail(JournalUnknown("the disk is gone"))
        assert len(made_safe) == 3


async def test_what_could_not_go_out_before_the_end_is_counted() -> None:
    fleet = Fleet("yard", agents=[Pump])

    @fleet.actuator(Stop)
    def stop(order: Order[Stop]) -> None:
        time.sleep(2 * SAFE_SLICE_S)

    async with fleet.running(journal="memory:") as live:
        for number in range(3):
            await live.observe(f"Pump/{number}", Seen())
        live.host.fail(JournalUnknown("the disk is gone"))
        await live.host.kill()
        assert live.standing().counters["safe_failed"] == 2
        await asyncio.sleep(0)


async def test_each_time_it_goes_out_it_has_a_key_of_its_own() -> None:
    """A device that remembers keys must not take the next silence for a repetition of the last."""
    fleet = Fleet("yard", agents=[Pump])
    keys: list[str] = []
    fleet.actuator(Stop)(lambda order: keys.append(order.key))
    async with fleet.running(journal="memory:") as live:
        await live.observe("Pump/0", Seen())
        effector, position = live.host.effector, live.host.shards[0].state.position
        for moment_ns in (1, 2):
            effector.release_safe(0, position, "Pump/0", Stop(), moment_ns)
        effector.release_safe(0, position, "Pump/1", Stop(), 2)
    assert len(keys) == 3
    assert len(set(keys)) == 3, "a silence later, and another agent"
