"""A client in JavaScript, with the .proto file alone: sends, streams, is cut, goes on without a gap or a double."""

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from stigmergy.proto.service import FleetProto
from tests.clients.cable import Cable
from tests.clients.rig import WAIT_S_MAX, warehouse, warehouse_served

HERE = Path(__file__).resolve().parent / "node_client"
BUILT = Path(__file__).resolve().parents[2] / "build" / "node_client"
COUNT, CUTS = 120, 4


@pytest.fixture(scope="module")
def installed() -> Path:
    """The client with its libraries, hash-locked, installed once for all runs."""
    missing = [tool for tool in ("node", "npm") if shutil.which(tool) is None]
    if missing:
        why = f"NOT TESTED WITH A CLIENT IN ANOTHER LANGUAGE: there is no {missing[0]} here"
        if os.environ.get("CI") or os.environ.get("STIGMERGY_REQUIRE_BROKERS"):
            pytest.fail(why)
        pytest.skip(why)
    BUILT.mkdir(parents=True, exist_ok=True)
    with open(BUILT / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = (HERE / "package-lock.json").read_bytes()
        kept = BUILT / ".installed"
        if not kept.exists() or kept.read_bytes() != wanted:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(HERE / name, BUILT / name)
            install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            subprocess.run(install, cwd=BUILT, check=True, timeout=600, capture_output=True)
            kept.write_bytes(wanted)
        shutil.copy(HERE / "client.mjs", BUILT / "client.mjs")
    return BUILT / "client.mjs"


async def test_sends_streams_is_cut_and_goes_on(tmp_path: Path, installed: Path) -> None:
    (tmp_path / "fleet.proto").write_text(FleetProto(warehouse, None).text("lock"), encoding="utf-8")
    async with warehouse_served(tmp_path) as urls, Cable(urls["grpc"]) as cable, asyncio.timeout(WAIT_S_MAX):
        client = await asyncio.create_subprocess_exec(
            "node",
            str(installed),
            f"127.0.0.1:{cable.port}",
            str(tmp_path / "fleet.proto"),
            str(COUNT),
            stdout=asyncio.subprocess.PIPE,
        )
        assert client.stdout is not None
        cuts, line = 0, b""
        async for line in client.stdout:
            if line.strip().isdigit() and int(line) >= (cuts + 1) * COUNT // (CUTS + 1) and cuts < CUTS:
                cuts += 1
                cable.cut()
        assert await client.wait() == 0
    found = json.loads(line)
    assert found["heard"] == [str(number) for number in range(COUNT)]
    assert found["refused"] == "no track leads there"
    assert found["again"] == found["positions"][0], "the same id, the same answer"
    assert found["positions"] == sorted(found["positions"])
    assert (found["drives"], found["at"]) == (COUNT, str(COUNT - 1)), "each was done once"
    assert found["broken"] >= CUTS
