"""Confirmations as inputs of compiled agents: told apart by the names that the class mentions."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import structs

from proofs.engines_both import plain_python
from stigmergy import Action, ActionDone, ActionFailed, Agent, Effects, Event, WorkFailed, evolve, react
from stigmergy.agents.codec import canonical_bytes, encode
from stigmergy.agents.columns import read_records
from stigmergy.agents.messages import SECOND_NS
from stigmergy.compiled.reader import read_agent
from stigmergy.compiled.storage import RowCodec
from stigmergy.compiled.table import CompiledEngine, CompiledTable
from stigmergy.shard.draft import Ready
from stigmergy.shard.inputs import Delivery, EffectSettled
from stigmergy.shard.replay import apply
from stigmergy.shard.shard import Shard
from stigmergy.shard.state import ShardState, plan_agents

NOW_NS = 1_000 * SECOND_NS
ROUTE = "Route"


class Drained(Event):
    percent: int


class Land(Action):
    percent: int


class Again(Action):
    count: int


class Lander(Agent, kind="lander"):
    """Asks again for what has failed, and counts what was done."""

    HOVER = "Hover"

    landed: int = 0
    hovered: int = 0
    others: int = 0
    failed: int = 0
    lost: bool = False

    @react
    def drained(self, event: Drained) -> Effects:
        if event.percent < 15:
            yield Land(percent=event.percent)

    @evolve
    def done(self, event: ActionDone) -> None:
        if event.action == "Land":
            self.landed += 1
        elif event.action in (self.HOVER, "Circle"):
            self.hovered += 1
        else:
            self.others += 1

    @evolve
    def gave_up(self, event: ActionFailed | WorkFailed) -> None:
        self.failed += 1
        if isinstance(event, WorkFailed):
            self.lost = event.work == ROUTE

    @react
    def again(self, event: ActionFailed) -> Effects:
        if event.action != "Circle":
            yield Again(count=self.failed)


def shard_of(*, compiled: bool) -> Shard:
    plans = plan_agents([Lander])
    if compiled:
        program = read_agent(Lander)
        engine = CompiledEngine(program)
        engine.built = plain_python(program)
        plans = {kind: structs.replace(plan, engine=engine) for kind, plan in plans.items()}
    return Shard(ShardState(0, plans))


def agent_in(state: ShardState) -> Lander:
    if not state.tables:
        found: Lander = state.agents["lander/one"]
        return found
    made: Lander = state.tables["lander"].agent(0, ahead=True)
    return made


MESSAGES = [
    ActionDone(action="Land", key="k-1"),
    ActionDone(action="Hover", key="k-2"),
    ActionDone(action="Circle", key="k-3"),
    ActionDone(action="Never mentioned", key="k-4"),
    ActionFailed(action="Land", key="k-5", reason="no hands"),
    ActionFailed(action="Circle", key="k-6", reason="no hands"),
    WorkFailed(work="Route", key="k-7", reason="raised"),
    WorkFailed(work="Other", key="k-8", reason="raised"),
]


def test_both_engines_tell_them_apart() -> None:
    interpreted, compiled = shard_of(compiled=False), shard_of(compiled=True)
    for number, message in enumerate(MESSAGES):
        for shard in (interpreted, compiled):
            shard.step([Delivery("test", [("lander/one", encode(message))])], NOW_NS + number)
        commits = [shard.seal() for shard in (interpreted, compiled)]
        owed = [[(one.sink, one.body) for one in ready.commit.owed] for ready in commits if ready is not None]
        assert owed[0] == owed[1], message
        assert canonical_bytes(agent_in(compiled.state)) == canonical_bytes(agent_in(interpreted.state)), message
    lander = agent_in(compiled.state)
    assert (lander.landed, lander.hovered, lander.others, lander.failed, lander.lost) == (1, 2, 1, 4, False)


def lived() -> tuple[Shard, list[Ready]]:
    """A compiled lander that asks for an action and is told that it was done, and of another that it was not."""
    shard = shard_of(compiled=True)
    commits: list[Ready] = []
    shard.step([Delivery("test", [("lander/one", encode(Drained(percent=10)))])], NOW_NS)
    commits.append(sealed(shard))
    (owed,) = commits[0].commit.owed
    settled = EffectSettled(sink=owed.sink, sequence=owed.sequence, result=encode(MESSAGES[0]))
    for one in (settled, Delivery("test", [("lander/one", encode(MESSAGES[3]))])):
        shard.step([one], NOW_NS + SECOND_NS)
        commits.append(sealed(shard))
    return shard, commits


def sealed(shard: Shard) -> Ready:
    ready = shard.seal()
    assert ready is not None
    return ready


def test_what_is_kept_of_them_and_replayed_by_either_engine() -> None:
    shard, commits = lived()
    layout = shard.state.tables["lander"].layout
    bodies = [
        msgspec.msgpack.decode(record.body)
        for ready in commits
        for run in ready.commit.columns
        for record in read_records(bytes(run.records), layout)
    ]
    assert bodies == [
        {"type": "Drained@1", "percent": 10},
        {"type": "stigmergy.ActionDone@1", "action": "Land"},
        {"type": "stigmergy.ActionDone@1", "action": ""},
    ]
    assert (agent_in(shard.state).landed, agent_in(shard.state).others) == (1, 1)
    for compiled in (True, False):
        other = shard_of(compiled=compiled).state
        for ready in commits:
            apply(other, ready.commit, ready.sealed.digest)
        assert canonical_bytes(agent_in(other)) == canonical_bytes(agent_in(shard.state))


@pytest.mark.parametrize(("mentioned", "kept"), [("Land", "Land"), ("Lan", ""), ("", "")])
def test_a_record_of_one(mentioned: str, kept: str) -> None:
    program = read_agent(Lander)
    table = CompiledTable(program, plain_python(program), RowCodec(program))
    table.enroll(["one"])
    record = table.record_of(0, ActionDone(action=mentioned, key="k" * 400))
    (read,) = read_records(record, program.layout)
    assert msgspec.msgpack.decode(read.body)["action"] == kept
