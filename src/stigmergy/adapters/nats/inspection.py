"""How servers and streams stand, asked of the servers themselves. Changes nothing.

Every server answers for itself, so that this works without a majority too. Who asks needs the right to look (see
`LOOK_SUBJECT`), which our own configurations give; elsewhere names, versions and clocks are all there is to see.
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

from stigmergy.adapters.nats.configuration import LOOK_SUBJECT
from stigmergy.adapters.nats.errors import JetStreamRefused
from stigmergy.adapters.nats.link import NO_RESPONDERS, NatsLink
from stigmergy.core.errors import LinkDown

LOOK_S = 1.0
"""So long a server may take to say how it is."""
STREAMS_S = 6.0
STREAMS_COUNT_MAX = 10_000
CONSUMERS_S = 2.0
NS = 1_000_000_000
_ELSEWHERE = ("$SYS.REQ.SERVER.PING.CONNZ",)
"""What servers answer to members of any account."""


class ServerSeen(Struct, frozen=True, kw_only=True):
    """A server, as it says itself; or as others know it, if it does not answer."""

    name: str
    is_up: bool
    version: str = ""
    leads: bool = False
    """Leads the servers: places streams, and knows which there are."""
    streams: int | None = None
    store_bytes: int | None = None
    store_bytes_max: int | None = None
    sync: str | None = None
    """When it syncs its disk: `always`, or after so many seconds."""
    clock_off_s: float | None = None
    """How far its clock is ahead of ours, give or take the way there."""


class ReplicaSeen(Struct, frozen=True):
    """One copy of a stream beside its leader's."""

    server: str
    is_current: bool
    is_offline: bool
    behind: int
    """How many entries it has not yet."""


class ConsumerSeen(Struct, frozen=True):
    """Somebody who reads a stream and says how far."""

    name: str
    pending: int
    """Messages that it was not given yet."""
    unconfirmed: int
    """Messages that it was given and has not confirmed."""


class StreamSeen(Struct, frozen=True, kw_only=True):
    """A stream, as its leader says."""

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

    @property
    def behind(self) -> int:
        """What the copy that is furthest behind has not yet."""
        return max((one.behind for one in self.others), default=0)

    @property
    def is_whole(self) -> bool:
        """Whether a leader and all copies are there."""
        return bool(self.leader) and all(one.is_current and not one.is_offline for one in self.others)


class ServersSeen(Struct, frozen=True, kw_only=True):
    """All servers, and whether they can decide anything."""

    servers: tuple[ServerSeen, ...]
    has_quorum: bool | None
    """Whether a majority is there and has a leader; None if that cannot be seen."""
    needed: int = 1
    leader: str = ""

    @property
    def has_majority(self) -> bool:
        """Whether enough of them are there to choose a leader."""
        return sum(server.is_up for server in self.servers) >= self.needed


async def look_at_servers(link: NatsLink, within_s: float = LOOK_S) -> ServersSeen:
    """Asks every server. Raises LinkDown."""
    answers = await _ask_all(link, LOOK_SUBJECT, within_s)
    if not answers:
        for subject in _ELSEWHERE:
            answers = answers or await _ask_all(link, subject, within_s)
    seen = [_server(answer, at_s) for answer, at_s in answers]
    metas = [meta for answer, _ in answers if (meta := (answer.get("data") or {}).get("meta_cluster"))]
    if not metas:
        alone = any("data" in answer and "config" in answer["data"] for answer, _ in answers)
        return ServersSeen(servers=_sorted(seen), has_quorum=True if alone else None)
    up = [server.name for server in seen]
    leader = _leader(metas, up)
    needed = max(int(meta.get("quorum_needed") or meta["cluster_size"] // 2 + 1) for meta in metas)
    told = next((meta for answer, meta in zip(answers, metas, strict=False) if _name(answer[0]) == leader), metas[0])
    known = [one["name"] for one in told.get("replicas") or () if one["name"] not in up]
    known += [leader] if leader and leader not in up else []
    down = [ServerSeen(name=name, is_up=False) for name in dict.fromkeys(known)]
    led = [msgspec.structs.replace(server, leads=server.name == leader) for server in seen]
    return ServersSeen(
        servers=_sorted([*led, *down]), has_quorum=bool(leader) and len(up) >= needed, needed=needed, leader=leader
    )


async def look_at_streams(link: NatsLink, prefix: str = "") -> tuple[list[StreamSeen], list[str]]:
    """All streams whose names begin so, and the names of those that no leader answers for.

    Raises LinkDown, or JetStreamRefused where there is no majority.
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


async def with_consumers(link: NatsLink, stream: StreamSeen) -> StreamSeen:
    """The same stream, with who reads it. One that does not answer is left without."""
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


async def _ask_all(link: NatsLink, subject: str, within_s: float) -> list[tuple[dict[str, Any], float]]:
    """What everybody answers, each with our wall clock when it came; ends early once all of a cluster have."""
    found: list[tuple[dict[str, Any], float]] = []
    done = asyncio.Event()
    asked_s = time.time()

    async def take(message: Msg) -> None:
        if (message.headers or {}).get("Status") == NO_RESPONDERS:
            done.set()
            return
        with contextlib.suppress(msgspec.DecodeError):
            answer = msgspec.json.decode(message.data, type=dict[str, Any])
            # The clock was read somewhere between our asking and our hearing.
            found.append((answer, (asked_s + time.time()) / 2))
            data = answer.get("data") or {}
            size = (data.get("meta_cluster") or {}).get("cluster_size", 1 if "config" in data else None)
            if size is not None and len(found) >= size:
                done.set()

    inbox = link.client.new_inbox()
    end = await link.subscribe(inbox, take)
    try:
        await link.tell(subject, b"", reply=inbox)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await done.wait()
    finally:
        await end()
    return found


def _leader(metas: list[dict[str, Any]], up: list[str]) -> str:
    """Whom most of those that answer take for their leader. One that is gone is believed in for some seconds yet."""
    named = [str(meta.get("leader") or "") for meta in metas]
    leader = max(named, key=named.count, default="")
    return leader if leader in up else ""


def _name(answer: dict[str, Any]) -> str:
    return str(answer["server"]["name"])


def _server(answer: dict[str, Any], at_s: float) -> ServerSeen:
    server, data = answer["server"], answer.get("data") or {}
    config = data.get("config") or {}
    sync = None
    if config:
        sync = "always" if config.get("sync_always") else f"{int(config.get('sync_interval', 0)) / NS:g} s"
    return ServerSeen(
        name=str(server["name"]),
        is_up=True,
        version=str(server.get("ver", "")),
        streams=data.get("streams"),
        store_bytes=data.get("storage"),
        store_bytes_max=config.get("max_storage"),
        sync=sync,
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
    )


def _consumer(told: dict[str, Any]) -> ConsumerSeen:
    return ConsumerSeen(str(told["name"]), int(told.get("num_pending", 0)), int(told.get("num_ack_pending", 0)))


def _sorted(servers: list[ServerSeen]) -> tuple[ServerSeen, ...]:
    return tuple(sorted(servers, key=lambda one: one.name))
