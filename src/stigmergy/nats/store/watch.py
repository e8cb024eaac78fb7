"""Follows a bucket of keys: its contents, then every change, and everything again when something may have been missed.

The server pushes to us through an ephemeral consumer that numbers its messages and sends a heartbeat every second.
After a gap, a silence or a broken link we start again, because a key that was removed meanwhile may have left no trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import Any

from nats.aio.msg import Msg
from nats.errors import NotJSMessageError

from stigmergy.base.errors import LinkDown, StigmergyError
from stigmergy.diagnostics.logger import Log
from stigmergy.nats.errors import JetStreamRefused
from stigmergy.nats.store.buckets import BucketPlace, says_gone
from stigmergy.nats.store.connection import StoreConnection
from stigmergy.store.port import Anew, Change, Complete, Gone, Heard, StoredEntry, begins_with

HEARTBEAT_S = 1.0
SILENCE_S_MAX = 3.5
PAUSE_S = 0.2
PAUSE_S_MAX = 2.0
FORGOTTEN_AFTER_S = 10.0
"""The server removes a consumer without a subscriber after this time."""
NS = 1_000_000_000
CONTROL = "100"

_log = Log("store")


class NatsWatch:
    """The Watch port: one watcher."""

    def __init__(
        self, line: StoreConnection, place: BucketPlace, prefix: str, heard: Heard, *, headers_only: bool = False
    ) -> None:
        self._line = line
        self._place = place
        self._prefix = prefix
        self._heard = heard
        self._headers_only = headers_only
        self._told: dict[str, None] = {}
        """Keys reported as present since the last restart of the watch."""
        self._begun = False
        self._complete = False
        self._received = 0
        self._broken = asyncio.Event()
        self._heard_s = 0.0
        self._stopped = False
        line.enlist(self)
        self._task = asyncio.get_running_loop().create_task(self._live(), name=f"watch {place.bucket} {prefix}")

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._line.dismiss(self)
            self._task.cancel()

    def link_changed(self) -> None:
        """Starts again: messages may have been lost with the old link."""
        self._broken.set()

    async def _live(self) -> None:
        pause_s = PAUSE_S
        while not self._stopped:
            self._begun = self._complete = False
            self._received = 0
            self._told.clear()
            self._broken.clear()
            try:
                await self._follow()
            except (StigmergyError, JetStreamRefused) as error:
                # Also errors that somebody must fix, such as a server started without its store: otherwise the watcher
                # would rely on its last knowledge forever.
                _log.say("store-watch-lost", f"{self._place.bucket} cannot be followed: {error}")
            pause_s = PAUSE_S if self._complete else min(pause_s * 2, PAUSE_S_MAX)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._broken.wait()

    async def _follow(self) -> None:
        """Follows one consumer until something is wrong."""
        link = self._line.link
        inbox = f"{link.client.new_inbox()}.{secrets.token_hex(8)}"
        end = await link.subscribe(inbox, self._take)
        name = ""
        try:
            made = await link.api(f"CONSUMER.CREATE.{self._place.stream}", self._request(inbox))
            name = str(made["name"])
            self._heard_s = asyncio.get_running_loop().time()
            self._begin()
            if int(made.get("num_pending", 0)) == 0 and self._received == 0:
                self._finish()
            while not self._broken.is_set():
                left_s = self._heard_s + SILENCE_S_MAX - asyncio.get_running_loop().time()
                if left_s <= 0:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await self._broken.wait()
        finally:
            await end()
            if name and link.is_up:
                # Otherwise the server removes it, a little later.
                with contextlib.suppress(LinkDown):
                    await link.tell(f"{self._line.api_prefix}CONSUMER.DELETE.{self._place.stream}.{name}", b"")

    def _request(self, inbox: str) -> dict[str, Any]:
        base = f"$KV.{self._place.bucket}."
        subject = base + (f"{self._prefix}>" if self._prefix.endswith(".") else self._prefix or ">")
        return {
            "stream_name": self._place.stream,
            "config": {
                "deliver_subject": inbox,
                "deliver_policy": "last_per_subject",
                "ack_policy": "none",
                "max_deliver": 1,
                "filter_subject": subject,
                "flow_control": True,
                "idle_heartbeat": int(HEARTBEAT_S * NS),
                "inactive_threshold": int(FORGOTTEN_AFTER_S * NS),
                "headers_only": self._headers_only,
                "mem_storage": True,
                "num_replicas": 1,
            },
        }

    async def _take(self, message: Msg) -> None:
        if self._broken.is_set() or self._stopped:
            return
        self._heard_s = asyncio.get_running_loop().time()
        headers = message.headers or {}
        if headers.get("Status") == CONTROL:
            await self._control(message)
            return
        try:
            about = message.metadata
        except (NotJSMessageError, ValueError):
            return
        if about.sequence.consumer != self._received + 1:
            self._broken.set()
            return
        self._received += 1
        self._begin()
        key = message.subject.removeprefix(f"$KV.{self._place.bucket}.")
        if begins_with(key, self._prefix):
            self._change(key, message, about.sequence.stream)
        if about.num_pending == 0:
            self._finish()

    def _change(self, key: str, message: Msg, sequence: int) -> None:
        if not says_gone(message.headers):
            self._told[key] = None
            self._tell(StoredEntry(key, message.data, sequence))
        elif key in self._told:
            del self._told[key]
            self._line.note_gone(message.subject, sequence)
            self._tell(Gone(key))

    async def _control(self, message: Msg) -> None:
        if message.reply:
            await self._line.link.tell(message.reply, b"")
            return
        headers = message.headers or {}
        sent = headers.get("Nats-Last-Consumer")
        if sent is not None and int(sent) != self._received:
            self._broken.set()
        elif self._begun:
            # The server has nothing more for us: keys that it had announced expired meanwhile.
            self._finish()

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._tell(Anew())

    def _finish(self) -> None:
        if not self._complete:
            self._complete = True
            self._tell(Complete())

    def _tell(self, change: Change) -> None:
        if self._stopped:
            return
        try:
            self._heard(change)
        except Exception as error:
            text = f"a watcher of {self._place.bucket} failed; it still gets the next change"
            _log.say("store-watch-failed", text, error=error)
