"""Laws of the fold, for any history: one holder, growing tokens, the same for every reader."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from stigmergy.base.errors import Malformed
from stigmergy.claims.entries import Ask, Expire, Move, Release, Renew, Take, Withdraw, WriterList, Written
from stigmergy.claims.rules import Fate, apply, fold, read_checkpoint, read_state, state_bytes
from stigmergy.claims.state import QUEUE_COUNT_MAX, Claims
from tests.claims.moves import LEDGER, Node, verify

CELLS = st.sampled_from(["cell/1", "cell/2"])
POSITIONS = st.integers(1, 40)
LEASES = st.integers(50, 5_000)
MOVES: st.SearchStrategy[Move] = st.one_of(
    st.builds(Ask, CELLS, LEASES, st.booleans()),
    st.builds(Take, CELLS, POSITIONS, LEASES),
    st.builds(Renew, CELLS, POSITIONS, LEASES),
    st.builds(Release, CELLS, POSITIONS),
    st.builds(Withdraw, CELLS),
    st.builds(Expire, CELLS, POSITIONS),
    st.just(WriterList((b"0", b"1", b"2"))),
)
HISTORIES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2), MOVES), max_size=60)
"""Who, in which life, what. Node 3 is not in the roster."""


def written(history: list[tuple[int, int, Move]]) -> list[Written]:
    nodes = {(who, life): Node(str(who), life) for who in range(4) for life in (1, 2)}
    return [nodes[who, life].written(move) for who, life, move in history]


def check(claims: Claims) -> None:
    """What holds of every state."""
    for name, known in claims.resources.items():
        assert (known.grant is None) != (known.offer is None), f"{name} is held or offered, and never both"
        assert len(known.queue) <= QUEUE_COUNT_MAX
        first = known.grant or known.offer
        everybody = [*(waiter.claimant for waiter in known.queue), first.claimant if first else b""]
        assert len(everybody) == len(set(everybody)), f"{name}: somebody is there twice"
        if known.grant is not None:
            assert known.grant.token <= known.grant.began <= 10_000


@given(HISTORIES)
def test_one_holder_and_growing_tokens(history: list[tuple[int, int, Move]]) -> None:
    claims = Claims()
    tokens: dict[str, int] = {}
    for position, one in enumerate(written(history), start=1):
        before = claims
        step = apply(claims, position, one)
        claims = step.claims
        check(claims)
        if step.fate is Fate.GRANTED:
            grant = claims.resource(step.resource).grant
            assert grant is not None
            assert grant.token == position > tokens.get(step.resource, 0)
            assert grant.claimant == one.claimant
            tokens[step.resource] = position
            holder = before.resource(step.resource).grant
            assert holder is None or holder.claimant == one.claimant, "nobody is pushed out by a question"
        for name in ("cell/1", "cell/2"):
            if name != step.resource:
                assert claims.resource(name) is before.resource(name)


@given(HISTORIES, st.data())
def test_repetitions_change_nothing(history: list[tuple[int, int, Move]], data: st.DataObject) -> None:
    entries = written(history)
    once, twice = Claims(), Claims()
    position = 0
    for number, one in enumerate(entries):
        position += 10
        once = apply(once, position, one).claims
        twice = apply(twice, position, one).claims
        if data.draw(st.booleans()):
            again = entries[data.draw(st.integers(0, number))]
            assert apply(twice, position + 1, again).fate in (Fate.REPEATED, Fate.STRANGER)
            twice = apply(twice, position + 1, again).claims
    assert once == twice


@settings(max_examples=50)
@given(HISTORIES, st.lists(st.binary(max_size=20), max_size=5), st.data())
def test_every_reader_comes_to_the_same_state(
    history: list[tuple[int, int, Move]], rubbish: list[bytes], data: st.DataObject
) -> None:
    nodes = {(who, life): Node(str(who), life) for who in range(4) for life in (1, 2)}
    entries = [nodes[who, life].record(move) for who, life, move in history]
    for one in rubbish:
        entries.insert(data.draw(st.integers(0, len(entries))), one)
    straight = Claims()
    for position, entry in enumerate(entries, start=1):
        straight = fold(straight, position, entry, LEDGER, verify).claims
    stumbling = Claims()
    for position, entry in enumerate(entries, start=1):
        stumbling = fold(stumbling, position, entry, LEDGER, verify).claims
        if data.draw(st.booleans()):  # it was restarted, and begins with a checkpoint
            stumbling = read_state(state_bytes(stumbling))
    assert stumbling == straight
    assert state_bytes(stumbling) == state_bytes(straight)
    assert straight.counts.folded == len(entries)


@given(st.binary(max_size=300))
def test_no_bytes_break_a_reader(data: bytes) -> None:
    assert fold(Claims(), 1, data, LEDGER, lambda *_: True).claims.counts.folded == 1
    for read in (read_state, lambda body: read_checkpoint(LEDGER, body, verify)):
        with contextlib.suppress(Malformed):
            read(data)
