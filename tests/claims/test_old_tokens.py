"""What names an older grant or offer of the same claimant touches nothing that was granted or offered since."""

from __future__ import annotations

from stigmergy.claims.entries import Ask, Expire, Release, Renew, Take
from stigmergy.claims.rules import Fate
from tests.claims.moves import CELL, Log, Node


def test_an_older_token_neither_releases_nor_renews_what_was_granted_anew() -> None:
    log, north = Log(), Node("north")
    log.add(north, Ask(CELL, 1_000))
    log.add(north, Ask(CELL, 1_000))
    held = log.claims.holds(CELL, north.claimant())
    assert held is not None
    assert held.token == 2
    for late in (Release(CELL, 1), Renew(CELL, 1, 5_000), Expire(CELL, 1)):
        assert log.add(north, late).fate is Fate.VOID
        assert log.claims.holds(CELL, north.claimant()) == held


def test_an_older_offer_cannot_be_taken_any_more() -> None:
    log, north, south = Log(), Node("north"), Node("south")
    log.add(north, Ask(CELL, 1_000))
    log.add(south, Ask(CELL, 1_000, waits=True))
    log.add(north, Release(CELL, 1))
    first = log.claims.offered(CELL, south.claimant())
    assert first is not None
    log.add(north, Ask(CELL, 1_000, waits=True))
    log.add(north, Expire(CELL, first.position))
    log.add(south, Ask(CELL, 1_000, waits=True))
    log.add(south, Expire(CELL, log.position - 1))
    assert log.claims.holds(CELL, south.claimant()) is None
    assert log.add(south, Take(CELL, first.position, 1_000)).fate is Fate.VOID
    assert log.claims.holds(CELL, south.claimant()) is None
