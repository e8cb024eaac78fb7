"""`bench shared`: a quick run has every figure, and information is counted as the manual says."""

import argparse
import io

import pytest
from rich.console import Console

from bench.catalogue import measure
from bench.display import show
from bench.shared import TARGETS, charts, foreign_delta, information_bytes, set_of
from stigmergy.crdt.causality import Dot
from stigmergy.crdt.delta import Delta


@pytest.mark.prove
def test_a_quick_run_gives_all_figures() -> None:
    measured = measure("shared", ["--quick"], argparse.ArgumentParser())
    figures = measured.figures
    assert {target.figure for target in TARGETS} <= set(figures)
    assert figures["mutations_per_s"] > 1_000
    assert [row["elements"] for row in figures["applied"]] == [100, 1_000]
    assert 1 < figures["bytes_ratio_max"] <= 3
    assert all(row["bytes"] > row["information_bytes"] for row in figures["changes"])
    assert [row["elements"] for row in figures["stores"]] == [100, 1_000]
    every_agent, boards = figures["spread"]
    assert (every_agent["layout"], every_agent["writes"]) == ("every agent", boards["writes"])
    assert 2.5 < every_agent["merged_per_write"] <= 3.0, "each of four replicas keeps what the other three write"
    assert 0.8 < boards["merged_per_write"] <= 1.0
    assert len(charts(figures)) == 4
    console = Console(record=True, width=100, file=io.StringIO())
    show(measured, console)
    assert "orset_add_ten" in console.export_text()


def test_information_is_what_was_written_and_the_dots_that_are_named() -> None:
    delta = Delta(b"a" * 8, 1, 300, (Dot(b"b" * 8, 5),), (), (((b"x",), (Dot(b"c" * 8, 70_000),)),))
    assert information_bytes(delta, 10) == 10 + (8 + 2) + (8 + 1) + (8 + 3)


def test_a_delta_of_ten_adds_new_and_old_elements() -> None:
    store = set_of(100)
    delta = foreign_delta(store, 3)
    assert len(delta.added) == 10
    assert len(delta.removed) == 5
    assert store.apply(delta).live_count == 105
