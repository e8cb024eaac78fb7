"""`stigmergy up` as its users run it: a real cluster, parts of it killed, and its end in order."""

import asyncio
import contextlib
import http.client
import json
import os
import queue
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme

from stigmergy.base.errors import LinkDown
from stigmergy.base.system import SystemEntropy
from stigmergy.bus.mqtt import open_bus as open_mqtt
from stigmergy.bus.port import Bus, BusMessage
from stigmergy.cli.display.frames import ranges
from stigmergy.diagnostics.codes import CODES
from stigmergy.nats.address import parse_address
from stigmergy.nats.bus import open_bus as open_nats
from stigmergy.nats.errors import JetStreamRefused
from stigmergy.nats.link import NatsLink
from stigmergy.nats.streams import ensure_stream
from stigmergy.shard.homes import shard_of
from tests.cli.conftest import DRONE, VIEWS, Folder
from tests.cli.in_process import Here
from tests.cli.terminal import in_terminal
from tests.disks import small_disk

WAIT_S = 240.0
PROGRAM = [sys.executable, "-m", "stigmergy"]
FLEET = DRONE.replace('Fleet("delivery", agents=[Drone]', 'Fleet("delivery", agents=[Drone], shards=4')


HALL = """
import stigmergy as st


class Note(st.Command):
    text: str


class Noted(st.Event):
    text: str


class Cart(st.Agent):
    board: st.Shared[st.ORSet[str]] = st.shared(by="hall")
    dock: st.Ordered[st.Claim] = st.ordered(of="dock-1")
    granted: int = 0
    denied: str = ""

    @st.decide
    def note(self, command: Note) -> st.Events:
        yield Noted(text=command.text)
        yield self.board.add(command.text)

    @st.react
    def tell(self, event: Noted) -> st.Effects:
        yield st.Publish("notes", event)
        yield self.dock.claim(for_s=600)

    @st.evolve
    def grants(self, verdict: st.Granted) -> None:
        self.granted = verdict.token

    @st.evolve
    def denials(self, verdict: st.Denied) -> None:
        self.denied = verdict.reason


fleet = st.Fleet("hall", agents=[Cart], shards=4)
"""


