"""The live view: what a frame shows at any size, and the program in a real terminal beside a real node."""

import itertools
import json
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from stigmergy.audit.listing import Cause, LogEntry, Owing
from stigmergy.base.errors import NotRunning
from stigmergy.cli.display.frames import COLUMNS_MIN, Page, Sampler, Seen, Viewport, draw, fit
from stigmergy.cli.display.output import Cell
from stigmergy.control.replies import LetterReply, LinkReply, RecoveryReply, StatusReply
from stigmergy.metrics.busiest import Share
from stigmergy.metrics.histogram import Histogram
from stigmergy.metrics.samples import LargestState, Samples, SampleSheet, latencies
from tests.cli.conftest import Folder
from tests.cli.terminal import Terminal, in_terminal

TOP = [sys.executable, "-m", "stigmergy", "top", "--every", "0.2"]
STATUS = StatusReply(
    fleet="delivery",
    version="0.1.0",
    pid=4711,
    up_s=7500.0,
    cpu_s=12.0,
    memory_peak_bytes=45 * 2**20,
    journal="sqlite:delivery.db",
    journal_bytes=3 * 2**20,
    agents=1234,
    events=98_765_432,
    commits=4_000,
    owed=7,
    waiting=3,
    dead_letters=2,
    stopped={f"Drone/D-{number}": "2 failed inputs within 60 s" for number in range(9)},
    heads=[],
    signers=[],
    recovered=RecoveryReply(0, 0, 0, {}, []),
    counters={"inputs": 120, "shed_items": 5, "malformed": 1, "gaps": 0},
    troubles=["no snapshot of shard 0: something"],
    link=LinkReply("none", "", 0, 0),
)
ENTRY = LogEntry(
    kind="event",
    shard=0,
    position=1,
    index=0,
    time="2026-11-15T09:22:18.849337Z",
    time_ns=0,
    agent="Drone/D-17",
    type="MissionStarted@1",
    fields={"mission": "\x1b[2J\x07M"},
    cause=Cause("command"),
    effects=[Owing("actuators", 1, "Land@1", {})],
)
LETTER = LetterReply("0.6.0", "Drone/D-1", "command", "Stumble@1", {}, "RuntimeError: oh")
SEEN = Seen(
    10.0,
    STATUS,
    events_per_s=41.5,
    commits_per_s=3.25,
    cpu_percent=12.0,
    counters_per_s={"inputs": 40.0},
    last=[ENTRY] * 50,
    letters=[LETTER] * 50,
)


def measured() -> Samples:
    sheet, took = SampleSheet(), Histogram()
    took.observe(3_000_000, 10)
    sheet.observe("stigmergy_event_to_action_seconds", took)
    sheet.observe("stigmergy_commit_seconds", Histogram())
    return sheet.samples([Share("Drone/D-7", 0.75)], [LargestState("Drone/D-9", 2048)])


MEASURED = structs.replace(SEEN, status=structs.replace(STATUS, metrics=measured()), latencies=latencies(measured()))


def text(line: list[Cell]) -> str:
    return "".join(cell if isinstance(cell, str) else cell[0] for cell in line)


def frame(seen: Seen, view: Viewport) -> str:
    return "\n".join(text(line) for line in draw(seen, view))


@pytest.mark.parametrize("page", Page)
@pytest.mark.parametrize("lines", [1, 2, 5, 10, 16, 24, 200])
def test_a_frame_fits_every_terminal(lines: int, page: Page) -> None:
    absent = Seen(0.0, why="no node is running here; start it: stigmergy run MODULE:FLEET")
    for seen, columns in itertools.product((SEEN, absent), (1, 20, 39, 40, 55, 80, 300)):
        drawn = draw(seen, Viewport(columns, lines, page, rates=(1.0, 0.0, 5.5) * 100))
        assert len(drawn) <= lines
        assert all(len(text(line)) <= max(columns, COLUMNS_MIN) for line in drawn)
        assert all(text(line).isprintable() for line in drawn)


def test_what_a_frame_shows() -> None:
    shown = frame(SEEN, Viewport(100, 40, rates=(0.0, 10.0, 20.0)))
    for part in (
        "delivery  up 2 h 5 min  process 4711",
        "sqlite:delivery.db  3.0 MiB",
        "98.8 M",
        "events/s ▁▅█ 20",
        "trouble no snapshot of shard 0: something",
        "stopped Drone/D-4  2 failed inputs",
        "… and 4 more are stopped: stigmergy status",
        "09:22:18.849 Drone/D-17 MissionStarted mission=",
        "→ Land",
        " q  quit",
    ):
        assert part in shown
    assert re.findall(r" (42|3\.2|1,234|7|6)(?= |\n)", shown) == ["42", "3.2", "1,234", "7", "6"]
    assert "COUNTERS" not in shown


