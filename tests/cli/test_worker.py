"""`stigmergy worker` on a real server, as its users run it: what it says, what it refuses, and all that a shard takes
along when it moves: its place on the bus, the fields it shares, its claims and its sensors."""

import asyncio
import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from stigmergy.app.cluster_client import ClusterClient
from stigmergy.base.errors import ConfigError
from stigmergy.base.system import SystemEntropy
from stigmergy.bus.port import BusMessage
from stigmergy.cli.display.places import load_fleet
from stigmergy.cli.main import main
from stigmergy.control.protocol import ProfileRequest, Request, SendRequest, StateRequest, WhereRequest, answers_to
from stigmergy.control.replies import WhereReply
from stigmergy.metrics.profile import Profile
from stigmergy.nats.bus import open_bus
from stigmergy.testing.nats import NatsCluster, start_single
from tests.formats.manual import tables
from tests.warm import Warm

R = TypeVar("R")
WAIT_S_MAX = 240.0
SURVEY = """
from stigmergy import (
    Agent, Claim, Command, Denied, Effects, Event, Events, Fleet, Granted, Ordered, ORSet, Publish, Shared, WakeMe,
    Woken, decide, evolve, ordered, react, shared,
)


class Look(Command):
    at: str


class Looked(Event):
    at: str


class Measured(Event):
    level: float


class Scout(Agent):
    looks: tuple[str, ...] = ()
    measured: int = 0
    seen: Shared[ORSet[str]] = shared(by="town")
    tower: Ordered[Claim] = ordered(of="tower")
    tokens: tuple[int, ...] = ()

    @decide
    def look(self, command: Look) -> Events:
        yield Looked(at=command.at)
        yield self.seen.add(command.at)

    @evolve
    def looked(self, event: Looked) -> None:
        self.looks = (*self.looks, event.at)

    @react
    def say(self, event: Looked) -> Effects:
        yield Publish("looks", event)
        yield self.tower.claim(for_s=2)

    @evolve
    def granted(self, verdict: Granted) -> None:
        self.tokens = (*self.tokens, verdict.token)

    @evolve
    def level(self, event: Measured) -> None:
        self.measured += 1


fleet = Fleet("survey", agents=[Scout], shards=4)


@fleet.sensor(Scout, every_s=0.2)
async def read_level(name: str) -> Measured:
    return Measured(level=1.0)
"""
PLAIN = """
from stigmergy import Agent, Command, Event, Events, Fleet, decide, evolve


class Look(Command):
    at: str


class Looked(Event):
    at: str


class Scout(Agent):
    looks: int = 0

    @decide
    def look(self, command: Look) -> Events:
        yield Looked(at=command.at)

    @evolve
    def looked(self, event: Looked) -> None:
        self.looks += 1


fleet = Fleet("{name}", agents=[Scout], shards={shards})
"""


def watched(module: str) -> str:
    """With a safe action on silence."""
    safe = """from stigmergy import Action, Order, WhenStale


class Measured(Event):
    level: float


class Close(Action):
    pass


class Scout(Agent):
    stale = WhenStale(Measured, after_s=0.2, then=Close())

    @evolve
    def measured(self, event: Measured) -> None:
        pass

"""
    actuator = """

@fleet.actuator(Close)
def close(order: Order[Close]) -> None:
    pass
"""
    return module.replace("class Scout(Agent):\n", safe) + actuator


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with start_single(tmp_path_factory.mktemp("server")) as cluster:
        yield cluster


