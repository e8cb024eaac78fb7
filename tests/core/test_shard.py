"""A shard's step beyond the numbered promises: limits, letters, odd inputs, interruption."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import field

from stigmergy.core.agent import Agent, decide, evolve, react
from stigmergy.core.codec import MESSAGE_BYTES_MAX, encode
from stigmergy.core.commit import COMMIT_BYTES_MAX, SnapshotNote, open_commit
from stigmergy.core.draft import DRAFT_BYTES_MAX
from stigmergy.core.effects import ActionDone, ActionFailed, Effects, Events, Publish, Tell, WindowClosed, Woken
from stigmergy.core.errors import Bug
from stigmergy.core.inputs import (
    ELSEWHERE,
    Accepted,
    Ask,
    Delivery,
    EffectSettled,
    EnrollSigner,
    LetterDropped,
    LetterRetried,
    Refused,
    ResumeAgent,
    RevokeSigner,
    SafeActionOut,
    SequencesSkipped,
    SnapshotStored,
    TimerDue,
)
from stigmergy.core.marks import Marks
from stigmergy.core.messages import SECOND_NS, Action, Command, Event, transient
from stigmergy.core.state import Limits, Signer
from stigmergy.core.supervision import (
    AgentResumed,
    AgentStopped,
    InputFailed,
    LetterTaken,
    SafeActionTaken,
    Supervise,
)
from stigmergy.core.windows import Window
from tests.core.shards import Probe, events_of, observed


class Do(Command):
    how: str
    pad: str = ""


class Did(Event):
    how: str
    pad: str = ""


class Saw(Event):
    how: str
    pad: str = ""


class Glimpsed(Event, keep=transient):
    pad: str


class Move(Action):
    pad: str = ""


class Robot(Agent):
    count: int = 0
    failures: int = 0
    trail: list[str] = field(default_factory=list)

    supervision = Supervise(stop_after=2, within_s=60)

    @decide
    def do(self, command: Do) -> Events:
        match command.how:
            case "none":
                return None  # type: ignore[return-value]
            case "list":
                return [Did(how="listed")]
            case "foreign":
                return ["text"]  # type: ignore[list-item]
            case "class":
                return [Did]  # type: ignore[list-item]
            case "framework":
                return [AgentStopped(reason="mine")]
            case "many":
                return (Did(how=str(number)) for number in range(10_000))
            case "mistyped":
                return [Did(how=3)]  # type: ignore[arg-type]
            case "large":
                return [Did(how="x" * 30_000), Did(how="y" * 30_000), Did(how="z" * 30_000)]
            case "interrupted":
                raise KeyboardInterrupt
            case _:
                return [Did(how=command.how, pad=command.pad)]

    @evolve
    def did(self, event: Did | Saw) -> None:
        self.count += 1
        self.trail = [*self.trail[-4:], event.how]
        if event.how == "crash":
            raise RuntimeError("crashed")
        if event.how == "exit":
            raise SystemExit(3)

    @react
    def on_did(self, event: Did | Saw) -> Effects:
        match event.how:
            case "unknown kind":
                yield Tell(to="Nobody/x", message=Saw(how="hello"))
            case "bad address":
                yield Tell(to="Robot/ü", message=Saw(how="hello"))
            case "no effect":
                yield "text"  # type: ignore[misc]
            case "none":
                return
            case "endless":
                while True:
                    yield Move()
            case "pads":
                yield Move(pad=event.pad)
            case "after a yield":
                yield Move()
                raise RuntimeError("after a yield")
            case _:
                return

    @react
    def on_glimpse(self, event: Glimpsed) -> Effects:
        return None  # type: ignore[return-value]

    @evolve
    def failed(self, event: InputFailed) -> None:
        self.failures += 1

    @react
    def on_failed(self, event: InputFailed) -> Effects:
        yield Move(pad="x" * 20_000 if self.failures == 5 else "")

    @evolve
    def done(self, event: ActionDone) -> None:
        self.trail = [event.key]


R = "Robot/r"


def failed(probe: Probe) -> list[str]:
    return probe.letters()


# ---------------------------------------------------------------- what handlers give back


def test_a_handler_may_return_nothing_or_a_list() -> None:
    probe = Probe(Robot)
    assert probe.ask(R, Do(how="none")) == Accepted(1)
    assert R not in probe.state.agents, "no event, no agent"
    assert probe.ask(R, Do(how="list")) == Accepted(2)
    assert probe.agent(R).trail == ["listed"]
    probe.take(observed(R, Saw(how="none"), Glimpsed(pad="")))


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("foreign", "TypeError: a @decide handler yields events; str is none"),
        ("class", "TypeError: a @decide handler yields events; MessageMeta is none"),
        ("framework", "TypeError: AgentStopped is said by the framework alone; yield an event of your own"),
        ("many", "TooLarge: more than 1000 events from one decision; decide in smaller steps"),
        ("mistyped", "TypeError: Did cannot be read back from its own bytes: Expected `str`, got `int` - at `$.how`"),
        ("large", "TooLarge: more than 81920 bytes of events and effects from one input; put large payloads into a"),
        ("unknown kind", "UnknownKind: 'Nobody/x' is no address of an agent here"),
        ("bad address", "UnknownKind: 'Robot/ü' is no address of an agent here"),
        ("no effect", "TypeError: a @react handler yields effects; str is none"),
        ("endless", "TooLarge: more than 81920 bytes of events and effects"),
        ("after a yield", "RuntimeError: after a yield"),
        ("crash", "RuntimeError: crashed"),
    ],
)
def test_a_command_whose_handler_goes_wrong_is_refused_and_in_the_letters(how: str, why: str) -> None:
    probe = Probe(Robot)
    verdict = probe.ask(R, Do(how=how))
    assert isinstance(verdict, Refused)
    assert verdict.reason.startswith(f"the handler failed: {why}")
    assert verdict.reason.endswith("; the command is in the dead letters")
    commit = open_commit(probe.log[-1])
    (kept,) = events_of(probe, commit)
    assert isinstance(kept, InputFailed)
    assert kept.error.startswith(why)
    assert (probe.agent(R).count, probe.agent(R).trail) == (0, [])


@pytest.mark.parametrize("how", ["unknown kind", "no effect", "endless", "after a yield", "crash"])
def test_an_observed_event_whose_handler_goes_wrong_is_in_the_letters(how: str) -> None:
    probe = Probe(Robot)
    probe.observe(R, Saw(how="well"))
    commit = probe.observe(R, Saw(how=how))
    (kept,) = events_of(probe, commit)
    assert isinstance(kept, InputFailed)
    assert (kept.to, kept.source, kept.input) == (R, "s", encode(Saw(how=how)))
    assert probe.agent(R).trail == ["well"]


class Unshowable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Bad(Agent):
    @decide
    def do(self, command: Do) -> Events:
        if command.how == "unshowable":
            raise Unshowable
        if command.how == "surrogate":
            raise ValueError("\ud800")
        if command.how == "address":
            raise ValueError(f"object at {object()!r}")
        raise ValueError("x" * 10_000)


@pytest.mark.parametrize(
    ("how", "shown"),
    [
        ("unshowable", "Unshowable: an error that cannot be shown"),
        ("surrogate", "ValueError: ?"),
        ("address", "ValueError: object at <object object>"),
        ("long", "ValueError: " + "x" * 488),
    ],
)
def test_any_error_becomes_a_bounded_text_that_is_the_same_in_every_run(how: str, shown: str) -> None:
    probe = Probe(Bad)
    probe.ask("Bad/b", Do(how=how))
    assert failed(probe) == [shown]


# ---------------------------------------------------------------- who is to blame


def test_what_never_reached_a_handler_does_not_count_against_the_agent() -> None:
    probe = Probe(Robot)
    probe.observe(R, Saw(how="well"))
    noise = Delivery("s", [(R, b"\xc1"), (R, encode(WindowClosed(window="x", start_s=0, end_s=1))), (R, b"")] * 3)
    commit = probe.take(noise)
    assert len(commit.events) == 9
    assert {address for address, _ in commit.events} == {""}
    assert R not in probe.state.stopped
    assert probe.agent(R).failures == 0
    assert probe.shard.counters.failed == 9


def test_an_agent_whose_first_input_fails_exists_and_is_supervised() -> None:
    probe = Probe(Robot)
    probe.observe(R, Saw(how="crash"))
    assert probe.agent(R).failures == 1
    probe.step(observed(R, Saw(how="crash")))
    assert probe.seal().stopped == [R]


def test_nobody_can_say_what_only_the_framework_says() -> None:
    probe = Probe(Robot)
    probe.observe(R, Saw(how="well"))
    probe.observe(R, AgentStopped(reason="forged"), AgentResumed(by="forged"))
    assert probe.state.stopped == {}
    assert [text.partition(";")[0] for text in failed(probe)] == [
        "PeerError: AgentStopped is said by the framework alone",
        "PeerError: AgentResumed is said by the framework alone",
    ]


def test_an_event_is_not_answered() -> None:
    probe = Probe(Robot)
    verdict = probe.ask(R, Saw(how="well"))
    assert verdict == Refused("Saw is an event, and only commands are answered; observe it")
    assert R not in probe.state.agents


def test_a_command_of_a_source_is_answered_without_being_remembered() -> None:
    probe = Probe(Robot)
    commit = probe.take(observed(R, Do(how="well"), Do(how="crash"), sequence=1))
    assert [(answer.command_id, answer.refused is None, answer.at) for answer in commit.answers] == [
        ("", True, 0),
        ("", False, 2),
    ]
    assert probe.state.answers.all() == []
    counters = probe.shard.counters
    assert (counters.accepted, counters.refused) == (1, 1)


@pytest.mark.parametrize("command_id", ["", "x" * 201, "\ud800"])
def test_a_command_needs_an_id_that_can_be_kept(command_id: str) -> None:
    probe = Probe(Robot)
    stepped = probe.step(Ask(R, command_id, encode(Do(how="well"))))
    assert stepped.repeats == [
        (R, command_id, Refused("a command needs an id of 1 to 200 characters; nothing was done"), 0)
    ]
    assert probe.shard.seal() is None


def test_a_message_that_is_too_large_or_too_deep() -> None:
    probe = Probe(Robot)
    probe.observe(R, Saw(how="well"))
    large = encode(Saw(how="x" * MESSAGE_BYTES_MAX))
    deep = msgspec.msgpack.encode({"type": "Saw@1", "how": "deep", "x": 0})[:-1] + b"\x91" * 2_000 + b"\x00"
    probe.take(Delivery("s", [(R, large), (R, deep), ("Robot/new", deep)]))
    assert failed(probe)[0].startswith(f"TooLarge: a message of {len(large)} bytes, {MESSAGE_BYTES_MAX} at most; store")
    assert failed(probe)[1:] == ["Malformed: a message that is nested too deep, or not one whole value"] * 2
    assert probe.state.letters.all()[0].input == b""


def test_a_message_is_refused_before_a_restart_could_fail_to_read_it() -> None:
    """Whatever depth is accepted here must be readable from a much deeper stack."""

    def much_deeper(levels: int, do: Any) -> Any:
        return do() if levels == 0 else much_deeper(levels - 1, do)

    head = msgspec.msgpack.encode({"type": "Saw@1", "how": "deep", "x": 0})[:-1]
    for depth in range(500, 1000, 10):
        probe = Probe(Robot)
        probe.step(Delivery("s", [(R, head + b"\x91" * depth + b"\x00")]))
        ready = probe.shard.seal()
        assert ready is not None
        probe.log.append(ready.sealed.body)
        much_deeper(80, probe.replayed)


# ---------------------------------------------------------------- letters


def test_a_letter_of_an_unknown_kind_is_retried_and_dropped() -> None:
    probe = Probe(Robot)
    probe.take(Delivery("s", [("Nobody/x", encode(Saw(how="well")))]))
    (letter,) = probe.state.letters.all()
    commit = probe.take(LetterRetried(letter.letter))
    taken, again = events_of(probe, commit)
    assert taken == LetterTaken(letter=letter.letter, retried=True)
    assert isinstance(again, InputFailed)
    probe.take(LetterDropped(again.letter))
    assert probe.state.letters.all() == []
    probe.step(LetterDropped(again.letter), LetterRetried("9.9.9"))
    assert probe.shard.seal() is None


def test_a_letter_is_taken_in_the_log_of_its_agent() -> None:
    probe = Probe(Robot)
    probe.observe(R, Saw(how="crash"))
    (letter,) = probe.state.letters.all()
    commit = probe.take(LetterDropped(letter.letter))
    assert commit.events[0][0] == R


def test_a_stopped_agent_takes_nothing_until_it_is_resumed() -> None:
    probe = Probe(Robot)
    probe.observe(R, Saw(how="crash"), Saw(how="crash"))
    assert R in probe.state.stopped
    probe.observe(R, Saw(how="well"))
    letter = probe.state.letters.all()[-1]
    assert letter.error.startswith(f"PeerError: {R} is stopped: 2 failed inputs within 60 s")
    probe.take(LetterRetried(letter.letter))
    assert R in probe.state.stopped
    assert isinstance(probe.ask(R, Do(how="well")), Refused)
    commit = probe.take(ResumeAgent(R, by="me"))
    assert events_of(probe, commit) == [AgentResumed(by="me")]
    probe.take(LetterRetried(probe.state.letters.all()[-1].letter))
    assert probe.agent(R).trail == ["well"]
    probe.observe(R, Saw(how="crash"))
    assert R not in probe.state.stopped, "it counts anew"
    probe.step(ResumeAgent(R, by="me"))
    assert probe.shard.seal() is None


# ---------------------------------------------------------------- limits


def test_the_number_of_agents_is_bounded() -> None:
    probe = Probe(Robot, limits=Limits(agents_count_max=1))
    probe.observe("Robot/a", Saw(how="well"))
    probe.observe("Robot/b", Saw(how="well"))
    assert failed(probe) == [
        "Overloaded: Robot/b: this shard has 1 agents already; raise agents_count_max or add shards"
    ]
    assert "raise agents_count_max" in probe.ask("Robot/c", Do(how="well")).reason
    assert list(probe.state.agents) == ["Robot/a"]


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
    monkeypatch.setattr("stigmergy.core.shard.COMMIT_BYTES_MAX", 10)
    probe = Probe(Robot)
    probe.step(observed(R, Saw(how="well")))
    with pytest.raises(Bug, match="shard 0: a commit of"):
        probe.shard.seal()


# ---------------------------------------------------------------- other inputs


def test_items_of_other_shards_are_passed_over_and_the_mark_moves_past_them() -> None:
    probe = Probe(Robot)
    commit = probe.take(Delivery("s", [("", ELSEWHERE), (R, encode(Saw(how="well"))), ("", ELSEWHERE)], sequence=1))
    assert len(commit.events) == 1
    assert probe.state.marks.consumed("s", 0) == 3
    assert probe.shard.counters.failed == 0
    probe.take(Delivery("s", [("", bytes(bytearray(ELSEWHERE)))]))
    assert probe.shard.counters.failed == 1, "the same bytes from outside are noise"


def test_an_empty_delivery_is_nothing() -> None:
    probe = Probe(Robot)
    probe.step(Delivery("s", [], sequence=1), Delivery("s", []))
    assert probe.shard.seal() is None


def test_confirmations_without_a_handler_are_ignored_others_are_taken() -> None:
    probe = Probe(Robot)
    probe.observe(R, Saw(how="pads"), Saw(how="pads"), Saw(how="pads"), Saw(how="pads"))
    failed_move = encode(ActionFailed(action="Move", key="k", reason="jammed"))
    assert probe.take(EffectSettled("actuators", 1, failed_move)).events == []
    probe.take(EffectSettled("actuators", 2, encode(ActionDone(action="Move", key="k"))))
    assert probe.agent(R).trail == ["k"]
    probe.take(EffectSettled("actuators", 3, b"\xc1"))
    assert failed(probe)[0].startswith("Malformed: a message without a type for Robot")
    del probe.state.plans["Robot"]
    probe.step(EffectSettled("actuators", 4, failed_move))
    assert probe.shard.seal() is not None


def test_a_timer_of_an_agent_without_a_handler_is_told_in_a_letter() -> None:
    class Sets(Agent):
        @react
        def saw(self, event: Saw) -> Effects:
            from stigmergy.core.effects import WakeMe

            yield WakeMe(name="w", after_s=1)

    probe = Probe(Sets)
    probe.observe("Sets/s", Saw(how="x"))
    probe.take(TimerDue("Sets/s", "w", 101 * SECOND_NS), at=101.0)
    assert failed(probe)[0].startswith("UnknownTag: Sets has no handler for stigmergy.Woken@1")


def test_safe_actions_are_written_down() -> None:
    probe = Probe(Robot)
    commit = probe.take(SafeActionOut("Nobody/x", "Land", "silent"))
    assert commit.events[0][0] == ""
    probe.observe(R, Saw(how="well"))
    commit = probe.take(SafeActionOut(R, "Land", "silent"))
    assert commit.events[0][0] == R
    assert events_of(probe, commit) == [SafeActionTaken(action="Land", because="silent")]


def test_signers_are_enrolled_and_revoked() -> None:
    probe = Probe(Robot)
    probe.take(EnrollSigner(1, b"a" * 32), EnrollSigner(1, b"b" * 32))
    probe.take(RevokeSigner(1, b"a" * 32, last_position=7))
    assert probe.replayed().signers == [Signer(1, b"a" * 32, 7), Signer(1, b"b" * 32)]


def test_a_stored_snapshot_is_noted() -> None:
    probe = Probe(Robot)
    note = SnapshotNote(position=1, digest=b"d" * 32, chain=b"c" * 32, fold=b"f" * 16)
    assert probe.step(SnapshotStored(note)).wait_ns == SECOND_NS
    assert probe.seal().commit.snapshots == [note]


def test_what_a_shard_told_itself_is_settled_also_when_it_comes_again() -> None:
    class Selfish(Agent):
        @react
        def saw(self, event: Saw) -> Effects:
            if event.how == "first":
                yield Tell(to=self.address, message=Saw(how="second"))

    probe = Probe(Selfish)
    told = observed("Selfish/s", Saw(how="second"), source="shard/0", sequence=1)
    probe.step(observed("Selfish/s", Saw(how="first")), told)
    probe.seal()
    assert probe.state.outbox.count == 1, "it was not durable when it came"
    probe.take(told)
    assert probe.state.outbox.count == 0


def test_an_interrupted_shard_says_so() -> None:
    for address, message in ((R, Do(how="interrupted")), (R, Saw(how="exit")), ("Robot/new", Saw(how="exit"))):
        probe = Probe(Robot)
        probe.observe(R, Saw(how="well"))
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            probe.step(observed(address, message))
        assert probe.agent(R).trail == ["well"], "the agent is as it was before"
        with pytest.raises(Bug, match="shard 0 was interrupted in the middle of an input; restart it"):
            probe.step()
        with pytest.raises(Bug, match="restart it from its journal"):
            probe.shard.seal()
        assert probe.replayed().agents[R].trail == ["well"]


# ---------------------------------------------------------------- windows


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
    assert [text.partition(":")[0] for text in failed(probe)] == ["RuntimeError", "PeerError"]
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
    assert [text.partition(":")[0] for text in failed(probe)] == ["ValueError", "OverflowError", "ValueError"]


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
    probe.shard._handling.close_windows(probe.shard._draft, "Early/e", 0, 0)
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
