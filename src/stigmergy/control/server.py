"""The control service of a running node: answers the requests of the control protocol.

It knows nothing of sockets and lines. What changes something is answered when it is durable. What takes long, a look
back or a listing, is done in small pieces, so that the agents go on; only one look back or verification at a time.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import resource
from collections.abc import Callable, Iterator
from typing import Any, assert_never

from msgspec import UNSET, Struct

from stigmergy.agents.codec import MESSAGE_BYTES_MAX, encode
from stigmergy.agents.messages import Command, Event
from stigmergy.agents.text import phrase
from stigmergy.audit.history import History, Moment, PastState, read_at
from stigmergy.audit.listing import EntryFilter, LogEntry, list_log
from stigmergy.audit.verification import Verification
from stigmergy.base.errors import (
    ConfigError,
    JournalUnknown,
    NoAnswer,
    NotAssigned,
    NotOwned,
    NotRunning,
    Overloaded,
    StigmergyError,
    TooLarge,
    TrustError,
)
from stigmergy.base.trust import Signer, Verifier
from stigmergy.control import protocol, replies
from stigmergy.control.agent_listing import LiveAgents, list_agents
from stigmergy.control.description import (
    described_command,
    described_copy,
    described_entry,
    described_kind,
    described_letter,
    described_link,
    described_members,
    described_recovery,
    described_sight,
    described_verification,
    span_of,
)
from stigmergy.control.event_feed import EventFeed
from stigmergy.control.live import Live
from stigmergy.control.location import FOREIGN, locate_agent
from stigmergy.control.log_service import answer_hold, export_items, flight_items, next_commits
from stigmergy.control.metrics import NodeMetrics
from stigmergy.control.positions import PositionService
from stigmergy.control.protocol import Answer, refusal, single, streamed
from stigmergy.control.replication_service import ReplicationService
from stigmergy.control.replies import filled
from stigmergy.control.view_service import answer_view, answer_views
from stigmergy.journal.signers import Key, check_enrolment, check_revocation
from stigmergy.ledgers.shown import show_entries
from stigmergy.metrics.profile import Profile
from stigmergy.network.forwarder import CommandOnItsWay
from stigmergy.node.column_roster import DescribedRoster, Roster, check_enrolled_names, described_roster
from stigmergy.node.profiling import Profiler, check_length
from stigmergy.shard.inputs import Accepted, EnrollSigner, LetterDropped, LetterRetried, ResumeAgent, RevokeSigner
from stigmergy.shard.judging import Sender
from stigmergy.shard.memory import Remembered
from stigmergy.shard.tracing import read_context
from stigmergy.traces.search import find_spans
from stigmergy.traces.spans import Span

CLIENT = "control"
"""Whose share of the remembered ids commands of this endpoint take."""
ELSEWHERE_S = 10.0
"""How long the answer of an agent on another node is waited for, if the request does not say it."""
WAIT_S_MIN = 0.05
WAIT_S_MAX = 50.0
"""How long it may be waited for at most: less than a client waits for a reply."""
APPEARS_S = 5.0
"""How long `where` waits for a node that is not known, or away, while the link to the bus is new."""
APPEARS_LOOK_S = 0.05
NAMES_COUNT_MAX = 1_000
"""So many addresses are named at once; a longer prefix finds others."""
OBSERVED_COUNT_MAX = 1_000
"""Observations in one request."""
VERIFY_TOLD_COMMITS = 1_000
"""So often a verification says how far it has come, so that its client knows that it goes on."""


class NodeDescription(Struct, frozen=True):
    """What the server says of its process."""

    version: str
    journal: str
    signer: Key
    sealing: Signer | None = None
    """What flight logs are sealed with: the node's own key."""
    owner: str = ""
    """The worker that this is, of a fleet on workers."""
    role: str = "node"
    metrics_url: Callable[[], str] = str
    """Where this process has its page of metrics; empty if it has none."""


