"""What a run tells agents, and what it makes of what comes back."""

from typing import Any

import pytest
from msgspec import structs

import stigmergy as st
from stigmergy.agents.codec import encode
from stigmergy.agents.effects import TellFailed
from stigmergy.agents.messages import spec_of
from stigmergy.agents.steps import OPEN_COUNT_MAX, StepAsked, StepHeard, StepRefused, StepsClosed, StepTaken
from stigmergy.shard.inputs import EffectSettled
from stigmergy.testing import given
from stigmergy.testing.scenario import Scenario
from stigmergy.workflows.agent import agents_of
from stigmergy.workflows.messages import RunBegan, RunEnded, StepDone, UndoBegan
from tests.workflows.delivery import Airborne, Deliver, Drone, FlyHome, Landed, RoutePlanned, TakeOff, delivery
from tests.workflows.steps import (
    A,
    Beep,
    Begin,
    DidA,
    DidB,
    Hush,
    Jammed,
    Measure,
    Measured,
    UndoA,
    asked,
    flow,
    heard,
    kept,
    refused,
    states,
    step,
)


def effects(scenario: Scenario[Any]) -> list[Any]:
    """What was asked for just now, without timers."""
    timers = (st.WakeMe, st.CancelWake)
    found = [one.message for one in scenario._happened]
    return [one for one in found if not isinstance(one, (st.Event, *timers))]


# Steps that are told to agents


def test_an_agent_is_asked_with_its_command_and_what_the_run_waits_for() -> None:
    run = given(flow(step("A", fails=Jammed, within_s=7))).when(Begin(robot="R7"))
    (tell,) = effects(run)
    wants = (spec_of(DidA).tag, spec_of(Jammed).tag)
    asking = StepAsked(run="Trip/one", step="A", attempt=1, body=encode(A()), wants=wants)
    assert tell == st.Tell(to="Robot/R7", message=asking, within_s=7.0)


def test_a_step_that_waits_for_an_event_asks_with_no_command() -> None:
    (tell,) = effects(given(flow(st.Step(DidA))).when(Begin()))
    assert tell.message.body == b""


def test_a_step_that_fails_is_tried_again_after_a_pause_that_doubles() -> None:
    run = given(flow(step("A", tries=4, retry_s=3))).when(Begin())
    for attempt, pause_s in ((1, 3), (2, 6), (3, 12)):
        run.when(refused("A", attempt))
        assert states(run) == {"A": "again"}
        run.later(seconds=pause_s - 0.1).then_nothing()
        run.later(seconds=0.1)
        assert asked(run) == [("Robot/R1", "A")]
    run.when(refused("A", 4)).state(status="undone", reason="A: refused: no")


def test_a_step_has_a_deadline() -> None:
    run = given(flow(step("A", within_s=30))).when(Begin()).later(seconds=29.9).state(status="running")
    run.later(seconds=0.1).state(status="undoing", reason="A: not done within 30 s")


def test_an_event_that_fails_a_step_is_kept_with_it() -> None:
    run = given(flow(step("A", fails=Jammed))).when(Begin(), heard("A", Jammed()))
    assert run.agent.last(Jammed) == Jammed()
    run.state(status="undoing", reason="A: Jammed came")
    assert run.agent.steps["undo A"].state == "begun", "its agent had accepted it"


def test_what_comes_while_a_step_waits_to_be_tried_again_ends_it_if_it_says_done() -> None:
    run = given(flow(step("A", fails=Jammed, within_s=5, tries=2, retry_s=60))).when(Begin()).later(seconds=5)
    run.when(heard("A", Jammed())).then_nothing()
    run.when(refused("A")).then_nothing()
    run.when(heard("A")).state(status="done").later(seconds=60).then_nothing()


def test_what_comes_of_an_earlier_try_is_ignored() -> None:
    run = given(flow(step("A", within_s=5, tries=2, retry_s=1))).when(Begin()).later(seconds=6)
    run.when(heard("A", attempt=1)).then_nothing()
    run.when(refused("A", 1)).then_nothing()
    run.when(heard("A", attempt=2)).state(status="done")


def test_an_agent_that_is_not_reached_fails_the_step_that_asked_it_alone() -> None:
    workflow = flow(st.Parallel(step("A"), step("B", to="Robot/other"), step("C", to="Robot/other")))
    run = given(workflow).when(Begin())
    lost = TellFailed(to="Robot/R1", message="stigmergy.StepAsked", reason="away")
    run.when(TellFailed(to="Robot/R1", message="stigmergy.StepsClosed", reason="away")).then_nothing()
    run.when(TellFailed(to="Robot/other", message="stigmergy.StepAsked", reason="away")).then_nothing()  # of which?
    run.when(lost).state(status="undoing", reason="A: Robot/R1 was not reached: away")
    assert "undo A" in run.agent.steps or "A" in run.agent.undoable  # it may have been asked all the same


def test_what_was_not_told_at_an_earlier_try_does_not_fail_the_next() -> None:
    lost = TellFailed(to="Robot/R1", message="stigmergy.StepAsked", reason="away")
    run = given(flow(step("A", within_s=5, tries=3, retry_s=1))).when(Begin()).later(seconds=5)
    run.when(lost).then_nothing()
    run.later(seconds=1).when(lost).then_nothing()
    run.when(heard("A", attempt=2)).state(status="done")


