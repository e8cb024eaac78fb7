"""Sensors in virtual time: their beat, their deadlines, their failures, and how little of that reaches anybody else."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stigmergy.agents.agent import Agent, decide, evolve
from stigmergy.agents.effects import Events, Order
from stigmergy.agents.messages import Action, Command, Event, transient, within
from stigmergy.agents.supervision import InputFailed, Supervise, WhenStale
from stigmergy.base.errors import ConfigError, DefinitionError, NotAssigned, NotOwned, NotRunning, Overloaded
from stigmergy.devices.port import Feed
from stigmergy.node import device_tasks as devices_module
from stigmergy.node import mailbox as mailbox_module
from stigmergy.node.declaration import Declaration
from stigmergy.node.settings import Settings
from stigmergy.sim.node import SimNode
from tests.node.rig import play


class Measured(Event, keep=within(seconds=1)):
    percent: float


class Pressed(Event):
    number: int


class Hello(Command):
    pass


class Greeted(Event):
    pass


class Seen(Event, keep=transient):
    pass


class Land(Action):
    pass


class Gauge(Agent):
    readings: tuple[float, ...] = ()
    presses: tuple[int, ...] = ()
    failures: tuple[str, ...] = ()

    silent = WhenStale(Measured, after_s=2.0, then=Land())
    supervision = Supervise(stop_after=3, within_s=60)

    @decide
    def hello(self, command: Hello) -> Events:
        yield Greeted()

    @evolve
    def measured(self, event: Measured) -> None:
        if event.percent < 0:
            raise ValueError("below nothing")
        self.readings = (*self.readings, event.percent)

    @evolve
    def pressed(self, event: Pressed) -> None:
        self.presses = (*self.presses, event.number)

    @evolve
    def failed(self, event: InputFailed) -> None:
        self.failures = (*self.failures, event.source)


class Lamp(Agent):
    lit: bool = False


class Landings:
    """When the safe action went out, in seconds since the start."""

    def __init__(self, fleet: Declaration) -> None:
        self.at_s: list[float] = []
        fleet.actuator(Land)(self)

    def __call__(self, order: Order[Land]) -> None:
        self.at_s.append(round(asyncio.get_running_loop().time(), 3))


def declare() -> Declaration:
    return Declaration("gauges", agents=[Gauge, Lamp])


def now_s() -> float:
    return round(asyncio.get_running_loop().time(), 6)


def counters_of(node: SimNode) -> dict[str, int]:
    assert node.live is not None
    (standing,) = node.live.devices()
    return standing.counters


def run_for(
    fleet: Declaration, seconds: float, *, agents: tuple[str, ...] = ("Gauge/a",), settings: Settings | None = None
) -> tuple[Any, dict[str, int]]:
    """The gauge and the sensor's counters after so many virtual seconds."""

    async def main(node: SimNode) -> tuple[Any, dict[str, int]]:
        live = await node.start()
        await asyncio.sleep(seconds)
        await asyncio.sleep(1.1)  # until what may wait a second for the disk is there
        return live.query("Gauge/a"), counters_of(node)

    return play(fleet, main, agents=agents, settings=settings)


def test_a_sensor_is_asked_on_a_steady_beat_and_its_readings_are_kept() -> None:
    fleet = declare()
    asked: list[tuple[str, float]] = []

    @fleet.sensor(Gauge, every_s=0.5)
    async def battery(gauge: str) -> Measured:
        asked.append((gauge, now_s()))
        await asyncio.sleep(0.2)
        return Measured(percent=float(len(asked)))

    gauge, counters = run_for(fleet, 2.4)
    assert asked[:5] == [("a", 0.0), ("a", 0.5), ("a", 1.0), ("a", 1.5), ("a", 2.0)]
    assert gauge.readings[:5] == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert counters["overruns"] == counters["failed"] == counters["superseded"] == 0


def test_what_a_sensor_says_has_its_name_in_the_log() -> None:
    fleet = declare()

    @fleet.sensor(Gauge, every_s=10, name="north gauge")
    async def battery(gauge: str) -> Measured:
        return Measured(percent=-1)

    gauge, _ = run_for(fleet, 1)
    assert gauge.failures == ("sensor/north gauge",)


