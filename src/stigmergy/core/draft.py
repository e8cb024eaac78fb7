"""The draft: the commit that is still open. Steps add to it; sealing turns it into bytes. Never seen outside its shard.

Several steps may go into one draft: that is how events kept `within` a second share a write, and how, of events kept as
`latest`, only the newest is written.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from stigmergy.core.blocks import Block
from stigmergy.core.codec import SOURCE_CHARS_MAX, printable
from stigmergy.core.columns import ColumnRun
from stigmergy.core.commit import (
    COLUMNS_FORMAT,
    COMMIT_FORMAT,
    Answer,
    Commit,
    HashAlgorithm,
    MarkMoved,
    Owed,
    Run,
    Settled,
    SnapshotNote,
)
from stigmergy.core.inputs import ELSEWHERE, Asked, Verdict
from stigmergy.core.messages import Message
from stigmergy.core.outbox import Pending
from stigmergy.core.sharing import Merged, SharedChanged
from stigmergy.core.state import ShardState
from stigmergy.core.timers import Timer

NEVER_NS = 2**62
DRAFT_BYTES_MAX = 240 * 1024
"""Past this a step leaves the rest of its inputs for the next commit.

The room up to COMMIT_BYTES_MAX is what one input can need at worst: a window closes with its effects (17 KiB), then a
command causes all that it may (80 KiB) or fails (84 KiB with the reactions to that) and its agent is stopped (17 KiB),
then it is answered (68 KiB).
"""
COLUMNS_REST_BYTES = 80 * 1024
"""How much larger than `columns_bytes_max` a commit with records can become. A table never makes more than there is
room for; the rest is what one record needs that fails: its message in words (64 KiB), its error, and why its agent is
stopped (5 KiB); then the run and the mark of its source (4 KiB)."""
JOINED_BYTES_MAX = 16 * 1024
"""Runs of more bytes are not joined: to copy them costs more than a new one."""
OVERHEAD_BYTES = 64
"""Counted for each entry of a commit beside its texts and bodies: numbers and the framing."""


def _alike(last: ColumnRun, run: ColumnRun) -> bool:
    same = (last.kind, last.layout, last.time_ns, last.source) == (run.kind, run.layout, run.time_ns, run.source)
    return same and len(last.records) + len(run.records) <= JOINED_BYTES_MAX


class Draft:
    """What the next commit of a shard will say, and what the host does once it is durable."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.events: list[tuple[str, bytes] | None] = []
        self.answers: list[Answer] = []
        self.clients: list[str] = []
        self.digests: list[bytes] = []
        """Who got each of them."""
        self.owed: list[Owed] = []
        self.marks: dict[tuple[str, int], MarkMoved] = {}
        self.settled: dict[str, list[int]] = {}
        self.fired: list[tuple[str, str, int]] = []
        self.snapshots: list[SnapshotNote] = []
        self.columns: list[ColumnRun] = []
        self.columns_count = 0
        """How many events are in them."""
        self.columns_bytes = 0
        """How much of the size are records and batched actions."""
        self.confirmed: dict[str, int] = {}
        self.blocks: list[Block] = []
        self.pending: list[Pending] = []
        self.timers: list[tuple[Timer, int]] = []
        self.verdicts: list[tuple[Asked, Verdict]] = []
        self.touched: dict[str, Any] = {}
        """Agents as they were before this draft (None: not there); queries see these until it is durable."""
        self.stopped: list[str] = []
        self.shared: list[tuple[str, SharedChanged | Merged | None]] = []
        """Agents with shared fields that are new (None), and what has changed in whose."""
        self.fresh: list[tuple[str, type[Message] | None]] = []
        """Agents with staleness rules that are new (None) or got an event that a rule waits for."""
        self.size_bytes = 0
        self.wait_ns = NEVER_NS
        self._runs: list[tuple[int, int, str]] = []
        self._superseded = 0
        self.newest_events: dict[str, tuple[int, str, Any]] = {}
        """Per agent whose last event here is a `latest` one: where it stands, its tag, the agent before it."""

    @property
    def empty(self) -> bool:
        """Whether sealing would write nothing."""
        return not (
            self.events
            or self.columns
            or self.answers
            or self.owed
            or self.marks
            or self.settled
            or self.confirmed
            or self.fired
            or self.snapshots
        )

    def begin_run(self, time_ns: int, source: str) -> None:
        """From here on events are taken at this time from this source."""
        start = len(self.events)
        source = printable(source, SOURCE_CHARS_MAX)
        if self._runs and self._runs[-1][0] == start:
            self._runs[-1] = (start, time_ns, source)
        elif not self._runs or self._runs[-1][1:] != (time_ns, source):
            self._runs.append((start, time_ns, source))
            self.grow(source)

    @property
    def source(self) -> str:
        """Whence what is taken now comes."""
        return self._runs[-1][2]

    @property
    def full_of_words(self) -> bool:
        """Whether what is no record takes all the room that there is for it: dead letters, for example."""
        return self.size_bytes - self.columns_bytes > DRAFT_BYTES_MAX

    def hurry(self, wait_ns: int) -> None:
        """Something was added that may wait this long for the disk."""
        self.wait_ns = min(self.wait_ns, wait_ns)

    def grow(self, *texts: str, bodies_bytes: int = 0) -> None:
        """One more entry, with these texts in it, makes the commit larger by so much."""
        self.size_bytes += bodies_bytes + OVERHEAD_BYTES
        for text in texts:
            self.size_bytes += len(text) if text.isascii() else 4 * len(text)

    def fitting(self, items: list[tuple[str, bytes]], size_bytes: int) -> list[tuple[str, bytes]]:
        """The items for which there is room, and counts their bytes. An empty draft has room for any one.

        With the length of the envelope that they are all of, none of them is looked at.
        """
        room_bytes = DRAFT_BYTES_MAX - self.size_bytes
        if 0 < size_bytes <= room_bytes:
            self.size_bytes += size_bytes
            return items
        used_bytes = count = 0
        for address, body in items:
            # What is for another shard leaves nothing here. Counted, it would fill one draft after the other.
            item_bytes = 0 if body is ELSEWHERE else len(body) + 4 * len(address) + OVERHEAD_BYTES
            if used_bytes + item_bytes > room_bytes and (count or not self.empty):
                break
            used_bytes += item_bytes
            count += 1
        self.size_bytes += used_bytes
        return items[:count]

    def move_mark(self, moved: MarkMoved) -> None:
        """A source has been consumed up to here."""
        key = (moved.source, moved.incarnation)
        if key not in self.marks:
            self.grow(moved.source)
        self.marks[key] = moved

    def settle(self, sink: str, sequences: list[int]) -> None:
        """Effects of this sink are over."""
        self.grow(sink, bodies_bytes=9 * len(sequences))
        self.settled.setdefault(sink, []).extend(sequences)

    def add_run(self, run: ColumnRun) -> None:
        """Events of compiled agents. Single ones of one source at one time share a run."""
        last = self.columns[-1] if self.columns else None
        if last is not None and run.actions_count == 0 and _alike(last, run):
            joined = structs.replace(last, count=last.count + run.count, records=b"".join((last.records, run.records)))
            self.columns[-1] = joined
        else:
            self.columns.append(run)
            self.grow(run.kind, run.source)
        self.columns_count += run.count
        self.columns_bytes += len(run.records) + len(run.actions)
        self.size_bytes += len(run.records) + len(run.actions)

    def confirm(self, kind: str, upto: int) -> None:
        """Batched actions of this kind are over, up to there."""
        if kind not in self.confirmed:
            self.grow(kind)
        self.confirmed[kind] = upto

    def fire(self, agent: str, name: str) -> None:
        """A timer went off, after the effects that are owed so far."""
        self.grow(agent, name)
        self.fired.append((agent, name, len(self.owed)))

    def remember_newest(self, agent: str, tag: str, before: Any) -> None:
        """The event just added is a `latest` one of this agent, whose state before it was this."""
        self.newest_events[agent] = (len(self.events) - 1, tag, before)

    def newest(self, agent: str) -> tuple[int, str, Any] | None:
        """Where the last event of this agent stands, its tag and the state before it, if it was a `latest` one."""
        return self.newest_events.get(agent)

    def forget_newest(self, agent: str) -> None:
        """Another event of this agent follows: what came before it must stay."""
        self.newest_events.pop(agent, None)

    def supersede(self, index: int) -> None:
        """Drops a `latest` event that a newer one has made superfluous."""
        self.events[index] = None
        self._superseded += 1

    def close(self, state: ShardState, epoch: int, time_ns: int) -> Commit:
        """The commit, complete but for its digest. Its last run carries the time up to which it goes."""
        if not self._runs or self._runs[-1][1] != time_ns:
            self.begin_run(time_ns, "")
        starts = [start for start, _, _ in self._runs] + [len(self.events)]
        runs = [
            Run(events=self._kept_between(starts[number], starts[number + 1]), time_ns=time_ns, source=source)
            for number, (_, time_ns, source) in enumerate(self._runs)
        ]
        events, owed, answers = self.events, self.owed, self.answers
        if self._superseded:
            place = self._places()
            events = [event for event in events if event is not None]
            owed = [Owed(o.agent, o.sink, o.sequence, o.cause if o.cause < 0 else place[o.cause], o.body) for o in owed]
            answers = [Answer(a.agent, a.command_id, a.command, a.refused, place[a.at], a.time_ns) for a in answers]
        return Commit(
            format=COLUMNS_FORMAT if self.columns or self.confirmed else COMMIT_FORMAT,
            hash_algorithm=HashAlgorithm.BLAKE3_256,
            shard=state.shard,
            position=self.position,
            epoch=epoch,
            previous=state.digest,
            runs=runs,
            events=events,  # type: ignore[arg-type]  # superseded ones are gone
            answers=answers,
            owed=owed,
            marks=list(self.marks.values()),
            settled=[Settled(sink, sequences) for sink, sequences in self.settled.items()],
            fired=self.fired,
            snapshots=self.snapshots,
            incarnation=state.incarnation,
            columns=self.columns,
            confirmed=list(self.confirmed.items()),
            clients=self.clients if any(self.clients) else [],
            digests=self.digests if any(self.digests) else [],
        )

    def _kept_between(self, start: int, end: int) -> int:
        if not self._superseded:
            return end - start
        return sum(1 for event in self.events[start:end] if event is not None)

    def _places(self) -> list[int]:
        """For each index before dropping, the index after it."""
        places: list[int] = []
        kept = 0
        for event in self.events:
            places.append(kept)
            kept += event is not None
        places.append(kept)
        return places
