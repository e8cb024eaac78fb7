"""Agent classes made ready to run: dispatch, decoders, and what is refused before anything runs."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Struct, field

from stigmergy.agents.agent import Agent, decide, evolve, react
from stigmergy.agents.codec import encode
from stigmergy.agents.effects import ActionDone, Effects, Events, TellFailed, WindowClosed, Woken
from stigmergy.agents.messages import Action, Command, Event, Keeping, latest, spec_of, transient, upcast, within
from stigmergy.agents.plans import plan_agent
from stigmergy.agents.supervision import FRAMEWORK_EVENTS, GO_ON, InputFailed, SafeAction, Supervise, WhenStale
from stigmergy.agents.windows import Window
from stigmergy.base.errors import DefinitionError, Malformed, UnknownTag
from stigmergy.shard.state import plan_agents


class Go(Command):
    n: int = 0


class Went(Event):
    n: int = 0


class Felt(Event, keep=within(seconds=2)):
    n: int = 0


class Newest(Event, keep=latest):
    n: int = 0


class Glimpsed(Event, keep=transient):
    n: int = 0


class OldV1(Event, name="Aged", version=1):
    n: int


class Aged(Event, name="Aged", version=2):
    n: int
    unit: str


@upcast
def aged_1_to_2(old: OldV1) -> Aged:
    if old.n < 0:
        raise ValueError("below zero")
    return Aged(n=old.n, unit="m")


class Land(Action):
    pass


class Rover(Agent):
    n: int = 0
    recent: Window[Felt] = Window.last(2)
    minute: Window[Felt] = Window.tumbling(seconds=60)

    safe = WhenStale(Went, after_s=1, then=Land())

    @decide
    def go(self, command: Go) -> Events:
        yield Went(n=command.n)

    @evolve
    def went(self, event: Went) -> None:
        self.n = event.n

    @evolve
    def aged(self, event: Aged) -> None:
        self.n = event.n

    @react
    def glimpsed(self, event: Glimpsed) -> Effects:
        yield Land()


PLAN = plan_agent(Rover)


def test_each_message_type_has_its_plan() -> None:
    assert PLAN.plans[Go].decide is Rover.go
    assert PLAN.plans[Go].is_command
    assert (PLAN.plans[Felt].promise, PLAN.plans[Felt].wait_ns) == (Keeping.WITHIN, 2_000_000_000)
    assert PLAN.plans[Felt].windows == ("recent", "minute")
    assert PLAN.tumbling == ("minute",)
    assert PLAN.plans[Went].watched
    assert not PLAN.plans[Felt].watched
    assert all(event in PLAN.plans for event in (*FRAMEWORK_EVENTS, WindowClosed))


def test_only_what_is_kept_as_it_is_takes_the_short_path() -> None:
    plain = {message for message, plan in PLAN.plans.items() if plan.plain}
    assert plain == {Went, Aged}


def test_a_type_that_is_only_yielded_gets_a_plan_without_handlers() -> None:
    plan = plan_agent(Rover)
    assert not plan.handles(Newest)
    assert plan.plan_for(Newest).promise is Keeping.LATEST
    assert plan.plan_for(Newest) is plan.plan_for(Newest)
    assert not plan.handles(Newest)
    assert plan.handles(Went)
    assert not plan.handles(Felt)


def test_a_yielded_type_with_the_tag_of_another() -> None:
    class Went(Event):
        other: int = 0

    with pytest.raises(TypeError, match=r"Went has the tag Went@1 of another message that Rover handles; give one of"):
        PLAN.written(Went())


def test_an_event_that_survives_its_bytes_is_seen_as_a_replay_will_see_it() -> None:
    event, body = PLAN.written(Went(n=3))
    assert (event, body) == (Went(n=3), encode(Went(n=3)))
    unknown = Newest(n="x")  # type: ignore[arg-type]
    assert PLAN.written(unknown)[0] is unknown
    assert PLAN.written(OldV1(n=3))[0] == Aged(n=3, unit="m")
    with pytest.raises(TypeError, match="Went cannot be read back from its own bytes: Expected `int`, got `str`"):
        PLAN.written(Went(n="x"))  # type: ignore[arg-type]


def test_old_versions_are_decoded_as_new_ones() -> None:
    assert PLAN.decode(encode(OldV1(n=5))) == Aged(n=5, unit="m")
    assert {"Aged@1", "Aged@2"} <= PLAN.known_tags


def test_an_upcaster_that_fails_makes_the_message_undecodable() -> None:
    with pytest.raises(msgspec.ValidationError, match="its upcaster failed with ValueError: below zero"):
        PLAN.decode(encode(OldV1(n=-1)))
    with pytest.raises(msgspec.ValidationError, match="below zero"):
        PLAN.decode_kept(encode(OldV1(n=-1)))


def test_a_kept_event_that_nothing_is_for_any_more_is_passed_over() -> None:
    assert PLAN.decode_kept(encode(Newest())) is None
    with pytest.raises(msgspec.ValidationError):
        PLAN.decode_kept(msgspec.msgpack.encode({"type": "Went@1", "n": "x"}))


def test_what_cannot_be_decoded_is_explained() -> None:
    assert isinstance(PLAN.explain(encode(Newest()), ValueError("?")), UnknownTag)
    text = str(PLAN.explain(encode(Newest()), ValueError("?")))
    assert text.startswith("Rover has no handler for Newest@1; it knows Aged@1, Aged@2, Felt@1, Glimpsed@1, Go@1, Went")
    assert isinstance(PLAN.explain(b"\xc1", ValueError("?")), Malformed)
    assert "a message without a type for Rover does not decode: ?" in str(PLAN.explain(b"\xc1", ValueError("?")))


def test_a_confirmation_without_handler_may_be_ignored() -> None:
    assert PLAN.may_ignore(encode(ActionDone(action="a", key="k")))
    assert PLAN.may_ignore(encode(TellFailed(to="Cart/c1", message="Pinged", reason="away")))
    assert not PLAN.may_ignore(encode(Went()))

    class Hears(Agent):
        @react
        def done(self, event: ActionDone) -> Effects:
            return ()

    assert not plan_agent(Hears).may_ignore(encode(ActionDone(action="a", key="k")))


def test_an_agent_is_copied_deeply_where_it_must_be() -> None:
    class Listed(Agent):
        items: list[int] = field(default_factory=list)

    shallow, agent = PLAN.copy, Rover(id="a", n=3)
    assert shallow(agent) == agent
    assert shallow(agent) is not agent
    listed = Listed(items=[1])
    copied = plan_agent(Listed).copy(listed)
    copied.items.append(2)
    assert listed.items == [1]


def test_only_what_can_be_changed_in_place_is_copied() -> None:
    class Depot(Agent):
        name: str = ""
        stock: dict[str, tuple[int, ...]] | None = None
        shelves: dict[str, list[int]] = field(default_factory=dict)

    class Yard(Agent):
        stock: dict[str, tuple[int, ...]] = field(default_factory=dict)
        gates: Annotated[set[str], "open"] = field(default_factory=set)

    depot = Depot(stock={"a": (1,)}, shelves={"top": [1]})
    copied = plan_agent(Depot).copy(depot)
    copied.shelves["top"].append(2)
    assert depot.shelves == {"top": [1]}
    kept = (1, 2)
    yard = Yard(stock={"a": kept}, gates={"north"})
    image = plan_agent(Yard).copy(yard)
    yard.stock["b"] = (3,)
    yard.gates.add("south")
    assert (image.stock, image.gates) == ({"a": (1, 2)}, {"north"})
    assert image.stock["a"] is kept, "what cannot be changed is the very same"


def test_a_state_that_has_no_bytes_is_copied_all_the_same() -> None:
    class Listed(Agent):
        items: list[Any] = field(default_factory=list)

    listed = Listed(items=[{1, 2}, 2**70])
    copied = plan_agent(Listed).copy(listed)
    assert copied == listed
    assert copied.items is not listed.items


def test_declarations_are_found_and_inherited() -> None:
    assert [rule.event for rule in PLAN.stale_rules] == [Went]
    assert PLAN.supervision is GO_ON

    class Strict(Rover):
        supervision = Supervise(stop_after=2)
        calm = SafeAction(then=Land())
        safe = WhenStale(Felt, after_s=3, then=Land())

    plan = plan_agent(Strict)
    assert plan.supervision.stop_after == 2
    assert [rule.event for rule in plan.stale_rules] == [Felt]
    assert plan.safe_actions == (SafeAction(then=Land()),)

    class Relaxed(Strict):
        safe = None  # type: ignore[assignment]

    assert plan_agent(Relaxed).stale_rules == ()


def test_only_an_agent_with_a_tumbling_window_hears_of_closings() -> None:
    class Slides(Agent):
        last: Window[Went] = Window.last(3)
        recent: Window[Went] = Window.sliding(seconds=3)

    class Tumbles(Slides):
        minute: Window[Went] = Window.tumbling(seconds=60)

    tag = spec_of(WindowClosed).tag
    assert (plan_agent(Slides).tumbling, tag in plan_agent(Slides).known_tags) == ((), False)
    assert (plan_agent(Tumbles).tumbling, tag in plan_agent(Tumbles).known_tags) == (("minute",), True)


def test_the_layout_tells_states_apart() -> None:
    class One(Agent, kind="Same"):
        a: int = 0

    class Two(Agent, kind="Same"):
        a: float = 0

    class Three(Agent, kind="Same"):
        a: int = 1

    layouts = {plan_agent(cls).layout for cls in (One, Two, Three)}
    assert len(layouts) == 3
    assert plan_agent(One).layout == plan_agent(One).layout


ROVER = """
from __future__ import annotations
from dataclasses import dataclass
from typing import NamedTuple, Optional, Union
from msgspec import Struct
from stigmergy import Agent, Event, Window
from stigmergy.agents.plans import plan_agent

