"""History: one agent, or a whole shard, as it was at a position or at a time. A running node goes on beside it.

To look at one agent only its own events are folded, so a query needs the memory of one agent; for a compiled one, of
the table of its kind in its shard. To look at a shard needs the memory of a shard. It goes commit by commit, and its
caller may do other work in between. Digests and the chain are checked on the way; signatures are not.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct, structs

from stigmergy.agents.codec import tag_of
from stigmergy.agents.columns import ColumnRun, Say
from stigmergy.agents.messages import spec_of
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.supervision import SHARD_ADDRESS, AgentsEnrolled, ColumnsDeclared
from stigmergy.audit.directories import is_noted, read_chain
from stigmergy.audit.listing import readable_time
from stigmergy.base.errors import Bug, ConfigError, FoldMismatch, JournalCorrupt, NotOwned
from stigmergy.journal.port import Journal, StoredCommit, homes_of
from stigmergy.journal.recovery import new_state
from stigmergy.shard.commit import Commit, EventRun, digest_commit, open_commit
from stigmergy.shard.commit_reader import said_in
from stigmergy.shard.homes import Homes
from stigmergy.shard.replay import apply
from stigmergy.shard.snapshot import SnapshotHeader, kind_of_part, load_agents, load_tables
from stigmergy.shard.state import Limits, ShardState

DECLARED = spec_of(ColumnsDeclared).tag
NUMBERING = (DECLARED, spec_of(AgentsEnrolled).tag)
_enrolled = msgspec.msgpack.Decoder(AgentsEnrolled)
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


class PastState(Struct, frozen=True):
    """What was seen: the agent, and the commit up to which it was folded. `known`: it had had an input by then.
    `stopped`: why its supervision had stopped it."""

    agent: Any
    known: bool
    shard: int
    position: int
    time_ns: int
    stopped: str | None = None


def check_kept(journal: Journal, address: str, shard: int) -> None:
    """Refuses to look for an agent in a journal that keeps other shards."""
    kept = journal.identity.owned
    if shard not in kept:
        raise NotOwned(
            f"{address} lives in shard {shard}, and this journal keeps {kept[0]} to {kept[-1]} only; "
            "name the folder that has all parts"
        )


class History:
    """Looks back in one journal."""

    def __init__(
        self,
        journal: Journal,
        plans: Mapping[str, AgentPlan],
        limits: Limits | None = None,
        say: Say = lambda _: None,
        homes: Homes | None = None,
    ) -> None:
        """`homes` are those of the fleet, if it has a function for them. `say` is told what takes
        long: a class may have to be compiled."""
        self._journal = journal
        self._say = say
        self._plans = plans
        self._limits = limits or Limits()
        self._homes = homes_of(journal.identity, homes)

    def look(self, address: str, moment: Moment) -> PastState:
        """The agent at that moment. Reads everything in one go."""
        *_, sight = self.look_slowly(address, moment)
        if sight is None:
            raise Bug("a look at the log ended without what was seen")
        return sight

    def look_slowly(self, address: str, moment: Moment) -> Iterator[PastState | None]:
        """The same in small pieces: yields None after each commit, and at last what was seen."""
        shard = self._homes.of(address)
        check_kept(self._journal, address, shard)
        self._check_reached(shard, moment)
        state = yield from self._begin(shard, address, moment)
        plan = state.plan_at(address)
        for stored in self._journal.read(shard, after=state.position):
            if moment.before(stored.sealed.position, stored.sealed.time_ns):
                break
            commit = _opened(shard, stored)
            apply(state, narrowed(commit, address, state), stored.sealed.digest)
            yield None
        agent = agent_in(state, address)
        seen = state.new_agent(address, plan) if agent is None else agent
        stopped = state.stopped.get(address)
        yield PastState(seen, agent is not None, shard, state.position, state.time_ns, stopped)

    def fold_slowly(self, shard: int, moment: Moment, earlier: ShardState | None = None) -> Iterator[ShardState | None]:
        """A whole shard at that moment, in small pieces: yields None after each commit, and at last the state. One that
        was folded to an earlier moment is folded on, and is used up."""
        self._check_reached(shard, moment)
        state = earlier
        if state is None or moment.before(state.position, state.time_ns):
            state = yield from self._begin(shard, "", moment)
        for stored in self._journal.read(shard, after=state.position):
            if moment.before(stored.sealed.position, stored.sealed.time_ns):
                break
            apply(state, _opened(shard, stored), stored.sealed.digest)
            yield None
        yield state

    def _new_state(self, shard: int, address: str) -> ShardState:
        """A shard in which only the kind of this agent may be compiled: nobody else's table is needed."""
        if not address:
            for plan in self._plans.values():
                if plan.engine is not None:
                    plan.engine.prepare(self._say)
            return new_state(self._journal.identity, shard, self._plans, self._limits)
        kind = address.partition("/")[0]
        plans = {
            name: plan if name == kind or plan.engine is None else structs.replace(plan, engine=None)
            for name, plan in self._plans.items()
        }
        engine = plans[kind].engine if kind in plans else None
        if engine is not None:
            engine.prepare(self._say)
        state = new_state(self._journal.identity, shard, plans, self._limits)
        state.plan_at(address)
        return state

    def _check_reached(self, shard: int, moment: Moment) -> None:
        head = next((head.position for head in self._journal.heads() if head.shard == shard), 0)
        if moment.position is not None and not 0 <= moment.position <= head:
            raise ConfigError(f"position {moment.position}: the log of shard {shard} goes from 0 to {head}; give one")

    def _begin(self, shard: int, address: str, moment: Moment) -> Generator[None, None, ShardState]:
        """Loads the newest snapshot before the moment that counts, of one agent or of all; none is needed if the log is
        whole."""
        for position in reversed(self._journal.snapshots(shard)):
            if moment.position is not None and position > moment.position:
                continue
            yield None
            state = self._new_state(shard, address)
            try:
                headers, agents_digest = read_chain(self._journal, shard, position)
                if moment.before(position, headers[-1].tables.time_ns):
                    continue
                if not is_noted(self._journal, shard, position, agents_digest):
                    continue
                yield from self._load(state, address, headers)
                load_tables(state, headers[-1].tables)
            except (FoldMismatch, JournalCorrupt):
                continue
            return state
        first = self._journal.first_position(shard)
        if first != 1:
            raise ConfigError(
                f"shard {shard}: the log begins at position {first}, what was before has been dropped, and no snapshot "
                "is left of that time; look at a later moment, or at an older copy of the journal"
            )
        if address and (begin_ns := self.late_begin_ns(shard, moment)) is not None:
            raise ConfigError(
                f"shard {shard}: this log begins at {readable_time(begin_ns)}, later than you ask for; "
                "an agent that was here before is in an older journal: look there, or at a later moment"
            )
        return self._new_state(shard, address)

    def late_begin_ns(self, shard: int, moment: Moment) -> int | None:
        """When the log of a shard begins, if that is later than the moment."""
        if moment.time_ns is None or self._journal.first_position(shard) != 1:
            return None
        begin = next(iter(self._journal.read(shard, after=0)), None)
        return begin.sealed.time_ns if begin is not None and begin.sealed.time_ns > moment.time_ns else None

    def _load(self, state: ShardState, address: str, headers: list[SnapshotHeader]) -> Iterator[None]:
        """Takes the agent, and only it, out of a snapshot and those it adds to; of a compiled one all of its kind."""
        for header in headers:
            parts = self._journal.read_snapshot(state.shard, header.tables.position)
            for part in islice(parts, 1, None):
                if not address:
                    load_agents(state, header, part.body)
                    yield None
                    continue
                if kind_of_part(part.body) not in ("", address.partition("/")[0]):
                    continue
                kept = state.agents.get(address)
                load_agents(state, header, part.body)
                kept = state.agents.get(address, kept)
                state.agents = {} if kept is None else {address: kept}
                yield None


