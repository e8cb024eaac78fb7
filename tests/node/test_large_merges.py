"""The largest merge there is, through each journal: written, read back, verified, exported, and carried on from."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stigmergy import Agent, Event, Events, Fleet, Merged, ORSet, Shared, decide, evolve
from stigmergy.agents.shared import STATE_BYTES_MAX
from stigmergy.cli.main import main as command_line
from stigmergy.crdt.store import EMPTY, ReplicaStore, mint
from stigmergy.shard.inputs import SharedReceived

CAR = "Car/1"


class Seen(Event):
    name: str


class Counted(Event):
    names: int


class Car(Agent):
    names: Shared[ORSet[str]]
    merges: int = 0

    @decide
    def seen(self, event: Seen) -> Events:
        yield event
        yield self.names.add(event.name)

    @evolve
    def merged(self, event: Merged) -> None:
        self.merges += 1

    @decide
    def count(self, event: Merged) -> Events:
        yield Counted(names=len(self.names))
        raise RuntimeError("a letter as well")


fleet = Fleet("cars", agents=[Car])


def largest() -> ReplicaStore:
    """Just as large as a state may be that peers send."""
    value, store = fleet.plans["Car"].shared["names"].initial, EMPTY
    number = 0
    while len(store.to_bytes()) < STATE_BYTES_MAX - 5_000:
        room = STATE_BYTES_MAX - 2_000 - len(store.to_bytes())
        for _ in range(max(1, room // 4_100)):
            name = f"{number:05}{'x' * 4_060}"
            store = store.apply(mint(value.with_store(store).add(name), store, b"peer-rep", 1))  # type: ignore[attr-defined]
            number += 1
    assert STATE_BYTES_MAX - 5_000 <= len(store.to_bytes()) <= STATE_BYTES_MAX
    return store


@pytest.mark.parametrize("journal", ["sqlite:cars.db", "segments:cars"])
def test_the_largest_merge(journal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = largest()

    async def life() -> None:
        async with fleet.running(journal=journal, key=Path("key")) as live:
            await live.observe(CAR, Seen(name="own"))
            await live.host.intake.take(0, SharedReceived(CAR, "names", state=store.to_bytes()))
            car = live.query(CAR)
        async with fleet.running(journal=journal, key=Path("key")) as live:
            again = live.query(CAR)
            assert again == car
            assert again.names.store.to_bytes() == car.names.store.to_bytes()
            assert again.merges == 1
            assert len(live.dead_letters()) == 1
            await live.observe(CAR, Seen(name="more"))  # than it may write itself
            assert len(live.dead_letters()) == 2
            assert len(live.query(CAR).names) == store.live_count + 1

    asyncio.run(life())
    for arguments in (
        ("log", "verify"),
        ("log", "export", "--flight", "flight.log", "--key", "key"),
        ("log", "show"),
        ("replay", f"{__name__}:fleet"),
    ):
        assert command_line(["--json", *arguments, "--journal", journal]) == 0
    assert command_line(["--json", "log", "verify", "flight.log"]) == 0