class Felt(Event):
    why: str
    n: int = 0

class Angle(Struct, frozen=True):
    deg: float

class Pose(Struct, frozen=True):
    x: float = 0.0
    angle: Angle | None = None
    next: Pose | None = None

@dataclass(frozen=True)
class Cell:
    volts: float

class Fix(NamedTuple):
    east: float

class Rover(Agent):
    recent: Window[Felt] = Window.last(3)
    pose: Pose = Pose()
    before: tuple[Pose, ...] = ()
    goal: Pose | None = None
    speed: int | float | str = 0
    cells: tuple[Cell, ...] = ()
    fix: Fix | None = None

LAYOUT = plan_agent(Rover).layout.hex()
if __name__ == "__main__":
    print(LAYOUT)
"""


def layout_of(text: str, name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The layout of a rover that is defined in a module of this name."""
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(text, module.__dict__)
    return str(module.__dict__["LAYOUT"])


def test_the_layout_is_the_same_for_a_script_and_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It once held the module's name: a fleet that was tried as a script could not use its snapshots as a module."""
    script = tmp_path / "rover.py"
    script.write_text(ROVER)
    said = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=240).stdout
    assert said.strip() == layout_of(ROVER, "rover", monkeypatch) == layout_of(ROVER, "fleet.rover", monkeypatch)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Window[Felt]", "Window[Other]"),
        ("pose: Pose = Pose()", "pose: Pose | None = Pose()"),
        ("tuple[Pose, ...]", "tuple[Felt, ...]"),
        ("goal: Pose | None", "goal: Felt | None"),
        ("int | float | str", "int | float"),
        ("speed:", "pace:"),
        ("x: float = 0.0", "x: float | None = 0.0"),
        ("class Pose(Struct, frozen=True)", "class Pose(Struct, frozen=True, tag='P')"),
        ("    deg: float", "    deg: int"),
        ("    volts: float", "    amps: float"),
        ("    east: float", "    east: int"),
        ("    why: str", "    why: bytes"),
    ],
)
def test_the_layout_is_another_one_when_a_type_inside_changes(
    before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert before in ROVER
    other = ROVER.replace("class Pose(", "class Other(Event):\n    n: int = 0\n\nclass Pose(").replace(before, after)
    assert layout_of(other, "rover", monkeypatch) != layout_of(ROVER, "rover", monkeypatch)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Pose | None", "None | Pose"),
        ("Pose | None", "Optional[Pose]"),
        ("int | float | str", "str | int | float"),
        ("int | float | str", "Union[float, str, int]"),
    ],
)
def test_the_order_in_a_union_is_no_matter_of_the_layout(
    before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = ROVER.replace(before, after)
    assert same != ROVER
    assert layout_of(same, "rover", monkeypatch) == layout_of(ROVER, "rover", monkeypatch)


def test_a_message_inside_a_state_may_get_a_field_with_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    wider = ROVER.replace("    n: int = 0", "    n: int = 0\n    at_s: float = 0.0")
    assert layout_of(wider, "rover", monkeypatch) == layout_of(ROVER, "rover", monkeypatch)


def test_the_layout_of_a_state_with_nothing_inside_is_what_it_always_was() -> None:
    class Flat(Agent):
        a: int = 0
        b: tuple[str, ...] = ()

    assert plan_agent(Flat).layout.hex() == "14c4a3a77c37136567dac6639244e7f9"


def test_two_classes_of_one_kind() -> None:
    class Other(Agent, kind="Rover"):
        pass

    with pytest.raises(DefinitionError, match=r"two agent classes of kind 'Rover': .*Rover and .*Other; give one"):
        plan_agents([Rover, Other])


def test_two_messages_with_one_tag() -> None:
    class Doubled(Event, name="Went"):
        pass

    class Both(Agent):
        @evolve
        def one(self, event: Went) -> None: ...

        @evolve
        def two(self, event: Doubled) -> None: ...

    with pytest.raises(DefinitionError, match=r"Both: .*Doubled and .*Went have the same tag Went@1; give one"):
        plan_agent(Both)


def test_a_handler_for_an_old_version() -> None:
    class Backward(Agent):
        @evolve
        def old(self, event: OldV1) -> None: ...

    with pytest.raises(DefinitionError, match="Backward: handles Aged@1, which an upcaster carries to Aged@2; handle"):
        plan_agent(Backward)


def test_a_field_whose_default_is_missing_after_all() -> None:
    class Required(Agent):
        a: int = field()

    with pytest.raises(DefinitionError, match=r"Required\(\) raises TypeError: .*; an agent exists from"):
        plan_agent(Required)


def test_a_field_of_an_unknown_type() -> None:
    class Unsure(Agent):
        a: Whatever = 0  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(DefinitionError, match="Unsure: the annotation names 'Whatever', which is not defined; define"):
        plan_agent(Unsure)


def test_a_window_of_a_transient_event() -> None:
    class Glimpses(Agent):
        seen: Window[Glimpsed] = Window.last(2)

    with pytest.raises(DefinitionError, match="seen: a window of Glimpsed@1, which is transient; keep it, or window"):
        plan_agent(Glimpses)


def test_a_window_by_a_field_that_is_not_there() -> None:
    class Timed(Agent):
        seen: Window[Went] = Window.sliding(seconds=2, by="at_s")

    with pytest.raises(DefinitionError, match=r"Timed\.seen: Went has no field 'at_s' to take the time from; it has n"):
        plan_agent(Timed)


def test_a_window_of_nothing_in_particular() -> None:
    class Bare(Agent):
        seen: Window = Window.last(2)  # type: ignore[type-arg]

    class Optional(Agent):
        seen: Window[Went] | None = Window.last(2)

    class OfCommands(Agent):
        seen: Window[Go] = Window.last(2)  # type: ignore[type-var]

    for cls in (Bare, Optional, OfCommands):
        with pytest.raises(DefinitionError, match=r"\.seen: annotate it with Window\[…\] of one event type"):
            plan_agent(cls)


class Unreadable:
    pass


def test_a_state_that_cannot_be_written() -> None:
    class Odd(Agent):
        a: Any = field(default_factory=Unreadable)

    with pytest.raises(DefinitionError, match=r"Odd: its state cannot be written and read back .*; use numbers"):
        plan_agent(Odd)


def test_types_that_only_a_function_knows() -> None:
    class Pose(Struct, frozen=True):
        x: float = 0.0

    class Posed(Event):
        pose: Pose

    class Hidden(Agent):
        @evolve
        def posed(self, event: Posed) -> None: ...

    class HiddenState(Agent):
        pose: Pose = Pose()

    with pytest.raises(DefinitionError, match=r"Hidden: its messages cannot be decoded .*at the top of a module"):
        plan_agent(Hidden)
    with pytest.raises(DefinitionError, match=r"HiddenState: its state cannot be written .*at the top of a module"):
        plan_agent(HiddenState)


def test_a_handler_without_evolve_is_left_alone() -> None:
    class Only(Agent):
        n: int = 0

        @react
        def woken(self, event: Woken) -> Effects:
            return ()

        @evolve
        def failed(self, event: InputFailed) -> None:
            self.n += 1

    plan = plan_agent(Only)
    assert plan.plans[Woken].evolve is None
    assert plan.plans[InputFailed].evolve is not Only.failed
