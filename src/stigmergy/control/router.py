"""The control endpoint of several processes: routes each request to the one with the agent or shard, or to all.

A request about one agent or shard is forwarded, and its answer is returned unchanged. A request about the node goes to
all, and the answers are merged: counts are added, entries of the log are sorted by time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from stigmergy.base.errors import ConfigError, NotRunning, StigmergyError
from stigmergy.control import protocol
from stigmergy.control.description import described_link
from stigmergy.control.protocol import (
    VERSION,
    Reply,
    read_reply,
    read_request,
    write_error,
    write_reply,
    write_request,
)
from stigmergy.network.bus_link import LinkStatus
from stigmergy.network.shares import owned_by, process_of
from stigmergy.node.column_roster import check_enrolled_names, joined_rosters
from stigmergy.shard.homes import Homes

# Merges the answers of several processes so that they read as those of one node.

ADDED = (
    "cpu_s",
    "memory_peak_bytes",
    "agents",
    "events",
    "commits",
    "owed",
    "waiting",
    "dead_letters",
    "journal_bytes",
)
"""What is added up of a status."""
OF_A_PROCESS = ("cpu_s", "memory_peak_bytes")
"""What is counted once where one process has several of the shards."""
TOLD = (
    "pid",
    "host",
    "up_s",
    "cpu_s",
    "memory_peak_bytes",
    "agents",
    "events",
    "owed",
    "waiting",
    "journal",
    "journal_bytes",
)
"""What a status says of each process beside that."""


def added_status(
    about: Mapping[str, Any],
    statuses: Mapping[int, Mapping[str, Any]],
    troubles: Sequence[str],
    shards: int,
    processes: int,
) -> dict[str, Any]:
    """The status of a node of several processes, from theirs. `about` is what the node itself says."""
    known = [statuses[process] for process in sorted(statuses)]
    added = {name: _rounded(sum(one[name] for one in known)) for name in ADDED}
    for name in OF_A_PROCESS:
        added[name] = _rounded(sum({(one.get("host"), one["pid"]): one[name] for one in known}.values()))
    recovered = [one["recovered"] for one in known]
    found: dict[str, Any] = {name: value for name, value in about.items() if name != "sockets"}
    found |= {
        **added,
        "stopped": {agent: why for one in known for agent, why in one["stopped"].items()},
        "heads": [head for one in known for head in one["heads"]],
        "signers": _signers(known),
        "recovered": {
            **{name: sum(one[name] for one in recovered) for name in ("commits", "events", "signatures")},
            "snapshots": {shard: position for one in recovered for shard, position in one["snapshots"].items()},
            "passed_over": [what for one in recovered for what in one["passed_over"]],
        },
        "counters": _counters(known),
        "troubles": [*troubles, *(trouble for one in known for trouble in one["troubles"])],
        "link": known[0]["link"] if known else described_link(LinkStatus()),
        "processes": [],
    }
    if at_rest := sorted(agent for one in known for agent in one.get("at_rest", ())):
        found["at_rest"] = at_rest
    if copies := [copy for one in known for copy in one.get("copies", ())]:
        found["copies"] = copies
    for process in range(1, processes + 1):
        owned = owned_by(process, processes, shards)
        one = statuses.get(process, {})
        told = {name: one.get(name) for name in TOLD}
        found["processes"].append({"process": process, "first_shard": owned[0], "last_shard": owned[-1], **told})
    return found


def joined_claims(found: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Who holds what, by the one that has read the ledger furthest, with what the agents of all of them believe."""
    furthest: dict[str, dict[str, Any]] = {}
    beliefs: dict[str, list[Any]] = {}
    for one in (one for items in found for one in items):
        name = one["resource"]
        beliefs.setdefault(name, []).extend(one["believed"])
        if name not in furthest or one["read_to"] > furthest[name]["read_to"]:
            furthest[name] = dict(one)
    return [{**furthest[name], "believed": beliefs[name]} for name in sorted(furthest)]


