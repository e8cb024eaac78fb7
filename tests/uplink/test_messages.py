"""What an uplink and its receiver say: read as it was written, bounded, and refused if it is wrong."""

import contextlib
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.agents.codec import MESSAGE_BYTES_MAX
from stigmergy.base.errors import Malformed, PeerError, TooLarge
from stigmergy.uplink import messages as uplink_messages
from stigmergy.uplink.messages import Batch, Inquiry, Told, UplinkMark, read_told, read_up, write_message

NUMBERS = st.integers(0, 2**62 - 1)
BODIES = st.binary(max_size=300)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    numbers = sorted(draw(st.sets(st.integers(1, 2**62 - 1), min_size=2, max_size=6)))
    items = [(number, draw(st.text(max_size=20)), draw(BODIES)) for number in numbers[1:]]
    shard, incarnation, epoch = draw(st.integers(0, 4095)), draw(NUMBERS), draw(NUMBERS)
    return Batch(shard, incarnation, epoch, numbers[0], numbers[-1], items, "", draw(st.binary(max_size=8)))


@given(batches() | st.builds(Inquiry, st.text(max_size=200)))
def test_what_goes_up_reads_as_it_was_written(message: Batch | Inquiry) -> None:
    assert read_up(write_message(message)) == message


@given(
    st.builds(
        Told,
        st.text(max_size=200),
        st.text(max_size=50),
        st.text(max_size=50),
        st.lists(st.builds(UplinkMark, st.integers(0, 4095), NUMBERS, NUMBERS, NUMBERS, st.binary(max_size=8))),
        st.text(max_size=500),
    )
)
def test_what_is_told_reads_as_it_was_written(told: Told) -> None:
    assert read_told(write_message(told)) == told


def test_what_repeats_itself_becomes_smaller_and_what_does_not_stays() -> None:
    items = [(number, "Drone/1", b"the same again and again") for number in range(2, 100)]
    batch = Batch(0, 1, 1, 1, 100, items)
    assert len(write_message(batch)) < 600
    assert read_up(write_message(batch)) == batch
    noise = bytes(zlib.crc32(bytes([number])) % 251 for number in range(250))
    assert write_message(Batch(0, 1, 1, 1, 2, [(2, "", noise)]))[:1] == uplink_messages.PLAIN


def plain(message: object) -> bytes:
    return uplink_messages.PLAIN + msgspec.msgpack.encode(message)


WRONG = [
    (b"", Malformed),
    (b"\x03rest", Malformed),
    (b"\x01\xff", Malformed),
    (b"\x02no zlib", Malformed),
    (b"\x02" + zlib.compress(b"x" * 300)[:-3], Malformed),
    (b"\x02" + zlib.compress(b"x" * 300) + b"more", Malformed),
    (b"\x02" + zlib.compress(bytes(uplink_messages.OPENED_BYTES_MAX + 1)), TooLarge),
    (b"\x01" + bytes(uplink_messages.OPENED_BYTES_MAX + 1), TooLarge),
    (plain(["other", 1]), Malformed),
    (plain(Inquiry("x" * 201)), TooLarge),
    (plain(Batch(4096, 1, 1, 1, 2, [])), Malformed),
    (plain(Batch(-1, 1, 1, 1, 2, [])), Malformed),
    (plain(Batch(0, 1, 1, 1, 2**62, [])), Malformed),
    (plain(Batch(0, 1, -1, 1, 2, [])), Malformed),
    (plain(Batch(0, 1, 1, 2, 2, [])), Malformed),
    (plain(Batch(0, 1, 1, 1, 9, [(5, "", b""), (5, "", b"")])), Malformed),
    (plain(Batch(0, 1, 1, 1, 9, [(1, "", b"")])), Malformed),
    (plain(Batch(0, 1, 1, 1, 9, [(10, "", b"")])), Malformed),
    (plain(Batch(0, 1, 1, 1, 9, [(5, "", b"")], "lost")), Malformed),
    (plain(Batch(0, 1, 1, 1, 9, [], "x" * 501)), Malformed),
    (plain(Batch(0, 1, 1, 1, 9, [], "", bytes(9))), TooLarge),
    (plain(Batch(0, 1, 1, 1, 9, [(5, "", bytes(MESSAGE_BYTES_MAX + 1))])), TooLarge),
    (plain(Batch(0, 1, 1, 1, 2**40, [(number, "", b"") for number in range(2, 10_003)])), TooLarge),
]


@pytest.mark.parametrize(("data", "error"), WRONG)
def test_what_goes_up_wrongly_is_refused(data: bytes, error: type[PeerError]) -> None:
    with pytest.raises(error):
        read_up(data)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\x01\xff", Malformed),
        (plain(Told("x" * 201, "", "", [])), TooLarge),
        (plain(Told("", "", "", [], "x" * 501)), TooLarge),
        (plain(Told("", "", "", [UplinkMark(0, 1, 1, -1)])), Malformed),
        (plain(Told("", "", "", [UplinkMark(0, 1, 1, 1)] * 10_001)), TooLarge),
    ],
)
def test_what_is_told_wrongly_is_refused(data: bytes, error: type[PeerError]) -> None:
    with pytest.raises(error):
        read_told(data)


@given(st.binary(max_size=200))
def test_anything_at_all_is_read_or_refused(data: bytes) -> None:
    for first in (b"", b"\x01", b"\x02"):
        for read in (read_up, read_told):
            with contextlib.suppress(PeerError):
                read(first + data)
