"""The machine of a run: order, loops, branches, parallel parts, and what is undone."""

from typing import Any

import pytest

import stigmergy as st
from stigmergy.testing import given
from tests.workflows.steps import (
    A,
    Begin,
    Blocked,
    DidA,
    DidB,
    DidD,
    asked,
    flow,
    heard,
    kept,
    refused,
    states,
    step,
)


def test_steps_are_carried_out_in_order() -> None:
    run = given(flow(step("A"), step("B"))).when(Begin())
    assert asked(run) == [("Robot/R1", "A")]
    run.when(heard("A"))
    assert kept(run) == ["StepHeard A", "StepDone A", "StepBegun B"]
    assert asked(run) == [("Robot/R1", "B")]
    run.when(heard("B")).state(status="done", tokens=(), undoable=("A", "B"))
    assert kept(run) == ["StepHeard B", "StepDone B", "RunEnded"]


def test_what_was_done_is_undone_last_first() -> None:
    run = given(flow(step("A"), step("B"), step("C"))).when(Begin(), heard("A"), heard("B"), refused("C"))
    assert asked(run)[-1:] == [("Robot/R1", "undo B")]
    run.state(status="undoing", reason="C: refused: no")
    run.when(heard("undo B"))
    assert kept(run) == ["StepDone undo B", "StepUndone B", "StepBegun undo A"]
    run.when(heard("undo A")).state(status="undone", reason="C: refused: no")
    assert states(run) == {"A": "undone", "B": "undone", "C": "failed", "undo B": "done", "undo A": "done"}


def test_a_step_that_was_abandoned_is_undone_with_the_others() -> None:
    run = given(flow(step("A"), step("B"))).when(Begin(), heard("A"), st.CancelRun(reason="rain"))
    assert asked(run)[-1:] == [("Robot/R1", "undo B")]
    run.state(reason="cancelled: rain").when(heard("B"))  # too late: it is being undone
    run.then_nothing()
    run.when(heard("undo B"), heard("undo A")).state(status="undone")


def test_a_step_that_may_have_been_done_at_an_earlier_try_is_undone_although_the_last_was_refused() -> None:
    run = given(flow(step("A", within_s=5, tries=2))).when(Begin()).later(seconds=6)
    run.when(refused("A", 2)).state(status="undoing")
    assert asked(run) == [("Robot/R1", "undo A")]


def test_a_step_without_undo_is_left_as_it_is() -> None:
    run = given(flow(step("A", undo=None), step("B", undo=None))).when(Begin(), heard("A"), refused("B"))
    run.state(status="undone", undoable=())


def loop(*, repeat: bool = False, **options: Any) -> st.Workflow:
    back = step("C", undo=None, again_from=A, on=Blocked, **{"tries": 3, "retry_s": 0, **options})
    return flow(step("A", undo=None), step("B", repeat=repeat), back)


def test_an_event_sends_the_run_back_and_a_step_that_stands_is_passed_over() -> None:
    run = given(loop()).when(Begin(), heard("A"), heard("B"), heard("C", Blocked()))
    assert kept(run)[-3:] == ["StepHeard C", "WentBack C", "StepBegun A"]
    run.when(heard("A", attempt=2))
    assert kept(run) == ["StepHeard A", "StepDone A", "StepKept B", "StepBegun C"]
    run.when(heard("C", attempt=2)).state(status="done")
    assert run.agent.steps["B"].attempt == 1


def test_between_two_rounds_of_a_loop_there_is_a_pause_that_doubles() -> None:
    run = given(loop(retry_s=5)).when(Begin(), heard("A"), heard("B"))
    for attempt, pause_s in ((1, 5), (2, 10)):
        run.when(heard("C", Blocked(), attempt))
        assert kept(run) == ["StepHeard C", "WentBack C"]
        run.later(seconds=pause_s - 0.1).then_nothing()
        run.later(seconds=0.1)
        assert kept(run) == ["RoundBegan C", "StepBegun A"]
        run.when(heard("A", attempt=attempt + 1))
    run.when(heard("C", attempt=3)).state(status="done")


def test_a_run_that_is_cancelled_in_the_pause_of_a_loop_is_undone_and_does_not_go_on() -> None:
    run = given(loop(retry_s=5)).when(Begin(), heard("A"), heard("B"), heard("C", Blocked()), st.CancelRun())
    assert asked(run)[-1:] == [("Robot/R1", "undo B")]
    run.later(seconds=5)
    assert kept(run) == []
    run.when(heard("undo B")).state(status="undone", reason="cancelled")


