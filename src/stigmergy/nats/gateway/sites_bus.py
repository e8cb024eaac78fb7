"""The bus on which uplinks of whole sites arrive: the streams of all sites at a hub, as one. A Bus for uplinks only.

    nats-sites://hub-1:4222,hub-2:4222

New sites are found while this runs. Messages wait in the site's stream until the collecting node has them; the hub
keeps the position, under the node's name.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any

from nats.aio.msg import Msg

from stigmergy.base.clock import Entropy
from stigmergy.base.errors import ConfigError, LinkDown, Malformed, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.inbox import Arrival, Reception
from stigmergy.bus.port import BusMessage, Handler, LinkHeard, check_message, check_pattern
from stigmergy.nats import naming
from stigmergy.nats.address import NatsAddress, parse_address
from stigmergy.nats.errors import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND, JetStreamRefused
from stigmergy.nats.gateway.hub import PREFIX
from stigmergy.nats.gateway.subjects import (
    deliver_subject,
    is_routed,
    routed_subject,
    routed_topic,
    subject_of,
    topic_of,
)
from stigmergy.nats.link import NatsLink

SCHEME = "nats-sites"
CLOSE_S = 5.0
LOOK_S = 2.0
"""How often we look for new sites."""
LOOKS_PER_CHECK = 8
"""After this many looks we also check the consumers of known sites."""
ACK_WAIT_S = 10
UNDER_WAY_MAX = 64
"""Messages of a site that the node has and has not acknowledged."""
HELD_BYTES_MAX = 32 * 1024 * 1024
HELD_BYTES_EACH = 1024
"""Counted for each message. The bound is for all sites together; beyond it nothing more is read."""
FORGOTTEN_S = 7 * 24 * 3600
"""The hub forgets a collecting node that was away for this long: it then starts with what is there."""
SITES_COUNT_MAX = 4_096
NS = 1_000_000_000
CREATED = "$JS.EVENT.ADVISORY.STREAM.CREATED.>"
ACK = b"+ACK"


class SitesBus:
    """Receives from all sites, for a node at the hub."""

    def __init__(self, address: NatsAddress, client_id: str) -> None:
        self._address = address
        self._client_id = client_id
        self._consumer = naming.token(client_id)
        self._reception = Reception()
        self._listeners: list[LinkHeard] = []
        self._link: NatsLink | None = None
        self._task: asyncio.Task[None] | None = None
        self._acks: dict[asyncio.Task[None], None] = {}
        self._woken = asyncio.Event()
        self._sites: dict[str, bool] = {}
        """Streams looked at since the link is up, and whether this node has a consumer there."""
        self._routed: dict[str, None] = {}
        """Subjects of plain messages that we listen to."""
        self._looks = 0
        self._held_bytes = 0
        """Bytes given to handlers and not settled yet."""
        self._room = asyncio.Event()
        self._trouble: StigmergyError | None = None

    @property
    def is_up(self) -> bool:
        """Whether the hub answers, as far as we know."""
        return self._link is not None and self._link.is_up

    @property
    def last_error(self) -> StigmergyError | None:
        """Why it does not, or why a site cannot be received."""
        return self._trouble if self._link is None or self._link.is_up else self._link.last_error

    @property
    def sites(self) -> list[str]:
        """The streams that we receive from."""
        return [name for name, has_consumer in self._sites.items() if has_consumer]

    def counted(self) -> dict[str, int]:
        return {"sites_heard": len(self.sites)}

    def on_link(self, heard: LinkHeard) -> None:
        """Calls `heard` when the hub comes and goes."""
        self._listeners.append(heard)

    async def open(self, will: BusMessage | None = None) -> None:
        """Starts connecting. The will is ignored: senders that hear nothing wait."""
        self._reception.begin()
        self._link = NatsLink(self._address, name=f"{self._client_id} sites")
        self._link.on_link(self._heard)
        await self._link.subscribe(deliver_subject(self._client_id), self._take)
        await self._link.subscribe(CREATED, self._hear_of_stream)
        self._link.start()
        self._task = asyncio.get_running_loop().create_task(self._live(), name=f"sites {self._client_id}")

    async def publish(self, message: BusMessage) -> None:
        """To a gateway, as a plain message: a gateway that misses it asks again."""
        check_message(message)
        if self._link is None:
            raise LinkDown("the hub is unreachable; nothing was sent")
        if is_routed(message.topic):
            await self._link.tell(routed_subject(message.topic, self._link.server_domain), message.payload)
        else:
            await self._link.tell(subject_of(message.topic), message.payload)

    async def subscribe(self, pattern: str, handler: Handler) -> None:
        """Receives uplink messages of sites."""
        check_pattern(pattern)
        if not is_routed(pattern):
            subject_of(pattern)
        self._reception.subscribe(pattern, handler)
        self._sites.clear()
        self._woken.set()

    async def close(self) -> None:
        """Ends the connection; unacknowledged messages stay at the hub."""
        task, self._task = self._task, None
        await end_tasks(task)
        await self._reception.close(CLOSE_S)
        if self._acks:
            await asyncio.wait(list(self._acks), timeout=CLOSE_S)
        link, self._link = self._link, None
        if link is not None:
            with contextlib.suppress(LinkDown):
                await link.flush(1.0)
            await link.close()

    # ------------------------------------------------------------------ sites

    async def _live(self) -> None:
        while True:
            try:
                await self._find_sites()
                self._trouble = None
            except JetStreamRefused as refused:
                self._trouble = LinkDown(f"the hub refuses: {refused}; trying again")
            except StigmergyError as error:
                self._trouble = error
            except Exception as error:
                # An unexpected answer must not end this task: new sites would never be found.
                self._trouble = LinkDown(f"{type(error).__name__}: {error}; trying again")
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._woken.wait()

    async def _find_sites(self) -> None:
        link = self._link
        if link is None or not link.is_up or not self._reception.patterns:
            return
        await self._listen_routed(link)
        names = await _names(link)
        self._looks += 1
        if self._looks % LOOKS_PER_CHECK == 0:
            await self._check(link)
        for name in names:
            if name not in self._sites and (listens := await self._listen_to(link, name)) is not None:
                self._sites[name] = listens
        for gone in [name for name in self._sites if name not in names]:
            del self._sites[gone]

    async def _listen_routed(self, link: NatsLink) -> None:
        """Subscribes to what gateways below send for agents of other levels: to this hub only."""
        for pattern in filter(is_routed, self._reception.patterns):
            subject = routed_subject(pattern, link.server_domain)
            if link.server_domain and subject not in self._routed:
                self._routed[subject] = None
                await link.subscribe(subject, self._take_routed)

    async def _take_routed(self, message: Msg) -> None:
        with contextlib.suppress(StigmergyError):
            topic, hub = routed_topic(message.subject)
            if self._link is not None and hub == self._link.server_domain:
                self._reception.take(Arrival(BusMessage(topic, message.data), lambda: None))

    async def _check(self, link: NatsLink) -> None:
        """Checks the consumers: the advisory that a stream was made again is sent once, and may get lost."""
        for name in [name for name, has_consumer in self._sites.items() if has_consumer]:
            try:
                await link.api(f"CONSUMER.INFO.{name}.{self._consumer}")
            except JetStreamRefused as refused:
                if refused.code not in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
                    raise
                self._sites.pop(name, None)

    async def _listen_to(self, link: NatsLink, stream: str) -> bool | None:
        """Makes a consumer for this node that begins after what it has acknowledged.

        Returns False for a stream that is not a site's, and None for one that is gone.

        The consumer is new at each start, so that messages in flight in an earlier run come at once.
        """
        try:
            info = await link.api(f"STREAM.INFO.{stream}")
            if not info["config"].get("metadata", {}).get("stigmergy-gateway"):
                return False  # our own uplink, not one of a site below
            taken = await self._forget(link, stream)
            await link.api(f"CONSUMER.CREATE.{stream}.{self._consumer}", self._consumer_of(stream, taken))
        except JetStreamRefused as refused:
            if refused.code == STREAM_NOT_FOUND:
                return None
            raise
        return True

    async def _forget(self, link: NatsLink, stream: str) -> int:
        """Deletes an older run's consumer; returns its acknowledged position."""
        try:
            found = await link.api(f"CONSUMER.INFO.{stream}.{self._consumer}")
            await link.api(f"CONSUMER.DELETE.{stream}.{self._consumer}")
        except JetStreamRefused as refused:
            if refused.code == CONSUMER_NOT_FOUND:
                return 0
            raise
        return int(found["ack_floor"]["stream_seq"])

    def _consumer_of(self, stream: str, taken: int) -> dict[str, Any]:
        filters = list(
            dict.fromkeys(subject_of(pattern) for pattern in self._reception.patterns if not is_routed(pattern))
        )
        begin = (
            {"deliver_policy": "by_start_sequence", "opt_start_seq": taken + 1} if taken else {"deliver_policy": "all"}
        )
        config = {
            "durable_name": self._consumer,
            "name": self._consumer,
            "deliver_subject": deliver_subject(self._client_id),
            "ack_policy": "explicit",
            "ack_wait": ACK_WAIT_S * NS,
            "max_ack_pending": UNDER_WAY_MAX,
            "filter_subjects": filters,
            "inactive_threshold": FORGOTTEN_S * NS,
            **begin,
        }
        return {"stream_name": stream, "config": config, "action": ""}

    async def _hear_of_stream(self, message: Msg) -> None:
        name = message.subject.rpartition(".")[2]
        if name.startswith(PREFIX):
            # Also a stream that was deleted and made again: its consumers went with it.
            self._sites.pop(name, None)
            self._woken.set()

    # ------------------------------------------------------------------ messages

    async def _take(self, message: Msg) -> None:
        try:
            topic = topic_of(message.subject)
        except Malformed:
            await self._acknowledge(message.reply)
            return
        while self._held_bytes > HELD_BYTES_MAX:
            # Meanwhile the client buffers; beyond its bound it drops messages, and the hub sends them again.
            self._room.clear()
            await self._room.wait()
        size_bytes = len(message.data) + HELD_BYTES_EACH
        self._held_bytes += size_bytes
        arrival = Arrival(BusMessage(topic, message.data), partial(self._taken, message.reply, size_bytes))
        self._reception.take(arrival)

    def _taken(self, reply: str, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        self._room.set()
        task = asyncio.get_running_loop().create_task(self._acknowledge(reply))
        self._acks[task] = None
        task.add_done_callback(lambda done: self._acks.pop(done, None))

    async def _acknowledge(self, reply: str) -> None:
        link = self._link
        if link is not None and reply:
            with contextlib.suppress(StigmergyError):  # then it comes again, and is dropped as a repetition
                await link.tell(reply, ACK)

    def _heard(self, up: bool) -> None:
        self._sites.clear()
        self._woken.set()
        for heard in self._listeners:
            heard(up)


async def _names(link: NatsLink) -> list[str]:
    found: list[str] = []
    while len(found) < SITES_COUNT_MAX:
        page = await link.api("STREAM.NAMES", {"offset": len(found)})
        names = page.get("streams") or []
        found += names
        if not names or len(found) >= int(page.get("total", 0)):
            break
    return [name for name in found if name.startswith(PREFIX)]


def open_bus(url: str, client_id: str, entropy: Entropy) -> SitesBus:
    """Opens a nats-sites:// URL; `client_id` names the node and its position."""
    del entropy
    scheme, separator, rest = url.partition("://")
    if scheme != SCHEME or not separator:
        raise ConfigError(f"{url!r}: give a URL like {SCHEME}://hub:4222, the address of the hub")
    return SitesBus(parse_address(f"nats://{rest}", ()), client_id)
