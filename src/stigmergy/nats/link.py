"""One connection to NATS that reconnects itself, and requests that always end: with an answer, a refusal, or LinkDown.

The client library buffers what is published while it is disconnected, and sends it later: a write that we had given up
would still happen. So nothing is buffered here: without a connection a request fails at once, and when a connection
breaks, everything that waits for an answer fails at once.

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
from stigmergy.nats.address import NatsAddress
from stigmergy.nats.client import CONNECTING_FAILS, NatsConnection, end_quietly, explain, is_cancelled, tls_context
from stigmergy.nats.errors import Ack as Ack  # noqa: PLC0414 - others take it from here
from stigmergy.nats.errors import JetStreamRefused, NoResponders, Unanswered, no_jetstream, read_ack

OPEN_S = 5.0
REQUEST_S = 5.0
CONNECT_S = 2
DRAIN_S = 1.0
"""What is under way to a subscription that ends is waited for so long."""
PING_EVERY_S = 2
"""A server that is there and does not answer is given up after three of these."""
PINGS_MAX = 2
RECONNECT_PAUSE_S = 0.2
LOOK_S = 0.02
CERTAIN_S = 1.0
"""A server that has refused us so long will go on to; of several, another one may let us in."""
PENDING_COUNT_MAX = 8_192
PENDING_BYTES_MAX = 64 * 1024 * 1024
"""What a subscription may have waiting; the client drops what comes beyond it, and says so to `last_error`."""
NO_RESPONDERS = "503"

Taken = Callable[[Msg], Awaitable[None]]
LinkHeard = Callable[[bool], None]
ErrorHeard = Callable[[StigmergyError], None]
Headers = Mapping[str, str]


class _Ear(Struct, eq=False):
    """A subscription that is made again with every new client."""

    subject: str
    taken: Taken
    queue: str
    made: Subscription | None = None


_encode = msgspec.json.Encoder().encode


class NatsLink:
    """A connection. `open` and wait for it, or `start` and let it come and go."""

    def __init__(self, address: NatsAddress, *, name: str) -> None:
        self.address = address
        self.name = name
        self._client: Client | None = None
        self._inbox = ""
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Msg]] = {}
        self._many: dict[str, Callable[[Msg], None]] = {}
        self._ears: list[_Ear] = []
        self._listeners: list[LinkHeard] = []
        self._complained: list[ErrorHeard] = []
        self._up = asyncio.Event()
        self._ended = asyncio.Event()
        """The present client has closed for good."""
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None
        self.last_error: StigmergyError | None = None
        self._api_prefix = f"$JS.{address.domain}.API." if address.domain else "$JS.API."

    # ------------------------------------------------------------------ life

    @classmethod
    async def open(cls, address: NatsAddress, *, name: str, within_s: float = OPEN_S) -> NatsLink:
        """Connects, and makes sure that there is JetStream. Raises ConfigError for what somebody must mend, else
        LinkDown."""
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
        """Begins to connect, for as long as it takes."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._live(), name=f"nats {self.name}")

    async def wait_up(self, within_s: float) -> None:
        """Waits until the link is up. Raises why it is not."""
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
        """Raises ConfigError if the server we are connected to keeps nothing."""
        client = self._client
        if client is not None and not self.address.domain and not client._server_info.get("jetstream"):
            raise no_jetstream(self.address.shown)

    async def close(self) -> None:
        """Ends the connection; pending requests raise LinkDown. Closing twice does nothing."""
        self._is_closing = True
        self._lost("the connection was closed")
        self._ended.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @property
    def is_up(self) -> bool:
        """Whether we are connected, as far as is known."""
        return self._client is not None and self._client.is_connected

    def on_link(self, heard: LinkHeard) -> Callable[[], None]:
        """Has this called at every change of the link. Returns what ends it."""
        self._listeners.append(heard)
        return lambda: self._listeners.remove(heard) if heard in self._listeners else None

    def on_error(self, heard: ErrorHeard) -> Callable[[], None]:
        """Has this called with what a server complains about and no request hears, such as missing rights. Returns what
        ends it."""
        self._complained.append(heard)
        return lambda: self._complained.remove(heard) if heard in self._complained else None

    @property
    def max_payload_bytes(self) -> int:
        """The largest message that the server takes, headers included; a guess while nobody is connected."""
        return self._client.max_payload if self._client is not None else 1024 * 1024

    @property
    def server_name(self) -> str:
        """The server that we are connected to."""
        return str(self._client._server_info.get("server_name", "")) if self._client is not None else ""

    @property
    def client(self) -> Client:
        """The client library's connection, for what this class does not offer. Raises LinkDown while there is none."""
        if self._client is None:
            raise self._down()
        return self._client

    # ------------------------------------------------------------------ asking

    async def request(
        self, subject: str, payload: bytes = b"", headers: Headers | None = None, within_s: float = REQUEST_S
    ) -> Msg:
        """Sends, and returns the first answer.

        Raises LinkDown if nothing was sent, NoResponders if nobody was there to take it, Unanswered if it may have
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
            raise NoResponders(f"nobody answers on {subject} at {self.address.shown}; nothing was taken, try again")
        return message

    async def collect(self, subject: str, payload: bytes, count_max: int, within_s: float = REQUEST_S) -> list[Msg]:
        """Sends, and returns all answers up to the one without data that ends a batch, that one left out.

        Raises as `request` does, and Unanswered if the end has not come in time.
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
        """Calls JetStream's API, such as STREAM.INFO.X. Raises JetStreamRefused, ConfigError without JetStream, or as
        `request` does."""
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
                f"{call}: the server's answer is no JSON; is {self.address.shown} a NATS server?"
            ) from None
        if error := answer.get("error"):
            raise JetStreamRefused(
                int(error.get("err_code") or error.get("code", 0)), str(error.get("description", ""))
            )
        return answer

    def api_subject(self, call: str) -> str:
        """Where a call of JetStream's API goes."""
        return self._api_prefix + call

    async def publish(
        self, subject: str, payload: bytes, headers: Headers | None = None, within_s: float = REQUEST_S
    ) -> Ack:
        """Publishes into a stream; returns when JetStream has it. Raises JetStreamRefused, or as `request` does."""
        message = await self.request(subject, payload, headers, within_s)
        return read_ack(subject, message.data)

    async def tell(self, subject: str, payload: bytes, reply: str = "", headers: Headers | None = None) -> None:
        """Publishes without an answer: it may get lost. Raises LinkDown or TooLarge."""
        await self._send(subject, payload, reply, headers)

    # ------------------------------------------------------------------ listening

    async def subscribe(
        self, subject: str, taken: Taken, queue: str = "", *, drains: bool = False
    ) -> Callable[[], Awaitable[None]]:
        """Has messages given to `taken`, one after the other, from now on and over every reconnect. Returns what ends
        it; with `drains`, what is under way to us then is taken first. Works while the link is down. What `taken`
        raises goes to `last_error`."""
        if not all(subject.split(".")) or any(sign.isspace() for sign in subject):
            raise ConfigError(f"{subject!r} is no subject that can be subscribed to")
        ear = _Ear(subject, taken, queue)
        self._ears.append(ear)
        if self._client is not None and self._client.is_connected:
            await self._listen(ear)

        async def end() -> None:
            if ear in self._ears:
                self._ears.remove(ear)
            if ear.made is not None:
                made: Any = ear.made
                with contextlib.suppress(Exception):
                    if drains and self.is_up:
                        async with asyncio.timeout(DRAIN_S):
                            await made.drain()
                    else:
                        await made.unsubscribe()

        return end

    async def flush(self, within_s: float = REQUEST_S) -> None:
        """Returns when the server has heard all that was sent before, subscriptions too."""
        try:
            async with asyncio.timeout(within_s):
                await self.client.flush(timeout=max(1, int(within_s)))
        except (nats_errors.Error, TimeoutError, OSError) as error:
            raise Unanswered(f"{self.address.shown} does not answer ({error}); try again") from None

    # ------------------------------------------------------------------ within

    async def _send(self, subject: str, payload: bytes, reply: str, headers: Headers | None) -> None:
        client = self._client
        if client is None or not client.is_connected:
            raise self._down()
        try:
            await client.publish(subject, payload, reply=reply, headers=None if headers is None else dict(headers))
        except nats_errors.MaxPayloadError:
            raise TooLarge(
                f"{subject}: a message of {len(payload)} bytes, and the server takes {client.max_payload} at most; "
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
                # Also when we are closed while it connects: what it has begun would go on without us.
                self._client = None
                for ear in self._ears:
                    ear.made = None
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
        for ear in list(self._ears):
            await self._listen(ear)
        self._heard(True)

    async def _listen(self, ear: _Ear) -> None:
        async def take(message: Msg) -> None:
            try:
                await ear.taken(message)
            except Exception as error:
                await self._on_error(error)

        try:
            ear.made = await self.client.subscribe(
                ear.subject,
                queue=ear.queue,
                cb=take,
                pending_msgs_limit=PENDING_COUNT_MAX,
                pending_bytes_limit=PENDING_BYTES_MAX,
            )
        except nats_errors.BadSubjectError:
            self._ears.remove(ear)
            raise ConfigError(f"{ear.subject!r} is no subject that can be subscribed to") from None

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
            # What the library has not written yet it would write after it has connected again.
            client._pending.clear()
            client._pending_data_size = 0
        self._lost("the connection broke")

    async def _on_reconnected(self) -> None:
        for ear in [ear for ear in self._ears if ear.made is None]:  # those that came while nobody was connected
            with contextlib.suppress(nats_errors.Error, OSError, LinkDown):
                await self._listen(ear)
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
