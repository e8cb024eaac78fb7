"""The ledger on clusters of real servers, which are killed: nothing acknowledged is lost, nothing is there twice, and
without a majority nothing is written."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import msgspec
import pytest

from stigmergy.base.errors import ConfigError, LedgerUnavailable, LedgerUnknown
from stigmergy.claims.port import LedgerEntry
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.nats.address import parse_address
from stigmergy.nats.ledger import NatsLedger, open_ledger
from stigmergy.nats.ledger import reader as reading
from stigmergy.nats.link import NatsLink
from stigmergy.nats.naming import ledger_stream
from stigmergy.nats.servers.members import replace_member
from stigmergy.testing.journal_contract import in_a_loop
from stigmergy.testing.ledger_contract import read_all
from stigmergy.testing.nats import NatsCluster

NAME = "incidents"
WITHIN_S = 240.0
BEFORE, AFTER = 15, 15
"""Incidents of each gateway before the leader is killed, and after."""


class Incident(msgspec.Struct, frozen=True):
    """As the city's log has it."""

    incident_id: str
    timestamp: str
    type: str
    source_node: str
    confidence: float
    payload: dict[str, float]


class Gateway:
    """A server of the cluster, and whoever proposes incidents there. They die together."""

    def __init__(self, cluster: NatsCluster, number: int) -> None:
        nodes = len(cluster.servers)
        self.name = f"gateway-{number}"
        self.signer = _signer(number)
        peers = [_signer(other).public_key for other in range(nodes)]
        url = f"{cluster.urls[number]}?replicas={nodes}"
        self.ledger = open_ledger(url, NAME, signer=self.signer, trusted=peers)
        self.acknowledged: dict[bytes, int] = {}
        self.refused: list[bytes] = []
        self.unknown: list[bytes] = []
        self._count = 0

    async def propose(self) -> bool:
        """One incident; whether it was acknowledged."""
        self._count += 1
        entry = msgspec.json.encode(
            Incident(
                f"{self.name}/{self._count}",
                "2026-03-20T07:00:40.042Z",
                "NO2_leak",
                f"sensor-{self._count}",
                0.92,
                {"reading": 0.73},
            )
        )
        try:
            self.acknowledged[entry] = await self.ledger.append([entry])
        except LedgerUnavailable:
            self.refused.append(entry)
        except LedgerUnknown:
            self.unknown.append(entry)
        except asyncio.CancelledError:  # its gateway died
            self.unknown.append(entry)
            raise
        return entry in self.acknowledged

    async def propose_many(self, count: int) -> None:
        """Until so many were acknowledged; what was refused is proposed anew, as another incident."""
        deadline_s = asyncio.get_running_loop().time() + WITHIN_S
        while count:
            count -= await self.propose()
            assert asyncio.get_running_loop().time() < deadline_s
            await asyncio.sleep(0.01)


def _signer(number: int) -> Ed25519Signer:
    return Ed25519Signer(bytes([number + 1]) * 32)


async def _log(ledger: NatsLedger) -> list[LedgerEntry]:
    deadline_s = asyncio.get_running_loop().time() + WITHIN_S
    while True:
        try:
            return await read_all(ledger)
        except LedgerUnavailable:
            assert asyncio.get_running_loop().time() < deadline_s
            await asyncio.sleep(0.1)


def _check(gateways: list[Gateway], survivors: list[Gateway], logs: list[list[LedgerEntry]]) -> None:
    """Every acknowledged incident is in every survivor's log, once and at its position, in one order; none that was
    refused is."""
    assert all(log == logs[0] for log in logs)
    positions = {entry.body: entry.position for entry in logs[0]}
    assert len(positions) == len(logs[0]), "an incident is there twice"
    for gateway in gateways:
        assert gateway.acknowledged.items() <= positions.items()
        assert not [entry for entry in gateway.refused if entry in positions]
    asked = {entry for one in gateways for entry in (*one.acknowledged, *one.unknown)}
    assert set(positions) <= asked
    assert len(survivors) == len(logs)


@pytest.mark.parametrize("nodes", [3, pytest.param(5, marks=pytest.mark.prove)])
def test_incidents_go_on_when_the_leader_is_killed_and_are_refused_without_a_majority(
    tmp_path: Path, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "READ_S", 0.5)
    with NatsCluster.start(tmp_path, nodes=nodes) as cluster:
        asyncio.run(_incidents(cluster))


