"""The state of a cluster: servers, streams, and for each fleet its workers, the owners of its shards, and lag."""

from __future__ import annotations

import re
import time
from enum import StrEnum
from typing import Any

from msgspec import Struct, structs

from stigmergy.base.errors import ConfigError, LinkDown, Malformed
from stigmergy.cluster.records import (
    COORDINATOR,
    FLEET,
    PLAN,
    Coordinator,
    FleetShape,
    Owner,
    ShardPlan,
    WorkerRecord,
    read_record,
    worker_of,
)
from stigmergy.nats import naming
from stigmergy.nats.errors import WITHOUT_JETSTREAM, JetStreamRefused
from stigmergy.nats.link import NatsLink
from stigmergy.nats.servers.inspection import (
    ServersSeen,
    StreamSeen,
    look_at_servers,
    look_at_streams,
    with_consumers,
    with_copies,
)

# Problems of a cluster, present or near, as sentences with remedies. Pure: it judges one report.

CLOCK_WARN_S = 0.5
CLOCK_FAIL_S = 5.0
"""Leases use monotonic clocks; but the times in logs are compared, and need clocks that agree."""
STORE_WARN = 0.8
STORE_FAIL = 0.95
MEND_OFF = (
    "see in its log what went wrong, make room on its disk (store_dir), and restart it: it catches up by itself. "
    "`stigmergy up` does that for its servers"
)


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class ClusterFinding(Struct, frozen=True):
    """The result of one check."""

    check: str
    level: Level
    what: str
    remedy: str = ""


def check(standing: ClusterStatus) -> list[ClusterFinding]:
    """All checks that are possible from outside."""
    return [
        *_quorum(standing),
        *_versions(standing),
        *_sync(standing),
        *_stores(standing),
        *_clocks(standing),
        *_streams(standing),
        *_shards(standing),
    ]


def is_off(servers: list[str]) -> str:
    """The error of servers that run and store nothing."""
    return (
        f"JetStream is off on {', '.join(servers)}: NATS turns it off when the disk of a server is full or fails, and "
        "it stays off until that server is restarted"
    )


def _quorum(standing: ClusterStatus) -> list[ClusterFinding]:
    seen = standing.servers
    found: list[ClusterFinding] = []
    if seen.has_quorum is False:
        what = f"{standing.trouble}; gone: {', '.join(seen.gone) or 'none'}"
        if seen.gone or not seen.off:
            found += [
                ClusterFinding("servers", Level.FAIL, what, "start the servers that are gone, with the disks they had")
            ]
    elif seen.gone:
        remedy = "start it again with its disk; if that is permanently lost: stigmergy cluster replace"
        found += [
            ClusterFinding("servers", Level.WARN, f"{', '.join(seen.gone)} gone; one more may be too many", remedy)
        ]
    if seen.off:
        without = "" if seen.has_quorum is not False else "; nothing can be written without a majority"
        what = f"{is_off(seen.off)}{without}"
        found += [ClusterFinding("jetstream", Level.FAIL, what, MEND_OFF)]
    for server in seen.servers:
        if server.error and not server.is_off:
            level, remedy = (Level.FAIL, MEND_OFF) if server.cannot_write else (Level.WARN, "look again in a moment")
            found += [ClusterFinding("health", level, f"{server.name} is not healthy: {server.error}", remedy)]
    if found:
        return found
    if len(seen.servers) == 1:
        what = "one server: it stores everything once, and nothing is written while it is away"
        return [
            ClusterFinding(
                "servers", Level.WARN, what, "three servers survive the loss of one: stigmergy cluster config"
            )
        ]
    if len(seen.servers) % 2 == 0:
        what = f"{len(seen.servers)} servers survive no more losses than {len(seen.servers) - 1}"
        return [ClusterFinding("servers", Level.WARN, what, "take one away, or add one")]
    return [ClusterFinding("servers", Level.OK, f"all {len(seen.servers)} up, {seen.leader or 'somebody'} leads")]


def _versions(standing: ClusterStatus) -> list[ClusterFinding]:
    versions = sorted({server.version for server in standing.servers.servers if server.version})
    if len(versions) > 1:
        what = f"servers run different versions: {', '.join(versions)}"
        return [ClusterFinding("versions", Level.WARN, what, "fine during an upgrade; complete it")]
    return [ClusterFinding("versions", Level.OK, f"all run {versions[0]}")] if versions else []


def _sync(standing: ClusterStatus) -> list[ClusterFinding]:
    seen = [server for server in standing.servers.servers if server.counts]
    if not seen:
        return []  # no server answers; another finding says so
    if any(server.sync is None for server in seen):
        remedy = "use configurations of stigmergy cluster config, which let the fleet's user look"
        return [ClusterFinding("sync", Level.WARN, "we may not see when disks are synced", remedy)]
    if late := [server for server in seen if server.sync != "always"]:
        what = ", ".join(f"{server.name} syncs every {server.sync}" for server in late)
        remedy = "write sync_interval: always into jetstream { … }, and restart one server after the other"
        return [ClusterFinding("sync", Level.FAIL, f"{what}: a power failure loses acknowledged events", remedy)]
    return [ClusterFinding("sync", Level.OK, "every server syncs before it acknowledges")]


