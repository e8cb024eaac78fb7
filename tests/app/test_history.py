"""Watching with history: embedded, over memory and a real Mosquitto, on NATS and on workers; under kills and cuts."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

import stigmergy
from stigmergy import (
    Agent,
    BusSettings,
    Command,
    Effects,
    Event,
    Events,
    Fleet,
    LogCut,
    NoAnswer,
    Publish,
    Retention,
    Settings,
    Snapshots,
    decide,
    evolve,
    react,
)
from stigmergy.app.config import Config
from stigmergy.app.fleet import NodeConfig
from stigmergy.app.workers import NatsWorker
from stigmergy.base.errors import ConfigError, Malformed
from stigmergy.control.live import Live
from stigmergy.journal.sqlite import renew_incarnation
from stigmergy.network import history as service
from stigmergy.network import watching as watches
from stigmergy.testing.brokers import Broker
from stigmergy.testing.bus_rig import wait_until
from stigmergy.testing.nats import start_single
from stigmergy.testing.proxy import LinkProxy
from tests.app.program import Program

WAIT_S_MAX = 240.0
"""Only what is broken takes so long."""
LONG_AGO = "2000-01-01T00:00:00Z"


class Count(Command):
    n: int


class Counted(Event):
    n: int


class Noted(Event):
    n: int


class Meter(Agent):
    n: int = 0

    @decide
    def count(self, command: Count) -> Events:
        yield Counted(n=command.n)

    @evolve
    def counted(self, event: Counted) -> None:
        self.n = event.n

    @react
    def tell(self, event: Counted) -> Effects:
        yield Publish("count", event)
        yield Publish("notes/all", Noted(n=event.n))


hall = Fleet("hall", agents=[Meter], shards=2)


@asynccontextmanager
async def node(
    folder: Path, bus: str | None, name: str, agents: list[str], settings: Settings | None = None
) -> AsyncIterator[Live]:
    journal = f"sqlite:{folder / name}.db"
    async with hall.running(journal=journal, bus=bus, node=name, agents=agents, settings=settings) as live:
        yield live


async def count(live: Live, name: str, first: int, last: int) -> None:
    for n in range(first, last):
        await live.send(f"Meter/{name}", Count(n=n))


async def take(watching: stigmergy.Watching, how_many: int) -> list[stigmergy.Heard]:
    async with asyncio.timeout(WAIT_S_MAX):
        return [await anext(watching) for _ in range(how_many)]


def by_agent(heard: list[stigmergy.Heard]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for one in heard:
        found.setdefault(one.agent, []).append(one.event["n"] if isinstance(one.event, dict) else one.event.n)
    return {agent: found[agent] for agent in sorted(found)}


async def test_a_late_listener_gets_the_past_and_goes_on_live(bus_url: str, tmp_path: Path) -> None:
    async with node(tmp_path, bus_url, "a", ["Meter/a*"]) as a, node(tmp_path, bus_url, "b", ["Meter/b*"]) as b:
        for live, name in ((a, "a1"), (a, "a2"), (b, "b1")):
            await count(live, name, 0, 20)
        async with stigmergy.connect(bus_url, fleet="hall", within_s=WAIT_S_MAX) as far:
            watching = far.watch("Meter/+/count", kind=Counted, since=LONG_AGO)
            heard = await take(watching, 60)
            assert by_agent(heard) == {f"Meter/{name}": list(range(20)) for name in ("a1", "a2", "b1")}
            assert {(one.topic, one.type) for one in heard} == {("count", "Counted@1")}
            assert heard[0].time > LONG_AGO
            await asyncio.gather(count(a, "a1", 20, 30), count(b, "b1", 20, 30))
            more = await take(watching, 20)
            assert by_agent(more) == {"Meter/a1": list(range(20, 30)), "Meter/b1": list(range(20, 30))}

            half = far.watch("Meter/+/count", after=heard[29].after)
            rest = await take(half, 50)
            known = by_agent(heard[:30])
            for agent, numbers in by_agent(rest).items():
                assert known.get(agent, []) + numbers == list(range(20 if agent == "Meter/a2" else 30)), agent

            newest = far.watch("Meter/+/#", latest=True)
            assert {(one.agent, one.topic, one.event["n"]) for one in await take(newest, 6)} == {
                (f"Meter/{name}", topic, n)
                for name, n in (("a1", 29), ("a2", 19), ("b1", 29))
                for topic in ("count", "notes/all")
            }
            now = far.watch("Meter/a2/notes/#", since=datetime.now(UTC))
            await count(a, "a2", 20, 21)
            assert [(one.topic, one.event["n"]) for one in await take(newest, 2)] == [("count", 20), ("notes/all", 20)]
            assert [(one.topic, one.event["n"]) for one in await take(now, 1)] == [("notes/all", 20)]
            assert not any(one.truncated or one.dropped or one.refused for one in (watching, half, newest, now))
            await newest.aclose()
            assert [one async for one in newest] == []


async def test_latest_is_taken_up_where_it_was_left(tmp_path: Path) -> None:
    url = f"memory:{tmp_path.name}"
    async with node(tmp_path, url, "a", []) as live:
        for number in range(40):
            await count(live, f"m{number:02}", 0, 3)
        async with stigmergy.connect(url, fleet="hall", within_s=WAIT_S_MAX) as far:
            first = await take(far.watch("Meter/+/count", latest=True), 15)
            await count(live, "m00", 3, 6)
            is_first = "Meter/m00" in by_agent(first)
            rest = await take(far.watch("Meter/+/count", after=first[-1].after), 25 + is_first)
            numbers = by_agent(first + rest)
            assert sorted(numbers) == [f"Meter/m{number:02}" for number in range(40)], "each of them"
            changed = {agent: found for agent, found in numbers.items() if found != [2]}
            assert changed == {"Meter/m00": [2, 5] if is_first else [5]}, "of what came meanwhile, only the newest"


async def test_an_embedded_program_watches_its_own_node(tmp_path: Path) -> None:
    async with node(tmp_path, None, "a", []) as live:
        now = live.watch("Meter/+/count", kind=Counted)
        await count(live, "m1", 0, 10)
        heard = await take(now, 10)
        assert by_agent(heard) == {"Meter/m1": list(range(10))}
        await now.aclose()
    async with node(tmp_path, None, "a", []) as live:
        again = live.watch("Meter/+/count", after=heard[4].after)
        await count(live, "m1", 10, 12)
        assert by_agent(await take(again, 7)) == {"Meter/m1": list(range(5, 12))}
        assert by_agent(await take(live.watch("Meter/m1/count", since=LONG_AGO), 12)) == {"Meter/m1": list(range(12))}
        assert [one.event for one in await take(live.watch(kind=Noted, latest=True), 1)] == [Noted(n=11)]
        waiting = asyncio.ensure_future(anext(again))
    with pytest.raises(stigmergy.NotRunning):
        await waiting


async def test_wrong_calls_are_refused(tmp_path: Path) -> None:
    url = f"memory:{tmp_path.name}"
    async with stigmergy.connect(url, fleet="hall", within_s=3.0) as far:
        for given, why in (
            ({"after": "here"}, "is no position of a watch"),
            ({"after": '{"v":2,"at":{}}'}, "a newer program has written it"),
            ({"since": "yesterday"}, "is neither a position nor a time"),
            ({"since": "17"}, "give a time with its zone"),
            ({"since": datetime(2026, 1, 1)}, "give a time with its zone"),  # noqa: DTZ001 - without one on purpose
            ({"since": LONG_AGO, "latest": True}, "give one of after="),
        ):
            with pytest.raises(ConfigError, match=why):
                far.watch("Meter/+/count", **given)
        with pytest.raises(Malformed, match="give kind, name and topic"):
            far.watch("count", latest=True)
        nobody = far.watch("Meter/+/count", since=LONG_AGO)
        with pytest.raises(NoAnswer, match=r"no node has sent its history within 3 s; nodes that are known: no node"):
            await anext(nobody)
        async with node(tmp_path, url, "a", []) as live:
            await count(live, "m1", 0, 2)
            async with asyncio.timeout(WAIT_S_MAX):
                while True:
                    try:
                        assert (await anext(nobody)).event == {"n": 0}, "the same watch, once there is a node"
                        break
                    except NoAnswer:
                        continue


async def test_a_node_may_answer_no_queries_and_no_more_than_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory:{tmp_path.name}"
    closed = Settings(bus=BusSettings(queries=False))
    async with stigmergy.connect(url, fleet="hall", within_s=WAIT_S_MAX) as far:
        async with node(tmp_path, url, "a", [], closed):
            refused = far.watch(latest=True)
            with pytest.raises(ConfigError, match="node 'a': this node answers no queries"):
                await take(refused, 1)
            await refused.aclose()  # it would go on asking, and take the only place below
        monkeypatch.setattr(service, "WATCHES_MAX", 1)
        monkeypatch.setattr(watches, "REFUSED_PAUSE_S", 0.1)
        monkeypatch.setattr(service, "IDLE_S_MAX", 1.0)
        async with node(tmp_path, url, "a", []) as live:
            await count(live, "m1", 0, 1)
            first, second = far.watch("Meter/+/count", latest=True), far.watch("Meter/+/count", since=LONG_AGO)
            assert len(await take(first, 1)) == 1
            with pytest.raises(stigmergy.Overloaded, match="answers 1 watches with history already"):
                await take(second, 1)
            await first.aclose()
            async with asyncio.timeout(WAIT_S_MAX):
                while True:
                    try:
                        assert (await anext(second)).event == {"n": 0}
                        break
                    except stigmergy.Overloaded:
                        continue


async def test_what_retention_has_dropped_is_said(tmp_path: Path) -> None:
    url = f"memory:{tmp_path.name}"
    forgetful = Settings(
        snapshots=Snapshots(every_events=20, every_s=3600.0, tail_ratio=0.0, share_max=1.0),  # the first ten stay
        retention=Retention(keep_s=0.0, reserve_bytes=0, check_every_s=0.05),
    )
    async with node(tmp_path, url, "a", [], forgetful) as live, stigmergy.connect(url, fleet="hall") as far:
        watching = far.watch("Meter/m1/count", since=LONG_AGO)
        await count(live, "m1", 0, 10)
        heard = await take(watching, 10)
        await watching.aclose()
        number, journal = 10, live.host.journal
        shard = live.host.intake.shard_of("Meter/m1")
        async with asyncio.timeout(WAIT_S_MAX):
            while journal.first_position(shard) < 40:
                await count(live, "m1", number, number + 1)
                number += 1
        for again in (far.watch("Meter/m1/count", after=heard[-1].after), live.watch(after=heard[-1].after)):
            with pytest.raises(LogCut, match="dropped by retention") as raised:
                await take(again, 1)
            assert raised.value.first_position >= 40
            await count(live, "m1", number, number + 1)
            number += 1
            async with asyncio.timeout(WAIT_S_MAX):
                while (await anext(again)).event["n"] < number - 1:
                    pass
        late = far.watch("Meter/m1/count", since=LONG_AGO)
        await count(live, "m1", number, number + 1)
        async with asyncio.timeout(WAIT_S_MAX):
            while (await anext(late)).event["n"] < number:
                pass
        assert "dropped by retention" in late.truncated["a"]


async def test_a_log_restored_from_a_copy_goes_on_where_the_copy_ended(tmp_path: Path) -> None:
    """What was heard from the original and is not in the copy is not asked for again; what is new has other numbers."""
    async with node(tmp_path, None, "a", []) as live:
        await count(live, "m1", 0, 10)
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path, copy)
    async with node(tmp_path, None, "a", []) as live:
        await count(live, "m1", 10, 20)
        heard = await take(live.watch("Meter/m1/count", since=LONG_AGO), 20)
    renew_incarnation(f"sqlite:{copy / 'a'}.db", 77)
    async with node(copy, None, "a", []) as live:
        await count(live, "m1", 100, 120)
        again = live.watch("Meter/m1/count", after=heard[-1].after)
        assert by_agent(await take(again, 20)) == {"Meter/m1": list(range(100, 120))}
        half = live.watch("Meter/m1/count", after=heard[4].after)
        assert by_agent(await take(half, 25)) == {"Meter/m1": [*range(5, 10), *range(100, 120)]}


async def test_the_logs_of_workers_are_watched_over_their_bus(tmp_path: Path) -> None:
    with start_single(tmp_path / "nats") as server:
        where = NodeConfig(bus=server.url, site="local", node="w")
        async with NatsWorker(hall, server.url, Config(), key=tmp_path / "key", node_config=where) as worker:
            task = asyncio.ensure_future(worker.run())
            await wait_until(lambda: len(worker.owned()) == hall.shards)
            async with stigmergy.connect(server.url, fleet="hall", within_s=WAIT_S_MAX) as far:
                for number in range(5):
                    for name in ("m1", "m2", "m3", "m4"):
                        assert await far.send(f"Meter/{name}", Count(n=number))
                watching = far.watch("Meter/+/count", since=LONG_AGO)
                heard = await take(watching, 10)
                again = far.watch("Meter/+/count", after=heard[-1].after)
                for name in ("m1", "m2", "m3", "m4"):
                    assert await far.send(f"Meter/{name}", Count(n=5))
                rest = await take(again, 14)
                assert by_agent(heard + rest) == {f"Meter/m{number}": list(range(6)) for number in range(1, 5)}
                newest = await take(far.watch("Meter/+/count", latest=True), 4)
                assert by_agent(newest) == {f"Meter/m{number}": [5] for number in range(1, 5)}
            worker.stop()
            async with asyncio.timeout(WAIT_S_MAX):
                await task


TICKING = """
from stigmergy import Agent, Command, Effects, Event, Events, Fleet, Publish, WakeMe, Woken, decide, evolve, react


