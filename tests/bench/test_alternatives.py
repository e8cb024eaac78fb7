"""Everybody in the contest does the same, whoever does not is found out, and who is not installed is named."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import alternatives
from bench.contest import MODULE as CONTEST
from bench.contest import SEED, STOCK_EVENTS, Stock, Take, Taken, by_drone, difference, expected
from bench.contestants import ENTRIES, Entry
from bench.subjects import Subject
from bench.workload import Report, reports

TINY = alternatives.Sizes(windows=1, window_s=0.001, checked_events=1_000, events_max=1_000)
MISSING = Entry("elsewhere", "elsewhere", "not here", "nothing", needs=("stigmergy_not_installed",))


def test_the_actions_are_those_that_the_workload_says() -> None:
    made = reports(SEED, 3_000)
    acting = [report.address for report in made if report.acts]
    found = expected(made)
    assert {address: len(actions) for address, actions in found.items()} == {
        address: acting.count(address) for address in dict.fromkeys(acting)
    }
    assert {action for actions in found.values() for action in actions} == {"Descend", "Land"}


def test_a_missing_invented_or_misplaced_action_is_a_difference() -> None:
    wanted = by_drone([("Drone/D-1", "Land"), ("Drone/D-2", "Land"), ("Drone/D-1", "Descend")])
    assert difference(wanted, dict(reversed(wanted.items()))) is None
    assert difference(wanted, by_drone([("Drone/D-1", "Land"), ("Drone/D-1", "Descend")])) == (
        "Drone/D-2 was to do Land and did nothing"
    )
    assert difference(wanted, wanted | {"Drone/D-3": ["Land"]}) == "Drone/D-3 was to do nothing and did Land"
    assert difference(wanted, wanted | {"Drone/D-1": ["Descend", "Land"]}) is not None
    assert difference(wanted, wanted | {"Drone/D-2": ["Land", "Land"]}) is not None


def test_the_stock_is_taken_from_its_beginning() -> None:
    stock = Stock()
    first = stock.take(3)
    assert first == reports(SEED, STOCK_EVENTS)[:3]
    again = stock.take(STOCK_EVENTS + 2)
    assert (again[:2], again[-2:]) == (first[:2], first[:2])


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(entry, id=entry.name, marks=() if entry.name == "interpreted" else pytest.mark.prove)
        for entry in ENTRIES
    ],
)
def test_each_contestant_does_what_follows_from_the_events(entry: Entry, tmp_path: Path) -> None:
    assert not entry.missing, f"{', '.join(entry.missing)} is not installed; run make .venv/.bench"
    with Subject(Taken, CONTEST, entry.name, tmp_path) as subject:
        first, second = subject.ask(Take(200)), subject.ask(Take(100))
    assert first.actions == expected(Stock().take(200))
    assert second.actions == expected(Stock().take(100))
    assert len(first.actions) > len(second.actions) > 0
    assert first.events == 200
    assert first.seconds > 0
    assert any(tmp_path.iterdir()), "it has kept nothing"


class Careless:
    """A contestant that forgets the last action."""

    def prepare(self, given: Sequence[Report]) -> Any:
        return given

    def take(self, prepared: Any) -> Any:
        actions = [(address, action) for address, all_ in expected(prepared).items() for action in all_]
        return actions[:-1]

    def close(self) -> None:
        pass


def test_a_contestant_that_does_otherwise_ends_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Cheating:
        def __init__(self, *_: object) -> None:
            self._careless = Careless()

        def __enter__(self) -> "Cheating":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def ask(self, request: Take) -> Taken:
            taken = self._careless.take(Stock().take(request.events))
            return Taken(events=request.events, seconds=1.0, cpu_s=1.0, actions=by_drone(taken))

    monkeypatch.setattr(alternatives, "Subject", Cheating)
    with pytest.raises(RuntimeError, match="sqlite_loop does not do what follows from 1,000 events: Drone/"):
        alternatives.contest(tmp_path, TINY, tuple(entry for entry in ENTRIES if entry.name == "sqlite_loop"))


def test_who_is_not_installed_is_named_and_the_rest_runs(tmp_path: Path) -> None:
    few = tuple(entry for entry in ENTRIES if entry.name in {"interpreted", "sqlite_loop_batched"})
    figures = alternatives.contest(tmp_path, TINY, (*few, MISSING))
    assert figures["not_installed"] == [
        {"name": "elsewhere", "missing": "stigmergy_not_installed", "install": "make bench"}
    ]
    assert [one["name"] for one in figures["contestants"]] == ["interpreted", "sqlite_loop_batched"]
    assert figures["fastest_alternative"] == "sqlite_loop_batched"
    assert figures["contestants"][1]["ratio"] == 1.0
    assert figures["ratio"] == figures["contestants"][0]["ratio"] > 0
    assert figures["same_actions"]
    assert not list(tmp_path.iterdir())
    (chart,) = alternatives.charts(figures)
    assert chart.title.startswith("durable events a second")


def test_with_nobody_to_compare_with_there_is_no_ratio(tmp_path: Path) -> None:
    figures = alternatives.contest(tmp_path, TINY, tuple(entry for entry in ENTRIES if entry.name == "interpreted"))
    assert figures["ratio"] is None
    assert figures["fastest_alternative"] is None
