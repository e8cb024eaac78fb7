"""Reads what is retained for whoever subscribes: what nodes on NATS have said, and devices by MQTT."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from nats.aio.msg import Msg

from stigmergy.adapters.nats.errors import STREAM_NOT_FOUND, JetStreamRefused, Unanswered
from stigmergy.adapters.nats.link import NatsLink
from stigmergy.adapters.nats.naming import retained_stream
from stigmergy.adapters.nats_bus.envelope import message_of
from stigmergy.adapters.nats_bus.options import BusOptions
from stigmergy.adapters.nats_bus.streams import MQTT_RETAINED_STREAM, SECOND_NS
from stigmergy.adapters.nats_bus.subjects import MQTT_RETAINED
from stigmergy.ports.bus import BusMessage

READ_COUNT_MAX = 256
"""So many are read at once."""
READ_S = 5.0
KEPT_COUNT_MAX = 100_000
"""For one pattern; the rest is left out."""


async def read_retained(
    link: NatsLink, options: BusOptions, filters: Sequence[str], inbox: str, *, mqtt: bool
) -> list[BusMessage]:
    """The last retained message of each topic that these filters stand for, each topic once, the oldest first."""
    sources = [(retained_stream(options.fleet), options.subjects.kept_of(""))]
    if mqtt:
        sources.insert(0, (MQTT_RETAINED_STREAM, f"{MQTT_RETAINED}."))
    found: dict[str, BusMessage] = {}
    for stream, prefix in sources:
        for message in await _read(link, stream, [prefix + one for one in filters], inbox):
            one = message_of(message.subject[len(prefix) :], message.data, message.headers, retained=True)
            found.pop(one.topic, None)
            found[one.topic] = one
    return [message for message in found.values() if message.payload]  # an empty one says that it was taken back


async def _read(link: NatsLink, stream: str, filters: Sequence[str], inbox: str) -> list[Msg]:
    config: dict[str, Any] = {
        "deliver_policy": "last_per_subject",
        "ack_policy": "none",
        "filter_subjects": list(filters),
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
                await asyncio.wait_for(came.wait(), READ_S)
    except TimeoutError:
        raise Unanswered(f"{stream}: what is retained could not be read in {READ_S:g} s; it is tried again") from None
    finally:
        await end()
    return found
