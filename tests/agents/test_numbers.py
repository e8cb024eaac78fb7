"""Values keep the type of their field, or the input fails; a handler that cannot go wrong pays nothing."""

from __future__ import annotations

import enum
import re
from types import SimpleNamespace
from typing import Any

import pytest

from stigmergy.agents.agent import Agent
from stigmergy.agents.codec import encode
from stigmergy.agents.messages import Event
from stigmergy.agents.plans import keep_types, plain_fields, plan_agent


class Measured(Event):
    level: float = 0.0
    count: int = 0
    flag: bool = False
    near: float | None = None
    legs: tuple[int, ...] = ()


class Tank(Agent):
    level: float = 0.0
    count: int = 0
    height: float | None = None
    name: str = ""
    mark: bytes | None = None
    share: float | str = 0.0
    code: int | str = 0
    legs: tuple[int, ...] = ()

    def helped(self) -> None:
        self.level = 1


def same(self: Tank, event: Measured) -> None:
    self.level = event.level
    if self.level > 3:
        self.count = event.count
    self.name = "x"
    self.height = event.near
    self.height = event.level
    self.legs = event.legs
    self.mark = b"a"


def literal(self: Tank, event: Measured) -> None:
    self.level = 0


def other_field(self: Tank, event: Measured) -> None:
    self.level = event.count


def flag(self: Tank, event: Measured) -> None:
    self.count = event.flag


def augmented(self: Tank, event: Measured) -> None:
    self.level += event.count


def either(self: Tank, event: Measured) -> None:
    self.level = 0 if event.flag else event.level


def optional(self: Tank, event: Measured) -> None:
    self.height = event.count or None


def through_a_method(self: Tank, event: Measured) -> None:
    self.helped()


def given_away(self: Tank, event: Measured) -> None:
    setattr(self, "level", event.count)  # noqa: B010


def inside(self: Tank, event: Measured) -> None:
    def assign() -> None:
        self.level = 5

    assign()


def measured_for_a_count(self: Tank, event: Measured) -> None:
    self.count = event.level  # type: ignore[assignment]


def swapped(self: Tank, event: Measured) -> None:
    self.level, self.count = self.count, self.count


def reads_time(self: Tank, event: Measured) -> None:
    self.level = self.now
    self.name = self.address


def test_which_fields_hold_plain_values() -> None:
    assert plain_fields(Tank) == {
        "id": (str,),
        "level": (float,),
        "count": (int,),
        "height": (float, type(None)),
        "name": (str,),
        "mark": (bytes, type(None)),
        "share": (float, str),
        "code": (int, str),
    }


def test_a_handler_that_takes_over_fields_of_the_same_type_is_left_alone() -> None:
    assert keep_types(same, Tank, Measured) is same


@pytest.mark.parametrize(
    "handler",
    [
        literal,
        other_field,
        flag,
        augmented,
        either,
        optional,
        through_a_method,
        given_away,
        inside,
        measured_for_a_count,
        swapped,
        reads_time,
    ],
)
@pytest.mark.parametrize("event", [Measured(level=2.5, count=7, flag=True), Measured()])
def test_numbers_have_the_type_of_their_field_afterwards(handler: Any, event: Measured) -> None:
    tank = Tank()
    evolve = keep_types(handler, Tank, Measured)
    assert evolve is not handler
    evolve(tank, event)
    assert type(tank.level) is float
    assert type(tank.count) is int
    assert tank.height is None or type(tank.height) is float


def only_a_text(self: Tank, event: Measured) -> None:
    self.name = "x"


def only_a_field(self: Tank, event: Measured) -> None:
    self.level = event.level


@pytest.mark.parametrize("handler", [only_a_text, only_a_field])
def test_the_shortest_handlers_are_looked_through(handler: Any) -> None:
    assert keep_types(handler, Tank, Measured) is handler


def twice(self: Tank, event: Measured) -> None:
    self.name = "x"
    self.level += event.count
    self.height = self.level


@pytest.mark.parametrize("handler", [literal, other_field, augmented, twice])
def test_a_handler_pays_only_for_what_it_assigns(handler: Any) -> None:
    tank = Tank(count=True)
    keep_types(handler, Tank, Measured)(tank, Measured(count=3))
    assert type(tank.level) is float
    assert tank.count is True, "another field is not looked at"


def text_for_a_number(self: Tank, event: Measured) -> None:
    self.level = "high"  # type: ignore[assignment]


def nothing_for_a_number(self: Tank, event: Measured) -> None:
    self.level = event.near  # type: ignore[assignment]


def number_for_a_text(self: Tank, event: Measured) -> None:
    self.name = event.count  # type: ignore[assignment]


def object_in_an_optional_field(self: Tank, event: Measured) -> None:
    self.height = object()  # type: ignore[assignment]


def number_for_bytes(self: Tank, event: Measured) -> None:
    self.mark = 5  # type: ignore[assignment]


def text_of_digits_for_a_count(self: Tank, event: Measured) -> None:
    self.count = "5"  # type: ignore[assignment]


def measured_for_a_code(self: Tank, event: Measured) -> None:
    self.code = event.level  # type: ignore[assignment]


def tuple_for_a_text(self: Tank, event: Measured) -> None:
    self.name = event.legs  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (text_for_a_number, "Tank.level is declared as float and was given a str"),
        (nothing_for_a_number, "Tank.level is declared as float and was given a NoneType"),
        (number_for_a_text, "Tank.name is declared as str and was given a int"),
        (object_in_an_optional_field, "Tank.height is declared as float | None and was given a object"),
        (number_for_bytes, "Tank.mark is declared as bytes | None and was given a int"),
        (text_of_digits_for_a_count, "Tank.count is declared as int and was given a str"),
        (measured_for_a_code, "Tank.code is declared as int | str and was given a float"),
        (tuple_for_a_text, "Tank.name is declared as str and was given a tuple"),
    ],
)
def test_what_can_be_no_value_of_its_field_fails_the_input(handler: Any, said: str) -> None:
    with pytest.raises(TypeError, match=re.escape(said)):
        keep_types(handler, Tank, Measured)(Tank(), Measured())


class Grade(enum.IntEnum):
    GOOD = 2


class Colour(str, enum.Enum):  # noqa: UP042  # formats itself unlike its value
    RED = "red"


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("mark", bytearray(b"x")),
        ("mark", memoryview(b"x")),
        ("share", 3),
        ("share", True),
        ("share", Grade.GOOD),
        ("code", True),
        ("code", Grade.GOOD),
        ("name", Colour.RED),
    ],
)
def test_a_value_is_now_what_it_would_be_after_a_restart(field: str, given: Any) -> None:
    """A bytearray would even be shared with the image to go back to, and a boolean is no number when read back."""

    def assign(self: Tank, event: Measured) -> None:
        setattr(self, field, given)

    tank = Tank()
    keep_types(assign, Tank, Measured)(tank, Measured())
    value, again = getattr(tank, field), getattr(plan_agent(Tank).restore(encode(tank)), field)
    assert (type(value), value) == (type(again), again)


def test_an_event_of_another_name_is_not_the_one_that_was_given() -> None:
    def renamed(self: Tank, event: Any) -> None:
        event = SimpleNamespace(level=event.count)
        self.level = event.level

    tank = Tank()
    keep_types(renamed, Tank, Measured)(tank, Measured(count=3))
    assert type(tank.level) is float
