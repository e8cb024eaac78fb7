"""The event stream of a real node: filters, resuming anywhere, slow readers, and WebSocket."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from stigmergy import Agent, Event, Fleet, evolve
from stigmergy.control.live import Live
from stigmergy.serve import events as ring
from stigmergy.serve.asker import NodeAsker
from stigmergy.serve.listener import Address
from stigmergy.serve.server import ApiServer, Serving
from tests.serve.rig import ServedProcess, SseClient, cli, make_folder, run_served

HERE = """
from stigmergy import Agent, Event, Fleet, evolve


class Moved(Event):
    lat: float
    lon: float


class Beeped(Event):
    number: int


class Car(Agent):
    lat: float = 0.0
    lon: float = 0.0
    beeps: int = 0

    @evolve
    def moved(self, event: Moved) -> None:
        self.lat, self.lon = event.lat, event.lon

    @evolve
    def beeped(self, event: Beeped) -> None:
        self.beeps = event.number


class Horn(Agent):
    beeps: int = 0

    @evolve
    def beeped(self, event: Beeped) -> None:
        self.beeps = event.number


fleet = Fleet("cars", agents=[Car, Horn], shards=3)
"""


@pytest.fixture(scope="module")
def cars(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("cars")
    (folder / "cars.py").write_text(HERE)
    running = ServedProcess(folder, "run", "cars:fleet", "--serve", "127.0.0.1:0")
    yield running
    assert running.end() == 0


def beep(served: ServedProcess, numbers: range, *agents: str) -> None:
    batch = [{"agent": one, "event": "Beeped", "fields": {"number": n}} for n in numbers for one in agents]
    for first in range(0, len(batch), 500):
        answer = served.post("/v1/observations", batch[first : first + 500])
        assert all(one["observed"] for one in answer.json["results"])


def numbers_of(events: list[Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for event in events:
        found.setdefault(event["agent"], []).append(event["fields"]["number"])
    return found


def test_events_come_live_and_only_those_that_are_wanted(cars: ServedProcess) -> None:
    everything = SseClient(cars, "?agent=Car/f1&agent=Horn/f1")
    horns = SseClient(cars, "?kind=Horn&type=Beeped")
    moves = SseClient(cars, "?type=Moved@1&agent=Car/f1")
    beep(cars, range(2), "Car/f1", "Horn/f1")
    cars.post("/v1/observations", {"agent": "Car/f1", "event": "Moved", "fields": {"lat": 1, "lon": 2}})
    found = everything.take(5)
    assert {one["agent"] for one in found} == {"Car/f1", "Horn/f1"}
    assert [one["fields"]["number"] for one in horns.take(2)] == [0, 1]
    assert moves.take(1)[0]["fields"] == {"lat": 1.0, "lon": 2.0}
    for client in (everything, horns, moves):
        client.close()


def test_area_is_where_the_event_or_its_agent_is(cars: ServedProcess) -> None:
    north = SseClient(cars, "?area=50,0,60,10")
    for agent, lat in (("Car/n", 55.0), ("Car/s", 5.0)):
        cars.post("/v1/observations", {"agent": agent, "event": "Moved", "fields": {"lat": lat, "lon": 4}})
    beep(cars, range(1), "Car/s", "Car/n")
    beep(cars, range(1), "Horn/nowhere")
    cars.post("/v1/observations", {"agent": "Car/n", "event": "Moved", "fields": {"lat": 56, "lon": 4}})
    assert [(one["agent"], one["type"]) for one in north.take(3)] == [
        ("Car/n", "Moved@1"),
        ("Car/n", "Beeped@1"),
        ("Car/n", "Moved@1"),
    ]
    north.close()


def test_resumed_behind_every_event_nothing_is_missing_or_doubled(cars: ServedProcess) -> None:
    """Also within a commit, and over several shards."""
    agents = [f"Car/r{number}" for number in range(6)]
    start = SseClient(cars)
    begin = start.last_id or _first_id(start)
    start.close()
    beep(cars, range(20), *agents)
    query = "".join(f"&agent={agent}" for agent in agents)
    found: list[Any] = []
    last = begin
    while len(found) < 120:
        client = SseClient(cars, f"?{query[1:]}", headers={"Last-Event-ID": last})
        found += client.take(min(7, 120 - len(found)))
        last = client.last_id
        client.close()
    assert numbers_of(found) == {agent: list(range(20)) for agent in agents}
    assert found[-1]["id"] == last
    behind = SseClient(cars, f"?{query[1:]}&after={last}")
    beep(cars, range(20, 21), *agents)
    assert numbers_of(behind.take(6)) == {agent: [20] for agent in agents}
    behind.close()


def _first_id(client: SseClient) -> str:
    """The id that a stream begins with, before any event."""
    while not client.last_id:
        name, _, value = client.answer.readline().decode().rstrip("\n").partition(": ")
        client.last_id = value if name == "id" else ""
    return client.last_id


def test_joined_while_events_come(cars: ServedProcess) -> None:
    """From the past into the live stream, without a gap or a double, while the log grows."""
    beep(cars, range(200), "Car/j")
    live = SseClient(cars, "?agent=Car/j")
    late = [SseClient(cars, "?agent=Car/j&since=2020-01-01T00:00:00Z") for _ in range(3)]
    beep(cars, range(200, 400), "Car/j")
    for client in late:
        assert numbers_of(client.take(400)) == {"Car/j": list(range(400))}
        client.close()
    assert numbers_of(live.take(200)) == {"Car/j": list(range(200, 400))}
    live.close()


async def test_what_becomes_durable_between_the_last_page_and_the_ring_is_not_missed(tmp_path: Path) -> None:
    async def read(stream: ring.EventStream, count: int) -> list[int]:
        found: list[int] = []
        while len(found) < count:
            piece = await stream.next(240.0)
            found += [one["fields"]["number"] for one in json.loads(b"[%b]" % piece)]
        return found

    running = cars_fleet().running(journal="memory:", key=tmp_path / "cars.key")
    async with asyncio.timeout(240), running as live:
        asker = NodeAsker(running.service(live, "", lambda: None))
        hub = ring.EventHub(asker, (None,))
        streams, everything = ring.EventStreams(hub), ring.StreamFilter()
        for number in range(3):
            await live.observe("Car/gap", Beeped(number=number))
        async with (
            streams.open(everything, "", None, "", as_sse=False) as first,
            streams.open(everything, "", 0, "", as_sse=False) as late,
        ):
            assert await read(late, 3) == [0, 1, 2], "it reads the past by itself"
            for number in range(3, 6):
                await live.observe("Car/gap", Beeped(number=number))
            assert await read(first, 3) == [3, 4, 5], "now they are in the ring"
            assert await read(late, 3) == [3, 4, 5]
        await hub.close()


async def test_slow_reader_is_told_and_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds up neither the node nor the others."""
    monkeypatch.setattr(ring, "RING_EVENTS_MAX", 1_000)
    monkeypatch.setattr(ring, "CHUNK_BYTES", 64 * 1024)
    async with asyncio.timeout(240), embedded(tmp_path) as (live, address):
        slow = await RawStream.open(address, "?agent=Car/slow", buffer_bytes=4096)
        quick = await RawStream.open(address, "?agent=Car/slow")
        total = 0
        while total < 8_000:  # with their notes more than a connection buffers
            beeps = [Beeped(number=number, note="x" * 1_000) for number in range(total, total + 500)]
            await asyncio.gather(*(live.observe("Car/slow", beep) for beep in beeps))
            total += 500
            while len(quick.numbers) < total:
                await quick.read()
        assert quick.numbers == list(range(total))
        while not slow.dropped:
            await slow.read()
        assert "too slow" in slow.dropped["reason"]
        assert slow.dropped["last_event_id"] == slow.last_id
        assert 0 < len(slow.numbers) < total
        again = await RawStream.open(address, "?agent=Car/slow", last_id=slow.last_id)
        while len(slow.numbers) + len(again.numbers) < total:
            await again.read()
        assert slow.numbers + again.numbers == list(range(total))
        for stream in (slow, quick, again):
            stream.close()


