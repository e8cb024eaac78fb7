"""A process and its supervisor: reports go up, and neither outlives the other unnoticed."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from stigmergy.app.parts import keep_to_one_core, make_lifeline

END_S_MAX = 240.0


def start(body: str) -> tuple[subprocess.Popen[str], socket.socket]:
    ours, theirs = make_lifeline()
    ours.setblocking(True)
    program = "import sys, signal, time\nfrom stigmergy.app.parts import Lifeline\n" + textwrap.dedent(body)
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(theirs.fileno())],
        pass_fds=(theirs.fileno(),),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    theirs.close()
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process, ours


def test_end_of_the_supervisor_is_a_signal_to_stop() -> None:
    process, ours = start("""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
        lifeline = Lifeline(int(sys.argv[1]))
        lifeline.watch()
        lifeline.report(b"hello\\n")
        print("ready", flush=True)
        while True:
            time.sleep(0.01)
    """)
    assert ours.recv(100) == b"hello\n"
    time.sleep(0.1)
    assert process.poll() is None
    ours.close()
    assert process.wait(END_S_MAX) == 3
    process.communicate()


def test_one_that_does_not_heed_it_ends_the_hard_way() -> None:
    process, ours = start("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        lifeline = Lifeline(int(sys.argv[1]), orphan_s_max=0.2)
        lifeline.watch()
        print("ready", flush=True)
        while True:  # a loop that hangs, and never gives anybody a turn
            pass
    """)
    ours.close()
    assert process.wait(END_S_MAX) == -signal.SIGKILL
    process.communicate()


def test_end_of_the_process_is_heard_above() -> None:
    process, ours = start("""
        lifeline = Lifeline(int(sys.argv[1]))
        print("ready", flush=True)
        time.sleep(60)
    """)
    process.kill()
    assert ours.recv(100) == b""
    ours.close()
    process.wait(END_S_MAX)
    process.communicate()


def test_core_is_only_kept_to_where_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 5})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: kept.append(cores))
    assert (keep_to_one_core(1, 2), keep_to_one_core(2, 2), keep_to_one_core(1, 3)) == (2, 5, None)
    assert kept == [{2}, {5}]

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert keep_to_one_core(1, 2) is None
