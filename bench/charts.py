"""What a benchmark wants drawn: values, labels and units. `terminal` and `picture` draw it."""

from __future__ import annotations

from msgspec import Struct


class Bar(Struct, frozen=True):
    """One value with its name."""

    label: str
    value: float
    ours: bool = True
    """Whether it is a figure of ours, and not one that we are held against."""


class Bars(Struct, frozen=True):
    """Values side by side, from zero; or, where they differ by powers of ten, on a logarithmic scale."""

    title: str
    unit: str
    bars: list[Bar]
    logarithmic: bool = False


class Series(Struct, frozen=True):
    """One line: its points from left to right."""

    name: str
    points: list[tuple[float, float]]


class Lines(Struct, frozen=True):
    """How a value grows with another. Both axes are logarithmic unless `y_from_zero`."""

    title: str
    x_label: str
    y_label: str
    series: list[Series]
    y_from_zero: bool = False


Chart = Bars | Lines


def short(value: float) -> str:
    """A value with three digits that count: 1.24 M, 35.2 k, 0.085."""
    for bound, sign in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= bound:
            return f"{value / bound:.3g}{sign}"
    return f"{value:.3g}"