def _stores(standing: ClusterStatus) -> list[ClusterFinding]:
    found: list[ClusterFinding] = []
    if not any(server.counts for server in standing.servers.servers):
        return []
    if any(server.counts and server.store_bytes is None for server in standing.servers.servers):
        remedy = "use configurations of stigmergy cluster config, which let the fleet's user look"
        found.append(ClusterFinding("store", Level.WARN, "we may not see how full the stores are", remedy))
    for server in standing.servers.servers:
        if server.store_bytes is None or not server.store_bytes_max:
            continue
        share = server.store_bytes / server.store_bytes_max
        if share > STORE_WARN:
            level = Level.FAIL if share > STORE_FAIL else Level.WARN
            remedy = "raise max_file, if the disk has room; a full store refuses writes"
            found.append(ClusterFinding("store", level, f"{server.name} has used {share:.0%} of its store", remedy))
    return found or [ClusterFinding("store", Level.OK, f"every store is less than {STORE_WARN:.0%} full")]


def _clocks(standing: ClusterStatus) -> list[ClusterFinding]:
    found: list[ClusterFinding] = []
    for server in standing.servers.servers:
        off_s = server.clock_off_s or 0.0
        if abs(off_s) > CLOCK_WARN_S:
            level = Level.FAIL if abs(off_s) > CLOCK_FAIL_S else Level.WARN
            way = "ahead of" if off_s > 0 else "behind"
            what = f"the clock of {server.name} is {abs(off_s):.1f} s {way} ours"
            found.append(ClusterFinding("clocks", level, what, "keep the clocks of all machines right (NTP)"))
    return found or [ClusterFinding("clocks", Level.OK, f"all within {CLOCK_WARN_S:g} s of ours")]


def _streams(standing: ClusterStatus) -> list[ClusterFinding]:
    found: list[ClusterFinding] = []
    if standing.trouble:
        unsaid = standing.servers.has_quorum is not False
        return [ClusterFinding("streams", Level.WARN, standing.trouble, "look again in a moment")] if unsaid else []
    if standing.leaderless:
        names = ", ".join(standing.leaderless[:3])
        what = f"{len(standing.leaderless)} streams without a leader: {names}"
        found.append(ClusterFinding("streams", Level.FAIL, what, "start the servers that hold them"))
    away = [*standing.servers.gone, *standing.servers.off]
    copies = [(stream, one) for stream in standing.streams if stream.replicas > 1 for one in stream.others]
    missing = [(stream, one) for stream, one in copies if one.is_offline or one.server in away]
    if missing:
        streams = sorted({stream.name for stream, _ in missing})
        servers = sorted({one.server for _, one in missing})
        what = f"{len(streams)} streams miss a copy, such as {streams[0]}: those of {', '.join(servers)}"
        remedy = "bring the server back, or stigmergy cluster replace it"
        if all(name in standing.servers.off for name in servers):
            remedy = "restart the servers whose JetStream is off, when their disks have room"
        found.append(ClusterFinding("replicas", Level.WARN, what, remedy))
    behind = [(stream, one) for stream, one in copies if one.behind and (stream, one) not in missing]
    if behind:
        stream, worst = max(behind, key=lambda pair: pair[1].behind)
        more = f"; {len(behind) - 1} more copies are behind" if len(behind) > 1 else ""
        what = f"the copy of {stream.name} on {worst.server} is {worst.behind:,} entries behind{more}"
        remedy = "wait until it has caught up before another server goes; if it does not, see the log of that server"
        found.append(ClusterFinding("replicas", Level.WARN, what, remedy))
    single = [stream.name for stream in standing.streams if stream.replicas == 1]
    if single and len(standing.servers.servers) > 1:
        what = f"{len(single)} streams are kept once, such as {single[0]}"
        found.append(ClusterFinding("replicas", Level.WARN, what, "a URL with ?replicas=3 keeps new ones three times"))
    return found or [
        ClusterFinding("replicas", Level.OK, f"every copy of {len(standing.streams)} streams is there and whole")
    ]


