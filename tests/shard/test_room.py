"""The room of a commit: every entry counts exactly what it needs, and a full draft is full at its last byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.agents.agent import Agent, decide, evolve, react
from stigmergy.agents.codec import MESSAGE_BYTES_MAX, encode
from stigmergy.agents.effects import Effects, Events, WindowClosed
from stigmergy.agents.messages import SECOND_NS, Action, Command, Event
from stigmergy.agents.supervision import InputFailed
from stigmergy.agents.windows import Window
from stigmergy.base.errors import Bug
from stigmergy.shard.commit import MarkMoved, SnapshotNote
from stigmergy.shard.dispatch import REACTIONS_BYTES_MAX
from stigmergy.shard.draft import DRAFT_BYTES_MAX, NEVER_NS, OVERHEAD_BYTES, Draft
from stigmergy.shard.inputs import Accepted, Ask, Delivery, Refused, SnapshotStored
from stigmergy.shard.state import DECISION_BYTES_MAX, Limits
from tests.shard.shards import Probe, events_of, observed

EACH = OVERHEAD_BYTES
DIGEST = 16


class Saw(Event):
    pad: str = ""


class Fell(Event):
    pass


class Sampled(Event):
    n: int = 0
    pad: str = ""


class Do(Command):
    count: int = 1
    pad: str = ""


class Did(Event):
    pad: str = ""


class Move(Action):
    pad: str = ""


class Walker(Agent):
    """Takes plain events, decides, fails, and asks for as much as it is told to."""

    n: int = 0

    @decide
    def do(self, command: Do) -> Events:
        return [Did(pad=command.pad) for _ in range(command.count)]

    @evolve
    def did(self, event: Did | Saw) -> None:
        self.n += 1

    @evolve
    def fell(self, event: Fell) -> None:
        raise RuntimeError("fell")

    @react
    def moves(self, event: Did | Saw) -> Effects:
        if event.pad:
            yield Move(pad=event.pad)


W = "Walker/" + "w" * 70
"""Longer than what is counted beside it, so that no bit of the two sums is the same."""
NOW_NS = 100 * SECOND_NS


def walking(**limits: int) -> Probe:
    probe = Probe(Walker, limits=Limits(**limits))
    probe.observe(W, Saw())
    return probe


def size_of(*effects: Action) -> int:
    return sum(len(encode(effect)) + len(W) + EACH for effect in effects)


# What is counted.


def grown(draft: Draft, add: Callable[[], None]) -> int:
    before = draft.size_bytes
    add()
    return draft.size_bytes - before


def test_each_entry_of_a_draft_counts_its_texts_and_its_bodies() -> None:
    draft = Draft(1)
    assert grown(draft, lambda: draft.begin_run(1, "radio")) == EACH + 5
    assert grown(draft, lambda: draft.begin_run(1, "radio")) == 0
    assert grown(draft, lambda: draft.move_mark(MarkMoved("radio", 0, 0, 1))) == EACH + 5
    assert grown(draft, lambda: draft.settle("sinks", [1, 2, 3])) == EACH + 5 + 27
    assert grown(draft, lambda: draft.fire("Walker/w", "nap")) == EACH + 8 + 3
    assert grown(draft, lambda: draft.grow("abc", "üüü", bodies_bytes=10)) == EACH + 10 + 3 + 12


def test_an_observed_event_counts_once_on_the_short_path_and_with_its_outcome_on_the_long_one() -> None:
    probe = walking()
    body = encode(Saw())
    item_bytes = len(body) + 4 * len(W) + EACH
    probe.step(observed(W, Saw()))
    assert probe.shard.draft_size_bytes == (EACH + 1) + item_bytes
    probe.step(observed("Walker/new", Saw()))
    longer = 4 * (len("Walker/new") - len(W))
    assert probe.shard.draft_size_bytes == (EACH + 1) + 2 * item_bytes + longer + len(body) + len("Walker/new") + EACH


def test_effects_count_on_the_short_path() -> None:
    probe = walking()
    saw = Saw(pad="xyz")
    probe.step(observed(W, saw))
    item_bytes = len(encode(saw)) + 4 * len(W) + EACH
    assert probe.shard.draft_size_bytes == (EACH + 1) + item_bytes + size_of(Move(pad="xyz"))


def test_an_answer_counts_with_all_that_its_command_caused() -> None:
    probe = walking()
    command = encode(Do(count=2, pad="xyz"))
    probe.step(Ask(W, "id-1", command))
    caused = 2 * (len(encode(Did(pad="xyz"))) + len(W) + EACH) + size_of(Move(pad="xyz"), Move(pad="xyz"))
    answer = len(command) + EACH + len(W) + len("id-1") + DIGEST
    assert probe.shard.draft_size_bytes == (EACH + len("local")) + caused + answer


def test_a_refusal_counts_with_its_reason() -> None:
    probe = walking()
    command = encode(Saw())
    probe.step(Ask(W, "id-1", command))
    (refused,) = [verdict for _, verdict in probe.seal().verdicts]
    probe.step(Ask(W, "id-2", command))
    assert isinstance(refused, Refused)
    answer = len(command) + EACH + len(W) + len("id-2") + len(refused.reason) + DIGEST
    assert probe.shard.draft_size_bytes == (EACH + len("local")) + answer


def test_an_event_of_the_shard_itself_counts() -> None:
    probe = walking()
    probe.step(Delivery("s", [("Nobody/x", b"")]))
    (_, body) = probe.shard._draft.events[0] or ("", b"")
    assert probe.shard.draft_size_bytes == (EACH + 1) + (4 * len("Nobody/x") + EACH) + (len(body) + EACH)


def test_a_note_of_a_snapshot_counts() -> None:
    probe = walking()
    probe.step(SnapshotStored(SnapshotNote(position=1, digest=b"", chain=b"", fold=b"")))
    assert probe.shard.draft_size_bytes == 96 + EACH


class Breaking(Agent):
    """Its window closes, and its handler for that fails: the closing stays, with the timer of the next bucket."""

    minute: Window[Sampled] = Window.tumbling(seconds=60, late_s=60)

    @evolve
    def closed(self, event: WindowClosed) -> None:
        raise RuntimeError("closed")


def test_a_fact_whose_handler_fails_counts_with_the_timers_it_sets() -> None:
    address = "Breaking/" + "b" * 70
    probe = Probe(Breaking)
    probe.observe(address, Sampled(), at=60.0)
    probe.observe(address, Sampled(), at=130.0)
    draft = Draft(9)
    error = probe.shard._dispatcher.keep(
        draft, address, WindowClosed(window="minute", start_s=60.0, end_s=120.0), 190 * SECOND_NS
    )
    assert str(error) == "closed"
    (timer,) = draft.owed
    (_, body) = draft.events[0] or ("", b"")
    each = len(address) + EACH
    assert (timer.sink, timer.cause) == ("timers", 0)
    assert draft.size_bytes == len(body) + 2 * each
    assert [timer.due_ns for timer in probe.state.timers.all()] == [240 * SECOND_NS]


# What fits.


@pytest.mark.parametrize("given_bytes", [False, True])
def test_items_fit_up_to_the_last_byte(given_bytes: bool) -> None:
    items = [("Walker/w", b"x" * 100), ("Walker/ww", b"y" * 50)]
    sizes = [100 + 4 * 8 + EACH, 50 + 4 * 9 + EACH]
    size_bytes = sum(sizes) if given_bytes else 0

    def fitting(room_bytes: int) -> tuple[int, int]:
        draft = Draft(1)
        draft.events.append(("x", b""))
        draft.size_bytes = DRAFT_BYTES_MAX - room_bytes
        count = len(draft.fitting(items, size_bytes))
        return count, draft.size_bytes - (DRAFT_BYTES_MAX - room_bytes)

    assert fitting(sum(sizes)) == (2, sum(sizes))
    assert fitting(sum(sizes) - 1) == (1, sizes[0])
    assert fitting(sizes[0]) == (1, sizes[0])
    assert fitting(sizes[0] - 1) == (0, 0)
    assert fitting(0) == (0, 0)


def test_the_length_of_an_envelope_stands_for_its_items() -> None:
    draft = Draft(1)
    items = [("Walker/w", b"x" * 100)] * 3
    assert draft.fitting(items, 1) is items
    assert draft.size_bytes == 1
    draft.size_bytes = 0
    assert len(draft.fitting(items, DRAFT_BYTES_MAX)) == 3
    assert draft.size_bytes == DRAFT_BYTES_MAX


def test_an_empty_draft_has_room_for_any_one() -> None:
    draft = Draft(1)
    items = [("Walker/w", b"x" * DRAFT_BYTES_MAX)] * 2
    assert draft.fitting(items, 0) == items[:1]
    assert draft.size_bytes == DRAFT_BYTES_MAX + 4 * 8 + EACH


@given(st.lists(st.integers(0, 3_000), max_size=12), st.integers(0, 20_000))
def test_what_fits_is_a_beginning_that_fits(sizes: list[int], room_bytes: int) -> None:
    draft = Draft(1)
    draft.events.append(("x", b""))
    draft.size_bytes = DRAFT_BYTES_MAX - room_bytes
    items = [("Walker/w", b"x" * size) for size in sizes]
    fitting = draft.fitting(items, 0)
    counted = [size + 4 * 8 + EACH for size in sizes]
    assert fitting == items[: len(fitting)]
    assert sum(counted[: len(fitting)]) <= room_bytes
    assert len(fitting) == len(items) or sum(counted[: len(fitting) + 1]) > room_bytes


# Where a full draft ends a step.


def taken(probe: Probe, items: list[tuple[str, bytes]], start_bytes: int) -> tuple[int, int]:
    """How many of the items are taken into a draft of that size, and how much larger the first one makes it."""
    draft = Draft(probe.state.position + 1)
    draft.size_bytes = start_bytes
    return probe.shard._dispatcher.take_items(draft, items, "s", NOW_NS), draft.size_bytes - start_bytes


def items_of(how: str, first: int) -> list[tuple[str, bytes]]:
    match how:
        case "new agents":
            return [(f"Walker/{first + number}", encode(Saw())) for number in range(3)]
        case "commands":
            return [(W, encode(Do()))] * 3
        case "failures":
            return [(W, encode(Fell()))] * 3
        case _:
            return [(W, encode(Saw(pad="xyz")))] * 3


@pytest.mark.parametrize("how", ["new agents", "commands", "failures", "effects"])
def test_a_draft_is_full_one_byte_past_its_limit(how: str) -> None:
    probe = walking()
    _, each_bytes = taken(probe, items_of(how, 100)[:1], 0)
    assert each_bytes > 0
    assert taken(probe, items_of(how, 200), DRAFT_BYTES_MAX - each_bytes) == (2, 2 * each_bytes)
    assert taken(probe, items_of(how, 300), DRAFT_BYTES_MAX - each_bytes + 1) == (1, each_bytes)
    assert taken(probe, items_of(how, 400), 0) == (3, 3 * each_bytes)


def test_a_step_takes_another_input_into_a_draft_at_its_limit_and_none_behind_it() -> None:
    asks = [Ask(W, f"id-{number}", encode(Do())) for number in range(3)]
    probe = walking()
    probe.step(asks[0])
    probe.shard._draft.size_bytes = DRAFT_BYTES_MAX
    stepped = probe.step(*asks[1:])
    assert (stepped.left, stepped.wait_ns) == ([asks[2]], 0)
    stepped = probe.step(asks[2])
    assert (stepped.left, stepped.wait_ns) == ([asks[2]], 0)


class Ticking(Agent):
    seconds: Window[Sampled] = Window.tumbling(seconds=1, by="n", late_s=50)


@pytest.mark.parametrize(("start_bytes", "closed"), [(DRAFT_BYTES_MAX + 1, 0), (DRAFT_BYTES_MAX, 1), (0, 3)])
def test_buckets_close_into_a_draft_at_its_limit_and_none_behind_it(start_bytes: int, closed: int) -> None:
    probe = Probe(Ticking)
    probe.observe("Ticking/t", *[Sampled(n=n) for n in (1, 2, 3)])
    agent = probe.agent("Ticking/t")
    agent.seconds = agent.seconds.add(NOW_NS, Sampled(n=54))
    draft = Draft(9)
    draft.size_bytes = start_bytes
    probe.shard._dispatcher.close_windows(draft, "Ticking/t", NOW_NS, NOW_NS)
    assert len(draft.events) == closed


def test_a_sealed_commit_may_have_exactly_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = walking()
    probe.observe(W, Saw())
    again = len(probe.log[-1])
    monkeypatch.setattr("stigmergy.shard.shard.COMMIT_BYTES_MAX", again)
    assert len(probe.take(observed(W, Saw())).events) == 1
    monkeypatch.setattr("stigmergy.shard.shard.COMMIT_BYTES_MAX", again - 1)
    probe.step(observed(W, Saw()))
    with pytest.raises(Bug, match=f"shard 0: a commit of {again} bytes, {again - 1} at most"):
        probe.shard.seal()


# What one input may cause.


def test_a_decision_may_have_so_many_events() -> None:
    probe = walking(events_per_decision_max=3)
    assert isinstance(probe.ask(W, Do(count=3)), Accepted)
    assert "more than 3 events from one decision" in probe.ask(W, Do(count=4)).reason
    assert probe.agent(W).n == 1 + 3


def test_a_decision_may_have_so_many_bytes() -> None:
    command = Do(count=2, pad="xyz")
    caused = 2 * (len(encode(Did(pad="xyz"))) + len(W) + EACH) + size_of(Move(pad="xyz"), Move(pad="xyz"))
    assert isinstance(walking(bytes_per_decision_max=caused).ask(W, command), Accepted)
    refused = walking(bytes_per_decision_max=caused - 1).ask(W, command)
    assert f"more than {caused - 1} bytes of events and effects" in refused.reason


def test_an_observed_event_may_cause_so_many_bytes() -> None:
    saw = Saw(pad="xyz")
    caused = len(encode(saw)) + size_of(Move(pad="xyz"))
    for limit, letters in ((caused, 0), (caused - 1, 1)):
        probe = walking(bytes_per_decision_max=limit)
        probe.observe(W, saw)
        assert len(probe.letters()) == letters


def test_the_largest_message_can_be_passed_on() -> None:
    probe = walking()
    frame_bytes = len(encode(Saw(pad="x" * 60_000))) - 60_000
    largest = encode(Saw(pad="x" * (MESSAGE_BYTES_MAX - frame_bytes)))
    assert len(largest) == MESSAGE_BYTES_MAX
    probe.take(Delivery("s", [("Walker/n", largest)]))
    assert probe.letters()[0].startswith("TooLarge: more than"), "passing it on as an effect as well is too much"
    probe.take(Delivery("s", [("Walker/n", encode(Saw(pad="x" * (MESSAGE_BYTES_MAX - frame_bytes + 1))))]))
    assert probe.letters()[1].startswith(f"TooLarge: a message of {MESSAGE_BYTES_MAX + 1} bytes")


@pytest.mark.parametrize("limit", [1, DECISION_BYTES_MAX])
def test_the_bytes_of_a_decision_can_be_set_from_one_to_what_a_commit_holds(limit: int) -> None:
    assert Limits(bytes_per_decision_max=limit).bytes_per_decision_max == limit


class Grieving(Agent):
    """Reacts to its own failures at length."""

    pad: int = 0

    @evolve
    def saw(self, event: Sampled) -> None:
        if not event.n:
            raise RuntimeError("no n")
        self.pad = event.n

    @react
    def failed(self, event: InputFailed) -> Effects:
        yield Move(pad="x" * self.pad)


@pytest.mark.parametrize("input_bytes", [0, 20_000])
def test_reactions_to_an_event_of_the_framework_have_room_of_their_own(input_bytes: int) -> None:
    each = len("Grieving/g") + EACH
    frame_bytes = len(encode(Move(pad="x" * 10_000))) - 10_000
    most = REACTIONS_BYTES_MAX - 2 * each - frame_bytes
    for pad, owed in ((most, 1), (most + 1, 0)):
        probe = Probe(Grieving)
        probe.observe("Grieving/g", Sampled(n=pad))
        commit = probe.observe("Grieving/g", Sampled(pad="y" * input_bytes))
        assert [type(event) for event in events_of(probe, commit)] == [InputFailed]
        assert len(commit.owed) == owed


# How long it may wait.


def test_nothing_to_write_waits_for_ever_and_effects_wait_for_nothing() -> None:
    draft = Draft(1)
    assert draft.wait_ns == NEVER_NS
    draft.hurry(5)
    draft.hurry(9)
    assert draft.wait_ns == 5
    probe = walking()
    assert probe.step().wait_ns is None
    probe.shard._draft.hurry(NEVER_NS - 1)
    assert probe.step().wait_ns == NEVER_NS - 1
    assert probe.step(observed(W, Saw(pad="x"))).wait_ns == 0


def test_effects_name_the_event_behind_them_wherever_it_stands() -> None:
    probe = walking()
    probe.step(
        observed(W, Saw(), Saw(pad="a")),
        Ask(W, "id-1", encode(Do(count=2, pad="b"))),
        observed(W, Saw()),
        observed("Walker/new", Saw(pad="c")),
    )
    commit = probe.seal().commit
    found: list[tuple[int, Any]] = [(owed.cause, events_of(probe, commit)[owed.cause].pad) for owed in commit.owed]
    assert found == [(1, "a"), (2, "b"), (3, "b"), (5, "c")]
