"""docs/http.md is followed from top to bottom, and the curls of docs/blobs.md: they answer what the pages say."""

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from stigmergy.nats.servers.server import free_ports
from tests.docs.walkthrough import Walk, blocks
from tests.serve.rig import WAIT_S_MAX, ServedProcess, SseClient

DOCS = Path(__file__).resolve().parents[2] / "docs"
PLACE = "127.0.0.1:8080"
LOG = "5f3a9c1e"
"""The name of the log on the page; each log has its own."""


@pytest.fixture(autouse=True)
def curl() -> None:
    if shutil.which("curl") is None:
        if os.environ.get("STIGMERGY_REQUIRE_BROKERS"):
            pytest.fail("curl is missing")
        pytest.skip("curl is missing: the commands of docs/http.md are not run")


def test_the_walk_of_the_page(tmp_path: Path) -> None:
    place, log, curls = f"127.0.0.1:{free_ports(1)[0]}", LOG, 0
    walk = Walk(tmp_path, 1883)
    try:
        for block in blocks("http.md", (DOCS / "http.md").read_text(encoding="utf-8")):
            if block.language == "python":
                (tmp_path / "drone.py").write_text(block.text, encoding="utf-8")
                continue
            text = block.text.replace(PLACE, place).replace(":8080", f":{place.partition(':')[2]}").replace(LOG, log)
            walk.follow(replace(block, text=text))
            curls += text.count("$ curl ")
            if log == LOG:
                log = name_of_log(ServedProcess.at(f"http://{place}"))
    finally:
        walk.close()
    assert curls >= 15


def name_of_log(served: ServedProcess) -> str:
    stream = SseClient(served)
    try:
        for line in iter(stream.answer.readline, b""):
            if found := re.search(rb"@([0-9a-f]+):", line):
                return found[1].decode()
        raise AssertionError("the stream does not say where it begins")
    finally:
        stream.close()


def test_every_curl_of_the_page_on_blobs(served: ServedProcess, tmp_path: Path) -> None:
    (sample,) = re.findall(r"```sh\n(curl .*?)```", (DOCS / "blobs.md").read_text(encoding="utf-8"), re.DOTALL)
    put, get = (line.partition("   #")[0] for line in sample.replace(PLACE, served.url[7:]).splitlines())
    photo = os.urandom(3_000)
    (tmp_path / "photo.jpg").write_bytes(photo)
    said = subprocess.run(put, shell=True, cwd=tmp_path, capture_output=True, timeout=WAIT_S_MAX, check=True).stdout
    digest = re.search(rb'"digest":"([0-9a-f]{64})"', said)
    assert digest is not None, said
    (tmp_path / "photo.jpg").write_bytes(photo[:1_000])
    resumed = get.replace("5a6bbd1b0a…", digest[1].decode())
    subprocess.run(resumed, shell=True, cwd=tmp_path, capture_output=True, timeout=WAIT_S_MAX, check=True)
    assert (tmp_path / "photo.jpg").read_bytes() == photo
