"""The bytes of a ledger on NATS: the manual says what the code does, and what was written once reads for ever."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import get_args

import pytest
from msgspec import Struct

from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.nats.ledger import checkpoints, records
from stigmergy.nats.ledger.records import START, Entries, Genesis, LedgerBody, LedgerState, base_of, take, write_record
from stigmergy.nats.ledger.streams import find_place
from tests.formats.manual import DOCS, fields_of, tables

MANUAL = (DOCS / "formats.md").read_text(encoding="utf-8")
STRUCTURES: tuple[type[Struct], ...] = (
    records.LedgerRecord,
    records.LedgerBody,
    records.LedgerBase,
    checkpoints.CheckpointHead,
)


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure.__name__)
def test_fields_are_documented_in_their_order(structure: type[Struct]) -> None:
    assert structure.__struct_config__.array_like
    assert fields_of(structure.__name__) == list(structure.__struct_fields__)


def test_deeds_are_documented_with_their_numbers() -> None:
    documented = [(int(row[0]), row[1], row[2]) for row in tables("formats.md")["Ledger entries"]]
    known = [
        (change.__struct_config__.tag, change.__name__, ", ".join(change.__struct_fields__))
        for change in get_args(records.LedgerChange)
    ]
    assert documented == known


def test_contexts_domains_names_and_numbers_are_documented() -> None:
    for module in (records, checkpoints):
        source = inspect.getsource(importlib.import_module(module.__name__))
        for context in re.findall(r'"(stigmergy 2026 [^"]+)"', source):
            assert f"derive_key, `{context}`" in MANUAL
    assert "`stigmergy.ledger@1`" in MANUAL
    assert ", ".join(records.LedgerCounts.__struct_fields__) in MANUAL
    place = find_place("nats://hub:4222/PLACE", "fleet")
    for name in (place.stream.removesuffix("PLACE"), place.checkpoints, place.log_subject, place.cut_subject):
        assert f"`{name}`" in MANUAL
    for subject in (place.head_subject, place.chunk_subject("NAME", 0), place.told_subjects.replace("*", "log")):
        assert f"`{subject}`" in MANUAL
    assert (records.FORMAT, checkpoints.FORMAT) == (1, 1)


# ------------------------------------------------------------------ golden bytes: these never change

SIGNER = Ed25519Signer(bytes(range(32)))
KEY = SIGNER.public_key
INCARNATION = bytes(range(16))
GENESIS = LedgerBody(b"session0", 0, 1, 0, START, Genesis("fleet", INCARNATION, (KEY,)))
ENTRIES = LedgerBody(b"session1", 1, 1, 1, bytes(range(32)), Entries((b"one", b"two")))
GOLDEN = (
    (
        "950101c42003a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8c46d96c40873657373696f6e300001"
        "00c42000000000000000000000000000000000000000000000000000000000000000009400a5666c656574c41000010203040506"
        "0708090a0b0c0d0e0f91c42003a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8c440aeb64bff3793"
        "efdb8ee671ef63c3e77669c68750d30b9cc0f78318f1aa35f8eb0e240793f40ce9d69640581c98d6fba3671d032dbd4a1160ab34"
        "7c1328d2ef0e"
    ),
    (
        "950101c42003a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8c43f96c40873657373696f6e310101"
        "01c420000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f940192c4036f6e65c40374776f0001c440"
        "9f54bad3628449ff16c1a9824cc4971303d4b99bb163259c0247d4ec08fb3fef0a992561fde5accab69a7d283f811ec08b1cd325"
        "e4ac3a542c8f60e18a25c900"
    ),
)
GOLDEN_CHAIN = "403a1d8740cdf7801df1c697621a7849899c9f1a04e79ef7f25e59f664a7cc2e"
GOLDEN_BASE = (
    "99a5666c656574c410000102030405060708090a0b0c0d0e0f0202c420403a1d8740cdf7801df1c697621a7849899c9f1a04e79e"
    "f7f25e59f664a7cc2e91c42003a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b89292c40873657373"
    "696f6e3092010192c40873657373696f6e31920102009702000000000000"
)


def test_messages_of_the_first_version_are_read_and_written_alike() -> None:
    state = LedgerState()
    for number, (body, golden) in enumerate(zip((GENESIS, ENTRIES), GOLDEN, strict=True), start=1):
        data = write_record("fleet", INCARNATION, 1, KEY, body, SIGNER.sign)
        assert data.hex() == golden
        taken = take(state, number, data, Ed25519Verifier().verify)
        assert taken.counted
        state = taken.state
    assert (state.position, state.chain.hex(), base_of(state).hex()) == (2, GOLDEN_CHAIN, GOLDEN_BASE)
