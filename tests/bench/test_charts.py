"""Charts come out on any terminal and as pictures, and say what was measured."""

from pathlib import Path

import pytest

from bench.charts import Bar, Bars, Chart, Lines, Series, short
from bench.terminal import Axis, blocks, draw, shares_of

BARS = Bars("speed", "events/s", [Bar("fast", 4_000_000.0), Bar("slow one", 1_000_000.0, ours=False)])
LOGARITHMIC = Bars("speed", "events/s", [Bar("fast", 1e6), Bar("slow", 1e3), Bar("never", 0.0)], logarithmic=True)
LINES = Lines(
    "cost",
    "agents",
    "µs",
    [Series("with", [(1e3, 2.0), (1e4, 3.0), (1e5, 4.0)]), Series("without", [(1e3, 1.0), (1e5, 1.0)])],
)
CHARTS: list[Chart] = [BARS, LOGARITHMIC, LINES, Bars("nothing", "s", []), Lines("nothing", "x", "y", [])]


def lines_of(chart: Chart, width: int = 80) -> list[str]:
    return draw(chart, width).plain.splitlines()


@pytest.mark.parametrize(
    ("value", "text"),
    [(1_240_000.0, "1.24 M"), (35_184.0, "35.2 k"), (0.085, "0.085"), (2.5e9, "2.5 G"), (0.0, "0"), (999.0, "999")],
)
def test_values_are_short(value: float, text: str) -> None:
    assert short(value) == text


def test_bars_are_as_long_as_their_values() -> None:
    title, fast, slow = lines_of(BARS)
    assert title == "speed (events/s)"
    assert fast.startswith("  fast      ")
    assert fast.endswith("4 M")
    assert abs(fast.count("█") - 4 * slow.count("█")) <= 4
    assert fast.count("█") > 40


def test_a_logarithmic_scale_says_so_and_has_equal_steps() -> None:
    assert lines_of(LOGARITHMIC)[0] == "speed (events/s, logarithmic)"
    tenfold = shares_of([1.0, 10.0, 100.0], logarithmic=True)
    assert tenfold[2] == pytest.approx(1.0)
    assert tenfold[1] - tenfold[0] == pytest.approx(tenfold[2] - tenfold[1])
    assert shares_of([0.0, 0.0], logarithmic=True) == [0.0, 0.0]


@pytest.mark.parametrize(("length", "bar"), [(0.0, ""), (0.01, "▏"), (0.5, "▌"), (2.0, "██"), (2.25, "██▎")])
def test_a_bar_is_drawn_to_an_eighth(length: float, bar: str) -> None:
    assert blocks(length) == bar


def test_lines_rise_where_values_do() -> None:
    drawn = lines_of(LINES)
    rows = [line for line in drawn if "│" in line or "┤" in line]
    with_marks = [(row, line.index("●")) for row, line in enumerate(rows) if "●" in line]
    assert rows[0].rstrip().endswith("●")
    assert "▲" in rows[-1]
    assert with_marks == sorted(with_marks, key=lambda place: -place[1])
    assert len(with_marks) == 3
    assert "1 k" in drawn[-3]
    assert "100 k" in drawn[-3]
    assert drawn[-1].strip() == "● with  ▲ without"


def test_an_axis_goes_from_its_lowest_to_its_highest() -> None:
    axis = Axis([10.0, 1000.0], from_zero=False)
    assert (axis.share(10.0), axis.share(100.0), axis.share(1000.0)) == pytest.approx((0.0, 0.5, 1.0))
    assert axis.at(0.5) == pytest.approx(100.0)
    assert Axis([5.0, 10.0], from_zero=True).share(5.0) == 0.5
    assert Axis([7.0], from_zero=False).share(7.0) == 0.5


@pytest.mark.parametrize("width", [1, 40, 80, 300])
@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: f"{type(chart).__name__}-{chart.title}")
def test_every_line_fits(chart: Chart, width: int) -> None:
    assert all(len(line) <= max(40, width) for line in lines_of(chart, width))


@pytest.mark.prove
def test_a_picture_is_drawn(tmp_path: Path) -> None:
    """Needs the extra [bench], which the long proofs install."""
    from bench.picture import draw as draw_picture

    def drawn(charts: list[Chart]) -> bytes:
        draw_picture(charts, tmp_path / "charts.png")
        return (tmp_path / "charts.png").read_bytes()

    nothing, one, all_ = drawn([]), drawn([BARS]), drawn(CHARTS)
    assert one.startswith(b"\x89PNG\r\n")
    assert len(nothing) < len(one) < len(all_)
