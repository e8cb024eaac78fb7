"""Leases: the slowest holder is done before the fastest observer may say so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.claims.entries import FOR_MS_MAX, FOR_MS_MIN
from stigmergy.claims.state import DRIFT_PPM_MAX, MARGIN_MS, MILLISECOND_NS, expiry_ns, lease_end_ns, renewal_ns

MILLION = 1_000_000


@given(for_ms=st.integers(FOR_MS_MIN, FOR_MS_MAX), holder=st.integers(-DRIFT_PPM_MAX, DRIFT_PPM_MAX))
def test_no_observer_is_early(for_ms: int, holder: int) -> None:
    """In true time, with the holder's clock at any drift and the observer's at its fastest."""
    held_ns = lease_end_ns(0, for_ms) * MILLION / (MILLION + holder)
    waited_ns = expiry_ns(0, for_ms) * MILLION / (MILLION + DRIFT_PPM_MAX)
    assert waited_ns >= held_ns + MARGIN_MS * MILLISECOND_NS * 0.99


@pytest.mark.parametrize("drift_ppm", [0, 100, 200_000])
def test_the_margin_is_exactly_the_drift_of_both_clocks(drift_ppm: int) -> None:
    counted_ns = expiry_ns(0, 1_000, drift_ppm, margin_ms=0)
    slowest_holder_ns = 1_000 * MILLISECOND_NS * MILLION / (MILLION - drift_ppm)
    fastest_observer_ns = counted_ns * MILLION / (MILLION + drift_ppm)
    assert fastest_observer_ns == pytest.approx(slowest_holder_ns, rel=1e-9)


def test_times_count_from_where_they_are_told() -> None:
    assert lease_end_ns(5, 2) == 5 + 2 * MILLISECOND_NS
    assert renewal_ns(6, 3) == 6 + MILLISECOND_NS
    assert expiry_ns(7, 1_000) == 7 + 1_002_002_003 + MARGIN_MS * MILLISECOND_NS
