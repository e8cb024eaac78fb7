"""Answers operators about a node's replication: what it shares, whom it has quarantined, who has claimed what.

It asks no other node. What it says about them is what they last reported, and about claims the state of the log as far
as it was read; agents here act only upon `believed`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stigmergy.audit.listing import readable_time
from stigmergy.base.errors import ConfigError
from stigmergy.claims.claimant import Belief
from stigmergy.claims.service import ClaimService
from stigmergy.claims.state import Grant, Resource
from stigmergy.control import protocol
from stigmergy.crdt.anti_entropy.authorship import Quarantined
from stigmergy.crdt.anti_entropy.held_object import HeldObject
from stigmergy.network.replication import Replication
from stigmergy.network.replicator import Replicator

REPLICAS_TOLD_MAX = 1_000
"""So many replicas of one object are named; `replicas_count` says how many there are."""
NOTHING_SHARED = (
    "this node shares nothing: it needs agents with Shared fields, and a bus or a mesh to reach others; give --bus or "
    "--mesh, or bus or mesh under [fleet] in stigmergy.toml"
)
NO_LEDGER = (
    "this node has no ledger, so nothing is granted; give --ledger, such as sqlite:ledger.db, or ledger under [fleet] "
    "in stigmergy.toml"
)


class ReplicationService:
    """Answers about one node. Without replication every request is refused, with what to do."""

    def __init__(self, replication: Replication | None) -> None:
        self._replication = replication

    # ------------------------------------------------------------------ shared objects

    def shared(self, request: protocol.SharedRequest) -> Iterator[dict[str, Any]]:
        """The objects that this node holds, by name; or the one that is named."""
        replicas = self._replicas()
        objects = replicas.machine.objects
        if request.object is not None:
            objects = [held for held in objects if held.name == request.object]
            if not objects:
                raise _no_object(request.object)
        return (described_object(replicas, held) for held in objects)

    def quarantine(self) -> Iterator[dict[str, Any]]:
        """Who is shut out, the first first."""
        return (described_quarantined(one) for one in self._replicas().quarantined())

    def lift(self, request: protocol.LiftRequest) -> dict[str, Any]:
        """Lets a key take part again. The beginning of its hex digits will do, where only one begins so."""
        replicas = self._replicas()
        digits = request.key.strip().lower()
        found = [one.key for one in replicas.quarantined() if digits and one.key.hex().startswith(digits)]
        if len(found) != 1:
            many = "are several keys that begin with" if found else "is no key"
            raise ConfigError(f"in quarantine there {many} {request.key!r}; stigmergy shared quarantine lists them")
        replicas.lift_quarantine(found[0])
        return {"key": found[0].hex(), "lifted": True}

    def retire(self, request: protocol.RetireRequest) -> dict[str, Any]:
        """Leaves a dead replica out of what nodes tell each other about an object."""
        replicas = self._replicas()
        held = next((held for held in replicas.machine.objects if held.name == request.object), None)
        if held is None:
            raise _no_object(request.object)
        digits = request.replica.strip().lower()
        known = [replica for replica, _ in held.store.context.vector()]
        found = [replica for replica in known if digits and replica.hex().startswith(digits)]
        if len(found) != 1:
            many = "several replicas that begin with" if found else "no replica"
            raise ConfigError(
                f"{request.object} has {many} {request.replica!r}; stigmergy shared show {request.object} lists them"
            )
        if found[0] in held.locals:
            agent = held.locals[found[0]].address
            raise ConfigError(f"replica {found[0].hex()} is that of {agent} at this node, and not dead; name another")
        replicas.retire(held.name, found[0])
        return {"object": held.name, "replica": found[0].hex(), "retired": True}

    def _replicas(self) -> Replicator:
        if self._replication is None or self._replication.replicas is None:
            raise ConfigError(NOTHING_SHARED)
        return self._replication.replicas

    # ------------------------------------------------------------------ claims

    def claims(self, request: protocol.ClaimsRequest) -> Iterator[dict[str, Any]]:
        """Resources that somebody wants, by the log or by what agents here ask for; or the one that is named."""
        claims = None if self._replication is None else self._replication.claims
        if claims is None:
            raise ConfigError(NO_LEDGER)
        beliefs: dict[str, list[Belief]] = {}
        for belief in claims.beliefs():
            for name in (belief.resource,) if belief.holds or not belief.pool else belief.pool:
                beliefs.setdefault(name, []).append(belief)
        folded = claims.folded
        if request.resource is not None:
            names = [request.resource]
        else:
            names = sorted({**dict.fromkeys(folded.resources), **dict.fromkeys(beliefs)})
        return (described_resource(claims, name, folded.resource(name), beliefs.get(name, [])) for name in names)


def described_object(replicas: Replicator, held: HeldObject) -> dict[str, Any]:
    """A shared object as this node holds it."""
    store = held.store
    vector = store.context.vector()
    retired = replicas.retired(held.name)
    holders = replicas.machine.holders(held.name)
    return {
        "object": held.name,
        "agents": sorted(local.address for local in held.locals.values()),
        "live": store.live_count,
        "live_bytes": store.live_bytes,
        "digest": store.digest().hex(),
        "waiting": len(held.waiting),
        "diverged": held.diverged,
        "peers": list(holders),
        "in_step": [peer for peer, in_step in holders.items() if in_step],
        "replicas_count": len(vector),
        "replicas": [
            {
                "replica": replica.hex(),
                "counter": counter,
                "agent": held.locals[replica].address if replica in held.locals else None,
                "retired": replica in retired,
            }
            for replica, counter in vector[:REPLICAS_TOLD_MAX]
        ],
    }


def described_quarantined(one: Quarantined) -> dict[str, Any]:
    """Somebody who is shut out, and why."""
    return {
        "key": one.key.hex(),
        "node": one.node or None,
        "object": one.object,
        "replica": one.replica.hex() or None,
        "why": one.why,
        "since": readable_time(one.since_ns),
    }


def described_resource(claims: ClaimService, name: str, resource: Resource, beliefs: list[Belief]) -> dict[str, Any]:
    """A resource: what the log says of it, and what this node believes."""
    grant = resource.grant
    return {
        "resource": name,
        "read_to": claims.folded.position,
        "holder": None if grant is None else _claimant(claims, grant.claimant),
        **_lease(grant),
        "offered": None if resource.offer is None else _claimant(claims, resource.offer.claimant),
        "queue": [
            {**_claimant(claims, waiter.claimant), **_any_of(claims.folded.pools.get(waiter.claimant, ()))}
            for waiter in resource.queue
        ],
        "believed": [
            {
                "agent": belief.agent,
                "claim": belief.claim,
                "holds": belief.holds,
                "token": belief.token or None,
                "left_s": round(belief.left_s, 3),
                "renews": belief.renews,
                "asking": belief.asking,
                **_any_of(belief.pool),
            }
            for belief in beliefs
        ],
    }


def _any_of(pool: tuple[str, ...]) -> dict[str, Any]:
    """The resources of which any one would do; nothing where only one was asked for."""
    return {"any_of": list(pool)} if pool else {}


def _lease(grant: Grant | None) -> dict[str, Any]:
    if grant is None:
        return {"token": None, "since": None, "for_s": None}
    return {"token": grant.token, "since": grant.began, "for_s": grant.for_ms / 1000}


def _claimant(claims: ClaimService, claimant: bytes) -> dict[str, Any]:
    """Who it is, as its own entry says; only the id where that entry was cut off before this node came."""
    named = claims.name_of(claimant)
    if named is None:
        return {"claimant": claimant.hex(), "agent": None, "claim": None, "key": None}
    agent, _, claim = named[1].rpartition(" ")
    return {"claimant": claimant.hex(), "agent": agent, "claim": claim, "key": named[0].hex()}


def _no_object(name: str) -> ConfigError:
    return ConfigError(f"this node holds no shared object {name!r}; stigmergy shared lists those that it holds")
