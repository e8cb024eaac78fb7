"""The benchmark of views measures something; its figures are for a quiet machine."""

from bench.views import TARGETS, measure_views


def test_it_measures() -> None:
    figures = measure_views(quick=True)
    assert all(value > 0 for value in figures.values())
    assert {target.figure for target in TARGETS} <= set(figures)
    assert figures["view_lag_p50_ms"] <= figures["view_lag_p99_ms"] <= figures["view_lag_max_ms"]
