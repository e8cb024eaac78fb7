"""Bundles: what is read is what was written, by a key that is trusted; everything else is refused with a sentence."""

from __future__ import annotations

import struct
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.base.errors import ModelRefused
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.models.bundle import (
    CLASSES,
    END_BYTES,
    HEAD_BYTES,
    MANIFEST_BYTES_MAX,
    Bundle,
    Example,
    Manifest,
    ModelClass,
    bundle_bytes,
    inspect_bundle,
    is_signed,
    read_bundle,
    version_key,
    write_bundle,
)
from stigmergy.models.runtime import pack_row
from tests.models.nets import SIGNER

VERIFIER = Ed25519Verifier()
MANIFEST = Manifest(
    name="gas-alarm",
    version="1.2.0",
    runtime="forest",
    model_class=ModelClass.TINY,
    inputs=("co", "nox"),
    outputs=("p",),
    examples=(Example(pack_row([1.0, 2.0]), (0.5,)),),
)
PAYLOAD = b"a payload of some bytes"
FILE = write_bundle(MANIFEST, PAYLOAD, SIGNER)


def read(data: bytes, *, name: str = "", version_min: str = "") -> Bundle:
    return read_bundle(data, [SIGNER.public_key], VERIFIER, name=name, version_min=version_min)


def changed(**fields: object) -> Manifest:
    return msgspec.structs.replace(MANIFEST, **fields)


def test_what_is_read_is_what_was_written() -> None:
    bundle = read(FILE, name="gas-alarm", version_min="1.2.0")
    assert bundle.payload == PAYLOAD
    assert msgspec.structs.replace(bundle.manifest, payload_digest=b"") == MANIFEST
    assert bundle.signer == SIGNER.public_key
    assert bundle.size_bytes == len(FILE) == bundle_bytes(FILE[:HEAD_BYTES])
    assert bundle.file_name == "gas-alarm-1.2.0.model"
    assert is_signed(FILE, VERIFIER)


def test_the_digest_names_the_content_whoever_signed_it() -> None:
    other = write_bundle(MANIFEST, PAYLOAD, Ed25519Signer(bytes(32)))
    assert other != FILE
    assert inspect_bundle(other).digest == inspect_bundle(write_bundle(MANIFEST, PAYLOAD)).digest == read(FILE).digest
    assert inspect_bundle(write_bundle(MANIFEST, PAYLOAD + b"!", SIGNER)).digest != read(FILE).digest


@given(st.integers(0, len(FILE) - 1), st.integers(1, 255))
def test_any_flipped_byte_is_refused(index: int, flip: int) -> None:
    data = bytearray(FILE)
    data[index] ^= flip
    with pytest.raises(ModelRefused):
        read(bytes(data))


@given(st.integers(0, len(FILE) - 1))
def test_any_part_of_a_bundle_is_refused(length: int) -> None:
    with pytest.raises(ModelRefused, match="cut off"):
        read(FILE[:length])
    with pytest.raises(ModelRefused, match="cut off"):
        inspect_bundle(FILE[:length])


@given(st.binary(max_size=300), st.booleans())
def test_bytes_of_anybody_are_refused_and_nothing_else_is_raised(data: bytes, is_framed: bool) -> None:
    if is_framed:  # so that the manifest is decoded
        head = struct.pack("<15sBBIQ", b"stigmergy-model", 1, 0, len(data), 0)
        data = head + data + bytes(END_BYTES)
    with pytest.raises(ModelRefused):
        read(data)
    with pytest.raises(ModelRefused):
        inspect_bundle(data)


def test_who_has_not_signed_is_refused() -> None:
    with pytest.raises(ModelRefused, match="nobody has signed"):
        read(write_bundle(MANIFEST, PAYLOAD))
    other = Ed25519Signer(bytes(32))
    with pytest.raises(ModelRefused, match=f"signed by {other.public_key.hex()}, which is not among the model_keys"):
        read(write_bundle(MANIFEST, PAYLOAD, other))
    forged = FILE[:-END_BYTES] + struct.pack("<B32s64s", 1, SIGNER.public_key, bytes(64))
    assert not is_signed(forged, VERIFIER)
    with pytest.raises(ModelRefused, match="damaged or forged"):
        read(forged)


def test_a_signature_for_something_else_does_not_fit() -> None:
    content = FILE[:-END_BYTES]
    for statement in (content, read(FILE).digest):
        end = struct.pack("<B32s64s", 1, SIGNER.public_key, SIGNER.sign(statement))
        with pytest.raises(ModelRefused, match="damaged or forged"):
            read(content + end)


