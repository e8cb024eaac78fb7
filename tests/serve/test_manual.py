"""The commands of docs/http.md, run from top to bottom against a real node, answer what the page says."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.serve.rig import cli, make_folder, run_served, wait_until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "http.md"
CURL = re.compile(r"^    (curl (?:[^\\\n]|\\\n)*)\n((?:    (?!curl|stigmergy).*\n)*)", re.MULTILINE)
STREAM_S = "10"


def steps() -> list[tuple[str, str]]:
    """Each curl of the page, and what the page shows behind it."""
    return [(command, shown) for command, shown in CURL.findall(PAGE.read_text(encoding="utf-8"))]


def normal(text: str) -> str:
    return re.sub(r'"time":"[^"]*"', '"time":"…"', "\n".join(line.strip() for line in text.strip().splitlines()))


def test_the_page_has_commands() -> None:
    assert len(steps()) >= 4
    assert all("http://127.0.0.1:8080" in command for command, _ in steps())


def test_every_curl_of_the_page(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        if os.environ.get("STIGMERGY_REQUIRE_BROKERS"):
            pytest.fail("curl is missing")
        pytest.skip("curl is missing: the commands of docs/http.md are not run")
    folder = make_folder(tmp_path)
    node = run_served(folder)
    environment = dict(os.environ)
    try:
        for command, shown in steps():
            if "$TOKEN" in command and "TOKEN" not in environment:
                made = cli(folder, "token", "create", "--scope", "read", "m", "--tokens", "delivery.db.tokens")
                environment["TOKEN"] = made.stdout.strip()
            is_stream = "/v1/events" in command
            words = command.replace("http://127.0.0.1:8080", node.url).replace("curl ", "curl -s ", 1)
            if is_stream:
                words = words.replace("?kind=Drone", "?kind=Drone&type=BatteryMeasured&since=2020-01-01T00:00:00Z")
                words = words.replace("curl -s ", f"curl -s --max-time {STREAM_S} ", 1)
            done = subprocess.run(words, shell=True, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode in ((28,) if is_stream else (0,)), (command, done)
            if shown.strip():
                assert normal(shown) in normal(done.stdout), (command, done.stdout)
        wait_until(lambda: node.get("/healthz").status == 200)
    finally:
        node.end()
