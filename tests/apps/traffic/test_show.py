"""The commands: a town in this program, pictures of it, stopwatches; and over a real broker, for a short while."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from rich.console import Console

from apps.traffic.__main__ import main
from apps.traffic.latency import Noted, Stopwatch, Syncs, at
from apps.traffic.nodes import Town
from apps.traffic.outage import Found
from apps.traffic.phases import Phase
from apps.traffic.view import LETTERS, SIGNS, line, picture
from stigmergy import Order


async def test_a_town_is_shown_on_a_page(tmp_path: Path) -> None:
    async with Town(1, 1, tmp_path, bus="memory:served", memory=True, serve="127.0.0.1:0") as town:

        def ask(path: str) -> Any:
            with urlopen(f"{town.url}{path}") as answer:
                return json.load(answer)

        page = await asyncio.to_thread(ask, "/v1/page")
        assert (page["fleet"], page["mode"]) == ("traffic", "live")
        found = await asyncio.to_thread(ask, "/v1/map")
        assert "Intersection/r0c0" in [name for name, _ in found["names"]]


async def test_a_town_is_shown(tmp_path: Path) -> None:
    async with Town(1, 2, tmp_path, bus="memory:shown", memory=True) as town:
        await asyncio.sleep(1.5)
        assert "r0 ##  " in line(town, 1.0)
        console = Console(width=100, record=True, file=io.StringIO())
        console.print(picture(town))
        text = console.export_text()
        assert "all red" in text
        assert "c0" in text
        assert town.state("r0c1").phase is Phase.ALL_RED
        assert town.state("r0c1").geometry.width_m == 5.0


def test_every_phase_has_a_sign() -> None:
    assert list(SIGNS) == list(LETTERS) == list(Phase)
    assert len(set(LETTERS.values())) == len(Phase)


def test_the_show_ends_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "1", "--columns", "1", "--seconds", "1"]) == 0
    assert "monitors that had to step in: none" in capsys.readouterr().out


def noted(me: str, *known: tuple[str, int]) -> Order[Noted]:
    return Order(agent=f"Measured/{me}", effect=Noted(known=known), key="k", token=1, sequence=1)


def test_a_stopwatch_counts_neighbours_only_and_each_change_once() -> None:
    watch = Stopwatch(["r0c0", "r0c1", "r0c2"])
    watch.runs = True
    for number in (1, 2):
        watch.shown("r0c0", number)
    watch.noted(noted("r0c1", ("r0c0", 2)))
    assert len(watch.took_ms) == 2
    watch.noted(noted("r0c1", ("r0c0", 2)))
    watch.noted(noted("r0c2", ("r0c0", 2)))
    assert len(watch.took_ms) == 2, "r0c2 is not beside r0c0"
    assert all(took >= 0 for took in watch.took_ms)
    watch.noted(noted("r0c1", ("r0c0", 9)))
    assert len(watch.took_ms) == 2, "nobody knows when that was decided"


def test_percentiles(tmp_path: Path) -> None:
    assert at([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
    assert at([1.0, 2.0], 1.0) == 2.0
    assert at([], 0.5) != at([], 0.5)
    assert Syncs(tmp_path).sync() > 0


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        (Found(1, 1, 5, 0, 0, 1, 1), True),
        (Found(1, -1, 5, 0, 0, 1, 1), False),
        (Found(1, 1, 0, 0, 0, 1, 1), False),
        (Found(1, 1, 5, 1, 0, 1, 1), False),
        (Found(1, 1, 5, 0, 1, 1, 1), False),
        (Found(1, 1, 5, 0, 0, 1, -1), False),
    ],
)
def test_an_outage_that_went_wrong_is_found(found: Found, holds: bool) -> None:
    assert found.holds is holds


def test_phases_reach_neighbours_over_a_real_broker(capsys: pytest.CaptureFixture[str]) -> None:
    """Whether it is fast enough is measured elsewhere, on a machine that does nothing else."""
    main(["latency", "--rows", "1", "--columns", "2", "--nodes", "2", "--warm-up", "0", "--seconds", "9", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["changes"] >= 2
    assert 0 < found["p50_ms"] < 1_000
