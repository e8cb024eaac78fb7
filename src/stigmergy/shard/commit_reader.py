"""Iterates over what a commit says about agents: messages of interpreted agents, records of compiled ones.

Events are numbered through the whole commit: first those in `events`, then those in `columns`, run by run. To read
records you need what the log declared and enrolled before (`Reading`): a `Directory` that has `learn`ed it, or a
running shard. Tables and classes are not needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from typing import Any, Protocol

import msgspec

from stigmergy.agents.codec import UNDECODABLE, encode, tag_of
from stigmergy.agents.columns import NOT_KEPT, ColumnRun, Layout, Templates, check_run, read_actions, read_columns
from stigmergy.agents.messages import spec_of
from stigmergy.agents.supervision import SHARD_ADDRESS, AgentsEnrolled, ColumnsDeclared
from stigmergy.base.errors import JournalCorrupt
from stigmergy.shard.commit import COLUMN_CAUSES, NO_CAUSE, Commit, Owed
from stigmergy.shard.directory import Directory

NUMBER_BYTES = 4
BATCHED = "batched/"
"""What the sink of an action in a block begins with; the kind of its agent follows."""
_TAGS = (spec_of(ColumnsDeclared).tag, spec_of(AgentsEnrolled).tag)
_said: msgspec.msgpack.Decoder[ColumnsDeclared | AgentsEnrolled] = msgspec.msgpack.Decoder(
    ColumnsDeclared | AgentsEnrolled
)


class Reading(Protocol):
    """What it takes to read column runs. All but `find` raise JournalCorrupt for what is not known."""

    def layout_of(self, run: ColumnRun) -> Layout:
        """The layout of a run's records."""
        ...

    def templates_of(self, digest: bytes) -> Templates:
        """The templates with this digest."""
        ...

    def name(self, kind: str, number: int) -> str:
        """The id of an agent."""
        ...

    def find(self, kind: str, name: str) -> int:
        """The number of an agent; -1 if it has none."""
        ...


class KeptEvent(msgspec.Struct, frozen=True):
    """An event that a commit keeps."""

    index: int
    address: str
    tag: str
    body: bytes
    time_ns: int
    source: str


class Records:
    """The records of one run, taken apart as far as somebody asks. Raises JournalCorrupt for what is not whole."""

    def __init__(self, run: ColumnRun, first: int, reading: Reading) -> None:
        self.run = run
        self.first = first
        """The index of the first of them in the commit."""
        self.layout = reading.layout_of(run)
        check_run(run, self.layout)
        self._reading = reading
        self._addresses: dict[int, str] = {}

    def heads(self) -> Iterator[tuple[int, int]]:
        """The agent and the form of each record."""
        forms_count = len(self.layout.forms)
        for head in struct.iter_unpack(f"<IH{self.layout.record_bytes - 6}x", self.run.records):
            if head[1] >= forms_count:
                raise JournalCorrupt(f"a record of form {head[1]}, and {self.run.kind} has {forms_count}")
            yield head

    def of(self, agent: int) -> Iterator[tuple[int, int]]:
        """The places and forms of the records of one agent; the others are passed over, and not looked at."""
        records, width = self.run.records, self.layout.record_bytes
        wanted = agent.to_bytes(NUMBER_BYTES, "little")
        start = records.find(wanted)
        while start >= 0:
            place, beside = divmod(start, width)
            if beside:
                start = (place + 1) * width  # these bytes are within a record, and may be so again and again
                if records[start : start + NUMBER_BYTES] != wanted:
                    start = records.find(wanted, start)
                continue
            form = int.from_bytes(records[start + NUMBER_BYTES : start + NUMBER_BYTES + 2], "little")
            if form >= len(self.layout.forms):
                raise JournalCorrupt(f"a record of form {form}, and {self.run.kind} has {len(self.layout.forms)}")
            yield place, form
            start = records.find(wanted, start + width)

    def address(self, agent: int) -> str:
        """Whose record it is."""
        address = self._addresses.get(agent)
        if address is None:
            address = self._addresses[agent] = f"{self.run.kind}/{self._reading.name(self.run.kind, agent)}"
        return address

    def body(self, place: int, form: int) -> bytes:
        """A record as the message that it is."""
        made = self.layout.forms[form]
        fields: dict[str, Any] = {"type": made.tag}
        fields.update(read_columns(made.columns, self.run.records, place * self.layout.record_bytes))
        return encode(fields)

    def kept(self, place: int, agent: int, form: int) -> KeptEvent:
        """A record as an event."""
        run = self.run
        tag = self.layout.forms[form].tag
        return KeptEvent(self.first + place, self.address(agent), tag, self.body(place, form), run.time_ns, run.source)


