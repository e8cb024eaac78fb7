"""Benchmarks are found by name, run in a base install, and draw what they measured."""

import argparse
import importlib.util
import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from bench import whole
from bench.catalogue import BENCHMARKS, Measured, benchmark_of, measure
from bench.display import figure, is_table, show
from stigmergy.base.errors import ConfigError
from tests.cli.in_process import Here

NOT_IN_THE_BASE = ("numba", "numpy", "matplotlib", "bytewax", "eventsourcing", "dbos", "pyarrow")


def console() -> Console:
    return Console(record=True, width=100, file=io.StringIO())


def test_every_benchmark_is_one() -> None:
    for name in BENCHMARKS:
        benchmark = benchmark_of(name)
        parser = argparse.ArgumentParser()
        benchmark.add_arguments(parser)
        given = parser.parse_args(["--quick", "--directory", "elsewhere"])
        assert given.quick
        assert given.directory == Path("elsewhere")
        assert callable(benchmark.charts)


def test_every_benchmark_is_in_the_help_and_in_the_manual(tmp_path: Path) -> None:
    names = list(BENCHMARKS)
    assert ", ".join(names) in " ".join(Here(tmp_path).cli("bench", "--help").stdout.split())
    manual = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
    listed = r"\|".join(names)
    assert f"| `bench {listed}` |" in manual.read_text(encoding="utf-8")


def test_nothing_of_the_extras_is_imported_before_it_is_used() -> None:
    blocked = "\n".join(f"sys.modules[{name!r}] = None" for name in NOT_IN_THE_BASE)
    program = f"""
import sys
{blocked}
from bench import display as showing, picture
from bench.catalogue import BENCHMARKS, benchmark_of
for name in BENCHMARKS:
    benchmark_of(name)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_run(_: argparse.Namespace) -> None:
        raise AssertionError("it was measured")

    monkeypatch.setattr(benchmark_of("growth"), "run", no_run)

    def refused(path: Path) -> str:
        with pytest.raises(ConfigError) as caught:
            measure("growth", ["--quick", "--plot", str(path)], argparse.ArgumentParser())
        return str(caught.value)

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert "make bench" in refused(tmp_path / "a.png")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    assert "call it" in refused(tmp_path / "a.pdf")
    assert "there is no folder" in refused(tmp_path / "nowhere" / "a.png")


def test_all_names_what_cannot_run_and_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = {"name": "x", "events_per_s": 1, "ours": True}
    words: list[tuple[str, list[str]]] = []

    def run(name: str, given: list[str]) -> dict[str, object]:
        words.append((name, given))
        if name != "alternatives":
            raise ConfigError("not here")
        return {"ratio": 2.0, "interpreted_ratio": 1.5, "contestants": [said]}

    monkeypatch.setattr(whole, "_run", run)
    figures = whole.run(argparse.Namespace(quick=True, directory=tmp_path))
    assert [name for name, _ in words] == [name for name in BENCHMARKS if name != "all"]
    assert all(given == ["--directory", str(tmp_path), "--quick"] for _, given in words)
    assert figures["edge"] == {"not_run": "not here"}
    assert len(whole.charts(figures)) == 1
    to = console()
    show(Measured("all", benchmark_of("all"), figures, quick=True), to)
    shown = to.export_text()
    assert "not run: not here" in shown
    assert "quick: this shows that it runs" in shown
    assert "durable events a second" in shown


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (True, "yes"), (1234567, "1,234,567"), (0.12345, "0.1235"), (1e6, "1,000,000"), ([1, 2.5], "1, 2.5")],
)
def test_figures_for_people(value: object, text: str) -> None:
    assert figure(value) == text
    assert not is_table(value)
