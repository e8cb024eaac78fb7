"""Tumbling windows in a shard: closed by timers, by inputs and by the events' own time."""

from __future__ import annotations

import msgspec

from stigmergy.agents.agent import Agent, decide, evolve, react
from stigmergy.agents.effects import Effects, Events, WindowClosed, Woken
from stigmergy.agents.messages import SECOND_NS, Event
from stigmergy.agents.supervision import Supervise
from stigmergy.agents.windows import Window
from stigmergy.shard.commit import open_commit
from stigmergy.shard.inputs import Accepted, LetterRetried, ResumeAgent, TimerDue
from tests.agents.robots import Do, Glimpsed, Move
from tests.shard.shards import Probe, events_of, observed


class Sampled(Event):
    n: int = 0
    at_s: float = 0.0


class Windowed(Agent):
    minute: Window[Sampled] = Window.tumbling(seconds=60, late_s=5)
    crashes: int = 0
    closings: tuple[int, ...] = ()

    @evolve
    def closed(self, event: WindowClosed) -> None:
        self.closings = (*self.closings, len(self.minute.closed))
        if self.closings[-1] == 3:
            raise RuntimeError("three")

    @react
    def on_closed(self, event: WindowClosed) -> Effects:
        if self.closings[-1] == 2:
            raise RuntimeError("two")
        yield Move(pad=f"{event.start_s:g}-{event.end_s:g}")

    @decide
    def do(self, command: Do) -> Events:
        yield Sampled(n=len(self.minute))


W = "Windowed/w"


def window_timer(probe: Probe) -> TimerDue:
    (timer,) = probe.state.timers.all()
    return TimerDue(timer.agent, timer.name, timer.due_ns)


def test_a_window_is_closed_by_its_timer_bucket_after_bucket() -> None:
    probe = Probe(Windowed)
    probe.observe(W, Sampled(), at=110.0)
    probe.observe(W, Sampled(), Sampled(), at=122.0)
    assert window_timer(probe).due_ns == 125 * SECOND_NS
    commit = probe.take(window_timer(probe), at=125.0)
    assert msgspec.msgpack.decode(commit.owed[0].body)["pad"] == "60-120"
    assert window_timer(probe).due_ns == 185 * SECOND_NS, "the next bucket has its own timer, though nothing came"
    probe.take(window_timer(probe), at=185.0)
    assert len(probe.state.timers) == 0
    assert probe.agent(W).closings == (1, 2)


def test_a_window_sets_one_timer_for_each_bucket() -> None:
    probe = Probe(Windowed)
    assert [owed.sink for owed in probe.observe(W, Sampled(), at=110.0).owed] == ["timers"]
    assert probe.observe(W, Sampled(), Sampled(), at=119.0).owed == []


def test_a_window_whose_time_is_over_closes_before_the_next_input_is_taken() -> None:
    probe = Probe(Windowed)
    probe.observe(W, Sampled(), at=110.0)
    probe.now_s = 125.0
    assert probe.ask(W, Do(how="x")) == Accepted(2)
    commit = open_commit(probe.log[-1])
    assert [type(event) for event in events_of(probe, commit)] == [WindowClosed, Sampled]
    assert events_of(probe, commit)[1].n == 0
    probe.step(TimerDue(W, "window:minute", 125 * SECOND_NS), at=125.0)


