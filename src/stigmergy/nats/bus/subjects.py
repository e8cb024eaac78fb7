"""Maps topics to subjects of NATS and back, as NATS itself maps those of MQTT; and which subjects cover which. Pure.

    delivery/north/agents/Drone/D-17/commands      delivery.north.agents.Drone.D-17.commands
    a.b/c                                          a//b.c
    a//b                                           a./.b

So a device on MQTT and a node on NATS meet on the same topics of a NATS server.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from stigmergy.base.errors import Malformed
from stigmergy.bus.port import BusMessage
from stigmergy.nats.naming import bus_session, bus_subject, kept_subject

MQTT_MESSAGES = "$MQTT.msgs"
"""Where NATS keeps what it is to give to MQTT sessions at quality of service 1 or 2."""
MQTT_RETAINED = "$MQTT.rmsgs"


class Subjects(Struct, frozen=True):
    """The subjects of one fleet's bus."""

    fleet: str

    @property
    def root(self) -> str:
        """What all topics of the fleet begin with: its name as `bus/topics.py` escapes it."""
        return self.fleet.replace(".", "%2E")

    @property
    def inner(self) -> str:
        """Beginning of what the bus says to itself, in the stream of the messages."""
        return bus_subject(self.fleet)

    @property
    def kept(self) -> str:
        """Beginning of the subjects of retained messages."""
        return kept_subject(self.fleet)

    def kept_of(self, subject: str) -> str:
        """Where the retained message of a subject lies."""
        return f"{self.kept}.said.{subject}"

    def will_of(self, client_id: str) -> str:
        """Where a client's will waits."""
        return f"{self.inner}.will.{bus_session(client_id)}"

    def kept_will_of(self, client_id: str) -> str:
        """Where it waits to be retained."""
        return f"{self.kept}.will.{bus_session(client_id)}"


def subject_of(topic: str) -> str:
    """The subject of a topic. Raises Malformed for one that NATS cannot carry."""
    return ".".join(_token_of(level, topic) for level in topic.split("/"))


def topic_of(subject: str) -> str:
    """The topic of a subject."""
    return "/".join("" if found == "/" else found.replace("//", ".") for found in subject.split("."))


def filters_of(pattern: str) -> tuple[str, ...]:
    """The subjects that a pattern stands for: `a/#` is `a` and `a.>`."""
    levels = pattern.split("/")
    tokens = [{"+": "*", "#": ">"}.get(level) or _token_of(level, pattern) for level in levels]
    if levels[-1] == "#" and len(levels) > 1:
        return (".".join(tokens[:-1]), ".".join(tokens))
    return (".".join(tokens),)


def covers(wide: str, narrow: str) -> bool:
    """Whether every subject that `narrow` stands for is one of `wide`."""
    wanted, found = wide.split("."), narrow.split(".")
    for number, one in enumerate(wanted):
        if one == ">":
            return number < len(found)
        if number == len(found) or found[number] == ">" or (one != "*" and one != found[number]):
            return False
    return len(wanted) == len(found)


def is_covered(narrow: str, by: Iterable[str]) -> bool:
    """Whether one of these covers it."""
    return any(covers(wide, narrow) for wide in by)


def prune(subjects: Iterable[str]) -> list[str]:
    """Without those that others cover: JetStream refuses them."""
    each = list(dict.fromkeys(subjects))
    return [one for one in each if not any(other != one and covers(other, one) for other in each)]


def _token_of(level: str, text: str) -> str:
    if not level:
        return "/"
    if level in ("*", ">") or any(sign.isspace() for sign in level):
        raise Malformed(f"{text[:200]!r}: NATS has no topics with spaces, nor * or > as a level; escape them")
    return level.replace(".", "//")


# A message of the bus as a message of NATS, and back: headers carry everything but the payload. Pure.

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
