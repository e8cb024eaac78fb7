"""A terminal for tests: a program runs in a pseudo-terminal of a given size, keys are typed, its writing is read."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>]|\r")
_BACK = re.compile(r"[^\x08]\x08")
WAIT_S_MAX = 240.0


class Terminal:
    """A program with a terminal as its stdin, stdout and stderr."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self.written = b""

    @property
    def text(self) -> str:
        """All that was written so far, without what moves the cursor and colours the text."""
        return plain(self.written)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def press(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def echoes(self) -> bool:
        """Whether the terminal shows what is typed, as it does in a shell."""
        return bool(termios.tcgetattr(self._descriptor)[3] & termios.ECHO)

    def wait_text(self, *texts: str, after: int = 0) -> str:
        """Reads until all of these were written, behind so many bytes; what was written since then."""
        until_s = time.monotonic() + WAIT_S_MAX
        while not all(text in plain(self.written[after:]) for text in texts):
            if not self._read(until_s):
                raise AssertionError(f"{texts} never came:\n{plain(self.written[after:])}")
        return plain(self.written[after:])

    def wait_end(self) -> int:
        """Reads until the program has ended; its exit code."""
        until_s = time.monotonic() + WAIT_S_MAX
        while self._read(until_s):
            pass
        return self.process.wait(timeout=WAIT_S_MAX)

    def drain(self) -> None:
        """Reads what was written by now."""
        while self._read(time.monotonic() + 0.05):
            pass

    def _read(self, until_s: float) -> bool:
        """Takes what there is; whether more may come."""
        ready, _, _ = select.select([self._descriptor], [], [], max(0.0, until_s - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:
            return False  # the last one who had the other side open has gone
        self.written += data
        return bool(data)


def plain(written: bytes) -> str:
    text = _CONTROL.sub("", written.decode(errors="replace"))
    while (shorter := _BACK.sub("", text)) != text:
        text = shorter
    return text


@contextlib.contextmanager
def in_terminal(
    program: Sequence[str],
    folder: Path,
    *,
    columns: int = 100,
    lines: int = 30,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Terminal]:
    """Runs a program in a terminal, and ends it."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    known = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        ["setsid", "--ctty", *program],
        cwd=folder,
        env={**known, "TERM": "xterm-256color", **(environment or {})},
        stdin=its,
        stdout=its,
        stderr=its,
    )
    os.close(its)
    try:
        yield Terminal(process, ours)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(timeout=WAIT_S_MAX)
        os.close(ours)
