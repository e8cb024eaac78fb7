"""Facts that come from outside: what peers have written to shared fields, and what the ledger has decided."""

from __future__ import annotations

from stigmergy.core.claiming import LEDGER, read_verdict
from stigmergy.core.draft import Draft
from stigmergy.core.errors import Overloaded, PeerError
from stigmergy.core.handling import Handling
from stigmergy.core.inputs import SharedReceived
from stigmergy.core.sharing import Merged, check_merged
from stigmergy.core.state import ShardState

PEERS = "peers"
"""The source of what other replicas have written."""


def take_verdict(state: ShardState, handling: Handling, draft: Draft, address: str, body: bytes, now_ns: int) -> None:
    """Takes a verdict of the ledger. One about a claim that the agent no longer has a field for is passed over."""
    verdict = read_verdict(body)
    agent_plan = state.plan_at(address)
    if verdict.claim in agent_plan.ordered and address in state.agents:
        draft.begin_run(now_ns, LEDGER)
        handling.follow(draft, address, verdict, LEDGER, now_ns)


def take_merged(
    state: ShardState, handling: Handling, draft: Draft, received: SharedReceived, now_ns: int
) -> PeerError | Overloaded | None:
    """Takes what peers have written; returns why not, if not. What is known already leaves no trace."""
    agent = state.agents.get(received.agent)
    merged = Merged(field=received.field, deltas=received.deltas, state=received.state, anew=received.anew)
    try:
        if agent is None:
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
