"""The OpenAPI document is true: Schemathesis asks a running fleet whatever it allows, and what it forbids."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

from tests.cli.conftest import DRONE, VIEWS
from tests.clients.rig import warehouse_served
from tests.serve.rig import ServedProcess, cli, make_folder, run_served

RUN_S_MAX = 600.0


def test_document_has_every_command_event_and_error(served: ServedProcess) -> None:
    document = served.get("/openapi.json").json
    assert document["openapi"] == "3.1.0"
    start = document["paths"]["/v1/agents/Drone/{name}/StartMission"]["post"]
    assert start["requestBody"]["required"] is True
    reference = start["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = document["components"]["schemas"][reference.rpartition("/")[2]]
    assert schema["properties"] == {
        "mission": {"type": "string"},
        "priority": {"type": "integer", "default": 0, "minimum": -(2**63), "maximum": 2**64 - 1},
    }
    assert schema["required"] == ["mission"]
    assert schema["additionalProperties"] is False
    assert set(document["x-events"]["Drone"]) == {"MissionStarted@1", "RouteSet@1", "BatteryMeasured@1"}
    blob = document["paths"]["/v1/blobs/{digest}"]
    assert set(blob) == {"get", "put"}
    assert set(blob["get"]["responses"]) >= {"200", "206", "404", "416"}
    assert set(document["paths"]["/v1/blobs"]["post"]["responses"]) >= {"200", "413", "507"}
    for status in ("401", "409", "422", "429", "503", "504"):
        problem = document["components"]["responses"][status]["content"]["application/problem+json"]
        assert problem["schema"]["$ref"] == "#/components/schemas/HttpProblem"
    names = json.dumps(document).count("#/components/schemas/")
    assert names > 10
    for reference in {part.split('"')[0] for part in json.dumps(document).split('"#/components/schemas/')[1:]}:
        assert reference in document["components"]["schemas"]


async def test_answers_have_the_types_of_the_fleet(tmp_path: Path) -> None:
    async with warehouse_served(tmp_path) as urls, httpx.AsyncClient(base_url=urls["http"], timeout=240) as client:
        document = (await client.get("/openapi.json")).json()
        schemas = document["components"]["schemas"]

        def answer(path: str) -> Any:
            return document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]

        def named(schema: Any) -> Any:
            return schemas[schema["$ref"].rpartition("/")[2]]

        state = named(named(answer("/v1/agents/Cart/{name}"))["properties"]["state"])
        assert state["properties"]["seen"] == {"type": "array", "items": {"type": "string"}}
        assert state["required"] == ["id", "at", "drives", "seen"]
        assert schemas["Board.agent_state"]["properties"]["tasks"] == {}, "a shared field is any value"
        row = named(named(answer("/v1/views/Dock"))["properties"]["rows"]["items"])
        assert list(row["properties"]) == row["required"] == ["to", "drives", "last"]
        event = named(schemas["FleetEvent"]["anyOf"][0])
        assert event["properties"]["type"] == {"const": "Driven@1"}
        assert named(event["properties"]["fields"])["properties"] == {"to": {"type": "string"}}

        # And they are true.
        whole = {"components": {"schemas": schemas}}
        driven = await client.post("/v1/agents/Cart/c1/Drive", json={"to": "a"})
        await client.post("/v1/observations", json={"agent": "Board/b", "event": "Parked", "fields": {"x": 1, "y": 2}})
        for path, described in (
            ("/v1/agents", "/v1/agents"),
            ("/v1/agents/Cart/c1", "/v1/agents/Cart/{name}"),
            ("/v1/agents/Board/b", "/v1/agents/Board/{name}"),
            ("/v1/agents/Cart/c1/events", "/v1/agents/Cart/{name}/events"),
            ("/v1/agents/Cart/c1/explain", "/v1/agents/Cart/{name}/explain"),
            (f"/v1/views/Dock?after={driven.json()['after']}&within_s=50", "/v1/views/Dock"),
        ):
            told = await client.get(path)
            assert told.status_code == 200, told.text
            jsonschema_rs.Draft202012Validator({**whole, **answer(described)}).validate(told.json())
        entry = (await client.get("/v1/agents/Cart/c1/events")).json()["entries"][-1]
        typed = {**whole, "$ref": "#/components/schemas/Cart.Driven.entry"}
        jsonschema_rs.Draft202012Validator(typed).validate(entry)
        async with client.stream("GET", "/v1/events?after=start&type=Driven") as stream:
            async for line in stream.aiter_lines():
                if line.startswith("data: "):
                    typed = {**whole, "$ref": "#/components/schemas/Cart.Driven.streamed"}
                    jsonschema_rs.Draft202012Validator(typed).validate(json.loads(line.removeprefix("data: ")))
                    break


def test_page_loads_nothing_from_elsewhere(served: ServedProcess) -> None:
    page = served.get("/docs")
    assert page.status == 200
    assert "http://" not in page.text
    assert "https://" not in page.text
    allowed = page.headers["content-security-policy"]
    assert allowed.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'self'" in allowed


def test_page_shows_every_operation(served: ServedProcess, node: str) -> None:
    script = Path(__file__).with_name("page.mjs")
    ran = subprocess.run([node, str(script), served.url], capture_output=True, text=True, timeout=RUN_S_MAX, check=True)
    shown = json.loads(ran.stdout)
    paths = served.get("/openapi.json").json["paths"]
    assert (shown["wrong"], shown["title"]) == ([], "Fleet delivery")
    assert shown["operations"] == sum(len(methods) for methods in paths.values())
    assert shown["files"] == 2, "blobs are files"
    assert {"mission": "", "priority": 0} in shown["bodies"]


CONFIG = """
[[operations]]
include-path-regex = "^/v1/views"
parameters = { "query.of_node" = "", "query.after" = "", "query.cursor" = "" }
"""
"""Whether a node, a position or a cursor is one of this fleet no schema can say."""


@pytest.mark.parametrize("examples", [4, pytest.param(100, marks=pytest.mark.prove)])
def test_schemathesis_finds_nothing(tmp_path: Path, examples: int) -> None:
    folder = make_folder(tmp_path)
    (folder / "drone.py").write_text(DRONE + VIEWS, encoding="utf-8")
    (folder / "schemathesis.toml").write_text(CONFIG, encoding="utf-8")
    scopes = [word for scope in ("read", "command:*", "observe", "operate") for word in ("--scope", scope)]
    made = cli(folder, "token", "create", "all", *scopes, "--tokens", "delivery.db.tokens", "--json")
    token = json.loads(made.stdout)["token"]
    node = run_served(folder, "--rate", "100000")
    try:
        # The stream of events has no end that a tool could wait for.
        asked = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{node.url}/openapi.json"),
                *("-H", f"Authorization: Bearer {token}", "--exclude-path-regex", "/v1/(events|fleet)", "--no-color"),
                *("--phases", "coverage,fuzzing", "--max-examples", str(examples), "--generation-deterministic"),
                *("--request-timeout", "240"),
            ],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            check=False,
        )
        assert asked.returncode == 0, asked.stdout[-8000:] + asked.stderr[-2000:]
        assert node.get("/readyz").status == 200
    finally:
        assert node.end() == 0
