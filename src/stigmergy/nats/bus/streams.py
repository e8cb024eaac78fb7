"""The two streams of a fleet's bus: made by the first client, and widened by clients that need more topics.

One holds the messages, limited by age and size, the oldest dropped first. The other holds the last retained message of
each topic. A subject belongs to one stream only, so two fleets cannot both listen to the same devices' topics.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from stigmergy.base.errors import ConfigError, LinkDown
from stigmergy.nats.bus.options import BusOptions
from stigmergy.nats.bus.subjects import MQTT_RETAINED, collide, filters_of, is_covered, is_datagram, prune
from stigmergy.nats.errors import JetStreamRefused
from stigmergy.nats.link import NatsLink
from stigmergy.nats.naming import bus_stream, retained_stream
from stigmergy.nats.streams import StreamFound, ensure_stream, find_stream

MQTT_STREAM = "$MQTT_msgs"
MQTT_RETAINED_STREAM = "$MQTT_rmsgs"
SECOND_NS = 1_000_000_000
MIB = 1024 * 1024
SUBJECTS_COUNT_MAX = 1_000
"""Patterns of a fleet's stream beside the fleet's own topics."""
KEPT_MB = 64
"""For all retained messages together; beyond it the oldest are dropped."""
LOCK_S = 5
"""The time limit for widening a stream, while others wait."""
LOCK_PAUSE_S = 0.05
SUBJECT_OVERLAP = 10065
ALL_WANTED = "stig-all-topics"
"""Key of the stream's metadata: somebody needs that it captures all topics of the fleet."""


async def side_by_side(*works: Awaitable[object]) -> None:
    """Awaits all of them concurrently, because each round trip is time without a bus; raises the first error when all
    are done."""
    for done in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(done, BaseException):
            raise done


async def ensure_streams(link: NatsLink, options: BusOptions, also: Sequence[str] = ()) -> StreamFound:
    """Makes both streams with these options, and `also` as subjects. Raises ConfigError if existing ones differ."""
    subjects = options.subjects
    common = {"storage": "file", "num_replicas": options.replicas, "discard": "old"}
    common |= {"allow_msg_schedules": True, "allow_msg_ttl": True}
    kept = ensure_stream(
        link,
        retained_stream(options.fleet),
        {
            **common,
            "subjects": [f"{subjects.kept}.>"],
            "max_msgs_per_subject": 1,
            "max_bytes": KEPT_MB * MIB,
            # Later subscribers on MQTT find retained messages too.
            "republish": {"src": f"{subjects.kept}.said.>", "dest": f"{MQTT_RETAINED}.>"},
        },
    )
    # Subjects are not compared: they grow with the subscriptions of the fleet's nodes.
    said = ensure_stream(
        link,
        bus_stream(options.fleet),
        {
            **common,
            "max_age": int(options.age_s * SECOND_NS),
            "max_bytes": options.stored_mb * MIB,
        },
    )
    await side_by_side(kept, said)
    first = [f"{subjects.inner}.>", *subjects.stored, *also]
    for topic in options.topics:
        first += filters_of(topic)
    return await ensure_subjects(link, options, first)


async def ensure_subjects(link: NatsLink, options: BusOptions, wanted: Sequence[str]) -> StreamFound:
    """Adds these subjects to the fleet's stream. Raises ConfigError if another stream has them."""
    name = bus_stream(options.fleet)
    while True:
        found = await _find(link, name)
        if not _missing(found, wanted):
            return found
        # Lock: JetStream would let two clients that widen at once undo each other's update.
        async with locked(link, options, "widening") as is_ours:
            if is_ours:
                await _widen(link, options, wanted)
            else:
                await asyncio.sleep(LOCK_PAUSE_S)


async def narrow(link: NatsLink, options: BusOptions) -> None:
    """Makes the fleet's stream capture no datagrams any more, as streams of earlier versions do. It goes on to capture
    what its sessions read. Nothing changes while one of them reads datagrams, because a node of an earlier version is
    there; or if somebody needs all topics of the fleet."""
    name, subjects = bus_stream(options.fleet), options.subjects
    everything = f"{subjects.root}.>"
    config = (await _find(link, name)).config
    if everything not in config["subjects"] or ALL_WANTED in (config.get("metadata") or {}):
        return
    async with locked(link, options, "widening") as is_ours:
        if not is_ours:
            return
        read = await _read_by_sessions(link, name)
        found = await _find(link, name)
        if everything not in found.config["subjects"] or any(is_datagram(one) for one in read):
            return
        kept = [one for one in found.config["subjects"] if one != everything]
        under_root = [one for one in read if is_covered(one, [everything])]
        wanted = _fit(options, [*kept, *subjects.stored, *under_root])
        if everything not in wanted and len(wanted) <= SUBJECTS_COUNT_MAX:
            await link.api(f"STREAM.UPDATE.{name}", {**found.config, "subjects": wanted})


async def _read_by_sessions(link: NatsLink, name: str) -> list[str]:
    """The filters of all sessions on a stream."""
    filters: dict[str, None] = {}
    offset = 0
    while True:
        page = await link.api(f"CONSUMER.LIST.{name}", {"offset": offset})
        consumers = page.get("consumers") or []
        for consumer in consumers:
            config = consumer["config"]
            filters |= dict.fromkeys(config.get("filter_subjects") or [config.get("filter_subject") or ">"])
        offset += len(consumers)
        if not consumers or offset >= int(page.get("total", 0)):
            return list(filters)