def added_verifications(journal: str, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the verifications of all parts found, as one."""
    added = {
        name: sum(one[name] for one in found)
        for name in ("commits", "events", "signatures", "snapshots", "snapshots_unfinished")
    }
    return {
        "journal": journal,
        "sound": all(one["sound"] for one in found),
        **added,
        "heads": [head for one in found for head in one["heads"]],
        "signers": [signer for one in found for signer in one["signers"]],
        "problems": [problem for one in found for problem in one["problems"]],
    }


def joined_names(found: Sequence[Mapping[str, Any]], limit: int) -> dict[str, Any]:
    """The kinds, which all know, and the first of all agents."""
    agents = sorted(agent for one in found for agent in one["agents"])
    return {"kinds": found[0]["kinds"], "agents": agents[:limit]}


def _signers(known: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each key once; revoked where it is revoked everywhere."""
    found: dict[str, dict[str, Any]] = {}
    for one in known:
        for signer in one["signers"]:
            before = found.setdefault(signer["public_key"], dict(signer))
            if signer["revoked_after"] is None:
                before["revoked_after"] = None
            before["signs_now"] = before["signs_now"] or signer["signs_now"]
    return list(found.values())


def _counters(known: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    counters: dict[str, int] = {}
    for one in known:
        for name, count in one["counters"].items():
            counters[name] = counters.get(name, 0) + count
    return counters


def _rounded(value: float) -> float:
    return round(value, 3)


class MergedEntries:
    """Entries of the log from several processes, in the order of their times, and at last the end.

    Of each process one entry is held at a time: memory does not grow with the log.
    """

    def __init__(self, streams: Sequence[AsyncIterator[bytes]]) -> None:
        self._streams: dict[int, AsyncIterator[bytes]] = dict(enumerate(streams))
        self._heads: dict[int, tuple[tuple[int, int, int, int], bytes]] = {}
        self._progress: dict[int, dict[str, Any]] = {}
        self._told = False
        self._begun = False
        self._over = False
        self._count = 0

    def __aiter__(self) -> MergedEntries:
        return self

    async def __anext__(self) -> bytes:
        if self._over:
            raise StopAsyncIteration
        try:
            return await self._next()
        except StigmergyError as error:
            self._over = True
            return write_error(error)

    async def _next(self) -> bytes:
        if not self._begun:
            self._begun = True
            for number in list(self._streams):
                await self._advance(number)
        if self._told:
            self._told = False
            return write_reply(Reply(v=VERSION, item=self._far()))
        if not self._heads:
            self._over = True
            return write_reply(Reply(v=VERSION, end={"count": self._count}))
        number = min(self._heads, key=lambda one: self._heads[one][0])
        line = self._heads.pop(number)[1]
        await self._advance(number)
        self._count += 1
        return line

    async def _advance(self, number: int) -> None:
        """The next entry of a process becomes its head; how far it says it is, on the way, is remembered."""
        while True:
            line = await anext(self._streams[number])
            reply = read_reply(line)
            if reply.end is not None:
                del self._streams[number]
                return
            if "of" in reply.item:
                self._progress[number] = reply.item
                self._told = True
                continue
            entry = reply.item
            self._heads[number] = ((entry["time_ns"], entry["shard"], entry["position"], entry["index"]), line)
            return

    def _far(self) -> dict[str, Any]:
        known = list(self._progress.values())
        added = {name: sum(one[name] for one in known) for name in ("commits", "of")}
        return {**known[0], **added}


LETTER_ID = re.compile(r"(\d{1,4})\.\d+\.\d+", re.ASCII)


class OwnerClient(Protocol):
    """The control endpoint of one of the processes."""

    def ask(self, request: bytes) -> AsyncIterator[bytes]:
        """The lines that answer a request, as they come. Raises NotRunning where nobody answers."""
        ...


class Wording(Struct, frozen=True):
    """How those who have the shards are called, and what to do when one does not answer."""

    one: str
    again: str
    standing: str
    several: str
    aside: str
    part: str
    """What an answer of one of them is marked with, where those of all are listed."""
    first: int
    """How they are counted."""


WORKERS = Wording(
    one="the owner of shard {first}",
    again="a majority of the servers and a worker must run, and stigmergy status --nats URL shows both",
    standing="shard {first} has no owner that answers",
    several="a fleet on several workers cannot be asked for this",
    aside="each shard has a log of its own",
    part="shard",
    first=0,
)


class _Found:
    """What all of them were asked for: what came, by their numbers, who refused, and who did not answer."""

    def __init__(self) -> None:
        self.items: dict[int, list[Any]] = {}
        self.refused: list[ConfigError] = []
        self.missing: list[dict[str, Any]] = []

    def all_items(self) -> list[list[Any]]:
        """What all have that answered. Raises what one of them refused with."""
        if self.refused:
            raise self.refused[0]
        return list(self.items.values())


class ControlRouter:
    """Answers requests about a node of several processes. `about` says what is known of the node itself."""

    def __init__(
        self,
        homes: Homes,
        branches: Sequence[OwnerClient],
        about: Callable[[], dict[str, Any]],
        stop: Callable[[], None],
        wording: Wording = WORKERS,
    ) -> None:
        self._homes = homes
        self._shards = homes.shards
        self._branches = tuple(branches)
        self._about = about
        self._stop = stop
        self._wording = wording
        self._last: dict[int, dict[str, Any]] = {}
        """The last status of each process: one that is down for a moment is not forgotten."""

    async def answer(self, line: bytes) -> Iterator[bytes] | AsyncIterator[bytes]:
        """The lines that answer this one."""
        try:
            return await self._answered(line, read_request(line))
        except Exception as error:
            return iter((write_error(error),))

    def refuse(self, error: StigmergyError) -> bytes:
        """The line for a client whose request could not even be taken."""
        return write_error(error)

    async def status(self) -> dict[str, Any]:
        """Where the node stands, all processes added up."""
        asked = [self._status_of(process) for process in range(1, len(self._branches) + 1)]
        troubles = [trouble for trouble in await asyncio.gather(*asked) if trouble]
        return added_status(self._about(), self._last, troubles, self._shards, len(self._branches))

    async def _answered(self, line: bytes, request: protocol.AnyRequest) -> Iterator[bytes] | AsyncIterator[bytes]:
        shard = self._shard_of(request)
        if shard is not None:
            return _Passed(self._branch(shard), line, self._said(self._wording.one, shard), self._wording.again)
        match request:
            case protocol.StatusRequest():
                return _one(await self.status())
            case protocol.NamesRequest():
                return _one(joined_names(await self._ask_all(line), request.limit))
            case protocol.RosterRequest():
                return _one(joined_rosters(await self._ask_all(line)))
            case protocol.EnrollAgentsRequest():
                return _one(await self._enroll(request))
            case protocol.LogRequest():
                return await self._log(request)
            case protocol.LettersRequest():
                found = await self._ask_who_answers(line)
                return _stream([item for items in found.all_items() for item in items], found.missing)
            case protocol.ClaimsRequest():
                found = await self._ask_who_answers(line)
                return _stream(joined_claims(found.all_items()), found.missing)
            case protocol.SharedRequest() | protocol.QuarantineRequest():
                found = await self._ask_who_answers(line)
                return _stream(self._listed(found), found.missing)
            case protocol.LiftRequest():
                return _one(await self._ask_those_that_can(line))
            case protocol.RetireRequest():
                return _one(await self._retire(line, request))
            case protocol.VerifyRequest():
                verified = [items[-1] for items in await self._ask_streams(line)]
                return _stream([added_verifications(str(self._about()["journal"]), verified)])
            case protocol.ExportRequest():
                return MergedEntries([branch.ask(line) for branch in self._branches])
            case protocol.EnrolRequest():
                return _one((await self._ask_all(line))[0])
            case protocol.RevokeRequest():
                return _one(await self._revoke(line, request))
            case protocol.StopRequest():
                self._stop()
                return _one({"stopping": True})
            case _:
                raise ConfigError(f"{self._wording.several} ({type(request).__name__}); {self._aside()}")

    def _shard_of(self, request: protocol.AnyRequest) -> int | None:
        """The one shard that a request is about, if it is about one."""
        match request:
            case (
                protocol.SendRequest() | protocol.ObserveRequest() | protocol.StateRequest() | protocol.ResumeRequest()
            ):
                return self._homes.of(request.agent)
            case protocol.LogRequest() | protocol.ExportRequest():
                if request.shard is not None and not 0 <= request.shard < self._shards:
                    raise ConfigError(f"shard {request.shard}: this fleet has shards 0 to {self._shards - 1}")
                return request.shard if request.agent is None else self._homes.of(request.agent)
            case protocol.RetryRequest() | protocol.DropRequest():
                found = LETTER_ID.fullmatch(request.letter)
                if found is None or int(found[1]) >= self._shards:
                    raise ConfigError(
                        f"there is no dead letter {request.letter!r}; stigmergy letters lists those there are"
                    )
                return int(found[1])
            case _:
                return None

    def _branch(self, shard: int) -> OwnerClient:
        return self._branches[process_of(shard, len(self._branches), self._shards) - 1]

    def _said(self, wording: str, first: int, last: int = 0) -> str:
        process, processes = process_of(first, len(self._branches), self._shards), len(self._branches)
        return wording.format(process=process, processes=processes, first=first, last=last)

    def _aside(self) -> str:
        return self._wording.aside.format(sockets=self._about().get("sockets", ""))

    async def _status_of(self, process: int) -> str:
        try:
            self._last[process] = await _first(self._branches[process - 1], write_request(protocol.StatusRequest()))
        except StigmergyError as error:
            owned = owned_by(process, len(self._branches), self._shards)
            return f"{self._said(self._wording.standing, owned[0], owned[-1])}: {error}"
        return ""

    async def _ask_all(self, line: bytes) -> list[Any]:
        return [await _first(branch, line) for branch in self._branches]

    async def _ask_streams(self, line: bytes) -> list[list[Any]]:
        return [await _items(branch, line) for branch in self._branches]

    async def _ask_who_answers(self, line: bytes) -> _Found:
        """What those say that answer, and who does not: one shard without an owner is no reason to show nothing of the
        others. Raises NotRunning where nobody answers at all."""
        asked = (_items(branch, line) for branch in self._branches)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = _Found()
        nobody: list[NotRunning] = []
        for process, answer in enumerate(answers, start=1):
            number = process - 1 + self._wording.first
            if isinstance(answer, NotRunning):
                owned = owned_by(process, len(self._branches), self._shards)
                why = f"{self._said(self._wording.standing, owned[0], owned[-1])}: {answer}"
                found.missing.append({self._wording.part: number, "why": why})
                nobody.append(answer)
            elif isinstance(answer, ConfigError):
                found.refused.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.items[number] = answer
        if len(nobody) == len(self._branches):
            raise nobody[0]
        return found

    def _listed(self, found: _Found) -> list[Any]:
        """What each of them lists, marked with whose it is; those that have nothing of the kind are left out."""
        if len(found.refused) == len(self._branches):
            raise found.refused[0]
        return [{self._wording.part: number, **item} for number, items in found.items.items() for item in items]

    async def _retire(self, line: bytes, request: protocol.RetireRequest) -> Any:
        """Leaves a dead replica out with all that hold the object. One that an agent of any of them has is not dead."""
        digits = request.replica.strip().lower()
        found = await self._ask_who_answers(write_request(protocol.SharedRequest(object=request.object)))
        if found.missing:
            raise NotRunning(
                f"{found.missing[0]['why']}; whether an agent there has it is not known: nothing was retired"
            )
        for one in self._listed(found):
            if len(one["replicas"]) < one["replicas_count"]:
                raise ConfigError(
                    f"{request.object} has {one['replicas_count']:,} replicas, too many to see whether one of them is "
                    "dead everywhere; nothing was retired"
                )
            for replica in one["replicas"]:
                if digits and replica["replica"].startswith(digits) and replica["agent"]:
                    raise ConfigError(
                        f"replica {replica['replica']} is that of {replica['agent']}, and not dead; name another"
                    )
        return await self._ask_those_that_can(line)

    async def _ask_those_that_can(self, line: bytes) -> Any:
        """Asks all; those that do not have what it is about refuse, and what the first of the others says counts."""
        done: list[Any] = []
        refused: list[ConfigError] = []
        for branch in self._branches:
            try:
                done.append(await _first(branch, line))
            except ConfigError as error:
                refused.append(error)
        if not done:
            raise refused[0]
        return done[0]

    async def _log(self, request: protocol.LogRequest) -> Iterator[bytes]:
        """The first entries of all, or the last, by their times; as many as were asked for."""
        found = await self._ask_who_answers(write_request(request))
        entries = sorted((entry for items in found.all_items() for entry in items), key=_written_at)
        few = entries[: request.limit] if request.first is not None else entries[-request.limit :]
        return _stream(few, found.missing)

    async def _enroll(self, request: protocol.EnrollAgentsRequest) -> Any:
        """Each process enrols those agents that it has; one that has none of them says what it has anyhow."""
        check_enrolled_names(request.names)
        homes = [
            process_of(self._homes.of(f"{request.kind}/{name}"), len(self._branches), self._shards)
            for name in request.names
        ]
        found: list[Any] = []
        places: dict[str, list[int]] = {}
        for process, branch in enumerate(self._branches, start=1):
            mine = [name for name, home in zip(request.names, homes, strict=True) if home == process]
            asked = (
                protocol.EnrollAgentsRequest(kind=request.kind, names=mine)
                if mine
                else protocol.RosterRequest(kind=request.kind)
            )
            found.append(await _first(branch, write_request(asked)))
            places.update(zip(mine, found[-1]["places"], strict=True))
        return joined_rosters(found, [places[name] for name in request.names])

    async def _revoke(self, line: bytes, request: protocol.RevokeRequest) -> Any:
        if request.last_position is not None:
            raise ConfigError(
                "a last position is one in the log of one part, and each has its own; leave it out to revoke up to "
                f"now, or {self._aside()}"
            )
        return (await self._ask_all(line))[0]


class _Passed:
    """An answer of one process, passed on line by line."""

    def __init__(self, branch: OwnerClient, line: bytes, who: str, again: str) -> None:
        self._lines = branch.ask(line)
        self._who = who
        self._again = again
        self._over = False

    def __aiter__(self) -> _Passed:
        return self

    async def __anext__(self) -> bytes:
        if self._over:
            raise StopAsyncIteration
        try:
            line = await anext(self._lines)
        except NotRunning as error:
            self._over = True
            return write_error(NotRunning(f"{self._who} does not answer now; {self._again} ({error})"))
        except StigmergyError as error:
            self._over = True
            return write_error(error)
        if _is_last(line):
            self._over = True
            await _close(self._lines)
        return line


def _is_last(line: bytes) -> bool:
    """Whether nothing follows this line of an answer: only items are followed by something."""
    return not line.startswith(_ITEM)


_ITEM = write_reply(Reply(v=VERSION, item=0))[:-3]
"""How the line of an item begins."""


async def _first(branch: OwnerClient, line: bytes) -> Any:
    """The one answer of a process; raises what it refuses with."""
    lines = branch.ask(line)
    try:
        return read_reply(await anext(lines)).ok
    finally:
        await _close(lines)


async def _items(branch: OwnerClient, line: bytes) -> list[Any]:
    """All items of the answer of a process; raises what it refuses with."""
    lines = branch.ask(line)
    found: list[Any] = []
    try:
        async for one in lines:
            reply = read_reply(one)
            if reply.end is not None:
                break
            found.append(reply.item)
    finally:
        await _close(lines)
    return found


async def _close(lines: AsyncIterator[bytes]) -> None:
    close = getattr(lines, "aclose", None)
    if close is not None:
        await close()


def _one(value: Any) -> Iterator[bytes]:
    return iter((write_reply(Reply(v=VERSION, ok=value)),))


def _stream(items: list[Any], missing: Sequence[dict[str, Any]] = ()) -> Iterator[bytes]:
    lines = [write_reply(Reply(v=VERSION, item=item)) for item in items]
    end = {"count": len(lines), **({"missing": missing} if missing else {})}
    return iter((*lines, write_reply(Reply(v=VERSION, end=end))))


def _written_at(entry: dict[str, Any]) -> tuple[int, int, int, int]:
    return (entry["time_ns"], entry["shard"], entry["position"], entry["index"])
