"""What each agent does with what it is told, and what a device refuses, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import stigmergy as st
from stigmergy.agents.codec import MESSAGE_BYTES_MAX, encode
from stigmergy.federated import (
    Learner,
    MemoryVault,
    Participant,
    StartTraining,
    SumRefused,
    SumRound,
    Trained,
    Training,
    unmask,
)
from stigmergy.federated.coordinator import GIVEN_UP_MAX, PhaseOver, cohorts_of
from stigmergy.federated.messages import (
    AnswerRefused,
    AskNext,
    AskRefused,
    BeginRound,
    ModelImproved,
    Phase,
    PhaseClosed,
    RoundAnswered,
    RoundAsked,
    RoundGivenUp,
    RoundsBegun,
    RoundSummed,
    RoundTerms,
    SumOpened,
    TakePart,
    TrainingEnded,
    Unmask,
)
from stigmergy.federated.secure_sum import MEMBERS_COUNT_MAX, VALUES_COUNT_MAX, OpenedShares
from stigmergy.federated.update import UpdateLimits
from stigmergy.testing import Scenario, given
from tests.federated.site import LEARNERS, LIMITS, is_exact, start, train

TERMS: RoundTerms = next(cohorts_of(start(), "t", 0))
BEGIN = BeginRound(terms=TERMS, model=bytes(48), training="Training/t")
MEMBERS = TERMS.plan.members
NONE: tuple[str, ...] = ()


def told(scenario: Scenario[Any], kind: type[Any]) -> list[Any]:
    """What the last inputs brought about of this kind."""
    return [one for one in scenario.happened if isinstance(one, kind)]


def asks(scenario: Scenario[SumRound]) -> Iterator[tuple[str, RoundAsked]]:
    """Whom a round asks in this phase: it tells itself to go on after each."""
    going_on = True
    while going_on:
        going_on = False
        for tell in told(scenario, st.Tell):
            if isinstance(tell.message, RoundAsked):
                yield tell.to.removeprefix("Learner/"), tell.message
            elif isinstance(tell.message, AskNext):
                scenario.when(tell.message)
                going_on = True


class Devices:
    """Six participants that answer what a round asks."""

    def __init__(self) -> None:
        self.vault = MemoryVault()
        self._participant = Participant(train, self.vault, limits=LIMITS)
        self.asked: dict[str, RoundAsked] = {}

    def hear(self, scenario: Scenario[SumRound]) -> None:
        for learner, ask in asks(scenario):
            self.asked[learner] = ask

    def answer(self, learner: str) -> RoundAnswered:
        return self._participant.take_part(TakePart(learner=learner, ask=self.asked[learner]))


def play(until: Phase, without: Sequence[str] = NONE) -> tuple[Scenario[SumRound], Devices]:
    """A round up to the beginning of a phase; those who vanish do so before it, and their time is waited for."""
    devices, scenario = Devices(), given(SumRound, id="t.0.0").when(BEGIN)
    devices.hear(scenario)
    while scenario.agent.phase < until:
        last = scenario.agent.phase + 1 == until
        here = [one for one in scenario.agent._expected() if not (last and one in without)]
        for learner in here:
            scenario = scenario.when(devices.answer(learner))
        if last and without:
            scenario = scenario.later(seconds=TERMS.step_s)
        devices.hear(scenario)
    return scenario, devices


def is_over(scenario: Scenario[SumRound]) -> bool:
    return scenario.agent.phase is Phase.ENDED


def finish(scenario: Scenario[SumRound], devices: Devices) -> RoundSummed:
    for phase in (Phase.KEYS, Phase.SHARES, Phase.UPDATES, Phase.OPENED):
        if scenario.agent.phase is phase:
            for learner in scenario.agent._expected():
                scenario = scenario.when(devices.answer(learner))
            devices.hear(scenario)
    (work,) = told(scenario, Unmask)
    scenario = scenario.when(unmask(work))
    assert is_over(scenario)
    (summed,) = [one.message for one in told(scenario, st.Tell) if isinstance(one.message, RoundSummed)]
    assert isinstance(summed, RoundSummed)
    return summed


@pytest.mark.parametrize("phase", [Phase.SHARES, Phase.UPDATES, Phase.OPENED])
def test_who_vanishes_is_left_out_when_the_time_is_over_and_its_late_answer_is_refused(phase: Phase) -> None:
    scenario, devices = play(phase, without=["b1"])
    assert scenario.agent.phase is phase
    late = devices.answer("b1")
    scenario.when(late).then(AnswerRefused(learner="b1", phase=late.phase, reason=f"{late.phase.name} is over"))
    summed = finish(scenario, devices)
    assert is_exact(summed)
    assert "b1" not in summed.members


def test_who_vanishes_at_the_last_step_is_in_the_sum() -> None:
    scenario, devices = play(Phase.SUM, without=["b1"])
    summed = finish(scenario, devices)
    assert is_exact(summed)
    assert sorted(summed.members) == sorted(LEARNERS)


@pytest.mark.parametrize("phase", [Phase.KEYS, Phase.SHARES, Phase.UPDATES, Phase.OPENED])
def test_below_the_threshold_the_round_is_given_up_and_says_nothing(phase: Phase) -> None:
    scenario, devices = play(phase)
    threshold = TERMS.plan.threshold
    for learner in scenario.agent._expected()[: threshold - 1]:
        scenario = scenario.when(devices.answer(learner))
    scenario = scenario.later(seconds=TERMS.step_s)
    assert is_over(scenario)
    reason = f"{threshold - 1} of 6 members answered {phase.name} in time, {threshold} are needed"
    assert told(scenario, RoundGivenUp)[0] == RoundGivenUp(round="t.0.0", reason=reason)
    assert not told(scenario, Unmask)
    assert {one.message.phase for one in told(scenario, st.Tell) if isinstance(one.message, RoundAsked)} == {
        Phase.ENDED
    }


@pytest.mark.parametrize("phase", [Phase.KEYS, Phase.SHARES, Phase.UPDATES, Phase.OPENED])
def test_who_answers_twice_counts_once(phase: Phase) -> None:
    scenario, devices = play(phase)
    answer = devices.answer("b1")
    assert answer == devices.answer("b1"), "the device repeats itself"
    scenario = scenario.when(answer).when(answer)
    scenario.then(AnswerRefused(learner="b1", phase=phase, reason="it has answered already"))
    devices.hear(scenario)
    for learner in MEMBERS:
        if learner != "b1":
            scenario = scenario.when(devices.answer(learner))
    devices.hear(scenario)
    assert is_exact(finish(scenario, devices))


def test_what_is_not_of_this_round_is_refused() -> None:
    scenario, devices = play(Phase.SHARES, without=["b1"])
    answer = devices.answer("a0")

    def refused(answer: RoundAnswered, reason: str) -> None:
        scenario.when(answer).then(AnswerRefused(learner=answer.learner, phase=answer.phase, reason=reason))

    refused(replace(answer, round="t.9.9"), "it is for another round")
    refused(replace(answer, phase=Phase.OPENED), "OPENED has not begun")
    refused(replace(answer, learner="zoe"), "it is not in this round, or not any more")
    refused(replace(answer, learner="b1"), "it is not in this round, or not any more")
    whole = "it is not complete, or not the sender's own"
    refused(replace(answer, boxes=answer.boxes[1:]), whole)
    refused(replace(answer, boxes=tuple(replace(box, giver="a1") for box in answer.boxes)), whole)
    refused(replace(answer, numbers=bytes(56)), whole)
    refused(replace(answer, opened=OpenedShares("a0", ())), whole)
    given(SumRound).when(answer).then(AnswerRefused(learner="a0", phase=Phase.SHARES, reason="it is for another round"))


def test_a_sum_that_cannot_be_honest_and_a_share_that_is_wrong_end_the_round() -> None:
    scenario, _ = play(Phase.SUM)
    (work,) = told(scenario, Unmask)
    honest = np.frombuffer(unmask(work).total, "<u8")
    lie = honest + np.array([0, 1 << 60, 0, 0, 0, 0, 0], np.uint64)
    ended = scenario.when(SumOpened(total=lie.tobytes()))
    assert "one lies" in ended.agent.reason
    assert is_over(ended)
    wrong = tuple(replace(one, shares=(b"\x01" * 33,) * 6) for one in work.opened)
    with pytest.raises(SumRefused, match="somebody lies"):
        unmask(replace(work, opened=wrong))
    failed = play(Phase.SUM)[0].when(st.WorkFailed(work="federated.Unmask@1", key="k", reason="somebody lies"))
    assert failed.agent.reason == "somebody lies"
    assert told(failed.when(st.WorkFailed(work="federated.Unmask@1", key="k", reason="again")), RoundGivenUp) == []
    # A timer that goes off after the end changes nothing.
    assert told(failed.later(seconds=100), PhaseClosed) == []


def test_a_round_begins_once_and_under_a_sound_plan() -> None:
    given(SumRound).when(BEGIN).when(BEGIN).refused("this round has begun already")
    few = replace(TERMS, plan=replace(TERMS.plan, threshold=2))
    given(SumRound).when(replace(BEGIN, terms=few)).refused("threshold 2 of 6 members; it must be over half of them")
    loose = replace(TERMS, limits=UpdateLimits(clip_norm=0.0))
    given(SumRound).when(replace(BEGIN, terms=loose)).refused(f"{loose.limits}: both limits must be over 0")
    given(SumRound).when(st.WorkFailed(work="x", key="k", reason="r")).then_nothing()
    assert PhaseOver.timer_name == "federated.PhaseOver"


# The learner, and what its device insists on.


def asked(phase: Phase, number: int = 0, **changed: Any) -> RoundAsked:
    terms = next(cohorts_of(start(), "t", number))
    return RoundAsked(phase=phase, terms=terms, reply_to=f"Round/t.{number}.0", **changed)


def test_a_learner_answers_each_question_once_and_the_newest_round_only() -> None:
    learner = given(Learner, id="a0").when(asked(Phase.KEYS))
    learner.then(asked(Phase.KEYS), TakePart(learner="a0", ask=asked(Phase.KEYS)))
    learner.when(asked(Phase.KEYS)).then(
        AskRefused(round="t.0.0", phase=Phase.KEYS, reason="KEYS of round 0 was asked already")
    )
    newer = learner.when(asked(Phase.KEYS, 1))
    newer.when(asked(Phase.SHARES)).then(
        AskRefused(round="t.0.0", phase=Phase.SHARES, reason="KEYS of round 1 was asked already")
    )
    newer.when(asked(Phase.SHARES, 2)).then(
        AskRefused(round="t.2.0", phase=Phase.SHARES, reason="it was not asked for its keys")
    )
    assert learner.when(st.WorkFailed(work="x", key="k", reason="no rows")).agent.failure == "no rows"


def test_a_learner_sends_what_was_computed_for_the_round_that_it_is_in() -> None:
    learner = given(Learner, asked(Phase.KEYS), id="a0")
    answer = RoundAnswered(round="t.0.0", learner="a0", phase=Phase.KEYS)
    learner.when(answer).then(answer, st.Tell("Round/t.0.0", answer, within_s=20.0))
    old = replace(answer, round="t.7.0")
    learner.when(old).then(old)
    over = given(Learner, asked(Phase.OPENED), asked(Phase.ENDED), id="a0").state(rounds=1)
    ended = replace(answer, phase=Phase.ENDED)
    over.when(ended).then(ended)


def test_a_device_masks_one_vector_and_opens_one_question() -> None:
    _, devices = play(Phase.OPENED)
    ask = devices.asked["a0"]
    assert devices.answer("a0") == devices.answer("a0")
    others = [name for name in MEMBERS if name != "b2"]
    devices.asked["a0"] = replace(ask, masked=tuple(others))
    with pytest.raises(SumRefused, match="used to open something else already"):
        devices.answer("a0")
    devices.asked["a0"] = replace(ask, phase=Phase.UPDATES, model=bytes(48))
    assert len(devices.answer("a0").numbers) == 56
    changed = Participant(lambda name, model, seed: replace(train(name, model, seed), weight=9), devices.vault)
    with pytest.raises(SumRefused, match="used to mask something else already"):
        changed.take_part(TakePart(learner="a0", ask=devices.asked["a0"]))
    devices.asked["a0"] = replace(ask, roster=ask.roster[:-1])
    with pytest.raises(SumRefused, match="used to agree on something else already"):
        devices.answer("a0")
    devices.asked["a0"] = replace(ask, phase=Phase.ENDED)
    devices.answer("a0")
    devices.asked["a0"] = ask
    with pytest.raises(SumRefused, match="gone"):
        devices.answer("a0")


def test_a_device_insists_on_enough_members_its_own_limits_and_the_agreed_size() -> None:
    ask = TakePart(learner="a0", ask=asked(Phase.KEYS))
    with pytest.raises(SumRefused, match="5 members may be enough, and a0 wants at least 6"):
        Participant(train, MemoryVault(), members_min=6).take_part(ask)
    with pytest.raises(SumRefused, match="a0 takes at most"):
        Participant(train, MemoryVault(), limits=UpdateLimits(0.5, 100)).take_part(ask)
    with pytest.raises(SumRefused, match="a0 takes at most"):
        Participant(train, MemoryVault(), limits=UpdateLimits(1.0, 10)).take_part(ask)
    _, devices = play(Phase.UPDATES)
    ask = TakePart(learner="a0", ask=replace(devices.asked["a0"], model=bytes(40)))
    with pytest.raises(SumRefused, match="a model of 5 weights, 6 were agreed"):
        Participant(train, devices.vault).take_part(ask)
    short = Participant(lambda name, model, seed: replace(train(name, model, seed), update=np.ones(3)), devices.vault)
    with pytest.raises(SumRefused, match="an update of 3 weights, the model has 6"):
        short.take_part(TakePart(learner="a0", ask=devices.asked["a0"]))


# The training.


def summed(round: str, *values: float, weight: int = 2) -> RoundSummed:
    return RoundSummed(round=round, members=("a0", "a1"), weight=weight, mean=np.array(values, "<f8").tobytes())


def test_cohorts_are_weighted_and_one_that_is_given_up_is_left_out() -> None:
    terms = start(cohorts=2, learners=("a0", "a1", "b0", "b1"), model=bytes(8), rounds=2, rate=0.5)
    training = given(Training, id="t").when(terms)
    begun = told(training, RoundsBegun)[0]
    assert [len(one.plan.members) for one in begun.cohorts] == [2, 2]
    assert sorted(name for one in begun.cohorts for name in one.plan.members) == ["a0", "a1", "b0", "b1"]
    both = training.when(summed("t.0.0", 1.0, weight=1)).when(summed("t.0.1", 3.0, weight=3)).happened
    assert told_model(both) == [0.5 * (1 + 9) / 4]
    training = given(Training, id="t").when(terms)
    training = training.when(RoundGivenUp(round="t.0.0", reason="few")).when(summed("t.0.1", 3.0))
    (improved,) = told(training, ModelImproved)
    assert (improved.weight, improved.refused) == (2, ("t.0.0: few",))
    training.when(summed("t.0.1", 9.0)).then_nothing()  # an old report
    assert training.agent.number == 1
    ended = training.when(RoundGivenUp(round="t.1.0", reason="few")).when(RoundGivenUp(round="t.1.1", reason="bad"))
    (end,) = told(ended, TrainingEnded)
    assert (end.improved, end.reason, ended.agent.status) == (1, "", "done")
    assert np.frombuffer(end.model).tolist() == [1.5]


def told_model(happened: Any) -> list[float]:
    (improved,) = [one for one in happened if isinstance(one, ModelImproved)]
    return [float(value) for value in np.frombuffer(improved.model)]


def test_a_training_ends_when_too_many_rounds_in_a_row_are_given_up() -> None:
    training = given(Training, id="t").when(start(rounds=100))
    for number in range(GIVEN_UP_MAX):
        training = training.when(RoundGivenUp(round=f"t.{number}.0", reason="few"))
    (end,) = told(training, TrainingEnded)
    assert (end.improved, training.agent.status) == (0, "given up")
    assert end.reason == f"{GIVEN_UP_MAX} rounds in a row were given up; the last: t.4.0: few"


def test_a_sample_is_drawn_anew_for_each_round() -> None:
    terms = start(sample=3)
    drawn = [next(cohorts_of(terms, "t", number)).plan.members for number in range(30)]
    assert {len(one) for one in drawn} == {3}
    assert {name for one in drawn for name in one} == {*LEARNERS}
    assert len({*drawn}) > 10


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"rounds": 0}, "rounds: 1 to"),
        ({"threshold_share": 0.5}, "threshold_share: over 0.5"),
        ({"cohorts": 0}, "cohorts: at least 1"),
        ({"cohorts": 6}, "1 members; a sum is of 2 to 32"),
        ({"learners": ("a0", "a0")}, "each learner is named once"),
        ({"sample": 7}, "a sample has no more than there are"),
        ({"limits": UpdateLimits(0.0)}, "both limits must be over 0"),
        ({"model": bytes(8 * 2_048)}, "2049 values"),
        ({"model": bytes(8 * 2_047), "cohorts": 3}, "cohorts times weights: at most 4096"),
        ({"step_s": 0.0}, "step_s"),
        ({"model": bytes(7)}, "whole number of weights"),
    ],
)
def test_a_training_that_could_hold_no_round_is_refused(changed: dict[str, Any], why: str) -> None:
    refused: StartTraining = start(**changed)
    given(Training, id="t").when(refused).refused(why)


def test_a_training_starts_once() -> None:
    given(Training, id="t").when(start()).when(start()).refused(
        "this training has started already; give the next one a name of its own"
    )


def test_the_largest_round_fits_into_messages() -> None:
    """Of as many members and values as there may be, with long names."""
    learners = tuple(f"learner-with-a-long-name-{number:03d}" for number in range(MEMBERS_COUNT_MAX))
    count = VALUES_COUNT_MAX - 1
    terms = start(learners=learners, model=bytes(8 * count))
    participant = Participant(lambda name, model, seed: Trained(np.full(count, 1e-3), 5), MemoryVault())
    scenario = given(SumRound, id="t.0.0").when(
        BeginRound(terms=next(cohorts_of(terms, "t", 0)), model=terms.model, training="Training/t")
    )
    while scenario.agent.phase < Phase.SUM:
        asked = list(asks(scenario))
        assert len(asked) == MEMBERS_COUNT_MAX
        assert max(len(encode(ask)) for _, ask in asked) < MESSAGE_BYTES_MAX
        given(Learner, replace(asked[0][1], phase=Phase.KEYS), id=asked[0][0]).when(
            replace(asked[0][1], phase=Phase.ENDED)
        )
        answers = [participant.take_part(TakePart(learner=learner, ask=ask)) for learner, ask in asked]
        assert max(len(encode(one)) for one in answers) < MESSAGE_BYTES_MAX
        scenario = scenario.when(*answers)
    (work,) = told(scenario, Unmask)
    scenario.when(unmask(work))
    (report,) = [one.message for one in told(scenario, st.Tell) if isinstance(one.message, RoundSummed)]
    assert isinstance(report, RoundSummed)
    assert np.allclose(np.frombuffer(report.mean), 1e-3, atol=1e-6)