class Up:
    """A running `stigmergy up --json`, and what it says."""

    def __init__(self, folder: Folder, *arguments: str) -> None:
        self.folder = folder
        self.said: list[dict[str, Any]] = []
        self.log: list[str] = []
        """What it wrote to stderr."""
        self._lines: queue.Queue[str] = queue.Queue()
        self.process = subprocess.Popen(
            [*PROGRAM, "up", *arguments, "--json"],
            cwd=folder.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._log_reader = threading.Thread(target=self._read_log, daemon=True)
        self._log_reader.start()

    def wait(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next document that fits, behind what was waited for before."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                line = self._lines.get(timeout=max(0.1, deadline_s - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"it never came; {self.said[-10:]}") from None
            self.said.append(json.loads(line))
            if fits(self.said[-1]):
                return self.said[-1]

    def poll(self) -> bool:
        """Takes what was said meanwhile."""
        while not self._lines.empty():
            self.said.append(json.loads(self._lines.get()))
        return False

    def wait_event(self, event: str, process: str = "") -> dict[str, Any]:
        return self.wait(lambda one: one.get("event") == event and one.get("process", "") == process)

    def wait_said(self, process: str, event: str) -> dict[str, Any]:
        return self.wait(lambda one: one.get("process") == process and one.get("said", {}).get("event") == event)

    def heard(self) -> list[dict[str, Any]]:
        """All that it has said up to now."""
        while not self._lines.empty():
            self.said.append(json.loads(self._lines.get()))
        return self.said

    def pid_of(self, process: str) -> int:
        return [int(one["pid"]) for one in self.said if one["event"] == "started" and one["process"] == process][-1]

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        code = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        self._log_reader.join(WAIT_S)
        self.heard()
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(WAIT_S)
        self._log_reader.join(WAIT_S)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"


def eventually(check: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    (tmp_path / "drone.py").write_text(FLEET, encoding="utf-8")
    (tmp_path / "hall.py").write_text(HALL, encoding="utf-8")
    (tmp_path / "viewed.py").write_text(FLEET + VIEWS, encoding="utf-8")
    folder, begun = Here(tmp_path), list[Up]()

    def begin(*arguments: str) -> Up:
        begun.append(Up(folder, *arguments))
        return begun[-1]

    yield begin
    for one in begun:
        one.close()


def test_a_cluster_lives_through_kills_and_goes_on_after_its_end(here: Callable[..., Up]) -> None:
    """In one go: a cluster is not made for each of these."""
    up = here("drone:fleet", "--nodes", "3", "--workers", "2")
    begun = up.wait_event("begun")
    url = up.wait_event("up")["nats"]
    assert begun["nats"] == url
    up.wait(lambda one: owned(up) == {0, 1, 2, 3})

    sent = up.folder.json("send", "Drone/D-1", "StartMission", "mission=M1", "--nats", url, "--fleet", "drone:fleet")
    assert sent["accepted"] is True

    where = up.folder.cli("where", "Drone/D-1", "--nats", url, "--fleet", "drone:fleet").stdout
    assert where.startswith(f"Drone/D-1  shard-{shard_of('Drone/D-1', 4)}  it lives in shard")

    # A worker that begins later, or loses its lease where all is slow, has none for a moment.
    eventually(lambda: len(up.folder.json("status", "--nats", url)["fleets"][0]["workers"]) == 2)
    status = up.folder.json("status", "--nats", url)
    assert [server["is_up"] for server in status["servers"]] == [True, True, True]
    assert {server["sync"] for server in status["servers"]} == {"always"}
    (fleet,) = status["fleets"]
    assert (fleet["fleet"], len(fleet["workers"]), len(fleet["shards"])) == ("delivery", 2, 4)
    assert {shard["worker"] for shard in fleet["shards"]} <= {"", *(worker["id"] for worker in fleet["workers"])}
    assert {stream["replicas"] for stream in status["streams"]} == {3}
    assert [one["fleet"] for one in up.folder.json("status", "--nats", url, "delivery")["fleets"]] == ["delivery"]
    assert "there is no fleet 'other'" in up.folder.error("status", "--nats", url, "other", code=2)

    again = up.folder.error("up", code=3)
    assert f"process {up.process.pid}" in again
    assert url in again

    os.kill(up.pid_of("n1"), signal.SIGKILL)
    assert up.wait_event("ended", "n1")["code"] == -signal.SIGKILL
    up.wait_event("started", "n1")
    os.kill(up.pid_of("worker-1"), signal.SIGKILL)
    up.wait_event("ended", "worker-1")
    up.wait_said("worker-1", "joined")

    assert up.end() == 0
    events = [(one.get("process"), one.get("said", one).get("event")) for one in up.said]
    assert events[-1] == (None, "stopped")
    assert ("worker-1", "stopped") in events
    assert ("worker-2", "stopped") in events
    pids = {int(one["pid"]) for one in up.said if one["event"] == "started"}
    assert not [pid for pid in sorted(pids) if runs(pid)]
    check_the_log(up)

    later = here("drone:fleet", "--nodes", "3", "--workers", "1")
    assert later.wait_event("up")["nats"] == url
    later.wait(lambda one: owned(later) == {0, 1, 2, 3})
    state = later.folder.json("state", "Drone/D-1", "--nats", url, "--fleet", "drone:fleet")
    assert state["state"]["mission"] == "M1"
    later.process.send_signal(signal.SIGKILL)
    pids = {int(one["pid"]) for one in later.said if one["event"] == "started"}
    eventually(lambda: not any(runs(pid) for pid in sorted(pids)))


def check_the_log(up: Up) -> None:
    """Lines of the workers come through as they are, beside those of `up`; all are lines of JSON with a code."""
    log = [json.loads(line) for line in up.log]
    assert {one["code"] for one in log} <= set(CODES)
    workers = [line for line, one in zip(up.log, log, strict=True) if one.get("role") == "worker"]
    files = "".join((up.folder.path / "stigmergy-cluster" / f"worker-{one}.log").read_text() for one in (1, 2))
    assert workers
    assert all(line in files for line in workers)
    owns = [one for one in log if one["code"] == "shard-owned"]
    assert {one["shard"] for one in owns} == {0, 1, 2, 3}
    assert {one["node"].partition("-")[0] for one in owns} <= {"w1", "w2"}
    ended = [one["message"] for one in log if one["code"] == "child-ended"]
    assert any(text.startswith("n1 ended by SIGKILL") for text in ended)
    assert any(text.startswith("worker-1 ended by SIGKILL") for text in ended)
    assert (log[-1]["role"], log[-1]["code"]) == ("up", "node-stopped")


def owned(up: Up) -> set[int]:
    return {int(one["said"]["shard"]) for one in up.said if one.get("said", {}).get("event") == "owns"}


def test_servers_alone_on_a_terminal(tmp_path: Path) -> None:
    with in_terminal([*PROGRAM, "up", "--nodes", "1"], tmp_path, columns=120, lines=40) as terminal:
        terminal.wait_text("Ctrl-C ends it", "stigmergy status --nats", "1 of 1 server up", "one server, no replicas")
        assert "n1" in terminal.text
        (url,) = {line.split()[-1] for line in terminal.text.splitlines() if "look at it:" in line}
        watch = [*PROGRAM, "status", "--nats", url, "--watch"]
        with in_terminal(watch, tmp_path, columns=100, lines=20) as watching:
            watching.wait_text("1 of 1 server up", "always", "quit")
            watching.press("q")
            assert watching.wait_end() == 0
        terminal.press("\x03")
        assert terminal.wait_end() == 0
    assert "stopped (SIGINT)" in terminal.text


def test_on_a_terminal_workers_are_heard_under_their_names(tmp_path: Path) -> None:
    (tmp_path / "drone.py").write_text(FLEET, encoding="utf-8")
    command = [*PROGRAM, "up", "drone:fleet", "--nodes", "1", "--workers", "1"]
    with in_terminal(command, tmp_path, columns=200, lines=40) as terminal:
        terminal.wait_text("look at it:", "all 4 shards have an owner")
        (url,) = {line.split()[-1] for line in terminal.text.splitlines() if "look at it:" in line}
        for _ in range(2):
            Here(tmp_path).cli("send", "Drone/D-1", "Stumble", "--nats", url, "--fleet", "drone:fleet")
        terminal.wait_text("worker-1: Drone/D-1 is stopped: ", "[agent-stopped]")
        terminal.press("\x03")
        assert terminal.wait_end() == 0
    assert '"code"' not in terminal.text


def test_a_second_signal_ends_at_once(here: Callable[..., Up]) -> None:
    up = here("--nodes", "1")
    up.wait_event("up")
    server = up.pid_of("n1")
    os.kill(server, signal.SIGSTOP)
    up.process.send_signal(signal.SIGINT)
    up.wait_event("stopping")
    assert up.end(signal.SIGTERM) == 0
    assert not runs(server)


def test_a_worker_that_cannot_start_is_said_and_ends_it(here: Callable[..., Up]) -> None:
    up = here("drone:fleet", "--nodes", "1", "--workers", "1")
    (up.folder.path / "stigmergy-cluster").mkdir(exist_ok=True)
    up.wait_event("begun")
    (up.folder.path / "drone.py").write_text("fleet = 7\n")
    given_up = up.wait_event("given up", "worker-1")
    assert "not a Fleet" in given_up["error"]
    assert up.process.wait(WAIT_S) == 3
    eventually(lambda: not runs(up.pid_of("n1")))


def test_a_cluster_brings_what_the_fleet_needs(here: Callable[..., Up]) -> None:
    """Without a word about a bus or a ledger: fields that agents share converge wherever their shards are, claims are
    granted, and what is published is heard by whoever listens by NATS or by MQTT."""
    up = here("hall:fleet", "--nodes", "3", "--workers", "2")
    begun = up.wait_event("begun")
    url = begun["nats"]
    assert begun["brings"] == {"bus": f"{url}?replicas=3", "ledger": f"{url}?replicas=3"}
    assert f"--bus '{url}?replicas=3' --ledger '{url}?replicas=3'" in up.wait_event("up")["uses"]["one more worker"]
    up.wait(lambda one: owned(up) == {0, 1, 2, 3})

    by_shard = {shard_of(f"Cart/{number}", 4): f"Cart/{number}" for number in range(40)}
    carts = [by_shard[shard] for shard in range(4)]
    heard = asyncio.run(heard_while(url, begun["mqtt"], lambda: note_all(up.folder, carts, url)))
    assert heard == {"nats": set(carts), "mqtt": set(carts)}

    def states() -> list[dict[str, Any]]:
        asked = [("state", cart, "--nats", url, "--fleet", "hall:fleet") for cart in carts]
        return [up.folder.json(*one)["state"] for one in asked]

    eventually(lambda: all(sorted(state["board"]) == sorted(carts) for state in states()))
    eventually(lambda: any(state["granted"] for state in states()))
    assert not any("no ledger" in state["denied"] for state in states())
    streams = {stream["name"]: stream["replicas"] for stream in up.folder.json("status", "--nats", url)["streams"]}
    assert {streams[name] for name in ("STIG_BUS_hall", "STIG_LEDGER_hall", "STIG_LOG_hall_0_0")} == {3}
    check_what_operators_see(up.folder, url, carts)
    assert up.end() == 0


def check_what_operators_see(folder: Folder, url: str, carts: list[str]) -> None:
    """All shards are asked, and told as one fleet."""
    place = ("--nats", url, "--fleet", "hall:fleet")
    (dock,) = [json.loads(line) for line in folder.cli("claims", *place, "--json").stdout.splitlines()]
    assert dock["resource"] == "dock-1"
    assert dock["read_to"] > 0
    objects = [json.loads(line) for line in folder.cli("shared", *place, "--json").stdout.splitlines()]
    assert [(one["shard"], one["agents"], one["live"]) for one in objects] == [
        (shard, [cart], 4) for shard, cart in enumerate(carts)
    ]
    assert folder.cli("shared", "quarantine", *place).returncode == 0
    done = folder.cli("log", "show", "--nats", url, "--limit", "10000", "--json")
    entries = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["shard"] for one in entries} == {0, 1, 2, 3}
    assert {one["agent"] for one in entries if one["type"] == "Noted@1"} == set(carts)
    verified = folder.json("log", "verify", "--nats", url)
    assert (verified["sound"], len(verified["heads"])) == (True, 4)
    refused = folder.cli("log", "hold", "list", "--nats", url)
    assert refused.returncode != 0
    assert "a fleet on workers have none" in refused.stderr
    top = folder.json("top", "--once", *place)
    assert (top["status"]["agents"], top["running"]) == (4, True)
    assert top["events_per_s"] is not None
    eventually(lambda: "4 of 4 shards answer" in folder.cli("top", "--once", *place).stdout)


@pytest.mark.prove
def test_a_gateway_of_the_cluster_claims_in_the_same_ledger(here: Callable[..., Up]) -> None:
    """It signs with a key of its own: without being enrolled it would wait for ever."""
    up = here("hall:fleet", "--nodes", "1", "--workers", "1", "--gateway", "north")
    url = up.wait_event("up")["nats"]
    up.wait_said("gateway-north", "gateway")
    at_site = ("--socket", "stigmergy-cluster/gateway-north/hall.db.sock")
    assert up.folder.json("send", "Cart/site", "Note", "text=here", *at_site)["accepted"] is True
    eventually(lambda: bool(up.folder.json("state", "Cart/site", *at_site)["state"]["granted"]))
    eventually(lambda: owned(up) == {0, 1, 2, 3} or bool(up.poll()))
    note_all(up.folder, ["Cart/hub"], url)
    state = ("state", "Cart/hub", "--nats", url, "--fleet", "hall:fleet")
    eventually(lambda: bool(up.folder.json(*state)["state"]["denied"]))
    assert not up.folder.json(*state)["state"]["granted"], "the dock is held at the site"
    assert up.end() == 0


def note_all(folder: Folder, carts: list[str], url: str) -> None:
    for cart in carts:
        sent = folder.json("send", cart, "Note", f"text={cart}", "--nats", url, "--fleet", "hall:fleet")
        assert sent["accepted"] is True


async def heard_while(url: str, mqtt: list[str], work: Callable[[], object]) -> dict[str, set[str]]:
    """Whose notes are heard on the bus, and on the MQTT listener of the last server, while some work is done."""
    buses: dict[str, Bus] = {
        "nats": open_nats(f"{url}?replicas=3", "hall:local:listener", SystemEntropy()),
        "mqtt": open_mqtt(mqtt[-1], "listener", SystemEntropy()),
    }
    heard: dict[str, set[str]] = {name: set() for name in buses}

    def into(name: str) -> Callable[[BusMessage], Awaitable[None]]:
        async def hear(message: BusMessage) -> None:
            heard[name].add("/".join(message.topic.split("/")[3:5]))

        return hear

    for name, bus in buses.items():
        await bus.subscribe("hall/local/agents/Cart/+/events/notes", into(name))
        await bus.open()
    try:
        async with asyncio.timeout(WAIT_S):
            while not all(bus.is_up for bus in buses.values()):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.05)
            await asyncio.to_thread(work)
            while not all(len(names) == 4 for names in heard.values()):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.05)
    finally:
        for bus in buses.values():
            await bus.close()
    return heard


