"""Searches for dead ends: states of a small system from which, without further faults, it never finishes.

    found = explore_to_the_end(model)          # as `explore`, and a dead end is wrong, too
    assert found.counterexample is None, found.schedule()

Safety is not all that is promised: a node that does nothing does nothing wrong. So all steps are remembered, and from
the finished states the search goes back along steps that are not faults. A state that it does not meet is a dead end.
If a bound cut the search, it reports nothing about ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol

from stigmergy.sim.explore import DEPTH_MAX, STATES_COUNT_MAX, Exploration, S, SearchedModel, explore


class EndingModel(SearchedModel[S], Protocol[S]):
    """A small system that is to come to an end."""

    def is_over(self, state: S) -> bool:
        """Whether everybody has what they wanted, and nothing is left to do."""
        ...

    def is_fault(self, what: str) -> bool:
        """Whether a step of this name is one that nobody wishes for."""
        ...


class _Recorded(Generic[S]):
    """A model that remembers every step without a fault, backwards."""

    def __init__(self, model: EndingModel[S]) -> None:
        self._model = model
        self.numbers: dict[S, int] = {}
        self.before: list[list[int]] = []
        """For each state, by its number, those from which a step leads to it."""

    def initial(self) -> Iterable[S]:
        return self._model.initial()

    def steps(self, state: S) -> Iterable[tuple[str, S]]:
        here = self._number(state)
        for what, reached in self._model.steps(state):
            if not self._model.is_fault(what):
                self.before[self._number(reached)].append(here)
            yield what, reached

    def wrong(self, state: S) -> str | None:
        return self._model.wrong(state)

    def dead_ends(self) -> dict[S, None]:
        """States from which no way leads to an end."""
        waiting = [number for state, number in self.numbers.items() if self._model.is_over(state)]
        alive = bytearray(len(self.before))
        for number in waiting:
            alive[number] = True
        while waiting:
            for number in self.before[waiting.pop()]:
                if not alive[number]:
                    alive[number] = True
                    waiting.append(number)
        return {state: None for state, number in self.numbers.items() if not alive[number]}

    def _number(self, state: S) -> int:
        number = self.numbers.setdefault(state, len(self.before))
        if number == len(self.before):
            self.before.append([])
        return number


class _DeadEnds(Generic[S]):
    """The same model, in which a dead end is wrong: to find the shortest way there."""

    def __init__(self, model: EndingModel[S], dead_ends: dict[S, None]) -> None:
        self._dead_ends = dead_ends
        self.initial = model.initial
        self.steps = model.steps

    def wrong(self, state: S) -> str | None:
        return "from here, without further faults, it never comes to its end" if state in self._dead_ends else None


def explore_to_the_end(
    model: EndingModel[S], *, depth_max: int = DEPTH_MAX, states_count_max: int = STATES_COUNT_MAX
) -> Exploration[S]:
    """Looks at every state within the bounds, and then whether all of them lead to an end."""
    recorded = _Recorded(model)
    found = explore(recorded, depth_max=depth_max, states_count_max=states_count_max)
    if not found.complete:
        return found
    dead_ends = recorded.dead_ends()
    return explore(_DeadEnds(model, dead_ends), depth_max=depth_max) if dead_ends else found
