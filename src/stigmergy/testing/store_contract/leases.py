"""Leases: one holder, who knows first that its time is over. Tests of the store port."""

from __future__ import annotations

import asyncio
import time

import pytest

from stigmergy.core.errors import Bug, ConfigError, StoreConflict
from stigmergy.ports.store import (
    EXPIRY_HEARD_S_MAX,
    LEASE_S_MAX,
    NS,
    Entry,
)
from stigmergy.testing.journal_contract import in_a_loop
from stigmergy.testing.store_contract.rig import BUCKET, LEASE_S, Listener, NeedsStore, OpenStore, wait_until_gone


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
        assert await others.get("lead") == Entry("lead", b"turn 7", lease.revision)
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
        assert await keys.get("lead") == Entry("lead", b"other", later.revision)
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
            await kept.renew()
        while await others.get("dies") is not None:
            if kept.ends_ns - time.monotonic_ns() < NS // 2:
                await kept.renew()
            await asyncio.sleep(0.001)
        assert not dies.held(time.monotonic_ns()), "the holder gives up before the store does"
        await kept.renew()
        taken = await others.acquire("dies", b"other", 60)
        assert taken is not None
        assert taken.revision > dies.revision
        for _ in range(3):
            with pytest.raises(StoreConflict):
                await dies.renew()
        assert await others.get("dies") == Entry("dies", b"other", taken.revision)
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
        assert await keys.get("lead") == Entry("lead", b"other", taken), "a plain write stays"
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
        assert await keys.get("lead") == Entry("lead", b"third", lease.revision)
        await store.close()
