"""What a table holds: the names of its agents and their rows, how both grow and get into snapshots. No numba.

Rows are there twice: ahead, which steps change, and durable. Which rows ahead have changed is noted in chunks of 256,
since the last commit and since the last snapshot was begun.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from blake3 import blake3

from stigmergy.compiled.carrying import Carrying
from stigmergy.compiled.names import Roster
from stigmergy.compiled.parts import (
    NAMES_BYTES,
    ROWS_BYTES,
    Columns,
    NamesPart,
    RowsPart,
    Run,
    columns_digest,
    names_part,
    read_names,
    read_part,
    read_rows,
    rows_part,
    start_digest,
)
from stigmergy.compiled.program import DIRTY_SHIFT, Program
from stigmergy.compiled.rows import Bytes, Rows, fresh_bytes
from stigmergy.core.codec import encode
from stigmergy.core.columns import Layout
from stigmergy.core.errors import Bug, JournalCorrupt

_CONTEXT = "stigmergy 2026 state of a table"
_CHUNK = 1 << DIRTY_SHIFT
_FOLDED_BYTES = 32
"""To fold an event once more takes as long as to copy so many bytes of rows, there and back."""

Image = tuple[list[Run], Bytes]
"""Rows that have changed, and what they are."""


class Holding:
    """Names and rows of one table."""

    def __init__(self, program: Program, carrying: Carrying) -> None:
        self._layout = program.layout
        self._width = program.layout.row_bytes
        self._first_row = program.first_row
        self._carrying = carrying
        self._columns = Columns(program.layout)
        self._identity = (
            program.cls.__agent_version__,
            columns_digest(program.layout),
            start_digest(program.first_row),
        )
        """What a part of a snapshot must say for its rows to be taken as they are."""
        self.roster = Roster()
        self.ahead = Rows(self._width)
        self.durable = Rows(self._width)
        self.stopped = Rows(1)
        self.dirty = Rows(1)
        """Since the last snapshot was begun, but for what `touched` says."""
        self.touched = Rows(1)
        """Since the last image."""
        self.unasked = Rows(1)
        """The same for the durable rows, of which nobody asks which have changed."""
        self._noted = (0, 0)
        """How many agents and enrolments the last snapshot knew."""

    def enroll(self, names: Sequence[str], *, first_is_there: bool) -> None:
        """Adds agents in their first state; of the first the row ahead may be there already."""
        before = len(self.roster)
        self.roster.enroll(names)
        self._begin_rows(before, before + 1 if first_is_there and names else before)
        self._note_changed(before, len(self.roster))

    def make_room(self, count: int) -> None:
        """Room for the rows of so many agents."""
        self.ahead.grow(count)
        self.durable.grow(count)
        self.stopped.grow(count)
        self.dirty.grow((count >> DIRTY_SHIFT) + 1)
        self.touched.grow((count >> DIRTY_SHIFT) + 1)
        self.unasked.grow((count >> DIRTY_SHIFT) + 1)

    def expect_newcomer(self) -> None:
        """Makes the row ahead of the agent that would be enrolled next."""
        count = len(self.roster)
        self.make_room(count + 1)
        self.ahead.fill(count, count + 1, self._first_row)
        self.stopped.data[count] = 0

    def rows_of(self, rows: Rows) -> Bytes:
        """The rows of the agents that are there."""
        return rows.data[: len(self.roster) * self._width]

    def matrix(self, rows: Rows) -> Bytes:
        """All rows that there is room for, by number."""
        return rows.data[: rows.room * self._width].reshape(rows.room, self._width)

    def catch_up(self) -> None:
        """The durable rows become what those ahead are."""
        self._index_names()
        self.rows_of(self.durable)[:] = self.rows_of(self.ahead)

    def image(self, events: int) -> Image | None:
        """The rows that so many events have changed since the last image; None if to fold the events is cheaper."""
        if events * _FOLDED_BYTES < _CHUNK * self._width:
            return None  # what they have touched is in the next image, which is of a later commit and so includes it
        chunks = self.touched.data[: (len(self.roster) + _CHUNK - 1) >> DIRTY_SHIFT]
        np.bitwise_or(self.dirty.data[: chunks.size], chunks, out=self.dirty.data[: chunks.size])
        runs = self._runs_of(chunks)
        chunks[:] = 0
        size_bytes = sum(length for _, length in runs) * self._width
        if size_bytes > events * _FOLDED_BYTES:
            return None
        return runs, self._copied(runs)

    def adopt(self, image: Image) -> None:
        """These rows are durable now."""
        runs, rows = image
        start, width = 0, self._width
        for first, length in runs:
            self.durable.data[first * width : (first + length) * width] = rows[start : start + length * width]
            start += length * width

    def _copied(self, runs: list[Run]) -> Bytes:
        width = self._width
        parts = [self.ahead.data[first * width : (first + length) * width] for first, length in runs]
        return np.concatenate(parts) if parts else fresh_bytes(0)

    def _begin_rows(self, before: int, first: int) -> None:
        count = len(self.roster)
        self.make_room(count)
        self.ahead.fill(first, count, self._first_row)
        self.durable.fill(before, count, self._first_row)

    def _note_changed(self, first: int, end: int) -> None:
        if end > first:
            self.dirty.data[first >> DIRTY_SHIFT : ((end - 1) >> DIRTY_SHIFT) + 1] = 1

    # ---- snapshots

    def begin_snapshot(self, *, full: bool) -> Iterator[bytes]:
        """Copies what is to be written, at once; the parts are made of the copy, one by one."""
        count = len(self.roster)
        noted = (0, 0) if full else self._noted
        changed = self.dirty.data[: (count + _CHUNK - 1) >> DIRTY_SHIFT]
        np.bitwise_or(changed, self.touched.data[: changed.size], out=changed)
        runs = [(0, count)] if full and count else self._runs_of(changed)
        rows = self._copied(runs)
        self.dirty.data[:] = 0
        self._noted = (count, self.roster.generation)
        return self._parts(noted, self._noted, runs, rows)

    def _runs_of(self, chunks: Bytes) -> list[Run]:
        """The rows that lie in chunks that are noted as changed."""
        count = len(self.roster)
        edges = np.flatnonzero(np.diff(chunks, prepend=np.uint8(0), append=np.uint8(0)))
        pairs = (edges.reshape(-1, 2) << DIRTY_SHIFT).tolist()
        return [(first, min(end, count) - first) for first, end in pairs]

    def _parts(self, noted: tuple[int, int], now: tuple[int, int], runs: list[Run], rows: Bytes) -> Iterator[bytes]:
        """Names are only ever added, so that there is no need to have copied them."""
        (first, generation), (count, generations) = noted, now
        while first < count or generation < generations:
            end = self.roster.end_of(first, count, NAMES_BYTES)
            last = self.roster.generation_at(end, generations)
            counts, checks = self.roster.generations_from(generation, last)
            yield names_part(first, end - first, self.roster.names_from(first, end), generation, counts, checks)
            first, generation = end, last
        start = 0
        for some in _portions(runs, max(ROWS_BYTES // max(self._width, 1), 1)):
            end = start + sum(length for _, length in some)
            taken = rows[start * self._width : end * self._width]
            yield rows_part(self._columns, self._identity, some, taken)
            start = end

    def load(self, body: bytes, layout: Layout) -> None:
        """Takes over one part. Raises FoldMismatch or JournalCorrupt."""
        part = read_part(body)
        if isinstance(part, NamesPart):
            self._load_names(part)
        else:
            self._load_rows(part, layout)

    def _load_names(self, part: NamesPart) -> None:
        anew = part.first == part.generation == 0
        """The first part of a full one."""
        before = 0 if anew else len(self.roster)
        names, counts = read_names(part, before, 0 if anew else self.roster.generation)
        if anew:
            self.roster.clear()
            self.stopped.data[:] = 0
        self.roster.restore(names, counts, part.checks)
        self._begin_rows(before, before)
        self.dirty.data[:] = 0
        self._noted = (len(self.roster), self.roster.generation)

    def _index_names(self) -> None:
        """All names of a snapshot at once: to do so for each part would take much longer."""
        try:
            self.roster.index()
        except Bug as error:
            raise JournalCorrupt(f"a name is twice in a snapshot ({error}); an older one is used") from None

    def _load_rows(self, part: RowsPart, layout: Layout) -> None:
        self._index_names()
        rows = read_rows(part, layout, len(self.roster))
        same = (part.version, part.columns, part.start) == self._identity
        if not same:
            rows = self._carrying.to_todays_rows(part, layout, rows, self.roster.name)
        self._columns.check(rows)
        start = 0
        for first, length in part.runs:
            taken = rows[start * self._width : (start + length) * self._width]
            self.ahead.data[first * self._width : (first + length) * self._width] = taken
            start += length
            if not same:
                self._note_changed(first, first + length)

    def digest(self) -> bytes:
        """Stands for names, enrolments and the rows ahead."""
        hasher = blake3(derive_key_context=_CONTEXT)
        hasher.update(encode(self.roster.check_of(self.roster.generation)))
        rows = self.rows_of(self.ahead)
        step = max(ROWS_BYTES // max(self._width, 1), 1) * self._width
        for start in range(0, len(rows), max(step, 1)):
            hasher.update(self._columns.canonical(rows[start : start + step]).data)
        return hasher.digest()


def _portions(runs: list[Run], count_max: int) -> Iterator[list[Run]]:
    """The same rows in lists of at most so many."""
    some: list[Run] = []
    room = count_max
    for first, length in runs:
        while length:
            taken = min(length, room)
            some.append((first, taken))
            first, length, room = first + taken, length - taken, room - taken
            if not room:
                yield some
                some, room = [], count_max
    if some:
        yield some
