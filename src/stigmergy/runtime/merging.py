"""What several processes say of themselves, put together so that it reads as what one node says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from stigmergy.core.errors import StigmergyError
from stigmergy.runtime.describing import described_link
from stigmergy.runtime.link import LinkStanding
from stigmergy.runtime.protocol import VERSION, Reply, read_reply, write_error, write_reply
from stigmergy.runtime.shares import owned_by

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
        "link": known[0]["link"] if known else described_link(LinkStanding()),
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
