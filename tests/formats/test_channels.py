"""The manual's page on channels says what the code does: tags, fields, kinds, bounds and times."""

from stigmergy.nats import channels
from stigmergy.nats import channels as channel
from stigmergy.nats import channels as pieces
from tests.formats.test_manual import MANUAL

SECTION = MANUAL.partition("## Channels on NATS\n")[2].partition("\n## ")[0]


def test_what_is_said_where_somebody_listens_is_in_the_manual() -> None:
    for said in (pieces.ChannelRequest, pieces.ChannelAccepted, pieces.ChannelRefused, pieces.OwnerAnnounced):
        fields = ", ".join(said.__struct_fields__)
        assert f"| {said.__struct_config__.tag} | `{said.__name__}`: {fields} |" in SECTION
    assert f"format {pieces.FORMAT} |" in SECTION


def test_kinds_bounds_and_times_are_in_the_manual() -> None:
    assert (pieces.PIECE, pieces.LAST, pieces.TAKEN, pieces.ALIVE, pieces.OVER) == (1, 2, 3, 4, 5)
    assert pieces.HEAD.pack(2, 7) == b"\x02" + (7).to_bytes(8, "big")
    assert f"at most {channel.PIECE_BYTES_MAX // 1024} KiB" in SECTION
    under_way = f"at most {channel.PIECES_UNDER_WAY_MAX} pieces and {channel.BYTES_UNDER_WAY_MAX // 1024**2} MiB"
    assert under_way in SECTION
    assert channels.BEAT_S == 0.5
    assert f"so do {channels.SILENCE_S_MAX:g} s" in SECTION


def test_a_call_keeps_its_bytes() -> None:
    assert pieces.encode_message(pieces.ChannelRequest(1, "_INBOX.a.1", 3)) == b"\x94\x01\x01\xaa_INBOX.a.1\x03"
