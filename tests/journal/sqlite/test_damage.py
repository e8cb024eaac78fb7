"""Scorecard row 4 at the journal: damage at sampled places is noticed, and a torn tail is not taken for damage."""

import random

import apsw
import pytest

from rigs.damage_trial import DATABASE, MARK, WAL, Image, Outcome, Victim, examine, flip, make_victim
from stigmergy.journal.sqlite.wal import FRAME_HEADER_BYTES, HEADER_BYTES, Wal, checksum, rewind
from stigmergy.sim.disk import SimDisk

SAMPLES = 75


@pytest.fixture(scope="module")
def victim() -> Victim:
    return make_victim(1)


def wal_of(content: bytes) -> Wal:
    return Wal(lambda offset, size: content[offset : offset + size], len(content))


def frames_that_sqlite_accepts(image: Image) -> int:
    disk = SimDisk(random.Random(0))
    for path, content in image.items():
        disk.put(path, content)
    connection = apsw.Connection(DATABASE, vfs=disk.vfs)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.pragma("locking_mode", "EXCLUSIVE")
    connection.execute("SELECT count(*) FROM identity").fetchall()
    frames, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    connection.close()
    disk.close()
    return frames


def test_undamaged_journal_is_intact(victim: Victim) -> None:
    assert examine(victim, victim.image) is Outcome.INTACT


@pytest.mark.parametrize("path", [DATABASE, WAL, MARK])
def test_flipped_bit_is_noticed_or_harmless(victim: Victim, path: str) -> None:
    chance = random.Random(path)
    for _ in range(SAMPLES):
        offset, bit = chance.randrange(len(victim.image[path])), chance.randrange(8)
        outcome = examine(victim, flip(victim.image, path, offset, bit))
        assert outcome in (Outcome.INTACT, Outcome.REFUSED), f"{path}, byte {offset}, bit {bit}: {outcome.value}"


def test_every_byte_of_the_headers_of_the_wal_counts(victim: Victim) -> None:
    frames = frames_that_sqlite_accepts(victim.image)
    frame_bytes = wal_of(victim.image[WAL]).frame_bytes
    offsets = list(range(HEADER_BYTES))
    for frame in range(frames):
        offsets += range(HEADER_BYTES + frame * frame_bytes, HEADER_BYTES + frame * frame_bytes + FRAME_HEADER_BYTES, 3)
    for offset in offsets:
        outcome = examine(victim, flip(victim.image, WAL, offset, offset % 8))
        assert outcome is Outcome.REFUSED, f"byte {offset}: {outcome.value}"


def test_without_the_mark_only_damage_to_the_last_transaction_is_overlooked(victim: Victim) -> None:
    image = {path: content for path, content in victim.image.items() if path != MARK}
    chance = random.Random(2)
    for _ in range(SAMPLES):
        offset, bit = chance.randrange(len(image[WAL])), chance.randrange(8)
        assert examine(victim, flip(image, WAL, offset, bit)) is not Outcome.WRONG, f"byte {offset}, bit {bit}"


def test_without_the_mark_damage_between_transactions_that_are_whole_is_refused() -> None:
    """SQLite accepts what lies before it, so that the rest would be missing without a word."""
    victim = make_victim(6, last_bytes=200)
    image = {path: content for path, content in victim.image.items() if path != MARK}
    wal = wal_of(image[WAL])
    frames = frames_that_sqlite_accepts(image)
    commits = [frame for frame in range(1, frames + 1) if wal.header(frame).database_pages]
    assert len(commits) == 4
    first, last = (HEADER_BYTES + commits[place] * wal.frame_bytes for place in (0, -2))
    for offset in range(first, last, 199):
        damaged = flip(image, WAL, offset, offset % 8)
        assert frames_that_sqlite_accepts(damaged) > 0
        assert examine(victim, damaged) is Outcome.REFUSED, f"byte {offset}"


def test_cut_or_missing_wal_is_refused(victim: Victim) -> None:
    wal = wal_of(victim.image[WAL])
    frames = frames_that_sqlite_accepts(victim.image)
    for frame in range(frames):
        cut = victim.image[WAL][: HEADER_BYTES + frame * wal.frame_bytes]
        assert examine(victim, {**victim.image, WAL: cut}) is Outcome.REFUSED
    without = {path: content for path, content in victim.image.items() if path != WAL}
    assert examine(victim, without) is Outcome.REFUSED