def test_an_undo_goes_to_the_agent_that_carried_the_step_out() -> None:
    class Swapped(st.Event, name="test.Swapped"):
        robot: str

    workflow = flow(step("A"), st.Step(Swapped, to=""), step("B"), to="Robot/{robot}")
    run = given(workflow).when(Begin(), heard("A"), Swapped(robot="R2"))
    assert asked(run)[-1:] == [("Robot/R2", "B")]
    run.when(refused("B"))
    assert asked(run) == [("Robot/R1", "undo A")]
    run.when(heard("undo A"))
    closed = [effect.to for effect in effects(run)]
    assert closed == ["Robot/R1", "Robot/R2"]  # both hear of the end


def test_the_newest_value_of_a_name_counts() -> None:
    class Told(st.Event, name="test.Told"):
        number: int

    class Use(st.Command, name="test.Use"):
        number: int

    use = st.Step(Use, done=DidB, again_from="A", on=Told, tries=3, retry_s=0)
    run = given(flow(step("A", undo=None), use)).when(Begin(number=1), heard("A"))
    assert effects(run)[-1].message.body == encode(Use(number=1))
    run.when(heard("Use", Told(number=7)), heard("A", attempt=2))
    assert effects(run)[-1].message.body == encode(Use(number=7))


def test_a_message_that_cannot_be_made_fails_its_step() -> None:
    def fail(run: Any) -> Any:
        raise ValueError("no wind")

    run = given(flow(step("A"), step("B", make=fail))).when(Begin(), heard("A"))
    run.state(status="undoing", reason="B: ValueError: no wind")
    run = given(flow(step("A", make_undo=fail), step("B"))).when(Begin(), heard("A"), refused("B"))
    run.state(status="stuck", reason="undo A: ValueError: no wind")


def test_a_message_that_is_not_the_step_s_fails_it_at_once_and_says_why() -> None:
    class Lift(st.Command, name="test.Lift"):
        kg: int

    def ends(made: Any) -> Scenario[Any]:
        wrong = st.Step(Lift, done=DidB, make=lambda run: made)
        return given(flow(step("A"), wrong)).when(Begin(), heard("A")).state(status="undoing")

    assert ends(None).agent.reason == "Lift: TypeError: make returned None; it must return Lift"
    assert ends(UndoA()).agent.reason == "Lift: TypeError: make returned UndoA; it must return Lift"
    assert ends(Lift).agent.reason == "Lift: TypeError: make returned MessageMeta; it must return Lift"
    assert ends(Lift(kg="seven")).agent.reason.startswith("Lift: ValidationError: Expected `int`, got `str`")  # type: ignore[arg-type]
    child = st.Workflow("Child", Begin, step("B"), to="Robot/{robot}")
    run = given(flow(step("A"), st.Step(child, make=lambda run: A()))).when(Begin(), heard("A"))
    run.state(reason="Child: TypeError: make returned A; it must return Begin")
    none: Any = lambda run: None  # noqa: E731
    run = given(flow(step("A", make_undo=none), step("B"))).when(Begin(), heard("A"), refused("B"))
    run.state(status="stuck", reason="undo A: TypeError: make_undo returned None; it must return UndoA")


def test_an_action_can_be_bound_to_the_claim_that_the_run_holds() -> None:
    class Enter(st.Action, name="test.Enter"):
        pad: str

    def enter(run: Any) -> Enter:
        return Enter(pad=run.claim_Holding.resource, valid_while=run.claim_Holding)

    run = given(flow(st.Step(st.Holding("pad-{robot}")), st.Step(Enter, make=enter))).when(Begin())
    run.when(pad(st.Granted, token=4, for_s=60.0))
    (effect,) = effects(run)
    assert (effect.pad, effect.valid_while.token) == ("pad-R1", 4)


def test_an_action_bound_to_a_claim_by_another_function_fails_elsewhere_before_it_is_told() -> None:
    class Enter(st.Action, name="test.Enter"):
        pad: str

    def bound(run: Any) -> Enter:
        return Enter(pad=run.claim_Holding.resource, valid_while=run.claim_Holding)

    def made(run: Any) -> Enter:
        return bound(run)

    placed = st.Step(Enter, make=made, at="gateway")
    run = given(flow(st.Step(st.Holding("pad-{robot}")), placed)).when(Begin())
    run.when(pad(st.Granted, token=4, for_s=60.0))
    assert run.agent.reason.startswith("Enter: TypeError: valid_while= binds it to a claim of the run")
    assert not [effect for effect in effects(run) if isinstance(effect, Enter)]


def test_an_undo_that_needs_what_never_came_is_stuck_and_says_so() -> None:
    class Reserved(st.Event, name="test.Reserved"):
        ticket: str

    class GiveBack(st.Command, name="test.GiveBack"):
        ticket: str

    workflow = flow(st.Step(A, done=Reserved, undo=GiveBack, within_s=5), step("B"))
    given(workflow).when(Begin(), heard("A", Reserved(ticket="T1")), refused("B")).state(status="undoing")
    run = given(workflow).when(Begin()).later(seconds=5)
    run.state(status="stuck", reason="undo A: LookupError: GiveBack.ticket is not known")


def test_a_run_whose_first_step_cannot_begin_is_refused() -> None:
    given(flow(step("A"))).when(Begin(robot="no robot")).refused("'Robot/no robot' is no address of an agent")
    child = st.Workflow("Child", Begin, step("B"), to="Robot/{robot}")
    given(flow(st.Step(child)), id="x" * 128).when(Begin()).refused("give the run a shorter name")
    elsewhere = flow(st.Step(Measure, done=Measured, at="gateway"))
    given(elsewhere, id="x" * 110).when(Begin()).refused("give the run a shorter name")


