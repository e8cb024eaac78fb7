"""Every limit of a step, and that no commit is larger than it may be, whatever comes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stigmergy.agents.agent import Agent, decide, evolve, react, reject
from stigmergy.agents.codec import encode
from stigmergy.agents.effects import Effects, Events, Publish, WindowClosed
from stigmergy.agents.messages import SECOND_NS
from stigmergy.agents.supervision import AgentStopped, InputFailed, Supervise
from stigmergy.agents.windows import Window
from stigmergy.base.errors import Bug
from stigmergy.shard.commit import COMMIT_BYTES_MAX
from stigmergy.shard.draft import DRAFT_BYTES_MAX
from stigmergy.shard.inputs import Accepted, Ask, Delivery, Refused, ResumeAgent, SequencesSkipped
from stigmergy.shard.marks import Marks
from stigmergy.shard.memory import Answers
from stigmergy.shard.replay import apply
from stigmergy.shard.snapshot import digest_of_state
from stigmergy.shard.state import Limits, ShardState
from tests.agents.robots import Did, Do, Move, R, Robot, Saw
from tests.shard.shards import Probe, observed


def test_the_number_of_agents_is_bounded() -> None:
    probe = Probe(Robot, limits=Limits(agents_count_max=1))
    probe.observe("Robot/a", Saw(how="well"))
    probe.observe("Robot/b", Saw(how="well"))
    assert probe.letters() == [
        "Overloaded: Robot/b: this shard has 1 agents already; raise agents_count_max or add shards"
    ]
    assert "raise agents_count_max" in probe.ask("Robot/c", Do(how="well")).reason
    assert list(probe.state.agents) == ["Robot/a"]


def test_a_limit_that_was_lowered_holds_for_the_next_agent() -> None:
    probe = Probe(Robot)
    for name in "abc":
        probe.observe(f"Robot/{name}", Saw(how="well"))
    probe.state.limits = Limits(agents_count_max=2)
    probe.observe("Robot/d", Saw(how="well"))
    assert len(probe.letters()) == 1
    probe.observe("Robot/c", Saw(how="well"))
    assert probe.agent("Robot/c").count == 2, "who is there goes on"
    probe.state.limits = Limits(agents_count_max=4)
    probe.observe("Robot/d", Saw(how="well"))
    assert probe.agent("Robot/d").count == 1


class Patient(Agent):
    supervision = Supervise(stop_after=300, within_s=60)

    @evolve
    def saw(self, event: Saw) -> None:
        raise RuntimeError("again")


def test_an_agent_is_stopped_by_the_last_failure_that_it_may_have() -> None:
    probe = Probe(Patient)
    probe.step(observed("Patient/p", *[Saw(how="x")] * 299))
    assert probe.seal().stopped == []
    probe.step(observed("Patient/p", Saw(how="x")))
    assert probe.seal().stopped == ["Patient/p"]
    assert probe.state.stopped["Patient/p"].startswith("300 failed inputs within 60 s, the last: RuntimeError: again")


def test_one_source_too_many_is_not_taken() -> None:
    probe = Probe(Robot)
    probe.state.marks = Marks(sources_count_max=1)
    probe.take(observed(R, Saw(how="well"), sequence=1))
    probe.step(
        observed(R, Saw(how="well"), source="t", sequence=1), SequencesSkipped("u", 0, 0, last=3, because="shed")
    )
    assert probe.shard.seal() is None
    assert probe.shard.counters.overloads == 2


def test_a_full_draft_leaves_the_rest_and_the_mark_moves_as_far_as_it_was_consumed() -> None:
    probe = Probe(Robot)
    saws = [Saw(how=str(number), pad="x" * 20_000) for number in range(30)]
    delivery = observed(R, *saws, sequence=1)
    taken = 0
    for _ in range(10):
        stepped = probe.step(delivery, observed("Robot/after", Saw(how="after"), source="t", sequence=1))
        assert stepped.wait_ns == 0 or not stepped.left
        probe.seal()
        consumed = probe.state.marks.consumed("s", 0)
        assert probe.agent(R).count == consumed
        if not stepped.left:
            break
        assert taken < consumed < 30
        taken = consumed
        left, after = stepped.left
        assert isinstance(left, Delivery)
        assert (left.sequence, len(left.items)) == (consumed + 1, 30 - consumed)
        assert isinstance(after, Delivery)
        assert after.source == "t"
        delivery = left
    assert probe.state.marks.consumed("s", 0) == 30
    assert probe.agent("Robot/after").count == 1


def test_a_draft_that_is_full_takes_nothing_before_it_is_sealed() -> None:
    probe = Probe(Robot)
    full = [observed(R, Saw(how="x", pad="x" * 60_000)) for _ in range(8)]
    left = probe.step(*full).left
    assert 0 < len(left) < 8
    assert probe.step(*left).left == left
    probe.seal()
    assert probe.step(*left).left != left


HOW = st.sampled_from(["well", "crash", "pads", "endless", "large", "many", "unknown kind"])
SIZES = st.sampled_from([0, 100, 5_000, 30_000, 65_000])


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.booleans(), HOW, SIZES, st.integers(1, 25)), min_size=1, max_size=10))
def test_no_commit_is_larger_than_it_may_be(draws: list[tuple[bool, str, int, int]]) -> None:
    probe = Probe(Robot, Wide)
    queue: list[Any] = []
    for number, (is_command, how, size, count) in enumerate(draws):
        address = f"{'Robot' if number % 2 else 'Wide'}/{'r' * 128}"
        message: Any = (Do if is_command else Saw)(how=how, pad="x" * size)
        queue.append(Delivery("ü" * 256, [(address, encode(message))] * count))
        queue.append(Ask(address, "c" * 190 + str(number), encode(Do(how=how, pad="x" * size))))
        queue.append(SequencesSkipped("q" * 200 + str(number), 0, 0, last=1, because="shed"))
    steps = 0
    while queue:
        queue = list(probe.step(*queue, at=probe.now_s + 20).left)
        ready = probe.shard.seal()
        assert ready is not None
        assert len(ready.sealed.body) <= COMMIT_BYTES_MAX
        steps += 1
        assert steps < 500
        for address in list(probe.state.stopped):
            probe.step(ResumeAgent(address, by="test"))


class Wide(Agent):
    """Asks for as much as it may whenever it can."""

    saws: Window[Saw] = Window.tumbling(seconds=1, count_max=4)
    supervision = Supervise(stop_after=1, within_s=60)

    @decide
    def do(self, command: Do) -> Events:
        if command.how == "crash":
            raise RuntimeError("x" * 1000)
        return [Did(how=command.how, pad=command.pad)]

    @react
    def reacts(self, event: Did | Saw) -> Effects:
        yield Move(pad=event.pad[:14_000])

    @react
    def closes(self, event: WindowClosed) -> Effects:
        for _ in range(200):
            yield Move(pad="x" * 30)

    @react
    def fails(self, event: InputFailed | AgentStopped) -> Effects:
        yield Publish(topic="t" * 15_000, event=Saw(how="failed"))


def test_the_room_of_one_input_at_worst_fits_beside_a_full_draft() -> None:
    probe = Probe(Wide, Robot)
    address = "Wide/" + "w" * 128
    probe.observe(address, Saw(how="well"), at=100.5)
    probe.observe(R, Saw(how="x"))
    while probe.shard.draft_size_bytes < DRAFT_BYTES_MAX - 1_500:
        probe.step(observed(R, Saw(how="x", pad="x" * 1000)))
    assert probe.shard.draft_size_bytes <= DRAFT_BYTES_MAX
    probe.step(Ask(address, "c" * 200, encode(Do(how="crash", pad="x" * 65_000))), at=200.0)
    ready = probe.seal()
    assert DRAFT_BYTES_MAX < len(ready.sealed.body) <= COMMIT_BYTES_MAX
    assert ready.stopped


def test_a_commit_that_came_out_too_large_is_our_own_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stigmergy.shard.shard.COMMIT_BYTES_MAX", 10)
    probe = Probe(Robot)
    probe.step(observed(R, Saw(how="well")))
    with pytest.raises(Bug, match="shard 0: a commit of"):
        probe.shard.seal()


class Failing(Agent):
    """Fails on the short path, at length, and is never stopped."""

    @evolve
    def saw(self, event: Saw) -> None:
        if event.how != "well":
            raise RuntimeError("x" * 500)


def test_a_flood_of_failures_fills_one_commit_after_the_other() -> None:
    probe = Probe(Failing)
    probe.observe("Failing/f", Saw(how="well"))
    left: list[Any] = [observed("Failing/f", *[Saw(how="not")] * 1_500, sequence=1)]
    while left:
        left = list(probe.step(*left).left)
        assert len(probe.seal().sealed.body) <= COMMIT_BYTES_MAX
    assert probe.state.marks.consumed("s", 0) == 1_500
    assert probe.shard.counters.failed == 1_500
    assert len(probe.log) > 3


def test_answers_leave_the_table_alike_in_life_and_in_replay() -> None:
    probe = Probe(Robot)
    again = ShardState(0, probe.plans)
    for state in (probe.state, again):
        state.answers = Answers(count_max=2, age_ns_max=50 * SECOND_NS, count_min=0)
    for number, at in enumerate((100.0, 101.0, 102.0, 140.0, 160.0)):
        probe.step(Ask(R, f"c{number}", encode(Do(how="well"))), at=at)
        ready = probe.shard.seal()
        assert ready is not None
        apply(again, ready.commit, ready.sealed.digest)
        assert again.answers.all() == probe.state.answers.all()
    assert [answer.command_id for answer in again.answers.all()] == ["c3", "c4"]
    assert digest_of_state(again) == digest_of_state(probe.state)


class Door(Agent):
    """Stays shut."""

    @decide
    def do(self, command: Do) -> Events:
        reject("shut")


NOON_S = 1_800_000_000


def test_a_repeated_command_is_done_once_whatever_other_agents_and_clients_are_sent() -> None:
    probe = Probe(Robot, Door)

    def id_at(second: int) -> str:
        digits = f"{(NOON_S + second) * 1_000:012x}"
        return f"{digits[:8]}-{digits[8:]}-7000-8000-{second:012x}"

    mine = [Ask(R, "order-1", encode(Do(how="well"))), Ask(R, id_at(99), encode(Do(how="well")))]
    probe.step(*mine, at=NOON_S + 100.0)
    probe.shard.seal()
    count = probe.agent(R).count
    for second in range(100, 10_200):
        probe.step(Ask("Door/d", id_at(second), encode(Do(how="well"))), at=float(NOON_S + second))
        if second % 100 == 0:
            probe.shard.seal()
    assert [told[1] for told in probe.step(*mine).repeats] == [Accepted(1), Accepted(1)]
    assert probe.agent(R).count == count
    (again,) = probe.step(Ask("Door/d", id_at(100), encode(Do(how="well")))).repeats
    assert isinstance(again[1], Refused)
    assert again[1].reason.startswith("too old to know")
    assert len(probe.state.answers.all()) < 1_100, "a thousand of the flood, and the others"