def _shards(standing: ClusterStatus) -> list[ClusterFinding]:
    found: list[ClusterFinding] = []
    for fleet in standing.fleets:
        nobody = [shard.shard for shard in fleet.shards if not shard.worker]
        if nobody:
            what = f"{fleet.fleet}: {len(nobody)} of {len(fleet.shards)} shards have no owner"
            remedy = "start workers; if some run, see what they say about these shards"
            found.append(ClusterFinding("shards", Level.FAIL if not fleet.workers else Level.WARN, what, remedy))
        elif len(fleet.workers) == 1:
            what = f"{fleet.fleet}: one worker owns all shards; while it is away nothing is decided"
            found.append(ClusterFinding("shards", Level.WARN, what, "start a second one, on another machine"))
        else:
            what = f"{fleet.fleet}: all {len(fleet.shards)} shards have an owner, of {len(fleet.workers)} workers"
            found.append(ClusterFinding("shards", Level.OK, what))
        remedy = "name it under [fleet] in stigmergy.toml, the same for all workers, and restart them"
        found += [ClusterFinding("needs", Level.FAIL, f"{fleet.fleet}: {lack}", remedy) for lack in fleet.unmet]
        remedy = "mend that worker; another one that can have the shard takes it meanwhile"
        found += [
            ClusterFinding("refused", Level.WARN, f"{fleet.fleet}: refused by {why}", remedy) for why in fleet.unfit
        ]
    return found


NO_MAJORITY = "a majority of the servers is gone: nothing can be written or placed until it is back"
NOBODY_LEADS = (
    "the servers have no leader at the moment; they choose one within seconds, and nothing is written until then"
)
KEYS_COUNT = 500
"""Keys of a bucket read at a time."""
KEYS_COUNT_MAX = 100_000
_CLUSTER_STREAM = "KV_" + naming.cluster_bucket("")
_LEDGER_STREAM = naming.ledger_stream("")
_LOG = re.compile(rf"({re.escape(naming.log_stream('', 0, 0)[: -len('_0_0')])}.+)_(\d+)_\2")
"""The log of one shard."""
_OWNER_KEY = re.compile(r"owner\.(\d+)")
_LATER = ("KV-Operation", "Nats-Marker-Reason")
"""Headers of the marker of a removed key."""


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
    """A shard and its owner."""

    shard: int
    worker: str
    """Empty if it has no owner."""
    claim: int
    planned: str
    """The planned owner."""
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
    """What its agents need and its workers lack, as these say themselves."""
    unfit: tuple[str, ...] = ()
    """Shards that workers cannot have, and why."""


class LedgerSeen(Struct, frozen=True):
    """A ledger, and the end of its log."""

    ledger: str
    head: int
    when: str


class ClusterStatus(Struct, frozen=True, kw_only=True):
    """The result of one inspection."""

    url: str
    at_s: float
    servers: ServersSeen
    streams: tuple[StreamSeen, ...] = ()
    leaderless: tuple[str, ...] = ()
    """Streams that nobody answers for."""
    fleets: tuple[FleetSeen, ...] = ()
    ledgers: tuple[LedgerSeen, ...] = ()
    trouble: str = ""
    """Why streams could not be inspected."""

    def folded(self) -> list[StreamSeen]:
        """The streams, with the logs of a fleet's shards as one, `STIG_LOG_town_* (0-7)`: last sequences and sizes are
        summed. A log with a missing or late copy, or without a leader, is listed separately."""
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


async def look(link: NatsLink, fleet: str = "") -> ClusterStatus:
    """Inspects everything, or one fleet. Raises LinkDown, ConfigError."""
    servers = await look_at_servers(link)
    standing = ClusterStatus(url=link.address.shown, at_s=time.time(), servers=servers)
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
    return ClusterStatus(
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


def _without(standing: ClusterStatus, why: str) -> ClusterStatus:
    return ClusterStatus(url=standing.url, at_s=standing.at_s, servers=standing.servers, trouble=why)


def _belongs(stream: str, fleet: str) -> bool:
    """Whether a stream is this fleet's, by its name; a ledger of the same name counts as its own."""
    name = naming.token(fleet)
    return re.search(rf"[_-]{re.escape(name)}(?:(?:_\d+)*|_STATE)$", stream) is not None


async def _fleet(link: NatsLink, stream: str, streams: dict[str, StreamSeen]) -> FleetSeen:
    """What its workers have recorded."""
    found = await _read_keys(link, stream)
    shape = _record(FleetShape, found, FLEET)
    plan, coordinator = _record(ShardPlan, found, PLAN), _record(Coordinator, found, COORDINATOR)
    name = shape.fleet if shape is not None else stream.removeprefix(_CLUSTER_STREAM)
    owners: dict[int, Owner] = {}
    for key in found:
        if (number := _OWNER_KEY.fullmatch(key)) and (owner := _record(Owner, found, key)) is not None:
            owners[int(number[1])] = owner
    workers: list[WorkerSeen] = []
    unmet: dict[str, None] = {}
    unfit: list[str] = []
    for key, (_, revision) in found.items():
        if worker_of(key) is not None and (member := _record(WorkerRecord, found, key)) is not None:
            up_s = max(0.0, time.time() - member.since_ns / 1e9) if member.since_ns else 0.0
            unmet |= dict.fromkeys(member.unmet)
            unfit += [f"worker {member.id}, shard {shard}: {why}" for shard, why in sorted(member.unfit.items())]
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
        tuple(sorted(unfit)),
    )


def _record(kind: type[Any], found: dict[str, tuple[bytes, int]], key: str) -> Any:
    """A record, or None if it does not decode: show the rest anyway."""
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
