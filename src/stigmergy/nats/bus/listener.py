"""All subscriptions of one bus: a session on each stream that has matching messages, and retained messages.

Datagrams are in no stream: they come by plain subscriptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from msgspec import structs
from nats.aio.msg import Msg

from stigmergy.base.errors import StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.inbox import Arrival, Reception
from stigmergy.bus.port import PAYLOAD_BYTES_MAX
from stigmergy.nats.bus.options import BusOptions
from stigmergy.nats.bus.outlet import Outlet
from stigmergy.nats.bus.partition import Mover, Partition, PartitionedStream
from stigmergy.nats.bus.publisher import NatsPublisher
from stigmergy.nats.bus.retained import SCHEDULER, read_retained, tell_devices
from stigmergy.nats.bus.routing import WILDCARDS, Route, route
from stigmergy.nats.bus.session import Session
from stigmergy.nats.bus.streams import side_by_side
from stigmergy.nats.bus.subjects import Subjects, filters_of, is_datagram, message_of
from stigmergy.nats.link import NatsLink
from stigmergy.nats.naming import bus_session, bus_stream

TELLING_COUNT_MAX = 1_000
"""The bound of wills being forwarded to devices; devices see further ones when they subscribe again."""
DATAGRAMS_COUNT_MAX = 1_024
"""Datagrams that wait for their handler; further ones are dropped."""
READ_COUNT_MAX = 32
"""The most datagrams taken in one go; then other tasks have their turn."""


class BusSessions:
    """The sessions of one bus. Only one of `make`, `check`, `trim`, `pause` and `close` runs at a time."""

    def __init__(
        self,
        link: NatsLink,
        options: BusOptions,
        client_id: str,
        owner: str,
        reception: Reception,
        publishing: NatsPublisher,
        outlet: Outlet,
        doubt: Callable[[StigmergyError], None],
        *,
        partition: Partition | None,
        epoch: int,
    ) -> None:
        self._link = link
        self._options = options
        self._client_id = client_id
        self._owner = owner
        self._reception = reception
        self._publishing = publishing
        self._outlet = outlet
        self._doubt = doubt
        self._epoch = epoch
        self.parting = None if partition is None else PartitionedStream(options, partition)
        self._mover = None if self.parting is None else Mover(outlet, self.parting)
        self._sessions: dict[str, Session] = {}
        """By stream."""
        self._filters: dict[str, list[str]] = {}
        """The filters of each session."""
        self._made: dict[str, None] = {}
        """Patterns that were subscribed to before: their retained messages were delivered."""
        self._telling: dict[asyncio.Task[None], None] = {}
        self._datagrams: dict[str, Callable[[], Awaitable[None]]] = {}
        """What ends the subscription to each filter of datagrams."""
        self._datagrams_waiting_count = 0
        self._datagrams_taken_count = 0

    @property
    def captured(self) -> list[str]:
        """The filters of our fleet's topics that its stream must capture."""
        return [
            one
            for one in self._filters.get(bus_stream(self._options.fleet), [])
            if one.partition(".")[0] not in WILDCARDS
        ]

    @property
    def unmade(self) -> list[str]:
        """Wanted patterns that were never subscribed to."""
        return [pattern for pattern in self._reception.patterns if pattern not in self._made]

    @property
    def is_sorted(self) -> bool:
        """Whether there is a session on the partitioned stream."""
        return self.parting is not None and self.parting.stream in self._sessions

    async def make(self, fresh: Sequence[str]) -> str:
        """Subscribes to all patterns, again or for the first time. Fresh ones get retained messages first, so that no
        older message follows a newer one. Returns why some fresh ones were refused; the others are subscribed to.
        Raises LinkDown, JetStreamRefused, and ConfigError if another process has our session."""
        filters = _filters(self._reception.patterns)
        await self._hear_datagrams([one for one in filters if is_datagram(one)])
        routes, refused = await route(self._link, self._options, [one for one in filters if not is_datagram(one)])
        self._publishing.note_captured([one for found in routes for one in found.found.config["subjects"]])
        wanted = _filters(fresh)
        for found in routes:
            await self._give_retained(found, [one for one in found.filters if one in wanted])
        self._made |= dict.fromkeys(fresh)
        await side_by_side(*(self._begin(found) for found in routes))
        for why in refused.values():
            self._reception.receipts.last_failure = why
        return "; ".join(why for one, why in refused.items() if one in wanted)

    async def _begin(self, found: Route) -> None:
        filters = found.filters
        if self.parting is not None and found.fleet == self._options.fleet:
            filters, ours = self.parting.split(filters)
            await side_by_side(self._begin_sorted(self.parting, ours), self._begin_plain(found, filters))
        else:
            await self._begin_plain(found, filters)

    async def _begin_plain(self, found: Route, filters: list[str]) -> None:
        if filters:
            is_lost = await self._session(found.stream, found.fleet).begin(filters, found.found.last_sequence)
            self._filters[found.stream] = filters
            if is_lost:
                await self._give_retained(found, filters)  # who has come and gone meanwhile would be missed

    async def _begin_sorted(self, parting: PartitionedStream, filters: list[str]) -> None:
        if filters:
            last = (await parting.ensure(self._link)).last_sequence
            await self._session(parting.stream).begin(filters, last)
            self._filters[parting.stream] = filters

    async def _hear_datagrams(self, filters: Iterable[str]) -> None:
        for one in filters:
            if one not in self._datagrams:
                self._datagrams[one] = await self._link.subscribe(one, self._take_datagram)

    async def _take_datagram(self, message: Msg) -> None:
        self._datagrams_taken_count += 1
        if self._datagrams_taken_count % READ_COUNT_MAX == 0:
            await asyncio.sleep(0)
        if self._datagrams_waiting_count >= DATAGRAMS_COUNT_MAX or len(message.data) > PAYLOAD_BYTES_MAX:
            return
        self._datagrams_waiting_count += 1
        arrived = message_of(message.subject, message.data, message.headers)
        self._reception.take(Arrival(arrived, self._datagram_handled))

    def _datagram_handled(self) -> None:
        self._datagrams_waiting_count -= 1

    async def _give_retained(self, found: Route, filters: Sequence[str]) -> None:
        if filters:
            options = structs.replace(self._options, fleet=found.fleet)
            inbox = f"_INBOX.{self._owner}.retained"
            for message in await read_retained(self._link, options, filters, inbox, mqtt=self._publishing.has_mqtt):
                self._reception.take(Arrival(message, _forget))

    async def check(self) -> None:
        """Raises ConfigError if another process has taken over one of the sessions."""
        for session in self._sessions.values():
            await session.check()

    async def trim(self) -> None:
        """Removes the filters of older programs from the sessions."""
        for stream, session in self._sessions.items():
            await session.trim(self._filters.get(stream, []))

    async def pause(self) -> None:
        """Pauses the sessions while the link is down."""
        for session in self._sessions.values():
            await session.pause()

    async def stop(self) -> None:
        """Stops the work beside the sessions."""
        if self._mover is not None:
            await self._mover.close()
        for end in self._datagrams.values():
            await end()
        self._datagrams.clear()
        await end_tasks(*self._telling)

    async def close(self) -> None:
        """Acknowledges handled messages and ends the sessions."""
        for session in self._sessions.values():
            await session.close()

    def _session(self, stream: str, fleet: str = "") -> Session:
        if stream in self._sessions:
            return self._sessions[stream]
        is_parted = self.parting is not None and stream == self.parting.stream
        inner = f"{Subjects(fleet).inner}."
        session = Session(
            self._link,
            stream,
            bus_session(self._client_id),
            self._owner,
            self._reception,
            self._doubt,
            session_s=self._options.session_s,
            epoch=self._epoch,
            bare=self.parting.bare
            if self.parting is not None and is_parted
            # A session that an earlier version made may still read stored datagrams.
            else lambda subject: None if subject.startswith(inner) or is_datagram(subject) else subject,
            looks=self._look_at if stream == bus_stream(self._options.fleet) else None,
            takes=self._mover.takes if self._mover is not None and is_parted else None,
        )
        self._sessions[stream] = session
        return session

    def _look_at(self, place: int, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        """Forwards a will to devices on MQTT: the server itself publishes it to sessions on NATS only."""
        if self._publishing.has_mqtt and SCHEDULER in headers and len(self._telling) < TELLING_COUNT_MAX:
            telling = asyncio.ensure_future(tell_devices(self._outlet, place, subject, payload, headers))
            self._telling[telling] = None
            telling.add_done_callback(self._told)

    def _told(self, telling: asyncio.Task[None]) -> None:
        del self._telling[telling]
        if not telling.cancelled() and telling.exception() is not None:
            self._publishing.has_mqtt = False  # until the next check


def _filters(patterns: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(one for pattern in patterns for one in filters_of(pattern)))


def _forget() -> None:
    """Retained messages need no acknowledgement."""
