"""Shards for tests: step, seal and compare with a replay in a line or two. Not a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import msgpack

from stigmergy.agents.agent import Agent
from stigmergy.agents.codec import encode
from stigmergy.agents.messages import SECOND_NS, Message
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.supervision import FRAMEWORK_EVENTS
from stigmergy.shard.commit import Commit, digest_commit, open_commit
from stigmergy.shard.draft import Ready, Stepped
from stigmergy.shard.homes import Homes
from stigmergy.shard.inputs import Ask, Delivery, Input
from stigmergy.shard.replay import apply
from stigmergy.shard.shard import Shard
from stigmergy.shard.snapshot import digest_of_state
from stigmergy.shard.state import Limits, ShardState, plan_agents


class Probe:
    """One shard, its log, and the replay of it that is compared after each seal."""

    def __init__(
        self,
        *classes: type[Agent],
        shards: int = 1,
        limits: Limits | None = None,
        plans: Mapping[str, AgentPlan] | None = None,
        homes: Homes | None = None,
    ) -> None:
        self.plans = {**plan_agents(classes), **(plans or {})}
        self.limits = limits
        self.shard = Shard(ShardState(0, self.plans, limits), homes or Homes(shards))
        self.log: list[bytes] = []
        self.now_s = 100.0
        self._asked = 0

    @property
    def state(self) -> ShardState:
        return self.shard.state

    def agent(self, address: str) -> Any:
        return self.state.agents[address]

    def step(self, *inputs: Input, at: float | None = None) -> Stepped:
        """Steps at a time in seconds, which stays the probe's time."""
        self.now_s = self.now_s if at is None else at
        return self.shard.step(inputs, int(self.now_s * SECOND_NS))

    def seal(self) -> Ready:
        """Seals, and checks that the replay of all commits ends in the same state."""
        ready = self.shard.seal()
        assert ready is not None, "nothing to seal"
        self.log.append(ready.sealed.body)
        assert digest_of_state(self.replayed()) == digest_of_state(self.state)
        return ready

    def replayed(self) -> ShardState:
        state = ShardState(0, self.plans, self.limits)
        for body in self.log:
            apply(state, open_commit(body), digest_commit(body))
        return state

    def take(self, *inputs: Input, at: float | None = None) -> Commit:
        """Steps and seals."""
        assert not self.step(*inputs, at=at).left
        return self.seal().commit

    def observe(self, address: str, *messages: Message, at: float | None = None) -> Commit:
        """Steps and seals observed events of no particular source."""
        return self.take(observed(address, *messages), at=at)

    def ask(self, address: str, command: Message) -> Any:
        """Asks a command and returns the verdict."""
        self._asked += 1
        self.step(Ask(address, f"ask-{self._asked}", encode(command)))
        return self.seal().verdicts[0][1]

    def letters(self) -> list[str]:
        return [letter.error for letter in self.state.letters.all()]


def observed(address: str, *messages: Message, source: str = "s", sequence: int = 0, epoch: int = 0) -> Delivery:
    items = [(address, encode(message)) for message in messages]
    return Delivery(source, items, sequence=sequence, epoch=epoch)


def events_of(probe: Probe, commit: Commit) -> list[Any]:
    """The events of a commit, decoded; those that nothing handles as plain values."""
    found: list[Any] = []
    for address, body in commit.events:
        if address:
            plan = probe.plans[address.partition("/")[0]]
            event = plan.decode_kept(body)
            found.append(msgpack.decode(body) if event is None else event)
        else:
            found.append(next(iter(decode_any(body))))
    return found


def decode_any(body: bytes) -> Iterable[Any]:
    """The framework event with these bytes."""
    for cls in FRAMEWORK_EVENTS:
        try:
            yield msgpack.decode(body, type=cls)
        except Exception:
            continue
