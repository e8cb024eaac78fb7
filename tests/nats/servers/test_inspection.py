"""How a cluster stands, seen on real servers: keys of workers, streams, consumers; and what people are shown of it."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from stigmergy.base.errors import ConfigError
from stigmergy.cli.display.frames import draw_standing
from stigmergy.cli.display.output import printable
from stigmergy.cluster.records import Coordinator, FleetShape, Owner, ShardPlan, WorkerRecord, write_record
from stigmergy.nats import link as links
from stigmergy.nats import naming
from stigmergy.nats.address import parse_address
from stigmergy.nats.link import NatsLink
from stigmergy.nats.servers import on_cluster
from stigmergy.nats.servers.configuration import User
from stigmergy.nats.servers.inspection import (
    ConsumerSeen,
    ReplicaSeen,
    ServerSeen,
    ServersSeen,
    _size,
    _stream,
    _with_copies,
    look_at_servers,
    look_at_streams,
)
from stigmergy.nats.servers.status import KEYS_COUNT, ClusterStatus, _belongs, look
from stigmergy.nats.store.buckets import ensure_keys
from stigmergy.nats.streams import ensure_stream
from stigmergy.testing.nats import NatsCluster, start_single
from tests.nats.servers.test_status import cluster, stream

SHARDS = 4


def shown(standing: ClusterStatus) -> str:
    lines = draw_standing(standing)
    return "\n".join("".join(printable(c if isinstance(c, str) else c[0]) for c in line) for line in lines)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    users = (User("fleet", "f"), User("system", "s", is_system=True))
    with start_single(tmp_path_factory.mktemp("server"), users=users, open_to="fleet") as single:
        asyncio.run(fill(single))
        yield single


async def fill(server: NatsCluster) -> None:
    """What two workers write, one of which is gone without a word."""
    link = await NatsLink.open(parse_address(server.url), name="test")
    bucket = naming.cluster_bucket("a.fleet")
    await ensure_keys(link, bucket, 1, 0)
    records: dict[str, Any] = {
        "fleet": FleetShape("a.fleet", SHARDS),
        "worker.w1": WorkerRecord(
            id="w1", host="here", pid=7, owns=(0, 1), since_ns=1, unmet=("nobody hears them",), unfit={3: "no"}
        ),
        "coordinator": Coordinator("w1"),
        "plan": ShardPlan(3, 1, "w1", ("w1",), (), ("w1", "w1", "w1", "")),
        "owner.0": Owner("w1", 5),
        "owner.1": Owner("w1", 6),
        "owner.2": Owner("gone", 7),
    }
    for key, record in records.items():
        await link.publish(f"$KV.{bucket}.{key}", write_record(record))
    await link.publish(f"$KV.{bucket}.owner.3", b"\xff nonsense")
    await link.publish(f"$KV.{bucket}.worker.w2", b"", {"KV-Operation": "DEL"})
    for number in range(KEYS_COUNT):  # more than are read at a time
        await link.publish(f"$KV.{bucket}.other.{number}", b"x")
    log = naming.log_stream("a.fleet", 1, 1)
    await ensure_stream(link, log, {"subjects": [naming.log_subject("a.fleet", 1, 1) + ".>"]})
    await link.publish(naming.log_subject("a.fleet", 1, 1) + ".x", b"commit")
    await ensure_stream(link, naming.ledger_stream("claims"), {"subjects": [naming.ledger_subject("claims") + ".>"]})
    await ensure_stream(link, naming.ledger_checkpoints("claims"), {"subjects": ["elsewhere"]})
    for _ in range(3):
        await link.publish(naming.ledger_subject("claims") + ".x", b"entry")
    config = {"durable_name": "reader", "ack_policy": "explicit"}
    stream = naming.ledger_stream("claims")
    await link.api(f"CONSUMER.DURABLE.CREATE.{stream}.reader", {"stream_name": stream, "config": config})
    await link.close()


async def look_as(url: str, fleet: str = "") -> ClusterStatus:
    link = NatsLink(parse_address(url), name="test")
    link.start()
    await link.wait_up(30.0)
    try:
        return await look(link, fleet)
    finally:
        await link.close()


async def test_everything_at_once(server: NatsCluster) -> None:
    standing = await look_as(server.url)
    (one,) = standing.servers.servers
    assert (one.name, one.is_up, one.sync, standing.servers.has_quorum) == ("n1", True, "always", True)
    assert one.clock_off_s is not None
    assert abs(one.clock_off_s) < 5.0
    (fleet,) = standing.fleets
    assert (fleet.fleet, fleet.coordinator, fleet.plan) == ("a.fleet", "w1", 3)
    assert [(worker.id, worker.host, worker.pid, worker.owns) for worker in fleet.workers] == [
        ("w1", "here", 7, (0, 1))
    ]
    assert [(shard.worker, shard.claim) for shard in fleet.shards] == [("w1", 5), ("w1", 6), ("", 7), ("", 0)]
    assert [shard.last_sequence for shard in fleet.shards] == [None, 1, None, None]
    (ledger,) = standing.ledgers
    assert (ledger.ledger, ledger.head) == ("claims", 3)
    readers = {stream.name: stream.consumers for stream in standing.streams}
    (reader,) = readers[naming.ledger_stream("claims")]
    assert (reader.name, reader.pending, reader.unconfirmed) == ("reader", 3, 0)


async def test_people_are_shown_what_is_wrong(server: NatsCluster) -> None:
    text = shown(await look_as(server.url))
    for part in (
        "1 of 1 server up, one server, no replicas",
        "fleet a.fleet  1 worker, 2 of 4 shards owned, plan 3 of w1",
        "  lacks nobody hears them",
        "  refused by worker w1, shard 3: no",
        "nobody has shard 2-3",
        "STIG_LEDGER_claims  reader",
        "claims  3",
    ):
        assert part in text, text


def test_the_logs_of_eight_shards_are_one_line_and_one_that_misses_a_copy_is_another() -> None:
    logs = [stream(name=f"STIG_LOG_town_{n}_{n}", leader=f"n{n % 3 + 1}", last_sequence=n) for n in range(8)]
    (folded,) = cluster(streams=tuple(logs)).folded()
    assert (folded.name, folded.leader, folded.last_sequence) == ("STIG_LOG_town_* (0-7)", "n1, n2, n3", 28)
    lines = [line for line in shown(cluster(streams=tuple(logs))).splitlines() if "STIG_LOG" in line]
    assert len(lines) == 1
    logs[3] = structs.replace(logs[3], others=(ReplicaSeen("n2", False, True, 0), ReplicaSeen("n3", True, False, 0)))
    found = [one.name for one in cluster(streams=(stream(), *logs)).folded()]
    assert found == ["S", "STIG_LOG_town_* (7 logs)", "STIG_LOG_town_3_3"]


def test_readers_that_have_everything_are_counted() -> None:
    readers = tuple(ConsumerSeen(f"shard-{n}", 5 if n == 2 else 0, 0) for n in range(8))
    text = shown(cluster(streams=(stream(consumers=readers),)))
    assert "shard-2" in text
    assert "shard-3" not in text
    assert "7 readers with nothing pending or unconfirmed" in text


async def test_one_fleet_alone(server: NatsCluster) -> None:
    standing = await look_as(server.url, "a.fleet")
    assert [one.fleet for one in standing.fleets] == ["a.fleet"]
    assert naming.ledger_stream("claims") not in [stream.name for stream in standing.streams]
    assert naming.log_stream("a.fleet", 1, 1) in [stream.name for stream in standing.streams]
    with pytest.raises(ConfigError, match="there is no fleet 'fleet'"):
        await look_as(server.url, "fleet")


async def test_the_system_account_sees_servers_only(server: NatsCluster) -> None:
    host = server.url.removeprefix("nats://")
    standing = await look_as(f"nats://system:s@{host}")
    assert [one.name for one in standing.servers.servers] == ["n1"]
    assert "sees servers only" in standing.trouble


async def test_servers_that_let_nobody_look(tmp_path: Path) -> None:
    """Somebody else's configuration: names, versions and clocks are all there is."""
    with NatsCluster.start(tmp_path, nodes=3) as cluster:
        link = await NatsLink.open(parse_address(cluster.url), name="test")
        seen = await look_at_servers(link)
        assert [one.name for one in seen.servers] == ["n1", "n2", "n3"]
        assert {one.sync for one in seen.servers} == {None}
        assert seen.has_quorum is None
        assert "whether there is a quorum cannot be seen" in shown(await look(link))
        await link.close()


