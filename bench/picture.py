"""Draws charts into a PNG with matplotlib, of the extra [bench], which is imported only here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.charts import Bars, Chart, Lines, short

PANEL_INCHES = (7.5, 3.8)
PANELS_ACROSS_MAX = 2
DOTS_PER_INCH = 130
OURS, OTHERS, INK, GRID = "#0072b2", "#9aa0a6", "#2b2b2b", "#d9d9d9"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Told apart by people who do not see all colours."""
MARKS = "o^sDv*"
BARS_ROOM = 5
"""Fewer bars than this are not drawn any thicker."""


def draw(charts: Sequence[Chart], path: Path) -> None:
    """One panel for each chart, in one picture."""
    from matplotlib.figure import Figure

    count = max(1, len(charts))
    across = min(PANELS_ACROSS_MAX, count)
    down = math.ceil(count / across)
    figure = Figure(figsize=(PANEL_INCHES[0] * across, PANEL_INCHES[1] * down), dpi=DOTS_PER_INCH, layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flatten()
    for panel, chart in zip(panels, charts, strict=False):
        _prepare(panel, chart.title)
        if isinstance(chart, Bars):
            _bars(panel, chart)
        else:
            _lines(panel, chart)
    for panel in panels[len(charts) :]:
        panel.set_axis_off()
    figure.savefig(path)


def _prepare(panel: Any, title: str) -> None:
    panel.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    panel.tick_params(colors=INK, labelsize=9)
    panel.set_axisbelow(True)


def _bars(panel: Any, chart: Bars) -> None:
    labels = [bar.label for bar in chart.bars]
    values = [bar.value for bar in chart.bars]
    colours = [OURS if bar.ours else OTHERS for bar in chart.bars]
    drawn = panel.barh(range(len(values)), values, color=colours, height=0.65)
    panel.set_yticks(range(len(values)), labels)
    panel.set_ylim(max(len(values), BARS_ROOM) - 0.5, -0.5)
    panel.bar_label(drawn, [short(value) for value in values], padding=4, fontsize=9, color=INK)
    panel.grid(axis="x", color=GRID, linewidth=0.7)
    panel.set_xlabel(chart.unit + (" (logarithmic)" if chart.logarithmic else ""), fontsize=9, color=INK)
    top = max(values, default=1.0)
    if chart.logarithmic and values and min(values) > 0:
        panel.set_xscale("log")
        panel.set_xlim(min(values) / 3, top * 4)
    else:
        panel.set_xlim(0, top * 1.15 or 1.0)
    panel.xaxis.set_major_formatter(lambda value, _: short(value))


def _lines(panel: Any, chart: Lines) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    for number, series in enumerate(chart.series):
        xs, ys = [x for x, _ in series.points], [y for _, y in series.points]
        colour = COLOURS[number % len(COLOURS)]
        panel.plot(xs, ys, marker=MARKS[number % len(MARKS)], color=colour, linewidth=1.8, label=series.name)
    panel.set_xscale("log")
    places = sorted({x for series in chart.series for x, _ in series.points})
    panel.set_xticks(places, [short(place) for place in places])
    panel.minorticks_off()
    panel.set_yscale("linear" if chart.y_from_zero else "log")
    panel.margins(y=0.12)
    if chart.y_from_zero:
        panel.set_ylim(0, max(y for series in chart.series for _, y in series.points) * 1.2)
    else:
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_minor_formatter(NullFormatter())
    panel.yaxis.set_major_formatter(lambda value, _: short(value))
    panel.set_xlabel(chart.x_label, fontsize=9, color=INK)
    panel.set_ylabel(chart.y_label, fontsize=9, color=INK)
    panel.grid(color=GRID, linewidth=0.7)
    if chart.series:
        panel.legend(fontsize=9, frameon=False)