def test_the_api_of_a_cluster_is_served_to_others(here: Callable[..., Up], here_in: Here) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    (here_in.path / "fleet.crt").write_bytes(b"".join(one.bytes() for one in issued.cert_chain_pems))
    (here_in.path / "fleet.pem").write_bytes(issued.private_key_pem.bytes())
    # As the refusal says, and before there is a cluster.
    create = ["token", "create", "--tokens", "stigmergy-cluster/fleet.tokens", "--scope", "read"]
    token = here_in.cli(*create, "reader").stdout.strip()
    listens = ("--serve", "0.0.0.0:0", "--cert", "fleet.crt", "--cert-key", "fleet.pem", "--host", "localhost")
    up = here("drone:fleet", "--nodes", "1", "--workers", "1", *listens)
    assert up.wait_event("up")["uses"]["a token for the API"].split()[1:-1] == create
    url = urlsplit(up.wait_said("api", "serving")["said"]["url"])
    assert url.scheme == "https"
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    def ask(token: str) -> tuple[int, str]:
        asking = http.client.HTTPSConnection("localhost", url.port, context=trusting, timeout=WAIT_S)
        try:
            asking.request("GET", "/v1/agents", headers={"Authorization": f"Bearer {token}"})
            answer = asking.getresponse()
            return answer.status, answer.read().decode()
        finally:
            asking.close()

    assert ask(token)[0] in (200, 503)
    status, said = ask("stg_reader_wrong")
    assert status == 401
    assert f"--tokens {here_in.path / 'stigmergy-cluster' / 'fleet.tokens'} --scope read NAME" in said


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (("--nodes", "2"), "give 1, 3 or 5"),
            (("--workers", "2"), "give MODULE:FLEET"),
            (("--gateway", "north"), "give MODULE:FLEET"),
            (("nowhere:fleet",), "there is no module 'nowhere'"),
            (("drone:fleet", "--workers", "1000"), "give 0 to 64"),
            (("drone:fleet", "--grpc", ":9090"), "give --serve HOST:PORT too"),
            (("--insecure",), "--insecure: nothing is served; give --serve HOST:PORT too"),
            (("drone:fleet", "--serve", "0.0.0.0:0"), "stigmergy token create --tokens stigmergy-cluster/fleet.tokens"),
            (("drone:fleet", "--serve", "0.0.0.0:0", "--tokens", "mine"), "there is no valid token in mine"),
            (("drone:fleet", "--serve", ":0", "--cert", "a"), "give --cert and --cert-key"),
            (("drone:fleet", "--serve", ":0", "--cert", "drone.py", "--cert-key", "drone.py"), "cannot be used"),
            (("drone:fleet", "--serve", "everywhere"), "give HOST:PORT"),
            (("drone:fleet", "--serve", ":0", "--rate", "0"), "how many requests a second"),
            (("drone:fleet", "--serve", ":0", "--grpc", ":0"), "run stigmergy proto for this fleet"),
        ],
    )
    def test_what_cannot_be(self, here_in: Here, arguments: tuple[str, ...], says: str) -> None:
        assert says in here_in.error("up", *arguments, code=2)
        assert not (here_in.path / "stigmergy-cluster").exists()

    def test_raw_kinds_are_refused_before_there_is_a_cluster(self, here_in: Here) -> None:
        """Not by one worker after the other, which is given up in the end."""
        (here_in.path / "gas.py").write_text(RAW, encoding="utf-8")
        assert "Sampled to cluster" in here_in.error("up", "gas:fleet", code=2)
        assert not (here_in.path / "stigmergy-cluster").exists()
        for allowed in (("gas:fleet", "--workers", "0"), ("gas:fleet",)):
            assert "give 1, 3 or 5" in here_in.error("up", *allowed, "--nodes", "2", code=2)
            (here_in.path / "stigmergy.toml").write_text('[settings]\nraw_may_leave = ["Sampled to cluster"]\n')

    def test_a_port_of_the_api_that_is_taken(self, here_in: Here) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            said = here_in.error("up", "drone:fleet", "--serve", f":{taken.getsockname()[1]}", code=2)
        assert "choose another port" in said
        assert not (here_in.path / "stigmergy-cluster").exists()

    def test_every_server_keeps_every_stream(self, here_in: Here) -> None:
        from stigmergy.nats.servers.folder import ClusterFolder

        path = here_in.path / "five"
        made = ClusterFolder(path, 5)
        made.close()
        assert made.kept_url == f"{made.url}?replicas=5"
        assert f"{made.url.removeprefix('nats://')}?replicas=5" in (path / "urls.txt").read_text()
        # Streams of a folder that was begun before have three, and keep them.
        notes = json.loads((path / "up.json").read_text())
        del notes["replicas"]
        (path / "up.json").write_text(json.dumps(notes))
        old = ClusterFolder(path, 5)
        old.close()
        assert old.kept_url == f"{made.url}?replicas=3"

    def test_a_folder_of_another_cluster(self, here_in: Here) -> None:
        from stigmergy.nats.servers.folder import ClusterFolder

        made = ClusterFolder(here_in.path / "stigmergy-cluster", 1)
        port = made.notes.ports[0]["client"]
        assert (here_in.path / "stigmergy-cluster" / "up.json").stat().st_mode & 0o777 == 0o600
        made.close()
        assert "has the data of 1 servers; give --nodes 1" in here_in.error("up", "--nodes", "3", code=2)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", port))
            taken.listen()
            assert f"port {port} of server n1 is not available" in here_in.error("up", "--nodes", "1", code=2)

    def test_a_new_folder_does_not_keep_a_port_that_it_cannot_have(self, here_in: Here) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            said = here_in.error("up", "--nodes", "1", "--port", str(port), code=2)
        assert f"port {port} of server n1 is not available" in said
        assert "or give another --port" in said
        assert not (here_in.path / "stigmergy-cluster" / "up.json").exists()

    def test_the_module_of_the_configuration_is_what_workers_run(self, here_in: Here) -> None:
        (here_in.path / "stigmergy.toml").write_text('[fleet]\nmodule = "nowhere:fleet"\n')
        for asked in (("--workers", "1"), ("--gateway", "north")):
            assert "there is no module 'nowhere'" in here_in.error("up", *asked, code=2)

    def test_a_file_is_no_folder(self, here_in: Here) -> None:
        assert "drone.py is a file; give a folder with --data" in here_in.error("up", "--data", "drone.py", code=2)