def test_clobbered_sectors_are_noticed_or_harmless(victim: Victim) -> None:
    chance = random.Random(3)
    for path in (DATABASE, WAL):
        for _ in range(SAMPLES // 3):
            start = chance.randrange(0, len(victim.image[path]), 512)
            content = bytearray(victim.image[path])
            content[start : start + 512] = chance.choice((bytes(512), chance.randbytes(512)))[: len(content) - start]
            outcome = examine(victim, {**victim.image, path: bytes(content)})
            assert outcome in (Outcome.INTACT, Outcome.REFUSED), f"{path}, sector at {start}: {outcome.value}"


def test_torn_tail_is_accepted_whichever_of_its_sectors_are_there() -> None:
    """The last transaction was never acknowledged here: the mark does not speak of it."""
    victim = make_victim(4, groups_at_the_end=1)
    image = {path: content for path, content in victim.image.items() if path != MARK}
    wal = wal_of(image[WAL])
    frames = frames_that_sqlite_accepts(image)
    begin = HEADER_BYTES + last_transaction_begins_behind(wal, frames) * wal.frame_bytes
    end = HEADER_BYTES + frames * wal.frame_bytes
    chance = random.Random(4)
    for _ in range(SAMPLES):
        content = bytearray(image[WAL])
        for start in range(begin, end, 512):
            if chance.random() < 0.3:
                content[start : min(start + 512, end)] = bytes(min(start + 512, end) - start)
        assert examine(victim, {**image, WAL: bytes(content)}) in (Outcome.SHORTENED, Outcome.INTACT)


def last_transaction_begins_behind(wal: Wal, frames: int) -> int:
    commits = [frame for frame in range(1, frames + 1) if wal.header(frame).database_pages]
    return commits[-2] if len(commits) > 1 else 0


def test_scan_ends_a_wal_where_sqlite_does(victim: Victim) -> None:
    chance = random.Random(5)
    for _ in range(40):
        image = flip(victim.image, WAL, chance.randrange(HEADER_BYTES, len(victim.image[WAL])), chance.randrange(8))
        assert wal_of(image[WAL]).valid_frames() == frames_that_sqlite_accepts(image)


def test_wal_of_a_big_endian_machine_is_understood(victim: Victim) -> None:
    content = as_big_endian(victim.image[WAL])
    image = {**victim.image, WAL: content}
    assert frames_that_sqlite_accepts(image) == frames_that_sqlite_accepts(victim.image)
    assert examine(victim, image) is Outcome.INTACT
    frame_bytes = wal_of(content).frame_bytes
    for offset in (0, 20, HEADER_BYTES, HEADER_BYTES + 7, HEADER_BYTES + 20, HEADER_BYTES + 500, frame_bytes + 500):
        for bit in range(8):
            assert examine(victim, flip(image, WAL, offset, bit)) is Outcome.REFUSED


def as_big_endian(content: bytes) -> bytes:
    """The same WAL with checksums as a big-endian machine computes them."""
    wal = wal_of(content)
    head = bytearray(content[:24])
    head[3] |= 1
    running = checksum((0, 0), bytes(head), big_endian=True)
    result = bytearray(head + running[0].to_bytes(4, "big") + running[1].to_bytes(4, "big"))
    for frame in range(wal.frames):
        at = HEADER_BYTES + frame * wal.frame_bytes
        data = bytearray(content[at : at + wal.frame_bytes])
        running = checksum(running, bytes(data[:8] + data[FRAME_HEADER_BYTES:]), big_endian=True)
        data[16:24] = running[0].to_bytes(4, "big") + running[1].to_bytes(4, "big")
        result += data
    return bytes(result)


def test_commit_frame_whose_size_was_wiped_is_still_known_as_one(victim: Victim) -> None:
    """One flipped bit can turn a small size into zero, and two transactions then look like one that is torn."""
    image = {path: content for path, content in victim.image.items() if path != MARK}
    wal = wal_of(image[WAL])
    frames = frames_that_sqlite_accepts(image)
    frame = last_transaction_begins_behind(wal, frames)
    assert frame > 0
    content = bytearray(image[WAL])
    at = HEADER_BYTES + (frame - 1) * wal.frame_bytes
    content[at + 4 : at + 8] = bytes(4)
    assert examine(victim, {**image, WAL: bytes(content)}) is Outcome.REFUSED


@pytest.mark.parametrize("big_endian", [False, True])
def test_checksum_can_be_run_backwards(big_endian: bool) -> None:
    chance = random.Random(6)
    seed = (chance.getrandbits(32), chance.getrandbits(32))
    data = chance.randbytes(800)
    assert rewind(checksum(seed, data, big_endian), data, big_endian) == seed
