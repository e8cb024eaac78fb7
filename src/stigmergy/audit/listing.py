"""Lists the events of a log without the users' classes. Reads only; checks only that it decodes.

A listing is made in small pieces: a commit with nothing to show yields None, so that a node beside it can go on.
"""

from __future__ import annotations

import base64
import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from stigmergy.agents.codec import UNDECODABLE, tag_of
from stigmergy.agents.display import fields_in_words
from stigmergy.agents.effects import PUBLISH, REMOTE_SINKS, TIMERS, ProposeEntry
from stigmergy.agents.messages import spec_of
from stigmergy.audit.directories import Directories, LiveReading
from stigmergy.base.errors import ConfigError, JournalCorrupt
from stigmergy.journal.port import Journal
from stigmergy.shard.commit import NO_CAUSE, Answer, Commit, Owed, open_commit
from stigmergy.shard.commit_reader import KeptEvent, Reading, Records, effects_of, index_of_cause, runs_of
from stigmergy.shard.directory import Directory
from stigmergy.shard.forwarding import FORWARD, read_forwarded
from stigmergy.shard.outbox import read_told
from stigmergy.shard.timers import read_timer

OURS = "stigmergy."
"""The names of the framework's own messages begin so."""

ENTRIES_MAX = 100_000
"""A listing is at most so long; ask for a range of positions to see more."""
_TAIL_GROWTH = 4
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PROPOSAL = spec_of(ProposeEntry).tag


class Owing(Struct, frozen=True):
    """An effect that an event caused. `to` is the target of a tell, or the topic of a publication."""

    sink: str
    sequence: int
    type: str
    fields: Any
    to: str = ""


class Cause(Struct, frozen=True):
    """Where an event came from, as far as the log tells: its source, and the command answered just before it."""

    source: str
    command: str = ""
    command_id: str = ""


class LogEntry(Struct, frozen=True):
    """One line of a listing: an event that was kept (`event`), a command that was answered (`answer`), or an effect of
    an event that was not kept (`effect`). An answer with a `refused` reason kept no event."""

    kind: str
    shard: int
    position: int
    index: int
    time: str
    time_ns: int
    agent: str
    type: str
    fields: Any
    cause: Cause
    effects: list[Owing] = []
    refused: str | None = None
    policy: str | UnsetType = UNSET
    """Of an answer: the policy that was asked, with its version and digest; missing where nobody was asked."""


class EntryFilter(Struct, frozen=True):
    """Which entries to list. Without `first` the last `limit` of them, with it the first from there."""

    agent: str | None = None
    first: int | None = None
    last: int | None = None
    type: str | None = None
    shard: int | None = None
    limit: int = 100

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= ENTRIES_MAX:
            raise ConfigError(f"limit {self.limit}: give 1 to {ENTRIES_MAX}")
        if self.first is not None and self.first < 1:
            raise ConfigError(f"from {self.first}: positions count from 1")
        if self.first is not None and self.last is not None and self.last < self.first:
            raise ConfigError(f"from {self.first} to {self.last}: the end comes before the beginning; swap them")


def list_log(journal: Journal, wanted: EntryFilter, live: LiveReading | None = None) -> Iterator[LogEntry | None]:
    """The wanted entries in the order in which they were written, with None where nothing is shown yet. `live` are the
    shards of the node that runs this journal."""
    shards = _shards(journal, wanted)
    directories = Directories(journal, live)
    if wanted.first is None:
        yield from _tail(journal, directories, shards, wanted)
        return
    count = 0
    for entry in _merged(journal, directories, dict.fromkeys(shards, wanted.first), wanted):
        yield entry
        count += entry is not None
        if count == wanted.limit:
            return