def test_a_sensor_may_have_nothing_to_say_and_staleness_goes_on() -> None:
    fleet = declare()
    landings = Landings(fleet)

    @fleet.sensor(Gauge, every_s=0.5)
    async def battery(gauge: str) -> Measured | None:
        return Measured(percent=50) if now_s() < 1.1 else None

    gauge, counters = run_for(fleet, 5)
    assert gauge.readings == (50.0, 50.0, 50.0)
    assert counters["read"] == 3
    assert landings.at_s == [pytest.approx(3.0, abs=0.01)]


def test_ticks_that_a_slow_read_covers_are_skipped_and_counted() -> None:
    fleet = declare()
    asked: list[float] = []

    @fleet.sensor(Gauge, every_s=0.1, within_s=1.0)
    async def battery(gauge: str) -> Measured:
        asked.append(now_s())
        await asyncio.sleep(0.25)
        return Measured(percent=1)

    _, counters = run_for(fleet, 0.0)
    assert asked == [0.0, 0.3, 0.6, 0.9]
    assert counters["overruns"] == 6


def test_a_read_that_does_not_end_is_cancelled_and_the_agent_made_safe() -> None:
    fleet = declare()
    landings = Landings(fleet)
    cancelled: list[float] = []

    @fleet.sensor(Gauge, every_s=0.5, within_s=0.4)
    async def battery(gauge: str) -> Measured:
        if now_s() >= 1.0:
            try:
                await asyncio.sleep(3600)
            finally:
                cancelled.append(now_s())
        return Measured(percent=50)

    gauge, counters = run_for(fleet, 4.9)
    assert gauge.readings == (50.0, 50.0)
    assert cancelled[:3] == [1.4, 1.9, 2.4]
    assert landings.at_s == [pytest.approx(2.5, abs=0.01)]
    assert counters["failed"] >= 8


@pytest.mark.parametrize("error", [OSError("wire"), asyncio.CancelledError(), BaseException("odd"), TimeoutError()])
def test_whatever_a_sensor_raises_it_is_asked_again(error: BaseException) -> None:
    fleet = declare()
    asked = 0

    @fleet.sensor(Gauge, every_s=0.5)
    async def battery(gauge: str) -> Measured:
        nonlocal asked
        asked += 1
        if asked % 2:
            raise error
        return Measured(percent=asked)

    gauge, counters = run_for(fleet, 2.4)
    assert gauge.readings[:2] == (2.0, 4.0)
    assert counters["failed"] >= 2


def test_failures_are_reported_but_not_a_thousand_times(caplog: pytest.LogCaptureFixture) -> None:
    fleet = declare()

    @fleet.sensor(Gauge, every_s=0.1)
    async def battery(gauge: str) -> Measured:
        raise OSError("no such wire")

    with caplog.at_level(logging.WARNING, logger="stigmergy.devices"):
        _, counters = run_for(fleet, 120)
    assert counters["failed"] > 1_000
    assert [record.getMessage() for record in caplog.records] == [
        "sensor battery of Gauge/a: OSError: no such wire",
        "sensor battery of Gauge/a: OSError: no such wire (599 more since the last report)",
        "sensor battery of Gauge/a: OSError: no such wire (599 more since the last report)",
    ]


def test_what_is_no_event_counts_as_a_failure() -> None:
    fleet = declare()

    @fleet.sensor(Gauge, every_s=0.5)
    async def battery(gauge: str) -> Measured:
        return 12  # type: ignore[return-value]

    async def main(node: SimNode) -> tuple[int, str]:
        live = await node.start()
        await asyncio.sleep(0.1)
        (standing,) = live.devices()
        return standing.counters["failed"], standing.last_problem

    assert play(fleet, main, agents=["Gauge/a"]) == (1, "gave int, which is no event")


def test_a_plain_function_is_a_sensor_too() -> None:
    fleet = declare()

    @fleet.sensor(Gauge, every_s=0.5)
    def battery(gauge: str) -> Measured:
        return Measured(percent=7)

    gauge, _ = run_for(fleet, 0.9)
    assert gauge.readings[:2] == (7.0, 7.0)


def test_readings_are_thinned_before_they_cost_anything() -> None:
    fleet = declare()

    @fleet.sensor(Gauge, every_s=0.1, over_s=1.0, take="mean")
    async def battery(gauge: str) -> Measured:
        return Measured(percent=10 * now_s())

    gauge, counters = run_for(fleet, 2.0)
    assert gauge.readings[:2] == pytest.approx((4.5, 14.5))
    assert counters["taken"] <= 3
    assert counters["thinned"] >= 18


