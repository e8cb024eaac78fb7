"""Nodes among others, as their operators see them: real processes on real sockets, one ledger, and a disk put back."""

import contextlib
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stigmergy.cli.completion import CompletionNames, complete, split_line
from stigmergy.cli.main import build_parser, main
from stigmergy.control.socket import ControlClient
from stigmergy.journal.sqlite import renew_incarnation
from tests.cli.conftest import Folder, Node
from tests.cli.in_process import Here
from tests.cli.terminal import in_terminal
from tests.cli.test_documented import documented

WITHIN_S = 240.0
"""For what must come: a machine may be busy with something else for long."""
Asked = Callable[..., str]
OBJECT = "Crossing.vehicles/town"
TOWN = """
from stigmergy import (
    Agent, Claim, Denied, Effects, Event, Events, Fleet, Granted, Ordered, ORSet, Settings, Shared, SharedSettings,
    decide, evolve, ordered, react, shared,
)


class Arrived(Event):
    vehicle: str


class Wanted(Event):
    for_s: float = 60.0
    wait_s: float = 0.0


class Crossing(Agent):
    vehicles: Shared[ORSet[str]] = shared(by="town")
    slot: Ordered[Claim] = ordered(of="slot")
    said: str = ""

    @decide
    def arrived(self, event: Arrived) -> Events:
        yield event
        yield self.vehicles.add(event.vehicle)

    @react
    def wanted(self, event: Wanted) -> Effects:
        yield self.slot.claim(for_s=event.for_s, wait_s=event.wait_s)

    @evolve
    def granted(self, event: Granted) -> None:
        self.said = "granted"

    @evolve
    def denied(self, event: Denied) -> None:
        self.said = "denied"


fleet = Fleet("town", agents=[Crossing], settings=Settings(shared=SharedSettings(interval_s=0.2)))
"""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


class Town:
    """Two nodes that can be started and asked."""

    def __init__(self, path: Path) -> None:
        (path / "town.py").write_text(TOWN, encoding="utf-8")
        self.path = path
        self.folder = Here(path)
        self.ports = free_ports(2)

    def mesh(self, number: int) -> str:
        other = 1 - number
        return f"udp://127.0.0.1:{self.ports[number]}?peers=n{other}@127.0.0.1:{self.ports[other]}"

    def start(self, number: int, *more: str) -> Node:
        where = ("--journal", f"n{number}.db", "--node", f"n{number}", "--mesh", self.mesh(number))
        return self.folder.start("town:fleet", *where, "--ledger", "sqlite:ledger.db", *more)

    def ask(self, number: int, **request: Any) -> list[Any]:
        """What a node answers: the one `ok`, or the items."""
        client = ControlClient(self.path / f"n{number}.db.sock")
        found: list[Any] = []
        try:
            for line in client.lines(json.dumps({"v": 1, **request}).encode() + b"\n"):
                reply = json.loads(line)
                if "end" in reply:
                    return found
                found.append(reply.get("item", reply.get("ok", reply.get("error"))))
                if "item" not in reply:
                    return found
            return found
        finally:
            client.close()

    def observe(self, number: int, event: str, **fields: Any) -> None:
        self.ask(number, do="observe", agent=f"Crossing/{number}", event=event, fields=fields)

    def wait(self, holds: Callable[[], bool]) -> None:
        until_s = time.monotonic() + WITHIN_S
        while not holds():
            assert time.monotonic() < until_s, [self.ask(0, do="status"), self.ask(1, do="status")]
            time.sleep(0.05)

    def object(self, number: int) -> dict[str, Any]:
        found = self.ask(number, do="shared")
        return dict(found[0]) if found else {"live": 0, "peers": [], "in_step": []}


pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """Two nodes that have met, and of which the first holds the slot and the second waits for it."""
    town = Town(tmp_path_factory.mktemp("town"))
    town.start(0)
    town.start(1)
    for number in range(2):
        town.observe(number, "Arrived", vehicle=f"V-{number}")
    town.observe(0, "Wanted", for_s=3600.0)
    town.wait(lambda: bool(town.ask(0, do="claims")) and town.ask(0, do="claims")[0]["holder"] is not None)
    town.observe(1, "Wanted", for_s=60.0, wait_s=3600.0)
    town.wait(lambda: len(town.ask(0, do="claims")[0]["queue"]) == 1)
    town.wait(lambda: town.object(0)["in_step"] == ["n1"] and town.object(1)["in_step"] == ["n0"])
    yield town
    town.folder.close()


def asked_in(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Asked:
    """What the program says of a node there, in this process because it is asked often."""
    monkeypatch.chdir(folder)

    def ask(*arguments: str, node: int = 0, code: int = 0) -> str:
        capsys.readouterr()
        assert main([*arguments, "--journal", f"n{node}.db"]) == code
        said = capsys.readouterr()
        return said.out + said.err

    return ask


@pytest.fixture
def asked(town: Town, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Asked:
    """What the program says of a node of the town."""
    return asked_in(town.path, monkeypatch, capsys)


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_status_says_how_a_node_stands_with_others(town: Town, asked: Asked) -> None:
    town.wait(lambda: not town.folder.json("status", "--journal", "n0.db")["shared"]["behind"])
    found = town.folder.json("status", "--journal", "n0.db")
    standing = {"objects": 1, "replicas": 1, "peers": 1, "waiting": 0, "diverged": [], "quarantined": []}
    assert found["shared"] == {**standing, **{name: found["shared"][name] for name in ("behind", "unacknowledged")}}
    claims = found["claims"]
    assert (claims["ledger"], claims["why"], claims["held"], claims["asking"]) == ("up", "", 1, 0)
    assert claims["position"] >= 2
    shown = asked("status", node=1)
    assert "shared        1 object, 1 replica, 1 peer" in shown
    assert "0 held, 1 asking" in shown
    top = asked("top", "--once")
    assert "shared 1 object, 1 replica, 1 peer" in top
    assert "claims ledger up, position" in top


def test_shared_objects(town: Town, asked: Asked) -> None:
    found: dict[str, Any] = {}

    def in_step() -> bool:
        """Another test may write meanwhile, and then the peer is behind for a moment."""
        nonlocal found
        (found,) = town.folder.lines("shared", "--journal", "n0.db")
        return "behind_s" not in found

    town.wait(in_step)
    assert {*found, "behind_s"} == documented("shared")
    written = sum(one["counter"] for one in found["replicas"])  # another test may have written one more
    assert (found["object"], found["agents"], found["live"]) == (OBJECT, ["Crossing/0"], written)
    assert (found["peers"], found["in_step"], found["diverged"], found["waiting"]) == (["n1"], ["n1"], False, 0)
    assert found["digest"] == town.object(1)["digest"]
    assert found["replicas_count"] == 2
    assert min(one["counter"] for one in found["replicas"]) == 1
    assert sorted(one["agent"] or "" for one in found["replicas"]) == ["", "Crossing/0"]
    heading, row = asked("shared").splitlines()
    assert heading.split()[0] == "OBJECT"
    assert row.startswith(f"{OBJECT}  Crossing/0")
    assert row.endswith("well")
    one = asked("shared", "show", OBJECT)
    assert "in step      1 of 1 peer" in one
    for replica in found["replicas"]:
        assert replica["replica"] in one
    assert "holds no shared object 'Nobody'" in asked("shared", "show", "Nobody", code=2)


def test_a_replica_is_retired_and_comes_back_when_it_writes(town: Town, asked: Asked) -> None:
    replicas = {one["agent"]: one["replica"] for one in town.object(0)["replicas"]}
    (retired,) = lines(asked("shared", "retire", OBJECT, replicas[None][:6], "--json"))
    assert retired == {"object": OBJECT, "replica": replicas[None], "retired": True}
    assert [one["retired"] for one in town.object(0)["replicas"] if one["agent"] is None] == [True]
    assert "retired" in asked("shared", "show", OBJECT)
    town.observe(1, "Arrived", vehicle="V-9")
    town.wait(lambda: town.object(0)["live"] == 3)
    assert [one["retired"] for one in town.object(0)["replicas"]] == [False, False]
    town.wait(lambda: town.object(0)["in_step"] == ["n1"])
    assert "retired  " in asked("shared", "retire", OBJECT, replicas[None])
    ours = replicas["Crossing/0"]
    assert "is that of Crossing/0 at this node, and not dead" in asked("shared", "retire", OBJECT, ours, code=2)
    assert "has no replica 'zz'; stigmergy shared show" in asked("shared", "retire", OBJECT, "zz", code=2)
    assert "has several replicas" not in asked("shared", "retire", OBJECT, "", code=2)
    assert "holds no shared object" in asked("shared", "retire", "Nobody", "00", code=2)


def test_claims(town: Town, asked: Asked) -> None:
    assert "TOKEN  POSITION  FOR" in asked("claims")
    (here,) = town.folder.lines("claims", "--journal", "n0.db")
    (there,) = lines(asked("claims", "slot", "--json", node=1))
    assert set(here) == documented("claims")
    for one in (here, there):
        assert (one["resource"], one["holder"]["agent"], one["holder"]["claim"]) == ("slot", "Crossing/0", "slot")
        assert (one["token"], one["for_s"], one["offered"]) == (1, 3600.0, None)
        assert [waiter["agent"] for waiter in one["queue"]] == ["Crossing/1"]
        assert one["since"] < one["queue"][0]["queued_at"] <= one["read_to"]
        assert one["queue"][0]["waits_s"] > 0
    (believed,) = here["believed"]
    assert (believed["agent"], believed["holds"], believed["token"]) == ("Crossing/0", True, 1)
    assert believed["asking"] is False
    assert 0 < believed["left_s"] <= 3600
    (believed,) = there["believed"]
    assert (believed["agent"], believed["holds"], believed["token"]) == ("Crossing/1", False, None)
    assert believed["asking"] is True
    shown = asked("claims")
    assert "Crossing/0 slot" in shown
    assert "Crossing/0 holds it" in shown
    one_of_them = asked("claims", "slot", node=1)
    assert "waits   Crossing/1 slot" in one_of_them
    assert f"(position {there['queue'][0]['queued_at']}), key {there['queue'][0]['key'][:16]}, journal " in one_of_them
    assert "Crossing/1 asks" in one_of_them
    (free,) = lines(asked("claims", "nothing", "--json"))
    assert (free["holder"], free["token"], free["queue"], free["believed"]) == (None, None, [], [])
    assert "nobody holds it" in asked("claims", "nothing")


def test_what_is_asked_wrongly_is_said(asked: Asked) -> None:
    assert "takes one name" in asked("shared", "lift", code=2)
    assert "takes an OBJECT and a REPLICA" in asked("shared", "retire", OBJECT, code=2)
    assert "takes nothing more" in asked("shared", "quarantine", "it", code=2)
    assert "there is no key 'ab'; stigmergy shared quarantine" in asked("shared", "lift", "ab", code=2)
    assert "nobody is quarantined" in asked("shared", "quarantine")


def test_completion_knows_objects_replicas_and_resources(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(town.path)

    def completed(line: str) -> list[str]:
        return [word.text for word in complete(build_parser(), split_line(line), CompletionNames())]

    where = "--journal n0.db"
    other = next(one["replica"] for one in town.object(0)["replicas"] if one["agent"] is None)
    assert completed("stigmergy shared ") == ["list", "show", "quarantine", "lift", "retire"]
    assert completed(f"stigmergy shared {where} show ") == [OBJECT]
    assert completed(f"stigmergy shared {where} retire {OBJECT} ") == [other]
    assert completed(f"stigmergy shared {where} show {OBJECT} ") == []
    assert completed(f"stigmergy shared {where} quarantine ") == []
    assert completed(f"stigmergy shared {where} lift ") == []
    assert completed(f"stigmergy claims {where} ") == ["slot"]
    assert completed("stigmergy claims --journal nowhere.db ") == []
    assert completed("stigmergy run --pe") == ["--peer"]


def test_on_a_terminal_of_eighty_columns(town: Town) -> None:
    for command in (["shared"], ["claims"]):
        program = [sys.executable, "-m", "stigmergy", *command, "--journal", "n0.db"]
        with in_terminal(program, town.path, columns=80) as terminal:
            terminal.wait_end()
            assert "Crossing/0" in terminal.text
            assert "Traceback" not in terminal.text


def test_without_a_node_or_without_company_it_says_what_to_do(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder.path)

    def error(*arguments: str, code: int) -> str:
        assert main([*arguments]) == code
        said = capsys.readouterr()
        assert said.out == ""
        return said.err

    for command in ("shared", "claims"):
        assert "no node is running here; start it: stigmergy run" in error(command, code=3)
    folder.start()
    assert "this node shares nothing: it needs agents with Shared fields" in folder.error("shared", code=2)
    assert "this node shares nothing" in error("shared", "quarantine", code=2)
    assert "this node has no ledger, so nothing is granted; give --ledger" in error("claims", code=2)


MEMORY = ("--ledger", "memory:town")


@pytest.mark.parametrize(
    ("options", "said", "code"),
    [
        (("--mesh", "tcp://here", *MEMORY), "mesh 'tcp://here': no adapter for 'tcp'; there are udp:", 2),
        (("--mesh", "udp://127.0.0.1:7946?peers=north", *MEMORY), "the peer 'north'; write name@host:7946", 2),
        (("--mesh", "udp://192.0.2.7:7946", *MEMORY), "mesh udp://192.0.2.7:7946: ", 2),
        (
            ("--ledger", "paper:book"),
            "ledger 'paper:book': no adapter for 'paper'; there are memory:, nats:, sqlite:",
            2,
        ),
        (("--ledger", "sqlite:town.py"), "not a ledger", 4),
        (("--peer", "nobody.pub", *MEMORY), "'nobody.pub' is neither a key file nor a public key", 2),
        ((), "needs a ledger (", 2),
    ],
)
def test_what_run_cannot_do_is_said(tmp_path: Path, options: tuple[str, ...], said: str, code: int) -> None:
    town = Town(tmp_path)
    (tmp_path / "town.py").write_text(TOWN.replace('Fleet("town",', 'Fleet("town", shards=4,'), encoding="utf-8")
    assert said in town.folder.error("run", "town:fleet", *options, code=code)


YARD = """
import stigmergy as st

class Fault(st.Entry):
    fault: str

faults = st.Ledger("faults", Fault)

class Seen(st.Event):
    fault: str

class Watch(st.Agent):
    @st.react
    def seen(self, event: Seen) -> st.Effects:
        yield faults.propose(Fault(event.fault))

fleet = st.Fleet("yard", agents=[Watch], ledgers=[faults])
"""


def test_what_a_fleet_has_no_use_for_is_said(folder: Folder) -> None:
    unused = ["--mesh", "udp://127.0.0.1:0", "--ledger", "memory:town"]
    program = [sys.executable, "-m", "stigmergy", "run", "drone:fleet", *unused]
    with in_terminal(program, folder.path, columns=200) as terminal:
        terminal.wait_text("listening on", "has a Shared field", "has an Ordered field")


def test_a_ledger_of_ones_own_is_of_use(folder: Folder) -> None:
    (folder.path / "yard.py").write_text(YARD, encoding="utf-8")
    program = [sys.executable, "-m", "stigmergy", "run", "yard:fleet", "--ledger", "memory:yard"]
    with in_terminal(program, folder.path, columns=200) as terminal:
        assert "nobody asks" not in terminal.wait_text("listening on")


def put_back(folder: Path, saved: dict[Path, bytes]) -> None:
    """In place: the same files, with what was in them before."""
    for path in folder.glob("n0.db*"):
        if path in saved:
            path.write_bytes(saved[path])
        else:
            path.unlink()


@pytest.mark.timeout(1200)
def test_a_disk_that_was_put_back_is_caught_and_can_be_lifted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In place, over the same file, nobody can tell that it is a copy: its second use of a number gives it away."""
    town, ask = Town(tmp_path), asked_in(tmp_path, monkeypatch, capsys)
    try:
        town.start(1)
        town.observe(1, "Arrived", vehicle="other")
        node = town.start(0)
        town.observe(0, "Arrived", vehicle="first")
        town.wait(lambda: town.object(1)["live"] == town.object(0)["live"] == 2)
        node.end()
        saved = {path: path.read_bytes() for path in tmp_path.glob("n0.db*") if path.is_file()}
        node = town.start(0)
        town.observe(0, "Arrived", vehicle="forgotten")
        town.wait(lambda: town.object(1)["live"] == 3)
        node.end()
        put_back(tmp_path, saved)
        node = town.start(0)
        town.observe(0, "Arrived", vehicle="another under the same number")
        town.wait(lambda: bool(town.ask(1, do="quarantine")))
        (shut_out,) = lines(ask("shared", "quarantine", "--json", node=1))
        assert (shut_out["node"], shut_out["object"]) == ("n0", OBJECT)
        assert set(shut_out) == documented("shared quarantine")
        assert shut_out["why"]
        assert town.object(1)["diverged"] is True
        status = ask("status", node=1)
        assert "1 diverged, 1 in quarantine" in status
        assert "trouble  shared object" in status
        assert shut_out["key"][:16] in ask("shared", "quarantine", node=1)
        node.end()  # first of all: as long as it runs it goes on to say two things under one number
        (lifted,) = lines(ask("shared", "lift", shut_out["key"][:8], "--json", node=1))
        assert lifted == {"key": shut_out["key"], "lifted": True}
        put_back(tmp_path, saved)
        renew_incarnation(f"sqlite:{tmp_path / 'n0.db'}", time.time_ns())
        town.start(0)
        town.observe(0, "Arrived", vehicle="under an id of its own")
        town.wait(lambda: town.object(1)["live"] == town.object(0)["live"] == 4)
        assert town.ask(0, do="quarantine") == town.ask(1, do="quarantine") == []
        assert town.object(1)["diverged"] is False
    finally:
        town.folder.close()


def test_a_ledger_that_was_away_once_is_a_trouble(tmp_path: Path) -> None:
    """The node does not get it back by itself, so it must say so where people look: status, doctor and the log."""
    town = Town(tmp_path)
    node = town.start(0)
    try:
        town.observe(0, "Wanted", for_s=3600.0)
        town.wait(lambda: town.ask(0, do="status")[0]["claims"]["held"] == 1)
        (tmp_path / "ledger.db").rename(tmp_path / "away.db")
        town.observe(0, "Wanted", for_s=3600.0)
        town.wait(lambda: town.ask(0, do="status")[0]["troubles"] != [])
        (tmp_path / "away.db").rename(tmp_path / "ledger.db")
        status = town.folder.json("status", "--journal", "n0.db")
        (trouble,) = status["troubles"]
        assert "somebody removed or renamed it while the ledger was open" in trouble
        assert trouble.endswith("put the file back and start the node again")
        assert (status["claims"]["ledger"], status["claims"]["why"]) == ("no contact", trouble)
        checks = json.loads(town.folder.cli("doctor", "--journal", "n0.db", "--json").stdout)["checks"]
        assert [one["what"] for one in checks if one["check"] == "journal.troubles"] == [trouble]
        time.sleep(1.0)  # it goes on trying, and has said it
        node.process.terminate()
        assert node.process.communicate(timeout=WITHIN_S)[1].count(trouble) == 1
    finally:
        town.folder.close()
