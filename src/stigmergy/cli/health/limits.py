"""What the machine and the system allow this process: open files, sizes of files, memory."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

from stigmergy.cli.health.finding import Finding, well, worry
from stigmergy.cli.output import shown_bytes

FILES_MIN = 256
MEMORY_BYTES_MIN = 64 * 1024 * 1024
FILE_BYTES_MIN = 1 << 30
MEMORY = Path("/proc/meminfo")


def check_limits() -> Iterator[Finding]:
    """The limits that a node would meet."""
    yield check_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size != resource.RLIM_INFINITY and size < FILE_BYTES_MIN:
        what = f"a file may have {shown_bytes(size)} at most, and the journal is one"
        yield worry("limits.file_size", what, "raise it: ulimit -f unlimited", bytes=size)
    available = memory_available()
    if available is not None and available < MEMORY_BYTES_MIN:
        what = f"{shown_bytes(available)} of memory are left"
        yield worry("limits.memory", what, "a small fleet needs 64 MiB; end something else", bytes=available)
    elif available is not None:
        yield well("limits.memory", f"{shown_bytes(available)} of memory are left", bytes=available)


def check_files(count: int) -> Finding:
    """How many files may be open."""
    if count != resource.RLIM_INFINITY and count < FILES_MIN:
        what = f"{count} files may be open at once"
        return worry("limits.open_files", what, f"raise it: ulimit -n {FILES_MIN} or more", files=count)
    return well("limits.open_files", f"{count} files may be open at once", files=count)


def memory_available() -> int | None:
    """What the kernel says is available; None where it does not say."""
    try:
        for line in MEMORY.read_text(encoding="ascii", errors="replace").splitlines():
            name, _, rest = line.partition(":")
            if name == "MemAvailable":
                return int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None
