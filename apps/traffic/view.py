"""Shows a town: a picture on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import asyncio

from rich.console import Console, RenderableType
from rich.live import Live as Picture
from rich.table import Table
from rich.text import Text

from apps.traffic.grid import name_of
from apps.traffic.intersection import HERE, Intersection, vehicles_of
from apps.traffic.nodes import Town
from apps.traffic.phases import Phase

LOOK_S = 0.2
LINE_S = 5.0
SIGNS: dict[Phase, tuple[str, str]] = {
    Phase.ALL_RED: ("■ all red", "bold red"),
    Phase.CLEARING: ("· clears", "red"),
    Phase.STREET_GREEN: ("↔ street", "bold green"),
    Phase.STREET_YELLOW: ("↔ ends", "yellow"),
    Phase.AVENUE_GREEN: ("↕ avenue", "bold green"),
    Phase.AVENUE_YELLOW: ("↕ ends", "yellow"),
    Phase.WALK: ("☺ walk", "bold cyan"),
    Phase.WALK_ENDING: ("☺ hurry", "cyan"),
}
LETTERS: dict[Phase, str] = {
    Phase.ALL_RED: "#",
    Phase.CLEARING: ".",
    Phase.STREET_GREEN: "=",
    Phase.STREET_YELLOW: "-",
    Phase.AVENUE_GREEN: "H",
    Phase.AVENUE_YELLOW: "h",
    Phase.WALK: "W",
    Phase.WALK_ENDING: "w",
}


async def watch(town: Town, console: Console, seconds: float) -> None:
    """Shows the town for so long."""
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    if console.is_terminal:
        with Picture(picture(town), console=console, refresh_per_second=5, transient=False) as shown:
            while loop.time() - begin_s < seconds:
                await asyncio.sleep(LOOK_S)
                shown.update(picture(town))
        return
    console.print("= street green, H avenue green, W walk, small: it ends, . clearing, # all red", highlight=False)
    next_s = 0.0
    while loop.time() - begin_s < seconds:
        if loop.time() - begin_s >= next_s:
            console.print(line(town, loop.time() - begin_s), highlight=False, soft_wrap=True)
            next_s += LINE_S
        await asyncio.sleep(LOOK_S)


def line(town: Town, now_s: float) -> str:
    """The town in a line."""
    streets = []
    for row in range(town.rows):
        shown = "".join(LETTERS[town.roadside[name_of(row, column)].phase] for column in range(town.columns))
        streets.append(f"r{row} {shown}")
    modes = sum(town.state(name).mode == "coordinated" for name in town.names)
    figures = town.traffic.figures
    return (
        f"{now_s:5.0f} s  {'  '.join(streets)}  {modes} of {len(town.names)} coordinated, "
        f"{figures.trips} trips, {len(town.traffic.places())} under way"
    )


def picture(town: Town) -> RenderableType:
    """The town as a map: who has the way, how many wait along street and avenue, who is alone."""
    table = Table(title="traffic", title_justify="left", show_header=True, show_lines=True, expand=False)
    table.add_column("")
    for column in range(town.columns):
        table.add_column(f"c{column}", min_width=13)
    for row in range(town.rows):
        cells = [cell(town, town.state(name_of(row, column))) for column in range(town.columns)]
        table.add_row(f"r{row}", *cells)
    figures = town.traffic.figures
    table.caption = (
        f"{figures.trips} trips, {len(town.traffic.places())} under way; {figures.waited_per_crossing_s:.1f} s waited "
        f"at a crossing; of those from a neighbour {figures.stops_per_crossing:.0%} had to stop"
    )
    return table


def cell(town: Town, one: Intersection) -> Text:
    """One intersection."""
    sign, style = SIGNS[town.roadside[one.id].phase]
    text = Text(sign, style=style)
    street, avenue = (len(vehicles_of(one, axis)[one.id][HERE]) for axis in ("street", "avenue"))
    text.append(f"\n→ {street}  ↓ {avenue}", style="default")
    if one.walkers:
        text.append("  ☺", style="cyan")
    if one.phase is Phase.ALL_RED:
        text.append(f"\n{one.because[:28]}", style="dim")
    elif one.mode == "local":
        text.append("\nalone", style="dim")
    return text
