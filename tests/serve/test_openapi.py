"""The OpenAPI document is true: Schemathesis asks a running fleet whatever it allows, and what it forbids."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.rig import ServedProcess, cli, make_folder, run_served

RUN_S_MAX = 600.0


def test_document_has_every_command_event_and_error(served: ServedProcess) -> None:
    document = served.get("/openapi.json").json
    assert document["openapi"] == "3.1.0"
    start = document["paths"]["/v1/agents/Drone/{name}/StartMission"]["post"]
    assert start["requestBody"]["required"] is True
    reference = start["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = document["components"]["schemas"][reference.rpartition("/")[2]]
    assert schema["properties"] == {"mission": {"type": "string"}, "priority": {"type": "integer", "default": 0}}
    assert schema["required"] == ["mission"]
    assert schema["additionalProperties"] is False
    assert set(document["x-events"]["Drone"]) == {"MissionStarted@1", "RouteSet@1", "BatteryMeasured@1"}
    for status in ("401", "409", "422", "429", "503", "504"):
        problem = document["components"]["responses"][status]["content"]["application/problem+json"]
        assert problem["schema"]["$ref"] == "#/components/schemas/HttpProblem"
    names = json.dumps(document).count("#/components/schemas/")
    assert names > 10
    for reference in {part.split('"')[0] for part in json.dumps(document).split('"#/components/schemas/')[1:]}:
        assert reference in document["components"]["schemas"]


def test_page_loads_nothing_from_elsewhere(served: ServedProcess) -> None:
    page = served.get("/docs")
    assert page.status == 200
    assert "http://" not in page.text
    assert "https://" not in page.text
    allowed = page.headers["content-security-policy"]
    assert allowed.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'self'" in allowed


@pytest.mark.parametrize("examples", [4, pytest.param(100, marks=pytest.mark.prove)])
def test_schemathesis_finds_nothing(tmp_path: Path, examples: int) -> None:
    folder = make_folder(tmp_path)
    scopes = [word for scope in ("read", "command:*", "observe", "operate") for word in ("--scope", scope)]
    made = cli(folder, "token", "create", "all", *scopes, "--tokens", "delivery.db.tokens", "--json")
    token = json.loads(made.stdout)["token"]
    node = run_served(folder, "--rate", "100000")
    try:
        # The stream of events has no end that a tool could wait for.
        asked = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{node.url}/openapi.json"),
                *("-H", f"Authorization: Bearer {token}", "--exclude-path", "/v1/events", "--no-color"),
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