def test_the_newest_reading_wins_when_the_disk_is_slow() -> None:
    fleet = declare()

    @fleet.sensor(Gauge, every_s=0.1)
    async def button(gauge: str) -> Pressed:
        return Pressed(number=round(now_s() * 10))

    async def main(node: SimNode) -> tuple[Any, dict[str, int]]:
        live = await node.start()
        node.latency.jitter = False
        node.latency.before_s = 1.0
        await asyncio.sleep(5.0)
        node.latency.before_s = 0.0
        await asyncio.sleep(1.0)
        return live.query("Gauge/a"), counters_of(node)

    gauge, counters = play(fleet, main, agents=["Gauge/a"])
    assert list(gauge.presses) == sorted(gauge.presses)
    assert counters["superseded"] > 30
    assert 50 in gauge.presses, "what was newest when the disk had time again"
    assert len(gauge.presses) < 25


def test_a_stopped_agent_is_not_read_for_and_its_letters_do_not_pile_up() -> None:
    fleet = declare()
    bad = True

    @fleet.sensor(Gauge, every_s=0.1)
    async def battery(gauge: str) -> Measured:
        return Measured(percent=-1 if bad else 50)

    async def main(node: SimNode) -> Any:
        nonlocal bad
        live = await node.start()
        await asyncio.sleep(10.0)
        assert list(live.standing().stopped) == ["Gauge/a"]
        assert len(live.dead_letters()) <= 5
        assert counters_of(node)["withheld"] > 50
        bad = False
        live.resume("Gauge/a", by="ada")
        await asyncio.sleep(3.0)
        return live.query("Gauge/a")

    assert len(play(fleet, main, agents=["Gauge/a"]).readings) > 10


