"""A running node says what is wrong when it begins, when it ends, and not too often."""

import asyncio
import json
import signal
import subprocess
import sys
from typing import IO

import msgspec
import pytest

from stigmergy import Agent, Event, Fleet
from stigmergy.cli.display.output import Output
from stigmergy.cli.display.troubles import LINES_MAX, TroubleChange, TroubleReport, TroubleWatch
from stigmergy.diagnostics.codes import Trouble
from stigmergy.diagnostics.lines import LogLine
from stigmergy.node.effector import SentSafeAction
from tests.cli.conftest import Folder

VALVE = """
import stigmergy as st


class Alive(st.Event):
    number: int


class Close(st.Action):
    pass


class Valve(st.Agent):
    number: int = 0
    stale = st.WhenStale(Alive, after_s=0.5, then=Close())

    @st.evolve
    def alive(self, event: Alive) -> None:
        self.number = event.number


fleet = st.Fleet("delivery", agents=[Valve])


@fleet.actuator(Close)
def close(order: st.Order[Close]) -> None:
    pass
"""


class Drone(Agent):
    pass


def sentence(text: str) -> Trouble:
    return Trouble("copies-behind", text)


def changed(text: str, *, is_over: bool = False) -> TroubleChange:
    return TroubleChange(sentence(text), is_over)


def test_a_trouble_is_told_when_it_begins_and_when_it_is_over() -> None:
    report = TroubleReport()
    assert report.compare([], 0.0) == []
    assert report.compare([sentence("the disk is full")], 1.0) == [changed("the disk is full")]
    assert report.compare([sentence("the disk is full")], 200.0) == []
    assert report.compare([], 201.0) == [changed("the disk is full", is_over=True)]
    assert report.compare([sentence("the disk is full")], 202.0) == [changed("the disk is full")]


def test_a_count_that_grows_is_told_once_a_minute() -> None:
    report = TroubleReport()
    told = [report.compare([sentence(f"{count:,} shed since 10:02:11")], float(count)) for count in range(1, 151)]
    assert {place + 1: changes[0].text for place, changes in enumerate(told) if changes} == {
        1: "1 shed since 10:02:11",
        61: "61 shed since 10:02:11",
        121: "121 shed since 10:02:11",
    }
    # The last count is told although it grows no more.
    assert report.compare([sentence("150 shed since 10:02:11")], 181.0) == [changed("150 shed since 10:02:11")]
    assert report.compare([sentence("150 shed since 10:02:11")], 500.0) == []


def test_troubles_that_differ_in_a_number_are_two() -> None:
    report = TroubleReport()
    both = [sentence(f"Drone/{number} is stopped: over its own feet") for number in (1, 2)]
    assert report.compare(both, 0.0) == [changed(text) for text in both]
    assert report.compare(both[1:], 1.0) == [changed(both[0], is_over=True)]


def test_another_reason_of_a_link_that_is_down_is_the_same_trouble() -> None:
    report = TroubleReport()
    assert len(report.compare([sentence("link local-only: refused")], 0.0)) == 1
    assert report.compare([sentence("link local-only: timed out")], 1.0) == []
    assert report.compare([], 2.0) == [changed("link local-only: timed out", is_over=True)]


def test_lines_are_bounded_and_those_left_out_are_counted() -> None:
    report = TroubleReport()
    assert sum(report.admit(1.0 + number / 100) for number in range(500)) == LINES_MAX
    assert report.take_left_out(59.0) == 0
    assert report.take_left_out(61.0) == 500 - LINES_MAX
    assert report.take_left_out(62.0) == 0
    assert report.admit(63.0)


def read_to(lines: IO[str], told: list[LogLine], **wanted: str) -> LogLine:
    """Reads into `told` until it has a line like that. In which order they come depends on the machine."""
    while True:
        for one in told:
            if all(getattr(one, name) == value for name, value in wanted.items()):
                return one
        line = lines.readline()
        assert line, told
        told.append(msgspec.json.decode(line, type=LogLine))


