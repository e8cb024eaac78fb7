"""The bytes of signatures on a bus never change: one message of each form, as it was when the format was published."""

import json
from pathlib import Path

import msgspec

from stigmergy.bus.cloudevents import JSON, STRUCTURED, CloudEvent, write_binary, write_structured
from stigmergy.bus.port import BusMessage
from stigmergy.bus.signatures import (
    ATTRIBUTE,
    DOMAIN,
    LEAVES_MAX,
    PATH_MAX,
    TRAILER,
    CheckedRoots,
    Identity,
    read_signed,
    sign_batch,
)
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.network.bus_keys import KeptNode
from tests.formats.test_manual import MANUAL

FILE = Path(__file__).parents[1] / "fixtures" / "formats" / "signed-messages-1.json"
SECTION = MANUAL.partition("## Signatures on a bus\n")[2].partition("\n## ")[0]
ME = Identity("delivery/north/D-17", Ed25519Signer(bytes(range(32))))


def messages() -> list[BusMessage]:
    event = CloudEvent("7.0.41.0", "/x", "BatteryMeasured@1", datacontenttype=JSON, data={"percent": 87.5})
    payload, content_type, properties = write_binary(event)
    topic = "delivery/north/agents/Drone/D-17/events/battery"
    return [
        BusMessage(topic, write_structured(event), STRUCTURED),
        BusMessage(topic, payload, content_type, properties),
        BusMessage("delivery/north/uplink/D-17", b"\x93\x01\x02\x03"),
    ]


def test_what_is_signed_now_is_what_was_signed_then() -> None:
    then = msgspec.json.decode(FILE.read_bytes(), type=list[BusMessage])
    assert sign_batch(messages(), ME) == then


def test_what_was_signed_then_is_believed_now() -> None:
    roots = CheckedRoots(Ed25519Verifier().verify, 10)
    for one in msgspec.json.decode(FILE.read_bytes(), type=list[BusMessage]):
        bare, proof = read_signed(one)
        assert proof is not None
        assert (proof.signer, proof.key) == (ME.name, ME.signer.public_key)
        assert roots.is_signed(bare, proof)


def test_the_manual_names_the_parts() -> None:
    assert f'`,"{ATTRIBUTE}":"…"`' in SECTION
    assert f"`{DOMAIN[:-1].decode()}`, a zero byte" in SECTION
    assert TRAILER == b"\xc1stgsig1"
    assert "`c1` `stgsig1`" in SECTION
    assert 1 << PATH_MAX == LEAVES_MAX
    assert f"h is at most {PATH_MAX}" in SECTION
    for name in KeptNode.__struct_fields__:
        assert f"`{name}`" in SECTION


def test_a_line_of_the_file_of_known_nodes() -> None:
    line = '{"name":"delivery/north/a","key":"00ff"}'
    assert msgspec.json.encode(KeptNode("delivery/north/a", "00ff")).decode() == line
    assert json.loads(line)["key"] == "00ff"
