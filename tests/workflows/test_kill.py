"""A node is killed at every transition of a run, and started again: the end is that of an undisturbed run."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stigmergy.agents.messages import Event
from stigmergy.control.live import Live
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run
from tests.workflows.delivery import Arrived, Deliver, ObstacleDetected, fleet

RUN, DRONE = "Delivery/J1", "Drone/D1"
STEPS_COUNT_MAX = 20_000
Outcome = tuple[Any, ...]


class Stage:
    """One delivery on one node, which is killed once so many groups of commits are durable."""

    def __init__(self, parcel: str, seen: list[Event], kill_at: int = 0, *, power: bool = False) -> None:
        self.groups_count = 0
        self._parcel, self._seen, self._kill_at, self._power = parcel, list(seen), kill_at, power
        self._world = Run(seed=1)
        self._node = SimNode(self._world, lambda _: fleet, on_durable=self._durable)
        self._due = False

    def _durable(self, _: object) -> None:
        self.groups_count += 1
        if self.groups_count == self._kill_at:
            self._due = True
            if self._power:
                self._node.disk.lose_power()  # nothing of this group is released

    def play(self) -> Outcome:
        return self._world.run(self._scene())

    async def _scene(self) -> Outcome:
        await self._node.start()
        command = Deliver(drone="D1", parcel=self._parcel)
        await self._say(lambda live: live.send(RUN, command), lambda: self._status() != "new")
        for number, event in enumerate(self._seen, 1):
            await self._until(lambda number=number: self._flies(number))  # type: ignore[misc]
            await self._say(
                lambda live, event=event: live.observe(DRONE, event),  # type: ignore[misc]
                lambda number=number: not self._flies(number),  # type: ignore[misc]
            )
        await self._until(lambda: self._status() in ("done", "undone", "stuck"))
        await self._until(lambda: not self._query(DRONE).steps.open)
        run, drone = self._query(RUN), self._query(DRONE)
        await self._node.stop()
        steps = {name: (state.state, state.attempt) for name, state in run.steps.items()}
        assert not self._node.logbook.findings
        return run.status, run.reason, steps, drone.state, drone.dropped

    async def _say(self, say: Callable[[Live], Any], heard: Callable[[], bool]) -> None:
        """Says something to an agent, and once more if a kill came before it was kept."""
        while not heard():
            said = asyncio.ensure_future(say(self._node.live))  # type: ignore[arg-type]
            await self._until(said.done)
            await asyncio.gather(said, return_exceptions=True)
            for _ in range(100):  # what was kept has its effect
                await self._until(lambda: True)
                await asyncio.sleep(0.001)

    async def _until(self, condition: Callable[[], bool]) -> None:
        for _ in range(STEPS_COUNT_MAX):
            if self._due:
                self._due = False
                await (self._node.lose_power() if self._power else self._node.kill())
                await self._node.start()
            if condition():
                return
            await asyncio.sleep(0.001)
        raise AssertionError(f"it does not come: {self._query(RUN)!r}, {self._query(DRONE)!r}")

    def _query(self, address: str) -> Any:
        return self._node.live.query(address)  # type: ignore[union-attr]

    def _status(self) -> str:
        return str(self._query(RUN).status)

    def _flies(self, attempt: int) -> bool:
        state = self._query(RUN).steps.get("FlyTo")
        return state is not None and (state.state, state.attempt) == ("begun", attempt)


OBSTACLE: list[Event] = [ObstacleDetected(what="crane"), Arrived()]
CASES = [("P1", OBSTACLE), ("stuck", [Arrived()])]


@pytest.mark.parametrize("power", [False, True], ids=["killed", "without power"])
@pytest.mark.parametrize(("parcel", "seen"), CASES, ids=["with an obstacle", "with a failure in step four"])
def test_a_kill_at_any_transition_changes_nothing(parcel: str, seen: list[Event], power: bool) -> None:
    undisturbed = Stage(parcel, seen)
    end = undisturbed.play()
    assert end[0] == ("done" if parcel == "P1" else "undone")
    assert end[4] == (("P1",) if parcel == "P1" else ())
    for kill_at in range(1, undisturbed.groups_count + 1):
        assert Stage(parcel, seen, kill_at, power=power).play() == end, f"killed behind group {kill_at}"
