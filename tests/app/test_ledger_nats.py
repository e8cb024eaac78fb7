"""Fleets that claim through a ledger on a real NATS server, as users write them: by its URL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from stigmergy import (
    Agent,
    Claim,
    Denied,
    Effects,
    Event,
    Fleet,
    Granted,
    Live,
    Lost,
    Ordered,
    evolve,
    ordered,
    react,
)
from stigmergy.app.fleet import Running
from stigmergy.app.keyring import make_private_key
from stigmergy.base.errors import ConfigError
from stigmergy.testing.nats import NatsCluster, start_single

WITHIN_S = 240.0
ONE, TWO = "Crane/one", "Crane/two"


class Wanted(Event):
    for_s: float = 30.0


class Crane(Agent):
    dock: Ordered[Claim] = ordered(of="dock")
    said: str = ""

    @react
    def ask(self, event: Wanted) -> Effects:
        yield self.dock.claim(for_s=event.for_s)

    @evolve
    def granted(self, event: Granted) -> None:
        self.said = f"granted {event.token}"

    @evolve
    def denied(self, event: Denied) -> None:
        self.said = f"denied: {event.reason}"

    @evolve
    def lost(self, event: Lost) -> None:
        self.said = f"lost: {event.reason}"


fleet = Fleet("harbour", agents=[Crane])


async def wait_until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


def _standing(live: Live) -> str:
    claims = live.standing().company.claims
    return "" if claims is None else claims.ledger


class Harbour:
    """Nodes with a journal and a key each, and one server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = [make_private_key(folder / f"{number}.key").public.key.hex() for number in range(3)]

    def node(self, number: int, url: str, peers: tuple[str, ...] = ()) -> Running:
        journal = f"sqlite:{self.folder / f'{number}.db'}"
        return fleet.running(journal=journal, node=f"n{number}", ledger=url, peers=peers)


async def test_one_of_two_nodes_holds_and_the_other_hears_so(tmp_path: Path) -> None:
    harbour = Harbour(tmp_path)
    peers = tuple(harbour.keys[:2])
    with start_single(tmp_path / "server") as server:
        async with harbour.node(0, server.url, peers) as north, harbour.node(1, server.url, peers) as south:
            await north.observe(ONE, Wanted())
            await wait_until(lambda: north.query(ONE, Crane).said.startswith("granted"))
            await south.observe(TWO, Wanted())
            await wait_until(
                lambda: south.query(TWO, Crane).said.startswith(
                    "denied: somebody else holds it: Crane/one holds it for up to"
                )
            )
            assert _standing(south) == "up"


async def test_a_node_starts_without_the_servers_and_claims_when_they_are_there(tmp_path: Path) -> None:
    harbour = Harbour(tmp_path)
    server = NatsCluster(start_single(tmp_path / "server").servers)
    server.stop()
    async with harbour.node(0, server.url) as north:
        await north.observe(ONE, Wanted(for_s=0.2))
        await wait_until(lambda: north.query(ONE, Crane).said.startswith("denied: no verdict in time"))
        await wait_until(lambda: _standing(north) == "no contact")
        server.start_again(0)
        await north.observe(ONE, Wanted())
        await wait_until(lambda: north.query(ONE, Crane).said.startswith("granted"))
        assert _standing(north) == "up"
    server.stop()


async def test_a_key_that_nobody_has_enrolled_is_told_so(tmp_path: Path) -> None:
    harbour = Harbour(tmp_path)
    with start_single(tmp_path / "server") as server:
        async with harbour.node(0, server.url) as north:
            await north.observe(ONE, Wanted())
            await wait_until(lambda: north.query(ONE, Crane).said.startswith("granted"))
            async with harbour.node(1, server.url) as south:
                await south.observe(TWO, Wanted(for_s=0.5))
                await wait_until(lambda: south.query(TWO, Crane).said.startswith("denied: "))
                claims = south.standing().company.claims
                assert claims is not None
                assert "have a node that may enrol it" in claims.why


@pytest.mark.usefixtures("without_nats")
async def test_without_the_package_it_is_said_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'pip install "stigmergy\[nats\]"'):
        async with Harbour(tmp_path).node(0, "nats://127.0.0.1:4222"):
            pass