def test_a_step_to_repeat_is_undone_and_done_once_more_at_each_round() -> None:
    run = given(loop(repeat=True)).when(Begin(), heard("A"), heard("B"))
    for attempt in (1, 2):
        run.when(heard("C", Blocked(), attempt), heard("A", attempt=attempt + 1))
        assert kept(run)[-2:] == ["RepeatBegan B", "StepBegun undo B"]
        run.when(heard("undo B", attempt=attempt))
        assert kept(run) == ["StepDone undo B", "StepUndone B", "StepBegun B"]
        run.when(heard("B", attempt=attempt + 1)).state(undoable=("B",))
    run.when(refused("C", 3)).when(heard("undo B", attempt=3)).state(status="undone", undoable=())


def test_a_step_to_repeat_whose_undo_is_given_up_undoes_the_run() -> None:
    run = given(loop(repeat=True)).when(Begin(), heard("A"), heard("B"), heard("C", Blocked()), heard("A", attempt=2))
    for attempt in range(1, 11):
        run.when(refused("undo B", attempt)).later(seconds=300)
    run.state(status="undoing", reason="undo B: refused: no")


def test_a_loop_ends_at_its_bound() -> None:
    run = given(loop()).when(Begin(), heard("A"), heard("B"))
    for attempt in (1, 2):
        run.when(heard("C", Blocked(), attempt), heard("A", attempt=attempt + 1)).state(status="running")
    run.when(heard("C", Blocked(), 3)).state(status="undoing", reason="C: Blocked came at the last of 3 tries")


def test_the_tries_of_a_loop_count_over_all_its_passes_and_those_of_other_steps_at_each() -> None:
    back = step("B", again_from=A, on=Blocked, tries=2, retry_s=0)
    run = given(flow(step("A", undo=None, tries=2, retry_s=1), back)).when(Begin(), refused("A")).later(seconds=1)
    run.when(heard("A", attempt=2), heard("B", Blocked()), refused("A", 3)).state(status="running")
    run.later(seconds=1).when(heard("A", attempt=4), refused("B", 2)).state(status="undoing")


def test_a_step_that_the_run_left_is_undone_if_the_run_fails_before_it_comes_back() -> None:
    back = step("B", again_from=A, on=Blocked, tries=2, retry_s=0)
    run = given(flow(step("A", undo=None), back)).when(Begin(), heard("A"), heard("B", Blocked()), refused("A", 2))
    assert asked(run)[-1:] == [("Robot/R1", "undo B")]


def test_a_step_that_the_run_left_is_begun_again() -> None:
    back = step("B", again_from=A, on=Blocked, tries=2, retry_s=0)
    run = given(flow(step("A", undo=None), back)).when(
        Begin(), heard("A"), heard("B", Blocked()), heard("A", attempt=2)
    )
    assert kept(run)[-1] == "StepBegun B"


def test_a_branch_is_taken_both_ways_and_its_choice_is_kept() -> None:
    branch = st.Branch(lambda run: run.last(Begin).number > 3, then=step("A"), otherwise=(step("B"), step("C")))
    workflow = flow(branch, step("D"))
    run = given(workflow).when(Begin(number=5))
    assert kept(run)[1:] == ["BranchTaken", "StepBegun A"]
    run.when(heard("A"), heard("D")).state(status="done")
    run = given(workflow).when(Begin(number=1), heard("B"), heard("C"), heard("D")).state(status="done")
    assert list(states(run)) == ["B", "C", "D"]


def test_a_replay_does_not_choose_again() -> None:
    answers = iter([True, True])  # given() asks twice, to see that a handler is pure
    first = st.Branch(lambda run: next(answers), then=step("A"))
    run = given(flow(first)).when(Begin())
    log = [one.message for one in run._happened if isinstance(one.message, st.Event)]
    assert states(given(flow(first), *log)) == {"A": "begun"}


def test_a_branch_whose_condition_raises_fails_the_run() -> None:
    branch = st.Branch(lambda run: run.last(DidB), then=step("B"), name="is_late")
    run = given(flow(step("A"), branch)).when(Begin(), heard("A"))
    run.state(status="undoing", reason="is_late: LookupError: Trip/one: no DidB yet")


def test_parallel_parts_meet_when_all_are_done() -> None:
    workflow = flow(st.Parallel((step("A"), step("B")), step("C")), step("D"))
    run = given(workflow).when(Begin())
    assert asked(run) == [("Robot/R1", "A"), ("Robot/R1", "C")]
    run.when(heard("C"))
    assert kept(run) == ["StepHeard C", "StepDone C"]
    run.when(heard("A"), heard("B"))
    assert kept(run)[-2:] == ["PartsJoined", "StepBegun D"]
    run.when(heard("D")).state(status="done", forks=())


