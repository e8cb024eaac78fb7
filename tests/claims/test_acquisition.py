"""A claim from its own side: what it sends, what it believes, and until when."""

from __future__ import annotations

import pytest
from msgspec import structs

from stigmergy.claims import acquisition as acquisitions
from stigmergy.claims.acquisition import (
    Acquisition,
    Advance,
    ClaimDenied,
    ClaimGranted,
    ClaimLost,
    CurrentHolder,
    HeldClaim,
    ask,
    heard,
    release,
    resent,
    tick,
)
from stigmergy.claims.entries import Ask, Expire, Move, Release, Renew, Take, Withdraw
from stigmergy.claims.state import MILLISECOND_NS, QUEUE_COUNT_MAX
from tests.claims.moves import CELL, Log, Node

SECOND = 1_000 * MILLISECOND_NS


class Claimant:
    """A wish with its node, and the log that it reads."""

    def __init__(self, log: Log, name: str = "north", *, renew: bool = False, waits: bool = False) -> None:
        self.log = log
        self.node = Node(name)
        self.now = 0
        self.renew, self.waits = renew, waits
        self.acquisition: Acquisition | None = None
        self.sends: list[Move] = []
        self.told: list[acquisitions.ClaimVerdict] = []

    def ask(self, for_ms: int = 10_000, until_ns: int = 60 * SECOND) -> None:
        wanted = Acquisition(self.node.claimant(), CELL, for_ms, self.renew, self.waits, until_ns)
        self._take(ask(self.acquisition, wanted, self.now, self._number))

    def release(self, token: int) -> None:
        assert self.acquisition is not None
        self._take(release(self.acquisition, token))

    def lands(self) -> None:
        """What was sent is in the log now."""
        for move in self.sends:
            self.log.add(self.node, move)
        self.sends = []

    def reads(self) -> None:
        assert self.acquisition is not None
        self._take(heard(self.acquisition, self.log.claims, self.node.writer, 1, self.now, self._number))

    def ticks(self, now: int) -> None:
        self.now = now
        assert self.acquisition is not None
        self._take(tick(self.acquisition, now, self._number, self.log.claims))

    def is_over(self) -> bool:
        return self.acquisition is None

    def believes(self) -> bool:
        return self.acquisition is not None and self.acquisition.believes(self.now)

    @property
    def held(self) -> HeldClaim:
        assert self.acquisition is not None
        assert self.acquisition.held is not None
        return self.acquisition.held

    @property
    def _number(self) -> int:
        return self.node.sequence + len(self.sends) + 1

    def _take(self, turn: Advance) -> None:
        self.acquisition = turn.acquisition
        self.told += turn.verdicts
        if turn.move is not None:
            self.sends.append(turn.move)


@pytest.fixture
def log() -> Log:
    return Log()


def test_holds_from_the_grant_until_its_own_clock_says_that_it_is_over(log: Log) -> None:
    one = Claimant(log)
    one.now = 2 * SECOND
    one.ask(for_ms=10_000)
    assert one.sends == [Ask(CELL, 10_000)]
    assert not one.believes()
    one.lands()
    one.now = 5 * SECOND
    one.reads()
    assert one.told == [ClaimGranted(1, 12 * SECOND)]
    assert one.held == HeldClaim(1, 2 * SECOND, 10_000, 12 * SECOND)
    assert one.believes()
    assert one.acquisition is not None
    assert one.acquisition.next_ns == 12 * SECOND
    one.reads()
    one.ticks(12 * SECOND - 1)
    assert one.believes()
    one.now = 12 * SECOND
    assert not one.believes()
    one.ticks(12 * SECOND)
    assert one.told[1:] == [ClaimLost(1, acquisitions.LEASE_OVER)]
    assert one.is_over()
    assert one.sends == [Release(CELL, 1)]


def test_no_verdict_means_not_held(log: Log) -> None:
    one = Claimant(log)
    one.ask(until_ns=3 * SECOND)
    one.reads()
    assert one.acquisition is not None
    assert one.acquisition.next_ns == 3 * SECOND
    one.ticks(3 * SECOND)
    assert one.told == [ClaimDenied(acquisitions.NO_VERDICT)]
    assert one.is_over()
    assert one.sends == [Ask(CELL, 10_000), Withdraw(CELL)]


def test_a_verdict_that_comes_after_the_lease_is_none(log: Log) -> None:
    one = Claimant(log)
    one.ask(for_ms=1_000)
    one.lands()
    one.now = SECOND
    one.reads()
    assert one.told == [ClaimDenied(acquisitions.TOO_LATE)]
    assert one.is_over()
    assert one.sends == [Release(CELL, 1)]


def test_a_refusal_says_why(log: Log) -> None:
    holder = Node("holder")
    log.add(holder, Ask(CELL, 1_000))
    one = Claimant(log)
    one.ask()
    one.lands()
    one.reads()
    assert one.told == [ClaimDenied(acquisitions.HELD_BY_OTHERS, (CurrentHolder(CELL, holder.claimant(), 1),))]
    assert one.is_over()


