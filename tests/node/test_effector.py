"""What leaves: order, repetitions with the same key, time limits, results as inputs, and hands of every kind."""

import asyncio
from typing import Any

import pytest

from stigmergy.agents.agent import Agent, decide, evolve, react
from stigmergy.agents.confirmations import Done, Failed
from stigmergy.agents.effects import ActionDone, ActionFailed, Effects, Events, Order, Publish, WorkFailed
from stigmergy.agents.messages import Action, Command, Event, Work
from stigmergy.base.errors import DeviceRefused
from stigmergy.node.declaration import Declaration
from stigmergy.node.settings import Settings
from stigmergy.sim.disk import DiskFault
from stigmergy.sim.node import SimNode
from tests.node.rig import play


class Wanted(Event):
    number: int


class Asked(Event):
    number: int


class Told(Event):
    number: int


class Press(Action):
    number: int


class Compute(Work):
    number: int


class Computed(Event):
    number: int


class Go(Command):
    count: int


class Robot(Agent):
    done: int = 0
    failed: tuple[str, ...] = ()
    computed: tuple[int, ...] = ()

    @decide
    def go(self, command: Go) -> Events:
        for number in range(1, command.count + 1):
            yield Wanted(number=number)

    @react
    def press(self, event: Wanted) -> Effects:
        yield Press(number=event.number)

    @react
    def compute(self, event: Asked) -> Effects:
        yield Compute(number=event.number)

    @react
    def publish(self, event: Told) -> Effects:
        yield Publish("news", event)

    @evolve
    def pressed(self, event: ActionDone) -> None:
        self.done += 1

    @evolve
    def not_pressed(self, event: ActionFailed) -> None:
        self.failed = (*self.failed, event.reason)

    @evolve
    def got(self, event: Computed) -> None:
        self.computed = (*self.computed, event.number)

    @evolve
    def got_nothing(self, event: WorkFailed) -> None:
        self.failed = (*self.failed, event.reason)


QUICK = Settings(effect_tries=3, effect_within_s=1.0, effect_pause_s=0.1, drain_s=5.0)


def declare() -> Declaration:
    return Declaration("robots", agents=[Robot])


async def settled(node: SimNode) -> Any:
    """Waits until nothing is owed; returns the robot."""
    live = node.live
    assert live is not None
    for _ in range(2_000):
        await asyncio.sleep(0.01)
        if not live.standing().owed:
            await asyncio.sleep(0.01)
            return live.query(live.agents()[0])
    raise AssertionError(f"still owed: {live.standing()}")


async def started(node: SimNode, **observed: Event) -> SimNode:
    live = await node.start()
    for event in observed.values():
        await live.observe("Robot/a", event)
    return node


def test_effects_of_one_agent_are_carried_out_in_order_however_long_each_takes() -> None:
    fleet = declare()
    carried: list[int] = []

    @fleet.actuator(Press)
    async def press(order: Order[Press]) -> None:
        await asyncio.sleep(0.3 if order.effect.number % 2 else 0.001)
        carried.append(order.effect.number)

    async def main(node: SimNode) -> Any:
        live = await node.start()
        await live.send("Robot/a", Go(count=6))
        await live.send("Robot/a", Go(count=3))
        return await settled(node)

    robot = play(fleet, main, settings=QUICK)
    assert carried == [1, 2, 3, 4, 5, 6, 1, 2, 3]
    assert robot.done == 9


class Careful(Agent):
    """Hears of each kind of effect by its type."""

    pressed: tuple[int, ...] = ()
    failed: tuple[str, ...] = ()

    @react
    def press(self, event: Wanted) -> Effects:
        yield Press(number=event.number)

    @react
    def compute(self, event: Asked) -> Effects:
        yield Compute(number=event.number)

    @evolve
    def done(self, event: Done[Press]) -> None:
        self.pressed = (*self.pressed, event.action.number)

    @evolve
    def not_done(self, event: Failed[Press]) -> None:
        self.failed = (*self.failed, f"Press {event.action.number}: {event.reason}")

    @evolve
    def not_computed(self, event: Failed[Compute]) -> None:
        self.failed = (*self.failed, f"Compute {event.action.number}: {event.reason}")


