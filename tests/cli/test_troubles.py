"""A running node says what is wrong when it begins, when it ends, and not too often."""

import json
import signal
import subprocess
import sys
from typing import IO

from stigmergy.cli.display.troubles import LINES_MAX, TroubleChange, TroubleReport
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


def test_a_trouble_is_told_when_it_begins_and_when_it_is_over() -> None:
    report = TroubleReport()
    assert report.compare([], 0.0) == []
    assert report.compare(["the disk is full"], 1.0) == [TroubleChange("the disk is full")]
    assert report.compare(["the disk is full"], 200.0) == []
    assert report.compare([], 201.0) == [TroubleChange("the disk is full", is_over=True)]
    assert report.compare(["the disk is full"], 202.0) == [TroubleChange("the disk is full")]


def test_a_count_that_grows_is_told_once_a_minute() -> None:
    report = TroubleReport()
    told = [report.compare([f"{count:,} shed since 10:02:11"], float(count)) for count in range(1, 151)]
    assert {place + 1: changes[0].text for place, changes in enumerate(told) if changes} == {
        1: "1 shed since 10:02:11",
        61: "61 shed since 10:02:11",
        121: "121 shed since 10:02:11",
    }
    # The last count is told although it grows no more.
    assert report.compare(["150 shed since 10:02:11"], 181.0) == [TroubleChange("150 shed since 10:02:11")]
    assert report.compare(["150 shed since 10:02:11"], 500.0) == []


def test_troubles_that_differ_in_a_number_are_two() -> None:
    report = TroubleReport()
    both = ["Drone/1 is stopped: over its own feet", "Drone/2 is stopped: over its own feet"]
    assert report.compare(both, 0.0) == [TroubleChange(text) for text in both]
    assert report.compare(both[1:], 1.0) == [TroubleChange(both[0], is_over=True)]


def test_another_reason_of_a_link_that_is_down_is_the_same_trouble() -> None:
    report = TroubleReport()
    assert len(report.compare(["link local-only: refused"], 0.0)) == 1
    assert report.compare(["link local-only: timed out"], 1.0) == []
    assert report.compare([], 2.0) == [TroubleChange("link local-only: timed out", is_over=True)]


def test_lines_are_bounded_and_those_left_out_are_counted() -> None:
    report = TroubleReport()
    assert sum(report.admit(1.0 + number / 100) for number in range(500)) == LINES_MAX
    assert report.take_left_out(59.0) == 0
    assert report.take_left_out(61.0) == 500 - LINES_MAX
    assert report.take_left_out(62.0) == 0
    assert report.admit(63.0)


def read_to(lines: IO[str], told: list[str], *beginnings: str) -> None:
    """Reads into `told` until it has a line of each beginning. In which order they come depends on the machine."""
    while not all(any(line.startswith(one) for line in told) for one in beginnings):
        line = lines.readline()
        assert line, told
        told.append(line)


def test_run_tells_of_its_link_its_copies_and_safe_actions(here: Folder) -> None:
    (here.path / "valve.py").write_text(VALVE)
    command = ["run", "valve:fleet", "--bus", "mqtt://127.0.0.1:1", "--copies", "folder:gone/copies"]
    process = subprocess.Popen(
        [sys.executable, "-m", "stigmergy", *command],
        cwd=here.path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    told: list[str] = []
    try:
        read_to(process.stderr, told, "trouble: link local-only: mqtt://127.0.0.1:1: ")
        here.json("observe", "Valve/1", "Alive", "number=1")
        read_to(process.stderr, told, "safe action ", "trouble: the copies ")
        assert "safe action Close of Valve/1: no Alive for 0.5 s\n" in told
        (trouble,) = [one for one in here.json("status")["troubles"] if one.startswith("the copies ")]
        assert trouble.startswith("the copies at folder:gone/copies are behind: ")
        assert f"trouble: {trouble}\n" in told
        (here.path / "gone/copies").mkdir(parents=True)
        read_to(process.stderr, told, f"over: {trouble}\n")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=240)


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
