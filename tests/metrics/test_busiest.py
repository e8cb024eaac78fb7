"""The sketch of busy names: who has a large share is in it, in bounded memory, and is forgotten in time."""

from hypothesis import given
from hypothesis import strategies as some

from stigmergy.metrics.busiest import HALVED_NS, MANY, Busiest


@given(some.lists(some.integers(0, 9) | some.integers(0, 10_000), max_size=400))
def test_whoever_has_more_than_its_share_is_found_and_never_too_low(names: list[int]) -> None:
    busiest = Busiest(size=4)
    for name in names:
        busiest.add(str(name), 1)
    found = {one.name: one.share for one in busiest.top(1_000)}
    assert len(found) <= 4 * MANY
    for name in set(names):
        share = names.count(name) / len(names)
        if share > 1 / 4:
            assert share <= found[str(name)] + 1e-9 <= share + 1 / 4 + 2e-9


def test_a_busy_one_is_found_among_very_many() -> None:
    busiest = Busiest(size=4)
    for number in range(10_000):
        busiest.add("busy" if number % 3 == 0 else str(number), 1)
    first = busiest.top(1)[0]
    assert first.name == "busy"
    assert 1 / 3 <= first.share <= 1 / 3 + 1 / 4


def test_what_is_old_fades() -> None:
    busiest = Busiest()
    busiest.fade(1000 * HALVED_NS)
    busiest.add("old", 100)
    busiest.fade(1001 * HALVED_NS)
    busiest.add("new", 100)
    assert [(one.name, round(one.share, 3)) for one in busiest.top(9)] == [("new", 0.667), ("old", 0.333)]
    busiest.fade(1001 * HALVED_NS + 1)
    assert len(busiest.top(1)) == 1
    busiest.fade(1100 * HALVED_NS)
    assert busiest.top(9) == []
    assert Busiest().top(9) == []
