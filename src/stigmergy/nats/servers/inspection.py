"""The state of servers and streams, asked of the servers themselves. Changes nothing.

Every server answers for itself, and the answers are merged regardless of which server carried the question, so this
works without a majority too. The caller needs the right to inspect (see `LOOK_SUBJECT`), which our own configurations
give; elsewhere only names, versions and clocks are visible.

A server whose disk is full or fails turns its JetStream off; alone, it gives up the streams that it could not write. It
stays so, even with space again, until it is restarted. It still answers, carries messages and tells clients that it has
JetStream, and the leaders of streams may call its copies current for minutes. So servers are asked for their health,
and copies for their own last sequence.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg

from stigmergy.base.errors import LinkDown
from stigmergy.nats.errors import JetStreamRefused
from stigmergy.nats.link import NO_RESPONDERS, NatsLink
from stigmergy.nats.servers.configuration import HEALTH_SUBJECT, LOOK_SUBJECT
from stigmergy.nats.servers.server import WRITE_ERROR

LOOK_S = 1.0
"""How long a server may take to answer."""
STREAMS_S = 6.0
STREAMS_COUNT_MAX = 10_000
CONSUMERS_S = 2.0
BEHIND_S = 0.5
"""A copy that lacks what the leader had this long ago is behind, not just a message late."""
NS = 1_000_000_000
_ELSEWHERE = ("$SYS.REQ.SERVER.PING.CONNZ",)
"""Servers answer these for members of any account."""


class ServerSeen(Struct, frozen=True, kw_only=True):
    """A server as it describes itself, or as others know it if it does not answer."""

    name: str
    is_up: bool
    has_jetstream: bool | None = None
    """Whether its JetStream is on; None if unknown."""
    version: str = ""
    leads: bool = False
    """The meta leader: places streams, and knows them all."""
    streams: int | None = None
    store_bytes: int | None = None
    store_bytes_max: int | None = None
    sync: str | None = None
    """When it syncs its disk: `always`, or an interval in seconds."""
    clock_off_s: float | None = None
    """How far its clock is ahead of ours, within the round trip."""
    error: str = ""
    """What it reports as wrong; also empty if we may not ask for its health."""

    @property
    def cannot_write(self) -> bool:
        """It could not write a stream, and stores nothing more until it is restarted."""
        return WRITE_ERROR in self.error

    @property
    def is_off(self) -> bool:
        """It runs, and stores nothing."""
        return self.is_up and self.has_jetstream is False

    @property
    def counts(self) -> bool:
        """Whether it counts for the majority."""
        return self.is_up and not self.is_off


class ReplicaSeen(Struct, frozen=True):
    """A copy of a stream, other than its leader's."""

    server: str
    is_current: bool
    is_offline: bool
    behind: int
    """How many entries it lacks."""
    last_sequence: int | None = None
    """Its last entry, as its own server says; None if that did not answer, and the rest is the leader's view."""


class ConsumerSeen(Struct, frozen=True):
    """A consumer of a stream and its position."""

    name: str
    pending: int
    """Messages not delivered to it yet."""
    unconfirmed: int
    """Messages delivered and not acknowledged."""


class StreamSeen(Struct, frozen=True, kw_only=True):
    """A stream, as its leader sees it."""

    name: str
    replicas: int
    leader: str
    others: tuple[ReplicaSeen, ...]
    messages: int
    stored_bytes: int
    first_sequence: int
    last_sequence: int
    last_time: str
    consumers: tuple[ConsumerSeen, ...] = ()
    group: str = ""
    """The Raft group of its copies; empty if there is only one."""

    @property
    def behind(self) -> int:
        """How many entries the slowest copy lacks."""
        return max((one.behind for one in self.others), default=0)

    @property
    def is_whole(self) -> bool:
        """Whether a leader and all copies are there."""
        return bool(self.leader) and all(one.is_current and not one.is_offline for one in self.others)


class ServersSeen(Struct, frozen=True, kw_only=True):
    """All servers, and whether they have a quorum."""

    servers: tuple[ServerSeen, ...]
    has_quorum: bool | None
    """Whether a majority runs, with JetStream on, and has a leader; None if unknown."""
    needed: int = 1
    leader: str = ""

    @property
    def has_majority(self) -> bool:
        """Whether enough servers run, with JetStream on, to elect a leader."""
        return sum(server.counts for server in self.servers) >= self.needed

    @property
    def gone(self) -> list[str]:
        """Servers that do not answer."""
        return [server.name for server in self.servers if not server.is_up]

    @property
    def off(self) -> list[str]:
        """Servers that answer, with their JetStream off."""
        return [server.name for server in self.servers if server.is_off]