def test_other_pages() -> None:
    counters = frame(SEEN, Viewport(100, 40, Page.COUNTERS))
    assert "inputs                        120         40/s" in counters
    assert "gaps" not in counters
    letters = frame(SEEN, Viewport(100, 24, Page.LETTERS))
    assert "0.6.0 Drone/D-1 RuntimeError: oh  Stumble@1" in letters
    assert letters.splitlines()[-2].startswith("… and ")
    times = frame(MEASURED, Viewport(100, 40, Page.METRICS))
    assert re.search(r"^event to action +p50 +3\.\d\d ms  p99 +4\.\d\d ms$", times, re.MULTILINE)
    assert "busy  Drone/D-7  75% of the events\nlarge Drone/D-9  2.0 KiB" in times
    assert re.search(r"action p99 +4\.\d\d ms", times)
    assert "commit" not in times.partition("TIMES")[2], "nothing was observed"
    nothing = frame(structs.replace(SEEN, letters=[]), Viewport(100, 40, Page.LETTERS))
    assert "DEAD LETTERS\nnone" in nothing


def test_the_link_of_a_node_that_has_a_bus() -> None:
    assert "link" not in frame(SEEN, Viewport(100, 40))
    up = structs.replace(STATUS, link=LinkReply("up", "", 0, 3))
    assert "\nlink up  3 members\n\n" in frame(structs.replace(SEEN, status=up), Viewport(100, 40))
    down = structs.replace(STATUS, link=LinkReply("local-only", "no route", 1200, 1))
    shown = frame(structs.replace(SEEN, status=down), Viewport(100, 40))
    assert "\nlink local-only  1 member  1,200 to publish\nlink no route\n\n" in shown


def test_a_line_is_cut_where_the_terminal_ends() -> None:
    assert text(fit(["abc", ("defg", "red"), "h"], 5)) == "abcd…"
    assert text(fit(["abc", "de"], 5)) == "abcde"
    assert text(fit(["abcde", "f"], 5)) == "abcde"


def test_rates_are_of_one_process(shared: Folder) -> None:
    sampler = Sampler(lambda: shared.path / "delivery.db.sock")
    first = sampler.look()
    assert (first.events_per_s, first.commits_per_s, first.cpu_percent) == (None, None, None)
    for number in range(5):
        shared.ask(do="send", agent="Drone/D-3", command="StartMission", fields={"mission": f"M{number}"})
    second = sampler.look(last=4, letters=True)
    assert first.status is not None
    assert second.status is not None
    took_s = second.status.up_s - first.status.up_s
    assert second.events_per_s == pytest.approx(5 / took_s)
    assert second.commits_per_s == pytest.approx(5 / took_s)
    assert second.counters_per_s["accepted"] == pytest.approx(5 / took_s)
    assert [entry.fields["mission"] for entry in second.last] == ["M3", "M3", "M4", "M4"]
    assert second.letters == []
    sampler.close()
    # The same numbers from another process say nothing about a rate.
    sampler._before = structs.replace(second, status=structs.replace(second.status, pid=1))
    assert sampler.look().events_per_s is None
    sampler.close()


def test_nobody_to_look_at(tmp_path: Path) -> None:
    def find() -> Path:
        raise NotRunning("nobody here")

    assert Sampler(find, now_s=lambda: 7.0).look() == Seen(7.0, why="nobody here")
    assert "no node answers" in Sampler(lambda: tmp_path / "no.sock").look().why


# ---------------------------------------------------------------------- the program


def test_one_frame_where_nobody_looks(shared: Folder) -> None:
    for arguments in (["--once"], []):
        done = shared.cli("top", "--every", "0.1", *arguments)
        assert done.returncode == 0
        assert "delivery  up " in done.stdout
        assert "events/s" in done.stdout
        assert "MissionStarted mission=" in done.stdout
        assert "\x1b" not in done.stdout
        assert "quit" not in done.stdout
    narrow = shared.cli("top", "--once", "--every", "0.1", COLUMNS="30")
    assert max(len(line) for line in narrow.stdout.splitlines()) <= 30


def test_one_look_for_programs(shared: Folder) -> None:
    seen = shared.json("top", "--once", "--every", "0.1")
    assert seen["running"] is True
    assert seen["status"]["fleet"] == "delivery"
    assert seen["events_per_s"] >= 0


def test_errors(here: Folder) -> None:
    assert "no node is running here" in here.error("top", "--once", code=3)
    assert "no node is running here" in here.error("top", code=3)
    assert "give 0.1 to 3600 seconds" in here.error("top", "--every", "0", code=2)
    assert here.json("top", "--once", code=3)["kind"] == "NotRunning"


