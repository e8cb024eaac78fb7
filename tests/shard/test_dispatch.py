"""Handling beyond the shard's promises: what the host is told, and what the short path shares with the long one."""

from __future__ import annotations

import msgspec
import pytest

from stigmergy.agents.agent import Agent, decide, evolve, react, reject
from stigmergy.agents.codec import encode
from stigmergy.agents.effects import Effects, Events, Publish, Tell, WindowClosed
from stigmergy.agents.messages import Action, Event, transient
from stigmergy.agents.supervision import WhenStale
from stigmergy.agents.windows import Window
from stigmergy.base.errors import Malformed, Overloaded, SequenceGap, StaleEpoch, StaleMapping
from stigmergy.shard.draft import DRAFT_BYTES_MAX, ShardCounters
from stigmergy.shard.inputs import Delivery
from tests.agents.robots import R, Robot, Saw
from tests.shard.shards import Probe, events_of, observed


class Beat(Event):
    n: int = 0


class Glimpse(Event, keep=transient):
    pass


class Passed(Event):
    n: int = 0


class Land(Action):
    pad: str = ""


class Heart(Agent):
    n: int = 0

    still = WhenStale(Beat, after_s=1, then=Land())
    blind = WhenStale(Glimpse, after_s=1, then=Land())

    @evolve
    def beat(self, event: Beat) -> None:
        self.n = event.n

    @react
    def pass_on(self, event: Passed) -> Effects:
        yield Tell(to="Heart/b", message=event)
        yield Publish(topic="passed", event=event)
        yield Publish(topic="new", event=Passed(n=event.n))


H = "Heart/a"


def test_the_host_is_told_of_new_agents_and_of_what_their_rules_wait_for() -> None:
    probe = Probe(Heart)
    assert probe.step(observed(H, Beat())).fresh == [(H, None), (H, Beat), (H, Beat)]
    assert probe.step(observed(H, Beat())).fresh == [(H, Beat)], "the short path tells it as well"
    assert probe.step(observed(H, Glimpse())).fresh == [(H, Glimpse)]
    assert probe.step(observed(H, Passed())).fresh == []


def test_who_passes_an_event_on_passes_on_its_bytes() -> None:
    for first in (Beat(), Passed()):
        probe = Probe(Heart)
        probe.observe(H, first)
        body = msgspec.msgpack.encode({"type": "Passed@1", "n": 3, "colour": "red"})
        probe.step(Delivery("s", [(H, body)]))
        told, published, made = probe.seal().owed[-3:]
        assert msgspec.msgpack.decode(told.body, type=tuple[str, bytes]) == ("Heart/b", body)
        assert msgspec.msgpack.decode(published.body, type=tuple[str, bytes]) == ("passed", body)
        assert msgspec.msgpack.decode(made.body, type=tuple[str, bytes]) == ("new", encode(Passed(n=3)))


class Loud(Agent):
    @react
    def beat(self, event: Beat) -> Effects:
        yield Land(pad="x" * 30_000)


def test_effects_fill_a_draft_too() -> None:
    probe = Probe(Loud)
    probe.observe("Loud/a", Beat())
    delivery = observed("Loud/a", *[Beat()] * 20, sequence=1)
    (left,) = probe.step(delivery).left
    assert isinstance(left, Delivery)
    assert probe.shard.draft_size_bytes > DRAFT_BYTES_MAX
    assert len(left.items) == 20 - len(probe.seal().commit.events)
    assert left.sequence == probe.state.marks.consumed("s", 0) + 1


class Terse(Agent):
    n: int = 0

    @decide
    def glimpse(self, event: Glimpse) -> Events:
        if self.n:
            reject("not now")
        yield event

    @evolve
    def beat(self, event: Beat) -> None:
        self.n = event.n

    @react
    def on_beat(self, event: Beat) -> Effects:
        if event.n == 7:
            return None  # type: ignore[return-value]
        return [Land(pad=str(number)) for number in range(event.n)]


