"""A collection of garbage in a process of its own, killed with SIGKILL while it deletes, again and again."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from stigmergy.agents.messages import Blob
from stigmergy.base.system import SystemClock, SystemThreads
from stigmergy.store.blobs import MANIFESTS, PIECES, Blobs, BlobSettings
from stigmergy.store.folder import open_store
from stigmergy.store.port import Objects

KEPT, LOST = 5, 60
KILLED_AT = (2, 12)
"""A collection is killed when it has begun so many deletions, or in one of the next ones."""
STEPS = 15
WITHIN_S = 240.0
CHILD = """
import asyncio, os, random, signal, sys, threading, time
from pathlib import Path
from stigmergy.base.system import SystemClock
from stigmergy.store import garbage
from stigmergy.store.garbage import collect, tell_references
from tests.store.test_garbage_killed import KEPT, STEPS, opened

delete, begun, killed_at = garbage._delete_old, 0, int(sys.argv[3])

def end(pause_s):
    time.sleep(pause_s)
    os.kill(os.getpid(), signal.SIGKILL)

async def count_and_delete(*arguments):
    global begun
    begun += 1
    if begun == killed_at:
        threading.Thread(target=end, args=(random.uniform(0, 0.003),), daemon=True).start()
    elif begun == killed_at + STEPS:
        end(0)  # at the latest: some must be left
    return await delete(*arguments)

if killed_at:
    garbage._delete_old = count_and_delete

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


def collecting(folder: Path, kept: list[Blob], *, killed_at: int = 0) -> "subprocess.Popen[bytes]":
    """A collection. It is killed a moment after it has begun so many deletions; who looks from outside may be late."""
    names = ",".join(blob.hex for blob in kept)
    command = [sys.executable, "-c", CHILD, str(folder), names, str(killed_at)]
    return subprocess.Popen(command, cwd=Path(__file__).parents[2])


async def test_killed_while_it_deletes_it_loses_nothing_that_is_referred_to(tmp_path: Path) -> None:
    objects, blobs = await opened(tmp_path, WITHIN_S)
    kept = [await blobs.put(b"kept %d" % number) for number in range(KEPT)]
    for number in range(LOST):
        await blobs.put(b"lost %d" % number)
    left = KEPT + LOST
    for killed_at in KILLED_AT:
        child = collecting(tmp_path, kept, killed_at=killed_at)
        assert await asyncio.to_thread(child.wait, WITHIN_S) == -signal.SIGKILL
        now_left = len(await objects.names(MANIFESTS))
        assert KEPT < now_left < left, "it was killed while it deleted"
        left = now_left
        assert [await blobs.fetch(blob) for blob in kept] == [b"kept %d" % number for number in range(KEPT)]
    child = collecting(tmp_path, kept)
    assert await asyncio.to_thread(child.wait, WITHIN_S) == 0
    assert len(await objects.names(MANIFESTS)) == len(await objects.names(PIECES)) == KEPT
    assert [await blobs.fetch(blob) for blob in kept] == [b"kept %d" % number for number in range(KEPT)]
