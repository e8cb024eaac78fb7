"""Agents as classes: what is found in them, and what is refused while they are defined, with which words."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from msgspec import field

from stigmergy.agents.agent import Agent, AgentMeta, Rejection, decide, evolve, has_mutable_fields, react, reject
from stigmergy.agents.effects import Effects, Events, WindowClosed
from stigmergy.agents.messages import Action, Command, Event, transient
from stigmergy.agents.now import step_time_ns
from stigmergy.agents.plans import plan_agent
from stigmergy.agents.supervision import InputFailed
from stigmergy.base.errors import DefinitionError


class Start(Command):
    mission: str


class Started(Event):
    mission: str


class Stopped(Event):
    why: str = ""


class Seen(Event, keep=transient):
    what: str


class Land(Action):
    pass


class Drone(Agent):
    limit: ClassVar[int] = 3
    mission: str = ""

    @decide
    def start(self, command: Start) -> Events:
        yield Started(mission=command.mission)

    @evolve
    def changed(self, event: Started | Stopped) -> None:
        self.mission = event.mission if isinstance(event, Started) else ""

    @react
    def land(self, event: Stopped) -> Effects:
        yield Land()

    def spare(self) -> int:
        return self.limit


def test_handlers_are_found_by_the_message_they_are_for() -> None:
    handlers = Drone.__agent_handlers__
    assert set(handlers) == {Start, Started, Stopped}
    assert handlers[Start].decide is Drone.start
    assert handlers[Started].evolve is handlers[Stopped].evolve is Drone.changed
    assert handlers[Stopped].react is Drone.land
    assert handlers[Started].react is None


def test_handlers_are_inherited_and_may_be_overridden() -> None:
    class Fast(Drone):
        speed: float = 0.0

        @decide
        def start(self, command: Start) -> Events:
            yield Started(mission=command.mission.upper())

    assert Fast.__agent_handlers__[Start].decide is Fast.start
    assert Fast.__agent_handlers__[Stopped].react is Drone.land
    assert Fast.__agent_kind__ == "Fast"


def test_an_override_without_its_mark() -> None:
    with pytest.raises(DefinitionError, match=r"Slow\.start: overrides a handler of Drone; mark it with @decide"):

        class Slow(Drone):
            def start(self, command: Start) -> Events:
                return ()


def test_classes_and_messages_inside_a_function() -> None:
    class Here(Event):
        x: int

    class Local(Agent):
        x: int = 0

        @evolve
        def here(self, event: Here) -> None:
            self.x = event.x

    assert set(Local.__agent_handlers__) == {Here}


def test_kind_and_version_are_said_by_the_class() -> None:
    class Renamed(Agent, kind="Old", version=4):
        pass

    assert (Renamed.__agent_kind__, Renamed.__agent_version__) == ("Old", 4)
    assert Renamed(id="x").address == "Old/x"


def test_now_is_the_time_of_the_step() -> None:
    token = step_time_ns.set(1_500_000_000)
    assert Drone().now == 1.5
    step_time_ns.reset(token)


def test_reject_raises_with_its_reason() -> None:
    with pytest.raises(Rejection) as caught:
        reject("no wind")
    assert caught.value.reason == "no wind"


def test_a_state_is_not_carried_over_by_itself() -> None:
    assert Drone.upcast_state(1, {}) is None


def test_mutable_fields() -> None:
    class Listed(Agent):
        items: list[int] = field(default_factory=list)

    assert has_mutable_fields(Listed)
    assert not has_mutable_fields(Drone)


def test_only_what_can_be_in_a_cycle_is_left_to_the_garbage_collector() -> None:
    class Flat(Agent):
        pair: tuple[int, int] = (0, 0)

    class Listed(Agent):
        items: list[int] = field(default_factory=list)

    class Inherits(Listed):
        n: int = 0

    class Both(Flat):
        items: list[int] = field(default_factory=list)

    assert [cls.__struct_config__.gc for cls in (Flat, Listed, Inherits, Both)] == [False, True, True, True]


def test_a_kind_is_as_long_as_an_address_allows() -> None:
    class Longest(Agent, kind="k" * 64):
        pass

    class Shortest(Agent, kind="k"):
        pass

    assert (len(Longest.__agent_kind__), Shortest.__agent_version__) == (64, 1)
    for kind in ("k" * 65, "k/k", "kü"):
        with pytest.raises(DefinitionError, match="is no kind of agent"):
            AgentMeta("Wrong", (Agent,), {}, kind=kind)


def test_two_handlers_for_one_message() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Twice(Agent):
            @evolve
            def one(self, event: Started) -> None: ...

            @evolve
            def other(self, event: Stopped | Started) -> None: ...

    text = str(caught.value)
    assert "Twice.other:" in text
    assert "Twice.one handles Started with @evolve already; merge the two methods" in text


def test_a_field_without_default() -> None:
    with pytest.raises(DefinitionError, match=r"Bare\.height: a state field needs a default, .* write height: … = …"):

        class Bare(Agent):
            height: float


def test_a_mutable_default() -> None:
    with pytest.raises(DefinitionError, match=r"Shares\.items: the default \{\} is mutable .*default_factory=dict"):

        class Shares(Agent):
            items: dict[str, int] = {}  # noqa: RUF012


@pytest.mark.parametrize("name", ["id", "now", "address"])
def test_a_name_that_every_agent_has(name: str) -> None:
    names: dict[str, Any] = {"Agent": Agent, "__name__": __name__}
    with pytest.raises(DefinitionError, match=rf"Own\.{name}: every agent has {name} already; choose another name"):
        exec(f"class Own(Agent):\n    {name}: str = ''", names)


def test_a_message_of_the_wrong_kind() -> None:
    with pytest.raises(DefinitionError, match=r"W\.start: Start is not a message class; @evolve handles events"):

        class W(Agent):
            @evolve
            def start(self, command: Start) -> None: ...

    with pytest.raises(DefinitionError, match=r"X\.land: Land is not a message class; @decide handles commands and"):

        class X(Agent):
            @decide
            def land(self, action: Land) -> Events:
                return ()

    with pytest.raises(DefinitionError, match=r"Y\.text: str is not a message class; @react handles events"):

        class Y(Agent):
            @react
            def text(self, event: Started | str) -> Effects:
                return ()

    with pytest.raises(DefinitionError, match=r"Z\.listed: list\[.*\] is not a message class|Z\.listed: list is not"):

        class Z(Agent):
            @react
            def listed(self, event: list[Started]) -> Effects:
                return ()


def test_an_annotation_that_is_missing() -> None:
    with pytest.raises(DefinitionError, match=r"U\.start: annotate 'event' with the message that this handler is for"):

        class U(Agent):
            @evolve
            def start(self, event) -> None:  # type: ignore[no-untyped-def]
                ...


def test_an_annotation_of_an_unknown_type() -> None:
    with pytest.raises(DefinitionError, match=r"V\.start: the annotation names 'Begun', which is not defined; define"):

        class V(Agent):
            @evolve
            def start(self, event: Begun) -> None:  # type: ignore[name-defined]  # noqa: F821
                ...


def test_the_wrong_number_of_arguments() -> None:
    with pytest.raises(DefinitionError, match=r"N\.start: a @evolve handler takes self and one message, not 1"):

        class N(Agent):
            @evolve  # type: ignore[type-var]
            def start(self) -> None: ...

    with pytest.raises(DefinitionError, match=r"K\.start: a @decide handler takes self and one message, not 3"):

        class K(Agent):
            @decide
            def start(self, command: Start, *, force: bool = False) -> Events:
                return ()


def test_a_handler_that_waits() -> None:
    with pytest.raises(DefinitionError, match=r"A\.start: a @decide handler waits for nothing; take the async away"):

        class A(Agent):
            @decide  # type: ignore[type-var]
            async def start(self, command: Start) -> None:
                return None

    with pytest.raises(DefinitionError, match="take the async away"):

        class B(Agent):
            @react
            async def started(self, event: Started) -> Any:
                yield Land()


def test_an_evolve_that_yields() -> None:
    with pytest.raises(DefinitionError, match=r"E\.started: an @evolve handler only assigns; yield effects from a @re"):

        class E(Agent):
            @evolve
            def started(self, event: Started) -> Any:
                yield Land()


def test_a_mark_on_something_else() -> None:
    with pytest.raises(DefinitionError, match="put it directly above a method that is written with def"):

        class S(Agent):
            @decide  # type: ignore[type-var]
            @staticmethod
            def start(command: Start) -> Events:
                return ()


def test_a_transient_event_is_not_evolved() -> None:
    with pytest.raises(DefinitionError, match=r"T\.seen: Seen is transient, and state made from it would be lost on"):

        class T(Agent):
            @evolve
            def seen(self, event: Seen) -> None: ...


def test_facts_of_the_framework_are_not_decided() -> None:
    with pytest.raises(DefinitionError, match=r"F\.failed: InputFailed is a fact of the framework and kept"):

        class F(Agent):
            @decide
            def failed(self, event: InputFailed) -> Events:
                return ()

    with pytest.raises(DefinitionError, match=r"G\.closed: WindowClosed is a fact"):

        class G(Agent):
            @decide
            def closed(self, event: WindowClosed) -> Events:
                return ()


def set_plainly(self: Any, command: Start) -> Events:
    self.mission = command.mission
    return ()


def set_augmented(self: Any, command: Start) -> Events:
    self.count += 1
    return ()


def set_in_a_tuple(self: Any, command: Start) -> Events:
    self.mission, other = command.mission, 1
    del other
    return ()


def deleted(self: Any, command: Start) -> Events:
    del self.mission
    return ()


def set_though_captured(self: Any, command: Start) -> Events:
    self.mission = ""
    return [Started(mission=self.mission + str(number)) for number in range(3)]


@pytest.mark.parametrize("method", [set_plainly, set_augmented, set_in_a_tuple, deleted, set_though_captured])
@pytest.mark.parametrize("role", [decide, react])
def test_assigning_state_where_it_may_not_be(method: Any, role: Any) -> None:
    if role is react:
        method = type(method)(method.__code__, method.__globals__, method.__name__)
        method.__annotations__ = {"command": Started}
    names = {"mission": str, "count": int}
    with pytest.raises(DefinitionError) as caught:
        AgentMeta("Assigns", (Agent,), {"__annotations__": names, "mission": "", "count": 0, "start": role(method)})
    text = str(caught.value)
    assert "Assigns.start: assigns self." in text
    assert f"a @{role.__name__} handler may not change the state; yield an event and assign in its @evolve" in text


def test_assigning_something_else_is_fine() -> None:
    class Fine(Agent):
        count: int = 0

        @decide
        def start(self, command: Start) -> Events:
            other = Drone()
            other.mission = command.mission
            count = self.count
            count += 1
            other.mission += str(count)
            yield Started(mission=other.mission)

    assert Start in Fine.__agent_handlers__


def test_a_handler_may_begin_with_an_empty_tuple() -> None:
    class Forgetful(Agent):
        trail: tuple[str, ...] = ()

        @evolve
        def stopped(self, event: Stopped) -> None:
            self.trail = ()

    assert plan_agent(Forgetful).handles(Stopped)
