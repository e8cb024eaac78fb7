"""Intent, act, confirm: asked first, asked afterwards, given up in time; refusals, fences, and who makes safe."""

import asyncio
import itertools
from typing import Any

import pytest

from stigmergy.agents.agent import Agent, evolve, react
from stigmergy.agents.effects import ActionDone, ActionFailed, Effects, Order, OrderClaim, WorkFailed
from stigmergy.agents.messages import Action, Event, Work
from stigmergy.agents.supervision import SafeAction, WhenStale
from stigmergy.app.fleet import Fleet
from stigmergy.base.errors import ClaimLapsed, ConfigError, DefinitionError, DeviceRefused
from stigmergy.devices.actuators import confirmed
from stigmergy.node.declaration import Declaration
from stigmergy.node.settings import Settings
from stigmergy.sim.node import SimNode
from tests.node.rig import play


class Wanted(Event):
    gear: str


class Asked(Event):
    pass


class Lower(Action):
    gear: str


class Plan(Work):
    pass


class Plane(Agent):
    done: int = 0
    failed: tuple[str, ...] = ()

    @react
    def lower(self, event: Wanted) -> Effects:
        yield Lower(gear=event.gear)

    @react
    def plan(self, event: Asked) -> Effects:
        yield Plan()

    @evolve
    def lowered(self, event: ActionDone) -> None:
        self.done += 1

    @evolve
    def not_lowered(self, event: ActionFailed) -> None:
        self.failed = (*self.failed, event.reason)

    @evolve
    def not_planned(self, event: WorkFailed) -> None:
        self.failed = (*self.failed, event.reason)


class Gear:
    """A landing gear that takes its time, may stick, and can be looked at."""

    def __init__(self, *, takes_s: float = 0.5, sticks: int = 0) -> None:
        self.takes_s = takes_s
        self.sticks = sticks
        self.orders: list[Order[Lower]] = []
        self.looked = 0
        self.down_at_s: float | None = None

    async def lower(self, order: Order[Lower]) -> None:
        self.orders.append(order)
        if len(self.orders) > self.sticks and self.down_at_s is None:
            self.down_at_s = asyncio.get_running_loop().time() + self.takes_s

    def is_down(self, order: Order[Lower]) -> bool:
        self.looked += 1
        return self.down_at_s is not None and asyncio.get_running_loop().time() >= self.down_at_s

    async def is_down_slowly(self, order: Order[Lower]) -> bool:
        await asyncio.sleep(0.01)
        return self.is_down(order)


def fly(gear: Gear, *, slowly: bool = False, **options: Any) -> Declaration:
    fleet = Declaration("planes", agents=[Plane], settings=Settings(effect_pause_s=0.1))
    fleet.actuator(Lower, confirm=gear.is_down_slowly if slowly else gear.is_down, **options)(gear.lower)
    return fleet


async def lowered(node: SimNode, seconds: float = 30.0) -> Any:
    live = await node.start()
    await live.observe("Plane/a", Wanted(gear="main"))
    await asyncio.sleep(seconds)
    return live.query("Plane/a")


@pytest.mark.parametrize("slowly", [False, True])
def test_an_action_is_done_when_the_world_says_so(slowly: bool) -> None:
    gear = Gear(takes_s=3.0)
    done: list[float] = []

    async def main(node: SimNode) -> Any:
        live = await node.start()
        await live.observe("Plane/a", Wanted(gear="main"))
        for _ in range(1_000):
            await asyncio.sleep(0.01)
            if live.query("Plane/a").done:
                break
        done.append(asyncio.get_running_loop().time())

    play(fly(gear, slowly=slowly), main)
    assert done == [pytest.approx(3.1, abs=0.15)]
    assert len(gear.orders) == 1


def test_what_is_not_seen_in_time_is_tried_again_with_the_same_key() -> None:
    gear = Gear(sticks=2)
    plane = play(fly(gear, tries=3, within_s=1.0), lowered)
    assert (plane.done, plane.failed) == (1, ())
    assert [order.attempt for order in gear.orders] == [1, 2, 3]
    assert len({order.key for order in gear.orders}) == 1


def test_what_is_never_seen_fails_as_an_input() -> None:
    gear = Gear(sticks=100)
    plane = play(fly(gear, tries=2, within_s=1.0), lowered)
    assert plane.failed == ("no answer within 1 s, after 2 tries",)
    assert len(gear.orders) == 2


def test_what_is_so_already_is_not_done_again() -> None:
    gear = Gear()
    gear.down_at_s = 0.0
    plane = play(fly(gear), lowered)
    assert plane.done == 1
    assert gear.orders == []


def test_after_a_crash_the_world_is_asked_before_anything_is_repeated() -> None:
    gear = Gear(takes_s=1.0)

    async def main(node: SimNode) -> Any:
        live = await node.start()
        await live.observe("Plane/a", Wanted(gear="main"))
        await asyncio.sleep(0.5)
        assert len(gear.orders) == 1
        await node.lose_power()
        await asyncio.sleep(2.0)
        live = await node.start()
        await asyncio.sleep(1.0)
        return live.query("Plane/a")

    assert play(fly(gear), main).done == 1
    assert len(gear.orders) == 1, "the gear was down when it was asked"