def test_a_full_queue_is_said(log: Log) -> None:
    for number in range(QUEUE_COUNT_MAX + 1):
        log.add(Node(f"node-{number}"), Ask(CELL, 1_000, waits=True))
    one = Claimant(log, waits=True)
    one.ask()
    one.lands()
    one.reads()
    assert one.told == [ClaimDenied(acquisitions.QUEUE_FULL, (CurrentHolder(CELL, Node("node-0").claimant(), 1),))]


def test_who_is_not_heard_is_told_so(log: Log) -> None:
    """A later life of the same node, or a clone of it, has taken over."""
    one = Claimant(log)
    one.ask()
    log.add(Node("north", life=2), Withdraw("another"))
    one.lands()
    one.reads()
    assert one.told == [ClaimDenied(acquisitions.NOT_HEARD)]


def test_waits_takes_what_it_is_offered_and_counts_from_then(log: Log) -> None:
    holder = Node("holder")
    log.add(holder, Ask(CELL, 1_000))
    one = Claimant(log, waits=True)
    one.ask(for_ms=10_000)
    one.lands()
    one.reads()
    assert (one.told, one.sends) == ([], [])
    log.add(holder, Release(CELL, 1))
    one.now = 20 * SECOND
    one.reads()
    assert one.sends == [Take(CELL, 3, 10_000)]
    assert not one.believes()
    one.lands()
    one.now = 21 * SECOND
    one.reads()
    assert one.told == [ClaimGranted(4, 30 * SECOND)]


def test_waits_again_if_its_offer_was_passed_on(log: Log) -> None:
    holder = Node("holder")
    log.add(holder, Ask(CELL, 1_000))
    one = Claimant(log, waits=True)
    one.ask()
    one.lands()
    one.reads()
    log.add(Node("other"), Ask(CELL, 1_000, waits=True))
    log.add(holder, Release(CELL, 1))
    one.reads()
    log.add(holder, Expire(CELL, 4))
    one.lands()
    one.reads()
    assert one.sends == [Ask(CELL, 10_000, waits=True)]
    one.lands()
    log.add(holder, Expire(CELL, 5))
    one.reads()
    assert one.sends == [Take(CELL, 8, 10_000)]


def test_an_offer_that_came_and_went_unseen(log: Log) -> None:
    holder = Node("holder")
    log.add(holder, Ask(CELL, 1_000))
    one = Claimant(log, waits=True)
    one.ask()
    one.lands()
    one.reads()
    log.add(holder, Release(CELL, 1))
    log.add(holder, Expire(CELL, 3))
    one.reads()
    assert one.sends == [Ask(CELL, 10_000, waits=True)]


def test_patience_ends_in_the_queue_too(log: Log) -> None:
    """The ledger has answered: it is known who holds it, and which place in line the claim had."""
    holder, first = Node("holder"), Node("first")
    log.add(holder, Ask(CELL, 1_000))
    log.add(first, Ask(CELL, 1_000, waits=True))
    one = Claimant(log, waits=True)
    one.ask(until_ns=5 * SECOND)
    one.lands()
    one.reads()
    log.add(holder, Renew(CELL, 1, 1_000))
    one.ticks(5 * SECOND)
    assert one.told == [ClaimDenied(acquisitions.NOT_SERVED, (CurrentHolder(CELL, holder.claimant(), 4, place=2),))]
    assert one.sends == [Withdraw(CELL)]


def test_the_end_of_patience_says_whom_it_was_offered_to(log: Log) -> None:
    holder, first = Node("holder"), Node("first")
    log.add(holder, Ask(CELL, 1_000))
    log.add(first, Ask(CELL, 1_000, waits=True))
    one = Claimant(log, waits=True)
    one.ask(until_ns=5 * SECOND)
    one.lands()
    one.reads()
    log.add(holder, Release(CELL, 1))
    one.reads()
    one.ticks(5 * SECOND)
    assert one.told == [
        ClaimDenied(acquisitions.NOT_SERVED, (CurrentHolder(CELL, first.claimant(), 4, offered=True, place=1),))
    ]


def test_an_offer_whose_answer_did_not_come_is_no_verdict(log: Log) -> None:
    holder = Node("holder")
    log.add(holder, Ask(CELL, 1_000))
    one = Claimant(log, waits=True)
    one.ask(until_ns=5 * SECOND)
    one.lands()
    one.reads()
    log.add(holder, Release(CELL, 1))
    one.reads()
    one.ticks(5 * SECOND)
    assert one.told == [ClaimDenied(acquisitions.NO_VERDICT)]


def test_renews_after_a_third_of_the_lease(log: Log) -> None:
    one = Claimant(log, renew=True)
    one.ask(for_ms=9_000)
    one.lands()
    one.reads()
    assert one.acquisition is not None
    assert one.acquisition.next_ns == 3 * SECOND
    one.ticks(3 * SECOND)
    assert one.sends == [Renew(CELL, 1, 9_000)]
    assert one.acquisition.next_ns == 9 * SECOND
    one.lands()
    one.now = 4 * SECOND
    one.reads()
    assert one.told == [ClaimGranted(1, 9 * SECOND)]
    assert one.held == HeldClaim(1, 3 * SECOND, 9_000, 12 * SECOND)


