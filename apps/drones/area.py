"""Where things are: a plane in metres, cut into square zones, which belong to regions. Pure.

x is east, y is north, z is up. A zone is `r2-0705`: region 2, column 7, row 5 of the whole plane. Names say where an
agent lives, so that nodes and shards can be told apart by them:

    Drone/r2-0705-013        the drone 13 that is at home in that zone
    Sector/r2-0705@r1        the picture that region 1 has of the air above that zone
    Dispatcher/r2-0705.a     one of the two that give away the jobs of that zone
    Job/r2-0705.J17          a job whose parcel is picked up in that zone
    Delivery/r2-0705-013.r2-0705.J17.1    how that drone flies that job, for the first time

Everything that goes down to the ground does so in the column above a cell, a square of `CELL_M`. Stands, pads and the
addresses of customers are at the centres of cells: two columns are never closer than that.
"""

from __future__ import annotations

from msgspec import Struct

CELL_M = 60.0
FLOOR_M = 40.0
"""Below this height a drone is in a column that is its own: above its stand, or above a cell that it has claimed."""
LEVELS_M = (45.0, 55.0, 65.0, 75.0, 85.0, 95.0, 105.0, 115.0)
"""The heights at which drones cross the country."""
PADS_PER_ZONE = 8
SEPARATION_M, SEPARATION_HEIGHT_M = 10.0, 4.0
"""Nearer than both, two drones are too close."""
BORDER_M = 400.0
"""A drone that is so close to another zone is seen there too."""

Point = tuple[float, float]


class Area(Struct, frozen=True):
    """How the plane is cut. The same for all agents of a fleet, and kept in their state."""

    columns: int
    rows: int
    zone_m: float
    regions: int
    stands: int = 8
    """Stands in a row, and rows of them, in the middle of each zone."""
    pads: int = PADS_PER_ZONE
    """Charging pads of each zone."""

    def zone_at(self, x: float, y: float) -> str:
        """The zone of a point; of one outside, the nearest."""
        return self.zone(self._column_at(x), self._row_at(y))

    def _column_at(self, x: float) -> int:
        return min(max(int(x // self.zone_m), 0), self.columns - 1)

    def _row_at(self, y: float) -> int:
        return min(max(int(y // self.zone_m), 0), self.rows - 1)

    def zone(self, column: int, row: int) -> str:
        """The name of the zone in this column and row."""
        return f"{self.region(column)}-{column:02d}{row:02d}"

    def region(self, column: int) -> str:
        """The region of a column: regions are as wide as each other, from west to east."""
        return f"r{1 + column * self.regions // self.columns}"

    def zones(self) -> list[str]:
        """All zones, column by column."""
        return [self.zone(column, row) for column in range(self.columns) for row in range(self.rows)]

    def zones_near(self, x: float, y: float, near_m: float = BORDER_M) -> list[str]:
        """The zones that are at most so far from a point, that of the point first."""
        found = [self.zone_at(x, y)]
        columns = range(self._column_at(x - near_m), self._column_at(x + near_m) + 1)
        rows = range(self._row_at(y - near_m), self._row_at(y + near_m) + 1)
        if len(columns) > 1 or len(rows) > 1:  # mostly it is far from all borders
            zones = (self.zone(column, row) for column in columns for row in rows)
            found += [zone for zone in zones if zone != found[0]]
        return found

    def neighbours(self, zone: str) -> list[str]:
        """The zones that share a side with this one."""
        column, row = place_of(zone)
        around = [(column - 1, row), (column + 1, row), (column, row - 1), (column, row + 1)]
        return [self.zone(c, r) for c, r in around if 0 <= c < self.columns and 0 <= r < self.rows]

    def corner(self, zone: str) -> Point:
        """The south-west corner of a zone."""
        column, row = place_of(zone)
        return column * self.zone_m, row * self.zone_m


def place_of(zone: str) -> tuple[int, int]:
    """Column and row of a zone."""
    digits = zone.partition("-")[2]
    return int(digits[:2]), int(digits[2:4])


def zone_of(name: str) -> str:
    """The zone in the name of an agent, without its kind."""
    return name.partition("@")[0][: name.index("-") + 5]


def region_of(name: str) -> str:
    """The region in the name of an agent: where it lives."""
    return name.partition("@")[2] or name.partition("-")[0]


def cell_of(x: float, y: float) -> tuple[int, int]:
    """The cell of a point."""
    return int(x // CELL_M), int(y // CELL_M)


def centre_of(x: float, y: float) -> Point:
    """The centre of the cell of a point."""
    column, row = cell_of(x, y)
    return (column + 0.5) * CELL_M, (row + 0.5) * CELL_M


def cell_name(x: float, y: float) -> str:
    """What a drone claims before it goes down there: `cell-12-7`."""
    column, row = cell_of(x, y)
    return f"cell-{column}-{row}"


def place_of_cell(name: str) -> Point:
    """The centre of the cell that `cell_name` has named so."""
    column, row = name.split("-")[1:]
    return (int(column) + 0.5) * CELL_M, (int(row) + 0.5) * CELL_M


def stand_of(area: Area, zone: str, number: int) -> Point:
    """Where drone `number` of a zone is at home: stands are every second cell of a square in the zone's middle."""
    x, y = area.corner(zone)
    first = cell_of(x + area.zone_m / 2, y + area.zone_m / 2)
    side = area.stands
    column, row = first[0] - side + 2 * (number % side), first[1] - side + 2 * (number // side)
    return (column + 0.5) * CELL_M, (row + 0.5) * CELL_M


def pad_of(area: Area, zone: str, number: int) -> Point:
    """Where charging pad `number` of a zone is: between the stands, so that it is nobody's."""
    x, y = stand_of(area, zone, number)
    return x + CELL_M, y


def place_of_pad(area: Area, name: str) -> Point:
    """Where a pad is that is claimed as `pad-r2-0705-3`."""
    zone, _, number = name.partition("-")[2].rpartition("-")
    return pad_of(area, zone, int(number))


def is_reserved(area: Area, x: float, y: float) -> bool:
    """Whether the cell of a point belongs to the stands and pads of its zone: no customer lives there."""
    zone = area.zone_at(x, y)
    left, bottom = area.corner(zone)
    middle = cell_of(left + area.zone_m / 2, bottom + area.zone_m / 2)
    column, row = cell_of(x, y)
    side = area.stands + 1
    return -side <= column - middle[0] <= side and -side <= row - middle[1] <= side
