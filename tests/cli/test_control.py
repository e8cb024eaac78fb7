"""The control endpoint of a real node, spoken to directly: malformed, oversize and too many requests harm nobody."""

import argparse
import contextlib
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from stigmergy.cli.display.output import Output
from stigmergy.cli.node import status
from stigmergy.control.protocol import REQUEST_BYTES_MAX
from stigmergy.control.replies import StatusReply
from stigmergy.control.socket import CONNECTIONS_MAX
from tests.cli.conftest import Folder


@contextlib.contextmanager
def connected(folder: Folder) -> Iterator[socket.socket]:
    descriptor = os.open(folder.path, os.O_RDONLY)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(120)
        connection.connect(f"/proc/self/fd/{descriptor}/delivery.db.sock")
        yield connection
    finally:
        connection.close()
        os.close(descriptor)


def asked(connection: socket.socket, line: bytes, *, lines: int = 1) -> list[Any]:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(line)
    with connection.makefile("rb") as file:
        return [json.loads(file.readline()) for _ in range(lines)]


MALFORMED = {
    b"\n": "not a request",
    b"hello\n": "not a request",
    b"\xff\xfe\n": "not a request",
    b"[]\n": "not a request",
    b"{}\n": "version 0 of the protocol",
    b'{"do": "status"}\n': "version 0 of the protocol",
    b'{"v": 2, "do": "status"}\n': "version 2 of the protocol, this node speaks 1",
    b'{"v": 1}\n': "missing required field `do`",
    b'{"v": 1, "do": "dance"}\n': "Invalid value 'dance'",
    b'{"v": 1, "do": "status", "please": true}\n': "unknown field `please`",
    b'{"v": 1, "do": "send", "agent": 7, "command": "x"}\n': "Expected `str`",
    b'{"v": 1, "do": "state"}\n': "missing required field `agent`",
    b"[" * 5000 + b"\n": "not a request",
}


def test_malformed_requests_are_refused_one_by_one(shared: Folder) -> None:
    with connected(shared) as connection:
        for line, text in MALFORMED.items():
            (reply,) = asked(connection, line)
            assert reply["kind"] == "Malformed"
            assert text in reply["error"], line
        (reply,) = asked(connection, b'{"v": 1, "do": "status"}\n')
        assert reply["ok"]["fleet"] == "delivery"


def test_status_shows_what_does_not_mend_itself(
    shared: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = shared.json("status")
    assert found["troubles"] == []
    found["troubles"] = ["no snapshot of shard 0: Drone/D-17: its field count holds a str; mend it"]
    monkeypatch.setattr("stigmergy.cli.node.find_place", lambda arguments: None)
    monkeypatch.setattr("stigmergy.cli.node.ask", lambda path, request: msgspec.convert(found, StatusReply))
    assert status(argparse.Namespace(nats=None, fleet=None, name=None, watch=False), Output()) == 0
    assert "trouble  no snapshot of shard 0: Drone/D-17" in " ".join(capsys.readouterr().out.split("\n"))


def test_an_oversize_request_is_refused_and_the_connection_closed(shared: Folder) -> None:
    with connected(shared) as connection:
        (reply,) = asked(connection, b"x" * (REQUEST_BYTES_MAX + 10_000) + b"\n")
        assert reply["kind"] == "TooLarge"
    said = shared.json("send", "Drone/D-17", "StartMission", "mission=" + "x" * 100_000, code=2)
    assert "65536 at most" in said["error"]
    assert shared.json("status")["fleet"] == "delivery"


def test_a_stream_ends_with_its_count(shared: Folder) -> None:
    with connected(shared) as connection:
        first, second, end = asked(connection, b'{"v": 1, "do": "log", "first": 1, "limit": 2}\n', lines=3)
        assert first["item"]["type"] == "stigmergy.SignerEnrolled@1"
        assert second["item"]["kind"] == "answer"
        assert end == {"v": 1, "end": {"count": 2}}
        (reply,) = asked(connection, b'{"v": 1, "do": "log", "first": 0}\n')
        assert reply["kind"] == "ConfigError"


def test_a_running_node_verifies_its_own_journal(shared: Folder) -> None:
    assert shared.json("log", "verify")["sound"] is True
    assert shared.json("log", "verify", "--key", "delivery.key")["sound"] is True
    assert shared.json("log", "verify", "--key", "11" * 32, code=1)["sound"] is False


def test_fields_and_texts(shared: Folder) -> None:
    request = {
        "v": 1,
        "do": "send",
        "agent": "Drone/D-20",
        "command": "FlyTo",
        "fields": {"waypoints": [[1.5, 2.5]]},
        "texts": {"urgent": "true"},
    }
    with connected(shared) as connection:
        (reply,) = asked(connection, json.dumps(request).encode() + b"\n")
        assert reply["ok"]["accepted"] is True
        request["fields"] = {"waypoints": [["1.5", 2.5]]}
        (reply,) = asked(connection, json.dumps(request).encode() + b"\n")
        assert reply["kind"] == "Malformed"


def test_too_many_connections(shared: Folder) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS_MAX):
            (reply,) = asked(stack.enter_context(connected(shared)), b'{"v": 1, "do": "status"}\n')
            assert "ok" in reply
        (reply,) = asked(stack.enter_context(connected(shared)), b"")
        assert reply["kind"] == "Overloaded"
    assert shared.json("status")["fleet"] == "delivery"


