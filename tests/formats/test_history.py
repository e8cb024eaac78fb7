"""Requests for history and their replies are what docs/formats.md says, byte by byte, for ever."""

import msgspec
import pytest

from stigmergy.base.errors import Malformed, TooLarge
from stigmergy.bus.history import (
    FRAME_BYTES_MAX,
    HistoryReply,
    HistoryRequest,
    LogPosition,
    Portion,
    Published,
    WatchPosition,
    read_frame,
    read_position,
    read_topics,
    write_frame,
    write_position,
)
from tests.formats.manual import fields_of

AT = {0: LogPosition(7, 41, 2, True)}
REQUEST = HistoryRequest("op-1", "w1", 3, "Cart/+/place", after=AT, latest=True)
ITEM = Published(0, 7, 41, 2, 3, 12, 1_800_000_000_000_000_000, "Cart/c1", "place", b"\x81\xa4type\xa8Driven@1")
REPLY = HistoryReply("w1", 3, Portion(AT, [ITEM], 1, {0: 40}))


@pytest.mark.parametrize("structure", [LogPosition, Published], ids=lambda structure: structure.__name__)
def test_fields_are_documented_in_their_order(structure: type[msgspec.Struct]) -> None:
    assert structure.__struct_config__.array_like
    assert fields_of(structure.__name__) == list(structure.__struct_fields__)


def test_frames_have_these_bytes() -> None:
    assert write_frame(REQUEST).hex() == (
        "87a474797065ba737469676d657267792e486973746f7279526571756573744031a6636c69656e74a46f702d31a57761746368a27731"
        "a66e756d62657203a6746f70696373ac436172742f2b2f706c616365a56166746572810094072902c3a66c6174657374c3"
    )
    assert write_frame(REPLY).hex() == (
        "84a474797065b8737469676d657267792e486973746f72795265706c794031a57761746368a27731a66e756d62657203a7706f7274696f"
        "6e84a26174810094072902c3a56974656d73919a00072902030ccf18fae27693b40000a7436172742f6331a5706c616365c40f81a47479"
        "7065a844726976656e4031ac6e65776573745f636f756e7401a3637574810028"
    )
    assert read_frame(write_frame(REQUEST), HistoryRequest) == REQUEST
    assert read_frame(write_frame(REPLY), HistoryReply) == REPLY
    for payload in (b"", b"\xc1", write_frame(REPLY), write_frame(REQUEST)[:-1]):
        with pytest.raises(Malformed, match="no HistoryRequest"):
            read_frame(payload, HistoryRequest)
    with pytest.raises(TooLarge):
        read_frame(bytes(FRAME_BYTES_MAX + 1), HistoryRequest)


def test_a_position_is_a_text_that_programs_keep() -> None:
    position = WatchPosition({"a": {0: LogPosition(7, 41, 2), 1: LogPosition(7, 3)}}, since_ns=5)
    text = '{"at":{"a":{"0":[7,41,2,false],"1":[7,3,4611686018427387904,false]}},"since_ns":5}'
    assert write_position(position) == text
    assert read_position(text) == position


def test_topics_are_escaped_as_on_the_bus() -> None:
    assert read_topics("Cart/D.17/+/é/#") == "Cart/D%2E17/+/%C3%A9/#"
    with pytest.raises(Malformed, match="give kind, name and topic"):
        read_topics("Cart/#")
