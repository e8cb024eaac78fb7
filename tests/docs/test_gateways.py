"""Runs what docs/gateways.md shows: its fleet, and each of its commands, with what they print."""

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stigmergy.nats.servers.server import free_ports
from tests.cli.in_process import Here

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gateways.md"
WAIT_S_MAX = 240.0
PORTS = ("7422", "4322", "1983")
"""Those that the page names; the rest are defaults, which somebody may use here."""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for process in found:
        process.kill()
        process.wait()


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Each command of the console samples, with the lines under it."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def run(command: str, folder: Path) -> str:
    """What it prints; in this very process, because many are repeated until it has come true."""
    program, *arguments = shlex.split(command)
    assert program == "stigmergy"
    ended = Here(folder).cli(*arguments)
    return ended.stdout + ended.stderr


def listens(folder: Path, command: str) -> bool:
    site = re.search(r"--site (\w+)", command)
    assert site is not None
    return "position" in run(f"stigmergy status --journal gateway-{site[1]}/town.db", folder)


def wait_until_it_says(command: str, wanted: list[str], folder: Path) -> None:
    """What came up a moment later is there a moment later; a command that changes something is given once."""
    deadline_s = time.monotonic() + WAIT_S_MAX
    while True:
        said = " ".join(run(command, folder).split())
        if all(" ".join(line.split()) in said for line in wanted):
            return
        assert " send " not in command, f"{command} says {said!r}"
        assert time.monotonic() < deadline_s, f"{command} says {said!r}, not {wanted}"
        time.sleep(0.2)


def test_the_page_does_what_it_says(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    module = re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert module is not None
    (tmp_path / "town.py").write_text(module[1], encoding="utf-8")
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    shown = commands(text)
    assert len(shown) > 10
    for command, wanted in shown:
        for written, port in ports.items():
            command = re.sub(rf"\b{written}\b", str(port), command)
        if not command.endswith(" &"):
            wait_until_it_says(command, wanted, tmp_path)
            continue
        given = shlex.split(command.removesuffix(" &"))
        # The page leaves the ports of the region at their defaults.
        given += [] if "--mqtt-port" in command else ["--port", "0", "--mqtt-port", "0"]
        started.append(subprocess.Popen([sys.executable, "-m", *given], cwd=tmp_path))
        deadline_s = time.monotonic() + WAIT_S_MAX
        while not listens(tmp_path, command):
            assert time.monotonic() < deadline_s, f"{command} does not listen"
            time.sleep(0.2)
