"""Checked agents: the user's own code on the interpreted engine, failing where the compiled one does."""

from __future__ import annotations

import math
import struct
import traceback
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta

from rigs.checked import checked, whole
from stigmergy import Action, Agent, Command, Effects, Event, Events, decide, evolve, react
from stigmergy.agents.codec import canonical_bytes, encode
from stigmergy.agents.plans import plan_agent
from stigmergy.base.errors import DefinitionError
from stigmergy.testing import given
from tests.compiled.agents import Counter, Enter, Fed, Lock, Mode, Narrow, Relay, Start, Telemetry, Thermostat

NEGATIVE_NAN = struct.unpack("<d", bytes.fromhex("010000000000f8ff"))[0]
BIG = 2**62


class Numbers(Event):
    a: int = 0
    b: int = 0
    x: float = 0.0


class Decide(Command):
    a: int = 0
    x: float = 0.0


class Decided(Event):
    level: Annotated[int, Meta(ge=0, le=100)]
    x: Annotated[float, Meta(gt=-10.0, lt=10.0)]
    y: float = 0.0


class Act(Action):
    level: Annotated[int, Meta(gt=-1, lt=101)]
    x: float


def doubled(value: int) -> int:
    return value + value


class Calculator(Agent):
    """Does one piece of arithmetic for each value of `level`."""

    level: Annotated[int, Meta(ge=0, lt=8)] = 0
    wide: int = 0
    x: Annotated[float, Meta(ge=-1e300, le=1e300)] = 0.0
    y: float = 0.0

    def product(self, a: int, b: int) -> int:
        return a * b

    @evolve
    def numbers(self, event: Numbers) -> None:
        self.y = event.x

    @decide
    def choose(self, command: Decide) -> Events:
        yield Decided(command.a, command.x, y=command.a)

    @react
    def act(self, event: Decided) -> Effects:
        yield Act(level=event.level * 2, x=event.level)


Checked = checked(Calculator)


def test_it_is_the_same_agent_to_everybody_else() -> None:
    assert issubclass(Checked, Calculator)
    assert Checked.__name__ == "Calculator"
    assert (Checked.__agent_kind__, Checked.__agent_version__) == ("Calculator", 1)
    assert canonical_bytes(Checked(wide=3)) == canonical_bytes(Calculator(wide=3))
    assert plan_agent(Checked).layout == plan_agent(Calculator).layout
    assert list(Checked.__agent_handlers__) == list(Calculator.__agent_handlers__)


@pytest.mark.parametrize("cls", [Telemetry, Thermostat, Counter, Relay, Lock, Narrow])
def test_every_example_can_be_checked(cls: type[Agent]) -> None:
    assert plan_agent(checked(cls)).layout == plan_agent(cls).layout


@pytest.mark.parametrize(
    ("expression", "fits", "too_much"),
    [
        ("e.a + e.b", (BIG, BIG - 1), (BIG, BIG)),
        ("e.a - e.b", (-BIG, BIG), (BIG, -BIG)),
        ("e.a * e.b", (-BIG, 2), (BIG, 2)),
        ("-e.a", (1 - 2 * BIG, 0), (-2 * BIG, 0)),
        ("abs(e.a)", (1 - 2 * BIG, 0), (-2 * BIG, 0)),
        ("e.a // e.b", (-2 * BIG, 1), (-2 * BIG, -1)),
        ("doubled(e.a)", (BIG - 1, 0), (BIG, 0)),
        ("float(e.a + e.b)", (BIG, BIG - 1), (BIG, BIG)),
    ],
)
def test_arithmetic_beyond_64_bits_fails(
    expression: str, fits: tuple[int, int], too_much: tuple[int, int], tmp_path: Path
) -> None:
    computing = compute(expression, tmp_path)
    a, b = fits
    assert computing.run(Numbers(a, b)) == eval(expression, {"e": Numbers(a, b), "doubled": doubled})
    with pytest.raises(OverflowError, match=r"^an int outside of -2\^63 to 2\^63 - 1$"):
        computing.run(Numbers(*too_much))


def compute(expression: str, tmp_path: Path) -> Any:
    """A checked agent with a method `run` that returns this expression of an event `e`."""
    file = tmp_path / "computing.py"
    file.write_text(
        "import math\nfrom stigmergy import Agent\n\n\ndef doubled(value):\n    return value + value\n\n\n"
        f"class Computing(Agent):\n    def run(self, e):\n        return {expression}\n"
    )
    names: dict[str, Any] = {"__name__": "computing"}
    exec(compile(file.read_text(), str(file), "exec"), names)
    return checked(names["Computing"])()