def test_a_run_with_a_later_step_whose_address_would_be_too_long_is_refused() -> None:
    child = st.Workflow("Child", Begin, step("B"), to="Robot/{robot}")
    later = flow(step("A"), st.Step(child, name="Part"))
    given(later, id="x" * 120).when(Begin()).refused("give the run a shorter name")
    given(later, id="x" * 118).when(Begin()).state(status="running")
    elsewhere = flow(step("A"), st.Step(Measure, done=Measured, at="gateway"))
    given(elsewhere, id="x" * 110).when(Begin()).refused("give the run a shorter name")
    given(elsewhere, id="x" * 100).when(Begin()).state(status="running")


# Actions and work


def test_an_action_is_done_when_its_actuator_says_so() -> None:
    run = given(flow(st.Step(Beep, undo=Hush), step("B"))).when(Begin(number=3))
    assert effects(run) == [Beep(number=3)]
    run.when(st.Done(Beep(number=3)), refused("B"))
    assert effects(run)[-1] == Hush()
    run.when(st.Done(Hush())).state(status="undone")


def test_an_action_that_fails_is_tried_again() -> None:
    run = given(flow(st.Step(Beep, tries=2))).when(Begin(), st.Failed(Beep(), reason="broken"))
    assert states(run) == {"Beep": "again"}
    run.later(seconds=1).when(st.Failed(Beep(), reason="broken")).state(status="undone", reason="Beep: broken")


def test_an_action_may_wait_for_an_event() -> None:
    run = given(flow(st.Step(Beep, done=DidA), to="")).when(Begin(), st.Done(Beep())).state(status="running")
    run.when(DidA()).state(status="done")


def test_work_is_done_when_its_event_comes() -> None:
    given(flow(st.Step(Measure, done=Measured))).when(Begin(), Measured(value=3)).state(status="done")
    given(flow(st.Step(Measure, done=Measured))).when(Begin(), st.Failed(Measure(), reason="x")).state(status="undone")


def test_a_step_elsewhere_is_asked_at_each_place_in_turn_at_every_pass() -> None:
    measure = st.Step(Measure, done=Measured, at=("gateway", "here"), within_s=5, retry_s=0)
    workflow = flow(measure, step("A", undo=None, again_from=Measure, on=Jammed, tries=2, retry_s=0))
    run = given(workflow, id="J1").when(Begin())
    assert asked(run) == [("Place/gateway.Trip.J1.Measure", "Measure")]
    run.later(seconds=5)
    assert effects(run) == [Measure()]
    run.when(Measured(value=1), heard("A", Jammed()))
    assert asked(run)[-1:] == [("Place/gateway.Trip.J1.Measure", "Measure")]


beep = st.Step(Beep, undo=Hush, at=("gateway", "cloud", "here"), within_s=5, retry_s=0)


def test_an_undo_is_carried_out_wherever_the_step_may_have_been_last_first() -> None:
    run = given(flow(beep, step("A")), id="J1").when(Begin()).later(seconds=5)
    run.when(heard("Beep", st.Failed[Beep](action=Beep(), reason="no"), 2)).later(seconds=0)  # surely not at the cloud
    run.when(st.Done(Beep()), refused("A")).state(undoable=("Beep at gateway", "Beep"))
    assert effects(run)[-1] == Hush()
    for attempt in (1, 2):  # each is tried again where it is
        run.when(st.Failed(Hush(), reason="no") if attempt < 2 else st.Done(Hush())).later(seconds=0)
    assert asked(run) == [] == [one for one in effects(run) if one == Hush()]
    run.when(heard("undo Beep at gateway", st.Done[Hush](action=Hush()))).state(status="undone", undoable=())


def test_a_step_that_timed_out_everywhere_is_undone_everywhere() -> None:
    run = given(flow(beep), id="J1").when(Begin()).later(seconds=15).state(status="undoing")
    for name, to in (
        ("", ""),
        (" at cloud", "Place/cloud.Trip.J1.Beep"),
        (" at gateway", "Place/gateway.Trip.J1.Beep"),
    ):
        begun = run.agent.steps[f"undo Beep{name}"]
        assert (begun.state, begun.to) == ("begun", to)
        run.when(heard(f"undo Beep{name}", st.Done[Hush](action=Hush())))
    run.state(status="undone")
    assert states(run)["Beep"] == "undone"


def test_a_place_undoes_what_it_carried_out() -> None:
    place = given(place_of(flow(beep))).when(asking(Beep(), "Beep", 2), asking(Hush(), "undo Beep at gateway"))
    assert effects(place) == [Beep(), Hush()]
    told = StepHeard(step="undo Beep at gateway", attempt=1, body=encode(st.Done[Hush](action=Hush())))
    (tell,) = effects(settle(place, 2, st.Done[Hush](action=Hush())))
    assert (tell.to, tell.message.step, tell.message.attempt) == ("Trip/J1", told.step, told.attempt)


def test_a_late_failure_here_does_not_fail_the_same_step_elsewhere() -> None:
    workflow = flow(st.Step(Beep, at=("here", "gateway"), within_s=5, retry_s=0))
    run = given(workflow).when(Begin()).later(seconds=5)
    settle(run, 1, st.Failed[Beep](action=Beep(), reason="late")).then_nothing()
    run.when(heard("Beep", st.Done[Beep](action=Beep()), 2)).state(status="done")


