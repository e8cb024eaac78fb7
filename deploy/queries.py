"""PromQL, made from metrics of the list: a name that is not there raises KeyError."""

from __future__ import annotations

from stigmergy.metrics.catalogue import METRICS, MetricKind

CHOSEN = 'instance=~"$instance"'
"""What a dashboard shows: those instances that its reader has chosen."""
WINDOW = "$__rate_interval"
"""Grafana puts in what fits the scrape interval and the width of the panel."""


def value(name: str, chosen: str = CHOSEN, **labels: str) -> str:
    """The values of a metric, of these labels."""
    metric = METRICS[name]
    unknown = [label for label in labels if label not in metric.labels]
    if unknown:
        raise KeyError(f"{name} has no label {unknown[0]!r}")
    said = [chosen, *(f'{label}="{text}"' for label, text in labels.items())]
    return f"{name}{{{','.join(one for one in said if one)}}}"


def total(name: str, *by: str, chosen: str = CHOSEN, **labels: str) -> str:
    """The values of a metric, added."""
    return f"sum{_by(name, by)}({value(name, chosen, **labels)})"


def highest(name: str, *by: str, chosen: str = CHOSEN, **labels: str) -> str:
    """The largest value of a metric."""
    return f"max{_by(name, by)}({value(name, chosen, **labels)})"


def rate(name: str, *by: str, chosen: str = CHOSEN, window: str = WINDOW, **labels: str) -> str:
    """How much a counter grows in a second."""
    assert METRICS[name].kind is MetricKind.COUNTER, name
    return f"sum{_by(name, by)}(rate({value(name, chosen, **labels)}[{window}]))"


def quantile(share: float, name: str, *by: str, chosen: str = CHOSEN, window: str = WINDOW) -> str:
    """The value of a histogram below which this share lies."""
    assert METRICS[name].kind is MetricKind.HISTOGRAM, name
    chosen = f"{{{chosen}}}" if chosen else ""
    return f"histogram_quantile({share}, sum{_by(name, ('le', *by))}(rate({name}_bucket{chosen}[{window}])))"


def _by(name: str, by: tuple[str, ...]) -> str:
    unknown = [label for label in by if label not in (*METRICS[name].labels, "instance", "le")]
    if unknown:
        raise KeyError(f"{name} has no label {unknown[0]!r}")
    return f" by ({', '.join(by)}) " if by else ""
