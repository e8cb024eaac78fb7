"""Takes facts from outside: writes of peers to shared fields, verdicts of the ledger, answers of models."""

from __future__ import annotations

from typing import Protocol

from stigmergy.agents.codec import UNDECODABLE
from stigmergy.agents.messages import Event, FollowedFact
from stigmergy.agents.ordered import LEDGER, read_verdict
from stigmergy.agents.shared import Merged, check_merged
from stigmergy.base.errors import Overloaded, PeerError
from stigmergy.shard.draft import Draft, ShardCounters
from stigmergy.shard.inputs import SharedReceived
from stigmergy.shard.state import ShardState


class Dispatcher(Protocol):
    """What gives inputs to agents."""

    counters: ShardCounters

    def follow(
        self, draft: Draft, address: str, fact: Event, source: str, now_ns: int, body: bytes | None = None
    ) -> None:
        """Keeps a fact; then the agent decides what follows from it."""
        ...

    def take(self, draft: Draft, address: str, body: bytes, source: str, now_ns: int) -> None:
        """Takes any message."""
        ...


PEERS = "peers"
"""The source of what other replicas have written."""


def take_verdict(
    state: ShardState, dispatcher: Dispatcher, draft: Draft, address: str, body: bytes, now_ns: int
) -> None:
    """Takes a verdict of the ledger. One about a claim that the agent no longer has a field for is passed over."""
    verdict = read_verdict(body)
    agent = state.agents.get(address)
    if agent is not None and address not in state.at_rest and verdict.claim in state.plan_of[type(agent)].ordered:
        draft.begin_run(now_ns, LEDGER)
        dispatcher.follow(draft, address, verdict, LEDGER, now_ns)


def take_fact(
    state: ShardState, dispatcher: Dispatcher, draft: Draft, address: str, body: bytes, source: str, now_ns: int
) -> None:
    """Takes what a service of the node says to an agent. What it has no handler for any more is passed over."""
    agent = state.agents.get(address)
    if agent is None or address in state.at_rest:
        return
    agent_plan = state.plan_of[agent.__class__]
    try:
        fact = agent_plan.decode(body)
    except UNDECODABLE:
        if agent_plan.may_ignore(body):
            return
        fact = None  # no message of this agent: a dead letter, which says so
    if fact is not None and not agent_plan.handles(fact.__class__):
        return
    draft.begin_run(now_ns, source)
    if isinstance(fact, FollowedFact):
        dispatcher.follow(draft, address, fact, source, now_ns, body)
    else:
        dispatcher.take(draft, address, body, source, now_ns)


def take_merged(
    state: ShardState, dispatcher: Dispatcher, draft: Draft, received: SharedReceived, now_ns: int
) -> PeerError | Overloaded | None:
    """Takes what peers have written; returns why not, if not. What is known already leaves no trace."""
    agent = state.agents.get(received.agent)
    merged = Merged(field=received.field, deltas=received.deltas, state=received.state)
    try:
        if agent is None or received.agent in state.at_rest:
            raise PeerError(f"{received.agent} is not here; nobody holds a replica for it")
        new = check_merged(agent, merged)
    except (PeerError, Overloaded) as error:
        return error
    if new is None:
        dispatcher.counters.duplicates += 1
        return None
    draft.begin_run(now_ns, PEERS)
    dispatcher.follow(draft, received.agent, new, PEERS, now_ns)
    return None
