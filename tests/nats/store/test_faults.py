"""The store on NATS when things are wrong: servers, buckets, room, links, pieces."""

from __future__ import annotations

import asyncio
import base64
import time
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.js.api import KeyValueConfig, StreamConfig

from stigmergy.base.errors import (
    ConfigError,
    StoreConflict,
    StoreCorrupt,
    StoreForeign,
    StoreUnavailable,
    StoreUnknown,
    TooLarge,
)
from stigmergy.base.system import SystemClock
from stigmergy.nats.address import parse_address
from stigmergy.nats.link import NatsLink
from stigmergy.nats.store import open_store
from stigmergy.nats.store.objects import NatsObjects
from stigmergy.nats.store.store import NatsStore
from stigmergy.store.port import NS, VALUE_BYTES_MAX, KeyValue, Lease, StoredEntry
from stigmergy.testing.nats import NatsCluster, start_single
from stigmergy.testing.proxy import LinkProxy
from stigmergy.testing.store_contract import Listener

CLOCK = SystemClock()


async def plain_client(server: NatsCluster) -> Client:
    client = Client()
    await client.connect(servers=server.urls)
    return client


async def renew_when_up(lease: Lease, value: bytes | None = None) -> None:
    """Renews as soon as it can be known what came of it."""
    for _ in range(500):
        try:
            await lease.renew(value)
            return
        except (StoreUnavailable, StoreUnknown):
            await asyncio.sleep(0.02)
    raise AssertionError("the link is never up again")


async def acquire_when_free(keys: KeyValue, key: str) -> Lease:
    """Takes a lease as soon as its holder's time is over."""
    for _ in range(500):
        if (lease := await keys.acquire(key, b"near", 60)) is not None:
            return lease
        await asyncio.sleep(0.02)
    raise AssertionError("the lease does not run out")


# What somebody must mend.


@pytest.mark.parametrize(
    "url", ["nats://", "http://hub", "nats://hub?max_mb=much", "nats://hub?replicas=2", "nats://hub?colour=red"]
)
async def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ConfigError):
        await open_store(url, CLOCK)


async def test_nobody_there() -> None:
    with pytest.raises(StoreUnavailable, match="check the URL"):
        await NatsStore.open("nats://127.0.0.1:1", CLOCK, within_s=0.3)


async def test_a_server_without_jetstream(tmp_path: Path) -> None:
    with (
        start_single(tmp_path, has_jetstream=False) as single,
        pytest.raises(ConfigError, match="without JetStream"),
    ):
        await open_store(single.url, CLOCK)


async def test_more_replicas_than_servers(server: NatsCluster) -> None:
    store = await open_store(f"{server.url}?replicas=3", CLOCK)
    with pytest.raises(ConfigError, match="replicas"):
        await store.key_value("three")
    await store.close()


async def test_a_bucket_that_was_made_otherwise(server: NatsCluster) -> None:
    client = await plain_client(server)
    jetstream = client.jetstream()
    await jetstream.create_key_value(KeyValueConfig(bucket="theirs", history=5))
    await jetstream.add_stream(StreamConfig(name="OBJ_theirs", subjects=["theirs.>"]))
    store = await open_store(server.url, CLOCK)
    with pytest.raises(StoreForeign, match=r"max_msgs_per_subject is 5, not 1.*Nothing was changed"):
        await store.key_value("theirs")
    with pytest.raises(StoreForeign, match="subjects"):
        await store.objects("theirs")
    assert (await jetstream.stream_info("KV_theirs")).config.max_msgs_per_subject == 5
    await store.close()
    await client.close()


async def test_a_bucket_with_more_replicas_or_another_bound_is_taken_as_it_is(server: NatsCluster) -> None:
    store = await open_store(f"{server.url}?max_mb=3", CLOCK)
    await (await store.key_value("bounded")).put("a", b"1")
    await store.close()
    store = await open_store(server.url, CLOCK)
    assert await (await store.key_value("bounded")).keys() == ["a"]
    await store.close()


async def test_a_bucket_that_is_deleted_under_us(server: NatsCluster) -> None:
    store = await open_store(server.url, CLOCK)
    keys = await store.key_value("deleted")
    link = await NatsLink.open(parse_address(server.url), name="test")
    await link.api("STREAM.DELETE.KV_deleted")
    with pytest.raises(StoreForeign, match="deleted"):
        await keys.get("a")
    with pytest.raises(StoreUnavailable):
        await keys.put("a", b"1")
    keys = await store.key_value("deleted")
    await keys.put("a", b"2")
    await link.close()
    await store.close()