def test_a_client_that_leaves_half_way(shared: Folder) -> None:
    for line in (b'{"v": 1, "do":', b'{"v": 1, "do": "log", "first": 1}\n'):
        with connected(shared) as connection:
            connection.sendall(line)
    assert shared.json("status")["fleet"] == "delivery"


def test_dead_letters_and_stopped_agents(here: Folder) -> None:
    here.start()
    for _ in range(2):
        assert "over its own feet" in here.json("send", "Drone/D-1", "Stumble", code=1)["reason"]
    letters = here.lines("letters")
    assert [(letter["agent"], letter["type"]) for letter in letters] == [("Drone/D-1", "Stumble@1")] * 2
    assert "Drone/D-1" in here.json("status")["stopped"]
    assert "is stopped" in here.json("send", "Drone/D-1", "StartMission", "mission=M1", code=1)["reason"]
    assert here.json("state", "Drone/D-1")["stopped"].startswith("2 failed inputs")
    assert here.json("resume", "Drone/D-1")["resumed"] is True
    assert here.json("send", "Drone/D-1", "StartMission", "mission=M1")["accepted"] is True
    retried = here.json("letters", "retry", letters[0]["letter"], code=1)
    assert (retried["retried"], retried["failed_again"]) == (True, True)
    assert retried["new_letter"] in [letter["letter"] for letter in here.lines("letters")]
    assert retried["new_letter"] not in [letter["letter"] for letter in letters]
    again = here.cli("letters", "retry", retried["new_letter"])
    assert f"it is now dead letter {here.lines('letters')[-1]['letter']}" in again.stdout
    for letter in here.lines("letters"):
        assert here.json("letters", "drop", letter["letter"])["retried"] is False
    assert here.lines("letters") == []


@pytest.mark.parametrize("arguments", [("status",), ("letters",), ("log", "show"), ("state", "Drone/D-17")])
def test_a_running_node_for_people(shared: Folder, arguments: tuple[str, ...]) -> None:
    done = shared.cli(*arguments)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_names_of_kinds_messages_and_agents(shared: Folder) -> None:
    for name in ("D-7", "D-8", "E-1"):
        shared.ask(do="send", agent=f"Drone/{name}", command="StartMission", fields={"mission": "M1"})
    names = shared.ask(do="names", prefix="Drone/D-", limit=1000)
    assert names["kinds"] == {
        "Drone": {
            "commands": {"StartMission": ["mission", "priority"], "FlyTo": ["waypoints", "urgent"], "Stumble": []},
            "events": {
                "MissionStarted": ["mission", "priority"],
                "RouteSet": ["waypoints", "urgent"],
                "BatteryMeasured": ["percent"],
            },
        }
    }
    assert names["agents"] == sorted(names["agents"])
    assert {"Drone/D-7", "Drone/D-8", "Drone/D-17"} <= set(names["agents"])
    assert "Drone/E-1" not in names["agents"]
    assert shared.ask(do="names", prefix="Drone/D-", limit=1)["agents"] == names["agents"][:1]
    assert shared.ask(do="names", prefix="Drone/D-7")["agents"] == ["Drone/D-7"]
    with connected(shared) as connection:
        for limit in (0, 1001):
            (reply,) = asked(connection, json.dumps({"v": 1, "do": "names", "limit": limit}).encode() + b"\n")
            assert reply["kind"] == "ConfigError"


def test_status_tells_what_the_process_uses(shared: Folder) -> None:
    before, after = shared.ask(do="status"), shared.ask(do="status")
    assert 0 < before["up_s"] <= after["up_s"]
    assert 0 < before["cpu_s"] <= after["cpu_s"]
    assert 10_000_000 < after["memory_peak_bytes"] < 1_000_000_000
    assert after["commits"] == sum(head["position"] for head in after["heads"])
