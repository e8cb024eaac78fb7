"""A simulated disk for one machine: it loses what was not synced, fails where it is told to, and counts every call.

    disk = SimDisk(random.Random(seed))
    journal = open_journal("sqlite:fleet.db", identity, inline=True, vfs=disk.vfs, files=disk)
    disk.fail(disk.calls + 3, DiskFault.EIO)      # the third call from now fails
    disk.lose_power(); disk.restart()         # open everything again

Faults are drawn from the given randomness or planned by call number, so the same seed and program give the same disk.
(The salts in a WAL come from SQLite's own generator and differ; nothing depends on their value.) All errors are
OSError; the VFS on top translates them for SQLite. After a crash every open file is dead, and every call fails until
`restart`.

Call `close` when done with the disk: the VFS is registered in the whole process.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import apsw
from msgspec import Struct

from stigmergy.journal.files import Files
from stigmergy.sim.platter import DiskFolder, Inode, Truncate, Write, tear

# SQLite's view of a SimDisk: a VFS under which the real journal runs. Translates errors, keeps SQLite's locks.
#
# apsw raises what a callback raised, if SQLite reports the failure; the code that SQLite sees comes from the exception.
# So every error of the disk becomes the exception with the code that the real VFS would give.

_numbers = itertools.count(1)
_SECTOR_BYTES = 4096
"""What the VFS for Linux says, whatever the device's sectors are."""


class SimVfs(apsw.VFS):
    """One per disk, under a name of its own."""

    def __init__(self, disk: SimDisk) -> None:
        self.name = f"stigmergy-sim-{next(_numbers)}"
        self._disk = disk
        self._temporary = itertools.count(1)
        self.locks: dict[str, dict[int, int]] = {}
        # SQLite's clock and randomness come from the default VFS; files come from here.
        super().__init__(self.name, "")

    def release_locks(self) -> None:
        """Nobody who had a lock lives any more."""
        self.locks.clear()

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> SimVfsFile:  # type: ignore[override]
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None:
            path = f"temporary-{next(self._temporary)}"
        with _translated(apsw.SQLITE_CANTOPEN):
            file = self._disk.open(path, create=bool(flags[0] & apsw.SQLITE_OPEN_CREATE))
        flags[1] = flags[0]
        return SimVfsFile(self, file, delete_on_close=bool(flags[0] & apsw.SQLITE_OPEN_DELETEONCLOSE))

    def xAccess(self, pathname: str, flags: int) -> bool:
        with _translated(apsw.SQLITE_IOERR_ACCESS):
            size = self._disk.size(pathname)
        # As on Linux: an empty file counts as none, which matters for leftover journals.
        return bool(size) if flags == apsw.SQLITE_ACCESS_EXISTS else size is not None

    def xFullPathname(self, name: str) -> str:
        return name

    def xDelete(self, filename: str, syncdir: bool) -> None:
        with _translated(apsw.SQLITE_IOERR_DELETE):
            if self._disk.size(filename) is None:
                raise _sqlite_error(apsw.IOError, apsw.SQLITE_IOERR_DELETE_NOENT, "no such file")
            self._disk.remove(filename, sync=syncdir)


