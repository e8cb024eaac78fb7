"""The map of a real node over HTTP and WebSocket: frames, slow clients, tokens, layers, and what a page is told."""

import asyncio
import json
import struct
import subprocess
import sys
import time
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from msgspec import Raw, structs
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from stigmergy.control.replies import MissingPart, PositionsReply
from stigmergy.serve.map import FleetMap, MapClient, ToldDrawn
from stigmergy.shard.homes import shard_of
from stigmergy.testing.brokers import Broker
from stigmergy.testing.nats import start_single
from tests.serve.rig import ServedProcess, cli, wait_until

TOWN = """
from pathlib import Path

from stigmergy import Agent, Command, Event, Events, Fleet, decide, evolve


class Move(Command):
    lat: float
    lon: float


class Moved(Event):
    lat: float
    lon: float


class Drone(Agent):
    lat: float = 0.0
    lon: float = 0.0

    @decide
    def move(self, command: Move) -> Events:
        yield Moved(lat=command.lat, lon=command.lon)

    @evolve
    def moved(self, event: Moved) -> None:
        self.lat, self.lon = event.lat, event.lon


class Clerk(Agent):
    steps: int = 0

    @evolve
    def moved(self, event: Moved) -> None:
        self.steps += 1


fleet = Fleet("town", agents=[Clerk, Drone], shards=2)
fleet.map(
    Drone,
    at=lambda d: (1 / 0, 0.0) if d.lat == 13 else None if d.lat == 0 else (d.lat, d.lon),
    heading=lambda d: 90.0,
    colour=lambda d: "north" if d.lat > 0 else "south",
    trail_s=12,
    draw=lambda d: [] if d.lon < 100 else [{"type": "Feature", "properties": {"name": f"at {d.lon:g}"}}],
)
fleet.layer("zones", Path(__file__).with_name("zones.geojson"))
fleet.layer("grid", lambda: {"type": "FeatureCollection", "features": []})
"""
ZONES = {"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {}, "geometry": None}]}
HEAD = struct.Struct("<4sIddd")


def make_town(folder: Path) -> Path:
    (folder / "town.py").write_text(TOWN, encoding="utf-8")
    (folder / "zones.geojson").write_text(json.dumps(ZONES), encoding="utf-8")
    return folder


def run_town(folder: Path, *arguments: str) -> ServedProcess:
    return ServedProcess(folder, "run", "town:fleet", "--serve", "127.0.0.1:0", *arguments)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    running = run_town(make_town(tmp_path_factory.mktemp("town")))
    yield running
    assert running.end() == 0


def move(served: ServedProcess, name: str, lat: float, lon: float) -> None:
    body = {"agent": f"Drone/{name}", "event": "Moved", "fields": {"lat": lat, "lon": lon}}
    assert served.post("/v1/observations", body).status == 200


class MapReader:
    """Reads a live map as the page does."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.names: list[str] = []
        self.colours: list[str] = []
        self.places: dict[str, tuple[float, float, int, str]] = {}
        self.frames: list[int] = []
        self.drawn: dict[str, list[str]] = {}
        self.troubles: list[str] = []
        self.missing: list[str] = []

    async def next(self) -> None:
        """The next message."""
        said = await self._socket.recv()
        if isinstance(said, bytes):
            self._frame(said)
            return
        told = json.loads(said)
        if "names" in told:
            assert told["first"] == len(self.names)
            self.names += [name for name, _ in told["names"]]
            assert all(layer == 0 for _, layer in told["names"]), "only drones are on the map"
        self.colours = told.get("colours", self.colours)
        self.troubles = told.get("troubles", self.troubles)
        self.missing = told.get("missing", self.missing)
        for number, features in told.get("drawn", ()):
            self.drawn[self.names[number]] = [one["properties"]["name"] for one in features]
        for number in told.get("gone", ()):
            del self.places[self.names[number]]

    def _frame(self, data: bytes) -> None:
        magic, count, _, origin_x, origin_y = HEAD.unpack_from(data)
        assert (magic, len(data)) == (b"SMP1", HEAD.size + 14 * count)
        at = HEAD.size
        numbers = array("I", data[at : at + 4 * count])
        xs, ys = array("f", data[at + 4 * count : at + 8 * count]), array("f", data[at + 8 * count : at + 12 * count])
        headings, colours = data[at + 12 * count : at + 13 * count], data[at + 13 * count :]
        for place, number in enumerate(numbers):
            colour = self.colours[colours[place]]
            where = (round(origin_x + xs[place], 5), round(origin_y + ys[place], 5))
            self.places[self.names[number]] = (*where, headings[place], colour)
        self.frames.append(count)

    async def wait(self, name: str, lon: float | None, lat: float | None) -> None:
        """Until the map has this agent here; or, without a place, no more."""
        while (self.places.get(name, (None, None))[:2]) != (lon, lat):
            await self.next()


@asynccontextmanager
async def looking(served: ServedProcess, query: str = "", **options: Any) -> AsyncIterator[MapReader]:
    async with (
        asyncio.timeout(240),
        connect(f"ws://{urlsplit(served.url).netloc}/v1/map{query}", **options) as socket,
    ):
        yield MapReader(socket)


async def test_agents_move_live(town: ServedProcess) -> None:
    await asyncio.to_thread(move, town, "a", 52.5, 13.4)
    async with looking(town) as first, looking(town, "?rate=20") as second:
        await first.wait("Drone/a", 13.4, 52.5)
        await second.wait("Drone/a", 13.4, 52.5)
        assert first.places["Drone/a"] == (13.4, 52.5, 64, "north")
        await asyncio.to_thread(move, town, "a", -33.9, 151.2)
        await asyncio.to_thread(move, town, "b", 1.0, 2.0)
        for reader in (first, second):
            await reader.wait("Drone/a", 151.2, -33.9)
            await reader.wait("Drone/b", 2.0, 1.0)
            assert reader.places["Drone/a"][3] == "south"
            assert reader.names.count("Drone/a") == 1
        await asyncio.to_thread(move, town, "b", 0.0, 0.0)
        await first.wait("Drone/b", None, None)
        await asyncio.to_thread(move, town, "b", 3.0, 2.0)
        await first.wait("Drone/b", 2.0, 3.0)


async def test_what_agents_draw_is_shown_now_and_in_the_past(town: ServedProcess) -> None:
    await asyncio.to_thread(move, town, "w", 1.0, 120.0)
    async with looking(town) as first:
        await first.wait("Drone/w", 120.0, 1.0)
        assert first.drawn["Drone/w"] == ["at 120"]
        before = (await asyncio.to_thread(town.get, "/v1/map")).json
        assert before["drawn"]["Drone/w"][0]["properties"] == {"name": "at 120"}
        await asyncio.sleep(0.01)
        await asyncio.to_thread(move, town, "w", 1.0, 121.0)
        await first.wait("Drone/w", 121.0, 1.0)
        assert first.drawn["Drone/w"] == ["at 121"]
        await asyncio.to_thread(move, town, "w", 1.0, 5.0)
        await first.wait("Drone/w", 5.0, 1.0)
        assert first.drawn["Drone/w"] == []
        async with looking(town) as second:
            await second.wait("Drone/w", 5.0, 1.0)
            assert "Drone/w" not in second.drawn
    past = (await asyncio.to_thread(town.get, f"/v1/map?at={before['time']}")).json
    assert past["drawn"]["Drone/w"] == before["drawn"]["Drone/w"]
    assert "Drone/w" not in (await asyncio.to_thread(town.get, "/v1/map")).json.get("drawn", {})


async def test_trouble_is_said_and_taken_back(town: ServedProcess) -> None:
    async with looking(town) as reader:
        await asyncio.to_thread(move, town, "t", 13.0, 1.0)
        while not reader.troubles:
            await reader.next()
        assert reader.troubles[0].startswith("Drone/t is left out of the map: ZeroDivisionError")
        assert reader.troubles[0] in (await asyncio.to_thread(town.get, "/v1/status")).json["troubles"]
        await asyncio.to_thread(move, town, "t", 14.0, 1.0)
        await reader.wait("Drone/t", 1.0, 14.0)
        while reader.troubles:
            await reader.next()


async def test_client_that_does_not_read_skips_positions_and_holds_nobody_up(town: ServedProcess) -> None:
    await asyncio.to_thread(move, town, "s", 1.0, 1.0)
    async with looking(town, "?rate=20", max_queue=1) as slow, looking(town, "?rate=20") as quick:
        await slow.wait("Drone/s", 1.0, 1.0)
        for number in range(60):
            await asyncio.to_thread(move, town, "s", 1.0, 2.0 + number)
            await quick.wait("Drone/s", 2.0 + number, 1.0)
        await slow.wait("Drone/s", 61.0, 1.0)
        assert len(quick.frames) >= 60


async def test_a_client_gets_no_more_frames_than_it_asks_for(town: ServedProcess) -> None:
    async with looking(town, "?rate=2") as reader:
        began_s = time.monotonic()
        for number in range(40):
            await asyncio.to_thread(move, town, "r", 5.0, float(number))
        await asyncio.to_thread(move, town, "r", 6.0, 6.0)
        await reader.wait("Drone/r", 6.0, 6.0)
        assert len(reader.frames) <= 2 * (time.monotonic() - began_s) + 2


async def test_map_of_a_moment(town: ServedProcess) -> None:
    await asyncio.to_thread(move, town, "past", 10.0, 20.0)
    await asyncio.sleep(0.01)
    before = (await asyncio.to_thread(town.get, "/v1/map")).json
    await asyncio.sleep(0.01)
    await asyncio.to_thread(move, town, "past", 11.0, 20.0)
    now = (await asyncio.to_thread(town.get, "/v1/map")).json
    for found, lat in ((before, 10.0), (now, 11.0)):
        place = found["names"].index(["Drone/past", 0])
        assert (found["x"][place], found["y"][place], found["heading"][place]) == (20.0, lat, 64)
        assert found["colour"][place] == "north"
    asked = [asyncio.to_thread(town.get, f"/v1/map?at={before['time']}") for _ in range(4)]
    for answer in await asyncio.gather(*asked):
        assert answer.status == 200, "those who look back wait for each other"
        place = answer.json["names"].index(["Drone/past", 0])
        assert (answer.json["time"], answer.json["y"][place]) == (before["time"], 10.0)


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/v1/map?at=noon", 400, "neither a position nor a time"),
        ("/v1/map?at=3", 400, "give a time"),
        ("/v1/map?rate=3", 400, "no parameter 'rate'"),
        ("/v1/layers/roads", 404, "there are zones, grid"),
        ("/assets/none.js", 404, "load the page again"),
    ],
)
def test_what_is_wrong_is_said(town: ServedProcess, path: str, status: int, said: str) -> None:
    answer = town.get(path)
    assert (answer.status, said in answer.json["detail"]) == (status, True), answer


@pytest.mark.parametrize("rate", [0, 21])
async def test_wrong_rate_is_refused(town: ServedProcess, rate: int) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with looking(town, f"?rate={rate}"):
            pass
    assert refused.value.response.status_code == 400


def test_page_is_told_what_there_is(town: ServedProcess) -> None:
    page = town.get("/v1/page").json
    assert (page["fleet"], page["mode"]) == ("town", "live")
    assert page["from"] <= page["to"]
    assert page["scopes"] == ["read", "observe", "command:*"]
    clerk, drone = page["kinds"]
    assert (clerk["kind"], clerk["map"]) == ("Clerk", None)
    assert drone["map"] == {"layer": 0, "plane": "geo", "heading": True, "trail_s": 12}
    (command,) = drone["commands"]
    assert command["name"] == "Move"
    assert command["schema"]["properties"] == {"lat": {"type": "number"}, "lon": {"type": "number"}}
    assert command["schema"]["required"] == ["lat", "lon"]
    assert [one["name"] for one in drone["events"]] == ["Moved"]
    assert drone["state"]["properties"]["lat"]["type"] == "number"
    assert page["layers"] == [
        {"name": "zones", "url": "/v1/layers/zones"},
        {"name": "grid", "url": "/v1/layers/grid"},
    ]
    zones = town.get("/v1/layers/zones")
    assert (zones.json, zones.headers["content-type"]) == (ZONES, "application/geo+json")
    assert town.get("/v1/layers/grid").json == {"type": "FeatureCollection", "features": []}
    # A page that has a layer is told so, and draws it again only if it has changed.
    again = town.ask("GET", "/v1/layers/zones", headers={"If-None-Match": zones.headers["etag"]})
    assert again.status == 304
    assert town.ask("GET", "/v1/layers/zones", headers={"If-None-Match": '"other"'}).json == ZONES


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot be read"), ("{", "cannot be read"), ('{"type": "Topology"}', "no GeoJSON")],
)
def test_layer_that_cannot_be_drawn_is_refused_at_the_start(tmp_path: Path, content: str | None, said: str) -> None:
    folder = make_town(tmp_path)
    (folder / "zones.geojson").unlink()
    if content is not None:
        (folder / "zones.geojson").write_text(content, encoding="utf-8")
    refused = cli(folder, "run", "town:fleet", "--serve", "127.0.0.1:0")
    assert refused.returncode != 0
    assert "layer 'zones'" in refused.stderr
    assert said in refused.stderr


async def test_token_of_a_web_page_comes_as_a_subprotocol_and_ends_the_map_when_revoked(tmp_path: Path) -> None:
    folder = make_town(tmp_path)
    made = cli(folder, "token", "create", "viewer", "--scope", "read", "--tokens", "town.db.tokens", "--json")
    token = json.loads(made.stdout)["token"]
    town = run_town(folder)
    try:
        with pytest.raises(InvalidStatus) as refused:
            async with looking(town):
                pass
        assert refused.value.response.status_code == 401
        bearer = {"Authorization": f"Bearer {token}"}
        assert (await asyncio.to_thread(town.ask, "GET", "/v1/page", headers=bearer)).json["scopes"] == ["read"]
        subprotocols = ["stigmergy", f"stigmergy.token.{token}"]
        async with looking(town, subprotocols=subprotocols) as reader:
            assert reader._socket.subprotocol == "stigmergy"
            revoked = await asyncio.to_thread(cli, folder, "token", "revoke", "viewer", "--tokens", "town.db.tokens")
            assert revoked.returncode == 0
            with pytest.raises(ConnectionClosed) as closed:
                await reader.wait("Drone/never", 1.0, 1.0)
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, "token" in closed.value.rcvd.reason) == (1008, True)
    finally:
        assert town.end() == 0


async def test_map_beside_a_node_outlives_it(tmp_path: Path) -> None:
    folder = make_town(tmp_path)
    node = run_town(folder)
    beside = ServedProcess(folder, "serve", "town:fleet", "--listen", "127.0.0.1:0")
    try:
        await asyncio.to_thread(move, node, "a", 5.0, 6.0)
        async with looking(beside) as reader:
            await reader.wait("Drone/a", 6.0, 5.0)
            assert await asyncio.to_thread(node.end) == 0
            while reader.missing != ["node"]:
                await reader.next()
            node = await asyncio.to_thread(run_town, folder)
            while reader.missing:
                await reader.next()
            await asyncio.to_thread(move, node, "b", 7.0, 8.0)
            await reader.wait("Drone/b", 8.0, 7.0)
            assert reader.names.count("Drone/a") == 1, "an agent keeps its number"
            assert reader.places["Drone/a"][:2] == (6.0, 5.0)
    finally:
        assert node.end() == 0
        assert beside.end() == 0


async def test_map_of_workers_outlives_one_of_them(tmp_path: Path) -> None:
    folder = make_town(tmp_path)
    (folder / "server").mkdir()
    names = [f"w{number}" for number in range(6)]
    assert len({shard_of(f"Drone/{name}", 2) for name in names}) == 2
    with start_single(folder / "server") as server:
        workers = [start_worker(folder, server.url, name) for name in ("one", "two")]
        served: ServedProcess | None = None
        try:
            served = await asyncio.to_thread(
                ServedProcess, folder, "serve", "town:fleet", "--nats", server.url, "--listen", ":0"
            )
            await asyncio.to_thread(wait_until, lambda: served.get("/readyz").status == 200)
            for number, name in enumerate(names):
                await asyncio.to_thread(move, served, name, 20.0, float(number))
            before = (await asyncio.to_thread(served.get, "/v1/map")).json
            assert sorted(name for name, _ in before["names"]) == [f"Drone/{name}" for name in names]
            async with looking(served) as reader:
                for number, name in enumerate(names):
                    await reader.wait(f"Drone/{name}", float(number), 20.0)
                workers[0].kill()
                for number, name in enumerate(names):
                    await asyncio.to_thread(move_again, served, name, 30.0, float(number))
                    await reader.wait(f"Drone/{name}", float(number), 30.0)
                assert sorted(reader.names) == [f"Drone/{name}" for name in names], "an agent keeps its number"
                while reader.missing:
                    await reader.next()
            past = (await asyncio.to_thread(served.get, f"/v1/map?at={before['time']}")).json
            assert set(past["y"]) == {20.0}
            page = (await asyncio.to_thread(served.get, "/v1/page")).json
            assert page["from"] < before["time"] < page["to"]
        finally:
            if served is not None:
                served.end()
            for worker in workers:
                worker.kill()
                worker.wait()


def start_worker(folder: Path, url: str, name: str, *more: str) -> "subprocess.Popen[bytes]":
    command = [
        sys.executable,
        "-m",
        "stigmergy",
        "worker",
        "town:fleet",
        "--nats",
        url,
        "--json",
        "--name",
        name,
        *more,
    ]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def move_again(served: ServedProcess, name: str, lat: float, lon: float) -> None:
    """The same until its shard has an owner."""
    body = {"agent": f"Drone/{name}", "event": "Moved", "fields": {"lat": lat, "lon": lon}}
    wait_until(lambda: served.post("/v1/observations", body).status == 200)


async def test_map_of_two_nodes_shows_the_agents_of_both(tmp_path: Path, mosquitto: Broker) -> None:
    nodes: dict[str, ServedProcess] = {}
    try:
        for node in ("north", "south"):
            (tmp_path / node).mkdir()
            folder = make_town(tmp_path / node)
            config = f'[fleet]\nbus = "{mosquitto.url}"\nnode = "{node}"\nagents = ["Drone/{node[0]}*"]\n'
            (folder / "stigmergy.toml").write_text(config, encoding="utf-8")
            nodes[node] = await asyncio.to_thread(run_town, folder)
        north, south = nodes.values()
        await asyncio.to_thread(wait_until, lambda: north.get("/v1/status").json["link"]["members"] == 2)
        await asyncio.to_thread(move, north, "n1", 1.0, 2.0)
        await asyncio.to_thread(move, south, "s1", 3.0, 4.0)
        moment = ""
        for one in nodes.values():
            found = (await asyncio.to_thread(one.get, "/v1/map")).json
            assert sorted(name for name, _ in found["names"]) == ["Drone/n1", "Drone/s1"]
            assert "missing" not in found
            moment = found["time"]
        beside = await asyncio.to_thread(
            ServedProcess, tmp_path / "north", "serve", "town:fleet", "--listen", "127.0.0.1:0"
        )
        nodes["beside"] = beside
        async with looking(north) as reader, looking(beside) as other:
            for viewer in (reader, other):
                await viewer.wait("Drone/n1", 2.0, 1.0)
                await viewer.wait("Drone/s1", 4.0, 3.0)
            await asyncio.to_thread(move, south, "s1", 5.0, 6.0)
            for viewer in (reader, other):
                await viewer.wait("Drone/s1", 6.0, 5.0)
            past = (await asyncio.to_thread(north.get, f"/v1/map?at={moment}")).json
            assert past["y"][past["names"].index(["Drone/s1", 0])] == 3.0
            position = await asyncio.to_thread(north.get, "/v1/map?at=1")
            assert (position.status, "give a time" in position.json["detail"]) == (400, True)
            assert await asyncio.to_thread(south.end) == 0
            while reader.missing != ["south"]:
                await reader.next()
            assert reader.places["Drone/s1"][:2] == (6.0, 5.0), "where it was last"
            away = (await asyncio.to_thread(north.get, "/v1/map")).json
            assert [name for name, _ in away["names"]] == ["Drone/n1"]
            assert [(one["node"], "is away" in one["why"]) for one in away["missing"]] == [("south", True)]
            nodes["south"] = south = await asyncio.to_thread(run_town, tmp_path / "south")
            while reader.missing:
                await reader.next()
            await asyncio.to_thread(move, south, "s1", 7.0, 8.0)
            await reader.wait("Drone/s1", 8.0, 7.0)
            assert reader.names.count("Drone/s1") == 1, "an agent keeps its number"
    finally:
        for one in nodes.values():
            one.end()


def test_moment_before_a_shard_began_is_said(tmp_path: Path) -> None:
    town = run_town(make_town(tmp_path))
    try:
        first, second = (next(f"x{n}" for n in range(99) if shard_of(f"Drone/x{n}", 2) == shard) for shard in (0, 1))
        move(town, first, 1.0, 2.0)
        early = town.get("/v1/map").json
        assert "troubles" not in town.get(f"/v1/map?at={early['time']}").json, "shard 1 has no log yet"
        time.sleep(0.01)
        move(town, second, 3.0, 4.0)
        found = town.get(f"/v1/map?at={early['time']}").json
        assert [name for name, _ in found["names"]] == [f"Drone/{first}"]
        (trouble,) = found["troubles"]
        assert trouble.startswith("the log of shard 1 begins at")
        (listed,) = town.get(f"/v1/agents?kind=Drone&at={early['time']}").json["agents"]
        assert listed["agent"] == f"Drone/{first}", "shard 1 had no agents yet"
        assert "troubles" not in town.get(f"/v1/map?at={town.get('/v1/map').json['time']}").json
    finally:
        town.end()


class Restarted:
    """A node whose agents drew something, and which tells anew what its agents are after it has been away."""

    waits_max = 4

    def __init__(self) -> None:
        self.asked = 0
        self.again, self.done = asyncio.Event(), asyncio.Event()

    async def ask(self, request: Any) -> PositionsReply:
        self.asked += 1
        way, zone = (0, Raw(b'[{"name":"way"}]')), (1, Raw(b'[{"name":"zone"}]'))
        if self.asked == 1:
            return PositionsReply("a", 1, names=["Drone/a", "Zone/z"], drawn=[way, zone], is_new=True)
        if self.asked == 2:
            await self.again.wait()
            return PositionsReply("b", 2, names=["Zone/z", "Drone/a"], drawn=[(0, zone[1])], is_new=True)
        self.done.set()
        return await asyncio.Event().wait()  # type: ignore[return-value]


async def test_what_is_drawn_no_more_after_a_restart_leaves_the_map() -> None:
    asker = Restarted()
    found = FleetMap({}, asker, (None,))  # type: ignore[arg-type]
    found.join(client := MapClient(found), 20)
    told: list[dict[int, list[Any]]] = []
    async with asyncio.timeout(240):
        for wanted in ({0: [{"name": "way"}], 1: [{"name": "zone"}]}, {0: [], 1: [{"name": "zone"}]}):
            told.append({})
            while told[-1] != wanted:
                await found.wait(client.seen, 1.0)
                texts = [text for text in client.next()[0] if isinstance(text, ToldDrawn)]
                told[-1] |= {number: msgspec.json.decode(features) for text in texts for number, features in text.drawn}
            asker.again.set()
        await asker.done.wait()
    await found.leave(client)


class HandedOver:
    """Two nodes: the one that is asked hands Drone/a over, and has forgotten it once the other one tells of it."""

    waits_max = 4

    def __init__(self) -> None:
        self.told, self.done = asyncio.Event(), asyncio.Event()
        self.asked = 0

    async def ask(self, request: Any) -> PositionsReply:
        others = [MissingPart(node="south", why="has a log of its own")]
        if request.node:
            self.told.set()
            return at_one_place("south:1", 2.0, [] if request.after else ["Drone/a"])
        self.asked += 1
        if self.asked == 1:
            return structs.replace(at_one_place("north:1", 1.0, ["Drone/a"]), missing=others)
        await self.told.wait()
        if self.asked > 2:
            self.done.set()
            await asyncio.Event().wait()
        return PositionsReply("later:1", 2, is_new=True, missing=others)


def at_one_place(after: str, x: float, names: list[str]) -> PositionsReply:
    if not names:
        return PositionsReply(after, 1)
    places = array("d", [x]).tobytes()
    return PositionsReply(after, 1, array("I", [0]).tobytes(), places, places, b"\0", b"\xff", names=names, is_new=True)


async def test_agent_that_moved_to_another_node_stays_on_the_map() -> None:
    asker = HandedOver()
    found = FleetMap({}, asker, (None,))  # type: ignore[arg-type]
    found.join(client := MapClient(found), 20)
    async with asyncio.timeout(240):
        await asker.done.wait()
    client.next()
    assert found.gone(0) == []
    assert HEAD.unpack_from(found.frame(0))[1:] == (1, 0.000002, 2.0, 2.0)
    await found.leave(client)
