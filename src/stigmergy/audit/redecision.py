"""Repeats with today's code what one commit recorded: folds, decides, reacts; and compares.

The state always follows the record, never what today's code would have decided: so each difference stands alone and
does not cause all later ones. Handlers run on copies of the agents. What a commit does not hold cannot be decided
again: an observed event that a `decide` handler has filtered or changed, and transient events.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgspec

from stigmergy.agents.agent import FACTS, Rejection
from stigmergy.agents.codec import REASON_CHARS_MAX, describe, printable, tag_of
from stigmergy.agents.effects import TIMERS
from stigmergy.agents.messages import Command, Keeping, Message, spec_of
from stigmergy.agents.now import step_time_ns
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.shared import SharedChanged
from stigmergy.agents.supervision import SHARD_ADDRESS, AgentResumed, AgentStopped, InputFailed
from stigmergy.audit.differences import (
    ABSENT,
    Compared,
    Difference,
    effect_differences,
    message_differences,
    name_of,
    shown_effect,
)
from stigmergy.audit.verification import loose_actions
from stigmergy.base.errors import PeerError, UnknownKind
from stigmergy.crdt.delta import read_delta
from stigmergy.shard.commit import NO_CAUSE, Answer, Commit, EventRun, Owed
from stigmergy.shard.commit_reader import Records
from stigmergy.shard.decisions import decided_events
from stigmergy.shard.dispatch import REACTIONS_BYTES_MAX, decode
from stigmergy.shard.draft import collect, compared, is_tell_back, pack_effects
from stigmergy.shard.forwarding import LATE
from stigmergy.shard.homes import Homes
from stigmergy.shard.state import ShardReading, ShardState, evolve_event, fold_fact
from stigmergy.shard.timers import WINDOW_PREFIX, read_timer
from stigmergy.workflows.messages import RunBegan, is_decided

# The id under which an agent wrote to its shared fields, taken from a commit: the key behind it is not available here.

WRITTEN = spec_of(SharedChanged).tag
"""What the framework says and an agent has decided all the same: a write to a shared field."""
_changed = msgspec.msgpack.Decoder(SharedChanged)


def replica_in(commit: Commit, address: str, otherwise: Callable[[str], bytes]) -> bytes:
    """The id under which this agent wrote in this commit; what `otherwise` says where it wrote nothing."""
    for whose, body in commit.events:
        if whose == address and tag_of(body) == WRITTEN:
            return read_delta(_changed.decode(body).delta).replica
    return otherwise(address)


HANDLER_FAILED = "the handler failed: "
"""How the answer to a command begins whose handler raised; the event that says so is compared instead."""
NO_ROOM = ": this shard has "


def _began_on_older(agent_plan: AgentPlan, recorded: bytes, today: Any) -> bool:
    """Whether a run began on a version of its workflow that is not the newest today: it ends on that one."""
    was = agent_plan.decode_kept(recorded) if isinstance(today, RunBegan) else None
    return isinstance(was, RunBegan) and was.version < today.version


class Redecision:
    """One commit. `lost` are agents that cannot be folded any more; new ones are added to it."""

    def __init__(self, state: ShardState, homes: Homes, commit: Commit, found: Compared, lost: dict[str, None]) -> None:
        self._state = state
        self._homes = homes
        self._commit = commit
        self._found = found
        self._lost = lost
        self._agents: dict[str, Any] = {}
        """Copies of the agents that this commit is about, as far as it has been folded."""
        self._stopped = dict(state.stopped)
        self._denied = [commit.answers[one.place] for one in commit.ruled if one.place >= 0 and not one.allowed]
        self._claimed: dict[int, None] = {}
        """Events that follow an answer, so that they may be what it decided."""
        self._owed: dict[int, list[Owed]] = {}
        for owed in commit.owed:
            if owed.cause < NO_CAUSE:
                continue  # of a record: see restepping
            if not (owed.sink == TIMERS and read_timer(owed.body).name.startswith(WINDOW_PREFIX)):
                self._owed.setdefault(owed.cause, []).append(owed)
        unkept = len(self._owed.pop(NO_CAUSE, ())) + sum(loose_actions(run) for run in commit.columns)
        if unkept:
            found.skip("effects of transient events, which are not kept", unkept)

    def run(self) -> None:
        """Goes through the commit in its order."""
        answers = list(self._commit.answers)
        index = 0
        for run in self._commit.runs:
            for _ in range(run.events):
                while answers and answers[0].at <= index:
                    self._at(answers[0].time_ns, self._answer, answers.pop(0), run, index)
                self._at(run.time_ns, self._event, index, run)
                index += 1
        for answer in answers:
            self._at(answer.time_ns, self._answer, answer, self._commit.runs[-1], index)

    def _at(self, time_ns: int, work: Any, *arguments: Any) -> None:
        token = step_time_ns.set(time_ns)
        try:
            work(*arguments)
        finally:
            step_time_ns.reset(token)

    # ------------------------------------------------------------------ events

    def _event(self, index: int, run: EventRun) -> None:
        address, body = self._commit.events[index]
        self._found.events += 1
        if address == SHARD_ADDRESS or address in self._lost:
            return
        if self._is_compiled(address):
            self._compiled_event(index, address, body, run)
            return
        try:
            agent_plan, agent = self._agent(address)
            event = agent_plan.decode_kept(body)
        except Exception as error:
            self._lose(index, address, body, error)
            return
        if event is None:
            self._found.ignored[tag_of(body)] = self._found.ignored.get(tag_of(body), 0) + 1
            self._compare_effects(index, address, body, [])
            return
        if index not in self._claimed:
            self._found.observed[name_of(body)] = None
        self._supervised(index, address, event, run.time_ns)
        self._fold_and_react(index, address, agent_plan, agent, event, body, run.time_ns)

    def _is_compiled(self, address: str) -> bool:
        return address.partition("/")[0] in self._state.tables

    def _compiled_event(self, index: int, address: str, body: bytes, run: EventRun) -> None:
        """What the framework says of a compiled agent; or an event of the time when it was not compiled."""
        try:
            event = self._agent(address)[0].decode_kept(body)
        except Exception as error:
            self._lose(index, address, body, error)
            return
        if event is not None and not self._supervised(index, address, event, run.time_ns):
            self._found.skip("events of compiled agents from before they were compiled: they are folded, nothing more")

    def _supervised(self, index: int, address: str, event: Message, time_ns: int) -> bool:
        """Takes what supervision says of an agent; False for any other event."""
        if isinstance(event, InputFailed):
            if self._may_have_changed(address):
                self._found.skip("failures of agents in a commit with records of theirs")
            else:
                self._failure(index, address, *self._agent(address), event, time_ns)
        elif isinstance(event, AgentStopped):
            self._stopped[address] = event.reason
        elif isinstance(event, AgentResumed):
            self._stopped.pop(address, None)
        else:
            return False
        return True

    def _may_have_changed(self, address: str) -> bool:
        """Whether the commit has records of an agent that is, or was, compiled: which of them came before something
        else, it does not say."""
        kind = address.partition("/")[0]
        number = self._state.table_at(address)[1]
        runs = [run for run in self._commit.columns if run.kind == kind and run.count]
        if number < 0:
            return bool(runs)
        for run in runs:
            width = len(run.records) // run.count
            if any(agent == number for (agent,) in struct.iter_unpack(f"<I{width - 4}x", run.records)):
                return True
        return False

    def _fold_and_react(
        self, index: int, address: str, agent_plan: AgentPlan, agent: Any, event: Message, body: bytes, now_ns: int
    ) -> None:
        plan = agent_plan.plan_for(type(event))
        if plan.decide is not None:
            self._found.skip("decisions about observed events, of which only the result is kept")
        if isinstance(event, FACTS):
            # What the framework says stays said, whatever a handler makes of it: then it asks for nothing.
            before = agent_plan.copy(agent)
            try:
                evolve_event(plan, agent, event, now_ns)
                packed = self._reactions(agent_plan, agent, event, body, now_ns, len(body) + REACTIONS_BYTES_MAX)
            except Exception:
                packed = []
            self._agents[address] = fold_fact(agent_plan, before, event, now_ns)
            self._compare_effects(index, address, body, packed)
            return
        try:
            evolve_event(plan, agent, event, now_ns)
        except Exception as error:
            self._lose(index, address, body, error)
            return
        try:
            room_bytes = self._state.limits.bytes_per_decision_max
            packed = self._reactions(agent_plan, agent, event, body, now_ns, room_bytes)
        except Exception as error:
            self._differ("effect", index, address, tag_of(body), "", self._shown_owed(index), describe(error))
            return
        self._compare_effects(index, address, body, packed)

    def _reactions(
        self, agent_plan: AgentPlan, agent: Any, event: Message, body: bytes, now_ns: int, room_bytes: int
    ) -> list[tuple[str, bytes]]:
        react = agent_plan.plan_for(type(event)).react
        effects = () if react is None else react(agent, event) or ()
        return pack_effects(self._state, self._homes, agent, effects, (event, body), now_ns, room_bytes)

    def _compare_effects(self, index: int, address: str, body: bytes, packed: list[tuple[str, bytes]]) -> None:
        recorded = [owed for owed in self._owed.get(index, []) if not is_tell_back(owed)]
        today = [Owed(address, sink, 0, index, effect) for sink, effect in packed]
        self._found.effects += max(len(recorded), len(today))
        tag = tag_of(body)
        for number in range(max(len(recorded), len(today))):
            what = f"effect {number + 1} of {tag}"
            if number >= len(today):
                self._differ("effect", index, address, what, "", shown_effect(recorded[number]), ABSENT)
            elif number >= len(recorded):
                self._differ("effect", index, address, what, "", ABSENT, shown_effect(today[number]))
            elif compared(self._homes, recorded[number]) != compared(self._homes, today[number]):
                for field, old, new in effect_differences(recorded[number], today[number]):
                    self._differ("effect", index, address, what, field, old, new)

    def _shown_owed(self, index: int) -> Any:
        return [shown_effect(owed) for owed in self._owed.get(index, [])] or ABSENT

    # ------------------------------------------------------------------ inputs

    def _answer(self, answer: Answer, run: EventRun, index: int) -> None:
        """A command that was answered: does today's code say the same, and keep the same events?"""
        address = answer.agent
        if address in self._lost or (answer.refused or "").startswith(HANDLER_FAILED):
            return
        if why := self._incomparable(answer, index):
            self._found.skip(why)
            return
        self._found.commands += 1
        what = tag_of(answer.command)
        try:
            agent_plan, agent = self._agent(address)
            message = decode(agent_plan, answer.command)
            if not isinstance(message, Command):
                raise PeerError(f"{what} is no command today")
        except PeerError as error:
            # In which words the framework refuses may change; that it does counts.
            if answer.refused is None:
                self._differ("answer", index, address, what, "refused", None, str(error))
            return
        reason: str | None = None
        decided: list[tuple[Any, bytes]] = []
        try:
            decided = self._attempt(index, agent_plan, agent, message, answer.command, answer.time_ns)
        except Rejection as rejection:
            reason = printable(rejection.reason, REASON_CHARS_MAX)
        except Exception as error:
            reason = f"{HANDLER_FAILED}{describe(error)}"
        if reason != answer.refused:
            self._differ("answer", index, address, what, "refused", answer.refused, reason)
        elif reason is None:
            self._compare_decided(answer, run, index, agent_plan, decided)

    def _incomparable(self, answer: Answer, index: int) -> str:
        """Why this answer cannot be compared; empty if it can."""
        if not answer.command:
            return "commands that were too large to be kept, or decided on another node"
        if any(answer is denied for denied in self._denied):
            return "commands that a policy has denied, which is not asked again"
        if answer.refused is not None and answer.refused.startswith(LATE):
            return "commands that came too late to be decided"
        if self._is_compiled(answer.agent) and self._records_of(answer) is None:
            return "commands to compiled agents in a commit with other events of theirs"
        if not self._is_compiled(answer.agent) and self._may_have_changed(answer.agent):
            return "commands to agents that were compiled then, in a commit with records of theirs"
        if answer.agent in self._stopped:
            return "commands to agents that were stopped"
        if answer.refused is not None and answer.refused.startswith(f"{answer.agent}{NO_ROOM}"):
            return "commands for which the shard had no room"
        events = self._commit.events
        for number in (index - 1, index):
            of_it = 0 <= number < len(events) and events[number][0] == answer.agent
            if of_it and tag_of(events[number][1]).startswith("stigmergy.WindowClosed@"):
                return "commands at the very moment at which a window closed"
        return ""

    def _compare_decided(
        self, answer: Answer, run: EventRun, index: int, agent_plan: AgentPlan, decided: list[tuple[Any, bytes]]
    ) -> None:
        kept = [
            (event, body)
            for event, body in decided
            if agent_plan.plan_for(type(event)).promise is not Keeping.TRANSIENT
        ]
        if any(agent_plan.plan_for(type(event)).promise is Keeping.LATEST for event, _ in kept):
            self._found.skip("decisions with `latest` events, of which a later one may have taken the place")
            return
        what = tag_of(answer.command)
        if self._is_compiled(answer.agent):
            self._compare_records(answer, index, agent_plan, kept)
            return
        recorded = self._recorded_for(answer, run, index)
        if recorded and kept and _began_on_older(agent_plan, recorded[0], kept[0][0]):
            self._found.skip("runs that began on an older version of their workflow")
            return
        for number in range(max(len(kept), len(recorded))):
            place = index + number
            which = f"event {number + 1} of {what}"
            if number >= len(kept):
                # It was decided, or it came from the same source as an input of its own: the whole log may tell.
                self._found.add_if_never_observed(
                    recorded[number], self._difference("event", place, answer.agent, which, "type", ABSENT)
                )
            elif number >= len(recorded):
                self._differ("event", place, answer.agent, which, "type", ABSENT, tag_of(kept[number][1]))
            elif not self._is_same(agent_plan, recorded[number], kept[number]):
                for field, old, new in message_differences(recorded[number], kept[number][1]):
                    self._differ("event", place, answer.agent, which, field, old, new)

    def _compare_records(
        self, answer: Answer, index: int, agent_plan: AgentPlan, kept: list[tuple[Any, bytes]]
    ) -> None:
        """The same for a compiled agent, whose events are records."""
        recorded = self._records_of(answer) or []
        what = tag_of(answer.command)
        if len(recorded) != len(kept):
            old, new = (", ".join(tag_of(body) for body in some) or ABSENT for some in (recorded, [b for _, b in kept]))
            self._differ("event", index, answer.agent, f"events of {what}", "type", old, new)
            return
        for number, (was, now) in enumerate(zip(recorded, kept, strict=True)):
            if not self._is_same(agent_plan, was, now):
                for field, old, new in message_differences(was, now[1]):
                    self._differ("event", index, answer.agent, f"event {number + 1} of {what}", field, old, new)

    def _records_of(self, answer: Answer) -> list[bytes] | None:
        """The records that a command to a compiled agent has made; None where the commit may have others of it."""
        alone = sum(1 for one in self._commit.answers if one.agent == answer.agent) == 1
        table, number = self._state.table_at(answer.agent)
        if not alone or table is None or (number < 0 and self._may_have_changed(answer.agent)):
            return None
        own = [body for address, body in self._commit.events if address == answer.agent]
        if any(not tag_of(body).startswith("stigmergy.") for body in own):
            return None  # from before it was compiled
        found: list[bytes] = []
        for run in self._commit.columns:
            if run.kind != answer.agent.partition("/")[0] or not run.count:
                continue
            if run.layout not in self._state.directory.layouts:
                return None
            records = Records(run, 0, ShardReading(self._state))
            mine = [(place, form) for place, (agent, form) in enumerate(records.heads()) if agent == number]
            if mine and (run.time_ns != answer.time_ns or run.count != len(mine) or answer.refused is not None):
                return None
            found += [records.body(place, form) for place, form in mine]
        return found

    def _recorded_for(self, answer: Answer, run: EventRun, index: int) -> list[bytes]:
        """The events that follow an answer, of its agent, up to the next answer and within its run."""
        if run.time_ns != answer.time_ns or [one for one in self._commit.answers if one.at == answer.at][-1] != answer:
            return []  # of several answers at one place all but the last kept nothing
        end = 0
        for one in self._commit.runs:
            end += one.events
            if one is run:
                break
        end = min([end, *(other.at for other in self._commit.answers if other.at > answer.at)])
        recorded: list[bytes] = []
        for place in range(index, end):
            address, body = self._commit.events[place]
            tag = tag_of(body)
            said = tag.startswith("stigmergy.") and tag != WRITTEN and not is_decided(tag)
            if address != answer.agent or said:
                break
            self._claimed[place] = None
            recorded.append(body)
        return recorded

    def _is_same(self, agent_plan: AgentPlan, recorded: bytes, today: tuple[Any, bytes]) -> bool:
        """Whether both are the same event; an old version counts as what its upcaster makes of it."""
        if recorded == today[1]:
            return True
        try:
            known = agent_plan.decode_kept(recorded)
        except Exception:
            return False
        return known is not None and type(known) is type(today[0]) and bool(known == today[0])

    def _failure(
        self, index: int, address: str, agent_plan: AgentPlan, agent: Any, failed: InputFailed, now_ns: int
    ) -> None:
        """An input on which a handler raised: does it still, and in the same way?"""
        if not failed.input:
            self._found.skip("inputs that failed and were too large to be kept")
            return
        what = tag_of(failed.input)
        try:
            message = decode(agent_plan, failed.input)
        except PeerError as error:
            self._differ("failure", index, address, what, "error", failed.error, str(error))
            return
        if isinstance(message, FACTS):
            self._found.skip("facts of the framework on which a handler failed")
            return
        self._found.failures += 1
        today: str | None = None
        try:
            self._attempt(index, agent_plan, agent, message, failed.input, now_ns)
        except Rejection as rejection:
            refusal = TypeError(f"an observed event cannot be refused ({rejection.reason}); yield nothing to filter it")
            today = f"refused: {rejection.reason}" if isinstance(message, Command) else describe(refusal)
        except Exception as error:
            today = describe(error)
        if today != failed.error:
            self._differ("failure", index, address, what, "error", failed.error, today)

    def _attempt(
        self, index: int, agent_plan: AgentPlan, agent: Any, message: Message, body: bytes, now_ns: int
    ) -> list[tuple[Any, bytes]]:
        """Decides, evolves and reacts on copies; the events, or what a handler raised."""
        plan = agent_plan.plan_for(type(message))
        decided: list[tuple[Any, bytes]] = []
        if plan.decide is None:
            decided = [(message, body)]
        else:
            limit = self._state.limits.events_per_decision_max
            copy = agent_plan.copy(agent)
            decided = decided_events(agent_plan, plan, copy, message, body, self._replica_of, now_ns, limit)
        room_bytes = self._state.limits.bytes_per_decision_max
        collect(self._state, self._homes, agent_plan, agent_plan.copy(agent), decided, now_ns, room_bytes)
        return decided

    def _replica_of(self, address: str) -> bytes:
        return replica_in(self._commit, address, self._state.replica_of)

    # ------------------------------------------------------------------ common

    def _agent(self, address: str) -> tuple[AgentPlan, Any]:
        """The copy of an agent as it is at this point. Raises UnknownKind where today's fleet has no such kind."""
        agent_plan = self._state.plan_at(address)
        agent = self._agents.get(address)
        if agent is None:
            table, number = self._state.table_at(address)
            there = self._state.agents.get(address) if table is None or number < 0 else table.agent(number, ahead=True)
            agent = self._state.new_agent(address, agent_plan) if there is None else agent_plan.copy(there)
            self._agents[address] = agent
        return agent_plan, agent

    def _lose(self, index: int, address: str, body: bytes, error: Exception) -> None:
        self._lost[address] = None
        text = str(error) if isinstance(error, UnknownKind) else describe(error)
        self._differ("fold", index, address, tag_of(body), "", "folded", text)

    def _differ(self, kind: str, index: int, agent: str, what: str, field: str, old: Any, new: Any) -> None:
        commit = self._commit
        self._found.add(Difference(kind, commit.shard, commit.position, index, agent, what, field, old, new))

    def _difference(self, kind: str, index: int, agent: str, what: str, field: str, new: Any) -> Difference:
        commit = self._commit
        old = tag_of(commit.events[index][1])
        return Difference(kind, commit.shard, commit.position, index, agent, what, field, old, new)
