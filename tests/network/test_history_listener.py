"""Agents that listen with history: what was published before, then live, each event once and in order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import stigmergy
from stigmergy import Agent, Command, Effects, Event, Events, Fleet, Publish, Settings, decide, evolve, react
from stigmergy.app.config import Config
from stigmergy.app.fleet import NodeConfig
from stigmergy.app.workers import NatsWorker
from stigmergy.base.errors import DefinitionError, TooLarge
from stigmergy.control.live import Live
from stigmergy.testing.brokers import Broker
from stigmergy.testing.bus_rig import wait_until
from stigmergy.testing.nats import start_single
from stigmergy.testing.proxy import LinkProxy
from tests.app.program import Program

WAIT_S_MAX = 240.0
"""Only what is broken takes so long."""


class Count(Command):
    n: int


class Counted(Event):
    n: int


class Meter(Agent):
    @decide
    def count(self, command: Count) -> Events:
        yield Counted(n=command.n)

    @react
    def tell(self, event: Counted) -> Effects:
        yield Publish("count", event)


class Monitor(Agent):
    seen: tuple[int, ...] = ()

    @evolve
    def saw(self, event: Counted) -> None:
        self.seen = (*self.seen, event.n)


meters = Fleet("meters", agents=[Meter])


def office(history: object) -> Fleet:
    fleet = Fleet("office", agents=[Monitor], shards=2)
    fleet.listen("Meter/{id}/count", to="Monitor/{id}", fleet="meters", history=history)  # type: ignore[arg-type]
    return fleet


@asynccontextmanager
async def running(fleet: Fleet, folder: Path, bus: str, name: str) -> AsyncIterator[Live]:
    settings = Settings(drain_s=0.5)
    async with fleet.running(journal=f"sqlite:{folder / name}.db", bus=bus, node=name, settings=settings) as live:
        yield live


async def count(live: Live, name: str, first: int, last: int) -> None:
    for n in range(first, last):
        await live.send(f"Meter/{name}", Count(n=n))


def seen(live: Live, name: str) -> list[int]:
    return list(live.query(f"Monitor/{name}", Monitor).seen)


async def test_an_agent_that_joins_late_gets_all_once_also_after_a_restart(bus_url: str, tmp_path: Path) -> None:
    async with running(meters, tmp_path, bus_url, "a") as a, running(meters, tmp_path, bus_url, "b") as b:
        await count(a, "a1", 0, 30)
        await count(b, "b1", 0, 30)
        async with running(office("all"), tmp_path, bus_url, "o") as live:
            await wait_until(lambda: seen(live, "a1") == list(range(30)) == seen(live, "b1"))
            await count(a, "a1", 30, 40)
            await wait_until(lambda: len(seen(live, "a1")) >= 40)
        await count(a, "a1", 40, 50)
        async with running(office("all"), tmp_path, bus_url, "o") as live:
            await count(a, "a1", 50, 60)
            await wait_until(lambda: len(seen(live, "a1")) >= 60)
            await wait_until(lambda: len(seen(live, "b1")) >= 30)
            assert (seen(live, "a1"), seen(live, "b1")) == (list(range(60)), list(range(30)))
            counters = live.standing().counters
            assert counters["history_taken"] <= 21, "it went on where it was, and did not read everything again"
            assert live.standing().troubles == []


@pytest.mark.parametrize(("history", "before"), [("latest", [9]), (3600.0, list(range(10)))])
async def test_an_agent_may_begin_with_the_latest_or_with_some_seconds(
    tmp_path: Path, history: object, before: list[int]
) -> None:
    url = f"memory:{tmp_path.name}"
    async with running(meters, tmp_path, url, "a") as a:
        for name in ("m1", "m2"):
            await count(a, name, 0, 10)
        async with running(office(history), tmp_path, url, "o") as live:
            await wait_until(lambda: seen(live, "m1") == before == seen(live, "m2"))
            await count(a, "m1", 10, 15)
            await wait_until(lambda: len(seen(live, "m1")) >= len(before) + 5)
            assert seen(live, "m1") == [*before, *range(10, 15)]


async def test_what_was_listened_to_before_is_not_given_again(tmp_path: Path) -> None:
    """The same marks hold for both ways: a fleet that asks for history later gets what it has missed at most."""
    url = f"memory:{tmp_path.name}"
    async with running(meters, tmp_path, url, "a") as a:
        async with running(office(None), tmp_path, url, "o") as live:
            await count(a, "m1", 0, 5)
            await wait_until(lambda: seen(live, "m1") == list(range(5)))
        async with running(office("all"), tmp_path, url, "o") as live:
            await count(a, "m1", 5, 8)
            await wait_until(lambda: len(seen(live, "m1")) >= 8)
            assert seen(live, "m1") == list(range(8))


async def test_what_cannot_be_taken_is_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    class Odd(Event):
        pass

    class Strange(Agent):
        @decide
        def count(self, command: Count) -> Events:
            yield Counted(n=command.n)

        @react
        def tell(self, event: Counted) -> Effects:
            yield Publish("count", event if event.n % 2 else Odd())

    url = f"memory:{tmp_path.name}"
    strange = Fleet("strange", agents=[Strange])
    listening = Fleet("office", agents=[Monitor])
    listening.listen("Strange/{id}/count", to="Monitor/{id}", fleet="strange", history="all")
    async with running(strange, tmp_path, url, "a") as a, running(listening, tmp_path, url, "o") as live:
        for n in range(6):
            await a.send("Strange/s1", Count(n=n))
        await wait_until(lambda: seen(live, "s1") == [1, 3, 5])
        await wait_until(lambda: live.standing().counters["history_unfit"] == 3)


async def test_what_could_not_be_put_in_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows would move the mark past it, and it would never come again."""
    url = f"memory:{tmp_path.name}"
    async with running(meters, tmp_path, url, "a") as a:
        async with running(office("all"), tmp_path, url, "o") as live:
            plain = live.host.intake.take_numbered

            def take(stream: Any, sequence: int, *rest: Any, **options: Any) -> Any:
                if sequence == 3:
                    raise TooLarge("no room for this one")
                return plain(stream, sequence, *rest, **options)

            monkeypatch.setattr(live.host.intake, "take_numbered", take)
            await count(a, "m1", 0, 6)
            await wait_until(lambda: any("it has ended: no room for this one" in one for one in live.troubles()))
            assert seen(live, "m1") in ([0, 1], [0], [])
        async with running(office("all"), tmp_path, url, "o") as live:
            await wait_until(lambda: len(seen(live, "m1")) >= 6)
            assert seen(live, "m1") == list(range(6))


