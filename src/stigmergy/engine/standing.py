"""How a cluster stands: servers, streams, and of each fleet its workers, the owners of its shards, and what lags."""

from __future__ import annotations

import re
import time
from typing import Any

from msgspec import Struct, structs

from stigmergy.adapters.nats import naming
from stigmergy.adapters.nats.errors import WITHOUT_JETSTREAM, JetStreamRefused
from stigmergy.adapters.nats.inspection import (
    ServersSeen,
    StreamSeen,
    look_at_servers,
    look_at_streams,
    with_consumers,
    with_copies,
)
from stigmergy.adapters.nats.link import NatsLink
from stigmergy.core.errors import ConfigError, LinkDown, Malformed
from stigmergy.engine.checking import is_off
from stigmergy.runtime.cluster.records import (
    COORDINATOR,
    FLEET,
    PLAN,
    Coordinator,
    FleetShape,
    Member,
    Owner,
    Plan,
    read_record,
    worker_of,
)

NO_MAJORITY = "a majority of the servers is gone: nothing can be written or placed until it is back"
NOBODY_LEADS = (
    "the servers have no leader at the moment; they choose one within seconds, and nothing is written until then"
)
KEYS_COUNT = 500
"""So many keys of a bucket are asked for at a time."""
KEYS_COUNT_MAX = 100_000
_CLUSTER_STREAM = "KV_" + naming.cluster_bucket("")
_LEDGER_STREAM = naming.ledger_stream("")
_LOG = re.compile(rf"({re.escape(naming.log_stream('', 0, 0)[: -len('_0_0')])}.+)_(\d+)_\2")
"""The log of one shard."""
_OWNER_KEY = re.compile(r"owner\.(\d+)")
_LATER = ("KV-Operation", "Nats-Marker-Reason")
"""Headers of a message that says that a key is gone."""


class WorkerSeen(Struct, frozen=True):
    """A worker that holds its lease, as it describes itself."""

    id: str
    host: str
    pid: int
    owns: tuple[int, ...]
    up_s: float
    is_leaving: bool
    revision: int
    """Of its lease."""


class ShardSeen(Struct, frozen=True):
    """A shard, and who has it."""

    shard: int
    worker: str
    """Empty: nobody has it."""
    claim: int
    planned: str
    """Who is to have it."""
    last_sequence: int | None
    """Of its log."""


class FleetSeen(Struct, frozen=True):
    """A fleet with workers on this cluster."""

    fleet: str
    workers: tuple[WorkerSeen, ...]
    shards: tuple[ShardSeen, ...]
    coordinator: str
    plan: int | None
    """The number of the plan."""
    unmet: tuple[str, ...] = ()
    """What its agents need and its workers have not, as they say themselves."""


class LedgerSeen(Struct, frozen=True):
    """A ledger, and where its log ends."""

    ledger: str
    head: int
    when: str


class Standing(Struct, frozen=True, kw_only=True):
    """Everything that was seen in one look."""

    url: str
    at_s: float
    servers: ServersSeen
    streams: tuple[StreamSeen, ...] = ()
    leaderless: tuple[str, ...] = ()
    """Streams that nobody answers for."""
    fleets: tuple[FleetSeen, ...] = ()
    ledgers: tuple[LedgerSeen, ...] = ()
    trouble: str = ""
    """Why streams could not be asked for."""

    def folded(self) -> list[StreamSeen]:
        """The streams, with the logs of a fleet's shards as one, `STIG_LOG_town_* (0-7)`: last sequences and sizes
        are summed. A log of which a copy is missing or behind, or that nobody leads, stays by itself."""
        logs: dict[tuple[str, int], list[tuple[int, StreamSeen]]] = {}
        for stream in self.streams:
            log = _LOG.fullmatch(stream.name)
            if log is not None and self._is_well(stream):
                logs.setdefault((log[1], stream.replicas), []).append((int(log[2]), stream))
        folded: dict[str, StreamSeen | None] = {}
        for (name, _), alike in logs.items():
            if len(alike) > 1:
                folded |= dict.fromkeys(stream.name for _, stream in alike)
                folded[alike[0][1].name] = _as_one(name, alike)
        found = (folded.get(stream.name, stream) for stream in self.streams)
        return [stream for stream in found if stream is not None]

    def _is_well(self, stream: StreamSeen) -> bool:
        trouble = (*self.servers.gone, *self.servers.off)
        copies = (one.is_current and not one.is_offline and one.server not in trouble for one in stream.others)
        return bool(stream.leader or stream.replicas == 1) and all(copies) and not stream.behind


def _as_one(name: str, logs: list[tuple[int, StreamSeen]]) -> StreamSeen:
    numbers = sorted(shard for shard, _ in logs)
    runs = f"{numbers[0]}-{numbers[-1]}" if numbers == list(range(numbers[0], numbers[-1] + 1)) else f"{len(logs)} logs"
    return structs.replace(
        logs[0][1],
        name=f"{name}_* ({runs})",
        leader=", ".join(sorted(dict.fromkeys(log.leader for _, log in logs if log.leader))),
        last_sequence=sum(log.last_sequence for _, log in logs),
        stored_bytes=sum(log.stored_bytes for _, log in logs),
    )


