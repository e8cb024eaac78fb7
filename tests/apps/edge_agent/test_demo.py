"""The demonstration runs without a terminal, proves what it shows, and says so when it cannot."""

import asyncio
import copy
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from apps.edge_agent.demo.__main__ import page_of
from apps.edge_agent.demo.evidence import (
    Recovered,
    arrived,
    done_once,
    find_event,
    heard,
    intact,
    published,
    safe_in_time,
    said_no,
)
from apps.edge_agent.demo.field import DRONE, bytes_written
from apps.edge_agent.drone import fleet
from apps.edge_agent.messages import GroundHeard

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_everything_is_proved(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "apps.edge_agent.demo", "--pace", "3", "--seed", "5"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nproved  ") == 9
    assert "NOT SO" not in done.stdout
    assert re.search(r"\d\d reports in the drone's journal, .* lost 0, doubled 0, in order", done.stdout)
    assert "kill -9" in done.stdout
    assert re.search(r"[1-9]\d* reports were kept on board", done.stdout)
    assert re.search(r"position \d+: the bytes do not have the digest", done.stdout)
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def entry(kind: str, agent: str, fields: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    cause = {"source": more.pop("source", ""), "command": "", "command_id": more.pop("command_id", "")}
    return {
        "kind": "event",
        "agent": agent,
        "type": f"{kind}@1",
        "fields": fields or {},
        "cause": cause,
        "effects": [],
        "time_ns": 0,
        **more,
    }


def report(number: int, percent: float) -> dict[str, Any]:
    """An entry of the drone's log that publishes."""
    fields = {"percent": percent}
    effect = {"sink": "publish", "sequence": number, "type": "BatteryReported@1", "fields": fields, "to": "battery"}
    return entry("BatteryReported", "Drone/D-17", fields, effects=[effect])


def taken(percent: float) -> dict[str, Any]:
    """An entry of the ground station's log."""
    source = "bus/delivery/local/agents/Drone/D-17/events/battery Pilot/D-17"
    return entry("BatteryReported", "Pilot/D-17", {"percent": percent}, source=source)


def test_what_is_lost_doubled_or_out_of_order_is_found() -> None:
    sent = published([report(1, 99.0), report(2, 98.5), report(3, 98.5)])
    good = arrived(sent, heard([taken(99.0), taken(98.5), taken(98.5)]))
    assert good.holds
    assert "3 reports" in good.what
    for log, said in (
        ([taken(99.0), taken(98.5)], "lost 1, doubled 0"),
        ([taken(99.0), taken(98.5), taken(98.5), taken(98.5)], "lost 0, doubled 1"),
        ([taken(98.5), taken(99.0), taken(98.5)], "lost 0, doubled 0, NOT in order"),
        ([taken(99.0), taken(98.5), taken(12.0)], "lost 1, doubled 1"),
        ([], "lost 3, doubled 0"),
    ):
        found = arrived(sent, heard(log))
        assert not found.holds
        assert said in found.what
    assert not arrived({}, {}).holds, "nothing published proves nothing"


def test_a_state_that_changed_is_found() -> None:
    state = {"position": 9, "state": {"mission": "M1", "battery": 90.0}}
    later = {"position": 11, "state": {"mission": "M1", "battery": 89.0}}
    assert intact(Recovered(state, copy.deepcopy(state), later)).holds
    other = {"position": 9, "state": {"mission": "M1", "battery": 90.1}}
    assert not intact(Recovered(state, other, later)).holds
    forgot = {"position": 11, "state": {"mission": None, "battery": 89.0}}
    assert not intact(Recovered(state, state, forgot)).holds
    full = {"position": 11, "state": {"mission": "M1", "battery": 100.0}}
    assert not intact(Recovered(state, state, full)).holds


def answer(order: str, accepted: bool) -> dict[str, Any]:
    fields = {"order": order, "accepted": accepted, "reason": None if accepted else "too far"}
    return entry("OrderAnswered", "Pilot/D-17", fields)


def test_an_order_done_twice_or_answered_otherwise_is_found() -> None:
    start = entry("MissionStarted", "Drone/D-17", command_id="D-17.1")
    ground = [answer("D-17.1", True), answer("D-17.1", True), answer("D-17.2", False)]
    assert done_once([start], ground).holds
    assert not done_once([start, start], ground).holds
    assert not done_once([start], [answer("D-17.1", True), answer("D-17.1", False)]).holds
    assert not done_once([start], [answer("D-17.1", True)]).holds, "nothing was repeated"
    assert said_no(ground, "M0").what == "M0 was refused: too far"
    assert not said_no([answer("D-17.1", True)], "M0").holds


@pytest.mark.parametrize(("after_s", "holds"), [(3.0, True), (3.5, True), (2.0, False), (4.0, False)])
def test_a_safe_action_at_the_wrong_time_is_found(after_s: float, holds: bool) -> None:
    silence = {"action": "Land@1", "because": "no GroundHeard for 3 s"}
    word = entry("GroundHeard", "Drone/D-17", time_ns=10**18)
    safe = entry("stigmergy.SafeActionTaken", "Drone/D-17", silence, time_ns=10**18 + int(after_s * 1e9))
    assert safe_in_time([word, safe]).holds is holds
    early = entry("stigmergy.SafeActionTaken", "Drone/D-17", silence, time_ns=10**17)
    assert safe_in_time([early, word, safe]).holds is holds, (
        "one that waits for its first word on the ground is no matter"
    )
    assert not safe_in_time([word]).holds
    assert not safe_in_time([safe]).holds


def test_a_flip_hits_an_event_that_is_there_once() -> None:
    data = bytearray(b"x" * 50 + b"BatteryReported@1 first of its kind.." + b"y" * 50)
    assert 50 <= find_event(data, random.Random(1)) < 50 + len("BatteryReported@1")


def test_the_flight_is_played_back_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "drone").mkdir()

    async def fly() -> None:
        async with fleet.running(journal=f"sqlite:{tmp_path / 'drone' / 'drone.db'}") as live:
            await live.observe(DRONE, GroundHeard())

    asyncio.run(fly())
    with page_of(tmp_path) as (address, _), urlopen(f"{address}v1/page") as answer:
        page = json.load(answer)
    assert (page["mode"], page["fleet"]) == ("replay", fleet.name)


def test_the_kernel_counts_what_we_write(tmp_path: Path) -> None:
    before = bytes_written(os.getpid())
    (tmp_path / "file").write_bytes(b"x" * 1_000_000)
    assert bytes_written(os.getpid()) >= before
    assert bytes_written(2**22 + 1) == 0
