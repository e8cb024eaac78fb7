"""Watchers: what is there first, then every change, in order. Tests of the store port."""

from __future__ import annotations

import asyncio

from stigmergy.ports.store import (
    Anew,
    Change,
    Complete,
    Entry,
    Gone,
)
from stigmergy.testing.journal_contract import in_a_loop
from stigmergy.testing.store_contract.rig import BUCKET, Listener, NeedsStore, OpenStore


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
        assert all_of_it.changes == [Anew(), Entry("a.x", b"1", first), Complete()]
        second = await others.put("b", b"2")
        third = await keys.put("a.x", b"3", first)
        await others.delete("b")
        fourth = await others.create("a.y", b"4")
        await all_of_it.wait_there({"a.x": b"3", "a.y": b"4"})
        await some.wait_there({"a.x": b"3", "a.y": b"4"})
        changes = [Entry("b", b"2", second), Entry("a.x", b"3", third), Gone("b"), Entry("a.y", b"4", fourth)]
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
        revisions = [change.revision for change in listener.changes if isinstance(change, Entry)]
        assert revisions == sorted(revisions)
        await one.close()
        await other.close()
