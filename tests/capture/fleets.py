"""A fleet whose events have fields of all kinds, and its log."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from stigmergy import Agent, Command, Event, Events, Fleet, decide, evolve
from stigmergy.capture.log import CapturedCommit, log_commits


class Gas(enum.Enum):
    NO2 = "no2"
    CO = "co"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(Struct, frozen=True):
    x: float
    y: float


class Everything(Event):
    """A field of each type that has a column of its own, and some that become JSON."""

    flag: bool
    count: int
    ratio: float
    text: str
    raw: bytes
    gas: Gas
    level: Level
    mode: Literal["auto", "hand"]
    at: datetime.datetime
    day: datetime.date
    took: datetime.timedelta
    key: uuid.UUID
    price: decimal.Decimal
    place: Point
    route: tuple[tuple[float, float], ...]
    names: Mapping[str, int]
    note: str | None = None
    either: int | str = 0


EVERYTHING = Everything(
    flag=True,
    count=-(2**63),
    ratio=0.1,
    text="tab\t, line\n, backslash \\N, quote ' \" and ü",
    raw=b"\x00\xff\\",
    gas=Gas.CO,
    level=Level.HIGH,
    mode="hand",
    at=datetime.datetime(2026, 11, 15, 8, 0, 0, 250_000, tzinfo=datetime.UTC),
    day=datetime.date(2026, 11, 15),
    took=datetime.timedelta(seconds=1.5),
    key=uuid.UUID(int=7),
    price=decimal.Decimal("12.50"),
    place=Point(1.0, -2.5),
    route=((0.0, 1.0), (2.0, 3.0)),
    names={"a": 1},
)


class Measured(Event):
    number: int
    label: str = ""


class Archived(Event):
    """Only yielded: no agent handles it."""

    number: int


class Archive(Command):
    number: int


class Meter(Agent):
    last: int = 0

    @evolve
    def measured(self, event: Measured) -> None:
        self.last = event.number

    @evolve
    def everything(self, event: Everything) -> None:
        self.last += 1

    @decide
    def archive(self, command: Archive) -> Events:
        yield Archived(number=command.number)


def declare(shards: int = 1) -> Fleet:
    return Fleet("meters", agents=[Meter], shards=shards)


async def log_of(fleet: Fleet, folder: Path, events: list[Event | Command], agents: int = 3) -> list[CapturedCommit]:
    """The commits that these inputs make."""
    async with fleet.running(journal=f"sqlite:{folder / 'meters.db'}") as live:
        reader = live.host.feed.reader({})
        for number, event in enumerate(events):
            if isinstance(event, Command):
                await live.send(f"Meter/{number % agents}", event)
            else:
                await live.observe(f"Meter/{number % agents}", event)
        found: list[CapturedCommit] = []
        while commits := await reader.read_commits(0.0):
            found += log_commits(commits)
        await reader.close()
    return found
