"""Nodes that share fields and claim what only one may have: real sockets, real disks, one process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from stigmergy import (
    Agent,
    Claim,
    Denied,
    Effects,
    Event,
    Events,
    Fleet,
    Granted,
    Live,
    Lost,
    Ordered,
    ORSet,
    Shared,
    decide,
    evolve,
    ordered,
    react,
    shared,
)
from stigmergy.app.fleet import Running, make_private_key, read_private_key
from stigmergy.base.errors import ConfigError

WITHIN_S = 240.0


class Arrived(Event):
    vehicle: str


class Wanted(Event):
    for_s: float = 5.0


class Crossing(Agent):
    vehicles: Shared[ORSet[str]] = shared(by="town")
    slot: Ordered[Claim] = ordered(of="slot")
    said: str = ""

    @decide
    def arrived(self, event: Arrived) -> Events:
        yield event
        yield self.vehicles.add(event.vehicle)

    @react
    def wanted(self, event: Wanted) -> Effects:
        yield self.slot.claim(for_s=event.for_s)

    @evolve
    def granted(self, event: Granted) -> None:
        self.said = f"granted {event.token}"

    @evolve
    def denied(self, event: Denied) -> None:
        self.said = f"denied: {event.reason}"

    @evolve
    def lost(self, event: Lost) -> None:
        self.said = f"lost: {event.reason}"


fleet = Fleet("town", agents=[Crossing])
ONE, TWO = "Crossing/one", "Crossing/two"


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


async def wait_until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


def vehicles(live: Live, address: str) -> list[str]:
    return list(live.query(address, Crossing).vehicles)


class Town:
    """Two nodes on UDP with a ledger in a file, each to be started and stopped on its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = free_ports(2)

    def node(self, number: int, *, ledger: bool = True, peers: tuple[str, ...] = ()) -> Running:
        other = 1 - number
        mesh = f"udp://127.0.0.1:{self.ports[number]}?peers=n{other}@127.0.0.1:{self.ports[other]}"
        return fleet.running(
            journal=f"sqlite:{self.folder / f'{number}.db'}",
            node=f"n{number}",
            mesh=mesh,
            ledger=f"sqlite:{self.folder / 'ledger.db'}" if ledger else f"memory:{self.folder.name}",
            peers=peers,
        )


async def test_shared_fields_converge_over_udp_also_after_one_was_away(tmp_path: Path) -> None:
    town = Town(tmp_path)
    async with town.node(0) as north:
        await north.observe(ONE, Arrived(vehicle="V-1"))
        async with town.node(1) as south:
            await south.observe(TWO, Arrived(vehicle="V-2"))
            await wait_until(lambda: vehicles(north, ONE) == vehicles(south, TWO) == ["V-1", "V-2"])
            assert sorted(member.node for member in north.members()) == ["n0", "n1"]
            standing = north.standing().company.shared
            assert standing is not None
            assert (standing.objects, standing.replicas, standing.peers, standing.quarantined) == (1, 1, 1, ())
        await north.observe(ONE, Arrived(vehicle="V-3"))
        async with town.node(1) as south:
            await wait_until(lambda: vehicles(south, TWO) == ["V-1", "V-2", "V-3"])
            assert south.standing().troubles == []


async def test_one_holder_and_what_becomes_of_it(tmp_path: Path) -> None:
    town = Town(tmp_path)
    async with town.node(0) as north, town.node(1) as south:
        await north.observe(ONE, Wanted(for_s=1.0))
        await wait_until(lambda: north.query(ONE, Crossing).said.startswith("granted"))
        await south.observe(TWO, Wanted())
        await wait_until(lambda: south.query(TWO, Crossing).said.startswith("denied: "))
        await wait_until(lambda: north.query(ONE, Crossing).said.startswith("lost: "))
        assert north.query(ONE, Crossing).slot.until_ns == 0
        claims = north.standing().company.claims
        assert claims is not None
        assert (claims.ledger, claims.held) == ("up", 0)


