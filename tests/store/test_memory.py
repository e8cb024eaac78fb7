"""The store in memory, beyond the contract: in virtual time, with clocks that drift, and cut off."""

from __future__ import annotations

import asyncio

import pytest

from stigmergy.base.errors import ConfigError, StoreConflict, StoreUnavailable
from stigmergy.sim.loop import SimClock, VirtualLoop, run
from stigmergy.store.memory import MemoryStore, MemoryStoreServer, open_store
from stigmergy.store.port import LEASE_DRIFT_SHARE, Anew, Complete, Gone, StoredEntry
from stigmergy.testing.store_contract import Listener


def sim_clock() -> SimClock:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return SimClock(loop)


def test_a_lease_runs_out_in_virtual_time_and_watchers_hear_of_it() -> None:
    async def main() -> None:
        clock, listener = sim_clock(), Listener()
        store = MemoryStore(MemoryStoreServer(clock), clock)
        keys = await store.key_value("town")
        keys.watch("", listener.hear)
        lease = await keys.acquire("lead", b"one", 3_600)
        assert lease is not None
        await asyncio.sleep(3_600 * (1 - LEASE_DRIFT_SHARE) + 1)
        assert not lease.held(clock.monotonic_ns())
        assert await keys.get("lead") is not None, "its holder gives up before the store does"
        await asyncio.sleep(60)
        assert listener.changes == [Anew(), Complete(), StoredEntry("lead", b"one", lease.revision), Gone("lead")]
        with pytest.raises(StoreConflict):
            await lease.renew()

    run(main(), seed=1)


@pytest.mark.parametrize("drift_ppm", [-5_000, 0, 5_000])
def test_of_two_holders_only_one_believes_in_it_whatever_their_clocks_do(drift_ppm: int) -> None:
    async def main() -> None:
        shelf_clock, slow = sim_clock(), sim_clock()
        slow.set_monotonic_drift(drift_ppm)
        shelf = MemoryStoreServer(shelf_clock)
        one, other = MemoryStore(shelf, slow), MemoryStore(shelf, shelf_clock)
        mine, theirs = await one.key_value("town"), await other.key_value("town")
        lease = await mine.acquire("lead", b"one", 100)
        assert lease is not None
        taken = None
        while taken is None:
            await asyncio.sleep(0.01)
            taken = await theirs.acquire("lead", b"other", 100)
        assert not lease.held(slow.monotonic_ns())
        assert taken.revision > lease.revision

    run(main(), seed=1)


def test_cut_off_nothing_comes_through_and_a_watch_begins_anew() -> None:
    async def main() -> None:
        clock, listener = sim_clock(), Listener()
        shelf = MemoryStoreServer(clock)
        near, far = MemoryStore(shelf, clock), MemoryStore(shelf, clock)
        keys, behind = await near.key_value("town"), await far.key_value("town")
        lease = await behind.acquire("lead", b"far", 10)
        assert lease is not None
        behind.watch("", listener.hear)
        await listener.wait_there({"lead": b"far"})
        far.line.cut_off = True
        for call in (behind.get("a"), behind.put("a", b""), lease.renew(), lease.release()):
            with pytest.raises(StoreUnavailable):
                await call
        await keys.put("a", b"1")
        await asyncio.sleep(20)
        assert listener.there == {"lead": b"far"}
        far.line.cut_off = False
        await listener.wait_there({"a": b"1"})
        assert listener.rounds == 2
        far.line.cut_off = False
        await asyncio.sleep(1)
        assert listener.rounds == 2, "mended is mended"

    run(main(), seed=1)


def test_a_full_shelf_refuses_and_loses_nothing() -> None:
    async def main() -> None:
        clock = sim_clock()
        store = MemoryStore(MemoryStoreServer(clock, capacity_bytes=100), clock)
        keys, objects = await store.key_value("town"), await store.objects("town")
        revision = await keys.put("a", bytes(60))
        with pytest.raises(StoreUnavailable, match="no room"):
            await keys.put("b", bytes(60))
        assert await keys.get("a") == StoredEntry("a", bytes(60), revision)
        await keys.delete("a")
        await keys.put("b", bytes(60))
        await objects.put("o", bytes(80))
        with pytest.raises(StoreUnavailable, match="no room"):
            await objects.put("o", bytes(80))

    run(main(), seed=1)


@pytest.mark.parametrize("url", ["memory:", "nats://x", "memory"])
def test_a_url_that_is_none(url: str) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError):
            await open_store(url, sim_clock())

    run(main(), seed=1)