def settle(scenario: Scenario[Any], order: int, result: st.Event) -> Scenario[Any]:
    """An actuator or worker is over with the order of this number: the effect of a run's first, second … try."""
    scenario._begin(f"when order {order} gave {result!r}")
    sink = "work" if isinstance(result, Measured | st.Failed[Measure]) else "actuators"
    scenario._take(EffectSettled(sink, order, encode(result)))
    return scenario


def test_a_late_failure_of_work_does_not_fail_the_next_try() -> None:
    run = given(flow(st.Step(Measure, done=Measured, within_s=5, tries=2, retry_s=0))).when(Begin()).later(seconds=5)
    settle(run, 1, st.Failed[Measure](action=Measure(), reason="late")).state(status="running").then_nothing()
    settle(run, 2, Measured(value=2)).state(status="done")


def test_a_late_result_is_not_taken_for_that_of_the_next_try() -> None:
    run = given(flow(st.Step(Measure, done=Measured, within_s=5, tries=2, retry_s=0))).when(Begin()).later(seconds=5)
    settle(run, 1, Measured(value=1)).state(status="running").then_nothing()
    settle(run, 2, Measured(value=2)).state(status="done", last_Measured=Measured(value=2))
    run = given(flow(st.Step(Beep, within_s=5, tries=2, retry_s=0))).when(Begin()).later(seconds=5)
    settle(run, 1, st.Done[Beep](action=Beep())).state(status="running").then_nothing()
    settle(run, 2, st.Failed[Beep](action=Beep(), reason="x")).state(status="undone", reason="Beep: x")


def test_a_late_success_that_comes_before_the_next_try_ends_the_step() -> None:
    run = given(flow(st.Step(Measure, done=Measured, within_s=5, tries=2, retry_s=9))).when(Begin()).later(seconds=5)
    settle(run, 1, Measured(value=1)).state(status="done").later(seconds=9).then_nothing()


def test_a_late_result_of_an_earlier_pass_of_a_loop_is_ignored() -> None:
    measure = st.Step(Measure, done=Measured, within_s=5, tries=2, retry_s=0)
    workflow = flow(measure, step("A", undo=None, again_from=Measure, on=Jammed, tries=2, retry_s=0))
    run = given(workflow).when(Begin()).later(seconds=5)
    run.when(Measured(value=0), heard("A", Jammed()))  # it was observed, and the run went on and came back
    settle(run, 2, Measured(value=2)).then_nothing()
    settle(run, 3, Measured(value=3)).state(last_Measured=Measured(value=3))


def place_of(*workflows: st.Workflow) -> Any:
    return agents_of(workflows)[-1]


def test_a_place_tells_each_result_with_its_own_try() -> None:
    place = given(place_of(flow(st.Step(Measure, done=Measured, at="gateway"))))
    place.when(asking(Measure(), "Measure"), asking(Measure(), "Measure", 2))
    for attempt, result in ((1, st.Failed[Measure](action=Measure(), reason="late")), (2, Measured(value=2))):
        told = StepHeard(step="Measure", attempt=attempt, body=encode(result))
        assert effects(settle(place, attempt, result)) == [st.Tell(to="Trip/J1", message=told)]


def asking(does: Any, name: str, attempt: int = 1) -> StepAsked:
    return StepAsked(run="Trip/J1", step=name, attempt=attempt, body=encode(does), wants=())


def test_a_place_carries_out_a_step_and_tells_every_result_that_counts() -> None:
    measure = st.Step(Measure, done=Measured, fails=Jammed, at="gateway")
    second = st.Workflow("Other", Begin, st.Step(Measure, done=DidA, at="gateway"))
    place = given(place_of(flow(measure), second)).when(asking(Measure(), "Measure"))
    assert effects(place) == [Measure()]
    for result in (Measured(value=4), Jammed(), DidA(), st.Failed[Measure](action=Measure(), reason="x")):
        place.when(result)
        told = StepHeard(step="Measure", attempt=1, body=encode(result))
        assert effects(place) == [st.Tell(to="Trip/J1", message=told)]
    place.when(asking(Measure(), "Measure")).then_nothing()  # it has that try already
    place.when(asking(Measure(), "Measure", 2))
    assert effects(place) == [Measure()]


# People, claims, and workflows as steps


def test_a_person_says_yes_or_no() -> None:
    workflow = flow(step("A"), st.Step(st.Approval("chief")), step("B"))
    run = given(workflow).when(Begin()).when(st.ApproveStep(step="Approval")).refused("waits for no approval")
    run.when(heard("A")).when(st.ApproveStep(step="A")).refused("waits for no approval of 'A'")
    run.when(st.ApproveStep(step="Approval", by="Ann"))
    assert kept(run) == ["Approved Approval", "StepDone Approval", "StepBegun B"]
    run = given(workflow).when(Begin(), heard("A"), st.DenyStep(step="Approval", by="Bob", reason="rain"))
    run.state(status="undoing", reason="Approval: denied by Bob: rain")
    run.when(st.DenyStep(step="Approval")).refused("waits for no approval")


def pad(verdict: type[Any], **options: Any) -> Any:
    return verdict(claim="claim_Holding", resource="pad-R1", **options)


holding = st.Step(st.Holding("pad-{robot}"), within_s=30)


