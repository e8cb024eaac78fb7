"""What an operator is told about shared objects and claims where there are many of them, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stigmergy import Agent, Event, Events, Fleet, Live, ORSet, Shared, decide, shared
from stigmergy.base.errors import ConfigError
from stigmergy.control import protocol, replication_service
from stigmergy.control.replication_service import ReplicationService
from stigmergy.control.replies import LiftReply, QuarantineReply
from stigmergy.crdt.anti_entropy.authorship import Quarantined
from stigmergy.network.replication import Replication

AGENTS = 17
"""So many replicas that two of them begin with the same digit."""
OBJECT = "Gate.seen/all"


class Seen(Event):
    what: str


class Gate(Agent):
    seen: Shared[ORSet[str]] = shared(by="all")

    @decide
    def see(self, event: Seen) -> Events:
        yield self.seen.add(event.what)


fleet = Fleet("gates", agents=[Gate])


async def gates(live: Live) -> ReplicationService:
    for number in range(AGENTS):
        await live.observe(f"Gate/{number}", Seen(what=f"V-{number}"))
    return ReplicationService(live.replication)


def replication_of(live: Live) -> Replication:
    assert live.replication is not None
    return live.replication


async def test_many_replicas_of_one_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication_service, "REPLICAS_TOLD_MAX", 5)
    url = f"sqlite:{tmp_path / 'gates.db'}"
    async with fleet.running(journal=url, node="n0", mesh="udp://127.0.0.1:0") as live:
        desk = await gates(live)
        (found,) = desk.shared(protocol.SharedRequest())
        assert (found.object, len(found.agents), found.replicas_count) == (OBJECT, AGENTS, AGENTS)
        assert len(found.replicas) == 5
        assert [one.agent is not None for one in found.replicas] == [True] * 5
        replicas = replication_of(live).replicas
        assert replicas is not None
        known = [replica.hex() for replica, _ in replicas.machine.objects[0].store.context.vector()]
        digit = next(one[0] for one in known if sum(other[0] == one[0] for other in known) > 1)
        with pytest.raises(ConfigError, match=f"{OBJECT} has several replicas that begin with '{digit}'"):
            desk.retire(protocol.RetireRequest(object=OBJECT, replica=digit))
        with pytest.raises(ConfigError, match="at this node, and not dead"):
            desk.retire(protocol.RetireRequest(object=OBJECT, replica=known[0].upper()))


async def test_who_is_shut_out(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'gates.db'}"
    async with fleet.running(journal=url, node="n0", mesh="udp://127.0.0.1:0") as live:
        desk = await gates(live)
        assert list(desk.quarantine()) == []
        replicas = replication_of(live).replicas
        assert replicas is not None
        for key in (b"\xab\xcd", b"\xab\xef"):
            replicas.machine._context.shut_out(Quarantined(key, "", OBJECT, b"", "it lies", 1_800_000_000 * 10**9))
        first, second = desk.quarantine()
        told: dict[str, Any] = {"node": None, "object": OBJECT, "replica": None, "why": "it lies"}
        assert first == QuarantineReply(key="abcd", **told, since="2027-01-15T08:00:00.000000Z")
        assert second.key == "abef"
        for digits, said in (
            ("ab", "are several keys that begin with 'ab'"),
            ("", "is no key ''"),
            ("00", "is no key"),
        ):
            with pytest.raises(ConfigError, match=said):
                desk.lift(protocol.LiftRequest(key=digits))
        assert desk.lift(protocol.LiftRequest(key="ABC")) == LiftReply("abcd")
        assert [one.key for one in desk.quarantine()] == ["abef"]
        assert len(live.standing().company.shared.quarantined) == 1  # type: ignore[union-attr]


async def test_without_company_it_is_said_what_to_do(tmp_path: Path) -> None:
    async with fleet.running(journal=f"sqlite:{tmp_path / 'gates.db'}") as live:
        alone, nobody = ReplicationService(live.replication), ReplicationService(None)
        assert list(alone.shared(protocol.SharedRequest())) == []  # its own agents would share, and there are none yet
        with pytest.raises(ConfigError, match="give --bus or --mesh"):
            nobody.shared(protocol.SharedRequest())
        for desk in (alone, nobody):
            with pytest.raises(ConfigError, match="give --ledger"):
                desk.claims(protocol.ClaimsRequest())
