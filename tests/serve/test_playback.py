"""A log that is played back: `serve --log` with a journal and with a flight log, and what it refuses."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.serve.rig import ServedProcess, SseClient, cli
from tests.serve.test_map import looking, make_town, move, run_town

MOVES = 12


def fly(folder: Path) -> None:
    """Two drones that move in turns, on a node that ends."""
    node = run_town(folder)
    for number in range(MOVES):
        move(node, "ab"[number % 2], 30.0 + number, 20.0)
        time.sleep(0.02)
    assert node.post("/v1/agents/Drone/c/Move", {"lat": 5.0, "lon": 6.0}).status == 200
    assert node.end() == 0


def play_back(folder: Path, log: str) -> ServedProcess:
    return ServedProcess(folder, "serve", "town:fleet", "--log", log, "--listen", "127.0.0.1:0")


@pytest.fixture(scope="module")
def flown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_town(tmp_path_factory.mktemp("flown"))
    fly(folder)
    made = cli(folder, "log", "export", "--flight", "flight-1.log")
    assert made.returncode == 0, made.stderr
    return folder


def events_since(served: ServedProcess, query: str, count: int) -> list[Any]:
    client = SseClient(served, query)
    found = [client.next()[1] for _ in range(count)]
    client.close()
    return found


def places_of(events: list[Any]) -> list[tuple[int, int, int]]:
    return [(one["shard"], one["position"], one["index"]) for one in events]


@pytest.mark.parametrize("log", ["town.db", "flight-1.log"])
async def test_log_is_played_back(flown: Path, log: str) -> None:
    served = play_back(flown, log)
    try:
        page = served.get("/v1/page").json
        assert (page["mode"], page["scopes"]) == ("replay", ["read"])
        events = events_since(served, f"?since={page['from']}", MOVES + 1)
        times = [one["time"] for one in events]
        assert times == sorted(times), "both shards in one order"
        assert [one["fields"]["lat"] for one in events[:MOVES]] == [30.0 + number for number in range(MOVES)]
        assert page["from"] <= times[0] <= times[-1] <= page["to"]
        for number in (5, 6, 11, 2, 3):
            found = served.get(f"/v1/map?at={times[number]}").json
            places = {name: found["y"][place] for place, (name, _) in enumerate(found["names"])}
            assert places[f"Drone/{'ab'[number % 2]}"] == 30.0 + number
            assert len(places) == 2
            state = served.get(f"/v1/agents/Drone/{'ab'[number % 2]}?at={times[number]}").json
            assert state["state"]["lat"] == 30.0 + number
            listed = served.get(f"/v1/agents?kind=Drone&at={times[number]}&where=lat>={30.0 + number}").json["agents"]
            assert [one["agent"] for one in listed] == [f"Drone/{'ab'[number % 2]}"]
        assert "later than this moment" in served.get("/v1/agents?at=2020-01-01T00:00:00Z").json["detail"]
        mine = events_since(served, f"?since={times[8]}&agent=Drone/a", 2)
        assert places_of(mine) == places_of([events[8], events[10]])
        assert places_of(events_since(served, f"?after={events[8]['id']}", 2)) == places_of(events[9:11])
        assert served.get("/v1/agents/Drone/c").json["state"]["lat"] == 5.0
        explained = served.get("/v1/agents/Drone/c/explain").json
        assert [entry["type"].partition("@")[0] for entry in explained["entries"]] == ["Move", "Moved"]
        listed = served.get("/v1/agents?kind=Drone&where=lat>20").json["agents"]
        assert [one["agent"] for one in listed] == ["Drone/a", "Drone/b"]
        assert served.get("/v1/status").json["agents"] == 3
        log = events[8]["id"].partition("@")[2].partition(":")[0]  # It may have fewer than eight digits.
        other = served.get(f"/v1/events?after={events[8]['id'].replace(log, '0' * 8)}")
        assert (other.status, f"of the log {'0' * 8}" in other.json["detail"]) == (400, True), "of another log"
        refused = served.post("/v1/agents/Drone/c/Move", {"lat": 1.0, "lon": 1.0})
        observed = {"agent": "Drone/c", "event": "Moved", "fields": {"lat": 1.0, "lon": 1.0}}
        for answer in (
            refused,
            served.post("/v1/observations", observed),
            served.post("/v1/observations", [observed]),
        ):
            assert answer.status == 409, "trying again is of no use"
            assert answer.json["detail"].startswith("a log that is played back takes no commands")
            assert "retry_after_s" not in answer.json
            assert "Request" not in answer.text
        async with looking(served) as reader:
            await reader.wait("Drone/c", 6.0, 5.0)
            assert len(reader.places) == 3, "the map is that of the end"
    finally:
        assert await asyncio.to_thread(served.end) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--log", "none.db"), "none.db"),
        (("--log", "town.db", "--journal", "other.db"), "give one of both"),
        (("--log", "zones.geojson"), "zones.geojson"),
    ],
)
def test_what_cannot_be_played_back_is_refused(flown: Path, arguments: tuple[str, ...], said: str) -> None:
    refused = cli(flown, "serve", "town:fleet", "--listen", "127.0.0.1:0", *arguments)
    assert refused.returncode not in (0, 1)
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr


def test_log_without_its_beginning_is_refused(tmp_path: Path) -> None:
    folder = make_town(tmp_path)
    fly(folder)
    time.sleep(1.1)
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    node = run_town(folder)
    move(node, "late", 3.0, 3.0)
    assert node.end() == 0
    made = cli(folder, "log", "export", "--flight", "late.log", "--since", since)
    assert made.returncode == 0, made.stderr
    refused = cli(folder, "serve", "town:fleet", "--log", "late.log", "--listen", "127.0.0.1:0")
    assert refused.returncode != 0
    assert "the log begins at position" in refused.stderr


VIEW = """
import stigmergy as st


class Moves(st.View):
    agent: st.Key[str]
    moves: int = 0

    @st.project
    def count(self, event: Moved) -> None:
        self.moves += 1


fleet = st.Fleet("town", agents=[Drone], views=[Moves])
"""


def test_a_log_has_no_views(flown: Path, tmp_path: Path) -> None:
    source = (flown / "town.py").read_text(encoding="utf-8")
    (tmp_path / "town.py").write_text(source + VIEW, encoding="utf-8")
    (tmp_path / "zones.geojson").write_bytes((flown / "zones.geojson").read_bytes())
    node = run_town(tmp_path)
    move(node, "a", 1.0, 2.0)
    assert node.end() == 0
    served = play_back(tmp_path, "town.db")
    try:
        for path in ("/v1/views", "/v1/views/Moves"):
            answer = served.get(path)
            assert (answer.status, "a log has no views" in answer.json["detail"]) == (503, True), answer
    finally:
        assert served.end() == 0