def test_a_claim_is_held_until_the_end() -> None:
    run = given(flow(holding, step("A"))).when(Begin())
    (claimed,) = effects(run)
    assert (claimed.resource, claimed.renew) == ("pad-R1", True)
    run.when(pad(st.Granted, token=4, for_s=60.0, renews=True)).state(claim_Holding=True)
    run.when(heard("A")).state(status="done")
    assert [effect.token for effect in effects(run) if not isinstance(effect, st.Tell)] == [4]


def test_a_claim_that_is_denied_fails_the_run() -> None:
    run = given(flow(step("A"), holding)).when(Begin(), heard("A"), pad(st.Denied, reason="taken"))
    run.state(status="undoing", reason="Holding: pad-R1: taken")
    assert asked(run)[-1:] == [("Robot/R1", "undo A")]  # nothing is held, so nothing is given back


def test_a_claim_that_is_lost_is_asked_for_once_before_all_is_undone() -> None:
    def lost() -> Scenario[Any]:
        run = given(flow(holding, step("A"), step("B"))).when(Begin(), pad(st.Granted, token=4, for_s=60.0), heard("A"))
        return run.when(pad(st.Lost, token=4, reason="the node was started anew"))

    (again,) = effects(lost())
    assert (again.resource, again.wait_s) == ("pad-R1", 0.0)
    held = lost().when(pad(st.Granted, token=9, for_s=60.0)).state(status="running", undoable=("Holding", "A"))
    held.when(heard("B")).state(status="done")
    assert [effect.token for effect in effects(held) if not isinstance(effect, st.Tell)] == [9]
    taken = lost().when(pad(st.Denied, reason="taken")).state(status="undoing")
    assert taken.agent.reason == "Holding: pad-R1 was lost: taken"
    unheard = lost().later(seconds=30).state(status="undoing", reason="Holding: not done within 30 s")
    assert [name for _, name in asked(unheard)] == ["undo B"]


def test_a_claim_that_is_lost_while_it_undoes_is_asked_for_too_and_the_undo_goes_on_without() -> None:
    def lost() -> Scenario[Any]:
        run = given(flow(holding, step("A"), step("B"))).when(Begin(), pad(st.Granted, token=4, for_s=60.0), heard("A"))
        run.when(refused("B")).when(pad(st.Lost, token=4, reason="the node was started anew"))
        assert [(one.resource, one.wait_s) for one in effects(run)] == [("pad-R1", 0.0)]
        return run

    for answered in (
        lost().when(pad(st.Granted, token=9, for_s=60.0)),
        lost().when(pad(st.Denied, reason="taken")),
        lost().later(seconds=30),
        lost(),
    ):
        assert answered.agent.status == "undoing"
        answered.when(heard("undo A"))
        assert [type(one).__name__ for one in effects(answered)] == ["ClaimReleased"]
        answered.when(pad(st.Released, token=9)).state(status="undone", reason="B: refused: no")


def test_any_resource_of_a_pool_can_be_held_and_what_is_lost_is_asked_for_by_its_name() -> None:
    pads = flow(st.Step(st.Holding(st.pool("pad-1", "pad-2"), wait_s=7)), step("A"))
    run = given(pads).when(Begin())
    (claimed,) = effects(run)
    assert (claimed.resources, claimed.wait_s) == (("pad-1", "pad-2"), 7.0)

    def of_second(verdict: type[Any], **options: Any) -> Any:
        return verdict(claim="claim_Holding", resource="pad-2", **options)

    run.when(of_second(st.Granted, token=4, for_s=60.0)).state(claim_Holding=True)
    run.when(of_second(st.Lost, token=4, reason="the node was started anew"))
    assert [one.resource for one in effects(run)] == ["pad-2"]
    run.when(of_second(st.Granted, token=9, for_s=60.0), refused("A"))
    assert [one.resource for one in effects(run)] == ["pad-2"]


def test_a_claim_is_given_back_by_its_undo() -> None:
    run = given(flow(holding, step("A"))).when(Begin(), pad(st.Granted, token=4, for_s=60.0), refused("A"))
    assert [effect.token for effect in effects(run)[-1:]] == [4]
    run.when(pad(st.Released, token=4)).state(status="undone")
    assert [type(effect) for effect in effects(run)] == [st.Tell]  # and not once more at the end


def test_a_wish_for_a_claim_is_taken_back_if_it_takes_too_long() -> None:
    run = given(flow(holding, step("A"))).when(Begin()).later(seconds=30)
    (released,) = effects(run)
    assert (released.resource, released.token) == ("pad-R1", 0)
    run.when(pad(st.Released, token=0)).state(status="undone", reason="Holding: not done within 30 s")


def test_a_stuck_run_keeps_what_it_holds() -> None:
    def fail(run: Any) -> Any:
        raise ValueError("no wind")

    workflow = flow(holding, step("A", make_undo=fail), step("B"))
    run = given(workflow).when(Begin(), pad(st.Granted, token=4, for_s=60.0), heard("A"), refused("B"))
    run.state(status="stuck", claim_Holding=True)
    assert not any(hasattr(effect, "token") for effect in effects(run))


def test_a_stuck_run_asks_again_for_what_it_held_before_a_restart() -> None:
    def fail(run: Any) -> Any:
        raise ValueError("no wind")

    workflow = flow(holding, step("A", make_undo=fail), step("B"))
    for answer, state in ((pad(st.Granted, token=9, for_s=60.0), "done"), (pad(st.Denied, reason="taken"), "failed")):
        run = given(workflow).when(Begin(), pad(st.Granted, token=4, for_s=60.0), heard("A"), refused("B"))
        run.when(pad(st.Lost, token=4, reason="the node was started anew")).state(status="stuck")
        (claimed,) = effects(run)
        assert (claimed.resource, claimed.wait_s) == ("pad-R1", 0.0)
        run.when(answer).state(status="stuck", claim_Holding=state == "done")
        assert states(run)["Holding"] == state
        run.when(st.RetryUndo()).state(status="stuck")