def test_confirmations_by_type_bring_the_action_back_also_after_a_restart() -> None:
    fleet = Declaration("robots", agents=[Careful])
    free = [asyncio.Event()]

    @fleet.actuator(Press)
    async def press(order: Order[Press]) -> None:
        if order.effect.number == 2:
            raise DeviceRefused("jammed")
        await free[0].wait()

    async def main(node: SimNode) -> Any:
        live = await node.start()
        for number in (1, 2, 3):
            await live.observe("Careful/a", Wanted(number=number))
        await live.observe("Careful/a", Asked(number=4))
        await asyncio.sleep(0.5)
        await node.lose_power()
        free[0].set()
        live = await node.start()
        await settled(node)
        lived = live.query("Careful/a", Careful)
        await node.lose_power()
        live = await node.start()
        assert live.query("Careful/a", Careful) == lived, "the log alone says what was confirmed"
        return lived

    careful = play(fleet, main, settings=Settings(effect_within_s=30.0))
    assert careful.pressed == (1, 3)
    assert sorted(careful.failed) == ["Compute 4: nobody is registered to carry out Compute@1", "Press 2: jammed"]


def test_effects_of_different_agents_go_side_by_side_up_to_the_limit() -> None:
    fleet = declare()
    at_once: list[int] = [0, 0]

    @fleet.actuator(Press)
    async def press(order: Order[Press]) -> None:
        at_once[0] += 1
        at_once[1] = max(at_once)
        await asyncio.sleep(0.1)
        at_once[0] -= 1

    async def main(node: SimNode) -> None:
        live = await node.start()
        await asyncio.gather(*(live.send(f"Robot/{number}", Go(count=3)) for number in range(10)))
        await settled(node)
        assert live.standing().counters["done"] == 30

    limited = Settings(effects_in_flight_max=4, effect_pause_s=0.01, drain_s=5.0)
    play(fleet, main, settings=limited)
    assert at_once == [0, 4]


def test_a_busy_agent_does_not_keep_the_place_from_those_who_wait() -> None:
    fleet = declare()
    carried: list[str] = []

    @fleet.actuator(Press)
    async def press(order: Order[Press]) -> None:
        await asyncio.sleep(0.01)
        carried.append(order.agent)

    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.send("Robot/busy", Go(count=50))
        await live.send("Robot/calm", Go(count=1))
        await settled(node)

    play(fleet, main, settings=Settings(effects_in_flight_max=1, drain_s=5.0))
    assert carried.index("Robot/calm") < 5


def test_slow_work_holds_up_no_action_of_the_same_agent_and_each_sink_keeps_its_order() -> None:
    fleet = declare()
    carried: list[tuple[str, int, float]] = []

    @fleet.actuator(Press)
    async def press(order: Order[Press]) -> None:
        await asyncio.sleep(0.2 if order.effect.number % 2 else 0.01)
        carried.append(("press", order.effect.number, asyncio.get_running_loop().time()))

    @fleet.worker(Compute)
    async def compute(order: Order[Compute]) -> Computed:
        await asyncio.sleep(20.0 if order.effect.number == 1 else 0.1)
        carried.append(("compute", order.effect.number, asyncio.get_running_loop().time()))
        return Computed(number=order.effect.number)

    async def main(node: SimNode) -> Any:
        await started(
            node, first=Asked(number=1), second=Asked(number=2), third=Wanted(number=1), last=Wanted(number=2)
        )
        await asyncio.sleep(1.0)
        assert [what for what, _, _ in carried] == ["press", "press"]
        await asyncio.sleep(30.0)
        return await settled(node)

    robot = play(fleet, main, settings=Settings(effect_within_s=60.0))
    assert [(what, number) for what, number, _ in carried] == [
        ("press", 1),
        ("press", 2),
        ("compute", 1),
        ("compute", 2),
    ]
    assert carried[1][2] < 1.0
    assert (robot.done, robot.computed) == (2, (1, 2))


def test_slow_work_of_all_agents_takes_no_place_of_an_action() -> None:
    """A fleet that plans its routes must still be able to land."""
    fleet = declare()
    pressed: list[float] = []

    @fleet.actuator(Press)
    async def press(order: Order[Press]) -> None:
        pressed.append(asyncio.get_running_loop().time())

    @fleet.worker(Compute)
    async def compute(order: Order[Compute]) -> Computed:
        await asyncio.sleep(20.0)
        return Computed(number=order.effect.number)

    async def main(node: SimNode) -> None:
        live = await node.start()
        for number in range(5):
            await live.observe(f"Robot/{number}", Asked(number=number))
        await live.observe("Robot/0", Wanted(number=1))
        await asyncio.sleep(1.0)
        assert len(pressed) == 1
        assert pressed[0] < 0.1
        await asyncio.sleep(100.0)
        assert live.standing().owed == 0

    play(fleet, main, settings=Settings(effects_in_flight_max=2, effect_within_s=60.0))


