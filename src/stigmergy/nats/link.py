"""One connection to NATS that reconnects itself, and requests that always end: with an answer, a refusal, or LinkDown.

The client library buffers messages that are published while it is disconnected, and sends them later: a write that we
had given up would still happen. So nothing is buffered here: without a connection a request fails at once, and when a
connection breaks, all pending requests fail at once.

Everything here runs on the event loop that opened the link. The stream's leader answers JetStream's reads of a single
message; any replica, which may be behind, answers direct ones (`DIRECT.GET`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from nats import errors as nats_errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from stigmergy.base.errors import ConfigError, LinkDown, StigmergyError, TooLarge
from stigmergy.base.tasks import end_tasks
from stigmergy.nats.address import NatsAddress
from stigmergy.nats.client import CONNECTING_FAILS, NatsConnection, end_quietly, explain, is_cancelled, tls_context
from stigmergy.nats.errors import Ack as Ack  # noqa: PLC0414 - other modules import it from here
from stigmergy.nats.errors import JetStreamRefused, NoResponders, Unanswered, no_jetstream, read_ack

OPEN_S = 5.0
REQUEST_S = 5.0
CONNECT_S = 2
DRAIN_S = 1.0
"""How long an ending subscription waits for messages under way."""
PING_EVERY_S = 2
"""A connected server that does not answer is given up after three of these."""
PINGS_MAX = 2
RECONNECT_PAUSE_S = 0.2
LOOK_S = 0.02
CERTAIN_S = 1.0
"""A server that rejected us for this long will go on doing so; one of several others may accept us."""
PENDING_COUNT_MAX = 8_192
PENDING_BYTES_MAX = 64 * 1024 * 1024
"""The backlog of a subscription; the client drops messages beyond it and reports it to `last_error`."""
NO_RESPONDERS = "503"

Taken = Callable[[Msg], Awaitable[None]]
LinkHeard = Callable[[bool], None]
ErrorHeard = Callable[[StigmergyError], None]
Headers = Mapping[str, str]


class _Subscription(Struct, eq=False):
    """A subscription, made again with every new client."""

    subject: str
    taken: Taken
    queue: str
    made: Subscription | None = None


_encode = msgspec.json.Encoder().encode


class NatsLink:
    """A connection. `open` waits for it; `start` connects in the background and reconnects."""

    def __init__(self, address: NatsAddress, *, name: str) -> None:
        self.address = address
        self.name = name
        self._client: Client | None = None
        self._inbox = ""
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Msg]] = {}
        self._many: dict[str, Callable[[Msg], None]] = {}
        self._subscriptions: list[_Subscription] = []
        self._listeners: list[LinkHeard] = []
        self._complained: list[ErrorHeard] = []
        self._up = asyncio.Event()
        self._ended = asyncio.Event()
        """Set when the current client has closed for good."""
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None
        self.last_error: StigmergyError | None = None
        self._api_prefix = f"$JS.{address.domain}.API." if address.domain else "$JS.API."

    # ------------------------------------------------------------------ life

    @classmethod
    async def open(cls, address: NatsAddress, *, name: str, within_s: float = OPEN_S) -> NatsLink:
        """Connects and checks that JetStream runs. Raises ConfigError for what somebody must fix, else LinkDown."""
        link = cls(address, name=name)
        link.start()
        try:
            await link.wait_up(within_s)
            link.check_jetstream()
        except BaseException:
            await link.close()
            raise
        return link

    def start(self) -> None:
        """Starts connecting, for as long as it takes."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._live(), name=f"nats {self.name}")

    async def wait_up(self, within_s: float) -> None:
        """Waits until the link is up. Raises the reason if it is not in time."""
        now_s = asyncio.get_running_loop().time
        deadline_s, refused_s = now_s() + within_s, None
        while not self._up.is_set():
            if isinstance(self.last_error, ConfigError):
                refused_s = refused_s or now_s() + CERTAIN_S
            if now_s() > min(deadline_s, refused_s or deadline_s):
                raise self.last_error or LinkDown(
                    f"no NATS server answers at {self.address.shown}; check the URL, and that the server runs"
                )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._up.wait()

    def check_jetstream(self) -> None:
        """Raises ConfigError if the connected server runs without JetStream."""
        client = self._client
        if client is not None and not self.address.domain and not client._server_info.get("jetstream"):
            raise no_jetstream(self.address.shown)

    async def close(self) -> None:
        """Ends the connection; pending requests raise Unanswered. Closing twice does nothing."""
        self._is_closing = True
        self._lost("the connection was closed")
        self._ended.set()
        await end_tasks(self._task)
        self._task = None

    @property
    def is_up(self) -> bool:
        """Whether we are connected, as far as we know."""
        return self._client is not None and self._client.is_connected

    def on_link(self, heard: LinkHeard) -> Callable[[], None]:
        """Calls `heard` at every change of the link. Returns a function that unsubscribes."""
        self._listeners.append(heard)
        return lambda: self._listeners.remove(heard) if heard in self._listeners else None

    def on_error(self, heard: ErrorHeard) -> Callable[[], None]:
        """Calls `heard` with server errors that belong to no request, such as missing permissions. Returns a function
        that unsubscribes."""
        self._complained.append(heard)
        return lambda: self._complained.remove(heard) if heard in self._complained else None

    @property
    def server_domain(self) -> str:
        """The JetStream domain of the server that we are connected to; empty for none, and while disconnected."""
        return "" if self._client is None else str(self._client._server_info.get("domain") or "")

    @property
    def max_payload_bytes(self) -> int:
        """The largest message that the server accepts, headers included; a guess while disconnected."""
        return self._client.max_payload if self._client is not None else 1024 * 1024

    @property
    def server_name(self) -> str:
        return str(self._client._server_info.get("server_name", "")) if self._client is not None else ""

    @property
    def client(self) -> Client:
        """The client library's connection. Raises LinkDown while there is none."""
        if self._client is None:
            raise self._down()
        return self._client

    # ------------------------------------------------------------------ requests

    async def request(
        self, subject: str, payload: bytes = b"", headers: Headers | None = None, within_s: float = REQUEST_S
    ) -> Msg:
        """Sends a request and returns the first answer.

        Raises LinkDown if nothing was sent, NoResponders if nobody was there to receive it, Unanswered if it may have
        arrived, TooLarge.
        """
        number = str(next(self._numbers))
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Msg] = loop.create_future()
        self._waiting[number] = future
        timer = loop.call_later(within_s, self._time_out, future, subject, within_s)
        try:
            await self._send(subject, payload, f"{self._inbox}.{number}", headers)
            message = await future
        finally:
            timer.cancel()
            self._waiting.pop(number, None)
        if message.headers and message.headers.get("Status") == NO_RESPONDERS and not message.data:
            raise NoResponders(f"nobody answers on {subject} at {self.address.shown}; nothing was done, try again")
        return message

    async def collect(self, subject: str, payload: bytes, count_max: int, within_s: float = REQUEST_S) -> list[Msg]:
        """Sends a request and returns all answers before the empty one that ends the batch.

        Raises like `request`, and Unanswered if the end has not come in time.
        """
        number, found = str(next(self._numbers)), list[Msg]()
        done: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        timer = asyncio.get_running_loop().call_later(within_s, self._time_out, done, subject, within_s)

        def take(message: Msg) -> None:
            status = (message.headers or {}).get("Status")
            if status is None:
                found.append(message)
            if (status is not None or len(found) >= count_max) and not done.done():
                done.set_result(message)

        self._many[number] = take
        self._waiting[number] = done
        try:
            await self._send(subject, payload, f"{self._inbox}.{number}", None)
            last = await done
        finally:
            timer.cancel()
            self._many.pop(number, None)
            self._waiting.pop(number, None)
        status = (last.headers or {}).get("Status")
        if status == NO_RESPONDERS:
            raise NoResponders(f"nobody answers on {subject} at {self.address.shown}; try again")
        return found

    async def api(
        self, call: str, body: Mapping[str, Any] | None = None, within_s: float = REQUEST_S
    ) -> dict[str, Any]:
        """Calls JetStream's API, such as STREAM.INFO.X. Raises JetStreamRefused, ConfigError without JetStream, or like
        `request`."""
        payload = b"" if body is None else _encode(body)
        try:
            message = await self.request(self.api_subject(call), payload, within_s=within_s)
        except NoResponders:
            self.check_jetstream()
            raise
        try:
            answer: dict[str, Any] = msgspec.json.decode(message.data, type=dict[str, Any])
        except msgspec.DecodeError:
            raise Unanswered(
                f"{call}: the server's answer is not JSON; is {self.address.shown} a NATS server?"
            ) from None
        if error := answer.get("error"):
            raise JetStreamRefused(
                int(error.get("err_code") or error.get("code", 0)), str(error.get("description", ""))
            )
        return answer

    def api_subject(self, call: str) -> str:
        """The subject of a call of JetStream's API."""
        return self._api_prefix + call

    async def publish(
        self, subject: str, payload: bytes, headers: Headers | None = None, within_s: float = REQUEST_S
    ) -> Ack:
        """Publishes into a stream; returns when JetStream has stored it. Raises JetStreamRefused, or like `request`."""
        message = await self.request(subject, payload, headers, within_s)
        return read_ack(subject, message.data)

    async def tell(self, subject: str, payload: bytes, reply: str = "", headers: Headers | None = None) -> None:
        """Publishes without waiting for an answer: the message may get lost. Raises LinkDown or TooLarge."""
        await self._send(subject, payload, reply, headers)

    # ------------------------------------------------------------------ subscriptions

    async def subscribe(
        self, subject: str, taken: Taken, queue: str = "", *, drains: bool = False
    ) -> Callable[[], Awaitable[None]]:
        """Calls `taken` with each message, one after the other, over every reconnect. Works while the link is down.

        Returns a function that unsubscribes; with `drains` it handles messages under way first. Errors of `taken` go to
        `last_error`.
        """
        if not all(subject.split(".")) or any(sign.isspace() for sign in subject):
            raise ConfigError(f"{subject!r} is not a subject that can be subscribed to")
        subscription = _Subscription(subject, taken, queue)
        self._subscriptions.append(subscription)
        if self._client is not None and self._client.is_connected:
            await self._listen(subscription)

        async def end() -> None:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)
            if subscription.made is not None:
                made: Any = subscription.made
                with contextlib.suppress(Exception):
                    if drains and self.is_up:
                        async with asyncio.timeout(DRAIN_S):
                            await made.drain()
                    else:
                        await made.unsubscribe()

        return end

    async def flush(self, within_s: float = REQUEST_S) -> None:
        """Returns when the server has processed everything sent before, subscriptions too."""
        try:
            async with asyncio.timeout(within_s):
                await self.client.flush(timeout=max(1, int(within_s)))
        except (nats_errors.Error, TimeoutError, OSError) as error:
            raise Unanswered(f"{self.address.shown} does not answer ({error}); try again") from None

    async def _send(self, subject: str, payload: bytes, reply: str, headers: Headers | None) -> None:
        client = self._client
        if client is None or not client.is_connected:
            raise self._down()
        try:
            await client.publish(subject, payload, reply=reply, headers=None if headers is None else dict(headers))
        except nats_errors.MaxPayloadError:
            raise TooLarge(
                f"{subject}: a message of {len(payload)} bytes; the server accepts {client.max_payload} at most; "
                "raise max_payload in its configuration, or send less"
            ) from None
        except (nats_errors.Error, OSError) as error:
            raise LinkDown(
                f"{self.address.shown}: {str(error) or type(error).__name__}; nothing was sent, try again"
            ) from None

    async def _live(self) -> None:
        while not self._is_closing:
            client = NatsConnection()
            self._ended.clear()
            try:
                await client.connect(**self._options())
                await self._begin(client)
                await self._ended.wait()
            except CONNECTING_FAILS as error:
                if is_cancelled():
                    raise
                self._failed(error)
            finally:
                # Also when we are closed while it connects: the library's attempt would go on without us.
                self._client = None
                for subscription in self._subscriptions:
                    subscription.made = None
                await end_quietly(client)
            await asyncio.sleep(RECONNECT_PAUSE_S)

    def _options(self) -> dict[str, Any]:
        return {
            "servers": list(self.address.servers),
            "name": self.name,
            "user": self.address.user or None,
            "password": self.address.password or None,
            "tls": tls_context(self.address),
            "connect_timeout": CONNECT_S,
            "reconnect_time_wait": RECONNECT_PAUSE_S,
            "max_reconnect_attempts": -1,
            "ping_interval": PING_EVERY_S,
            "max_outstanding_pings": PINGS_MAX,
            "pending_size": 0,
            "error_cb": self._on_error,
            "disconnected_cb": self._on_disconnected,
            "reconnected_cb": self._on_reconnected,
            "closed_cb": self._on_closed,
        }

    async def _begin(self, client: Client) -> None:
        self._inbox = client.new_inbox()
        await client.subscribe(f"{self._inbox}.*", cb=self._answered, pending_bytes_limit=PENDING_BYTES_MAX)
        self._client = client
        for subscription in list(self._subscriptions):
            await self._listen(subscription)
        self._heard(True)

    async def _listen(self, subscription: _Subscription) -> None:
        async def take(message: Msg) -> None:
            try:
                await subscription.taken(message)
            except Exception as error:
                await self._on_error(error)

        try:
            subscription.made = await self.client.subscribe(
                subscription.subject,
                queue=subscription.queue,
                cb=take,
                pending_msgs_limit=PENDING_COUNT_MAX,
                pending_bytes_limit=PENDING_BYTES_MAX,
            )
        except nats_errors.BadSubjectError:
            self._subscriptions.remove(subscription)
            raise ConfigError(f"{subscription.subject!r} is not a subject that can be subscribed to") from None

    async def _answered(self, message: Msg) -> None:
        number = message.subject.rpartition(".")[2]
        if (take := self._many.get(number)) is not None:
            take(message)
        elif (future := self._waiting.get(number)) is not None and not future.done():
            future.set_result(message)

    def _time_out(self, future: asyncio.Future[Msg], subject: str, within_s: float) -> None:
        if not future.done():
            future.set_exception(
                Unanswered(f"no answer from {self.address.shown} on {subject} in {within_s:g} s; it may have arrived")
            )

    def _down(self) -> LinkDown:
        why = f" ({self.last_error})" if isinstance(self.last_error, ConfigError) else ""
        return LinkDown(f"not connected to {self.address.shown}{why}; nothing was sent, try again when it is up")

    def _failed(self, error: BaseException) -> None:
        self.last_error = explain(self.address, error, self.last_error)

    async def _on_error(self, error: Exception) -> None:
        self._failed(error)
        for heard in list(self._complained):
            if self.last_error is not None:
                heard(self.last_error)

    async def _on_disconnected(self) -> None:
        client = self._client
        if client is not None:
            # The library would write its buffered messages after it has reconnected.
            client._pending.clear()
            client._pending_data_size = 0
        self._lost("the connection broke")

    async def _on_reconnected(self) -> None:
        for subscription in [one for one in self._subscriptions if one.made is None]:  # subscribed while disconnected
            with contextlib.suppress(nats_errors.Error, OSError, LinkDown):
                await self._listen(subscription)
        self._heard(True)

    async def _on_closed(self) -> None:
        self._ended.set()
        self._lost("the connection ended")

    def _lost(self, why: str) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(Unanswered(f"{self.address.shown}: {why}; what was under way may have arrived"))
        if self._up.is_set():
            self._heard(False)

    def _heard(self, up: bool) -> None:
        if up:
            self._up.set()
            self.last_error = None
        else:
            self._up.clear()
        for heard in list(self._listeners):
            heard(up)