def test_what_parallel_parts_have_done_is_undone_last_first() -> None:
    workflow = flow(st.Parallel((step("A"), step("B")), step("C")), step("D"))
    run = given(workflow).when(Begin(), heard("C"), heard("A"), refused("B"))
    assert asked(run)[-1] == ("Robot/R1", "undo A")
    run.when(heard("undo A"))
    assert asked(run) == [("Robot/R1", "undo C")]


def test_the_first_of_any_goes_on_and_the_others_are_undone() -> None:
    workflow = flow(st.Parallel((step("A"), step("B")), step("C"), join="any"), step("D"))
    run = given(workflow).when(Begin(), heard("A"), heard("C"))
    assert asked(run)[-2:] == [("Robot/R1", "D"), ("Robot/R1", "undo B")]
    run.when(heard("D")).state(status="running")  # it ends when all is undone
    run.when(heard("undo B"))
    assert asked(run) == [("Robot/R1", "undo A")]
    run.when(heard("undo A")).state(status="done", undoable=("C", "D"))


def test_a_part_of_any_that_fails_is_undone_and_the_others_go_on() -> None:
    workflow = flow(st.Parallel((step("A"), step("B")), step("C"), join="any"), step("D"))
    run = given(workflow).when(Begin(), heard("A"), refused("B")).state(status="running")
    assert kept(run)[-3:] == ["StepFailed B", "PartFailed", "StepBegun undo A"]
    run.when(heard("C"))
    assert kept(run)[-2:] == ["PartsJoined", "StepBegun D"]
    run.when(heard("D")).state(status="running").when(heard("undo A")).state(status="done", undoable=("C", "D"))


def test_any_fails_when_all_its_parts_have_failed() -> None:
    workflow = flow(step("D"), st.Parallel(step("A", within_s=5), step("B"), step("C"), join="any"))
    run = given(workflow).when(Begin(), heard("D"), refused("B")).later(seconds=5).state(status="running")
    assert asked(run) == [("Robot/R1", "undo A")]
    run.when(refused("C")).state(status="undoing", reason="C: refused: no")
    assert asked(run) == [("Robot/R1", "undo D")], "and A, which may be done, is being undone"
    run.when(heard("undo D"), heard("undo A")).state(status="undone", undoable=())


def test_a_part_that_fails_takes_the_parts_inside_it_along() -> None:
    inner = st.Parallel(step("A"), step("B"))
    run = given(flow(st.Parallel(inner, step("C"), join="any"))).when(Begin(), refused("A")).state(status="running")
    assert asked(run)[-1:] == [("Robot/R1", "undo B")], "it was abandoned"
    run.when(heard("B")).then_nothing()
    run.when(heard("C"), heard("undo B")).state(status="done", forks=())
    inner = st.Parallel(step("A"), step("B"), join="any")
    run = given(flow(st.Parallel(inner, step("C"), join="any"))).when(Begin(), refused("A")).state(status="running")
    run.when(refused("B")).state(status="running").when(refused("C")).state(status="undone", reason="C: refused: no")


def test_a_branch_that_raises_and_a_step_that_cannot_begin_fail_their_part_alone() -> None:
    branch = st.Branch(lambda run: run.last(DidB), then=step("B"), name="is_late")
    run = given(flow(st.Parallel((step("A"), branch), step("C"), join="any"))).when(Begin(), heard("A"))
    assert kept(run)[-2:] == ["PartFailed", "StepBegun undo A"]
    no_robot = step("A", make=lambda run: run.last(DidB))
    run = given(flow(st.Parallel(no_robot, step("C"), join="any"))).when(Begin()).state(status="running")
    run.when(heard("C")).state(status="done")


def test_a_run_that_fails_does_not_undo_twice_what_it_is_undoing_already() -> None:
    workflow = flow(st.Parallel(step("A"), step("B"), join="any"), step("C"))
    run = given(workflow).when(Begin(), heard("A"), refused("C"))
    assert asked(run)[-1:] == [("Robot/R1", "undo A")]
    assert run.agent.steps["undo B"].attempt == 1
    run.when(heard("undo A")).state(status="undoing")
    run.when(heard("undo B")).state(status="undone")


