"""A mesh over any bus: a topic for each pair of nodes, so that a fleet with a broker gossips without further set-up.

    delivery/north/mesh/gateway/drone-7        to gateway, from drone-7

The topic names the sender and the payload is the body: a broker that authenticates its clients can prevent a node from
sending in the name of another. Bodies get the quality of the bus, which is more than a mesh needs: a broker may hold a
datagram for an absent node and deliver it late. While the link is down everything is dropped. The bus belongs to the
caller; this neither opens nor closes it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from stigmergy.base.errors import Bug, ConfigError, LinkDown, Malformed
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.port import Bus, BusMessage
from stigmergy.bus.topics import Topics, escape, unescape
from stigmergy.membership.mesh import Hear, MeshCounters, check_datagram, is_node_name

MESH = "mesh"
BYTES_MAX = 64 * 1024
"""The longest body: far below what brokers accept, so that one node's state does not delay everybody's events."""
FLIGHTS_COUNT_MAX = 64
"""Datagrams given to the bus that the broker has not confirmed; further ones wait."""
WAITING_COUNT_MAX = 1_024
"""Waiting datagrams. Beyond it the oldest is dropped."""


def topic_of(topics: Topics, to: str, sender: str) -> str:
    """The topic of a datagram from one node to another; `to` is behind the name of a mesh that has one."""
    return f"{topics.root}/{MESH}/{escape(to)}/{escape(sender)}"


def pattern_of(topics: Topics, node: str) -> str:
    """The pattern that a node subscribes to."""
    return f"{topics.root}/{MESH}/{escape(node)}/+"


class BusMesh:
    """The Mesh port over a bus."""

    def __init__(self, bus: Bus, topics: Topics, node: str, name: str = "") -> None:
        """Meshes of different names share a bus, and hear nothing of each other."""
        if not is_node_name(node):
            raise ConfigError(f"node {node!r}: a name is 1 to 64 letters, digits, '_', '-' and '.'")
        self.node = node
        self.bytes_max = BYTES_MAX
        self.contact = ""
        self.counters = MeshCounters()
        self._bus = bus
        self._prefix = f"{name}:" if name else ""
        self._topics = topics
        self._hear: Hear | None = None
        self._was_opened = False
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._flights: dict[int, asyncio.Task[None]] = {}
        self._flights_begun_count = 0

    async def open(self, hear: Hear) -> None:
        """Subscribes. Datagrams arrive whenever the link is up."""
        if self._was_opened:
            raise Bug(f"the mesh of {self.node} was opened before; make another one")
        self._was_opened = True
        self._hear = hear
        await self._bus.subscribe(pattern_of(self._topics, self._prefix + self.node), self._heard)

    def send_nowait(self, to: str, body: bytes) -> None:
        """Publishes to the node's topic, at once if few are in flight."""
        check_datagram(to, body, self.bytes_max)
        if self._hear is None or to == self.node or not self._bus.is_up:
            self.counters.dropped_count += 1
            return
        if len(self._flights) < FLIGHTS_COUNT_MAX:
            self._launch(to, body)
            return
        if len(self._waiting) >= WAITING_COUNT_MAX:
            self._waiting.popleft()
            self.counters.overflowed_count += 1
        self._waiting.append((to, body))

    def introduce(self, node: str, contact: str) -> None:
        """Does nothing: on a bus a name is enough."""

    async def close(self) -> None:
        """Receives and sends nothing more; the subscription ends with the bus."""
        self._was_opened = True
        self._hear = None
        self.counters.dropped_count += len(self._waiting)
        self._waiting.clear()
        await end_tasks(*self._flights.values())
        self._flights.clear()  # a task that was cancelled before it began has not removed itself

    def _launch(self, to: str, body: bytes) -> None:
        self.counters.sent_count += 1
        self.counters.sent_bytes += len(body)
        self._flights_begun_count += 1
        number = self._flights_begun_count
        self._flights[number] = asyncio.ensure_future(self._fly(number, to, body))

    async def _fly(self, number: int, to: str, body: bytes) -> None:
        try:
            await self._bus.publish(BusMessage(topic_of(self._topics, self._prefix + to, self.node), body))
        except LinkDown:
            pass  # a mesh may lose anything
        except Exception as error:
            self._report(f"mesh of {self.node}: a datagram to {to} could not be published", error)
        finally:
            self._flights.pop(number, None)
            self._launch_waiting()

    def _launch_waiting(self) -> None:
        while self._waiting and len(self._flights) < FLIGHTS_COUNT_MAX:
            to, body = self._waiting.popleft()
            if self._bus.is_up:
                self._launch(to, body)
            else:
                self.counters.dropped_count += 1

    async def _heard(self, message: BusMessage) -> None:
        """Never raises: the bus would redeliver the datagram, and newer ones say more."""
        if self._hear is None:
            return
        try:
            sender = unescape(message.topic.rpartition("/")[2])
        except Malformed:
            sender = ""
        if not is_node_name(sender) or sender == self.node or len(message.payload) > self.bytes_max:
            self.counters.refused_count += 1
            return
        self.counters.received_count += 1
        self.counters.received_bytes += len(message.payload)
        try:
            self._hear(sender, message.payload)
        except Exception as error:
            self._report(f"mesh of {self.node}: a datagram from {sender} could not be handled", error)

    def _report(self, message: str, error: Exception) -> None:
        context: dict[str, Any] = {"message": message, "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
