"""Where the agents of a node are: what has changed, what is durable, what was, and what cannot be shown."""

import asyncio
from array import array
from typing import Any

import msgspec
import pytest

from stigmergy import Agent, Event, Fleet, Settings, Snapshots, evolve
from stigmergy.audit.listing import readable_time
from stigmergy.base.errors import ConfigError, StigmergyError
from stigmergy.control import positions
from stigmergy.control.live import Live
from stigmergy.control.protocol import PositionsRequest, StatusRequest, answers_to, checked
from stigmergy.control.replies import PositionsReply
from stigmergy.control.server import ControlService, NodeDescription
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.sim.node import SimNode
from tests.agents.plain_table import PlainEngine, compiled
from tests.node.rig import play

Places = dict[str, tuple[float, float, int, str]]


class Moved(Event):
    x: float
    y: float
    heading: float = 0.0


class Cart(Agent):
    x: float = 0.0
    y: float = 0.0
    heading: float = 0.0

    @evolve
    def moved(self, event: Moved) -> None:
        self.x = event.x
        self.y = event.y
        self.heading = event.heading


class Parked(Agent):
    x: float = 5.0

    @evolve
    def moved(self, event: Moved) -> None:
        self.x = event.x


class Clerk(Agent):
    """Is on no map."""

    steps: int = 0

    @evolve
    def moved(self, event: Moved) -> None:
        self.steps += 1


def place_of(cart: Cart) -> tuple[float, float] | None:
    if cart.x < 0:
        return None
    return (cart.x / cart.y * cart.y, cart.y)


def declare(*, is_compiled: bool = False, shards: int = 2) -> Fleet:
    fleet = Fleet("yard", agents=[Cart, Clerk, Parked], shards=shards)
    if is_compiled:
        fleet.plans["Cart"] = compiled(PlainEngine(Cart))
    fleet.map(
        Cart,
        at=place_of,
        heading=lambda cart: cart.heading,
        colour=lambda cart: "near" if cart.x < 10 else "far",
        plane="xy",
    )
    return fleet


class Watcher:
    """Asks as a server does, and knows what such a client knows."""

    def __init__(self, live: Live) -> None:
        self._service = ControlService(
            live, Ed25519Verifier(), NodeDescription("1", "memory:", (1, bytes(32))), lambda: None
        )
        self._names: list[str] = []
        self.after = ""

    async def ask(self, request: Any) -> Any:
        (reply,) = answers_to(map(checked, await self._service.answer(request)))  # type: ignore[arg-type]
        return reply

    async def next(self, within_s: float = 0.0) -> tuple[Places, PositionsReply]:
        """What has changed, by address."""
        reply = await self.ask(PositionsRequest(after=self.after, within_s=within_s))
        self.after = reply.after
        if reply.is_new:
            self._names = []
        assert reply.first == len(self._names), "each name is told once"
        self._names += reply.names
        return unpacked(reply, self._names), reply

    def names_of(self, numbers: list[int]) -> list[str]:
        return [self._names[number] for number in numbers]


def unpacked(reply: PositionsReply, names: list[str]) -> Places:
    numbers, xs, ys = array("I", reply.numbers), array("d", reply.xs), array("d", reply.ys)
    assert len(numbers) == len(xs) == len(ys) == len(reply.headings) == len(reply.colours)
    return {
        names[number]: (xs[place], ys[place], reply.headings[place], reply.palette[reply.colours[place]])
        for place, number in enumerate(numbers)
    }


async def move(live: Live, name: str, x: float, y: float = 1.0, heading: float = 0.0) -> None:
    await live.observe(f"Cart/{name}", Moved(x=x, y=y, heading=heading))


def declare_drawing() -> Fleet:
    """A parked one draws a feature with its x as its name; nothing at 0, and something wrong at 13."""

    def draw(parked: Parked) -> list[dict[str, Any]]:
        return [{"type": "Feature" if parked.x != 13 else "Point", "properties": {"name": parked.x}}][: int(parked.x)]

    fleet = declare()
    fleet.map(Parked, at=lambda parked: None, plane="xy", draw=draw)
    return fleet


def drawn_in(watcher: Watcher, reply: PositionsReply) -> dict[str, list[float]]:
    return {
        watcher.names_of([number])[0]: [one["properties"]["name"] for one in msgspec.json.decode(features)]
        for number, features in reply.drawn
    }