def readable_time(time_ns: int) -> str:
    """A time of the log for people: UTC, to the microsecond."""
    moment = _EPOCH + timedelta(microseconds=time_ns // 1000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def readable_fields(body: bytes) -> Any:
    """The fields of a message without its tag; bytes as base64, whatever does not decode as such. A proposed entry is
    shown with its own fields and its tag."""
    tag = tag_of(body)
    shared = fields_in_words(tag, body)
    if shared is not None:
        return shared
    try:
        decoded = msgspec.msgpack.decode(body)
        if tag == _PROPOSAL:
            decoded["entry"] = msgspec.msgpack.decode(decoded["entry"])
        value = msgspec.to_builtins(decoded, str_keys=True)
    except (msgspec.DecodeError, TypeError, ValueError, RecursionError):
        return {"undecodable": base64.b64encode(body).decode()}
    if isinstance(value, dict):
        value.pop("type", None)
    return value


def _shards(journal: Journal, wanted: EntryFilter) -> list[int]:
    kept = journal.identity.owned
    if wanted.shard is not None and wanted.shard not in kept:
        raise ConfigError(f"shard {wanted.shard}: this journal has shards {kept[0]} to {kept[-1]}")
    if wanted.shard is not None:
        return [wanted.shard]
    return list(kept if not wanted.agent else journal.identity.shards_with(wanted.agent))


def _tail(
    journal: Journal, directories: Directories, shards: list[int], wanted: EntryFilter
) -> Iterator[LogEntry | None]:
    """Looks at longer and longer ends of the log until enough was found."""
    ends = {head.shard: head.position for head in journal.heads() if head.shard in shards}
    if wanted.last is not None:
        ends = {shard: min(end, wanted.last) for shard, end in ends.items()}
    # From one commit on, for it may hold hundreds of entries, and a node must not read ten of them to show ten lines.
    window = 1
    while True:
        starts = {shard: max(end - window + 1, journal.first_position(shard)) for shard, end in ends.items()}
        found: deque[LogEntry] = deque(maxlen=wanted.limit)
        for entry in _merged(journal, directories, starts, wanted, newest=wanted.limit):
            if entry is not None:
                found.append(entry)
            yield None
        if len(found) == wanted.limit or all(start <= journal.first_position(s) for s, start in starts.items()):
            yield from found
            return
        window *= _TAIL_GROWTH


def _merged(
    journal: Journal,
    directories: Directories,
    starts: dict[int, int],
    wanted: EntryFilter,
    *,
    newest: int | None = None,
) -> Iterator[LogEntry | None]:
    """The commits of all shards in the order of their time."""
    lanes = [_commits(journal, shard, start, wanted.last) for shard, start in sorted(starts.items())]
    for commit in heapq.merge(*lanes, key=lambda commit: (commit.runs[-1].time_ns, commit.shard)):
        reading = directories.of(commit)
        found = False
        for entry in list_commit(commit, reading, agent=wanted.agent, type=wanted.type, newest=newest):
            if _is_wanted(entry, wanted):
                found = True
                yield entry
        if not found:
            yield None


def _commits(journal: Journal, shard: int, start: int, last: int | None) -> Iterator[Commit]:
    for stored in journal.read(shard, after=start - 1):
        if last is not None and stored.sealed.position > last:
            return
        yield open_commit(stored.sealed.body)


def _is_wanted(entry: LogEntry, wanted: EntryFilter) -> bool:
    if wanted.agent and entry.agent != wanted.agent:
        return False
    types = [entry.type, *(effect.type for effect in entry.effects)]
    return wanted.type is None or any(_is_of(tag, wanted.type) for tag in types)


def _is_of(tag: str, type: str) -> bool:
    """Whether a tag is of a type; `stigmergy.RunBegan` is that of `stigmergy.RunBegan.Deliver@1` too."""
    name = tag.partition("@")[0]
    return type in (tag, name) or (type.startswith(OURS) and name.startswith(f"{type}."))


def list_commit(
    commit: Commit,
    reading: Reading | None = None,
    *,
    agent: str | None = None,
    type: str | None = None,
    newest: int | None = None,
) -> Iterator[LogEntry]:
    """Everything that one commit says about agents, in the order of its events.

    `reading` is needed where it keeps events of compiled agents. Of these, only what is of this agent, has or causes
    something of this type, and is among so many last ones is taken apart; of all else the caller finds more than that.
    Raises JournalCorrupt for what cannot be read.
    """
    reading = Directory() if reading is None else reading
    effects = effects_of(commit, reading)
    answers = deque(one for one in commit.answers if one.at >= 0)
    to_compiled = deque(one for one in commit.answers if one.at < 0)
    answered: Answer | None = None
    index = 0
    for run in commit.runs:
        for _ in range(run.events):
            while answers and answers[0].at <= index:
                answered = answers.popleft()
                yield _answer_entry(commit, answered, index, run.source)
            address, body = commit.events[index]
            kept = KeptEvent(index, address, tag_of(body), body, run.time_ns, run.source)
            yield _event_entry(commit, kept, _cause(kept, answered), effects.get(index, ()))
            index += 1
        answered = None
    for answer in answers:
        yield _answer_entry(commit, answer, index, commit.runs[-1].source)
    chosen = _chosen_records(commit, reading, agent, type, effects)
    of_run: Records | None = None
    for records, place, number, form in chosen if newest is None else deque(chosen, newest):
        kept = records.kept(place, number, form)
        if records is not of_run:
            of_run, answered = records, None
        while to_compiled and index_of_cause(commit, to_compiled[0].at) <= kept.index:
            answered = to_compiled.popleft()
            yield _answer_entry(commit, answered, index_of_cause(commit, answered.at), kept.source)
        yield _event_entry(commit, kept, _cause(kept, answered), effects.get(kept.index, ()))
    for answer in to_compiled:
        yield _answer_entry(commit, answer, index_of_cause(commit, answer.at), commit.runs[-1].source)
    loose = [cause for cause in sorted(effects) if cause == NO_CAUSE or cause >= commit.events_count]
    for owed in [one for cause in loose for one in effects[cause]]:
        yield _effect_entry(commit, owed, commit.events_count)


def _cause(kept: KeptEvent, answered: Answer | None) -> Cause:
    """What an event came from: its source, and the command of its agent that was answered before it."""
    if answered is None or answered.refused or answered.agent != kept.address:
        return Cause(kept.source)
    return Cause(kept.source, tag_of(answered.command), answered.command_id)


def _chosen_records(
    commit: Commit, reading: Reading, agent: str | None, type: str | None, effects: Mapping[int, Sequence[Owed]]
) -> Iterator[tuple[Records, int, int, int]]:
    """The records that may be wanted: their run, place, agent and form."""
    kind, _, name = (agent or "").partition("/")
    for records in runs_of(commit, reading):
        if agent is not None and records.run.kind != kind:
            continue
        forms = [type is None or _is_of(form.tag, type) for form in records.layout.forms]
        for place, number, form in _records_of(records, reading, name if agent is not None else None):
            if forms[form] or records.first + place in effects:
                yield records, place, number, form


def _records_of(records: Records, reading: Reading, name: str | None) -> Iterator[tuple[int, int, int]]:
    """All records of a run, or those of one agent: place, agent and form."""
    if name is None:
        for place, (number, form) in enumerate(records.heads()):
            yield place, number, form
        return
    number = reading.find(records.run.kind, name)
    if number >= 0:
        for place, form in records.of(number):
            yield place, number, form


def _event_entry(commit: Commit, kept: KeptEvent, cause: Cause, effects: Iterable[Owed]) -> LogEntry:
    return LogEntry(
        kind="event",
        shard=commit.shard,
        position=commit.position,
        index=kept.index,
        time=readable_time(kept.time_ns),
        time_ns=kept.time_ns,
        agent=kept.address,
        type=kept.tag,
        fields=readable_fields(kept.body),
        cause=cause,
        effects=[owing(owed) for owed in effects],
    )


def _answer_entry(commit: Commit, answer: Answer, index: int, source: str) -> LogEntry:
    return LogEntry(
        kind="answer",
        shard=commit.shard,
        position=commit.position,
        index=index,
        time=readable_time(answer.time_ns),
        time_ns=answer.time_ns,
        agent=answer.agent,
        type=tag_of(answer.command),
        fields=readable_fields(answer.command),
        cause=Cause(source, command_id=answer.command_id),
        refused=answer.refused,
        policy=_policy_of(commit, answer),
    )


def _policy_of(commit: Commit, answer: Answer) -> str | UnsetType:
    for ruled in commit.ruled:
        if ruled.place >= 0 and commit.answers[ruled.place] is answer:
            return f"{ruled.policy} {ruled.version} {ruled.digest.hex()}" if ruled.version else "none"
    return UNSET


def _effect_entry(commit: Commit, owed: Owed, index: int) -> LogEntry:
    run = commit.runs[-1]
    effect = owing(owed)
    return LogEntry(
        kind="effect",
        shard=commit.shard,
        position=commit.position,
        index=index,
        time=readable_time(run.time_ns),
        time_ns=run.time_ns,
        agent=owed.agent,
        type=effect.type,
        fields=effect.fields,
        cause=Cause(run.source),
        effects=[effect],
    )


def owing(owed: Owed) -> Owing:
    """An effect as a listing shows it."""
    if owed.sink.startswith(("shard/", REMOTE_SINKS)) or owed.sink == PUBLISH:
        try:
            told = read_told(owed.body)
        except UNDECODABLE:
            return Owing(owed.sink, owed.sequence, "", readable_fields(owed.body))
        return Owing(owed.sink, owed.sequence, tag_of(told.message), readable_fields(told.message), told.to)
    if owed.sink == FORWARD:
        command = read_forwarded(owed).command
        return Owing(owed.sink, owed.sequence, tag_of(command), readable_fields(command), owed.agent)
    if owed.sink == TIMERS:
        return Owing(owed.sink, owed.sequence, "timer", _timer_fields(owed.body))
    return Owing(owed.sink, owed.sequence, tag_of(owed.body), readable_fields(owed.body))


def _timer_fields(body: bytes) -> Any:
    """A timer by its name, with the moment at which it is due, or that it was cancelled."""
    try:
        timer = read_timer(body)
        if timer.due_ns is None:
            return {"name": timer.name, "cancelled": True}
        due = readable_time(timer.due_ns)
    except (JournalCorrupt, OverflowError):  # what is no timer, or due before or after all calendars
        return readable_fields(body)
    return {"name": timer.name, "due": due, **({"follows_wall": True} if timer.follows_wall else {})}