class Crew:
    """Workers in one folder."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self._running: list[subprocess.Popen[str]] = []

    def start(self, name: str, module: str, *options: str) -> "Mate":
        command = ["worker", f"{module}:fleet", "--json", "--nats", self.url, "--name", name, *options]
        log = self.folder / f"{name}.jsonl"
        with log.open("wb") as out:
            process = Warm(*command, cwd=self.folder, stdout=out, stderr=subprocess.STDOUT)
        self._running.append(process)
        return Mate(name, process, log)

    def asking(self, module: str) -> "Client":
        return Client(self.url, self.folder, module)

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.wait(30)


class Client:
    """Asks the workers, as the command line does with --nats."""

    def __init__(self, url: str, folder: Path, module: str) -> None:
        self._client = ClusterClient(url, load_fleet(f"{module}:fleet", folder))

    def look(self, agent: str, at: str) -> None:
        reply = self._ask(SendRequest(agent=agent, command="Look", fields={"at": at}, command_id=f"{agent} {at}"))
        assert reply.accepted

    def state(self, agent: str) -> dict[str, Any]:
        return self._ask(StateRequest(agent=agent)).state

    def where(self, agent: str) -> WhereReply:
        return self._ask(WhereRequest(agent=agent))

    def profile(self, worker: str) -> Profile:
        return self._ask(ProfileRequest(seconds=0.2, worker=worker))

    def _ask(self, request: Request[R]) -> R:
        with closing(self._client.ask(request)) as replies:
            (found,) = answers_to(replies)
            return found

    def close(self) -> None:
        self._client.close()


class Mate:
    """One worker."""

    def __init__(self, name: str, process: subprocess.Popen[str], log: Path) -> None:
        self.name = name
        self.process = process
        self._log = log

    def said(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("event") == event]

    def events(self) -> dict[str, dict[str, Any]]:
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]
        return {line["event"]: line for line in lines if "event" in line}

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S_MAX)

    @property
    def text(self) -> str:
        return self._log.read_text()


def wait_for(what: Callable[[], Any], mates: list[Mate]) -> Any:
    deadline_s = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < deadline_s:
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError(f"it did not come; they said {[mate.text[-2000:] for mate in mates]}")


@pytest.fixture
def crew(tmp_path: Path, server: NatsCluster) -> Iterator[Crew]:
    crew = Crew(tmp_path, server.url)
    yield crew
    crew.end()


def test_workers_take_their_shares_answer_and_hand_over(crew: Crew) -> None:
    (crew.folder / "worker_plain.py").write_text(watched(PLAIN.format(name="plain", shards=4)), encoding="utf-8")
    one = crew.start("one", "worker_plain")
    wait_for(lambda: len(one.said("owns")) == 4, [one])
    client = crew.asking("worker_plain")
    for number in range(4):
        client.look(f"Scout/{number}", "harbour")
    # Nothing is measured: each agent is made safe, and the log and the documents have it as those of a node do.
    wait_for(lambda: len(one.said("safe action")) == 4 and one.text.count('"safe-action"') == 4, [one])
    assert {(said["agent"], said["action"], said["because"]) for said in one.said("safe action")} == {
        (f"Scout/{number}", "Close", "no Measured for 0.2 s") for number in range(4)
    }
    two = crew.start("two", "worker_plain")
    wait_for(lambda: len(two.said("owns")) == 2, [one, two])
    assert sorted(fields["shard"] for fields in one.said("released")) == sorted(
        fields["shard"] for fields in two.said("owns")
    )
    for number in range(4):
        assert client.state(f"Scout/{number}")["looks"] == 1
    # One name in `where`, in the membership and for --worker.
    joined = {said["worker"] for mate in (one, two) for said in mate.said("joined")}
    assert {client.where(f"Scout/{number}").owner for number in range(4)} <= joined
    for name, looked in (("two", two), (f"one-{one.process.pid}", one)):
        assert client.profile(looked.said("joined")[-1]["worker"]).process == client.profile(name).process
        assert client.profile(name).process == f"worker {looked.name}-{looked.process.pid}"
    with pytest.raises(ConfigError, match="which worker"):
        client.profile("")
    assert one.stop() == 0
    wait_for(lambda: len(two.said("owns")) == 4, [one, two])
    assert one.events()["stopped"]["reason"] == "SIGTERM"
    for number in range(4):
        client.look(f"Scout/{number}", "hill")
        assert client.state(f"Scout/{number}")["looks"] == 2
    client.close()
    assert two.stop() == 0
    documented = {row[0].strip("`"): set(row[1].replace("`", "").split(", ")) for row in tables("cli.md")["worker"]}
    for mate in (one, two):
        for event, fields in mate.events().items():
            assert set(fields) - {"event", "fleet"} == documented[event] - {""}, event


def test_all_that_a_shard_has_around_it_moves_with_it(crew: Crew) -> None:
    (crew.folder / "worker_survey.py").write_text(SURVEY, encoding="utf-8")
    options = ("--bus", crew.url, "--ledger", crew.url)
    one = crew.start("one", "worker_survey", *options)
    wait_for(lambda: len(one.said("owns")) == 4, [one])
    names = [str(number) for number in range(4)]

    async def send(at: str, every_s: float = WAIT_S_MAX) -> list[str]:
        """Commands and publications over the bus, as a device has them: sent again after a while, with the same ids."""
        heard: list[str] = []
        bus = open_bus(crew.url, "survey:local:device", SystemEntropy())

        async def hear(message: BusMessage) -> None:
            said = msgspec.json.decode(message.payload)
            if said["data"] == {"at": at}:
                heard.append(message.topic.split("/")[4])

        await bus.subscribe("survey/local/agents/+/+/events/looks", hear)
        await bus.open()
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                while not bus.is_up:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.02)
                while len(heard) < len(names):
                    for name in names:
                        said = {
                            "specversion": "1.0",
                            "id": f"{name}-{at}",
                            "source": "/device",
                            "type": "Look",
                            "data": {"at": at},
                        }
                        topic = f"survey/local/agents/Scout/{name}/commands"
                        await bus.publish(BusMessage(topic, msgspec.json.encode(said)))
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(every_s):
                            while len(heard) < len(names):  # noqa: ASYNC110 - it has no event
                                await asyncio.sleep(0.02)
        finally:
            await bus.close()
        return sorted(heard)

    # A bus keeps nothing for shards that have never subscribed yet, and they do so a moment after they have an owner.
    assert asyncio.run(send("harbour", every_s=2.0)) == names
    two = crew.start("two", "worker_survey", *options)
    wait_for(lambda: len(two.said("owns")) == 2, [one, two])
    assert asyncio.run(send("hill")) == names, "each once, wherever its shard is"

    client = crew.asking("worker_survey")

    def states() -> list[dict[str, Any]]:
        return [client.state(f"Scout/{name}") for name in names]

    def all_share() -> list[dict[str, Any]] | None:
        found = states()
        return found if all(sorted(state["seen"]) == ["harbour", "hill"] for state in found) else None

    found = wait_for(all_share, [one, two])
    assert [state["looks"] for state in found] == [["harbour", "hill"]] * 4
    # One that asks again while it holds the tower is told the same token again.
    tokens = [token for state in found for token in sorted(set(state["tokens"]))]
    assert tokens, "somebody was granted the tower"
    assert len(tokens) == len(set(tokens)), "no two have the same token"
    before = [state["measured"] for state in states()]
    one.process.kill()
    wait_for(lambda: len(two.said("owns")) == 4, [one, two])
    wait_for(
        lambda: all(now["measured"] > then for now, then in zip(states(), before, strict=True)), [two]
    )  # sensors run where the shard is
    assert asyncio.run(send("market")) == names
    client.close()
    assert two.stop() == 0


def test_a_second_signal_ends_at_once(crew: Crew) -> None:
    (crew.folder / "worker_slow.py").write_text(
        PLAIN.format(name="slow", shards=1)
        + """
