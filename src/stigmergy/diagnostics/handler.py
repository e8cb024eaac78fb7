"""Writes the log of a process to stderr, from a thread of its own, so that nobody ever waits for who reads it.

    with ProcessLog(LogConfig(), fleet="drone", role="node"):
        ...                                   # whatever is logged meanwhile, also by libraries

At most WAITING_MAX lines wait to be written; more are dropped and counted, and the count is written when somebody reads
again. A closed stderr is no error.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Self, TextIO

from stigmergy.diagnostics.codes import CODES, DEBUG, ERROR, INFO, WARN
from stigmergy.diagnostics.lines import (
    CLEANED_CHARS_MAX,
    MESSAGE_CHARS_MAX,
    TRACEBACK_CHARS_MAX,
    LineFilter,
    LogConfig,
    LogLine,
    Redactor,
    as_json,
    as_text,
)
from stigmergy.diagnostics.logger import Log, LogSubject, traceback_of

WAITING_MAX = 1_000
LOOK_S = 1.0
"""How often it is looked whether lines were left out."""
FLUSH_S_MAX = 1.0
"""What is not written so long after the end is lost: nobody reads."""
CLEAR = b"\r\x1b[K"
_LOG = Log("process")


class LineWriter:
    """A thread that writes lines, in order."""

    def __init__(self, write: Callable[[bytes], int]) -> None:
        """`write` may wait, and returns how many bytes it took."""
        self._write_some = write
        self._waiting: queue.SimpleQueue[bytes | threading.Event | None] = queue.SimpleQueue()
        self.dropped = 0
        """Lines that there was no room for; whoever tells it sets it back."""
        self.on_look: Callable[[], None] = lambda: None
        """Called from the thread, now and then."""
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for one more."""
        return self._waiting.qsize() >= WAITING_MAX

    def start(self) -> None:
        """Begins to write."""
        self._thread.start()

    def put(self, line: bytes) -> None:
        """Has a line written, unless too many wait. From any thread; never waits."""
        if self.is_full:
            self.dropped += 1
        else:
            self._waiting.put(line)

    def flush(self) -> None:
        """Waits until what was put is written, or FLUSH_S_MAX."""
        done = threading.Event()
        self._waiting.put(done)
        done.wait(FLUSH_S_MAX)

    def close(self) -> None:
        """The same, and ends. A thread that hangs in a write is left behind, and ends with the process."""
        self._waiting.put(None)
        self._thread.join(FLUSH_S_MAX)

    def _run(self) -> None:
        look_s = time.monotonic() + LOOK_S
        while True:
            try:
                one = self._waiting.get(timeout=max(0.0, look_s - time.monotonic()))
            except queue.Empty:
                one = b""
            if time.monotonic() >= look_s:
                look_s = time.monotonic() + LOOK_S
                self.on_look()
            if one is None:
                return
            if isinstance(one, threading.Event):
                one.set()
            else:
                self._write(one)

    def _write(self, line: bytes) -> None:
        try:
            while line:
                line = line[self._write_some(line) :]
        except (OSError, ValueError):  # closed, or its disk is full
            self.dropped += 1