class RawStream:
    """A client of the stream that reads only when it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.numbers: list[int] = []
        self.dropped: dict[str, str] = {}
        self.last_id = ""
        self._kind = ""

    @classmethod
    async def open(cls, address: Address, query: str, *, buffer_bytes: int = 0, last_id: str = "") -> "RawStream":
        made = socket.socket()
        if buffer_bytes:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        made.connect((address.host, address.port))
        reader, writer = await asyncio.open_connection(sock=made, limit=buffer_bytes or 2**20)
        resume = f"Last-Event-ID: {last_id}\r\n" if last_id else ""
        writer.write(f"GET /v1/events{query} HTTP/1.1\r\nHost: localhost\r\n{resume}\r\n".encode())
        stream = cls(reader, writer)
        while not stream.last_id:
            await stream.read()
        return stream

    async def read(self) -> None:
        """One line. A chunk may end within a line only where the server does so, which it does not."""
        line = (await self._reader.readline()).decode().rstrip("\r\n")
        name, _, value = line.partition(": ")
        if name == "id":
            self.last_id = value
        elif name == "event":
            self._kind = value
        elif name == "data" and self._kind == "dropped":
            self.dropped = json.loads(value)
        elif name == "data":
            self.numbers.append(json.loads(value)["fields"]["number"])

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[tuple[Live, Address]]:
    """A node and its API in this very process."""
    running = cars_fleet().running(journal=f"sqlite:{folder}/cars.db", key=folder / "cars.key")
    async with running as live:
        asker = NodeAsker(running.service(live, "", lambda: None))
        server = ApiServer(cars_fleet(), asker, Serving(Address("127.0.0.1", 0), folder / "tokens"))
        place = urlsplit((await server.start())[0])
        try:
            yield live, Address(place.hostname or "", place.port or 0)
        finally:
            await server.close()


class Beeped(Event):
    number: int
    note: str = ""


class Car(Agent):
    beeps: int = 0

    @evolve
    def beeped(self, event: Beeped) -> None:
        self.beeps = event.number


def cars_fleet() -> Fleet:
    return Fleet("cars", agents=[Car], shards=3)


def test_filter_that_lets_nothing_through_waits_and_starves_nobody(cars: ServedProcess) -> None:
    """From the past, with nothing to send: the node goes on, and the id moves up to the end of the log."""
    beep(cars, range(50), "Car/many")
    past = SseClient(cars, "?agent=Car/many&since=2020-01-01T00:00:00Z")
    last = past.take(50)[-1]["id"]
    past.close()
    streams = [SseClient(cars, "?kind=Horn&type=stigmergy.InputFailed&since=2020-01-01T00:00:00Z") for _ in range(5)]
    streams += [SseClient(cars, f"?type=stigmergy.InputFailed&after={last}") for _ in range(5)]
    assert {stream.status for stream in streams} == {200}
    before = cars.get("/v1/status").json["cpu_s"]
    time.sleep(3.0)
    used = cars.get("/v1/status").json["cpu_s"] - before
    assert used < 2.0, "ten streams without events took a whole core"
    for stream in streams:
        stream.close()


def test_what_cannot_be_streamed_is_refused(cars: ServedProcess) -> None:
    for query, status, said in (
        ("?kind=Plane", 404, "there are Car, Horn"),
        ("?after=7", 400, "give them as they came"),
        ("?after=0:999999", 400, "beyond the end"),
        ("?after=0@abc:1", 400, "position 1 is of the log abc, and this node has the log"),
        ("?after=0:1,0@abc:1", 400, "one shard is there twice"),
        ("?after=9:1", 400, "shard 9 is none of this fleet"),
        ("?area=1,2,3", 400, "four numbers"),
        ("?since=5", 400, "a time with its zone"),
        ("?lat=5", 400, "no parameter 'lat'"),
    ):
        client = SseClient(cars, query)
        assert client.status == status, query
        assert said in json.loads(client.answer.read())["detail"], query
        client.close()


def test_a_stream_from_the_start_of_the_log(cars: ServedProcess) -> None:
    beep(cars, range(1), "Car/first")
    client = SseClient(cars, "?agent=Car/first&after=start")
    assert client.status == 200
    client.close()


async def test_area_over_websocket(cars: ServedProcess) -> None:
    place = urlsplit(cars.url).netloc
    async with asyncio.timeout(240), connect(f"ws://{place}/v1/events?area=70,0,80,10&kind=Car") as client:
        assert json.loads(await client.recv())["events"] == []
        for lat in (75.0, 5.0, 76.0):
            moved = {"agent": "Car/ws", "event": "Moved", "fields": {"lat": lat, "lon": 4}}
            await asyncio.to_thread(cars.post, "/v1/observations", moved)
        found: list[Any] = []
        while len(found) < 2:
            found += json.loads(await client.recv())["events"]
    assert [one["fields"]["lat"] for one in found] == [75.0, 76.0]


async def test_same_events_over_websocket(cars: ServedProcess) -> None:
    place = urlsplit(cars.url).netloc
    beep(cars, range(3), "Car/w")
    async with (
        asyncio.timeout(240),
        connect(f"ws://{place}/v1/events?agent=Car/w&since=2020-01-01T00:00:00Z") as client,
    ):
        found: list[Any] = []
        last = ""
        while len(found) < 3:
            said = json.loads(await client.recv())
            found += said["events"]
            last = said["last_event_id"]
    assert numbers_of(found) == {"Car/w": [0, 1, 2]}
    async with asyncio.timeout(240), connect(f"ws://{place}/v1/events?agent=Car/w&after={last}") as client:
        await asyncio.to_thread(beep, cars, range(3, 5), "Car/w")
        while len(found) < 5:
            found += json.loads(await client.recv())["events"]
    assert numbers_of(found) == {"Car/w": [0, 1, 2, 3, 4]}
    with pytest.raises(InvalidStatus) as refused:
        async with connect(f"ws://{place}/v1/events", origin="https://evil.example"):  # type: ignore[arg-type]
            pass
    assert refused.value.response.status_code == 403


def test_stream_ends_when_its_token_is_revoked(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    made = cli(folder, "token", "create", "reader", "--scope", "read", "--tokens", "delivery.db.tokens", "--json")
    token = json.loads(made.stdout)["token"]
    node = run_served(folder)
    try:
        client = SseClient(node, headers={"Authorization": f"Bearer {token}"})
        assert client.status == 200
        assert cli(folder, "token", "revoke", "reader", "--tokens", "delivery.db.tokens").returncode == 0
        kind, data = client.next()
        assert kind == "dropped"
        assert "token" in data["reason"]
        client.close()
        without = SseClient(node)
        assert without.status == 401
        without.close()
    finally:
        assert node.end() == 0


def test_stream_beside_a_node_goes_on_after_its_restart(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    node = run_served(folder)
    beside = ServedProcess(folder, "serve", "drone:fleet", "--listen", ":0")
    try:
        client = SseClient(beside, "?kind=Drone&type=MissionStarted")
        node.post("/v1/agents/Drone/a/StartMission", {"mission": "M1"})
        assert client.take(1)[0]["fields"]["mission"] == "M1"
        node.end()
        node = run_served(folder)
        node.post("/v1/agents/Drone/a/StartMission", {"mission": "M2"})
        assert client.take(1)[0]["fields"]["mission"] == "M2"
        client.close()
    finally:
        assert beside.end() == 0
        node.end()
