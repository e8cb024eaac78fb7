"""A host's claims without a ledger: after a start nothing is held, without a ledger nothing is granted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from stigmergy.agents.codec import encode
from stigmergy.agents.messages import Claimed
from stigmergy.agents.ordered import (
    Claim,
    ClaimAnyAsked,
    ClaimAsked,
    ClaimReleased,
    Denied,
    Lost,
    Pool,
    Released,
    Verdict,
)
from stigmergy.shard.inputs import EffectSettled, Input, VerdictCame
from stigmergy.shard.outbox import Pending
from stigmergy.shard.state import ShardState

NO_LEDGER = "this host has no ledger, so nothing can be granted; configure one where it is started, see docs/claims.md"
RESTARTED = "the node was started anew; ask again"
Asked = ClaimAsked | ClaimAnyAsked | ClaimReleased
_asked: msgspec.msgpack.Decoder[Asked] = msgspec.msgpack.Decoder(ClaimAsked | ClaimAnyAsked | ClaimReleased)


class ClaimRequester(Protocol):
    """Asks a ledger for the agents of a host."""

    def propose(self, shard: int, pending: Pending) -> None:
        """Accepts a durable effect of the sink "ledger"; also before the start, for owed ones."""
        ...

    def due(self, monotonic_ns: int) -> Sequence[tuple[int, Input]]:
        """What agents must be told before anything else is stepped, with their shards, in order."""
        ...

    def lease_end_ns(self, agent: str, claimed: Claimed) -> int | None:
        """Until when, by this node's monotonic clock, the agent may act under the claim; None: it does not hold it."""
        ...

    @property
    def next_ns(self) -> int | None:
        """When to call `due` again, by the monotonic clock, if nothing else happens."""
        ...


def read_asked(pending: Pending) -> Asked:
    """Decodes an effect of the sink "ledger"."""
    return _asked.decode(pending.body)


def asked_for(asked: Asked) -> str:
    """The resource, or the pool as one text."""
    return Pool(asked.resources).text if isinstance(asked, ClaimAnyAsked) else asked.resource


def losses_at_start(state: ShardState) -> list[VerdictCame]:
    """Losses of what agents believed to hold when the node went down: nobody has counted their leases since. Agents at
    rest are told when they run again."""
    losses: list[VerdictCame] = []
    for address, agent in state.agents.items():
        if address in state.at_rest:
            continue
        for name in state.plan_of[type(agent)].ordered:
            claim: Claim = getattr(agent, name)
            if claim.until_ns:
                lost = Lost(claim=name, resource=claim.resource, token=claim.token, reason=RESTARTED)
                losses.append(VerdictCame(address, encode(lost)))
    return losses


def without_ledger(pending: Pending) -> EffectSettled:
    """The answer if there is no ledger."""
    asked = read_asked(pending)
    verdict: Verdict
    if isinstance(asked, ClaimReleased):
        verdict = Released(claim=asked.claim, resource=asked.resource, token=asked.token)
    else:
        verdict = Denied(claim=asked.claim, resource=asked_for(asked), reason=NO_LEDGER)
    return EffectSettled(pending.sink, pending.sequence, encode(verdict))