def test_what_agents_draw_is_told_when_it_changes() -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        for name, x in (("p1", 1.0), ("p2", 0.0)):
            await live.observe(f"Parked/{name}", Moved(x=x, y=0.0))
        await move(live, "a", 1.0)
        first, second = Watcher(live), Watcher(live)
        found, reply = await first.next()
        assert list(found) == ["Cart/a"], "who draws may be nowhere"
        assert drawn_in(first, reply) == {"Parked/p1": [1.0]}
        await live.observe("Parked/p1", Moved(x=1.0, y=5.0))
        await live.observe("Parked/p2", Moved(x=2.0, y=0.0))
        assert drawn_in(first, (await first.next())[1]) == {"Parked/p2": [2.0]}, "the same is not told again"
        assert drawn_in(second, (await second.next())[1]) == {"Parked/p1": [1.0], "Parked/p2": [2.0]}
        waiting = asyncio.ensure_future(second.next(within_s=20.0))
        await asyncio.sleep(1.0)
        await live.observe("Parked/p1", Moved(x=0.0, y=0.0))
        assert drawn_in(second, (await waiting)[1]) == {"Parked/p1": []}
        assert drawn_in(first, (await first.next())[1]) == {"Parked/p1": []}, "also to who asks second"
        await live.observe("Parked/p2", Moved(x=13.0, y=0.0))
        _, reply = await first.next()
        assert drawn_in(first, reply) == {"Parked/p2": []}
        (trouble,) = reply.troubles
        assert trouble.startswith("what Parked/p2 draws is left out: ValueError: draw returned something else")
        await live.observe("Parked/p2", Moved(x=3.0, y=0.0))
        _, reply = await first.next()
        assert (drawn_in(first, reply), reply.troubles) == ({"Parked/p2": [3.0]}, [])

    play(declare_drawing(), scene)


def test_much_that_is_drawn_comes_in_several_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "DRAWN_BYTES_MAX", 120)

    async def scene(node: SimNode) -> None:
        live = await node.start()
        for number in range(1, 8):
            await live.observe(f"Parked/p{number}", Moved(x=float(number), y=0.0))
        watcher = Watcher(live)
        told: dict[str, list[float]] = {}
        while True:
            _, reply = await watcher.next()
            assert 1 <= len(reply.drawn) <= 2
            told |= drawn_in(watcher, reply)
            if not reply.more:
                break
        assert told == {f"Parked/p{number}": [float(number)] for number in range(1, 8)}
        past = await watcher.ask(PositionsRequest(at=readable_time(node.clock.wall_ns())))
        assert len(past.drawn) == 2
        assert any("; left out is what Parked/p" in trouble for trouble in past.troubles)

    play(declare_drawing(), scene)


both_engines = pytest.mark.parametrize("is_compiled", [False, True], ids=["interpreted", "compiled"])


@both_engines
def test_first_all_then_what_has_changed(is_compiled: bool) -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        for number in range(5):
            await move(live, f"c{number}", number)
        await live.observe("Clerk/a", Moved(x=1, y=1))
        watcher = Watcher(live)
        found, reply = await watcher.next()
        assert found == {f"Cart/c{number}": (number, 1.0, 0, "near") for number in range(5)}
        assert reply.is_new
        assert await watcher.next(within_s=1.0) == ({}, reply_without(reply))
        for x in (6.0, 7.0, 20.0):
            await move(live, "c3", x, heading=180)
        await move(live, "new", 3.0)
        found, reply = await watcher.next()
        assert found == {"Cart/c3": (20.0, 1.0, 128, "far"), "Cart/new": (3.0, 1.0, 0, "near")}, "the newest wins"
        assert not reply.is_new
        assert reply.time_ns == max(shard.state.time_ns for shard in live.host.shards)

    def reply_without(reply: PositionsReply) -> PositionsReply:
        return PositionsReply(reply.after, reply.time_ns, first=5, palette=reply.palette)

    play(declare(is_compiled=is_compiled), scene)


@both_engines
def test_change_ends_the_wait(is_compiled: bool) -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        await move(live, "a", 1.0)
        watcher = Watcher(live)
        await watcher.next()
        began_s = asyncio.get_running_loop().time()
        waiting = asyncio.ensure_future(watcher.next(within_s=20.0))
        await asyncio.sleep(2.0)
        await live.observe("Clerk/a", Moved(x=1, y=1))
        await asyncio.sleep(2.0)
        assert not waiting.done(), "a clerk is on no map"
        await move(live, "a", 2.0)
        found, _ = await waiting
        assert list(found) == ["Cart/a"]
        assert asyncio.get_running_loop().time() - began_s < 6.0

    play(declare(is_compiled=is_compiled), scene)


@both_engines
def test_only_what_is_durable_is_shown(is_compiled: bool) -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        await move(live, "a", 1.0)
        watcher = Watcher(live)
        await watcher.next()
        head = live.host.shards[live.host.intake.shard_of("Cart/a")].state
        ahead = 0
        moving = asyncio.ensure_future(move(live, "a", 2.0))
        while not moving.done():
            fresh, _ = await Watcher(live).next()
            assert fresh["Cart/a"][0] == live.query("Cart/a").x
            ahead += head.position > live.host.durable_position(head.shard) and fresh["Cart/a"][0] == 1.0
            await asyncio.sleep(0)
        assert ahead, "it was decided, and its write was under way"
        assert (await watcher.next())[0]["Cart/a"][0] == 2.0

    play(declare(is_compiled=is_compiled), scene)


