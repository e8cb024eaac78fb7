"""Claims on any of several: one wish, one place in line, the first that is free; the same for every reader."""

from __future__ import annotations

import pytest
from hypothesis import given as property_given
from hypothesis import strategies as st

from stigmergy.base.errors import Malformed
from stigmergy.claims import acquisition as acquisitions
from stigmergy.claims.acquisition import Acquisition, ClaimDenied, ClaimGranted, ClaimLost, CurrentHolder
from stigmergy.claims.entries import (
    POOL_COUNT_MAX,
    Ask,
    AskAny,
    Expire,
    Move,
    Release,
    Renew,
    Take,
    Withdraw,
    WithdrawAny,
    read_record,
    write_record,
)
from stigmergy.claims.rules import Fate, read_state, state_bytes
from stigmergy.claims.state import QUEUE_COUNT_MAX, Claims
from tests.claims.moves import LEDGER, Log, Node, sign_with, verify

DOCKS = ("dock-1", "dock-2", "dock-3")
TWO = DOCKS[:2]
ASK = AskAny(TWO, 5_000, waits=True)


def has(log: Log, name: str) -> str:
    """Who has a dock: the name of a node."""
    known = log.claims.resource(name)
    holder = known.grant or known.offer
    return next((node for node in "abcdef" if holder and holder.claimant == Node(node).claimant()), "")


def line(log: Log, name: str) -> str:
    waiting = [waiter.claimant for waiter in log.claims.resource(name).queue]
    return "".join(node for claimant in waiting for node in "abcdef" if Node(node).claimant() == claimant)


@pytest.fixture
def log() -> Log:
    return Log()


def test_the_first_that_is_free_is_granted(log: Log) -> None:
    first = log.add(Node("a"), ASK)
    assert (first.fate, first.resource) == (Fate.GRANTED, "dock-1")
    second = log.add(Node("b"), AskAny(TWO, 5_000))
    assert (second.fate, second.resource) == (Fate.GRANTED, "dock-2")
    third = Node("c")
    assert log.add(third, AskAny(TWO, 5_000)).fate is Fate.REFUSED
    assert log.add(third, ASK).fate is Fate.QUEUED
    assert (line(log, "dock-1"), line(log, "dock-2")) == ("c", "c")


def test_one_place_in_every_line_and_out_of_all_with_the_first_offer(log: Log) -> None:
    a, b = Node("a"), Node("b")
    log.add(a, ASK)
    log.add(b, ASK)
    for name in "cd":
        log.add(Node(name), ASK)
    log.add(Node("e"), Ask("dock-1", 5_000, waits=True))
    assert (line(log, "dock-1"), line(log, "dock-2")) == ("cde", "cd")
    log.add(b, Release("dock-2", 2))
    assert (has(log, "dock-2"), line(log, "dock-1"), line(log, "dock-2")) == ("c", "de", "d")
    log.add(a, Release("dock-1", 1))
    assert (has(log, "dock-1"), line(log, "dock-1"), line(log, "dock-2")) == ("d", "e", "")
    assert not log.claims.pools


def test_an_offer_that_is_passed_on_goes_to_the_next_of_the_pool(log: Log) -> None:
    a = Node("a")
    log.add(a, ASK)
    log.add(Node("b"), ASK)
    for name in "cd":
        log.add(Node(name), ASK)
    log.add(a, Release("dock-1", 1))
    log.add(a, Expire("dock-1", 5))
    assert (has(log, "dock-1"), line(log, "dock-1"), line(log, "dock-2")) == ("d", "", "")
    late = log.add(Node("c", life=1), Take("dock-1", 5, 5_000))
    assert late.fate in (Fate.VOID, Fate.REPEATED)


def test_whoever_holds_one_of_them_is_granted_that_one_anew(log: Log) -> None:
    """After a restart, for instance: not a second one."""
    log.add(Node("a"), Ask("dock-2", 5_000))
    again = log.add(Node("a", life=2), ASK)
    assert (again.fate, again.resource) == (Fate.GRANTED, "dock-2")
    assert has(log, "dock-1") == ""


def test_who_asks_again_keeps_its_place(log: Log) -> None:
    for name in "ab":
        log.add(Node(name), ASK)
    c, d = Node("c"), Node("d")
    log.add(c, ASK)
    log.add(d, ASK)
    log.add(Node("e"), Ask("dock-3", 5_000))
    log.add(c, AskAny(("dock-2", "dock-3"), 9_000, waits=True))
    assert (line(log, "dock-1"), line(log, "dock-2"), line(log, "dock-3")) == ("d", "cd", "c")
    assert log.claims.resource("dock-2").queue[0].for_ms == 9_000
    assert log.claims.pools[c.claimant()] == ("dock-2", "dock-3")


