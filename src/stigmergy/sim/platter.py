"""What a power loss leaves of a file system: files as programs see them, and as the platter has them.

It plans no faults itself. At first only programs see a change. A sync makes it durable. A power loss keeps, loses or
tears each unsynced change, independently of the others; so later changes may survive earlier ones, within a file and
between files. Tearing keeps or loses whole sectors: a disk writes a sector entirely or not at all.
"""

from __future__ import annotations

import random

from msgspec import Struct

SECTOR_BYTES = 512


class Write(Struct, frozen=True):
    """Bytes put somewhere into a file."""

    offset: int
    data: bytes


class Truncate(Struct, frozen=True):
    """A file cut, or lengthened with zeros."""

    size: int


Change = Write | Truncate


class Inode:
    """A file without its name. No two of a disk have the same number."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.seen = bytearray()
        self._durable = bytearray()
        self._unsynced: list[Change] = []

    def apply(self, change: Change) -> None:
        """Changes what programs see."""
        _apply(self.seen, change)
        self._unsynced.append(change)

    def sync(self) -> None:
        """Makes all changes durable."""
        for change in self._unsynced:
            _apply(self._durable, change)
        self._unsynced.clear()

    def fail_sync(self, chance: random.Random) -> None:
        """Some changes got through; the others are forgotten by the disk, while programs go on seeing them.

        This is what Linux does: after a failed fsync the pages count as clean, and the next fsync reports success.
        """
        self._survive(chance)
        self._unsynced.clear()

    def forget_cache(self) -> None:
        """Programs see from now on what is durable."""
        self.seen = bytearray(self._durable)

    def lose_power(self, chance: random.Random) -> None:
        """What is there when the power is back."""
        self._survive(chance)
        self._unsynced.clear()
        self.forget_cache()

    def flip(self, offset: int, bit: int) -> None:
        """Damages one bit, for programs and on the platter."""
        for content in (self.seen, self._durable):
            if offset < len(content):
                content[offset] ^= 1 << bit

    def _survive(self, chance: random.Random) -> None:
        # Extremes are common in practice and would be rare if each change were drawn alone.
        mood = chance.choice(("all", "none", "prefix", "mixed", "mixed", "mixed"))
        if mood == "none":
            return
        count = chance.randint(0, len(self._unsynced)) if mood == "prefix" else len(self._unsynced)
        for change in self._unsynced[:count]:
            survivor = chance.choice(("kept", "lost", "torn", "torn")) if mood == "mixed" else "kept"
            if survivor == "kept" or (survivor == "torn" and isinstance(change, Truncate)):
                _apply(self._durable, change)
            elif survivor == "torn" and isinstance(change, Write):
                for part in tear(change, chance):
                    _apply(self._durable, part)


class DiskFolder:
    """Names of files. All names of a disk are in one folder: a path is just a name."""

    def __init__(self) -> None:
        self.seen: dict[str, Inode] = {}
        self._durable: dict[str, Inode] = {}
        self._unsynced: list[dict[str, Inode | None]] = []

    def change(self, names: dict[str, Inode | None]) -> None:
        """Gives or takes names, all of these at once or none."""
        _rename(self.seen, names)
        self._unsynced.append(names)

    def sync(self) -> None:
        """Makes all names durable."""
        for names in self._unsynced:
            _rename(self._durable, names)
        self._unsynced.clear()

    def sync_creation(self, name: str) -> None:
        """Makes durable that a file has this name, as a sync of the new file itself does."""
        inode = self.seen.get(name)
        if inode is None or {name: inode} not in self._unsynced:
            return
        # What happened to the name before goes first: a removal must not be carried out after it.
        until = self._unsynced.index({name: inode})
        for names in self._unsynced[: until + 1]:
            if name in names:
                _rename(self._durable, names)
        self._unsynced = [names for number, names in enumerate(self._unsynced) if number > until or name not in names]

    def lose_power(self, chance: random.Random) -> None:
        """What is there when the power is back: names first, then the content of what still has one."""
        for names in self._unsynced:
            if chance.random() < 0.5:
                _rename(self._durable, names)
        self._unsynced.clear()
        self.seen = dict(self._durable)
        for name in sorted(self.seen):
            self.seen[name].lose_power(chance)


def tear(write: Write, chance: random.Random) -> list[Write]:
    """Some of the sectors of a write: the first few, or any."""
    sectors = _sectors(write)
    if chance.random() < 0.5:
        return sectors[: chance.randint(0, len(sectors))]
    return [sector for sector in sectors if chance.random() < 0.5]


def _apply(content: bytearray, change: Change) -> None:
    match change:
        case Write(offset, data):
            if len(content) < offset:
                content.extend(bytes(offset - len(content)))
            content[offset : offset + len(data)] = data
        case Truncate(size):
            del content[size:]
            content.extend(bytes(size - len(content)))


def _rename(folder: dict[str, Inode], names: dict[str, Inode | None]) -> None:
    for name, inode in names.items():
        if inode is None:
            folder.pop(name, None)
        else:
            folder[name] = inode


def _sectors(write: Write) -> list[Write]:
    sectors: list[Write] = []
    start, end = write.offset, write.offset + len(write.data)
    while start < end:
        stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        sectors.append(Write(start, write.data[start - write.offset : stop - write.offset]))
        start = stop
    return sectors
