"""Plays back a log that nobody writes to, a journal or a flight log: answers the questions of the control protocol.

It answers as the node would have at the end of the log, or at the moment that a question names. Nothing can be sent,
told or mended. The states at the end are in memory; those of a moment are folded when somebody asks.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from msgspec import UNSET

from stigmergy.agents.display import CHANGED, changed_by
from stigmergy.audit.directories import Directories
from stigmergy.audit.history import History, Moment, PastState, agent_in, read_at
from stigmergy.audit.listing import EntryFilter, list_log, readable_fields
from stigmergy.base.errors import ConfigError, NotRunning, ReadOnlyLog
from stigmergy.control import protocol, replies
from stigmergy.control.agent_listing import FoldedAgents, list_agents
from stigmergy.control.description import (
    described_entry,
    described_kind,
    described_letter,
    described_sight,
    span_of,
)
from stigmergy.control.event_feed import EVENTS_COUNT_MAX, WITHIN_S_MAX, place_in
from stigmergy.control.location import NOBODY
from stigmergy.control.positions import PastMap
from stigmergy.control.protocol import Answer, refusal, single, streamed
from stigmergy.control.replies import filled
from stigmergy.journal.port import Journal, homes_of, last_before
from stigmergy.node.declaration import Declaration
from stigmergy.node.feed import (
    WHOLE,
    FeedPosition,
    log_name,
    read_key,
    read_positions,
    shard_key,
    write_positions,
)
from stigmergy.shard.commit import open_commit
from stigmergy.shard.commit_reader import walk, walk_messages
from stigmergy.shard.homes import Homes, plan_at
from stigmergy.shard.state import ShardState

GIVE_WAY_COMMITS = 64
READ_ONLY = "a log that is played back takes no commands, and nothing in it can be changed; send this to a running node"


class LogPlayback:
    """Answers requests about one log. `open` it first."""

    def __init__(
        self, journal: Journal, fleet: Declaration, name: str, version: str, homes: Homes | None = None
    ) -> None:
        """`name` is what the log is called, for people; `homes` are other ones than the fleet's. Raises ConfigError for
        the log of another fleet."""
        if journal.identity.fleet != fleet.name:
            raise ConfigError(f"{name} is a log of the fleet {journal.identity.fleet!r}, not of {fleet.name!r}")
        self._journal = journal
        self._fleet = fleet
        self._name = name
        self._version = version
        self._log = log_name(journal.identity.incarnation)
        self._homes = homes_of(journal.identity, homes or fleet.homes)
        self._history = History(journal, fleet.plans, fleet.settings.limits, homes=self._homes)
        self._past = PastMap(journal, fleet, fleet.settings, self._homes)
        self._ends: dict[int, ShardState] = {}
        self._writers: dict[bytes, str] | None = None
        """The agents that write to shared fields, by the ids under which they do."""
        self._looking = asyncio.Lock()

    async def open(self) -> None:
        """Folds the log to its end. Raises ConfigError for one that cannot be folded: its beginning is missing."""
        for head in self._journal.heads():
            for number, state in enumerate(self._history.fold_slowly(head.shard, Moment()), start=1):
                if state is not None:
                    self._ends[head.shard] = state
                elif number % GIVE_WAY_COMMITS == 0:
                    await asyncio.sleep(0)
        if not self._ends:
            raise ConfigError(f"{self._name} is empty; there is nothing to play back")

    async def answer(self, request: protocol.AnyRequest) -> Iterator[Answer]:
        """The answers to this request."""
        try:
            match request:
                case protocol.LogRequest():
                    return streamed(list_log(self._journal, filled(EntryFilter, request)))
                case protocol.LettersRequest():
                    letters = chain.from_iterable(state.letters.all() for state in self._ends.values())
                    return streamed(map(described_letter, letters))
                case protocol.SharedRequest() | protocol.ClaimsRequest() | protocol.QuarantineRequest():
                    return streamed(())
                case protocol.MembersRequest() | protocol.CommandsRequest():
                    return streamed(())
                case _:
                    return iter((single(await self._do(request)),))
        except Exception as error:
            return iter((refusal(error),))

    async def _do(self, request: Any) -> Any:
        protocol.check_node(request)
        match request:
            case protocol.SpanRequest():
                return span_of(self._journal, "replay")
            case protocol.StatusRequest():
                return self._status()
            case protocol.StateRequest():
                return await self._state(request.agent, request.at)
            case protocol.ExplainRequest():
                return await self._explain(request)
            case protocol.WhereRequest():
                return self._where(request.agent)
            case protocol.AgentsRequest():
                return await self._agents(request)
            case protocol.NamesRequest():
                return self._names(request)
            case protocol.EventsRequest():
                return await self._events(request)
            case protocol.PositionsRequest():
                return await self._positions(request)
            case protocol.ViewsRequest() | protocol.ViewRequest():
                raise NotRunning("this log is played back, and a log has no views; ask a running node for them")
            case _:
                raise ReadOnlyLog(READ_ONLY)

    async def _state(self, address: str, at: str | None) -> replies.StateReply:
        end_state = self._ends[self._homes.of(address)]
        plan = end_state.plan_at(address)
        if plan.shared:
            await self._read_writers()
        if at is None:
            agent = agent_in(end_state, address)
            seen = PastState(
                end_state.new_agent(address, plan) if agent is None else agent,
                agent is not None,
                *(end_state.shard, end_state.position, end_state.time_ns),
                end_state.stopped.get(address),
            )
            return described_sight(address, seen, plan, self._writer)
        moment = read_at(at)
        async with self._looking:
            for number, sight in enumerate(self._history.look_slowly(address, moment)):
                if sight is not None:
                    return described_sight(address, sight, plan, self._writer, moment.time_ns)
                if number % GIVE_WAY_COMMITS == 0:
                    await asyncio.sleep(0)
        raise NotRunning("the log ended while it was read; ask again")

    def _writer(self, _: str, replica: bytes) -> tuple[str, str]:
        return (self._writers or {}).get(replica, ""), ""

    async def _read_writers(self) -> None:
        """Reads from the whole log, once, which agents write to shared fields under which ids."""
        if self._writers is not None:
            return
        found: dict[bytes, str] = {}
        for shard in self._ends:
            for number, stored in enumerate(self._journal.read(shard, after=self._journal.first_position(shard) - 1)):
                if number % GIVE_WAY_COMMITS == 0:
                    await asyncio.sleep(0)
                for kept in walk_messages(open_commit(stored.sealed.body)):
                    if kept.tag == CHANGED and (replica := changed_by(kept.body)):
                        found[replica] = kept.address
        self._writers = found

    def _where(self, address: str) -> replies.WhereReply:
        plan_at(self._fleet.plans, address)
        why = "its log is played back here, and nobody runs it"
        return replies.WhereReply(address, None, NOBODY, why, True, False, self._homes.of(address))

    async def _explain(self, request: protocol.ExplainRequest) -> replies.ExplainReply:
        seen = await self._state(request.agent, None if request.position is None else str(request.position))
        wanted = EntryFilter(agent=request.agent, last=request.position, limit=request.limit)
        outbox = self._ends[seen.shard].outbox
        entries = [
            described_entry(entry, lambda one: outbox.get(one.sink, one.sequence) is None)
            for entry in list_log(self._journal, wanted)
            if entry is not None
        ]
        return filled(replies.ExplainReply, seen, entries=entries)

    async def _agents(self, request: protocol.AgentsRequest) -> replies.AgentsReply:
        if request.at is None:
            return await list_agents(FoldedAgents(self._fleet.plans, self._ends, self._homes.of), request)
        async with self._looking:
            return await self._past.list_agents(list(self._ends), read_at(request.at), request)

    async def _positions(self, request: protocol.PositionsRequest) -> replies.PositionsReply:
        """The past does not change: who has seen the end waits for nothing."""
        if request.at is None and request.after:
            await asyncio.sleep(min(request.within_s, WITHIN_S_MAX))
            return replies.PositionsReply(request.after, max(state.time_ns for state in self._ends.values()))
        moment = Moment() if request.at is None else read_at(request.at)
        async with self._looking:
            return await self._past.read(list(self._ends), moment)

    async def _events(self, request: protocol.EventsRequest) -> replies.EventsReply:
        """The next events of all shards, in the order of their times."""
        if not 1 <= request.limit <= EVENTS_COUNT_MAX:
            raise ConfigError(f"limit {request.limit}: give 1 to {EVENTS_COUNT_MAX}")
        at = {shard: FeedPosition(state.position) for shard, state in self._ends.items()}
        if request.after is not None:
            at |= self._start(request.after)
        elif request.since_ns is not None:
            for shard, state in self._ends.items():
                first = self._journal.first_position(shard)
                at[shard] = FeedPosition(last_before(self._journal, shard, first, state.position, request.since_ns))
        merged = heapq.merge(
            *(self._entries(shard, place) for shard, place in at.items() if shard in self._ends),
            key=lambda one: (one.time_ns, one.shard, one.position, one.index),
        )
        found: list[replies.EventReply] = []
        for one in islice(merged, request.limit):
            found.append(one)
            at[one.shard] = FeedPosition(one.position, one.index)
            if len(found) % GIVE_WAY_COMMITS == 0:
                await asyncio.sleep(0)
        if len(found) < request.limit:
            at = {shard: FeedPosition(state.position) for shard, state in self._ends.items()}
        if not found:
            await asyncio.sleep(min(request.within_s, WITHIN_S_MAX))
        return replies.EventsReply(found, write_positions({shard_key(one, self._log): at[one] for one in at}))

    def _start(self, text: str) -> dict[int, FeedPosition]:
        """The positions of this log that a client gives. Raises ConfigError for those of another."""
        found: dict[int, FeedPosition] = {}
        for key, at in read_positions(text).items():
            shard, log = read_key(key)
            if log not in ("", self._log) and at.position:
                raise ConfigError(
                    f"position {at.position} is of the log {log}, and {self._name} is the log {self._log}"
                )
            found[shard] = at
        return found

    def _entries(self, shard: int, at: FeedPosition) -> Iterator[replies.EventReply]:
        directories = Directories(self._journal)
        # A commit that was read in part is read once more.
        for stored in self._journal.read(shard, after=at.position - (at.index < WHOLE)):
            commit = open_commit(stored.sealed.body)
            for kept in walk(commit, directories.of(commit)):
                if kept.address and FeedPosition(commit.position, kept.index) > at:
                    fields = readable_fields(kept.body)
                    yield replies.EventReply(
                        *(shard, commit.position, kept.index, kept.time_ns, kept.address, kept.tag, fields),
                        place_in(fields) or UNSET,
                        commit.runs[-1].time_ns - kept.time_ns,
                    )

    def _names(self, request: protocol.NamesRequest) -> replies.NamesReply:
        agents = FoldedAgents(self._fleet.plans, self._ends, self._homes.of).addresses(None)
        found = heapq.nsmallest(request.limit, (one for one in agents if one.startswith(request.prefix)))
        return replies.NamesReply({kind: described_kind(plan) for kind, plan in self._fleet.plans.items()}, found)

    def _status(self) -> replies.StatusReply:
        states = self._ends.values()
        return replies.StatusReply(
            fleet=self._fleet.name,
            version=self._version,
            pid=0,
            up_s=0.0,
            cpu_s=0.0,
            memory_peak_bytes=0,
            journal=self._name,
            agents=sum(state.agents_count for state in states),
            events=sum(state.events_count for state in states),
            commits=sum(state.position for state in states),
            owed=sum(state.outbox.count for state in states),
            waiting=0,
            dead_letters=sum(len(state.letters.all()) for state in states),
            stopped={address: why for state in states for address, why in state.stopped.items()},
            journal_bytes=self._journal.size().bytes_used,
            heads=[filled(replies.HeadReply, state.head) for state in states],
            signers=[],
            recovered=replies.RecoveryReply(0, 0, 0, {}, []),
            counters={},
            troubles=[],
            link=replies.LinkReply(),
        )
