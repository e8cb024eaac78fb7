"""`/metrics` of real processes: what Prometheus' own parser reads, who may read it, and where the others are."""

import asyncio
import json
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from stigmergy.base.errors import ConfigError
from stigmergy.metrics.catalogue import METRICS
from stigmergy.metrics.samples import SampleSheet
from stigmergy.serve.listener import read_address
from stigmergy.serve.metrics import MetricsListening, MetricsPage, MetricsServer, ScrapeTarget, scrape_targets
from stigmergy.serve.tokens import Tokens
from tests.serve.rig import HttpAnswer, ServedProcess, cli, make_folder

Page = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(answer: HttpAnswer) -> Page:
    assert answer.status == 200, answer
    found: Page = {}
    for family in parse(answer.text):
        assert family.name in METRICS or f"{family.name}_total" in METRICS, "only what is in the list"
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_a_node_tells_prometheus_what_it_measures(tmp_path: Path) -> None:
    node = ServedProcess(make_folder(tmp_path), "run", "drone:fleet", "--metrics", "127.0.0.1:0")
    try:
        assert node.said[-1]["event"] == "metrics"
        for number in range(3):
            sent = cli(tmp_path, "send", f"Drone/D-{number}", "StartMission", f"mission=M{number}")
            assert sent.returncode == 0, sent
        page = read(node.get("/metrics"))
        assert page["stigmergy_agents", (("kind", "Drone"),)] == 3
        assert page["stigmergy_inputs_total", (("outcome", "accepted"),)] == 3
        assert page["stigmergy_events_by_type_total", (("event", "MissionStarted"), ("kind", "Drone"))] == 3
        assert page["stigmergy_commit_seconds_count", ()] >= 4
        assert page["stigmergy_sync_seconds_count", ()] >= 4
        assert 0 < page["stigmergy_sync_seconds_sum", ()] <= page["stigmergy_commit_seconds_sum", ()] * 1.01
        assert page["process_resident_memory_bytes", ()] > 10_000_000
        assert page["stigmergy_internal_total", (("counter", "accepted"),)] == 3
        assert not any("agent" in dict(labels) for _, labels in page), "agents are not named unless asked for"
        answer = node.ask("GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        families = parse_open(answer.text)  # type: ignore[no-untyped-call]
        assert {family.name for family in families} >= {"stigmergy_agents", "stigmergy_events"}
        assert node.get("/metrics", Host="evil.example").status == 421
        assert node.ask("POST", "/metrics").status == 405
        assert node.get("/v1/agents").status == 404
        status = json.loads(cli(tmp_path, "status", "--json").stdout)
        assert status["metrics_url"] == node.url
        (commit,) = [one for one in status["metrics"]["histograms"] if one["metric"] == "stigmergy_commit_seconds"]
        assert 0 < commit["p50"] <= commit["p99"]
    finally:
        assert node.end() == 0


def test_the_configuration_says_where_and_whether_agents_are_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    (folder / "stigmergy.toml").write_text(
        '[fleet]\nmodule = "drone:fleet"\nmetrics = "127.0.0.1:0"\n[settings.metrics]\nagents = true\n',
        encoding="utf-8",
    )
    node = ServedProcess(folder, "run")
    try:
        cli(folder, "send", "Drone/D-7", "StartMission", "mission=M7")
        page = read(node.get("/metrics"))
        assert page["stigmergy_agent_events_share", (("agent", "Drone/D-7"),)] > 0
        assert page["stigmergy_agent_state_bytes", (("agent", "Drone/D-7"),)] > 10
    finally:
        assert node.end() == 0


def test_the_api_has_them_too_and_a_server_beside_says_where_the_others_are(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    node = ServedProcess(folder, "run", "drone:fleet", "--metrics", "127.0.0.1:0")
    beside = ServedProcess(folder, "serve", "drone:fleet", "--listen", "127.0.0.1:0")
    try:
        assert beside.get("/v1/metrics/targets").json == [
            {"targets": [node.url.split("/")[2]], "labels": {"fleet": "delivery", "__scheme__": "http"}}
        ]
        page = read(beside.get("/metrics"))
        (info,) = (dict(labels) for name, labels in page if name == "stigmergy_node_info")
        assert info["role"] == "serve"
        assert ("stigmergy_agents", (("kind", "Drone"),)) not in page, "it tells of itself only"
        assert page["stigmergy_http_requests_total", (("status", "200"),)] >= 1
    finally:
        assert beside.end() == 0
        assert node.end() == 0


def test_run_serve_has_the_page_of_its_node(served: ServedProcess) -> None:
    served.post("/v1/agents/Drone/metric/StartMission", {"mission": "M"})
    page = read(served.get("/metrics"))
    assert page["stigmergy_agents", (("kind", "Drone"),)] >= 1
    assert page["stigmergy_http_request_seconds_count", ()] >= 1
    assert served.get("/v1/metrics/targets").json == []


def test_others_need_a_token(tmp_path: Path) -> None:
    refused = cli(make_folder(tmp_path), "run", "drone:fleet", "--metrics", "0.0.0.0:0")
    assert refused.returncode == 2
    assert "--metrics-insecure" in refused.stderr
    lonely = cli(tmp_path, "run", "drone:fleet", "--metrics-insecure")
    assert lonely.returncode == 2
    assert "--metrics :9100" in lonely.stderr
    tokens = Tokens(tmp_path / "t")
    tokens.create("prometheus", ("read",), 10, 0.0)
    with pytest.raises(ConfigError, match="no valid token"):
        MetricsServer(MetricsPage(list), MetricsListening(read_address("10.0.0.7:1"), tokens.path))


async def ask(server: MetricsServer, headers: dict[bytes, bytes]) -> int:
    sent: list[dict[str, object]] = []

    async def send(message: object) -> None:
        sent.append(message)  # type: ignore[arg-type]

    scope = {"type": "http", "method": "GET", "raw_path": b"/metrics", "headers": list(headers.items())}
    scope |= {"scheme": "http", "query_string": b"", "client": ("10.0.0.9", 1)}
    await server(scope, None, send)  # type: ignore[arg-type]
    status = sent[0]["status"]
    assert isinstance(status, int)
    return status


def test_tokens_are_asked_for_where_there_are_some(tmp_path: Path) -> None:
    tokens, local = Tokens(tmp_path / "t"), {b"host": b"localhost"}
    text = tokens.create("prometheus", ("read",), 9_000_000_000, 0.0)
    blind = tokens.create("pilot", ("command:Drone",), 9_000_000_000, 0.0)
    server = MetricsServer(MetricsPage(list), MetricsListening(read_address("127.0.0.1:0"), tokens.path))
    assert asyncio.run(ask(server, local)) == 401
    assert asyncio.run(ask(server, local | {b"authorization": f"Bearer {text}".encode()})) == 200
    assert asyncio.run(ask(server, local | {b"authorization": f"Bearer {blind}".encode()})) == 403
    insecure = MetricsListening(read_address("0.0.0.0:0"), tmp_path / "none", insecure=True)
    assert asyncio.run(ask(MetricsServer(MetricsPage(list), insecure), {b"host": b"hub.example"})) == 200


def test_targets_are_named_once_by_what_others_can_reach() -> None:
    hosts = [("", "hub"), ("http://0.0.0.0:9100/metrics", "hub"), ("http://0.0.0.0:9100/metrics", "hub")]
    assert scrape_targets("town", [*hosts, (None, None), ("https://10.0.0.7:1/metrics", "x")]) == [
        ScrapeTarget(["hub:9100"], {"fleet": "town", "__scheme__": "http"}),
        ScrapeTarget(["10.0.0.7:1"], {"fleet": "town", "__scheme__": "https"}),
    ]


def test_label_values_are_escaped() -> None:
    sheet = SampleSheet()
    sheet.put("stigmergy_agents", 1, kind='a"b\\c\nd')
    text = MetricsPage(lambda: [sheet.samples()]).render()[0].decode()
    (family,) = [one for one in parse(text) if one.name == "stigmergy_agents"]
    assert family.samples[0].labels == {"kind": 'a"b\\c\nd'}