import time
from stigmergy import Action, Effects, Order, react


class Wait(Action):
    pass


class Slow(Agent):
    @decide
    def look(self, command: Look) -> Events:
        yield Looked(at=command.at)

    @react
    def wait(self, event: Looked) -> Effects:
        yield Wait()


fleet = Fleet("slow", agents=[Slow], shards=1)


@fleet.actuator(Wait)
async def hold(order: Order[Wait]) -> None:
    import asyncio
    await asyncio.sleep(60)
""",
        encoding="utf-8",
    )
    one = crew.start("one", "worker_slow")
    wait_for(lambda: one.said("owns"), [one])
    client = crew.asking("worker_slow")
    client.look("Slow/a", "x")
    client.close()
    one.process.send_signal(signal.SIGTERM)
    wait_for(lambda: one.said("leaving"), [one])
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(WAIT_S_MAX) == -signal.SIGTERM


def test_what_cannot_be_is_refused_with_what_to_do(
    crew: Crew,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    town = PLAIN.format(name="town", shards=4)
    zoned = town.replace("fleet =", "def zone_of(address: str) -> str:\n    return address\n\n\nfleet =")
    for name, text in {
        "worker_town": town,
        "worker_fresh": PLAIN.format(name="fresh", shards=1),
        "worker_more": PLAIN.format(name="town", shards=8),
        "worker_zoned": zoned.replace("shards=4", "shards=4, shard_by=zone_of"),
        "worker_needy": SURVEY.replace('"survey"', '"needy"'),
        "worker_other": town.replace("looks: int = 0", "looks: int = 0\n    height: float = 0.0"),
    }.items():
        (crew.folder / f"{name}.py").write_text(text, encoding="utf-8")
    one = crew.start("one", "worker_town")
    wait_for(lambda: len(one.said("owns")) == 4, [one])
    monkeypatch.chdir(crew.folder)
    with start_single(tmp_path_factory.mktemp("bare"), has_jetstream=False) as without:
        cases = [
            (("worker_town", "http://hub"), 2, "give a URL like nats://hub:4222"),
            (("worker_town", "nats://127.0.0.1:1"), 3, "check the URL, and that the server runs"),
            (("worker_town", without.url), 2, "runs without JetStream"),
            (("worker_town", f"{crew.url}?replicas=2"), 2, "give 1, 3 or 5"),
            (("worker_town", f"{crew.url}?replicas=3"), 4, "Nothing was changed: give the settings it was made with"),
            (("worker_fresh", f"{crew.url}?replicas=3"), 2, "replicas"),
            (("worker_town", crew.url, "--bus", "mqtt://hub"), 2, "workers share a bus on NATS"),
            (("worker_needy", crew.url), 2, "needs a bus (Scout.seen is shared; Scout publishes) and a ledger"),
            (("worker_needy", crew.url, "--bus", crew.url), 2, f'write ledger = "{crew.url}?replicas=1" under [fleet]'),
            (("worker_needy", crew.url, "--bus", crew.url, "--ledger", "sqlite:l.db"), 2, "two agents could hold the"),
            (("worker_more", crew.url), 2, "runs with 4 shards, and this module declares 8"),
            (("worker_zoned", crew.url), 2, "runs with no shard_by, and this module declares shard_by=zone_of"),
            (("worker_other", crew.url), 2, "runs Scout with other fields; run the same code in all workers"),
            (("worker_nowhere", crew.url), 2, "there is no module 'worker_nowhere'"),
        ]
        for (module, url, *options), code, sentence in cases:
            found = main(["worker", f"{module}:fleet", "--nats", url, "--key", "refused.key", *options])
            said = capsys.readouterr()
            assert found == code, (module, url, said)
            assert sentence in said.err, (module, url, said)
            assert not Path("refused.key").exists(), f"{module} was refused, and left a key behind"
    assert one.process.poll() is None
    assert one.said("lost") == []
