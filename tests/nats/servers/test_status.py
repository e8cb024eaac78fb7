"""What is wrong with a cluster: one thing at a time is made wrong, and is found."""

from typing import Any

import pytest
from msgspec import structs

from stigmergy.nats.servers.inspection import ReplicaSeen, ServerSeen, ServersSeen, StreamSeen
from stigmergy.nats.servers.status import (
    NO_MAJORITY,
    ClusterFinding,
    ClusterStatus,
    FleetSeen,
    Level,
    ShardSeen,
    WorkerSeen,
    check,
)


def server(name: str, **changed: Any) -> ServerSeen:
    settings: dict[str, Any] = {
        "name": name,
        "is_up": True,
        "has_jetstream": True,
        "version": "2.15.1",
        "store_bytes": 10,
        "store_bytes_max": 100,
        "sync": "always",
        "clock_off_s": 0.01,
    }
    return ServerSeen(**{**settings, **changed})


def stream(**changed: Any) -> StreamSeen:
    settings: dict[str, Any] = {
        "name": "S",
        "replicas": 3,
        "leader": "n1",
        "others": (ReplicaSeen("n2", True, False, 0), ReplicaSeen("n3", True, False, 0)),
        "messages": 1,
        "stored_bytes": 1,
        "first_sequence": 1,
        "last_sequence": 1,
        "last_time": "",
    }
    return StreamSeen(**{**settings, **changed})


def fleet(workers: int, owned: int) -> FleetSeen:
    there = tuple(WorkerSeen(f"w{n}", "h", 1, (), 1.0, False, 1) for n in range(workers))
    shards = tuple(ShardSeen(n, "w0" if n < owned else "", 1, "", None) for n in range(4))
    return FleetSeen("f", there, shards, "w0", 1)


def cluster(*servers: ServerSeen, **changed: Any) -> ClusterStatus:
    seen = ServersSeen(servers=servers or THREE, has_quorum=True, needed=2, leader="n1")
    return ClusterStatus(**{"url": "u", "at_s": 0.0, "servers": seen, "streams": (stream(),), **changed})


THREE = (server("n1"), server("n2"), server("n3"))
OFF = ServerSeen(name="n3", is_up=True, has_jetstream=False, version="2.15.1")
LOST = structs.replace(
    cluster(server("n1"), ServerSeen(name="n2", is_up=False), ServerSeen(name="n3", is_up=False)),
    servers=ServersSeen(servers=THREE, has_quorum=False, needed=2),
    trouble=NO_MAJORITY,
)


def test_a_cluster_that_is_well() -> None:
    findings = check(cluster(fleets=(fleet(2, 4),)))
    assert {finding.level for finding in findings} == {Level.OK}
    assert {finding.check for finding in findings} >= {"servers", "sync", "store", "clocks", "replicas", "shards"}


@pytest.mark.parametrize(
    ("standing", "name", "level", "says"),
    [
        (LOST, "servers", Level.FAIL, "majority of the servers is gone"),
        (cluster(server("n1"), server("n2"), ServerSeen(name="n3", is_up=False)), "servers", Level.WARN, "n3 gone"),
        (cluster(*THREE[:2], OFF), "jetstream", Level.FAIL, "JetStream is off on n3"),
        (cluster(*THREE[:2], OFF), "replicas", Level.WARN, "1 streams miss a copy, such as S: those of n3"),
        (
            cluster(*THREE[:2], server("n3", error="x write error: y")),
            "health",
            Level.FAIL,
            "n3 is not healthy: x write",
        ),
        (
            cluster(*THREE[:2], server("n3", error="not current")),
            "health",
            Level.WARN,
            "n3 is not healthy: not current",
        ),
        (cluster(trouble="it does not answer"), "streams", Level.WARN, "it does not answer"),
        (cluster(server("n1")), "servers", Level.WARN, "stores everything once"),
        (cluster(server("n1"), server("n2")), "servers", Level.WARN, "no more losses than 1"),
        (cluster(*THREE[:2], server("n3", version="2.16.0")), "versions", Level.WARN, "2.15.1, 2.16.0"),
        (cluster(*THREE[:2], server("n3", sync="120 s")), "sync", Level.FAIL, "n3 syncs every 120 s"),
        (cluster(*THREE[:2], server("n3", sync=None)), "sync", Level.WARN, "we may not see"),
        (cluster(*THREE[:2], server("n3", store_bytes=None)), "store", Level.WARN, "we may not see"),
        (cluster(*THREE[:2], server("n3", store_bytes=85)), "store", Level.WARN, "n3 has used 85%"),
        (cluster(*THREE[:2], server("n3", store_bytes=99)), "store", Level.FAIL, "n3 has used 99%"),
        (cluster(*THREE[:2], server("n3", clock_off_s=2.0)), "clocks", Level.WARN, "n3 is 2.0 s ahead of ours"),
        (cluster(*THREE[:2], server("n3", clock_off_s=-9.0)), "clocks", Level.FAIL, "n3 is 9.0 s behind ours"),
        (cluster(leaderless=("X",)), "streams", Level.FAIL, "1 streams without a leader: X"),
        (
            cluster(streams=(stream(others=(ReplicaSeen("n2", False, True, 0),)),)),
            "replicas",
            Level.WARN,
            "1 streams miss a copy",
        ),
        (
            cluster(streams=(stream(others=(ReplicaSeen("n2", False, False, 5_000),)),)),
            "replicas",
            Level.WARN,
            "5,000 entries behind",
        ),
        (cluster(streams=(stream(replicas=1, others=()),)), "replicas", Level.WARN, "kept once, such as S"),
        (cluster(fleets=(fleet(2, 3),)), "shards", Level.WARN, "1 of 4 shards have no owner"),
        (cluster(fleets=(fleet(0, 0),)), "shards", Level.FAIL, "4 of 4 shards have no owner"),
        (cluster(fleets=(fleet(1, 4),)), "shards", Level.WARN, "one worker owns all shards"),
        (
            cluster(fleets=(structs.replace(fleet(2, 4), unmet=("agents publish, and there is no bus",)),)),
            "needs",
            Level.FAIL,
            "f: agents publish, and there is no bus",
        ),
        (
            cluster(fleets=(structs.replace(fleet(2, 4), unfit=("worker w1, shard 3: its workflow was changed",)),)),
            "refused",
            Level.WARN,
            "f: refused by worker w1, shard 3: its workflow was changed",
        ),
    ],
)
def test_what_is_wrong_is_found_and_has_a_remedy(standing: ClusterStatus, name: str, level: Level, says: str) -> None:
    found: list[ClusterFinding] = [finding for finding in check(standing) if finding.check == name]
    assert [finding.level for finding in found] == [level]
    assert says in found[0].what
    assert found[0].remedy
