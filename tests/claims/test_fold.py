"""The fold: every reader comes to the same state, whatever is in the log, from its beginning or from a checkpoint."""

from __future__ import annotations

import pytest

from stigmergy.agents.codec import encode
from stigmergy.base.errors import Malformed
from stigmergy.claims import rules as folding
from stigmergy.claims.entries import Ask, Expire, Move, Release, Renew, Withdraw, WriterList
from stigmergy.claims.observer import LeaseObserver
from stigmergy.claims.rules import (
    ClaimsCheckpoint,
    Fate,
    digest,
    fold,
    is_milestone,
    read_checkpoint,
    read_state,
    state_bytes,
    write_checkpoint,
)
from stigmergy.claims.state import Claims, Counts
from tests.claims.moves import CELL, LEDGER, Node, sign_with, verify


def fold_all(entries: list[bytes], claims: Claims | None = None, after: int = 0) -> Claims:
    """The state behind these entries, at positions with gaps, as a ledger may have them."""
    claims = claims or Claims()
    for number, entry in enumerate(entries, start=1):
        claims = fold(claims, after + 2 * number, entry, LEDGER, verify).claims
    return claims


def test_what_is_not_in_order_is_skipped_and_counted() -> None:
    north, south = Node("north"), Node("south")
    asked = north.record(Ask(CELL, 1_000))
    claims = fold_all(
        [
            asked,
            b"no record",
            asked,
            north.record(Ask(CELL, 1_000), ledger="another"),
            encode([3, 1, b"", b"", b""]),
            south.record(Ask(CELL, 1_000, waits=True)),
            south.record(Ask("another", 1_000)),
            south.record(Renew("another", 14, 1_000)),
            north.record(Ask("another", 1_000)),
            north.record(Release(CELL, 99)),
            south.record(Expire(CELL, 2)),
            south.record(WriterList((b"south",))),
            north.record(Withdraw(CELL)),
        ]
    )
    assert claims.position == 26
    assert claims.counts == Counts(
        folded=13,
        malformed=1,
        unknown=1,
        forged=1,
        strangers=1,
        repeated=1,
        void=1,
        granted=2,
        queued=1,
        refused=1,
        expired=1,
    )
    assert claims.offered(CELL, south.claimant()) is not None


def test_the_step_says_what_became_of_an_entry() -> None:
    north = Node("north")
    assert fold(Claims(), 5, north.record(Ask(CELL, 1_000)), LEDGER, verify).fate is Fate.GRANTED
    assert fold(Claims(), 5, b"\xc1", LEDGER, verify).fate is Fate.MALFORMED


def history() -> list[bytes]:
    nodes = [Node(name) for name in ("north", "south", "east")]
    entries: list[bytes] = []
    for turn in range(30):
        node = nodes[turn % 3]
        entries.append(node.record(Ask(f"cell/{turn % 4}", 1_000 + turn, waits=turn % 2 == 0)))
        entries.append(node.record(Withdraw(f"cell/{turn % 5}")))
    return entries


def test_bytes_of_a_state_are_the_state() -> None:
    claims = fold_all(history())
    assert claims.resources
    data = state_bytes(claims)
    assert read_state(data) == claims
    assert state_bytes(read_state(data)) == data
    assert digest(data) != digest(state_bytes(fold_all(history()[:-1])))


def test_a_reader_that_begins_with_a_checkpoint_comes_to_the_same() -> None:
    entries = history()
    whole = fold_all(entries)
    for cut in range(0, len(entries), 7):
        body = write_checkpoint(
            LEDGER, state_bytes(fold_all(entries[:cut])), 1, b"north", lambda data: sign_with(b"north", data)
        )
        claims, key = read_checkpoint(LEDGER, body, verify)
        assert key == b"north"
        assert fold_all(entries[cut:], claims, after=2 * cut) == whole


def test_a_checkpoint_must_be_one() -> None:
    state = state_bytes(fold_all(history()))
    body = write_checkpoint(LEDGER, state, 1, b"north", lambda data: sign_with(b"north", data))
    for bad in (b"", b"\xc1", encode(ClaimsCheckpoint(2, 1, b"", b"", b""))):
        with pytest.raises(Malformed):
            read_checkpoint(LEDGER, bad, verify)
    with pytest.raises(Malformed, match="signed"):
        read_checkpoint("another", body, verify)
    nonsense = write_checkpoint(LEDGER, b"\xc1", 1, b"north", lambda data: sign_with(b"north", data))
    with pytest.raises(Malformed, match="state"):
        read_checkpoint(LEDGER, nonsense, verify)


def test_milestones_are_counted_in_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "MILESTONE_ENTRIES", 3)
    assert not is_milestone(Claims())
    found = [number for number in range(1, 10) if is_milestone(fold_all([b"anything"] * number))]
    assert found == [3, 6, 9]


def test_since_when_a_claimant_waits_is_known_from_its_first_request() -> None:
    """A queue has no times. One that asks again keeps its place, and so its time; one that left and came back does
    not."""
    holder, waiter, watching = Node("north"), Node("south"), LeaseObserver(b"w", lambda _: True)
    asked = Ask(CELL, 1_000, waits=True)
    claims = fold(Claims(), 1, holder.record(Ask(CELL, 1_000)), LEDGER, verify).claims
    known: list[tuple[int, int]] = []
    moves: list[Move] = [asked, asked, Withdraw(CELL), asked]
    for position, move in enumerate(moves, start=2):
        step = fold(claims, position, waiter.record(move), LEDGER, verify)
        watching.heard([step], claims, now_ns=10 * position)
        claims = step.claims
        known.append(watching.queued[waiter.claimant()])
    assert known == [(2, 20), (2, 20), (2, 20), (5, 50)]
