"""Publishes a message of the bus: into the fleet's stream, the retained stream, and to devices on MQTT."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from stigmergy.base.errors import ConfigError, LinkDown, Malformed, StigmergyError, TooLarge
from stigmergy.bus.port import BusMessage
from stigmergy.nats.bus.options import BusOptions
from stigmergy.nats.bus.outlet import Outlet
from stigmergy.nats.bus.routing import find_others, fleet_of
from stigmergy.nats.bus.streams import ensure_subjects
from stigmergy.nats.bus.subjects import (
    MQTT_MESSAGES,
    MQTT_QOS,
    headers_of,
    is_covered,
    is_datagram,
    retained_headers,
    size_of,
    subject_of,
)
from stigmergy.nats.errors import JetStreamRefused
from stigmergy.nats.link import NatsLink

TOPICS_KNOWN_MAX = 10_000
"""Bound of the cache of topics and their subjects."""
MESSAGE_TOO_LARGE = 10054


class NoRoom(LinkDown):
    """The servers have no room for messages: nothing was stored, and a retry does not help."""


class NatsPublisher:
    """Publishes the messages of one bus."""

    def __init__(self, link: NatsLink, outlet: Outlet, options: BusOptions) -> None:
        self._link = link
        self._outlet = outlet
        self._options = options
        self.has_mqtt = False
        """Devices use MQTT on these servers: they get copies."""
        self._captured: list[str] = []
        self._known: dict[str, tuple[str, bool]] = {}
        """By topic: its subject, and whether the stream captures it."""

    def begin(self, subjects: Iterable[str]) -> None:
        """Forgets what streams captured: the link is new, and the fleet's stream captures `subjects` now."""
        self._captured = list(subjects)
        self._known.clear()

    def note_captured(self, subjects: Iterable[str]) -> None:
        """Adds to the captured subjects."""
        fresh = [one for one in subjects if one not in self._captured]
        if fresh:
            self._captured += fresh
            self._known.clear()

    async def publish(self, message: BusMessage) -> None:
        """Returns when JetStream has stored it; a datagram, when it is sent. Raises LinkDown, TooLarge or Malformed."""
        subject, is_captured = self._place_of(message.topic)
        if is_datagram(subject):
            headers = headers_of(message)
            self._check_size(message, headers)
            await self._link.tell(subject, message.payload, headers=headers or None)
            return
        fleet = None if is_captured else fleet_of(subject)
        if fleet is not None:
            self.note_captured((await find_others(self._link, self._options, fleet)).config["subjects"])
            subject, is_captured = self._place_of(message.topic)
        elif not is_captured and subject.startswith(f"{self._options.subjects.root}."):
            self.note_captured(await self._capture_all(message))
            subject, is_captured = self._place_of(message.topic)
        headers = headers_of(message)
        if self.has_mqtt:
            headers[MQTT_QOS] = "1"
        kept_headers = retained_headers(message) if message.retained else {}
        self._check_size(message, kept_headers or headers)
        posts: list[asyncio.Future[None]] = []
        # Send all copies before waiting for an answer: no other publish may come in between.
        if is_captured:
            posts.append(await self._outlet.post(subject, message.payload, headers or None))
        else:
            await self._link.tell(subject, message.payload, headers=headers or None)
        if message.retained:
            kept = self._options.subjects.kept_of(subject)
            posts.append(await self._outlet.post(kept, message.payload, kept_headers))
        by_mqtt: asyncio.Future[None] | None = None
        if self.has_mqtt:
            by_mqtt = await self._outlet.post(f"{MQTT_MESSAGES}.{subject}", message.payload, headers)
        try:
            for post in posts:
                await post
        except JetStreamRefused as refused:
            raise self._explain(message, refused) from None
        if by_mqtt is not None:
            try:
                await by_mqtt
            except (JetStreamRefused, LinkDown):
                self.has_mqtt = False  # until the next check; devices without a session hear it anyway

    async def _capture_all(self, message: BusMessage) -> list[str]:
        """Makes the stream capture all topics of the fleet, for one that is not among those it captures from the
        start."""
        try:
            found = await ensure_subjects(self._link, self._options, [f"{self._options.subjects.root}.>"])
        except ConfigError as error:
            raise Malformed(f"{message.topic}: {error}") from None
        except JetStreamRefused as refused:
            raise self._explain(message, refused) from None
        subjects: list[str] = found.config["subjects"]
        return subjects

    def _check_size(self, message: BusMessage, headers: Mapping[str, str]) -> None:
        size_bytes = size_of(message.payload, headers)
        if size_bytes > self._link.max_payload_bytes:
            raise TooLarge(
                f"{message.topic}: a message of {size_bytes} bytes with its headers; the server accepts "
                f"{self._link.max_payload_bytes} at most; raise max_payload in its configuration, or send less"
            )

    def _place_of(self, topic: str) -> tuple[str, bool]:
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= TOPICS_KNOWN_MAX:
                self._known.clear()
            subject = subject_of(topic)
            known = self._known[topic] = (subject, is_covered(subject, self._captured))
        return known

    def _explain(self, message: BusMessage, refused: JetStreamRefused) -> StigmergyError:
        if refused.code == MESSAGE_TOO_LARGE:
            return TooLarge(f"{message.topic}: {refused.description}; raise max_msg_size of the stream, or send less")
        if refused.is_full:
            return no_room(self._options, refused)
        return LinkDown(f"{message.topic}: JetStream has not stored it: {refused}; publish it again")


def no_room(options: BusOptions, refused: JetStreamRefused) -> NoRoom:
    """The error when the servers are full."""
    return NoRoom(
        f"{options.place}: there is no room for messages ({refused.description}); nothing was stored; make room, or "
        "raise max_file or the account's limits"
    )


def is_down(message: BusMessage) -> LinkDown:
    """The error for a publish while the link is down."""
    return LinkDown(f"{message.topic}: the link is down, nothing was sent; publish it when the link is up")
