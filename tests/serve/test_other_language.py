"""A client in TypeScript, type-checked by the .proto file alone: sends, streams, is cut, goes on without a gap."""

import asyncio
import fcntl
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from stigmergy.proto.service import FleetProto
from tests.clients.cable import Cable
from tests.clients.rig import WAIT_S_MAX, warehouse, warehouse_served

HERE = Path(__file__).resolve().parent / "node_client"
BUILT = Path(__file__).resolve().parents[2] / "build" / "node_client"
FILES = ("package.json", "package-lock.json", "client.ts")
PROTO = FleetProto(warehouse, None).text("lock")
TYPES = ("--keepCase", "--longs=Number", "--oneofs", "--defaults", "--importFileExtension=.js", "--outDir=proto")
BUILD = (
    ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"),
    ("node_modules/.bin/proto-loader-gen-types", "--grpcLib=@grpc/grpc-js", *TYPES, "fleet.proto"),
    ("node_modules/.bin/tsc", "--strict", "--module", "nodenext", "--target", "es2022", "--skipLibCheck", "client.ts"),
)
COUNT, CUTS = 60, 3


@pytest.fixture(scope="module")
def built(node: str) -> Path:
    """The client with its libraries, hash-locked, and with types from the .proto file; checked once for all runs."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with open(BUILT / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made_from = b"".join((HERE / name).read_bytes() for name in FILES) + PROTO.encode()
        kept = BUILT / ".built"
        if not kept.exists() or kept.read_bytes() != made_from:
            for name in FILES:
                shutil.copy(HERE / name, BUILT / name)
            (BUILT / "fleet.proto").write_text(PROTO, encoding="utf-8")
            shutil.rmtree(BUILT / "proto", ignore_errors=True)
            for command in BUILD:
                done = subprocess.run(command, cwd=BUILT, timeout=600, capture_output=True, text=True, check=False)
                assert done.returncode == 0, f"{' '.join(command)}: {done.stdout} {done.stderr}"
            kept.write_bytes(made_from)
    return BUILT / "client.js"


async def test_sends_streams_is_cut_and_goes_on(tmp_path: Path, built: Path, node: str) -> None:
    async with warehouse_served(tmp_path) as urls, Cable(urls["grpc"]) as cable, asyncio.timeout(WAIT_S_MAX):
        client = await asyncio.create_subprocess_exec(
            node,
            str(built),
            f"127.0.0.1:{cable.port}",
            str(BUILT / "fleet.proto"),
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
