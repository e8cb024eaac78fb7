"""Shared by all parts of one connection to a store: the link, the clock, and the parts to stop with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec
from nats.aio.msg import Msg

from stigmergy.base.clock import Clock
from stigmergy.base.errors import Bug, LinkDown, StoreConflict, StoreForeign, StoreUnavailable, StoreUnknown, TooLarge
from stigmergy.nats.errors import STREAM_NOT_FOUND, JetStreamRefused, NoResponders, Unanswered
from stigmergy.nats.link import REQUEST_S, Ack, Headers, NatsLink

PATIENCE_S = 1.0
PAUSE_S = 0.02
GONE_COUNT_MAX = 10_000
"""Bound of the remembered keys that watches reported as gone; for others a short doubt may remain."""


class BucketWatcher(Protocol):
    """Follows a bucket over this connection."""

    def link_changed(self) -> None:
        """Called when the link was lost, or is back."""
        ...

    def stop(self) -> None:
        """Ends it."""
        ...


class StoreConnection:
    def __init__(self, link: NatsLink, clock: Clock) -> None:
        self.link = link
        self.clock = clock
        self._closed = False
        self._watchers: list[BucketWatcher] = []
        self._gone: dict[str, int] = {}
        """Subjects that a watch reported as gone, with the sequence of the marker."""
        link.on_link(self._on_link)

    def check_open(self) -> None:
        """Raises Bug if the store was closed."""
        if self._closed:
            raise Bug("the store is closed; open it again")

    @property
    def api_prefix(self) -> str:
        """The prefix of all subjects of JetStream's API."""
        domain = self.link.address.domain
        return f"$JS.{domain}.API." if domain else "$JS.API."

    async def publish(self, subject: str, payload: bytes, headers: Headers, within_s: float = REQUEST_S) -> Ack:
        """Publishes; retries for a moment if nobody responds: not every server knows a new bucket yet."""
        loop = asyncio.get_running_loop()
        patient_until_s = loop.time() + min(PATIENCE_S, within_s)
        while True:
            self.check_open()
            try:
                return await self.link.publish(subject, payload, headers, within_s)
            except NoResponders:
                if loop.time() > patient_until_s:
                    raise
            await asyncio.sleep(PAUSE_S)

    def note_gone(self, subject: str, sequence: int) -> None:
        """A watch was told that this subject is gone since this message."""
        self._gone.pop(subject, None)
        self._gone[subject] = sequence
        if len(self._gone) > GONE_COUNT_MAX:
            del self._gone[next(iter(self._gone))]

    def gone_at(self, subject: str) -> int:
        """The sequence of the last such message; 0 if none."""
        return self._gone.get(subject, 0)

    async def collect_direct(self, stream: str, request: Mapping[str, Any], count_max: int) -> list[Msg]:
        """Messages of a stream, from any of its replicas. Raises like the link's `collect`."""
        subject = f"{self.api_prefix}DIRECT.GET.{stream}"
        return await self.link.collect(subject, msgspec.json.encode(request), count_max)

    def enlist(self, watcher: BucketWatcher) -> None:
        """Adds a watcher."""
        self._watchers.append(watcher)

    def dismiss(self, watcher: BucketWatcher) -> None:
        """Removes a watcher."""
        self._watchers.remove(watcher)

    def close(self) -> None:
        """Stops all watchers."""
        self._closed = True
        for watcher in list(self._watchers):
            watcher.stop()

    def _on_link(self, up: bool) -> None:
        for watcher in list(self._watchers):
            watcher.link_changed()


# Translates NATS's refusals and unknown outcomes into the errors of the store port.

MESSAGE_TOO_LARGE = 10054


@contextmanager
def asking(what: str, *, writes: bool) -> Iterator[None]:
    """Translates errors of calls to the server. `what` names the bucket and key; `writes`: the call may change it."""
    try:
        yield
    except Unanswered as error:
        if writes:
            raise StoreUnknown(f"{what}: {error}; read it, or repeat it with compare-and-set") from None
        raise StoreUnavailable(f"{what}: {error}; nothing was read, try again") from None
    except LinkDown as error:
        raise StoreUnavailable(f"{what}: {error}") from None
    except JetStreamRefused as refused:
        raise _translated(what, refused) from None


def _translated(what: str, refused: JetStreamRefused) -> Exception:
    if refused.is_fence:
        return StoreConflict(f"{what}: another client wrote it ({refused.description}); read it and decide again")
    if refused.is_full:
        return StoreUnavailable(
            f"{what}: the store has no room ({refused.description}); nothing was written: delete what is not needed, "
            "or raise the limits of the bucket or the server"
        )
    if refused.code == STREAM_NOT_FOUND:
        return StoreForeign(f"{what}: the bucket was deleted; open it again to make a new one")
    if refused.code == MESSAGE_TOO_LARGE:
        return TooLarge(f"{what}: more than the bucket's own limit ({refused.description}); raise its max_msg_size")
    return StoreUnavailable(f"{what}: refused ({refused}); nothing was written, try again")
