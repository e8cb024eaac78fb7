"""What is refused when a workflow is defined, each with the line where it is written."""

import re
from collections.abc import Callable
from typing import Any

import pytest

import stigmergy as st
from stigmergy.base.errors import DefinitionError
from tests.workflows.delivery import (
    Airborne,
    Arrived,
    Deliver,
    Drone,
    FlyHome,
    Flying,
    FlyTo,
    Landed,
    LandHere,
    ObstacleDetected,
    ParcelDropped,
    PlanRoute,
    ReleaseParcel,
    ReturnParcel,
    RoutePlanned,
    TakeOff,
    delivery,
)


class Beep(st.Action):
    pass


class Boop(st.Action):
    pass


class Charge(st.Action):
    legs: str = ""


class Measure(st.Work):
    pass


class Strict(st.Action, forbid_unknown_fields=True):
    pass


class Measured(st.Event):
    legs: int


class Noted(st.Event):
    legs: str


TO = "Drone/{drone}"


def flow(*items: Any, **options: Any) -> st.Workflow:
    return st.Workflow("Trip", Deliver, *items, **{"to": TO, **options})


def fleet(*items: Any, agents: Any = (Drone,), **options: Any) -> st.Fleet:
    return st.Fleet("trips", agents=list(agents), workflows=[flow(*items)], **options)


