"""Draws charts with the signs of a terminal: bars of block elements, lines of braille dots. Needs nothing but rich."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from rich.text import Text

from bench.charts import Bars, Chart, Lines, Series, short

WIDTH_MIN, WIDTH_MAX = 40, 110
BLOCKS = "▏▎▍▌▋▊▉█"
"""One to eight eighths."""
BAR_OURS, BAR_OTHERS = "cyan", "bright_black"
COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red")
MARKS = "●▲■◆▼★"
PLOT_ROWS = 11
"""An odd number, so that one of them is in the middle."""
BRAILLE = 0x2800
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bit of each dot in a sign of braille: two columns of four."""


def draw(chart: Chart, width: int) -> Text:
    """A chart that fits into so many columns."""
    width = max(WIDTH_MIN, min(WIDTH_MAX, width))
    return _bars(chart, width) if isinstance(chart, Bars) else _lines(chart, width)


def _bars(chart: Bars, width: int) -> Text:
    scale = ", logarithmic" if chart.logarithmic else ""
    text = Text(f"{chart.title} ({chart.unit}{scale})\n", style="bold")
    if not chart.bars:
        return text.append("  nothing was measured", style="not bold dim")
    names = max(len(bar.label) for bar in chart.bars)
    values = max(len(short(bar.value)) for bar in chart.bars)
    room = max(1, width - names - values - 6)
    shares = shares_of([bar.value for bar in chart.bars], logarithmic=chart.logarithmic)
    for number, (bar, share) in enumerate(zip(chart.bars, shares, strict=True)):
        text.append(f"  {bar.label:<{names}}  ", style="not bold")
        text.append(f"{blocks(share * room):<{room}}", style=f"not bold {BAR_OURS if bar.ours else BAR_OTHERS}")
        text.append(f"  {short(bar.value):>{values}}", style="not bold")
        text.append("\n" if number + 1 < len(chart.bars) else "")
    return text


def shares_of(values: Sequence[float], *, logarithmic: bool) -> list[float]:
    """How long each bar is, of the longest; on a logarithmic scale a tenth of it stands for the smallest value."""
    top = max(values)
    if top <= 0:
        return [0.0 for _ in values]
    positive = [value for value in values if value > 0]
    low = min(positive)
    if not logarithmic or low == top:
        return [max(0.0, value) / top for value in values]
    span = math.log(top / low)
    return [0.1 + 0.9 * math.log(value / low) / span if value > 0 else 0.0 for value in values]


def blocks(length: float) -> str:
    """A bar of so many columns, to an eighth; never nothing for something."""
    eighths = max(1 if length > 0 else 0, round(length * 8))
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (BLOCKS[rest - 1] if rest else "")


class _Canvas:
    """A field of signs with two by four dots each; the last one to touch a sign gives it its colour."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._bits = [[0] * columns for _ in range(rows)]
        self._marks: dict[tuple[int, int], str] = {}
        self._colours: dict[tuple[int, int], str] = {}

    def line(self, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
        """A straight line; both ends as shares of width and height, from the lower left."""
        wide, high = self.columns * 2 - 1, self.rows * 4 - 1
        steps = max(1, round(max(abs(end[0] - start[0]) * wide, abs(end[1] - start[1]) * high)))
        for step in range(steps + 1):
            part = step / steps
            across = round((start[0] + (end[0] - start[0]) * part) * wide)
            up = round((start[1] + (end[1] - start[1]) * part) * high)
            down = high - up
            cell = (down // 4, across // 2)
            self._bits[cell[0]][cell[1]] |= DOTS[across % 2][down % 4]
            self._colours[cell] = colour

    def mark(self, at: tuple[float, float], sign: str, colour: str) -> None:
        """A sign at a point."""
        row = (self.rows * 4 - 1 - round(at[1] * (self.rows * 4 - 1))) // 4
        cell = (row, round(at[0] * (self.columns * 2 - 1)) // 2)
        self._marks[cell] = sign
        self._colours[cell] = colour

    def row(self, number: int) -> Text:
        """One line of the terminal."""
        text = Text()
        for column, bits in enumerate(self._bits[number]):
            cell = (number, column)
            sign = self._marks.get(cell) or (chr(BRAILLE + bits) if bits else " ")
            text.append(sign, style=f"not bold {self._colours.get(cell, '')}".strip())
        return text


class Axis:
    """Where values lie between the two ends, as a share; logarithmic, or from zero."""

    def __init__(self, values: Sequence[float], *, from_zero: bool) -> None:
        self.low = 0.0 if from_zero else min(values)
        self.high = max(values)
        self._from_zero = from_zero

    def share(self, value: float) -> float:
        """From 0 to 1."""
        if self.high == self.low:
            return 0.5
        if self._from_zero:
            return value / self.high
        return math.log(value / self.low) / math.log(self.high / self.low)

    def at(self, share: float) -> float:
        """The value there."""
        if self._from_zero:
            return self.high * share
        return float(self.low * (self.high / self.low) ** share)


def _lines(chart: Lines, width: int) -> Text:
    text = Text(f"{chart.title}\n", style="bold")
    drawn = [series for series in chart.series if series.points]
    if not drawn:
        return text.append("  nothing was measured", style="not bold dim")
    across = Axis([x for series in drawn for x, _ in series.points], from_zero=False)
    up = Axis([y for series in drawn for _, y in series.points], from_zero=chart.y_from_zero)
    ticks = {0: short(up.high), PLOT_ROWS // 2: short(up.at(0.5)), PLOT_ROWS - 1: short(up.low)}
    edge = max(len(tick) for tick in ticks.values())
    canvas = _Canvas(width - edge - 5, PLOT_ROWS)
    _draw_series(canvas, drawn, across, up)
    text.append(f"  {chart.y_label}\n", style="not bold dim")
    for row in range(PLOT_ROWS):
        text.append(f"  {ticks.get(row, ''):>{edge}} {'┤' if row in ticks else '│'}", style="not bold dim")
        text.append_text(canvas.row(row)).append("\n")
    text.append(f"  {'':>{edge}} └{'─' * canvas.columns}\n", style="not bold dim")
    text.append(f"  {'':>{edge}}  {_ticks_below(drawn, across, canvas.columns)}\n", style="not bold dim")
    text.append(f"  {'':>{edge}}  {chart.x_label:^{canvas.columns}}\n", style="not bold dim")
    for number, series in enumerate(drawn):
        text.append(f"  {MARKS[number % len(MARKS)]} ", style=f"not bold {COLOURS[number % len(COLOURS)]}")
        text.append(series.name, style="not bold")
    return text


def _draw_series(canvas: _Canvas, drawn: Sequence[Series], across: Axis, up: Axis) -> None:
    placed = [[(across.share(x), up.share(y)) for x, y in series.points] for series in drawn]
    for number, points in enumerate(placed):
        for start, end in pairwise(points):
            canvas.line(start, end, COLOURS[number % len(COLOURS)])
    for number, points in enumerate(placed):
        for point in points:
            canvas.mark(point, MARKS[number % len(MARKS)], COLOURS[number % len(COLOURS)])


def _ticks_below(drawn: Sequence[Series], across: Axis, columns: int) -> str:
    """The values of the points below them, as far as there is room."""
    signs = [" "] * columns
    free = 0
    for value in sorted({x for series in drawn for x, _ in series.points}):
        label = short(value)
        start = min(columns - len(label), max(0, round(across.share(value) * (columns - 1)) - len(label) // 2))
        if start >= free:
            signs[start : start + len(label)] = label
            free = start + len(label) + 1
    return "".join(signs)
