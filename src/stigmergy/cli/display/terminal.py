"""The terminal of a live view: alternate screen, keys without Enter, its size; everything is restored at the end.

Signals only wake the wait; the caller's loop handles them, where the terminal is in a known state. SIGTERM and Ctrl-C
end the view, Ctrl-Z restores the terminal until the shell resumes us.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType
from typing import Any, Self

from stigmergy.cli.display.output import Cell, screen_text

KEYS_BYTES_MAX = 64


class Terminal:
    """The other screen of this terminal, while it is entered."""

    def __init__(self) -> None:
        self._keys = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._modes: list[Any] | None = None
        self._live: Any = None
        self._handlers: dict[signal.Signals, Any] = {}
        self._woken, self._wake = -1, -1
        self._suspend = False
        self.ended_by: signal.Signals | None = None
        """The signal that asked us to end."""

    @property
    def has_keys(self) -> bool:
        """Whether there is a keyboard."""
        return self._keys is not None

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, as they are now."""
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(sys.stdout.fileno())
            if size.columns > 0 and size.lines > 0:
                return size.columns, size.lines
        return 80, 24

    def __enter__(self) -> Self:
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        for number in (signal.SIGWINCH, signal.SIGTERM, signal.SIGINT, signal.SIGTSTP):
            self._handlers[number] = signal.signal(number, self._signalled)
        try:
            self._take()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._woken)
        os.close(self._wake)

    def show(self, lines: Sequence[Sequence[Cell]]) -> None:
        """Draws these lines, from the top."""
        self._live.update(screen_text(lines), refresh=True)

    def wait(self, seconds: float) -> str:
        """Until so many seconds have passed, a key is pressed or a signal comes; the keys that were pressed."""
        watched = [self._woken] if self._keys is None else [self._woken, self._keys]
        ready, _, _ = select.select(watched, [], [], max(0.0, seconds))
        if self._woken in ready:
            os.read(self._woken, KEYS_BYTES_MAX)
        if self._suspend:
            self._sleep()
        if self._keys is None or self._keys not in ready:
            return ""
        pressed = os.read(self._keys, KEYS_BYTES_MAX)
        if not pressed:
            self._keys = None  # the keyboard has gone; a terminal that is always readable would never let us wait
        return pressed.decode(errors="replace")

    def _take(self) -> None:
        from rich.console import Console
        from rich.live import Live

        if self._keys is not None:
            self._modes = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)
        console = Console(highlight=False, markup=False, emoji=False)
        self._live = Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()

    def _give_back(self) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.stop()
            self._live = None
        if self._keys is not None and self._modes is not None:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._modes)
            self._modes = None

    def _sleep(self) -> None:
        """Stopped by the user, until the shell goes on with us."""
        self._suspend = False
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        match signal.Signals(number):
            case signal.SIGTSTP:
                self._suspend = True
            case signal.SIGTERM | signal.SIGINT as asked:
                self.ended_by = asked
            case _:
                pass
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b"!")