def said_in(commit: Commit) -> Iterator[ColumnsDeclared | AgentsEnrolled]:
    """What a commit declares and enrols. Raises JournalCorrupt."""
    for address, body in commit.events:
        if address == SHARD_ADDRESS and tag_of(body) in _TAGS:
            try:
                yield _said.decode(body)
            except UNDECODABLE as error:
                raise JournalCorrupt(
                    f"shard {commit.shard}, position {commit.position}: {tag_of(body)} does not decode ({error})"
                ) from None


def learn(directory: Directory, commit: Commit) -> None:
    """Takes in what a commit declares and enrols. Raises JournalCorrupt."""
    for said in said_in(commit):
        if isinstance(said, ColumnsDeclared):
            directory.declare(said.layout, said.templates)
        else:
            directory.enroll(said.kind, said.first, said.names)


def runs_of(commit: Commit, reading: Reading) -> Iterator[Records]:
    """The column runs of a commit in their order."""
    first = len(commit.events)
    for run in commit.columns:
        yield Records(run, first, reading)
        first += run.count


def walk(commit: Commit, reading: Reading) -> Iterator[KeptEvent]:
    """All events of a commit in their order. Raises JournalCorrupt for records that cannot be read."""
    yield from walk_messages(commit)
    for records in runs_of(commit, reading):
        for place, (agent, form) in enumerate(records.heads()):
            yield records.kept(place, agent, form)


def walk_messages(commit: Commit) -> Iterator[KeptEvent]:
    """The events that are no records."""
    events = enumerate(commit.events)
    for run in commit.runs:
        for index, (address, body) in islice(events, run.events):
            yield KeptEvent(index, address, tag_of(body), body, run.time_ns, run.source)


def index_of_cause(commit: Commit, cause: int) -> int:
    """The index of the event behind an effect, or NO_CAUSE."""
    return cause if cause >= NO_CAUSE else len(commit.events) + COLUMN_CAUSES - cause


def effects_of(commit: Commit, reading: Reading) -> dict[int, list[Owed]]:
    """The effects of a commit by the index of the event behind them, those in blocks included: their sink is BATCHED
    and the kind. Those whose event is not kept are under NO_CAUSE."""
    found: dict[int, list[Owed]] = {}
    for owed in commit.owed:
        found.setdefault(index_of_cause(commit, owed.cause), []).append(owed)
    first = len(commit.events)
    for run in commit.columns:
        for owed in batched_of(run, reading):
            index = owed.cause if owed.cause == NO_CAUSE else first + owed.cause
            found.setdefault(index, []).append(msgspec.structs.replace(owed, cause=index))
        first += run.count
    return found


def batched_of(run: ColumnRun, reading: Reading) -> Iterator[Owed]:
    """The actions in the block of a run; their causes count its records, or are NO_CAUSE."""
    if not run.actions_count:
        return
    templates = reading.templates_of(run.templates)
    if len(run.actions) != run.actions_count * templates.action_bytes:
        raise JournalCorrupt(f"{len(run.actions)} bytes for {run.actions_count} actions of {templates.action_bytes}")

    def name_of(number: int) -> str:
        return reading.name(run.kind, number)

    for place, made in enumerate(read_actions(run.actions, templates, name_of)):
        if made.cause >= run.count and made.cause != NOT_KEPT:
            raise JournalCorrupt(f"an action of record {made.cause}, and its run has {run.count}")
        cause = NO_CAUSE if made.cause == NOT_KEPT else made.cause
        address = f"{run.kind}/{name_of(made.agent)}"
        yield Owed(address, f"{BATCHED}{run.kind}", run.first + place, cause, made.body)