def test_wrong_declarations_are_refused() -> None:
    fleet = Fleet("office", agents=[Monitor])
    for history in ("newest", 0, -1.0, True):
        with pytest.raises(DefinitionError, match="give 'all', 'latest' or a number of seconds"):
            fleet.listen("Meter/{id}/count", to="Monitor/{id}", history=history)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="name the site, once for each"):
        fleet.listen("Meter/{id}/count", to="Monitor/{id}", site="+", history="all")


async def test_shards_of_workers_listen_with_history(tmp_path: Path) -> None:
    with start_single(tmp_path / "nats") as server:
        async with running(meters, tmp_path, server.url, "a") as a:
            for name in ("m1", "m2", "m3"):
                await count(a, name, 0, 10)
            where = NodeConfig(bus=server.url, site="local", node="w")
            fleet = office("all")
            async with NatsWorker(fleet, server.url, Config(), key=tmp_path / "key", node_config=where) as worker:
                task = asyncio.ensure_future(worker.run())
                async with stigmergy.connect(server.url, fleet=fleet, within_s=WAIT_S_MAX) as far:
                    async with asyncio.timeout(WAIT_S_MAX):
                        for name in ("m1", "m2", "m3"):
                            await count(a, name, 10, 12)
                            while len((await far.query(f"Monitor/{name}", Monitor)).seen) < 12:  # noqa: ASYNC110 - asked
                                await asyncio.sleep(0.05)
                    for name in ("m1", "m2", "m3"):
                        assert (await far.query(f"Monitor/{name}", Monitor)).seen == tuple(range(12))
                worker.stop()
                async with asyncio.timeout(WAIT_S_MAX):
                    await task


OFFICE = """
from stigmergy import Agent, Command, Event, Fleet, decide, evolve


class Counted(Event):
    n: int


class Monitor(Agent):
    seen: tuple[int, ...] = ()

    @evolve
    def saw(self, event: Counted) -> None:
        self.seen = (*self.seen, event.n)


fleet = Fleet("office", agents=[Monitor])
fleet.listen("Meter/{id}/count", to="Monitor/{id}", fleet="meters", history="all")
"""


async def test_a_listener_that_is_killed_and_cut_off_gets_each_event_once(mosquitto: Broker, tmp_path: Path) -> None:
    link = LinkProxy(int(mosquitto.url.rpartition(":")[2]))
    bus = f"mqtt://127.0.0.1:{await link.start()}"
    office_node = Program(tmp_path, "office", OFFICE, "run", "office:fleet", "--bus", bus, "--node", "o")
    published = 0

    async def publish(live: Live) -> None:
        nonlocal published
        while True:
            await live.send("Meter/m1", Count(n=published))
            published += 1
            await asyncio.sleep(0.01)

    try:
        async with (
            running(meters, tmp_path, mosquitto.url, "a") as a,
            stigmergy.connect(mosquitto.url, fleet="office", within_s=WAIT_S_MAX) as far,
        ):
            await count(a, "m1", 0, 300)
            published = 300
            publishing = asyncio.ensure_future(publish(a))

            async def reached(how_many: int) -> tuple[int, ...]:
                async with asyncio.timeout(WAIT_S_MAX):
                    while True:
                        got = tuple((await far.query("Monitor/m1"))["seen"])
                        assert got == tuple(range(len(got))), "once each, and in order"
                        if len(got) >= how_many:
                            return got
                        await asyncio.sleep(0.05)

            for round_ in range(2):
                office_node.start()
                await reached(1 + 150 * round_)
                link.drop()
                await reached(150 * (round_ + 1))
                office_node.kill()
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)
            office_node.start()
            await reached(published)
    finally:
        office_node.kill()
        await link.close()
