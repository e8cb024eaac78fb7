"""The command line and a fleet on several owners over a real NATS server: who is asked, told and refused."""

import asyncio
import json
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stigmergy.app.cluster_client import ClusterClient
from stigmergy.base.errors import NotRunning
from stigmergy.cli.display import exits
from stigmergy.cli.display.places import load_fleet
from stigmergy.cli.main import main
from stigmergy.control.protocol import SendRequest, StatusRequest, answers_to
from stigmergy.shard.homes import shard_of
from stigmergy.testing.nats import NatsCluster, start_single
from tests.cli.hamlet import Hamlet

TOWN = """
from stigmergy import Agent, Command, Effects, Event, Events, Fleet, Tell, decide, evolve, react, reject


class Report(Command):
    seen: str


class Reported(Event):
    seen: str


class Heard(Event):
    by: str
    seen: str


def zone_of(address: str) -> str:
    return address.partition("/")[2].partition("-")[0]


class Scout(Agent):
    reports: int = 0
    level: float = 0.0

    @decide
    def report(self, command: Report) -> Events:
        if not command.seen:
            reject("nothing was seen")
        yield Reported(seen=command.seen)

    @evolve
    def reported(self, event: Reported) -> None:
        self.reports += 1

    @react
    def tell(self, event: Reported) -> Effects:
        yield Tell("Tower/hill-1", Heard(by=self.address, seen=event.seen))


class Tower(Agent):
    heard: tuple[str, ...] = ()

    @evolve
    def hear(self, event: Heard) -> None:
        self.heard = (*self.heard, event.by + " " + event.seen)


fleet = Fleet("town", agents=[Scout, Tower], shards=4, shard_by=zone_of)
"""
MODULE = "town_on_nats"
ZONES = ("harbour", "market", "mill", "quay", "hill")