async def has_mqtt(link: NatsLink) -> bool:
    """Whether devices use MQTT on these servers: only then there is a stream for them."""
    try:
        return await find_stream(link, MQTT_STREAM) is not None
    except JetStreamRefused:
        return False


async def _find(link: NatsLink, name: str) -> StreamFound:
    found = await find_stream(link, name)
    if found is None:
        raise LinkDown(f"stream {name} at {link.address.shown} was deleted; making it again")
    return found


def _missing(found: StreamFound, wanted: Sequence[str]) -> list[str]:
    return [one for one in wanted if not is_covered(one, found.config["subjects"])]


async def _widen(link: NatsLink, options: BusOptions, wanted: Sequence[str]) -> None:
    name = bus_stream(options.fleet)
    found = await _find(link, name)
    missing = _missing(found, wanted)
    # A stream made without subjects has its own name as its subject.
    subjects = _fit(options, [*(one for one in found.config["subjects"] if one != name), *missing])
    if len(subjects) > SUBJECTS_COUNT_MAX:
        raise ConfigError(f"stream {name}: more than {SUBJECTS_COUNT_MAX} topic patterns; subscribe to wider ones")
    if missing:
        wider = {**found.config, "subjects": subjects}
        if f"{options.subjects.root}.>" in subjects:
            wider["metadata"] = {**(found.config.get("metadata") or {}), ALL_WANTED: "yes"}
        try:
            await link.api(f"STREAM.UPDATE.{name}", wider)
        except JetStreamRefused as refused:
            if refused.code == SUBJECT_OVERLAP:
                raise ConfigError(
                    f"the topics of {', '.join(missing)} belong to another stream at {link.address.shown}; let each "
                    "fleet subscribe to its own topics"
                ) from None
            raise


def _fit(options: BusOptions, wanted: Sequence[str]) -> list[str]:
    """These subjects, so that none overlaps another, which JetStream refuses. `fleet.soil.*.level` overlaps
    `fleet.*.agents.>`; for such a pattern the stream captures all topics of the fleet, datagrams too."""
    fit = prune(wanted)
    stored = options.subjects.stored
    if any(collide(one, own) for one in fit if one not in stored for own in stored):
        return prune([*fit, f"{options.subjects.root}.>"])
    return fit


@contextlib.asynccontextmanager
async def locked(link: NatsLink, options: BusOptions, what: str) -> AsyncIterator[bool]:
    """Yields whether we hold the fleet's lock for this: a message that only one client can write, and that expires if
    we do not remove it."""
    subject = f"{options.subjects.kept}.lock.{what}"
    try:
        await link.publish(subject, b"", {"Nats-Expected-Last-Subject-Sequence": "0", "Nats-TTL": f"{LOCK_S}s"})
    except JetStreamRefused as refused:
        if not refused.is_fence:
            raise
        yield False
        return
    try:
        yield True
    finally:
        await link.api(f"STREAM.PURGE.{retained_stream(options.fleet)}", {"filter": subject})


# Keeps the partitioned stream fed: when a leader is lost, its server may pause for half a minute. Removing and
# restoring the source makes the server check its position and go on from there.

LOOK_S = 1.5
SILENT_S_MAX = 2.5
"""An active source reports every second. One that a new leader has not begun to read reports -1."""
ASK_S = 2.0


class SourcedStream:
    """Watches a stream that has a source. Every shard's owner does; only one of them acts at a time."""

    def __init__(
        self,
        link: NatsLink,
        options: BusOptions,
        stream: str,
        sources: list[dict[str, Any]],
        is_wanted: Callable[[], bool],
    ) -> None:
        """`sources` restores a stream without one; `is_wanted` says whether there is a stream to watch now."""
        self._link = link
        self._options = options
        self._stream = stream
        self._sources = sources
        self._is_wanted = is_wanted
        self._was_silent = False
        self.revived_count = 0

    async def watch(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._is_wanted():
                # A stream without a leader answers later.
                with contextlib.suppress(LinkDown, JetStreamRefused):
                    await self._look()

    async def _look(self) -> None:
        is_silent = _is_silent(await self._info())
        was_silent, self._was_silent = self._was_silent, is_silent
        # Act when it was silent twice: a new leader needs a moment.
        if not (is_silent and was_silent):
            return
        async with locked(self._link, self._options, "feeding") as is_ours:
            if not is_ours:
                return
            info = await self._info()
            if _is_silent(info):
                # Without a source, a watcher was stopped between removing and restoring it.
                config = {**info["config"], "sources": info["config"].get("sources") or self._sources}
                await self._link.api(f"STREAM.UPDATE.{self._stream}", {**config, "sources": []}, ASK_S)
                await self._link.api(f"STREAM.UPDATE.{self._stream}", config, ASK_S)
                self.revived_count += 1
                self._was_silent = False

    async def _info(self) -> dict[str, Any]:
        return await self._link.api(f"STREAM.INFO.{self._stream}", within_s=ASK_S)


def _is_silent(info: dict[str, Any]) -> bool:
    silent = [int(source.get("active", 0)) for source in info.get("sources") or []]
    return not silent or any(active_ns < 0 or active_ns > SILENT_S_MAX * SECOND_NS for active_ns in silent)
