"""Processes of the program that are forked from one which has imported it: a start costs a tenth of 0.4 s.

What is forked is a process as any other: it has its own folder, environment and pipes, is killed and waited for. It
shares what it has imported with nobody; what a start itself does is tested where `python -m stigmergy` is written out.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from typing import Any, NoReturn

MESSAGE_BYTES_MAX = 1024 * 1024
FILES_MAX = 4096
MODULES = ("stigmergy.cli.main", "stigmergy.cli.run", "stigmergy.serve")


class Warm(subprocess.Popen[str]):
    """`python -m stigmergy` with these arguments, forked from a process that has imported it."""

    def __init__(self, *arguments: str, is_bound: bool = False, **options: Any) -> None:
        """If it `is_bound` it ends with the process that started it, whatever happens."""
        self._is_bound, self._ended = is_bound, b""
        super().__init__(["stigmergy", *arguments], text=True, **options)

    def _execute_child(self, *given: Any) -> None:
        arguments, cwd, environment = given[0], given[5], given[6]
        pipes = given[10:16]
        ends = [own if own != -1 else number for number, own in enumerate((pipes[0], pipes[3], pipes[5]))]
        self._status, told = os.pipe()
        asked = {
            "arguments": arguments[1:],
            "cwd": os.fspath(cwd or os.getcwd()),
            "environment": dict(os.environ if environment is None else environment),
            "is_bound": self._is_bound,
        }
        try:
            socket.send_fds(_server(), [json.dumps(asked).encode()], [*ends, told])
        finally:
            os.close(told)
        self.pid = int(self._line())
        self._child_created = True
        any_popen: Any = super()
        any_popen._close_pipe_fds(*pipes)

    def _line(self) -> bytes:
        while b"\n" not in self._ended:
            part = os.read(self._status, 64)
            if not part:
                raise AssertionError("the process that forks others has ended")
            self._ended += part
        line, _, self._ended = self._ended.partition(b"\n")
        return line

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if flags == os.WNOHANG and not self._ended:
            ready = select.poll()
            ready.register(self._status, select.POLLIN)
            if not ready.poll(0):
                return 0, 0
        status = int(self._line())
        os.close(self._status)
        return self.pid, status

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        this: Any = self
        if this._waitpid_lock.acquire(False):
            try:
                pid, status = self._try_wait(os.WNOHANG) if self.returncode is None else (0, 0)
                if pid:
                    this._handle_exitstatus(status)
            finally:
                this._waitpid_lock.release()
        return self.returncode


_servers: dict[int, socket.socket] = {}


def _server() -> socket.socket:
    """Where this process asks for others; it is started by the first that does, and ends with it."""
    if (found := _servers.get(os.getpid())) is None:
        found, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES_MAX)
        with theirs:
            number = theirs.fileno()
            process = subprocess.Popen([sys.executable, "-m", "tests.warm", str(number)], pass_fds=[number])
        _servers[os.getpid()] = found
        atexit.register(process.wait)
        atexit.register(found.close)  # first
    return found


def serve(asking: socket.socket) -> None:
    """Forks for each message, and says how each fork ended. Returns in a fork, to go on as the program."""
    for name in MODULES:
        __import__(name)
    gc.collect()
    gc.freeze()
    running: dict[int, tuple[int, int]] = {}
    while True:
        ready, _, _ = select.select([asking.fileno(), *running], [], [])
        for handle in ready:
            if handle == asking.fileno():
                message, files, _, _ = socket.recv_fds(asking, MESSAGE_BYTES_MAX, 4)
                if not message:
                    os._exit(0)
                if (pid := os.fork()) == 0:
                    _become(json.loads(message), files)
                    return
                running[os.pidfd_open(pid)] = pid, files[3]
                os.write(files[3], b"%d\n" % pid)
                for number in files[:3]:
                    os.close(number)
            else:
                pid, told = running.pop(handle)
                _, status = os.waitpid(pid, 0)
                with contextlib.suppress(BrokenPipeError):
                    os.write(told, b"%d\n" % status)
                os.close(told)
                os.close(handle)


def _become(asked: dict[str, Any], files: list[int]) -> None:
    """Makes this fork what it would be, had it been started."""
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    os.closerange(3, FILES_MAX)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = ["stigmergy", *asked["arguments"]]
    sys.path[0] = asked["cwd"]
    if asked["is_bound"]:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG; the server ends with who started it


def main() -> NoReturn:
    """The server, and whatever it forks."""
    with socket.socket(fileno=int(sys.argv[1])) as asking:
        serve(asking)
        asking.detach()
    from stigmergy.cli.main import main as program

    sys.exit(program())


if __name__ == "__main__":
    main()