class ProcessLog(logging.Handler):
    """The log of this process, while it is entered."""

    def __init__(
        self,
        config: LogConfig,
        *,
        fleet: str = "",
        node: str = "",
        role: str = "",
        secrets: Iterable[str] = (),
    ) -> None:
        super().__init__()
        self.fleet, self.node, self.role = fleet, node, role
        stderr: TextIO | None = sys.stderr  # None if it was closed before the start
        terminal = stderr is not None and stderr.isatty()
        self.is_json = config.format == "json" or (config.format == "auto" and not terminal)
        self.is_terminal = terminal and not self.is_json
        self._colours = "NO_COLOR" not in os.environ and os.environ.get("TERM", "dumb") != "dumb"
        self._filter = LineFilter(config)
        self._redactor = Redactor(secrets)
        self._writer = LineWriter(_writer_of(stderr))
        self._status = False
        self._before: tuple[int, Any, Any] | None = None

    def __enter__(self) -> Self:
        root = logging.getLogger()
        self._before = (logging.getLogger("stigmergy").level, threading.excepthook, sys.unraisablehook)
        logging.getLogger("stigmergy").setLevel(logging.DEBUG)
        root.addHandler(self)
        logging.captureWarnings(True)
        threading.excepthook = lambda raised: _failed(raised.exc_value, f"thread {getattr(raised.thread, 'name', '')}")
        sys.unraisablehook = lambda raised: _failed(
            raised.exc_value, f"{raised.err_msg or 'ignored'}: {raised.object!r}"
        )
        if self.is_json:
            os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its C code writes to stderr past everybody
        self._writer.on_look = self._look
        self._writer.start()
        begun = f"{self.role} {self.fleet}".strip()
        _LOG.say("process-begun", f"{begun} begins", on_stdout=True, fields={"pid": os.getpid()})
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Writes what waits, for a moment; in JSON also the error that ends the process."""
        if isinstance(error, Exception) and not isinstance(error, BrokenPipeError) and self.is_json:
            _LOG.say("process-failed", f"{error}", fields={"kind": type(error).__name__})
        assert self._before is not None
        self.show_status("")
        self._look(ending=True)
        logging.getLogger().removeHandler(self)
        logging.captureWarnings(False)
        level, threading.excepthook, sys.unraisablehook = self._before
        logging.getLogger("stigmergy").setLevel(level)
        self._writer.close()

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one message, if it is to be written."""
        try:
            about = getattr(record, "about", None) or LogSubject("library")
            if about.is_trouble:
                return
            level = _level_of(record.levelno)
            share = self._filter.admit(about.code, level, time.monotonic())
            if not share or (about.on_stdout and not self.is_json):
                return
            raised = record.exc_info[1] if record.exc_info else None
            error = "" if raised is None else record.exc_text or traceback_of(raised)
            self._put(record.created, level, about, record.getMessage(), record.name, error, share)
        except Exception:
            self._writer.dropped += 1  # a message that cannot be shown ends nobody

    def pass_on(self, line: bytes) -> None:
        """A line of a child's log, as it is."""
        self._writer.put(line)

    def show_status(self, text: str) -> None:
        """On a terminal, a line that the next one overwrites; nothing for an empty one."""
        if self.is_terminal and (text or self._status) and not self._writer.is_full:
            self._status = bool(text)
            self._writer.put(CLEAR + text.encode())
            if not text:
                self._writer.flush()

    def _put(
        self,
        at_s: float,
        level: str,
        about: LogSubject,
        message: str,
        logger: str = "",
        error: str = "",
        share: float = 1.0,
    ) -> None:
        clean, known = self._redactor.clean, about.code != "library"
        moment = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
        line = LogLine(
            time=f"{moment}Z",
            level=level,
            code=about.code,
            message=("over: " if about.over and self.is_json else "") + clean(message)[:MESSAGE_CHARS_MAX],
            fleet=self.fleet,
            node=self.node,
            role=self.role,
            shard=about.shard,
            agent=about.agent,
            trace=about.trace,
            over=about.over,
            logger="" if known else logger,
            error=clean(error[-CLEANED_CHARS_MAX:])[-TRACEBACK_CHARS_MAX:],
            sample=share,
            fields=self._redactor.clean_value(about.fields),
        )
        if self.is_json:
            self._writer.put(as_json(line))
        else:
            shown = as_text(line, terminal=self.is_terminal, colours=self._colours)
            self._writer.put(CLEAR + shown if self._status else shown)

    def _look(self, *, ending: bool = False) -> None:
        """Says what was left out."""
        self.acquire()
        left_out = self._filter.take_left_out(time.monotonic(), ending=ending)
        self.release()
        dropped = 0 if self._writer.is_full else self._writer.dropped
        self._writer.dropped -= dropped
        for code, count in left_out.items():
            self._left_out(f"{count:,} lines of {code} were left out: too many in a minute", count, code)
        if dropped:
            text = f"{dropped:,} lines were dropped: nobody read them in time, or they could not be shown"
            self._left_out(text, dropped, "")

    def _left_out(self, text: str, count: int, code: str) -> None:
        about = LogSubject("left-out", fields={"count": count, **({"of": code} if code else {})})
        self._put(time.time(), CODES["left-out"].level, about, text)


def _level_of(number: int) -> str:
    if number >= logging.ERROR:
        return ERROR
    return WARN if number >= logging.WARNING else INFO if number >= logging.INFO else DEBUG


def _writer_of(stream: TextIO | None) -> Callable[[bytes], int]:
    """Past the stream's own buffer and its lock, which a thread that hangs would hold at the end of the process."""
    if stream is None:
        return len
    try:
        fd = stream.fileno()
    except (OSError, ValueError):  # a program has put something else in its place
        return lambda line: stream.write(line.decode()) and len(line)
    return lambda line: os.write(fd, line)


def _failed(error: BaseException | None, where: str) -> None:
    if not isinstance(error, SystemExit):  # how a thread may end
        _LOG.say("thread-failed", f"{where}: {type(error).__name__}: {error}", error=error)
