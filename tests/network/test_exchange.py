"""An object is looked for at many nodes, some at a time, and what is said of them is true."""

from __future__ import annotations

import asyncio

import pytest

from stigmergy.base.errors import StoreUnavailable
from stigmergy.membership.mesh import Hear, MeshCounters
from stigmergy.network import exchange as module
from stigmergy.network.exchange import ROUND_MAX, Exchange

NODES = [f"node-{number:03}" for number in range(2 * ROUND_MAX + 2)]


class Wire:
    """Joins nodes in memory; counts the questions that are under way."""

    def __init__(self) -> None:
        self.hears: dict[str, Hear] = {}
        self.under_way_max = 0
        self.silent: set[str] = set()
        self._under_way = 0

    def send(self, sender: str, to: str, body: bytes) -> None:
        if to in self.hears and to not in self.silent:
            self._under_way += 1
            self.under_way_max = max(self.under_way_max, self._under_way)
            asyncio.get_running_loop().call_soon(self._deliver, sender, to, body)

    def _deliver(self, sender: str, to: str, body: bytes) -> None:
        self._under_way -= 1
        self.hears[to](sender, body)


class WireMesh:
    """A Mesh on a wire."""

    bytes_max = 64 * 1024
    contact = ""

    def __init__(self, wire: Wire, node: str) -> None:
        self.node = node
        self.counters = MeshCounters()
        self._wire = wire

    async def open(self, hear: Hear) -> None:
        self._wire.hears[self.node] = hear

    def send_nowait(self, to: str, body: bytes) -> None:
        self._wire.send(self.node, to, body)

    def introduce(self, node: str, contact: str) -> None: ...

    async def close(self) -> None:
        self._wire.hears.pop(self.node, None)


async def started(wire: Wire, node: str, name: str = "") -> Exchange:
    async def find(asked: str) -> bytes | None:
        return b"the map" if asked == name else None

    exchange = Exchange(WireMesh(wire, node), find, 1_000)
    await exchange.start()
    return exchange


async def test_all_nodes_are_asked_some_at_a_time() -> None:
    wire = Wire()
    asker = await started(wire, "asker")
    others = [await started(wire, node, "map" if node == NODES[-1] else "") for node in NODES]
    assert await asker.get("map", NODES, 1) == b"the map"
    assert await asker.get("other", NODES, 1) is None
    assert wire.under_way_max <= ROUND_MAX
    for one in (asker, *others):
        await one.stop()


async def test_what_is_said_of_nodes_that_do_not_answer_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.5)
    wire = Wire()
    asker = await started(wire, "asker")
    others = [await started(wire, node, "map" if node == NODES[-1] else "") for node in NODES]
    wire.silent = {NODES[0]}
    said = rf"^{ROUND_MAX - 1} of {len(NODES)} nodes lack it; no answer from {NODES[0]}; {ROUND_MAX + 2} were not asked"
    with pytest.raises(StoreUnavailable, match=said):
        await asker.get("map", NODES, 1)
    # One that is silent holds up the others, and keeps nobody from being asked.
    assert await asker.get("map", NODES, 3) == b"the map"
    with pytest.raises(
        StoreUnavailable, match=rf"^{len(NODES) - 1} of {len(NODES)} nodes lack it; no .*000; try again"
    ):
        await asker.get("other", NODES, 3)
    for one in (asker, *others):
        await one.stop()
