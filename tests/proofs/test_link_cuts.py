"""A few cuts in every test run, a thousand on each broker in `make prove`; and the comparison must be able to fail."""

import pytest

from proofs.link_cuts import BETWEEN_COUNT_MIN, compare, run

CUTS = 20


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("broker", ["nats", pytest.param("jetstream", marks=pytest.mark.prove)])
def test_cut_again_and_again(broker: str) -> None:
    siege = run(CUTS, broker, seed=2)
    assert siege.violations == []
    tally = siege.tally
    # Otherwise it was no test.
    assert tally.cuts == CUTS
    assert tally.published >= CUTS * BETWEEN_COUNT_MIN
    assert tally.links > CUTS / 2
    assert tally.publishes_repeated + tally.arrivals_repeated > 0


@pytest.mark.parametrize(
    ("taken", "word"), [([1, 2], "lost"), ([1, 3], "lost"), ([1, 2, 2, 3], "doubled"), ([2, 1, 3], "order")]
)
def test_comparison_notices(taken: list[int], word: str) -> None:
    assert word in compare("a", 3, taken)[0]


def test_what_was_sent_and_not_answered_may_be_there() -> None:
    assert compare("a", 3, [1, 2, 3, 4]) == []
