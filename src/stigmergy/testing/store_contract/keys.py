"""A bucket of keys: reading, compare-and-set, several connections. Tests of the store port."""

from __future__ import annotations

import asyncio
import time

import pytest

from stigmergy.base.errors import Bug, ConfigError, StoreConflict, StoreUnavailable, StoreUnknown, TooLarge
from stigmergy.store.port import (
    BUCKET_CHARS_MAX,
    EXPIRY_HEARD_S_MAX,
    KEY_CHARS_MAX,
    LEASE_S_MAX,
    NS,
    VALUE_BYTES_MAX,
    Anew,
    Change,
    Complete,
    Gone,
    KeyValue,
    Lease,
    StoredEntry,
)
from stigmergy.testing.journal_contract import in_a_loop
from stigmergy.testing.store_contract.rig import BUCKET, LEASE_S, Listener, NeedsStore, OpenStore, wait_until_gone


class KeysContract(NeedsStore):
    """A bucket of keys: reading, compare-and-set, several connections."""

    @in_a_loop
    async def test_a_new_bucket_is_empty(self, open_store: OpenStore) -> None:
        store = await open_store()
        keys = await store.key_value(BUCKET)
        assert keys.bucket == BUCKET
        assert await keys.get("a") is None
        assert await keys.keys() == []
        await store.close()

    @in_a_loop
    async def test_values_read_back_bit_for_bit(self, open_store: OpenStore) -> None:
        store = await open_store()
        keys = await store.key_value(BUCKET)
        values = [b"", b"one", bytes(range(256)) * 4, bytes(VALUE_BYTES_MAX)]
        revisions = [await keys.put("a.b", value) for value in values]
        assert revisions == sorted(set(revisions))
        assert revisions[0] > 0
        assert await keys.get("a.b") == StoredEntry("a.b", values[-1], revisions[-1])
        other = await keys.put("c", b"")
        assert other > revisions[-1], "revisions grow over all keys of a bucket"
        assert await keys.get("c") == StoredEntry("c", b"", other)
        await store.close()

    @in_a_loop
    async def test_compare_and_set(self, open_store: OpenStore) -> None:
        store = await open_store()
        keys = await store.key_value(BUCKET)
        first = await keys.create("a", b"1")
        with pytest.raises(StoreConflict):
            await keys.create("a", b"2")
        with pytest.raises(StoreConflict):
            await keys.put("a", b"2", 0)
        with pytest.raises(StoreConflict):
            await keys.put("a", b"2", first + 1)
        with pytest.raises(StoreConflict):
            await keys.put("b", b"2", first)
        assert await keys.get("a") == StoredEntry("a", b"1", first)
        second = await keys.put("a", b"2", first)
        with pytest.raises(StoreConflict):
            await keys.put("a", b"3", first)
        assert await keys.get("a") == StoredEntry("a", b"2", second)
        assert await keys.get("b") is None
        await store.close()

    @in_a_loop
    async def test_deleting(self, open_store: OpenStore) -> None:
        store = await open_store()
        keys = await store.key_value(BUCKET)
        await keys.delete("a")
        first = await keys.create("a", b"1")
        with pytest.raises(StoreConflict):
            await keys.delete("a", first + 1)
        with pytest.raises(StoreConflict):
            await keys.delete("b", first)
        assert await keys.get("a") == StoredEntry("a", b"1", first)
        await keys.delete("a", first)
        assert await keys.get("a") is None
        assert await keys.keys() == []
        with pytest.raises(StoreConflict):
            await keys.put("a", b"2", first)
        with pytest.raises(StoreConflict):
            await keys.delete("a", first)
        again = await keys.create("a", b"2")
        assert again > first
        await keys.delete("a")
        await keys.delete("a")
        assert await keys.put("a", b"3", 0) > again
        await store.close()

    @in_a_loop
    async def test_prefixes_are_whole_words(self, open_store: OpenStore) -> None:
        store = await open_store()
        keys = await store.key_value(BUCKET)
        for key in ("worker.b", "worker.a.x", "workers", "plan", "worker.a"):
            await keys.put(key, b"")
        assert await keys.keys() == ["plan", "worker.a", "worker.a.x", "worker.b", "workers"]
        assert await keys.keys("worker.") == ["worker.a", "worker.a.x", "worker.b"]
        assert await keys.keys("worker.a") == ["worker.a"]
        assert await keys.keys("worker") == []
        assert await keys.keys("none.") == []
        await store.close()

    @pytest.mark.parametrize(
        "key", ["", ".", "a.", ".a", "a..b", "a b", "a*", "a.>", "ä", "a\n", "a" * (KEY_CHARS_MAX + 1)]
    )
    @in_a_loop
    async def test_a_key_must_be_one(self, open_store: OpenStore, key: str) -> None:
        store = await open_store()
        keys = await store.key_value(BUCKET)
        for call in (
            keys.get(key),
            keys.put(key, b""),
            keys.create(key, b""),
            keys.delete(key),
            keys.acquire(key, b"", 1),
        ):
            with pytest.raises(ConfigError):
                await call
        await keys.put("a" * KEY_CHARS_MAX, b"")
        await store.close()

    @pytest.mark.parametrize("bucket", ["", "a b", "a.b", "a*", "a" * (BUCKET_CHARS_MAX + 1)])
    @in_a_loop
    async def test_a_bucket_must_have_a_name(self, open_store: OpenStore, bucket: str) -> None:
        store = await open_store()
        with pytest.raises(ConfigError):
            await store.key_value(bucket)
        with pytest.raises(ConfigError):
            await store.objects(bucket)
        await store.close()

    @in_a_loop
    async def test_a_value_over_the_limit_is_refused_and_what_was_there_stays(self, open_store: OpenStore) -> None:
        store = await open_store()
        keys = await store.key_value(BUCKET)
        first = await keys.put("a", b"1")
        with pytest.raises(TooLarge):
            await keys.put("a", bytes(VALUE_BYTES_MAX + 1))
        with pytest.raises(TooLarge):
            await keys.acquire("b", bytes(VALUE_BYTES_MAX + 1), 1)
        assert await keys.get("a") == StoredEntry("a", b"1", first)
        assert await keys.keys() == ["a"]
        await store.close()

    @in_a_loop
    async def test_buckets_have_nothing_to_do_with_each_other(self, open_store: OpenStore) -> None:
        store = await open_store()
        one, other = await store.key_value(BUCKET), await store.key_value(BUCKET + "-2")
        await store.objects(BUCKET)
        await one.put("a", b"1")
        assert await other.get("a") is None
        assert await other.keys() == []
        await other.create("a", b"2")
        found = await one.get("a")
        assert found is not None
        assert found.value == b"1"
        await store.close()

    # Several connections.

    @in_a_loop
    async def test_what_one_has_written_all_read(self, open_store: OpenStore) -> None:
        one, other = await open_store(), await open_store()
        revision = await (await one.key_value(BUCKET)).put("a", b"1")
        keys = await other.key_value(BUCKET)
        assert await keys.get("a") == StoredEntry("a", b"1", revision)
        await one.close()
        assert await keys.get("a") == StoredEntry("a", b"1", revision)
        await other.close()

    @in_a_loop
    async def test_of_several_exactly_one_wins(self, open_store: OpenStore) -> None:
        stores = [await open_store() for _ in range(4)]
        buckets = [await store.key_value(BUCKET) for store in stores]
        await buckets[0].put("count", b"0")

        async def count(keys: KeyValue, times: int) -> None:
            while times:
                found = await keys.get("count")
                assert found is not None
                try:
                    await keys.put("count", b"%d" % (int(found.value) + 1), found.revision)
                    times -= 1
                except StoreConflict:
                    await asyncio.sleep(0)

        await asyncio.gather(*(count(keys, 8) for keys in buckets))
        found = await buckets[0].get("count")
        assert found is not None
        assert found.value == b"32"
        for store in stores:
            await store.close()


