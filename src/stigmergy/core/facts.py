"""Facts that come from outside: what peers have written to shared fields, and what the ledger has decided."""

from __future__ import annotations

from typing import Any

from stigmergy.core.claiming import CLAIM_EVENTS, LEDGER, Claim, Denied, read_verdict
from stigmergy.core.codec import UNDECODABLE
from stigmergy.core.draft import Draft
from stigmergy.core.errors import Overloaded, PeerError
from stigmergy.core.handling import Handling
from stigmergy.core.inputs import SharedReceived
from stigmergy.core.memory import Letter
from stigmergy.core.messages import Event
from stigmergy.core.plans import AgentPlan
from stigmergy.core.sharing import Merged, check_merged
from stigmergy.core.state import ShardState

PEERS = "peers"
"""The source of what other replicas have written."""


def take_verdict(state: ShardState, handling: Handling, draft: Draft, address: str, body: bytes, now_ns: int) -> None:
    """Takes a verdict of the ledger. One about a claim that the agent no longer has a field for is passed over."""
    verdict = read_verdict(body)
    agent = state.agents.get(address)
    if agent is not None and address not in state.at_rest and verdict.claim in state.plan_of[type(agent)].ordered:
        draft.begin_run(now_ns, LEDGER)
        handling.follow(draft, address, verdict, LEDGER, now_ns)


def take_merged(
    state: ShardState, handling: Handling, draft: Draft, received: SharedReceived, now_ns: int
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
        handling.counters.duplicates += 1
        return None
    draft.begin_run(now_ns, PEERS)
    handling.follow(draft, received.agent, new, PEERS, now_ns)
    return None


def retry(state: ShardState, handling: Handling, draft: Draft, letter: Letter, now_ns: int) -> None:
    """Gives a letter to its agent once more.

    A fact on which a handler failed is part of the agent's state already. So it is not kept again: what follows from it
    is decided again, by today's handler and against today's state; where nothing is decided, its effects are asked for.
    """
    address = letter.agent
    agent = state.agents.get(address)
    fact = None if agent is None else _fact_in(state.plan_of[type(agent)], agent, letter.input)
    if fact is None:
        handling.take(draft, address, letter.input, letter.source, now_ns)
    elif address in state.at_rest or address in state.stopped:
        why = f"{address} is stopped: {state.stopped.get(address)}; resume it, then retry this"
        refusal = PeerError(state.assignment.refusal(address) if address in state.at_rest else why)
        handling.fail(draft, address, letter.input, letter.source, refusal, now_ns)
    else:
        decides = state.plan_at(address).plans[type(fact)].decide is not None
        error = (handling.follow_up if decides else handling.react_again)(draft, address, fact, now_ns)
        if error is not None:
            handling.fail(draft, address, letter.input, letter.source, error, now_ns, reached=True)


def _fact_in(agent_plan: AgentPlan, agent: Any, body: bytes) -> Event | None:
    """The fact in a letter; None for any other input, and for what somebody else has sent in the framework's name:
    what an agent does not know of is no fact of its own."""
    try:
        fact = agent_plan.decode(body)
        if isinstance(fact, Merged):
            return fact if check_merged(agent, fact) is None else None
    except (*UNDECODABLE, PeerError, Overloaded):
        return None
    if not isinstance(fact, CLAIM_EVENTS) or fact.claim not in agent_plan.ordered:
        return None
    claim: Claim = getattr(agent, fact.claim)
    return fact if isinstance(fact, Denied) or (fact.resource, fact.token) == (claim.resource, claim.token) else None