class SimVfsFile:
    """An open file as SQLite asks for it."""

    def __init__(self, vfs: SimVfs, file: SimFile, *, delete_on_close: bool) -> None:
        self._vfs = vfs
        self._file = file
        self._delete_on_close = delete_on_close

    def xRead(self, amount: int, offset: int) -> bytes:
        with _translated(apsw.SQLITE_IOERR_READ):
            return self._file.read_at(offset, amount)

    def xWrite(self, data: bytes, offset: int) -> None:
        with _translated(apsw.SQLITE_IOERR_WRITE):
            self._file.write_at(offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:
        with _translated(apsw.SQLITE_IOERR_TRUNCATE):
            self._file.truncate(newsize)

    def xSync(self, flags: int) -> None:
        with _translated(apsw.SQLITE_IOERR_FSYNC):
            self._file.sync()

    def xFileSize(self) -> int:
        return self._file.size()

    def xClose(self) -> None:
        self.xUnlock(apsw.SQLITE_LOCK_NONE)
        if self._delete_on_close:
            with contextlib.suppress(OSError):
                self._vfs._disk.remove(self._file.path)

    def xLock(self, level: int) -> None:
        holders = self._vfs.locks.setdefault(self._file.path, {})
        others = max((held for holder, held in holders.items() if holder != id(self)), default=apsw.SQLITE_LOCK_NONE)
        excluded = others >= apsw.SQLITE_LOCK_PENDING or (
            level >= apsw.SQLITE_LOCK_RESERVED and others >= apsw.SQLITE_LOCK_RESERVED
        )
        if excluded or (level == apsw.SQLITE_LOCK_EXCLUSIVE and others > apsw.SQLITE_LOCK_NONE):
            raise apsw.BusyError("the simulated file is locked")
        holders[id(self)] = max(level, holders.get(id(self), apsw.SQLITE_LOCK_NONE))

    def xUnlock(self, level: int) -> None:
        holders = self._vfs.locks.get(self._file.path, {})
        if level == apsw.SQLITE_LOCK_NONE:
            holders.pop(id(self), None)
        elif id(self) in holders:
            holders[id(self)] = min(level, holders[id(self)])

    def xCheckReservedLock(self) -> bool:
        return any(held >= apsw.SQLITE_LOCK_RESERVED for held in self._vfs.locks.get(self._file.path, {}).values())

    def xFileControl(self, op: int, ptr: int) -> bool:
        return False

    def xSectorSize(self) -> int:
        return _SECTOR_BYTES

    def xDeviceCharacteristics(self) -> int:
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE


@contextlib.contextmanager
def _translated(code: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _sqlite_error(apsw.FullError, apsw.SQLITE_FULL, str(error)) from None
        kind = apsw.CantOpenError if code == apsw.SQLITE_CANTOPEN else apsw.IOError
        raise _sqlite_error(kind, code, str(error)) from None


def _sqlite_error(kind: type[apsw.Error], code: int, text: str) -> apsw.Error:
    error = kind(text)
    vars(error).update(result=code & 0xFF, extendedresult=code)
    return error


class Call(enum.Enum):
    """What programs ask of a disk. Each one is counted, and can fail."""

    CREATE = "create"
    READ = "read"
    WRITE = "write"
    RESERVE = "reserve"
    SYNC = "sync"
    TRUNCATE = "truncate"
    DELETE = "delete"
    RENAME = "rename"


class DiskFault(enum.Enum):
    """What can happen to a call."""

    EIO = "the device fails: a write may be half done, a sync may have lost what it was to make durable"
    ENOSPC = "no room: only for calls that need some, others pass"
    POWER_LOSS = "the power goes while the call is under way"
    KILL = "the process dies before the call; what it has written stays visible"


class AfterFailedSync(enum.Enum):
    """What programs see of data whose sync failed."""

    STALE_CACHE = "the data, although the disk has lost it: what Linux does"
    DROPPED_CACHE = "what the disk has"


class IoCall(Struct, frozen=True):
    """One call, for hooks and traces."""

    number: int
    kind: Call
    path: str
    offset: int
    size: int


class Crashed(OSError):
    """The machine or the process is down: nothing can be asked of its files any more."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the simulated machine is down")


class SimDisk:
    """Files with two contents each: what programs see and what is durable. Implements the sqlite adapter's `Files`."""

    def __init__(
        self,
        chance: random.Random,
        *,
        capacity_bytes: int = 1 << 40,
        sync_lies: bool = False,
        after_failed_sync: AfterFailedSync = AfterFailedSync.STALE_CACHE,
    ) -> None:
        self._chance = chance
        self.capacity_bytes = capacity_bytes
        self.sync_lies = sync_lies
        """A disk that says synced and is not. Everything that claims durability must fail on it."""
        self.after_failed_sync = after_failed_sync
        self.on_call: Callable[[IoCall], None] | None = None
        """Called before each call: to stall in virtual time, to trace, or to do something in between."""
        self.on_down: Callable[[], None] | None = None
        """Called when machine or process have gone down."""
        self.calls = 0
        self.calls_by_kind: Counter[Call] = Counter()
        self._plan: dict[int, DiskFault] = {}
        self._plan_by_kind: dict[tuple[Call, int], DiskFault] = {}
        self._folder = DiskFolder()
        self._life = 0
        self.down = False
        self.power_losses = 0
        self._claims: dict[str, SimFile] = {}
        self._inodes = 0
        self._vfs = SimVfs(self)
        self.vfs = self._vfs.name

    # Faults.

    def fail(self, number: int, fault: DiskFault) -> None:
        """Plans a fault for the call with this number; the next call has number `calls + 1`."""
        self._plan[number] = fault

    def fail_kind(self, kind: Call, number: int, fault: DiskFault) -> None:
        """Plans a fault for the n-th call of a kind, counted from the beginning (`calls_by_kind`)."""
        self._plan_by_kind[kind, number] = fault

    def forgive(self) -> None:
        """Forgets all planned faults."""
        self._plan.clear()
        self._plan_by_kind.clear()

    def flip(self, path: str, offset: int, bit: int = 0) -> None:
        """Damages one bit of a file."""
        self._inode(path).flip(offset, bit)

    def lose_power(self) -> None:
        """Unsynced changes are kept, lost or torn. Everything is down until `restart`."""
        self.power_losses += 1
        self._folder.lose_power(self._chance)
        self._go_down()

    def kill(self) -> None:
        """The process dies; the system and its cache live on. Everything is down until `restart`."""
        self._go_down()

    def restart(self) -> None:
        """The machine or process starts anew. Files that were open before stay dead."""
        self.down = False

    def close(self) -> None:
        """Takes the VFS out of SQLite."""
        self._vfs.unregister()

    def _go_down(self) -> None:
        self.down = True
        self._life += 1
        self._claims.clear()
        self._vfs.release_locks()
        if self.on_down is not None:
            self.on_down()

    # Files, for anybody. Paths are names and mean nothing more.

    @property
    def life(self) -> int:
        """Counts crashes: a handle of an earlier life is dead."""
        return self._life

    def used_bytes(self) -> int:
        """What all files take."""
        return sum(len(inode.seen) for inode in self._folder.seen.values())

    def paths(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._folder.seen)

    def content(self, path: str) -> bytes:
        """What programs see in a file, without asking the disk: no call, no fault."""
        return bytes(self._inode(path).seen)

    def put(self, path: str, content: bytes) -> None:
        """Puts a file there, durably, as if it had always been there: no call, no fault."""
        inode = Inode(self._next_number())
        inode.apply(Write(0, content))
        inode.sync()
        self._folder.change({path: inode})
        self._folder.sync()

    def take_away(self, path: str, to: str | None = None) -> None:
        """Another program removes or renames a file. A program that has it open keeps it: no call, no fault."""
        inode = self._inode(path)
        self._folder.change({path: None} if to is None else {path: None, to: inode})
        self._folder.sync()

    def open(self, path: str, *, create: bool = True) -> SimFile:
        """A handle. Raises FileNotFoundError if there is no file and none may be made."""
        self._check_up()
        inode = self._folder.seen.get(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such simulated file", path)
            inode = Inode(self._next_number())
            self._ask(Call.CREATE, path, 0, 0, None)
            self._folder.change({path: inode})
        return SimFile(self, path, inode)

    def size(self, path: str) -> int | None:
        self._check_up()
        inode = self._folder.seen.get(path)
        return len(inode.seen) if inode is not None else None

    def inode(self, path: str) -> tuple[int, int] | None:
        self._check_up()
        inode = self._folder.seen.get(path)
        return None if inode is None else (0, inode.number)

    def read(self, path: str, offset: int, size: int) -> bytes:
        return self.open(path, create=False).read_at(offset, size)

    def rewrite(self, path: str, size: int) -> None:
        file = self.open(path, create=False)
        file.write_at(0, file.read_at(0, size))
        file.sync()

    def make(self, path: str) -> None:
        self.open(path)

    def close_to_others(self, path: str) -> None:
        """There are no rights on a simulated disk."""

    def claim(self, path: str) -> SimFile:
        if path in self._claims:
            raise BlockingIOError(errno.EAGAIN, "claimed by somebody else", path)
        file = self.open(path)
        self._claims[path] = file
        return file

    def release(self, file: SimFile) -> None:
        """Ends the claim that this handle holds, if it does."""
        if self._claims.get(file.path) is file:
            del self._claims[file.path]

    def replace(self, source: str, target: str) -> None:
        self.open(source, create=False).sync()
        self._ask(Call.RENAME, source, 0, 0, None)
        self._folder.change({source: None, target: self._inode(source)})
        self.sync_folder(target)

    def remove(self, path: str, *, sync: bool = False) -> None:
        self._check_up()
        if path in self._folder.seen:
            self._ask(Call.DELETE, path, 0, 0, None)
            self._folder.change({path: None})
        if sync:
            self.sync_folder(path)

    def reserve(self, path: str, size: int) -> None:
        file = self.open(path)
        file.truncate(0)
        file.reserve(size)

    def free_bytes(self, path: str) -> int:
        return max(0, self.capacity_bytes - self.used_bytes())

    def sync_folder(self, path: str) -> None:
        """Makes all names durable."""
        self._ask(Call.SYNC, path, 0, 0, None)
        if not self.sync_lies:
            self._folder.sync()

    # What handles ask for. The fault of the call, if any, is carried out here.

    def do_read(self, file: SimFile, offset: int, size: int) -> bytes:
        self._ask(Call.READ, file.path, offset, size, file)
        return bytes(file.inode.seen[offset : offset + size])

    def do_write(self, file: SimFile, offset: int, data: bytes) -> None:
        inode = file.inode
        growth = max(0, offset + len(data) - len(inode.seen))
        room = max(0, self.capacity_bytes - self.used_bytes())
        fault = self._count(Call.WRITE, file.path, offset, len(data), file)
        if fault is DiskFault.KILL:
            self._crash(fault)
        if fault is DiskFault.POWER_LOSS:
            inode.apply(Write(offset, data))
            self._crash(fault)
        if fault is DiskFault.EIO:
            for sector in tear(Write(offset, data), self._chance):
                inode.apply(sector)
            self._crash(fault)
        if growth and (growth > room or fault is DiskFault.ENOSPC):
            # At least one byte does not fit, as an operating system would have it.
            fits = len(data) - growth + (min(room, growth - 1) if growth > room else 0)
            if fits > 0:
                inode.apply(Write(offset, data[:fits]))
            raise OSError(errno.ENOSPC, "the simulated disk is full", file.path)
        inode.apply(Write(offset, data))

    def do_reserve(self, file: SimFile, size: int) -> None:
        growth = size - len(file.inode.seen)
        room = max(0, self.capacity_bytes - self.used_bytes())
        fault = self._count(Call.RESERVE, file.path, size, max(0, growth), file)
        if fault is DiskFault.POWER_LOSS and growth > 0:
            file.inode.apply(Truncate(size))
        self._crash(fault)
        if growth > room or (growth > 0 and fault is DiskFault.ENOSPC):
            raise OSError(errno.ENOSPC, "the simulated disk is full", file.path)
        if growth > 0:
            file.inode.apply(Truncate(size))

    def do_truncate(self, file: SimFile, size: int) -> None:
        self._ask(Call.TRUNCATE, file.path, size, 0, file)
        file.inode.apply(Truncate(size))

    def do_sync(self, file: SimFile) -> None:
        fault = self._count(Call.SYNC, file.path, 0, 0, file)
        if fault is DiskFault.EIO:
            file.inode.fail_sync(self._chance)
            if self.after_failed_sync is AfterFailedSync.DROPPED_CACHE:
                file.inode.forget_cache()
        self._crash(fault)
        if not self.sync_lies:
            file.inode.sync()
            self._folder.sync_creation(file.path)

    def _ask(self, kind: Call, path: str, offset: int, size: int, file: SimFile | None) -> None:
        self._crash(self._count(kind, path, offset, size, file))

    def _count(self, kind: Call, path: str, offset: int, size: int, file: SimFile | None) -> DiskFault | None:
        self._check_up()
        if file is not None and file.life != self._life:
            raise Crashed
        self.calls += 1
        self.calls_by_kind[kind] += 1
        if self.on_call is not None:
            self.on_call(IoCall(self.calls, kind, path, offset, size))
        planned = self._plan.pop(self.calls, None)
        return self._plan_by_kind.pop((kind, self.calls_by_kind[kind]), None) or planned

    def _crash(self, fault: DiskFault | None) -> None:
        """Carries out what ends a call. ENOSPC does not: only a write needs room."""
        match fault:
            case DiskFault.POWER_LOSS:
                self.lose_power()
                raise Crashed
            case DiskFault.KILL:
                self.kill()
                raise Crashed
            case DiskFault.EIO:
                raise OSError(errno.EIO, "simulated failure of the device")
            case DiskFault.ENOSPC | None:
                return

    def _next_number(self) -> int:
        self._inodes += 1
        return self._inodes

    def _check_up(self) -> None:
        if self.down:
            raise Crashed

    def _inode(self, path: str) -> Inode:
        try:
            return self._folder.seen[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such simulated file", path) from None


class SimFile:
    """An open file of a SimDisk. Also the `Claim` of the sqlite adapter."""

    def __init__(self, disk: SimDisk, path: str, inode: Inode) -> None:
        self._disk = disk
        self.path = path
        self.inode = inode
        self.life = disk.life

    def read_at(self, offset: int, size: int) -> bytes:
        """At most so many bytes; fewer at the end."""
        return self._disk.do_read(self, offset, size)

    def write_at(self, offset: int, data: bytes) -> None:
        """All of the data, or an error and perhaps some of it."""
        self._disk.do_write(self, offset, data)

    def write_pieces(self, offset: int, pieces: Sequence[bytes]) -> None:
        """The same for pieces that follow each other."""
        self.write_at(offset, b"".join(pieces))

    def reserve(self, size: int) -> None:
        """Makes the file so long, with zeros. A disk that is full has no room for them."""
        self._disk.do_reserve(self, size)

    def truncate(self, size: int) -> None:
        """Cuts or lengthens the file."""
        self._disk.do_truncate(self, size)

    def sync(self) -> None:
        """Makes what was written durable."""
        self._disk.do_sync(self)

    def size(self) -> int:
        """How long the file is now."""
        return len(self.inode.seen)

    def read(self) -> bytes:
        return self.read_at(0, self.size())

    def write(self, data: bytes) -> None:
        self.write_at(0, data)

    def close(self) -> None:
        self._disk.release(self)


class SimFolder:
    """A folder of a simulated disk, for the journal in segments: the files whose names begin with the folder's."""

    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self.files: Files = disk
        self.path = path

    def make(self) -> None:
        """A folder of a simulated disk is there once a file is in it."""

    def names(self) -> list[str]:
        """What is there, sorted."""
        prefix = f"{self.path}/"
        return [path.removeprefix(prefix) for path in self._disk.paths() if path.startswith(prefix)]

    def size(self, name: str) -> int | None:
        """How many bytes a file has, or None if there is no such file."""
        return self._disk.size(self._of(name))

    def claim(self, name: str) -> SimFile:
        """Claims the file."""
        return self._disk.claim(self._of(name))

    def open(self, name: str, *, create: bool = False) -> SimFile:
        """Opens a file."""
        return self._disk.open(self._of(name), create=create)

    def replace(self, source: str, target: str) -> None:
        """Syncs the source and gives it the target's name, durably."""
        self._disk.replace(self._of(source), self._of(target))

    def remove(self, name: str) -> None:
        """Removes the file."""
        self._disk.remove(self._of(name))

    def sync(self) -> None:
        """Makes names durable."""
        self._disk.sync_folder(self.path)

    def free_bytes(self) -> int:
        """How much room is left."""
        return self._disk.free_bytes(self.path)

    def _of(self, name: str) -> str:
        return f"{self.path}/{name}"
