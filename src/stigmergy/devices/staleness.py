"""Staleness: which agents have not heard what they must hear. Runs on the monotonic clock, without the disk.

For each rule the agents are ordered by when they were last fresh, so a check costs only what is due.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from stigmergy.agents.messages import SECOND_NS, Action, Message
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.supervision import WhenStale


class Stale(Struct, frozen=True):
    """An agent whose rule has run out."""

    agent: str
    rule: WhenStale

    @property
    def because(self) -> str:
        """Why its safe action goes out."""
        return f"no {self.rule.event.__name__} for {self.rule.after_s:g} s"


class Staleness:
    """The watch over all staleness rules of a host's agents."""

    def __init__(self, plans: Mapping[str, AgentPlan]) -> None:
        self._watches: dict[str, list[tuple[WhenStale, dict[str, int]]]] = {
            kind: [(rule, {}) for rule in plan.stale_rules] for kind, plan in plans.items() if plan.stale_rules
        }

    def refresh(self, agent: str, event: type[Message] | None, monotonic_ns: int) -> None:
        """An agent is new (None), or got an event that a rule may wait for."""
        for rule, fresh in self._watches.get(agent.partition("/")[0], ()):
            if event is None:
                fresh.setdefault(agent, monotonic_ns)
            elif event is rule.event:
                fresh.pop(agent, None)
                fresh[agent] = monotonic_ns

    def due(self, monotonic_ns: int) -> list[Stale]:
        """Agents that have been without for too long; each is named once per silence."""
        stale: list[Stale] = []
        for watches in self._watches.values():
            for rule, fresh in watches:
                after_ns = int(rule.after_s * SECOND_NS)
                while fresh:
                    agent, since_ns = next(iter(fresh.items()))
                    if monotonic_ns - since_ns < after_ns:
                        break
                    del fresh[agent]
                    stale.append(Stale(agent=agent, rule=rule))
        return stale

    @property
    def next_ns(self) -> int | None:
        """When the next rule runs out, if nothing fresh comes."""
        due = [
            next(iter(fresh.values())) + int(rule.after_s * SECOND_NS)
            for watches in self._watches.values()
            for rule, fresh in watches
            if fresh
        ]
        return min(due, default=None)


def safe_actions_of(plan: AgentPlan) -> list[Action]:
    """Everything that makes an agent of this kind safe, in the order of its declaration, each once."""
    actions: list[Action] = []
    for action in [rule.then for rule in plan.stale_rules] + [safe.then for safe in plan.safe_actions]:
        if action not in actions:
            actions.append(action)
    return actions
