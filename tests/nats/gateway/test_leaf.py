"""A gateway's own server: started again when it ends or hangs, quiet until the hub knows it."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from stigmergy.base.errors import ConfigError, LinkDown
from stigmergy.nats.address import parse_address
from stigmergy.nats.gateway import leaf as leaf_module
from stigmergy.nats.gateway.leaf import Leaf, LeafPlan
from stigmergy.nats.link import NatsLink
from stigmergy.nats.servers.server import LOOPBACK, free_ports
from stigmergy.testing.nats import start_single

WAIT_S_MAX = 240.0


async def wait_until(over: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S_MAX
    while not await asyncio.to_thread(over):
        assert time.monotonic() < deadline_s, f"not so in time: line {over.__code__.co_firstlineno}"
        await asyncio.sleep(0.02)


@pytest.fixture
async def leaf(tmp_path: Path) -> AsyncIterator[Leaf]:
    found = Leaf(LeafPlan(folder=tmp_path / "data", site="north", roots=("delivery",)))
    await found.start()
    yield found
    await found.stop()


async def test_a_server_that_is_killed_is_started_again_on_its_ports(leaf: Leaf) -> None:
    address = leaf.address
    for count in range(1, 3):
        before = leaf.server.pid
        os.kill(before, signal.SIGKILL)
        await wait_until(lambda: leaf.server.pid not in (0, before) and leaf.server.is_healthy())  # noqa: B023 - awaited
        await wait_until(lambda: leaf.trouble == "")
        assert leaf.restarts == count
    assert leaf.address == address


async def test_a_server_that_hangs_is_ended_and_started_again(leaf: Leaf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaf_module, "HUNG_S", 1.0)
    monkeypatch.setattr(leaf_module, "HEALTH_EVERY_S", 0.2)
    before = leaf.server.pid
    leaf.server.pause()
    await wait_until(lambda: leaf.restarts == 1 and leaf.server.pid not in (0, before))
    await wait_until(leaf.server.is_healthy)


async def test_what_cannot_start_again_is_tried_with_pauses_and_said(leaf: Leaf) -> None:
    store = leaf.server.plan.store
    leaf.server.kill()
    take_away(store)
    await wait_until(lambda: leaf.restarts >= 3 and leaf.trouble != "")
    give_back(store)
    await wait_until(lambda: leaf.trouble == "" and leaf.server.is_healthy())


def take_away(store: str) -> None:
    Path(store).rename(f"{store}-moved")
    Path(store).write_text("no folder", encoding="utf-8")


def give_back(store: str) -> None:
    Path(store).unlink()
    Path(f"{store}-moved").rename(store)


async def test_a_leaf_answers_for_its_site_once_the_hub_has_given_it(tmp_path: Path) -> None:
    with start_single(tmp_path / "hub", name="hub", domain="hub", leaf=True) as hub:
        port = hub.servers[0].plan.leaf_port
        plan = LeafPlan(folder=tmp_path / "data", site="north", roots=("delivery",), hubs=(f"{LOOPBACK}:{port}",))
        leaf = Leaf(plan)
        await leaf.start()
        above = await NatsLink.open(parse_address(f"{hub.url}?domain=north"), name="test")
        below = await NatsLink.open(parse_address(f"nats://{leaf.address}?domain=hub"), name="test")
        try:
            await reach(below)
            with pytest.raises(LinkDown):
                await above.api("INFO", within_s=0.5)
            leaf.recognise()
            await reach(above)
            identity = leaf.identity
            await leaf.stop()
            leaf = Leaf(plan)
            await leaf.start()
            assert leaf.identity == identity
            assert leaf.identity.is_known
            await reach(above)
        finally:
            await above.close()
            await below.close()
            await leaf.stop()


async def reach(link: NatsLink) -> None:
    """Waits until JetStream of the link's domain answers."""
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            try:
                await link.api("INFO", within_s=1.0)
            except LinkDown:
                await asyncio.sleep(0.05)
            else:
                return


async def test_who_a_gateway_is_must_be_readable(tmp_path: Path) -> None:
    spoiled(tmp_path / "data")
    with pytest.raises(ConfigError, match=r"gateway\.json"):
        await Leaf(LeafPlan(folder=tmp_path / "data", site="north", roots=())).start()
    # Nothing is held: another one can have a folder.
    leaf = Leaf(LeafPlan(folder=tmp_path / "other", site="north", roots=()))
    await leaf.start()
    await leaf.stop()


def spoiled(folder: Path) -> None:
    folder.mkdir()
    (folder / "gateway.json").write_text("{", encoding="utf-8")


async def test_a_server_that_outlives_its_gateway_is_waited_for_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaf_module, "OLD_SERVER_S_MAX", 0.3)
    (port,) = free_ports(1)
    plan = LeafPlan(folder=tmp_path / "data", site="north", roots=(), port=port)
    first = Leaf(plan)
    await first.start()
    assert first._task is not None
    first._task.cancel()
    os.close(first._lock)  # As if the gateway were gone, and the system had not come to its server yet.
    old = first.server.pid
    second = Leaf(plan)
    await second.start()
    assert second.server.pid != old
    assert second.server.is_healthy()
    assert not first.server.is_running
    await second.stop()