def test_a_run_asks_again_for_a_resource_that_too_many_wait_for_as_long_as_it_would_wait() -> None:
    run = given(flow(st.Step(st.Holding("pad-{robot}", wait_s=10)), step("A"))).when(Begin())
    for pause_s in (1, 2, 4, 3):
        run.when(pad(st.Denied, reason="32 wait already", full=True)).state(status="running")
        assert states(run) == {"Holding": "again"}
        run.later(seconds=pause_s - 0.1).then_nothing()
        run.later(seconds=0.1)
        assert [one.wait_s for one in effects(run)] == [10.0]
    run.when(pad(st.Denied, reason="32 wait already", full=True)).state(status="undone")


class Part(st.Command):
    robot: str


child = st.Workflow("Part", Part, step("B"), to="Robot/{robot}")
parent = flow(step("A"), st.Step(child, within_s=60), step("C"))


def test_a_workflow_as_a_step_is_begun_as_a_run_of_its_own() -> None:
    run = given(parent).when(Begin(), heard("A"))
    tell = effects(run)[-1]
    assert (tell.to, tell.message.body) == ("Part/one.Part.1", encode(Part(robot="R1")))
    run.when(heard("Part"))
    assert asked(run) == [("Robot/R1", "C")]
    run.when(refused("C"))
    assert asked(run) == [("Part/one.Part.1", "undo Part")]
    run.when(heard("undo Part"))
    assert asked(run) == [("Robot/R1", "undo A")]


def test_a_workflow_as_a_step_that_fails_was_undone_by_itself() -> None:
    run = given(parent).when(Begin(), heard("A"), refused("Part"))
    assert asked(run)[-1:] == [("Robot/R1", "undo A")]


def test_a_workflow_as_a_step_that_is_stuck_or_late_is_cancelled() -> None:
    for late in (True, False):
        run = given(parent).when(Begin(), heard("A"))
        run = run.later(seconds=60) if late else run.when(refused("Part", unknown=True))
        assert asked(run)[-1:] == [("Part/one.Part.1", "undo Part")]


def told_by_parent(does: Any, name: str = "Part", attempt: int = 1) -> StepAsked:
    return StepAsked(run="Trip/one", step=name, attempt=attempt, body=encode(does), wants=("",))


def told(scenario: Scenario[Any]) -> list[Any]:
    """What the run above hears just now."""
    return [one.message for one in effects(scenario) if isinstance(one, st.Tell) and one.to == "Trip/one"]


def test_a_part_tells_the_run_above_how_it_ended() -> None:
    done = given(child).when(told_by_parent(Part(robot="R1")), heard("B"))
    assert told(done) == [StepHeard(step="Part", attempt=1, body=b"")]
    done.when(told_by_parent(st.CancelRun(), "undo Part")).state(status="undoing")
    done.when(heard("undo B")).state(status="undone")
    assert told(done) == [StepHeard(step="undo Part", attempt=1, body=b"")]
    failed = given(child).when(told_by_parent(Part(robot="R1")), refused("B")).state(status="undone")
    assert [(one.step, one.unknown) for one in told(failed)] == [("Part", False)]
    stopped = given(child).when(told_by_parent(Part(robot="R1")), st.CancelRun(reason="rain"), heard("undo B"))
    assert [one.reason for one in told(stopped)] == ["Part/one is undone: cancelled: rain"]


def test_a_part_that_undoes_itself_already_is_not_undone_anew() -> None:
    run = given(child).when(told_by_parent(Part(robot="R1")), st.CancelRun())
    run.when(told_by_parent(st.CancelRun(), "undo Part"))
    assert asked(run) == []
    run.when(heard("undo B")).state(status="undone")
    assert told(run) == [StepHeard(step="undo Part", attempt=1, body=b"")]


def stuck_part() -> Scenario[Any]:
    """A part whose undo was given up, and which then was taken back."""
    run = given(child).when(told_by_parent(Part(robot="R1")), heard("B"), told_by_parent(st.CancelRun(), "undo Part"))
    run.when(refused("undo B", 1, unknown=True)).state(status="stuck")
    assert [(one.step, one.unknown) for one in told(run)] == [("undo Part", True)]
    return run


def test_a_part_that_is_stuck_goes_on_only_if_a_person_says_so() -> None:
    run = stuck_part().when(told_by_parent(st.CancelRun(), "undo Part", 2)).state(status="stuck")
    (said,) = told(run)
    assert (said.unknown, said.reason) == (True, "Part/one is stuck: undo B: refused: no")
    run.when(told_by_parent(st.RetryUndo(), "undo Part", 3)).when(heard("undo B", attempt=2)).state(status="undone")
    assert told(run) == [StepHeard(step="undo Part", attempt=3, body=b"")]
    alone = stuck_part().when(st.RetryUndo()).when(heard("undo B", attempt=2)).state(status="undone")
    alone.when(told_by_parent(st.RetryUndo(), "undo Part", 2))  # and then the run above
    assert told(alone) == [StepHeard(step="undo Part", attempt=2, body=b"")]


