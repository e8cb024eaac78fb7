"""The bytes of tells between nodes: what is written is read again, and whatever else comes is refused in words."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.base.errors import Malformed, PeerError, TooLarge
from stigmergy.bus.tells import (
    FRAME_ITEMS_MAX,
    RECEIVED_BYTES_MAX,
    TellAcknowledgement,
    TellFrame,
    TellItem,
    read_acknowledgement,
    read_frame,
    write_tells,
)

FRAME = TellFrame("yard", "local", "a", 1, 7, 3, 4, 6, [TellItem(b"\x80", 99), TellItem(b"\x81", 100)])
SAID = TellAcknowledgement("yard", "local", "b", "Cart/b", 1, 7, 3, 7, 8, None, [(8, "no")], False)


def test_what_is_written_is_read_again_and_the_bytes_stay_as_they_are() -> None:
    """The bytes are those of docs/formats.md: nodes of this version must understand later ones."""
    assert read_frame(write_tells(FRAME)) == FRAME
    assert read_acknowledgement(write_tells(SAID)) == SAID
    assert msgspec.msgpack.decode(write_tells(FRAME)) == [
        *("stigmergy.tells@1", "yard", "local", "a", 1, 7, 3, 4, 6),
        [[b"\x80", 99, "", 0], [b"\x81", 100, "", 0]],
    ]
    short = [*("stigmergy.tells@1", "yard", "local", "a", 1, 7, 3, 4, 6), [[b"\x80", 99], [b"\x81", 100]]]
    assert read_frame(msgspec.msgpack.encode(short)) == FRAME, "of the first version"
    assert msgspec.msgpack.decode(write_tells(SAID)) == [
        *("stigmergy.told@1", "yard", "local", "b", "Cart/b", 1, 7, 3, 7, 8, None, [[8, "no"]], False),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        msgspec.structs.replace(FRAME, items=[]),
        msgspec.structs.replace(FRAME, items=FRAME.items * FRAME_ITEMS_MAX),
        msgspec.structs.replace(FRAME, first=4),
        msgspec.structs.replace(FRAME, first=2**62),
        msgspec.structs.replace(FRAME, after=-1, first=0),
        msgspec.structs.replace(FRAME, shard=-1),
        msgspec.structs.replace(FRAME, epoch=2**63),
        SAID,
    ],
)
def test_frames_that_no_sender_makes_are_refused(wrong: TellFrame | TellAcknowledgement) -> None:
    with pytest.raises(Malformed):
        read_frame(write_tells(wrong))


def test_what_is_too_large_or_says_too_much_is_refused() -> None:
    for read in (read_frame, read_acknowledgement):
        with pytest.raises(TooLarge):
            read(b"x" * (RECEIVED_BYTES_MAX + 1))
    with pytest.raises(Malformed, match="refusals"):
        read_acknowledgement(write_tells(msgspec.structs.replace(SAID, refused=[(1, "x" * 501)])))
    with pytest.raises(Malformed, match="refusals"):
        read_acknowledgement(write_tells(msgspec.structs.replace(SAID, refused=[(1, "x")] * 257)))


@given(data=st.binary(max_size=200) | st.builds(lambda cut: write_tells(FRAME)[:cut], st.integers(0, 80)))
def test_other_bytes_are_refused_in_words(data: bytes) -> None:
    for read in (read_frame, read_acknowledgement):
        with contextlib.suppress(PeerError):
            read(data)