# Watchers: what is there first, then every change, in order. Tests of the store port.


class WatchingContract(NeedsStore):
    """Watchers: what is there first, then every change, in order."""

    @in_a_loop
    async def test_watchers_are_told_what_is_there_and_then_every_change(self, open_store: OpenStore) -> None:
        one, other = await open_store(), await open_store()
        keys, others = await one.key_value(BUCKET), await other.key_value(BUCKET)
        first = await others.put("a.x", b"1")
        await others.put("gone", b"1")
        await others.delete("gone")
        all_of_it, some = Listener(), Listener()
        keys.watch("", all_of_it.hear)
        keys.watch("a.", some.hear)
        await all_of_it.wait_there({"a.x": b"1"})
        await some.wait_there({"a.x": b"1"})
        assert all_of_it.changes == [Anew(), StoredEntry("a.x", b"1", first), Complete()]
        second = await others.put("b", b"2")
        third = await keys.put("a.x", b"3", first)
        await others.delete("b")
        fourth = await others.create("a.y", b"4")
        await all_of_it.wait_there({"a.x": b"3", "a.y": b"4"})
        await some.wait_there({"a.x": b"3", "a.y": b"4"})
        changes = [
            StoredEntry("b", b"2", second),
            StoredEntry("a.x", b"3", third),
            Gone("b"),
            StoredEntry("a.y", b"4", fourth),
        ]
        told = [change for change in all_of_it.changes[3:] if change != changes[0]]
        assert told == changes[1:], "all in order; what was overtaken may be left out"
        assert some.changes[3:] == [changes[1], changes[3]]
        await one.close()
        await other.close()

    @in_a_loop
    async def test_watching_one_key_and_an_empty_bucket(self, open_store: OpenStore) -> None:
        store = await open_store()
        keys = await store.key_value(BUCKET)
        plan, nothing = Listener(), Listener()
        keys.watch("plan", plan.hear)
        keys.watch("none.", nothing.hear)
        await plan.wait_there({})
        await nothing.wait_there({})
        await keys.put("plan.b", b"other")
        await keys.put("plan", b"this")
        await plan.wait_there({"plan": b"this"})
        assert nothing.changes == [Anew(), Complete()]
        await store.close()

    @in_a_loop
    async def test_who_stopped_is_told_nothing_and_who_fails_is_told_on(self, open_store: OpenStore) -> None:
        store = await open_store()
        keys = await store.key_value(BUCKET)
        stopped, failing = Listener(), Listener()

        def fail(change: Change) -> None:
            failing.hear(change)
            raise ValueError("a watcher that fails")

        watch = keys.watch("", stopped.hear)
        keys.watch("", fail)
        await stopped.wait_there({})
        watch.stop()
        watch.stop()
        await keys.put("a", b"1")
        await failing.wait_there({"a": b"1"})
        await keys.put("a", b"2")
        await failing.wait_there({"a": b"2"})
        assert stopped.there == {}
        await store.close()
        told = len(failing.changes)
        other = await open_store()
        await (await other.key_value(BUCKET)).put("a", b"3")
        await asyncio.sleep(0.05)
        assert len(failing.changes) == told
        await other.close()

    @in_a_loop
    async def test_a_watch_of_many_changes_ends_with_the_truth(self, open_store: OpenStore) -> None:
        one, other = await open_store(), await open_store()
        keys, others = await one.key_value(BUCKET), await other.key_value(BUCKET)
        listener = Listener()
        truth: dict[str, bytes] = {}
        for turn in range(60):
            key, value = f"k.{turn * 7 % 5}", b"%d" % turn
            if turn == 20:
                keys.watch("k.", listener.hear)
            if turn % 4 == 3:
                await others.delete(key)
                truth.pop(key, None)
            else:
                await others.put(key, value)
                truth[key] = value
        await listener.wait_there(truth)
        revisions = [change.revision for change in listener.changes if isinstance(change, StoredEntry)]
        assert revisions == sorted(revisions)
        await one.close()
        await other.close()


