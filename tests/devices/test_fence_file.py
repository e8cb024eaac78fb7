"""A fence on a file: what has passed is refused after a crash; a file that is not ours is left alone."""

import asyncio
import logging
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from msgspec import structs

from stigmergy.agents.agent import Agent, react
from stigmergy.agents.effects import Effects, Order, OrderClaim
from stigmergy.agents.messages import Action, Event
from stigmergy.app.fleet import Fleet
from stigmergy.base.errors import ConfigError, StaleOrder
from stigmergy.devices.fence_file import FenceFile


class Land(Action):
    pass


def order(token: int, agent: str = "Plane/a", sequence: int = 1) -> Order[Land]:
    return Order(agent, Land(), key=f"1.0.{token}", token=token, sequence=sequence)


async def test_tokens_survive_the_node(tmp_path: Path) -> None:
    path = tmp_path / "fence.db"
    fence = FenceFile(path)
    await fence.open()
    for number in range(200):
        fence.admit(order(number, f"Plane/{number % 7}"))
    await fence.close()
    again = FenceFile(str(path))
    await again.open()
    assert [again.highest(f"Plane/{number}") for number in range(7)] == [196, 197, 198, 199, 193, 194, 195]
    with pytest.raises(StaleOrder):
        again.admit(order(190, "Plane/0"))
    await again.close()
    await again.open()  # and once more, with the same object
    again.admit(order(500, "Plane/0"))
    assert await again.wait_saved()
    await again.close()
    await again.close()


CHILD = """
import asyncio, sys, os, signal
from stigmergy.devices.fence_file import FenceFile
from stigmergy import Action, Order

class Land(Action):
    pass

async def main():
    fence = FenceFile(sys.argv[1])
    await fence.open()
    token = 0
    while True:
        token += 1
        fence.admit(Order("Plane/a", Land(), key="k", token=token, sequence=0))
        assert await fence.wait_saved()
        print(token, flush=True)

asyncio.run(main())
"""


def test_what_was_saved_is_there_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "fence.db"
    last = 0
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        try:
            for line in child.stdout:
                last = int(line)
                if last >= 20:
                    break
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
            child.stdout.close()
        assert last >= 20

        async def look(told: int) -> None:
            fence = FenceFile(path)
            await fence.open()
            highest = fence.highest("Plane/a")
            assert highest is not None
            assert highest >= told
            await fence.close()

        asyncio.run(look(last))
        path.unlink()


async def test_tokens_of_a_resource_survive_the_node_beside_those_of_agents(tmp_path: Path) -> None:
    def bound(agent: str, fencing_token: int) -> Order[Land]:
        claim = OrderClaim("dock", "Plane/a", fencing_token, until_ns=1, left_s=1.0, asked=lambda: True)
        return structs.replace(order(5, agent), claim=claim)

    path = tmp_path / "fence.db"
    for fence in (FenceFile(path), FenceFile(path, of="Plane/a")):  # a resource may be called like an agent
        await fence.open()
        fence.admit(bound("Plane/b", 40))
        fence.admit(bound("Plane/a", 41))
        await fence.close()
    agents, docks = FenceFile(path), FenceFile(path, of="Plane/a")
    await agents.open()
    await docks.open()
    assert (agents.highest("Plane/a"), agents.highest("Plane/b"), docks.highest("Plane/a")) == (5, 5, 41)
    with pytest.raises(StaleOrder, match="has token 40, and 41 was carried out; a later holder has been here"):
        docks.admit(bound("Plane/b", 40))
    await docks.close()
    await agents.close()


async def test_a_file_that_is_not_ours_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"no database at all" * 100)
    for path in (other, garbage, tmp_path / "no" / "such" / "folder.db"):
        before = path.read_bytes() if path.exists() else None
        with pytest.raises(ConfigError, match="cannot be used"):
            await FenceFile(path).open()
        assert (path.read_bytes() if path.exists() else None) == before


async def test_a_file_that_cannot_be_written_is_reported_and_the_fence_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "fence.db"
    fence = FenceFile(path)
    await fence.open()
    blocker = apsw.Connection(str(path))  # locks of two SQLites in one process do not see each other
    blocker.execute("BEGIN EXCLUSIVE")
    with caplog.at_level(logging.WARNING, logger="stigmergy.devices"):
        fence.admit(order(7, sequence=0))
        for _ in range(500):
            await asyncio.sleep(0.01)
            if fence.failures:
                break
    assert fence.failures
    assert "could not be written" in caplog.text
    fence.admit(order(8))
    with pytest.raises(StaleOrder):
        fence.admit(order(7))
    blocker.execute("ROLLBACK")
    blocker.close()
    assert await fence.wait_saved()
    await fence.close()
    again = FenceFile(path)
    await again.open()
    assert again.highest("Plane/a") == 8
    await again.close()


class Wanted(Event):
    pass


class Plane(Agent):
    @react
    def land(self, event: Wanted) -> Effects:
        yield Land()


async def test_it_lives_with_the_node(tmp_path: Path) -> None:
    fleet = Fleet("planes", agents=[Plane])
    fence = fleet.attach(FenceFile(tmp_path / "fence.db"))
    landed: list[int] = []

    @fleet.actuator(Land)
    async def land(order: Order[Land]) -> None:
        fence.admit(order)
        landed.append(order.token)

    async with fleet.running(journal=f"sqlite:{tmp_path / 'planes.db'}") as live:
        await live.observe("Plane/a", Wanted())
    again = FenceFile(tmp_path / "fence.db")
    await again.open()
    assert again.highest("Plane/a") == landed[-1]
    await again.close()
