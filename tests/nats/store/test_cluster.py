"""The store on three servers whose leader is killed, and at a gateway that mirrors it and loses its hub."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stigmergy.base.errors import StoreConflict, StoreForeign, StoreUnavailable, StoreUnknown
from stigmergy.base.system import SystemClock
from stigmergy.nats.address import parse_address
from stigmergy.nats.link import NatsLink
from stigmergy.nats.store import open_store
from stigmergy.store.port import Gone, KeyValue, Lease, Store, StoredEntry
from stigmergy.testing.nats import NatsCluster, start_single
from stigmergy.testing.store_contract import Listener, OpenStore, StoreContract

CLOCK = SystemClock()
ELECTION_S_MAX = 240.0
"""Only a broken cluster needs so long to find a leader."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """Three servers; a test that kills one starts it again."""
    with NatsCluster.start(tmp_path_factory.mktemp("cluster"), nodes=3) as three:
        yield three


class Writer:
    """Writes numbers by compare-and-set, each once, whatever happens to servers; remembers which were taken."""

    def __init__(self, keys: KeyValue) -> None:
        self._keys = keys
        self.taken = 0
        self.unknown = 0

    async def run(self, until: asyncio.Event) -> None:
        """Until it is told to stop."""
        revision = await self._keys.create("count", b"0")
        while not until.is_set():
            try:
                revision = await self._keys.put("count", b"%d" % (self.taken + 1), revision)
                self.taken += 1
            except StoreUnavailable:
                await asyncio.sleep(0.02)
            except StoreUnknown:
                self.unknown += 1
                revision = await self._find_out(revision)

    async def _find_out(self, revision: int) -> int:
        """Nobody else writes here: another revision is ours. It may come late; then the next write is refused."""
        deadline_s = time.monotonic() + ELECTION_S_MAX
        while time.monotonic() < deadline_s:
            try:
                found = await self._keys.get("count")
            except StoreUnavailable:
                await asyncio.sleep(0.02)
                continue
            assert found is not None
            assert int(found.value) in (self.taken, self.taken + 1), "neither lost nor written twice"
            self.taken = int(found.value)
            return found.revision
        raise AssertionError("no leader")


async def keep_renewing(keys: KeyValue, until: asyncio.Event) -> list[Lease]:
    """Holds a lease as well as it can; returns those it has had, one after the other."""
    had: list[Lease] = []
    while not until.is_set():
        try:
            if had and had[-1].ends_ns:
                await had[-1].renew()
            elif (lease := await keys.acquire("lead", b"", 2)) is not None:
                had.append(lease)
        except (StoreUnavailable, StoreUnknown, StoreConflict):
            pass
        await asyncio.sleep(0.2)
    return had


async def test_a_killed_leader_loses_nothing_and_watchers_see_the_end(cluster: NatsCluster) -> None:
    url = f"{cluster.url}?replicas=3"
    one, other = await open_store(url, CLOCK), await open_store(url, CLOCK)
    keys, watched = await one.key_value("killed"), await other.key_value("killed")
    objects = await one.objects("killed")
    data = bytes(range(256)) * 8_000
    put = await objects.put("o", data)
    listener, until = Listener(), asyncio.Event()
    watched.watch("count", listener.hear)
    writer = Writer(keys)
    writing = asyncio.ensure_future(writer.run(until))
    renewing = asyncio.ensure_future(keep_renewing(await other.key_value("killed"), until))
    await asyncio.sleep(0.5)
    leader = await cluster.leader_of("KV_killed")
    assert leader is not None
    before = writer.taken
    assert before > 0
    cluster.kill(leader)
    deadline_s = time.monotonic() + ELECTION_S_MAX
    while writer.taken < before + 20:
        assert time.monotonic() < deadline_s
        assert not writing.done(), writing
        await asyncio.sleep(0.05)
    # The killed one may have led the objects as well: they are there again after an election of their own.
    found = None
    while found is None:
        assert time.monotonic() < deadline_s
        with contextlib.suppress(StoreUnavailable):
            found = await objects.get("o", put.version)
    assert found == data
    cluster.start_again(leader)
    until.set()
    await writing
    leases = await renewing
    await listener.wait_there({"count": b"%d" % writer.taken}, within_s=ELECTION_S_MAX)
    assert [lease.revision for lease in leases] == sorted(lease.revision for lease in leases)
    assert 0 < len(leases) <= 2
    await one.close()
    await other.close()


@pytest.mark.prove
async def test_without_a_majority_nothing_is_written(cluster: NatsCluster) -> None:
    store = await open_store(f"{cluster.url}?replicas=3", CLOCK)
    keys = await store.key_value("minority")
    revision = await keys.put("a", b"1")
    for number in (0, 1):
        cluster.pause(number)
    try:
        with pytest.raises((StoreUnavailable, StoreUnknown)):
            await keys.put("a", b"2", revision)
    finally:
        for number in (0, 1):
            cluster.resume(number)
    deadline_s = time.monotonic() + ELECTION_S_MAX
    found: StoredEntry | None = None
    while found is None:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)
        with contextlib.suppress(StoreUnavailable):
            found = await keys.get("a")
    assert found.value in (b"1", b"2"), "what had no answer may have come later, and nothing else"
    await store.close()


async def test_a_gateway_reads_its_mirror_while_the_hub_is_gone(tmp_path: Path) -> None:
    with start_single(tmp_path / "hub", name="hub", domain="hub", leaf=True) as hub:
        port = hub.servers[0].plan.leaf_port
        with start_single(tmp_path / "leaf", name="leaf", domain="site", hubs=(f"127.0.0.1:{port}",)) as leaf:
            await mirror_and_lose(hub, leaf)


async def test_a_peer_is_reached_through_the_hub_by_its_domain(tmp_path: Path) -> None:
    """`?domain=site` is the store of a gateway, on its own disk, whoever asks for it."""
    with start_single(tmp_path / "hub", name="hub", domain="hub", leaf=True) as hub:
        port = hub.servers[0].plan.leaf_port
        with start_single(tmp_path / "leaf", name="leaf", domain="site", hubs=(f"127.0.0.1:{port}",)) as leaf:
            far, near = await open_far(f"{hub.url}?domain=site"), await open_store(leaf.url, CLOCK)
            objects = await far.objects("copies")
            data = bytes(range(256)) * 8_000
            first = await objects.put("north/n1", b"old", versions_kept=2)
            put = await objects.put("north/n1", data, label="through the hub", versions_kept=2)
            beside = await near.objects("copies")
            assert await beside.versions("north/n1") == [first, put]
            assert await beside.get("north/n1") == data
            assert await objects.get("north/n1", first.version) == b"old"
            await objects.delete("north/n1", first.version)
            assert await beside.versions("north/n1") == [put]
            above = await open_store(hub.url, CLOCK)
            await (await above.objects("copies")).put("of the hub", data)
            assert await (await above.objects("copies")).names() == ["of the hub"]
            assert await beside.names() == ["north/n1"], "buckets of one name have nothing to do with each other"
            await above.close()
            keys, listener = await far.key_value("town"), Listener()
            keys.watch("", listener.hear)
            lease = await keys.acquire("lead", b"1", 30)
            assert lease is not None
            await lease.renew(b"2")
            await listener.wait_there({"lead": b"2"})
            assert await (await near.key_value("town")).get("lead") == StoredEntry("lead", b"2", lease.revision)
            await far.close()
            await near.close()


async def open_far(url: str) -> Store:
    """Opens a store behind another server, once that server knows of it."""
    store = await open_store(url, CLOCK)
    for _ in range(200):
        try:
            await store.objects("copies")
            return store
        except StoreUnavailable:
            await asyncio.sleep(0.05)
    raise AssertionError("the leaf does not connect")


async def mirror_and_lose(hub: NatsCluster, leaf: NatsCluster) -> None:
    above, below = await open_store(hub.url, CLOCK), await open_store(leaf.url, CLOCK)
    keys, objects = await above.key_value("shared"), await above.objects("shared")
    await keys.put("mode", b"calm")
    data = bytes(range(256)) * 8_000
    put = await objects.put("model", data, label="v1")
    link = await NatsLink.open(parse_address(leaf.url), name="test")
    for stream in ("KV_shared", "OBJ_shared"):
        origin = {"name": stream, "external": {"api": "$JS.hub.API"}}
        settings = {"name": stream, "storage": "file", "allow_direct": True, "mirror": origin}
        await link.api(f"STREAM.CREATE.{stream}", {**settings, "allow_msg_ttl": True} if "KV" in stream else settings)
    mirrored, models = await below.key_value("shared"), await below.objects("shared")
    listener = Listener()
    mirrored.watch("", listener.hear)
    await listener.wait_there({"mode": b"calm"})
    deadline_s = time.monotonic() + ELECTION_S_MAX
    while await models.versions("model") != [put]:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.02)
    assert await models.get("model") == data
    with pytest.raises(StoreForeign, match="mirror"):
        await models.put("model", b"")
    found = await mirrored.get("mode")
    assert found is not None
    revision = await mirrored.put("mode", b"alert", found.revision)
    assert await keys.get("mode") == StoredEntry("mode", b"alert", revision), "written at the hub"
    await listener.wait_there({"mode": b"alert"})
    hub.kill(0)
    assert await models.get("model", put.version) == data
    assert await mirrored.get("mode") == StoredEntry("mode", b"alert", revision)
    assert await mirrored.keys() == ["mode"]
    with pytest.raises((StoreUnavailable, StoreUnknown)):
        await mirrored.put("mode", b"never")
    await link.close()
    await above.close()
    await below.close()


@pytest.mark.prove
async def test_who_hears_that_a_lease_is_over_has_it_at_once(cluster: NatsCluster) -> None:
    """The replica that tells it may know before the leader does."""
    stores = [await open_store(f"{cluster.url}?replicas=3", CLOCK) for _ in range(8)]
    buckets = [await store.key_value("handed") for store in stores]
    for number in range(6):
        names = [f"lead.{number}.{one}" for one in range(len(buckets))]
        assert all([await buckets[0].acquire(name, b"", 1) for name in names])
        await asyncio.gather(*(take_over(keys, name) for keys, name in zip(buckets, names, strict=True)))
    for store in stores:
        await store.close()


async def take_over(keys: KeyValue, name: str) -> None:
    heard = asyncio.Event()
    watch = keys.watch(name, lambda change: heard.set() if isinstance(change, Gone) else None)
    async with asyncio.timeout(ELECTION_S_MAX):
        await heard.wait()
    assert await keys.acquire(name, b"", 60) is not None
    watch.stop()


@pytest.mark.prove
class TestOnThreeServers(StoreContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> Iterator[OpenStore]:
        with NatsCluster.start(tmp_path, nodes=3) as three:
            yield lambda: open_store(f"{three.url}?replicas=3", CLOCK)
