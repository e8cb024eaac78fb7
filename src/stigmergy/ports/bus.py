"""The bus port: messages by topic, between nodes, devices and whoever else listens. A link that comes and goes.

Topics are texts with `/` between their levels. A pattern may have `+` for one level and, at its end, `#` for all that
follow. What a topic means is not the bus's business: `runtime/topics.py` says how ours are named.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from msgspec import Struct

TOPIC_BYTES_MAX = 1024
PAYLOAD_BYTES_MAX = 1024 * 1024
HANDLED_COUNT_MAX = 256
"""Messages of one pattern that may be with its handler at the same time, not yet acknowledged."""


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
"""Takes a message. The broker hears that it was taken only once this returns; if it raises, it comes again."""

LinkHeard = Callable[[bool], None]
"""Called on the event loop when the link comes up (True) or is lost (False)."""


class Bus(Protocol):
    """A connection to a broker that mends itself.

    Ordering: messages of one publisher on one topic arrive in the order of their `publish` calls; repetitions may
        lie between them. Between topics there is no order.
    Durability: `publish` returns once the broker has taken the message, which is no proof that anybody gets it: a
        broker may drop what its rights do not allow, and say nothing. Who must know asks for an answer.
    Duplication: at least once. What was under way when the link broke may come twice; receivers keep marks.
    Concurrency: publishes may overlap. A pattern's handler is called in order of arrival, and again before earlier
        calls are done, at most HANDLED_COUNT_MAX at once: a receiver that waits for its disk takes many with one write.
        A handler keeps its order before it first waits. The broker is told in order of arrival.
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

    def on_link(self, heard: LinkHeard) -> None:
        """Has this called at every change of the link, from now on. Several may listen."""
        ...

    async def open(self, will: BusMessage | None = None) -> None:
        """Begins to connect and returns at once; from now on the link comes and goes by itself.

        The broker publishes `will` when the link is lost without `close`.
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
