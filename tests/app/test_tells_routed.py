"""Tells between workers of a cluster on a real NATS server and nodes beside it: of another fleet and of the same."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import stigmergy
from stigmergy import Agent, Command, Effects, Event, Events, Fleet, Settings, Tell, TellFailed, decide, evolve, react
from stigmergy.app.config import Config
from stigmergy.app.node_config import NodeConfig
from stigmergy.app.workers import NatsWorker
from stigmergy.testing.bus_rig import wait_until
from stigmergy.testing.nats import NatsCluster, start_single

WAIT_S_MAX = 240.0
NUMBERS = 20


class Pass(Command):
    to: str
    number: int


class Passed(Event):
    to: str
    number: int


class Got(Event):
    by: str
    number: int


class Cart(Agent):
    heard: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    @decide
    def passes(self, command: Pass) -> Events:
        yield Passed(to=command.to, number=command.number)

    @react
    def tell(self, event: Passed) -> Effects:
        yield Tell(event.to, Got(by=self.address, number=event.number))

    @evolve
    def got(self, event: Got) -> None:
        self.heard = (*self.heard, f"{event.by} {event.number}")

    @evolve
    def failed(self, event: TellFailed) -> None:
        self.lost = (*self.lost, f"{event.to}: {event.reason}")


class Pilot(Cart):
    pass


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with start_single(tmp_path_factory.mktemp("server")) as running:
        yield running


async def test_tells_go_into_and_out_of_a_cluster(server: NatsCluster, tmp_path: Path) -> None:
    yard, ground = Fleet("yard", agents=[Cart], shards=3), Fleet("ground", agents=[Pilot])
    where = NodeConfig(bus=server.url, site="local", node="w")
    named = ["Cart/x*", "Cart/y*"]
    async with (
        NatsWorker(
            yard, server.url, Config(settings=Settings()), key=tmp_path / "key", node_config=where, agents=named
        ) as worker,
        ground.running(journal="memory:", bus=server.url, node="g") as g,
        yard.running(journal="memory:", bus=server.url, node="a", agents=["Cart/a*"]) as a,
    ):
        task = asyncio.ensure_future(worker.run())
        await wait_until(lambda: len(worker.owned()) == yard.shards, within_s=WAIT_S_MAX)
        async with stigmergy.connect(server.url, fleet="yard", within_s=WAIT_S_MAX) as far:
            for number in range(NUMBERS):
                for name in ("x1", "x2", "x3"):
                    assert await far.send(f"Cart/{name}", Pass(to="ground/Pilot/p", number=number))
                    assert await far.send(f"Cart/{name}", Pass(to="Cart/a1", number=number))
                assert await g.send("Pilot/p", Pass(to="yard/Cart/y1", number=number))
                assert await a.send("Cart/a1", Pass(to="Cart/y1", number=number))
            await wait_until(lambda: len(g.query("Pilot/p", Pilot).heard) == 3 * NUMBERS, within_s=WAIT_S_MAX)
            await wait_until(lambda: len(a.query("Cart/a1", Cart).heard) == 3 * NUMBERS, within_s=WAIT_S_MAX)
            await wait_until(lambda: a.standing().owed == g.standing().owed == 0, within_s=WAIT_S_MAX)
            into = (await far.query("Cart/y1", Cart)).heard
        out = (g.query("Pilot/p", Pilot).heard, a.query("Cart/a1", Cart).heard)
        assert (a.agents(), g.agents()) == (["Cart/a1"], ["Pilot/p"])
        worker.stop()
        async with asyncio.timeout(WAIT_S_MAX):
            await task
    for heard, tellers in (
        (into, ("Pilot/p", "Cart/a1")),
        (out[0], ("Cart/x1", "Cart/x2", "Cart/x3")),
        (out[1], ("Cart/x1", "Cart/x2", "Cart/x3")),
    ):
        for teller in tellers:
            of_it = [one for one in heard if one.startswith(f"{teller} ")]
            assert of_it == [f"{teller} {number}" for number in range(NUMBERS)]


class Sighted(Event):
    metres: float


class Scout(Agent):
    count: int = 0

    @evolve
    def sighted(self, event: Sighted) -> None:
        self.count += 1

    @react
    def report(self, event: Sighted) -> Effects:
        if event.metres < 100.0:
            yield Tell("Board/main", event)


class Board(Agent):
    metres: tuple[float, ...] = ()

    @evolve
    def sighted(self, event: Sighted) -> None:
        self.metres = (*self.metres, event.metres)


@pytest.mark.prove  # it compiles
async def test_compiled_agents_tell_agents_of_other_nodes(tmp_path: Path) -> None:
    fleet = Fleet("scouts", agents=[Scout, Board], compiled=[Scout])
    async with (
        fleet.running(bus="memory:scouts", node="a", agents=["Scout/*"], journal=f"sqlite:{tmp_path}/a.db") as a,
        fleet.running(bus="memory:scouts", node="b", agents=["Board/main"], journal=f"sqlite:{tmp_path}/b.db") as b,
    ):
        for number in range(200):
            await a.observe("Scout/1", Sighted(metres=float(number)))
        await wait_until(lambda: len(b.query("Board/main", Board).metres) == 100, within_s=WAIT_S_MAX)
        assert b.query("Board/main", Board).metres == tuple(float(number) for number in range(100))
        assert a.agents() == ["Scout/1"]