def test_another_model_under_this_name_and_an_older_version_are_refused() -> None:
    with pytest.raises(ModelRefused, match="this is the model 'gas-alarm', not 'noise'; it was renamed"):
        read(FILE, name="noise")
    for later in ("1.2.1", "1.10.0", "2.0.0"):
        with pytest.raises(ModelRefused, match=rf"version 1\.2\.0 is older than {later}"):
            read(FILE, version_min=later)


def test_files_of_others_are_refused_by_their_head() -> None:
    with pytest.raises(ModelRefused, match="not a bundle"):
        bundle_bytes(b"\x08\x09" * 20)
    with pytest.raises(ModelRefused, match="format 2; this version reads format 1"):
        bundle_bytes(FILE[:15] + b"\x02" + FILE[16:])
    with pytest.raises(ModelRefused, match="no class 9"):
        bundle_bytes(FILE[:16] + b"\x09" + FILE[17:])
    with pytest.raises(ModelRefused, match="too long"):
        read(FILE + b"\0")


@pytest.mark.parametrize("number", range(len(CLASSES)))
def test_a_head_that_claims_more_than_its_class_is_refused_before_anything_is_read(number: int) -> None:
    limit_bytes = list(CLASSES.values())[number].bundle_bytes_max
    room = limit_bytes - HEAD_BYTES - END_BYTES

    def head(manifest_bytes: int, payload_bytes: int) -> bytes:
        return struct.pack("<15sBBIQ", b"stigmergy-model", 1, number, manifest_bytes, payload_bytes)

    assert bundle_bytes(head(100, room - 100)) == limit_bytes
    for manifest_bytes, payload_bytes in ((100, room - 99), (0, 2**64 - 1)):
        with pytest.raises(ModelRefused, match="quantise it, or pack it for a larger class"):
            bundle_bytes(head(manifest_bytes, payload_bytes))
    with pytest.raises(ModelRefused, match="a manifest of"):
        bundle_bytes(head(MANIFEST_BYTES_MAX + 1, 0))


@pytest.mark.parametrize("place", range(14))
def test_an_array_that_claims_four_billion_elements_costs_no_memory(place: int) -> None:
    """In every field of a manifest, and in one behind the last that this version knows."""
    before = msgspec.msgpack.decode(msgspec.msgpack.encode(MANIFEST))[:place]
    described = b"\x9e" + b"".join(map(msgspec.msgpack.encode, before)) + b"\xdd\xff\xff\xff\xff"
    data = struct.pack("<15sBBIQ", b"stigmergy-model", 1, 0, len(described), 0) + described + bytes(END_BYTES)
    tracemalloc.start()
    try:
        with pytest.raises(ModelRefused, match="manifest cannot be read"):
            inspect_bundle(data)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < CLASSES[ModelClass.TINY].bundle_bytes_max


@pytest.mark.parametrize(
    ("manifest", "sentence"),
    [
        (changed(name="Gas Alarm"), "small letters"),
        (changed(name="../gas"), "small letters"),
        (changed(version="1.2"), "three numbers"),
        (changed(version="1.02.0"), "three numbers"),
        (changed(inputs=("co", "co")), "two inputs have one name"),
        (changed(outputs=("p", "p")), "two outputs have one name"),
        (changed(inputs=()), "manifest cannot be read"),
        (changed(steps=60_000), "a row of 120000 numbers"),
        (changed(steps=2), "example 0 has 2 inputs"),
        (changed(outputs=("p", "q")), "example 0 has 2 inputs and 1 outputs, the model has 2 and 2"),
        (changed(tolerance=-1.0), "tolerance"),
        (changed(licence="x" * 501), "manifest cannot be read"),
    ],
)
def test_what_a_reader_would_refuse_is_not_written(manifest: Manifest, sentence: str) -> None:
    with pytest.raises(ModelRefused, match=sentence):
        write_bundle(manifest, PAYLOAD, SIGNER)


def test_too_much_for_a_class_is_not_written() -> None:
    with pytest.raises(ModelRefused, match="over the 1000000 of class tiny"):
        write_bundle(MANIFEST, bytes(1_000_000), SIGNER)
    assert read(write_bundle(changed(model_class=ModelClass.EDGE), bytes(1_000_000), SIGNER)).size_bytes > 1_000_000


def test_versions_compare_as_numbers() -> None:
    assert version_key("1.10.0") > version_key("1.9.12")


def test_the_numbers_of_a_row_of_steps_have_names() -> None:
    assert changed(steps=2).input_names() == ["co[0]", "nox[0]", "co[1]", "nox[1]"]
    assert MANIFEST.input_names() == ["co", "nox"]
