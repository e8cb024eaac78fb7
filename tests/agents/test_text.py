"""Texts become fields by the types that a message declares; what does not fit is named."""

import enum
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import pytest

from stigmergy import Agent, Command, Event, Events, decide, evolve
from stigmergy.agents.plans import plan_agent
from stigmergy.agents.text import phrase, signature_of
from stigmergy.base.errors import Malformed, UnknownTag


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Point(msgspec.Struct, frozen=True):
    x: float
    y: float = 0.0


class Set(Command):
    text: str = ""
    count: int = 0
    share: float = 0.0
    on: bool = False
    colour: Colour = Colour.RED
    point: Point = Point(0.0)
    points: tuple[Point, ...] = ()
    table: Mapping[str, int] = msgspec.field(default_factory=dict)
    data: bytes = b""
    at: datetime | None = None
    maybe: int | None = None
    small: Annotated[int, msgspec.Meta(le=10)] = 0


class Changed(Event, name="lamp.Changed", version=2):
    on: bool


class Lamp(Agent):
    on: bool = False

    @decide
    def set(self, command: Set) -> Events:
        yield Changed(on=command.on)

    @evolve
    def changed(self, event: Changed) -> None:
        self.on = event.on


PLAN = plan_agent(Lamp)

TEXTS: list[tuple[str, str, Any]] = [
    ("text", "12", "12"),
    ("text", "", ""),
    ("text", '{"x": 1}', '{"x": 1}'),
    ("count", "-7", -7),
    ("share", "12", 12.0),
    ("share", "1e3", 1000.0),
    ("on", "true", True),
    ("on", "0", False),
    ("colour", "green", Colour.GREEN),
    ("point", '{"x": 1}', Point(1.0)),
    ("points", '[{"x": 1, "y": 2}]', (Point(1.0, 2.0),)),
    ("table", '{"a": 1}', {"a": 1}),
    ("data", "aGk=", b"hi"),
    ("at", "2026-11-15T08:00:00Z", datetime(2026, 11, 15, 8, tzinfo=UTC)),
    ("maybe", "null", None),
    ("maybe", "5", 5),
    ("small", "10", 10),
]

MISFITS: list[tuple[str, str]] = [
    ("count", "many"),
    ("count", "1.5"),
    ("count", ""),
    ("on", "maybe"),
    ("colour", "blue"),
    ("point", '{"y": 1}'),
    ("points", "[1, 2"),
    ("small", "11"),
    ("data", "not base64!"),
]


@pytest.mark.parametrize(("name", "text", "value"), TEXTS)
def test_texts(name: str, text: str, value: Any) -> None:
    assert getattr(phrase(PLAN, Command, "Set", {}, {name: text}), name) == value


@pytest.mark.parametrize(("name", "text"), MISFITS)
def test_misfits_are_named(name: str, text: str) -> None:
    with pytest.raises(Malformed, match=f"Set: {name}="):
        phrase(PLAN, Command, "Set", {}, {name: text})


def test_values_are_taken_strictly() -> None:
    assert phrase(PLAN, Command, "Set", {"count": 3}, {}) == Set(count=3)
    with pytest.raises(Malformed, match='Set: count="3" does not fit, it is of type int'):
        phrase(PLAN, Command, "Set", {"count": "3"}, {})


def test_names_and_tags() -> None:
    for name in ("Changed", "lamp.Changed", "lamp.Changed@2"):
        assert phrase(PLAN, Event, name, {}, {"on": "1"}) == Changed(on=True)
    with pytest.raises(UnknownTag, match=r"Lamp has no event 'Set'; it knows Changed\(on: bool\)"):
        phrase(PLAN, Event, "Set", {}, {})
    with pytest.raises(UnknownTag, match=r"Lamp has no command 'lamp\.Changed'"):
        phrase(PLAN, Command, "lamp.Changed", {}, {})


def test_missing_unknown_and_doubled_fields() -> None:
    with pytest.raises(Malformed, match=r"'on' is missing; it is Changed\(on: bool\)"):
        phrase(PLAN, Event, "Changed", {}, {})
    with pytest.raises(Malformed, match="has no field 'off'"):
        phrase(PLAN, Event, "Changed", {}, {"off": "1"})
    with pytest.raises(Malformed, match="'on' is given twice"):
        phrase(PLAN, Event, "Changed", {"on": True}, {"on": "1"})


def test_a_long_text_is_not_repeated_whole() -> None:
    with pytest.raises(Malformed) as caught:
        phrase(PLAN, Command, "Set", {}, {"count": "x" * 10_000})
    assert len(str(caught.value)) < 300


def test_signatures() -> None:
    shown = signature_of(Set)
    assert shown.startswith("Set(text: str = '', count: int = 0, share: float = 0.0, on: bool = False, ")
    assert "table: collections.abc.Mapping[str, int] = …" in shown
