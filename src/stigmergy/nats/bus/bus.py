"""The Bus port on JetStream: messages are in the fleet's stream, and each client reads it through a session.

The link is up when the server is connected and has our streams and our session. If that is in doubt (a publish without
an answer, a silent session), the bus checks it; meanwhile the link counts as down.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from stigmergy.base.clock import Entropy
from stigmergy.base.errors import Bug, ConfigError, LinkDown, Malformed, NotOwned, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.inbox import UNHEARD_S_MAX, Receipts, Reception
from stigmergy.bus.port import (
    BusMessage,
    Gate,
    Handler,
    LinkHeard,
    check_client_id,
    check_message,
    check_pattern,
    tell_link,
)
from stigmergy.nats.bus.listener import BusSessions
from stigmergy.nats.bus.options import BusOptions
from stigmergy.nats.bus.outlet import Outlet
from stigmergy.nats.bus.partition import Partition
from stigmergy.nats.bus.publisher import NatsPublisher, NoRoom, is_down, no_room
from stigmergy.nats.bus.retained import Will
from stigmergy.nats.bus.streams import SourcedStream, ensure_streams, ensure_subjects, has_mqtt, narrow, side_by_side
from stigmergy.nats.bus.subjects import filters_of
from stigmergy.nats.errors import WITHOUT_JETSTREAM, JetStreamRefused, no_jetstream
from stigmergy.nats.link import NatsLink

WINDOW_COUNT_MAX = 256
"""Unanswered publishes; further ones wait."""
RETRY_S_MIN = 0.05
RETRY_S_MAX = 5.0
"""While the link is up and the bus is not, the wait between retries doubles from RETRY_S_MIN to this."""
CLOSE_S_MAX = 5.0
"""The limit at `close` for handlers under way, and for the server."""
LOOK_S = 15.0
"""How often we check whether devices came by MQTT, and what the stream captures."""
OWNER_BYTES = 8
PROBE_TTL = "1s"


class NatsBus:
    """The Bus port. `open` starts a task that keeps the session while the bus is open."""

    def __init__(
        self,
        options: BusOptions,
        client_id: str,
        entropy: Entropy,
        *,
        link: NatsLink | None = None,
        partition: Partition | None = None,
        epoch: int = 0,
    ) -> None:
        """With a `link`, which the caller closes, several buses of a process share a connection. With a `partition`, it
        receives commands and inputs only for the agents of one shard; another bus with the same client id and no
        lower `epoch` takes over its session."""
        check_client_id(client_id)
        self.options = options
        self.client_id = client_id
        self._entropy = entropy
        self._owner = entropy.token(OWNER_BYTES).hex()
        self._owns_link = link is None
        self._link = link or NatsLink(options.address, name=client_id)
        self._inbox = f"_INBOX.{self._owner}"
        self._outlet = Outlet(self._link, f"{self._inbox}.posted")
        self._publishing = NatsPublisher(self._link, self._outlet, options)
        self._reception = Reception()
        self._listening = BusSessions(
            self._link,
            options,
            client_id,
            self._owner,
            self._reception,
            self._publishing,
            self._outlet,
            self._doubt,
            partition=partition,
            epoch=epoch,
        )
        self._will: Will | None = None
        self._is_up = False
        self._last_error: StigmergyError | None = LinkDown(f"{options.place}: not connected yet")
        self._listeners: list[LinkHeard] = []
        self._slots = asyncio.Semaphore(WINDOW_COUNT_MAX)
        self._linked = asyncio.Event()
        self._trouble: asyncio.Future[StigmergyError] | None = None
        self._changing = asyncio.Lock()
        """Held while sessions are made or changed."""
        self._tasks: list[asyncio.Task[None]] = []
        self._unlisten: list[Callable[[], None]] = []
        self._was_full = False
        self._is_closed = False

    # ------------------------------------------------------------------ the port

    @property
    def is_up(self) -> bool:
        return self._is_up

    @property
    def last_error(self) -> StigmergyError | None:
        return None if self._is_up else self._last_error

    @property
    def receipts(self) -> Receipts:
        """How received messages have ended."""
        return self._reception.receipts

    def on_link(self, heard: LinkHeard) -> None:
        self._listeners.append(heard)

    async def open(self, will: BusMessage | None = None) -> None:
        if self._tasks or self._is_closed:
            raise Bug("a bus is opened once; make another one")
        if will is not None:
            check_message(will)
            self._will = Will(self._link, self.options, self.client_id, will, self._doubt)
        self._reception.begin()
        self._unlisten = [self._link.on_link(self._link_changed), self._link.on_error(self._complained)]
        self._link.start()
        if self._link.is_up:
            self._linked.set()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._keep(), name=f"link of {self.client_id}"),
            loop.create_task(self._look_after(), name=f"bus of {self.client_id}"),
        ]
        if (parting := self._listening.parting) is not None:
            is_wanted = lambda: self._is_up and self._listening.is_sorted  # noqa: E731
            feeding = SourcedStream(self._link, self.options, parting.stream, parting.sources({}), is_wanted)
            self._tasks.append(loop.create_task(feeding.watch(), name=f"feeding of {self.client_id}"))

    async def publish(self, message: BusMessage) -> None:
        check_message(message)
        if not self._is_up:
            raise is_down(message)
        async with self._slots:
            if not self._is_up:
                raise is_down(message)
            try:
                await self._publishing.publish(message)
            except NoRoom as error:
                self._was_full = True
                self._doubt(ConfigError(str(error)))
                raise
            except LinkDown as error:
                self._doubt(error)
                raise

    async def subscribe(self, pattern: str, handler: Handler) -> None:
        check_pattern(pattern)
        filters_of(pattern)
        if self._is_closed:
            raise Bug("the bus is closed; open another one")
        self._reception.subscribe(pattern, handler if self._listening.parting is None else _leave_to_others(handler))
        if not self._is_up:
            return
        refused = ""
        try:
            async with self._changing:
                if self._is_up:
                    refused = await self._listening.make([pattern])
        except StigmergyError as error:
            self._doubt(error)  # the sessions are made again with the link
        except JetStreamRefused as error:
            self._doubt(self._misfit(error))
        if refused:
            raise Malformed(f"pattern {pattern!r}: {refused}")

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        await self._reception.close(CLOSE_S_MAX)
        await self._listening.stop()
        await end_tasks(*self._tasks)
        for unlisten in self._unlisten:
            unlisten()
        with contextlib.suppress(LinkDown, TimeoutError):
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._leave()
        self._went_down(LinkDown("the bus was closed"))
        await self._outlet.close()
        if self._owns_link:
            await self._link.close()

    # ------------------------------------------------------------------ the link

    async def _keep(self) -> None:
        tries = 0
        while True:
            await self._linked.wait()
            self._trouble = asyncio.get_running_loop().create_future()
            try:
                async with self._changing:
                    await self._come_up()
                tries = 0
                reason = await self._trouble
            except JetStreamRefused as refused:
                reason = self._misfit(refused)
            except StigmergyError as error:
                reason = error
            except Exception as error:
                reason = LinkDown(f"{self.options.place}: {type(error).__name__}: {error}; trying again")
            self._went_down(self._better(reason))
            async with self._changing:
                await self._listening.pause()
                if self._will is not None:
                    await self._will.pause()
            await asyncio.sleep(self._wait_s(tries))
            tries += 1

    async def _come_up(self) -> None:
        self._link.check_jetstream()
        await self._outlet.open()
        await side_by_side(self._find_streams(), self._look_for_devices())
        if self._was_full:
            # Otherwise the bus would go up and down with every message.
            await self._link.publish(f"{self.options.subjects.inner}.probe", b"", {"Nats-TTL": PROBE_TTL})
            self._was_full = False
        await side_by_side(self._leave_will(), self._listen())
        if self._trouble is None or not self._trouble.done():
            self._is_up = True
            tell_link(self._listeners, True, self.client_id)

    async def _find_streams(self) -> None:
        found = await ensure_streams(self._link, self.options, () if self._will is None else (self._will.subject,))
        self._publishing.begin(found.config["subjects"])

    async def _look_for_devices(self) -> None:
        self._publishing.has_mqtt = self.options.mqtt and await has_mqtt(self._link)

    async def _leave_will(self) -> None:
        if self._will is not None:
            await self._will.begin()

    async def _listen(self) -> None:
        if self._reception.patterns:
            await self._listening.make(self._listening.unmade)

    async def _leave(self) -> None:
        if self._linked.is_set():
            if self._will is not None:
                await self._will.cancel()
            await self._listening.close()
        else:
            await self._listening.pause()

    async def _look_after(self) -> None:
        """Regularly: drops filters of older programs, and checks whether devices have come by MQTT."""
        loop = asyncio.get_running_loop()
        opened_s, is_trimmed = loop.time(), False
        while True:
            await asyncio.sleep(LOOK_S)
            if not self._is_up:
                continue
            try:
                async with self._changing:
                    found = await ensure_subjects(self._link, self.options, self._listening.captured)
                    self._publishing.note_captured(found.config["subjects"])
                    await self._look_for_devices()
                    await self._listening.check()
                    if not is_trimmed and loop.time() - opened_s > UNHEARD_S_MAX:
                        await self._listening.trim()
                        is_trimmed = True
                    if is_trimmed:
                        with contextlib.suppress(StigmergyError, JetStreamRefused):  # it works without, and costs more
                            await narrow(self._link, self.options)
            except StigmergyError as error:
                self._doubt(error)
            except JetStreamRefused as refused:
                self._doubt(self._misfit(refused))

    def _wait_s(self, tries: int) -> float:
        """Exponential back-off with full jitter: a fleet must not reconnect all at once when its servers return."""
        most_s = min(RETRY_S_MAX, RETRY_S_MIN * 2.0 ** min(tries, 20))
        return most_s * int.from_bytes(self._entropy.token(4), "big") / 2**32

    def _link_changed(self, up: bool) -> None:
        if up:
            self._linked.set()
        else:
            self._linked.clear()
            self._doubt(self._link.last_error or LinkDown(f"{self.options.place}: the link is lost; reconnecting"))

    def _complained(self, error: StigmergyError) -> None:
        """Handles server errors that belong to no request, such as a missing permission to publish."""
        text = str(error)
        if not isinstance(error, ConfigError):
            return
        if "publish to" in text.lower():
            subject = text.partition('"')[2].partition('"')[0]
            self._outlet.fail(Malformed(f"the server refuses the message: {text}"), subject)
        if not self._is_up:
            self._last_error = error

    def _doubt(self, reason: StigmergyError) -> None:
        if self._trouble is not None and not self._trouble.done():
            self._trouble.set_result(reason)
        if self._is_up:
            self._went_down(reason)

    def _misfit(self, refused: JetStreamRefused) -> StigmergyError:
        if refused.code in WITHOUT_JETSTREAM:
            return no_jetstream(self.options.place)
        if refused.is_full:
            return ConfigError(str(no_room(self.options, refused)))
        return LinkDown(f"{self.options.place}: JetStream refuses: {refused}; trying again")

    def _better(self, reason: StigmergyError) -> StigmergyError:
        """An earlier error of the server says more than a missing answer."""
        complaint = self._link.last_error
        return complaint if isinstance(complaint, ConfigError) and isinstance(reason, LinkDown) else reason

    def _went_down(self, reason: StigmergyError) -> None:
        self._last_error = reason
        if isinstance(reason, LinkDown):
            self._outlet.fail(LinkDown("the link broke under way: whether the broker has it is unknown, publish again"))
        if self._is_up:
            self._is_up = False
            tell_link(self._listeners, False, self.client_id)


def _leave_to_others(handler: Handler) -> Handler:
    """Messages that every shard receives are handled only by the shard of their agent."""

    async def handle(message: BusMessage) -> None:
        with contextlib.suppress(NotOwned):
            await take(message)

    if isinstance(handler, Gate):
        take: Handler = handler.handle
        return Gate(handler.source_of, handler.admit, handle, shed=handler.shed, wants=handler.wants)
    take = handler
    return handle
