"""Options of a bus URL: nats://[user:password@]host[:port][,…][/fleet][?option=value&…]. Pure."""

from __future__ import annotations

from msgspec import Struct

from stigmergy.base.errors import ConfigError, StigmergyError
from stigmergy.bus.port import check_client_id, check_pattern
from stigmergy.nats.address import NatsAddress, parse_address
from stigmergy.nats.bus.subjects import Subjects, filters_of

OPTIONS = ("replicas", "topics", "age_s", "stored_mb", "session_s", "will_s", "mqtt")
AGE_S = 7 * 24 * 3600.0
"""Older messages are dropped, whether everybody has them or not."""
AGE_S_MAX = 365 * 24 * 3600.0
STORED_MB = 512
"""For all messages of a fleet; beyond it the oldest are dropped."""
STORED_MB_MAX = 1024 * 1024
SESSION_S = 7 * 24 * 3600.0
"""The server forgets a session that was unused for this long."""
SESSION_S_MIN = 1.0
"""With this the client removes its session when it closes."""
WILL_S = 6.0
"""A node that was silent for this long counts as gone: the server publishes its will."""
WILL_S_MIN = 0.5
WILL_S_MAX = 3600.0
TOPICS_COUNT_MAX = 64


class BusOptions(Struct, frozen=True):
    """The servers, the fleet, and the settings of its bus."""

    address: NatsAddress
    fleet: str
    replicas: int = 1
    topics: tuple[str, ...] = ()
    """Patterns that the fleet's stream captures beside the fleet's own topics."""
    age_s: float = AGE_S
    stored_mb: int = STORED_MB
    session_s: float = SESSION_S
    will_s: float = WILL_S
    mqtt: bool = True
    """Whether devices on the servers' MQTT listeners get our messages at quality of service 1."""

    @property
    def place(self) -> str:
        """The bus as error texts name it."""
        return self.address.shown

    @property
    def subjects(self) -> Subjects:
        """The names that this fleet's bus uses on NATS."""
        return Subjects(self.fleet)


def read_options(url: str, client_id: str) -> BusOptions:
    """Parses the URL. Raises ConfigError that names the wrong part.

    The fleet is the path of the URL, else the beginning of the client id, which is fleet:site:node.
    """
    address = parse_address(url, OPTIONS)
    check_client_id(client_id)
    if address.option("mqtt", "yes") not in ("yes", "no"):
        raise ConfigError(f"mqtt={address.option('mqtt')}: give yes or no")
    return BusOptions(
        address=address,
        fleet=address.path or client_id.partition(":")[0],
        replicas=address.replicas,
        topics=_topics(address.option("topics")),
        age_s=_number(address, "age_s", AGE_S, 1.0, AGE_S_MAX),
        stored_mb=int(_number(address, "stored_mb", STORED_MB, 1, STORED_MB_MAX)),
        session_s=_number(address, "session_s", SESSION_S, SESSION_S_MIN, AGE_S_MAX),
        will_s=_number(address, "will_s", WILL_S, WILL_S_MIN, WILL_S_MAX),
        mqtt=address.option("mqtt", "yes") == "yes",
    )


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(topic for topic in text.split(",") if topic)
    if len(topics) > TOPICS_COUNT_MAX:
        raise ConfigError(f"topics={text[:100]}…: {len(topics)} patterns; give {TOPICS_COUNT_MAX} at most")
    for topic in topics:
        try:
            check_pattern(topic)
            filters_of(topic)
        except StigmergyError as error:
            raise ConfigError(f"topics={text}: {error}") from None
        if topic.split("/")[0] in ("+", "#"):
            raise ConfigError(f"topics={text}: {topic!r} captures other fleets' topics; begin it with a fixed level")
    return topics


def _number(address: NatsAddress, name: str, default: float, least: float, most: float) -> float:
    text = address.option(name)
    try:
        number = float(text) if text else float(default)
    except ValueError:
        raise ConfigError(f"{name}={text} is not a number") from None
    if not least <= number <= most:
        raise ConfigError(f"{name}={text}; it must be {least:g} to {most:g}")
    return number