async def _incidents(cluster: NatsCluster) -> None:
    gateways = [Gateway(cluster, number) for number in range(len(cluster.servers))]
    await asyncio.gather(*(gateway.propose_many(BEFORE) for gateway in gateways))
    leader = await cluster.leader_of(ledger_stream(NAME))
    assert leader is not None
    arriving = [asyncio.ensure_future(gateway.propose_many(AFTER)) for gateway in gateways]
    await asyncio.sleep(0.05)
    cluster.kill(leader)
    arriving[leader].cancel()
    survivors = [gateway for gateway in gateways if gateway is not gateways[leader]]
    await asyncio.gather(*(task for number, task in enumerate(arriving) if number != leader))
    _check(gateways, survivors, [await _log(gateway.ledger) for gateway in survivors])
    await _refuse_without_majority(cluster, gateways, leader)
    for gateway in gateways:
        await gateway.ledger.close()


async def _refuse_without_majority(cluster: NatsCluster, gateways: list[Gateway], leader: int) -> None:
    gone = await _lose_majority(cluster, leader)
    left = next(gateway for number, gateway in enumerate(gateways) if number not in gone)
    deadline_s = asyncio.get_running_loop().time() + WITHIN_S
    before = len(left.refused)
    while len(left.refused) < before + 3:
        assert not await left.propose()
        assert asyncio.get_running_loop().time() < deadline_s
    with pytest.raises(LedgerUnavailable):
        await left.ledger.read(0)
    for number in gone:
        cluster.start_again(number, wait=False)
    assert left.acknowledged
    _check(gateways, [left], [await _log(left.ledger)])


async def _lose_majority(cluster: NatsCluster, leader: int) -> list[int]:
    """Kills as many as it takes; says who is gone."""
    nodes, gone = len(cluster.servers), [leader]
    while 2 * (nodes - len(gone)) > nodes:
        gone.append(next(number for number in range(nodes) if number not in gone))
        cluster.kill(gone[-1])
    return gone


@in_a_loop
async def test_a_lost_member_is_replaced_while_the_ledger_goes_on(tmp_path: Path) -> None:
    with NatsCluster.start(tmp_path, nodes=3) as cluster:
        ledger = open_ledger(f"{cluster.url}?replicas=3", NAME, signer=_signer(0))
        acknowledged = {await ledger.append([b"%d" % number]): b"%d" % number for number in range(30)}
        leader = await cluster.leader_of(ledger_stream(NAME))
        assert leader is not None
        lost = (leader + 1) % 3
        name = cluster.servers[lost].plan.name
        cluster.kill(lost)
        left = [server for number, server in enumerate(cluster.servers) if number != lost]
        hosts = ",".join(f"{server.plan.host}:{server.plan.port}" for server in left)
        link = await NatsLink.open(parse_address(f"nats://{hosts}"), name="replacing")
        with pytest.raises(ConfigError, match="no other server can take the place"):
            await replace_member(link, name)

        writing = asyncio.ensure_future(_write_on(ledger, acknowledged))
        new = await asyncio.to_thread(cluster.add, tmp_path)
        moved = None
        async with asyncio.timeout(WITHIN_S):
            while moved is None:  # whoever leads the cluster may not know the new one yet
                with contextlib.suppress(ConfigError):
                    moved = await replace_member(link, name)
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing
        names = {server.plan.name for server in cluster.servers} - {name}
        assert {(one.stream, frozenset(one.servers)) for one in moved} == {
            (stream, frozenset(names)) for stream in (ledger_stream(NAME), f"{ledger_stream(NAME)}_STATE")
        }
        assert await replace_member(link, name) == []
        # Whole again: the other of the first three may go as well.
        cluster.kill(next(number for number in range(3) if number not in (lost, leader)))
        later = open_ledger(f"{cluster.urls[new]}?replicas=3", NAME, signer=_signer(0))
        log = await _log(later)
        assert acknowledged.items() <= {entry.position: entry.body for entry in log}.items()
        assert len(acknowledged) > 30
        for one in (ledger, later):
            await one.close()
        await link.close()


async def _write_on(ledger: NatsLedger, acknowledged: dict[int, bytes]) -> None:
    for number in range(1_000_000):
        body = b"while replacing %d" % number
        with contextlib.suppress(LedgerUnavailable, LedgerUnknown):
            acknowledged[await ledger.append([body])] = body
        await asyncio.sleep(0.02)
