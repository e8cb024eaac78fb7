"""What a cut of a log needs from before it, so that it can be read on its own: layouts, templates, names of agents.

Only those that its commits are about: of a fleet of a million, a cut of a minute brings along whom it names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from stigmergy.core.codec import encode
from stigmergy.core.columns import ColumnRun
from stigmergy.core.commit import Commit
from stigmergy.core.errors import JournalCorrupt
from stigmergy.core.flight import FlightDirectory, FlightRoster
from stigmergy.core.supervision import AgentsEnrolled
from stigmergy.core.walking import Reading, said_in

GIVE_WAY_COMMITS = 64
"""After so many commits whoever runs beside it gets a turn."""
NUMBER_BYTES = 4
NAMES_PER_RECORD = 5_000
"""A name has 128 characters at most: so a record of them is far below what one may have."""


class Needs:
    """Collects what commits need. Show it all of them, in order."""

    def __init__(self) -> None:
        self._layouts: dict[bytes, ColumnRun] = {}
        self._templates: dict[bytes, None] = {}
        self._agents: dict[str, dict[int, None]] = {}
        self._first: dict[str, int] = {}
        """Per kind how many were enrolled before the first enrolment in here."""
        self.runs_count = 0

    def take(self, commit: Commit) -> None:
        """Notes what a commit needs."""
        for said in said_in(commit):
            if isinstance(said, AgentsEnrolled):
                self._first.setdefault(said.kind, said.first)
        for run in commit.columns:
            self.runs_count += 1
            self._layouts.setdefault(run.layout, run)
            if run.templates:
                self._templates[run.templates] = None
            width = len(run.records) // max(run.count, 1)
            if width >= NUMBER_BYTES and width * run.count == len(run.records):
                numbers = struct.iter_unpack(f"<I{width - NUMBER_BYTES}x", run.records)
                self._agents.setdefault(run.kind, {}).update(dict.fromkeys(number for (number,) in numbers))

    def directories(self, shard: int, reading: Reading) -> Iterator[FlightDirectory]:
        """What `reading` knows of it, in records of bounded size. What it does not know is left out."""
        for run in self._layouts.values():
            try:
                yield FlightDirectory(shard, [(encode(reading.layout_of(run)), b"")], [])
            except JournalCorrupt:
                continue
        for digest in self._templates:
            try:
                yield FlightDirectory(shard, [(b"", encode(reading.templates_of(digest)))], [])
            except JournalCorrupt:
                continue
        for kind in sorted({**self._agents, **self._first}):
            numbers = sorted(self._agents.get(kind, {}))
            count = max(self._first.get(kind, 0), numbers[-1] + 1 if numbers else 0)
            for start in range(0, max(len(numbers), 1), NAMES_PER_RECORD):
                known = list(_named(reading, kind, numbers[start : start + NAMES_PER_RECORD]))
                roster = FlightRoster(kind, count, [number for number, _ in known], [name for _, name in known])
                yield FlightDirectory(shard, [], [roster])


def _named(reading: Reading, kind: str, numbers: list[int]) -> Iterator[tuple[int, str]]:
    for number in numbers:
        try:
            yield number, reading.name(kind, number)
        except JournalCorrupt:
            continue
