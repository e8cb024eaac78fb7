"""The sealed blob that an earlier version wrote is opened, by the code and by the table of the manual alone."""

from __future__ import annotations

import re

import pytest
from nacl import bindings

from stigmergy.base.errors import StoreCorrupt
from stigmergy.store.sealed import Opener
from tests.formats.golden import read_lines
from tests.formats.make_fixtures import READER_SEED, SEALED_TEXT, sealed_blobs
from tests.formats.manual import DOCS

MANUAL = (DOCS / "formats.md").read_text(encoding="utf-8").partition("## Sealed blobs")[2].partition("\n## ")[0]
FIXTURE = "sealed-1.txt"


def test_a_blob_of_an_earlier_version_is_opened_and_sealed_alike() -> None:
    found = read_lines(FIXTURE)
    opener = Opener(READER_SEED, "it")
    assert b"".join(opener.open(found["blob"])) + opener.end() == SEALED_TEXT
    assert sealed_blobs() == found
    changed = Opener(READER_SEED, "it")
    with pytest.raises(StoreCorrupt, match="chunk 1 was changed"):
        [*changed.open(found["blob"][:-1] + b"\0"), changed.end()]


def test_the_manual_is_enough_to_open_it() -> None:
    blob = read_lines(FIXTURE)["blob"]
    sizes = [int(size.replace(",", "")) for size in re.findall(r"^\| ([0-9]+) \|", MANUAL, re.MULTILINE)]
    magic, box, chunk = blob[: sizes[0]], blob[sizes[0] : sum(sizes)], blob[sum(sizes) :]
    assert sizes == [19, 80]
    assert magic == b"stigmergy-sealed-1\n"
    public, secret = bindings.crypto_sign_seed_keypair(READER_SEED)
    key = bindings.crypto_box_seal_open(
        box,
        bindings.crypto_sign_ed25519_pk_to_curve25519(public),
        bindings.crypto_sign_ed25519_sk_to_curve25519(secret),
    )
    nonce = bytes(11) + b"\x01"
    assert bindings.crypto_aead_chacha20poly1305_ietf_decrypt(chunk, magic + box, nonce, key) == SEALED_TEXT
    last = read_lines(FIXTURE)["last-chunk-of-large"]  # of another blob with the same head
    nonce = (1).to_bytes(11, "big") + b"\x01"
    assert bindings.crypto_aead_chacha20poly1305_ietf_decrypt(last, magic + box, nonce, key) == b"\0"
