"""Samples: only of metrics in the list, added up as the list says."""

import re

import msgspec
import pytest

from stigmergy.metrics.busiest import Share
from stigmergy.metrics.catalogue import METRICS, SECTIONS, MetricKind
from stigmergy.metrics.histogram import COUNTS, Histogram
from stigmergy.metrics.samples import (
    HistogramSample,
    LargestState,
    Percentiles,
    Sample,
    Samples,
    SampleSheet,
    added_samples,
    lags_s,
    latencies,
)


def test_names_follow_the_conventions() -> None:
    assert len(METRICS) == sum(len(section.metrics) for section in SECTIONS), "each name is there once"
    for metric in METRICS.values():
        assert re.fullmatch(r"(stigmergy|process)_[a-z_]+", metric.name)
        assert (metric.kind is MetricKind.COUNTER) == metric.name.endswith("_total"), metric.name
        assert not re.search(r"_(ms|us|ns|kb|mb|percent|count)(_|$)", metric.name), "base units only"
        if metric.kind is MetricKind.HISTOGRAM:
            assert metric.name.endswith(("_seconds", "_events")), metric.name
        assert "agent" not in metric.labels or metric in SECTIONS[-3].metrics, "names of agents only where asked for"


def test_what_is_not_in_the_list_cannot_be_told() -> None:
    sheet = SampleSheet()
    with pytest.raises(KeyError):
        sheet.put("stigmergy_agnets", 1)
    with pytest.raises(KeyError, match="kind"):
        sheet.put("stigmergy_agents", 1)
    with pytest.raises(KeyError):
        sheet.observe("stigmergy_commit_seconds", Histogram(), shard="1")


def test_latencies_are_those_since_the_look_before() -> None:
    took, looks = Histogram(), []
    for value_ns in (1_000_000, 1_000_000_000):
        took.observe(value_ns, 100)
        sheet = SampleSheet()
        sheet.observe("stigmergy_effect_seconds", took, sink="work")
        sheet.observe("stigmergy_effect_seconds", Histogram(), sink="actuators")
        sheet.observe("stigmergy_group_events", Histogram(COUNTS))
        sheet.put("stigmergy_shard_lag_seconds", 2, shard="1")
        sheet.put("stigmergy_shard_lag_seconds", 3, shard="2")
        looks.append(sheet.samples())
    first, last = latencies(looks[0]), latencies(looks[1], looks[0])
    assert list(first) == ["effect"], "times only"
    assert 0.5 < (first["effect"].p50_ms or 0) < 2.1
    assert 500 < (last["effect"].p50_ms or 0) < 1100, "the earlier ones do not count"
    assert latencies(looks[0], looks[1])["effect"] == Percentiles(None, None), "it has started anew since"
    assert latencies(looks[0], looks[0])["effect"] == Percentiles(None, None)
    assert lags_s(looks[1]) == {"shards": 3}


def _of_truth() -> list[Sample]:
    sheet = SampleSheet()
    sheet.put("stigmergy_link_up", value=True)
    return sheet.samples().samples


def test_samples_of_several_nodes_make_one() -> None:
    told = []
    for number in (1, 3):
        sheet, histogram = SampleSheet(), Histogram()
        histogram.observe(number * 1_000_000, 2)
        sheet.put("stigmergy_agents", number, kind="Drone")
        sheet.put("stigmergy_shard_lag_seconds", number, shard="0")
        sheet.put_all("stigmergy_inputs_total", "outcome", {"failed": number}, {"failed": "failed", "no": "no"})
        sheet.observe("stigmergy_commit_seconds", histogram)
        busy, large = Share(f"Drone/{number}", number / 4), LargestState(f"Drone/{number}", number)
        told.append(sheet.samples([busy], [large]))
    newer = Samples(
        [Sample("stigmergy_of_tomorrow", 1), Sample("stigmergy_agents", 1, {"hat": "red"})],
        [HistogramSample("stigmergy_later_seconds", 0, None, None, [], 0)],
    )
    told[0].samples.extend(_of_truth())
    assert msgspec.json.decode(msgspec.json.encode(told[0]), type=Samples) == told[0], "as it travels in status"
    del told[0].samples[-1]
    whole = added_samples([*told, newer], 1)
    assert whole.samples == [
        Sample("stigmergy_agents", 4, {"kind": "Drone"}),
        Sample("stigmergy_inputs_total", 4, {"outcome": "failed"}),
        Sample("stigmergy_shard_lag_seconds", 3, {"shard": "0"}),
    ]
    (commit,) = whole.histograms
    assert (commit.metric, commit.count, commit.sum) == ("stigmergy_commit_seconds", 4, 8_000_000)
    assert commit.p50 is not None
    assert commit.p99 is not None
    assert 0.0005 < commit.p50 < 0.0021 < commit.p99 < 0.0042
    assert whole.busiest == [Share("Drone/3", 0.75)]
    assert whole.largest == [LargestState("Drone/3", 3)]
