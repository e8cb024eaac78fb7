"""A client of a fleet: over memory and a real Mosquitto on two nodes, one of them killed in between; and on workers."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stigmergy
from stigmergy import (
    Accepted,
    Agent,
    Command,
    Effects,
    Event,
    Events,
    Fleet,
    NoAnswer,
    NotAssigned,
    NotRunning,
    ORSet,
    Overloaded,
    Publish,
    Refused,
    Settings,
    Shared,
    decide,
    evolve,
    react,
    reject,
    shared,
)
from stigmergy.app import client as client_module
from stigmergy.app.config import Config
from stigmergy.app.fleet import NodeConfig, Running
from stigmergy.app.workers import NatsWorker
from stigmergy.base.command_ids import time_ms_of
from stigmergy.base.errors import ConfigError, Malformed, StigmergyError, UnknownTag
from stigmergy.base.system import SystemEntropy
from stigmergy.bus.memory import open_bus
from stigmergy.bus.port import BusMessage
from stigmergy.control.live import Live
from stigmergy.network import watching as watching_module
from stigmergy.node.settings import BusSettings
from stigmergy.testing.brokers import Broker
from stigmergy.testing.nats import NatsCluster, start_single
from tests.app.program import Program

WAIT_S_MAX = 120.0
"""Only what is broken takes so long."""


class Drive(Command):
    to: str


class Driven(Event):
    to: str


class Seen(Event):
    by: str


class Cart(Agent):
    at: str = ""
    drives: int = 0
    seen: tuple[str, ...] = ()

    @decide
    def drive(self, command: Drive) -> Events:
        if command.to == "moon":
            reject("no track leads there")
        yield Driven(to=command.to)

    @evolve
    def driven(self, event: Driven) -> None:
        self.at, self.drives = event.to, self.drives + 1

    @react
    def tell(self, event: Driven) -> Effects:
        yield Publish("place", event)

    @evolve
    def saw(self, event: Seen) -> None:
        self.seen = (*self.seen, event.by)


class Board(Agent):
    notes: Shared[ORSet[str]] = shared(by="all")

    @decide
    def note(self, event: Seen) -> Events:
        yield self.notes.add(event.by)


warehouse = Fleet("warehouse", agents=[Cart, Board], shards=2)


class Node:
    """A node that can be killed and started again on its journal."""

    def __init__(self, folder: Path, bus: str, name: str, agents: list[str], settings: Settings | None = None) -> None:
        self._journal, self._bus, self._name = f"sqlite:{folder / name}.db", bus, name
        self._agents, self._settings = agents, settings
        self._running: Running | None = None

    async def start(self) -> Live:
        self._running = warehouse.running(
            journal=self._journal, bus=self._bus, node=self._name, agents=self._agents, settings=self._settings
        )
        return await self._running.__aenter__()

    async def stop(self) -> None:
        if self._running is not None:
            await self._running.__aexit__(None, None, None)
        self._running = None


async def until(reached: Any) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not reached():  # noqa: ASYNC110 - what is looked at has no event
            await asyncio.sleep(0.02)


@pytest.fixture(params=["memory", "mqtt"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory:{tmp_path.name}"
    broker: Broker = request.getfixturevalue("mosquitto")
    return broker.url


async def test_a_client_sends_observes_watches_and_asks_on_two_nodes(url: str, tmp_path: Path) -> None:
    a, b = Node(tmp_path, url, "a", ["Cart/c0*"]), Node(tmp_path, url, "b", ["Cart/c1*", "Board/*"])
    await a.start()
    live = await b.start()
    try:
        async with stigmergy.connect(url, fleet="warehouse", within_s=WAIT_S_MAX) as far:
            watching = far.watch("Cart/+/place", kind=Driven)
            plain = far.watch("Cart/{id}/#")
            await watching.wait_ready()
            await plain.wait_ready()
            for name in ("c01", "c12"):
                answer = await far.send(f"Cart/{name}", Drive(to=f"dock of {name}"))
                assert isinstance(answer, Accepted)
                assert answer.position > 0
            refused = await far.send("Cart/c01", "Drive", {"to": "moon"})
            assert refused == Refused("no track leads there")
            unknown = await far.send("Cart/c01", "Fly", {"to": "moon"})
            assert isinstance(unknown, Refused)
            assert "Fly" in unknown.reason
            assert (await far.query("Cart/c01", Cart)).at == "dock of c01"
            found = await far.query("Cart/c12")
            assert (found["at"], found["drives"]) == ("dock of c12", 1)
            assert (await far.query("Cart/c19", Cart)) == Cart(id="c19"), "one that has had no input"
            heard = [await anext(watching), await anext(watching)]
            assert [(one.agent, one.topic, one.event) for one in heard] == [
                ("Cart/c01", "place", Driven(to="dock of c01")),
                ("Cart/c12", "place", Driven(to="dock of c12")),
            ]
            assert (await anext(plain)).event == {"to": "dock of c01"}
            await far.observe("Cart/c12", Seen(by="gate"))
            await far.observe("Cart/c12", "Seen", {"by": "camera"})
            await until(lambda: live.query("Cart/c12", Cart).seen == ("gate", "camera"))
            await far.observe("Board/main", Seen(by="x"))
            await until(lambda: live.agents("Board") == ["Board/main"])
            assert (await far.query("Board/main"))["notes"] == ["x"]
            with pytest.raises(Malformed, match="ask without the class"):
                await far.query("Board/main", Board)
            await until(lambda: len(far.members()) == 2)
            with pytest.raises(NoAnswer, match=r"no node says that it runs it; there are a \(Cart/c0\*\), b") as raised:
                await far.send("Cart/c77", Drive(to="x"), within_s=0.5)
            assert time_ms_of(raised.value.command_id) is not None, "the id carries its time"
            with pytest.raises(NoAnswer, match=r"Cart/c77: no answer within 0\.5 s"):
                await far.query("Cart/c77", within_s=0.5)
            with pytest.raises(
                NoAnswer, match=r"Cart/c77: not told .*no node says that it runs it; there are a \(Cart/c0"
            ):
                await far.observe("Cart/c77", Seen(by="x"), within_s=0.5)
            with pytest.raises(NoAnswer, match=r"Crat/c12: not told .*no node says that it runs it"):
                await far.observe("Crat/c12", Seen(by="x"), within_s=0.5)
            with pytest.raises(Malformed, match="is no Cart"):
                await far.query("Board/main", Cart)
        assert live.agents() == ["Board/main", "Cart/c12"]
    finally:
        await a.stop()
        await b.stop()


async def test_a_node_that_was_away_answers_when_it_is_back_and_once_only(url: str, tmp_path: Path) -> None:
    a = Node(tmp_path, url, "a", ["Cart/c0*"])
    await a.start()
    try:
        async with stigmergy.connect(url, fleet=warehouse, within_s=WAIT_S_MAX) as far:
            assert await far.send("Cart/c01", Drive(to="dock-1"), command_id="one")
            await a.stop()
            waiting = asyncio.ensure_future(far.send("Cart/c01", Drive(to="dock-2"), command_id="two"))
            with pytest.raises(NoAnswer) as raised:
                await far.send("Cart/c01", Drive(to="dock-3"), within_s=2.5)
            assert not waiting.done()
            live = await a.start()
            answer = await waiting
            assert isinstance(answer, Accepted)
            third = await far.send("Cart/c01", Drive(to="dock-3"), command_id=raised.value.command_id)
            again = await far.send("Cart/c01", Drive(to="dock-3"), command_id=raised.value.command_id)
            assert again == third
            assert await far.send("Cart/c01", Drive(to="dock-2"), command_id="two") == answer
            assert live.query("Cart/c01", Cart).drives == 3, "sent many times, done once each"
    finally:
        await a.stop()


async def test_what_a_node_refuses_to_observe_is_raised(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, url, "a", [])
    live = await node.start()
    try:
        async with stigmergy.connect(url, fleet="warehouse", within_s=WAIT_S_MAX) as far:
            await far.observe("Cart/c1", Seen(by="gate"))
            await far.observe("Cart/c1", "Seen", {"by": "camera"})
            monkeypatch.setattr(client_module, "REFUSED_S_MAX", WAIT_S_MAX)
            await far.observe("Cart/c1", Seen(by="lamp"))  # is not waited for: an event of its class was taken
            with pytest.raises(UnknownTag, match=r"Cart/c1: node 'a' refused it: .*Nope"):
                await far.observe("Cart/c1", "Nope", {})
            with pytest.raises(Malformed, match="node 'a' refused it"):
                await far.observe("Cart/c1", "Seen", {"by": 7})
            with pytest.raises(NoAnswer, match=r"no node says that it runs it; there are a \(any agent\)"):
                await far.observe("Crat/c1", "Seen", {"by": "x"}, within_s=0.5)
            await until(lambda: live.query("Cart/c1", Cart).seen == ("gate", "camera", "lamp"))
    finally:
        await node.stop()


async def test_an_observation_waits_for_the_node_that_is_away(url: str, tmp_path: Path) -> None:
    async with stigmergy.connect(url, fleet="warehouse", within_s=WAIT_S_MAX) as far:
        told = asyncio.ensure_future(far.observe("Cart/c1", Seen(by="gate")))
        await asyncio.sleep(0.3)
        assert not told.done()
        node = Node(tmp_path, url, "a", [])
        live = await node.start()
        try:
            await told
            await until(lambda: live.query("Cart/c1", Cart).seen == ("gate",))
        finally:
            await node.stop()


async def test_what_is_not_taken_is_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching_module, "HELD_MAX", 3)
    url = f"memory:{tmp_path.name}"
    node = Node(tmp_path, url, "a", [])
    live = await node.start()
    try:
        async with stigmergy.connect(url, fleet="warehouse", signatures="off") as far:
            watching = far.watch(kind=Driven)
            await watching.wait_ready()
            for number in range(5):
                await live.send("Cart/c1", Drive(to=str(number)))
            await until(lambda: watching.dropped == 2)
            assert [(await anext(watching)).event.to for _ in range(3)] == ["2", "3", "4"]
            bus = open_bus(url, "stranger", SystemEntropy())
            await bus.open()
            await until(lambda: bus.is_up)
            await bus.publish(BusMessage("warehouse/local/agents/Cart/c1/events/place", b"no event"))
            await until(lambda: watching.refused == 1)
            await bus.close()
            await watching.aclose()
            assert [one async for one in watching] == []
    finally:
        await node.stop()


async def test_a_node_may_answer_no_queries(tmp_path: Path) -> None:
    url = f"memory:{tmp_path.name}"
    node = Node(tmp_path, url, "a", [], Settings(bus=BusSettings(queries=False)))
    await node.start()
    try:
        async with stigmergy.connect(url, fleet="warehouse") as far:
            with pytest.raises(ConfigError, match="this node answers no queries"):
                await far.query("Cart/c1")
    finally:
        await node.stop()


async def test_a_state_that_is_too_large_is_refused_with_what_to_do(tmp_path: Path) -> None:
    url = f"memory:{tmp_path.name}"
    node = Node(tmp_path, url, "a", [])
    live = await node.start()
    try:
        for number in range(5):
            await live.observe("Cart/c1", Seen(by=f"{number}" * 60_000))
        await until(lambda: len(live.query("Cart/c1", Cart).seen) == 5)
        async with stigmergy.connect(url, fleet="warehouse", within_s=WAIT_S_MAX) as far:
            with pytest.raises(
                stigmergy.StigmergyError, match=r"has 3\d* bytes, a message at most 262144; ask its node"
            ):
                await far.query("Cart/c1")
    finally:
        await node.stop()


async def test_nobody_there_is_said_with_what_to_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = f"memory:{tmp_path.name}"
    async with stigmergy.connect(memory, fleet="warehouse", site="north", within_s=WAIT_S_MAX) as far:
        with pytest.raises(NoAnswer, match="no node of 'warehouse' at the site 'north' is known: check url, fleet="):
            await far.send("Cart/c1", Drive(to="x"), within_s=0.3)
        monkeypatch.setattr(client_module, "WAITING_MAX", 0)
        with pytest.raises(Overloaded):
            await far.send("Cart/c1", Drive(to="x"))
        with pytest.raises(Malformed):
            far.watch("place")
        with pytest.raises(ConfigError, match="connect over HTTP or gRPC"):
            far.watch(area=(0, 0, 1, 1))
        with pytest.raises(Malformed, match="is not a command"):
            await far.send("Cart/c1", Seen(by="x"))  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="within_s"):
            await far.send("Cart/c1", Drive(to="x"), within_s=0)
    with pytest.raises(NotRunning, match=r"mqtt://127\.0\.0\.1:1: no connection within 0\.3 s"):
        async with stigmergy.connect("mqtt://127.0.0.1:1", fleet="warehouse", within_s=0.3):
            pass
    for url in ("warehouse", 7):
        with pytest.raises(ConfigError, match="give the URL of an API"):
            stigmergy.connect(url, fleet="warehouse")  # type: ignore[arg-type]


async def test_a_client_leaves_no_session_at_a_broker(mosquitto: Broker) -> None:
    """Otherwise a broker would hold for ever what it thinks that a client of yesterday waits for."""
    async with stigmergy.connect(mosquitto.url, fleet="warehouse", name="op", within_s=WAIT_S_MAX) as far:
        assert isinstance(far, client_module.BusClient)
        assert far._bus is not None
        assert far._bus.bus.options.session_s == 0  # type: ignore[attr-defined]
        await far.watch("Cart/+/#").wait_ready()
    async with stigmergy.connect(
        f"{mosquitto.url}?version=5", fleet="warehouse", name="op", within_s=WAIT_S_MAX
    ) as again:
        assert isinstance(again, client_module.BusClient)
        assert again._bus is not None
        assert again._bus.is_up


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with start_single(tmp_path_factory.mktemp("server")) as running:
        yield running


async def test_the_same_calls_reach_a_fleet_on_workers(server: NatsCluster, tmp_path: Path) -> None:
    where = NodeConfig(bus=server.url, site="local", node="w")
    config = Config(settings=Settings(lease_s=60))  # an observation that a lost lease leaves in doubt is not repeated
    async with NatsWorker(
        warehouse, server.url, config, key=tmp_path / "key", node_config=where, agents=["Cart/*", "Board/*"]
    ) as worker:
        task = asyncio.ensure_future(worker.run())
        await until(lambda: len(worker.owned()) == warehouse.shards)
        async with stigmergy.connect(server.url, fleet="warehouse", within_s=WAIT_S_MAX) as far:
            watching = far.watch("Cart/+/place", kind=Driven)
            await watching.wait_ready()
            for number in range(4):
                answer = await far.send(f"Cart/c{number}", Drive(to=f"d{number}"), command_id=f"id-{number}")
                assert isinstance(answer, Accepted)
                assert await far.send(f"Cart/c{number}", Drive(to=f"d{number}"), command_id=f"id-{number}") == answer
                assert (await far.query(f"Cart/c{number}", Cart)).drives == 1
            await far.observe("Cart/c0", Seen(by="gate"))
            assert (await far.query("Cart/c0", Cart)).seen == ("gate",)
            assert await far.agents(Cart) == [f"Cart/c{number}" for number in range(4)]
            with pytest.raises(StigmergyError, match="this log begins at "):
                await far.query("Cart/c0", at="2020-01-01T00:00:00Z")
            assert isinstance(await far.send("Cart/c0", "Drive", {"to": "moon"}), Refused)
            for address, command, fields in (
                ("Cart/c0", "Fly", {"to": "moon"}),
                ("Cart/c0", "Drive", {"to": 7}),
                ("Cart/c0", "Drive", {}),
            ):
                wrong = await far.send(address, command, fields)
                assert isinstance(wrong, Refused), "as over a bus"
                assert command in wrong.reason or "to" in wrong.reason
            with pytest.raises(UnknownTag, match="Nope"):
                await far.observe("Cart/c0", "Nope", {})
            with pytest.raises(Malformed):
                await far.observe("Cart/c0", "Seen", {"by": 7})
            async with asyncio.timeout(WAIT_S_MAX):
                heard = [(await anext(watching)).agent for _ in range(4)]
            assert sorted(heard) == [f"Cart/c{number}" for number in range(4)]
        worker.stop()
        async with asyncio.timeout(WAIT_S_MAX):
            await task


class Silent(Agent):
    @decide
    def drive(self, command: Drive) -> Events:
        yield Driven(to=command.to)


async def test_watch_refuses_workers_that_have_no_bus(server: NatsCluster, tmp_path: Path) -> None:
    """Nothing would ever come, and whoever waits could not know."""
    shed = Fleet("shed", agents=[Silent], shards=2)

    async def work(node: str, bus: str | None) -> asyncio.Event:
        """A worker that runs until the event is set."""
        end, begun = asyncio.Event(), asyncio.Event()

        async def run() -> None:
            where = NodeConfig(bus=bus, site="local", node=node)
            made = NatsWorker(shed, server.url, Config(), key=tmp_path / "key", node_config=where, name=node)
            async with made as worker:
                running = asyncio.ensure_future(worker.run())
                await until(lambda: bool(worker.owned()))
                begun.set()
                await end.wait()
                worker.stop()
                await running

        tasks.append(asyncio.ensure_future(run()))
        async with asyncio.timeout(WAIT_S_MAX):
            await begun.wait()
        return end

    tasks: list[asyncio.Task[None]] = []
    end_mute = await work("mute", None)
    async with stigmergy.connect(server.url, fleet="shed", within_s=WAIT_S_MAX) as far:
        assert isinstance(await far.send("Silent/s1", Drive(to="x")), Accepted), "what needs no bus works"
        for wait in (far.watch().wait_ready, far.watch("Silent/+/#").__anext__):
            with pytest.raises(ConfigError, match=r"no bus at worker mute-.*; start all its workers with --bus nats:"):
                async with asyncio.timeout(WAIT_S_MAX):
                    await wait()
        end_loud = await work("loud", server.url)
        with pytest.raises(ConfigError, match="no bus at worker mute-"):
            await far.watch().wait_ready()
        end_mute.set()
        async with asyncio.timeout(WAIT_S_MAX):
            await tasks[0]
        await far.watch().wait_ready()
    end_loud.set()
    async with asyncio.timeout(WAIT_S_MAX):
        await asyncio.gather(*tasks)


async def test_on_nats_a_fleet_of_nodes_is_reached_over_its_bus(server: NatsCluster, tmp_path: Path) -> None:
    yard = Fleet("yard", agents=[Cart])
    async with yard.running(journal="memory:", bus=server.url, node="a", agents=["Cart/c1"]) as live:
        await until(lambda: live.standing().link.link == "up")
        async with stigmergy.connect(server.url, fleet="yard", within_s=WAIT_S_MAX) as far:
            watching = far.watch("Cart/+/place")
            await watching.wait_ready()
            assert isinstance(await far.send("Cart/c1", Drive(to="dock")), Accepted)
            assert (await far.query("Cart/c1", Cart)).at == "dock"
            async with asyncio.timeout(WAIT_S_MAX):
                assert (await anext(watching)).event == {"to": "dock"}
            await far.observe("Cart/c1", Seen(by="gate"))
            await until(lambda: live.query("Cart/c1", Cart).seen == ("gate",))
            with pytest.raises(NoAnswer, match="Cart/c2: not told within 1 s"):
                await far.observe("Cart/c2", Seen(by="gate"), within_s=1.0)
        with pytest.raises(NotAssigned):
            await live.send("Cart/c2", Drive(to="x"))


WAREHOUSE = """
from stigmergy import Agent, Command, Event, Events, Fleet, decide, evolve


