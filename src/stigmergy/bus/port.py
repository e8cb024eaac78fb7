"""The bus port: messages by topic between nodes, devices and other clients, over a link that comes and goes.

Topics are texts with `/` between their levels. A pattern may have `+` for one level and, at its end, `#` for all that
follow. The bus gives topics no meaning; `bus/topics.py` says how ours are named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec import Struct

from stigmergy.base.errors import ConfigError, Malformed, StigmergyError, TooLarge

TOPIC_BYTES_MAX = 1024
CLIENT_ID_BYTES_MAX = 200
PAYLOAD_BYTES_MAX = 1024 * 1024
PROPERTIES_BYTES_MAX = 16 * 1024
"""All names and values of a message's properties, and its content type, together."""
HANDLED_COUNT_MAX = 256
"""Messages of one pattern that may be with its handler at the same time, not yet acknowledged."""
HANDLED_PER_SOURCE_MAX = HANDLED_COUNT_MAX // 2
"""The most of one source: there is always room for another one."""
UP, LOCAL_ONLY, NO_BUS = "up", "local-only", "none"
"""The states of a node's link to its bus, as its status says them."""


class BusMessage(Struct, frozen=True):
    topic: str
    payload: bytes
    content_type: str = ""
    """Empty if the protocol cannot carry it (MQTT 3.1.1)."""
    properties: tuple[tuple[str, str], ...] = ()
    """Headers. A protocol without headers drops them: the payload must do without them."""
    retained: bool = False
    """Sent: the broker keeps it for later subscribers, an empty payload clears it. Received: it was kept, not new."""


Handler = Callable[[BusMessage], Awaitable[None]]
"""Handles a message. The broker gets the acknowledgement only when this returns; if it raises, the message comes again.

The error says when. PeerError: never, it is refused for good and counted. SequenceGap, although a PeerError: after
messages that wait behind it, because something before it is still to come. Any other error: it alone, after a pause;
`bus/inbox.py` has the bounds.
"""

Admit = Callable[[str, BusMessage, int, int], bool]
"""Whether a source may send this message now, which counts against it; given how many messages of this source and of
all wait here or are with a handler. Called once for each arrival."""


class Gate:
    """A handler that names the source of a message, and may shed the message on arrival, before it waits for anything.

    A shed message is acknowledged at once, even before older ones: messages of others must not wait behind a flood.
    A bus without support for gates may call one like any handler.
    """

    def __init__(
        self,
        source_of: Callable[[str], str],
        admit: Admit,
        handle: Handler,
        *,
        shed: Callable[[str], None] | None = None,
        wants: Callable[[str], bool] | None = None,
    ) -> None:
        self.source_of = source_of
        """The source whose share a message uses, by its topic. Messages of one source stay in order."""
        self.admit = admit
        self.handle = handle
        self.shed = shed
        """Called with a source whose message found no room at all. None: the message waits."""
        self.wants = wants
        """Whether a message on this topic is for this handler; what is not, `admit` sheds unread. None: all are."""

    async def __call__(self, message: BusMessage) -> None:
        """Handles a message, or sheds it."""
        if self.admit(self.source_of(message.topic), message, 0, 0):
            await self.handle(message)


LinkHeard = Callable[[bool], None]
"""Called on the event loop when the link comes up (True) or is lost (False)."""


def tell_link(listeners: Sequence[LinkHeard], up: bool, client_id: str) -> None:
    """Calls all listeners: the link came up, or was lost."""
    for heard in tuple(listeners):
        try:
            heard(up)
        except Exception as error:
            # A listener's bug must not break the link.
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"{client_id}: a listener for the link failed", "exception": error}
            )