async def test_a_server_that_takes_less_than_a_value(tmp_path: Path) -> None:
    with start_single(tmp_path, max_payload_bytes=64 * 1024) as single:
        store = await open_store(single.url, CLOCK)
        keys, objects = await store.key_value("b"), await store.objects("b")
        before = await keys.put("a", b"1")
        with pytest.raises(TooLarge, match="max_payload"):
            await keys.put("a", bytes(VALUE_BYTES_MAX))
        assert await keys.get("a") == StoredEntry("a", b"1", before)
        await objects.put("large", bytes(1_000_000))
        assert await objects.get("large") == bytes(1_000_000)
        await store.close()


async def test_a_full_bucket_refuses_and_loses_nothing(server: NatsCluster) -> None:
    store = await open_store(f"{server.url}?max_mb=1", CLOCK)
    keys, objects = await store.key_value("full"), await store.objects("full")
    kept: list[str] = []

    async def fill() -> None:
        for number in range(100):
            await keys.create(f"k.{number}", bytes(50_000))
            kept.append(f"k.{number}")

    with pytest.raises(StoreUnavailable, match="no room"):
        await fill()
    assert 10 < len(kept) < 22
    assert await keys.keys() == sorted(kept)
    await keys.put(kept[0], b"smaller")
    await keys.delete(kept[1])
    await keys.create("again", bytes(40_000))
    first = await objects.put("o", bytes(700_000), versions_kept=3)
    with pytest.raises(StoreUnavailable, match="no room"):
        await objects.put("o", bytes(700_000), versions_kept=3)
    assert await objects.versions("o") == [first]
    assert await objects.get("o") == bytes(700_000)
    await objects.put("p", bytes(200_000))
    await store.close()


# Links that break.


async def test_a_cut_link_writes_nothing_and_a_watch_begins_anew(server: NatsCluster) -> None:
    proxy = LinkProxy(server.servers[0].plan.port)
    near = await open_store(server.url, CLOCK)
    far = await open_store(f"nats://127.0.0.1:{await proxy.start()}", CLOCK)
    keys, behind = await near.key_value("cut"), await far.key_value("cut")
    await keys.put("stays", b"1")
    await keys.put("goes", b"1")
    listener = Listener()
    behind.watch("", listener.hear)
    await listener.wait_there({"stays": b"1", "goes": b"1"})
    proxy.cut()
    while True:
        try:
            await behind.get("stays")
        except StoreUnavailable:
            break
    with pytest.raises(StoreUnavailable):
        await behind.put("never", b"1")
    await keys.delete("goes")
    await keys.put("comes", b"1")
    assert listener.there == {"stays": b"1", "goes": b"1"}
    proxy.restore()
    await listener.wait_there({"stays": b"1", "comes": b"1"})
    assert listener.rounds == 2
    await behind.put("stays", b"2")
    await listener.wait_there({"stays": b"2", "comes": b"1"})
    await far.close()
    await near.close()
    await proxy.close()


async def test_a_renewal_without_an_answer_is_found_again(server: NatsCluster) -> None:
    proxy = LinkProxy(server.servers[0].plan.port)
    near = await open_store(server.url, CLOCK)
    far = await open_store(f"nats://127.0.0.1:{await proxy.start()}", CLOCK)
    keys, behind = await near.key_value("unknown"), await far.key_value("unknown")
    lease = await behind.acquire("lead", b"1", 3)
    assert lease is not None
    first = lease.revision
    proxy.mute_server()
    with pytest.raises(StoreUnknown):
        await lease.renew(b"2")
    assert lease.revision == first
    assert lease.held(time.monotonic_ns()), "it is ours until the time is over that was confirmed"
    written = await keys.get("lead")
    assert written is not None
    assert (written.value, written.revision > first) == (b"2", True)
    proxy.drop()
    proxy.restore()
    await renew_when_up(lease, b"3")
    assert lease.revision > written.revision
    assert await keys.get("lead") == StoredEntry("lead", b"3", lease.revision)
    await lease.release()
    assert await keys.get("lead") is None
    await far.close()
    await near.close()
    await proxy.close()


async def test_the_time_of_a_lease_counts_from_before_it_was_asked_for(server: NatsCluster) -> None:
    """The answers come late; the server has counted all the while."""
    proxy = LinkProxy(server.servers[0].plan.port)
    far = await open_store(f"nats://127.0.0.1:{await proxy.start()}", CLOCK)
    behind = await far.key_value("late")
    for renews in (False, True):
        lease = await behind.acquire("lead", b"1", 10) if renews else None
        proxy.stall()
        asked_ns = time.monotonic_ns()
        asking = asyncio.ensure_future(behind.acquire("lead", b"1", 10) if lease is None else lease.renew())
        await asyncio.sleep(0.5)
        proxy.restore()
        lease = await asking or lease
        assert lease is not None
        assert lease.ends_ns < asked_ns + 10 * NS
        assert lease.ends_ns < asked_ns + 9.9 * NS + 0.3 * NS
        await lease.release()
    await far.close()
    await proxy.close()


