"""The control endpoint of a fleet on workers: a request goes to the owner of its agent or shard, or to all owners.

A request about one agent or shard is forwarded, and the lines of the answer are returned as they came. A request about
the fleet goes to all, and the replies are merged: counts are added, entries of the log are sorted by time.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar, get_origin

import msgspec
from msgspec import UNSET, structs

from stigmergy.audit.listing import LogEntry
from stigmergy.base.errors import ConfigError, NotRunning, StigmergyError
from stigmergy.bus.port import NO_BUS, UP
from stigmergy.control import protocol
from stigmergy.control.protocol import (
    ITEM,
    Answer,
    Request,
    end,
    item,
    read_reply,
    read_single,
    single,
)
from stigmergy.control.replies import (
    AgentsReply,
    EventsReply,
    LinkReply,
    LogProgress,
    MissingPart,
    NamesReply,
    ObjectReply,
    ObservedOutcome,
    ObserveManyReply,
    ProcessReply,
    QuarantineReply,
    RecoveryReply,
    ResourceReply,
    RetireReply,
    RevokeReply,
    SignerReply,
    SpanReply,
    StatusReply,
    VerifyReply,
)
from stigmergy.ledgers.records import EntriesStatus
from stigmergy.metrics.profile import Profile
from stigmergy.metrics.samples import BUSIEST_COUNT, added_samples
from stigmergy.node.column_roster import DescribedRoster, Place, check_enrolled_names, joined_rosters
from stigmergy.node.feed import FeedPosition, read_key, read_positions, write_positions
from stigmergy.shard.homes import Homes

R = TypeVar("R")
T = TypeVar("T")
Answers = Iterator[Answer] | AsyncIterator[Answer]
MarkedT = TypeVar("MarkedT", ObjectReply, QuarantineReply)
AddedT = TypeVar("AddedT", RecoveryReply, StatusReply, VerifyReply)
TOLD = tuple(name for name in ProcessReply.__struct_fields__ if name not in ("process", "first_shard", "last_shard"))
"""What a merged status says of each owner by itself."""


def added(kind: type[AddedT], parts: Sequence[AddedT], **given: Any) -> AddedT:
    """One reply from several of a kind, field by field: numbers are added, lists and dicts joined; `given` has the
    fields that are not merged so."""
    for field in structs.fields(kind):
        if field.name not in given:
            values = [getattr(one, field.name) for one in parts]
            match get_origin(field.type):
                case None:
                    given[field.name] = sum(values)
                case joined if joined is list:
                    given[field.name] = list(chain(*values))
                case _:
                    given[field.name] = {key: value for one in values for key, value in one.items()}
    return kind(**given)


def added_status(
    fleet: str, journal: str, statuses: dict[int, StatusReply], troubles: Sequence[str], shards: int
) -> StatusReply:
    """The status of a fleet on workers, from those that the owners of the shards have last told."""
    known = [statuses[shard] for shard in sorted(statuses)]
    # One process may have several of the shards: what it has used counts once.
    used = {(one.host, one.pid): one for one in known}.values()
    counters: Counter[str] = Counter()
    for one in known:
        counters.update(one.counters)
    return added(
        StatusReply,
        known,
        fleet=fleet,
        version=", ".join(sorted({one.version for one in known if one.version})),
        pid=None,
        host=UNSET,
        # Since the first of the present owners has its shard.
        up_s=max((one.up_s for one in known), default=0.0),
        journal=journal,
        cpu_s=round(sum(one.cpu_s for one in used), 3),
        memory_peak_bytes=sum(one.memory_peak_bytes for one in used),
        at_rest=sorted(agent for one in known for agent in one.at_rest or ()) or UNSET,
        signers=_signers(known),
        recovered=added(RecoveryReply, [one.recovered for one in known]),
        counters=dict(counters),
        # What concerns a whole process or node, each of its shards tells.
        troubles=list(dict.fromkeys([*troubles, *(trouble for one in known for trouble in one.troubles)])),
        link=_link(known),
        shared=UNSET,
        claims=UNSET,
        ledgers=_ledgers(known) or UNSET,
        processes=[_owner(shard, statuses.get(shard)) for shard in range(shards)],
        copies=[copy for one in known for copy in one.copies or ()] or UNSET,
        metrics=added_samples([one.metrics for one in known if one.metrics is not UNSET], BUSIEST_COUNT),
        metrics_url="",
    )


def _link(known: Sequence[StatusReply]) -> LinkReply:
    """The link of an owner that is cut off, if there is one, else of any; with what all of them have to publish."""
    links = [one.link for one in known if one.link.state != NO_BUS]
    if not links:
        return LinkReply()
    worst = next((link for link in links if link.state != UP), links[0])
    return structs.replace(worst, owed=sum(link.owed for link in links), tells=sum(link.tells for link in links))


def _ledgers(known: Sequence[StatusReply]) -> list[EntriesStatus]:
    """Each ledger as the shard sees it that has read furthest, with what is not well with it anywhere."""
    found: dict[str, EntriesStatus] = {}
    for one in (one for status in known for one in status.ledgers or ()):
        other = found.get(one.ledger, one)
        ahead = max(one, other, key=lambda each: each.position)
        waiting = one.waiting + (0 if other is one else other.waiting)
        behind = max(one.behind, other.behind)
        found[one.ledger] = structs.replace(ahead, why=other.why or one.why, waiting=waiting, behind=behind)
    return list(found.values())


def _owner(shard: int, status: StatusReply | None) -> ProcessReply:
    told = {} if status is None else {name: getattr(status, name) for name in TOLD}
    if told.get("host") is UNSET:
        told["host"] = None  # A worker of an earlier version names no host.
    return ProcessReply(shard + 1, shard, shard, **told)


def _signers(known: Sequence[StatusReply]) -> list[SignerReply]:
    """Each key once; revoked where it is revoked everywhere."""
    found: dict[str, SignerReply] = {}
    for signer in (signer for one in known for signer in one.signers):
        before = found.setdefault(signer.public_key, signer)
        revoked_after = None if signer.revoked_after is None else before.revoked_after
        signs_now = before.signs_now or signer.signs_now
        found[signer.public_key] = structs.replace(before, revoked_after=revoked_after, signs_now=signs_now)
    return list(found.values())


def joined_claims(found: Sequence[Sequence[ResourceReply]]) -> list[ResourceReply]:
    """Who holds what, by the one that has read the ledger furthest, with what the agents of all of them believe."""
    furthest: dict[str, ResourceReply] = {}
    for one in (one for items in found for one in items):
        before = furthest.setdefault(one.resource, structs.replace(one, believed=[]))
        newer = one if one.read_to > before.read_to else before
        furthest[one.resource] = structs.replace(newer, believed=before.believed + one.believed)
    return [furthest[name] for name in sorted(furthest)]


def added_verifications(journal: str, found: Sequence[VerifyReply]) -> VerifyReply:
    """What the verifications of all parts found, as one."""
    return added(VerifyReply, found, journal=journal, sound=all(one.sound for one in found))


def joined_names(found: Sequence[NamesReply], limit: int, missing: Sequence[MissingPart]) -> NamesReply:
    """The kinds, which all know, and the first of all agents."""
    agents = sorted(agent for one in found for agent in one.agents)
    return NamesReply(found[0].kinds, agents[:limit], list(missing))


def joined_agents(pages: Sequence[AgentsReply], limit: int, missing: Sequence[MissingPart]) -> AgentsReply:
    """The first agents of all pages. More follow if some were left out here, or at an owner."""
    listed = sorted((one for page in pages for one in page.agents), key=lambda one: one.agent)
    more = len(listed) > limit or any(page.next for page in pages)
    listed = listed[:limit]
    return AgentsReply(listed, listed[-1].agent if more and listed else None, list(missing))


class MergedEntries:
    """Entries of the log from several owners, in the order of their times, and at last the end.

    Of each owner one entry is held at a time: memory does not grow with the log.
    """

    def __init__(self, streams: Sequence[AsyncIterator[bytes]], request: protocol.ExportRequest) -> None:
        self._streams: dict[int, AsyncIterator[bytes]] = dict(enumerate(streams))
        self._request = request
        self._heads: dict[int, tuple[tuple[int, int, int, int], bytes]] = {}
        self._progress: dict[int, LogProgress] = {}
        self._told = False
        self._begun = False
        self._over = False
        self._count = 0

    def __aiter__(self) -> MergedEntries:
        return self

    async def __anext__(self) -> Answer:
        if self._over:
            raise StopAsyncIteration
        if not self._begun:
            self._begun = True
            for number in list(self._streams):
                await self._advance(number)
        if self._told:
            self._told = False
            return item(self._far())
        if not self._heads:
            self._over = True
            return end(self._count)
        number = min(self._heads, key=lambda one: self._heads[one][0])
        line = self._heads.pop(number)[1]
        await self._advance(number)
        self._count += 1
        return line

    async def _advance(self, number: int) -> None:
        """The next entry of an owner becomes its head; how far it says it is, on the way, is remembered."""
        while True:
            line = await anext(self._streams[number])
            reply = read_reply(line, self._request)
            if reply.end is not None:
                del self._streams[number]
                return
            found = read_item(reply.item, LogEntry)
            if isinstance(found, LogEntry):
                self._heads[number] = (_written_at(found), line)
                return
            self._progress[number] = found
            self._told = True

    def _far(self) -> LogProgress:
        known = list(self._progress.values())
        return structs.replace(known[0], commits=sum(one.commits for one in known), of=sum(one.of for one in known))


LETTER_ID = re.compile(r"(\d{1,4})\.\d+\.\d+", re.ASCII)


class OwnerClient(Protocol):
    """The control endpoint of the owner of one shard."""

    def ask(self, request: Request[Any]) -> AsyncIterator[bytes]:
        """The lines that answer a request, as they come. Raises NotRunning where nobody answers."""
        ...


AGAIN = "a majority of the servers and a worker must run, and stigmergy status --nats URL shows both"
ASIDE = "each shard has a log of its own"


class _Found(Generic[R]):
    """What all of them were asked for: what came, by their numbers, who refused, and who did not answer."""

    def __init__(self) -> None:
        self.items: dict[int, list[R]] = {}
        self.refused: list[ConfigError] = []
        self.missing: list[MissingPart] = []

    def all_items(self) -> list[list[R]]:
        """What all have that answered. Raises what one of them refused with."""
        if self.refused:
            raise self.refused[0]
        return list(self.items.values())


class ControlRouter:
    """Answers requests about a fleet on workers. `branches` are the owners of its shards, in order; `journal` is where
    the logs are, for people."""

    def __init__(
        self,
        fleet: str,
        journal: str,
        homes: Homes,
        branches: Sequence[OwnerClient],
        projector: OwnerClient | None = None,
    ) -> None:
        """`projector` is the process that has the views of the whole fleet."""
        self._fleet = fleet
        self._journal = journal
        self._homes = homes
        self._branches = tuple(branches)
        self._projector = projector
        self._last: dict[int, StatusReply] = {}
        """The last status of each shard: an owner that is down for a moment is not forgotten."""

    async def status(self) -> StatusReply:
        """Where the fleet stands, all shards added up."""
        asked = [self._status_of(shard) for shard in range(len(self._branches))]
        troubles = [trouble for trouble in await asyncio.gather(*asked) if trouble]
        return added_status(self._fleet, self._journal, self._last, troubles, len(self._branches))

    async def answer(self, request: Request[Any]) -> Answers:
        """The answers to this request. Raises what an owner refuses with, also where the next answer is awaited."""
        protocol.check_node(request)
        request = protocol.within(request, self._fleet)
        shard = self._shard_of(request)
        if shard is not None:
            return _Passed(self._branches[shard].ask(request), shard)
        match request:
            case protocol.LogRequest():
                return await self._log(request)
            case protocol.CommandsRequest():
                sent_on = await self._ask_who_answers(request)
                return _stream([one for items in sent_on.all_items() for one in items], sent_on.missing)
            case protocol.LettersRequest():
                letters = await self._ask_who_answers(protocol.LettersRequest())
                return _stream([one for items in letters.all_items() for one in items], letters.missing)
            case protocol.ClaimsRequest():
                claims = await self._ask_who_answers(request)
                return _stream(joined_claims(claims.all_items()), claims.missing)
            case protocol.SharedRequest():
                objects = await self._ask_who_answers(request)
                return _stream(self._listed(objects), objects.missing)
            case protocol.QuarantineRequest():
                shut_out = await self._ask_who_answers(request)
                return _stream(self._listed(shut_out), shut_out.missing)
            case protocol.MembersRequest():
                members = await self._ask_who_answers(request)
                known = {one.name: one for items in members.all_items() for one in items}
                return _stream([known[name] for name in sorted(known)], members.missing)
            case protocol.TraceRequest():
                spans = await self._ask_who_answers(request)
                return _stream([one for items in spans.all_items() for one in items], spans.missing)
            case protocol.VerifyRequest():
                return _stream([await self._verify(request)])
            case protocol.ExportRequest():
                return MergedEntries([branch.ask(request) for branch in self._branches], request)
            case _:
                return iter((single(await self._single(request)),))

    async def _single(self, request: Request[Any]) -> Any:
        match request:
            case protocol.StatusRequest():
                return await self.status()
            case protocol.NamesRequest():
                found = await self._ask_who_answers(request)
                return joined_names(list(chain(*found.all_items())), request.limit, found.missing)
            case protocol.ViewRequest() | protocol.ViewsRequest():
                return await self._ask_projector(request)
            case protocol.LedgerRequest():
                return await self._ask_those_that_can(request)
            case protocol.AgentsRequest():
                return await self._agents(request)
            case protocol.EventsRequest():
                return await self._events(request)
            case protocol.SpanRequest():
                spans = [one for items in (await self._ask_who_answers(request)).all_items() for one in items]
                firsts = [one.first_ns for one in spans if one.first_ns is not None]
                lasts = [one.last_ns for one in spans if one.last_ns is not None]
                return SpanReply("live", min(firsts, default=None), max(lasts, default=None))
            case protocol.PositionsRequest():
                raise ConfigError("ask each shard of a fleet on workers for its part of the map: name the shard")
            case protocol.ObserveManyRequest():
                return await self._observe_many(request)
            case protocol.RosterRequest():
                return joined_rosters(await self._ask_all(request))
            case protocol.EnrollAgentsRequest():
                return await self._enroll(request)
            case protocol.LiftRequest():
                return await self._ask_those_that_can(request)
            case protocol.RetireRequest():
                return await self._retire(request)
            case protocol.EnrolRequest():
                return (await self._ask_all(request))[0]
            case protocol.RevokeRequest():
                return await self._revoke(request)
            case protocol.ProfileRequest():
                return await self._profile(request)
            case protocol.StopRequest():
                raise ConfigError(
                    "workers are stopped where they run, each by Ctrl-C or SIGTERM; the others take its shards over"
                )
            case _:
                asked = type(request).__name__
                raise ConfigError(f"a fleet on several workers cannot be asked for this ({asked}); {ASIDE}")

    def _shard_of(self, request: Request[Any]) -> int | None:
        """The one shard that a request is about, if it is about one."""
        match request:
            case (
                protocol.SendRequest()
                | protocol.ObserveRequest()
                | protocol.StateRequest()
                | protocol.ExplainRequest()
                | protocol.WhereRequest()
                | protocol.ResumeRequest()
            ):
                return self._homes.of(request.agent)
            case (
                protocol.LogRequest()
                | protocol.ExportRequest()
                | protocol.EventsRequest()
                | protocol.PositionsRequest()
            ):
                if request.shard is not None and not 0 <= request.shard < len(self._branches):
                    raise ConfigError(f"shard {request.shard}: this fleet has shards 0 to {len(self._branches) - 1}")
                agent = getattr(request, "agent", None)
                return request.shard if agent is None else self._homes.of(agent)
            case protocol.RetryRequest() | protocol.DropRequest():
                found = LETTER_ID.fullmatch(request.letter)
                if found is None or int(found[1]) >= len(self._branches):
                    raise ConfigError(
                        f"there is no dead letter {request.letter!r}; stigmergy letters lists those there are"
                    )
                return int(found[1])
            case _:
                return None

    async def _status_of(self, shard: int) -> str:
        try:
            self._last[shard] = await _first(self._branches[shard], protocol.StatusRequest())
        except StigmergyError as error:
            return _unanswered(shard, error)
        return ""

    async def _ask_all(self, request: Request[R]) -> list[R]:
        return [await _first(branch, request) for branch in self._branches]

    async def _ask_who_answers(self, request: Request[R]) -> _Found[R]:
        """What those say that answer, and who does not: one shard without an owner is no reason to show nothing of the
        others. Raises NotRunning where nobody answers at all."""
        asked = (_items(branch, request) for branch in self._branches)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = _Found[R]()
        nobody: list[NotRunning] = []
        for shard, answer in enumerate(answers):
            if isinstance(answer, NotRunning):
                found.missing.append(MissingPart(shard=shard, why=_unanswered(shard, answer)))
                nobody.append(answer)
            elif isinstance(answer, ConfigError):
                found.refused.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.items[shard] = answer
        if len(nobody) == len(self._branches):
            raise nobody[0]
        return found

    def _listed(self, found: _Found[MarkedT]) -> list[MarkedT]:
        """What each of them lists, marked with whose it is; those that have nothing of the kind are left out."""
        if len(found.refused) == len(self._branches):
            raise found.refused[0]
        return [structs.replace(one, shard=shard) for shard, items in found.items.items() for one in items]

    async def _verify(self, request: protocol.VerifyRequest) -> VerifyReply:
        """What all of them found: the last item of each. How far they are is not told."""
        found = [(await _items(branch, request))[-1] for branch in self._branches]
        return added_verifications(self._journal, [msgspec.convert(one, VerifyReply) for one in found])

    async def _retire(self, request: protocol.RetireRequest) -> RetireReply:
        """Leaves a dead replica out with all that hold the object. One that an agent of any of them has is not dead."""
        digits = request.replica.strip().lower()
        found = await self._ask_who_answers(protocol.SharedRequest(object=request.object))
        if found.missing:
            raise NotRunning(f"{found.missing[0].why}; whether an agent there has it is not known: nothing was retired")
        for one in self._listed(found):
            if len(one.replicas) < one.replicas_count:
                raise ConfigError(
                    f"{request.object} has {one.replicas_count:,} replicas, too many to see whether one of them is "
                    "dead everywhere; nothing was retired"
                )
            for replica in one.replicas:
                if digits and replica.replica.startswith(digits) and replica.agent:
                    raise ConfigError(
                        f"replica {replica.replica} is that of {replica.agent}, and not dead; name another"
                    )
        return await self._ask_those_that_can(request)

    async def _ask_those_that_can(self, request: Request[R]) -> R:
        """Asks all; those that do not have what it is about refuse, and what the first of the others says counts."""
        done: list[R] = []
        refused: list[ConfigError] = []
        for branch in self._branches:
            try:
                done.append(await _first(branch, request))
            except ConfigError as error:
                refused.append(error)
        if not done:
            raise refused[0]
        return done[0]

    async def _profile(self, request: protocol.ProfileRequest) -> Profile:
        """One process: the worker that is named, or the only one."""
        if not request.worker and len({(one.host, one.pid) for one in (await self.status()).parts}) > 1:
            raise ConfigError("which worker? Name one with --worker; stigmergy status --nats URL lists them")
        refused: list[str] = []
        for branch in self._branches:
            try:
                return await _first(branch, request)
            except (ConfigError, NotRunning) as error:
                refused.append(str(error))
        raise ConfigError("; ".join(dict.fromkeys(refused)))

    async def _log(self, request: protocol.LogRequest) -> Answers:
        """The first entries of all, or the last, by their times; as many as were asked for."""
        found = await self._ask_who_answers(request)
        entries = sorted((entry for items in found.all_items() for entry in items), key=_written_at)
        few = entries[: request.limit] if request.first is not None else entries[-request.limit :]
        return _stream(few, found.missing)

    async def _ask_projector(self, request: Request[R]) -> R:
        try:
            if self._projector is not None:
                return await _first(self._projector, request)
        except NotRunning:
            pass
        raise NotRunning(
            f"nobody projects the views of fleet {self._fleet!r}; workers do not, because each has only some of the "
            "shards: run stigmergy project MODULE:FLEET --nats URL"
        )

    async def _agents(self, request: protocol.AgentsRequest) -> AgentsReply:
        """The first of the agents of all; each owner is asked for a whole page, because all may be of one of them."""
        found = await self._ask_who_answers(request)
        return joined_agents([page for pages in found.all_items() for page in pages], request.limit, found.missing)

    async def _observe_many(self, request: protocol.ObserveManyRequest) -> ObserveManyReply:
        """Each owner gets those for its agents; where one does not answer, the others' are taken all the same."""
        shares: dict[int, list[int]] = {}
        for number, one in enumerate(request.items):
            shares.setdefault(self._homes.of(one.agent), []).append(number)
        outcomes = [ObservedOutcome(False)] * len(request.items)
        for shard, numbers in shares.items():
            asked = protocol.ObserveManyRequest(items=[request.items[number] for number in numbers])
            try:
                found = (await _first(self._branches[shard], asked)).outcomes
            except StigmergyError as error:
                found = [ObservedOutcome(False, str(error), type(error).__name__)] * len(numbers)
            for number, outcome in zip(numbers, found, strict=True):
                outcomes[number] = outcome
        return ObserveManyReply(outcomes)

    async def _events(self, request: protocol.EventsRequest) -> EventsReply:
        """A share of the page from each owner. To wait for events, ask each shard by itself."""
        if request.within_s:
            raise ConfigError("a wait is for the events of one shard: name it, or give no within_s")
        shares = None if request.after is None else read_positions(request.after)
        limit = max(1, request.limit // len(self._branches))
        pages: list[EventsReply] = []
        for shard, branch in enumerate(self._branches):
            at = None
            if shares is not None:
                mine = {key: one for key, one in shares.items() if read_key(key)[0] == shard}
                at = write_positions(mine or {str(shard): FeedPosition(0)})
            asked = structs.replace(request, shard=shard, after=at, limit=limit)
            pages.append(await _first(branch, asked))
        return EventsReply([one for page in pages for one in page.events], ",".join(page.positions for page in pages))

    async def _enroll(self, request: protocol.EnrollAgentsRequest) -> DescribedRoster:
        """Each owner enrols those agents that it has; one that has none of them says what it has anyhow."""
        check_enrolled_names(request.names)
        homes = [self._homes.of(f"{request.kind}/{name}") for name in request.names]
        found: list[DescribedRoster] = []
        places: dict[str, Place] = {}
        for shard, branch in enumerate(self._branches):
            mine = [name for name, home in zip(request.names, homes, strict=True) if home == shard]
            asked: Request[DescribedRoster] = protocol.RosterRequest(kind=request.kind)
            if mine:
                asked = protocol.EnrollAgentsRequest(kind=request.kind, names=mine)
            found.append(await _first(branch, asked))
            places.update(zip(mine, found[-1].places, strict=True))
        return joined_rosters(found, [places[name] for name in request.names])

    async def _revoke(self, request: protocol.RevokeRequest) -> RevokeReply:
        if request.last_position is not None:
            raise ConfigError(
                "a last position is one in the log of one part, and each has its own; leave it out to revoke up to "
                f"now, or {ASIDE}"
            )
        return (await self._ask_all(request))[0]


class _Passed:
    """An answer of one owner, passed on line by line as it is."""

    def __init__(self, lines: AsyncIterator[bytes], shard: int) -> None:
        self._lines = lines
        self._shard = shard
        self._over = False

    def __aiter__(self) -> _Passed:
        return self

    async def __anext__(self) -> Answer:
        if self._over:
            raise StopAsyncIteration
        try:
            line = await anext(self._lines)
        except NotRunning as error:
            text = f"the owner of shard {self._shard} does not answer now; {AGAIN} ({error})"
            raise type(error)(text) from None
        if not line.startswith(ITEM):
            self._over = True
            await close_answers(self._lines)
        return line


def _unanswered(shard: int, error: StigmergyError) -> str:
    return f"shard {shard} has no owner that answers: {error}"


async def _first(branch: OwnerClient, request: Request[R]) -> R:
    """The one answer of an owner; raises what it refuses with."""
    lines = branch.ask(request)
    try:
        return read_single(await anext(lines), request)
    finally:
        await close_answers(lines)


async def _items(branch: OwnerClient, request: Request[R]) -> list[R]:
    """All items of the answer of an owner, or its one answer; raises what it refuses with."""
    lines = branch.ask(request)
    found: list[R] = []
    try:
        async for line in lines:
            reply = read_reply(line, request)
            if reply.item is None:
                found += [] if reply.ok is None else [reply.ok]
                break
            found.append(reply.item)
    finally:
        await close_answers(lines)
    return found


async def close_answers(lines: Answers) -> None:
    """Wants no more of them."""
    close = getattr(lines, "aclose", None)
    if close is not None:
        await close()


def _stream(items: Sequence[Any], missing: Sequence[MissingPart] = ()) -> Answers:
    return iter((*map(item, items), end(len(items), missing)))


def _written_at(entry: LogEntry) -> tuple[int, int, int, int]:
    return (entry.time_ns, entry.shard, entry.position, entry.index)


def read_item(item: Any, kind: type[T]) -> LogProgress | T:
    """An item of `verify` or `export`. Only progress has `of`: there is no tag that says which of both it is."""
    try:
        return msgspec.convert(item, LogProgress) if "of" in item else msgspec.convert(item, kind)
    except (msgspec.ValidationError, TypeError) as error:
        raise protocol.UnreadableReply(
            f"the node's answer is not what was asked for ({error}); update one of them"
        ) from None