class Bus(Protocol):
    """A connection to a broker that reconnects itself.

    Ordering: messages of one publisher on one topic arrive in the order of their `publish` calls; repetitions may
        lie between them. Between topics there is no order. After a broken link some brokers (NATS is one) deliver
        unacknowledged messages after newer ones: receivers that need the order keep marks and raise SequenceGap.
    Durability: `publish` returns once the broker has the message, which does not prove that anybody gets it: a broker
        may silently drop messages without permission. If you must know, ask for an answer.
    Duplication: at least once. Messages in flight when the link broke may come twice; receivers keep marks.
    Concurrency: publishes may overlap. A pattern's handler is called in order of arrival for each source, which is the
        topic, or what a Gate says; sources take turns. It is called again before earlier calls are done, at most
        HANDLED_COUNT_MAX at once: so a receiver that waits for its disk handles many with one write. A handler must
        fix its order before it first waits. The broker gets acknowledgements in order of arrival, except for early
        and shed messages.
    Offline: while the link is down `publish` raises LinkDown at once and nothing was sent; if it breaks during a
        publish, LinkDown means that the outcome is unknown: publish it again. Subscriptions are remembered and made
        again when the link is back; the session survives, so the broker holds messages meanwhile, within its limits.
    Errors: LinkDown, TooLarge, Malformed (an invalid topic or pattern). No driver's error passes unchanged.
    """

    @property
    def is_up(self) -> bool:
        """Whether the link is up, as far as we know."""
        ...

    @property
    def last_error(self) -> StigmergyError | None:
        """Why the link is down: ConfigError if somebody must fix something first, else LinkDown. None if it is up."""
        ...

    def on_link(self, heard: LinkHeard) -> None:
        """Calls `heard` at every change of the link. There may be several listeners."""
        ...

    async def open(self, will: BusMessage | None = None) -> None:
        """Starts connecting and returns at once; from now on the link comes and goes by itself.

        The broker publishes `will` if the link is lost without `close`. Subscribe before, or soon after: held messages
        come as soon as the link is up.
        """
        ...

    async def publish(self, message: BusMessage) -> None:
        """Gives a message to the broker; returns when the broker has it."""
        ...

    async def subscribe(self, pattern: str, handler: Handler) -> None:
        """Calls the handler with every matching message, also after a reconnect. Works while the link is down."""
        ...

    async def close(self) -> None:
        """Disconnects in order: no will is published. Handlers under way finish first, within a bound."""
        ...


def check_topic(topic: str) -> None:
    """Raises Malformed or TooLarge unless this topic can be published on."""
    _check_text("topic", topic)
    if "+" in topic or "#" in topic:
        raise Malformed(f"topic {topic!r}: + and # are for patterns; publish on one topic")


def check_pattern(pattern: str) -> None:
    """Raises Malformed or TooLarge unless this can be subscribed to."""
    _check_text("pattern", pattern)
    levels = pattern.split("/")
    for number, level in enumerate(levels, start=1):
        if ("+" in level or "#" in level) and len(level) > 1:
            raise Malformed(f"pattern {pattern!r}: + and # stand for whole levels; write a/+/c or a/#")
        if level == "#" and number < len(levels):
            raise Malformed(f"pattern {pattern!r}: # matches all that follows and must be the last level")


def check_client_id(client_id: str) -> None:
    """Raises ConfigError unless a broker can keep a session under this id."""
    if not client_id or not client_id.isprintable() or len(client_id.encode(errors="replace")) > CLIENT_ID_BYTES_MAX:
        raise ConfigError(
            f"client id {client_id!r}: give a printable name of 1 to {CLIENT_ID_BYTES_MAX} bytes that stays the same"
        )


def check_message(message: BusMessage) -> None:
    """Raises Malformed or TooLarge unless this message can be published."""
    check_topic(message.topic)
    if len(message.payload) > PAYLOAD_BYTES_MAX:
        raise TooLarge(f"{message.topic}: payload of {len(message.payload)} bytes, at most {PAYLOAD_BYTES_MAX}")
    try:
        headers = sum(len(text.encode()) for pair in message.properties for text in pair)
        headers += len(message.content_type.encode())
    except UnicodeEncodeError as error:
        raise Malformed(f"{message.topic}: a property is not valid UTF-8: {error}") from None
    if headers > PROPERTIES_BYTES_MAX:
        raise TooLarge(f"{message.topic}: properties of {headers} bytes, at most {PROPERTIES_BYTES_MAX}")


def has_wildcards(pattern: str) -> bool:
    """Whether a valid pattern matches other topics than the one of the same text."""
    return "+" in pattern or "#" in pattern


def matches(pattern: str, topic: str) -> bool:
    """Whether a pattern matches a topic. Both must be valid."""
    wanted, found = pattern.split("/"), topic.split("/")
    for number, level in enumerate(wanted):
        if level == "#":
            return True
        if number == len(found) or level not in ("+", found[number]):
            return False
    return len(wanted) == len(found)


def _check_text(what: str, text: str) -> None:
    if not text:
        raise Malformed(f"empty {what}; name at least one level")
    if text.startswith("$"):
        raise Malformed(f"{what} {text!r}: names that begin with $ belong to the broker")
    if not text.isprintable() and any(ord(sign) < 32 or 127 <= ord(sign) < 160 for sign in text):
        raise Malformed(f"{what} {text!r}: control characters; escape them")
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise Malformed(f"{what} {text!r}: not valid UTF-8: {error}") from None
    if size_bytes > TOPIC_BYTES_MAX:
        raise TooLarge(f"{what} of {size_bytes} bytes, at most {TOPIC_BYTES_MAX}")