def test_a_run_whose_part_is_stuck_is_stuck_and_a_person_sets_both_going() -> None:
    run = given(parent).when(Begin(), heard("A"), heard("Part"), refused("C"))
    assert effects(run)[-1].message.body == encode(st.CancelRun(reason="C: refused: no"))
    run.when(refused("undo Part", unknown=True)).state(status="stuck", reason="undo Part: refused: no")
    run.when(st.RetryUndo())
    assert effects(run)[-1].message.body == encode(st.RetryUndo())
    run.when(heard("undo Part", attempt=2))
    assert asked(run) == [("Robot/R1", "undo A")]


def test_a_step_that_is_asked_for_by_a_dead_letter_is_asked_again_only_while_the_run_waits() -> None:
    run = given(flow(step("A", within_s=5, tries=2, retry_s=0))).when(Begin())
    first = effects(run)[0].message
    run.when(first)
    assert effects(run) == [st.Tell(to="Robot/R1", message=first, within_s=5.0)]
    run.later(seconds=5).when(first).failed("try 1 of A is over, Trip/one is running: it would be carried out for")
    run.when(heard("A", attempt=2)).state(status="done")
    run.when(structs.replace(first, attempt=2)).failed("try 2 of A is over, Trip/one is done")


def test_a_test_says_how_a_part_has_ended() -> None:
    run = given(parent).when(Begin(), heard("A")).part_ended("Part")
    assert asked(run) == [("Robot/R1", "C")]
    run.when(refused("C")).part_ended("Part", "undone").when(heard("undo A")).state(status="undone")
    run = given(parent).when(Begin(), heard("A")).part_ended("Part", "undone", "no wind")
    run.state(status="undoing", reason="Part: refused: Part/one.Part.1 is undone: no wind")
    run = given(parent).when(Begin(), heard("A"), st.CancelRun()).part_ended("Part", "stuck", "no wind")
    run.state(status="stuck", reason="undo Part: refused: Part/one.Part.1 is stuck: no wind")
    with pytest.raises(AssertionError, match=r"Trip/one waits for no part 'A'; under way are A"):
        given(parent).when(Begin()).part_ended("A")


def test_a_part_says_only_once_that_it_is_cancelled() -> None:
    run = given(child).when(told_by_parent(Part(robot="R1")), told_by_parent(st.CancelRun(reason="cancelled: rain")))
    run.state(reason="cancelled: rain")


def test_a_part_to_repeat_is_taken_back_and_begun_anew() -> None:
    back = step("C", undo=None, again_from=A, on=Jammed, tries=3, retry_s=0)
    run = given(flow(step("A", undo=None), st.Step(child, repeat=True), back)).when(Begin(), heard("A"))
    for attempt in (1, 2):
        run.part_ended("Part").when(heard("C", Jammed(), attempt), heard("A", attempt=attempt + 1))
        tell: Any = effects(run)[-1]
        assert (tell.to, tell.message.body) == (f"Part/one.Part.{attempt}", encode(st.CancelRun()))
        run.part_ended("Part", "undone")
        assert asked(run) == [(f"Part/one.Part.{attempt + 1}", "Part")]


def test_a_part_that_never_began_is_undone_at_once() -> None:
    run = given(child).when(told_by_parent(st.CancelRun(), "undo Part"))
    assert told(run) == [StepHeard(step="undo Part", attempt=1, body=b"")]


def test_a_part_that_cannot_begin_refuses() -> None:
    for run in (
        given(child).when(Part(robot="R1")).when(told_by_parent(Part(robot="R1"))),
        given(child).when(told_by_parent(A())),
        given(child).when(told_by_parent(Part(robot="no robot"))),
    ):
        assert [type(one) for one in told(run)] == [StepRefused]


# Agents that take part


def test_an_agent_takes_a_step_decides_and_tells_its_events() -> None:
    take = StepAsked(
        run="Delivery/1", step="TakeOff", attempt=1, body=encode(TakeOff(parcel="P")), wants=(spec_of(Airborne).tag,)
    )
    drone = given(Drone).when(take)
    told = StepHeard(step="TakeOff", attempt=1, body=encode(Airborne()))
    drone.then(
        StepTaken(run="Delivery/1", step="TakeOff", attempt=1, wants=take.wants),
        Airborne(),
        st.Tell(to="Delivery/1", message=told),
    )
    drone.when(take)
    assert [one.message.reason for one in effects(drone)] == ["not on the ground"]
    drone.when(StepsClosed(run="Delivery/1")).state(steps=st.Steps())


def test_an_agent_refuses_what_it_cannot_take() -> None:
    def ask(body: bytes) -> str:
        drone = given(Drone).when(StepAsked(run="Delivery/1", step="X", attempt=1, body=body, wants=()))
        (tell,) = effects(drone)
        return str(tell.message.reason)

    assert ask(encode(UndoA())).startswith("Drone takes no UndoA@1")
    assert "such command" in ask(b"\xc1")


def test_an_agent_has_a_limit_of_open_steps() -> None:
    busy = [StepTaken(run=f"Trip/{number}", step="A", attempt=1, wants=()) for number in range(OPEN_COUNT_MAX)]
    drone = given(Drone, *busy)
    ask = StepAsked(run="Trip/new", step="A", attempt=1, body=encode(FlyHome()), wants=(spec_of(Landed).tag,))
    drone.when(ask)
    assert [one.message.reason for one in effects(drone)] == [f"Drone/one carries out {OPEN_COUNT_MAX} steps already"]
    drone.when(StepsClosed(run="Trip/0")).when(ask)
    assert len(drone.agent.steps.open) == OPEN_COUNT_MAX


