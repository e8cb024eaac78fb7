"""The search over all interleavings: it finds what is wrong, by the shortest way, and says when it has not seen all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stigmergy.sim.explore import explore


class Door(NamedTuple):
    """Two who enter a room if they see that it is empty."""

    inside: tuple[bool, bool] = (False, False)
    looked: tuple[bool, bool] = (False, False)


class Careless:
    """Looks first and enters later: between the two the other may have entered."""

    def initial(self) -> Iterable[Door]:
        return (Door(),)

    def steps(self, state: Door) -> Iterable[tuple[str, Door]]:
        for who in (0, 1):
            if not state.looked[who] and not any(state.inside):
                yield f"{who} looks", state._replace(looked=_set(state.looked, who))
            if state.looked[who] and not state.inside[who]:
                yield f"{who} enters", state._replace(inside=_set(state.inside, who))

    def wrong(self, state: Door) -> str | None:
        return "two are inside" if all(state.inside) else None


class Careful(Careless):
    """Looks and enters at once."""

    def steps(self, state: Door) -> Iterable[tuple[str, Door]]:
        for who in (0, 1):
            if not any(state.inside):
                yield f"{who} looks and enters", state._replace(inside=_set(state.inside, who))


class Counting:
    """Counts for ever."""

    def initial(self) -> Iterable[int]:
        return (0, 0)

    def steps(self, state: int) -> Iterable[tuple[str, int]]:
        yield "one more", state + 1
        yield "the same", state

    def wrong(self, state: int) -> str | None:
        return None


def _set(flags: tuple[bool, bool], who: int) -> tuple[bool, bool]:
    return (True, flags[1]) if who == 0 else (flags[0], True)


def test_finds_the_shortest_way_to_what_is_wrong() -> None:
    found = explore(Careless())
    assert found.wrong == "two are inside"
    assert found.counterexample is not None
    assert [moment.what for moment in found.counterexample] == [
        "begin",
        "0 looks",
        "1 looks",
        "0 enters",
        "1 enters",
    ]
    assert not found.complete


def test_prints_a_schedule_that_people_can_read() -> None:
    lines = explore(Careless()).schedule(lambda door: f"inside {door.inside}").splitlines()
    assert lines[0].startswith("wrong after 4 steps (")
    assert lines[0].endswith("): two are inside")
    assert [line.strip() for line in lines[-2:]] == ["4  1 enters", "inside (True, True)"]


def test_sees_everything_where_there_is_nothing_wrong() -> None:
    found = explore(Careful())
    assert (found.states, found.transitions, found.ends, found.depth) == (3, 2, 2, 1)
    assert found.complete
    assert found.counterexample is None
    assert found.schedule() == "nothing wrong in 3 states, 2 transitions, depth 1"


def test_says_that_a_bound_has_cut_it() -> None:
    deep = explore(Counting(), depth_max=10)
    assert (deep.states, deep.depth, deep.complete) == (11, 10, False)
    many = explore(Counting(), states_count_max=5)
    assert (many.states, many.complete) == (5, False)
    assert many.schedule().endswith("cut by a bound")


def test_a_wrong_beginning_is_found() -> None:
    class Wrong(Careful):
        def wrong(self, state: Door) -> str | None:
            return None if any(state.inside) else "empty"

    found = explore(Wrong())
    assert found.counterexample is not None
    assert [moment.what for moment in found.counterexample] == ["begin"]
