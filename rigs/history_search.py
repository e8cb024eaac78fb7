"""Explains small histories of a ledger by trying all orders: what the checkers in one pass are compared with."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from stigmergy.testing.linearizability import (
    NEVER_NS,
    FencedAction,
    Log,
    Operation,
    OperationOutcome,
    Read,
    index_behind,
)

SEARCH_COUNT_MAX = 16
"""So many operations `explained_by_search` takes: it may try every order of them."""
State = TypeVar("State", bound=Hashable)
Timed = TypeVar("Timed", Operation, FencedAction)


def explained_by_search(
    history: Sequence[Timed],
    begin: State,
    step: Callable[[State, Timed], State | None],
    is_end: Callable[[State], bool] = lambda _state: True,
) -> bool:
    """Whether some order of the operations explains a small history: the definition, carried out.

    `step` gives the state behind an operation, None if it cannot have happened there. What is UNKNOWN may be left out.
    """
    if len(history) > SEARCH_COUNT_MAX:
        raise ValueError(f"{len(history)} operations; every order of {SEARCH_COUNT_MAX} can be tried, not of more")
    optional = [getattr(one, "outcome", None) is OperationOutcome.UNKNOWN for one in history]
    latest = [NEVER_NS if optional[index] else one.end_ns for index, one in enumerate(history)]
    seen: dict[tuple[int, State], None] = {}

    def explained(done: int, state: State) -> bool:
        if (done, state) in seen:
            return False
        seen[done, state] = None
        left = [index for index in range(len(history)) if not done >> index & 1]
        if all(optional[index] for index in left) and is_end(state):
            return True
        # Whatever begins after one of those left has ended cannot come before it.
        must_by_ns = min((latest[index] for index in left), default=NEVER_NS)
        for index in left:
            if history[index].start_ns > must_by_ns:
                continue
            behind = step(state, history[index])
            if behind is not None and explained(done | 1 << index, behind):
                return True
        return False

    return explained(0, begin)


def log_explained_by_search(history: Sequence[Operation], log: Log) -> bool:
    """The same question as `log_violations`, for small histories, by trying all orders. The state is how much of the
    log is there."""

    def step(length: int, operation: Operation) -> int | None:
        if isinstance(operation, Read):
            start = index_behind(log, operation.after)
            # A read that may be behind has seen the log as it was then or earlier, which is what `length` allows.
            there = tuple(log[start : max(start, length)])
            returned = operation.entries
            if start > length or returned != there[: len(returned)] or len(returned) > operation.count_max:
                return None
            return None if operation.saw_the_end and len(returned) < len(there) else length
        if operation.outcome is OperationOutcome.REFUSED:
            return length
        found = log[length : length + len(operation.entries)]
        if tuple(body for _, body in found) != operation.entries:
            return None
        if operation.outcome is OperationOutcome.COMMITTED and found[0][0] != operation.position:
            return None
        return length + len(found)

    return explained_by_search(history, 0, step, lambda length: length == len(log))


def fence_explained_by_search(actions: Sequence[FencedAction]) -> bool:
    """The same question as `fence_violations` of one resource, by trying all orders. The state is the newest token."""

    def step(newest: int, action: FencedAction) -> int | None:
        if action.outcome is OperationOutcome.REFUSED:
            return newest if action.token < newest else None
        return action.token if action.token >= newest else None

    return explained_by_search(actions, 0, step)
