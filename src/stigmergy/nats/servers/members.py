"""Replaces a permanently lost server of a running cluster: its replicas move to another one.

A new server that has joined takes its place; the remaining servers send it what they hold. Nothing is lost: whatever
was acknowledged is on a majority, so one of the remaining servers has it. Each stream is moved and awaited by itself:
when this returns, it can lose one server again. A server that is only away needs none of this: it catches up by itself
when it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from msgspec import Struct

from stigmergy.base.errors import ConfigError, LinkDown
from stigmergy.nats.errors import JetStreamRefused
from stigmergy.nats.link import NatsLink

REPLACE_S = 60.0
CALL_S = 5.0
LOOK_S = 0.1
PEER_REMAP_FAILED = 10075
PEER_NOT_MEMBER = 10040
NAMES_COUNT_MAX = 100_000

ResultT = TypeVar("ResultT")


class Replica(Struct, frozen=True):
    """A server's copy of a stream, as the stream's leader sees it."""

    server: str
    is_current: bool
    heard_s: float
    """How long ago the leader heard from it; 0 for the leader itself."""


class Moved(Struct, frozen=True):
    """The result for one stream."""

    stream: str
    servers: tuple[str, ...]
    """The servers that hold it now."""


async def stream_names(link: NatsLink) -> list[str]:
    """All streams that this user sees. Raises LinkDown or JetStreamRefused."""
    names: list[str] = []
    while len(names) < NAMES_COUNT_MAX:
        answer = await link.api("STREAM.NAMES", {"offset": len(names)}, within_s=CALL_S)
        found = answer.get("streams") or []
        names += [str(name) for name in found]
        if not found or len(names) >= int(answer.get("total", 0)):
            break
    return sorted(names)


async def replicas_of(link: NatsLink, stream: str) -> list[Replica]:
    """The replicas of a stream, its leader's first; empty without a leader. Raises LinkDown or JetStreamRefused."""
    return _replicas(await link.api(f"STREAM.INFO.{stream}", within_s=CALL_S))


async def replace_member(link: NatsLink, lost: str, within_s: float = REPLACE_S) -> list[Moved]:
    """Moves every replica of a lost server to another one, and waits until each is complete.

    Can be called again after an interruption. Raises ConfigError if no server can replace it, and LinkDown if it is
    not done in time.
    """
    deadline_s = asyncio.get_running_loop().time() + within_s
    moved: list[Moved] = []
    for stream in await _retried(lambda: stream_names(link), deadline_s, "the streams cannot be listed"):
        if await _remove_peer(link, stream, lost, deadline_s):
            moved.append(await _wait_whole(link, stream, lost, deadline_s))
    return moved


async def forget_server(system: NatsLink, lost: str) -> None:
    """Removes a lost server from the cluster's meta group, so that it no longer counts there. The link must use the
    system account. Raises ConfigError if it does not, and LinkDown."""
    try:
        await system.api("SERVER.REMOVE", {"peer": lost}, within_s=CALL_S)
    except JetStreamRefused as error:
        if error.code != PEER_NOT_MEMBER:
            raise ConfigError(f"server {lost} cannot be removed: {error}; does it still run?") from None
    except LinkDown:
        raise ConfigError(
            f"server {lost} was not removed: nobody answers; connect as the user of the system account, and make sure "
            "that a majority of the servers is there"
        ) from None


async def _remove_peer(link: NatsLink, stream: str, lost: str, deadline_s: float) -> bool:
    """Removes the lost server from the stream; returns whether it held it."""

    async def held() -> bool:
        found = await replicas_of(link, stream)
        if not found:
            raise LinkDown(f"stream {stream} has no leader")
        return any(replica.server == lost for replica in found)

    if not await _retried(held, deadline_s, f"stream {stream} cannot be inspected"):
        return False

    async def remove() -> bool:
        try:
            await link.api(f"STREAM.PEER.REMOVE.{stream}", {"peer": lost}, within_s=CALL_S)
        except JetStreamRefused as error:
            if error.code == PEER_REMAP_FAILED:
                raise ConfigError(
                    f"stream {stream}: no other server can take the place of {lost}; start one that joins the cluster "
                    "and has room, then try again"
                ) from None
            if error.code != PEER_NOT_MEMBER:
                raise
        return True

    return await _retried(remove, deadline_s, f"{lost} cannot be taken out of stream {stream}")


async def _wait_whole(link: NatsLink, stream: str, lost: str, deadline_s: float) -> Moved:
    async def whole() -> Moved:
        info = await link.api(f"STREAM.INFO.{stream}", within_s=CALL_S)
        found, wanted = _replicas(info), int(info["config"].get("num_replicas", 1))
        names = tuple(replica.server for replica in found)
        if lost in names or len(found) < wanted or not all(replica.is_current for replica in found):
            raise LinkDown(f"stream {stream} is not complete yet: {', '.join(names)}")
        return Moved(stream, tuple(sorted(names)))

    return await _retried(whole, deadline_s, f"stream {stream} is not complete in time; look again later")


async def _retried(call: Callable[[], Awaitable[ResultT]], deadline_s: float, what: str) -> ResultT:
    while True:
        try:
            return await call()
        except (LinkDown, JetStreamRefused) as error:
            if asyncio.get_running_loop().time() > deadline_s:
                raise LinkDown(f"{what} ({error})") from None
            await asyncio.sleep(LOOK_S)


def _replicas(info: dict[str, Any]) -> list[Replica]:
    cluster = info.get("cluster") or {}
    if not cluster.get("leader"):
        return []
    others = [
        Replica(one["name"], bool(one.get("current")) and not one.get("offline"), int(one.get("active", 0)) / 1e9)
        for one in cluster.get("replicas") or []
    ]
    return [Replica(cluster["leader"], True, 0.0), *others]