async def test_more_streams_than_are_told_at_once(tmp_path: Path) -> None:
    with start_single(tmp_path) as server:
        link = await NatsLink.open(parse_address(server.url), name="test")
        names = [f"S{number:03}" for number in range(270)]
        for name in names:
            await link.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name], "storage": "memory"})
        assert [stream.name for stream in (await look_at_streams(link))[0]] == names
        assert [stream.name for stream in (await look_at_streams(link, "S26"))[0]] == names[260:]
        await link.close()


def test_a_copy_is_behind_that_lacks_what_the_leader_had_a_while_ago() -> None:
    """Whatever the leader says of it: it may call a copy current for minutes that is not written any more."""
    told = {
        "config": {"name": "S", "num_replicas": 3},
        "state": {"messages": 900, "bytes": 1, "first_seq": 1, "last_seq": 900},
        "cluster": {
            "leader": "n1",
            "raft_group": "G",
            "replicas": [{"name": "n2", "current": True}, {"name": "n3", "current": True}],
        },
    }
    seen = ServersSeen(servers=tuple(ServerSeen(name=f"n{n}", is_up=True) for n in (1, 2, 3)), has_quorum=True)
    before = {("n1", "G"): 500, ("n2", "G"): 480, ("n3", "G"): 100, ("n3", "H"): 700}
    after = {("n1", "G"): 900, ("n2", "G"): 880, ("n3", "G"): 100, ("n3", "H"): 700}
    stream = _with_copies(_stream(told), seen, before, after)
    assert stream.others == (ReplicaSeen("n2", True, False, 0, 880), ReplicaSeen("n3", False, False, 400, 100))
    assert not stream.is_whole
    unheard = _with_copies(_stream(told), seen, before, {("n2", "G"): 900})
    assert unheard.others[1] == ReplicaSeen("n3", True, False, 0, None), "what the leader says is all there is"


