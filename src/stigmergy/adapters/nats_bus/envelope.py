"""A message of the bus as a message of NATS, and back: headers for what is no payload. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from stigmergy.adapters.nats_bus.subjects import topic_of
from stigmergy.ports.bus import BusMessage

CONTENT_TYPE = "Content-Type"
PROPERTIES = "Stig-Properties"
"""Names and values as JSON: a header of NATS has no second value, and no letters beyond ASCII."""
MQTT_QOS = "Nmqtt-Pub"
"""NATS's own: with it a message is given to MQTT sessions from their stream, and not past it."""
MQTT_TOPIC = "Nmqtt-RTopic"
MQTT_FLAGS = "Nmqtt-RFlags"
_RETAINED_AT_QOS_1 = "3"
_HEADERS_BYTES = 12
_HEADER_BYTES = 4
"""What headers take beside their names and values: all together, and each."""
_pairs = msgspec.json.Decoder(tuple[tuple[str, str], ...])


def headers_of(message: BusMessage) -> dict[str, str]:
    """What goes into the headers; nothing for a message that is all payload."""
    headers: dict[str, str] = {}
    if message.content_type:
        headers[CONTENT_TYPE] = message.content_type
    if message.properties:
        headers[PROPERTIES] = json.dumps(message.properties, separators=(",", ":"))
    return headers


def retained_headers(message: BusMessage) -> dict[str, str]:
    """Those of the retained copy; with what NATS wants of a copy that MQTT sessions are to find."""
    return headers_of(message) | {MQTT_TOPIC: message.topic, MQTT_FLAGS: _RETAINED_AT_QOS_1}


def size_of(payload: bytes, headers: Mapping[str, str]) -> int:
    """What a message has against the server's limit. The client library does not count headers, and the server ends
    the link for a message over its limit."""
    counted = sum(len(name) + len(value.encode()) + _HEADER_BYTES for name, value in headers.items())
    return len(payload) + (counted + _HEADERS_BYTES if headers else 0)


def message_of(
    subject: str, payload: bytes, headers: Mapping[str, str] | None, *, retained: bool = False
) -> BusMessage:
    """What came. Headers that cannot be read are left out: they are nothing that the payload cannot do without."""
    if not headers:
        return BusMessage(topic_of(subject), payload, retained=retained)
    properties: tuple[tuple[str, str], ...] = ()
    if (text := headers.get(PROPERTIES)) is not None:
        try:
            properties = _pairs.decode(text)
        except msgspec.DecodeError:
            properties = ()
    return BusMessage(topic_of(subject), payload, headers.get(CONTENT_TYPE, ""), properties, retained)
