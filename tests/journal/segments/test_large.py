"""Scorecard rows 2 to 4 at the journal in segments for large groups: frames of hundreds of KiB, in whole blocks."""

import random
from pathlib import Path

import pytest

from rigs.damage_trial import Outcome, Victim, examine, flip, make_victim
from rigs.journal_trial import LARGE, open_segments, try_fault_at, try_power_loss
from stigmergy.journal.segments.folder import OsFile
from stigmergy.journal.segments.frames import (
    BLOCK_BYTES,
    HEADER_BYTES,
    INDEX_LENGTH_BYTES,
    SegmentFrame,
    SegmentFrameKind,
    read_frame,
)
from stigmergy.sim.disk import Call, DiskFault, SimDisk, SimFile
from stigmergy.sim.loop import run
from stigmergy.testing.journal_contract import CommitChain

KEY = bytes(32)
SEEDS = 12
EVERY = 3
LAST_BYTES = 90_000


def test_power_loss_and_kill_lose_nothing_acknowledged() -> None:
    for seed in range(SEEDS):
        assert try_power_loss(seed, open_on=open_segments, sizes=LARGE) == []


def test_the_same_test_fails_on_a_disk_that_lies_about_sync() -> None:
    caught = sum(bool(try_power_loss(seed, sync_lies=True, open_on=open_segments, sizes=LARGE)) for seed in range(10))
    assert caught >= 8


@pytest.mark.parametrize("fault", DiskFault)
def test_fault_at_calls_in_turn(fault: DiskFault) -> None:
    """Proofs let every call fail; here it is one of so many, another one for each kind of fault."""
    call, reached = 1 + list(DiskFault).index(fault) % EVERY, True
    while reached:
        findings, reached = try_fault_at(call, fault, steps=20, open_on=open_segments, sizes=LARGE)
        assert findings == []
        call += EVERY
    assert call > 80


@pytest.mark.parametrize("fault", DiskFault)
def test_a_fault_while_room_is_reserved(fault: DiskFault) -> None:
    """Nobody waits for the spare: without it the next segment begins without one."""
    disk = SimDisk(random.Random(1))
    disk.fail_kind(Call.RESERVE, 1, fault)
    journal = open_segments(disk)
    chain = CommitChain()
    acknowledged: list[int] = []

    async def append() -> None:
        for number in range(4):
            await journal.append(chain.group([0], bytes(100_000)))
            acknowledged.append(number)
        await journal.close()

    if fault in (DiskFault.EIO, DiskFault.ENOSPC):
        run(append(), seed=1)
    else:
        with pytest.raises(Exception, match="half way"):
            run(append(), seed=1)
    assert disk.calls_by_kind[Call.RESERVE] >= 1
    disk.restart()
    kept = len(list(open_segments(disk).read(0)))
    disk.close()
    assert kept == len(acknowledged)
    assert (kept == 4) == (fault in (DiskFault.EIO, DiskFault.ENOSPC))


@pytest.fixture(scope="module")
def victim() -> Victim:
    return make_victim(3, steps=12, open_on=open_segments, sizes=LARGE, last_bytes=LAST_BYTES)


def large_frames(victim: Victim) -> list[tuple[str, int, SegmentFrame]]:
    """Path, offset and frame of every large group in the last segment."""
    path = max(name for name in victim.image if name.endswith(".log"))
    content, offset, found = victim.image[path], 0, []
    while (frame := read_frame(KEY, content, offset)) is not None:
        if frame.kind is SegmentFrameKind.BLOCKS:
            found.append((path, offset, frame))
        offset += frame.size_bytes
    return found


def test_a_flipped_bit_in_each_part_of_a_large_frame(victim: Victim) -> None:
    chance = random.Random(2)
    frames = large_frames(victim)
    assert frames
    for path, offset, frame in frames:
        index = INDEX_LENGTH_BYTES + int.from_bytes(frame.payload[:INDEX_LENGTH_BYTES], "little")
        body_end = HEADER_BYTES + len(frame.payload)
        parts = {
            "header": (0, HEADER_BYTES, 16),
            "index": (HEADER_BYTES, HEADER_BYTES + index, 24),
            "body": (HEADER_BYTES + index, body_end, 24),
        }
        for name, (begin, end, samples) in parts.items():
            for _ in range(samples):
                at, bit = offset + chance.randrange(begin, end), chance.randrange(8)
                outcome = examine(victim, flip(victim.image, path, at, bit))
                assert outcome is Outcome.REFUSED, f"{name}, byte {at}, bit {bit}: {outcome.value}"
        # Filling is nobody's: a bit of it may be what it likes.
        for at in range(offset + body_end, offset + frame.size_bytes, 997):
            assert examine(victim, flip(victim.image, path, at, 0)) is Outcome.INTACT


def test_a_large_frame_that_is_cut_short_or_torn_was_never_acknowledged(victim: Victim) -> None:
    path, offset, frame = large_frames(victim)[-1]
    content = victim.image[path]
    unmarked = {name: data for name, data in victim.image.items() if name != "fleet-mark"}
    for kept in (0, 1, HEADER_BYTES, BLOCK_BYTES, frame.size_bytes // 2, frame.size_bytes - BLOCK_BYTES):
        cut = {**unmarked, path: content[: offset + kept]}
        assert examine(victim, cut) is Outcome.SHORTENED
        zeros = bytes(frame.size_bytes - kept)
        torn = {**unmarked, path: content[: offset + kept] + zeros + content[offset + frame.size_bytes :]}
        assert examine(victim, torn) is Outcome.SHORTENED
        # The mark of a process that was killed, and not of a machine that lost its power, knows better.
        assert examine(victim, {**victim.image, path: cut[path]}) is Outcome.REFUSED


def test_a_group_of_more_pieces_than_a_system_writes_at_once(tmp_path: Path) -> None:
    """A group has a piece for every shard, and the system takes 1,024 of them in one call."""
    file = OsFile(str(tmp_path / "file"), create=True)
    pieces = [number.to_bytes(2, "little") * 50 for number in range(3_000)]
    file.write_pieces(8, pieces)
    assert file.read_at(8, 300_000) == b"".join(pieces)
    file.close()


def test_a_large_frame_goes_past_what_was_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserved room is no bound: a frame may end behind it, and a full disk then gives up the spare first."""
    reserved: list[int] = []
    reserve = SimFile.reserve

    def noted(file: SimFile, size: int) -> None:
        reserved.append(size)
        reserve(file, size)

    monkeypatch.setattr(SimFile, "reserve", noted)
    disk = SimDisk(random.Random(1))
    journal = open_segments(disk)
    chain = CommitChain()

    async def append() -> None:
        for _ in range(4):
            await journal.append(chain.group([0], bytes(200_000)))

    run(append(), seed=1)
    assert reserved
    assert max(reserved) < 200_000
    assert len(list(journal.read(0))) == 4
    disk.close()
