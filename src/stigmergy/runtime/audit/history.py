"""Looks back: one agent as it was at a position or at a time, from the log, without disturbing who is running.

Only the agent's own events are folded, so that a look needs the memory of one agent. It goes commit by commit, and its
caller may do something else in between. Digests and the chain are checked on the way; signatures are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from stigmergy.core.commit import Commit, Run, digest_commit, genesis_of, open_commit
from stigmergy.core.errors import Bug, ConfigError, FoldMismatch, JournalCorrupt
from stigmergy.core.plans import AgentPlan
from stigmergy.core.replay import apply
from stigmergy.core.snapshot import Header, digest_of_parts, load_agents, load_tables, read_header
from stigmergy.core.state import Limits, ShardState, shard_of
from stigmergy.ports.journal import Journal, StoredCommit
from stigmergy.runtime.recovery import new_state

NOTE_COMMITS_MAX = 1_000
"""So many commits behind a snapshot are searched for the note that makes it count; else the log is folded instead."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Moment(Struct, frozen=True):
    """Up to where to look: to the end, a position of the agent's shard, or a time. At a time, the last commit by then
    counts."""

    position: int | None = None
    time_ns: int | None = None

    def before(self, position: int, time_ns: int) -> bool:
        """Whether a commit at this position and time is later than the moment."""
        return (self.position is not None and position > self.position) or (
            self.time_ns is not None and time_ns > self.time_ns
        )


class Sight(Struct, frozen=True):
    """What was seen: the agent, and the commit up to which it was folded. `known`: it had had an input by then."""

    agent: Any
    known: bool
    shard: int
    position: int
    time_ns: int


class History:
    """Looks back in one journal."""

    def __init__(self, journal: Journal, plans: Mapping[str, AgentPlan], limits: Limits | None = None) -> None:
        self._journal = journal
        self._plans = plans
        self._limits = limits or Limits()

    def look(self, address: str, moment: Moment) -> Sight:
        """The agent at that moment. Reads everything in one go."""
        *_, sight = self.look_slowly(address, moment)
        if sight is None:
            raise Bug("a look at the log ended without what was seen")
        return sight

    def look_slowly(self, address: str, moment: Moment) -> Iterator[Sight | None]:
        """The same in small pieces: yields None after each commit, and at last what was seen."""
        shard = shard_of(address, self._journal.identity.shards)
        state = new_state(self._journal.identity, shard, self._plans, self._limits)
        plan = state.plan_at(address)
        self._check_reached(shard, moment)
        yield from self._begin(state, address, moment)
        for stored in self._journal.read(shard, after=state.position):
            if moment.before(stored.sealed.position, stored.sealed.time_ns):
                break
            commit = _opened(shard, stored)
            apply(state, narrowed(commit, address), stored.sealed.digest)
            yield None
        agent = state.agents.get(address)
        seen = state.new_agent(address, plan) if agent is None else agent
        yield Sight(seen, agent is not None, shard, state.position, state.time_ns)

    def _check_reached(self, shard: int, moment: Moment) -> None:
        head = next((head.position for head in self._journal.heads() if head.shard == shard), 0)
        if moment.position is not None and not 0 <= moment.position <= head:
            raise ConfigError(f"position {moment.position}: the log of shard {shard} goes from 0 to {head}; give one")

    def _begin(self, state: ShardState, address: str, moment: Moment) -> Iterator[None]:
        """Loads the newest snapshot before the moment that counts; none is needed if the log is whole."""
        shard = state.shard
        for position in reversed(self._journal.snapshots(shard)):
            if moment.position is not None and position > moment.position:
                continue
            yield None
            try:
                headers, agents_digest = self._chain(shard, position)
                if moment.before(position, headers[-1].tables.time_ns):
                    continue
                if not self._is_noted(shard, position, agents_digest):
                    continue
                yield from self._load(state, address, headers)
            except (FoldMismatch, JournalCorrupt):
                state.agents.clear()
                continue
            load_tables(state, headers[-1].tables)
            return
        first = self._journal.first_position(shard)
        if first != 1:
            raise ConfigError(
                f"shard {shard}: the log begins at position {first}, what was before has been dropped, and no snapshot "
                "is left of that time; look at a later moment, or at an older copy of the journal"
            )

    def _chain(self, shard: int, position: int) -> tuple[list[Header], bytes]:
        """The header of a snapshot behind those it adds to, base first, and the digest of its parts."""
        parts = [part.body for part in self._journal.read_snapshot(shard, position)]
        if not parts:
            raise JournalCorrupt(f"shard {shard}: the snapshot at {position} is not there")
        header = read_header(parts[0])
        genesis = genesis_of(self._journal.identity.fleet, shard)
        if header.genesis != genesis or header.tables.position != position or not 0 <= header.base < position:
            raise JournalCorrupt(f"shard {shard}: the snapshot at {position} is another one")
        before: list[Header] = []
        if header.base:
            before, base_digest = self._chain(shard, header.base)
            if base_digest != header.base_digest:
                raise JournalCorrupt(f"shard {shard}: the snapshot at {header.base} is not the one it was built on")
        return [*before, header], digest_of_parts(parts)

    def _is_noted(self, shard: int, position: int, digest: bytes) -> bool:
        """Whether the log behind a snapshot says that it is whole."""
        for stored in islice(self._journal.read(shard, after=position), NOTE_COMMITS_MAX):
            for note in _opened(shard, stored).snapshots:
                if note.position == position:
                    return note.digest == digest
        return False

    def _load(self, state: ShardState, address: str, headers: list[Header]) -> Iterator[None]:
        """Takes the agent, and only it, out of a snapshot and those it adds to."""
        for header in headers:
            parts = self._journal.read_snapshot(state.shard, header.tables.position)
            for part in islice(parts, 1, None):
                kept = state.agents.get(address)
                load_agents(state, header, part.body)
                kept = state.agents.get(address, kept)
                state.agents = {} if kept is None else {address: kept}
                yield None


def narrowed(commit: Commit, address: str) -> Commit:
    """The commit with the events of one agent only; what it says of effects, marks and answers is left out."""
    events = iter(commit.events)
    kept: list[tuple[str, bytes]] = []
    runs: list[Run] = []
    for run in commit.runs:
        before = len(kept)
        kept += [event for event in islice(events, run.events) if event[0] == address]
        runs.append(msgspec.structs.replace(run, events=len(kept) - before))
    return Commit(
        format=commit.format,
        hash_algorithm=commit.hash_algorithm,
        shard=commit.shard,
        position=commit.position,
        epoch=commit.epoch,
        previous=commit.previous,
        runs=runs,
        events=kept,
    )


def _opened(shard: int, stored: StoredCommit) -> Commit:
    sealed = stored.sealed
    if digest_commit(sealed.body) != sealed.digest:
        raise JournalCorrupt(
            f"shard {shard}, position {sealed.position}: the bytes do not have the digest they were stored with; "
            "restore from a copy"
        )
    return open_commit(sealed.body)


def read_moment(text: str) -> Moment:
    """A moment as people write it: a position, or a time with its zone such as 2026-11-15T08:00:00Z."""
    if text.isascii() and text.isdigit():
        return Moment(position=int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is neither a position nor a time; write a number, or a time like 2026-11-15T08:00:00Z"
        ) from None
    if moment.tzinfo is None:
        raise ConfigError(f"{text!r} has no time zone; write {text}Z for UTC, or its distance like {text}+02:00")
    return Moment(time_ns=(moment - _EPOCH) // _MICROSECOND * 1000)
