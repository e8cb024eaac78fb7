"""The socket between a supervisor and a process it has started: reports go up, and its end is the end of the other.

Each side notices that the other one is gone, however that came about, because the kernel closes the socket then. A
process whose supervisor is gone is told to stop as by SIGTERM; if that does not help, it ends itself the hard way, so
that nothing is left behind that nobody looks after.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time

ORPHAN_S_MAX = 30.0
"""So long a process whose supervisor is gone may take to finish what it has taken."""
READ_BYTES = 4096


class Lifeline:
    """The end of the socket that a started process holds."""

    def __init__(self, descriptor: int, *, orphan_s_max: float = ORPHAN_S_MAX) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(True)
        self._orphan_s_max = orphan_s_max

    def watch(self) -> None:
        """From now on the process does not outlive its supervisor. In a thread, because the event loop may hang."""
        threading.Thread(target=self._wait, name="stigmergy-lifeline", daemon=True).start()

    def report(self, line: bytes) -> None:
        """Tells the supervisor something, one line; nobody hears it who is gone."""
        with contextlib.suppress(OSError):
            self._socket.sendall(line)

    def _wait(self) -> None:
        with contextlib.suppress(OSError):
            while self._socket.recv(READ_BYTES):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._orphan_s_max)
        os.kill(os.getpid(), signal.SIGKILL)


def make_lifeline() -> tuple[socket.socket, socket.socket]:
    """The supervisor's end, and the one to hand to the process that it starts."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    return ours, theirs


def keep_to_one_core(number: int, of: int) -> int | None:
    """Keeps this process to a core of its own, if there are enough for all; which one. No more than a hint."""
    with contextlib.suppress(OSError, AttributeError):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) >= of:
            os.sched_setaffinity(0, {cores[number - 1]})
            return cores[number - 1]
    return None
