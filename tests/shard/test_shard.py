"""A shard's step beyond the numbered promises: what handlers give back, who is to blame, letters, interruption."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stigmergy.agents.agent import Agent, decide, react
from stigmergy.agents.codec import MESSAGE_BYTES_MAX, encode
from stigmergy.agents.effects import ActionDone, ActionFailed, Effects, Events, Tell, WindowClosed
from stigmergy.agents.messages import SECOND_NS
from stigmergy.agents.supervision import AgentResumed, AgentStopped, InputFailed, LetterTaken, SafeActionTaken
from stigmergy.base.errors import Bug
from stigmergy.shard.commit import SnapshotNote, open_commit
from stigmergy.shard.inputs import (
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
    SnapshotStored,
    TimerDue,
)
from stigmergy.shard.state import EnrolledSigner
from tests.agents.robots import Do, Glimpsed, R, Robot, Saw
from tests.shard.shards import Probe, events_of, observed

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
    assert probe.letters() == [shown]


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
    assert [text.partition(";")[0] for text in probe.letters()] == [
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
        (
            (R, command_id, encode(Do(how="well"))),
            Refused("a command needs an id of 1 to 200 characters; nothing was done"),
            0,
        )
    ]
    assert probe.shard.seal() is None


def test_a_message_that_is_too_large_or_too_deep() -> None:
    probe = Probe(Robot)
    probe.observe(R, Saw(how="well"))
    large = encode(Saw(how="x" * MESSAGE_BYTES_MAX))
    deep = msgspec.msgpack.encode({"type": "Saw@1", "how": "deep", "x": 0})[:-1] + b"\x91" * 2_000 + b"\x00"
    probe.take(Delivery("s", [(R, large), (R, deep), ("Robot/new", deep)]))
    assert probe.letters()[0].startswith(
        f"TooLarge: a message of {len(large)} bytes, {MESSAGE_BYTES_MAX} at most; store"
    )
    assert probe.letters()[1:] == ["Malformed: a message that is nested too deep, or not one whole value"] * 2
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


# ---------------------------------------------------------------- other inputs


def test_items_of_other_shards_are_passed_over_and_the_mark_moves_past_them() -> None:
    probe = Probe(Robot)
    commit = probe.take(Delivery("s", [("", ELSEWHERE), (R, encode(Saw(how="well"))), ("", ELSEWHERE)], sequence=1))
    assert len(commit.events) == 1
    assert probe.state.marks.consumed("s", 0) == 3
    probe.take(Delivery("s", [(R, ELSEWHERE)], sequence=4))
    assert (probe.state.marks.consumed("s", 0), probe.shard.counters.failed) == (4, 0), "whatever the address"
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
    assert probe.letters()[0].startswith("Malformed: a message without a type for Robot")
    del probe.state.plans["Robot"]
    probe.step(EffectSettled("actuators", 4, failed_move))
    assert probe.shard.seal() is not None


def test_a_timer_of_an_agent_without_a_handler_is_told_in_a_letter() -> None:
    class Sets(Agent):
        @react
        def saw(self, event: Saw) -> Effects:
            from stigmergy.agents.effects import WakeMe

            yield WakeMe(name="w", after_s=1)

    probe = Probe(Sets)
    probe.observe("Sets/s", Saw(how="x"))
    probe.take(TimerDue("Sets/s", "w", 101 * SECOND_NS), at=101.0)
    assert probe.letters()[0].startswith("UnknownTag: Sets has no handler for stigmergy.Woken@1")


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
    assert probe.replayed().signers == [EnrolledSigner(1, b"a" * 32, 7), EnrolledSigner(1, b"b" * 32)]


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
