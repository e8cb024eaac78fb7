"""The bytes of gossip: fixed examples that never change, and the tables of the manual."""

from __future__ import annotations

import pytest
from msgspec import Struct

from stigmergy.agents.shared import replica_id, replica_seed
from stigmergy.crdt.anti_entropy import messages
from stigmergy.crdt.anti_entropy.authorship import (
    DELTA_DOMAIN,
    GOSSIP_DOMAIN,
    delta_statement,
    gossip_statement,
    object_id,
)
from stigmergy.crdt.anti_entropy.held_object import epoch_of
from stigmergy.crdt.anti_entropy.messages import read_frame, read_message, write_frame, write_message
from stigmergy.crdt.delta import Delta
from tests.formats.manual import DOCS, fields_of

MESSAGES = (
    messages.Interests,
    messages.Digests,
    messages.Vectors,
    messages.BodyOffer,
    messages.FetchParts,
    messages.FullState,
    messages.Shown,
    messages.Proof,
    messages.Caught,
)
FRAMES = (messages.Change, messages.SignedMessage, messages.BodyPart, messages.Acknowledged)
A, B = b"replicaA", b"replicaB"
OBJECT = b"object.8"
DIGEST = b"sixteen bytes..."

GOLDEN: tuple[tuple[Struct, str], ...] = (
    (
        messages.Change(1, b"key", 7, "Light/1", OBJECT, b"delta", b"signature"),
        "119701c4036b657907a74c696768742f31c4086f626a6563742e38c40564656c7461c4097369676e6174757265",
    ),
    (messages.SignedMessage(1, b"key", "n1", b"body", b"sig"), "129501c4036b6579a26e31c404626f6479c403736967"),
    (messages.BodyPart(DIGEST, 3, b"piece"), "1393c4107369787465656e2062797465732e2e2e03c4057069656365"),
    (
        messages.Acknowledged(OBJECT, ((A, 1), (B, 300))),
        "1492c4086f626a6563742e389292c4087265706c696361410192c4087265706c69636142cd012c",
    ),
    (messages.Interests(OBJECT), "9201c4086f626a6563742e38"),
    (
        messages.Digests(bytes(8), b"12345678", ((OBJECT, DIGEST),)),
        "9402c4080000000000000000c40831323334353637389192c4086f626a6563742e38c4107369787465656e2062797465732e2e2e",
    ),
    (
        messages.Vectors(OBJECT, DIGEST, ((A, 1),), 2, b"retired.", 1),
        "9703c4086f626a6563742e38c4107369787465656e2062797465732e2e2e9192c4087265706c696361410102c408726574697265642e01",
    ),
    (
        messages.BodyOffer(DIGEST, 5000, 900, OBJECT),
        "9504c4107369787465656e2062797465732e2e2ecd1388cd0384c4086f626a6563742e38",
    ),
    (messages.FetchParts(DIGEST, (0, 5)), "9305c4107369787465656e2062797465732e2e2e920005"),
    (messages.FullState(OBJECT, b"store"), "9306c4086f626a6563742e38c40573746f7265"),
    (
        messages.Shown(OBJECT, ((A, 1, 300, DIGEST),)),
        "9307c4086f626a6563742e389194c4087265706c6963614101cd012cc4107369787465656e2062797465732e2e2e",
    ),
    (
        messages.Proof("Light.seen/north", b"one", b"other"),
        "9408b04c696768742e7365656e2f6e6f727468c4036f6e65c4056f74686572",
    ),
    (messages.Caught((b"12345678",)), "920991c4083132333435363738"),
)


@pytest.mark.parametrize(("one", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_bytes_never_change(one: Struct, golden: str) -> None:
    if isinstance(one, FRAMES):
        assert write_frame(one).hex() == golden
        assert read_frame(bytes.fromhex(golden)) == one
    else:
        assert isinstance(one, MESSAGES)
        assert write_message(one).hex() == golden
        assert read_message(bytes.fromhex(golden)) == one


@pytest.mark.parametrize("structure", [*FRAMES, *MESSAGES], ids=lambda structure: structure.__name__)
def test_fields_are_documented_in_their_order(structure: type[Struct]) -> None:
    assert structure.__struct_config__.array_like
    assert fields_of(structure.__name__) == list(structure.__struct_fields__)


def test_numbers_and_first_bytes_are_documented() -> None:
    manual = (DOCS / "formats.md").read_text(encoding="utf-8")
    for message in MESSAGES:
        number = message.__struct_config__.tag
        assert f"### `{message.__name__}`\n\nNumber {number}.\n" in manual
    for byte, frame in zip((0x11, 0x12, 0x13, 0x14), FRAMES, strict=True):
        assert f"`{byte:02x}` a" in manual
        assert f"`{frame.__name__}`" in manual


def test_domains_and_digests_never_change() -> None:
    manual = (DOCS / "formats.md").read_text(encoding="utf-8")
    for domain in (DELTA_DOMAIN, GOSSIP_DOMAIN):
        assert f"`{domain[:-1].decode()}`" in manual
    delta = Delta(A, 1, 2, (), (), ())
    statement = delta_statement("fleet", "Light.seen/north", "Light/1", 7, delta, delta.to_bytes())
    assert statement.hex() == (
        b"stigmergy.delta@1\0".hex()
        + "98a5666c656574b04c696768742e7365656e2f6e6f727468c4087265706c69636141a74c696768742f31070102"
        + "c4119701c4087265706c696361410102909090"
    )
    assert gossip_statement("fleet", "n1", b"body").hex() == (
        b"stigmergy.gossip@1\0".hex() + "93a5666c656574a26e31c404626f6479"
    )
    assert object_id("Light.seen/north").hex() == "8f949c2ce2389e98"
    assert epoch_of(((A, 1), (B, 2))).digest.hex() == "74fd98da1fd68dc6"
    assert messages.body_digest(b"body").hex() == "fec9281513d88d05e6ff70cb7ee3faac"
    assert replica_id(replica_seed("fleet", b"k" * 32, 7), "Light/1").hex() == "ff4cf39db484881d"