RAW = """
import stigmergy as st


class Sampled(st.Event, raw=True):
    co: float


class GasSensor(st.Agent):
    @st.evolve
    def take(self, event: Sampled) -> None: ...


fleet = st.Fleet("gas", agents=[GasSensor])
"""


@pytest.fixture
def here_in(tmp_path: Path) -> Here:
    (tmp_path / "drone.py").write_text(FLEET, encoding="utf-8")
    return Here(tmp_path)


def test_runs_of_shards() -> None:
    assert ranges([]) == ""
    assert ranges([3, 1, 2, 7]) == "1-3, 7"


def test_a_server_whose_disk_was_full_is_restarted_when_there_is_room(here: Callable[..., Up], tmp_path: Path) -> None:
    with small_disk(tmp_path / "stigmergy-cluster" / "n1", "8m") as disk:
        up = here("--nodes", "3")
        url = up.wait_event("up")["nats"]
        asyncio.run(write_until(url, lambda: any(one.get("event") == "stuck" for one in up.heard())))
        (stuck,) = [one for one in up.said if one.get("event") == "stuck"]
        assert stuck["process"] == "n1"
        assert "no space left on device" in stuck["error"]
        assert "room on the disk of" in stuck["waits_for"]
        done = up.folder.cli("status", "--nats", url)
        assert "JetStream off on n1" in done.stdout
        pid = up.pid_of("n1")
        time.sleep(3.0)
        assert not [one for one in up.heard() if one.get("event") == "restarting"], "without room it would not help"
        disk.grow("512m")
        up.wait_event("restarting", "n1")
        up.wait_event("started", "n1")
        up.wait_event("well", "n1")
        assert up.pid_of("n1") != pid
        eventually(lambda: "JetStream off" not in up.folder.cli("status", "--nats", url).stdout)
        assert up.end() == 0
        assert not [one for one in up.said if one.get("event") in ("ended", "given up")], "a restart is no death"


