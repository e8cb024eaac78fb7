"""What owners of shards say to each other is what docs/workers.md says, byte by byte."""

import msgspec

from stigmergy.network import tell_sender as frames
from tests.formats.manual import tables

STRUCTURES = (
    frames.Hello,
    frames.Welcome,
    frames.PeerRefused,
    frames.PairOpening,
    frames.PairPosition,
    frames.TellBatch,
    frames.TellsAcknowledged,
    frames.TellsRefused,
)


def test_frames_are_documented_with_their_tags_and_fields_in_order() -> None:
    rows = tables("workers.md")["Protocol between owners"]
    documented = [(int(tag), name.strip("`"), fields.replace("`", "")) for tag, name, fields, _ in rows]
    there = [
        (cls.__struct_config__.tag, cls.__name__, ", ".join(field.name for field in msgspec.structs.fields(cls)))
        for cls in STRUCTURES
    ]
    assert documented == there
    assert frames.FORMAT == 1


def test_bytes_are_arrays_that_begin_with_the_tag() -> None:
    parcel = frames.TellBatch(0, 2, 3, 7, [("Drone/D-17", b"message")])
    data = frames.write_frame(parcel)
    assert msgspec.msgpack.decode(data) == [6, 0, 2, 3, 7, [["Drone/D-17", b"message"]]]
    assert data.hex() == "9606000203079192aa44726f6e652f442d3137c4076d657373616765"
    assert frames.read_frame(data) == parcel
    assert frames.write_frame(frames.Welcome()).hex() == "9102"
