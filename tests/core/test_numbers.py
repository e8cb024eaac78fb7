"""Numbers keep the type of their field, whatever a handler assigns; a handler that cannot go wrong pays nothing."""

from __future__ import annotations

from typing import Any

import pytest

from stigmergy.core.agent import Agent
from stigmergy.core.messages import Event
from stigmergy.core.numbers import keep_types, number_fields


class Measured(Event):
    level: float = 0.0
    count: int = 0
    flag: bool = False


class Tank(Agent):
    level: float = 0.0
    count: int = 0
    height: float | None = None
    name: str = ""

    def helped(self) -> None:
        self.level = 1


def same(self: Tank, event: Measured) -> None:
    self.level = event.level
    if self.level > 3:
        self.count = event.count
    self.name = "x"


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


def swapped(self: Tank, event: Measured) -> None:
    self.level, self.count = self.count, self.count


def reads_time(self: Tank, event: Measured) -> None:
    self.level = self.now
    self.name = self.address


def test_which_fields_hold_one_number() -> None:
    assert number_fields(Tank) == {"level": float, "count": int, "height": float}
    assert number_fields(Measured) == {"level": float, "count": int}


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


def test_what_is_no_number_is_left_to_the_snapshot_to_complain_about() -> None:
    def wrong(self: Tank, event: Measured) -> None:
        self.level = "high"  # type: ignore[assignment]

    tank = Tank()
    keep_types(wrong, Tank, Measured)(tank, Measured())
    assert tank.level == "high"  # type: ignore[comparison-overlap]
