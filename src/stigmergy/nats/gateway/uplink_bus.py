"""The bus of a gateway's uplink: into a stream on its leaf, which the hub sources. A Bus for uplinks only.

    nats-hub://127.0.0.1:4222?at=hub:7422&gateway=ID&replicas=3

The address is that of the local leaf. The link is up when the hub is: messages that would wait for the hub in the
stream are in the journal anyway.
"""

from __future__ import annotations

import contextlib

from nats.aio.msg import Msg

from stigmergy.base.clock import Entropy
from stigmergy.base.errors import ConfigError, LinkDown, StigmergyError
from stigmergy.bus.inbox import Arrival, Reception
from stigmergy.bus.port import BusMessage, Handler, LinkHeard, check_message, check_pattern
from stigmergy.nats.address import parse_address
from stigmergy.nats.errors import JetStreamRefused
from stigmergy.nats.gateway.crossing import Crossing, CrossingPlan
from stigmergy.nats.gateway.hub import SiteClaim
from stigmergy.nats.gateway.subjects import (
    check_site,
    is_routed,
    routed_subject,
    routed_topic,
    subject_of,
    topic_of,
)
from stigmergy.nats.link import NatsLink

SCHEME = "nats-hub"
CLOSE_S = 5.0
PUBLISH_S = 5.0
OPTIONS = ("replicas", "at", "gateway", "host", "hub", "mirror")


class UplinkBus:
    """Sends from a gateway to its hub."""

    def __init__(self, plan: CrossingPlan, name: str) -> None:
        self._plan = plan
        self._name = name
        self._reception = Reception()
        self._listeners: list[LinkHeard] = []
        self._link: NatsLink | None = None
        self._crossing: Crossing | None = None

    @property
    def is_up(self) -> bool:
        """Whether the hub answers, as far as we know."""
        return self._crossing is not None and self._crossing.is_up and self._link is not None and self._link.is_up

    @property
    def last_error(self) -> StigmergyError | None:
        """Why the hub does not answer: ConfigError if somebody must fix something first."""
        if self._link is not None and not self._link.is_up and self._link.last_error is not None:
            return self._link.last_error
        return None if self._crossing is None else self._crossing.last_error

    @property
    def crossing(self) -> Crossing | None:
        """Maintains the path; None before `open`."""
        return self._crossing

    def counted(self) -> dict[str, int]:
        if self._crossing is None:
            return {}
        watch = self._crossing.watch
        return {"crossing_wakes": watch.wakes, "crossing_renewals": watch.renewals}

    def on_link(self, heard: LinkHeard) -> None:
        """Calls `heard` when the hub comes and goes."""
        self._listeners.append(heard)

    async def open(self, will: BusMessage | None = None) -> None:
        """Starts connecting. The will is ignored: a gateway that is gone confirms nothing."""
        self._reception.begin()
        self._link = NatsLink(self._plan.leaf, name=self._name)
        for pattern in self._reception.patterns:
            await self._listen(self._link, pattern)
        self._link.start()
        self._crossing = Crossing(self._plan, self._link, self._heard)
        self._crossing.start()

    async def publish(self, message: BusMessage) -> None:
        """Stores the message in the stream on the leaf."""
        check_message(message)
        if self._link is None or not self.is_up:
            raise LinkDown("the hub is unreachable; nothing was sent, try again when it is back")
        if is_routed(message.topic):
            hub = "" if self._crossing is None else self._crossing.domain
            await self._link.tell(routed_subject(message.topic, hub), message.payload)
            return
        try:
            await self._link.publish(subject_of(message.topic), message.payload, within_s=PUBLISH_S)
        except JetStreamRefused as refused:
            raise LinkDown(f"the leaf does not store it: {refused}; try again") from None

    async def subscribe(self, pattern: str, handler: Handler) -> None:
        """Receives the hub's messages for this uplink."""
        check_pattern(pattern)
        if not is_routed(pattern):
            subject_of(pattern)
        is_new = pattern not in self._reception.patterns
        self._reception.subscribe(pattern, handler)
        if self._link is not None and is_new:
            await self._listen(self._link, pattern)

    async def _listen(self, link: NatsLink, pattern: str) -> None:
        if is_routed(pattern):
            await link.subscribe(routed_subject(pattern, "+"), self._take_routed)
        else:
            await link.subscribe(subject_of(pattern), self._take)

    async def close(self) -> None:
        """Ends the connection; messages in the stream still go up."""
        crossing, self._crossing = self._crossing, None
        if crossing is not None:
            await crossing.stop()
        await self._reception.close(CLOSE_S)
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def _take(self, message: Msg) -> None:
        with contextlib.suppress(StigmergyError):
            self._reception.take(Arrival(BusMessage(topic_of(message.subject), message.data), _nothing))

    async def _take_routed(self, message: Msg) -> None:
        with contextlib.suppress(StigmergyError):
            topic, hub = routed_topic(message.subject)
            # Another hub may have a site of our name below it.
            if self._crossing is not None and hub == self._crossing.domain:
                self._reception.take(Arrival(BusMessage(topic, message.data), _nothing))

    def _heard(self, up: bool) -> None:
        for heard in self._listeners:
            heard(up)


def _nothing() -> None:
    """A plain message needs no acknowledgement."""


def open_bus(url: str, client_id: str, entropy: Entropy) -> UplinkBus:
    """Opens a nats-hub:// URL; `client_id` is fleet:site:node."""
    del entropy
    scheme, separator, rest = url.partition("://")
    if scheme != SCHEME or not separator:
        raise ConfigError(f"{url!r}: give a URL like {SCHEME}://127.0.0.1:4222?at=hub:7422, the address of the leaf")
    address = parse_address(f"nats://{rest}", OPTIONS)
    site = check_site(client_id.split(":")[1])
    hubs = tuple(hub for hub in address.option("at").split(",") if hub)
    if not hubs and not address.option("hub"):
        raise ConfigError(f"{url!r}: where is the hub? Give at=HOST:PORT of its leaf listener, or hub=DOMAIN")
    claim = SiteClaim(site, address.option("gateway", client_id), address.option("host"))
    plan = CrossingPlan(
        leaf=address,
        claim=claim,
        hubs=hubs,
        domain=address.option("hub"),
        replicas=address.replicas,
        mirrored=address.option("mirror"),
    )
    return UplinkBus(plan, f"{client_id} up")