async def look(link: NatsLink, fleet: str = "") -> Standing:
    """One look at everything, or at what belongs to one fleet. Raises LinkDown, ConfigError."""
    servers = await look_at_servers(link)
    standing = Standing(url=link.address.shown, at_s=time.time(), servers=servers)
    if servers.has_quorum is False:
        return _without(standing, _why_no_quorum(servers))
    try:
        streams, leaderless = await look_at_streams(link)
    except JetStreamRefused as refused:
        if refused.code in WITHOUT_JETSTREAM:
            return _without(standing, "this user sees servers only; give the URL of the fleet to see its streams")
        return _without(standing, f"JetStream does not answer: {refused.description}")
    except LinkDown as error:
        return _without(standing, f"JetStream does not answer, as without a majority of its servers ({error})")
    buckets = [one for one in streams if one.name.startswith(_CLUSTER_STREAM)]
    fleets = [await _fleet(link, one.name, {stream.name: stream for stream in streams}) for one in buckets]
    if fleet:
        fleets = [one for one in fleets if one.fleet == fleet]
        streams = [one for one in streams if _belongs(one.name, fleet)]
        leaderless = [name for name in leaderless if _belongs(name, fleet)]
        if not fleets and not streams and not leaderless:
            raise ConfigError(f"there is no fleet {fleet!r} on {link.address.shown}; start a worker, or leave it out")
    ledgers = [
        LedgerSeen(one.name.removeprefix(_LEDGER_STREAM), one.last_sequence, one.last_time)
        for one in streams
        if one.name.startswith(_LEDGER_STREAM)
        and not one.name.endswith(naming.ledger_checkpoints("")[len(_LEDGER_STREAM) :])
    ]
    return Standing(
        url=standing.url,
        at_s=standing.at_s,
        servers=servers,
        streams=tuple([await with_consumers(link, one) for one in await with_copies(link, streams, servers)]),
        leaderless=tuple(leaderless),
        fleets=tuple(fleets),
        ledgers=tuple(ledgers),
    )


def _why_no_quorum(servers: ServersSeen) -> str:
    if servers.has_majority:
        return NOBODY_LEADS
    if not servers.off:
        return NO_MAJORITY
    gone = f"{', '.join(servers.gone)} gone; " if servers.gone else ""
    return f"{gone}{is_off(servers.off)}; nothing can be written or placed without a majority"


def _without(standing: Standing, why: str) -> Standing:
    return Standing(url=standing.url, at_s=standing.at_s, servers=standing.servers, trouble=why)


def _belongs(stream: str, fleet: str) -> bool:
    """Whether a stream is one of this fleet's, by its name; a ledger of the same name is taken for its own."""
    name = naming.token(fleet)
    return re.search(rf"[_-]{re.escape(name)}(?:(?:_\d+)*|_STATE)$", stream) is not None


async def _fleet(link: NatsLink, stream: str, streams: dict[str, StreamSeen]) -> FleetSeen:
    """What its workers have written down."""
    found = await _read_keys(link, stream)
    shape = _record(FleetShape, found, FLEET)
    plan, coordinator = _record(Plan, found, PLAN), _record(Coordinator, found, COORDINATOR)
    name = shape.fleet if shape is not None else stream.removeprefix(_CLUSTER_STREAM)
    owners: dict[int, Owner] = {}
    for key in found:
        if (number := _OWNER_KEY.fullmatch(key)) and (owner := _record(Owner, found, key)) is not None:
            owners[int(number[1])] = owner
    workers: list[WorkerSeen] = []
    unmet: dict[str, None] = {}
    for key, (_, revision) in found.items():
        if worker_of(key) is not None and (member := _record(Member, found, key)) is not None:
            up_s = max(0.0, time.time() - member.since_ns / 1e9) if member.since_ns else 0.0
            unmet |= dict.fromkeys(member.unmet)
            workers.append(WorkerSeen(member.id, member.host, member.pid, member.owns, up_s, member.leaving, revision))
    count = max([shape.shards if shape is not None else 0, *(shard + 1 for shard in owners)])
    there = [one.id for one in workers]
    shards: list[ShardSeen] = []
    for shard in range(count):
        owner, log = owners.get(shard), streams.get(naming.log_stream(name, shard, shard))
        shards.append(
            ShardSeen(
                shard,
                owner.worker if owner is not None and owner.worker in there else "",
                owner.claim if owner is not None else 0,
                plan.owner_of(shard) if plan is not None else "",
                log.last_sequence if log is not None else None,
            )
        )
    workers.sort(key=lambda one: one.id)
    return FleetSeen(
        name,
        tuple(workers),
        tuple(shards),
        coordinator.worker if coordinator is not None else "",
        plan.number if plan is not None else None,
        tuple(unmet),
    )


def _record(kind: type[Any], found: dict[str, tuple[bytes, int]], key: str) -> Any:
    """A record, or None: somebody else's mistake is no reason to show nothing."""
    try:
        return read_record(kind, key, found[key][0]) if key in found else None
    except Malformed:
        return None


async def _read_keys(link: NatsLink, stream: str) -> dict[str, tuple[bytes, int]]:
    """All keys of a bucket, with their values and revisions."""
    subjects = f"$KV.{stream.removeprefix('KV_')}."
    found: dict[str, tuple[bytes, int]] = {}
    after = 0
    for _ in range(KEYS_COUNT_MAX // KEYS_COUNT):
        body = f'{{"batch":{KEYS_COUNT},"next_by_subj":"{subjects}>","seq":{after + 1}}}'.encode()
        page = await link.collect(link.api_subject(f"DIRECT.GET.{stream}"), body, KEYS_COUNT)
        for message in page:
            headers = message.headers or {}
            after = int(headers["Nats-Sequence"])
            key = headers["Nats-Subject"].removeprefix(subjects)
            if any(name in headers for name in _LATER):
                found.pop(key, None)
            else:
                found[key] = (message.data, after)
        if len(page) < KEYS_COUNT:
            break
    return found