take_off = st.Step(TakeOff, done=Airborne)
LINE_OF_TAKE_OFF = int(take_off.line.partition(":")[2])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: st.Step(TakeOff), "step TakeOff: nobody would know when it is done; give done="),
        (lambda: st.Step(Measure), "step Measure: nobody would know when it is done"),
        (lambda: flow(st.Step(Strict)), "step Strict: Strict has forbid_unknown_fields, but its try is written beside"),
        (lambda: st.Step(TakeOff, done=LandHere), "done=.*give the class of the event that ends it"),  # type: ignore[arg-type]
        (lambda: st.Step(5), "give a command, action, work or event class"),
        (lambda: st.Step(TakeOff, done=Airborne, undo=Airborne), "undo=.* cannot be carried out"),
        (lambda: st.Step(TakeOff, done=Airborne, undo=Measure), "undo=Measure is work; give undone="),
        (lambda: st.Step(TakeOff, done=Airborne, undone=Landed), "undone= without undo="),
        (lambda: st.Step(TakeOff, done=Airborne, undo=LandHere, undone=5), "undone=5; give the class of an event"),  # type: ignore[arg-type]
        (lambda: st.Step(TakeOff, done=Airborne, fails=FlyTo), "fails=.*; give the class of an event"),  # type: ignore[arg-type]
        (lambda: st.Step(st.Approval("chief"), undo=LandHere), "leave undo= out"),
        (lambda: st.Step(st.Approval("chief"), done=Landed), "leave done= out"),
        (lambda: st.Step(st.Holding("pad"), undo=LandHere), "leave undo= out"),
        (lambda: st.Step(FlyTo, done=Arrived, again_from=PlanRoute), "give both, again_from="),
        (lambda: st.Step(FlyTo, done=Arrived, on=ObstacleDetected), "give both, again_from="),
        (lambda: st.Step(FlyTo, done=Arrived, on=ObstacleDetected, again_from=PlanRoute), "the loop has no bound"),
        (lambda: st.Step(FlyTo, done=Arrived, tries=0), "tries=0; give 1 to 1000"),
        (lambda: st.Step(FlyTo, done=Arrived, within_s=0), "within_s=0.0; give more than 0"),
        (lambda: st.Step(FlyTo, done=Arrived, retry_s=-1), "retry_s=-1.0; give 0 to 300"),
        (lambda: st.Step(FlyTo, done=Arrived, at="gateway"), "at= is for actions and work"),
        (lambda: st.Step(FlyTo, done=Noted, match=("legs",)), "legs is not in FlyTo and, with the same type, in what"),
        (lambda: st.Step(FlyTo, done=Arrived, match=("legs",)), r"match=\('legs',\): legs is not in FlyTo and"),
        (lambda: st.Step(Beep, match=("legs",)), "step Beep: match= is for commands and events"),
        (lambda: flow(st.Step(Measured, match=("legs",))), r"match=\('legs',\): legs is not known then, with the"),
        (lambda: st.Step(Beep, at=()), "name a place, such as 'gateway'"),
        (lambda: st.Step(Beep, name="loud beep"), "step 'loud beep': give name= up to 48 letters, digits and _"),
        (lambda: st.Step(Beep, name="x" * 49), "up to 48 letters"),
        (lambda: st.Parallel(take_off), r"Parallel\(…, join='all'\); give two parts or more"),
        (lambda: st.Parallel(take_off, take_off, join="some"), "join='all' or 'any'"),  # type: ignore[arg-type]
        (lambda: st.Parallel(take_off, 5), "5 is no part of a workflow"),
        (lambda: st.Branch(True, then=take_off), "give a function of the run"),  # type: ignore[arg-type]
        (flow, "workflow Trip has no step"),
        (lambda: st.Workflow("a trip", Deliver, take_off), "the kind of its runs is a name"),
        (lambda: st.Workflow("Trip", Airborne, take_off), "give the class of the command that begins a run first"),  # type: ignore[arg-type]
        (lambda: flow(take_off, version=0), "versions count from 1"),
        (
            lambda: flow(st.Step(TakeOff, done=Airborne), to=""),
            r"to=''; name the agent .* such as to='Drone/\{drone\}'",
        ),
        (lambda: flow(st.Step(Beep, undo=LandHere), to=""), "step undo Beep: to=''; name the agent"),
        (lambda: flow(st.Step(TakeOff, done=Airborne, to="{drone}/1")), "name the agent that carries it out"),
        (
            lambda: flow(st.Step(TakeOff, done=Airborne, to="Drone/{pilot}")),
            r"\{pilot\} is not known then; known are drone, parcel",
        ),
        (lambda: flow(st.Step(st.Holding("pad-{pad}"))), r"\{pad\} is not known then"),
        (lambda: flow(st.Step(Beep, at="{site}")), r"\{site\} is not known then"),
        (
            lambda: flow(take_off, st.Step(TakeOff, done=Airborne)),
            "two steps are called TakeOff; give one of them name=",
        ),
        (
            lambda: flow(st.Step(FlyTo, done=Arrived)),
            "nobody says what FlyTo.legs is; known are drone, parcel; give the step make=",
        ),
        (
            lambda: flow(st.Step(Noted), st.Step(FlyTo, done=Arrived)),
            "FlyTo.legs is int, and what is known by that name is str",
        ),
        (lambda: flow(st.Step(Measured), st.Step(Charge)), "Charge.legs is str, and what is known by that name is int"),
        (
            lambda: flow(take_off, st.Step(FlyHome, done=Landed, again_from="Nowhere", on=Flying, tries=2)),
            "again_from=Nowhere is no step of Trip",
        ),
        (
            lambda: flow(st.Step(FlyHome, done=Landed, again_from=TakeOff, on=Flying, tries=2), take_off),
            "again_from=TakeOff must be a step before it",
        ),
    ],
)
def test_a_mistake_is_refused_with_its_line(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=says) as refused:
        make()
    line = make.__code__.co_firstlineno
    named = re.match(r"test_definition\.py:(\d+): ", str(refused.value))
    assert named is not None
    by_helper = range(flow.__code__.co_firstlineno, flow.__code__.co_firstlineno + 2)
    assert int(named[1]) in (line, *by_helper, LINE_OF_TAKE_OFF)


def test_a_loop_does_not_cross_into_or_out_of_a_parallel_part() -> None:
    back = st.Step(FlyHome, done=Landed, again_from=TakeOff, on=Flying, tries=2)
    beep, boop = st.Step(Beep), st.Step(Boop)
    for items in (
        [take_off, st.Parallel(back, beep)],
        [st.Parallel(take_off, beep), back],
        [st.Parallel(take_off, back)],
        [st.Parallel((beep, st.Parallel(take_off, boop)), back)],
    ):
        with pytest.raises(DefinitionError, match=r"must be a step before it, in the same part of a Parallel"):
            flow(*items)
    flow(st.Parallel((take_off, back), beep))
    flow(take_off, st.Parallel(beep, boop), back)