class Asked:
    """A sensor that notes whom it was asked about."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def __call__(self, name: str) -> Measured:
        self.names.append(name)
        return Measured(percent=1)

    def first(self) -> list[str]:
        return sorted(dict.fromkeys(self.names))


def test_a_sensor_is_for_the_agents_it_names() -> None:
    fleet, asked = declare(), Asked()
    fleet.sensor(Gauge, every_s=1, agents=["b", "Gauge/c", "b"])(asked)
    run_for(fleet, 1, agents=())
    assert asked.first() == ["b", "c"]


def test_a_sensor_reads_nothing_for_agents_that_run_elsewhere() -> None:
    """The code is the same on every node: a sensor may name agents of several of them."""
    fleet, asked = declare(), Asked()
    fleet.sensor(Gauge, every_s=1, agents=["b", "Gauge/c", "b"])(asked)
    run_for(fleet, 1, agents=("Gauge/a", "Gauge/c"))
    assert asked.first() == ["c"]


def test_a_pattern_is_for_those_that_are_there() -> None:
    fleet, asked = declare(), Asked()
    fleet.sensor(Gauge, every_s=1)(asked)

    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.send("Gauge/b1", Hello())
        await asyncio.sleep(2)

    play(fleet, main, agents=["Gauge/a", "Gauge/b*"])
    assert asked.first() == ["a", "b1"]


def test_else_for_those_the_node_carries() -> None:
    fleet, asked = declare(), Asked()
    fleet.sensor(Gauge, every_s=1)(asked)
    run_for(fleet, 1, agents=("Gauge/a", "Lamp/x"))
    assert asked.first() == ["a"]


def test_a_node_that_carries_others_reads_nothing_for_strangers() -> None:
    fleet, asked = declare(), Asked()
    fleet.sensor(Gauge, every_s=1)(asked)

    async def main(node: SimNode) -> None:
        live = await node.start()
        with pytest.raises(NotAssigned):
            await live.send("Gauge/stranger", Hello())
        await asyncio.sleep(5)

    play(fleet, main, agents=["Lamp/x"])
    assert asked.first() == []


def test_else_for_all_that_have_had_an_input_also_after_a_restart() -> None:
    fleet, asked = declare(), Asked()
    fleet.sensor(Gauge, every_s=1)(asked)

    async def main(node: SimNode) -> None:
        live = await node.start()
        await asyncio.sleep(2)
        assert asked.first() == []
        await live.send("Gauge/a", Hello())
        await asyncio.sleep(2)
        assert asked.first() == ["a"]
        await live.send("Gauge/b", Hello())
        await asyncio.sleep(2)
        assert asked.first() == ["a", "b"]
        await node.lose_power()
        asked.names.clear()
        await asyncio.sleep(5)
        assert asked.names == [], "a machine without power reads nothing"
        await node.start()
        await asyncio.sleep(0.5)
        assert asked.first() == ["a", "b"]

    play(fleet, main)


def test_there_are_only_so_many_tasks_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices_module, "TASKS_COUNT_MAX", 3)
    fleet, asked = declare(), Asked()
    fleet.sensor(Gauge, every_s=1, agents=["d", "e"])(asked)
    fleet.sensor(Gauge, every_s=1, name="other")(asked)

    async def main(node: SimNode) -> int:
        live = await node.start()
        for name in "abc":
            await live.send(f"Gauge/{name}", Hello())
        await asyncio.sleep(3)
        return live.standing().counters["devices_left_out"]

    assert play(fleet, main) == 4, "d and e are agents by now as well, and have no place of their own any more"
    assert asked.first() == ["a", "d", "e"]


def test_a_named_agent_exists_from_its_first_reading() -> None:
    fleet, asked = declare(), Asked()
    fleet.sensor(Gauge, every_s=1, agents=["new"])(asked)

    async def main(node: SimNode) -> list[str]:
        live = await node.start()
        await asyncio.sleep(2.5)
        return live.agents()

    assert play(fleet, main) == ["Gauge/new"]


def test_a_pushing_sensor_pushes_into_its_feed() -> None:
    fleet = declare()

    @fleet.sensor(Gauge)
    async def gps(feed: Feed) -> None:
        for number in range(3):
            await asyncio.sleep(0.2)
            feed.push(Measured(percent=number))
        assert feed.agent == "a"
        await asyncio.sleep(3600)

    gauge, counters = run_for(fleet, 2)
    assert gauge.readings == (0.0, 1.0, 2.0)
    assert counters["read"] == counters["taken"] == 3


def test_a_generator_is_a_pushing_sensor_and_is_closed_where_it_runs() -> None:
    fleet = declare()
    closed: list[float] = []

    @fleet.sensor(Gauge)
    async def gps(gauge: str) -> AsyncIterator[Measured]:
        try:
            for number in range(100):
                await asyncio.sleep(1.0)
                yield Measured(percent=number)
        finally:
            await asyncio.sleep(0.001)
            closed.append(now_s())

    async def main(node: SimNode) -> Any:
        live = await node.start()
        await asyncio.sleep(3.5)
        gauge = live.query("Gauge/a")
        await node.stop()
        return gauge

    assert play(fleet, main, agents=["Gauge/a"]).readings[:2] == (0.0, 1.0)
    assert closed == [pytest.approx(3.5, abs=0.01)]


def test_a_pushing_sensor_that_ends_is_begun_again_after_a_growing_pause() -> None:
    fleet = declare()
    begun: list[float] = []

    @fleet.sensor(Gauge)
    async def gps(feed: Feed) -> None:
        begun.append(now_s())
        if len(begun) == 5:
            feed.push(Measured(percent=1))
        if len(begun) % 2:
            raise OSError("unplugged")

    _, counters = run_for(fleet, 60)
    assert begun[:8] == pytest.approx([0, 1, 3, 7, 15, 16, 18, 22])
    assert counters["failed"] == len(begun)


def test_a_flood_of_pushes_costs_two_places() -> None:
    fleet = declare()

    @fleet.sensor(Gauge)
    async def lidar(feed: Feed) -> None:
        while True:
            for number in range(1_000):
                feed.push(Pressed(number=number))
            await asyncio.sleep(0.1)

    async def main(node: SimNode) -> tuple[Any, dict[str, int], int]:
        live = await node.start()
        await asyncio.sleep(0.05)
        waiting = live.standing().waiting
        await asyncio.sleep(0.9)
        return live.query("Gauge/a"), counters_of(node), waiting

    gauge, counters, waiting = play(fleet, main, agents=["Gauge/a"])
    assert gauge.presses == (0, 999) * 10
    assert counters["superseded"] == 10 * 998
    assert waiting <= 2


def test_a_rate_limit_holds_for_what_is_pushed() -> None:
    fleet = declare()

    @fleet.sensor(Gauge, at_most_hz=2)
    async def lidar(feed: Feed) -> None:
        for number in range(100):
            feed.push(Pressed(number=number))
            await asyncio.sleep(0.01)
        await asyncio.sleep(3600)

    gauge, _ = run_for(fleet, 3)
    assert len(gauge.presses) == 3
    assert gauge.presses[-1] == 99, "the newest is not lost"


def test_what_must_not_be_lost_is_sent_and_waited_for() -> None:
    fleet = declare()
    taken: list[float] = []

    @fleet.sensor(Gauge, keep_every=1_000)
    async def button(feed: Feed) -> None:
        for number in range(5):
            await feed.send(Pressed(number=number))
            taken.append(now_s())
        await asyncio.sleep(3600)

    async def main(node: SimNode) -> Any:
        node.latency.jitter = False
        node.latency.before_s = 0.5
        live = await node.start()
        await asyncio.sleep(10)
        return live.query("Gauge/a")

    assert play(fleet, main, agents=["Gauge/a"]).presses == (0, 1, 2, 3, 4)
    assert all(after - before >= 0.5 for before, after in itertools.pairwise(taken))


def test_after_the_stop_a_feed_takes_nothing_and_says_so() -> None:
    fleet = declare()
    feeds: list[Feed] = []

    @fleet.sensor(Gauge)
    async def button(feed: Feed) -> None:
        feeds.append(feed)
        await asyncio.sleep(3600)

    async def main(node: SimNode) -> None:
        await node.start()
        await asyncio.sleep(1)
        await node.stop()
        feeds[0].push(Pressed(number=1))
        with pytest.raises(NotRunning):
            await feeds[0].send(Pressed(number=1))

    play(fleet, main, agents=["Gauge/a"])


def test_a_sensor_that_does_not_let_itself_be_cancelled_does_not_hold_up_the_stop() -> None:
    fleet = declare()

    @fleet.sensor(Gauge)
    async def stubborn(feed: Feed) -> None:
        while now_s() < 100:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                continue

    async def main(node: SimNode) -> float:
        await node.start()
        await asyncio.sleep(1)
        before = now_s()
        await node.stop()
        took = now_s() - before
        await asyncio.sleep(1100)
        return took

    assert play(fleet, main, agents=["Gauge/a"], settings=Settings(drain_s=3.0)) < 10


def test_a_full_node_makes_a_reading_fail_and_not_the_sensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox_module, "BLOCKED_COUNT_MAX", 1)
    fleet = declare()

    @fleet.sensor(Gauge, every_s=0.5)
    async def battery(gauge: str) -> Pressed | None:
        return Pressed(number=1) if now_s() > 0.3 else None

    async def main(node: SimNode) -> tuple[int, int]:
        live = await node.start()
        node.latency.jitter = False
        node.latency.before_s = 3.0  # the disk stalls, and everybody waits
        told: list[asyncio.Future[None]] = []
        for number in range(100):
            told.append(asyncio.ensure_future(live.observe("Gauge/b", Pressed(number=number))))
            await asyncio.sleep(0.01)
        failed = counters_of(node)["failed"]
        results = await asyncio.gather(*told, return_exceptions=True)
        assert any(isinstance(result, Overloaded) for result in results)
        node.latency.before_s = 0.0
        await asyncio.sleep(5.0)
        taken = counters_of(node)["taken"]
        await asyncio.sleep(2.0)
        return failed, counters_of(node)["taken"] - taken

    tight = Settings(telemetry_items_max=1, batch_events_max=1)
    failed, taken = play(fleet, main, agents=["Gauge/a", "Gauge/b"], settings=tight)
    assert failed > 0
    assert taken == 8


def test_one_seed_gives_one_order() -> None:
    def once() -> list[tuple[str, float]]:
        fleet = declare()
        order: list[tuple[str, float]] = []

        @fleet.sensor(Gauge, every_s=0.1)
        async def one(gauge: str) -> Measured:
            order.append((f"one {gauge}", now_s()))
            return Measured(percent=1)

        @fleet.sensor(Gauge, every_s=0.05)
        async def other(gauge: str) -> Measured:
            order.append((f"other {gauge}", now_s()))
            await asyncio.sleep(0.02)
            return Measured(percent=2)

        async def main(node: SimNode) -> None:
            await node.start()
            await asyncio.sleep(2)

        play(fleet, main, agents=("Gauge/b", "Gauge/a", "Gauge/c"), seed=7, shuffle=True)
        return order

    first = once()
    assert len(first) > 100
    assert first == once()


def declared_wrongly() -> dict[str, Any]:
    async def pushes(feed: Feed) -> None:
        pass

    async def reads(gauge: str) -> Measured | None:
        return None

    def plain(gauge: str) -> Measured | None:
        return None

    async def generates(gauge: str) -> AsyncIterator[Measured]:
        yield Measured(percent=1)

    class Stranger(Agent):
        pass

    fleet = declare()
    fleet.sensor(Gauge, every_s=1)(reads)
    return {
        "a sensor that is not asked must be async": lambda: fleet.sensor(Gauge)(plain),  # type: ignore[type-var]
        "it speaks by itself": lambda: fleet.sensor(Gauge, every_s=1)(generates),  # type: ignore[type-var]
        "one of this name already": lambda: fleet.sensor(Gauge, every_s=1)(reads),
        "is no agent class of fleet": lambda: fleet.sensor(Stranger, every_s=1, name="x")(reads),
        "give a list of names": lambda: fleet.sensor(Gauge, every_s=1, name="x", agents="a")(reads),
        "give names of Gauge agents": lambda: fleet.sensor(Gauge, every_s=1, name="x", agents=["Lamp/a"])(reads),
        "every_s=0": lambda: fleet.sensor(Gauge, every_s=0, name="x")(reads),
        "within_s=0": lambda: fleet.sensor(Gauge, every_s=1, within_s=0, name="x")(reads),
        "keep_every=0": lambda: fleet.sensor(Gauge, keep_every=0)(pushes),
    }


@pytest.mark.parametrize("words", list(declared_wrongly()))
def test_what_is_declared_wrongly_is_refused_at_once(words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        declared_wrongly()[words]()


@pytest.mark.parametrize("address", ["a", "Gauge/", "Robot/a", ""])
def test_agents_of_a_node_are_addresses(address: str) -> None:
    async def main(node: SimNode) -> None:
        with pytest.raises(ConfigError, match="give addresses like"):
            await node.start()

    play(declare(), main, agents=[address])


def test_a_sensor_that_always_fails_is_a_trouble_until_it_reads() -> None:
    fleet = declare()
    broken, has_reading = True, False

    @fleet.sensor(Gauge, every_s=1.0)
    async def level(gauge: str) -> Measured | None:
        if broken:
            raise OSError(f"no bus at {asyncio.get_running_loop().time()}")
        return Measured(percent=1.0) if has_reading else None

    async def main(node: SimNode) -> None:
        nonlocal broken, has_reading
        live = await node.start()
        assert live.standing().troubles == []
        await asyncio.sleep(10.5)
        (trouble,) = live.troubles()
        assert (trouble.code, trouble.agent) == ("device-failed", "Gauge/a")
        assert trouble.startswith("sensor level of Gauge/a fails, 11 times by now: OSError: no bus")
        await asyncio.sleep(1)
        (later,) = live.troubles()
        assert later == trouble.replace("11 times", "12 times")  # one trouble, whatever each failure says
        assert live.standing().troubles == [later]
        assert later.past.startswith("sensor level of Gauge/a failed 12 times in a row: OSError: no bus")
        broken = False
        await asyncio.sleep(5)
        assert live.troubles() == [later], "nothing was read"
        has_reading = True
        await asyncio.sleep(1)
        assert live.troubles() == []

    play(fleet, main, agents=("Gauge/a",))


def test_that_a_shard_is_lost_is_no_fault_of_a_sensor(caplog: pytest.LogCaptureFixture) -> None:
    fleet = declare()

    @fleet.sensor(Gauge, every_s=0.1)
    async def level(gauge: str) -> Measured:
        return Measured(percent=1.0)

    async def main(node: SimNode) -> None:
        live = await node.start()
        await asyncio.sleep(0.55)
        live.host.retire(NotOwned("another may have it"))
        await asyncio.sleep(5)
        assert counters_of(node)["failed"] > 0
        assert live.troubles() == []
        assert "another may have it" not in caplog.text
        await node.lose_power()

    play(fleet, main, agents=("Gauge/a",))
