"""What a shard remembers beside its agents: the answers it gave, the inputs that failed, who fails too often.

Each table is bounded, and each changes only with a commit, so that a replay arrives at the same tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

from stigmergy.core.messages import SECOND_NS
from stigmergy.core.supervision import FAILURES_COUNT_MAX

ANSWERS_COUNT_MAX = 10_000
ANSWERS_AGE_NS_MAX = 24 * 3600 * SECOND_NS
ANSWERS_COUNT_MIN = 1_000
"""So many answers are kept whatever their age: a clock that jumps from 1970 to today must not make us forget them."""
LETTERS_COUNT_MAX = 1_000
LETTERS_BYTES_MAX = 8 * 1024 * 1024
PASTS_COUNT_MAX = 8
"""Commits that changed a table and may not be on disk yet: one that is stepped, one on its way, and some to spare."""
_T = TypeVar("_T")


class Remembered(Struct, array_like=True, frozen=True):
    """The answer to a command, so that the same command sent again gets the same answer and does nothing.

    An id belongs to the agent that was asked: the same id for another agent is another command.
    """

    agent: str
    command_id: str
    time_ns: int
    position: int
    refused: str | None


class Letter(Struct, array_like=True, frozen=True):
    """An input that failed, kept where it can be looked at, retried or dropped."""

    letter: str
    agent: str
    source: str
    error: str
    input: bytes


class Answers:
    """Answers of the last day, 10,000 at most, the last 1,000 in any case.

    A command sent again after that would be taken as a new one.
    """

    def __init__(
        self,
        count_max: int = ANSWERS_COUNT_MAX,
        age_ns_max: int = ANSWERS_AGE_NS_MAX,
        count_min: int = ANSWERS_COUNT_MIN,
    ) -> None:
        self._answers: dict[tuple[str, str], Remembered] = {}
        self._count_max = count_max
        self._count_min = count_min
        self._age_ns_max = age_ns_max

    def get(self, agent: str, command_id: str) -> Remembered | None:
        """The answer that this agent gave to this command, if it is still remembered."""
        return self._answers.get((agent, command_id))

    def put(self, answer: Remembered) -> None:
        """Remembers an answer."""
        self._answers[answer.agent, answer.command_id] = answer

    def prune(self, now_ns: int) -> None:
        """Forgets what is too old or too many, oldest first."""
        answers = self._answers
        while len(answers) > self._count_min:
            oldest = next(iter(answers.values()))
            if len(answers) <= self._count_max and now_ns - oldest.time_ns <= self._age_ns_max:
                break
            del answers[oldest.agent, oldest.command_id]

    def all(self) -> list[Remembered]:
        """Every answer, oldest first."""
        return list(self._answers.values())

    def restore(self, answers: list[Remembered]) -> None:
        """Takes over what a snapshot says."""
        self._answers = {(answer.agent, answer.command_id): answer for answer in answers}


class Letters:
    """The dead letters, oldest first; past the limits the oldest leave the table (the log still has them)."""

    def __init__(self, count_max: int = LETTERS_COUNT_MAX, bytes_max: int = LETTERS_BYTES_MAX) -> None:
        self._letters: dict[str, Letter] = {}
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._bytes = 0

    def put(self, letter: Letter) -> None:
        """Adds a letter."""
        self._letters[letter.letter] = letter
        self._bytes += len(letter.input)
        while len(self._letters) > self._count_max or self._bytes > self._bytes_max:
            self.take(next(iter(self._letters)))

    def get(self, letter: str) -> Letter | None:
        """The letter, if it is there."""
        return self._letters.get(letter)

    def take(self, letter: str) -> None:
        """Removes a letter that was retried or dropped."""
        taken = self._letters.pop(letter, None)
        if taken is not None:
            self._bytes -= len(taken.input)

    def all(self) -> list[Letter]:
        """Every letter, oldest first."""
        return list(self._letters.values())

    def restore(self, letters: list[Letter]) -> None:
        """Takes over what a snapshot says."""
        self._letters = {letter.letter: letter for letter in letters}
        self._bytes = sum(len(letter.input) for letter in letters)


class Pasts(Generic[_T]):
    """A table as it was before each of the last commits that changed it: as long as those are not on disk, that is
    what is, and what people are shown."""

    def __init__(self) -> None:
        self._pasts: dict[int, _T] = {}

    def keep(self, position: int, copy: Callable[[], _T]) -> None:
        """The table is about to be changed by the commit at this position; later changes by it find it kept."""
        if position not in self._pasts:
            self._pasts[position] = copy()
            if len(self._pasts) > PASTS_COUNT_MAX:
                del self._pasts[next(iter(self._pasts))]

    def at(self, position: int, now: Callable[[], _T]) -> _T:
        """The table as the commit at this position left it: as it was before the first change after it, or is now."""
        for changed_at, past in self._pasts.items():
            if changed_at > position:
                return past
        return now()


class Failures:
    """When inputs of an agent failed lately, for its supervision."""

    def __init__(self) -> None:
        self._times: dict[str, list[int]] = {}

    def add(self, agent: str, now_ns: int, within_s: float) -> None:
        """Notes one more failure; those before the time are forgotten."""
        since_ns = now_ns - int(within_s * SECOND_NS)
        times = [time_ns for time_ns in self._times.get(agent, []) if time_ns > since_ns]
        self._times[agent] = [*times, now_ns][-FAILURES_COUNT_MAX:]

    def lately(self, agent: str, now_ns: int, within_s: float) -> int:
        """How many failures there were within the time."""
        since_ns = now_ns - int(within_s * SECOND_NS)
        return sum(1 for time_ns in self._times.get(agent, []) if time_ns > since_ns)

    def forget(self, agent: str) -> None:
        """Starts counting anew."""
        self._times.pop(agent, None)

    def all(self) -> list[tuple[str, list[int]]]:
        """Every agent with failures, in a fixed order."""
        return sorted(self._times.items())

    def restore(self, times: list[tuple[str, list[int]]]) -> None:
        """Takes over what a snapshot says."""
        self._times = dict(times)