def test_a_loop_does_not_lead_into_a_branch_that_was_perhaps_not_taken() -> None:
    back = st.Step(FlyHome, done=Landed, again_from=TakeOff, on=Flying, tries=2)
    for branch in (
        st.Branch(bool, then=take_off),
        st.Branch(bool, then=(), otherwise=take_off),
    ):
        with pytest.raises(DefinitionError, match="and not inside a Branch"):
            flow(branch, back)
    flow(st.Branch(bool, then=(take_off, back)))
    flow(take_off, st.Branch(bool, then=(), otherwise=back))


def test_a_field_that_comes_only_on_one_side_is_not_known_afterwards() -> None:
    fly = st.Step(FlyTo, done=Arrived)
    plan = st.Step(PlanRoute, done=RoutePlanned)
    measure = st.Step(Measured)
    with pytest.raises(DefinitionError, match=r"nobody says what FlyTo\.legs is"):
        flow(st.Branch(bool, then=plan), fly)
    with pytest.raises(DefinitionError, match=r"nobody says what FlyTo\.legs is"):
        flow(st.Parallel(plan, st.Step(Beep), join="any"), fly)
    with pytest.raises(DefinitionError, match=r"nobody says what FlyTo\.legs is"):
        flow(st.Step(TakeOff, done=Airborne, again_from=TakeOff, on=Measured, tries=2), fly)
    flow(st.Branch(bool, then=plan, otherwise=measure), fly)
    flow(st.Parallel(plan, st.Step(Beep)), fly)
    flow(st.Parallel(plan, measure, join="any"), fly)


def test_a_field_of_another_type_that_may_come_by_a_loop_is_refused() -> None:
    again = st.Step(FlyTo, done=Arrived, again_from="Before", on=Noted, tries=2)
    before = st.Step(Charge, name="Before", make=lambda run: Charge())
    with pytest.raises(DefinitionError, match=r"FlyTo\.legs is int, and what is known by that name is str"):
        flow(st.Step(Measured), before, again)
    flow(before, st.Step(Measured), again)  # what came last is an int


def test_what_could_not_be_told_apart_must_not_be_under_way_at_once() -> None:
    alike = st.Step(Beep, name="Other")
    with pytest.raises(
        DefinitionError, match=r"step Other: Beep, Done\[Beep\] could not be told from that of the step Beep"
    ):
        flow(st.Parallel(st.Step(Beep), alike))
    with pytest.raises(DefinitionError, match="Measured could not be told from that of the step Measure,"):
        flow(
            st.Parallel(
                st.Step(Measure, done=Measured),
                st.Step(Measured, to="", name="Again"),
            ),
            to="",
        )
    with pytest.raises(DefinitionError, match="Landed could not be told from that of the step FlyHome"):
        flow(st.Parallel(st.Step(FlyHome, done=Landed), st.Step(LandHere, done=Landed)))
    with pytest.raises(DefinitionError, match=r"Boop, Done\[Boop\] could not be told"):
        flow(st.Parallel(st.Step(Beep, undo=Boop), st.Step(Charge), join="any"), st.Step(Boop))
    flow(st.Step(Beep), alike)
    flow(st.Parallel(st.Step(Landed), st.Step(Landed, name="Too")))  # two that wait for one event of an agent
    flow(st.Parallel(st.Step(FlyHome, done=Landed), st.Step(LandHere, done=Landed, to="Drone/other")))
    flow(st.Parallel(st.Step(Beep, undo=Boop), st.Step(Charge)), st.Step(Boop))


class Lonely(st.Agent):
    @st.decide
    def take_off(self, command: TakeOff) -> st.Events:
        yield Airborne()


class Idle(st.Agent):
    steps: st.Steps = st.Steps()


class Balloon(st.Agent):
    heights: int = 0

    @st.evolve
    def rise(self, event: Airborne) -> None:
        self.heights += 1