def test_nested_parts_of_any_undo_each_step_once() -> None:
    inner = st.Parallel(step("A"), step("B"), join="any")
    run = given(flow(st.Parallel((inner, step("C")), step("D"), join="any"))).when(Begin(), heard("A"), heard("D"))
    assert asked(run)[-1:] == [("Robot/R1", "undo C")]
    assert run.agent.steps["undo B"].attempt == 1
    run.when(heard("undo C"), heard("undo B")).state(status="running")
    run.when(heard("undo A")).state(status="done", undoable=("D",))


def test_parallel_and_branch_nest() -> None:
    inner = st.Parallel(step("A"), st.Branch(lambda run: run.last(Begin).number > 3, then=step("B")))
    workflow = flow(st.Parallel(inner, step("C")), step("D"))
    run = given(workflow).when(Begin(number=1), heard("A"), heard("C"), heard("D")).state(status="done", forks=())
    assert "B" not in run.agent.steps
    run = given(workflow).when(Begin(number=5), heard("A"), heard("C"))
    assert "D" not in run.agent.steps
    run.when(heard("B"), heard("D")).state(status="done")


def test_a_run_that_comes_back_to_a_part_waits_until_it_is_undone() -> None:
    parts = st.Parallel(step("B"), step("C", undo=None), join="any")
    workflow = flow(step("A", undo=None), parts, step("D", undo=None, again_from=A, on=Blocked, tries=2, retry_s=0))
    run = given(workflow).when(Begin(), heard("A"), heard("C"), heard("D", Blocked()), heard("A", attempt=2))
    assert kept(run)[-4:] == ["StepHeard A", "StepDone A", "PartsBegan", "StepBegun C"]
    run.when(heard("undo B"))
    assert kept(run) == ["StepDone undo B", "StepUndone B", "StepBegun B"]


def test_an_undo_of_a_part_that_is_given_up_undoes_the_run_and_then_it_is_stuck() -> None:
    workflow = flow(st.Parallel(step("A"), step("B", retry_s=0), join="any"), step("C"))
    run = given(workflow).when(Begin(), heard("A"))
    for attempt in range(1, 11):
        run.when(refused("undo B", attempt)).later(seconds=0)
    run.state(status="undoing", reason="undo B: refused: no")


def test_a_run_whose_undo_is_given_up_is_stuck_until_somebody_retries() -> None:
    run = given(flow(step("A", retry_s=2), step("B"))).when(Begin(), heard("A"), refused("B"))
    for attempt in range(1, 10):
        run.when(refused("undo A", attempt))
        assert states(run)["undo A"] == "again"
        run.later(seconds=min(2.0 * 2 ** (attempt - 1), 300))
        assert asked(run) == [("Robot/R1", "undo A")]
    run.when(refused("undo A", 10)).state(status="stuck", reason="undo A: refused: no")
    run.when(heard("undo A", attempt=10)).then_nothing()
    run.when(st.CancelRun()).refused("is stuck")
    run.when(st.RetryUndo()).state(status="undoing")
    assert asked(run) == [("Robot/R1", "undo A")]
    run.when(refused("undo A", 11)).state(status="undoing")  # it has all its tries again
    run.later(seconds=2).when(heard("undo A", attempt=12)).state(status="undone")


def test_an_event_that_nobody_waits_for_changes_nothing() -> None:
    run = given(flow(step("A"), step("B"))).when(Begin())
    for late in (heard("B"), heard("A", attempt=2), heard("Nothing"), DidB()):
        run.when(late).then_nothing()
    run.when(heard("A")).when(heard("A")).then_nothing()
    run.when(heard("B")).state(status="done").when(heard("B")).then_nothing()


def test_an_event_for_the_run_itself_is_taken_by_the_step_that_waits_for_it() -> None:
    given(flow(step("A"), st.Step(DidD, to=""), to="Robot/{robot}")).when(Begin(), DidA()).state(undoable=("A",))


@pytest.mark.parametrize("status", ["new", "undoing", "done", "undone"])
def test_only_a_run_under_way_can_be_cancelled(status: str) -> None:
    run = given(flow(step("A"), step("B", undo=None)))
    if status != "new":
        run.when(Begin(), heard("A"))
        run.when(heard("B") if status == "done" else refused("B"))
        if status == "undone":
            run.when(heard("undo A"))
        run.state(status=status)
    run.when(st.CancelRun()).refused(f"is {status}: there is nothing to cancel")


def test_a_run_begins_once() -> None:
    given(flow(step("A"))).when(Begin()).when(Begin()).refused("is running already; a run begins once")
