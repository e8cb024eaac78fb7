"""The bundle that an earlier version wrote is read, by the code and by the tables of the manual alone."""

from __future__ import annotations

import inspect
import re
import struct

import pytest
from blake3 import blake3
from msgspec import Struct

from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.models import bundle as bundles
from stigmergy.models.bundle import AcceptedMetric, Example, Manifest, Note, read_bundle
from stigmergy.models.forest import ForestRuntime
from tests.formats import messagepack
from tests.formats.golden import SIGNER, read_hex
from tests.formats.make_fixtures import golden_bundle
from tests.formats.manual import DOCS, fields_of

MANUAL = (DOCS / "formats.md").read_text(encoding="utf-8")
FIXTURE = "model-1.hex"


@pytest.mark.parametrize("structure", [Manifest, AcceptedMetric, Note, Example])
def test_fields_are_documented_in_their_order(structure: type[Struct]) -> None:
    assert structure.__struct_config__.array_like
    assert fields_of(structure.__name__) == list(structure.__struct_fields__)


def test_contexts_and_the_domain_are_documented() -> None:
    source = inspect.getsource(bundles)
    contexts = re.findall(r'"(stigmergy 2026 [^"]+)"', source)
    assert len(contexts) == 2
    assert all(f"derive_key, `{context}`" in MANUAL for context in contexts)
    (domain,) = re.findall(r'b"(stigmergy\.model[^"]*@1)"', source)
    assert f'"{domain}"' in MANUAL


def test_a_bundle_of_an_earlier_version_is_read_and_written_alike() -> None:
    data = read_hex(FIXTURE)
    bundle = read_bundle(data, [SIGNER.public_key], Ed25519Verifier(), name="gas-alarm", version_min="1.2.0")
    loaded = ForestRuntime().load(bundle)
    examples = bundle.manifest.examples
    assert loaded.run([one.inputs for one in examples]) == [one.outputs for one in examples]
    assert golden_bundle() == data


def test_the_manual_is_enough_to_read_it() -> None:
    data = read_hex(FIXTURE)
    assert data[:15] == b"stigmergy-model"
    number, model_class, m, p = struct.unpack_from("<BBIQ", data, 15)
    assert (number, model_class, len(data)) == (1, 0, 29 + m + p + 97)
    manifest = dict(zip(fields_of("Manifest"), messagepack.decode(data[29 : 29 + m]), strict=True))
    assert (manifest["name"], manifest["inputs"], manifest["steps"]) == ("gas-alarm", ["co", "nox", "temperature"], 1)
    payload = data[29 + m : 29 + m + p]
    assert manifest["payload_digest"] == blake3(payload, derive_key_context="stigmergy 2026 model payload").digest()
    digest = blake3(data[: 29 + m + p], derive_key_context="stigmergy 2026 model bundle").digest()
    statement = b"\x92" + b"\xc4\x18stigmergy.model.bundle@1" + b"\xc4\x20" + digest
    end = 29 + m + p
    algorithm, key, signature = data[end], data[end + 1 : end + 33], data[end + 33 :]
    assert Ed25519Verifier().verify(algorithm, key, statement, signature)