class Start(Command):
    pass


class Ticked(Event):
    n: int


class Ticker(Agent):
    n: int = 0

    @decide
    def start(self, command: Start) -> Events:
        yield Ticked(n=self.n + 1)

    @decide
    def next(self, event: Woken) -> Events:
        yield Ticked(n=self.n + 1)

    @evolve
    def ticked(self, event: Ticked) -> None:
        self.n = event.n

    @react
    def tell(self, event: Ticked) -> Effects:
        yield Publish("tick", event)
        yield WakeMe("next", after_s=0.002)


fleet = Fleet("clock", agents=[Ticker], shards=2)
"""


async def test_nothing_is_missed_or_repeated_under_kills_cuts_and_restarts(mosquitto: Broker, tmp_path: Path) -> None:
    """A publisher at speed, its node killed and cut off in the middle of the history, and so is the listener."""
    port = int(mosquitto.url.rpartition(":")[2])
    ours, theirs = LinkProxy(port), LinkProxy(port)
    url, bus = [f"mqtt://127.0.0.1:{await proxy.start()}" for proxy in (ours, theirs)]
    process = Program(tmp_path, "clock", TICKING, "run", "clock:fleet", "--bus", bus, "--node", "a")
    process.start()
    heard: list[int] = []
    position: str | None = None
    try:
        async with stigmergy.connect(mosquitto.url, fleet="clock", within_s=WAIT_S_MAX) as far:
            for name in ("t1", "t2"):
                assert await far.send(f"Ticker/{name}", "Start", {})
            await take(far.watch("Ticker/t1/tick", since=LONG_AGO), 200)
        for life in range(3):
            async with stigmergy.connect(url, fleet="clock", within_s=WAIT_S_MAX) as far:
                begin = {"since": LONG_AGO} if position is None else {"after": position}
                watching = far.watch("Ticker/t1/tick", **begin)  # type: ignore[arg-type]
                for number in range(80):
                    one = (await take(watching, 1))[0]
                    heard.append(one.event["n"])
                    position = one.after
                    if number == 40:
                        (process.restart, ours.drop, theirs.drop)[life % 3]()
        assert heard == list(range(1, len(heard) + 1))
    finally:
        process.kill()
        await ours.close()
        await theirs.close()


async def test_shards_that_move_when_a_worker_is_killed_are_watched_on(tmp_path: Path) -> None:
    with start_single(tmp_path / "nats") as server:
        options = ("worker", "clock:fleet", "--nats", server.url, "--bus", server.url, "--key", "key", "--name")
        workers = [Program(tmp_path, "clock", TICKING, *options, name) for name in ("v", "w")]
        workers[0].start()
        heard: dict[str, list[int]] = {}
        try:
            await wait_until((tmp_path / "key").exists)
            workers[1].start()
            async with stigmergy.connect(server.url, fleet="clock", within_s=WAIT_S_MAX) as far:
                for number in range(4):
                    assert await far.send(f"Ticker/t{number}", "Start", {})
                watching = far.watch("Ticker/+/tick", after="start")
                for worker in (*workers, None):
                    for one in await take(watching, 200):
                        heard.setdefault(one.agent, []).append(one.event["n"])
                    if worker is not None:
                        worker.restart()
            assert sum(map(len, heard.values())) == 600
            assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in heard.values()), heard
        finally:
            for worker in workers:
                worker.kill()
