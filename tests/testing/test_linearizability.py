"""The checker of histories: known bad ones are found, each for its reason; random ones are judged as a search does."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigs.history_search import explained_by_search, fence_explained_by_search, log_explained_by_search
from stigmergy.testing.linearizability import (
    Append,
    FencedAction,
    Log,
    ObservedHold,
    Operation,
    OperationOutcome,
    Read,
    fence_violations,
    holding_violations,
    log_violations,
)

COMMITTED, REFUSED, UNKNOWN = OperationOutcome.COMMITTED, OperationOutcome.REFUSED, OperationOutcome.UNKNOWN
A, B, C = b"a", b"b", b"c"


def wrote(
    body: bytes, start: int, end: int, position: int, outcome: OperationOutcome = COMMITTED, *more: bytes
) -> Append:
    return Append("writer", start, end, outcome, (body, *more), position)


def read(start: int, end: int, *entries: tuple[int, bytes], after: int = 0, count_max: int = 100) -> Read:
    return Read("reader", start, end, after, count_max, entries)


GOOD: dict[str, tuple[list[Operation], Log]] = {
    "one after the other": ([wrote(A, 0, 1, 1), read(2, 3, (1, A)), wrote(B, 4, 5, 2)], [(1, A), (2, B)]),
    "a read beside an append sees it": ([wrote(A, 0, 9, 1), read(1, 2, (1, A))], [(1, A)]),
    "a read beside an append does not see it": ([wrote(A, 0, 9, 1), read(1, 2)], [(1, A)]),
    "positions leave some out": ([wrote(A, 0, 1, 7), wrote(B, 2, 3, 300)], [(7, A), (300, B)]),
    "unknown, and there": ([wrote(A, 0, 1, 0, UNKNOWN)], [(1, A)]),
    "unknown, and there late": ([wrote(A, 0, 1, 0, UNKNOWN), read(5, 6), read(7, 8, (1, A))], [(1, A)]),
    "unknown, and not there": ([wrote(A, 0, 1, 0, UNKNOWN)], []),
    "refused, and not there": ([wrote(A, 0, 1, 0, REFUSED)], []),
    "a bounded read may stop early": (
        [wrote(A, 0, 1, 1), wrote(B, 2, 3, 2), read(4, 5, (1, A), count_max=1)],
        [(1, A), (2, B)],
    ),
    "who may be behind is behind": (
        [wrote(A, 0, 1, 1), Read("reader", 4, 5, 0, 100, (), is_fresh=False)],
        [(1, A)],
    ),
    "several in one append": ([wrote(A, 0, 1, 1, COMMITTED, B), read(2, 3, (2, B), after=1)], [(1, A), (2, B)]),
}

BAD: dict[str, tuple[list[Operation], Log, str]] = {
    "stale read": ([wrote(A, 0, 1, 1), read(2, 3)], [(1, A)], "not there yet"),
    "stale read of the tail": (
        [wrote(A, 0, 1, 1), wrote(B, 2, 3, 2), read(4, 5, (1, A))],
        [(1, A), (2, B)],
        "not there",
    ),
    "lost acknowledgement": ([wrote(A, 0, 1, 1)], [], "is not in the log"),
    "doubled entry": ([wrote(A, 0, 1, 1)], [(1, A), (2, A)], "twice"),
    "an unknown one twice": ([wrote(A, 0, 1, 0, UNKNOWN)], [(1, A), (2, A)], "twice"),
    "against the clock": ([wrote(B, 0, 1, 2), wrote(A, 2, 3, 1)], [(1, A), (2, B)], "acknowledged before"),
    "refused, and there": ([wrote(A, 0, 1, 0, REFUSED)], [(1, A)], "was refused"),
    "from nowhere": ([], [(1, A)], "by nobody"),
    "time travel": ([read(0, 1, (1, A)), wrote(A, 2, 3, 1)], [(1, A)], "not there yet"),
    "an unknown one before it was sent": ([read(0, 1, (1, A)), wrote(A, 2, 3, 0, UNKNOWN)], [(1, A)], "not there yet"),
    "seen, and then not": (
        [wrote(A, 0, 9, 1), read(1, 2, (1, A)), read(3, 4)],
        [(1, A)],
        "acknowledged before|not there",
    ),
    "torn": ([wrote(A, 0, 1, 1, COMMITTED, B)], [(1, A)], "torn"),
    "torn by another": (
        [wrote(A, 0, 5, 1, COMMITTED, B), wrote(C, 0, 5, 2)],
        [(1, A), (2, C), (3, B)],
        "torn",
    ),
    "a half as the end": ([wrote(A, 0, 9, 1, COMMITTED, B), read(1, 2, (1, A))], [(1, A), (2, B)], "a part of"),
    "not consecutive": ([wrote(A, 0, 1, 1, COMMITTED, B)], [(1, A), (5, B)], "consecutive"),
    "another position": ([wrote(A, 0, 1, 2)], [(1, A)], "acknowledged at 2"),
    "a hole in a read": (
        [wrote(A, 0, 1, 1), wrote(B, 2, 3, 2), read(4, 5, (2, B))],
        [(1, A), (2, B)],
        "returned b'b' at 2",
    ),
    "another body": ([wrote(A, 0, 1, 1), read(2, 3, (1, C))], [(1, A)], "returned b'c'"),
    "more than there is": ([wrote(A, 0, 1, 1), read(2, 3, (1, A), (2, C))], [(1, A)], "nothing there"),
    "more than was asked for": ([wrote(A, 0, 1, 1), read(2, 3, (1, A), count_max=0)], [(1, A)], "at most 0"),
    "positions that go back": ([wrote(A, 0, 1, 2), wrote(B, 2, 3, 1)], [(2, A), (1, B)], "from position 2 to 1"),
    "two reads in two orders": (
        [wrote(A, 0, 9, 1), wrote(B, 0, 9, 2), read(1, 2, (1, A), (2, B)), read(3, 4, (1, A))],
        [(1, A), (2, B)],
        "acknowledged before|not there",
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_passes(name: str) -> None:
    history, log = GOOD[name]
    assert log_violations(history, log) == []
    assert log_explained_by_search(history, log)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_found(name: str) -> None:
    history, log, why = BAD[name]
    found = log_violations(history, log)
    assert found
    assert any(part in sentence for sentence in found for part in why.split("|")), found


def drawn_history(draw: random.Random, count: int) -> tuple[list[Operation], list[tuple[int, bytes]]]:
    """A ledger that does what it should, with operations of several clients that overlap."""
    log: list[tuple[int, bytes]] = []
    happen: list[tuple[int, int, int]] = sorted(
        (at, max(0, at - draw.randrange(12)), at + draw.randrange(12)) for at in draw.sample(range(6 * count), count)
    )
    history: list[Operation] = []
    for number, (_, start, end) in enumerate(happen):
        client = f"client {draw.randrange(3)}"
        if draw.random() < 0.5:
            after = draw.choice([0, *(position for position, _ in log)])
            count_max = draw.choice([1, 2, 100])
            there = [pair for pair in log if pair[0] > after]
            history.append(Read(client, start, end, after, count_max, tuple(there[:count_max])))
            continue
        bodies = tuple(b"%d.%d" % (number, index) for index in range(draw.randrange(1, 3)))
        outcome = draw.choice([COMMITTED, COMMITTED, REFUSED, UNKNOWN])
        position = 0
        if outcome is COMMITTED or (outcome is UNKNOWN and draw.random() < 0.5):
            position = (log[-1][0] if log else 0) + draw.randrange(1, 4)
            log += [(position + index, body) for index, body in enumerate(bodies)]
        history.append(Append(client, start, end, outcome, bodies, position if outcome is COMMITTED else 0))
    draw.shuffle(history)
    return history, log


def spoilt(draw: random.Random, history: list[Operation], log: list[tuple[int, bytes]]) -> list[Operation]:
    """The history with one mistake, which may or may not be one that anybody can notice."""
    history = list(history)
    index = draw.randrange(len(history))
    one = history[index]
    shift = draw.randrange(-20, 20)
    match draw.randrange(4), one:
        case 0, Read(entries=entries) if entries:
            history[index] = Read(one.client, one.start_ns, one.end_ns, one.after, one.count_max, entries[:-1])
        case 1, Append():
            outcome = draw.choice(list(OperationOutcome))
            history[index] = Append(one.client, one.start_ns, one.end_ns, outcome, one.entries, one.position)
        case 2, Read():
            start = max(0, one.start_ns + shift)
            moved = (start, start + one.end_ns - one.start_ns)
            history[index] = Read(one.client, *moved, one.after, one.count_max, one.entries, draw.random() < 0.5)
        case _, Append():
            start = max(0, one.start_ns + shift)
            moved = (start, start + one.end_ns - one.start_ns)
            history[index] = Append(one.client, *moved, one.outcome, one.entries, one.position)
        case _, _:
            del history[index]
    if log and draw.random() < 0.15:
        del log[draw.randrange(len(log))]
    return history


@given(st.randoms(use_true_random=False), st.integers(1, 9))
def test_random_good_histories_pass(draw: random.Random, count: int) -> None:
    history, log = drawn_history(draw, count)
    assert log_violations(history, log) == []
    assert log_explained_by_search(history, log)


@given(st.randoms(use_true_random=False), st.integers(1, 9), st.integers(1, 3))
def test_random_histories_are_judged_as_by_trying_all_orders(draw: random.Random, count: int, faults: int) -> None:
    history, log = drawn_history(draw, count)
    for _ in range(faults):
        if history:
            history = spoilt(draw, history, log)
    # What only names positions is no question of order, and the search does not ask it.
    positions = [position for position, _ in log]
    assert positions == sorted(positions)
    found = log_violations(history, log)
    assert (found == []) == log_explained_by_search(history, log), (found, history, log)


def test_thousands_of_operations_are_checked_in_one_pass() -> None:
    draw = random.Random(5)
    history, log = drawn_history(draw, 6_000)
    assert log_violations(history, log) == []
    stale = Read("late", 10**6, 10**6 + 1, 0, 10**6, tuple(log[:-1]))
    assert log_violations([*history, stale], log)


def test_a_search_is_bounded() -> None:
    with pytest.raises(ValueError, match="every order"):
        explained_by_search([wrote(A, 0, 1, 1)] * 17, 0, lambda state, _operation: state)


# Who holds.


def held(
    client: str, token: int, told: int, over: int, asked: int | None = None, resource: str = "cell"
) -> ObservedHold:
    return ObservedHold(client, resource, token, told - 1 if asked is None else asked, told, over)


def test_one_holder_after_the_other_is_good() -> None:
    assert holding_violations([held("x", 1, 10, 20), held("y", 5, 20, 30), held("x", 7, 31, 40)]) == []
    assert holding_violations([held("x", 1, 10, 20), held("y", 2, 10, 20, resource="other")]) == []
    assert holding_violations([held("x", 1, 10, 20), held("x", 1, 15, 25)]) == []  # the same one, told twice


@pytest.mark.parametrize(
    ("holds", "why"),
    [
        ([held("x", 1, 10, 20), held("y", 2, 19, 30)], "both believed"),
        ([held("x", 1, 10, 50), held("x", 2, 20, 22), held("y", 3, 30, 40)], "both believed"),
        ([held("x", 3, 10, 20), held("y", 3, 20, 30)], "was given to"),
        ([held("x", 9, 10, 20), held("y", 2, 30, 40, asked=25)], "before somebody has asked"),
    ],
)
def test_two_holders_and_tokens_out_of_order_are_found(holds: list[ObservedHold], why: str) -> None:
    assert any(why in sentence for sentence in holding_violations(holds))


# Behind a fence.


def acted(
    token: int, start: int, end: int, outcome: OperationOutcome = COMMITTED, resource: str = "gate"
) -> FencedAction:
    return FencedAction("client", resource, token, start, end, outcome)


@pytest.mark.parametrize(
    ("actions", "is_good"),
    [
        ([acted(1, 0, 1), acted(2, 2, 3), acted(1, 4, 5, REFUSED)], True),
        ([acted(1, 0, 1), acted(2, 2, 3), acted(1, 4, 5)], False),
        ([acted(1, 0, 1), acted(1, 4, 5, REFUSED)], False),
        ([acted(2, 0, 9, UNKNOWN), acted(1, 4, 5, REFUSED)], True),
        ([acted(2, 6, 9, UNKNOWN), acted(1, 4, 5, REFUSED)], False),
        ([acted(2, 0, 9, UNKNOWN), acted(1, 4, 5, REFUSED), acted(1, 6, 7)], False),
        ([acted(2, 0, 9), acted(1, 4, 5)], True),
        ([acted(2, 0, 1), acted(1, 4, 5, resource="other")], True),
    ],
)
def test_a_fence_lets_nothing_older_through(actions: list[FencedAction], is_good: bool) -> None:
    assert (fence_violations(actions) == []) == is_good


@given(
    st.lists(
        st.builds(
            lambda token, start, took, outcome: acted(token, start, start + took, outcome),
            st.integers(1, 4),
            st.integers(0, 12),
            st.integers(0, 6),
            st.sampled_from(OperationOutcome),
        ),
        max_size=7,
    )
)
def test_random_actions_are_judged_as_by_trying_all_orders(actions: list[FencedAction]) -> None:
    assert (fence_violations(actions) == []) == fence_explained_by_search(actions)