@pytest.mark.parametrize("first", [[], [Beat()]], ids=["first input", "short path"])
@pytest.mark.parametrize(("n", "asked"), [(0, 0), (2, 2), (7, 0)])
def test_a_handler_may_return_its_effects_at_once(first: list[Beat], n: int, asked: int) -> None:
    probe = Probe(Terse)
    for one in first:
        probe.observe("Terse/a", one)
    commit = probe.observe("Terse/a", Beat(n=n))
    assert [owed.sequence for owed in commit.owed] == [*range(1, asked + 1)]
    assert probe.agent("Terse/a").n == n


def test_an_observed_event_cannot_be_refused() -> None:
    probe = Probe(Terse)
    probe.observe("Terse/a", Beat(n=1))
    probe.observe("Terse/a", Glimpse())
    (error,) = probe.letters()
    assert "an observed event cannot be refused (not now); yield nothing to filter it" in error


def test_what_failed_and_who_stopped_is_told_as_far_as_the_disk_has_it() -> None:
    probe = Probe(Robot)
    probe.observe(R, Saw(how="one"))
    before = probe.state.position
    probe.observe(R, Saw(how="crash"))
    probe.observe(R, Saw(how="crash"))
    letters = [len(probe.state.letters_at(position)) for position in range(before, before + 3)]
    stopped = [[*probe.state.stopped_at(position)] for position in range(before, before + 3)]
    assert letters == [0, 1, 2]
    assert stopped == [[], [], [R]]


class Buckets(Agent):
    seconds: Window[Beat] = Window.tumbling(seconds=1, by="n", late_s=100)
    closed: int = 0

    @evolve
    def closes(self, event: WindowClosed) -> None:
        self.closed += 1


def test_one_input_closes_so_many_buckets_and_the_next_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stigmergy.shard.dispatch.WINDOW_CLOSINGS_MAX", 2)
    probe = Probe(Buckets)
    probe.observe("Buckets/b", *[Beat(n=n) for n in (1, 2, 3, 4, 5)])
    commit = probe.observe("Buckets/b", Beat(n=300))
    assert [type(event) for event in events_of(probe, commit)] == [Beat, WindowClosed, WindowClosed]
    probe.observe("Buckets/b", Beat(n=301))
    assert probe.agent("Buckets/b").closed == 5


def test_what_was_not_taken_is_counted_by_its_reason() -> None:
    counters = ShardCounters()
    for error in (SequenceGap(""), StaleEpoch(""), StaleMapping(""), Malformed(""), Overloaded(""), Overloaded("")):
        counters.count_untaken(error)
    assert (counters.gaps, counters.stale_epochs, counters.overloads) == (1, 1, 2)
    assert (counters.stale_mappings, counters.malformed) == (1, 1)


def test_a_new_owner_commits_under_a_higher_epoch() -> None:
    probe = Probe(Heart)
    assert probe.observe(H, Beat()).epoch == 0
    probe.shard.begin_epoch()
    assert probe.observe(H, Beat()).epoch == 1
    assert probe.replayed().epoch == probe.state.epoch == 1


class Half(Agent):
    """Fails when the second of two events has changed half of it."""

    n: int = 0
    doubled: int = 0

    @decide
    def twice(self, event: Passed) -> Events:
        yield event
        yield Beat(n=event.n)

    @evolve
    def passed(self, event: Passed) -> None:
        self.n = event.n

    @evolve
    def beat(self, event: Beat) -> None:
        self.doubled = 2 * event.n
        if event.n > 1:
            raise ValueError("half-way")


def test_an_agent_that_exists_is_as_it_was_when_a_handler_fails_half_way() -> None:
    probe = Probe(Half)
    probe.observe("Half/a", Passed(n=1))
    probe.observe("Half/a", Passed(n=7))
    assert (probe.agent("Half/a").n, probe.agent("Half/a").doubled) == (1, 2)
    assert probe.letters() == ["ValueError: half-way"]