def test_run_tells_of_its_link_its_copies_and_safe_actions(here: Folder) -> None:
    (here.path / "valve.py").write_text(VALVE)
    (here.path / "stigmergy.toml").write_text("[settings.copies]\nevery_s = 0.5\n")
    command = ["run", "valve:fleet", "--bus", "mqtt://127.0.0.1:1", "--copies", "folder:gone/copies"]
    process = subprocess.Popen(
        [sys.executable, "-m", "stigmergy", *command],
        cwd=here.path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    told: list[LogLine] = []
    try:
        link = read_to(process.stderr, told, code="bus-down")
        assert link.message.startswith("link local-only: mqtt://127.0.0.1:1: ")
        assert (link.level, link.over) == ("warn", False)
        here.json("observe", "Valve/1", "Alive", "number=1")
        action = read_to(process.stderr, told, code="safe-action")
        assert (action.message, action.agent) == ("safe action Close of Valve/1: no Alive for 0.5 s", "Valve/1")
        read_to(process.stderr, told, code="copies-behind")
        (trouble,) = [one for one in here.json("status")["troubles"] if one.startswith("the copies ")]
        assert trouble.startswith("the copies at folder:gone/copies are behind: ")
        read_to(process.stderr, told, code="copies-behind", message=trouble)
        told.clear()
        (here.path / "gone/copies").mkdir(parents=True)
        over = read_to(process.stderr, told, code="copies-behind")
        assert (over.level, over.over) == ("info", True)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=240)


async def test_what_is_over_is_told_in_the_past(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    fleet, watch = Fleet("delivery", agents=[Drone]), TroubleWatch(Output(), "delivery")

    @fleet.sensor(Drone, every_s=0.01)
    async def gauge(drone: str) -> Event | None:
        raise OSError("no bus")

    async with fleet.running(journal="memory:", agents=["Drone/1"]) as live:
        async with asyncio.timeout(60):
            while not live.troubles():  # noqa: ASYNC110 - what is looked at has no event
                await asyncio.sleep(0.01)
        watch.look({0: live}, 0.0)
        watch.look({}, 1.0)
    begun, over = [one.getMessage() for one in caplog.records if one.name == "stigmergy.troubles"]
    assert begun.startswith("sensor gauge of Drone/1 fails, ")
    assert over.startswith("sensor gauge of Drone/1 failed ")


async def test_the_safe_actions_of_a_host_that_has_failed_are_told_although_it_is_gone(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet("delivery", agents=[Drone])
    watch = TroubleWatch(Output(json=True), fleet.name)
    async with fleet.running(journal="memory:") as live:
        watch.look({0: live}, 0.0)
        live.host.safety.sent.append(SentSafeAction("Drone/1", "Land", ""))
        watch.look({}, 1.0)
        watch.look({}, 2.0)
    (told,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told == {"event": "safe action", "agent": "Drone/1", "action": "Land", "because": "", "fleet": fleet.name}
    (record,) = [one for one in caplog.records if one.name == "stigmergy.troubles"]
    assert (record.__dict__["about"].code, record.getMessage()) == ("safe-action", "safe action Land of Drone/1")


def test_for_programs_troubles_are_documents(here: Folder) -> None:
    (here.path / "valve.py").write_text(VALVE)
    node = here.start("valve:fleet", "--bus", "mqtt://127.0.0.1:1")
    assert node.process.stdout is not None
    link = json.loads(node.process.stdout.readline())
    assert (link["event"], link["fleet"]) == ("troubled", "delivery")
    assert link["reason"].startswith("link local-only: mqtt://127.0.0.1:1: ")
    here.json("observe", "Valve/1", "Alive", "number=1")
    assert json.loads(node.process.stdout.readline()) == {
        "event": "safe action",
        "fleet": "delivery",
        "agent": "Valve/1",
        "action": "Close",
        "because": "no Alive for 0.5 s",
    }
    assert node.end()[0] == 0
