"""Samples: the values of metrics at one moment, as nodes tell them and as they are added up. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from stigmergy.metrics.busiest import Share
from stigmergy.metrics.catalogue import LAGS, METRICS, Merge, MetricKind
from stigmergy.metrics.histogram import SECONDS, Histogram, HistogramValue, added, quantile

Labels = dict[str, str]
BUSIEST_COUNT = 10
"""So many of the busiest agents are named, and of those with the largest states."""


class Sample(Struct, frozen=True):
    """The value of a counter or gauge."""

    metric: str
    value: float
    labels: Labels = {}


class HistogramSample(Struct, frozen=True):
    """The value of a histogram, with what people look for first; in seconds or counts."""

    metric: str
    count: int
    p50: float | None
    p99: float | None
    counts: list[int]
    """By bucket; the bounds double."""
    sum: int
    """In nanoseconds or counts."""
    labels: Labels = {}


class LargestState(Struct, frozen=True):
    """One of the agents with the largest states."""

    agent: str
    state_bytes: int


class Samples(Struct, frozen=True):
    """All that a node measures, or a fleet: then values are added, or the largest counts."""

    samples: list[Sample] = []
    histograms: list[HistogramSample] = []
    busiest: list[Share] = []
    """The agents with most events in the last minutes; estimated."""
    largest: list[LargestState] = []
    """The agents with the largest states that were seen."""


Collect = Callable[[], Sequence[Samples]]
"""What each node or shard of a process measures."""


class SampleSheet:
    """Takes samples. Raises KeyError for a metric or a label that is not in the list."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._histograms: dict[tuple[str, tuple[tuple[str, str], ...]], list[HistogramValue]] = {}

    def put(self, name: str, value: float, **labels: str) -> None:
        """One value, added to an earlier one of the same labels as the metric says."""
        key, value = _key(name, labels), float(value) if isinstance(value, bool) else value
        before = self._values.get(key)
        if before is not None:
            value = max(before, value) if METRICS[name].merge is Merge.MAX else before + value
        self._values[key] = value

    def put_all(self, name: str, label: str, counters: Mapping[str, int], outcomes: Mapping[str, str]) -> None:
        """Those of the counters that are there, each under its value of the label."""
        for counter, outcome in outcomes.items():
            if counter in counters:
                self.put(name, counters[counter], **{label: outcome})

    def observe(self, name: str, histogram: Histogram | HistogramValue, **labels: str) -> None:
        """What a histogram has counted."""
        value = histogram.value if isinstance(histogram, Histogram) else histogram
        self._histograms.setdefault(_key(name, labels), []).append(value)

    def add(self, told: Samples) -> None:
        """All samples of a node; those of a newer version that are not known here are left out."""
        for one in told.samples:
            if one.metric in METRICS and _fits(one.metric, one.labels):
                self.put(one.metric, one.value, **one.labels)
        for other in told.histograms:
            if other.metric in METRICS and _fits(other.metric, other.labels):
                self.observe(other.metric, HistogramValue(other.counts, other.sum), **other.labels)

    def samples(self, busiest: list[Share] | None = None, largest: list[LargestState] | None = None) -> Samples:
        """All of them, in the order of the list of metrics, then by label."""
        order = {name: number for number, name in enumerate(METRICS)}
        values = sorted(self._values.items(), key=lambda one: (order[one[0][0]], one[0][1]))
        histograms = sorted(self._histograms.items(), key=lambda one: (order[one[0][0]], one[0][1]))
        return Samples(
            [Sample(name, value, dict(labels)) for (name, labels), value in values],
            [_told(name, dict(labels), added(parts)) for (name, labels), parts in histograms],
            busiest or [],
            largest or [],
        )


def added_samples(told: Iterable[Samples], limit: int) -> Samples:
    """Those of several nodes in one. Of the busiest and largest agents those that are first anywhere: a share is that
    of the agent's own node."""
    sheet, parts = SampleSheet(), list(told)
    for one in parts:
        sheet.add(one)
    busiest = sorted((share for one in parts for share in one.busiest), key=lambda share: (-share.share, share.name))
    largest = sorted((one for part in parts for one in part.largest), key=lambda one: (-one.state_bytes, one.agent))
    return sheet.samples(busiest[:limit], largest[:limit])


def _key(name: str, labels: Mapping[str, str]) -> tuple[str, tuple[tuple[str, str], ...]]:
    if not _fits(name, labels):
        raise KeyError(f"{name} has the labels {METRICS[name].labels}, not {tuple(labels)}")
    return name, tuple((label, labels[label]) for label in METRICS[name].labels)


def _fits(name: str, labels: Mapping[str, str]) -> bool:
    return sorted(METRICS[name].labels) == sorted(labels)


def _told(name: str, labels: Labels, value: HistogramValue) -> HistogramSample:
    metric = METRICS[name]
    assert metric.kind is MetricKind.HISTOGRAM
    p50, p99 = (quantile(value.counts, metric.scale, share) for share in (0.5, 0.99))
    return HistogramSample(name, value.count, p50, p99, value.counts, value.sum, labels)


class Percentiles(Struct, frozen=True):
    """A time in milliseconds; None where nothing was observed."""

    p50_ms: float | None
    p99_ms: float | None


def latencies(now: Samples, before: Samples | None = None) -> dict[str, Percentiles]:
    """All times by the middle of their names, such as `event_to_action`: of what was observed since `before`, or since
    the start. Those with labels are added up."""
    found: dict[str, list[int]] = {}
    for sign, told in ((1, now), (-1, before)):
        for one in () if told is None else told.histograms:
            if one.metric in METRICS and METRICS[one.metric].scale is SECONDS:
                counts = found.setdefault(one.metric, [])
                counts += [0] * (len(one.counts) - len(counts))
                for number, count in enumerate(one.counts):
                    counts[number] += sign * count
    return {
        name.removeprefix("stigmergy_").removesuffix("_seconds"): Percentiles(_ms(counts, 0.5), _ms(counts, 0.99))
        for name, counts in found.items()
    }


def lags_s(now: Samples) -> dict[str, float]:
    """How far shards, the uplink and shared objects are behind, in seconds: the worst of each."""
    found: dict[str, float] = {}
    for one in now.samples:
        if one.metric in LAGS:
            found[LAGS[one.metric]] = max(found.get(LAGS[one.metric], 0.0), one.value)
    return found


def _ms(counts: Sequence[int], share: float) -> float | None:
    """None too where a node has started anew since, and counts have gone back."""
    found = None if min(counts, default=0) < 0 else quantile(counts, SECONDS, share)
    return None if found is None else round(found * 1000, 3)
