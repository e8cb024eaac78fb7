"""The draft: the commit that is still open. Steps add to it; sealing turns it into bytes. Never seen outside its shard.

Several steps may go into one draft: that is how events kept `within` a second share a write, and how, of events kept as
`latest`, only the newest is written.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from stigmergy.core.commit import (
    COMMIT_BYTES_MAX,
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
from stigmergy.core.inputs import Verdict
from stigmergy.core.messages import Message
from stigmergy.core.outbox import Pending
from stigmergy.core.timers import Timer

NEVER_NS = 2**62
DRAFT_BYTES_MAX = COMMIT_BYTES_MAX // 2
"""Past this a step leaves the rest of its inputs for the next commit, so that a commit stays under its limit."""


class Draft:
    """What the next commit of a shard will say, and what the host does once it is durable."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.events: list[tuple[str, Raw] | None] = []
        self.answers: list[Answer] = []
        self.owed: list[Owed] = []
        self.marks: dict[tuple[str, int], MarkMoved] = {}
        self.settled: dict[str, list[int]] = {}
        self.fired: list[tuple[str, str, int]] = []
        self.snapshots: list[SnapshotNote] = []
        self.pending: list[Pending] = []
        self.timers: list[tuple[Timer, int]] = []
        self.verdicts: list[tuple[str, Verdict]] = []
        self.touched: dict[str, Any] = {}
        """Agents as they were before this draft (None: not there); queries see these until it is durable."""
        self.stopped: list[str] = []
        self.fresh: list[tuple[str, type[Message] | None]] = []
        """Agents with staleness rules that are new (None) or got an event that a rule waits for."""
        self.size_bytes = 0
        self.wait_ns = NEVER_NS
        self._runs: list[tuple[int, int, str]] = []
        self._superseded = 0
        self._newest: dict[str, tuple[int, Any]] = {}

    @property
    def empty(self) -> bool:
        """Whether sealing would write nothing."""
        return not (
            self.events or self.answers or self.owed or self.marks or self.settled or self.fired or self.snapshots
        )

    def begin_run(self, time_ns: int, source: str) -> None:
        """From here on events are taken at this time from this source."""
        start = len(self.events)
        if self._runs and self._runs[-1][0] == start:
            self._runs[-1] = (start, time_ns, source)
        elif not self._runs or self._runs[-1][1:] != (time_ns, source):
            self._runs.append((start, time_ns, source))

    def hurry(self, wait_ns: int) -> None:
        """Something was added that may wait this long for the disk."""
        self.wait_ns = min(self.wait_ns, wait_ns)

    def note_plain(self, agent: str, wait_ns: int) -> None:
        """A plain event of this agent was added."""
        self.wait_ns = min(self.wait_ns, wait_ns)
        if self._newest:
            self._newest.pop(agent, None)

    def remember_newest(self, agent: str, before: Any) -> None:
        """The event just added is a `latest` one of this agent, whose state before it was this."""
        self._newest[agent] = (len(self.events) - 1, before)

    def newest(self, agent: str) -> tuple[int, Any] | None:
        """Where the last event of this agent stands and the state before it, if it was a `latest` one."""
        return self._newest.get(agent)

    def forget_newest(self, agent: str) -> None:
        """Another event of this agent follows: what came before it must stay."""
        self._newest.pop(agent, None)

    def supersede(self, index: int) -> None:
        """Drops a `latest` event that a newer one has made superfluous."""
        self.events[index] = None
        self._superseded += 1

    def close(self, shard: int, epoch: int, previous: bytes, time_ns: int) -> Commit:
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
            format=COMMIT_FORMAT,
            hash_algorithm=HashAlgorithm.BLAKE3_256,
            shard=shard,
            position=self.position,
            epoch=epoch,
            previous=previous,
            runs=runs,
            events=events,  # type: ignore[arg-type]  # superseded ones are gone
            answers=answers,
            owed=owed,
            marks=list(self.marks.values()),
            settled=[Settled(sink, sequences) for sink, sequences in self.settled.items()],
            fired=self.fired,
            snapshots=self.snapshots,
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