@pytest.mark.parametrize("name", ["int", "math.floor", "math.ceil", "math.trunc"])
def test_a_float_made_an_int_beyond_64_bits_fails(name: str, tmp_path: Path) -> None:
    computing = compute(f"{name}(e.x)", tmp_path)
    assert computing.run(Numbers(x=-(2.0**63))) == -(2**63)
    assert computing.run(Numbers(x=2.0**63 - 1024.0)) == 2**63 - 1024
    with pytest.raises(OverflowError, match=r"^a float outside of -2\^63 to 2\^63 - 1, made an int$"):
        computing.run(Numbers(x=2.0**63))
    with pytest.raises(OverflowError, match="cannot convert float infinity to integer"):
        computing.run(Numbers(x=math.inf))
    with pytest.raises(ValueError, match="cannot convert float NaN to integer"):
        computing.run(Numbers(x=math.nan))


def test_what_is_no_int_is_let_through() -> None:
    assert whole(1e300) == 1e300
    assert whole(True) is True
    with pytest.raises(OverflowError):
        whole(2**63)


def test_a_field_of_the_state_keeps_its_bounds() -> None:
    agent = Checked()
    agent.level = 7
    with pytest.raises(OverflowError, match=r"^Calculator\.level: outside of 0 to 7$"):
        agent.level = 8
    with pytest.raises(OverflowError, match=r"^Calculator\.wide: outside of -9223372036854775808 to"):
        agent.wide = 2**63
    with pytest.raises(ValueError, match=r"^Calculator\.x: outside of its bounds$"):
        agent.x = math.inf
    with pytest.raises(ValueError, match=r"^Calculator\.x: outside of its bounds$"):
        agent.x = math.nan
    assert (agent.level, agent.wide, agent.x) == (7, 0, 0.0)


def test_what_is_stored_in_a_float_field_is_a_float_and_one_nan() -> None:
    agent: Any = Checked()
    agent.y = 3
    assert type(agent.y) is float
    agent.y = NEGATIVE_NAN
    assert struct.pack("<d", agent.y) == struct.pack("<d", math.nan)


def test_a_decided_event_has_floats_and_keeps_its_bounds() -> None:
    given(Checked).when(Decide(a=3, x=1.5)).then(Decided(level=3, x=1.5, y=3.0), Act(level=6, x=3))
    given(Checked).when(Decide(a=101, x=99.0)).failed("OverflowError: Decided.level: outside of 0 to 100")
    given(Checked).when(Decide(a=100, x=10.0)).failed("ValueError: Decided.x: outside of its bounds")
    given(Checked).when(Decide(a=51, x=0.0)).failed("OverflowError: Act.level: outside of 0 to 100")
    (event,) = Checked().choose(Decide(a=3, x=0.0))
    assert b"\xa1y" + encode(3.0) in encode(event)


def test_in_an_effect_an_int_stays_an_int() -> None:
    effect: Any = next(iter(Checked().act(Decided(level=3, x=0.0))))
    assert type(effect.x) is int


def test_a_fault_names_the_line_of_the_source() -> None:
    with pytest.raises(OverflowError) as caught:
        Checked().product(BIG, 2)
    frame = traceback.extract_tb(caught.value.__traceback__)[-2]
    assert (frame.filename, frame.line) == (__file__, "return a * b")


def test_inherited_methods_properties_and_enclosing_names_are_checked_too() -> None:
    limit = BIG

    class Base(Agent):
        total: int = 0

        @property
        def beyond(self) -> int:
            return limit + limit

        @evolve
        def numbers(self, event: Numbers) -> None:
            self.total += self.beyond // 4 * event.a

    class Derived(Base):
        @react
        def act(self, event: Numbers) -> Effects:
            yield Act(level=doubled(event.b), x=1.0)

    agent = checked(Derived)()
    with pytest.raises(OverflowError):
        agent.numbers(Numbers(a=1))
    with pytest.raises(OverflowError):
        list(agent.act(Numbers(b=BIG)))


def test_examples_fail_where_ints_end() -> None:
    narrow = (
        given(checked(Narrow)).when(Fed(byte=255, small=100, at=0)).failed("Narrow.word: outside of -32768 to 32767")
    )
    narrow.state(byte=0, small=0, word=0)
    given(checked(Counter)).when(Start(rounds=256)).failed("OverflowError: Started.rounds: outside of 0 to 255")
    given(checked(Lock)).when(Enter(mode=Mode.FLYING, key=Lock.MASTER)).state(mode=Mode.FLYING)


def test_without_its_source_a_class_cannot_be_checked() -> None:
    names: dict[str, Any] = {"__name__": "nowhere"}
    exec("from stigmergy import Agent\nclass A(Agent):\n    def run(self): return 1", names)
    with pytest.raises(DefinitionError, match=r"nowhere\.A\.run: its source is not there; define it in a file"):
        checked(names["A"])
