"""The roster of a table: the ids of its agents by number, compact, and found by hash. No numba.

A million names of 8 characters take less than 40 MB: their concatenated bytes, their offsets, and an index. The index
is sorted: an entry is the upper half of the name's hash and the agent's number, and is in the slot that its hash names
or, if that is taken, as close behind it as possible. So entries are in the order of their hashes, and a larger index is
made from a smaller one in one pass. It uses Python's own hash, which is keyed, so that nobody can choose names that
collide; the places of entries stay private.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stigmergy.agents.columns import CHECK_BYTES, NO_CHECK, roster_check
from stigmergy.base.errors import Bug

NAMES_COUNT_MAX = 2**32 - 2
NAMES_BYTES_MAX = 2**32 - 1
SLOTS_MIN = 64
SPILL_SLOTS = 64
"""Behind the last slot, for those whose slot is taken: there is no way around to the first."""
HASHED_AT_ONCE = 65_536
REBUILD_SHARE = 16
"""An enrolment of more than a sixteenth of those that are there makes the index anew; a smaller one adds to it."""
_HALF = 32
_LOW = 2**_HALF - 1
_END = b"\0"

Entries = NDArray[np.uint64]


class NameTable:
    """Names by number, numbers by name, and a check value for each enrolment."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self._bytes = bytearray()
        """Each name is followed by a zero byte."""
        self._starts = array("I", [0])
        self._counts = array("I")
        self._checks = bytearray()
        self._behind = 0
        """How many of the last names are not in the index yet."""
        self._index: Any = None
        self._slots: Any = None
        """The same, faster to read one by one."""
        self._make_index(np.empty(0, np.uint64), SLOTS_MIN)

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def generation(self) -> int:
        """How many enrolments there were."""
        return len(self._counts)

    def check_of(self, generation: int) -> tuple[int, bytes] | None:
        """The number of agents after this enrolment, and the digest of their names; None: not reached yet."""
        if not 0 < generation <= len(self._counts):
            return (0, NO_CHECK) if generation == 0 else None
        end = generation * CHECK_BYTES
        return self._counts[generation - 1], bytes(self._checks[end - CHECK_BYTES : end])

    def name(self, number: int) -> str:
        """The id of an agent."""
        if not 0 <= number < len(self):
            raise Bug(f"agent number {number} of {len(self)}")
        return self._bytes[self._starts[number] : self._starts[number + 1] - 1].decode()

    def find(self, name: str) -> int:
        """The number of an agent, or -1."""
        if self._behind:
            self.index()
        tag = (hash(name) >> _HALF) & _LOW
        number: int
        slots = self._slots
        slot = tag >> self._shift
        while entry := slots[slot]:
            there = entry >> _HALF
            if there >= tag:
                if there > tag:
                    return -1
                number = (entry & _LOW) - 1
                starts = self._starts
                if self._bytes[starts[number] : starts[number + 1] - 1] == name.encode():
                    return number
            slot += 1
        return -1

    def enroll(self, names: Sequence[str]) -> None:
        """Adds names as one enrolment. Raises Bug, with nothing changed, for a name that is there already."""
        self.index()
        previous = self._checks[-CHECK_BYTES:] or NO_CHECK
        check = roster_check(bytes(previous), names)
        before, count = len(self), len(names)
        self._append("\0".join((*names, "")).encode(), count)
        try:
            if count * REBUILD_SHARE > before:
                self._add_many(np.fromiter(map(hash, names), np.int64, count))
            else:
                self._add_few(names, before)
        except Bug:
            del self._bytes[self._starts[before] :]
            del self._starts[before + 1 :]
            raise
        self._counts.append(len(self))
        self._checks += check

    def index(self) -> None:
        """Sees to it that all names are found; those of a snapshot are not at first. Raises Bug for one that is there
        twice."""
        if self._behind:
            self._add_many(self._hashes(len(self) - self._behind))
            self._behind = 0

    # ---- for snapshots

    def names_from(self, first: int, end: int) -> bytes:
        """The names of these agents, each followed by a zero byte."""
        return bytes(self._bytes[self._starts[first] : self._starts[end]])

    def end_of(self, first: int, count: int, bytes_max: int) -> int:
        """Up to which of these `count` agents names from `first` on take so many bytes; one is always taken."""
        end = bisect.bisect_right(self._starts, self._starts[first] + bytes_max, first, count + 1) - 1
        return min(max(end, first + 1), count)

    def generation_at(self, count: int, generations: int) -> int:
        """How many of these enrolments had been when there were so many agents."""
        return bisect.bisect_right(self._counts, count, 0, generations)

    def generations_from(self, first: int, end: int) -> tuple[bytes, bytes]:
        """Counts, as little-endian u4, and checks of the enrolments behind number `first` up to number `end`."""
        counts = np.frombuffer(self._counts, np.uint32)[first:end].astype("<u4").tobytes()
        return counts, bytes(self._checks[first * CHECK_BYTES : end * CHECK_BYTES])

    def restore(self, names: bytes, counts: Sequence[int], checks: bytes) -> None:
        """Adds names and enrolments from a snapshot. The caller has made sure that they go together."""
        count = names.count(_END)
        self._append(names, count)
        self._behind += count
        self._counts.extend(counts)
        self._checks += checks

    # ---- inside

    def _append(self, joined: bytes, count: int) -> None:
        """Adds names, each followed by a zero byte."""
        if joined.count(_END) != count:
            raise Bug("a name with a zero byte in it")
        if len(self) + count > NAMES_COUNT_MAX or len(self._bytes) + len(joined) > NAMES_BYTES_MAX:
            raise Bug(f"{len(self) + count} names of agents in one table")
        ends = np.flatnonzero(np.frombuffer(joined, np.uint8) == 0) + (1 + len(self._bytes))
        self._bytes += joined
        self._starts.frombytes(ends.astype(np.uint32).tobytes())

    def _hashes(self, first: int) -> NDArray[np.int64]:
        """Of all names from this number on, some at a time: as objects they take much room."""
        hashes = np.empty(len(self) - first, np.int64)
        for start in range(0, len(hashes), HASHED_AT_ONCE):
            end = min(start + HASHED_AT_ONCE, len(hashes))
            names = self.names_from(first + start, first + end)[:-1].decode().split("\0")
            hashes[start:end] = np.fromiter(map(hash, names), np.int64, len(names))
        return hashes

    def _add_many(self, hashes: NDArray[np.int64]) -> None:
        """Makes the index anew, with so many of the last names; in place, since a copy for a million takes 8 MB."""
        entries = hashes.view(np.uint64)
        entries &= np.uint64(_LOW << _HALF)
        entries |= np.arange(len(self) + 1 - len(hashes), len(self) + 1, dtype=np.uint64)
        if len(hashes) < len(self):
            entries = np.concatenate((self._entries(), entries))
        entries.sort()
        for place in np.flatnonzero((entries[1:] ^ entries[:-1]) < np.uint64(1 << _HALF)).tolist():
            self._check_apart(entries, place)
        self._make_index(entries, _slots_for(len(entries)))

    def _check_apart(self, entries: Entries, place: int) -> None:
        """Of several with the same hash, the names must differ: those before this one have been compared."""
        tag = int(entries[place]) >> _HALF
        name = self.name(int(entries[place + 1] & np.uint64(_LOW)) - 1)
        while place >= 0 and int(entries[place]) >> _HALF == tag:
            if self.name(int(entries[place] & np.uint64(_LOW)) - 1) == name:
                raise Bug(f"{name} is enrolled already")
            place -= 1

    def _add_few(self, names: Sequence[str], before: int) -> None:
        added: list[int] = []
        number = before
        for name in names:
            if self.find(name) >= 0:
                for entry in added:
                    self._take_out(entry)
                raise Bug(f"{name} is enrolled already")
            if (number + 1) * 2 > self._home_slots:
                self._make_index(self._entries(), self._home_slots * 2)
            number += 1
            entry = (hash(name) & (_LOW << _HALF)) | number
            self._put(entry)
            added.append(entry)

    def _put(self, entry: int) -> None:
        """Between the entries before and behind it; those behind move on by one."""
        slots = self._slots
        slot = entry >> (_HALF + self._shift)
        while slots[slot] and slots[slot] < entry:
            slot += 1
        end = slot
        while slots[end]:
            end += 1
        if end + 1 >= len(slots):  # the last slot stays empty: a search ends there
            entries = np.sort(np.append(self._entries(), np.uint64(entry)))
            self._make_index(entries, self._home_slots)
            return
        if end > slot:
            slots[slot + 1 : end + 1] = slots[slot:end]
        slots[slot] = entry

    def _take_out(self, entry: int) -> None:
        entries = self._entries()
        self._make_index(entries[entries != np.uint64(entry)], self._home_slots)

    def _entries(self) -> Entries:
        """All entries, in order."""
        there: Entries = self._index[self._index != 0]
        return there

    def _make_index(self, entries: Entries, home_slots: int) -> None:
        """An entry lies in its own slot or right behind the one before it, whichever is later."""
        shift = _HALF - (home_slots.bit_length() - 1)
        order = np.arange(len(entries))
        places = (entries >> np.uint64(_HALF + shift)).view(np.int64)
        places -= order
        np.maximum.accumulate(places, out=places)
        places += order
        del order
        self._slots = self._index = None  # a large index and a larger one need not be there at once
        used = int(places[-1]) + 1 if len(places) else 0
        index = np.zeros(max(home_slots, used) + SPILL_SLOTS, np.uint64)
        index[places] = entries
        self._index = index
        self._slots = index.data
        self._home_slots = home_slots
        self._shift = shift


def _slots_for(count: int) -> int:
    """At least twice as many as entries, a power of two."""
    return max(SLOTS_MIN, 1 << (2 * count - 1).bit_length())