class ControlService:
    """Answers requests about one running fleet. `stop` is called when somebody asks for that."""

    def __init__(
        self,
        live: Live,
        verifier: Verifier,
        node: NodeDescription,
        stop: Callable[[], None],
        profiler: Profiler | None = None,
    ) -> None:
        """Without a `profiler` nobody can have a profile of the process."""
        self._live = live
        self._host = live.host
        self._verifier = verifier
        self._node = node
        self._stop = stop
        self._profiler = profiler
        self._reading = self._host.shards.reading
        self._since_ns = self._host.clock.monotonic_ns()
        self._replication = ReplicationService(live.replication)
        self._events = EventFeed(live, self._is_only)
        self._positions = PositionService(self._host)
        self.metrics = NodeMetrics(live, node.version, node.role)
        self._long = False
        """Whether somebody looks back or verifies; one at a time, because each takes from the agents' time."""

    async def answer(self, request: protocol.AnyRequest) -> Iterator[Answer]:
        """The answers to this request; an empty line means: not yet, do something else meanwhile."""
        try:
            request = protocol.within(request, self._host.declaration.name)
            match request:
                case protocol.LogRequest():
                    return streamed(self._log(request))
                case protocol.TraceRequest():
                    return streamed(self._trace(request))
                case protocol.VerifyRequest():
                    return streamed(self._verify(request))
                case protocol.ExportRequest() | protocol.FlightRequest():
                    return streamed(self._exported(request))
                case protocol.CommitsRequest():
                    return streamed(await next_commits(self._host, request))
                case protocol.LettersRequest():
                    return streamed(described_letter(letter) for letter in self._live.dead_letters())
                case protocol.CommandsRequest():
                    return streamed(described_command(one) for one in self._commands(request.limit))
                case protocol.SharedRequest():
                    return streamed(self._replication.shared(request))
                case protocol.QuarantineRequest():
                    return streamed(self._replication.quarantine())
                case protocol.ClaimsRequest():
                    return streamed(self._replication.claims(request))
                case protocol.MembersRequest():
                    return streamed(described_members(self._live.members(), self._live.link))
                case _:
                    return iter((single(await self._do(request)),))
        except Exception as error:
            return iter((refusal(error),))

    async def _do(self, request: protocol.SingleRequest) -> Any:
        protocol.check_node(request)
        match request:
            case protocol.SendRequest():
                return await self._send(request)
            case protocol.ObserveRequest():
                await _kept(self._observe(request))
                return replies.ObserveReply()
            case protocol.ObserveManyRequest():
                return await self._observe_many(request)
            case protocol.StateRequest():
                return await self._state(request)
            case protocol.StatusRequest():
                return self._status()
            case protocol.NamesRequest():
                return self._names(request)
            case protocol.AgentsRequest():
                return await self._agents(request)
            case protocol.SpanRequest():
                return span_of(self._host.journal, "live", "" if self._live.link is None else self._live.link.node)
            case protocol.EventsRequest():
                return await self._events.read(request)
            case protocol.PositionsRequest():
                return await self._map(request)
            case protocol.ViewRequest():
                return await answer_view(self._live.views, request, is_only=self._is_only())
            case protocol.ViewsRequest():
                return await answer_views(self._live.views)
            case protocol.LedgerRequest():
                entries = None if self._live.replication is None else self._live.replication.entries
                how = {"latest": request.latest, "fresh": request.fresh}
                return await show_entries(entries, request.ledger, request.after, request.limit, **how)
            case protocol.ExplainRequest():
                return await self._explain(request)
            case protocol.WhereRequest():
                return await self._where(request.agent)
            case protocol.BlobRequest():
                elsewhere = None if self._host.blobs is None else self._host.blobs.elsewhere
                data = None if elsewhere is None else await elsewhere.get(request.name)
                return replies.BlobReply(data, [] if elsewhere is None else list(elsewhere.away()))
            case protocol.RosterRequest():
                return self._roster(self._live.roster(request.kind))
            case protocol.EnrollAgentsRequest():
                check_enrolled_names(request.names)
                return self._roster(await self._live.enroll(request.kind, request.names, sender=self._sender()))
            case protocol.RetryRequest() | protocol.DropRequest():
                return await self._take_letter(request)
            case protocol.ResumeRequest():
                return await self._resume(request)
            case protocol.EnrolRequest():
                return await self._enrol(request)
            case protocol.RevokeRequest():
                return await self._revoke(request)
            case protocol.HoldsRequest() | protocol.HoldRequest() | protocol.UnholdRequest():
                if isinstance(request, protocol.HoldRequest) and request.agent.partition("/")[2]:
                    self._host.shards.first.state.plan_at(request.agent)  # A kind that was misspelt would hold nothing.
                return answer_hold(self._host.housekeeper.safeguards.holds, request, self._host.clock.wall_ns())
            case protocol.LiftRequest():
                return self._replication.lift(request)
            case protocol.RetireRequest():
                return self._replication.retire(request)
            case protocol.ProfileRequest():
                return await self._profile(request)
            case protocol.StopRequest():
                self._stop()
                return replies.StopReply()
            case _:
                assert_never(request)

    async def _send(self, request: protocol.SendRequest) -> replies.SendReply:
        link, asked = self._live.link, (request.agent, request.command_id or "")
        holder = "" if link is None else link.holder(request.agent, "send it there")
        if holder and not self._host.intake.is_held(*asked):
            raise NotAssigned(holder)
        elsewhere = self._host.intake.is_elsewhere(*asked)
        if not elsewhere:
            self._host.assignment.check(request.agent)
        plan = self._host.shards.first.state.plan_at(request.agent)
        command = phrase(plan, Command, request.command, request.fields, request.texts)
        _check_size(command)
        within_s = None
        if elsewhere:
            within_s = ELSEWHERE_S if request.wait_s is None else min(max(request.wait_s, WAIT_S_MIN), WAIT_S_MAX)
        try:
            verdict = await self._live.send(
                request.agent,
                command,
                command_id=request.command_id,
                client=CLIENT,
                within_s=within_s,
                trace=read_context(request.traceparent, request.tracestate),
                sender=self._sender(request.caller),
            )
        except NoAnswer as error:
            if request.wait_s is None:
                raise
            return replies.SendReply(accepted=False, position=None, reason=str(error), pending=True)
        if isinstance(verdict, Accepted):
            return replies.SendReply(accepted=True, position=verdict.position, reason=None, after=verdict.after)
        return replies.SendReply(accepted=False, position=None, reason=verdict.reason)

    def _sender(self, caller: str = "") -> Sender:
        """Who asks, for a policy. Whoever may open our socket is believed: it is the same user, or an API of ours."""
        how, _, token = caller.partition(" ")
        return Sender(how=how or ("cluster" if self._node.owner else "socket"), token=token)

    def _is_only(self) -> bool:
        """Whether no other node has a log of this fleet. Each shard of a fleet on workers has one log, wherever it is
        asked for."""
        link = self._live.link
        if self._node.owner or link is None:
            return True
        return not (link.unheard() or link.presence.others() or link.presence.away())

    async def _where(self, agent: str) -> replies.WhereReply:
        """Where an agent runs. While the link to the bus is new, its node has a moment to appear."""
        link, deadline_s = self._live.link, asyncio.get_running_loop().time() + APPEARS_S
        while True:
            found = locate_agent(self._host, link, agent, self._node.owner)
            is_known = found.online or found.how == FOREIGN or link is None or not link.presence.settling()
            if is_known or asyncio.get_running_loop().time() >= deadline_s:
                return found
            await asyncio.sleep(APPEARS_LOOK_S)

    def _commands(self, limit: int) -> Iterator[CommandOnItsWay | Remembered]:
        """Commands and tells on their way to other nodes, and the last commands that were answered, newest first."""
        if self._live.link is not None:
            yield from self._live.link.forwarder.on_their_way()[:limit]
            yield from self._live.link.router.on_their_way()[:limit]
        answers = [answer for shard in self._host.shards for answer in shard.state.answers.all()]
        elsewhere = [answer for answer in answers if not self._host.assignment.runs(answer.agent)]
        yield from sorted(elsewhere, key=lambda answer: -answer.time_ns)[:limit]

    def _observe(self, request: protocol.ObserveRequest | protocol.ObservedItem) -> asyncio.Future[None]:
        self._host.assignment.check(request.agent)
        plan = self._host.shards.first.state.plan_at(request.agent)
        texts = request.texts if isinstance(request, protocol.ObserveRequest) else {}
        event = phrase(plan, Event, request.event, request.fields, texts)
        _check_size(event)
        trace = None
        if isinstance(request, protocol.ObserveRequest):
            trace = read_context(request.traceparent, request.tracestate)
        return self._host.intake.observe(request.agent, event, trace=trace)

    async def _observe_many(self, request: protocol.ObserveManyRequest) -> replies.ObserveManyReply:
        """All are taken before the first is waited for: the disk is synced once for many of them."""
        if len(request.items) > OBSERVED_COUNT_MAX:
            raise TooLarge(f"{len(request.items)} observations, {OBSERVED_COUNT_MAX} at most; send several requests")
        taken: list[asyncio.Future[None] | StigmergyError] = []
        for one in request.items:
            try:
                taken.append(self._observe(one))
            except StigmergyError as error:
                taken.append(error)
        outcomes: list[replies.ObservedOutcome] = []
        for found in taken:
            try:
                if isinstance(found, StigmergyError):
                    raise found
                await _kept(found)
                outcomes.append(replies.ObservedOutcome(True))
            except StigmergyError as error:
                outcomes.append(replies.ObservedOutcome(False, str(error), type(error).__name__))
        return replies.ObserveManyReply(outcomes)

    async def _state(self, request: protocol.StateRequest) -> replies.StateReply:
        address = request.agent
        number = self._host.intake.shard_of(address)
        plan, name_of = self._host.shards.first.state.plan_at(address), self._replication.writer
        if request.at is not None:
            moment = read_at(request.at)
            sight = await self._look_back(address, moment)
            return described_sight(address, sight, plan, name_of, moment.time_ns)
        agent = self._live.query(address)
        positions = {head.shard: head.position for head in self._host.journal.heads()}
        known = self._host.durable_image(address) is not None
        time_ns = self._host.shards[number].state.time_ns
        stopped = self._live.stopped().get(address)
        sight = PastState(agent, known, number, positions.get(number, 0), time_ns, stopped)
        found = described_sight(address, sight, plan, name_of, self._host.clock.wall_ns())
        return self._replication.with_others(found)

    async def _look_back(self, address: str, moment: Moment) -> PastState:
        self._begin_long()
        try:
            history = History(
                self._host.journal,
                self._host.declaration.plans,
                self._host.settings.limits,
                homes=self._host.declaration.homes,
            )
            for sight in history.look_slowly(address, moment):
                if sight is not None:
                    return sight
                await asyncio.sleep(0)
            raise NotRunning("the log ended while it was read; ask again")
        finally:
            self._end_long()

    async def _map(self, request: protocol.PositionsRequest) -> replies.PositionsReply:
        if request.at is None:
            return await self._positions.read(request)
        self._begin_long()
        try:
            return await self._positions.read(request)
        finally:
            self._end_long()

    async def _agents(self, request: protocol.AgentsRequest) -> replies.AgentsReply:
        if request.at is None:
            return await list_agents(LiveAgents(self._host, self._live.stopped), request)
        self._begin_long()
        try:
            return await self._positions.list_agents(request, read_at(request.at))
        finally:
            self._end_long()

    async def _explain(self, request: protocol.ExplainRequest) -> replies.ExplainReply:
        at = None if request.position is None else str(request.position)
        seen = await self._state(protocol.StateRequest(agent=request.agent, at=at))
        wanted = EntryFilter(agent=request.agent, last=request.position, limit=request.limit)
        outbox = self._host.shards[seen.shard].state.outbox
        entries: list[replies.ExplainedEntry] = []
        for entry in list_log(self._host.journal, wanted, self._reading):
            if entry is None:
                await asyncio.sleep(0)
            else:
                entries.append(described_entry(entry, lambda one: outbox.get(one.sink, one.sequence) is None))
        return filled(replies.ExplainReply, seen, entries=entries)

    def _begin_long(self) -> None:
        if self._long:
            raise Overloaded("somebody looks back or verifies already, and that is one at a time; try again later")
        self._long = True
        self._host.housekeeper.safeguards.readers += 1

    def _end_long(self) -> None:
        self._long = False
        self._host.housekeeper.safeguards.readers -= 1

    def _log(self, request: protocol.LogRequest) -> Iterator[LogEntry | None]:
        wanted = filled(EntryFilter, request)
        return list_log(self._host.journal, wanted, self._reading)

    def _trace(self, request: protocol.TraceRequest) -> Iterator[Span | None]:
        """Reads the whole log, beside the work of the node."""
        self._begin_long()
        try:
            link = self._live.link
            yield from find_spans(self._host.journal, request.jobs, request.limit, "" if link is None else link.node)
        finally:
            self._end_long()

    def _verify(self, request: protocol.VerifyRequest) -> Iterator[replies.LogProgress | replies.VerifyReply | None]:
        """Verifies the journal as it is now, beside the work of the node."""
        trusted = None if request.trusted is None else _key(request.trusted, request.algorithm)
        self._begin_long()
        try:
            verification = Verification(self._host.journal, self._verifier, trusted_key=trusted)
            told = 0
            for commits in verification.run_slowly():
                far = commits >= told + VERIFY_TOLD_COMMITS
                yield replies.LogProgress(commits=commits, of=verification.commits_expected) if far else None
                told = max(told, commits - commits % VERIFY_TOLD_COMMITS)
            yield described_verification(self._node.journal, verification.found)
        finally:
            self._end_long()

    def _exported(self, request: protocol.ExportRequest | protocol.FlightRequest) -> Iterator[Any]:
        """What the log says, or the log itself as a flight log, beside the work of the node."""
        self._begin_long()
        try:
            journal = self._host.journal
            if isinstance(request, protocol.ExportRequest):
                yield from export_items(journal, request, self._reading)
                return
            if self._node.sealing is None:
                raise NotRunning("this node has no key to seal a flight log with; export from the stopped journal")
            made_ns = self._host.clock.wall_ns()
            yield from flight_items(journal, self._node.sealing, request, made_ns, self._reading)
        finally:
            self._end_long()

    async def _take_letter(self, request: protocol.RetryRequest | protocol.DropRequest) -> replies.LetterTakenReply:
        before = {one.letter: one for one in self._live.dead_letters()}
        letter = before.get(request.letter)
        if letter is None:
            raise ConfigError(f"there is no dead letter {request.letter!r}; stigmergy letters lists those there are")
        shard = int(letter.letter.partition(".")[0])
        retried = isinstance(request, protocol.RetryRequest)
        await self._host.intake.take(shard, LetterRetried(letter.letter) if retried else LetterDropped(letter.letter))
        # A retry that fails again is a new dead letter, of the same agent with the same input.
        new = [one for one in self._live.dead_letters() if one.letter not in before] if retried else []
        again = [one.letter for one in new if (one.agent, one.input) == (letter.agent, letter.input)]
        new_letter = again[0] if again else ""
        return replies.LetterTakenReply(letter.letter, letter.agent, retried, bool(again), new_letter)

    async def _resume(self, request: protocol.ResumeRequest) -> replies.ResumeReply:
        number = self._host.intake.home_of(request.agent)
        state = self._host.shards[number].state
        state.plan_at(request.agent)
        if request.agent not in state.stopped:
            raise ConfigError(f"{request.agent} is not stopped; stigmergy status lists agents that are")
        await self._host.intake.take(number, ResumeAgent(request.agent, request.by))
        return replies.ResumeReply(request.agent)

    async def _enrol(self, request: protocol.EnrolRequest) -> replies.EnrolReply:
        key = _key(request.public_key, request.algorithm)
        state = self._host.shards.signers.state
        check_enrolment(state.signers, self._verifier, key)
        await self._host.intake.take(state.shard, EnrollSigner(*key, self._sender()))
        return replies.EnrolReply(key[1].hex())

    async def _revoke(self, request: protocol.RevokeRequest) -> replies.RevokeReply:
        key = _key(request.public_key, request.algorithm)
        state = self._host.shards.signers.state
        last = state.position if request.last_position is None else request.last_position
        check_revocation(state.signers, key, self._node.signer, last, state.position)
        await self._host.intake.take(state.shard, RevokeSigner(*key, last))
        return replies.RevokeReply(key[1].hex(), last)

    async def _profile(self, request: protocol.ProfileRequest) -> Profile:
        check_length(request.seconds)
        owner, wanted = self._node.owner, request.worker
        if wanted and not (owner and (f"{owner}-".startswith(f"{wanted}-") or wanted.startswith(f"{owner}-"))):
            raise ConfigError(
                f"worker {wanted!r}: this is " + (f"worker {owner}" if owner else "a node, name no worker")
            )
        if self._profiler is None:
            raise ConfigError("this process cannot be profiled")
        return await self._profiler.run(request.seconds)

    def _roster(self, roster: Roster) -> DescribedRoster:
        return described_roster(roster, [shard.state.shard for shard in self._host.shards])

    def _names(self, request: protocol.NamesRequest) -> replies.NamesReply:
        if not 1 <= request.limit <= NAMES_COUNT_MAX:
            raise ConfigError(f"limit {request.limit}: give 1 to {NAMES_COUNT_MAX}")
        addresses = (address for shard in self._host.shards for address in shard.state.agents)
        found = heapq.nsmallest(request.limit, (one for one in addresses if one.startswith(request.prefix)))
        return replies.NamesReply(
            kinds={kind: described_kind(plan) for kind, plan in self._host.declaration.plans.items()},
            agents=[address for address in found if self._host.durable_image(address) is not None],
        )

    def _status(self) -> replies.StatusReply:
        standing = self._live.standing()
        company = standing.company
        used = resource.getrusage(resource.RUSAGE_SELF)
        signers = self._host.shards.signers.state.signers
        return filled(
            replies.StatusReply,
            standing,
            version=self._node.version,
            pid=os.getpid(),
            host=os.uname().nodename,
            up_s=round((self._host.clock.monotonic_ns() - self._since_ns) / 1e9, 3),
            cpu_s=round(used.ru_utime + used.ru_stime, 3),
            memory_peak_bytes=_memory_peak_bytes(),
            journal=self._node.journal,
            commits=sum(head.position for head in standing.heads),
            at_rest=standing.at_rest or UNSET,
            heads=[filled(replies.HeadReply, head) for head in standing.heads],
            signers=[
                filled(replies.SignerReply, one, signs_now=(one.algorithm, one.public_key) == self._node.signer)
                for one in signers
            ],
            recovered=described_recovery(self._live.recovered),
            troubles=[*standing.troubles, *self._positions.troubles()],
            link=described_link(standing.link),
            shared=UNSET if company.shared is None else company.shared,
            claims=UNSET if company.claims is None else company.claims,
            ledgers=list(company.ledgers) or UNSET,
            copies=[described_copy(one) for one in standing.copies] or UNSET,
            metrics=self.metrics.collect(),
            metrics_url=self._node.metrics_url(),
        )


def _check_size(message: Command | Event) -> None:
    """Raises TooLarge: later it would be a refusal of the agent, or a dead letter."""
    if (size := len(encode(message))) > MESSAGE_BYTES_MAX:
        raise TooLarge(f"a message of {size} bytes, {MESSAGE_BYTES_MAX} at most; store the payload and send a Blob")


async def _kept(taken: asyncio.Future[None]) -> None:
    """Until an observation is kept. Clients repeat what was refused with these errors (RetryingClient), and this was
    taken: the next owner may have it."""
    try:
        await taken
    except (NotOwned, NotRunning) as error:
        raise JournalUnknown(f"whether it is kept is not known, and it is not said twice: {error}") from None


def _key(public_key: str, algorithm: int) -> Key:
    try:
        return (algorithm, bytes.fromhex(public_key))
    except ValueError:
        raise TrustError("a public key is given in hex digits; stigmergy keys show prints it") from None


def _memory_peak_bytes() -> int:
    """Of this program. The system's counts for the process include its parent's before exec."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
