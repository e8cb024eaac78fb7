"""One trace across two nodes: live at a collector, and rebuilt from both logs. The same spans."""

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import stigmergy as st
from rigs.collector import Collector, read_otlp, spans_in
from stigmergy.control.live import Live
from stigmergy.control.protocol import Reply, TraceRequest, answers_to
from stigmergy.serve.embedded import ServedFleet
from stigmergy.testing.brokers import Broker
from tests.cli.in_process import Here
from tests.traces.jobs import JOB, make_fleet

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE = PARENT.split("-")[1]
WAIT_S = 240.0


async def wait_for(condition: Any) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.02)


def post(url: str, agent: str, command: str, fields: dict[str, Any], **headers: str) -> None:
    asked = urllib.request.Request(
        f"{url}/v1/agents/{agent}/{command}",
        json.dumps(fields).encode(),
        {"content-type": "application/json", **headers},
        method="POST",
    )
    with urllib.request.urlopen(asked, timeout=WAIT_S) as answer:
        assert answer.status == 200


def names(collector: Collector) -> list[str]:
    return sorted(span.name for _, span in collector.spans() if span.trace_id.hex() == TRACE)


@pytest.mark.timeout(600)
def test_a_trace_goes_through_two_nodes_on_a_broker(tmp_path: Path, mosquitto: Broker) -> None:
    with Collector() as collector:
        settings = st.Settings(traces=st.TraceSettings(export=collector.url, headers={"x-team": "drones"}))

        def node(name: str, *agents: str) -> Any:
            where = f"sqlite:{tmp_path / name}.db"
            return make_fleet(settings).running(journal=where, bus=mosquitto.url, node=name, agents=agents)

        async def run() -> None:
            north, south = node("north", "Tower/t"), node("south", "Drone/*")
            async with north as tower, south as drones, ServedFleet(north, tower) as served:
                fields, headers = {"drone": "Drone/d", "job": "J1"}, {"traceparent": PARENT, "tracestate": "v=1"}
                await asyncio.to_thread(post, served.url.rstrip("/"), "Tower/t", "Dispatch", fields, **headers)
                await wait_for(lambda: tower.query("Tower/t").flown == ("J1",))
                await wait_for(lambda: names(collector) == sorted([*JOB, "view Flights", "view Flights"]))
                assert drones.standing().counters["spans_exported"] > 0
                await check_one_node_is_asked_about_both(north, tower)

        asyncio.run(run())
    assert collector.wrong == []
    assert all(given["x-team"] == "drones" for given in collector.headers)
    views = [span for _, span in collector.spans() if span.name == "view Flights"]
    live = {span.span_id: span for _, span in collector.spans() if span not in views}
    assert len(live) == len(JOB) == sum(1 for _ in collector.spans()) - 2, "each once, and none of another trace"
    by_name = {span.name: span for span in live.values()}
    assert by_name["Tower Dispatch"].parent_span_id.hex() == PARENT.split("-")[2], "the client's span is the first"
    assert by_name["Tower Dispatch"].trace_state == "v=1"
    for child, parent in [
        ("tell Go", "Tower Dispatch"),
        ("Drone Go", "tell Go"),
        ("action Fly", "Drone Go"),
        ("actuator Fly", "action Fly"),
        ("Drone Done.Fly", "action Fly"),
        ("tell Flown", "Drone Done.Fly"),
        ("publish Flown", "Drone Done.Fly"),
        ("Tower Flown", "tell Flown"),
    ]:
        assert by_name[child].parent_span_id == by_name[parent].span_id, (child, parent)
    # Both nodes fold what is in their logs; of the job that is one event each.
    folded = {by_name[name].span_id for name in ("Drone Done.Fly", "Tower Flown")}
    folded = {by_name[name].span_id for name in ("Drone Done.Fly", "Tower Flown")}
    assert {span.parent_span_id for span in views} == folded
    actuator = by_name["actuator Fly"]
    assert actuator.end_time_unix_nano - actuator.start_time_unix_nano >= 20_000_000, "the device's own time"
    of = {span.name: resource["service.instance.id"] for resource, span in collector.spans()}
    assert (of["Tower Dispatch"], of["Drone Go"]) == ("local/north", "local/south")

    here = Here(tmp_path)
    assert here.cli("trace", TRACE, "north.db", "south.db", "--otlp", "trace.json").returncode == 0
    rebuilt = list(spans_in(read_otlp((tmp_path / "trace.json").read_bytes())))
    assert {span.span_id: span for _, span in rebuilt} == live, "months later the log gives the same spans"
    whose = {span.span_id: resource for resource, span in rebuilt}
    assert whose == {span.span_id: resource for resource, span in collector.spans() if span not in views}
    unknown = here.cli("trace", "nosuch", "north.db", "south.db")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "no trace is like that" in unknown.stderr
    shown = here.cli("trace", "Drone/d", "north.db", "south.db").stdout
    assert [line for line in shown.splitlines() if "Tower Dispatch" in line and "Tower/t" in line], shown
    assert len(here.lines("trace", "Tower/t", "north.db", "south.db")) == len(JOB)
    with Collector() as other:
        assert here.cli("trace", TRACE, "north.db", "south.db", "--otlp", other.url).returncode == 0
        assert {span.span_id: span for _, span in other.spans()} == live, "views are not in the log"
        assert {span.span_id: resource for resource, span in other.spans()} == whose


async def check_one_node_is_asked_about_both(north: Any, tower: Live) -> None:
    """`stigmergy trace` at a running node."""
    asked = await north.service(tower, "0", lambda: None).answer(TraceRequest(jobs=[TRACE]))
    replies = [one for one in asked if isinstance(one, Reply)]
    spans = answers_to(replies)
    assert sorted(span.name for span in spans) == sorted(JOB)
    assert {span.name: span.node for span in spans}["Drone Go"] == "local/south"
    assert replies[-1].end is not None
    assert not replies[-1].end.missing
