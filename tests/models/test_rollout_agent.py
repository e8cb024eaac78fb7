"""What agents say of answers: each answer counts once, in the stage that gave it, of the version of its arm."""

import pytest
from hypothesis import given
from hypothesis import strategies as draw

import stigmergy as st
from stigmergy.models.rollout import CANARY, STABLE, RolloutRule, VersionCounts
from stigmergy.models.rollout_agent import (
    JUDGED_AGENTS_COUNT_MAX,
    JUDGED_EACH_COUNT_MAX,
    AnswerJudged,
    RolloutBegan,
    StageBegan,
)
from stigmergy.testing import Scenario
from stigmergy.testing import given as given_agent
from tests.models.gas import GasLevel

STAGE = 2
"""The revision of the first stage."""
VERSIONS = {STABLE: "1.2.0", CANARY: "1.3.0"}
INCARNATION = 2**63 + 11


def rollout(*past: st.Event, judged_min: int = 10) -> Scenario[st.ModelRollout]:
    """A rollout in its canary."""
    rule = RolloutRule(shadow_s=0, canary=0.5, judged_min=judged_min)
    began = RolloutBegan(version="1.3.0", stable="1.2.0", rule=rule)
    return given_agent(st.ModelRollout, began, StageBegan(stage=CANARY, seconds=60), *past, id="gas-level")


def judged(
    number: int, *, agent: str = "GasSensor/a", arm: str = STABLE, right: bool = False, revision: int = STAGE
) -> st.Event:
    """What an agent tells of an answer of this arm."""
    place = (INCARNATION, number, 0)
    source = st.ModelSource("gas-level", VERSIONS[arm], arm=arm, revision=revision, asked_by=agent, asked_at=place)
    message = GasLevel.judged(source, right=right).message
    assert isinstance(message, st.Event)
    return message


told = draw.tuples(
    draw.sampled_from(["GasSensor/a", "GasSensor/b"]),
    draw.integers(1, JUDGED_EACH_COUNT_MAX),
    draw.booleans(),
    draw.integers(0, STAGE + 1),
)


@given(draw.lists(told, max_size=40))
def test_repeats_and_old_answers_change_nothing(judgements: list[tuple[str, int, bool, int]]) -> None:
    arms = {"GasSensor/a": STABLE, "GasSensor/b": CANARY}
    expected = {STABLE: VersionCounts(), CANARY: VersionCounts()}
    seen: set[tuple[str, int]] = set()
    scenario = rollout(judged_min=1_000)
    for agent, number, right, revision in judgements:
        scenario.when(judged(number, agent=agent, arm=arms[agent], right=right, revision=revision))
        if revision == STAGE and (agent, number) not in seen:
            seen.add((agent, number))
            arm = arms[agent]
            expected[arm] = expected[arm].plus(VersionCounts(judged=1, wrong=int(not right)))
    found = scenario.agent
    assert (found.stable_judged, found.candidate_judged) == (expected[STABLE], expected[CANARY])


@given(draw.lists(draw.integers(1, 5 * JUDGED_EACH_COUNT_MAX), max_size=80))
def test_with_a_full_memory_no_answer_counts_twice(numbers: list[int]) -> None:
    scenario = rollout(judged_min=1_000)
    counted: list[int] = []
    for number in numbers:
        scenario.when(judged(number))
        counted += [number] * any(isinstance(one, AnswerJudged) for one in scenario.happened)
    assert len(counted) == len(set(counted)) == scenario.agent.stable_judged.judged
    assert len(scenario.agent.judged_places.get("GasSensor/a", ())) <= JUDGED_EACH_COUNT_MAX


def test_answers_judged_in_the_order_of_the_log_all_count() -> None:
    numbers = range(1, 10 * JUDGED_EACH_COUNT_MAX)
    scenario = rollout(judged_min=1_000).when(*(judged(number) for number in numbers))
    assert scenario.agent.stable_judged.judged == len(numbers)


def test_old_answers_judged_again_and_again_do_not_hide_a_bad_canary() -> None:
    scenario = rollout()
    for number in range(1, 11):
        scenario.when(judged(1, revision=0), judged(1, revision=0), judged(1, revision=STAGE - 1))
        scenario.when(judged(number, agent="GasSensor/b", arm=CANARY))
    assert scenario.agent.stage == "rolled back"
    assert "100.0% of its 10 judged answers are false positives, 0.0% of the old" in scenario.agent.reason


def test_a_judgement_in_the_next_stage_counts_anew() -> None:
    scenario = rollout(judged(1), judged(2), StageBegan(stage=CANARY, seconds=60))
    assert scenario.agent.judged_places == {}
    scenario.when(judged(1)).then_nothing()
    assert scenario.when(judged(3, revision=STAGE + 1)).agent.stable_judged.judged == 1


@pytest.mark.parametrize(
    "source",
    [
        st.ModelSource("gas-level", "1.2.0"),
        st.ModelSource("gas-level", "1.2.0", arm=STABLE, revision=STAGE),
        st.ModelSource(
            "gas-level", "1.2.0", fallback="late", arm=STABLE, revision=STAGE, asked_by="A/a", asked_at=(1, 2, 3)
        ),
        st.ModelSource("gas-level", "1.3.0", arm=STABLE, revision=STAGE, asked_by="A/a", asked_at=(1, 2, 3)),
        st.ModelSource("gas-level", "1.1.0", arm=STABLE, revision=STAGE, asked_by="A/a", asked_at=(1, 2, 3)),
        st.ModelSource("gas-level", "1.2.0", arm=STABLE, revision=STAGE, asked_by="A/a", asked_at=(1, 2)),
        st.ModelSource("gas-level", "1.2.0", arm=STABLE, revision=STAGE, asked_by="A" * 9_999, asked_at=(1, 2, 3)),
    ],
)
def test_an_answer_that_is_not_known_or_not_of_its_arm_is_not_counted(source: st.ModelSource) -> None:
    message = GasLevel.judged(source, right=False).message
    rollout().when(message).then_nothing()


def test_agents_beyond_the_limit_are_not_counted() -> None:
    many = [judged(1, agent=f"GasSensor/{number}") for number in range(JUDGED_AGENTS_COUNT_MAX)]
    scenario = rollout(*many)
    scenario.when(judged(1, agent="GasSensor/new")).then_nothing()
    assert len(scenario.agent.judged_places) == JUDGED_AGENTS_COUNT_MAX
    assert scenario.when(judged(2, agent="GasSensor/7")).agent.stable_judged.judged == JUDGED_AGENTS_COUNT_MAX + 1


def test_a_log_of_before_folds_as_it_did() -> None:
    before = AnswerJudged(version="1.2.0", right=False)
    assert rollout(before, before).agent.stable_judged == VersionCounts(judged=2, wrong=2)


def test_what_is_wrong_with_a_beginning_is_said_in_the_words_of_both_doors() -> None:
    fresh = given_agent(st.ModelRollout, id="gas-level")
    fresh.when(st.BeginRollout(version="1.2.0")).refused("--from 1.2.0 on the command line")
    fresh.when(st.BeginRollout(version="1.2.0", stable="1.2.0")).refused("stigmergy model put BUNDLE")
