"""The bus port: messages by topic between nodes, devices and other listeners, over a link that comes and goes.

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
"""So many of them may be of one source: there is always room for another one's."""


class BusMessage(Struct, frozen=True):
    """What travels on a bus."""

    topic: str
    payload: bytes
    content_type: str = ""
    """Empty where the protocol cannot say it (MQTT 3.1.1)."""
    properties: tuple[tuple[str, str], ...] = ()
    """Headers. Dropped by a protocol that has none: put nothing here that the payload cannot do without."""
    retained: bool = False
    """Sent: the broker keeps it for later subscribers, an empty payload clears it. Received: it was kept, not new."""


Handler = Callable[[BusMessage], Awaitable[None]]
"""Takes a message. The broker hears that it was taken only once this returns; if it raises, it comes again.

What is raised says when. PeerError: never, it was refused for good, and is counted. SequenceGap, although a PeerError:
after what waits behind it, because something before it is still to come. Any other error: it alone, after a pause;
see `bus/inbox.py` for the bounds.
"""

Admit = Callable[[str, BusMessage, int, int], bool]
"""Whether a source may send this message now, which counts against it; given how many messages wait here already or are
with a handler, of this source and of all. Called once for each arrival."""


class Gate:
    """A handler that says whose a message is, and may shed it on arrival, before anything waits for it.

    A shed message is acknowledged at once, also before older ones: what the others send must not wait behind a flood.
    A bus that does not look for gates may call one as any handler.
    """

    def __init__(
        self,
        source_of: Callable[[str], str],
        admit: Admit,
        handle: Handler,
        *,
        shed: Callable[[str], None] | None = None,
    ) -> None:
        self.source_of = source_of
        """Whose share a message takes, by its topic. The order of messages of one source is kept."""
        self.admit = admit
        self.handle = handle
        self.shed = shed
        """Told of a source for whose message there was no room left at all. None: it waits nevertheless."""

    async def __call__(self, message: BusMessage) -> None:
        """Takes a message, or sheds it."""
        if self.admit(self.source_of(message.topic), message, 0, 0):
            await self.handle(message)


LinkHeard = Callable[[bool], None]
"""Called on the event loop when the link comes up (True) or is lost (False)."""


def tell_link(listeners: Sequence[LinkHeard], up: bool, client_id: str) -> None:
    """Tells all who listen that the link came up, or was lost."""
    for heard in tuple(listeners):
        try:
            heard(up)
        except Exception as error:
            # A listener's bug is not the link's.
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"{client_id}: a listener for the link failed", "exception": error}
            )


class Bus(Protocol):
    """A connection to a broker that mends itself.

    Ordering: messages of one publisher on one topic arrive in the order of their `publish` calls; repetitions may
        lie between them. Between topics there is no order. When a link broke, some brokers (NATS is one) give what was
        under way on it after what is newer: who needs the order then keeps marks and raises SequenceGap.
    Durability: `publish` returns once the broker has taken the message, which is no proof that anybody gets it: a
        broker may drop what its rights do not allow, and say nothing. Who must know asks for an answer.
    Duplication: at least once. What was under way when the link broke may come twice; receivers keep marks.
    Concurrency: publishes may overlap. A pattern's handler is called in order of arrival for each source, which is the
        topic, or what a Gate says; sources take turns. It is called again before earlier calls are done, at most
        HANDLED_COUNT_MAX at once: a receiver that waits for its disk takes many with one write. A handler keeps its
        order before it first waits. The broker is told in order of arrival, early and shed ones aside.
    Offline: while the link is down `publish` raises LinkDown at once and nothing was sent; when it breaks during a
        publish it raises LinkDown too, and whether the broker has it is unknown: publish it again. Subscriptions
        are remembered and made again when the link is back; a session survives, so that the broker holds what comes
        meanwhile, as long as its own limits allow.
    Errors: LinkDown, TooLarge, Malformed (a topic or pattern that is none). No error of a driver passes unchanged.
    """

    @property
    def is_up(self) -> bool:
        """Whether the link is up, as far as is known."""
        ...

    @property
    def last_error(self) -> StigmergyError | None:
        """Why the link is not up: ConfigError if somebody must mend something first, else LinkDown. None when it is."""
        ...

    def on_link(self, heard: LinkHeard) -> None:
        """Has this called at every change of the link, from now on. Several may listen."""
        ...

    async def open(self, will: BusMessage | None = None) -> None:
        """Begins to connect and returns at once; from now on the link comes and goes by itself.

        The broker publishes `will` when the link is lost without `close`. Subscribe before, or soon after: what the
        broker has held comes as soon as the link is up.
        """
        ...

    async def publish(self, message: BusMessage) -> None:
        """Gives a message to the broker; returns when it has it."""
        ...

    async def subscribe(self, pattern: str, handler: Handler) -> None:
        """Has every message that matches given to the handler, also after a reconnect. Works while the link is down."""
        ...

    async def close(self) -> None:
        """Leaves in order: no will is published. Handlers under way are finished first, within a bound."""
        ...


def check_topic(topic: str) -> None:
    """Raises Malformed or TooLarge unless a message can be published on this topic."""
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
        raise Malformed(f"{message.topic}: a property is no text in UTF-8: {error}") from None
    if headers > PROPERTIES_BYTES_MAX:
        raise TooLarge(f"{message.topic}: properties of {headers} bytes, at most {PROPERTIES_BYTES_MAX}")


def matches(pattern: str, topic: str) -> bool:
    """Whether a topic is one of those that a pattern stands for. Both must be in order."""
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
        raise Malformed(f"{what} {text!r}: what begins with $ belongs to the broker")
    if not text.isprintable() and any(ord(sign) < 32 or 127 <= ord(sign) < 160 for sign in text):
        raise Malformed(f"{what} {text!r}: control characters; escape them")
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise Malformed(f"{what} {text!r}: no text in UTF-8: {error}") from None
    if size_bytes > TOPIC_BYTES_MAX:
        raise TooLarge(f"{what} of {size_bytes} bytes, at most {TOPIC_BYTES_MAX}")
