"""What figures are to reach, and how benchmarks show whether they do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from rich.console import Console
from rich.table import Table


class Target(Struct, frozen=True):
    """What a figure is to reach."""

    figure: str
    what: str
    bound: float
    at_least: bool = False

    def met(self, figures: dict[str, Any]) -> bool:
        """Whether it does. A figure that could not be measured does not."""
        if figures[self.figure] is None:
            return False
        value = float(figures[self.figure])
        return value >= self.bound if self.at_least else value <= self.bound


def show(title: str, targets: Sequence[Target], figures: dict[str, Any], console: Console) -> None:
    """The figures as tables: those with a target, then all."""
    reached = Table(title=title)
    for column in ("figure", "what", "reached", "target", ""):
        reached.add_column(column)
    for target in targets:
        sign = "≥" if target.at_least else "≤"
        verdict = "[green]reached[/]" if target.met(figures) else "[red]short[/]"
        reached.add_row(target.figure, target.what, str(figures[target.figure]), f"{sign} {target.bound:g}", verdict)
    console.print(reached)
    everything = Table(show_header=False)
    for name, value in figures.items():
        everything.add_row(name, f"{value:,}" if isinstance(value, int) else str(value))
    console.print(everything)