@pytest.mark.parametrize("failures", [1, 2])
@pytest.mark.parametrize("slow", [False, True])
def test_what_fails_is_tried_again_with_the_same_key_and_token(failures: int, slow: bool) -> None:
    fleet = declare()
    orders: list[Order[Press]] = []

    def act(order: Order[Press]) -> None:
        orders.append(order)
        if len(orders) <= failures:
            raise OSError("no answer")

    async def act_slowly(order: Order[Press]) -> None:
        await asyncio.sleep(0.01)
        act(order)

    fleet.actuator(Press)(act_slowly if slow else act)

    async def main(node: SimNode) -> Any:
        await started(node, event=Wanted(number=1))
        return await settled(node)

    robot = play(fleet, main, settings=QUICK)
    assert robot.done == 1
    assert not robot.failed
    assert len(orders) == failures + 1
    assert len({(order.key, order.token, order.sequence) for order in orders}) == 1
    assert [order.attempt for order in orders] == list(range(1, failures + 2))


def test_after_so_many_tries_the_agent_is_told_why() -> None:
    fleet = declare()

    @fleet.actuator(Press)
    def press(order: Order[Press]) -> None:
        raise OSError("jammed")

    async def main(node: SimNode) -> Any:
        await started(node, event=Wanted(number=1), more=Wanted(number=2))
        return await settled(node)

    robot = play(fleet, main, settings=QUICK)
    assert robot.done == 0
    assert robot.failed == ("OSError: jammed, after 3 tries",) * 2


def test_one_that_does_not_answer_is_given_up_after_its_time() -> None:
    fleet = declare()
    began: list[float] = []

    @fleet.actuator(Press)
    async def press(order: Order[Press]) -> None:
        began.append(asyncio.get_running_loop().time())
        await asyncio.sleep(3600)

    async def main(node: SimNode) -> Any:
        await started(node, event=Wanted(number=1))
        return await settled(node)

    robot = play(fleet, main, settings=QUICK)
    assert robot.failed == ("no answer within 1 s, after 3 tries",)
    assert [round(time, 1) for time in began] == [0.0, 1.1, 2.3]


def test_without_anybody_to_do_it_the_agent_is_told_at_once() -> None:
    async def main(node: SimNode) -> Any:
        await started(node, event=Wanted(number=1), work=Asked(number=1))
        return await settled(node)

    robot = play(declare(), main)
    assert robot.failed == (
        "nobody is registered to carry out Press@1",
        "nobody is registered to carry out Compute@1",
    )


def test_what_a_worker_returns_comes_back_as_an_input_and_is_kept() -> None:
    fleet = declare()

    @fleet.worker(Compute)
    async def compute(order: Order[Compute]) -> Computed:
        await asyncio.sleep(0.5)
        return Computed(number=order.effect.number * 2)

    async def main(node: SimNode) -> Any:
        await started(node, event=Asked(number=21))
        await settled(node)
        await node.lose_power()
        live = await node.start()
        return live.query("Robot/a")

    assert play(fleet, main).computed == (42,)


def test_a_plain_function_may_be_a_worker_too() -> None:
    fleet = declare()

    @fleet.worker(Compute)
    def compute(order: Order[Compute]) -> Computed:
        return Computed(number=order.effect.number + 1)

    async def main(node: SimNode) -> Any:
        await started(node, event=Asked(number=1), more=Asked(number=2))
        return await settled(node)

    assert play(fleet, main).computed == (2, 3)


@pytest.mark.parametrize("result", [None, 7, "text", Computed(number=2**80)])
def test_a_worker_that_returns_what_is_no_event_has_failed(result: Any) -> None:
    fleet = declare()

    @fleet.worker(Compute)
    def compute(order: Order[Compute]) -> Computed:
        return result  # type: ignore[no-any-return]

    async def main(node: SimNode) -> Any:
        await started(node, event=Asked(number=1))
        return await settled(node)

    robot = play(fleet, main, settings=QUICK)
    assert robot.computed == ()
    assert len(robot.failed) == 1