def test_a_stream_for_programs_outlives_the_node(folder: Folder) -> None:
    node = folder.start()
    process = subprocess.Popen(
        [*TOP, "--json"],
        cwd=folder.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background has them, and all they start, ignore a Ctrl-C.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    try:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert first["events_per_s"] is None
        seen: dict[str, Any] = first
        while seen["events_per_s"] is None:
            seen = json.loads(process.stdout.readline())
        assert seen["status"]["pid"] == node.process.pid
        node.end(signal.SIGKILL)
        while seen["running"]:
            seen = json.loads(process.stdout.readline())
        assert seen["status"] is None
        assert seen["why"]
        folder.start()
        while not seen["running"]:
            seen = json.loads(process.stdout.readline())
        assert seen["events_per_s"] is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=240)
        assert (process.returncode, err) == (0, "")
    finally:
        process.kill()
        process.communicate()


def left_clean(terminal: Terminal) -> None:
    """The screen from before is back, the cursor is shown, and typing is echoed."""
    assert terminal.written.rindex(b"\x1b[?1049l") > terminal.written.rindex(b"\x1b[?1049h")
    assert terminal.written.rindex(b"\x1b[?25h") > terminal.written.rindex(b"\x1b[?25l")
    assert terminal.echoes()
    assert "Traceback" not in terminal.text


def test_a_terminal_keys_and_size(folder: Folder) -> None:
    folder.start()
    folder.ask(do="send", agent="Drone/D-1", command="Stumble")
    folder.ask(do="send", agent="Drone/D-2", command="StartMission", fields={"mission": "M1"})
    with in_terminal(TOP, folder.path, columns=100) as terminal:
        terminal.wait_text("delivery  up ", "LAST ENTRIES", "MissionStarted mission=M1", "events/s ▁")
        assert not terminal.echoes()
        terminal.press("c")
        terminal.wait_text("COUNTERS SINCE THE START", "accepted")
        terminal.press("l")
        terminal.wait_text("DEAD LETTERS", "RuntimeError: over its own feet  Stumble@1")
        terminal.press("p")
        seen = len(terminal.written)
        terminal.wait_text("paused", after=seen)
        seen = len(terminal.written)
        terminal.resize(44, 20)
        terminal.wait_text("waiting            0  dead letters       1", after=seen)
        terminal.press("e")  # another page is looked up, also while it is paused
        terminal.wait_text("LAST ENTRIES", "MissionStarted miss", after=seen)
        terminal.press("\x1b[A?P")
        terminal.press("q")
        assert terminal.wait_end() == 0
        left_clean(terminal)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_leaving_by_a_signal(shared: Folder, ending: signal.Signals) -> None:
    with in_terminal(TOP, shared.path) as terminal:
        terminal.wait_text("delivery  up ")
        if ending is signal.SIGINT:
            terminal.press("\x03")
        else:
            terminal.process.send_signal(ending)
        assert terminal.wait_end() == (0 if ending is signal.SIGINT else 128 + signal.SIGTERM)
        left_clean(terminal)


def test_ctrl_z_gives_the_terminal_back(shared: Folder) -> None:
    with in_terminal(TOP, shared.path) as terminal:
        terminal.wait_text("delivery  up ")
        terminal.process.send_signal(signal.SIGTSTP)
        while Path(f"/proc/{terminal.process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            terminal.drain()
        terminal.drain()
        left_clean(terminal)
        seen = len(terminal.written)
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait_text("delivery  up ", after=seen)
        terminal.press("q")
        assert terminal.wait_end() == 0
        left_clean(terminal)


def test_a_terminal_that_waits_for_its_node(folder: Folder) -> None:
    with in_terminal(TOP, folder.path, columns=70) as terminal:
        terminal.wait_text("not running", "no node is running here; start it: stigmergy run MODULE:FLEET")
        node = folder.start()
        terminal.wait_text(f"process {node.process.pid}")
        seen = len(terminal.written)
        node.end(signal.SIGKILL)
        terminal.wait_text("not running", after=seen)
        again = folder.start()
        terminal.wait_text(f"process {again.process.pid}")
        terminal.press("q")
        assert terminal.wait_end() == 0
        left_clean(terminal)


def test_a_broker_that_is_not_there(folder: Folder) -> None:
    (folder.path / "stigmergy.toml").write_text('[fleet]\nmodule = "drone:fleet"\nbus = "mqtt://127.0.0.1:9"\n')
    folder.start()
    link = folder.ask(do="status")["link"]
    while not link["why"]:
        link = folder.ask(do="status")["link"]
    assert link["state"] == "local-only"
    assert "127.0.0.1:9" in link["why"]
    assert "link local-only  1 member\nlink mqtt://127.0.0.1:9" in folder.cli("top", "--every", "0.1").stdout
    assert "local-only, 1 member, 0 to publish; mqtt://127.0.0.1:9" in folder.cli("status").stdout
