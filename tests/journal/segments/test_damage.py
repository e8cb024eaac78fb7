"""Scorecard row 4 at the journal in segments: damage anywhere is noticed, and a torn end is not taken for damage."""

import itertools
import random

import pytest

from rigs.damage_trial import Image, Outcome, Victim, examine, flip, make_victim
from rigs.journal_trial import open_segments
from stigmergy.journal.segments.frames import HEADER_BYTES, SegmentFrameKind, frames_anywhere, read_frame, size_ahead

SAMPLES = 75
KEY = bytes(32)
MARK = "fleet-mark"
FINE = (Outcome.INTACT, Outcome.REFUSED)


@pytest.fixture(scope="module")
def victim() -> Victim:
    """With several segments, a snapshot, commits that were kept of segments that have gone, and a recycled spare."""
    for seed in range(200):
        victim = make_victim(seed, steps=120, open_on=open_segments)
        names = sorted(victim.image)
        if len(logs(victim.image)) >= 3 and "fleet/kept" in names and "fleet/spare" in names and snapshots(names):
            return victim
    raise AssertionError("no seed makes such a journal")


def logs(image: Image) -> list[str]:
    return sorted(path for path in image if path.endswith(".log"))


def snapshots(names: list[str]) -> list[str]:
    return [name for name in names if "snapshot-" in name]


def ends(content: bytes) -> list[int]:
    """Where the frames of a segment end, as far as they follow each other."""
    found, offset, number = [], 0, None
    while (frame := read_frame(KEY, content, offset)) is not None and number in (None, frame.number):
        offset += frame.size_bytes
        number = frame.number + 1
        found.append(offset)
    return found


def may_be(victim: Victim, path: str) -> tuple[Outcome, ...]:
    """In an older segment there may be frames, at its end, of which all was dropped since."""
    return (Outcome.REFUSED,) if path == logs(victim.image)[-1] else FINE


def without(image: Image, *paths: str) -> Image:
    return {path: content for path, content in image.items() if path not in paths}


def test_undamaged_journal_is_intact(victim: Victim) -> None:
    assert examine(victim, victim.image) is Outcome.INTACT


