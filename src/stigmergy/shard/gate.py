"""Where inputs pass the policy: which of them it is asked about, and what is kept of its ruling.

Asked about are commands of everybody but the agents of this fleet, whatever comes from another fleet, and enrolments.
"""

from __future__ import annotations

from typing import Any, Literal

from stigmergy.agents.messages import Message, spec_of
from stigmergy.agents.plans import AgentPlan
from stigmergy.base.errors import PolicyDenied
from stigmergy.shard.draft import Draft
from stigmergy.shard.judging import Judge, PolicyQuestion, Ruling, Sender
from stigmergy.shard.state import ShardState


class PolicyGate:
    """The gate of one shard. Without a `judge` it stands open."""

    def __init__(self, state: ShardState) -> None:
        self._state = state
        self.judge: Judge | None = None

    def judges_all_of(self, sender: Sender | None) -> bool:
        """Whether the policy is asked about everything from there: it is from another fleet."""
        return self.judge is not None and sender is not None and bool(sender.fleet)

    def ruling(
        self,
        kind: Literal["command", "tell"],
        address: str,
        agent_plan: AgentPlan,
        message: Message,
        sender: Sender | None,
        *,
        here: bool = True,
    ) -> Ruling | None:
        """What the policy says of a message for an agent in the state in which it would decide. None if it is not
        asked: there is no policy, an agent of this fleet says it, or it leads towards safety."""
        spec = spec_of(type(message))
        if self.judge is None or sender is None or spec.safety:
            return None
        agent = self._agent(address, agent_plan) if here else None
        return self.judge(PolicyQuestion(kind, spec.name, message, address, agent, sender))

    def check_tell(
        self,
        draft: Draft,
        address: str,
        agent_plan: AgentPlan,
        message: Message,
        sender: Sender | None,
        *,
        here: bool = True,
    ) -> None:
        """Raises PolicyDenied unless the policy lets a tell of another fleet through."""
        if self.judges_all_of(sender):
            self._note(draft, self.ruling("tell", address, agent_plan, message, sender, here=here))

    def check_enrolment(self, draft: Draft, question: PolicyQuestion) -> None:
        """Raises PolicyDenied unless the policy lets somebody enrol agents or a key. The caller keeps a denial as an
        answer."""
        if self.judge is not None:
            ruling = self.judge(question)
            self._note(draft, ruling, answered=ruling.refused is not None)

    def _note(self, draft: Draft, ruling: Ruling | None, *, answered: bool = False) -> None:
        if ruling is not None:
            draft.rule(ruling, answered=answered)
            if ruling.refused is not None:
                raise PolicyDenied(ruling.refused)

    def _agent(self, address: str, agent_plan: AgentPlan) -> Any:
        state = self._state
        if address.partition("/")[0] in state.tables:
            table, number = state.table_at(address)
            if table is not None and number >= 0:
                return table.agent(number, ahead=True)
        elif address in state.agents:
            return state.agents[address]
        return state.new_agent(address, agent_plan)
