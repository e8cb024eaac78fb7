"""Facts of peers, of the ledger and of models for agents; tells that are given up; dead letters that are tried again.
Used by the shard's step.
"""

from __future__ import annotations

from typing import Any, Protocol

from stigmergy.agents.codec import REASON_CHARS_MAX, UNDECODABLE, encode, printable, tag_of
from stigmergy.agents.effects import TellFailed
from stigmergy.agents.messages import Event, FollowedFact, spec_of
from stigmergy.agents.ordered import LEDGER, read_verdict
from stigmergy.agents.shared import Merged, check_merged
from stigmergy.agents.steps import run_of
from stigmergy.base.errors import NotAssigned, Overloaded, PeerError
from stigmergy.shard.commit import NO_CAUSE
from stigmergy.shard.draft import Draft, ShardCounters, owe, pack_tell, size_of
from stigmergy.shard.homes import Homes
from stigmergy.shard.inputs import SharedReceived
from stigmergy.shard.memory import DeadLetter
from stigmergy.shard.outbox import Pending, read_told
from stigmergy.shard.state import ShardState, fact_in


class Dispatching(Protocol):
    """What is needed of the dispatcher of inputs."""

    counters: ShardCounters
    homes: Homes

    def take(self, draft: Draft, address: str, body: bytes, source: str, now_ns: int) -> None: ...

    def follow(
        self, draft: Draft, address: str, fact: Event, source: str, now_ns: int, body: bytes | None = None
    ) -> None: ...

    def follow_up(
        self, draft: Draft, address: str, fact: Event, now_ns: int, image: Any = None
    ) -> Exception | None: ...

    def react_again(self, draft: Draft, address: str, fact: Event, now_ns: int) -> Exception | None: ...

    def understands(self, address: str, body: bytes) -> bool: ...

    def fail(
        self,
        draft: Draft,
        address: str,
        body: bytes,
        source: str,
        error: Exception,
        now_ns: int,
        *,
        reached: bool = False,
    ) -> None: ...


PEERS = "peers"
"""The source of what other replicas have written."""


def take_verdict(
    state: ShardState, dispatcher: Dispatching, draft: Draft, address: str, body: bytes, now_ns: int
) -> None:
    """Takes a verdict of the ledger. One about a claim that the agent no longer has a field for is passed over."""
    verdict = read_verdict(body)
    agent = state.agents.get(address)
    if agent is not None and address not in state.at_rest and verdict.claim in state.plan_of[type(agent)].ordered:
        draft.begin_run(now_ns, LEDGER)
        dispatcher.follow(draft, address, verdict, LEDGER, now_ns)


def take_fact(
    state: ShardState, dispatcher: Dispatching, draft: Draft, address: str, body: bytes, source: str, now_ns: int
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
    state: ShardState, dispatcher: Dispatching, draft: Draft, received: SharedReceived, now_ns: int
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


TELL_FAILED = spec_of(TellFailed).name
TOLD_SOURCES = "told/"
"""The source of a dead letter that was a tell to another node: this, and who told it."""


def give_up_tell(
    state: ShardState, dispatcher: Dispatching, draft: Draft, pending: Pending, reason: str, now_ns: int
) -> None:
    """A tell to an agent that runs elsewhere becomes a dead letter here, from which it can be told again."""
    told, teller = read_told(pending.body), pending.agent
    dispatcher.fail(draft, told.to, told.message, f"{TOLD_SOURCES}{teller}", NotAssigned(reason), now_ns)
    message = tag_of(told.message).partition("@")[0]
    body = encode(TellFailed(to=told.to, message=message, reason=printable(reason, REASON_CHARS_MAX)))
    is_here = teller.partition("/")[0] in state.plans and state.assignment.runs(teller)
    if is_here and dispatcher.understands(teller, body):
        dispatcher.take(draft, teller, body, pending.sink, now_ns)
    elif teller and not is_here and message != TELL_FAILED:
        # A tell that was only passed on here: its teller hears of it where it runs.
        packed = pack_tell(state, dispatcher.homes, teller, body, now_ns)
        owe(state, draft, "", packed, NO_CAUSE, now_ns)
        draft.grow(bodies_bytes=size_of(packed))


def retry(state: ShardState, dispatcher: Dispatching, draft: Draft, letter: DeadLetter, now_ns: int) -> None:
    """Gives a dead letter to its agent again.

    A fact on which a handler failed is already part of the agent's state. So it is not kept again: today's handler
    decides again against today's state what follows from it; if nothing is decided, its effects are requested.
    """
    address = letter.agent
    told, run = letter.source.startswith(TOLD_SOURCES), run_of(letter.input)
    if told or run:
        teller = letter.source.removeprefix(TOLD_SOURCES) if told else address
        packed = pack_tell(state, dispatcher.homes, run or address, letter.input, now_ns)
        owe(state, draft, teller, packed, NO_CAUSE, now_ns)
        draft.grow(teller, bodies_bytes=size_of(packed))
        return
    agent = state.agents.get(address)
    fact = None if agent is None else fact_in(letter, state.plan_of[type(agent)], agent)
    if fact is None:
        dispatcher.take(draft, address, letter.input, letter.source, now_ns)
    elif address in state.at_rest or address in state.stopped:
        why = f"{address} is stopped: {state.stopped.get(address)}; resume it, then retry this"
        refusal = PeerError(state.assignment.refusal(address) if address in state.at_rest else why)
        dispatcher.fail(draft, address, letter.input, letter.source, refusal, now_ns)
    else:
        decides = state.plan_at(address).plans[type(fact)].decide is not None
        error = (dispatcher.follow_up if decides else dispatcher.react_again)(draft, address, fact, now_ns)
        if error is not None:
            dispatcher.fail(draft, address, letter.input, letter.source, error, now_ns, reached=True)
