"""The log of a process: nobody waits for who reads it, and whatever is logged has its form."""

import contextlib
import json
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from stigmergy.diagnostics.handler import WAITING_MAX, ProcessLog
from stigmergy.diagnostics.lines import CodeRule, LogConfig
from stigmergy.diagnostics.logger import SHARD, Log

LOG = Log("test")


class Pipe:
    """A pipe in place of stderr, which is read when a test says so."""

    def __init__(self) -> None:
        self.out, self.into = os.pipe()

    def read_all(self) -> list[dict[str, Any]]:
        os.close(self.into)
        with os.fdopen(self.out, "rb") as lines:
            return [json.loads(line) for line in lines]


@contextlib.contextmanager
def stderr_at(fd: int) -> Iterator[None]:
    with os.fdopen(fd, "w", closefd=False) as stream, mock.patch.object(sys, "stderr", stream):
        yield


def logged(config: LogConfig | None = None, secrets: tuple[str, ...] = ()) -> Any:
    """A log in a pipe, and what is in it at the end."""

    @contextlib.contextmanager
    def enter() -> Iterator[list[dict[str, Any]]]:
        pipe, found = Pipe(), list[dict[str, Any]]()
        with stderr_at(pipe.into), ProcessLog(config or LogConfig(), fleet="f", node="n", role="node", secrets=secrets):
            yield found
        found += [one for one in pipe.read_all() if one["code"] != "process-begun"]

    return enter()


def test_a_message_has_all_that_is_known() -> None:
    with logged() as found:
        SHARD.set(3)
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        LOG.say("device-failed", "no reading", agent="Drone/1", trace=trace, fields={"tries": 3})
        SHARD.set(None)
    (line,) = found
    moment = line.pop("time")
    assert moment.endswith("Z")
    assert line == {
        "level": "warn",
        "code": "device-failed",
        "message": "no reading",
        "fleet": "f",
        "node": "n",
        "role": "node",
        "shard": 3,
        "agent": "Drone/1",
        "trace": "4bf92f3577b34da6a3ce929d0e0e4736",
        "fields": {"tries": 3},
    }


def test_libraries_threads_and_warnings_are_in_it() -> None:
    def fails() -> None:
        raise RuntimeError("with mqtt://me:hunter22@hub")

    with logged(secrets=("hunter33",)) as found:
        logging.getLogger("nats.aio.client").error("no luck with %s", "hunter33")
        logging.getLogger("nats.aio.client").info("too much")
        thread = threading.Thread(target=fails, name="sensor")
        thread.start()
        thread.join()
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.warn("old", DeprecationWarning, stacklevel=1)
        LOG.say("safe-action", "for %s", fields={"of": "nats://hunter33@h"})
    nats, raised, warned, own = found
    assert (nats["code"], nats["logger"], nats["level"]) == ("library", "nats.aio.client", "error")
    assert nats["message"] == "no luck with ***"
    assert (raised["code"], raised["message"]) == ("thread-failed", "thread sensor: RuntimeError: with mqtt://***@hub")
    assert "test_handler.py" in raised["error"]
    assert (warned["code"], warned["logger"], "old" in warned["message"]) == ("library", "py.warnings", True)
    assert (own["message"], own["fields"]) == ("for %s", {"of": "nats://***@h"})
    assert "hunter" not in json.dumps(found)


def test_everything_is_as_before_afterwards() -> None:
    def state() -> tuple[Any, ...]:
        loggers = (logging.getLogger(), logging.getLogger("stigmergy"))
        return threading.excepthook, sys.unraisablehook, [(list(one.handlers), one.level) for one in loggers]

    before = state()
    with logged():
        assert state() != before
    assert state() == before


def test_nobody_waits_for_a_pipe_that_nobody_reads() -> None:
    pipe = Pipe()
    written = 3 * WAITING_MAX + 500
    with stderr_at(pipe.into):
        log = ProcessLog(LogConfig(rate=100_000))
        with log:
            began_s = time.monotonic()
            for number in range(written):
                LOG.say("device-failed", f"{number} {'x' * 100}")
            took_s = time.monotonic() - began_s
            assert not log._writer._waiting.empty()
            with os.fdopen(os.dup(pipe.out), "rb") as lines:
                found: list[dict[str, Any]] = []
                while not (found and found[-1]["code"] == "left-out"):
                    found.append(json.loads(lines.readline()))
    os.close(pipe.into)
    os.close(pipe.out)
    assert took_s < 30
    kept = [int(one["message"].split()[0]) for one in found if one["code"] == "device-failed"]
    assert kept == list(range(len(kept)))
    (left_out,) = [one for one in found if one["code"] == "left-out"]
    assert len(kept) + left_out["fields"]["count"] == written


def test_the_end_waits_only_a_moment_for_it() -> None:
    pipe = Pipe()
    began_s = time.monotonic()
    with stderr_at(pipe.into), ProcessLog(LogConfig()):
        for _ in range(200):
            LOG.say("device-failed", "x" * 1000)
    assert time.monotonic() - began_s < 30
    os.close(pipe.out)


def test_a_closed_stderr_ends_nobody() -> None:
    pipe = Pipe()
    os.close(pipe.out)
    with stderr_at(pipe.into), ProcessLog(LogConfig()):
        for _ in range(100):
            LOG.say("device-failed", "x")


def test_a_process_without_stderr_runs() -> None:
    with mock.patch.object(sys, "stderr", None), ProcessLog(LogConfig()):
        LOG.say("device-failed", "x")


def test_what_is_left_out_is_told() -> None:
    with logged(LogConfig(rate=5)) as found:
        for _ in range(50):
            LOG.say("device-failed", "x")
    assert [one["code"] for one in found] == ["device-failed"] * 5 + ["left-out"]
    assert found[-1]["fields"] == {"count": 45, "of": "device-failed"}


def test_levels_and_samples_of_codes() -> None:
    rules = {"device-failed": CodeRule(sample=0.5), "safe-action": CodeRule(level="off")}
    with logged(LogConfig(level="warn", codes=rules)) as found:
        for _ in range(10):
            LOG.say("device-failed", "x")
            LOG.say("safe-action", "x")
            LOG.say("node-listening", "x")
            LOG.say("bus-down", "x", over=True)
    assert [(one["code"], one["sample"]) for one in found] == [("device-failed", 0.5)] * 5


def test_the_error_that_ends_a_process_is_the_last_line() -> None:
    pipe = Pipe()
    with stderr_at(pipe.into), pytest.raises(OSError, match="full"), ProcessLog(LogConfig()):
        raise OSError("the disk is full")
    last = pipe.read_all()[-1]
    assert (last["code"], last["level"], last["message"], last["fields"]) == (
        "process-failed",
        "error",
        "the disk is full",
        {"kind": "OSError"},
    )


def test_a_message_that_cannot_be_shown_is_counted() -> None:
    pipe = Pipe()
    with stderr_at(pipe.into), ProcessLog(LogConfig()) as log:
        log.handle(logging.makeLogRecord({"levelno": logging.ERROR, "msg": "%s %s", "args": ("too few",)}))
        log.handle(logging.makeLogRecord({"levelno": logging.ERROR, "msg": "half \ud800 of a pair"}))
    assert [(one["code"], one["message"]) for one in pipe.read_all()[1:]] == [
        ("library", "half ? of a pair"),
        ("left-out", "1 lines were dropped: nobody read them in time, or they could not be shown"),
    ]
