"""The commit protocol in every order of events, to a small bound; and rules of the host that are broken on purpose."""

import pytest

from proofs import exhaustive
from rigs.commit_model import Bounds, CommitModel, Mistake
from rigs.dead_ends import explore_to_the_end
from stigmergy.shard import replay
from stigmergy.shard.marks import Marks
from stigmergy.shard.outbox import Outbox
from stigmergy.shard.shard import Shard

SMALL = Bounds(items=1, crashes=1)
TWO = Bounds(items=2, crashes=1, asks=False)


@pytest.mark.parametrize("bounds", [SMALL, TWO, Bounds(items=1, crashes=1, tells=True)])
def test_no_order_of_events_breaks_a_promise_and_all_lead_to_an_end(bounds: Bounds) -> None:
    found = explore_to_the_end(CommitModel(bounds))
    assert found.complete, found.schedule()
    assert found.states > 500


def test_the_search_is_the_same_each_time() -> None:
    first, second = (explore_to_the_end(CommitModel(SMALL)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("mistake", Mistake, ids=lambda mistake: mistake.name.lower())
def test_a_rule_of_the_host_that_is_broken_is_found(mistake: Mistake) -> None:
    bounds = TWO if mistake is Mistake.ACKNOWLEDGES_UNTAKEN else SMALL
    found = explore_to_the_end(CommitModel(bounds, mistake))
    assert found.counterexample is not None
    assert len(found.counterexample) < 8, "the shortest schedule"
    assert found.schedule().startswith("wrong after")


def test_a_core_that_consumes_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    admit = Marks.admit
    monkeypatch.setattr(Marks, "admit", lambda self, *place: min(0, admit(self, *place)))
    assert "one is doubled" in str(explore_to_the_end(CommitModel(SMALL)).wrong)


def test_a_core_that_lives_otherwise_than_it_replays_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shard, "_move_mark", lambda self, *moved: None)
    assert explore_to_the_end(CommitModel(SMALL)).counterexample is not None


def test_a_replay_that_forgets_what_is_owed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_take_on", lambda state, commit: None)
    assert "folds into" in str(explore_to_the_end(CommitModel(SMALL)).wrong)


def test_effects_that_are_never_released_again_are_a_dead_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Outbox, "owed", lambda self: iter(()))
    assert "never comes to its end" in str(explore_to_the_end(CommitModel(SMALL)).wrong)


def test_the_proof_prints_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert exhaustive.main(["--items", "1", "--crashes", "1"]) == 0
    assert "1 inputs, 1 crashes, a command: nothing wrong in" in capsys.readouterr().out


def test_a_search_that_is_cut_says_nothing_of_ends() -> None:
    found = explore_to_the_end(CommitModel(SMALL, Mistake.FORGETS_WHAT_IS_OWED), depth_max=6)
    assert not found.complete
    assert found.counterexample is None


class Corridor:
    """From 0 to 3. Who falls into the pit at 1 never gets out; who stumbles begins anew."""

    def initial(self) -> list[int]:
        return [0]

    def steps(self, place: int) -> list[tuple[str, int]]:
        ways = {0: [("on", 1)], 1: [("on", 2), ("down", -1)], 2: [("stumble", 0), ("on", 3)], -1: [("climb", -1)]}
        return ways.get(place, [])

    def wrong(self, place: int) -> str | None:
        return None

    def is_over(self, place: int) -> bool:
        return place == 3

    def is_fault(self, what: str) -> bool:
        return what == "stumble"


class Bridge(Corridor):
    """Only who stumbles at 2 gets on: nobody may need a fault to come to an end."""

    def steps(self, place: int) -> list[tuple[str, int]]:
        return {0: [("on", 1)], 1: [("on", 2)], 2: [("stumble", 3)]}.get(place, [])


@pytest.mark.parametrize(("model", "way"), [(Corridor(), ["begin", "on", "down"]), (Bridge(), ["begin"])])
def test_a_dead_end_is_found_by_the_shortest_way(model: Corridor, way: list[str]) -> None:
    found = explore_to_the_end(model)
    assert found.counterexample is not None
    assert [moment.what for moment in found.counterexample] == way
