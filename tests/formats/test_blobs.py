"""The bytes of a blob's manifest, and of a reference in a message, are those that the manual describes."""

import msgspec
import pytest
from msgspec import Struct, structs

from stigmergy.agents.codec import encode
from stigmergy.agents.messages import Blob, Event
from stigmergy.base.errors import StoreCorrupt
from stigmergy.network.exchange import AskObject, HasObject, LacksObject
from stigmergy.store.blobs import PIECE_BYTES, BlobManifest, manifest_name, piece_name, read_manifest
from stigmergy.store.garbage import BlobMarks, BlobReferences
from tests.formats.manual import fields_of

BLOB = Blob(bytes(range(32)), PIECE_BYTES + 1, "image/png")
MANIFEST = BlobManifest(1, BLOB.digest, BLOB.size_bytes, PIECE_BYTES, [b"a" * 32, b"b" * 32])
GOLDEN = (
    "9501c420000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fce00100001ce0010000092c420"
    + "61" * 32
    + "c420"
    + "62" * 32
)


class Seen(Event):
    photo: Blob


@pytest.mark.parametrize("structure", [BlobManifest, BlobReferences, BlobMarks])
def test_the_manual_has_every_field(structure: type[Struct]) -> None:
    assert fields_of(structure.__name__) == [field.name for field in structs.fields(structure)]


def test_a_manifest_of_an_earlier_version_is_read() -> None:
    assert encode(MANIFEST).hex() == GOLDEN
    assert read_manifest(BLOB, bytes.fromhex(GOLDEN)) == MANIFEST
    assert manifest_name(BLOB.digest, 3) == f"blob/{BLOB.hex}/3"
    assert piece_name(b"a" * 32) == f"piece/{'61' * 32}"


def test_a_reference_is_found_by_its_bytes() -> None:
    """Garbage collection looks for them."""
    assert b"\xa6digest\xc4\x20" + BLOB.digest in encode(Seen(photo=BLOB))


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        encode(structs.replace(MANIFEST, format=2)),
        encode(structs.replace(MANIFEST, size_bytes=PIECE_BYTES)),
        encode(structs.replace(MANIFEST, pieces=[b"a" * 32])),
        encode(structs.replace(MANIFEST, digest=b"c" * 32)),
        encode(structs.replace(MANIFEST, piece_bytes=1)),
    ],
)
def test_what_is_not_the_manifest_of_this_blob_is_refused(wrong: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        read_manifest(BLOB, wrong)


def test_the_datagrams_of_the_exchange() -> None:
    asked, has = AskObject(7, "piece/61", -1), HasObject(7, 0, 3, b"abc")
    assert msgspec.msgpack.decode(encode(asked)) == ["ask@1", 7, "piece/61", -1]
    assert msgspec.msgpack.decode(encode(has)) == ["has@1", 7, 0, 3, b"abc"]
    assert msgspec.msgpack.decode(encode(LacksObject(7))) == ["lacks@1", 7]
