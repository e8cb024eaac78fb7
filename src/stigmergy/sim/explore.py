"""Tries every order of the steps of a small system, to a bound, and prints the first wrong one.

    class Lock(SearchedModel[State]):
        def initial(self) -> Iterable[State]: ...
        def steps(self, state: State) -> Iterable[tuple[str, State]]: ...     # what may happen next, in words
        def wrong(self, state: State) -> str | None: ...                      # what must never be so

    found = explore(Lock(), depth_max=20)
    assert found.counterexample is None, found.schedule()

A state is a value: hashable, equal when it is the same. Every state is visited once, however many paths lead to it, in
the order of its distance from the beginning; so a counterexample is as short as possible. The search is exhaustive if
`complete`: no bound has cut it. It uses no randomness, so two runs visit the same states in the same order, as long as
a model never iterates over a set.

Models should call the shipped code wherever it is pure. A model that only resembles it proves only the resemblance.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

STATES_COUNT_MAX = 5_000_000
"""States that one search may hold; it ends there, and says that it is not complete."""
DEPTH_MAX = 1_000

S = TypeVar("S", bound=Hashable)


class SearchedModel(Protocol[S]):
    """A small system: where it may begin, what may happen next, what must never be."""

    def initial(self) -> Iterable[S]:
        """The states to begin with."""
        ...

    def steps(self, state: S) -> Iterable[tuple[str, S]]:
        """Everything that may happen next: in words, and the state behind it. The same for equal states."""
        ...

    def wrong(self, state: S) -> str | None:
        """What is wrong with this state; None if nothing is."""
        ...


class ScheduleStep(Struct, Generic[S], frozen=True):
    """One step of a schedule, and where it led."""

    what: str
    state: S


class Exploration(Struct, Generic[S], frozen=True):
    """What a search has seen."""

    states: int
    transitions: int
    depth: int
    """The longest way that was gone, each by the shortest schedule."""
    ends: int
    """States in which nothing more can happen."""
    complete: bool
    """Whether every state that can be reached was looked at; else a bound has cut the search."""
    wrong: str | None = None
    counterexample: tuple[ScheduleStep[S], ...] | None = None
    """The shortest schedule that ends in a wrong state."""

    def schedule(self, describe: Callable[[S], str] | None = None) -> str:
        """The counterexample for people, step by step; or what was seen if there is none."""
        seen = f"{self.states:,} states, {self.transitions:,} transitions, depth {self.depth}"
        if self.counterexample is None:
            return f"nothing wrong in {seen}{'' if self.complete else ', cut by a bound'}"
        lines = [f"wrong after {len(self.counterexample) - 1} steps ({seen}): {self.wrong}"]
        for number, moment in enumerate(self.counterexample):
            lines.append(f"{number:4}  {moment.what}")
            if describe is not None:
                lines += [f"          {line}" for line in describe(moment.state).splitlines()]
        return "\n".join(lines)


def explore(
    model: SearchedModel[S], *, depth_max: int = DEPTH_MAX, states_count_max: int = STATES_COUNT_MAX
) -> Exploration[S]:
    """Looks at every state within the bounds, nearest first, and ends at the first wrong one."""
    return _Search(model, depth_max, states_count_max).run()


class _Search(Generic[S]):
    """One search. Each state remembers, by number, from which one it was reached, and how."""

    def __init__(self, model: SearchedModel[S], depth_max: int, states_count_max: int) -> None:
        self._model = model
        self._depth_max = depth_max
        self._states_count_max = states_count_max
        self._seen: dict[S, tuple[S | None, str]] = {}
        self._transitions = 0
        self._ends = 0
        self._cut = False

    def run(self) -> Exploration[S]:
        """Goes from one distance to the next."""
        level: list[S] = []
        for state in self._model.initial():
            if self._is_new(state, None, "begin"):
                level.append(state)
                if wrong := self._model.wrong(state):
                    return self._outcome(0, state, wrong)
        depth = 0
        while level:
            if depth == self._depth_max:
                self._cut = True
                break
            following: list[S] = []
            for state in level:
                wrong_state = self._follow(state, following)
                if wrong_state is not None:
                    return self._outcome(depth + 1, *wrong_state)
            level = following
            depth += bool(level)
        return self._outcome(depth)

    def _follow(self, state: S, following: list[S]) -> tuple[S, str] | None:
        """Takes every step from a state; the first that leads to a wrong one ends the search."""
        ended = True
        for what, reached in self._model.steps(state):
            ended = False
            self._transitions += 1
            if self._is_new(reached, state, what):
                if wrong := self._model.wrong(reached):
                    return reached, wrong
                following.append(reached)
        self._ends += ended
        return None

    def _is_new(self, state: S, before: S | None, what: str) -> bool:
        if state in self._seen:
            return False
        if len(self._seen) >= self._states_count_max:
            self._cut = True
            return False
        self._seen[state] = (before, what)
        return True

    def _outcome(self, depth: int, state: S | None = None, wrong: str | None = None) -> Exploration[S]:
        found = None if state is None else self._way_to(state)
        complete = not self._cut and found is None
        return Exploration(len(self._seen), self._transitions, depth, self._ends, complete, wrong, found)

    def _way_to(self, state: S) -> tuple[ScheduleStep[S], ...]:
        moments: list[ScheduleStep[S]] = []
        at: S | None = state
        while at is not None:
            before, what = self._seen[at]
            moments.append(ScheduleStep(what, at))
            at = before
        return tuple(reversed(moments))
