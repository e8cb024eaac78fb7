"""What an airframe makes of its samples, alone and compiled beside drones; and the process that feeds it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from apps.drones.__main__ import main as fly
from apps.drones.airframe import (
    HOT_SAMPLES,
    MOTOR_MAX_CA,
    SHAKES,
    SLOW_SHARE,
    SLOWEST_SHARE,
    VIBRATION_MAX_CM_S2,
    Airframe,
    AirframeCleared,
    ClearAirframe,
    Inspect,
    InspectionDue,
    MotorFailing,
    MotorHot,
    ReduceSpeed,
    Sampled,
    Shaken,
    Surveyed,
    fit,
)
from apps.drones.messages import MotorWarned
from apps.drones.telemetry import (
    LATE_S_MAX,
    RATE_HZ,
    Airframes,
    Board,
    FedNode,
    _Line,
    _run,
    fed_node,
    fly_telemetry,
    listening,
    main,
    percentile_ms,
    ring_folder,
    row_of,
)
from stigmergy import Agent, Fleet, Overloaded, Tell, evolve
from stigmergy.columns import Batcher
from stigmergy.testing import given

CALM = Sampled(
    t=100.0,
    vibration_cm_s2=800,
    motor_1_ca=1_100,
    motor_2_ca=1_120,
    motor_3_ca=1_080,
    motor_4_ca=1_110,
    tilt_cdeg=-120,
    height_dm=750,
)
KEPT = Surveyed(t=100.0, vibration_cm_s2=800, motor_ca=1_120, tilt_cdeg=-120, height_dm=750)


class Drone(Agent):
    """Stands for the drone of the application: all that it hears of its airframe."""

    warned: tuple[tuple[int, float], ...] = ()

    @evolve
    def was_warned(self, event: MotorWarned) -> None:
        self.warned = (*self.warned, (event.motor, event.current_a))


def at(t: float, **fields: int) -> Sampled:
    return structs.replace(CALM, t=t, **fields)


def hot(t: float) -> Sampled:
    return at(t, motor_3_ca=4_100)


def test_of_calm_samples_one_a_second_is_kept() -> None:
    given(Airframe).when(CALM).then(KEPT).state(surveys=1, peak_ca=1_120, peak_cm_s2=800)
    given(Airframe, KEPT).when(at(100.1), at(100.99)).then_nothing()
    given(Airframe, KEPT).when(at(101.0)).then(structs.replace(KEPT, t=101.0)).state(surveys=2)


def test_a_clock_that_was_set_back_does_not_blind_it() -> None:
    given(Airframe, KEPT).when(at(50.0)).then(structs.replace(KEPT, t=50.0))


def test_one_that_shakes_is_slowed_down_at_once_and_not_at_every_sample() -> None:
    shaking = {"vibration_cm_s2": VIBRATION_MAX_CM_S2 + 1}
    shaken = Shaken(t=100.2, vibration_cm_s2=VIBRATION_MAX_CM_S2 + 1)
    begun = given(Airframe, KEPT).when(at(100.2, **shaking))
    begun.then(shaken, ReduceSpeed(share=SLOW_SHARE, sampled_t=100.2)).state(shaken=1, peak_cm_s2=3_001)
    given(Airframe, KEPT, shaken).when(at(100.24, **shaking)).then_nothing()
    worse = given(Airframe, KEPT, shaken).when(at(100.3, vibration_cm_s2=2 * VIBRATION_MAX_CM_S2 + 1))
    worse.then(Shaken(t=100.3, vibration_cm_s2=6_001), ReduceSpeed(share=SLOWEST_SHARE, sampled_t=100.3))
    given(Airframe, KEPT).when(at(100.2, vibration_cm_s2=VIBRATION_MAX_CM_S2)).then_nothing()


def test_one_that_shakes_again_and_again_is_to_be_looked_at_once() -> None:
    def shakes(every_s: float) -> list[Shaken]:
        return [Shaken(t=100.0 + every_s * n, vibration_cm_s2=3_500) for n in range(SHAKES - 1)]

    seldom = given(Airframe, *shakes(4.0), structs.replace(KEPT, t=159.9)).when(at(160.0, vibration_cm_s2=3_500))
    seldom.then(Shaken(t=160.0, vibration_cm_s2=3_500), ReduceSpeed(share=SLOW_SHARE, sampled_t=160.0))
    soon = at(159.0, vibration_cm_s2=3_500)
    due = given(Airframe, *shakes(4.0), structs.replace(KEPT, t=158.9)).when(soon)
    due.then(
        Shaken(t=159.0, vibration_cm_s2=3_500),
        ReduceSpeed(share=SLOW_SHARE, sampled_t=159.0),
        InspectionDue(t=159.0),
        Inspect(sampled_t=159.0),
    ).state(due=True)
    due.when(at(159.1, vibration_cm_s2=3_500)).then(
        Shaken(t=159.1, vibration_cm_s2=3_500), ReduceSpeed(share=SLOW_SHARE, sampled_t=159.1)
    )
    due.when(ClearAirframe()).then(AirframeCleared()).state(due=False, peak_cm_s2=0)


def test_one_hot_sample_is_the_wind_and_many_are_a_failing_motor() -> None:
    before = [MotorHot(t=100.0 + n / 400, motor_ca=4_000) for n in range(HOT_SAMPLES - 2)]
    given(Airframe, KEPT, *before).when(hot(100.02)).then(MotorHot(t=100.02, motor_ca=4_100)).state(failing=0)
    one_more = [*before, MotorHot(t=100.019, motor_ca=4_000)]
    warned = given(Airframe, KEPT, *one_more, id="r1-0307-013").when(hot(100.02))
    warned.then(
        MotorHot(t=100.02, motor_ca=4_100),
        MotorFailing(t=100.02, motor=3, motor_ca=4_100),
        Tell("Drone/r1-0307-013", MotorWarned(motor=3, current_a=41.0)),
    ).state(failing=3, peak_ca=4_100)
    warned.when(hot(100.03)).then_nothing()
    slowly = given(Airframe, structs.replace(KEPT, t=100.2), *one_more).when(hot(100.2))
    slowly.then(MotorHot(t=100.2, motor_ca=4_100))
    given(Airframe, KEPT).when(at(100.1, motor_1_ca=MOTOR_MAX_CA)).then_nothing()


@pytest.mark.parametrize("motor", [1, 2, 3, 4])
def test_the_motor_is_named(motor: int) -> None:
    before = [MotorHot(t=100.0, motor_ca=4_000)] * (HOT_SAMPLES - 1)
    found = given(Airframe, KEPT, *before).when(at(100.05, **{f"motor_{motor}_ca": 4_000}))
    assert found.agent.failing == motor


async def test_compiled_it_decides_the_same_beside_the_drones_and_a_replay_gives_the_same_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chance = np.random.default_rng(3)
    names = [f"r1-0000-{number:03d}" for number in range(20)]
    rows = [
        {
            "vibration_cm_s2": int(chance.choice([800, 2_999, 3_200, 6_500], p=[0.9, 0.04, 0.04, 0.02])),
            "motor_1_ca": int(chance.choice([1_000, 4_000], p=[0.9, 0.1])),
            "motor_2_ca": int(chance.integers(900, 1_300)),
            "motor_3_ca": 1_000,
            "motor_4_ca": int(chance.choice([1_100, 3_600], p=[0.95, 0.05])),
            "tilt_cdeg": int(chance.integers(-500, 500)),
            "height_dm": 700,
        }
        for _ in range(20 * 200)
    ]
    times = [1_000.0 + (number // 20) / 400 for number in range(len(rows))]
    fleet = Fleet("swarm", agents=[Drone, Airframe], compiled=[Airframe])
    fit(fleet, tmp_path / "board")
    async with fleet.running(journal=f"segments:{tmp_path / 'log'}") as live:
        batcher = Batcher(await live.enroll(Airframe, names), source="sensors", incarnation=1)
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        batcher.add(Sampled, np.tile(np.arange(20), 200), t=np.array(times), **columns)
        for batch in batcher.take():
            await live.deliver(batch)
        found = {name: live.query(f"Airframe/{name}", Airframe) for name in names}
        counters = live.standing().counters
    shaken = failing = 0
    for number, name in enumerate(names):
        one = given(Airframe, id=name).when(
            *(Sampled(t=t, **row) for t, row in list(zip(times, rows, strict=True))[number::20])
        )
        expected, state = one.agent, found[name]
        for field in ("surveyed_t", "shaken_t", "peak_cm_s2", "peak_ca", "shaken", "surveys", "due", "failing"):
            assert getattr(state, field) == getattr(expected, field), (name, field)
        assert [one.t for one in state.hot.values] == [one.t for one in expected.hot.values]
        shaken += expected.shaken
        failing += expected.failing != 0
    assert shaken > 50
    assert failing > 10
    assert counters["inputs"] == len(rows) + failing
    async with fleet.running(journal=f"segments:{tmp_path / 'log'}") as live:
        for name in names:
            assert live.query(f"Airframe/{name}", Airframe) == found[name]
            warned = live.query(f"Drone/{name}", Drone).warned
            assert [motor for motor, _ in warned] == ([found[name].failing] if found[name].failing else [])
    board = Board(tmp_path / "board")
    assert int(board.ages.sum()) >= shaken


def test_a_board_is_memory_of_two_processes(tmp_path: Path) -> None:
    writer, reader = Board(tmp_path / "board"), Board(tmp_path / "board")
    numbers = np.array([3, 5], np.uint32)
    writer.slow_down(1, numbers, np.array([0.7, 0.4]), np.array([10.0, 10.9]), 11.0)
    writer.inspect(1, numbers[:1], np.array([10.0]), 11.0)
    rows = np.array([row_of(1, 3), row_of(1, 4), row_of(1, 5), row_of(0, 3)])
    assert reader.ordered_t(rows).tolist() == [11.0, 0.0, 11.0, 0.0]
    assert reader.inspections(rows) == 1
    assert int(reader.ages.sum()) == 3
    half, most = percentile_ms(reader.ages, 0.3), percentile_ms(reader.ages, 1.0)
    assert half is not None
    assert most is not None
    assert 100.0 <= half <= 105.0
    assert 1_000.0 <= most <= 1_050.0
    assert percentile_ms(np.zeros_like(reader.ages), 0.5) is None


def test_an_airframe_resonates_until_it_is_told_to_turn_slower() -> None:
    airframes = Airframes(4, seed=1)
    airframes.step(100.0, 1e9, np.zeros(4))
    assert airframes.resonances == 4
    assert (airframes.sweep(0.0)["vibration_cm_s2"] > VIBRATION_MAX_CM_S2).all()
    airframes.step(100.1, 1e9, np.array([100.05, 99.0, 0.0, 100.05]))
    shaking = airframes.sweep(0.1)["vibration_cm_s2"] > VIBRATION_MAX_CM_S2
    assert shaking.tolist() == [False, True, True, False]
    assert airframes.resonances == 4


class Feed:
    """A ring that has no room from its third message to its sixth attempt."""

    def __init__(self) -> None:
        self.records = self.attempts = 0
        self.places: list[Any] = []

    def enroll(self, names: list[str]) -> Any:
        class Place:
            shard = 0
            number = 1

        class Roster:
            places = [Place] * len(names)

        return Roster

    def add(self, message: str, agents: Any, **columns: Any) -> None:
        assert message == "Sampled"
        assert all(len(column) == len(agents) for column in columns.values())
        self.records += len(agents)

    def send(self, within_s: float = 5.0) -> None:
        self.attempts += 1
        if 3 <= self.attempts < 6:
            raise Overloaded("full")

    def wait_durable(self, within_s: float) -> None: ...


def test_a_full_ring_drops_samples_and_counts_them(tmp_path: Path) -> None:
    feed = Feed()
    line = _Line(feed, FedNode(tmp_path / "s", tmp_path / "r", ("a", "b", "c")), 1, 0, 1.0)
    _run([line], 4, 1 / RATE_HZ, 0.1)
    assert line.sent == feed.records
    assert line.dropped == 2 * 4 * 3
    assert line.sent + line.dropped == 3 * 40


def test_a_producer_that_is_too_late_leaves_samples_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = _Line(Feed(), FedNode(tmp_path / "s", tmp_path / "r", ("a",)), 1, 0, 1.0)
    now = iter([0.0, 0.0, 0.01, 1.0, *[1.0 + n / 2 for n in range(200)]])
    monkeypatch.setattr("time.time", lambda: next(now))
    monkeypatch.setattr("time.sleep", lambda _: None)
    late_s, _ = _run([line], 4, 1 / RATE_HZ, 0.1)
    assert line.dropped == 4 * sum(one > LATE_S_MAX for one in late_s) > 0
    assert line.sent + line.dropped == 40


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
    return lambda: tmp_path


async def test_a_process_feeds_a_node_and_measures_from_event_to_action(in_folder: Callable[[], Path]) -> None:
    folder = in_folder()
    names = [f"r{1 + number % 2}-0000-{number:03d}" for number in range(400)]
    place = fed_node(folder, "r1", names)
    fleet = Fleet("swarm", agents=[Drone, Airframe], compiled=[Airframe])
    fit(fleet, place.board)
    running = fleet.running(journal=f"segments:{folder / 'log'}", rings=[place.ring])
    async with running as live, listening(running, live, place.socket):
        figures = await fly_telemetry([place], seconds=1.0, failing=2)
        taken = live.standing().counters["inputs"]
        warned = [live.query(f"Drone/{name}", Drone).warned for name in names[::2]]
    assert figures["telemetry_drones"] == 200
    assert figures["telemetry_events"] + figures["telemetry_dropped"] == 200 * 420
    assert taken == figures["telemetry_events"] + 2
    assert [len(one) for one in warned] == [1, 1] + [0] * 198
    assert figures["telemetry_actions"] > 0
    assert figures["telemetry_event_to_action_p99_ms"] >= figures["telemetry_event_to_action_p50_ms"] > 0


def test_rings_are_in_a_folder_that_goes_with_them() -> None:
    with ring_folder() as name:
        place = fed_node(Path(name), "r2", ["r1-0000-000", "r2-0100-000", "r22-0100-000"])
        assert place.names == ("r2-0100-000",)
        assert place.ring.parent == place.board.parent == place.socket.parent == Path(name)
        Board(place.board)
    assert not Path(name).exists()


async def test_a_producer_without_a_node_says_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no node answers"):
        await fly_telemetry([FedNode(tmp_path / "none.sock", tmp_path / "ring", ("a",))], seconds=0.1)


def test_workers_of_a_cluster_have_no_rings(capsys: pytest.CaptureFixture[str]) -> None:
    assert fly(["--telemetry", "--cluster"]) == 2
    assert "leave out --cluster" in capsys.readouterr().err


def test_its_command_line_wants_a_ring_for_each_socket(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--socket", "a", "--ring", "b", "--socket", "c"])
    assert "as often as each other" in capsys.readouterr().err