async def test_after_a_start_nothing_is_held(tmp_path: Path) -> None:
    town = Town(tmp_path)
    async with town.node(0) as north:
        await north.observe(ONE, Wanted(for_s=60.0))
        await wait_until(lambda: north.query(ONE, Crossing).said.startswith("granted"))
    async with town.node(0) as north:
        await wait_until(lambda: north.query(ONE, Crossing).said.startswith("lost: the node was started anew"))
        await north.observe(ONE, Wanted(for_s=60.0))
        await wait_until(lambda: north.query(ONE, Crossing).said.startswith("granted"))


async def test_a_node_that_claims_without_a_ledger_does_not_start(tmp_path: Path) -> None:
    journal = f"sqlite:{tmp_path / 'x.db'}"
    with pytest.raises(ConfigError, match=r"needs a ledger \(Crossing\.slot is claimed\).*write ledger = "):
        async with fleet.running(journal=journal):
            pass
    assert not (tmp_path / "x.db").exists(), "nothing was begun"
    # A node whose own agents claim nothing needs none.
    mixed = Fleet("mixed", agents=[Crossing, Quiet])
    async with mixed.running(journal=journal, agents=["Quiet/1"]) as live:
        assert live.standing().troubles == []


class Quiet(Agent):
    count: int = 0


async def test_only_keys_that_were_named_are_believed(tmp_path: Path) -> None:
    town = Town(tmp_path)
    for number in range(2):
        make_private_key(tmp_path / f"{number}.key")
    stranger = make_private_key(tmp_path / "stranger.key").public.key.hex()
    known = read_private_key(tmp_path / "1.key").public.key.hex()
    async with town.node(0, ledger=False, peers=(stranger,)) as north, town.node(1, ledger=False) as south:
        await north.observe(ONE, Arrived(vehicle="V-1"))
        await south.observe(TWO, Arrived(vehicle="V-2"))
        await wait_until(lambda: north.standing().counters["shared_refused"] > 3)
        assert vehicles(north, ONE) == ["V-1"]
    async with town.node(0, ledger=False, peers=(known,)) as north, town.node(1, ledger=False) as south:
        await wait_until(lambda: vehicles(north, ONE) == ["V-1", "V-2"])


async def test_a_copied_journal_writes_under_ids_of_its_own(tmp_path: Path) -> None:
    town = Town(tmp_path)
    async with town.node(0) as north:
        await north.observe(ONE, Arrived(vehicle="V-1"))
    for suffix in (".db", ".key"):
        (tmp_path / f"1{suffix}").write_bytes((tmp_path / f"0{suffix}").read_bytes())
        (tmp_path / f"1{suffix}").chmod(0o600)
    async with town.node(0) as north, town.node(1) as copy:
        await asyncio.gather(north.observe(ONE, Arrived(vehicle="V-2")), copy.observe(ONE, Arrived(vehicle="V-3")))
        await wait_until(lambda: vehicles(north, ONE) == vehicles(copy, ONE) == ["V-1", "V-2", "V-3"])
        assert north.standing().troubles == copy.standing().troubles == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"mesh": "tcp://here", "ledger": "memory:x"}, "mesh 'tcp://here': no adapter for 'tcp'; there are udp:"),
        ({"ledger": "here"}, "ledger 'here': no adapter"),
        ({"mesh": 7}, "mesh=7: give a text"),
        ({"peers": "one"}, "peers='one': give a list of texts"),
    ],
)
async def test_what_cannot_be_opened_is_said(tmp_path: Path, arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        async with fleet.running(journal=f"sqlite:{tmp_path / 'x.db'}", **arguments):  # type: ignore[arg-type]
            pass


async def test_agents_of_one_node_share_without_a_bus_or_a_mesh(tmp_path: Path) -> None:
    async with fleet.running(journal=f"sqlite:{tmp_path / 'alone.db'}", ledger="memory:alone") as live:
        await live.observe(ONE, Arrived(vehicle="V-1"))
        await live.observe(TWO, Arrived(vehicle="V-2"))
        await wait_until(lambda: vehicles(live, ONE) == vehicles(live, TWO) == ["V-1", "V-2"])
        assert live.standing().troubles == []
