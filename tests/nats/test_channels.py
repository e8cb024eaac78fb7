"""One end of a channel without a server: what the other side may not do, and how much is under way at most."""

import asyncio

import pytest

from stigmergy.base.errors import LinkDown, Malformed, TooLarge
from stigmergy.nats import channels as module
from stigmergy.nats.channels import (
    ALIVE,
    HEAD,
    LAST,
    OVER,
    PIECE,
    TAKEN,
    ChannelAccepted,
    ChannelRefused,
    ChannelRequest,
    NatsChannel,
    OwnerAnnounced,
    decode_message,
    encode_message,
)

FRAME_BYTES_MAX = 4 * 1024 * 1024


class End:
    """A channel, and what it has said."""

    def __init__(self, payload_bytes_max: int = 1024 * 1024) -> None:
        self.said: list[bytes] = []
        self.channel = NatsChannel(lambda: 0.0, FRAME_BYTES_MAX)
        self.channel.connect(self._say, self.said.append, payload_bytes_max)

    async def _say(self, data: bytes) -> None:
        self.said.append(data)

    @property
    def kinds(self) -> list[int]:
        return [data[0] for data in self.said]


async def test_a_frame_that_no_message_holds_travels_in_pieces_and_arrives_whole() -> None:
    frame = bytes(range(256)) * 4_096
    near, far = End(payload_bytes_max=10_000), End()
    sending = asyncio.ensure_future(near.channel.send(frame))
    receiving = asyncio.ensure_future(far.channel.receive())
    for _ in range(100):
        await asyncio.sleep(0)
        for end, other in ((near, far), (far, near)):
            for data in end.said:
                assert len(data) <= 10_000
                other.channel.take(data)
            end.said.clear()
    await sending
    assert await receiving == frame


@pytest.mark.parametrize(("size_bytes", "count_max"), [(1, 64), (128 * 1024, 16)])
async def test_no_more_is_under_way_than_there_is_room_for(size_bytes: int, count_max: int) -> None:
    end = End()
    for _ in range(count_max):
        await end.channel.send(bytes(size_bytes))
    waiting = asyncio.ensure_future(end.channel.send(bytes(size_bytes)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert (len(end.said), waiting.done()) == (count_max, False)
    end.channel.take(HEAD.pack(TAKEN, 1))
    await waiting
    assert len(end.said) == count_max + 1
    waiting = asyncio.ensure_future(end.channel.send(b"never"))
    await asyncio.sleep(0)
    end.channel.take(HEAD.pack(OVER, 0))
    with pytest.raises(LinkDown):
        await waiting


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\x01",
        HEAD.pack(9, 1),
        HEAD.pack(PIECE, 2) + b"the first is missing",
        HEAD.pack(LAST, 0),
        HEAD.pack(TAKEN, 1),
    ],
)
async def test_one_who_does_not_keep_to_the_protocol_is_left(wrong: bytes) -> None:
    end = End()
    end.channel.take(wrong)
    assert end.kinds == [OVER]
    with pytest.raises(LinkDown, match="does not keep to the protocol"):
        await end.channel.receive()
    with pytest.raises(LinkDown):
        await end.channel.send(b"x")


async def test_one_who_sends_past_its_window_is_left_and_memory_stays_bounded() -> None:
    end = End()
    for number in range(1, 1_000):
        end.channel.take(HEAD.pack(LAST, number) + bytes(1_000))
    assert end.channel.is_over
    assert len(end.channel._arrived) <= module.PIECES_UNDER_WAY_MAX + 1


async def test_a_frame_of_endless_pieces_is_refused() -> None:
    end = End()
    receiving = asyncio.ensure_future(end.channel.receive())
    for number in range(1, 100):
        end.channel.take(HEAD.pack(PIECE, number) + bytes(100_000))
        await asyncio.sleep(0)
    with pytest.raises(TooLarge):
        await receiving
    assert end.kinds[-1] == OVER


async def test_what_came_before_the_end_is_still_received() -> None:
    end = End()
    end.channel.take(HEAD.pack(LAST, 1) + b"last words")
    end.channel.take(HEAD.pack(OVER, 0))
    assert await end.channel.receive() == b"last words"
    with pytest.raises(LinkDown, match="has ended"):
        await end.channel.receive()
    end.channel.close()
    assert not end.said, "the other side knows"


async def test_a_frame_given_up_in_its_middle_ends_the_channel() -> None:
    end = End(payload_bytes_max=100)
    sending = asyncio.ensure_future(end.channel.send(bytes(100_000)))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    with pytest.raises(LinkDown, match="in its middle"):
        await end.channel.send(b"next")
    assert end.kinds[-1] == OVER


async def test_a_beat_is_heard_and_nothing_else() -> None:
    end = End()
    end.channel.beat()
    assert end.kinds == [ALIVE]
    end.channel.take(end.said[0])
    assert not end.channel.is_over


def test_what_is_said_reads_back_and_nonsense_is_refused() -> None:
    for said in (
        ChannelRequest(1, "_INBOX.a.1", 7),
        ChannelAccepted("_INBOX.b.1", 8),
        ChannelRefused("full"),
        OwnerAnnounced(9, "c"),
    ):
        assert decode_message(encode_message(said)) == said
    for nonsense in (b"", b"\x00", b"\xff" * 100, encode_message([9, 1, 2])):
        with pytest.raises(Malformed):
            decode_message(nonsense)