def narrowed(commit: Commit, address: str, state: ShardState) -> Commit:
    """The commit with the events of one agent only; what it says of effects, marks and answers is left out.

    `state` is what it will be applied to. Of a kind that has numbers, what gives them is left in.
    """
    kind, _, name = address.partition("/")
    events = iter(commit.events)
    kept: list[tuple[str, bytes]] = []
    runs: list[EventRun] = []
    whole = f"{kind}/" if kind in state.tables else address
    for run in commit.runs:
        before = len(kept)
        kept += [event for event in islice(events, run.events) if _concerns(event, address, whole, kind)]
        runs.append(structs.replace(run, events=len(kept) - before))
    mine = [run for run in commit.columns if run.kind == kind]
    return Commit(
        format=commit.format,
        hash_algorithm=commit.hash_algorithm,
        shard=commit.shard,
        position=commit.position,
        epoch=commit.epoch,
        previous=commit.previous,
        runs=runs,
        events=kept,
        columns=list(_own_records(mine, _number_of(commit, kind, name, state))) if mine else [],
    )


def _concerns(event: tuple[str, bytes], address: str, whole: str, kind: str) -> bool:
    """Whether an event is of this agent, or gives numbers to agents of a compiled kind: by saying so, or by its being
    the first of another agent, from a time when the kind was not compiled."""
    if event[0] == SHARD_ADDRESS:
        return tag_of(event[1]) in NUMBERING and (tag_of(event[1]) == DECLARED or _kind_said(event[1]) == kind)
    return event[0] == address or (whole != address and event[0].startswith(whole))


def _kind_said(body: bytes) -> str:
    return _enrolled.decode(body).kind


def _number_of(commit: Commit, kind: str, name: str, state: ShardState) -> int:
    """The number of an agent once the events of a commit are folded; -1 if it has none even then."""
    table, names = state.tables.get(kind), state.directory.names.get(kind, [])
    if table is not None and (number := table.find(name)) >= 0:
        return number
    if name in names:
        return names.index(name)
    for said in said_in(commit):
        if isinstance(said, AgentsEnrolled) and said.kind == kind and name in said.names:
            return said.first + said.names.index(name)
    return -1


def _own_records(runs: Sequence[ColumnRun], number: int) -> Iterator[ColumnRun]:
    """The runs with the records of one agent only, and without actions."""
    for run in runs:
        width = len(run.records) // max(run.count, 1)
        heads = struct.iter_unpack(f"<I{width - 4}x", run.records) if run.count and number >= 0 else ()
        places = [place for place, (agent,) in enumerate(heads) if agent == number]
        if places:
            records = b"".join(run.records[place * width : (place + 1) * width] for place in places)
            yield structs.replace(
                run, count=len(places), records=records, templates=b"", first=0, actions_count=0, actions=b""
            )


def agent_in(state: ShardState, address: str) -> Any:
    """The agent as it was folded; None if it was not there."""
    table, number = state.table_at(address)
    if table is None:
        return state.agents.get(address)
    return None if number < 0 else table.agent(number, ahead=True)


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


def read_at(text: str) -> Moment:
    """A moment to look at. Times are shown in microseconds: at the time of an event, the event has happened."""
    moment = read_moment(text)
    return moment if moment.time_ns is None else Moment(time_ns=moment.time_ns + 999)