def test_a_withdrawal_leaves_every_line_and_gives_back_what_was_granted(log: Log) -> None:
    a, b, c, d = (Node(name) for name in "abcd")
    for node in (a, b, c, d):
        log.add(node, ASK)
    assert log.add(c, WithdrawAny(TWO)).fate is Fate.FREED
    assert (line(log, "dock-1"), line(log, "dock-2")) == ("d", "d")
    step = log.add(b, WithdrawAny(TWO))
    assert (step.fate, step.resource, step.others) == (Fate.FREED, "dock-1", ("dock-2",))
    assert (has(log, "dock-1"), has(log, "dock-2"), line(log, "dock-1")) == ("a", "d", "")
    assert log.add(c, WithdrawAny(TWO)).fate is Fate.VOID
    assert not log.claims.pools


def test_leaving_one_line_stays_in_the_others(log: Log) -> None:
    for name in "abc":
        log.add(Node(name), ASK)
    c = Node("c")
    c.sequence = 1
    log.add(c, Withdraw("dock-1"))
    assert (line(log, "dock-1"), line(log, "dock-2")) == ("", "c")
    assert log.claims.pools[c.claimant()] == ("dock-2",)
    log.add(c, Ask("dock-2", 5_000))
    assert not log.claims.pools


def test_a_line_that_is_full_is_not_joined(log: Log) -> None:
    for name in "ab":
        log.add(Node(name), ASK)
    for number in range(QUEUE_COUNT_MAX):
        log.add(Node(f"node-{number}"), Ask("dock-1", 1_000, waits=True))
    assert log.add(Node("c"), ASK).fate is Fate.QUEUED
    assert log.claims.pools[Node("c").claimant()] == ("dock-2",)
    for number in range(QUEUE_COUNT_MAX - 1):
        log.add(Node(f"more-{number}"), Ask("dock-2", 1_000, waits=True))
    assert log.add(Node("d"), ASK).fate is Fate.REFUSED


def test_states_without_pools_have_the_bytes_that_they_had(log: Log) -> None:
    for name in "ab":
        log.add(Node(name), ASK)
    without = state_bytes(log.claims)
    assert without[0] == 0x95
    assert read_state(without) == log.claims
    log.add(Node("c"), ASK)
    with_pool = state_bytes(log.claims)
    assert with_pool[0] == 0x96
    assert read_state(with_pool) == log.claims


@pytest.mark.parametrize(
    "move",
    [
        AskAny((), 5_000),
        AskAny(("x", "x"), 5_000),
        AskAny(tuple(map(str, range(POOL_COUNT_MAX + 1))), 5_000),
        AskAny(("x", ""), 5_000),
        AskAny(("x",), 1),
        WithdrawAny(()),
    ],
)
def test_what_cannot_be_a_pool_is_not_written(move: Move) -> None:
    with pytest.raises(Malformed):
        Node("a").record(move)


def test_moves_are_read_back() -> None:
    for move in (ASK, WithdrawAny(DOCKS)):
        body = Node("a").body(move)
        record = write_record(LEDGER, 1, b"a", body, lambda data: sign_with(b"a", data))
        read = read_record(LEDGER, record, verify)
        assert not isinstance(read, str)
        assert read.move == move


MOVES = st.one_of(
    st.builds(AskAny, st.permutations(DOCKS).map(tuple) | st.just(TWO), st.just(1_000), st.booleans()),
    st.builds(WithdrawAny, st.sampled_from([DOCKS, TWO])),
    st.builds(Ask, st.sampled_from(DOCKS), st.just(1_000), st.booleans()),
    st.builds(Withdraw, st.sampled_from(DOCKS)),
    st.builds(Expire, st.sampled_from(DOCKS), st.integers(1, 30)),
    st.builds(Take, st.sampled_from(DOCKS), st.integers(1, 30), st.just(1_000)),
    st.builds(Release, st.sampled_from(DOCKS), st.integers(1, 30)),
)


@property_given(st.lists(st.tuples(st.sampled_from("abcd"), MOVES), max_size=40))
def test_laws_of_lines(moves: list[tuple[str, Move]]) -> None:
    """Whatever comes in whatever order: nobody waits for what is free, in a line twice, or in a line that it was
    offered; who waits for a pool is in the lines that are remembered, and in no pool after an offer."""
    log = Log()
    nodes = {name: Node(name) for name in "abcd"}
    for name, move in moves:
        log.add(nodes[name], move)
        check_lines(log.claims)
        assert read_state(state_bytes(log.claims)) == log.claims


