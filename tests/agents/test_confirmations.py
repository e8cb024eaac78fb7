"""What comes back by type: handlers for one action, one work, one timer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stigmergy import (
    Action,
    ActionDone,
    ActionFailed,
    Agent,
    Command,
    Done,
    Effects,
    Event,
    Events,
    Failed,
    Timer,
    WakeMe,
    Woken,
    Work,
    WorkFailed,
    decide,
    evolve,
    react,
)
from stigmergy.agents.agent import AgentMeta
from stigmergy.agents.codec import encode
from stigmergy.agents.confirmations import woken_body
from stigmergy.agents.effects import ACTUATORS
from stigmergy.agents.messages import spec_of
from stigmergy.agents.plans import confirmation, plan_agent
from stigmergy.base.errors import DefinitionError
from stigmergy.shard.inputs import EffectSettled, TimerDue
from stigmergy.testing import given
from tests.shard.shards import Probe


class Plug(Action):
    dock: str


class Unplug(Action, version=2):
    dock: str


class Ring(Action):
    pass


class Plan(Work):
    goal: str


class Step(Timer):
    """The next step."""


class Rest(Timer, name="a rest"):
    """Time to rest."""


class Plugged(Event):
    dock: str


class Trouble(Event):
    what: str


class Go(Command):
    dock: str


class Went(Event):
    dock: str


class Cart(Agent):
    docks: tuple[str, ...] = ()
    rings: int = 0
    steps: int = 0
    others: tuple[str, ...] = ()

    @decide
    def go(self, command: Go) -> Events:
        yield Went(dock=command.dock)

    @react
    def begin(self, event: Went) -> Effects:
        yield Plug(dock=event.dock)
        yield Unplug(dock=event.dock)
        yield Ring()
        yield Plan(goal=event.dock)
        yield Step.wake(after_s=5)

    @decide
    def plugged(self, done: Done[Plug]) -> Events:
        yield Plugged(dock=done.action.dock)

    @evolve
    def charging(self, event: Plugged) -> None:
        self.docks = (*self.docks, event.dock)

    @evolve
    def unplugged(self, event: Done[Unplug]) -> None:
        self.docks = tuple(dock for dock in self.docks if dock != event.action.dock)

    @evolve
    def any_other(self, event: ActionDone) -> None:
        self.others = (*self.others, event.action)

    @decide
    def not_done(self, failed: Failed[Plug] | Failed[Unplug] | Failed[Plan]) -> Events:
        action: Any = failed.action
        yield Trouble(what=f"{type(action).__name__} {action}: {failed.reason}")

    @evolve
    def stepped(self, event: Woken[Step]) -> None:
        self.steps += 1

    @evolve
    def woken(self, event: Woken) -> None:
        self.others = (*self.others, event.name)


def confirm_all(probe: Probe) -> None:
    """Every action that the agent owes is done."""
    for pending in list(probe.state.outbox.owed()):
        if pending.sink == ACTUATORS:
            body = confirmation(probe.plans["Cart"], pending.body, ActionDone(action="X", key="k"))
            probe.take(EffectSettled(pending.sink, pending.sequence, body))


def test_each_action_comes_back_to_the_handler_for_its_type() -> None:
    probe = Probe(Cart)
    assert probe.ask("Cart/c", Go(dock="d-2"))
    confirm_all(probe)
    cart = probe.agent("Cart/c")
    assert (cart.docks, cart.others) == ((), ("X",)), "plugged, unplugged; Ring has no handler of its own"
    assert probe.replayed().agents["Cart/c"] == cart


def test_the_log_holds_the_action_itself() -> None:
    plan = plan_agent(Cart)
    body = confirmation(plan, encode(Unplug(dock="d-1")), ActionDone(action="Unplug", key="7.0.1.0"))
    assert body is not None
    done: Any = plan.decode(body)
    assert (type(done).__name__, done.action, done.key) == ("Done[Unplug]", Unplug(dock="d-1"), "7.0.1.0")
    assert isinstance(done, Done)
    assert spec_of(type(done)).tag == "stigmergy.Done.Unplug@2"
    assert encode(done) == body
    action = {"type": "Unplug@2", "dock": "d-1"}
    assert msgspec.msgpack.decode(body) == {"type": "stigmergy.Done.Unplug@2", "action": action, "key": "7.0.1.0"}
    failed: Any = plan.decode(
        confirmation(plan, encode(Plan(goal="g")), WorkFailed(work="Plan", key="k", reason="no map")) or b""
    )
    assert (failed.action, failed.key, failed.reason) == (Plan(goal="g"), "k", "no map")
    assert Done[Plug] is Done[Plug]


def test_without_handlers_for_them_all_is_as_before() -> None:
    class Old(Agent):
        @evolve
        def done(self, event: ActionDone) -> None:
            pass

    class Deaf(Agent):
        pass

    done, failed = ActionDone(action="Plug", key="k"), ActionFailed(action="Plug", key="k", reason="r")
    assert confirmation(plan_agent(Old), encode(Plug(dock="d")), done) == encode(done)
    assert confirmation(plan_agent(Deaf), encode(Plug(dock="d")), done) is None
    assert confirmation(plan_agent(Deaf), encode(Plug(dock="d")), failed) == encode(failed)
    assert woken_body(plan_agent(Old).known_tags, "Step") == encode(Woken(name="Step"))


def test_timers_by_type_and_by_name_side_by_side() -> None:
    assert Step.wake(after_s=5) == WakeMe(name="Step", after_s=5)
    assert (Rest.wake_at(at_s=9).name, Rest.cancel().name) == ("a rest", "a rest")
    probe = Probe(Cart)
    probe.ask("Cart/c", Go(dock="d"))
    (timer,) = probe.state.timers.all()
    commit = probe.take(TimerDue("Cart/c", "Step", timer.due_ns), at=200.0)
    assert commit.events == [("Cart/c", encode({"type": "stigmergy.Woken.Step@1", "name": "Step"}))]
    assert probe.agent("Cart/c").steps == 1


def test_a_log_of_woken_by_name_is_folded_by_the_handler_for_the_type() -> None:
    class Typed(Agent, kind="Stepper"):
        steps: int = 0

        @evolve
        def step(self, event: Woken[Step]) -> None:
            self.steps += 1

    plan = plan_agent(Typed)
    assert plan.decode_kept(encode(Woken(name="Step"))) == Woken[Step](name="Step")
    assert plan.decode_kept(encode(Woken(name="other"))) is None
    given(Typed, Woken(name="Step")).state(steps=1)
    given(Typed).when(Woken(name="Step")).state(steps=1)
    given(Typed).when(Woken(name="other")).failed("stigmergy.Woken@1")


def test_in_tests_confirmations_are_given_by_their_actions() -> None:
    given(Cart).when(Done(Plug(dock="d"))).then(Plugged(dock="d")).state(docks=("d",))
    given(Cart, Plugged(dock="d")).when(Done(Unplug(dock="d"))).then(Done(Unplug(dock="d"))).state(docks=())
    given(Cart).when(Done(Ring())).then(ActionDone(action="Ring")).state(others=("Ring",))
    given(Cart).when(Failed(Plan(goal="g"), reason="r")).then(Trouble(what="Plan Plan(goal='g'): r"))
    given(Cart).when(Go(dock="d")).later(seconds=5).state(steps=1)
    with pytest.raises(AssertionError, match=r"Cart has no handler for Failed\[Ring\] or ActionFailed"):
        given(Cart).when(Failed(Ring()))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Done[Plan]", "work comes back as the event that its worker returns"),
        ("Done[Action]", "name the class of one action"),
        ("Failed[Plugged]", "name the class of one action"),
        ("Done[Plug][Ring]", "it says already of what it is"),
        ("Woken['step']", r"Woken\['step'\]: name a timer by a class"),
        ("Woken[Timer]", "name a timer by a class"),
        ("Done", r"say of which action: Done\[Plug\]"),
        ("Failed", "ActionFailed is for all"),
    ],
)
def test_what_cannot_be_meant_is_refused(name: str, says: str) -> None:
    def handler(self: Any, event: Any) -> Any:
        return ()

    handler.__annotations__["event"] = name
    with pytest.raises(DefinitionError, match=says):
        AgentMeta("Wrong", (Agent,), {"handler": decide(handler), "__module__": __name__})


def test_a_timer_has_a_name() -> None:
    with pytest.raises(DefinitionError, match="a text without '@'"):
        type("Bad", (Timer,), {}, name="a@b")


def test_two_timers_with_one_name_are_refused() -> None:
    other = type("Other", (Timer,), {}, name="Step")

    class Both(Agent):
        @evolve
        def one(self, event: Woken[Step]) -> None:
            pass

        @evolve
        def two(self, event: Woken[other]) -> None:  # type: ignore[valid-type]
            pass

    with pytest.raises(DefinitionError, match=r"have the same tag stigmergy\.Woken\.Step@1"):
        plan_agent(Both)
