"""The rings of a node, from the program and from the configuration: found, refused, finished at the end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stigmergy import Agent, Event, Fleet, evolve
from stigmergy.agents.codec import pack_envelope
from stigmergy.app.config import read_config
from stigmergy.app.feeds import RINGS_COUNT_MAX, checked_rings
from stigmergy.base.errors import ConfigError, RingForeign, RingLocked
from stigmergy.ring import open_blocking_producer, open_producer


class Ticked(Event):
    number: int


class Clock(Agent):
    numbers: tuple[int, ...] = ()

    @evolve
    def ticked(self, event: Ticked) -> None:
        self.numbers = (*self.numbers, event.number)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def envelope(number: int, source: str = "t") -> bytes:
    return pack_envelope(source, [("Clock/a", Ticked(number=number))], sequence=number)


def test_a_program_names_rings_and_they_are_taken_from() -> None:
    async def main() -> None:
        fleet = Fleet("clocks", agents=[Clock])
        async with fleet.running(rings=["one.ring", Path("two.ring")]) as live:
            one, two = open_producer("one.ring"), open_producer("two.ring")
            for number in range(1, 6):
                await one.put(envelope(number, "one"))
                await two.put(envelope(number, "two"))
            await one.wait_durable()
            await two.wait_durable()
            assert sorted(live.query("Clock/a").numbers) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
            assert live.standing().counters["ring_messages"] == 10
            await one.put(envelope(6, "one"))
        one.close()
        two.close()
        # What was put at the end was finished or not taken; in both cases it is there once after the next start.
        async with fleet.running(rings=["one.ring"]) as live:
            with open_blocking_producer("one.ring") as again:
                assert again.written == 6
            for _ in range(200):
                if 6 in live.query("Clock/a").numbers:
                    break
                await asyncio.sleep(0.02)
            assert live.query("Clock/a").numbers.count(6) == 1

    asyncio.run(main())


def test_a_configuration_names_rings_beside_itself(folder: Path) -> None:
    (folder / "conf").mkdir()
    path = folder / "conf" / "stigmergy.toml"
    path.write_text('[fleet]\nrings = ["telemetry.ring", "/dev/shm/other.ring"]\n')
    assert read_config(path).fleet.rings == (str(folder / "conf" / "telemetry.ring"), "/dev/shm/other.ring")

    async def main() -> None:
        (folder / "stigmergy.toml").write_text('[fleet]\nrings = ["here.ring"]\n')
        async with Fleet("clocks", agents=[Clock]).running() as live:
            producer = open_producer(folder / "here.ring")
            await producer.put(envelope(1))
            await producer.wait_durable()
            assert live.query("Clock/a").numbers == (1,)
            producer.close()
        # What a program says comes before what the file says.
        async with Fleet("clocks", agents=[Clock]).running(rings=["there.ring"]):
            assert (folder / "there.ring").exists()

    asyncio.run(main())


@pytest.mark.parametrize(
    "rings", ["one.ring", [1], ["a.ring", "./a.ring"], ["a\0b"], [f"{n}" for n in range(300)], {"a"}]
)
def test_what_are_no_rings_is_refused_before_anything_is_opened(rings: Any, folder: Path) -> None:
    with pytest.raises(ConfigError):
        Fleet("clocks", agents=[Clock]).running(rings=rings)
    assert not list(folder.iterdir())
    assert len(checked_rings([f"{n}" for n in range(RINGS_COUNT_MAX)])) == RINGS_COUNT_MAX


def test_a_ring_that_cannot_be_opened_keeps_the_node_from_running_and_leaves_nothing_locked(folder: Path) -> None:
    async def main() -> None:
        fleet = Fleet("clocks", agents=[Clock])
        (folder / "bad.ring").write_text("no ring")
        (folder / "bad.ring").chmod(0o600)
        with pytest.raises(RingForeign):
            await fleet.running(rings=["good.ring", "bad.ring"]).__aenter__()
        async with fleet.running(rings=["good.ring"]):
            with pytest.raises(RingLocked, match="has a consumer already"):
                await Fleet("others", agents=[Clock]).running(rings=["good.ring"]).__aenter__()
        async with Fleet("others", agents=[Clock]).running(rings=["good.ring"]):
            pass

    asyncio.run(main())