def test_of_how_many_servers_one_is() -> None:
    """One of a cluster whose JetStream is off does not know; whoever heard it first took it for the only one."""
    off = {"server": {"name": "n1", "cluster": "c"}, "data": {"disabled": True, "config": {"max_memory": 0}}}
    alone = {"server": {"name": "n1"}, "data": {"config": {"max_memory": 1}}}
    well = {"server": {"name": "n2", "cluster": "c"}, "data": {"config": {}, "meta_cluster": {"cluster_size": 3}}}
    assert [_size(off), _size(alone), _size(well)] == [None, 1, 3]


@pytest.mark.parametrize(
    ("stream", "fleet", "belongs"),
    [
        ("STIG_LOG_survey_0_15", "survey", True),
        ("STIG_PART_survey_16", "survey", True),
        ("KV_stig-cluster-survey", "survey", True),
        ("STIG_LEDGER_survey_STATE", "survey", True),
        ("STIG_BUS_survey", "survey", True),
        (
            "STIG_BUS_other-survey",
            "survey",
            True,
        ),  # a name may end like another's; that shows too much, never too little
        ("STIG_BUS_survey-2", "survey", False),
        ("STIG_BUS_surveys", "survey", False),
        ("STIG_BUS_a_2Eb", "a.b", True),
    ],
)
def test_whose_a_stream_is(stream: str, fleet: str, belongs: bool) -> None:
    assert _belongs(stream, fleet) is belongs


def test_servers_that_hang_are_passed_over(server: NatsCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "CONNECT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        hang = ",".join(
            f"127.0.0.1:{one.getsockname()[1]}" for one in (first, second)
        )  # they take calls, and are silent
        address = parse_address(f"nats://{hang},{server.url.removeprefix('nats://')}")
        found = asyncio.run(on_cluster(address, look_at_servers, name="test", within_s=0.6))
    assert [one.is_up for one in found.servers] == [True]
