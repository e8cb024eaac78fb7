"""The runs of workflows that are stuck, so that a node says so: they do nothing until somebody sends `RetryUndo`. Pure.

Its caller tells of each agent that may have changed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, Protocol

from stigmergy.agents.plans import AgentPlan
from stigmergy.diagnostics.codes import Trouble
from stigmergy.workflows.run import WorkflowRun

SHOWN_MAX = 20
"""So many are named; of more it is said how many they are."""


class ShardAgents(Protocol):
    """What it needs of the state of a shard."""

    shard: int
    agents: dict[str, Any]

    @property
    def at_rest(self) -> Container[str]:
        """Agents that do not run here."""
        ...


class StuckRuns:
    """Looks at the runs of the shards once, and then at those that a commit has touched."""

    def __init__(self, states: Iterable[ShardAgents], plans: Mapping[str, AgentPlan]) -> None:
        self._classes = frozenset(plan.cls for plan in plans.values() if issubclass(plan.cls, WorkflowRun))
        self._found: dict[str, int] = {}
        """The shard of each."""
        self._states = {state.shard: state for state in states}
        for shard, state in self._states.items():
            self.note(shard, state.agents)

    def note(self, shard: int, touched: Iterable[str]) -> None:
        """These agents may have changed."""
        if not self._classes:
            return
        state = self._states[shard]
        for address in touched:
            agent = state.agents.get(address)
            if agent.__class__ not in self._classes:
                continue
            if agent.status == "stuck" and address not in state.at_rest:
                self._found[address] = shard
            else:
                self._found.pop(address, None)

    def troubles(self) -> list[Trouble]:
        """A sentence for each of the first."""
        found = [Trouble("run-stuck", self._said(address), address, self._found[address]) for address in self._first()]
        left = len(self._found) - len(found)
        if left:
            found.append(Trouble("run-stuck", f"{left} more of the runs are stuck: stigmergy workflows --status stuck"))
        return found

    def _first(self) -> list[str]:
        return sorted(self._found)[:SHOWN_MAX]

    def _said(self, address: str) -> str:
        reason = self._states[self._found[address]].agents[address].reason
        return f"{address} is stuck ({reason}); mend what keeps it, then stigmergy send {address} RetryUndo"
