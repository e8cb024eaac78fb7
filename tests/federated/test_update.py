"""Updates as whole numbers, and what a sum may be."""

import numpy as np
import pytest

from stigmergy.federated.secure_sum import Numbers, SumRefused
from stigmergy.federated.update import UpdateLimits, clipped, decoded, encoded

LIMITS = UpdateLimits(clip_norm=2.0, weight_max=10)


def test_a_sum_of_encoded_updates_is_their_weighted_mean() -> None:
    total = encoded(np.array([0.5, -1.0]), 3, LIMITS) + encoded(np.array([-0.25, 1.0]), 5, LIMITS)
    weight, mean = decoded(total, 2, LIMITS)
    assert weight == 8
    assert np.allclose(mean, [(1.5 - 1.25) / 8, 2 / 8], atol=1e-7)


def test_an_update_is_cut_to_its_length_and_a_weight_to_its_limit() -> None:
    assert np.allclose(clipped(np.array([30.0, 40.0]), 2.0), [1.2, 1.6])
    assert clipped(np.array([0.3, 0.4]), 2.0).tolist() == [0.3, 0.4]
    weight, mean = decoded(encoded(np.array([30.0, 40.0]), 1_000, LIMITS), 1, LIMITS)
    assert weight == 10
    assert np.allclose(mean, [1.2, 1.6], atol=1e-7)
    assert decoded(encoded(np.zeros(2), 0, LIMITS), 1, LIMITS)[0] == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(SumRefused, match="none"):
        encoded(np.array([value, 0.0]), 1, LIMITS)


def lie(weight: int, *values: float) -> Numbers:
    told = np.array([weight, *(round(value * 2**24) for value in values)], np.int64)
    return told.view(np.uint64)


@pytest.mark.parametrize(
    ("total", "why"),
    [
        (lie(21, 0, 0), "a weight of 21 for 2 members"),
        (lie(1, 0, 0), "a weight of 1 for 2"),
        (lie(-5, 0, 0), "a weight of -5"),
        (lie(10, 15, 15), "a mean update of length 2.12, at most 2"),
        (lie(10, 2.0**38, 0), "a mean update"),
    ],
)
def test_a_sum_that_honest_members_cannot_have_made_is_refused(total: Numbers, why: str) -> None:
    with pytest.raises(SumRefused, match=why):
        decoded(total, 2, LIMITS)


def test_one_liar_moves_the_mean_by_twice_the_clip_at_most() -> None:
    """Whatever vector it sends: either the sum is refused, or the mean is no longer than the clip."""
    draw = np.random.default_rng(3)
    honest = sum((encoded(draw.normal(0, 1, 4), 5, LIMITS) for _ in range(3)), np.zeros(5, np.uint64))
    before = decoded(honest, 3, LIMITS)[1]
    accepted = 0
    for size in np.geomspace(1e-3, 1e10, 400):
        vector = draw.normal(0, 1, 4)
        total = honest + lie(5, *(vector * size / np.linalg.norm(vector)))
        try:
            after = decoded(total, 4, LIMITS)[1]
        except SumRefused:
            continue
        accepted += 1
        assert np.linalg.norm(after) <= LIMITS.clip_norm * (1 + 1e-6)
        assert np.linalg.norm(after - before) <= 2 * LIMITS.clip_norm
    assert 0 < accepted < 400


def test_honest_updates_at_the_limit_are_never_refused() -> None:
    draw = np.random.default_rng(4)
    for _ in range(200):
        update = draw.normal(0, 1, 30)
        total = sum((encoded(update * 100, 10, LIMITS) for _ in range(7)), np.zeros(31, np.uint64))
        assert np.linalg.norm(decoded(total, 7, LIMITS)[1]) == pytest.approx(2.0)


def test_limits_under_which_sums_could_wrap_are_refused() -> None:
    UpdateLimits(clip_norm=1e5).check()
    for wrong in (UpdateLimits(clip_norm=1e6), UpdateLimits(weight_max=2**35), UpdateLimits(0.0), UpdateLimits(1.0, 0)):
        with pytest.raises(SumRefused):
            wrong.check()
