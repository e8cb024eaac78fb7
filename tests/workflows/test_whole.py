"""Runs on whole nodes: at several places of one broker, on workers of a cluster, and with code that has changed."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stigmergy as st
from stigmergy.app.fleet import inspect_journal, verifier
from stigmergy.audit.replay import JournalReplay
from stigmergy.base.errors import DefinitionError
from stigmergy.claims.state import QUEUE_COUNT_MAX
from stigmergy.cli.display.places import closing_journal
from stigmergy.control.live import Live
from stigmergy.testing.brokers import Broker
from stigmergy.testing.bus_rig import wait_until
from tests.workflows.delivery import (
    Airborne,
    Arrived,
    Deliver,
    Drone,
    FlyHome,
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

WAIT_S_MAX = 240.0


def declare(*workflows: st.Workflow, done: list[str], here: str = "here", **options: Any) -> st.Fleet:
    """A fleet of drones whose planner writes down where it works."""
    fleet = st.Fleet("delivery", agents=[Drone], workflows=list(workflows or (delivery,)), **options)

    @fleet.worker(PlanRoute)
    async def plan(order: st.Order[PlanRoute]) -> RoutePlanned:
        done.append(here)
        return RoutePlanned(legs=3)

    return fleet


async def until(condition: Callable[[], bool]) -> None:
    await wait_until(condition, within_s=WAIT_S_MAX)


def status(live: Live, run: str = "Delivery/J1") -> str:
    return str(live.query(run).status)


def step_of(live: Live, name: str, run: str = "Delivery/J1") -> str:
    found = live.query(run).steps.get(name)
    return "" if found is None else str(found.state)


def flies(live: Live, run: str, attempt: int) -> bool:
    """Whether the drone was asked to fly: what it sees before is no business of the run."""
    return any((one.run, one.step, one.attempt) == (run, "FlyTo", attempt) for one in live.query("Drone/D1").steps.open)


@pytest.fixture(params=["memory", "mqtt"])
def bus(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory:{tmp_path.name}"
    broker: Broker = request.getfixturevalue("mosquitto")
    return broker.url


async def test_a_run_its_drone_and_its_gateway_are_at_three_nodes(bus: str) -> None:
    planned: list[str] = []
    fleets = {name: declare(done=planned, here=name) for name in ("base", "drone", "gateway")}
    async with (
        fleets["base"].running(journal="memory:", bus=bus, node="base", agents=["Delivery/*"]) as base,
        fleets["drone"].running(journal="memory:", bus=bus, node="drone", agents=["Drone/*"]) as drone,
        fleets["gateway"].running(journal="memory:", bus=bus, node="gateway", agents=["Place/gateway*"]) as gateway,
    ):
        for run, parcel in (("J1", "P1"), ("J2", "stuck")):
            run = f"Delivery/{run}"
            assert await base.send(run, Deliver(drone="D1", parcel=parcel))
            await until(lambda run=run: flies(drone, run, 1))  # type: ignore[misc]
            if parcel == "P1":
                await drone.observe("Drone/D1", ObstacleDetected(what="crane"))
                await until(lambda run=run: flies(drone, run, 2))  # type: ignore[misc]
            await drone.observe("Drone/D1", Arrived())
            await until(lambda run=run: base.query(run).ended)  # type: ignore[misc]
        await until(lambda: not drone.query("Drone/D1").steps.open)
        assert (status(base), status(base, "Delivery/J2")) == ("done", "undone")
        assert drone.query("Drone/D1").dropped == ("P1",)
        assert planned == ["gateway"] * 3
        assert gateway.agents() == ["Place/gateway.Delivery.J1.PlanRoute", "Place/gateway.Delivery.J2.PlanRoute"]

        # People ask any node.
        assert await base.send("Delivery/J3", Deliver(drone="D1", parcel="P3"))
        await until(lambda: flies(drone, "Delivery/J3", 1))
        assert await gateway.send("Delivery/J3", st.CancelRun(reason="rain"))
        await until(lambda: base.query("Delivery/J3").ended)
        assert status(base, "Delivery/J3") == "undone"


async def test_a_step_falls_back_when_its_place_is_away() -> None:
    planned: list[str] = []
    flight = st.Workflow(
        "Flight", Deliver, st.Step(PlanRoute, done=RoutePlanned, at=("gateway", "here"), within_s=0.3, retry_s=0)
    )
    fleet = declare(flight, done=planned, here="base")
    async with fleet.running(journal="memory:", bus="memory:away", node="base", agents=["Flight/*"]) as base:
        assert await base.send("Flight/1", Deliver(drone="D1", parcel="P1"))
        await until(lambda: status(base, "Flight/1") == "done")
        assert base.query("Flight/1").steps["PlanRoute"].attempt == 2
        assert planned == ["base"]


@pytest.mark.parametrize("at", ["here", "gateway"])
@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
async def test_a_late_result_counts_for_its_own_try_alone(at: str, fails: bool) -> None:
    flight = st.Workflow(
        "Flight", Deliver, st.Step(PlanRoute, done=RoutePlanned, at=at, within_s=0.2, tries=99, retry_s=0)
    )
    fleet, orders = st.Fleet("delivery", agents=[Drone], workflows=[flight]), 0
    tried_again = asyncio.Event()

    @fleet.worker(PlanRoute, tries=1)
    async def plan(order: st.Order[PlanRoute]) -> RoutePlanned:
        nonlocal orders
        orders += 1
        if (number := orders) == 1:
            await tried_again.wait()
            if fails:
                raise ValueError("no wind")
        return RoutePlanned(legs=number)

    async with fleet.running(journal="memory:") as live:
        assert await live.send("Flight/1", Deliver(drone="D1", parcel="P1"))
        await until(lambda: live.query("Flight/1").steps["PlanRoute"].attempt > 1)
        tried_again.set()
        await until(lambda: status(live, "Flight/1") == "done")
        run = live.query("Flight/1")
        assert run.last(RoutePlanned).legs == run.steps["PlanRoute"].attempt > 1


class Open(st.Action):
    pass


class Shut(st.Action):
    pass


@pytest.mark.parametrize("at", ["here", "gateway", ("gateway", "cloud")])
async def test_an_undo_waits_for_an_action_that_takes_long(at: Any) -> None:
    opening = st.Workflow("Opening", Deliver, st.Step(Open, undo=Shut, at=at, within_s=0.2, retry_s=0))
    fleet, done = st.Fleet("valves", agents=[Drone], workflows=[opening]), []
    undoes = asyncio.Event()

    @fleet.actuator(Open)
    async def open_valve(order: st.Order[Open]) -> None:
        await undoes.wait()
        done.append((order.agent, "open"))

    @fleet.actuator(Shut)
    async def shut_valve(order: st.Order[Shut]) -> None:
        done.append((order.agent, "shut"))

    async with fleet.running(journal="memory:") as live:
        assert await live.send("Opening/1", Deliver(drone="D1", parcel="P1"))
        await until(lambda: step_of(live, "undo Open", "Opening/1") == "begun")
        undoes.set()
        await until(lambda: status(live, "Opening/1") == "undone")
        places = {"here": ["Opening/1"], "gateway": ["Place/gateway.Opening.1.Open"]}.get(
            str(at), ["Place/cloud.Opening.1.Open", "Place/gateway.Opening.1.Open"]
        )
        for place in places:
            assert [what for agent, what in done if agent == place][:2] == ["open", "shut"]
        assert {agent for agent, _ in done} == {*places}


class Shy(st.Agent):
    """Its first handler has a mistake."""

    steps: st.Steps = st.Steps()

    @st.decide
    def take_off(self, command: TakeOff) -> st.Events:
        raise ValueError("a mistake")


class Mended(st.Agent, kind="Shy"):
    steps: st.Steps = st.Steps()

    @st.decide
    def take_off(self, command: TakeOff) -> st.Events:
        yield Airborne()


@pytest.mark.parametrize("over", [False, True])
async def test_a_dead_letter_of_a_step_is_carried_out_only_while_its_run_waits(tmp_path: Path, over: bool) -> None:
    flight = st.Workflow("Flight", Deliver, st.Step(TakeOff, done=Airborne, within_s=3600), to="Shy/{drone}")
    journal = f"sqlite:{tmp_path}/fleet.db"
    async with st.Fleet("shy", agents=[Shy], workflows=[flight]).running(journal=journal) as live:
        assert await live.send("Flight/1", Deliver(drone="D1", parcel="P1"))
        await until(lambda: bool(live.dead_letters()))
    async with st.Fleet("shy", agents=[Mended], workflows=[flight]).running(journal=journal) as live:
        (letter,) = live.dead_letters()
        if over:
            assert await live.send("Flight/1", st.CancelRun())
        live.retry(letter)
        if over:
            await until(lambda: bool(live.query("Shy/D1").steps.open) or live.dead_letters() not in ([], [letter]))
            (said,) = live.dead_letters()
            assert said.agent == "Flight/1"
            assert "try 1 of TakeOff is over, Flight/1 is undone: it would be carried out for nobody" in said.error
            assert not live.query("Shy/D1").steps.open
        else:
            await until(lambda: status(live, "Flight/1") == "done")


class Order(st.Command):
    number: int


class Bake(st.Command):
    number: int


class Baked(st.Event):
    number: int


class Weigh(st.Work):
    number: int


class Weighed(st.Event):
    number: int


class Oven(st.Agent):
    steps: st.Steps = st.Steps()

    @st.decide
    def bake(self, command: Bake) -> st.Events:
        return ()


class Loaves(st.View):
    number: st.Key[int]
    baked: int = 0
    weighed: int = 0

    @st.project
    def count(self, event: Baked) -> None:
        self.baked += 1

    @st.project
    def weigh(self, event: Weighed) -> None:
        self.weighed += 1


async def test_an_event_ends_the_step_of_its_own_run_and_a_view_sees_it_once() -> None:
    weighing = st.Step(Weigh, done=Weighed, at="scales")
    baking = st.Workflow("Baking", Order, st.Step(Bake, done=Baked), weighing, to="Oven/1")
    fleet = st.Fleet("bakery", agents=[Oven], workflows=[baking], views=[Loaves])

    @fleet.worker(Weigh)
    async def weigh(order: st.Order[Weigh]) -> Weighed:
        return Weighed(number=order.effect.number)

    async with fleet.running(journal="memory:") as live:
        for number in (1, 2, 3):
            assert await live.send(f"Baking/{number}", Order(number=number))
        await until(lambda: len(live.query("Oven/1").steps.open) == 3)
        for number in (2, 3):
            await live.observe("Oven/1", Baked(number=number))
        await until(lambda: status(live, "Baking/2") == status(live, "Baking/3") == "done")
        assert status(live, "Baking/1") == "running"
        assert live.query("Baking/2", st.WorkflowRun).last(Baked) == Baked(number=2)
        cancelled = await live.send("Baking/1", st.CancelRun())
        assert isinstance(cancelled, st.Accepted)
        rows = (
            await live.view(Loaves).after_command("Baking/1", cancelled.position).all()
        )  # all of this is in one shard
        assert [(row.number, row.baked, row.weighed) for row in rows] == [(2, 1, 1), (3, 1, 1)]


# A workflow as a step


class Hop(st.Command):
    drone: str
    parcel: str


hop = st.Workflow(
    "Hop",
    Hop,
    st.Step(TakeOff, done=Airborne, undo=LandHere, undone=Landed),
    st.Step(ReleaseParcel, done=ParcelDropped, undo=ReturnParcel),
    to="Drone/{drone}",
)
two_hops = st.Workflow(
    "Tour", Deliver, st.Step(hop), st.Step(st.Approval("chief"), within_s=600), st.Step(FlyHome, done=Landed),
    to="Drone/{drone}",
)  # fmt: skip


async def test_a_workflow_as_a_step_is_done_fails_and_is_undone() -> None:
    async with declare(two_hops, hop, done=[]).running(journal="memory:") as live:
        ends = {}
        for run, parcel, answer in (
            ("done", "P1", st.ApproveStep(step="Approval", by="Ann")),
            ("denied", "P2", st.DenyStep(step="Approval", by="Ann", reason="rain")),
            ("refused", "stuck", None),
        ):
            address = f"Tour/{run}"
            assert await live.send(address, Deliver(drone=run, parcel=parcel))
            if answer is not None:
                await until(lambda address=address: step_of(live, "Approval", address) == "begun")  # type: ignore[misc]
                assert await live.send(address, answer)
            await until(lambda address=address: live.query(address).ended)  # type: ignore[misc]
            await until(lambda run=run: not live.query(f"Drone/{run}").steps.open)  # type: ignore[misc]
            ends[run] = (status(live, address), status(live, f"Hop/{run}.Hop.1"), live.query(f"Drone/{run}").state)
        assert ends == {
            "done": ("done", "done", "ground"),
            "denied": ("undone", "undone", "ground"),
            "refused": ("undone", "undone", "ground"),
        }
        assert "Hop/refused.Hop.1 is undone: ReleaseParcel: refused: the hook" in live.query("Tour/refused").reason


async def test_a_pad_is_held_by_one_run_after_the_other() -> None:
    landing = st.Workflow(
        "Landing",
        Deliver,
        st.Step(st.Holding("pad-1", wait_s=60.0)),
        st.Step(st.Approval("tower"), within_s=600),
        to="Drone/{drone}",
    )
    async with declare(landing, done=[]).running(journal="memory:", ledger="memory:pads") as live:
        for run in ("a", "b", "c"):
            assert await live.send(f"Landing/{run}", Deliver(drone=run, parcel="P1"))
            if run == "a":
                await until(lambda: step_of(live, "Approval", "Landing/a") == "begun")
        assert step_of(live, "Holding", "Landing/b") == "begun"
        assert await live.send("Landing/c", st.CancelRun())  # its wish is taken back
        await until(lambda: status(live, "Landing/c") == "undone")
        assert await live.send("Landing/a", st.ApproveStep(step="Approval"))
        await until(lambda: step_of(live, "Approval", "Landing/b") == "begun")
        assert await live.send("Landing/b", st.DenyStep(step="Approval"))
        await until(lambda: (status(live, "Landing/a"), status(live, "Landing/b")) == ("done", "undone"))


async def test_runs_that_find_too_many_waiting_for_a_pad_ask_again() -> None:
    pad = st.Step(st.Holding("pad-1", wait_s=600.0))
    long = st.Workflow("Long", Deliver, pad, st.Step(st.Approval("tower")))
    short = st.Workflow("Short", Deliver, pad)
    runs = [f"Short/{number}" for number in range(QUEUE_COUNT_MAX + 3)]
    async with declare(long, short, done=[]).running(journal="memory:", ledger="memory:queue") as live:
        assert await live.send("Long/1", Deliver(drone="D", parcel="P"))
        await until(lambda: step_of(live, "Approval", "Long/1") == "begun")
        for run in runs:
            assert await live.send(run, Deliver(drone="D", parcel="P"))
        await until(lambda: [step_of(live, "Holding", run) for run in runs].count("again") == 3)
        assert "32 wait already" in live.query(runs[-1]).steps["Holding"].reason
        assert await live.send("Long/1", st.ApproveStep(step="Approval"))
        await until(lambda: all(status(live, run) == "done" for run in runs))


async def test_a_run_holds_its_pad_again_after_a_restart(tmp_path: Path) -> None:
    landing = st.Workflow("Landing", Deliver, st.Step(st.Holding("pad-1")), st.Step(st.Approval("tower")))
    journal, ledger = f"sqlite:{tmp_path}/fleet.db", f"sqlite:{tmp_path}/ledger.db"
    async with declare(landing, done=[]).running(journal=journal, ledger=ledger) as live:
        assert await live.send("Landing/a", Deliver(drone="D1", parcel="P1"))
        await until(lambda: step_of(live, "Approval", "Landing/a") == "begun")
    async with declare(landing, done=[]).running(journal=journal, ledger=ledger) as live:
        await until(lambda: live.query("Landing/a").steps["Holding"].attempt == 2)
        await until(lambda: step_of(live, "Holding", "Landing/a") == "done")
        assert await live.send("Landing/a", st.ApproveStep(step="Approval"))
        await until(lambda: status(live, "Landing/a") == "done")


async def test_a_stuck_run_is_a_trouble_until_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = True

    def give_back(run: Any) -> ReturnParcel:
        if broken:
            raise ValueError("no wind")
        return ReturnParcel(parcel="P")

    release = st.Step(ReleaseParcel, done=ParcelDropped, undo=ReturnParcel, make_undo=give_back)
    tour = st.Workflow("Tour", Deliver, release, st.Step(st.Approval("chief")), to="Drone/{drone}")
    fleet, journal = declare(tour, done=[]), f"sqlite:{tmp_path}/fleet.db"
    mend = "mend what keeps it, then stigmergy send Tour/1 RetryUndo"
    stuck = f"Tour/1 is stuck (undo ReleaseParcel: ValueError: no wind); {mend}"

    async with fleet.running(journal=journal) as live:
        for run in ("1", "2"):
            assert await live.send(f"Tour/{run}", Deliver(drone=run, parcel="P"))
            await until(lambda run=run: step_of(live, "Approval", f"Tour/{run}") == "begun")  # type: ignore[misc]
        assert live.troubles() == []
        assert await live.send("Tour/1", st.DenyStep(step="Approval"))
        await until(lambda: status(live, "Tour/1") == "stuck")
        assert [(one.code, one.agent, one) for one in live.troubles()] == [("run-stuck", "Tour/1", stuck)]
        assert live.standing().troubles == [stuck]
        assert await live.send("Tour/2", st.DenyStep(step="Approval"))
        await until(lambda: len(live.troubles()) == 2)
        monkeypatch.setattr("stigmergy.workflows.stuck_runs.SHOWN_MAX", 1)
        assert live.troubles() == [stuck, "1 more of the runs are stuck: stigmergy workflows --status stuck"]
    async with fleet.running(journal=journal) as live:
        assert len(live.troubles()) == 2
        broken = False
        for run in ("1", "2"):
            assert await live.send(f"Tour/{run}", st.RetryUndo())
            await until(lambda run=run: status(live, f"Tour/{run}") == "undone")  # type: ignore[misc]
        assert live.troubles() == []


# Code that has changed


short = (
    st.Step(TakeOff, done=Airborne, undo=LandHere, undone=Landed, within_s=30),
    st.Step(Arrived),
    st.Step(FlyHome, done=Landed),
)


def version(number: int, *items: st.Step) -> st.Workflow:
    return st.Workflow("Delivery", Deliver, *items, to="Drone/{drone}", version=number)


def fleet_of(*workflows: st.Workflow, **options: Any) -> st.Fleet:
    return declare(*workflows, done=[], **options)


async def begin(fleet: st.Fleet, journal: str, run: str = "Delivery/J1", drone: str = "D1") -> None:
    async with fleet.running(journal=journal) as live:
        assert await live.send(run, Deliver(drone=drone, parcel="P1"))
        await until(lambda: step_of(live, "Arrived", run) == "begun")
        await until(lambda: any(one.step == "Arrived" for one in live.query(f"Drone/{drone}").steps.open))


REFUSAL = "Delivery/J1 is under way, and its workflow was changed: version 1 "


@pytest.mark.parametrize("snapshot", [False, True], ids=["from the log", "from a snapshot"])
async def test_a_run_under_way_is_refused_if_its_steps_have_changed(tmp_path: Path, snapshot: bool) -> None:
    journal = f"sqlite:{tmp_path}/fleet.db"
    settings = st.Settings(snapshots=st.Snapshots(every_events=1, tail_ratio=0.0, share_max=1.0)) if snapshot else None
    await begin(fleet_of(version(1, *short), settings=settings), journal)
    for workflows, says in (
        ([version(1, *short[:2])], "has other steps now; put the steps back"),
        ([version(1, short[1], short[0], short[2])], "has other steps now; put the steps back"),
        ([version(2, *short)], r"is not there any more; put Workflow\('Delivery', …, version=1\) back, as it was"),
    ):
        with pytest.raises(DefinitionError, match=f"{REFUSAL}{says}"):
            async with fleet_of(*workflows).running(journal=journal):
                pass
    slower = (st.Step(TakeOff, done=Airborne, undo=LandHere, undone=Landed, within_s=5, tries=3), *short[1:])
    async with fleet_of(version(1, *slower)).running(journal=journal) as live:
        assert bool(live.recovered.snapshots) == snapshot
        await live.observe("Drone/D1", Arrived())
        await until(lambda: status(live) == "done")


def replayed(fleet: st.Fleet, journal: str) -> list[str]:
    """What `stigmergy replay` says of each run."""
    with closing_journal(inspect_journal(journal)) as opened:
        found = JournalReplay(opened, fleet.plans, fleet.settings.limits, verifier()).run()
    return [str(one.new) for one in found.differences]


def test_a_replay_says_beforehand_what_would_be_refused(tmp_path: Path) -> None:
    journal = f"sqlite:{tmp_path}/fleet.db"
    asyncio.run(begin(fleet_of(version(1, *short)), journal))
    assert replayed(fleet_of(version(1, *short)), journal) == []
    assert replayed(fleet_of(version(1, *short), version(2, *short[:2])), journal) == []
    for changed in (version(1, *short[:2]), version(1, *short[1:]), version(2, *short)):
        assert any(says.startswith(REFUSAL) for says in replayed(fleet_of(changed), journal))


async def test_old_runs_end_on_old_steps_and_new_ones_begin_on_the_newest(tmp_path: Path) -> None:
    journal = f"sqlite:{tmp_path}/fleet.db"
    old, new = version(1, *short), version(2, st.Step(TakeOff, done=Airborne), st.Step(Arrived))
    await begin(fleet_of(old), journal)
    async with fleet_of(old, new).running(journal=journal) as live:
        assert await live.send("Delivery/J2", Deliver(drone="D2", parcel="P2"))
        await until(lambda: any(one.step == "Arrived" for one in live.query("Drone/D2").steps.open))
        await live.observe("Drone/D1", Arrived())
        await live.observe("Drone/D2", Arrived())
        await until(lambda: (status(live), status(live, "Delivery/J2")) == ("done", "done"))
        assert [live.query(f"Delivery/{run}").version for run in ("J1", "J2")] == [1, 2]
        assert "FlyHome" not in live.query("Delivery/J2").steps


@pytest.mark.parametrize("snapshot", [False, True], ids=["from the log", "from a snapshot"])
async def test_a_run_that_has_ended_keeps_its_state_or_the_start_is_refused(tmp_path: Path, snapshot: bool) -> None:
    journal = f"sqlite:{tmp_path}/fleet.db"
    settings = st.Settings(snapshots=st.Snapshots(every_events=1, tail_ratio=0.0, share_max=1.0)) if snapshot else None
    await begin(fleet_of(version(1, *short), settings=settings), journal)
    async with fleet_of(version(1, *short), settings=settings).running(journal=journal) as live:
        await live.observe("Drone/D1", Arrived())
        await until(lambda: status(live) == "done")
        steps = live.query("Delivery/J1").steps
        before = live.standing().counters["snapshots"]
        while snapshot and live.standing().counters["snapshots"] < before + 2:
            await live.observe("Drone/other", Airborne())
    new = version(2, *short)
    if snapshot:  # it knows the state
        async with fleet_of(new).running(journal=journal) as live:
            assert live.query("Delivery/J1").steps == steps
        return
    says = "Delivery/J1 has ended, and its steps and events cannot be read, and its workflow was changed: version 1 is "
    with pytest.raises(DefinitionError, match=f"{says}not there any more; put"):
        async with fleet_of(new).running(journal=journal):
            pass
    told = await asyncio.to_thread(replayed, fleet_of(new), journal)
    assert any(one.startswith(says) for one in told)
    assert not any("KeyError" in one for one in told)
    async with fleet_of(version(1, *short), new).running(journal=journal) as live:
        assert live.query("Delivery/J1").steps == steps
