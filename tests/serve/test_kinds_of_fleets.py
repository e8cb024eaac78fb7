"""A compiled fleet answers over HTTP as the same fleet does interpreted; `serve` finds none within a program."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import DRONE
from tests.serve.rig import ServedProcess, SseClient, cli

METER = """
import stigmergy as st


class Reset(st.Command):
    to: int


class WasReset(st.Event):
    to: int


class Counted(st.Event):
    amount: int


class Meter(st.Agent):
    total: int = 0

    @st.decide
    def reset(self, command: Reset) -> st.Events:
        if command.to < 0:
            st.reject("below zero")
        yield WasReset(to=command.to)

    @st.evolve
    def was_reset(self, event: WasReset) -> None:
        self.total = event.to

    @st.evolve
    def counted(self, event: Counted) -> None:
        self.total += event.amount


class Totals(st.View):
    agent: st.Key[str]
    counted: int = 0

    @st.project
    def count(self, event: Counted) -> None:
        self.counted += event.amount


fleet = st.Fleet("meters", agents=[Meter], views=[Totals], compiled=COMPILED)
"""
COUNTED = {"agent": "Meter/m1", "event": "Counted", "fields": {"amount": 3}}
ASKED: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/v1/agents/Meter/m1/Reset", {"to": 5}),
    ("POST", "/v1/agents/Meter/m1/Reset", {"to": -5}),
    ("POST", "/v1/agents/Meter/m1/Reset", {"to": "five"}),
    ("POST", "/v1/agents/Meter/m1/Reset", {"to": 10**30}),
    ("POST", "/v1/observations", COUNTED),
    ("POST", "/v1/observations", [COUNTED, {**COUNTED, "agent": "Meter/m2"}, {**COUNTED, "fields": {}}]),
    ("POST", "/v1/agents/Meter/m1/Reset", {"to": 11}),  # durable, and so are the observations before it
    ("GET", "/v1/agents?where=total%3E5&limit=10", None),
    ("GET", "/v1/agents/Meter/m1", None),
    ("GET", "/v1/agents/Meter/m1?at=1", None),
    ("GET", "/v1/views/Totals?agent=Meter/m1&after=AFTER&within_s=50", None),
    ("GET", "/v1/agents/Meter/m1/explain", None),
)
CHANCE = re.compile(
    r'"(?:command_id|time)":"[^"]*"'  # drawn, or of the clock
    r'|"(?:position|index|time_ns)":\d+|@[0-9a-f]{1,8}:\d+|"meters/0@[0-9a-f]+":\d+'  # a compiled fleet writes more
)


def answers(folder: Path, compiled: str) -> list[tuple[int, str]]:
    """What a fleet says to all that is asked, without what differs from run to run, and what it streams."""
    folder.mkdir()
    (folder / "meter.py").write_text(METER.replace("COMPILED", compiled), encoding="utf-8")
    node = ServedProcess(folder, "run", "meter:fleet", "--serve", "127.0.0.1:0")
    try:
        found: list[tuple[int, str]] = []
        after = ""
        for number, (method, path, body) in enumerate(ASKED):
            key = {"Idempotency-Key": f"key-{number}"} if body else {}
            answer = node.ask(method, path.replace("AFTER", after), body, key)
            after = answer.json.get("after", after) if answer.status == 200 else after
            found.append((answer.status, CHANCE.sub("", answer.text)))
        stream = SseClient(node, "?type=Counted@1&type=WasReset@1&since=2020-01-01T00:00:00Z")
        found += [(0, f"{one['agent']} {one['type']} {one['fields']}") for one in stream.take(4)]
        stream.close()
        return found
    finally:
        assert node.end() == 0


@pytest.mark.timeout(900)
def test_compiled_as_interpreted(tmp_path: Path) -> None:
    compiled = answers(tmp_path / "compiled", "[Meter]")
    assert [status for status, _ in compiled] == [200, 409, 422, 422, *[200] * 8, 0, 0, 0, 0]
    assert '"total":11' in compiled[8][1]
    assert '"counted":6' in compiled[10][1]
    assert compiled == answers(tmp_path / "interpreted", "[]")


EMBEDDING = """
import asyncio
import drone


async def main() -> None:
    async with drone.fleet.running():
        print("up", flush=True)
        await asyncio.sleep(3600)


asyncio.run(main())
"""


def test_an_embedded_fleet_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "drone.py").write_text(DRONE, encoding="utf-8")
    embedding = subprocess.Popen(
        [sys.executable, "-c", EMBEDDING], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert embedding.stdout is not None
        assert embedding.stdout.readline() == b"up\n"
        refused = cli(tmp_path, "serve", "drone:fleet", "--listen", "127.0.0.1:0")
        assert refused.returncode == 3, refused
        assert "stigmergy run drone:fleet" in refused.stderr
    finally:
        embedding.kill()
        embedding.communicate(timeout=240)
