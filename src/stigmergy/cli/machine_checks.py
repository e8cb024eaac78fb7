"""Checks of a journal's disk: space, rights, the kind of file system, and whether its sync is believable.

It writes a test file beside the journal, syncs it several times, and removes it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import os
import platform
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import Struct

from stigmergy.cli.display.output import shown_bytes

# The result of a check: whether it passed, one sentence, and a remedy if it did not.

OK = "ok"
WARN = "warn"
FAIL = "fail"
LEVELS = (OK, WARN, FAIL)


class Finding(Struct, frozen=True):
    """One check. `remedy` is empty where there is nothing to do."""

    check: str
    level: str
    what: str
    remedy: str = ""
    facts: dict[str, Any] = {}


def well(check: str, what: str, **facts: Any) -> Finding:
    """All is well."""
    return Finding(check, OK, what, "", facts)


def worry(check: str, what: str, remedy: str, **facts: Any) -> Finding:
    """It works, but somebody should know."""
    return Finding(check, WARN, what, remedy, facts)


def ill(check: str, what: str, remedy: str, **facts: Any) -> Finding:
    """It does not work, or not safely."""
    return Finding(check, FAIL, what, remedy, facts)


MIB = 1024 * 1024
FREE_BYTES_MIN = 16 * MIB
INODES_MIN = 1_000
SYNCS = 20
SYNCS_S_MAX = 3.0
SYNC_BYTES = 4096
BELIEVABLE_S = 15e-6
"""No device has been asked if a sync is quicker than this; the quickest with a capacitor need about twice as long."""
SLOW_S = 0.1
FORGETFUL = ("tmpfs", "ramfs", "devtmpfs")
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "sshfs", "virtiofs")
SIMPLE = ("vfat", "exfat", "msdos", "ntfs", "ntfs3", "fuseblk")
UNSAFE_OPTIONS = ("nobarrier", "barrier=0", "data=writeback", "nobh")
NO_RIGHT = (errno.EACCES, errno.EPERM)
MOUNTS = Path("/proc/self/mountinfo")


class Mount(Struct, frozen=True):
    """Where a file system is mounted, and how."""

    point: str
    kind: str
    options: tuple[str, ...]


def check_disk(folder: Path, reserve_bytes: int, write_within_s: float) -> Iterator[Finding]:
    """Everything about the folder that the journal is in."""
    if not folder.is_dir():
        yield ill("disk.folder", f"{folder} is no folder", f"make it: mkdir -p {folder}")
        return
    mount = mount_of(folder.resolve(), read_mounts())
    if mount is not None:
        yield check_file_system(mount)
    yield from check_room(folder, reserve_bytes)
    yield from check_writing(folder, write_within_s)


def free_bytes(folder: Path) -> int:
    """What a user without special rights can still write there."""
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def check_room(folder: Path, reserve_bytes: int) -> Iterator[Finding]:
    """Bytes and names that are left."""
    room, free = os.statvfs(folder), free_bytes(folder)
    facts = {"free_bytes": free, "reserve_bytes": reserve_bytes}
    if free < FREE_BYTES_MIN:
        yield ill("disk.free", f"{shown_bytes(free)} free", "make room; a node stops on a full disk", **facts)
    elif free < reserve_bytes:
        what = f"{shown_bytes(free)} free, less than the reserve of {shown_bytes(reserve_bytes)}"
        yield worry("disk.free", what, "make room, or lower settings.retention.reserve_bytes", **facts)
    else:
        yield well("disk.free", f"{shown_bytes(free)} free", **facts)
    if room.f_files:
        names = room.f_favail
        if names < INODES_MIN:
            yield worry("disk.inodes", f"{names:,} more files can be made", "remove small files", inodes_free=names)
        else:
            yield well("disk.inodes", f"{names:,} more files can be made", inodes_free=names)


def check_file_system(mount: Mount) -> Finding:
    """Whether this kind of file system keeps what it is given."""
    facts = {"mount": mount.point, "type": mount.kind}
    where = f"{mount.kind} at {mount.point}"
    unsafe = [option for option in mount.options if option in UNSAFE_OPTIONS]
    if "ro" in mount.options:
        return ill("disk.filesystem", f"{where} is read-only", "mount it so that it can be written", **facts)
    if mount.kind in FORGETFUL:
        return ill("disk.filesystem", f"{where} is memory: it forgets with the power", "put it on a disk", **facts)
    if unsafe:
        what = f"{where} is mounted with {', '.join(unsafe)}: a sync may not reach the device"
        return ill("disk.filesystem", what, "mount it without that, or accept losing the last seconds", **facts)
    if mount.kind in REMOTE or mount.kind.startswith("fuse."):
        what = f"{where} is not local: locks and syncs are as good as the other side"
        return worry("disk.filesystem", what, "put the journal on a local disk", **facts)
    if mount.kind == "overlay":
        what = f"{where} is a container's own layer: it is gone with the container"
        return worry("disk.filesystem", what, "put the journal on a volume", **facts)
    if mount.kind in SIMPLE:
        what = f"{where} has no journal of its own: a power loss may take the folder with it"
        return worry("disk.filesystem", what, "use ext4, xfs, btrfs or f2fs", **facts)
    return well("disk.filesystem", where, **facts)


def check_writing(folder: Path, write_within_s: float) -> Iterator[Finding]:
    """Writes and syncs a small file, and says how long that takes."""
    path = folder / f".stigmergy-doctor-{os.getpid()}"
    try:
        taken_s = measure_syncs(path)
    except OSError as error:
        remedy = "give this user the right to" if error.errno in NO_RIGHT else "fix that first; nothing can run here"
        yield ill("disk.writable", f"{folder} cannot be written: {error.strerror}", remedy)
        return
    yield well("disk.writable", f"{folder} can be written")
    yield check_syncs(taken_s, write_within_s)


def measure_syncs(path: Path) -> list[float]:
    """How long each of some syncs took. Raises OSError; the file is gone afterwards."""
    taken_s: list[float] = []
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        until_s = time.monotonic() + SYNCS_S_MAX
        for number in range(SYNCS):
            os.pwrite(file, number.to_bytes(8, "little") * (SYNC_BYTES // 8), number * SYNC_BYTES)
            began_s = time.perf_counter()
            os.fdatasync(file)
            taken_s.append(time.perf_counter() - began_s)
            if time.monotonic() > until_s:
                break
    finally:
        os.close(file)
        with contextlib.suppress(OSError):
            os.unlink(path)
    return taken_s


def check_syncs(taken_s: list[float], write_within_s: float) -> Finding:
    """Whether these are the times of a device that was really asked, and quick enough."""
    median_s, worst_s = statistics.median(taken_s), max(taken_s)
    facts = {"median_s": round(median_s, 7), "worst_s": round(worst_s, 7), "syncs": len(taken_s)}
    what = f"a sync takes {_shown_s(median_s)}, at worst {_shown_s(worst_s)}"
    if median_s < BELIEVABLE_S:
        remedy = "a power loss will take acknowledged events: use a disk whose syncs are real; see its cache settings"
        return worry("disk.sync", f"{what}: no device is that quick, so it is not asked", remedy, **facts)
    if worst_s > write_within_s / 2:
        remedy = "a node takes a disk for failed at settings.write_within_s: use a better disk, or raise it"
        return ill("disk.sync", what, remedy, **facts)
    if median_s > SLOW_S:
        return worry("disk.sync", what, "each durable answer waits that long; use a better disk", **facts)
    return well("disk.sync", what, **facts)


def read_mounts() -> list[Mount]:
    """What is mounted, as Linux tells; nothing elsewhere."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [mount for mount in map(parse_mount, lines) if mount is not None]


