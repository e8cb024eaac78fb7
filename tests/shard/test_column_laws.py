"""Laws of compiled agents in the core: replay equals living, from any commit and any snapshot, and so does the other
engine: what was compiled can be interpreted, and the other way round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from stigmergy.agents.codec import encode
from stigmergy.agents.messages import Message
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.supervision import AgentsEnrolled
from stigmergy.base.errors import FoldMismatch, JournalCorrupt
from stigmergy.shard.commit import digest_commit, open_commit
from stigmergy.shard.inputs import ActionsConfirmed, Ask, Delivery, EnrollAgents, Input, LetterRetried, ResumeAgent
from stigmergy.shard.replay import apply
from stigmergy.shard.shard import Shard
from stigmergy.shard.snapshot import (
    TABLE_PART,
    SnapshotWriter,
    digest_of_state,
    load_agents,
    load_tables,
    read_header,
)
from stigmergy.shard.state import ShardState
from tests.agents.meters import (
    ABROAD,
    FAIL,
    LATE,
    NEVER,
    NOTHING,
    TWO,
    Counted,
    Glimpsed,
    LimitSet,
    Measured,
    Meters,
    Mode,
    Poked,
    Seen,
    SetLimit,
    meter_plans,
)
from tests.shard.shards import events_of, observed

FRAME_BYTES = 160
"""Of a commit without anything in it."""
NAMES = ("a", "b", "c", "d")
MESSAGES = st.one_of(
    st.builds(Measured, level=st.sampled_from([0.0, 50.0, 400.0, 600.0, 950.0]), mode=st.sampled_from(Mode)),
    st.builds(
        Counted, by=st.sampled_from([1, -5, 13, 2**40]), ok=st.booleans(), code=st.sampled_from([b"abcd", bytes(4)])
    ),
    st.builds(Glimpsed, level=st.sampled_from([0.0, 3.0, 200.0])),
    st.builds(Poked, how=st.sampled_from([NOTHING, TWO, FAIL, LATE, ABROAD, NEVER])),
    st.builds(LimitSet, limit=st.sampled_from([-0.0, 100.0, float("nan")])),
)
ITEMS = st.lists(st.tuples(st.sampled_from(NAMES), MESSAGES), min_size=1, max_size=6)
Script = list[tuple[str, Any]]
SCRIPTS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), ITEMS),
        st.tuples(st.just("again"), ITEMS),
        st.tuples(st.just("messages"), ITEMS),
        st.tuples(st.just("ask"), st.tuples(st.sampled_from(NAMES), st.sampled_from([5.0, -1.0, 0.5]))),
        st.tuples(st.just("enroll"), st.lists(st.sampled_from(NAMES), max_size=3)),
        st.tuples(st.just("confirm"), st.integers(0, 9)),
        st.tuples(st.just("resume"), st.sampled_from(NAMES)),
        st.tuples(st.just("retry"), st.just(None)),
        st.tuples(st.just("seal"), st.just(None)),
        st.tuples(st.just("crash"), st.just(None)),
        st.tuples(st.just("full"), st.just(None)),
        st.tuples(st.just("incremental"), st.just(None)),
        st.tuples(st.just("given up"), st.just(None)),
    ),
    max_size=25,
)


def interpreted_plans() -> dict[str, AgentPlan]:
    return {kind: structs.replace(plan, engine=None) for kind, plan in meter_plans().items()}


class Life:
    """Plays a script on a shard. What compiled agents get as records, interpreted ones get as messages."""

    def __init__(self, plans: Mapping[str, AgentPlan] | None = None, log: Sequence[bytes] = ()) -> None:
        self.probe = Meters(batched=(), plans=plans)
        self.compiled = "Meter" in self.probe.state.tables
        self.sequence = 0
        self.asked = 0
        self.snapshots: list[list[bytes]] = []
        self.digests: list[bytes] = []
        if log:
            self.probe.log = list(log)
            self.probe.restart()

    def play(self, script: Script) -> None:
        for step, value in script:
            self.probe.now_s += 1.0
            self.act(step, value)
        self.seal()

    def act(self, step: str, value: Any) -> None:
        probe = self.probe
        match step:
            case "batch":
                if self.compiled:
                    names = [name for name, _ in value]
                    probe.step(EnrollAgents("Meter", names))
                self.take(value, self.sequence + 1)
            case "again":
                known = [(name, message) for name, message in value if probe.state.has_agent(f"Meter/{name}")]
                if known and self.sequence:
                    self.take(known, self.sequence)
            case "messages":
                probe.step(Delivery("s", [(f"Meter/{name}", encode(message)) for name, message in value]))
            case "ask":
                self.asked += 1
                probe.step(Ask(f"Meter/{value[0]}", f"c-{self.asked}", encode(SetLimit(limit=value[1]))))
            case "enroll" if self.compiled:
                probe.step(EnrollAgents("Meter", value))
            case "confirm":
                probe.step(ActionsConfirmed("Meter", value))
            case "resume":
                probe.step(ResumeAgent(f"Meter/{value}", "ada"))
            case "retry":
                letters = probe.state.letters.all()
                if letters:
                    probe.step(LetterRetried(letters[0].letter))
            case "seal":
                self.seal()
            case "crash":
                self.seal()
                probe.restart()
            case "full" | "incremental" | "given up":
                self.snapshot(step)
            case _:
                assert not self.compiled

    def take(self, items: list[tuple[str, Message]], sequence: int) -> None:
        one: Input = (
            self.probe.batch(*items, sequence=sequence)
            if self.compiled
            else Delivery("radio", [(f"Meter/{name}", encode(message)) for name, message in items], sequence=sequence)
        )
        self.probe.step(one)
        self.sequence = max(self.sequence, sequence + len(items) - 1)

    def seal(self) -> None:
        counted_bytes = self.probe.shard.draft_size_bytes + FRAME_BYTES
        ready = self.probe.shard.seal()
        if ready is not None:
            assert len(ready.sealed.body) <= counted_bytes, "a draft counts at least what its commit takes"
            self.probe.log.append(ready.sealed.body)

    def snapshot(self, step: str) -> None:
        self.seal()
        position = self.probe.state.position
        if not position or not self.compiled:
            return
        base = read_header(self.snapshots[-1][0]).tables.position if self.snapshots and step == "incremental" else 0
        if base == position:
            return
        taking = SnapshotWriter(
            self.probe.state,
            base=base,
            base_digest=b"b" if base else b"",
            changed=self.probe.state.agents if base else None,
        )
        if step == "given up":
            taking.next_part({})
            return
        parts = list(iter(lambda: taking.next_part({}), None))
        if base:
            self.snapshots.append(parts)
        else:
            self.snapshots = [parts]

    def recovered(self, plans: Mapping[str, AgentPlan]) -> ShardState:
        """From the last snapshot with those it adds to, and the log behind it."""
        state = ShardState(0, plans)
        for parts in self.snapshots:
            header = read_header(parts[0])
            for part in parts[1:]:
                load_agents(state, header, part)
            load_tables(state, header.tables)
        for body in self.probe.log[state.position :]:
            apply(state, open_commit(body), digest_commit(body))
        return state


@settings(max_examples=settings().max_examples // 3, deadline=None)
@given(SCRIPTS)
def test_replay_equals_living(script: Script) -> None:
    life = Life()
    life.play(script)
    digest = digest_of_state(life.probe.state)
    assert digest_of_state(life.probe.replayed()) == digest
    assert digest_of_state(life.recovered(life.probe.plans)) == digest


def meters_of(state: ShardState) -> dict[str, Any]:
    """The meters that are not as they were at first, by address, as their bytes."""
    table = state.tables.get("Meter")
    if table is None:
        found = {address: agent for address, agent in state.agents.items() if address.startswith("Meter/")}
    else:
        found = {f"Meter/{table.name(n)}": table.agent(n, ahead=True) for n in range(len(table))}
    first = meter_plans()["Meter"].cls
    bodies = {address: encode(agent) for address, agent in found.items()}
    return {address: body for address, body in bodies.items() if body != encode(first(id=address.partition("/")[2]))}


def seen_of(state: ShardState) -> Any:
    """What both engines must agree on."""
    owed = [(one.agent, one.sink, one.sequence, one.body) for one in state.outbox.owed()]
    letters = [(letter.agent, letter.error, letter.input) for letter in state.letters.all()]
    return meters_of(state), owed, letters, state.stopped, state.timers.all(), state.marks.all()


@settings(max_examples=settings().max_examples // 3, deadline=None)
@given(SCRIPTS)
def test_both_engines_end_the_same(script: Script) -> None:
    lives = [Life(), Life(interpreted_plans())]
    for life in lives:
        life.play([(step, value) for step, value in script if step not in ("confirm", "enroll", "again")])
    assert seen_of(lives[0].probe.state) == seen_of(lives[1].probe.state)


@settings(max_examples=15, deadline=None)
@given(st.lists(SCRIPTS, min_size=2, max_size=4), st.booleans())
def test_a_log_goes_on_with_the_other_engine(scripts: list[Script], compiled_first: bool) -> None:
    log: list[bytes] = []
    sequence = asked = 0
    reference = Life(interpreted_plans())
    for number, script in enumerate(scripts):
        compiled = compiled_first is (number % 2 == 0)
        life = Life(meter_plans() if compiled else interpreted_plans(), log)
        life.sequence, life.asked = sequence, asked
        played = [(step, value) for step, value in script if step not in ("confirm", "enroll", "again", "crash")]
        life.probe.now_s = reference.probe.now_s = 100.0 + 1_000 * number
        life.play(played)
        reference.play(played)
        log, sequence, asked = life.probe.log, life.sequence, life.asked
        assert seen_of(life.probe.state)[:4] == seen_of(reference.probe.state)[:4]
    for plans in (meter_plans(), interpreted_plans()):
        probe = Life(plans, log).probe
        assert meters_of(probe.state) == meters_of(reference.probe.state)


# Agents of a time when their kind was interpreted.


def from_before(*names: str) -> Meters:
    """A shard whose meters were interpreted, and are compiled from now on."""
    before = Meters(plans=interpreted_plans())
    for name in names:
        before.observe(f"Meter/{name}", Counted(by=1))
    after = Meters()
    after.log = before.log
    after.restart()
    return after


def test_agents_from_before_are_listed_first() -> None:
    probe = from_before("a", "b")
    assert probe.state.directory.unlisted == {"Meter": ["a", "b"]}
    assert (len(probe.table), probe.table.generation, probe.state.agents) == (2, 2, {})
    commit = probe.take(probe.batch(("b", Counted(by=2))), observed("Meter/c", Counted(by=3)))
    named = [event for event in events_of(probe, commit) if isinstance(event, AgentsEnrolled)]
    assert [(event.first, event.names) for event in named] == [(0, ("a", "b")), (2, ("c",))]
    assert (probe.state.directory.unlisted, probe.table.generation) == ({}, 3)
    assert [probe.meter(name).total for name in "abc"] == [1, 3, 3]
    back = Meters(plans=interpreted_plans())
    back.log = probe.log
    back.restart()
    assert [back.agent(f"Meter/{name}").total for name in "abc"] == [1, 3, 3]


def test_nothing_is_taken_before_all_names_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{number:0120}" for number in range(30)]
    probe = from_before(*names)
    monkeypatch.setattr("stigmergy.shard.column_dispatch.ENROLLED_BYTES_MAX", 1_000)
    monkeypatch.setattr("stigmergy.shard.column_dispatch.DRAFT_BYTES_MAX", 1_500)
    one = observed("Meter/new", Counted(by=1))
    listed = 0
    left: list[Input] = [one]
    while left:
        stepped = probe.step(*left)
        left = stepped.left
        assert left in ([one], [])
        commit = probe.seal().commit
        enrolled = [event for event in events_of(probe, commit) if isinstance(event, AgentsEnrolled)]
        assert all(sum(len(name) + 2 for name in event.names) <= 1_000 for event in enrolled)
        listed += sum(len(event.names) for event in enrolled)
        if left:
            assert (commit.columns, stepped.wait_ns) == ([], 0)
    assert (listed, len(probe.table)) == (31, 31)


def test_a_snapshot_holds_the_unlisted() -> None:
    probe = from_before("a", "b")
    taking = SnapshotWriter(probe.state)
    parts = list(iter(lambda: taking.next_part({}), None))
    state = ShardState(0, probe.plans)
    for part in parts[1:]:
        load_agents(state, read_header(parts[0]), part)
    load_tables(state, read_header(parts[0]).tables)
    assert state.directory.unlisted == {"Meter": ["a", "b"]}
    assert digest_of_state(state) == digest_of_state(probe.state)


@pytest.mark.parametrize("names", [("b", "a"), ("a", "c"), ("b",)])
def test_names_that_belong_to_others(names: tuple[str, ...]) -> None:
    probe = from_before("a", "b")
    with pytest.raises(JournalCorrupt, match="agents of Meter are enrolled with the numbers of others; restore"):
        probe.state.note("", AgentsEnrolled(kind="Meter", first=0, names=names), 1)
    with pytest.raises(JournalCorrupt, match="Meter has 0 agents, and the next ones are enrolled from 2 on; restore"):
        probe.state.note("", AgentsEnrolled(kind="Meter", first=2, names=names), 1)
    with pytest.raises(JournalCorrupt, match="Gauge has 0 agents, and the next ones are enrolled from 2 on; restore"):
        probe.state.note("", AgentsEnrolled(kind="Gauge", first=2, names=names), 1)


def test_old_events_that_nothing_is_for_any_more() -> None:
    before = Meters(plans=interpreted_plans())
    before.observe("Meter/a", Poked(how=TWO))
    before.observe("Meter/a", Poked(how=8))  # yields `Noted`, which nothing is for
    after = Meters()
    after.log = before.log
    after.restart()
    assert after.meter("a").total == 3


# Snapshots.


def loaded(probe: Meters, *snapshots: list[bytes], plans: Mapping[str, AgentPlan] | None = None) -> ShardState:
    state = ShardState(0, probe.plans if plans is None else plans)
    for parts in snapshots:
        header = read_header(parts[0])
        for part in parts[1:]:
            load_agents(state, header, part)
        load_tables(state, header.tables)
    return state


def parts_of(probe: Meters, base: list[bytes] | None = None) -> list[bytes]:
    options: dict[str, Any] = {}
    if base is not None:
        options = {"base": read_header(base[0]).tables.position, "base_digest": b"b", "changed": ()}
    taking = SnapshotWriter(probe.state, **options)
    return list(iter(lambda: taking.next_part({}), None))


def test_an_incremental_snapshot_holds_the_rows_that_changed() -> None:
    probe = Meters(*(f"m-{number}" for number in range(10)))
    full = parts_of(probe)
    assert len(full) == 1 + 4 + 1, "and one of the other kind, which has no agents"
    probe.take(probe.batch(("m-3", Counted(by=1))), observed("Meter/new", Counted(by=2)))
    added = parts_of(probe, full)
    assert len(added) == 1 + 1
    assert all(part.startswith(TABLE_PART) for part in (*full[1:], *added[1:]))
    assert digest_of_state(loaded(probe, full, added)) == digest_of_state(probe.state)
    assert digest_of_state(loaded(probe, full)) != digest_of_state(probe.state)
    probe.take(ActionsConfirmed("Meter", 1), Delivery("s", [("Board/main", encode(Seen(level=1.0)))]))
    assert len(parts_of(probe, added)) == 1, "without a change there is no part"


def test_after_one_that_was_given_up_tables_give_out_everything() -> None:
    probe = Meters("a", "b")
    full = parts_of(probe)
    probe.take(probe.batch(("a", Counted(by=1))))
    SnapshotWriter(probe.state).next_part({})
    probe.take(probe.batch(("b", Counted(by=1))))
    added = parts_of(probe, full)
    assert digest_of_state(loaded(probe, full, added)) == digest_of_state(probe.state)


def test_after_a_restart_tables_know_what_changed() -> None:
    probe = Meters("a", "b", "c")
    full = parts_of(probe)
    probe.take(probe.batch(("a", Counted(by=1))))
    state = loaded(probe, full)
    for body in probe.log[state.position :]:
        apply(state, open_commit(body), digest_commit(body))
    probe.shard = Shard(state)
    probe.take(probe.batch(("b", Counted(by=1))))
    added = parts_of(probe, full)
    assert digest_of_state(loaded(probe, full, added)) == digest_of_state(probe.state)


def test_a_snapshot_is_of_the_moment_when_it_began() -> None:
    probe = Meters("a")
    digest = digest_of_state(probe.state)
    taking = SnapshotWriter(probe.state)
    probe.take(probe.batch(("a", Counted(by=1))), observed("Meter/b", Counted(by=1)))
    parts = list(iter(lambda: taking.next_part({}), None))
    assert digest_of_state(loaded(probe, parts)) == digest


def test_who_was_stopped_is_stopped_and_who_was_resumed_is_not() -> None:
    probe = Meters("a", "b")
    bad = [("a", Counted(by=13))] * 2
    probe.take(probe.batch(*bad))
    full = parts_of(probe)
    probe.shard = Shard(loaded(probe, full))
    probe.take(probe.batch(("a", Counted(by=1))))
    assert probe.letters()[-1].startswith("PeerError: Meter/a is stopped")
    probe.take(ResumeAgent("Meter/a", "ada"))
    added = parts_of(probe, full)
    probe.shard = Shard(loaded(probe, full, added))
    probe.step(probe.batch(("a", Counted(by=1))))
    assert probe.meter("a").total == 1


def test_a_snapshot_of_the_other_engine_is_not_used() -> None:
    compiled, before = Meters("a"), Meters(plans=interpreted_plans())
    compiled.take(compiled.batch(("a", Counted(by=1))))
    before.observe("Meter/a", Counted(by=1))
    with pytest.raises(
        FoldMismatch, match="Meter was compiled in the snapshot, and is not any more; declare it as it was"
    ):
        loaded(compiled, parts_of(compiled), plans=before.plans)
    with pytest.raises(FoldMismatch, match="Meter was interpreted in the snapshot, and is not any more"):
        loaded(before, parts_of(before), plans=compiled.plans)
    numbered = Meters(plans=interpreted_plans())
    numbered.log = Meters("a").log
    numbered.restart()
    assert numbered.state.directory.names == {"Meter": ["a"]}
    parts = parts_of(numbered)
    assert digest_of_state(loaded(numbered, parts)) == digest_of_state(numbered.state)
    with pytest.raises(FoldMismatch, match="Meter was interpreted in the snapshot"):
        loaded(numbered, parts, plans=compiled.plans)


def test_rows_of_another_layout_need_another_version() -> None:
    probe = Meters("a")
    parts = parts_of(probe)
    plan = probe.plans["Meter"]
    with pytest.raises(FoldMismatch, match="Meter was version 1 in the snapshot and is version 1 with another layout"):
        loaded(probe, parts, plans={**probe.plans, "Meter": structs.replace(plan, layout=b"x" * 16)})
    # With another version it is for the table to carry them over: tests/compiled/test_evolution.py.
    newer = structs.replace(plan, layout=b"x" * 16, version=2)
    assert loaded(probe, parts, plans={**probe.plans, "Meter": newer}).tables["Meter"].find("a") == 0


def test_a_damaged_part() -> None:
    probe = Meters("a")
    parts = parts_of(probe)
    with pytest.raises(JournalCorrupt, match="a part of a snapshot does not decode"):
        loaded(probe, [parts[0], TABLE_PART + b"\xc1"])
    with pytest.raises(JournalCorrupt, match="a part of a table does not decode"):
        loaded(probe, [parts[0], TABLE_PART + encode(("Meter", encode(probe.table.layout), b"x"))])
    with pytest.raises(JournalCorrupt, match="a layout does not decode"):
        loaded(probe, [parts[0], TABLE_PART + encode(("Meter", b"x", b"x"))])


# Damaged logs.


def changed_log(probe: Meters, **changed: Any) -> ShardState:
    """The state before the last commit, to which a changed one is applied."""
    state = probe.replayed_to(len(probe.log) - 1)
    commit = open_commit(probe.log[-1])
    run = structs.replace(commit.columns[0], **changed)
    apply(state, structs.replace(commit, columns=[run, *commit.columns[1:]]), b"d" * 32)
    return state


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"layout": b"x" * 16}, "events of Meter in a layout that the log does not declare"),
        ({"templates": b"x" * 16}, "actions of templates that the log does not declare"),
        ({"count": 2}, "records of"),
        ({"first": 2}, "from number 2 on where 1 is the next"),
        ({"actions": b""}, "0 bytes for 1 actions"),
    ],
)
@pytest.mark.parametrize("plans", [meter_plans(), interpreted_plans()], ids=["compiled", "interpreted"])
def test_runs_that_do_not_fit(changed: dict[str, Any], text: str, plans: dict[str, AgentPlan]) -> None:
    probe = Meters("a")
    probe.take(probe.batch(("a", Measured(level=400.0))))
    other = Meters(plans=plans)
    other.log = probe.log
    with pytest.raises(JournalCorrupt, match=text):
        changed_log(other, **changed)
    changed_log(other)


def test_events_of_who_was_never_enrolled() -> None:
    probe = Meters("a")
    probe.take(probe.batch(("a", Counted(by=1))))
    records = b"\x05" + open_commit(probe.log[-1]).columns[0].records[1:]
    with pytest.raises(FoldMismatch):
        changed_log(probe, records=records)
    other = Meters(plans=interpreted_plans())
    other.log = probe.log
    with pytest.raises(JournalCorrupt, match="position 2: an event of an agent of kind Meter that was never enrolled"):
        changed_log(other, records=records)
