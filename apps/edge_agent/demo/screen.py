"""Shows the demonstration: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from apps.edge_agent.demo.asking import Trouble
from apps.edge_agent.demo.evidence import Finding
from apps.edge_agent.demo.field import DRONE, PILOT, Field

LOOK_S = 0.15
LINE_S = 2.0
WIDTH = 44
HEIGHT = 5
TEXT_WIDTH = 48
METRES_WIDE = 88.0
METRES_HIGH = 12.0


class Screen:
    """Looks at both nodes all the time, and shows what it sees."""

    def __init__(self, console: Console, field: Field) -> None:
        self._console = console
        self._field = field
        self._live: Live | None = None
        self._looking: asyncio.Task[None] | None = None
        self._next_line_s = 0.0
        self.drone: dict[str, Any] = {}
        """The drone's state as it is on its disk; empty while its program does not run."""
        self.pilot: dict[str, Any] = {}
        self.link: dict[str, Any] = {}

    async def __aenter__(self) -> Screen:
        if self._console.is_terminal:
            self._live = Live(self._picture(), console=self._console, refresh_per_second=8, transient=True)
            self._live.start()
        self._looking = asyncio.ensure_future(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        if self._live is not None:
            self._live.stop()

    def say(self, text: str, style: str = "bold") -> None:
        """A line that stays."""
        line = Text(f"{self._field.seconds:5.1f} s  ", style="dim").append(text, style=style)
        self._console.print(line, soft_wrap=True)

    async def _look(self) -> None:
        while True:
            self.drone, self.link = await self._drone()
            with contextlib.suppress(OSError, Trouble):
                self.pilot = (await self._field.to_ground.state(PILOT))["state"]
            if self._live is not None:
                self._live.update(self._picture())
            elif self._field.seconds >= self._next_line_s:
                self._next_line_s = self._field.seconds + LINE_S
                self._console.print(self._line(), highlight=False, soft_wrap=True)
            await asyncio.sleep(LOOK_S)

    async def _drone(self) -> tuple[dict[str, Any], dict[str, Any]]:
        try:
            state = await self._field.to_drone.state(DRONE)
            status = await self._field.to_drone.ask("status")
        except (OSError, Trouble):
            return {}, {}
        return state["state"], status["link"]

    # ------------------------------------------------------------------ pictures

    def _line(self) -> str:
        drone, link, pilot = self.drone, self.link, self.pilot
        seen = "its program does not run"
        if drone:
            seen = (
                f"{drone['phase']:9} {drone['distance_m']:5.1f} m out {drone['height_m']:4.1f} m high, "
                f"battery {battery(drone):>6}; link {link['state']}, {link['owed']} to send"
            )
        return f"{self._field.seconds:5.1f} s  D-17 {seen} | ground has {told(pilot)} reports"

    def _picture(self) -> RenderableType:
        table = Table.grid(padding=(0, 3))
        table.add_row(self._sky(), self._facts())
        return Panel(table, title="D-17 over a real broker", title_align="left", border_style="dim", expand=False)

    def _sky(self) -> RenderableType:
        rows = [[" "] * WIDTH for _ in range(HEIGHT)]
        if self.drone:
            column = min(int(self.drone["distance_m"] / METRES_WIDE * WIDTH), WIDTH - 1)
            row = HEIGHT - 1 - min(round(self.drone["height_m"] / METRES_HIGH * HEIGHT), HEIGHT - 1)
            rows[max(row, 0)][max(column, 0)] = "✈"
        lines = [Text("".join(row)) for row in rows]
        return Group(*lines, Text("⌂" + "─" * (WIDTH - 1), style="dim"))

    def _facts(self) -> RenderableType:
        facts = Table.grid(padding=(0, 1))
        facts.add_column()
        facts.add_column(width=TEXT_WIDTH, no_wrap=True)
        drone, link, pilot = self.drone, self.link, self.pilot
        up = link.get("state") == "up"
        owed = f", {link['owed']} reports wait" if link.get("owed") else ""
        rows = (
            ("drone", f"{drone['phase']}, {drone['mission'] or 'no mission'}" if drone else "its program is dead"),
            ("battery", battery(drone) if drone else "-"),
            ("link", ("up" if up else "cut" if link else "-") + owed),
            ("ground", str(pilot.get("doing", "-"))),
            ("reports", f"{told(pilot)} heard"),
        )
        for name, text in rows:
            good = name != "link" or up
            bad = (name == "drone" and not drone) or not good
            facts.add_row(Text(name, style="dim"), Text(text, style="red" if bad else "default"))
        return facts


def battery(drone: dict[str, Any]) -> str:
    """The charge, for people."""
    percent = drone.get("battery")
    return "-" if percent is None else f"{percent:.1f} %"


def told(pilot: dict[str, Any]) -> int:
    """How many reports the pilot has counted."""
    return int(pilot.get("reports", 0))


def show(console: Console, findings: list[Finding]) -> None:
    """What was found, for better or worse."""
    console.print()
    for finding in findings:
        mark, style = ("proved", "green") if finding.holds else ("NOT SO", "bold red")
        console.print(Text(f"{mark}  ", style=style).append(finding.what, style="default"), soft_wrap=True)
