"""The page of a swarm on four nodes, in real Chromium: what an operator sees of it, and of an incident afterwards."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from apps.drones.link import WorldServer
from apps.drones.messages import CancelJob, ClosedZone
from apps.drones.physics import STEP_S
from apps.drones.plan import Customers, make_plan
from apps.drones.run import Options, Swarm
from tests.serve.rig import WAIT_S_MAX, ServedProcess
from tests.web.conftest import Screen, browser, show  # noqa: F401

DRONES = 5
FAST, REAL = 5, 1
"""How much faster than real time the world goes. Timers of agents stay what they are."""


class QuickSwarm(Swarm):
    """A swarm in a thread, whose world may go faster than real time. Whoever looks at it ends it."""

    speed = FAST

    def __init__(self, folder: Path) -> None:
        plan = make_plan(DRONES, 3, round(time.time(), 1), regions=1, around_m=120.0)
        super().__init__(plan, folder, Options(minutes=0.0, drain_s=0.0), lambda _: None)
        self._ready, self._over = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self.run(lambda _: self._stay_until_over())))

    def __enter__(self) -> QuickSwarm:
        self._thread.start()
        while not self._ready.wait(0.1):
            assert self._thread.is_alive(), "it did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _stay_until_over(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        await self._over.wait()

    async def run_world(self, server: WorldServer) -> None:
        while True:
            self.world.advance(self.world.now_t() + (self.speed + 0.5) * STEP_S)
            await asyncio.sleep(STEP_S)

    async def judge(self) -> dict[str, Any]:
        for node in self.nodes.values():
            await node.kill()
            await node.stop()
        return {}

    def do(self, doing: Coroutine[Any, Any, Any]) -> Any:
        """In its thread."""
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(WAIT_S_MAX)


class Operator:
    """Somebody who reads what agents are, as the page does."""

    def __init__(self, swarm: QuickSwarm, screen: Screen) -> None:
        self.swarm, self.screen, self.page = swarm, screen, screen.page
        self._served = ServedProcess.at(swarm.url)

    def state(self, agent: str) -> Any:
        return self._served.get(f"/v1/agents/{agent}").json.get("state")  # None before its first input.

    def wait(self, agent: str, reached: Callable[[Any], object]) -> Any:
        """Until the state of an agent is so."""
        return self.screen.wait_for(lambda: found if (found := self.state(agent)) and reached(found) else None, agent)

    def look(self, place: str) -> None:
        self.page.goto("about:blank")
        self.screen.open(place)

    def wait_drawn(self, text: str, condition: str = "true") -> None:
        """Until the map has a shape with such a name."""
        self.screen.wait(f"map.shapes.some((one) => one.name.includes('{text}') && {condition})")

    def colour_of(self, agent: str) -> str:
        """The name of the colour in which an agent is drawn."""
        return str(
            self.screen.ask(
                f"((row) => map.positions.isShown(row) ? map.feed.colours.get()[map.positions.colour[row]] : '')"
                f"(map.positions.rows.get('{agent}'))"
            )
        )


@pytest.fixture
def operator(tmp_path: Path, show: Callable[..., Screen]) -> Iterator[Operator]:  # noqa: F811
    with QuickSwarm(tmp_path) as swarm:
        yield Operator(swarm, show(swarm.url, width=1440, height=900).open())


@pytest.mark.prove  # the pages themselves: tests/web; what they show of a swarm: test_views and test_map
@pytest.mark.timeout(3600)
def test_what_an_operator_sees_of_a_swarm_and_of_an_incident(operator: Operator) -> None:
    """One test, because a swarm takes seconds to start and to fly."""
    swarm, world = operator.swarm, operator.swarm.world
    low = swarm.plan.names[0]
    world.physics.battery[0] = 40.0
    operator.wait(f"Drone/{low}", lambda drone: drone["pad"]["until_ns"])
    customers = Customers(swarm.plan)
    (lost, *_), (cancelled, *_) = jobs = [customers.next_job() for _ in range(2)]
    for name, job in jobs:
        assert swarm.do(swarm.send(f"Job/{name}", job))
    failed = operator.wait(f"Job/{lost}", lambda job: job["status"] == "flying")["drone"]
    operator.wait(f"Drone/{failed}", lambda drone: drone["z"] > 5.0)
    before = datetime.now(UTC)
    world.fail(failed, "motor")
    flies_other = operator.wait(f"Job/{cancelled}", lambda job: job["status"] == "flying")["drone"]
    run = f"Delivery/{flies_other}.{cancelled}.1"
    operator.wait(run, lambda found: "ToPickup" in found["steps"])
    under_way = datetime.now(UTC)
    swarm.speed = REAL
    assert swarm.do(swarm.send(f"Job/{cancelled}", CancelJob("not needed")))
    reserve = operator.wait(f"Job/{lost}", lambda job: job["token"] == 2 and job["status"] == "flying")["drone"]
    assert reserve != failed
    corners = ((5.0, 5.0), (55.0, 5.0), (55.0, 55.0), (5.0, 55.0))
    swarm.do(swarm.close_zone(ClosedZone("closed-1", corners, 40.0, 120.0, world.now_t(), world.now_t() + 36_000.0)))
    check_map(operator, low, failed, lost, reserve)
    check_claims(operator, low)
    check_run(operator, run, under_way)
    swarm.speed = FAST
    check_replay(operator, before, failed, lost, reserve)


def check_map(operator: Operator, low: str, failed: str, job: str, reserve: str) -> None:
    """Drones, jobs with their ways, who has them, pads and who holds one, and closed airspace."""
    screen = operator.screen
    operator.wait_drawn(f"{job}: ", f"one.name.includes(', {reserve}') && one.lines.length === 1")
    operator.wait_drawn(f"pad-r1-0000-0 held by {low}", "one.isArea")
    operator.wait_drawn("closed-1: 40 to 120 m", "one.isArea && one.colour === '#c02020'")
    for name in ("pad-r1-0000-7", "r1-0000"):
        operator.wait_drawn(name, f"one.name === '{name}'")
    screen.wait_for(lambda: operator.colour_of(f"Drone/{failed}") == "emergency", "the failed drone")
    assert operator.colour_of(f"Job/{job}") in ("job assigned", "job carried")
    assert operator.colour_of(f"Drone/{reserve}") in ("to pick-up", "carrying")
    # What is switched off in the legend takes its way along.
    legend = operator.page.locator(".legend")
    colour = operator.colour_of(f"Job/{job}")
    legend.get_by_label(colour).uncheck()
    screen.wait(f"!map.shapes.some((one) => one.name.includes('{job}: '))")
    legend.get_by_label(colour).check()
    # A click on the job, and from there to its drone and its run.
    operator.look(f"#/map?agent=Job/{job}")
    operator.page.get_by_role("row", name=f"drone {reserve}").get_by_role("button").click()
    operator.page.get_by_role("complementary", name=f"Agent Drone/{reserve}").wait_for()
    operator.page.get_by_text("open ([run").click()
    operator.page.get_by_role("button", name=f"Delivery/{reserve}.{job}.2").first.click()
    operator.page.get_by_role("region", name="Steps of the run").wait_for()


def check_claims(operator: Operator, low: str) -> None:
    """Who holds what and who waits for it, of all nodes, and of a drone."""
    operator.look("#/fleet")
    claims = operator.page.get_by_role("main").get_by_role("region", name="Claims")
    claims.get_by_role("row", name=f"pad-r1-0000-0 Drone/{low}").wait_for()
    desk = claims.get_by_role("row", name="desk-r1-0000")
    holder, waiter = (desk.get_by_role("button").nth(number) for number in (0, 1))
    assert {holder.inner_text(), waiter.inner_text()} == {"Dispatcher/r1-0000.a", "Dispatcher/r1-0000.b"}
    holder.click()
    panel = operator.page.get_by_role("complementary").get_by_role("region", name="Claims")
    panel.get_by_text(re.compile("held.*token")).wait_for()
    panel.get_by_text("waiting:").get_by_role("button").wait_for()


def check_run(operator: Operator, run: str, under_way: datetime) -> None:
    """The steps of a delivery, its way as a run of its own, and what is undone when the customer cancels."""
    page = operator.page
    operator.look(f"#/map?agent={run}")
    steps = page.get_by_role("region", name="Steps of the run")
    steps.get_by_role("heading", name=re.compile("Run: undo(ing|ne)")).wait_for()
    steps.get_by_role("listitem").filter(has_text="TakeOff done").get_by_text("undo GoHome").wait_for()
    leg = steps.get_by_role("listitem").filter(has_text="ToPickup failed")
    leg.get_by_text("not needed").wait_for()
    leg.get_by_role("button", name=f"Leg/{run.partition('/')[2]}.ToPickup.1").click()
    steps.get_by_role("listitem").filter(has_text="AskWay done").wait_for()
    page.get_by_role("row", name=f"parent {run}").get_by_role("button").click()
    leg.wait_for()
    job = run.split(".", 1)[1][:-2]
    operator.screen.wait_for(lambda: not operator.colour_of(f"Job/{job}"), "the job that has ended")
    # Where it stood before.
    operator.look(f"#/map?agent={run}&at={moment(under_way)}")
    steps.get_by_role("heading", name="Run: running").wait_for()
    steps.get_by_role("listitem").filter(has_text="ToPickup under way").wait_for()
    steps.get_by_role("listitem").filter(has_text="Collect not begun").wait_for()


def check_replay(operator: Operator, before: datetime, failed: str, job: str, reserve: str) -> None:
    """Back to before the drone failed: who had the job then, where drones were; and on from there."""
    screen, page = operator.screen, operator.page
    operator.look(f"#/map?agent=Job/{job}&at={moment(before)}")
    panel = page.get_by_role("complementary", name=f"Agent Job/{job}")
    panel.get_by_role("row", name=f"drone {failed}").wait_for()
    panel.get_by_role("row", name="token 1").wait_for()
    operator.wait_drawn(f"{job}: ", f"one.name.includes(', {failed}')")
    assert not screen.ask("map.shapes.some((one) => one.name.startsWith('closed-1'))"), "it was closed later"
    assert operator.colour_of(f"Drone/{failed}") == "to pick-up"
    row = f"map.positions.rows.get('Drone/{reserve}')"
    x, y = screen.ask(f"[map.positions.x[{row}], map.positions.y[{row}]]")
    page.get_by_label("Speed").select_option(label="5×")
    page.get_by_role("button", name="Play").click()
    panel.get_by_role("row", name=f"drone {reserve}").wait_for()
    operator.wait_drawn(f"{job}: ", f"one.name.includes(', {reserve}')")
    operator.wait_drawn("closed-1: ")
    screen.wait_for(lambda: operator.colour_of(f"Drone/{failed}") == "emergency", "the failed drone")
    screen.wait(f"Math.hypot(map.positions.x[{row}] - {x}, map.positions.y[{row}] - {y}) > 20")
    # The run of the drone that failed, at the moment before.
    operator.look(f"#/map?agent=Delivery/{failed}.{job}.1&at={moment(before)}")
    page.get_by_role("region", name="Steps of the run").get_by_text("TakeOff under way").wait_for()
    # Its events are asked of its node; those of all agents are of one log, and the page says whose are not there.
    page.keyboard.press("3")
    page.get_by_role("table").get_by_role("row", name="FlightAborted").wait_for()
    page.keyboard.press("Escape")
    page.get_by_text("Events of node ground; not those of dispatch-a, dispatch-b, r1").wait_for()


def moment(time: datetime) -> str:
    """A time as the address bar has it."""
    return f"{time:%Y-%m-%dT%H:%M:%S.%f}Z"
