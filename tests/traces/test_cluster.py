"""One trace through the workers of a cluster, live at a collector and rebuilt from the logs on its servers."""

import json
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rigs.collector import Collector, read_otlp, spans_in
from tests.cli.conftest import Folder
from tests.cli.in_process import Here
from tests.cli.test_up import Up
from tests.serve.rig import ServedProcess, wait_until
from tests.traces import jobs
from tests.traces.test_two_nodes import TRACE, post

DRONES = [f"Drone/d{number}" for number in range(8)]
"""Some of them live in shards of the other worker."""
SOURCE = Path(jobs.__file__)
VIEW = "view Flights"


def ids(number: int) -> tuple[str, str]:
    """A trace for each job, and its traceparent."""
    trace = f"{TRACE[:-2]}{number:02x}"
    return trace, f"00-{trace}-00f067aa0ba902b7-01"


@pytest.mark.timeout(900)
def test_a_trace_goes_through_the_workers_of_a_cluster(tmp_path: Path) -> None:
    shutil.copy(SOURCE, tmp_path / "jobs.py")
    source = (tmp_path / "jobs.py").read_text(encoding="utf-8")
    (tmp_path / "jobs.py").write_text(source.replace("fleet = make_fleet()", "fleet = make_fleet(shards=4)"))
    with Collector() as collector:
        config = f'[settings.traces]\nexport = "{collector.url}"\n'
        (tmp_path / "stigmergy.toml").write_text(config, encoding="utf-8")
        up = Up(Folder(tmp_path), "jobs:fleet", "--nodes", "1", "--workers", "2", "--serve", "127.0.0.1:0")
        try:
            nats = up.wait_event("up")["nats"]
            served = ServedProcess.at(up.wait_said("api", "serving")["said"]["url"])
            wait_until(lambda: len(owners(up)) == 2 or up.poll())
            for number, drone in enumerate(DRONES):
                fields = {"drone": drone, "job": f"J{number}"}
                post(served.url, "Tower/t", "Dispatch", fields, traceparent=ids(number)[1])
            # Workers without a bus publish to nobody: that is settled at once, and is a span all the same.
            # When a commit was durable is said by the next one; of a shard that moves in between nobody says it.
            expected = sorted(name for name in jobs.JOB if name != "commit")

            def is_whole() -> bool:
                return all(sorted(names(collector, ids(number)[0])) == expected for number in range(len(DRONES)))

            wait_until(is_whole)
            by_worker = {
                ids(number)[0]: {
                    resource["service.instance.id"]
                    for resource, span in collector.spans()
                    if span.trace_id.hex() == ids(number)[0]
                }
                for number in range(len(DRONES))
            }
            assert any(len(workers) == 2 for workers in by_worker.values()), by_worker
            here = Here(tmp_path)

            def is_rebuilt(number: int) -> bool:
                trace, path = ids(number)[0], f"{number}.json"
                if here.cli("trace", trace, "--nats", nats, "--fleet", "jobs:fleet", "--otlp", path).returncode != 0:
                    return False
                sent = [one for one in collector.spans() if one[1].trace_id.hex() == trace and one[1].name != VIEW]
                rebuilt = spans_in(read_otlp((tmp_path / path).read_bytes()))
                return by_id(rebuilt) == by_id(sent)

            for number in range(len(DRONES)):
                wait_until(partial(is_rebuilt, number))
            listed: list[dict[str, Any]] = [
                json.loads(line) for line in here.cli("trace", "Tower/t", "--nats", nats, "--json").stdout.splitlines()
            ]
            assert {one["trace_id"] for one in listed} == {ids(number)[0] for number in range(len(DRONES))}
        finally:
            up.process.terminate()
            up.process.wait(timeout=240)
            up.close()
    assert collector.wrong == []


def by_id(spans: Iterable[tuple[dict[str, str], Any]]) -> dict[bytes, Any]:
    """Spans and whose they are."""
    return {span.span_id: (resource, span) for resource, span in spans}


def names(collector: Collector, trace: str) -> list[str]:
    """Of its spans, without commits, and without those of views: `up` projects them, and they are not in the log."""
    left_out = ("commit", VIEW)
    return [span.name for _, span in collector.spans() if span.trace_id.hex() == trace and span.name not in left_out]


def owners(up: Up) -> set[str]:
    """The workers that have shards."""
    return {one["process"] for one in up.said if one.get("said", {}).get("event") == "owns"}