async def look_at_servers(link: NatsLink, within_s: float = LOOK_S) -> ServersSeen:
    """Asks every server. Raises LinkDown."""
    answers = await _ask_all(link, LOOK_SUBJECT, within_s)
    if not answers:
        for subject in _ELSEWHERE:
            answers = answers or await _ask_all(link, subject, within_s)
    health = await _ask_all(link, HEALTH_SUBJECT, within_s, count=len(answers)) if answers else []
    errors = {_name(answer): str(_data(answer).get("error") or "") for answer, _ in health}
    seen = [_server(answer, at_s, errors) for answer, at_s in answers]
    metas = {_name(answer): meta for answer, _ in answers if (meta := _data(answer).get("meta_cluster"))}
    working = [server.name for server in seen if server.counts]
    if not metas:
        if not seen or any(server.has_jetstream is None for server in seen):
            return ServersSeen(servers=_sorted(seen), has_quorum=None)
        # A single server; or servers of a cluster with JetStream off or just started: their number is unknown.
        clustered = any(answer["server"].get("cluster") for answer, _ in answers)
        needed = len(seen) // 2 + 1
        return ServersSeen(servers=_sorted(seen), has_quorum=len(working) >= needed and not clustered, needed=needed)
    leader = _leader(list(metas.values()), working)
    needed = max(int(meta.get("quorum_needed") or meta["cluster_size"] // 2 + 1) for meta in metas.values())
    # Any server may know of one that the others do not know, or have forgotten.
    told = metas.get(leader) or max(metas.values(), key=lambda meta: len(meta.get("replicas") or ()))
    heard = [server.name for server in seen]
    known = [one["name"] for one in told.get("replicas") or () if one["name"] not in heard]
    down = [ServerSeen(name=name, is_up=False) for name in dict.fromkeys(known)]
    led = [msgspec.structs.replace(server, leads=server.name == leader) for server in seen]
    return ServersSeen(
        servers=_sorted([*led, *down]), has_quorum=bool(leader) and len(working) >= needed, needed=needed, leader=leader
    )


async def look_at_streams(link: NatsLink, prefix: str = "") -> tuple[list[StreamSeen], list[str]]:
    """All streams with this prefix, and the names of those without a leader.

    Raises LinkDown, or JetStreamRefused without a majority.
    """
    found: list[StreamSeen] = []
    missing: list[str] = []
    asked = 0
    while asked < STREAMS_COUNT_MAX:
        page = await link.api("STREAM.LIST", {"offset": asked}, within_s=STREAMS_S)
        streams = page.get("streams") or []
        missing += page.get("missing") or []
        found += [_stream(one) for one in streams if one["config"]["name"].startswith(prefix)]
        asked += len(streams)
        if not streams or asked >= int(page.get("total", 0)):
            break
    return sorted(found, key=lambda one: one.name), sorted(missing)


async def with_copies(link: NatsLink, streams: list[StreamSeen], servers: ServersSeen) -> list[StreamSeen]:
    """The same streams, with each copy's own position. Raises LinkDown."""
    if not any(server.has_jetstream for server in servers.servers) or not any(one.others for one in streams):
        return streams
    before = await _copies(link, servers)
    seen = [_with_copies(stream, servers, before, before) for stream in streams]
    if not any(stream.behind for stream in seen):
        return seen
    await asyncio.sleep(BEHIND_S)
    after = await _copies(link, servers)
    return [_with_copies(stream, servers, before, after) for stream in streams]


async def with_consumers(link: NatsLink, stream: StreamSeen) -> StreamSeen:
    """The same stream, with its consumers, except those that do not answer."""
    found: list[ConsumerSeen] = []
    with contextlib.suppress(JetStreamRefused, LinkDown):
        while True:
            body = {"offset": len(found)}
            page = await link.api(f"CONSUMER.LIST.{stream.name}", body, within_s=CONSUMERS_S)
            consumers = page.get("consumers") or []
            found += [_consumer(one) for one in consumers]
            if not consumers or len(found) >= int(page.get("total", 0)):
                break
    return msgspec.structs.replace(stream, consumers=tuple(sorted(found, key=lambda one: one.name)))


async def _ask_all(
    link: NatsLink, subject: str, within_s: float, body: bytes = b"", count: int | None = None
) -> list[tuple[dict[str, Any], float]]:
    """All answers, each with our wall clock at its arrival; ends early once the whole cluster has answered, or
    `count_max` servers."""
    found: list[tuple[dict[str, Any], float]] = []
    done = asyncio.Event()
    asked_s = time.time()

    async def take(message: Msg) -> None:
        if (message.headers or {}).get("Status") == NO_RESPONDERS:
            done.set()
            return
        with contextlib.suppress(msgspec.DecodeError):
            answer = msgspec.json.decode(message.data, type=dict[str, Any])
            # The server read its clock somewhere between our request and its arrival.
            found.append((answer, (asked_s + time.time()) / 2))
            sizes = [count] if count is not None else [_size(one) for one, _ in found]
            if (size := max((one for one in sizes if one is not None), default=None)) and len(found) >= size:
                done.set()

    inbox = link.client.new_inbox()
    end = await link.subscribe(inbox, take)
    try:
        await link.tell(subject, body, reply=inbox)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await done.wait()
    finally:
        await end()
    return found


def _size(answer: dict[str, Any]) -> int | None:
    """The size of its cluster; None if it does not say: with JetStream off it does not."""
    if meta := _data(answer).get("meta_cluster"):
        return int(meta["cluster_size"])
    return 1 if "config" in _data(answer) and not answer["server"].get("cluster") else None


async def _copies(link: NatsLink, servers: ServersSeen) -> dict[tuple[str, str], int]:
    """The last sequence of each copy, by server and Raft group, as its server says."""
    body, count = b'{"accounts":true,"streams":true}', sum(server.is_up for server in servers.servers)
    return {
        (_name(answer), str(group)): int(one["state"]["last_seq"])
        for answer, _ in await _ask_all(link, LOOK_SUBJECT, LOOK_S, body, count)
        for account in _data(answer).get("account_details") or ()
        for one in account.get("stream_detail") or ()
        if (group := (one.get("cluster") or {}).get("raft_group"))
    }


def _with_copies(
    stream: StreamSeen, servers: ServersSeen, before: dict[tuple[str, str], int], after: dict[tuple[str, str], int]
) -> StreamSeen:
    """Compares what each copy has `after` with what the leader had `before`."""
    led = before.get((stream.leader, stream.group))
    heard = {server for server, _ in after}
    others: list[ReplicaSeen] = []
    for one in stream.others:
        lost = one.is_offline or one.server in servers.gone or one.server in servers.off
        if led is None or lost or one.server not in heard:
            others.append(msgspec.structs.replace(one, is_offline=lost))
            continue
        last = after.get((one.server, stream.group), 0)  # a copy that was just placed has none yet
        behind = max(0, led - last)
        others.append(ReplicaSeen(one.server, one.is_current and not behind, False, behind, last))
    return msgspec.structs.replace(stream, others=tuple(others))


def _leader(metas: list[dict[str, Any]], working: list[str]) -> str:
    """The leader according to most of those that answer. They report a lost leader for some seconds."""
    named = [str(meta.get("leader") or "") for meta in metas]
    leader = max(named, key=named.count, default="")
    return leader if leader in working else ""


def _name(answer: dict[str, Any]) -> str:
    return str(answer["server"]["name"])


def _data(answer: dict[str, Any]) -> dict[str, Any]:
    return answer.get("data") or {}


def _server(answer: dict[str, Any], at_s: float, errors: dict[str, str]) -> ServerSeen:
    server, data = answer["server"], _data(answer)
    has_jetstream = not data.get("disabled", False) if "config" in data else None
    # With JetStream off it reports zeros: neither its configuration nor its contents.
    config = data["config"] if has_jetstream else {}
    sync = None
    if config:
        sync = "always" if config.get("sync_always") else f"{int(config.get('sync_interval', 0)) / NS:g} s"
    return ServerSeen(
        name=str(server["name"]),
        is_up=True,
        has_jetstream=has_jetstream,
        version=str(server.get("ver", "")),
        streams=data.get("streams") if has_jetstream else None,
        store_bytes=data.get("storage") if has_jetstream else None,
        store_bytes_max=config.get("max_storage"),
        sync=sync,
        error=errors.get(_name(answer), ""),
        clock_off_s=datetime.fromisoformat(server["time"]).timestamp() - at_s if server.get("time") else None,
    )


def _stream(told: dict[str, Any]) -> StreamSeen:
    config, state, cluster = told["config"], told["state"], told.get("cluster") or {}
    others = tuple(
        ReplicaSeen(str(one["name"]), bool(one.get("current")), bool(one.get("offline")), int(one.get("lag", 0) or 0))
        for one in sorted(cluster.get("replicas") or (), key=lambda one: str(one["name"]))
    )
    return StreamSeen(
        name=str(config["name"]),
        replicas=int(config.get("num_replicas", 1)),
        leader=str(cluster.get("leader") or ""),
        others=others,
        messages=int(state["messages"]),
        stored_bytes=int(state["bytes"]),
        first_sequence=int(state["first_seq"]),
        last_sequence=int(state["last_seq"]),
        last_time=str(state.get("last_ts", "")),
        group=str(cluster.get("raft_group") or ""),
    )


def _consumer(told: dict[str, Any]) -> ConsumerSeen:
    return ConsumerSeen(str(told["name"]), int(told.get("num_pending", 0)), int(told.get("num_ack_pending", 0)))


def _sorted(servers: list[ServerSeen]) -> tuple[ServerSeen, ...]:
    return tuple(sorted(servers, key=lambda one: one.name))