def check_lines(claims: Claims) -> None:
    for known in claims.resources.values():
        assert (known.grant is None) != (known.offer is None)
        waiting = [waiter.claimant for waiter in known.queue]
        assert len(dict.fromkeys(waiting)) == len(waiting)
        if known.offer is not None:
            assert known.offer.claimant not in waiting
    for claimant, names in claims.pools.items():
        assert names
        assert all(claims.waits(name, claimant) for name in names)
        assert not any(claims.offered(name, claimant) for name in names)


# ------------------------------------------------------------------ the claimant's side

SECOND = 1_000_000_000


def wanted(node: Node, *, waits: bool = True) -> Acquisition:
    return Acquisition(node.claimant(), "", 5_000, False, waits, 9 * SECOND, pool=TWO)


def test_a_wish_holds_the_one_that_it_was_granted() -> None:
    log, a, b = Log(), Node("a"), Node("b")
    log.add(a, Ask("dock-1", 60_000))
    turn = acquisitions.ask(None, wanted(b), 0, 1)
    assert turn.move == ASK
    assert turn.acquisition is not None
    log.add(b, turn.move)
    turn = acquisitions.heard(turn.acquisition, log.claims, b.writer, 1, SECOND, 2)
    assert turn.verdicts == (ClaimGranted(2, 5 * SECOND, "dock-2"),)
    assert turn.acquisition is not None
    assert acquisitions.release(turn.acquisition, 2).move == Release("dock-2", 2)
    renewed = acquisitions.ask(turn.acquisition, wanted(b), 2 * SECOND, 2)
    assert renewed.acquisition is not None
    assert (renewed.acquisition.resource, renewed.move) == ("dock-2", Renew("dock-2", 2, 5_000))
    over = acquisitions.tick(turn.acquisition, 5 * SECOND, 3)
    assert over.verdicts == (ClaimLost(2, acquisitions.LEASE_OVER, "dock-2"),)


def test_a_wish_takes_what_it_is_offered_and_asks_again_for_all_if_that_was_passed_on() -> None:
    log, a, b, c = Log(), Node("a"), Node("b"), Node("c")
    log.add(a, ASK)
    log.add(b, ASK)
    turn = acquisitions.ask(None, wanted(c), 0, 1)
    assert turn.acquisition is not None
    assert turn.move is not None
    log.add(c, turn.move)
    turn = acquisitions.heard(turn.acquisition, log.claims, c.writer, 1, 0, 2)
    assert (turn.move, turn.verdicts) == (None, ())
    log.add(b, Release("dock-2", 2))
    assert turn.acquisition is not None
    turn = acquisitions.heard(turn.acquisition, log.claims, c.writer, 1, 0, 2)
    assert turn.move == Take("dock-2", 4, 5_000)
    log.add(a, Expire("dock-2", 4))
    assert turn.acquisition is not None
    log.add(c, turn.move)
    turn = acquisitions.heard(turn.acquisition, log.claims, c.writer, 1, 0, 3)
    assert turn.move == ASK
    assert turn.acquisition is not None
    log.add(c, turn.move)
    turn = acquisitions.heard(turn.acquisition, log.claims, c.writer, 1, 0, 4)
    assert turn.verdicts == (ClaimGranted(7, 5 * SECOND, "dock-2"),)


def test_the_end_of_patience_says_who_has_each_of_them() -> None:
    log, a, b, c = Log(), Node("a"), Node("b"), Node("c")
    log.add(a, ASK)
    log.add(b, ASK)
    turn = acquisitions.ask(None, wanted(c), 0, 1)
    assert turn.acquisition is not None
    assert turn.move is not None
    log.add(c, turn.move)
    turn = acquisitions.heard(turn.acquisition, log.claims, c.writer, 1, 0, 2)
    assert turn.acquisition is not None
    turn = acquisitions.tick(turn.acquisition, 9 * SECOND, 2, log.claims)
    standings = (CurrentHolder("dock-1", a.claimant(), 1, place=1), CurrentHolder("dock-2", b.claimant(), 2, place=1))
    assert turn.verdicts == (ClaimDenied(acquisitions.NOT_SERVED, standings),)
    assert turn.move == WithdrawAny(TWO)
    unheard = acquisitions.ask(None, wanted(c), 0, 1)
    assert unheard.acquisition is not None
    assert acquisitions.tick(unheard.acquisition, 9 * SECOND, 2, log.claims).verdicts == (
        ClaimDenied(acquisitions.NO_VERDICT),
    )