def test_flipped_bit_is_noticed_or_harmless(victim: Victim) -> None:
    chance = random.Random(1)
    for path in sorted(victim.image):
        for _ in range(SAMPLES if path == logs(victim.image)[-1] else SAMPLES // 8):
            offset, bit = chance.randrange(len(victim.image[path])), chance.randrange(8)
            outcome = examine(victim, flip(victim.image, path, offset, bit))
            assert outcome in FINE, f"{path}, byte {offset}, bit {bit}: {outcome.value}"


HEADER_STEP = 12
"""proofs/flips.py flips any bit."""


def test_every_byte_of_every_header_counts(victim: Victim) -> None:
    for path in logs(victim.image):
        content = victim.image[path]
        for begin in [0, *ends(content)[:-1]][-4:]:
            for offset in range(begin, begin + HEADER_BYTES, HEADER_STEP):
                outcome = examine(victim, flip(victim.image, path, offset, offset % 8))
                assert outcome in may_be(victim, path), f"{path}, byte {offset}: {outcome.value}"


@pytest.mark.parametrize("path", ["fleet/identity", "fleet/kept"])
def test_every_byte_of_what_is_nowhere_else_counts(victim: Victim, path: str) -> None:
    size_bytes = len(victim.image[path])
    frame = read_frame(KEY, victim.image[path])
    padding = 8 if frame is None else frame.size_bytes - HEADER_BYTES - len(frame.payload)
    for offset in range(0, size_bytes - padding, max(1, size_bytes // 200)):
        assert examine(victim, flip(victim.image, path, offset, offset % 8)) is Outcome.REFUSED, f"byte {offset}"


def test_without_the_mark_only_damage_to_the_last_frame_is_overlooked(victim: Victim) -> None:
    image, chance = without(victim.image, MARK), random.Random(2)
    for _ in range(SAMPLES):
        path = chance.choice(logs(image))
        offset, bit = chance.randrange(len(image[path])), chance.randrange(8)
        assert examine(victim, flip(image, path, offset, bit)) is not Outcome.WRONG, f"{path}, byte {offset}, bit {bit}"


def test_cut_segment_is_refused(victim: Victim) -> None:
    for path in logs(victim.image):
        content = victim.image[path]
        cuts = [0, 1, HEADER_BYTES, *ends(content)[:-1], *(end - 9 for end in ends(content))]
        for cut in cuts:
            outcome = examine(victim, {**victim.image, path: content[:cut]})
            assert outcome in may_be(victim, path), f"{path} cut to {cut}: {outcome.value}"


def test_missing_segment_is_refused(victim: Victim) -> None:
    for path in logs(victim.image):
        assert examine(victim, without(victim.image, path)) is Outcome.REFUSED, path
    assert examine(victim, without(victim.image, *logs(victim.image))) is Outcome.REFUSED


def test_missing_beginning_is_refused_without_the_mark_too(victim: Victim) -> None:
    first, *_, last = logs(victim.image)
    for gone in ([first], ["fleet/kept"], logs(victim.image)[:-1], ["fleet/kept", first]):
        assert examine(victim, without(victim.image, MARK, *gone)) is Outcome.REFUSED, gone
    # All segments but the last, and that one torn at its head: it must not pass for a journal that was never begun.
    torn = {**without(victim.image, MARK, "fleet/kept", *logs(victim.image)[:-1]), last: bytes(4096)}
    assert examine(victim, torn) is Outcome.REFUSED


def test_swapped_copied_and_foreign_segments_are_refused(victim: Victim) -> None:
    stranger = make_victim(991, steps=120, open_on=open_segments)
    paths = logs(victim.image)
    for first, second in itertools.pairwise(paths):
        swapped = {**victim.image, first: victim.image[second], second: victim.image[first]}
        assert examine(victim, swapped) is Outcome.REFUSED
        assert examine(victim, {**victim.image, second: victim.image[first]}) is Outcome.REFUSED
    for path in paths:
        foreign = {**victim.image, path: stranger.image[logs(stranger.image)[0]]}
        assert examine(victim, foreign) is Outcome.REFUSED, path


def test_segment_behind_the_last_one_that_is_not_the_next_is_refused(victim: Victim) -> None:
    number = int(logs(victim.image)[-1].removeprefix("fleet/").removesuffix(".log"))
    for skip, outcome in ((2, Outcome.REFUSED), (1, Outcome.INTACT)):
        image = {**victim.image, f"fleet/{number + skip:016d}.log": bytes(500)}
        assert examine(victim, image) is outcome


def test_whatever_lies_in_the_spare_is_harmless(victim: Victim) -> None:
    last = victim.image[logs(victim.image)[-1]]
    for spare in (b"", b"x", last, random.Random(3).randbytes(20_000), victim.image["fleet/kept"] * 20):
        assert examine(victim, {**victim.image, "fleet/spare": spare}) is Outcome.INTACT


def test_clobbered_sectors_are_noticed_or_harmless(victim: Victim) -> None:
    chance = random.Random(4)
    for path in sorted(victim.image):
        for _ in range(SAMPLES // 15):
            start = chance.randrange(0, len(victim.image[path]), 512)
            content = bytearray(victim.image[path])
            content[start : start + 512] = chance.choice((bytes(512), chance.randbytes(512)))[: len(content) - start]
            outcome = examine(victim, {**victim.image, path: bytes(content)})
            assert outcome in FINE, f"{path}, sector at {start}: {outcome.value}"


def test_torn_end_is_accepted_whichever_of_its_sectors_are_there() -> None:
    """The last frame was never acknowledged here: the mark does not speak of it."""
    victim = make_victim(4, groups_at_the_end=1, open_on=open_segments)
    image, chance = without(victim.image, MARK), random.Random(5)
    path = logs(image)[-1]
    found = ends(image[path])
    begin, end = (found[-2] if len(found) > 1 else 0), found[-1]
    for _ in range(SAMPLES):
        content = bytearray(image[path])
        for start in range(begin - begin % 512, end, 512):
            if chance.random() < 0.3:
                first, last = max(start, begin), min(start + 512, end)
                content[first:last] = bytes(last - first)
        assert examine(victim, {**image, path: bytes(content)}) in (Outcome.SHORTENED, Outcome.INTACT)


def test_header_that_promises_much_makes_nobody_read_it(victim: Victim) -> None:
    """A length that was flipped, or that a sender has put into a payload, is not believed."""
    path = logs(victim.image)[-1]
    content = victim.image[path]
    for bit in range(8):
        assert size_ahead(KEY, flip({path: content}, path, 11, bit)[path]) == 0
    fake = b"".join(
        b"STGF" + bytes([SegmentFrameKind.GROUP, 0, 0, 0]) + b"\xff\xff\x0f\x00" + bytes(28) for _ in range(100_000)
    )
    assert list(frames_anywhere(KEY, fake)) == []
