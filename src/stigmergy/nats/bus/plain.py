"""The Bus port over plain NATS, for clients: no session, no will, and it makes or changes no stream.

It publishes into the fleet's stream, which must exist: nodes make it. Subscribers get messages as they are published;
they miss messages while the link is down.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from stigmergy.base.errors import ConfigError, LinkDown, StigmergyError
from stigmergy.bus.port import BusMessage, Handler, LinkHeard, check_message, check_pattern
from stigmergy.nats.bus.subjects import filters_of, headers_of, message_of, subject_of
from stigmergy.nats.errors import JetStreamRefused
from stigmergy.nats.link import NatsLink

if TYPE_CHECKING:
    from nats.aio.msg import Msg

__all__ = ["PlainNatsBus"]


class PlainNatsBus:
    """A bus on an open link."""

    def __init__(self, link: NatsLink, *, owns_link: bool = True) -> None:
        self._link = link
        self._owns_link = owns_link

    @property
    def is_up(self) -> bool:
        return self._link.is_up

    @property
    def last_error(self) -> StigmergyError | None:
        return None if self.is_up else self._link.last_error

    def on_link(self, heard: LinkHeard) -> None:
        self._link.on_link(heard)

    async def open(self, will: BusMessage | None = None) -> None:
        """Does nothing: the link is open already."""
        if will is not None:
            raise ConfigError("a client leaves no will; nodes do")

    async def publish(self, message: BusMessage) -> None:
        check_message(message)
        try:
            await self._link.publish(subject_of(message.topic), message.payload, headers_of(message))
        except JetStreamRefused as refused:
            raise LinkDown(f"{message.topic}: {self._link.address.shown} did not store it: {refused}") from None

    async def subscribe(self, pattern: str, handler: Handler) -> None:
        check_pattern(pattern)

        async def take(message: Msg) -> None:
            await handler(message_of(message.subject, message.data, message.headers))

        for subject in filters_of(pattern):
            await self._link.subscribe(subject, take)
        if self._link.is_up:
            with contextlib.suppress(LinkDown):  # the link subscribes again when it is back
                await self._link.flush()

    async def close(self) -> None:
        if self._owns_link:
            await self._link.close()
