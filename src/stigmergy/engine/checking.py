"""What is wrong with a cluster, or soon will be, as sentences with remedies. Pure: it judges one look."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from stigmergy.engine.standing import Standing

CLOCK_WARN_S = 0.5
CLOCK_FAIL_S = 5.0
"""Leases run on monotonic clocks; but the times in logs, and who compares them, need clocks that agree."""
STORE_WARN = 0.8
STORE_FAIL = 0.95
BEHIND_WARN = 1_000


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(Struct, frozen=True):
    """One thing that was looked at."""

    check: str
    level: Level
    what: str
    remedy: str = ""


def check(standing: Standing) -> list[Finding]:
    """Everything that can be judged from outside."""
    return [
        *_quorum(standing),
        *_versions(standing),
        *_sync(standing),
        *_stores(standing),
        *_clocks(standing),
        *_streams(standing),
        *_shards(standing),
    ]


def _quorum(standing: Standing) -> list[Finding]:
    seen = standing.servers
    gone = [server.name for server in seen.servers if not server.is_up]
    if seen.has_quorum is False:
        what = f"{standing.trouble}; gone: {', '.join(gone) or 'none'}"
        return [Finding("servers", Level.FAIL, what, "start the servers that are gone, with the disks they had")]
    if gone:
        remedy = "start it again with its disk; if that is lost for good: stigmergy cluster replace"
        return [Finding("servers", Level.WARN, f"{', '.join(gone)} gone; one more may be too many", remedy)]
    if len(seen.servers) == 1:
        what = "one server: it keeps everything once, and nothing is written while it is away"
        return [Finding("servers", Level.WARN, what, "three servers survive the loss of one: stigmergy cluster config")]
    if len(seen.servers) % 2 == 0:
        what = f"{len(seen.servers)} servers survive no more losses than {len(seen.servers) - 1}"
        return [Finding("servers", Level.WARN, what, "take one away, or add one")]
    return [Finding("servers", Level.OK, f"all {len(seen.servers)} up, {seen.leader or 'somebody'} leads")]


def _versions(standing: Standing) -> list[Finding]:
    versions = sorted({server.version for server in standing.servers.servers if server.version})
    if len(versions) > 1:
        what = f"servers of versions {', '.join(versions)} work together"
        return [Finding("versions", Level.WARN, what, "fine during an upgrade; bring it to an end")]
    return [Finding("versions", Level.OK, f"all run {versions[0]}")] if versions else []


def _sync(standing: Standing) -> list[Finding]:
    seen = [server for server in standing.servers.servers if server.is_up]
    if any(server.sync is None for server in seen):
        remedy = "use configurations of stigmergy cluster config, which let the fleet's user look"
        return [Finding("sync", Level.WARN, "when disks are synced cannot be seen", remedy)]
    if late := [server for server in seen if server.sync != "always"]:
        what = ", ".join(f"{server.name} syncs every {server.sync}" for server in late)
        remedy = "write sync_interval: always into jetstream { … }, and restart one server after the other"
        return [Finding("sync", Level.FAIL, f"{what}: power that fails takes acknowledged events", remedy)]
    return [Finding("sync", Level.OK, "every server syncs before it acknowledges")]


def _stores(standing: Standing) -> list[Finding]:
    found: list[Finding] = []
    if any(server.is_up and server.store_bytes is None for server in standing.servers.servers):
        remedy = "use configurations of stigmergy cluster config, which let the fleet's user look"
        found.append(Finding("store", Level.WARN, "how full stores are cannot be seen", remedy))
    for server in standing.servers.servers:
        if server.store_bytes is None or not server.store_bytes_max:
            continue
        share = server.store_bytes / server.store_bytes_max
        if share > STORE_WARN:
            level = Level.FAIL if share > STORE_FAIL else Level.WARN
            remedy = "raise max_file, where the disk has room; a full store takes nothing more"
            found.append(Finding("store", level, f"{server.name} has used {share:.0%} of its store", remedy))
    return found or [Finding("store", Level.OK, f"every store is less than {STORE_WARN:.0%} full")]


def _clocks(standing: Standing) -> list[Finding]:
    found: list[Finding] = []
    for server in standing.servers.servers:
        off_s = server.clock_off_s or 0.0
        if abs(off_s) > CLOCK_WARN_S:
            level = Level.FAIL if abs(off_s) > CLOCK_FAIL_S else Level.WARN
            way = "ahead of" if off_s > 0 else "behind"
            what = f"the clock of {server.name} is {abs(off_s):.1f} s {way} ours"
            found.append(Finding("clocks", level, what, "keep the clocks of all machines right (NTP)"))
    return found or [Finding("clocks", Level.OK, f"all within {CLOCK_WARN_S:g} s of ours")]


def _streams(standing: Standing) -> list[Finding]:
    found: list[Finding] = []
    if standing.trouble:
        return found
    if standing.leaderless:
        names = ", ".join(standing.leaderless[:3])
        what = f"{len(standing.leaderless)} streams without a leader: {names}"
        found.append(Finding("streams", Level.FAIL, what, "start the servers that hold them"))
    gone = [server.name for server in standing.servers.servers if not server.is_up]
    broken = [
        stream.name
        for stream in standing.streams
        if stream.replicas > 1 and any(one.is_offline or one.server in gone for one in stream.others)
    ]
    if broken:
        what = f"{len(broken)} streams miss a copy, such as {broken[0]}"
        found.append(Finding("replicas", Level.WARN, what, "bring the server back, or stigmergy cluster replace it"))
    if behind := [stream for stream in standing.streams if stream.behind > BEHIND_WARN]:
        worst = max(behind, key=lambda one: one.behind)
        what = f"a copy of {worst.name} is {worst.behind:,} entries behind"
        found.append(Finding("replicas", Level.WARN, what, "wait until it has caught up before another server goes"))
    single = [stream.name for stream in standing.streams if stream.replicas == 1]
    if single and len(standing.servers.servers) > 1:
        what = f"{len(single)} streams are kept once, such as {single[0]}"
        found.append(Finding("replicas", Level.WARN, what, "a URL with ?replicas=3 keeps new ones three times"))
    return found or [Finding("replicas", Level.OK, f"every copy of {len(standing.streams)} streams is there")]


def _shards(standing: Standing) -> list[Finding]:
    found: list[Finding] = []
    for fleet in standing.fleets:
        nobody = [shard.shard for shard in fleet.shards if not shard.worker]
        if nobody:
            what = f"{fleet.fleet}: nobody has {len(nobody)} of {len(fleet.shards)} shards"
            remedy = "start workers; if some are there, see what they say about these shards"
            found.append(Finding("shards", Level.FAIL if not fleet.workers else Level.WARN, what, remedy))
        elif len(fleet.workers) == 1:
            what = f"{fleet.fleet}: one worker has all shards; while it is away nothing is decided"
            found.append(Finding("shards", Level.WARN, what, "start a second one, on another machine"))
        else:
            what = f"{fleet.fleet}: all {len(fleet.shards)} shards have an owner, of {len(fleet.workers)} workers"
            found.append(Finding("shards", Level.OK, what))
    return found
