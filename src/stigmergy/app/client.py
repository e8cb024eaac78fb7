"""`connect`, and the client over a bus, which speaks as docs/topics.md says.

A fleet on NATS workers is reached through the owners of its shards.

    async with stigmergy.connect("mqtt://gateway:1883", fleet="warehouse", site="north") as far:
        answer = await far.send("Cart/c01", Drive(to="dock-1"))        # Accepted | Refused
        cart = await far.query("Cart/c01", Cart)
        async for heard in far.watch("Cart/+/place"):
            print(heard.agent, heard.event)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self, TypeVar, cast
from urllib.parse import urlsplit

from msgspec import structs

from stigmergy.agents.assignment import shown as few
from stigmergy.agents.messages import SECOND_NS
from stigmergy.app.cluster_client import Workers, find_workers
from stigmergy.app.keyring import load_signer
from stigmergy.app.node_config import NodeConfig, open_bus, shown, without_session
from stigmergy.app.signing import client_signing
from stigmergy.base.errors import (
    ConfigError,
    JournalConflict,
    JournalUnknown,
    LinkDown,
    Malformed,
    NoAnswer,
    NotOwned,
    NotRunning,
    Overloaded,
    StigmergyError,
    UnknownKind,
    error_named,
)
from stigmergy.base.system import SystemClock
from stigmergy.base.trust import Signer
from stigmergy.bus.cloudevents import JSON, STRUCTURED, CloudEvent, data_of, read_event, write_structured
from stigmergy.bus.port import Bus, BusMessage
from stigmergy.bus.presence import MEMBERS_COUNT_MAX, Member, locate, may_run, read_presence
from stigmergy.bus.replies import ANSWER, QUERY, REFUSAL, STATE
from stigmergy.bus.topics import AGENTS, Channel, Topics, check_level_name, parse_topic
from stigmergy.clients.client import WITHIN_S, WITHIN_S_MAX, Client, Wanted, command_id_of
from stigmergy.clients.remote import RemoteClient, Transport
from stigmergy.control.protocol import ObserveRequest, Request, SendRequest, StateRequest, trace_headers
from stigmergy.control.replies import ObserveReply, SendReply, StateReply
from stigmergy.network.watching import HistoryClient, NodesWatching, TopicWatching
from stigmergy.node.declaration import Declaration
from stigmergy.node.settings import OFF, SIGN
from stigmergy.node.watching import Watching, read_start, read_watched
from stigmergy.pki.identity import with_identity

AGAIN_S = 1.0
AGAIN_S_MAX = 5.0
"""An unanswered request is sent again after so long; the wait doubles up to the larger."""
PAUSE_S = 0.1
WAITING_MAX = 1_000
"""Requests of one client that wait for their answers at once."""
LISTENED_MAX = 256
"""So many agents are listened to for answers one by one; for more, those of all are heard, and most passed over."""
REFUSED_S_MAX = 0.25
"""So long the refusal of what was observed is waited for: no message says that a node has taken it."""
KNOWN_MAX = 10_000
"""Events, and agents on NATS, that a client remembers to have been taken; of more it forgets the oldest."""
NAME_BYTES = 6
NATS = ("nats", "tls")
HTTP = ("http", "https")
API_SCHEMES = (*HTTP, "grpc", "grpcs")
OVER_HTTP = "connect to the fleet's API instead: https://… or grpcs://…"
ELSEWHERE = (NotRunning, NotOwned, JournalConflict, JournalUnknown)
"""What a worker says that owns the shard no more, or is about to."""
R = TypeVar("R")


class BusClient(Client):
    """A client over a bus, or over NATS of a fleet on workers."""

    def __init__(
        self,
        url: str,
        fleet: str | Declaration,
        site: str,
        name: str,
        within_s: float,
        *,
        signer: Signer | None = None,
        signatures: str = SIGN,
    ) -> None:
        super().__init__(within_s)
        self._url = url
        self._declared = fleet if isinstance(fleet, Declaration) else None
        self._fleet = check_level_name("fleet", fleet.name if isinstance(fleet, Declaration) else fleet)
        self._topics = Topics(self._fleet, check_level_name("site", site))
        self._name = check_level_name("name", name or f"client-{self._entropy.token(NAME_BYTES).hex()}")
        clock = SystemClock()
        self._signing = client_signing(self._name, signer, signatures, lambda: clock.monotonic_ns() / SECOND_NS)
        self._bus: Bus | None = None
        self._workers: Workers | None = None
        self._members: dict[str, Member] = {}
        self._up = asyncio.Event()
        self._waiting: dict[tuple[str, str], asyncio.Future[Any]] = {}
        self._listened: dict[str, None] = {}
        self._history: HistoryClient | None = None
        self._watching: list[TopicWatching | NodesWatching] = []
        self._answering: dict[str, None] = {}
        """Agents on NATS that a node has answered for."""
        self._unrefused: dict[tuple[str, str], None] = {}
        """Kinds of agents and tags of events that were not refused."""
        self._last_error: LinkDown | None = None
        """Why the broker did not take what was sent last."""

    # ------------------------------------------------------------------ life

    async def __aenter__(self) -> Self:
        if self._bus is not None or self._workers is not None:
            raise ConfigError("a client is opened once; make another one with connect(…)")
        try:
            async with asyncio.timeout(self._within_s):
                await self._open()
        except TimeoutError:
            why = self._why_down()
            await self.close()
            raise NotRunning(f"{shown(self._url)}: no connection within {self._within_s:g} s{why}") from None
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        for watching in self._watching:
            watching.end()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(NotRunning("the client was closed"))
        if self._bus is not None:
            await self._bus.close()
        if self._workers is not None:
            await self._workers.close()

    def _why_down(self) -> str:
        error = None if self._bus is None else self._bus.last_error
        return "" if error is None else f": {error}"

    async def _open(self) -> None:
        client_id = f"{self._fleet}:{self._topics.site}:{self._name}"
        if urlsplit(self._url).scheme in NATS:
            self._workers, bus = await find_workers(self._url, self._declared or self._fleet, self._name)
        else:
            opened = open_bus(NodeConfig(bus=without_session(self._url)), client_id, self._entropy)
            assert opened is not None
            bus = opened
        self._bus = self._signing.wrap(bus, self._url)
        self._history = HistoryClient(self._bus, self._topics, self._name, lambda: self._members)
        self._bus.on_link(lambda up: self._up.set() if up else self._up.clear())
        self._bus.on_link(self._history.link)
        await self._bus.subscribe(self._topics.nodes_pattern(Channel.PRESENCE), self._hear_presence)
        await self._bus.open()
        while not self._bus.is_up:
            if isinstance(self._bus.last_error, ConfigError):
                raise self._bus.last_error
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S):
                    await self._up.wait()
        self._up.set()

    # ------------------------------------------------------------------ calls

    async def _ask(
        self, request: Request[R], within_s: float | None, about: str, doubt: str, body: bytes | None = None
    ) -> R:
        within_s = self._checked(within_s)
        if self._workers is not None:
            return await self._ask_workers(_for_workers(request, body), within_s, about, doubt)
        reply: object
        asked: Any = request  # the checker takes a class of requests for one kind of reply only
        match asked:
            case SendRequest():
                event = self._event(asked.agent, asked.command, asked.fields, body, asked.command_id or "")
                event = structs.replace(event, extensions={**event.extensions, **trace_headers(asked)})
                said = await self._request(asked.agent, Channel.COMMANDS, event, within_s, doubt)
                after = str(said.get("after") or "")
                reply = SendReply(said["accepted"], said.get("position"), said.get("reason"), after=after)
            case ObserveRequest():
                event = self._event(asked.agent, asked.event, asked.fields, body, self._fresh_id())
                event = structs.replace(event, extensions={**event.extensions, **trace_headers(asked)})
                # An event of a class has the right fields: nodes that know it once know it again.
                is_known = body is not None and (asked.agent.partition("/")[0], event.type) in self._unrefused
                await self._tell(asked.agent, event, within_s, 0.0 if is_known else REFUSED_S_MAX)
                reply = ObserveReply()
            case StateRequest(at=None):
                event = CloudEvent(self._fresh_id(), self._source, QUERY, about, datacontenttype=JSON, data={})
                said = await self._request(asked.agent, Channel.QUERIES, event, within_s, doubt)
                known, shard, position, stopped = map(said.get, ("known", "shard", "position", "stopped"))
                reply = StateReply(asked.agent, bool(known), shard or 0, position or 0, None, stopped, said["state"])
            case StateRequest():
                raise ConfigError(f"query(at={asked.at!r}): nodes on a bus tell the present only; {OVER_HTTP}")
            case _:
                raise ConfigError(f"{about}: nobody on a bus can be asked for this; {OVER_HTTP}")
        return cast(R, reply)

    def _watch(self, wanted: Wanted) -> Watching:
        if self._bus is None:
            raise NotRunning("the client is not open; use it inside async with")
        if wanted.node:
            raise ConfigError(f"watch(node={wanted.node!r}): a bus is heard whole; leave it out, or name topics")
        if wanted.area is not None:
            raise ConfigError("watch(area=…): nobody on a bus knows where agents are; connect over HTTP or gRPC for it")
        topics, kind = read_watched(wanted.topic, wanted.kind, wanted.agent)
        start = read_start(wanted.after, wanted.since, wanted.latest)
        if start is None:
            watching: TopicWatching | NodesWatching = TopicWatching(
                self._bus, f"{self._topics.root}/{AGENTS}/{_with_channel(topics)}", kind, self._check_heard
            )
        else:
            assert self._history is not None
            watch_id = self._entropy.token(NAME_BYTES).hex()
            watching = NodesWatching(
                self._history, watch_id, topics, kind, start, self._within_s, self._check_heard, self._named_members
            )
        self._watching.append(watching)
        return watching

    def members(self) -> list[Member]:
        return [self._members[node] for node in sorted(self._members)]

    # ------------------------------------------------------------------ over a bus

    async def _request(self, address: str, channel: Channel, event: CloudEvent, within_s: float, doubt: str) -> Any:
        """Sends a request until it is answered."""
        message, again_s = self._message(address, channel, event), AGAIN_S
        future = self._begin_waiting(address, event.id)
        try:
            async with asyncio.timeout(within_s):
                await self._listen(address, Channel.STATES if channel is Channel.QUERIES else Channel.ANSWERS)
                await self._subscribe_once(self._topics.nodes_pattern(Channel.REFUSALS), self._hear_refusal)
                while not future.done():
                    if not await self._publish(message):
                        await asyncio.sleep(PAUSE_S)
                        continue
                    try:
                        async with asyncio.timeout(again_s):
                            await asyncio.shield(future)
                    except TimeoutError:
                        again_s = min(AGAIN_S_MAX, 2 * again_s)
                return future.result()
        except TimeoutError:
            said = f"{address}: no answer within {within_s:g} s; {self._whereabouts(address)}; {doubt}"
            raise NoAnswer(said, command_id=event.id if channel is Channel.COMMANDS else "") from None
        finally:
            self._end_waiting(address, event.id)

    async def _tell(self, address: str, event: CloudEvent, within_s: float, refused_s: float) -> None:
        """Sends what was observed once somebody runs the agent; a refusal is waited for at most `refused_s`."""
        message = self._message(address, Channel.INPUTS, event)
        future = self._begin_waiting(address, event.id)
        sent = False
        try:
            async with asyncio.timeout(within_s):
                await self._wait_runs(address)
                await self._subscribe_once(self._topics.nodes_pattern(Channel.REFUSALS), self._hear_refusal)
                while not (sent := await self._publish(message)):  # noqa: ASYNC110 - it may not take it although up
                    await asyncio.sleep(PAUSE_S)
                if refused_s:
                    async with asyncio.timeout(refused_s):
                        await asyncio.shield(future)
        except TimeoutError:
            if not sent:
                said = f"{address}: not told within {within_s:g} s; {self._whereabouts(address)}; try again"
                raise NoAnswer(said) from None
            _remember(self._unrefused, (address.partition("/")[0], event.type))
        finally:
            self._end_waiting(address, event.id)

    def _begin_waiting(self, address: str, event_id: str) -> asyncio.Future[Any]:
        """What gets the answer to an event, or the error that it is refused with."""
        if len(self._waiting) >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} requests of this client wait for answers already; wait for some of them")
        future = self._waiting[(address, event_id)] = asyncio.get_running_loop().create_future()
        return future

    def _end_waiting(self, address: str, event_id: str) -> None:
        future = self._waiting.pop((address, event_id))
        if future.done() and not future.cancelled():
            future.exception()  # an error that came after the wait was over is not one that nobody looked at
        else:
            future.cancel()

    async def _wait_runs(self, address: str) -> None:
        """Returns when a node says that it runs the agent; what is told to nobody would be lost and nobody know."""
        while not may_run(address, self.members()):
            if urlsplit(self._url).scheme not in NATS:
                await asyncio.sleep(PAUSE_S)  # a broker keeps who is there, and says so at once
            elif address in self._answering:
                return
            else:
                # On NATS nobody keeps who is there, and nodes say so every 30 s: the agent's node is asked.
                try:
                    await self.query(address, within_s=WITHIN_S_MAX)
                except UnknownKind as error:
                    raise NoAnswer(f"{address}: {error}") from None
                except (NoAnswer, NotRunning, Overloaded):
                    raise
                except StigmergyError:
                    pass  # it is there, and does not tell its state
                _remember(self._answering, address)

    async def _publish(self, message: BusMessage) -> bool:
        """Whether the broker has it, once there is a link; if not, nobody knows, and it is sent again."""
        bus = self._bus
        if bus is None:
            raise NotRunning("the client is not open; use it inside async with")
        await self._up.wait()
        try:
            await bus.publish(message)
        except LinkDown as error:
            self._last_error = error
            return False
        self._last_error = None
        return True

    async def _listen(self, address: str, channel: Channel) -> None:
        """Hears the answers for an agent, before it is asked for the first time."""
        pattern = self._topics.agents_pattern(channel, address if len(self._listened) < LISTENED_MAX else "*/*")
        await self._subscribe_once(pattern, self._hear_answer)

    async def _subscribe_once(self, pattern: str, hear: Callable[[BusMessage], Awaitable[None]]) -> None:
        if self._bus is None:
            raise NotRunning("the client is not open; use it inside async with")
        if pattern not in self._listened:
            self._listened[pattern] = None
            await self._bus.subscribe(pattern, hear)

    async def _hear_answer(self, message: BusMessage) -> None:
        try:
            event = read_event(message.payload, message.content_type, message.properties)
            future = self._waiting.get((parse_topic(message.topic).name, event.id))
            if future is None or future.done() or not isinstance(event.data, dict):
                return
            if event.type not in (ANSWER, STATE):
                return
            if event.data.get("error"):
                future.set_exception(error_named(str(event.data.get("kind")), str(event.data["error"])))
            else:
                future.set_result(event.data)
        except StigmergyError:
            return  # somebody else's words on a topic that is not theirs

    async def _hear_refusal(self, message: BusMessage) -> None:
        try:
            event = read_event(message.payload, message.content_type, message.properties)
            if event.type != REFUSAL or not isinstance(event.data, dict):
                return
            said = event.data
            address = parse_topic(str(said.get("topic"))).name
            future = self._waiting.get((address, str(said.get("message"))))
            if future is not None and not future.done():
                node, why = parse_topic(message.topic).name, said.get("reason")
                future.set_exception(error_named(str(said.get("kind")), f"{address}: node {node!r} refused it: {why}"))
        except StigmergyError:
            return

    async def _hear_presence(self, message: BusMessage) -> None:
        try:
            member = read_presence(message)
        except StigmergyError:
            return
        if not member.online:
            self._members.pop(member.node, None)
        elif member.node in self._members or len(self._members) < MEMBERS_COUNT_MAX:
            before = self._members.get(member.node)
            self._members[member.node] = member
            if self._history is not None:
                self._history.found(member.node, is_new=before is None or before.run != member.run)

    def _whereabouts(self, address: str) -> str:
        """Who is known to be there."""
        if self._last_error is not None:
            return f"the broker did not take it: {self._last_error}"
        if where := locate(address, "", self.members()):
            return f"{where}, as far as is known, and does not answer"
        named = self._named_members()
        return f"no node says that it runs it; there are {named}" if self._members else named

    def _named_members(self) -> str:
        named = [f"{one.node} ({few(one.agents) if one.agents else 'any agent'})" for one in self.members()]
        if not named:
            return f"no node of {self._fleet!r} at the site {self._topics.site!r} is known: check url, fleet= and site="
        return ", ".join(named[:8])

    # ------------------------------------------------------------------ through workers

    async def _ask_workers(self, request: Request[R], within_s: float, about: str, doubt: str) -> R:
        assert self._workers is not None
        command_id = command_id_of(request)
        try:
            async with asyncio.timeout(within_s):
                return await self._workers.ask(request)
        except TimeoutError:
            raise NoAnswer(f"{about}: no answer within {within_s:g} s; {doubt}", command_id=command_id) from None
        except ELSEWHERE as error:
            raise NoAnswer(f"{about}: {error}; {doubt}", command_id=command_id) from None

    async def _check_heard(self) -> None:
        """Refuses to listen to workers that have no bus: nothing would ever come. Raises ConfigError."""
        if self._workers is None:
            return
        try:
            async with asyncio.timeout(self._within_s):
                while True:
                    try:
                        return await self._workers.check_bus()
                    except LinkDown:
                        await asyncio.sleep(PAUSE_S)
        except TimeoutError:
            raise NoAnswer(
                f"{shown(self._url)}: no answer within {self._within_s:g} s to whether the workers of "
                f"{self._fleet!r} have a bus; watch again"
            ) from None

    # ------------------------------------------------------------------ messages

    @property
    def _source(self) -> str:
        return f"/clients/{self._name}"

    def _event(self, address: str, name: str, fields: Any, body: bytes | None, event_id: str) -> CloudEvent:
        tag, content_type, data = (name, JSON, fields) if body is None else data_of(body)
        return CloudEvent(event_id, self._source, tag, address, datacontenttype=content_type, data=data)

    def _message(self, address: str, channel: Channel, event: CloudEvent) -> BusMessage:
        return BusMessage(self._topics.of_agent(address, channel), write_structured(event), content_type=STRUCTURED)


def connect(
    url: str,
    *,
    fleet: str | Declaration | None = None,
    site: str = "local",
    name: str = "",
    token: str | None = None,
    ca: str | Path | None = None,
    identity: str | Path | None = None,
    within_s: float = WITHIN_S,
    key: str | Path | None = None,
    signatures: str = SIGN,
) -> Client:
    """A client of a fleet: of its API ('https://fleet.example', 'grpc://gateway:9090'), of a bus ('mqtt://gateway:1883'),
    or of NATS workers ('nats://hub:4222').

    `fleet` is its name, which HTTP does not need; give the `Fleet` itself where it has a `shard_by`. `site` is the site
    of the nodes on the bus. `name` says who sends, in the log; else it is a random one. `token` is one that `stigmergy
    token create` made; `ca` the file of the certificates to trust, where the system does not; `identity` the folder of
    the certificate that the link is to show, with those to trust. Each call waits `within_s` seconds at most, unless it
    is told otherwise. On a bus `key` is the file of a private key that signs what this client sends, and it passes over
    what nodes have not signed although they do; with `signatures="off"` it neither signs nor verifies. Use it with
    `async with`.
    """
    given: object = url
    if not isinstance(given, str) or ":" not in given:
        raise ConfigError(
            f"connect({url!r}): give the URL of an API, like 'https://fleet.example', of a bus, like "
            "'mqtt://gateway:1883', or of NATS servers"
        )
    named: object = fleet
    if not isinstance(named, str | Declaration | None):
        raise ConfigError(f"connect(fleet={fleet!r}): give the name of the fleet, or the fleet itself")
    scheme = urlsplit(url).scheme
    if signatures not in (SIGN, OFF):
        raise ConfigError(f'connect(signatures={signatures!r}): give "{SIGN}" or "{OFF}"')
    if scheme in API_SCHEMES and key is not None:
        raise ConfigError(f"connect({shown(url)!r}): key= signs messages on a bus; for an API give token=")
    if scheme in API_SCHEMES:
        named = fleet.name if isinstance(fleet, Declaration) else fleet or ""
        return RemoteClient(_open_transport(url, fleet, token, ca, identity), shown(url), within_s, named)
    if token is not None or ca is not None:
        raise ConfigError(f"connect({shown(url)!r}): a broker is told who you are in its URL; leave token= and ca= out")
    if fleet is None:
        raise ConfigError(f"connect({shown(url)!r}): which fleet? Give fleet=, its name or the fleet itself")
    signer = None if key is None else load_signer(Path(key), create=False)
    return BusClient(with_identity(url, identity), fleet, site, name, within_s, signer=signer, signatures=signatures)


def _open_transport(
    url: str,
    fleet: str | Declaration | None,
    token: str | None,
    ca: str | Path | None,
    identity: str | Path | None,
) -> Transport:
    """The library of a transport is imported where it is asked for."""
    try:
        if urlsplit(url).scheme in HTTP:
            from stigmergy.clients.http import HttpTransport

            return HttpTransport(url, token, ca, identity)
        from stigmergy.clients.grpc import GrpcTransport
    except ModuleNotFoundError as error:
        extra = "client" if urlsplit(url).scheme in HTTP else "grpc"
        raise ConfigError(f'connect({shown(url)!r}) needs {error.name}: pip install "stigmergy[{extra}]"') from None
    if fleet is None:
        raise ConfigError(f"connect({shown(url)!r}): which fleet? gRPC names it in its requests: give fleet=")
    return GrpcTransport(url, fleet if isinstance(fleet, str) else fleet.name, token, ca, identity)


def _with_channel(topics: str) -> str:
    """The topics of agents that have these kinds, names and topics."""
    kind, name, about = topics.split("/", 2)
    return f"{kind}/{name}/{Channel.EVENTS.value}/{about}"


def _remember(known: dict[Any, None], one: Any) -> None:
    known[one] = None
    if len(known) > KNOWN_MAX:
        del known[next(iter(known))]


def _for_workers(request: Request[R], body: bytes | None) -> Request[R]:
    """A message for workers: by its name without the version, and with the fields that JSON can say exactly."""
    if body is None:
        return request
    tag, content_type, data = data_of(body)
    if content_type != JSON:
        raise Malformed(
            f"{tag} has a field that JSON cannot say (bytes, NaN, infinities); workers take such over their bus"
        )
    named = "command" if isinstance(request, SendRequest) else "event"
    return structs.replace(request, fields=data, **{named: tag.partition("@")[0]})
