"""The logs of real nodes: read by jq, taken by a real shipper, without secrets, and never in the node's way."""

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stigmergy.app.config import Config, FleetConfig
from stigmergy.cli.display.logs import log_of
from stigmergy.diagnostics.codes import CODES
from stigmergy.node.settings import Settings, TraceSettings
from tests.cli.conftest import DRONE, Folder
from tests.cli.terminal import in_terminal
from tests.conftest import without
from tests.warm import Warm

WAIT_S = 240.0
UNPACKED = Path("build/logs").resolve()
PASSWORD = "hunter-22"
BUS = f"mqtt://me:{PASSWORD}@127.0.0.1:1"
SECRETIVE = DRONE.replace('"over its own feet"', "f\"nats://boss:hush-hush@hub and {open('token').read()}\"")


def program(name: str) -> tuple[list[str], dict[str, str]]:
    """A program of Debian, and the environment that it needs."""
    if found := shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin"):
        return [found], dict(os.environ)
    for unpacked in (UNPACKED / "usr" / "bin" / name, UNPACKED / "usr" / "sbin" / name):
        if unpacked.is_file():
            (libraries,) = (UNPACKED / "usr" / "lib").glob("*-linux-gnu*")
            modules = ["-M", str(libraries / "rsyslog")] if name == "rsyslogd" else []
            return [str(unpacked), *modules], {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
    without(f"{name} is not there; apt install jq rsyslog, or run .ci/logs", f"LOGS ARE NOT TESTED WITH {name.upper()}")


def start(folder: Folder, *options: str, stderr: Any, module: str = "drone:fleet") -> subprocess.Popen[str]:
    return Warm("run", module, *options, cwd=folder.path, stdout=subprocess.PIPE, stderr=stderr)


def listens(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    while line := process.stdout.readline():
        if line.startswith("listening"):
            return
    raise AssertionError("it has ended")


def eventually(check: Callable[[], Any]) -> Any:
    until_s = time.monotonic() + WAIT_S
    while not (found := check()):
        assert time.monotonic() < until_s
        time.sleep(0.1)
    return found


def lines_of(path: Path) -> list[dict[str, Any]]:
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


@pytest.fixture(scope="module")
def node_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a node has written that has lost its bus, whose agent was stopped with secrets in the error, and that was
    asked by somebody without a valid token."""
    path = tmp_path_factory.mktemp("logged")
    (path / "drone.py").write_text(SECRETIVE, encoding="utf-8")
    folder, log = Folder(path), path / "node.log"
    token = json.loads(folder.cli("token", "create", "spy", "--scope", "read", "--tokens", "t", "--json").stdout)[
        "token"
    ]
    (path / "token").write_text(token)
    with log.open("wb") as stderr:
        process = start(folder, "--bus", BUS, "--serve", ":0", "--tokens", "t", "--node", "north", stderr=stderr)
    try:
        listens(process)
        for _ in range(2):
            folder.cli("send", "Drone/D-1", "Stumble")
        eventually(lambda: {"bus-down", "agent-stopped"} <= {one["code"] for one in lines_of(log)})
        folder.cli("resume", "Drone/D-1")
        eventually(lambda: [one for one in lines_of(log) if one["code"] == "agent-stopped" and one["over"]])
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, out
    finally:
        process.kill()
        process.communicate()
    return log


def test_every_line_is_json_with_a_known_code(node_log: Path) -> None:
    lines = lines_of(node_log)
    assert {one["code"] for one in lines} <= set(CODES)
    assert {(one["fleet"], one["node"], one["role"]) for one in lines} == {("delivery", "north", "node")}
    codes = [one["code"] for one in lines]
    assert (codes[0], codes[-1]) == ("process-begun", "node-stopped")
    assert {"node-recovered", "node-listening", "api-listening", "node-stopping"} <= set(codes)
    begun, over = [one for one in lines if one["code"] == "agent-stopped"]
    assert (begun["agent"], begun["shard"], begun["level"], begun["over"]) == ("Drone/D-1", 0, "error", False)
    assert (over["agent"], over["level"], over["over"]) == ("Drone/D-1", "info", True)
    assert over["message"] == f"over: {begun['message']}"
    (failed,) = [one for one in lines if one["code"] == "input-failed"]  # the second within a minute is counted
    assert (failed["agent"], failed["level"], failed["fields"]["input"]) == ("Drone/D-1", "warn", "Stumble")
    assert failed["message"].startswith("Drone/D-1 failed on Stumble: RuntimeError: nats://***@hub")
    assert "in stumble\n    raise RuntimeError(" in failed["error"]


def test_no_secret_is_in_it(node_log: Path) -> None:
    text = node_log.read_text(encoding="utf-8")
    token = (node_log.parent / "token").read_text()
    assert PASSWORD not in text
    assert "hush-hush" not in text
    assert token not in text
    assert token.removeprefix("stg_spy_") not in text  # the random part may hold an underscore itself
    assert "nats://***@hub and stg_***" in text


def test_jq_reads_it(node_log: Path) -> None:
    jq, environment = program("jq")

    def ask(*query: str) -> str:
        command = [*jq, *query, str(node_log)]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert len(ask("-c", "[.time, .level, .code, .message]").splitlines()) == len(lines_of(node_log))
    wanted = 'select(.code == "agent-stopped" and .over == false) | [.agent, .node] | @tsv'
    assert ask("-r", wanted) == "Drone/D-1\tnorth\n"
    times = 'map(.time | sub("\\\\.[0-9]+Z$"; "Z") | fromdate) | . == sort and all(. > 1500000000)'
    assert ask("-s", times) == "true\n"
    assert ask("-s", 'map(select(.level | IN("debug", "info", "warn", "error") | not)) | length') == "0\n"


def test_a_shipper_takes_it(node_log: Path, tmp_path: Path) -> None:
    rsyslog, environment = program("rsyslogd")
    (tmp_path / "spool").mkdir()
    config = tmp_path / "rsyslog.conf"
    shown = ' constant(value="\\t") '.join(f'property(name="$!{key}")' for key in ("level", "code", "node", "agent"))
    config.write_text(
        f"""
        global(workDirectory="{tmp_path}/spool" maxMessageSize="64k")
        module(load="imfile")
        module(load="mmjsonparse")
        input(type="imfile" File="{node_log}" Tag="stigmergy" freshStartTail="off")
        template(name="parsed" type="list") {{ {shown} constant(value="\\n") }}
        action(type="mmjsonparse" cookie="")
        if $parsesuccess == "OK" then {{ action(type="omfile" file="{tmp_path}/parsed" template="parsed") }}
        else {{ action(type="omfile" file="{tmp_path}/refused") }}
        """,
        encoding="utf-8",
    )
    command = [*rsyslog, "-n", "-f", str(config), "-i", str(tmp_path / "pid")]
    wanted = [[one["level"], one["code"], one["node"], one.get("agent", "")] for one in lines_of(node_log)]

    def parsed() -> list[list[str]]:
        path = tmp_path / "parsed"
        return [line.split("\t") for line in path.read_text().splitlines()] if path.exists() else []

    shipper = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: len(parsed()) >= len(wanted) or shipper.poll() is not None)
    finally:
        shipper.terminate()
        said, _ = shipper.communicate(timeout=WAIT_S)
    assert parsed() == wanted, said
    assert not (tmp_path / "refused").exists()


def test_a_pipe_that_nobody_reads_does_not_stop_a_node(here: Folder) -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETFL, os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while os.write(writing, b"." * 4096):
            pass
    fcntl.fcntl(writing, fcntl.F_SETFL, 0)
    process = start(here, "--bus", BUS, stderr=writing)
    os.close(writing)
    killer = threading.Timer(WAIT_S, process.kill)  # one that was stopped would not answer for ever
    killer.start()
    try:
        listens(process)
        for number in range(5):
            sent = here.json("send", "Drone/D-1", "StartMission", f"mission=M{number}")
            assert sent["accepted"]
        assert here.json("state", "Drone/D-1")["state"]["mission"] == "M4"
        eventually(lambda: here.json("status")["up_s"] > 5)  # by then it has said that its link is down
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
        assert "stopped delivery" in out
    finally:
        killer.cancel()
        process.kill()
        process.communicate()
        os.close(reading)


def test_the_file_says_what_is_written(folder: Folder) -> None:
    (folder.path / "stigmergy.toml").write_text(
        '[log]\nlevel = "warn"\n[log.codes]\nnode-stopped = { level = "info" }\n'
    )
    log = folder.path / "node.log"
    with log.open("wb") as stderr:
        process = start(folder, "--bus", BUS, stderr=stderr)
    try:
        listens(process)
        eventually(lambda: lines_of(log))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)
    assert [one["code"] for one in lines_of(log)] == ["bus-down", "node-stopped"]


def test_what_the_file_cannot_mean_is_refused(here: Folder) -> None:
    for text, said in (
        ("[log.codes]\nbus-dwon = { sample = 0.5 }", "'bus-dwon' under [log.codes] is no code of a message"),
        ("[log.codes]\nbus-down = { sample = 0.0 }", "> 0.0"),
        ('[log]\nlevel = "loud"', "loud"),
        ("[log]\nrate = 0", ">= 1"),
    ):
        (here.path / "stigmergy.toml").write_text(text)
        assert said in here.error("run", "drone:fleet", code=2)


def test_text_is_for_people(folder: Folder) -> None:
    log = folder.path / "node.log"
    with log.open("wb") as stderr:
        process = start(folder, "--bus", BUS, "--log-format", "text", stderr=stderr)
    try:
        listens(process)
        eventually(lambda: "\n" in log.read_text())
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)
    first = log.read_text().splitlines()[0]
    assert first[10] == "T"
    assert first[24:].startswith(" warn  bus-down trouble: link local-only: mqtt://127.0.0.1:1: ")


def test_a_terminal_has_text_and_a_line_at_its_foot(folder: Folder) -> None:
    command = [sys.executable, "-m", "stigmergy", "run", "drone:fleet", "--bus", BUS]
    with in_terminal(command, folder.path, columns=200, lines=20) as terminal:
        terminal.wait_text("listening", "0 agents · ", "trouble: link local-only: mqtt://127.0.0.1:1: ", "[bus-down]")
        terminal.press("\x03")
        terminal.wait_text("stopping: finishing what was taken", "stopped delivery (SIGINT)")
        assert terminal.wait_end() == 0
    assert PASSWORD not in terminal.text
    assert '"code"' not in terminal.text


def test_all_that_a_process_was_given_is_known_to_be_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-environment")
    traces = TraceSettings(export="http://collector:4318", headers={"x-key": "Key of-the-header"})
    config = Config(fleet=FleetConfig(copies=("nats://of-the-file@hub",)), settings=Settings(traces=traces))
    arguments = argparse.Namespace(log_format="json", bus=BUS, hub=["me:of-the-option@hub:7422"])
    log = log_of(arguments, config, "delivery", "node")
    given = (PASSWORD, "of-the-environment", "of-the-header", "of-the-file", "of-the-option")
    assert [log._redactor.clean(f"said {secret}.") for secret in given] == ["said ***."] * len(given)