def parse_mount(line: str) -> Mount | None:
    """One line of mountinfo: fields, a dash, then the type, the device and the options of the file system."""
    left, dash, right = line.partition(" - ")
    fields, rest = left.split(" "), right.split(" ")
    if not dash or len(fields) < 6 or len(rest) < 3:
        return None
    point = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
    return Mount(point, rest[0], tuple(dict.fromkeys([*fields[5].split(","), *rest[2].split(",")])))


def mount_of(folder: Path, mounts: list[Mount]) -> Mount | None:
    """The mount that a folder is on: the longest one above it, and of several at one place the last."""
    found: Mount | None = None
    for mount in mounts:
        if folder.is_relative_to(mount.point) and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def _shown_s(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


# Checks of the clocks: a plausible year, time synchronisation, a working monotonic clock. The time zone of the machine
# does not matter: every time in a log is UTC.

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


# Checks of the limits of this process: open files, file sizes, memory.

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


# Checks of the installation: Python, SQLite, the libraries, and their versions.

PYTHON_MIN = (3, 11)
SQLITE_MIN = (3, 53)
"""What we require: older ones can corrupt a database when the write-ahead log is reset."""
_NEEDED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)\s*>=\s*(?P<version>[0-9.]+)")


def check_versions() -> Iterator[Finding]:
    """Everything that runs here."""
    python = platform.python_version()
    if sys.version_info[:2] < PYTHON_MIN:
        yield ill("versions.python", f"Python {python}", "use Python 3.11 or newer", version=python)
    else:
        yield well("versions.python", f"Python {python} on {platform.system()} {platform.machine()}", version=python)
    if sys.maxsize < 2**32 or platform.system() != "Linux":
        yield worry("versions.platform", f"{platform.system()} {platform.machine()} is not tested", "use 64-bit Linux")
    yield _check_sqlite()
    yield from check_libraries(requires("stigmergy") or [])


def _check_sqlite() -> Finding:
    try:
        library = importlib.import_module("apsw").sqlitelibversion()
    except ImportError as error:
        return ill("versions.sqlite", f"apsw cannot be loaded: {error}", "install stigmergy again")
    if _numbers(library) < SQLITE_MIN:
        what = f"SQLite {library} can corrupt a journal when its write-ahead log is reset"
        return ill("versions.sqlite", what, "install a newer apsw", version=library)
    return well("versions.sqlite", f"SQLite {library}", version=library)


def check_libraries(needed: list[str]) -> Iterator[Finding]:
    """Compares what is installed with what our package says it needs; extras are left out."""
    fine: dict[str, str] = {}
    for line in needed:
        found = _NEEDED.match(line)
        if found is None or "extra ==" in line:
            continue
        name, least = found["name"], found["version"]
        try:
            installed = version(name)
        except PackageNotFoundError:
            yield ill(f"versions.{name}", f"{name} is not installed", f"pip install '{name}>={least}'")
            continue
        if _numbers(installed) < _numbers(least):
            what = f"{name} {installed}, {least} or newer is needed"
            yield ill(f"versions.{name}", what, f"pip install '{name}>={least}'", version=installed)
        else:
            fine[name] = installed
    if fine:
        listed = ", ".join(f"{name} {installed}" for name, installed in sorted(fine.items()))
        yield well("versions.libraries", listed, **fine)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:4])