async def test_a_leader_that_is_behind_what_was_told_is_asked_again(server: NatsCluster) -> None:
    """In a cluster the replica that tells a watch may know that a key is gone before the leader does."""
    one, other = await NatsStore.open(server.url, CLOCK), await NatsStore.open(server.url, CLOCK)
    lease = await (await one.key_value("behind")).acquire("lead", b"1", 60)
    assert lease is not None
    keys = await other.key_value("behind")
    assert await keys.acquire("lead", b"2", 60) is None
    other._line.note_gone("$KV.behind.lead", lease.revision + 1)
    asking = asyncio.ensure_future(keys.acquire("lead", b"2", 60))
    await asyncio.sleep(0.2)
    await lease.release()
    assert await asking is not None
    await one.close()
    await other.close()


async def test_a_holder_that_was_paused_cannot_renew(server: NatsCluster) -> None:
    """Its renewal is under way while the link hangs, and arrives when another one has the lease."""
    proxy = LinkProxy(server.servers[0].plan.port)
    near = await open_store(server.url, CLOCK)
    far = await open_store(f"nats://127.0.0.1:{await proxy.start()}", CLOCK)
    keys, behind = await near.key_value("paused"), await far.key_value("paused")
    lease = await behind.acquire("lead", b"far", 1)
    assert lease is not None
    proxy.stall()
    with pytest.raises(StoreUnknown):
        await lease.renew()
    taken = await acquire_when_free(keys, "lead")
    assert not lease.held(time.monotonic_ns())
    proxy.restore()
    with pytest.raises(StoreConflict):
        await renew_when_up(lease)
    assert await keys.get("lead") == StoredEntry("lead", b"near", taken.revision)
    assert taken.revision > lease.revision
    await far.close()
    await near.close()
    await proxy.close()


async def test_a_server_killed_and_started_again_has_everything_and_leases_run_out(own_server: NatsCluster) -> None:
    store = await open_store(own_server.url, CLOCK)
    keys, objects = await store.key_value("killed"), await store.objects("killed")
    revision = await keys.put("a", b"1")
    await keys.put("b", b"1")
    await keys.delete("b")
    put = await objects.put("o", bytes(range(256)) * 4_000, versions_kept=2)
    assert await keys.acquire("lead", b"", 2) is not None
    listener = Listener()
    keys.watch("", listener.hear)
    await listener.wait_there({"a": b"1", "lead": b""})
    own_server.kill(0)
    with pytest.raises((StoreUnavailable, StoreUnknown)):
        await keys.put("c", b"1", 10_000)
    own_server.start_again(0)
    await listener.wait_there({"a": b"1"})
    assert await keys.get("a") == StoredEntry("a", b"1", revision)
    assert await objects.versions("o") == [put]
    assert await objects.get("o") == bytes(range(256)) * 4_000
    assert await keys.acquire("lead", b"", 2) is not None
    await store.close()


