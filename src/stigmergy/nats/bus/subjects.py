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
"""Where NATS stores messages for MQTT sessions at quality of service 1 or 2."""
MQTT_RETAINED = "$MQTT.rmsgs"
STORED_GROUPS = ("agents", "nodes", "uplink")
"""The third level of a fleet's topics whose messages its stream captures."""
DATAGRAMS = "mesh"
"""The third level of the topics of datagrams. They are not stored: a newer one says more, and an answer to a stored one
would be stored too."""


class Subjects(Struct, frozen=True):
    """The subjects of one fleet's bus."""

    fleet: str

    @property
    def root(self) -> str:
        """The first level of the fleet's topics: its name as `bus/topics.py` escapes it."""
        return self.fleet.replace(".", "%2E")

    @property
    def stored(self) -> tuple[str, ...]:
        """The fleet's topics that its stream captures."""
        return tuple(f"{self.root}.*.{group}.>" for group in STORED_GROUPS)

    @property
    def inner(self) -> str:
        """Prefix of the bus's internal subjects, in the stream of the messages."""
        return bus_subject(self.fleet)

    @property
    def kept(self) -> str:
        """Prefix of the subjects of retained messages."""
        return kept_subject(self.fleet)

    def kept_of(self, subject: str) -> str:
        """The subject of the retained message of a subject."""
        return f"{self.kept}.said.{subject}"

    def will_of(self, client_id: str) -> str:
        """The subject of a client's scheduled will."""
        return f"{self.inner}.will.{bus_session(client_id)}"

    def kept_will_of(self, client_id: str) -> str:
        """The same for the will's retained copy."""
        return f"{self.kept}.will.{bus_session(client_id)}"


def subject_of(topic: str) -> str:
    """The subject of a topic. Raises Malformed if NATS cannot carry it."""
    return ".".join(_token_of(level, topic) for level in topic.split("/"))


def topic_of(subject: str) -> str:
    return "/".join("" if found == "/" else found.replace("//", ".") for found in subject.split("."))


def filters_of(pattern: str) -> tuple[str, ...]:
    """The subjects that a pattern matches: `a/#` is `a` and `a.>`."""
    levels = pattern.split("/")
    tokens = [{"+": "*", "#": ">"}.get(level) or _token_of(level, pattern) for level in levels]
    if levels[-1] == "#" and len(levels) > 1:
        return (".".join(tokens[:-1]), ".".join(tokens))
    return (".".join(tokens),)


def is_datagram(subject: str) -> bool:
    """Whether messages on this subject, or filter, are datagrams."""
    levels = subject.split(".", 3)
    return len(levels) == 4 and levels[2] == DATAGRAMS


def covers(wide: str, narrow: str) -> bool:
    """Whether `wide` matches every subject that `narrow` matches."""
    wanted, found = wide.split("."), narrow.split(".")
    for number, one in enumerate(wanted):
        if one == ">":
            return number < len(found)
        if number == len(found) or found[number] == ">" or (one != "*" and one != found[number]):
            return False
    return len(wanted) == len(found)


def collide(one: str, other: str) -> bool:
    """Whether some subject matches both."""
    left, right = one.split("."), other.split(".")
    for mine, theirs in zip(left, right, strict=False):
        if ">" in (mine, theirs):
            return True
        if "*" not in (mine, theirs) and mine != theirs:
            return False
    return len(left) == len(right)


def is_covered(narrow: str, by: Iterable[str]) -> bool:
    """Whether one of `by` covers it."""
    return any(covers(wide, narrow) for wide in by)


def prune(subjects: Iterable[str]) -> list[str]:
    """Drops subjects that others cover: JetStream refuses overlapping ones."""
    each = list(dict.fromkeys(subjects))
    return [one for one in each if not any(other != one and covers(other, one) for other in each)]


def _token_of(level: str, text: str) -> str:
    if not level:
        return "/"
    if level in ("*", ">") or any(sign.isspace() for sign in level):
        raise Malformed(f"{text[:200]!r}: NATS allows no spaces in topics, and no * or > as a level; escape them")
    return level.replace(".", "//")


# A message of the bus as a message of NATS, and back: headers carry everything but the payload. Pure.

CONTENT_TYPE = "Content-Type"
PROPERTIES = "Stig-Properties"
"""Names and values as JSON: a NATS header has a single value, in ASCII."""
MQTT_QOS = "Nmqtt-Pub"
"""A header of NATS itself: it makes MQTT sessions get a message from their stream."""
MQTT_TOPIC = "Nmqtt-RTopic"
MQTT_FLAGS = "Nmqtt-RFlags"
_RETAINED_AT_QOS_1 = "3"
_HEADERS_BYTES = 12
_HEADER_BYTES = 4
"""The overhead of headers: of the whole block, and of each."""
_pairs = msgspec.json.Decoder(tuple[tuple[str, str], ...])


def headers_of(message: BusMessage) -> dict[str, str]:
    """The headers of a message; none if it is all payload."""
    headers: dict[str, str] = {}
    if message.content_type:
        headers[CONTENT_TYPE] = message.content_type
    if message.properties:
        headers[PROPERTIES] = json.dumps(message.properties, separators=(",", ":"))
    return headers


def retained_headers(message: BusMessage) -> dict[str, str]:
    """The headers of the retained copy, with those that NATS needs to give it to MQTT sessions."""
    return headers_of(message) | {MQTT_TOPIC: message.topic, MQTT_FLAGS: _RETAINED_AT_QOS_1}


def size_of(payload: bytes, headers: Mapping[str, str]) -> int:
    """The size that counts against the server's limit. The client library does not count headers, and the server closes
    the connection on a larger message."""
    counted = sum(len(name) + len(value.encode()) + _HEADER_BYTES for name, value in headers.items())
    return len(payload) + (counted + _HEADERS_BYTES if headers else 0)


def message_of(
    subject: str, payload: bytes, headers: Mapping[str, str] | None, *, retained: bool = False
) -> BusMessage:
    """A received message. Headers that do not parse are left out: the payload can do without them."""
    if not headers:
        return BusMessage(topic_of(subject), payload, retained=retained)
    properties: tuple[tuple[str, str], ...] = ()
    if (text := headers.get(PROPERTIES)) is not None:
        try:
            properties = _pairs.decode(text)
        except msgspec.DecodeError:
            properties = ()
    return BusMessage(topic_of(subject), payload, headers.get(CONTENT_TYPE, ""), properties, retained)
