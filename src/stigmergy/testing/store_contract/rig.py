"""Shared parts of the store tests: how to open a store, and a listener that remembers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stigmergy.store.port import Anew, Change, Complete, Gone, KeyValue, Store, StoredEntry

BUCKET = "contract"
HEARD_S_MAX = 10.0
"""Only a broken store takes so long to tell."""
LEASE_S = 1

OpenStore = Callable[[], Awaitable[Store]]


class Listener:
    """Remembers what it was told, and what is there according to that."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.there: dict[str, bytes] = {}
        self.rounds = 0
        """How often everything was told."""
        self._told: dict[str, bytes] | None = None

    def hear(self, change: Change) -> None:
        """The callback of a watch."""
        self.changes.append(change)
        told = self.there if self._told is None else self._told
        match change:
            case Anew():
                self._told = {}
            case Complete():
                assert self._told is not None, "Complete without Anew"
                self.there, self._told = self._told, None
                self.rounds += 1
            case StoredEntry():
                told[change.key] = change.value
            case Gone():
                told.pop(change.key, None)

    @property
    def gone(self) -> list[str]:
        """The keys that were told to be gone, in this order."""
        return [change.key for change in self.changes if isinstance(change, Gone)]

    async def wait_there(self, expected: dict[str, bytes], within_s: float = HEARD_S_MAX) -> None:
        """Waits until this is what is there, at most so long."""
        deadline = asyncio.get_running_loop().time() + within_s
        while not self.rounds or self._told is not None or self.there != expected:
            assert asyncio.get_running_loop().time() < deadline, f"told {self.changes}, but not {expected}"
            await asyncio.sleep(0.005)


async def wait_until_gone(keys: KeyValue, key: str) -> None:
    """Waits until a key is not there any more."""
    deadline = asyncio.get_running_loop().time() + HEARD_S_MAX
    while await keys.get(key) is not None:
        assert asyncio.get_running_loop().time() < deadline, f"{key} is still there"
        await asyncio.sleep(0.02)


class NeedsStore:
    """A suite that is given a store to try."""

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """Opens a connection to the store of this test. A subclass gives it."""
        raise NotImplementedError("give the fixture open_store: see the module's docstring")
