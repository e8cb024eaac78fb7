"""Shows figures to people: those with a target, all others, tables, and the charts, on a terminal of any width."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.catalogue import WHOLE, Measured, benchmark_of
from bench.targets import Target
from bench.terminal import draw
from bench.whole import NOT_RUN

HEAD_COLUMNS = 10


def show(measured: Measured, console: Console) -> None:
    """Everything that was measured; of a run of all benchmarks, one by one."""
    if measured.name == WHOLE:
        for name, figures in measured.figures.items():
            show(Measured(name, benchmark_of(name), figures, quick=measured.quick), console)
    else:
        console.print(Text(f"\nstigmergy bench {measured.name}", style="bold"))
        if NOT_RUN in measured.figures:
            console.print(Text(f"  not run: {measured.figures[NOT_RUN]}", style="yellow"))
            return
        if measured.quick:
            console.print(Text("  quick: this shows that it runs, not what it reaches", style="yellow"))
        _show_targets(measured.benchmark.TARGETS, measured.figures, console)
        _show_figures(measured.figures, console)
        for chart in measured.benchmark.charts(measured.figures):
            console.print(draw(chart, console.width))
            console.print()
    if measured.picture is not None:
        console.print(Text(f"drawn: {measured.picture}"))


def _show_targets(targets: Sequence[Target], figures: dict[str, Any], console: Console) -> None:
    if not targets:
        return
    table = _table("figure", "what", "reached", "target", "")
    for target in targets:
        verdict = Text("reached", style="green") if target.met(figures) else Text("short", style="red")
        sign = "≥" if target.at_least else "≤"
        table.add_row(target.figure, target.what, figure(figures[target.figure]), f"{sign} {target.bound:g}", verdict)
    console.print(table, soft_wrap=False)


def _show_figures(figures: dict[str, Any], console: Console) -> None:
    plain = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
    for name, value in figures.items():
        if not is_table(value):
            plain.add_row(Text(f"  {name}", style="dim"), Text(figure(value)))
    console.print(plain, soft_wrap=False)
    for name, rows in figures.items():
        if is_table(rows):
            console.print(Text(f"\n  {name}", style="bold"))
            _show_rows(rows, console)


def is_table(value: Any) -> bool:
    """Whether a figure is rows of figures."""
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def figure(value: Any) -> str:
    """One figure for people."""
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        case list():
            return ", ".join(figure(part) for part in value) or "–"
        case _:
            return str(value)


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table


def _show_rows(rows: list[dict[str, Any]], console: Console) -> None:
    """Numbers and names as a table; what is said in sentences stands below it, where it has the room."""
    spoken = [name for name in rows[0] if any(isinstance(row[name], str) and " " in row[name] for row in rows)]
    columns = [name for name in rows[0] if name not in spoken]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        number = all(isinstance(row[name], int | float) and not isinstance(row[name], bool) for row in rows)
        table.add_column(_narrow(name), justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(figure(row[name])) for name in columns))
    console.print(table, soft_wrap=False)
    if spoken:
        notes = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
        for row in rows:
            notes.add_row(Text(f"  {row[columns[0]]}", style="dim"), *(Text(str(row[name])) for name in spoken))
        console.print(notes, soft_wrap=False)
        console.print()


def _narrow(name: str) -> str:
    """The name of a figure over several lines, so that its column need not be wider than its values."""
    return "\n".join(textwrap.wrap(name.replace("_", " "), HEAD_COLUMNS, break_long_words=False))
