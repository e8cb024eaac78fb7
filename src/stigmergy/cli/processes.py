"""`stigmergy run --processes N`: starts the processes that share a fleet, looks after them, and answers for all.

A process that dies is started again, after a pause that grows; one that dies too often, or says that a start cannot
help, ends the node, loudly. The others go on meanwhile: what they owe the one that is down waits for it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from stigmergy.app.fleet import (
    ControlCall,
    ControlServer,
    Lifeline,
    control_path,
    keep_to_one_core,
    make_lifeline,
    part_url,
)
from stigmergy.base import errors
from stigmergy.base.errors import ConfigError, NotRunning, StigmergyError
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import GOOD, NAME, WARN, Output, counted, shown_bytes, version
from stigmergy.control.router import ControlRouter
from stigmergy.journal.recovery import sum_up_passed_over
from stigmergy.network.shares import Share
from stigmergy.shard.homes import Homes

RESTARTS_MAX = 5
RESTARTS_WITHIN_S = 60.0
"""A process that has died so often within so long is not started again, and the node ends."""
PAUSE_S = 0.1
PAUSE_S_MAX = 5.0
"""Before a process is started again; it doubles with each time that it died within the time above."""
STOP_S_MAX = 60.0
"""Processes that have not ended so long after they were told to are ended the hard way."""
STATUS_EVERY_S = 1.0
LINE_BYTES_MAX = 1024 * 1024
HOPELESS = (
    "ConfigError",
    "DefinitionError",
    "JournalForeign",
    "JournalCorrupt",
    "JournalLocked",
    "FoldMismatch",
    "DataLost",
    "StaleEpoch",
    "WrongKey",
    "BadSignature",
    "TrustError",
    "RingForeign",
    "RingDamaged",
)
"""Errors after which another start would only end in the same."""


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


class _Worker:
    """One process and what is known of it."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self.restarts = Restarts()
        self.process: asyncio.subprocess.Process | None = None
        self.recovered: dict[str, Any] = {}
        self.error: StigmergyError | None = None
        """Why it could not go on, in its own words."""
        self.listens = asyncio.Event()

    @property
    def name(self) -> str:
        return f"process {self.share.process}"

    @property
    def shards(self) -> str:
        first, last = self.share.part
        return f"shard {first}" if first == last else f"shards {first} to {last}"

    def signal(self, number: signal.Signals) -> None:
        """Signals it, if it is there."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)


class Supervisor:
    """One run of a fleet in several processes. `command` starts a process, but for what says which one it is."""

    def __init__(
        self, fleet: str, url: str, homes: Homes, processes: int, path: Path, command: list[str], output: Output
    ) -> None:
        self._fleet = fleet
        self._url = url
        self._path = path
        self._command = command
        self._output = output
        self._workers = [_Worker(Share(number, processes, homes.shards)) for number in range(1, processes + 1)]
        self._sockets = [control_path(part_url(url, worker.share), fleet) for worker in self._workers]
        self._began_s = time.monotonic()
        self._stopping = asyncio.Event()
        self._reason = ""
        self._failure: StigmergyError | None = None
        self._has_begun = False
        self._status_shown = False
        self._router = ControlRouter(homes, [ControlCall(one) for one in self._sockets], self._about, self._control)

    async def live_and_die(self) -> int:
        """Everything from the first start of the processes to their end."""
        self._heed_signals()
        lives = [asyncio.ensure_future(self._look_after(worker)) for worker in self._workers]
        server = ControlServer(self._path, self._router)
        try:
            if await self._all_listen():
                self._tell_recovered()
                await server.start()
                self._tell_listening()
                await self._wait()
        except StigmergyError as error:
            self._give_up(error)
        finally:
            self._clear_status()
            await self._end(lives)
            await server.close()
        if self._failure is not None:
            raise self._failure
        self._output.document({"event": "stopped", "fleet": self._fleet, "reason": self._reason})
        self._output.line("stopped ", (self._fleet, NAME), f" ({self._reason}); everything taken is in the journal")
        return exits.OK

    # ------------------------------------------------------------------ one process

    async def _look_after(self, worker: _Worker) -> None:
        """Starts a process, and again when it has died, until the node is to end."""
        while not self._stopping.is_set():
            try:
                code = await self._live(worker)
            except OSError as error:
                self._give_up(
                    NotRunning(f"{worker.name} cannot be started: {error.strerror or error}; make room for it")
                )
                return
            if self._stopping.is_set():
                return
            pause_s = worker.restarts.died(time.monotonic())
            how = _how_it_ended(code)
            if worker.error is not None and type(worker.error).__name__ in HOPELESS:
                self._give_up(type(worker.error)(f"{worker.name}: {worker.error}"))
                return
            if pause_s is None:
                self._give_up(
                    NotRunning(
                        f"{worker.name} has ended {RESTARTS_MAX + 1} times within {RESTARTS_WITHIN_S:g} s, the last "
                        f"time {how}{_because(worker.error)}; see what it said, mend it, then start again"
                    )
                )
                return
            self._tell_died(worker, code, how, pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)

    async def _live(self, worker: _Worker) -> int:
        """One life of a process; its exit code."""
        worker.error = None
        ours, theirs = make_lifeline()
        try:
            worker.process = await asyncio.create_subprocess_exec(
                *self._command,
                "--process",
                str(worker.share.process),
                "--lifeline",
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        reports = asyncio.ensure_future(self._hear(worker, ours))
        try:
            if self._stopping.is_set():  # while it was being started
                worker.signal(signal.SIGTERM)
            code = await worker.process.wait()
            await reports
        finally:
            reports.cancel()
            worker.listens.clear()
        return code

    async def _hear(self, worker: _Worker, ours: socket.socket) -> None:
        """What a process reports, until it is gone."""
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=LINE_BYTES_MAX)
        try:
            while line := await reader.readline():
                self._heard(worker, msgspec.json.decode(line))
        except (OSError, ValueError):
            pass  # a line that was cut off when it died
        finally:
            writer.close()

    def _heard(self, worker: _Worker, said: dict[str, Any]) -> None:
        match said:
            case {"event": "recovered"}:
                worker.recovered = said
            case {"event": "listening"}:
                worker.listens.set()
                if self._has_begun and worker.process is not None:
                    self._tell_back(worker, worker.process.pid)
            case {"error": str(text), "kind": str(kind)}:
                cls = getattr(errors, kind, StigmergyError)
                worker.error = cls(text) if isinstance(cls, type) and issubclass(cls, StigmergyError) else None
                if worker.error is None:
                    worker.error = errors.Bug(text)
            case _:
                pass

    # ------------------------------------------------------------------ the node

    async def _all_listen(self) -> bool:
        """Waits until all processes do, or until it is over before that; whether they do."""
        ready = [asyncio.ensure_future(worker.listens.wait()) for worker in self._workers]
        ends = asyncio.ensure_future(self._stopping.wait())
        try:
            waiting: list[asyncio.Future[Any]] = list(ready)
            while waiting and not self._stopping.is_set():
                await asyncio.wait([*waiting, ends], return_when=asyncio.FIRST_COMPLETED)
                waiting = [one for one in waiting if not one.done()]
            return not self._stopping.is_set()
        finally:
            for task in (*ready, ends):
                task.cancel()
            await asyncio.gather(*ready, ends, return_exceptions=True)

    async def _wait(self) -> None:
        status = asyncio.ensure_future(self._show_status())
        try:
            await self._stopping.wait()
        finally:
            status.cancel()
            await asyncio.gather(status, return_exceptions=True)

    async def _end(self, lives: list[asyncio.Task[None]]) -> None:
        """Lets all processes finish what they have taken, and ends those that do not end."""
        self._stopping.set()
        for worker in self._workers:
            worker.signal(signal.SIGTERM)
        _, left = await asyncio.wait(lives, timeout=STOP_S_MAX)
        if left:
            for worker in self._workers:
                worker.signal(signal.SIGKILL)
            await asyncio.wait(left)
        for life in lives:
            if (error := life.exception()) is not None:
                raise error

    def _give_up(self, error: StigmergyError) -> None:
        if self._failure is None and not self._stopping.is_set():
            self._failure = error
        self._stopping.set()

    def _control(self) -> None:
        self._stop("control")

    def _stop(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._stopping.set()

    def _heed_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)

    def _signalled(self, number: signal.Signals) -> None:
        """The first one drains, another one ends all at once."""
        if self._stopping.is_set():
            for worker in self._workers:
                worker.signal(signal.SIGKILL)
            return
        self._stop(number.name)
        self._clear_status()
        self._output.note("stopping: finishing what was taken; once more to end at once")

    # ------------------------------------------------------------------ what is said

    def _about(self) -> dict[str, Any]:
        return {
            "fleet": self._fleet,
            "version": version(),
            "pid": os.getpid(),
            "up_s": round(time.monotonic() - self._began_s, 3),
            "journal": self._url,
            "sockets": ", ".join(str(path) for path in self._sockets),
        }

    def _tell_recovered(self) -> None:
        took_s = time.monotonic() - self._began_s
        found = [worker.recovered for worker in self._workers]
        added = {name: sum(one[name] for one in found) for name in ("commits", "events", "signatures", "agents")}
        self._output.document(
            {
                "event": "recovered",
                "fleet": self._fleet,
                **added,
                "snapshots": {shard: position for one in found for shard, position in one["snapshots"].items()},
                "passed_over": [what for one in found for what in one["passed_over"]],
                "seconds": round(took_s, 6),
                "processes": len(found),
            }
        )
        name, processes = (self._fleet, NAME), counted(len(found), "process").replace("processs", "processes")
        if not added["commits"] and not any(one["snapshots"] for one in found):
            self._output.line(name, f"  new journal {self._url}, for {processes}")
        else:
            self._output.line(
                name,
                f"  recovered {counted(added['agents'], 'agent')} in {took_s:.2f} s on {processes}: "
                f"{counted(added['events'], 'event')} in {counted(added['commits'], 'commit')}",
            )
        for passed_over in sum_up_passed_over([what for one in found for what in one["passed_over"]]):
            self._output.note(f"passed over: {passed_over}", "yellow")

    def _tell_listening(self) -> None:
        self._has_begun = True
        pids = [worker.process.pid for worker in self._workers if worker.process is not None]
        self._output.document(
            {
                "event": "listening",
                "socket": str(self._path),
                "journal": self._url,
                "fleet": self._fleet,
                "pids": pids,
            }
        )
        for worker, pid in zip(self._workers, pids, strict=False):
            self._output.line(f"{worker.name}  {worker.shards}, pid {pid}")
        self._output.line(("listening", GOOD), f" on {self._path}")

    def _tell_died(self, worker: _Worker, code: int, how: str, pause_s: float) -> None:
        self._clear_status()
        self._output.document(
            {
                "event": "process ended",
                "process": worker.share.process,
                "code": code,
                "error": None if worker.error is None else str(worker.error),
                "again_in_s": pause_s,
            }
        )
        what = (
            f"{worker.name} ({worker.shards}) ended {how}{_because(worker.error)}; starting it again in {pause_s:g} s"
        )
        self._output.note(what, WARN)

    def _tell_back(self, worker: _Worker, pid: int) -> None:
        self._clear_status()
        process = worker.share.process
        self._output.document({"event": "process started", "process": process, "pid": pid})
        self._output.note(f"{worker.name} ({worker.shards}) is back, pid {pid}")

    async def _show_status(self) -> None:
        """One line at the foot of a terminal, written anew each second."""
        if self._output.json or not sys.stderr.isatty():
            return
        before, before_s = 0, time.monotonic()
        while True:
            await asyncio.sleep(STATUS_EVERY_S)
            standing = await self._router.status()
            events, now_s = int(standing["events"]), time.monotonic()
            rate = (events - before) / (now_s - before_s) if before else 0.0
            before, before_s = events, now_s
            parts = [counted(standing["agents"], "agent"), counted(events, "event"), f"{rate:,.0f}/s"]
            parts += [f"{standing['owed']:,} owed"] if standing["owed"] else []
            parts += [counted(standing["dead_letters"], "dead letter")] if standing["dead_letters"] else []
            parts.append(shown_bytes(standing["journal_bytes"]))
            self._status_shown = True
            with contextlib.suppress(OSError):
                sys.stderr.write("\r\x1b[K" + " · ".join(parts))
                sys.stderr.flush()

    def _clear_status(self) -> None:
        if self._status_shown:
            self._status_shown = False
            with contextlib.suppress(OSError):
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()


def command_of(arguments: argparse.Namespace, spec: str, processes: int, url: str, key: Path | None) -> list[str]:
    """How one of the processes is started, but for which one it is."""
    command = [sys.executable, "-m", "stigmergy", "run", spec, "--processes", str(processes), "--journal", url]
    command += ["--key", str(key)] if key is not None else []
    command += [text for trusted in arguments.trust for text in ("--trust", trusted)]
    command += [text for ring in arguments.ring for text in ("--ring", ring)]
    command += ["--config", str(arguments.config)] if arguments.config is not None else []
    return command


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"with code {code}"
    with contextlib.suppress(ValueError):
        return f"by {signal.Signals(-code).name}"
    return f"by signal {-code}"


def _because(error: StigmergyError | None) -> str:
    return "" if error is None else f" ({error})"


# One of the processes of `stigmergy run --processes N`: a node with a part of the shards, and a supervisor above it.
#
# It says to its supervisor, and to nobody else, what a node says to people; it keeps to one core where there are
# enough,
# and it does not outlive its supervisor.
#
# What a process takes from outside beside its control socket, such as a ring of column batches, belongs here too:
# beside
# `running.control`, on files named after its share.


class ProcessReport(Output):
    """What a process tells its supervisor: the documents that a node prints with --json."""

    def __init__(self, lifeline: Lifeline) -> None:
        super().__init__(json=True)
        self._lifeline = lifeline

    def document(self, value: Any) -> None:
        """One line of JSON, to the supervisor."""
        self._lifeline.report(msgspec.json.encode(value) + b"\n")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What a supervisor says to a process that it starts; nothing for people."""
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--lifeline", type=int, help=argparse.SUPPRESS)


def tie(arguments: argparse.Namespace) -> Lifeline:
    """Ties this process to its supervisor, before it does anything else."""
    if arguments.lifeline is None:
        raise ConfigError("--process is for processes that a supervisor starts; give --processes N alone")
    lifeline = Lifeline(arguments.lifeline)
    lifeline.watch()
    return lifeline


def settle_down(share: Share) -> None:
    """Keeps to one core, where there are enough."""
    keep_to_one_core(share.process, share.processes)


def failed(report: ProcessReport, error: StigmergyError) -> int:
    """Says why it cannot go on, and ends with the code for that."""
    report.error(str(error), type(error).__name__)
    return exits.code_of(error)