def test_nothing_runs_when_nobody_has_asked_for_a_while() -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        await move(live, "a", 1.0)
        assert not live.host.feed.listeners
        watcher = Watcher(live)
        await watcher.next()
        await asyncio.sleep(positions.FORGOTTEN_S - 1)
        assert len(live.host.feed.listeners) == 1
        await watcher.next()
        await asyncio.sleep(positions.FORGOTTEN_S - 1)
        assert len(live.host.feed.listeners) == 1
        await asyncio.sleep(2)
        assert not live.host.feed.listeners
        found, reply = await watcher.next()
        assert reply.is_new, "the numbers of before are void"
        assert found == {"Cart/a": (1.0, 1.0, 0, "near")}

    play(declare(), scene)


@both_engines
def test_agent_whose_function_raises_is_left_out_and_named(is_compiled: bool) -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        await move(live, "bad", 1.0, 0.0)
        await move(live, "good", 2.0)
        watcher = Watcher(live)
        found, reply = await watcher.next()
        assert found == {"Cart/good": (2.0, 1.0, 0, "near")}
        (trouble,) = reply.troubles
        assert trouble == (
            "Cart/bad is left out of the map: ZeroDivisionError: float division by zero; mend what Fleet.map has for "
            "Cart"
        )
        assert trouble in (await watcher.ask(StatusRequest())).troubles
        await move(live, "bad", 1.0, 4.0)
        found, reply = await watcher.next()
        assert found == {"Cart/bad": (1.0, 4.0, 0, "near")}
        assert not reply.troubles
        assert not (await watcher.ask(StatusRequest())).troubles

    play(declare(is_compiled=is_compiled), scene)


def test_compiled_agents_are_there_once_they_are_enrolled() -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        await move(live, "a", 1.0)
        watcher = Watcher(live)
        await watcher.next()
        await live.enroll("Parked", ["p1", "p2"])
        found, _ = await watcher.next()
        assert found == {f"Parked/{name}": (5.0, 5.0, 0, "parked") for name in ("p1", "p2")}

    fleet = declare(is_compiled=True)
    fleet.plans["Parked"] = compiled(PlainEngine(Parked))
    fleet.map(Parked, at=lambda parked: (parked.x, 5.0), colour=lambda parked: "parked", plane="xy")
    play(fleet, scene)


def test_agent_that_is_nowhere_any_more_is_gone() -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        await move(live, "a", 1.0)
        await move(live, "nowhere", -1.0)
        watcher = Watcher(live)
        found, reply = await watcher.next()
        assert (list(found), reply.gone) == (["Cart/a"], [])
        await move(live, "a", -1.0)
        found, reply = await watcher.next()
        assert (found, watcher.names_of(reply.gone)) == ({}, ["Cart/a"])

    play(declare(), scene)


def test_many_come_in_several_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "ANSWER_COUNT_MAX", 3)
    monkeypatch.setattr(positions, "AGENTS_MAX", 8)

    async def scene(node: SimNode) -> None:
        live = await node.start()
        for number in range(10):
            await move(live, f"c{number}", number)
        watcher = Watcher(live)
        found: Places = {}
        sizes = []
        while True:
            some, reply = await watcher.next()
            found |= some
            sizes.append(len(some))
            if not reply.more:
                break
            await move(live, "c0", 100.0)
        assert max(sizes) == 3
        assert len(found) == 8
        assert "the map shows" in reply.troubles[0]
        assert found.get("Cart/c0", (100.0, 1.0, 0, "far")) == (100.0, 1.0, 0, "far")

    play(declare(), scene)


@both_engines
def test_map_of_the_past(is_compiled: bool) -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        times: list[str] = []
        for number in range(60):
            await asyncio.sleep(1.0)
            await move(live, "a", number)
            await move(live, f"c{number}", 50.0)
            times.append(readable_time(live.host.clock.wall_ns()))
        watcher = Watcher(live)
        for number in (40, 41, 59, 3, 3, 20):
            reply = await watcher.ask(PositionsRequest(at=times[number]))
            found = unpacked(reply, reply.names)
            assert found["Cart/a"][0] == number
            assert len(found) == number + 2
            assert readable_time(reply.time_ns) <= times[number]
        assert (await watcher.next())[0]["Cart/a"][0] == 59, "the present is as it was"
        with pytest.raises(ConfigError, match="give a time"):
            await watcher.ask(PositionsRequest(at="7"))

    play(declare(is_compiled=is_compiled), scene, settings=Settings(snapshots=Snapshots(every_events=20)))


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (PositionsRequest(within_s=31), "within_s"),
        (PositionsRequest(shard=1), "leave it out"),
        (PositionsRequest(at="noon"), "neither a position nor a time"),
    ],
)
def test_wrong_question_is_refused(request_: PositionsRequest, said: str) -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        with pytest.raises(ConfigError, match=said):
            await Watcher(live).ask(request_)

    play(declare(), scene)


def test_fleet_without_a_map_says_what_to_do() -> None:
    async def scene(node: SimNode) -> None:
        live = await node.start()
        with pytest.raises(StigmergyError, match=r"fleet\.map\("):
            await Watcher(live).ask(PositionsRequest())

    play(Fleet("yard", agents=[Cart]), scene)
