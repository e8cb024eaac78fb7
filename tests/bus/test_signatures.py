"""Signatures of messages on a bus: the bytes, and that nothing but what was signed is believed."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.base.errors import Malformed
from stigmergy.bus.cloudevents import JSON, STRUCTURED, CloudEvent, read_event, write_binary, write_structured
from stigmergy.bus.port import BusMessage
from stigmergy.bus.signatures import (
    ATTRIBUTE,
    LEAVES_MAX,
    PATH_MAX,
    TRAILER,
    CheckedRoots,
    Identity,
    read_proof,
    read_signed,
    sign_batch,
    without_proof,
)
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier

ME = Identity("delivery/north/D-17", Ed25519Signer(b"\x07" * 32))
TOPIC = "delivery/north/agents/Drone/D-17/events/battery"
EVENT = CloudEvent(
    "7.0.41.0",
    "/delivery/north/agents/Drone/D-17",
    "BatteryMeasured@1",
    subject="Drone/D-17",
    datacontenttype=JSON,
    data={"percent": 87.5},
    extensions={"sequence": "41", "incarnation": "7"},
)


def structured(number: int = 41, topic: str = TOPIC) -> BusMessage:
    event = CloudEvent(f"7.0.{number}.0", "/x", "T@1", data={"number": number}, extensions={"sequence": str(number)})
    return BusMessage(topic, write_structured(event), content_type=STRUCTURED)


def binary() -> BusMessage:
    payload, content_type, properties = write_binary(EVENT)
    return BusMessage(TOPIC, payload, content_type, properties)


def frame(data: bytes = b"\x93\x01\x02\x03") -> BusMessage:
    return BusMessage("delivery/north/uplink/D-17", data, "application/vnd.stigmergy.tells+msgpack")


def roots() -> CheckedRoots:
    return CheckedRoots(Ed25519Verifier().verify, 100)


def is_believed(message: BusMessage, checked: CheckedRoots) -> bool:
    """Whether a receiver believes that D-17 has said this: as a receiver decides, and never by an error of its own."""
    try:
        bare, proof = read_signed(message)
    except Malformed:
        return False
    if proof is None or proof.signer != ME.name or proof.key != ME.signer.public_key:
        return False
    return checked.is_signed(bare, proof)


@pytest.mark.parametrize("message", [structured(), binary(), frame()], ids=["structured", "binary", "frame"])
def test_a_signed_message_is_believed_and_is_what_it_was_without_its_proof(message: BusMessage) -> None:
    (signed,) = sign_batch([message], ME)
    assert signed != message
    assert is_believed(signed, roots())
    assert without_proof(signed) == message
    assert read_signed(message) == (message, None)


def test_foreign_readers_read_a_plain_cloudevent() -> None:
    (signed,) = sign_batch([structured()], ME)
    document = json.loads(signed.payload)
    assert list(document)[-1] == ATTRIBUTE
    assert 1 <= len(ATTRIBUTE) <= 20
    assert read_event(signed.payload, STRUCTURED, ()).data == {"number": 41}
    by_properties = sign_batch([binary()], ME)[0]
    assert by_properties.payload == binary().payload
    assert read_event(by_properties.payload, by_properties.content_type, by_properties.properties).data == EVENT.data


@given(st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=LEAVES_MAX), st.randoms())
def test_every_message_of_a_batch_is_believed_and_none_with_the_proof_of_another(
    bodies: list[bytes], chance: random.Random
) -> None:
    messages = [frame(body) if body[0] & 1 else structured(number) for number, body in enumerate(bodies)]
    signed = sign_batch(messages, ME)
    checked = roots()
    assert all(is_believed(one, checked) for one in signed)
    assert [without_proof(one) for one in signed] == messages
    one, other = chance.randrange(len(signed)), chance.randrange(len(signed))
    if messages[one].payload.startswith(b"{") or messages[other].payload.startswith(b"{"):
        return
    proof = signed[other].payload.removeprefix(messages[other].payload)
    swapped = BusMessage(signed[one].topic, messages[one].payload + proof)
    assert is_believed(swapped, checked) == (messages[one] == messages[other]), "a proof is of what is said, and where"


def test_a_batch_has_one_signature() -> None:
    signed = sign_batch([structured(number) for number in range(LEAVES_MAX)], ME)
    proofs = [read_signed(one)[1] for one in signed]
    assert len({proof.signature for proof in proofs if proof is not None}) == 1
    assert {len(proof.path) for proof in proofs if proof is not None} == {PATH_MAX}
    checks: list[bytes] = []

    def verify(algorithm: int, key: bytes, statement: bytes, signature: bytes) -> bool:
        checks.append(statement)
        return Ed25519Verifier().verify(algorithm, key, statement, signature)

    checked = CheckedRoots(verify, 100)
    assert all(is_believed(one, checked) for one in signed)
    assert len(checks) == 1


@pytest.mark.parametrize(
    "topic",
    [
        "delivery/north/agents/Drone/D-18/events/battery",
        "delivery/south/agents/Drone/D-17/events/battery",
        "other/north/agents/Drone/D-17/events/battery",
        TOPIC + "/more",
    ],
)
def test_a_message_is_worth_nothing_on_another_topic(topic: str) -> None:
    for message in (structured(), binary(), frame()):
        (signed,) = sign_batch([message], ME)
        moved = BusMessage(topic, signed.payload, signed.content_type, signed.properties)
        assert not is_believed(moved, roots())


def test_attributes_of_a_binary_event_cannot_be_changed_added_or_taken_away() -> None:
    (signed,) = sign_batch([binary()], ME)
    for at, (name, value) in enumerate(signed.properties):
        if name != ATTRIBUTE:
            changed = (*signed.properties[:at], (name, value + "1"), *signed.properties[at + 1 :])
            fewer = (*signed.properties[:at], *signed.properties[at + 1 :])
            for properties in (changed, fewer, (*signed.properties, ("epoch", "9"))):
                assert not is_believed(BusMessage(TOPIC, signed.payload, signed.content_type, properties), roots())
    # A structured event may not become a binary one: other attributes would count then.
    (text,) = sign_batch([structured()], ME)
    properties = (("specversion", "1.0"), ("id", "1"), ("source", "/x"), ("type", "T"))
    assert not is_believed(BusMessage(TOPIC, text.payload, JSON, properties), roots())


@pytest.mark.parametrize("form", ["structured", "frame"])
def test_a_hundred_thousand_mutations_are_refused(form: str) -> None:
    """Half of them of each form: flips of one bit or more, bytes put in, taken out, doubled, cut and moved."""
    chance = random.Random(600)
    messages = [structured(number) if form == "structured" else frame(b"%d" % number) for number in range(11)]
    signed = sign_batch(messages, ME)
    checked = roots()
    assert all(is_believed(one, checked) for one in signed)
    tried = 0
    while tried < 50_000:
        one = chance.choice(signed)
        data = bytearray(one.payload)
        at = chance.randrange(len(data))
        match chance.randrange(6):
            case 0 | 1:
                data[at] ^= 1 << chance.randrange(8)
            case 2:
                for _ in range(chance.randrange(2, 9)):
                    data[chance.randrange(len(data))] ^= chance.randrange(1, 256)
            case 3:
                data[at:at] = chance.randbytes(chance.randrange(1, 5))
            case 4:
                del data[at : at + chance.randrange(1, 9)]
            case _:
                to, size = chance.randrange(len(data)), chance.randrange(1, 40)
                data[to : to + size] = data[at : at + size]
        if bytes(data) == one.payload:
            continue
        tried += 1
        assert not is_believed(BusMessage(one.topic, bytes(data), one.content_type), checked), (one.payload, data)
    assert tried == 50_000


def test_a_proof_has_one_spelling() -> None:
    (signed,) = sign_batch([structured()], ME)
    begin = signed.payload.rindex(b'":"') + 3
    text = signed.payload[begin:-2]
    for other in (text + b"=", text[:-1], b" " + text, text.replace(b"+", b"-").replace(b"/", b"_") + b"\\u0041"):
        respelt = BusMessage(TOPIC, signed.payload[:begin] + other + b'"}', STRUCTURED)
        assert not is_believed(respelt, roots())


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for payload in (data, data + TRAILER, data + len(data).to_bytes(2, "big") + TRAILER):
        try:
            bare, proof = read_signed(BusMessage(TOPIC, payload))
        except Malformed:
            continue
        assert proof is None or not roots().is_signed(bare, proof)
    with pytest.raises(Malformed):
        read_proof(data[:100] + b"\xff" * 200)


def test_what_is_no_json_object_is_not_signed_as_one() -> None:
    for payload in (b"", b"{}", b"[1]", b"text"):
        with pytest.raises(Malformed, match="no JSON object"):
            sign_batch([BusMessage(TOPIC, payload, STRUCTURED)], ME)
