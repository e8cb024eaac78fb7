"""What devices share lives with the node: opened before the first order, closed after the last, in order."""

import asyncio
import logging

import pytest

from stigmergy.agents.agent import Agent, evolve, react
from stigmergy.agents.effects import Effects, Order
from stigmergy.agents.messages import Action, Event
from stigmergy.agents.supervision import Supervise
from stigmergy.app.fleet import Fleet
from stigmergy.base.errors import ConfigError, NotRunning
from stigmergy.devices.port import Feed
from stigmergy.node.declaration import Declaration
from stigmergy.node.settings import Settings
from stigmergy.sim.node import SimNode
from tests.node.rig import play


class Wanted(Event):
    number: int


class Broken(Event):
    pass


class Press(Action):
    number: int


class Robot(Agent):
    number: int = 0

    supervision = Supervise(stop_after=1)

    @evolve
    def wanted(self, event: Wanted) -> None:
        self.number = event.number

    @react
    def press(self, event: Wanted) -> Effects:
        yield Press(number=event.number)

    @evolve
    def broken(self, event: Broken) -> None:
        raise ValueError("broken")


class Wire:
    """Notes what happens to it, in a list that it shares with others."""

    def __init__(self, name: str, log: list[str], *, fails: str = "", hangs: bool = False) -> None:
        self.name = name
        self.log = log
        self.fails = fails
        self.hangs = hangs

    async def open(self) -> None:
        await asyncio.sleep(0)
        self.log.append(f"open {self.name}")
        if self.fails == "open":
            raise ConfigError(f"{self.name} is not there")
        if self.fails == "driver":
            raise OSError(f"no such device: {self.name}")

    async def close(self) -> None:
        self.log.append(f"close {self.name}")
        if self.hangs:
            await asyncio.sleep(3600)
        if self.fails == "close":
            raise OSError("stuck")


def declare(log: list[str]) -> Declaration:
    fleet = Declaration("robots", agents=[Robot], settings=Settings(drain_s=1.0))

    @fleet.actuator(Press)
    async def press(order: Order[Press]) -> None:
        log.append(f"press {order.effect.number}")
        await asyncio.sleep(0.2)

    return fleet


def test_opened_before_the_first_order_and_closed_after_the_last() -> None:
    log: list[str] = []
    fleet = declare(log)
    one, other = fleet.attach(Wire("one", log)), fleet.attach(Wire("other", log))
    assert fleet.attachments == [one, other]

    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.observe("Robot/a", Wanted(number=1))
        await asyncio.sleep(0.1)
        await node.lose_power()  # between act and confirm: the order is repeated at the next start
        live = await node.start()
        await asyncio.sleep(1.0)
        await live.observe("Robot/a", Wanted(number=2))
        await node.stop()

    play(fleet, main)
    life = ["open one", "open other", "press 1"]
    assert log == [*life, "close other", "close one", *life, "press 2", "close other", "close one"]


def test_one_that_cannot_be_opened_keeps_the_node_from_starting_and_the_rest_is_closed() -> None:
    log: list[str] = []
    fleet = declare(log)
    fleet.attach(Wire("one", log))
    fleet.attach(Wire("other", log, fails="open"))
    fleet.attach(Wire("third", log))

    async def main(node: SimNode) -> None:
        with pytest.raises(ConfigError, match="other is not there"):
            await node.start()

    play(fleet, main)
    assert log == ["open one", "open other", "close other", "close one"]


def test_what_a_driver_raises_is_said_as_it_is_and_not_taken_for_a_bug_of_ours() -> None:
    log: list[str] = []
    fleet = declare(log)
    fleet.attach(Wire("other", log, fails="driver"))

    async def main(node: SimNode) -> None:
        with pytest.raises(ConfigError, match="Wire cannot be opened: no such device: other"):
            await node.start()

    play(fleet, main)
    assert log == ["open other", "close other"]


def test_one_that_cannot_be_closed_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []
    fleet = declare(log)
    fleet.attach(Wire("one", log))
    fleet.attach(Wire("stuck", log, fails="close"))
    fleet.attach(Wire("hanging", log, hangs=True))

    async def main(node: SimNode) -> float:
        await node.start()
        before = asyncio.get_running_loop().time()
        with caplog.at_level(logging.WARNING, logger="stigmergy.devices"):
            await node.stop()
        return asyncio.get_running_loop().time() - before

    assert play(fleet, main) < 3.0
    assert log[3:] == ["close hanging", "close stuck", "close one"]
    assert [record.getMessage() for record in caplog.records] == [
        "Wire: could not be closed: TimeoutError: ",
        "Wire: could not be closed: OSError: stuck",
    ]


async def test_a_journal_that_does_not_open_leaves_nothing_open(tmp_path: object) -> None:
    log: list[str] = []
    fleet = Fleet("robots", agents=[Robot])
    fleet.attach(Wire("one", log, fails="open"))
    with pytest.raises(ConfigError):
        async with fleet.running(journal="memory:"):
            pass
    fleet.attachments.clear()
    fleet.attach(Wire("two", log))
    async with fleet.running(journal="memory:"):  # the fleet can be run again
        pass
    assert log == ["open one", "close one", "open two", "close two"]


def test_what_must_not_be_lost_reaches_the_dead_letters_of_a_stopped_agent() -> None:
    fleet = declare([])

    @fleet.sensor(Robot)
    async def button(feed: Feed) -> None:
        await asyncio.sleep(1.0)
        feed.push(Wanted(number=1))
        await feed.send(Wanted(number=2))
        await asyncio.sleep(3600)

    async def main(node: SimNode) -> tuple[int, int]:
        live = await node.start()
        await live.observe("Robot/a", Broken())
        await asyncio.sleep(3.0)
        (standing,) = live.devices()
        return len(live.dead_letters()), standing.counters["withheld"]

    assert play(fleet, main, agents=["Robot/a"]) == (2, 1)


def test_after_a_crash_nothing_of_a_node_observes_any_more() -> None:
    fleet = declare([])
    feeds: list[Feed] = []

    @fleet.sensor(Robot)
    async def button(feed: Feed) -> None:
        feeds.append(feed)
        await asyncio.sleep(3600)

    async def main(node: SimNode) -> None:
        await node.start()
        await asyncio.sleep(0.1)
        await node.kill()
        feeds[0].push(Wanted(number=1))
        with pytest.raises(NotRunning):
            await feeds[0].send(Wanted(number=1))
        live = await node.start()
        await asyncio.sleep(0.1)
        assert live.query("Robot/a").number == 0
        assert len(feeds) == 2

    play(fleet, main, agents=["Robot/a"])