class Scene:
    """A hamlet that lives in a thread, and the program run beside it."""

    def __init__(self, folder: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        (folder / f"{MODULE}.py").write_text(TOWN, encoding="utf-8")
        self._capsys = capsys
        self.url = url
        self.fleet = load_fleet(f"{MODULE}:fleet", folder)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.hamlet: Hamlet | None = None

    def do(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    def start(self) -> Hamlet:
        self.hamlet = self.do(lambda: Hamlet.start(self.url, self.fleet))
        return self.hamlet

    def cli(self, *arguments: str, nats: bool = True) -> tuple[int, str, str]:
        place = ("--nats", self.url, "--fleet", f"{MODULE}:fleet") if nats else ()
        self._capsys.readouterr()
        code = main([*arguments, *place])
        out, err = self._capsys.readouterr()
        return code, out, err

    def json(self, *arguments: str) -> Any:
        code, out, err = self.cli(*arguments, "--json")
        assert code == exits.OK, (out, err)
        return json.loads(out)

    def error(self, *arguments: str, code: int) -> str:
        found, out, err = self.cli(*arguments)
        assert (found, out) == (code, ""), err
        return err

    def close(self) -> None:
        if self.hamlet is not None:
            self.do(self.hamlet.stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with start_single(tmp_path_factory.mktemp("server")) as single:
        yield single


@pytest.fixture
def scene(
    tmp_path: Path, server: NatsCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    monkeypatch.chdir(tmp_path)
    scene = Scene(tmp_path, server.url, capsys)
    yield scene
    scene.close()
    sys.modules.pop(MODULE, None)


def test_commands_reach_the_owner_of_each_agent_and_tells_cross_between_owners(scene: Scene) -> None:
    scene.start()
    assert len({shard_of(zone, 4) for zone in ZONES}) > 2
    for number, zone in enumerate(ZONES):
        answer = scene.json("send", f"Scout/{zone}-1", "Report", f"seen=ship {number}", "--command-id", f"c{number}")
        assert answer["accepted"]
        again = scene.json("send", f"Scout/{zone}-1", "Report", f"seen=ship {number}", "--command-id", f"c{number}")
        assert again["position"] == answer["position"], "the same command again does nothing"
        assert scene.json("state", f"Scout/{zone}-1")["state"]["reports"] == 1
    scene.json("observe", "Scout/quay-1", "Reported", "seen=smoke")
    heard: list[str] = []
    for _ in range(200):
        heard = scene.json("state", "Tower/hill-1")["state"]["heard"]
        if len(heard) == len(ZONES) + 1:
            break
    assert sorted(heard) == sorted(["Scout/quay-1 smoke", *(f"Scout/{z}-1 ship {n}" for n, z in enumerate(ZONES))])
    code, out, _ = scene.cli("send", "Scout/mill-1", "Report", "seen=")
    assert (code, "nothing was seen" in out) == (exits.REFUSED, True)


def test_status_and_letters_speak_for_all_shards_and_name_those_without_an_owner(scene: Scene) -> None:
    hamlet = scene.start()
    for zone in ZONES:
        scene.json("send", f"Scout/{zone}-1", "Report", "seen=ship")
    found = scene.json("status")
    assert (found["fleet"], len(found["processes"]), found["troubles"]) == ("town", 4, [])
    assert found["agents"] >= len(ZONES)
    assert scene.cli("letters")[0] == exits.OK
    scene.do(hamlet.owners[2].stop)
    found = scene.json("status")
    assert [one["pid"] is None for one in found["processes"]] == [False, False, True, False]
    (trouble,) = found["troubles"]
    assert trouble.startswith("shard 2 has no owner that answers")
    code, out, _ = scene.cli("status")
    assert code == exits.OK
    assert "4 shards on nats://" in out
    assert re.search(r"log +\d+ events, 3 shards, (positions \d+ to|each at) \d+\n", out), "in one line"
    table = out[out.index("HOST") :].splitlines()[1:3]
    assert re.match(r"\S+ +\d+ +0-1, 3 ", table[0]), "one line a process"
    assert re.match(r"nobody +2 *$", table[1]), "and one for what nobody has"


def test_a_command_waits_for_a_shard_that_moves_and_is_done_once(scene: Scene) -> None:
    hamlet = scene.start()
    shard = shard_of("mill", 4)
    scene.do(hamlet.owners[shard].stop)

    async def later() -> None:
        await asyncio.sleep(1.0)
        await hamlet.owners[shard].start()

    arriving = threading.Thread(target=lambda: scene.do(later))
    arriving.start()
    assert scene.json("send", "Scout/mill-1", "Report", "seen=ship", "--command-id", "once")["accepted"]
    arriving.join()
    assert scene.json("state", "Scout/mill-1")["state"]["reports"] == 1


def test_nobody_there_wrong_places_and_wrong_agents_are_said_clearly(scene: Scene, server: NatsCluster) -> None:
    assert "no worker of the fleet 'town' answers at nats://" in scene.error("status", code=exits.NOT_RUNNING)
    error = scene.error("send", "Scout/mill-1", "Report", "seen=x", code=exits.NOT_RUNNING)
    assert "a majority of the servers and a worker must run" in error
    assert "send it again with --command-id" in error
    scene.start()
    error = scene.error("send", "Lighthouse/hill-1", "Report", "seen=x", code=exits.USAGE)
    assert "Lighthouse" in error
    assert "Scout" in error
    assert "command" in scene.error("send", "Scout/mill-1", "Dance", code=exits.USAGE)
    place = ("--fleet", f"{MODULE}:fleet")
    for url, said, code in (
        ("nats://127.0.0.1:1", "Connection refused; check the URL, and that the server runs", exits.NOT_RUNNING),
        ("http://hub", "give a URL like nats://hub:4222", exits.USAGE),
    ):
        found, _, err = scene.cli("state", "Scout/mill-1", "--nats", url, *place, nats=False)
        assert (found, said in err) == (code, True), err
    found, _, err = scene.cli(
        "send", "Scout/mill-1", "Report", "seen=x", "--nats", "nats://127.0.0.1:1", *place, nats=False
    )
    assert (found, "unknown" in err) == (exits.NOT_RUNNING, False), err  # nobody can have taken it
    found, _, err = scene.cli("state", "Scout/mill-1", "--nats", server.url, nats=False)
    assert (found, "give --fleet MODULE:FLEET beside --nats" in err) == (exits.USAGE, True)
    assert "give one of them" in scene.error("state", "Scout/mill-1", "--socket", "x.sock", code=exits.USAGE)


def test_a_program_asks_again_and_again_over_one_connection(scene: Scene) -> None:
    scene.start()
    client = ClusterClient(scene.url, scene.fleet)
    for number in range(5):
        send = SendRequest(
            agent=f"Scout/{ZONES[number]}-9", command="Report", fields={"seen": "x"}, command_id=str(number)
        )
        (answer,) = answers_to(client.ask(send))
        assert answer.accepted
    replies = client.ask(StatusRequest())
    found = next(replies).ok
    assert found is not None
    assert found.agents >= 5
    with pytest.raises(NotRunning):
        next(replies)
    client.close()
