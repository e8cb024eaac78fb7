"""The bytes of claims: the manual says what the code does, and what was written once reads for ever."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import get_args

import pytest
from msgspec import Struct

from stigmergy.claims import entries, state
from stigmergy.claims import port as ledger
from stigmergy.claims import rules as fold
from stigmergy.claims import sqlite_file as file
from stigmergy.claims import state as lease
from stigmergy.claims import writer as writing
from stigmergy.claims.entries import Ask, ClaimBody, Written, claimant_id, read_record, write_record, writer_id
from stigmergy.claims.rules import apply, digest, read_checkpoint, state_bytes, write_checkpoint
from stigmergy.claims.state import Claims
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from tests.formats.manual import DOCS, fields_of, tables

MANUAL = (DOCS / "formats.md").read_text(encoding="utf-8")
STRUCTURES: tuple[type[Struct], ...] = (
    entries.ClaimRecord,
    entries.SealedRecord,
    entries.ClaimBody,
    fold.ClaimsState,
    fold.ClaimsCheckpoint,
)
PARTS: tuple[type[Struct], ...] = (
    state.Resource,
    state.Grant,
    state.Offer,
    state.Waiter,
    state.WriterMark,
    state.Counts,
)


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure.__name__)
def test_fields_are_documented_in_their_order(structure: type[Struct]) -> None:
    assert structure.__struct_config__.array_like
    assert fields_of(structure.__name__) == list(structure.__struct_fields__)


def test_moves_are_documented_with_their_numbers() -> None:
    documented = [(int(row[0]), row[1], row[2]) for row in tables("formats.md")["Claim entries"]]
    known = [
        (move.__struct_config__.tag, move.__name__, ", ".join(move.__struct_fields__))
        for move in get_args(entries.Move)
    ]
    assert documented == known


def test_parts_of_a_state_are_documented() -> None:
    documented = [(row[0], row[1]) for row in tables("formats.md")["Parts of a claims state"]]
    assert documented == [(part.__name__, ", ".join(part.__struct_fields__)) for part in PARTS]
    assert all(part.__struct_config__.array_like for part in PARTS)


def test_contexts_domains_and_numbers_are_documented() -> None:
    for name in ("claims.entries", "claims.rules", "claims.sqlite_file"):
        source = inspect.getsource(importlib.import_module(f"stigmergy.{name}"))
        contexts = re.findall(r'"(stigmergy 2026 [^"]+)"', source)
        assert contexts
        for context in contexts:
            assert f"derive_key, `{context}`" in MANUAL
        for domain in re.findall(r'"(stigmergy\.claim[^"]*@1)"', source):
            assert f"`{domain}`" in MANUAL
    assert f"{file.APPLICATION_ID:#x}" in MANUAL
    assert (entries.RECORD_FORMAT, entries.SEALED_FORMAT, fold.CHECKPOINT_FORMAT, file.FORMAT) == (1, 2, 1, 1)


def test_columns_of_the_file_are_documented() -> None:
    for table, columns in re.findall(r"CREATE TABLE (\w+)\((.*?)\n?\) STRICT", file.TABLES, re.DOTALL):
        names = [column.split()[0] for column in columns.replace("CHECK (only = 1)", "").split(",")]
        assert re.search(rf"{table} +{', '.join(names)}\b", MANUAL), table


def test_bounds_are_documented() -> None:
    documented = {row[0].strip("`"): int(row[1]) for row in tables("claims.md")["Bounds"]}
    known = {
        name: value for module in (entries, state, lease, fold, ledger, writing) for name, value in vars(module).items()
    }
    assert documented == {name: known[name] for name in documented}
    assert len(documented) >= 16


# ------------------------------------------------------------------ golden bytes: these never change

SIGNER = Ed25519Signer(bytes(range(32)))
KEY = SIGNER.public_key
GOLDEN_RECORD = (
    "950101c42003a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8c4269507cf000000030000000002ac"
    "44726f6e652f312063656c6c9401a663656c6c2f37cd1388c3c440521edb49e366e8d505322c87a0cfe3f12700851eb2c782772d"
    "d9e2e9dce45ea7eb2ac75074cc8e3289e5803d39b5229d8fc651756607df13699f7470dabedc0a"
)
GOLDEN_DIGEST = "4f102aecb3ad15aa70ef1b76870cb224b3553fb702d78afc67e2174cf930cb52"
GOLDEN_CHECKPOINT = (
    "950101c42003a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8c45d95299192a663656c6c2f379396"
    "c410bd13232f9d4983253dea71181003f68f2929cd1388cf000000030000000002c0909192c410578a87cc3cfe30f737a77a39d3"
    "df851693cf00000003000000000229909b0000000000000000000000c440dc75d76b06be370218b9fe33c4680bcc1ded53c1effd"
    "08f784e8f3d88c16321e82efbeb768254bf6f53a9577149db56e160183ee5442387dbd06806ab48b830d"
)
BODY = ClaimBody(7, 3 << 32, 2, "Drone/1 cell", Ask("cell/7", 5_000, waits=True))


def golden_state() -> Claims:
    claimant, writer = claimant_id(1, KEY, 7, "Drone/1 cell"), writer_id(1, KEY, 7)
    return apply(Claims(position=41), 41, Written(KEY, writer, claimant, 3 << 32, 2, BODY.move)).claims


def test_a_record_of_the_first_version_is_read_and_written_alike() -> None:
    data = bytes.fromhex(GOLDEN_RECORD)
    assert write_record("fleet", 1, KEY, BODY, SIGNER.sign) == data
    found = read_record("fleet", data, Ed25519Verifier().verify)
    assert isinstance(found, Written)
    assert (found.life, found.sequence, found.move) == (3 << 32, 2, BODY.move)
    assert found.claimant.hex() == "bd13232f9d4983253dea71181003f68f"
    assert found.writer.hex() == "578a87cc3cfe30f737a77a39d3df8516"


def test_a_checkpoint_of_the_first_version_is_read_and_written_alike() -> None:
    data = bytes.fromhex(GOLDEN_CHECKPOINT)
    assert write_checkpoint("fleet", state_bytes(golden_state()), 1, KEY, SIGNER.sign) == data
    claims, key = read_checkpoint("fleet", data, Ed25519Verifier().verify)
    assert (claims, key) == (golden_state(), KEY)
    assert digest(state_bytes(claims)).hex() == GOLDEN_DIGEST
