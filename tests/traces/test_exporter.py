"""The exporter: what the collector gets, and what happens while it is away. It never holds anybody up."""

import time
from collections.abc import Callable

import pytest

from rigs.collector import Collector
from stigmergy.base.errors import ConfigError
from stigmergy.shard.commit import Commit
from stigmergy.traces import exporter as module
from stigmergy.traces.exporter import SpanExporter, shown, traces_url
from tests.shard.shards import Probe
from tests.shard.test_tracing import Cart, ask

WAIT_S = 240.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GATHER_S", "PAUSE_S", "PAUSE_S_MAX"):
        monkeypatch.setattr(module, name, 0.01)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def commits(count: int) -> list[Commit]:
    probe = Probe(Cart)
    return [probe.take(ask(command_id=f"id-{number}")) for number in range(count)]


def exporter_to(url: str, queue_count_max: int = 100) -> SpanExporter:
    return SpanExporter(url, {"authorization": "Bearer secret"}, "carts", "local/a", queue_count_max)


def test_spans_of_durable_commits_come_once_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_COUNT", 7)
    with Collector() as collector:
        made = exporter_to(collector.url)
        for commit in commits(20):
            made.durable(commit)
        made.close()
    assert collector.wrong == []
    spans = list(collector.spans())
    assert len({span.span_id for _, span in spans}) == len(spans) == 20
    assert {resource["service.name"] for resource, _ in spans} == {"carts"}
    assert collector.headers[0]["authorization"] == "Bearer secret"
    assert len(collector.requests) >= 3
    assert made.counters() == {"spans_exported": 20, "spans_dropped": 0, "spans_refused": 0}
    assert made.troubles() == []


def test_while_the_collector_is_away_the_oldest_are_dropped_and_it_is_said() -> None:
    with Collector() as gone:
        url = gone.url
    made = exporter_to(url, queue_count_max=10)
    began_s = time.monotonic()
    for commit in commits(20):
        made.durable(commit)
    assert time.monotonic() - began_s < WAIT_S, "nobody waits"
    wait_until(lambda: made.counters()["spans_dropped"] == 10 and bool(made.troubles()))
    assert "does not take spans" in made.troubles()[0]
    assert made.troubles()[0].code == "spans-unsent"
    assert "secret" not in made.troubles()[0]
    with Collector(int(url.rpartition(":")[2])) as back:
        wait_until(lambda: made.counters()["spans_exported"] == 10)
        assert [span.name for _, span in back.spans()] == ["Cart Start"] * 10
        assert made.troubles() == []
        made.close()


def test_a_node_ends_while_the_collector_is_away() -> None:
    with Collector() as gone:
        url = gone.url
    made = exporter_to(url)
    made.durable(commits(1)[0])
    made.close()
    assert made.counters() == {"spans_exported": 0, "spans_dropped": 1, "spans_refused": 0}


@pytest.mark.parametrize("status", [503, 400])
def test_what_the_collector_answers_decides(status: int) -> None:
    with Collector() as collector:
        collector.refuses = status
        made = exporter_to(collector.url)
        made.durable(commits(1)[0])
        wait_until(lambda: bool(made.troubles()))
        assert f"status {status}" in made.troubles()[0]
        collector.refuses = 0
        if status == 503:
            wait_until(lambda: made.counters()["spans_exported"] == 1)
        else:
            assert made.counters()["spans_refused"] == 1, "OTLP says not to send these again"
        made.close()


def test_what_it_refuses_in_part_is_counted() -> None:
    with Collector() as collector:
        collector.rejects = 1
        made = exporter_to(collector.url)
        made.durable(commits(1)[0])
        made.close()
    assert made.counters() == {"spans_exported": 0, "spans_dropped": 0, "spans_refused": 1}


def test_urls() -> None:
    assert traces_url("http://hub:4318") == "http://hub:4318/v1/traces"
    assert traces_url("https://hub/otlp/") == "https://hub/otlp/v1/traces"
    assert traces_url("https://hub/v1/traces?x=1") == "https://hub/v1/traces?x=1"
    assert shown("https://me:secret@hub/v1/traces?key=secret") == "https://hub/v1/traces"
    with pytest.raises(ConfigError, match="such as http"):
        traces_url("http://:4318")