def test_the_fleet_must_be_able_to_carry_it_out() -> None:
    def to(kind: str) -> st.Step:
        return st.Step(TakeOff, done=Airborne, to=f"{kind}/{{drone}}")

    with pytest.raises(DefinitionError, match="step TakeOff: the fleet has no Rocket; it has Drone, Trip"):
        fleet(to("Rocket"))
    with pytest.raises(DefinitionError, match="step TakeOff: Lonely takes part in no workflow; write steps: Steps"):
        fleet(to("Lonely"), agents=(Lonely,))
    with pytest.raises(DefinitionError, match="step TakeOff: Idle has no @decide handler for TakeOff"):
        fleet(to("Idle"), agents=(Idle,))
    with pytest.raises(DefinitionError, match=r"Balloon takes part in no workflow; .*, and do not compile it"):
        fleet(to("Balloon"), agents=(Balloon,), compiled=[Balloon])
    with pytest.raises(DefinitionError, match="has no Delivery; give it to workflows="):
        fleet(st.Step(delivery))


def test_two_versions_alike_are_refused() -> None:
    first, second = flow(take_off), flow(st.Step(Beep))
    with pytest.raises(
        DefinitionError,
        match=r"^test_definition\.py:\d+: two workflows Trip of version 1; give the newer one version=2",
    ):
        st.Fleet("trips", agents=[Drone], workflows=[first, second])


def test_two_events_of_one_name_are_refused() -> None:
    def other() -> type[st.Event]:
        class Landed(st.Event, name="other.Landed"):
            pass

        return Landed

    with pytest.raises(DefinitionError, match="two messages are called Landed"):
        fleet(st.Step(FlyHome, done=Landed), st.Step(other(), name="Other"))


def test_texts_and_times_are_no_change_and_steps_are() -> None:
    def trip(name: str = "", **options: Any) -> str:
        branch = st.Branch(lambda run: True, then=st.Step(Beep), name=name)
        return flow(st.Step(TakeOff, done=Airborne, undo=LandHere, **options), branch).digest

    assert trip() == trip(within_s=5, tries=4, retry_s=9) == trip("is it late") == trip(to="Drone/other")
    assert trip() == trip(match=())
    assert trip() != trip(undone=Landed)
    assert trip() != trip(fails=Landed)
    assert flow(st.Step(Beep), st.Step(Boop)).digest != flow(st.Step(Boop), st.Step(Beep)).digest
    assert (
        flow(st.Step(ReleaseParcel, done=ParcelDropped)).digest
        != flow(st.Step(ReleaseParcel, done=ParcelDropped, undo=ReturnParcel)).digest
    )


class Enter(st.Action):
    pad: str


def test_what_is_bound_to_a_claim_of_the_run_is_not_carried_out_elsewhere() -> None:
    def bound(run: Any) -> Enter:
        pads = [run.claim_Pad.resource for _ in "1"]
        return Enter(pad=pads[0], valid_while=run.claim_Pad)

    def nested(run: Any) -> Enter:
        return next(Enter(pad="1", valid_while=claim) for claim in [run.claim_Pad])

    told = r"^test_definition\.py:\d+: step Enter: valid_while= binds it to a claim of the run, .*leave at= out and run"
    for make in (bound, nested):
        st.Step(Enter, make=make)
        with pytest.raises(DefinitionError, match=told):
            st.Step(Enter, make=make, at="gateway")
        with pytest.raises(DefinitionError, match=told):
            st.Step(Enter, make=make, at=("here", "{site}"))
    with pytest.raises(DefinitionError, match=told):
        st.Step(Enter, make=lambda run: Enter(pad="1"), undo=Enter, make_undo=bound, at="gateway")
    st.Step(Enter, make=lambda run: Enter(pad=run.claim_Pad.resource), at="gateway")


def test_too_many_steps_are_refused() -> None:
    with pytest.raises(DefinitionError, match="more than 200 steps; make a part of them a workflow"):
        flow(*(st.Step(Beep, name=f"beep_{number}") for number in range(201)))
