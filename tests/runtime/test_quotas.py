"""Quotas: a flood takes from its own bucket only, and the buckets are bounded."""

from stigmergy.runtime.quotas import Quotas

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