def test_a_confirmation_that_fails_counts_as_a_failed_try() -> None:
    fleet = Declaration("planes", agents=[Plane], settings=Settings(effect_pause_s=0.01))

    def broken(order: Order[Lower]) -> bool:
        raise OSError("no camera")

    @fleet.actuator(Lower, tries=2, confirm=broken)
    def lower(order: Order[Lower]) -> None:
        return

    assert play(fleet, lowered).failed == ("OSError: no camera, after 2 tries",)


def test_a_device_that_refuses_is_not_asked_again() -> None:
    fleet = Declaration("planes", agents=[Plane])
    orders: list[int] = []

    @fleet.actuator(Lower)
    async def lower(order: Order[Lower]) -> None:
        orders.append(order.attempt)
        raise DeviceRefused("too fast for the gear")

    plane = play(fleet, lowered)
    assert plane.failed == ("too fast for the gear",)
    assert orders == [1]


def test_each_actuator_has_its_own_patience() -> None:
    fleet = Declaration("planes", agents=[Plane], settings=Settings(effect_tries=9, effect_pause_s=0.01))
    tried: list[float] = []

    @fleet.actuator(Lower, tries=1, within_s=0.5)
    async def lower(order: Order[Lower]) -> None:
        tried.append(asyncio.get_running_loop().time())
        await asyncio.sleep(3600)

    @fleet.worker(Plan, tries=2, within_s=0.25)
    async def plan(order: Order[Plan]) -> Wanted:
        await asyncio.sleep(3600)
        return Wanted(gear="never")

    async def main(node: SimNode) -> Any:
        live = await node.start()
        await live.observe("Plane/a", Asked())
        await live.observe("Plane/b", Wanted(gear="main"))
        await asyncio.sleep(2.0)
        return live.query("Plane/a").failed + live.query("Plane/b").failed

    assert play(fleet, main) == ("no answer within 0.25 s, after 2 tries", "no answer within 0.5 s, after 1 try")
    assert len(tried) == 1


class Landed(Event):
    pass


class Land(Action):
    pass


class Glider(Agent):
    silent = WhenStale(Landed, after_s=1.0, then=Land())


class Balloon(Agent):
    safe = SafeAction(then=Land())


def test_a_safe_action_acts_before_it_asks_and_is_tried_until_it_is_so() -> None:
    fleet = Declaration("gliders", agents=[Glider], settings=Settings(effect_pause_s=0.1))
    log: list[str] = []

    def is_down(order: Order[Land]) -> bool:
        log.append("ask")
        return log.count("act") == 2

    @fleet.actuator(Land, tries=3, within_s=0.25, confirm=is_down)
    def land(order: Order[Land]) -> None:
        log.append("act")

    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.observe("Glider/a", Landed())
        await asyncio.sleep(5.0)
        assert live.standing().counters["safe_failed"] == 0

    play(fleet, main)
    assert log[0] == "act"
    assert log.count("act") == 2


@pytest.mark.parametrize("agent", [Glider, Balloon])
async def test_a_safe_action_that_nobody_carries_out_is_found_at_the_start(agent: type[Agent], tmp_path: Any) -> None:
    fleet = Fleet("gliders", agents=[agent])
    journal = tmp_path / "gliders.db"
    words = rf"{agent.__name__} is to be made safe by Land, and nobody carries that out; .*@fleet.actuator\(Land\)"
    with pytest.raises(ConfigError, match=words):
        async with fleet.running(journal=f"sqlite:{journal}"):
            pass
    assert not journal.exists(), "nothing was begun"
    fleet.no_actuator(Land, because="the ground station flies nothing")
    async with fleet.running(journal="memory:"):
        pass


def test_without_a_reason_nobody_is_excused() -> None:
    with pytest.raises(DefinitionError, match="say why"):
        Declaration("gliders", agents=[Glider]).no_actuator(Land, because=" ")


@pytest.mark.parametrize(("tries", "within_s"), [(0, None), (1_001, None), (None, 0.0), (None, float("nan"))])
def test_patience_that_cannot_be_meant_is_refused(tries: int | None, within_s: float | None) -> None:
    fleet = Declaration("gliders", agents=[Glider])
    with pytest.raises(DefinitionError, match="Land: "):
        fleet.actuator(Land, tries=tries, within_s=within_s)(lambda order: None)


def test_pauses_grow_only_so_far() -> None:
    fleet = Declaration("planes", agents=[Plane], settings=Settings(effect_pause_s=1.0))
    tried: list[float] = []

    @fleet.actuator(Lower, tries=8)
    def lower(order: Order[Lower]) -> None:
        tried.append(asyncio.get_running_loop().time())
        raise OSError("jammed")

    assert play(fleet, lambda node: lowered(node, 60.0)).failed == ("OSError: jammed, after 8 tries",)
    assert [round(after - before) for before, after in itertools.pairwise(tried)] == [1, 2, 4, 5, 5, 5, 5]


async def test_a_claim_that_ends_while_the_world_is_asked_is_not_acted_on() -> None:
    """To ask first whether it is so already takes its time; the claim is looked at once more before the act."""
    acted: list[str] = []
    held = [True]

    async def is_so(order: Order[Any]) -> bool:
        held[0] = False
        return bool(acted)

    claim = OrderClaim("dock", "dock-2", 41, until_ns=1, left_s=1.0, asked=lambda: held[0])
    order = Order("Plane/a", Lower(gear="left"), "k", 7, 1, claim=claim)
    with pytest.raises(ClaimLapsed, match="the claim on dock-2 under fencing token 41 is not held any more"):
        await confirmed(lambda order: acted.append(order.key), is_so)(order)
    assert acted == []
