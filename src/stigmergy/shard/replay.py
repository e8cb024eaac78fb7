"""Replays commits into a shard's state: the same fold as when they were made. Nothing is decided or released.

The caller has checked the digests; this checks the chain and the positions. After the last commit the state is bit for
bit what it was when that commit was sealed; `state.outbox` holds what is still owed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Union

import msgspec

from stigmergy.agents.agent import FACTS
from stigmergy.agents.codec import tag_of
from stigmergy.agents.columns import ColumnRun, Layout, check_actions, check_run, read_records
from stigmergy.agents.effects import TIMERS
from stigmergy.agents.now import step_time_ns
from stigmergy.agents.plans import AgentPlan, Plan
from stigmergy.agents.supervision import FRAMEWORK_EVENTS, SHARD_ADDRESS
from stigmergy.base.errors import FoldMismatch, JournalCorrupt
from stigmergy.shard.commit import Commit, EventRun
from stigmergy.shard.memory import Remembered
from stigmergy.shard.state import ShardState, evolve_event, fold_fact
from stigmergy.shard.timers import read_timer
from stigmergy.shard.tracing import TracedInput

_framework_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Union[FRAMEWORK_EVENTS])  # noqa: UP007 - made from a tuple


def apply(state: ShardState, commit: Commit, digest: bytes) -> None:
    """Takes one commit into the state. Raises JournalCorrupt if it does not follow the one before."""
    if commit.shard != state.shard or commit.position != state.position + 1 or commit.previous != state.digest:
        raise JournalCorrupt(
            f"shard {state.shard}: after position {state.position} comes position {commit.position} of shard "
            f"{commit.shard}, which cites {commit.previous.hex()[:16]}, not {state.digest.hex()[:16]}: "
            "the chain is broken; restore from a copy"
        )
    _fold_events(state, commit)
    _fold_columns(state, commit)
    for moved in commit.marks:
        state.marks.move(moved)
    for settled in commit.settled:
        state.outbox.settle(settled)
        if state.traces:
            for sequence in settled.sequences:
                state.traces.settle(settled.sink, sequence)
    for kind, upto in commit.confirmed:
        state.blocks.confirm(kind, upto)
    _take_on(state, commit)
    time_ns = commit.runs[-1].time_ns
    for number, answer in enumerate(commit.answers):
        if answer.command_id:
            state.answers.put(
                Remembered(answer.agent, answer.command_id, answer.time_ns, commit.position, answer.refused),
                commit.clients[number] if commit.clients else "",
                commit.digests[number] if commit.digests else b"",
            )
    state.answers.prune(time_ns)
    state.position = commit.position
    state.digest = digest
    state.epoch = commit.epoch
    state.time_ns = time_ns
    state.events_count += commit.events_count


def _fold_events(state: ShardState, commit: Commit) -> None:
    events = iter(commit.events)
    for run in commit.runs:
        token = step_time_ns.set(run.time_ns)
        try:
            _fold_run(state, commit, events, run)
        finally:
            step_time_ns.reset(token)


def _fold_columns(state: ShardState, commit: Commit) -> None:
    """Folds the events of compiled agents, and takes on their actions."""
    index = 0
    for run in commit.columns:
        layout = state.directory.layout_of(run)
        check_run(run, layout)
        table = state.tables.get(run.kind)
        if table is None:
            _fold_records(state, commit, run, layout)
        else:
            table.fold(run.records, layout, run.time_ns)
        if run.actions_count:
            check_actions(run, state.directory.templates_of(run.templates), state.blocks.next_sequence(run.kind))
            state.blocks.owe(commit.incarnation, commit.position, index, run)
            index += run.actions_count


def _fold_records(state: ShardState, commit: Commit, run: ColumnRun, layout: Layout) -> None:
    """Folds records of a kind that was compiled when they were kept, and is not any more: one by one, as messages."""
    names = state.directory.names.get(run.kind, [])
    try:
        events = [(f"{run.kind}/{names[record.agent]}", record.body) for record in read_records(run.records, layout)]
    except IndexError:
        raise JournalCorrupt(
            f"shard {commit.shard}, position {commit.position}: an event of an agent of kind {run.kind} that was never "
            "enrolled; restore from a copy"
        ) from None
    token = step_time_ns.set(run.time_ns)
    try:
        _fold_run(state, commit, iter(events), EventRun(len(events), run.time_ns, run.source))
    finally:
        step_time_ns.reset(token)


def _fold_run(state: ShardState, commit: Commit, events: Iterator[tuple[str, bytes]], run: EventRun) -> None:
    agents, plan_of = state.agents, state.plan_of
    now_ns = run.time_ns
    for address, body in islice(events, run.events):
        agent = agents.get(address)
        if agent is None:
            _fold_first(state, commit, address, body, now_ns)
            continue
        agent_plan = plan_of[agent.__class__]
        try:
            event = agent_plan.decode_kept(body)
            if event is None:
                continue
            plan = agent_plan.plans[event.__class__]
            if plan.plain:
                if plan.evolve is not None:
                    plan.evolve(agent, event)
            else:
                _fold_any(state, address, agent_plan, agent, plan, event, now_ns)
        except Exception as error:
            raise _cannot_fold(commit, address, body, error) from error


def _fold_first(state: ShardState, commit: Commit, address: str, body: bytes, now_ns: int) -> None:
    """Folds the first event of an agent, or one of the shard itself."""
    try:
        if address == SHARD_ADDRESS:
            state.note(address, _framework_decoder.decode(body), now_ns)
            return
        agent_plan = state.plan_at(address)
        if agent_plan.engine is not None:
            _fold_into_table(state, address, agent_plan, body, now_ns)
            return
        agent = state.agents[address] = state.new_agent(address, agent_plan)
        event = agent_plan.decode_kept(body)
        if event is not None:
            _fold_any(state, address, agent_plan, agent, agent_plan.plans[type(event)], event, now_ns)
    except Exception as error:
        raise _cannot_fold(commit, address, body, error) from error


def _fold_into_table(state: ShardState, address: str, agent_plan: AgentPlan, body: bytes, now_ns: int) -> None:
    """A fact about a compiled agent; or an event of the time when its kind was not compiled yet."""
    kind, _, name = address.partition("/")
    table = state.tables[kind]
    agent = table.find(name)
    if agent < 0:
        agent = len(table)
        table.enroll((name,))
        state.directory.unlisted.setdefault(kind, []).append(name)
    event = agent_plan.decode_kept(body)
    if isinstance(event, FACTS):
        state.note(address, event, now_ns)
    elif event is not None:
        table.fold(table.record_of(agent, event), table.layout, now_ns)


def _fold_any(
    state: ShardState, address: str, agent_plan: AgentPlan, agent: Any, plan: Plan, event: Any, now_ns: int
) -> None:
    if isinstance(event, FACTS):
        state.note(address, event, now_ns)
        state.agents[address] = fold_fact(agent_plan, agent, event, now_ns)
    else:
        evolve_event(plan, agent, event, now_ns)


def _take_on(state: ShardState, commit: Commit) -> None:
    """Takes effects into the outbox and timers into their table, in the order in which they came and went."""
    if state.traces:
        for agent, name, _ in commit.fired:
            state.traces.fire(agent, name, 0)
    for number, note in enumerate(commit.traces):
        if isinstance(note, TracedInput):
            state.traces.carry(commit.previous, number, note, commit.owed)
    fired = iter(commit.fired)
    next_fired = next(fired, None)
    for index, owed in enumerate(commit.owed):
        while next_fired is not None and next_fired[2] <= index:
            state.timers.fire(next_fired[0], next_fired[1])
            next_fired = next(fired, None)
        if owed.sink == TIMERS:
            state.timers.put(owed.agent, read_timer(owed.body))
        else:
            state.outbox.owe(commit.incarnation, commit.position, index, owed)
    while next_fired is not None:
        state.timers.fire(next_fired[0], next_fired[1])
        next_fired = next(fired, None)


def _cannot_fold(commit: Commit, address: str, body: bytes, error: Exception) -> FoldMismatch:
    return FoldMismatch(
        f"shard {commit.shard}, position {commit.position}: today's code cannot fold {tag_of(body) or 'an event'} of "
        f"{address or 'the shard'} ({type(error).__name__}: {error}); "
        "add an upcaster for it, or run the version that wrote it"
    )