async def write_until(url: str, is_enough: Callable[[], bool]) -> None:
    link = await NatsLink.open(parse_address(url), name="test", within_s=30.0)
    with contextlib.suppress(LinkDown, JetStreamRefused):
        await ensure_stream(link, "KEPT", {"subjects": ["kept"], "num_replicas": 3})
    deadline_s = time.monotonic() + WAIT_S
    while not is_enough():
        with contextlib.suppress(LinkDown, JetStreamRefused):
            await link.publish("kept", b"x" * 50_000, within_s=2.0)
        assert time.monotonic() < deadline_s
    await link.close()


def test_views_of_a_cluster_are_kept_and_survive_a_kill(here: Callable[..., Up]) -> None:
    up = here("viewed:fleet", "--nodes", "1", "--workers", "1")
    url = up.wait_event("up")["nats"]
    place = ("--nats", url, "--fleet", "viewed:fleet")
    up.wait_said("views", "projecting")

    def send(numbers: range) -> None:
        for number in numbers:
            mission = f"mission=M{number % 2}"
            assert up.folder.json("send", f"Drone/D-{number}", "StartMission", mission, *place)["accepted"]

    def counted() -> list[int]:
        done = up.folder.cli("view", "Missions", "--json", *place)
        return [row["started"] for row in json.loads(done.stdout).get("rows", [])]

    send(range(6))
    eventually(lambda: counted() == [3, 3])
    os.kill(up.pid_of("views"), signal.SIGKILL)
    up.wait_event("ended", "views")
    send(range(6, 10))
    up.wait_said("views", "projecting")
    eventually(lambda: counted() == [5, 5])
