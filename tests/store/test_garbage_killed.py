"""A collection of garbage in a process of its own, killed with SIGKILL while it deletes, again and again."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from stigmergy.agents.messages import Blob
from stigmergy.base.system import SystemClock, SystemThreads
from stigmergy.store.blobs import MANIFESTS, PIECES, Blobs, BlobSettings
from stigmergy.store.folder import open_store
from stigmergy.store.port import Objects

KEPT, LOST, KILLS = 5, 60, 2
WITHIN_S = 240.0
CHILD = """
import asyncio, sys
from pathlib import Path
from stigmergy.base.system import SystemClock
from stigmergy.store.garbage import collect, tell_references
from tests.store.test_garbage_killed import KEPT, opened

async def main():
    objects, blobs = await opened(Path(sys.argv[1]), 2.0)
    kept = [bytes.fromhex(text) for text in sys.argv[2].split(",")]
    while True:
        await tell_references(objects, "a", SystemClock().wall_ns(), kept)
        found = await collect(blobs)
        if found.blobs == KEPT and not found.pieces_deleted and not found.deleted:
            return
        await asyncio.sleep(0.05)

asyncio.run(main())
"""


async def opened(folder: Path, grace_s: float) -> tuple[Objects, Blobs]:
    """The bucket in a folder, and its blobs. Who collects has a short grace period; who puts must be done in half."""
    objects = await (await open_store(f"folder:{folder}", SystemClock())).objects("b")

    async def opening() -> Objects:
        return objects

    settings = BlobSettings(grace_s=grace_s)
    return objects, Blobs("here", opening, opening, SystemClock(), SystemThreads(), settings)


def collecting(folder: Path, kept: list[Blob]) -> "subprocess.Popen[bytes]":
    names = ",".join(blob.hex for blob in kept)
    return subprocess.Popen([sys.executable, "-c", CHILD, str(folder), names], cwd=Path(__file__).parents[2])


async def test_killed_while_it_deletes_it_loses_nothing_that_is_referred_to(tmp_path: Path) -> None:
    objects, blobs = await opened(tmp_path, WITHIN_S)
    kept = [await blobs.put(b"kept %d" % number) for number in range(KEPT)]
    for number in range(LOST):
        await blobs.put(b"lost %d" % number)
    left, in_the_middle = KEPT + LOST, 0
    for _ in range(KILLS):
        child = collecting(tmp_path, kept)
        deadline = time.monotonic() + WITHIN_S
        while child.poll() is None and len(await objects.names(MANIFESTS)) == left:
            assert time.monotonic() < deadline, "nothing is deleted"
            await asyncio.sleep(0.001)
        child.kill()
        child.wait()
        now_left = len(await objects.names(MANIFESTS))
        in_the_middle += KEPT < now_left < left
        left = now_left
        assert [await blobs.fetch(blob) for blob in kept] == [b"kept %d" % number for number in range(KEPT)]
        if left == KEPT:
            break
    assert in_the_middle, "it was killed while it deleted"
    child = collecting(tmp_path, kept)
    assert await asyncio.to_thread(child.wait, WITHIN_S) == 0
    assert len(await objects.names(MANIFESTS)) == len(await objects.names(PIECES)) == KEPT
    assert [await blobs.fetch(blob) for blob in kept] == [b"kept %d" % number for number in range(KEPT)]