def test_a_closing_stays_a_fact_though_its_handlers_fail() -> None:
    probe = Probe(Windowed)
    for count, why in ((2, "two"), (3, "three")):
        start = probe.now_s = 60 * (probe.now_s // 60 + 2)
        probe.observe(W, *[Sampled()] * count, at=start)
        commit = probe.take(window_timer(probe), at=start + 65)
        closed, failure = events_of(probe, commit)
        assert isinstance(closed, WindowClosed)
        assert failure.error == f"RuntimeError: {why}"
        assert len(probe.agent(W).minute.closed) == count
        assert len(probe.agent(W).minute) == 0
    assert probe.agent(W).closings == (2,), "two was evolved, only its reaction failed; three was not"
    letter = probe.state.letters.all()[-1]
    probe.take(LetterRetried(letter.letter))
    assert probe.state.letters.all()[-1].error.startswith("PeerError: WindowClosed is said by the framework alone")


def test_a_stopped_agent_closes_its_windows_when_it_is_resumed() -> None:
    class Fragile(Agent):
        minute: Window[Sampled] = Window.tumbling(seconds=60)
        supervision = Supervise(stop_after=1)

        @evolve
        def sampled(self, event: Sampled) -> None:
            if event.n == 13:
                raise RuntimeError("thirteen")

    probe = Probe(Fragile)
    probe.observe("Fragile/f", Sampled(), Sampled(n=13), at=110.0)
    assert probe.state.stopped
    probe.take(window_timer(probe), at=120.0)
    assert len(probe.agent("Fragile/f").minute) == 1
    probe.take(ResumeAgent("Fragile/f", by="me"), at=130.0)
    assert len(probe.agent("Fragile/f").minute.closed) == 1


def test_an_agent_that_is_stopped_by_a_closing_does_not_take_the_input_behind_it() -> None:
    class Touchy(Windowed):
        supervision = Supervise(stop_after=1)

    probe = Probe(Touchy)
    probe.observe("Touchy/t", Sampled(), Sampled(), at=110.0)
    probe.observe("Touchy/t", Sampled(), at=200.0)
    assert [text.partition(":")[0] for text in probe.letters()] == ["RuntimeError", "PeerError"]
    assert "Touchy/t" in probe.state.stopped


class ByTime(Agent):
    buckets: Window[Sampled] = Window.tumbling(seconds=10, by="at_s", late_s=5)
    closed: tuple[int, ...] = ()

    @evolve
    def closes(self, event: WindowClosed) -> None:
        self.closed = (*self.closed, int(event.start_s))

    @decide
    def do(self, command: Do) -> Events:
        yield Sampled(at_s=float(command.how))


def test_windows_by_event_time_close_when_a_younger_event_has_been_seen() -> None:
    probe = Probe(ByTime)
    for at_s in (12, 11, 24, 13):
        probe.observe("ByTime/t", Sampled(at_s=float(at_s)))
    assert probe.agent("ByTime/t").closed == ()
    commit = probe.observe("ByTime/t", Sampled(at_s=48.0))
    assert [type(event) for event in events_of(probe, commit)] == [Sampled, WindowClosed, WindowClosed]
    assert probe.agent("ByTime/t").closed == (10, 20)
    probe.observe("ByTime/t", Sampled(at_s=14.0))
    assert probe.agent("ByTime/t").buckets.late == 1
    assert len(probe.state.timers) == 0
    probe.ask("ByTime/t", Do(how="70"))
    assert probe.agent("ByTime/t").closed == (10, 20, 40)


def test_an_event_time_that_is_none_goes_to_the_letters() -> None:
    probe = Probe(ByTime)
    probe.observe("ByTime/t", Sampled(at_s=float("nan")), Sampled(at_s=1e300), Sampled(at_s=-1.0))
    assert [text.partition(":")[0] for text in probe.letters()] == ["ValueError", "OverflowError", "ValueError"]


def test_a_timer_of_a_window_that_no_longer_waits_is_harmless() -> None:
    probe = Probe(Windowed)
    probe.observe(W, Sampled(), at=110.0)
    due = window_timer(probe)
    probe.observe(W, Sampled(), at=126.0)
    probe.step(due, at=126.0)
    assert probe.agent(W).closings == (1,)


def test_a_window_timer_of_an_agent_that_is_not_there() -> None:
    class Early(Agent):
        @react
        def glimpsed(self, event: Glimpsed) -> Effects:
            return ()

    probe = Probe(Early)
    probe.shard.state.timers.restore([])
    probe.shard._dispatcher.close_windows(probe.shard._draft, "Early/e", 0, 0)
    probe.step(observed("Early/e", Glimpsed(pad="")))
    assert probe.shard.seal() is None


def test_a_woken_from_outside_is_an_event_like_any_other() -> None:
    class Sleeper(Agent):
        naps: int = 0

        @evolve
        def woken(self, event: Woken) -> None:
            self.naps += 1

    probe = Probe(Sleeper)
    probe.observe("Sleeper/s", Woken(name="x"))
    assert probe.agent("Sleeper/s").naps == 1