def test_a_renewal_that_does_not_come_through(log: Log) -> None:
    one = Claimant(log, renew=True)
    one.ask(for_ms=9_000)
    one.lands()
    one.reads()
    one.ticks(3 * SECOND)
    one.ticks(8 * SECOND)
    assert len(one.sends) == 1
    one.ticks(9 * SECOND)
    assert one.told[-1] == ClaimLost(1, acquisitions.NOT_RENEWED)
    assert one.sends[-1] == Release(CELL, 1)


def test_a_renewal_that_was_too_late_for_the_ledger(log: Log) -> None:
    one = Claimant(log, renew=True)
    one.ask(for_ms=9_000)
    one.lands()
    one.reads()
    one.ticks(3 * SECOND)
    log.add(Node("observer"), Expire(CELL, 1))
    one.lands()
    one.reads()
    assert one.told[-1] == ClaimLost(1, acquisitions.TAKEN_AWAY)
    assert one.is_over()


def test_who_asks_for_what_it_holds_renews_it(log: Log) -> None:
    one = Claimant(log)
    one.ask(for_ms=10_000)
    one.lands()
    one.reads()
    one.now = 4 * SECOND
    one.ask(for_ms=20_000)
    assert one.sends == [Renew(CELL, 1, 20_000)]
    assert one.held.end_ns == 10 * SECOND
    one.lands()
    one.reads()
    assert one.told == [ClaimGranted(1, 10 * SECOND), ClaimGranted(1, 24 * SECOND)]


def test_a_shorter_lease_is_shorter_from_when_it_is_asked_for(log: Log) -> None:
    one = Claimant(log)
    one.ask(for_ms=60_000)
    one.lands()
    one.reads()
    one.now = SECOND
    one.ask(for_ms=2_000)
    assert one.held.end_ns == 3 * SECOND
    one.ticks(3 * SECOND)
    assert one.told[1:] == [ClaimLost(1, acquisitions.LEASE_OVER), ClaimDenied(acquisitions.NO_VERDICT)]


def test_a_renewal_without_an_answer_is_refused_and_the_rest_is_held(log: Log) -> None:
    one = Claimant(log)
    one.ask(for_ms=60_000)
    one.lands()
    one.reads()
    one.ask(for_ms=60_000, until_ns=2 * SECOND)
    one.ticks(2 * SECOND)
    assert one.told[1:] == [ClaimDenied(acquisitions.NOT_PROLONGED)]
    assert one.believes()
    one.lands()
    one.reads()
    assert len(one.told) == 2
    assert one.held.sent_ns == 0


def test_what_the_ledger_has_given_away_is_lost_and_refused(log: Log) -> None:
    one = Claimant(log)
    one.ask()
    one.lands()
    one.reads()
    one.ask()
    log.add(Node("observer"), Expire(CELL, 1))
    one.reads()
    assert one.told[1:] == [ClaimLost(1, acquisitions.TAKEN_AWAY), ClaimDenied(acquisitions.TAKEN_AWAY)]


def test_gives_back_what_it_holds(log: Log) -> None:
    one = Claimant(log)
    one.ask()
    one.lands()
    one.reads()
    one.release(9)
    assert one.believes()
    one.release(1)
    assert one.is_over()
    assert one.sends == [Release(CELL, 1)]


def test_gives_back_whatever_there_is(log: Log) -> None:
    one = Claimant(log)
    one.ask()
    one.release(9)
    assert one.acquisition is not None
    one.release(0)
    assert one.is_over()
    assert one.sends == [Ask(CELL, 10_000), Withdraw(CELL)]
    two = Claimant(log, "south")
    two.ask()
    two.lands()
    two.reads()
    two.release(0)
    assert two.sends == [Release(CELL, 1)]


def test_what_was_never_written_may_count_from_when_it_is_sent(log: Log) -> None:
    one = Claimant(log)
    one.ask(for_ms=10_000)
    assert one.acquisition is not None
    assert resent(one.acquisition, range(5, 9), 3 * SECOND) is one.acquisition
    one.acquisition = resent(one.acquisition, range(1, 2), 3 * SECOND)
    one.lands()
    one.now = 4 * SECOND
    one.reads()
    assert one.told == [ClaimGranted(1, 13 * SECOND)]
    assert resent(one.acquisition, range(1, 2), 9 * SECOND) is one.acquisition


def test_asking_anew_while_the_first_question_is_under_way(log: Log) -> None:
    """Both may land; only the answer to the later one counts, from before that one was sent."""
    one = Claimant(log)
    one.ask(for_ms=10_000)
    one.now = SECOND
    one.ask(for_ms=5_000)
    log.add(one.node, one.sends.pop(0))
    one.reads()
    assert one.told == []
    one.lands()
    one.reads()
    assert one.told == [ClaimGranted(2, 6 * SECOND)]


def test_wishes_are_values(log: Log) -> None:
    one = Claimant(log)
    one.ask()
    assert one.acquisition is not None
    assert hash(structs.replace(one.acquisition)) == hash(one.acquisition)
