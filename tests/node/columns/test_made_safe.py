"""Compiled agents are made safe as interpreted ones are: after a restart, and before their first commit is on disk.

Also: what is owed to batched hands keeps the log from being dropped.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stigmergy import Action, Agent, Event, Fleet, Retention, SafeAction, Snapshots, WhenStale, evolve
from stigmergy.base.errors import JournalUnknown
from stigmergy.node.column_actuators import Orders
from stigmergy.sim.disk import DiskFault
from stigmergy.sim.node import SimNode
from tests.agents.meters import Glimpsed, Measured
from tests.agents.plain_table import PlainEngine, compiled
from tests.node.columns.stage import Radio, declare, play


class Seen(Event):
    at: int


class Halt(Action):
    pass


class Freeze(Action):
    pass


class Guard(Agent):
    at: int = 0

    silent = WhenStale(Seen, after_s=2.0, then=Halt())
    safe = SafeAction(Freeze())

    @evolve
    def saw(self, event: Seen) -> None:
        self.at = event.at


def guards(is_compiled: bool) -> tuple[Fleet, list[tuple[str, str]]]:
    fleet = Fleet("guards", agents=[Guard])
    if is_compiled:
        fleet.plans["Guard"] = compiled(PlainEngine(Guard, actions=()))
    done: list[tuple[str, str]] = []
    for action in (Halt, Freeze):
        fleet.actuator(action)(lambda order: done.append((order.agent, type(order.effect).__name__)))
    return fleet, done


@pytest.mark.parametrize("is_compiled", [False, True])
def test_who_says_nothing_after_a_restart_is_silent(is_compiled: bool) -> None:
    fleet, done = guards(is_compiled)

    async def scene(node: SimNode) -> None:
        live = await node.start()
        for name in ("a", "b"):
            await live.observe(f"Guard/{name}", Seen(at=1))
        await node.stop()
        live = await node.start()
        await asyncio.sleep(1.0)
        await live.observe("Guard/b", Seen(at=2))
        assert not done
        await asyncio.sleep(1.5)
        assert done == [("Guard/a", "Halt")]

    play(fleet, scene)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_who_is_not_on_disk_yet_is_made_safe_when_the_disk_fails(is_compiled: bool) -> None:
    fleet, done = guards(is_compiled)

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.observe("Guard/a", Seen(at=1))
        node.disk.fail(node.disk.calls + 1, DiskFault.EIO)
        with pytest.raises(JournalUnknown, match="a write failed half way"):
            await live.observe("Guard/b", Seen(at=1))
        await asyncio.sleep(0.1)
        assert sorted(done) == [(f"Guard/{name}", what) for name in ("a", "b") for what in ("Freeze", "Halt")]
        await node.kill()

    play(fleet, scene)


def test_the_log_is_kept_as_long_as_a_batched_hand_is_owed_something_of_it() -> None:
    go = asyncio.Event()

    async def beep(_: Orders[Any]) -> None:
        await go.wait()

    async def scene(node: SimNode) -> None:
        live = await node.start()
        await live.enroll("Meter", ["a"])
        radio = Radio(live)
        await radio.send(("a", Measured(level=1.0)))
        await radio.send(("a", Glimpsed(level=1.0)))
        owed_at = live.host.shards.first.state.blocks.lowest_position()
        assert owed_at is not None

        async def go_on() -> None:
            for _ in range(40):
                await radio.send(("a", Measured(level=1.0)))
                await asyncio.sleep(0.1)

        await go_on()
        assert live.standing().owed == 1, "and people see it"
        assert live.standing().counters["snapshots"] >= 1
        assert 1 < live.host.journal.first_position(0) <= owed_at
        go.set()
        await go_on()
        assert live.host.journal.first_position(0) > owed_at
        assert live.standing().owed == 0

    play(
        declare(beep),
        scene,
        snapshots=Snapshots(every_events=5, every_s=0.5, tail_ratio=0.0),
        retention=Retention(keep_s=0.0, reserve_bytes=0, check_every_s=0.1),
        effect_within_s=1000.0,
    )
