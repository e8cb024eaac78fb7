"""The clocks: whether the year can be true, whether somebody keeps it right, whether the monotonic one is.

The time zone of the machine does not matter: every time in a log is UTC.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise

from stigmergy.cli.health.finding import Finding, ill, well, worry

FIRST_YEAR = 2025
"""Of our first release: no honest clock is before it."""
LAST_YEAR = 2100
READINGS = 1_000
UNSYNCHRONISED = 0x40
TIME_ERROR = 5
_TIMEX_BYTES = 512


def check_clocks(
    wall_ns: Callable[[], int] = time.time_ns,
    monotonic_ns: Callable[[], int] = time.monotonic_ns,
    synchronised: Callable[[], bool | None] | None = None,
) -> Iterator[Finding]:
    """Both clocks, and who keeps the wall clock right."""
    now = datetime.fromtimestamp(wall_ns() / 1e9, UTC)
    shown = now.isoformat(timespec="seconds").replace("+00:00", "Z")
    if not FIRST_YEAR <= now.year <= LAST_YEAR:
        what = f"the clock says {shown}, which cannot be"
        yield ill("clock.wall", what, "set it, or let it be set: timedatectl set-ntp true", time=shown)
    else:
        yield well("clock.wall", f"{shown}; the time zone of the machine does not matter", time=shown)
    kept = (synchronised or is_synchronised)()
    if kept is None:
        yield well("clock.synchronised", "whether somebody keeps the clock right cannot be told here", known=False)
    elif kept:
        yield well("clock.synchronised", "the clock is kept right", known=True)
    else:
        what = "nobody keeps the clock right: it will drift"
        yield worry(
            "clock.synchronised", what, "run chrony or systemd-timesyncd; timers and times follow it", known=True
        )
    readings = [monotonic_ns() for _ in range(READINGS)]
    if any(after < before for before, after in pairwise(readings)):
        yield ill("clock.monotonic", "the monotonic clock goes back", "this machine cannot be trusted with durations")
    else:
        yield well("clock.monotonic", "the monotonic clock never goes back")


def is_synchronised() -> bool | None:
    """Whether the kernel says that its clock is kept right; None where it does not say."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        timex = ctypes.create_string_buffer(_TIMEX_BYTES)  # all zero: only asks
        state = libc.adjtimex(timex)
    except (OSError, AttributeError):
        return None
    if state < 0:
        return None
    # struct timex: modes (int, padded), offset, freq, maxerror, esterror (long each), then status (int).
    word = ctypes.sizeof(ctypes.c_long)
    status = int.from_bytes(timex.raw[5 * word : 5 * word + 4], "little")
    return state != TIME_ERROR and not status & UNSYNCHRONISED
