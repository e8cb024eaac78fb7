"""Reads retained messages for subscribers: those of nodes on NATS, and of devices on MQTT."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from nats.aio.msg import Msg

from stigmergy.base.errors import LinkDown, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.port import BusMessage
from stigmergy.nats.bus.options import BusOptions
from stigmergy.nats.bus.outlet import MSG_ID, Outlet
from stigmergy.nats.bus.streams import MQTT_RETAINED_STREAM, SECOND_NS, side_by_side
from stigmergy.nats.bus.subjects import (
    MQTT_MESSAGES,
    MQTT_QOS,
    MQTT_RETAINED,
    headers_of,
    message_of,
    prune,
    retained_headers,
    subject_of,
)
from stigmergy.nats.errors import STREAM_NOT_FOUND, JetStreamRefused, Unanswered
from stigmergy.nats.link import NatsLink
from stigmergy.nats.naming import bus_stream, retained_stream

READ_COUNT_MAX = 256
"""How many are read at once."""
READ_S = 5.0
KEPT_COUNT_MAX = 100_000
"""For one pattern; the rest is left out."""


async def read_retained(
    link: NatsLink, options: BusOptions, filters: Sequence[str], inbox: str, *, mqtt: bool
) -> list[BusMessage]:
    """The last retained message of each topic that the filters match, each topic once, the oldest first."""
    sources = [(retained_stream(options.fleet), options.subjects.kept_of(""))]
    if mqtt:
        sources.insert(0, (MQTT_RETAINED_STREAM, f"{MQTT_RETAINED}."))
    found: dict[str, BusMessage] = {}
    for stream, prefix in sources:
        for message in await _read(link, stream, [prefix + one for one in filters], inbox):
            one = message_of(message.subject[len(prefix) :], message.data, message.headers, retained=True)
            found.pop(one.topic, None)
            found[one.topic] = one
    return [message for message in found.values() if message.payload]  # an empty one clears the topic


async def _read(link: NatsLink, stream: str, filters: Sequence[str], inbox: str) -> list[Msg]:
    config: dict[str, Any] = {
        "deliver_policy": "last_per_subject",
        "ack_policy": "none",
        "filter_subjects": prune(filters),
        "inactive_threshold": int(2 * READ_S * SECOND_NS),
        "mem_storage": True,
        "num_replicas": 1,
    }
    try:
        made = await link.api(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
    except JetStreamRefused as refused:
        if refused.code == STREAM_NOT_FOUND:
            return []
        raise
    pull = link.api_subject(f"CONSUMER.MSG.NEXT.{stream}.{made['name']}")
    left = min(int(made.get("num_pending", 0)), KEPT_COUNT_MAX)
    found: list[Msg] = []
    came = asyncio.Event()
    over = False

    async def take(message: Msg) -> None:
        nonlocal over
        if message.reply:
            found.append(message)
        else:
            over = True
        came.set()

    end = await link.subscribe(inbox, take)
    try:
        asked = msgspec.json.encode({"batch": READ_COUNT_MAX, "no_wait": True})
        while len(found) < left and not over:
            wanted = min(left, len(found) + READ_COUNT_MAX)
            await link.tell(pull, asked, inbox)
            while len(found) < wanted and not over:
                came.clear()
                async with asyncio.timeout(READ_S):
                    await came.wait()
    except TimeoutError:
        raise Unanswered(f"{stream}: retained messages could not be read in {READ_S:g} s; trying again") from None
    finally:
        await end()
    return found


# A client's will: a message that the server publishes at a set time, postponed while the client is alive.
#
# The time is the server's, which we know from its answers: an error of our clock does no harm. A second copy is
# retained for later subscribers. The server publishes scheduled messages only into our streams: nodes on NATS forward
# them to the devices on MQTT, and the first forward counts.

RENEWALS = 3
"""How often a will is postponed within its time."""
SCHEDULE = "Nats-Schedule"
TARGET = "Nats-Schedule-Target"
SCHEDULER = "Nats-Scheduler"
"""The server's header on messages that it publishes at a set time."""
RETAINED = "Stig-Retained"
"""On a will that is to be retained: its topic."""