# Leases: one holder, which is the first to know that its time is over. Tests of the store port.


async def renew_surely(lease: Lease) -> None:
    """As a holder does: again while nobody knows, as long as it is held."""
    while True:
        try:
            return await lease.renew()
        except (StoreUnavailable, StoreUnknown):
            if not lease.held(time.monotonic_ns()):
                raise


class LeaseContract(NeedsStore):
    """Leases: one holder, who knows first that its time is over."""

    @in_a_loop
    async def test_a_lease_is_held_by_one_and_renewed(self, open_store: OpenStore) -> None:
        one, other = await open_store(), await open_store()
        keys, others = await one.key_value(BUCKET), await other.key_value(BUCKET)
        before_ns = time.monotonic_ns()
        lease = await keys.acquire("lead", b"one", LEASE_S)
        assert lease is not None
        assert (lease.key, lease.value) == ("lead", b"one")
        assert before_ns < lease.ends_ns < time.monotonic_ns() + LEASE_S * NS
        assert lease.held(before_ns)
        assert not lease.held(lease.ends_ns)
        assert await others.acquire("lead", b"other", LEASE_S) is None
        first = lease.revision
        for turn in range(8):
            await asyncio.sleep(0.25)
            asked_ns = time.monotonic_ns()
            await lease.renew(b"turn %d" % turn if turn % 2 else None)
            assert asked_ns < lease.ends_ns < time.monotonic_ns() + LEASE_S * NS
            assert lease.held(time.monotonic_ns())
        assert lease.revision > first
        assert await others.get("lead") == StoredEntry("lead", b"turn 7", lease.revision)
        assert await others.acquire("lead", b"other", LEASE_S) is None
        await lease.release()
        assert not lease.held(time.monotonic_ns())
        assert lease.ends_ns == 0
        assert await others.get("lead") is None
        later = await others.acquire("lead", b"other", LEASE_S)
        assert later is not None
        assert later.revision > lease.revision
        await lease.release()
        with pytest.raises(StoreConflict):
            await lease.renew()
        assert await keys.get("lead") == StoredEntry("lead", b"other", later.revision)
        await one.close()
        await other.close()

    @in_a_loop
    async def test_a_lease_runs_out_and_its_holder_knows_first(self, open_store: OpenStore) -> None:
        one, other = await open_store(), await open_store()
        keys, others = await one.key_value(BUCKET), await other.key_value(BUCKET)
        listener = Listener()
        others.watch("", listener.hear)
        await others.put("stays", b"")
        leases = {name: await keys.acquire(name, b"one", LEASE_S) for name in ("dies", "watched", "kept")}
        kept, dies, watched = leases["kept"], leases["dies"], leases["watched"]
        assert kept is not None
        assert dies is not None
        assert watched is not None
        for _ in range(4):
            await asyncio.sleep(0.2)
            await renew_surely(kept)
        while await others.get("dies") is not None:
            if kept.ends_ns - time.monotonic_ns() < NS // 2:
                await renew_surely(kept)
            await asyncio.sleep(0.001)
        assert not dies.held(time.monotonic_ns()), "the holder gives up before the store does"
        await renew_surely(kept)
        taken = await others.acquire("dies", b"other", 60)
        assert taken is not None
        assert taken.revision > dies.revision
        for _ in range(3):
            with pytest.raises(StoreConflict):
                await dies.renew()
        assert await others.get("dies") == StoredEntry("dies", b"other", taken.revision)
        told_s = asyncio.get_running_loop().time() + EXPIRY_HEARD_S_MAX
        while "watched" not in listener.gone:
            assert asyncio.get_running_loop().time() < told_s, listener.changes
            await asyncio.sleep(0.02)
            await kept.renew()
        assert await others.acquire("watched", b"next", 60) is not None, "who hears that it is free may have it"
        await listener.wait_there({"stays": b"", "kept": b"one", "dies": b"other", "watched": b"next"})
        assert "kept" not in listener.gone
        assert "stays" not in listener.gone
        with pytest.raises(StoreConflict):
            await watched.renew()
        await one.close()
        await other.close()

    @in_a_loop
    async def test_who_writes_over_a_lease_takes_it_away(self, open_store: OpenStore) -> None:
        store = await open_store()
        keys = await store.key_value(BUCKET)
        lease = await keys.acquire("lead", b"one", LEASE_S)
        assert lease is not None
        taken = await keys.put("lead", b"other")
        with pytest.raises(StoreConflict):
            await lease.renew()
        assert not lease.held(time.monotonic_ns())
        await lease.release()
        await asyncio.sleep(LEASE_S + 0.3)
        assert await keys.get("lead") == StoredEntry("lead", b"other", taken), "a plain write stays"
        await store.close()

    @in_a_loop
    async def test_who_closes_lets_leases_run_out(self, open_store: OpenStore) -> None:
        one, other = await open_store(), await open_store()
        keys, others = await one.key_value(BUCKET), await other.key_value(BUCKET)
        assert await keys.acquire("lead", b"one", LEASE_S) is not None
        await one.close()
        assert await others.acquire("lead", b"other", LEASE_S) is None
        await wait_until_gone(others, "lead")
        assert await others.acquire("lead", b"other", LEASE_S) is not None
        await other.close()

    @pytest.mark.parametrize("ttl_s", [0, -1, LEASE_S_MAX + 1, 1.5])
    @in_a_loop
    async def test_the_time_of_a_lease_is_whole_seconds(self, open_store: OpenStore, ttl_s: float) -> None:
        store = await open_store()
        keys = await store.key_value(BUCKET)
        with pytest.raises(ConfigError):
            await keys.acquire("lead", b"", ttl_s)  # type: ignore[arg-type]
        assert await keys.keys() == []
        await store.close()

    @in_a_loop
    async def test_one_renewal_at_a_time(self, open_store: OpenStore) -> None:
        store = await open_store()
        keys = await store.key_value(BUCKET)
        lease = await keys.acquire("lead", b"", 60)
        assert lease is not None
        first = asyncio.ensure_future(lease.renew(b"first"))
        await asyncio.sleep(0)
        if not first.done():
            with pytest.raises(Bug):
                await lease.renew(b"second")
        await first
        await lease.renew(b"third")
        assert await keys.get("lead") == StoredEntry("lead", b"third", lease.revision)
        await store.close()
