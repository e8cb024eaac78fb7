"""Quotas: a flood takes from its own bucket only, and the buckets are bounded."""

import pytest

from stigmergy.bus.quotas import Quotas, pace

SECOND = 1_000_000_000


def test_a_source_gets_its_burst_and_then_its_rate() -> None:
    quotas = Quotas(10, 20)
    assert sum(quotas.admit("a", 0) for _ in range(100)) == 20
    assert sum(quotas.admit("a", SECOND) for _ in range(100)) == 10
    assert sum(quotas.admit("a", SECOND + 50_000_000) for _ in range(100)) == 0
    assert sum(quotas.admit("a", 100 * SECOND) for _ in range(100)) == 20


def test_one_flood_takes_nothing_from_the_others() -> None:
    quotas = Quotas(10, 10)
    for at in range(1000):
        quotas.admit("flood", at * 1_000_000)
    assert sum(quotas.admit("quiet", SECOND) for _ in range(10)) == 10


def test_a_source_that_is_refused_does_not_pay_for_asking() -> None:
    quotas = Quotas(1, 1)
    assert quotas.admit("a", 0)
    admitted = sum(quotas.admit("a", SECOND * step // 100) for step in range(1, 1001))
    assert admitted in (9, 10)


def test_buckets_are_bounded_and_strangers_share_one() -> None:
    quotas = Quotas(1, 5, sources_count_max=3)
    for source in "abc":
        assert quotas.admit(source, 0)
    assert sum(quotas.admit("d", 0) for _ in range(10)) == 5
    assert sum(quotas.admit("e", 0) for _ in range(10)) == 0
    # Once the others are full again there is room for new ones.
    assert sum(quotas.admit("f", 100 * SECOND) for _ in range(10)) == 5


def test_a_crowd_of_new_sources_does_not_have_all_buckets_looked_through_for_each_message() -> None:
    """Otherwise whoever invents names would make every message of the others slow."""
    quotas = Quotas(1, 5, sources_count_max=3)
    for source in "abc":
        quotas.admit(source, 0)
    looked = 0

    def count(now_ns: int) -> bool:
        nonlocal looked
        looked += 1
        return False

    quotas._make_room = count  # type: ignore[method-assign]
    for number in range(1000):
        quotas.admit(f"stranger {number}", number * SECOND // 500)
    assert looked <= 3


def test_what_could_not_be_taken_for_a_while_is_no_flood() -> None:
    quotas = Quotas(10, 20)
    quotas.allow_for(5 * SECOND, 0)
    assert sum(quotas.admit("a", 0) for _ in range(100)) == 20 + 50
    assert sum(quotas.admit("b", 0) for _ in range(100)) == 20 + 50
    # Told of it twice, a source does not get it twice.
    quotas.allow_for(4 * SECOND, 0)
    assert sum(quotas.admit("a", 0) for _ in range(100)) == 0
    # What was under way may come again half a minute later.
    quotas.allow_for(SECOND, SECOND, repeated=60)
    assert sum(quotas.admit("a", 31 * SECOND) for _ in range(100)) == 20 + 20
    # A minute later it is over; and the next time counts anew, however long that was.
    assert sum(quotas.admit("a", 62 * SECOND) for _ in range(100)) == 20
    quotas.allow_for(10**9 * SECOND, 63 * SECOND)
    assert sum(quotas.admit("a", 63 * SECOND) for _ in range(200_000)) == 10 + 50_000


@pytest.mark.parametrize(("missed_s", "allowed_s"), [(1, 60), (60, 60), (600, 600), (10**9, 3600)])
def test_catching_up_ends_although_messages_go_on(missed_s: int, allowed_s: int) -> None:
    quotas = Quotas(10, 20)
    quotas.allow_for(missed_s * SECOND, 0)
    for at in range(allowed_s + 1):
        assert quotas.admit("steady", at * SECOND)
    assert sum(quotas.admit("late", allowed_s * SECOND) for _ in range(100)) > 20
    assert sum(quotas.admit("flood", (allowed_s + 1) * SECOND) for _ in range(100)) == 20


def test_a_short_time_does_not_end_a_long_one_sooner() -> None:
    quotas = Quotas(10, 20)
    quotas.allow_for(600 * SECOND, 0)
    quotas.allow_for(SECOND, SECOND)
    assert sum(quotas.admit("late", 599 * SECOND) for _ in range(1000)) == 1000


def test_who_is_crowded_gets_only_what_it_was_kept_from() -> None:
    quotas = Quotas(10, 20)
    assert not quotas.admit("a", 0, crowded=True)
    quotas.allow_for(SECOND, 0)
    assert sum(quotas.admit("a", 0, crowded=True) for _ in range(100)) == 10
    assert sum(quotas.admit("a", 0) for _ in range(100)) == 20


def test_who_keeps_to_the_pace_is_never_shed() -> None:
    own, receivers = pace(100, 20), Quotas(100, 20)
    for at in range(0, 10 * SECOND, SECOND // 1000):
        if own.admit("a", at):
            assert receivers.admit("a", at)
