"""A node that was held up as a whole must not take the disk for dead; one whose disk is dead must still notice."""

import asyncio
import time
from collections.abc import Callable

import pytest

from bench.workload import BATCH_EVENTS, Drone, Feed, reports
from stigmergy.base.errors import JournalUnknown
from stigmergy.base.system import SystemClock
from stigmergy.journal.memory import open_journal as open_in_memory
from stigmergy.journal.port import Journal, JournalIdentity
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Host, open_host
from stigmergy.node.settings import Settings
from stigmergy.shard.commit import Group

IDENTITY = JournalIdentity(fleet="held-up", shards=1, incarnation=1)
SETTINGS = Settings(write_within_s=2.0)
"""Longer than a busy machine lets a thread wait for its turn."""


def make_host(journal: Journal) -> Host:
    fleet = Declaration("held-up", agents=[Drone])
    return open_host(fleet, journal, Ed25519Signer(bytes(32)), Ed25519Verifier(), SystemClock(), SETTINGS)


async def hold_up(host: Host, next_envelope: Callable[[], bytes]) -> asyncio.Future[None]:
    """Stops everything in this process while a write is under way, as a signal or a paused machine does."""
    delivered = host.intake.deliver(next_envelope())
    await asyncio.sleep(0)
    time.sleep(2 * SETTINGS.write_within_s)  # noqa: ASYNC251 - the loop is to be held up
    return delivered


async def test_a_node_that_was_stopped_and_continued_goes_on() -> None:
    """Found by a benchmark that kept the event loop to itself for too long."""
    journal = open_in_memory("memory:", IDENTITY)
    append_at_once = journal.append

    async def append(group: Group) -> None:
        # A disk in a thread, as SQLite has it, that answers while the loop is held up: a real one may take longer.
        await asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.05)
        await append_at_once(group)

    journal.append = append  # type: ignore[method-assign]
    host = make_host(journal)
    await host.start()
    feed = Feed("ground", reports(1, BATCH_EVENTS))
    await host.intake.deliver(feed.envelopes(1)[0])
    for _ in range(2):
        await (await hold_up(host, lambda: feed.envelopes(1)[0]))
    assert host.failure is None
    await host.stop()


async def test_a_dead_disk_is_noticed_also_after_that() -> None:
    journal = open_in_memory("memory:", IDENTITY)

    async def append(group: Group) -> None:
        del group
        await asyncio.Event().wait()

    host = make_host(journal)
    await host.start()
    feed = Feed("ground", reports(1, BATCH_EVENTS))
    await host.intake.deliver(feed.envelopes(1)[0])
    journal.append = append  # type: ignore[method-assign]
    delivered = await hold_up(host, lambda: feed.envelopes(1)[0])
    began_s = time.monotonic()
    with pytest.raises(JournalUnknown, match=r"has not answered for 2 s"):
        await delivered
    assert time.monotonic() - began_s < 60.0
    await host.kill()
