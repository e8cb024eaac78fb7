"""Answers operators about a node's replication: what it shares, whom it has quarantined, who has claimed what.

It asks no other node. What it says about them is what they last reported, and about claims the state of the log as far
as it was read; agents here act only upon `believed`.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET, UnsetType, structs

from stigmergy.audit.listing import readable_time
from stigmergy.base.errors import ConfigError
from stigmergy.claims.claimant import Belief
from stigmergy.claims.service import ClaimService
from stigmergy.claims.state import Resource
from stigmergy.control import protocol
from stigmergy.control.agent_fields import ClaimFieldReply, SharedFieldReply
from stigmergy.control.replies import (
    BeliefReply,
    ClaimantReply,
    LiftReply,
    ObjectReply,
    QuarantineReply,
    ReplicaReply,
    ResourceReply,
    RetireReply,
    StateReply,
    filled,
)
from stigmergy.crdt.anti_entropy.authorship import Quarantined
from stigmergy.crdt.anti_entropy.held_object import HeldObject
from stigmergy.network.replication import ALONE, Replication
from stigmergy.network.replicator import Replicator

REPLICAS_TOLD_MAX = 1_000
"""So many replicas of one object are named; `replicas_count` says how many there are."""
QUEUE_TOLD_MAX = 100
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

    def shared(self, request: protocol.SharedRequest) -> Iterator[ObjectReply]:
        """The objects that this node holds, by name; or the one that is named."""
        replicas = self._replicas()
        objects = replicas.machine.objects
        if request.object is not None:
            objects = [held for held in objects if held.name == request.object]
            if not objects:
                raise _no_object(request.object)
        return (described_object(replicas, held) for held in objects)

    def writer(self, name: str, replica: bytes) -> tuple[str, str]:
        """The agent and the node that write to an object under an id; empty where they are not known."""
        replicas = None if self._replication is None else self._replication.replicas
        agent, node = ("", "") if replicas is None else replicas.machine.author(name, replica)
        return agent, "" if node == ALONE else node

    def with_others(self, found: StateReply) -> StateReply:
        """The present state of an agent of this node, with what the node knows of others: who lacks what it shares, who
        holds and waits for what it has claimed."""
        shared = found.shared and [self._with_peers(one) for one in found.shared]
        claims = found.claims
        service = None if self._replication is None else self._replication.claims
        if claims and service is not None:
            beliefs = {one.claim: one for one in service.beliefs() if one.agent == found.agent}
            claims = [_with_ledger(service, one, beliefs.get(one.claim)) for one in claims]
        return structs.replace(found, shared=shared, claims=claims)

    def _with_peers(self, one: SharedFieldReply) -> SharedFieldReply:
        replicas = None if self._replication is None else self._replication.replicas
        held = None if replicas is None else replicas.machine.find(one.object)
        if replicas is None or held is None:
            return one
        holders = replicas.machine.holders(held.name)
        lacking = [peer for peer, in_step in holders.items() if not in_step]
        return structs.replace(one, peers=list(holders), lacking=lacking, diverged=held.diverged)

    def quarantine(self) -> Iterator[QuarantineReply]:
        """Who is shut out, the first first."""
        return (described_quarantined(one) for one in self._replicas().quarantined())

    def lift(self, request: protocol.LiftRequest) -> LiftReply:
        """Lets a key take part again. The beginning of its hex digits will do, where only one begins so."""
        replicas = self._replicas()
        digits = request.key.strip().lower()
        found = [one.key for one in replicas.quarantined() if digits and one.key.hex().startswith(digits)]
        if len(found) != 1:
            many = "are several keys that begin with" if found else "is no key"
            raise ConfigError(f"in quarantine there {many} {request.key!r}; stigmergy shared quarantine lists them")
        replicas.lift_quarantine(found[0])
        return LiftReply(found[0].hex())

    def retire(self, request: protocol.RetireRequest) -> RetireReply:
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
        return RetireReply(held.name, found[0].hex())

    def _replicas(self) -> Replicator:
        if self._replication is None or self._replication.replicas is None:
            raise ConfigError(NOTHING_SHARED)
        return self._replication.replicas

    # ------------------------------------------------------------------ claims

    def claims(self, request: protocol.ClaimsRequest) -> Iterator[ResourceReply]:
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


def described_object(replicas: Replicator, held: HeldObject) -> ObjectReply:
    """A shared object as this node holds it."""
    store = held.store
    vector = store.context.vector()
    retired = replicas.retired(held.name)
    holders = replicas.machine.holders(held.name)
    return ObjectReply(
        object=held.name,
        agents=sorted(local.address for local in held.locals.values()),
        live=store.live_count,
        live_bytes=store.live_bytes,
        digest=store.digest().hex(),
        waiting=len(held.waiting),
        diverged=held.diverged,
        peers=list(holders),
        in_step=[peer for peer, in_step in holders.items() if in_step],
        behind_s=UNSET if (behind_s := replicas.behind_s(held.name)) is None else round(behind_s, 3),
        unheard=replicas.unheard(held.name),
        replicas_count=len(vector),
        replicas=[
            ReplicaReply(
                replica.hex(),
                counter,
                held.locals[replica].address if replica in held.locals else None,
                retired=replica in retired,
            )
            for replica, counter in vector[:REPLICAS_TOLD_MAX]
        ],
    )


def described_quarantined(one: Quarantined) -> QuarantineReply:
    """Somebody who is shut out, and why."""
    since = readable_time(one.since_ns)
    return filled(QuarantineReply, one, node=one.node or None, replica=one.replica.hex() or None, since=since)


def described_resource(claims: ClaimService, name: str, resource: Resource, beliefs: list[Belief]) -> ResourceReply:
    """A resource: what the log says of it, and what this node believes."""
    grant = resource.grant
    pools = claims.folded.pools
    return ResourceReply(
        resource=name,
        read_to=claims.folded.position,
        holder=None if grant is None else _claimant(claims, grant.claimant),
        token=None if grant is None else grant.token,
        since=None if grant is None else grant.began,
        for_s=None if grant is None else grant.for_ms / 1000,
        offered=None if resource.offer is None else _claimant(claims, resource.offer.claimant),
        queue=[
            _waiter(claims, waiter.claimant, list(pools.get(waiter.claimant, ())) or UNSET) for waiter in resource.queue
        ],
        believed=[
            filled(
                BeliefReply,
                belief,
                token=belief.token or None,
                left_s=round(belief.left_s, 3),
                any_of=list(belief.pool) or UNSET,
            )
            for belief in beliefs
        ],
    )


def _with_ledger(claims: ClaimService, one: ClaimFieldReply, belief: Belief | None) -> ClaimFieldReply:
    """A claim with what the node believes of it, and who holds and waits for its resource by the ledger."""
    held, asking = belief is not None and belief.holds, belief is not None and belief.asking
    name = one.resource if belief is None else belief.resource
    found = structs.replace(one, resource=name, held=held, asking=asking, until=one.until if held else None)
    if not name or (belief is not None and belief.pool and not held):
        return found  # It waits for any one of several.
    resource = claims.folded.resource(name)
    grant = resource.grant
    return structs.replace(
        found,
        holder="" if grant is None else _agent_of(claims, grant.claimant),
        queue=[_agent_of(claims, waiter.claimant) for waiter in resource.queue[:QUEUE_TOLD_MAX]],
    )


def _agent_of(claims: ClaimService, claimant: bytes) -> str:
    found = _claimant(claims, claimant)
    return found.agent or found.claimant


def _claimant(claims: ClaimService, claimant: bytes, any_of: list[str] | UnsetType = UNSET) -> ClaimantReply:
    """Who it is, as its own entry says; only the id where that entry was cut off before this node came."""
    named = claims.name_of(claimant)
    if named is None:
        return ClaimantReply(claimant.hex(), None, None, None, any_of)
    agent, _, claim = named.name.rpartition(" ")
    return ClaimantReply(claimant.hex(), agent, claim, named.key.hex(), any_of)


def _waiter(claims: ClaimService, claimant: bytes, any_of: list[str] | UnsetType) -> ClaimantReply:
    """Who waits, with which journal, and since when: those that wait longest may belong to a node that is gone."""
    named, queued = claims.name_of(claimant), claims.queued(claimant)
    return structs.replace(
        _claimant(claims, claimant, any_of),
        incarnation=UNSET if named is None else named.incarnation,
        queued_at=None if queued is None else queued[0],
        waits_s=None if queued is None else round(queued[1], 3),
    )


def _no_object(name: str) -> ConfigError:
    return ConfigError(f"this node holds no shared object {name!r}; stigmergy shared lists those that it holds")
