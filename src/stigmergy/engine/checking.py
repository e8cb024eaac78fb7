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
MEND_OFF = (
    "see in its log what went wrong, make room on its disk (store_dir), and restart it: it catches up by itself. "
    "`stigmergy up` does that for its servers"
)


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


def is_off(servers: list[str]) -> str:
    """What is wrong with servers that are up and keep nothing."""
    return (
        f"JetStream is off on {', '.join(servers)}: NATS turns it off when the disk of a server is full or fails, and "
        "it stays off until that server is restarted"
    )


def _quorum(standing: Standing) -> list[Finding]:
    seen = standing.servers
    found: list[Finding] = []
    if seen.has_quorum is False:
        what = f"{standing.trouble}; gone: {', '.join(seen.gone) or 'none'}"
        if seen.gone or not seen.off:
            found += [Finding("servers", Level.FAIL, what, "start the servers that are gone, with the disks they had")]
    elif seen.gone:
        remedy = "start it again with its disk; if that is lost for good: stigmergy cluster replace"
        found += [Finding("servers", Level.WARN, f"{', '.join(seen.gone)} gone; one more may be too many", remedy)]
    if seen.off:
        without = "" if seen.has_quorum is not False else "; nothing can be written without a majority"
        what = f"{is_off(seen.off)}{without}"
        found += [Finding("jetstream", Level.FAIL, what, MEND_OFF)]
    for server in seen.servers:
        if server.error and not server.is_off:
            level, remedy = (Level.FAIL, MEND_OFF) if server.cannot_write else (Level.WARN, "look again in a moment")
            found += [Finding("health", level, f"{server.name} is not well: {server.error}", remedy)]
    if found:
        return found
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
    seen = [server for server in standing.servers.servers if server.counts]
    if not seen:
        return []  # nobody to ask; what is wrong is said above
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
    if not any(server.counts for server in standing.servers.servers):
        return []
    if any(server.counts and server.store_bytes is None for server in standing.servers.servers):
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
        unsaid = standing.servers.has_quorum is not False
        return [Finding("streams", Level.WARN, standing.trouble, "look again in a moment")] if unsaid else []
    if standing.leaderless:
        names = ", ".join(standing.leaderless[:3])
        what = f"{len(standing.leaderless)} streams without a leader: {names}"
        found.append(Finding("streams", Level.FAIL, what, "start the servers that hold them"))
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
        found.append(Finding("replicas", Level.WARN, what, remedy))
    behind = [(stream, one) for stream, one in copies if one.behind and (stream, one) not in missing]
    if behind:
        stream, worst = max(behind, key=lambda pair: pair[1].behind)
        more = f"; {len(behind) - 1} more copies are behind" if len(behind) > 1 else ""
        what = f"the copy of {stream.name} on {worst.server} is {worst.behind:,} entries behind{more}"
        remedy = "wait until it has caught up before another server goes; if it does not, see the log of that server"
        found.append(Finding("replicas", Level.WARN, what, remedy))
    single = [stream.name for stream in standing.streams if stream.replicas == 1]
    if single and len(standing.servers.servers) > 1:
        what = f"{len(single)} streams are kept once, such as {single[0]}"
        found.append(Finding("replicas", Level.WARN, what, "a URL with ?replicas=3 keeps new ones three times"))
    return found or [Finding("replicas", Level.OK, f"every copy of {len(standing.streams)} streams is there and whole")]


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
        remedy = "name it under [fleet] in stigmergy.toml, the same for all workers, and start them anew"
        found += [Finding("needs", Level.FAIL, f"{fleet.fleet}: {lack}", remedy) for lack in fleet.unmet]
    return found