async def test_a_watch_outlives_a_server_that_says_it_is_set_up_wrongly(
    server: NatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(server.url, CLOCK)
    keys = await store.key_value("misled")
    await keys.put("a", b"1")
    asked: list[str] = []
    api = NatsLink.api

    async def at_first_not(link: NatsLink, call: str, *rest: Any, **more: Any) -> dict[str, Any]:
        asked.append(call)
        if len(asked) == 1:
            raise ConfigError("this server runs without JetStream")  # as after a start without its store
        return await api(link, call, *rest, **more)

    monkeypatch.setattr(NatsLink, "api", at_first_not)
    listener = Listener()
    keys.watch("", listener.hear)
    await listener.wait_there({"a": b"1"})
    assert asked[0].startswith("CONSUMER.CREATE")
    await store.close()


# Pieces.


async def test_pieces_that_are_missing_or_changed_are_found_out(server: NatsCluster) -> None:
    store = await open_store(server.url, CLOCK)
    objects = await store.objects("damaged")
    link = await NatsLink.open(parse_address(server.url), name="test")
    good = await objects.put("o", b"good" * 200_000, versions_kept=3)
    for damage in ("change", "remove"):
        put = await objects.put("o", b"abcd" * 200_000, versions_kept=3)
        piece = await link.api("STREAM.MSG.GET.OBJ_damaged", {"seq": put.version - 1})
        assert ".C." in piece["message"]["subject"]
        await link.api("STREAM.MSG.DELETE.OBJ_damaged", {"seq": put.version - 1})
        if damage == "change":
            size_bytes = 800_000 % (256 * 1024)
            await link.publish(piece["message"]["subject"], b"x" * size_bytes)
        with pytest.raises(StoreCorrupt, match="take another version"):
            await objects.get("o", put.version)
    assert await objects.get("o", good.version) == b"good" * 200_000
    await link.close()
    await store.close()


async def test_a_put_that_breaks_off_leaves_nothing_to_read_and_is_swept(server: NatsCluster) -> None:
    proxy = LinkProxy(server.servers[0].plan.port)
    far = await open_store(f"nats://127.0.0.1:{await proxy.start()}", CLOCK)
    near = await open_store(server.url, CLOCK)
    objects, behind = await near.objects("broken"), await far.objects("broken")
    before = await objects.put("o", b"before")
    putting = asyncio.ensure_future(behind.put("o", bytes(60_000_000)))
    for _ in range(1_000_000):
        if proxy.bytes_passed > 5_000_000:
            break
        await asyncio.sleep(0)
    proxy.cut()
    with pytest.raises((StoreUnavailable, StoreUnknown)):
        await putting
    assert await objects.versions("o") == [before]
    assert await objects.get("o") == b"before"
    assert isinstance(objects, NatsObjects)
    assert await objects.sweep() == 0, "it may still be under way"
    assert await objects.sweep(older_than_s=-1.0) == 1
    assert await objects.sweep(older_than_s=-1.0) == 0
    assert await objects.get("o") == b"before"
    await far.close()
    await near.close()
    await proxy.close()


class AheadClock(SystemClock):
    """Two hours ahead."""

    def wall_ns(self) -> int:
        return super().wall_ns() + 7200 * NS


async def test_a_later_put_deletes_what_a_killed_process_left(server: NatsCluster) -> None:
    """Nothing else deletes it, and a bucket has room for only so much."""
    link = await NatsLink.open(parse_address(server.url), name="test")
    store = await open_store(server.url, CLOCK)
    objects = await store.objects("killed")
    await objects.put("o", b"before")
    await link.publish("$OBJ.killed.C.leftover", b"x" * 1000)  # as of a process that was killed before the last message
    await objects.put("o", b"again")
    assert await subjects_of(link, "OBJ_killed", "$OBJ.killed.C.leftover"), "it may still be under way"
    later = await open_store(server.url, AheadClock())
    await (await later.objects("killed")).put("p", b"later")
    assert not await subjects_of(link, "OBJ_killed", "$OBJ.killed.C.leftover")
    assert (await objects.get("o"), await objects.get("p")) == (b"again", b"later")
    await later.close()
    await store.close()
    await link.close()


async def subjects_of(link: NatsLink, stream: str, wanted: str) -> dict[str, int]:
    info = await link.api(f"STREAM.INFO.{stream}", {"subjects_filter": wanted})
    return dict((info["state"]).get("subjects") or {})


async def test_the_tools_of_nats_read_our_keys(server: NatsCluster) -> None:
    store = await open_store(server.url, CLOCK)
    keys = await store.key_value("tools")
    await keys.put("a.b", b"value")
    await keys.put("gone", b"value")
    await keys.delete("gone")
    client = await plain_client(server)
    theirs = await client.jetstream().key_value("tools")
    assert (await theirs.get("a.b")).value == b"value"
    assert await theirs.keys() == ["a.b"]
    await theirs.put("c", b"theirs")
    found = await keys.get("c")
    assert found is not None
    assert found.value == b"theirs"
    await client.close()
    await store.close()


async def test_an_object_of_another_program_is_refused(server: NatsCluster) -> None:
    store = await open_store(server.url, CLOCK)
    objects = await store.objects("foreign")
    link = await NatsLink.open(parse_address(server.url), name="test")
    for data in (b'{"name": "x", "bucket": "foreign", "nuid": "n"}', b"nothing"):
        subject = f"$OBJ.foreign.M.{base64.urlsafe_b64encode(data[:4]).decode()}"
        await link.publish(subject, data)
        with pytest.raises(StoreForeign, match=r"another program|does not decode"):
            await objects.versions(data[:4].decode())
    await link.publish("$OBJ.foreign.M.not-a-name", b"")
    with pytest.raises(StoreForeign, match="does not decode"):
        await objects.names()
    await link.close()
    await store.close()
