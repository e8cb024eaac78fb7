"""A server whose disk is full turns its JetStream off: everybody is told so, whichever server they ask."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stigmergy.base.errors import LinkDown
from stigmergy.cli.display.frames import draw_standing
from stigmergy.cli.display.output import printable
from stigmergy.cli.fleet_checks import check_clusters
from stigmergy.nats.address import parse_address
from stigmergy.nats.errors import JetStreamRefused
from stigmergy.nats.link import NatsLink
from stigmergy.nats.servers import on_cluster
from stigmergy.nats.servers.configuration import User
from stigmergy.nats.servers.server import NatsServer
from stigmergy.nats.servers.status import ClusterFinding, ClusterStatus, Level, check, look
from stigmergy.nats.streams import ensure_stream
from stigmergy.testing.nats import NatsCluster, start_single
from tests.disks import SmallDisk, small_disk

WAIT_S = 240.0
USERS = (User("fleet", "f"), User("system", "s", is_system=True))
MESSAGE = b"x" * 50_000


def look_by(url: str) -> ClusterStatus:
    return asyncio.run(on_cluster(parse_address(url), look, name="test", within_s=30.0))


def shown(standing: ClusterStatus) -> str:
    lines = draw_standing(standing)
    return "\n".join("".join(printable(c if isinstance(c, str) else c[0]) for c in line) for line in lines)


def findings(standing: ClusterStatus) -> dict[str, ClusterFinding]:
    return {one.check: one for one in check(standing)}


def is_stuck(server: NatsServer) -> bool:
    return bool(server.look("jsz").get("disabled")) or "write error" in str(server.look("healthz").get("error"))


async def fill(cluster: NatsCluster, url: str, replicas: int) -> None:
    """Writes until the first server is not well."""
    link = await NatsLink.open(parse_address(url), name="test", within_s=30.0)
    await ensure_stream(link, "KEPT", {"subjects": ["kept"], "num_replicas": replicas})
    deadline_s = time.monotonic() + WAIT_S
    while not is_stuck(cluster.servers[0]):
        with contextlib.suppress(LinkDown, JetStreamRefused):
            await link.publish("kept", MESSAGE, within_s=2.0)
        assert time.monotonic() < deadline_s
    written = 0
    while replicas > 1 and written < 20:  # the others go on, when they have chosen a leader
        with contextlib.suppress(LinkDown, JetStreamRefused):
            await link.publish("kept", MESSAGE, within_s=2.0)
            written += 1
        assert time.monotonic() < deadline_s
    await link.close()


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDisk]:
    with small_disk(tmp_path_factory.mktemp("full") / "n1", "8m") as disk:
        yield disk


@pytest.fixture(scope="module")
def cluster(disk: SmallDisk) -> Iterator[NatsCluster]:
    with NatsCluster.start(disk.path.parent, nodes=3, users=USERS, open_to="fleet") as cluster:
        asyncio.run(fill(cluster, cluster.urls[1], 3))
        yield cluster


def test_it_is_told_by_every_server_and_mended_by_a_restart(cluster: NatsCluster, disk: SmallDisk) -> None:
    """In one go: the second half begins where the first one ends."""
    for url in (*cluster.urls, cluster.url):
        standing = look_by(url)
        seen = standing.servers
        assert [(one.name, one.is_up, one.has_jetstream) for one in seen.servers] == [
            ("n1", True, False),
            ("n2", True, True),
            ("n3", True, True),
        ], url
        assert (seen.off, seen.gone, seen.has_quorum) == (["n1"], [], True)
        text = shown(standing)
        assert "3 of 3 servers up, JetStream off on n1, quorum" in text
        assert "the disk of a server is full or fails" in text
        assert "make room on its disk" in text
        found = findings(standing)
        assert found["jetstream"].level is Level.FAIL
        assert "JetStream is off on n1" in found["jetstream"].what
        assert "restart it" in found["jetstream"].remedy
        assert found["sync"].level is Level.OK, "a server that is off does not sync every 0 s"
        assert found["replicas"].level is Level.WARN
        assert "those of n1" in found["replicas"].what
    told = {one.check: one for one in check_clusters((cluster.url, None, "sqlite:x.db", cluster.url))}
    assert told["cluster.jetstream"].level == "fail"
    assert "n1" in told["cluster.jetstream"].what

    disk.grow("512m")
    cluster.servers[0].stop()
    cluster.start_again(0)
    deadline_s = time.monotonic() + WAIT_S
    while (found := findings(look_by(cluster.url)))["replicas"].level is not Level.OK:
        assert time.monotonic() < deadline_s, found
    assert "jetstream" not in found
    (kept,) = [stream for stream in look_by(cluster.url).streams if stream.name == "KEPT"]
    assert {one.last_sequence for one in kept.others} == {kept.last_sequence}


def test_a_server_alone_goes_on_without_the_streams_that_it_could_not_write(tmp_path: Path) -> None:
    with small_disk(tmp_path / "n1", "8m"), start_single(tmp_path, users=USERS, open_to="fleet") as single:
        asyncio.run(fill(single, single.url, 1))
        standing = look_by(single.url)
        found = findings(standing)["health"]
        assert found.level is Level.FAIL
        assert "no space left on device" in found.what
        assert "restart it" in found.remedy
        assert "no space left on device" in shown(standing)
