"""Histograms: every value is in the bucket of its bounds, parts add up, and estimates are near."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stigmergy.metrics.histogram import COUNTS, SECONDS, Histogram, HistogramValue, Scale, added, quantile


@given(some.sampled_from([SECONDS, COUNTS]), some.lists(some.integers(-10, 2**40)))
def test_each_value_is_in_the_bucket_of_its_bounds(scale: Scale, values: list[int]) -> None:
    histogram = Histogram(scale)
    for value in values:
        histogram.observe(value)
    below = 0
    for bound, count in zip([*scale.bounds, float("inf")], histogram.counts, strict=True):
        below += count
        assert below == sum(max(value, 0) / scale.per <= bound for value in values)
    assert histogram.value.count == len(values)
    assert histogram.sum == sum(max(value, 0) for value in values)


@pytest.mark.parametrize("scale", [SECONDS, COUNTS])
def test_a_bound_belongs_to_its_bucket(scale: Scale) -> None:
    """As Prometheus reads `le`: at most."""
    for number in range(scale.buckets - 1):
        histogram = Histogram(scale)
        histogram.observe(2 ** (scale.shift + number))
        assert histogram.counts.index(1) == number


@given(some.lists(some.lists(some.integers(1, 2**38)), max_size=4))
def test_parts_add_up(parts: list[list[int]]) -> None:
    whole, pieces = Histogram(), []
    for part in parts:
        piece = Histogram()
        for value in part:
            piece.observe(value)
            whole.observe(value)
        pieces.append(piece.value)
    total = added(pieces)
    assert (total.sum, total.count) == (whole.sum, whole.value.count)
    assert not pieces or total.counts == whole.counts


def test_buckets_of_another_version_are_added() -> None:
    assert added([HistogramValue([1, 2], 5), HistogramValue([1, 0, 4], 9)]) == HistogramValue([2, 2, 4], 14)


@given(some.lists(some.integers(2**14, 2**34), min_size=1), some.sampled_from([0.5, 0.9, 0.99]))
def test_quantiles_are_within_their_bucket(values: list[int], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    found = quantile(histogram.counts, SECONDS, share)
    assert found is not None
    ordered = sorted(values)
    exact = ordered[max(0, -(-int(share * 100) * len(values) // 100) - 1)] / SECONDS.per
    assert exact / 2 <= found <= exact * 2


def test_quantiles_at_the_ends() -> None:
    histogram = Histogram()
    assert quantile(histogram.counts, SECONDS, 0.5) is None
    histogram.observe(2**50, 3)
    assert quantile(histogram.counts, SECONDS, 0.5) == pytest.approx(2**35 / 1e9), "all that is known of it"
    assert histogram.sum == 3 * 2**50
