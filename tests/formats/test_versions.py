"""Versions and counts that an earlier version wrote are read, by the code and by the words of the manual alone."""

from __future__ import annotations

import struct

from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.models.rollout import CountsReport, VersionCounts, VersionRecord, read_counts, read_record, write_counts
from tests.formats import messagepack
from tests.formats.golden import SIGNER, read_lines
from tests.formats.make_fixtures import versions
from tests.formats.manual import DOCS

MANUAL = (DOCS / "formats.md").read_text(encoding="utf-8").partition("## Versions of models")[2].partition("\n## ")[0]
FIXTURE = "model-versions-1.txt"
TRUSTED = [SIGNER.public_key]


def test_the_fields_are_documented_in_their_order() -> None:
    for structure in (VersionRecord, CountsReport, VersionCounts):
        assert ", ".join(f"`{name}`" for name in structure.__struct_fields__) in MANUAL


def test_what_an_earlier_version_wrote_is_read_and_written_alike() -> None:
    found = read_lines(FIXTURE)
    record = read_record(found["versions"], "city", "gas-alarm", TRUSTED, Ed25519Verifier())
    assert (record.revision, record.stable, record.candidate, record.stage) == (7, "1.2.0", "1.3.0", "canary")
    report = read_counts(found["counts"], "city", "gas-alarm", TRUSTED, Ed25519Verifier())
    assert (report.source, report.revision, report.candidate.differed) == ("local/north/5f3a.1", 7, 3)
    assert write_counts(report, SIGNER) == found["counts"]
    assert versions() == found


def test_the_manual_is_enough_to_read_them() -> None:
    found = read_lines(FIXTURE)
    assert messagepack.decode(found["file"]) == {"gas-alarm": found["versions"]}
    for name, domain in (("versions", b"stigmergy.model.versions@1"), ("counts", b"stigmergy.model.counts@1")):
        assert f'"{domain.decode()}"' in MANUAL
        body, algorithm, key, signature = messagepack.decode(found[name])
        statement = b"\x92" + b"\xc4" + bytes([len(domain)]) + domain + _binary(body)
        assert Ed25519Verifier().verify(algorithm, key, statement, signature)
        fields = messagepack.decode(body)
        assert (fields["fleet"], fields["model"], fields["revision"]) == ("city", "gas-alarm", 7)
        assert (fields["candidate"] if name == "versions" else fields["candidate"]["wrong"]) in ("1.3.0", 2)


def _binary(body: bytes) -> bytes:
    return b"\xc4" + bytes([len(body)]) + body if len(body) < 256 else b"\xc5" + struct.pack(">H", len(body)) + body