def test_publications_nobody_listens_to_are_settled() -> None:
    async def main(node: SimNode) -> Any:
        await started(node, event=Told(number=1))
        await settled(node)
        assert node.live is not None
        return node.live.standing().counters["unheard"]

    assert play(declare(), main) == 1


def test_a_crash_between_act_and_confirm_repeats_the_order_with_the_same_key() -> None:
    fleet = declare()
    keys: list[tuple[str, int, int]] = []

    @fleet.actuator(Press)
    async def press(order: Order[Press]) -> None:
        keys.append((order.key, order.token, order.sequence))
        await asyncio.sleep(0.5)

    async def main(node: SimNode) -> Any:
        await started(node, event=Wanted(number=1))
        await asyncio.sleep(0.1)
        await node.lose_power()
        await node.start()
        return await settled(node)

    robot = play(fleet, main)
    assert robot.done == 1
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_a_hand_that_gives_back_a_task_is_called_once() -> None:
    fleet = declare()
    calls: list[str] = []

    async def carry_out(order: Order[Press]) -> None:
        await asyncio.sleep(0.2)
        calls.append(order.key)

    @fleet.actuator(Press)
    def press(order: Order[Press]) -> Any:
        return asyncio.ensure_future(carry_out(order))

    async def main(node: SimNode) -> Any:
        await started(node, event=Wanted(number=1), more=Wanted(number=2))
        return await settled(node)

    assert play(fleet, main).done == 2
    assert len(calls) == 2


class Odd(BaseException):
    """What no program should raise."""


@pytest.mark.parametrize("error", [asyncio.CancelledError(), Odd("odd"), ValueError("\udcff")])
@pytest.mark.parametrize("slow", [False, True])
def test_whatever_a_hand_raises_its_agent_goes_on(error: BaseException, slow: bool) -> None:
    fleet = declare()
    calls = 0

    async def press(order: Order[Press]) -> None:
        nonlocal calls
        calls += 1
        if slow:
            await asyncio.sleep(0.01)
        if order.effect.number == 1:
            raise error

    fleet.actuator(Press)(press)

    async def main(node: SimNode) -> Any:
        await started(node, event=Wanted(number=1), more=Wanted(number=2))
        return await settled(node)

    robot = play(fleet, main, settings=QUICK)
    assert len(robot.failed) == 1
    assert robot.done == 1
    assert calls == 4


def test_when_the_journal_fails_nothing_more_is_begun_and_the_rest_follows_after_the_restart() -> None:
    fleet = declare()
    carried: list[int] = []

    @fleet.actuator(Press)
    async def press(order: Order[Press]) -> None:
        await asyncio.sleep(0.5)
        carried.append(order.effect.number)

    async def main(node: SimNode) -> Any:
        live = await node.start()
        await live.send("Robot/a", Go(count=4))
        await asyncio.sleep(0.7)
        node.disk.fail(node.disk.calls + 1, DiskFault.EIO)
        await live.wait_failure()
        seen = list(carried)
        await asyncio.sleep(5.0)
        assert len(carried) - len(seen) <= 1, "only what was under way is finished"
        await node.kill()
        await node.start()
        return await settled(node)

    assert play(fleet, main).done == 4
    assert sorted(set(carried)) == [1, 2, 3, 4]


class Button(Agent):
    pressed: int = 0

    @evolve
    def wanted(self, event: Wanted) -> None:
        self.pressed += 1

    @react
    def press(self, event: Wanted) -> Effects:
        yield Press(number=event.number)


def test_a_stop_writes_down_what_was_carried_out_in_its_last_moment() -> None:
    """Nobody waits for the result, so that it is told with the next turn, which must still come."""
    fleet = Declaration("buttons", agents=[Button])
    keys: list[str] = []

    @fleet.actuator(Press)
    def press(order: Order[Press]) -> None:
        keys.append(order.key)

    async def main(node: SimNode) -> None:
        live = await node.start()
        await live.observe("Button/a", Wanted(number=1))
        await node.stop()
        live = await node.start()
        assert live.standing().owed == 0
        await asyncio.sleep(1.0)

    play(fleet, main)
    assert len(keys) == 1