class Make(st.Command):
    part: int
    mm: float


class Stamp(st.Command):
    part: int
    mm: float


class Started(st.Event):
    pass


class Stamped(st.Event):
    part: int
    mm: float


class Stopped(st.Event):
    why: str


class Press(st.Agent):
    """Stamps one part after the other. Of a thin one it says at once what it has become."""

    steps: st.Steps = st.Steps()
    over_count: int = 0

    @st.decide
    def stamp(self, command: Stamp) -> st.Events:
        yield Stamped(part=-1, mm=1.0) if command.mm < 1 else Started()

    @st.evolve
    def over(self, event: Stamped | Stopped) -> None:
        self.over_count += 1


making = st.Workflow("Making", Make, st.Step(Stamp, done=Stamped, fails=Stopped), to="Press/one")


def ask_of(workflow: st.Workflow, run: str, **fields: Any) -> StepAsked:
    """What a run of it asks its first agent."""
    (tell,) = effects(given(workflow, id=run).when(Make(**fields)))
    asked: StepAsked = tell.message
    return asked


def told_runs(scenario: Scenario[Any]) -> list[str]:
    return [effect.to for effect in effects(scenario) if isinstance(effect, st.Tell)]


def pressed(*asked: StepAsked) -> Scenario[Press]:
    return given(Press).when(*asked)


def test_an_event_is_told_to_the_run_whose_command_has_the_same_values() -> None:
    press = pressed(ask_of(making, "a", part=1, mm=2.0), ask_of(making, "b", part=2, mm=2.0))
    assert told_runs(press.when(Stamped(part=2, mm=2.1))) == ["Making/b"], "what is measured is not compared"
    assert told_runs(press.when(Stamped(part=1, mm=1.9))) == ["Making/a"]
    assert told_runs(press.when(Stamped(part=3, mm=2.0))) == []
    assert told_runs(press.when(Stopped(why="jam"))) == ["Making/a", "Making/b"], "it has no field of them"


def test_what_a_command_itself_yields_is_of_its_step_whatever_its_fields() -> None:
    press = pressed(ask_of(making, "a", part=1, mm=2.0))
    assert told_runs(press.when(ask_of(making, "b", part=2, mm=0.5))) == ["Making/b"]


def test_a_run_of_before_fields_were_compared_hears_every_event() -> None:
    old = structs.replace(ask_of(making, "a", part=1, mm=2.0), match=())
    press = pressed(old, ask_of(making, "b", part=2, mm=2.0))
    assert told_runs(press.when(Stamped(part=2, mm=2.0))) == ["Making/a", "Making/b"]
    assert encode(press.agent.steps.open[0]) == encode(
        {"run": "Making/a", "step": "Stamp", "attempt": 1, "wants": old.wants}
    ), "its bytes in a snapshot are as they were"


def test_what_is_compared_can_be_named_and_switched_off() -> None:
    def flow_of(*steps: st.Step) -> st.Workflow:
        return st.Workflow("Making", Make, *steps, to="Press/one")

    for match, compared in ((None, ["part"]), ((), []), (("part", "mm"), ["part", "mm"])):
        workflow = flow_of(st.Step(Stamp, done=Stamped, match=match))
        assert [name for name, _ in ask_of(workflow, "a", part=1, mm=2.0).match] == compared
        assert workflow.outline[0].get("match", "") == ", ".join(compared)
    watched = ask_of(flow_of(st.Step(Stamped, match=("part",))), "a", part=7, mm=2.0)
    assert (watched.match, watched.body) == ((("part", encode(7)),), b"")
    run = given(making).when(Make(part=1, mm=2.0))
    run.when(Stamped(part=2, mm=2.0)).state(status="running").when(Stamped(part=1, mm=2.0)).state(status="done")


def test_a_new_step_of_a_run_closes_those_that_it_has_left() -> None:
    taken = [StepTaken(run="Trip/1", step=name, attempt=1, wants=()) for name in ("A", "B")]
    taken += [StepTaken(run="Trip/1", step="C", attempt=1, wants=(), others=("B",))]
    assert [one.step for one in given(Drone, *taken).agent.steps.open] == ["B", "C"]


def test_the_delivery_without_infrastructure() -> None:
    route = heard("PlanRoute", RoutePlanned(legs=3))
    run = given(delivery, id="J1").when(Deliver(drone="D1", parcel="P1"), route)
    assert states(run) == {"PlanRoute": "done", "TakeOff": "begun"}
    run.when(heard("TakeOff", Airborne()))
    assert asked(run) == [("Drone/D1", "FlyTo")]


def test_settling_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stigmergy.workflows.run.SETTLE_COUNT_MAX", 1)
    given(flow(step("A"), step("B"))).when(Begin()).failed("does not come to rest")


@pytest.mark.parametrize(
    "forged",
    [
        RunEnded(status="done"),
        StepDone(step="TakeOff"),
        UndoBegan(reason="mischief"),
        RunBegan[Deliver](command=Deliver(drone="D-1", parcel="P-1"), version=1, digest=""),
    ],
)
def test_what_a_run_says_itself_cannot_be_observed(forged: st.Event) -> None:
    run = given(delivery).when(Deliver(drone="D-1", parcel="P-1"))
    before = run.agent
    run.when(forged).failed("is said by Delivery/one alone")
    assert run.agent == before
