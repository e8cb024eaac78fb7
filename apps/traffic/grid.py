"""The names of intersections and what follows from them: street, avenue, neighbours, how far apart they are.

`r2c5` stands where row 2, a street, meets column 5, an avenue. Nobody needs a map of the grid: who else is on one's
street is known from what they share there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

Axis = Literal["street", "avenue"]
"""Along which of its two roads something moves."""
AXES: tuple[Axis, ...] = ("street", "avenue")
_NAME = re.compile(r"r(\d{1,4})c(\d{1,4})", re.ASCII)


def place_of(name: str) -> tuple[int, int]:
    """Row and column of an intersection. Raises ValueError for a name that is none."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is no intersection; they are named by row and column, as r2c5")
    return int(found[1]), int(found[2])


def name_of(row: int, column: int) -> str:
    """The intersection at this place."""
    return f"r{row}c{column}"


def street_of(name: str) -> str:
    """The street that an intersection is on: all of its row share it."""
    return f"r{place_of(name)[0]}"


def avenue_of(name: str) -> str:
    """The avenue that an intersection is on."""
    return f"c{place_of(name)[1]}"


def crossing_of(axis: Axis) -> Axis:
    """The other one."""
    return "avenue" if axis == "street" else "street"


def is_on(axis: Axis, one: str, other: str) -> bool:
    """Whether two intersections are on the same road of this kind."""
    return street_of(one) == street_of(other) if axis == "street" else avenue_of(one) == avenue_of(other)


def adjacent(axis: Axis, me: str, others: Iterable[str]) -> tuple[str, ...]:
    """Of those that are known along a road, the nearest on either side."""
    mine = _along(axis, me)
    there = sorted((_along(axis, name), name) for name in others if name != me)
    before = [name for at, name in there if at < mine][-1:]
    after = [name for at, name in there if at > mine][:1]
    return (*before, *after)


def blocks_between(axis: Axis, one: str, other: str) -> int:
    """How many blocks two intersections of one road are apart."""
    return abs(_along(axis, one) - _along(axis, other))


def grid(rows: int, columns: int) -> list[str]:
    """All intersections of a grid, row by row."""
    return [name_of(row, column) for row in range(rows) for column in range(columns)]


def _along(axis: Axis, name: str) -> int:
    row, column = place_of(name)
    return column if axis == "street" else row