class Will:
    """The message about a client that is no longer there. Call `begin` whenever the link is up."""

    def __init__(
        self,
        link: NatsLink,
        options: BusOptions,
        client_id: str,
        message: BusMessage,
        doubt: Callable[[StigmergyError], None],
    ) -> None:
        self._link = link
        self._options = options
        self._doubt = doubt
        self._message = message
        subjects, subject = options.subjects, subject_of(message.topic)
        self.subject = subject
        own = headers_of(message)
        told = {RETAINED: message.topic} if message.retained else {}
        self._heard = (subjects.will_of(client_id), {**own, **told, TARGET: subject})
        self._kept = (
            subjects.kept_will_of(client_id),
            {**retained_headers(message), TARGET: subjects.kept_of(subject)},
        )
        self._zero = datetime.min.replace(tzinfo=UTC)
        """The server's time when our monotonic clock was 0."""
        self._renewing: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Stores the will at the server and keeps postponing it. Raises LinkDown or JetStreamRefused."""
        await self.pause()
        # Read our clock before the request: the will is then late by the time of the answer, never early.
        asked = _monotonic()
        info = await self._link.api(f"STREAM.INFO.{bus_stream(self._options.fleet)}")
        self._zero = datetime.fromisoformat(_microseconds(info["ts"])) - asked
        await self._renew()
        self._renewing = asyncio.get_running_loop().create_task(self._keep(), name="will")

    async def pause(self) -> None:
        """Stops postponing."""
        renewing, self._renewing = self._renewing, None
        await end_tasks(renewing)

    async def cancel(self) -> None:
        """Removes the will, for an orderly exit. Raises LinkDown if the server does not answer."""
        await self.pause()
        for stream, subject in (
            (bus_stream(self._options.fleet), self._heard[0]),
            (retained_stream(self._options.fleet), self._kept[0]),
        ):
            with contextlib.suppress(JetStreamRefused):
                await self._link.api(f"STREAM.PURGE.{stream}", {"filter": subject})

    async def _keep(self) -> None:
        try:
            while True:
                await asyncio.sleep(self._options.will_s / RENEWALS)
                await self._renew()
        except JetStreamRefused as refused:
            self._doubt(LinkDown(f"{self._options.place}: the server refuses the will: {refused}"))
        except StigmergyError as error:
            self._doubt(error)

    async def _renew(self) -> None:
        moment = self._zero + _monotonic() + timedelta(seconds=self._options.will_s)
        schedule = "@at " + moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        wills = [self._heard, *([self._kept] if self._message.retained else [])]
        await side_by_side(
            *(
                self._link.publish(subject, self._message.payload, {**headers, SCHEDULE: schedule})
                for subject, headers in wills
            )
        )


async def tell_devices(outlet: Outlet, place: int, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
    """Forwards a will from NATS to devices on MQTT. The message's id makes the first node's count."""
    told = {MSG_ID: f"will.{place}", MQTT_QOS: "1"}
    posts = [await outlet.post(f"{MQTT_MESSAGES}.{subject}", payload, told)]
    if topic := headers.get(RETAINED):
        retained = retained_headers(BusMessage(topic, payload)) | {MSG_ID: f"will.{place}"}
        posts.append(await outlet.post(f"{MQTT_RETAINED}.{subject}", payload, retained))
    for post in posts:
        await post


def _monotonic() -> timedelta:
    return timedelta(seconds=asyncio.get_running_loop().time())


def _microseconds(text: str) -> str:
    """The server writes nanoseconds with as many digits as needed; Python parses microseconds."""
    seconds, _, rest = text.removesuffix("Z").partition(".")
    return f"{seconds}.{rest[:6]:0<6}+00:00"
