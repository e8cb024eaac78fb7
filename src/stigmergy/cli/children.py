"""Child processes of `stigmergy up`: one that dies is restarted after a growing back-off.

The output of a process goes into its own log file, and its pid into a file beside it. Its JSON output is read: its
events, why it ended, and the lines of its log.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from stigmergy.base.tasks import end_tasks
from stigmergy.cli.display.output import BAD, GOOD, WARN, shown_bytes
from stigmergy.nats.servers import ServerPlan, last_error_in, look_at, needs_restart

RESTARTS_MAX = 5
RESTARTS_WITHIN_S = 60.0
"""A process that has died so often within so long is not started again, and the node ends."""
PAUSE_S = 0.1
PAUSE_S_MAX = 5.0
"""Before a process is started again; it doubles with each time that it died within the time above."""
LINE_BYTES_MAX = 1024 * 1024
LAST_LINES_S_MAX = 1.0
HOPELESS = (
    *(
        "ConfigError",
        "DefinitionError",
        "JournalForeign",
        "JournalCorrupt",
        "JournalLocked",
        "FoldMismatch",
        "DataLost",
    ),
    *("StaleEpoch", "WrongKey", "BadSignature", "TrustError", "RingForeign", "RingDamaged"),
)
"""Errors after which another start would only end in the same."""

STARTING, UP, PAUSING, ENDED, FAILED = "starting", "up", "again soon", "ended", "given up"
JOINING = "joining again"
_PR_SET_PDEATHSIG = 1

Tell = Callable[["Child", str, dict[str, Any]], None]


class Restarts:
    """How often a process has died lately, and so how long to wait before it is started again."""

    def __init__(self) -> None:
        self._died: deque[float] = deque()

    def died(self, now_s: float) -> float | None:
        """The pause before the next start; None if it has died too often."""
        self._died.append(now_s)
        while now_s - self._died[0] > RESTARTS_WITHIN_S:
            self._died.popleft()
        if len(self._died) > RESTARTS_MAX:
            return None
        return float(min(PAUSE_S_MAX, PAUSE_S * 2 ** (len(self._died) - 1)))


class Child:
    """One process. `tell` hears what becomes of it: `started`, `ended`, `given up`, `said`; `on_log` each line that it
    writes to stderr."""

    def __init__(self, name: str, kind: str, command: list[str], log: Path, tell: Tell, *, speaks: bool) -> None:
        """One that `speaks` prints documents of JSON on stdout."""
        self.name = name
        self.kind = kind
        self.state = STARTING
        self.detail = ""
        """What it last said of itself, in a few words."""
        self.starts = 0
        self.error = ""
        self._error_kind = ""
        self._command = command
        self._log = log
        self._tell = tell
        self._speaks = speaks
        self.on_log: Callable[[Child, bytes], None] = lambda *_: None
        self._process: asyncio.subprocess.Process | None = None
        self._restarts = Restarts()
        self._is_restarted = False
        self._stopping = asyncio.Event()
        self._since_s = self._unready_s = time.monotonic()
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Of its process; 0 while there is none."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process is not None else 0

    @property
    def up_s(self) -> float:
        """How long this life of it has lasted."""
        return time.monotonic() - self._since_s

    @property
    def unready_s(self) -> float:
        """How long its process has run without doing what it is for; 0 while it does, or while there is no process."""
        return time.monotonic() - self._unready_s if self.pid and self.state != UP else 0.0

    def begin(self) -> None:
        """Starts it, and again whenever it dies."""
        self._task = asyncio.ensure_future(self._live())

    def ready(self, detail: str = "") -> None:
        """It does what it is for."""
        self.state, self.detail = UP, detail or self.detail

    def unready(self, state: str, detail: str) -> None:
        """It does not do what it is for any more, and says why."""
        self.state, self.detail, self._unready_s = state, detail, time.monotonic()

    def stop(self) -> None:
        """Has it end in order."""
        self._stopping.set()
        self.signal(signal.SIGTERM)

    async def restart(self, within_s: float) -> None:
        """Ends it in order, the hard way if that takes too long, and starts it again; it counts as no death."""
        process = self._process
        if process is None or process.returncode is not None or self._stopping.is_set():
            return
        self._is_restarted = True
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(within_s):
                await process.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)

    def kill(self) -> None:
        """Has it end at once."""
        self._stopping.set()
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Signals it, if it is there."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def wait_end(self, within_s: float) -> None:
        """Waits until it is over, and ends it the hard way if that takes too long."""
        if self._task is None:
            return
        done, _ = await asyncio.wait([self._task], timeout=within_s)
        if not done:
            self.kill()
            await asyncio.wait([self._task])
        self._task.result()

    async def _live(self) -> None:
        while not self._stopping.is_set():
            try:
                code = await self._one_life()
            except OSError as error:
                self._give_up(f"cannot be started: {error.strerror or error}")
                return
            if self._stopping.is_set():
                break
            if self._is_restarted:
                self._is_restarted = False
                continue
            pause_s = self._restarts.died(time.monotonic())
            if self._error_kind in HOPELESS:
                self._give_up(self.error)
                return
            if pause_s is None:
                what = self.error or how_it_ended(code)
                self._give_up(f"ended {RESTARTS_MAX + 1} times within {RESTARTS_WITHIN_S:g} s, the last time: {what}")
                return
            self.state, self.detail = PAUSING, self.error or how_it_ended(code)
            self._tell(self, "ended", {"code": code, "error": self.error or None, "again_in_s": pause_s})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
        self.state, self.detail = ENDED, ""
        self._log.with_suffix(".pid").unlink(missing_ok=True)

    async def _one_life(self) -> int:
        self.state, self.detail, self.error, self._error_kind = STARTING, "", "", ""
        self._since_s = self._unready_s = time.monotonic()
        with self._log.open("ab", buffering=0) as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if self._speaks else log,
                stderr=asyncio.subprocess.PIPE if self._speaks else log,
                limit=LINE_BYTES_MAX,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
            self.starts += 1
            if self._stopping.is_set():  # while it was being started
                self.signal(signal.SIGTERM)
            with contextlib.suppress(OSError):  # a full disk
                self._log.with_suffix(".pid").write_text(f"{self._process.pid}\n", encoding="utf-8")
            self._tell(self, "started", {"pid": self._process.pid, "starts": self.starts})
            if self._process.stdout is not None and self._process.stderr is not None:
                hearing = asyncio.ensure_future(_hear(self._process.stderr, log, lambda line: self.on_log(self, line)))
                try:
                    await _hear(self._process.stdout, log, self._said)
                    await self._process.wait()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LAST_LINES_S_MAX):  # a process that it left behind may have it open
                            await hearing
                finally:
                    await end_tasks(hearing)
            return await self._process.wait()

    def _said(self, line: bytes) -> None:
        with contextlib.suppress(msgspec.DecodeError):
            said = msgspec.json.decode(line, type=dict[str, Any])
            if "error" in said and "kind" in said:
                self.error, self._error_kind = str(said["error"]), str(said["kind"])
            self._tell(self, "said", said)

    def _give_up(self, why: str) -> None:
        self.state, self.detail, self.error = FAILED, why, why
        self._tell(self, "given up", {"error": why})


async def _hear(lines: asyncio.StreamReader, log: Any, take: Callable[[bytes], None]) -> None:
    with contextlib.suppress(ValueError):  # a line that is longer than we want to hear
        while line := await lines.readline():
            with contextlib.suppress(OSError):  # a full disk is no reason to end it, nor not to hear it
                log.write(line)
            take(line)
    while await lines.read(LINE_BYTES_MAX):
        pass


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with code {code}"
    with contextlib.suppress(ValueError):
        return f"ended by {signal.Signals(-code).name}"
    return f"ended by signal {-code}"


_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(1)


# Watches the health of a NATS server of `stigmergy up`, and restarts one that stores nothing.
#
# A server whose disk is full or fails turns its JetStream off, or gives up a stream, and stays so until it is
# restarted. Without space a restart would fail the same way. So this waits for space, and longer after each restart
# that did not help.

LOOK_S = 0.1
"""So often one that starts is looked at."""
WELL_EVERY_S = 1.0
"""And one that runs; each look at one that is not well is a line in its log."""
ROOM_BYTES_MIN = 16 * 1024 * 1024
"""Free on its disk before it is restarted: less is full again at once."""
FILES_MIN = 100
MEND_PAUSE_S = 2.0
MEND_PAUSE_S_MAX = 60.0
"""Between two restarts; it doubles each time, until the server was well for the longer of these."""
END_S_MAX = 15.0

Say = Callable[[str, str, str, str, dict[str, Any]], None]
"""Takes a code of the log, an event, the sentence for people with its style, and the fields for programs."""


class ServerWatch:
    """The watch over one server. `say` is told when it stops to keep, what is waited for, and when it is well again."""

    def __init__(self, child: Child, plan: ServerPlan, log: Path, say: Say) -> None:
        self._child = child
        self._plan = plan
        self._log = log
        self._say = say
        self._seen_s = 0.0
        """Since when it keeps nothing; 0 while it does, or is not there."""
        self._told = ""
        """What we have said of it since."""
        self._restarted = False
        self._pause_s = 0.0
        self._not_before_s = 0.0
        self._well_s = 0.0

    @property
    def is_stuck(self) -> bool:
        """It runs, and keeps nothing until it is restarted."""
        return bool(self._told)

    async def run(self) -> None:
        """Looks, until it is cancelled."""
        while True:
            url = f"http://{self._plan.http_host or self._plan.host}:{self._plan.http_port}"
            page = await asyncio.to_thread(look_at, url, "healthz")
            error = str(page.get("error") or "does not answer")
            child, now_s = self._child, time.monotonic()
            if child.pid and page.get("status") == "ok":
                self._is_well(now_s)
            elif child.state == UP:
                child.state, child.detail = "not well", error
            if child.pid and needs_restart(error):
                await self._mend(error, now_s)
            else:
                self._seen_s, self._told = 0.0, ""
            await asyncio.sleep(WELL_EVERY_S if child.state == UP or self._seen_s else LOOK_S)

    def _is_well(self, now_s: float) -> None:
        if self._child.state != UP:
            self._well_s = now_s
        self._child.detail = ""
        self._child.ready()
        if self._restarted:
            self._restarted = False
            self._say("server-well", "well", f"{self._child.name} is well again", GOOD, {})
        if now_s - self._well_s > MEND_PAUSE_S_MAX:
            self._pause_s = 0.0

    async def _mend(self, error: str, now_s: float) -> None:
        if not self._seen_s:  # one that has just begun says the same for a moment
            self._seen_s = now_s
            return
        self._child.state = "not well"
        if waits_for := self._waits_for(now_s):
            self._child.detail = f"keeps nothing; waits for {waits_for}"
        if not self._told:
            cause = last_error_in(self._log) or error
            what = f"{self._child.name} keeps nothing more ({cause}), and does not until it is restarted"
            then = f"; waits for {waits_for}" if waits_for else ""
            self._say("server-stuck", "stuck", what + then, BAD, {"error": cause, "waits_for": waits_for or None})
            self._told = what
        if waits_for:
            return
        self._pause_s = min(MEND_PAUSE_S_MAX, max(MEND_PAUSE_S, 2 * self._pause_s))
        self._not_before_s = now_s + self._pause_s
        self._say("server-restarted", "restarting", f"{self._child.name} is restarted: its disk has room", WARN, {})
        self._restarted, self._seen_s, self._told = True, 0.0, ""
        await self._child.restart(END_S_MAX)

    def _waits_for(self, now_s: float) -> str:
        """What must be before it is restarted; empty if it can be now."""
        store = self._plan.store
        try:
            room = os.statvfs(store)
        except OSError as error:
            return f"{store}, which cannot be seen: {error.strerror}"
        if (free := room.f_bavail * room.f_frsize) < ROOM_BYTES_MIN:
            return f"room on the disk of {store}: {shown_bytes(free)} free, {shown_bytes(ROOM_BYTES_MIN)} needed"
        if room.f_files and room.f_favail < FILES_MIN:
            return f"room for files on the disk of {store}: {room.f_favail} more can be made, {FILES_MIN} needed"
        if now_s < self._not_before_s:
            return f"{self._not_before_s - now_s:.0f} s: the restart before did not help"
        return ""


# Watches the workers of `stigmergy up`: one that runs and is no member has no shards. The cluster knows members only,
# so whoever started the process is the only one to notice.

MEMBER_S_MAX = 30.0
"""A worker that is no member for longer is reported. Joining takes about a second while the servers answer."""
START_S_MAX = 120.0
"""A worker that has not joined yet is only said to be starting until then: a busy machine takes long for it."""
STILL_STARTING, NO_MEMBER = "still starting", "no member"


async def watch_members(workers: list[Child], say: Callable[[Child, str, str, dict[str, Any]], None]) -> None:
    """Tells `say`, once for each, which workers take long to start or are no members for too long; until cancelled."""
    told: dict[str, str] = {}
    while True:
        for child in workers:
            if child.unready_s <= MEMBER_S_MAX:
                told.pop(child.name, None)
                continue
            starts = child.state == STARTING and child.unready_s <= START_S_MAX
            event = STILL_STARTING if starts else NO_MEMBER
            what = "is still starting after" if starts else "has not been a member of the fleet for"
            if told.get(child.name) != event:
                told[child.name] = event
                why = child.detail or "it does not say why; see its log"
                text = f"{child.name}, pid {child.pid}, {what} {child.unready_s:.0f} s: {why}"
                say(child, event, text, {"pid": child.pid, "seconds": round(child.unready_s, 1), "reason": why})
        await asyncio.sleep(WELL_EVERY_S)
