"""A fleet with every kind of field that has a mapping."""

import datetime
import enum
import uuid
from collections.abc import Mapping
from typing import Literal, NamedTuple

from msgspec import Struct, field

import stigmergy as st


class Phase(enum.Enum):
    GREEN = "g"
    RED = "r"


class Point(Struct, frozen=True):
    lat: float
    lon: float


class Circle(Struct, frozen=True, tag=True):
    radius: float


class Box(Struct, frozen=True, tag=True):
    a: Point
    b: Point


class Pair(NamedTuple):
    x: int
    y: str


class Node(Struct, frozen=True):
    name: str
    below: "tuple[Node, ...]" = ()


class FlyTo(st.Command):
    to: Point
    limit: int | None
    via: tuple[Point, ...] = ()
    area: Circle | Box | None = None
    phase: Phase = Phase.RED
    when: datetime.datetime | None = None
    mode: str | None = "fast"
    grid: tuple[tuple[int, ...], ...] = ()
    names: Mapping[str, int] = field(default_factory=dict)
    zones: Mapping[int, Point] = field(default_factory=dict)
    raw: bytes = b""
    tags: tuple[str, ...] = ("a",)
    which: int | str | bool = 0
    pair: Pair = Pair(1, "a")
    corner: tuple[float, float] = (0.0, 0.0)
    mixed: tuple[int, str] = (0, "")
    order: uuid.UUID | None = None
    tree: Node | None = None
    maybe: tuple[int | None, ...] = ()
    word: Literal["a", "b"] = "a"
    altitude_m: float = 10.0


class Flown(st.Event):
    to: Point


class Drone(st.Agent):
    at: Point = Point(0.0, 0.0)
    phase: st.Shared[st.LWWRegister[Phase]]
    crossing: st.Ordered[st.Claim]
    last: st.Window[Flown] = st.Window.last(3)

    @st.decide
    def fly(self, command: FlyTo) -> st.Events:
        yield Flown(to=command.to)

    @st.evolve
    def flown(self, event: Flown) -> None:
        self.at = event.to


fleet = st.Fleet("delivery", agents=[Drone])
