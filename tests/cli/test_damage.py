"""A journal in segments with compiled data, damaged on a real disk: what the command line says, and what starts."""

import asyncio
import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stigmergy.columns import Batcher
from stigmergy.journal.segments.frames import HEADER_BYTES, SegmentFrame, SegmentFrameKind, read_frame
from stigmergy.journal.segments.opener import inspect_journal
from tests.cli.conftest import Folder
from tests.cli.in_process import Here
from tests.cli.test_compile import COUNTER

JOURNAL = ("--journal", "segments:counting")
NAMES = [f"c-{number}" for number in range(50)]
BATCHES = 4
RECORDS = 10_000


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fleet whose node took some large batches, each a frame of its own."""
    path = tmp_path_factory.mktemp("counting")
    (path / "counter.py").write_text(COUNTER, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("counter_to_damage", path / "counter.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    asyncio.run(work(module, path))
    return path


async def work(module: Any, path: Path) -> None:
    async with module.fleet.running(journal=f"segments:{path / 'counting'}", key=path / "counting.key") as live:
        batcher = Batcher(await live.enroll("Counter", NAMES), source="radio")
        for _ in range(BATCHES):
            batcher.add("Counted", NAMES * (RECORDS // len(NAMES)), amount=1.0)
            for batch in batcher.take():
                await live.deliver(batch)


@pytest.fixture
def damaged(original: Path, tmp_path: Path) -> Iterator[Folder]:
    """A copy of it, to be damaged."""
    shutil.copytree(original, tmp_path / "copy")
    folder = Here(tmp_path / "copy")
    yield folder
    folder.close()


def frames(folder: Folder, segment: int = -1) -> tuple[Path, list[tuple[int, SegmentFrame]]]:
    """A segment, the last if none is given, and its frames with their places."""
    opened = inspect_journal(f"segments:{folder.path / 'counting'}")
    key = opened._key
    asyncio.run(opened.close())
    path = sorted((folder.path / "counting").glob("*.log"))[segment]
    data, offset, found = path.read_bytes(), 0, []
    while (frame := read_frame(key, data, offset)) is not None:
        found.append((offset, frame))
        offset += frame.size_bytes
    return path, found


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def total(folder: Folder) -> float:
    state = folder.json("state", "Counter/c-7", "--fleet", "counter:fleet", *JOURNAL)
    return float(state["state"]["total"])


def test_a_flipped_bit_in_the_middle_is_named_and_nothing_starts(damaged: Folder) -> None:
    path, found = frames(damaged)
    large = [(offset, frame) for offset, frame in found if frame.kind is SegmentFrameKind.BLOCKS]
    assert len(large) > 1
    offset, frame = large[0]
    flip(path, offset + HEADER_BYTES + len(frame.payload) // 2)
    for command in (("log", "verify"), ("run", "counter:fleet"), ("state", "Counter/c-7", "--fleet", "counter:fleet")):
        said = damaged.error(*command, *JOURNAL, code=4)
        assert f"{path.name} is damaged at byte {offset}, and commits follow" in said
        assert "restore the journal from a copy" in said


def test_a_flipped_bit_in_a_segment_that_is_full_is_found_by_whoever_reads_it(damaged: Folder) -> None:
    path, found = frames(damaged, 0)
    offset, frame = next((offset, frame) for offset, frame in found if frame.kind is SegmentFrameKind.BLOCKS)
    flip(path, offset + HEADER_BYTES + len(frame.payload) - 3)
    said = damaged.error("replay", "counter:fleet", *JOURNAL, code=4)
    assert f"{path.name}: position 2 of shard 0 is missing, or damage lies before it" in said
    assert "restore the journal from a copy" in said
    verified = damaged.cli("log", "verify", *JOURNAL)
    assert verified.returncode == 1
    assert "the log is not what was written; restore a copy" in verified.stderr
    assert f"{path.name}: position 2 of shard 0 is missing" in " ".join((verified.stdout + verified.stderr).split())


def test_a_torn_end_is_no_damage(damaged: Folder) -> None:
    """What a loss of power leaves of a frame that was being written: nobody was told that it is durable."""
    path, found = frames(damaged)
    offset, frame = found[-1]
    data = path.read_bytes()
    end = offset + frame.size_bytes
    large = next(data[at : at + one.size_bytes] for at, one in found if one.kind is SegmentFrameKind.BLOCKS)
    path.write_bytes(data[:end] + large[: len(large) // 2] + data[end + len(large) // 2 :])
    assert damaged.start("counter:fleet", *JOURNAL).end()[0] == 0
    assert damaged.json("log", "verify", *JOURNAL)["sound"] is True
    assert total(damaged) == BATCHES * RECORDS / len(NAMES)


def test_an_end_that_was_acknowledged_and_is_gone_is_missed(damaged: Folder) -> None:
    """The mark of a process that was killed knows how far it had come."""
    path, found = frames(damaged)
    path.write_bytes(path.read_bytes()[: found[-1][0]])
    for command in (("log", "verify"), ("run", "counter:fleet")):
        said = damaged.error(*command, *JOURNAL, code=4)
        assert "was acknowledged up to" in said
        assert "restore the journal from a copy" in said


def test_a_damaged_snapshot_costs_a_replay(damaged: Folder) -> None:
    snapshots = sorted((damaged.path / "counting").glob("snapshot-*"))
    assert snapshots
    for one in snapshots:
        flip(one, one.stat().st_size // 2)
    assert damaged.start("counter:fleet", *JOURNAL).end()[0] == 0
    assert total(damaged) == BATCHES * RECORDS / len(NAMES)