class Drive(Command):
    to: str


class Driven(Event):
    to: str


class Cart(Agent):
    drives: tuple[str, ...] = ()

    @decide
    def drive(self, command: Drive) -> Events:
        yield Driven(to=command.to)

    @evolve
    def driven(self, event: Driven) -> None:
        self.drives = (*self.drives, event.to)


fleet = Fleet("depot", agents=[Cart])
"""


async def test_a_node_that_is_killed_in_between_does_each_command_once(mosquitto: Broker, tmp_path: Path) -> None:
    node = Program(tmp_path, "depot", WAREHOUSE, "run", "depot:fleet", "--bus", mosquitto.url, "--node", "a")
    node.start()
    try:
        async with stigmergy.connect(mosquitto.url, fleet="depot", within_s=WAIT_S_MAX) as far:
            wanted = [str(number) for number in range(40)]
            sends = []
            for number in wanted:
                sends.append(asyncio.ensure_future(far.send("Cart/c1", "Drive", {"to": number}, command_id=number)))
                await asyncio.sleep(0.05)
                if number in ("12", "29"):
                    node.kill()
                    node.start()
            answers = await asyncio.gather(*sends)
            assert all(isinstance(answer, Accepted) for answer in answers)
            node.kill()
            node.start()
            again = await far.send("Cart/c1", "Drive", {"to": "7"}, command_id="7")
            assert again == answers[7], "the same answer, from another life of the node"
            drives = (await far.query("Cart/c1"))["drives"]
            assert sorted(drives, key=int) == wanted, "each once"
    finally:
        node.kill()
