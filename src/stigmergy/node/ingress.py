"""Entry point for bytes from outside: opens envelopes and batches, and keeps each source's order.

It decodes no message: the step does that one by one, so that a bad one harms no other. It never touches the state; it
only reads how far each source has been consumed. `shard.gaps` has the rules of the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from blake3 import blake3

from stigmergy.agents.codec import SOURCE_CHARS_MAX
from stigmergy.base.errors import Overloaded, StaleEpoch, StigmergyError
from stigmergy.node.mailbox import Ticket
from stigmergy.shard.gaps import Accept, GapQueue, Key, NumberedBatchT

SHARD_SOURCES = "shard/"
BUS_SOURCES = "bus/"
"""What came over a bus has its topic as source; nobody else may speak in its name."""
UPLINK_SOURCES = "uplink/"
"""What the uplinks of other nodes brought, alike."""


def bus_source(name: str) -> str:
    """The source under which marks and the log know a topic; of a long one the end is a digest."""
    source = f"{BUS_SOURCES}{name}"
    if len(source) <= SOURCE_CHARS_MAX:
        return source
    digest = blake3(source.encode()).hexdigest(length=16)
    return f"{source[: SOURCE_CHARS_MAX - len(digest) - 1]}~{digest}"


class Ingress(GapQueue[NumberedBatchT, Ticket]):
    """Takes what comes from outside."""

    def open(self, data: bytes | memoryview, open_numbered: Callable[[Any], NumberedBatchT]) -> NumberedBatchT:
        """Opens an envelope or a batch; raises Malformed or TooLarge and counts it."""
        try:
            envelope = open_numbered(data)
        except StigmergyError:
            self.counters.malformed += 1
            raise
        for reserved, whose in ((SHARD_SOURCES, "shards"), (BUS_SOURCES, "topics"), (UPLINK_SOURCES, "uplinks")):
            if envelope.source.startswith(reserved):
                self.counters.refused += 1
                raise StaleEpoch(f"source {envelope.source!r}: names of {whose} are for {whose}; choose another")
        self.counters.envelopes += 1
        return envelope

    def post(
        self, accepted: Iterable[Accept[NumberedBatchT, Ticket]], put: Callable[[Accept[NumberedBatchT, Ticket]], None]
    ) -> None:
        """Puts what was let through into the mailbox. If there is no room, the waiter is told."""
        full: dict[Key, Overloaded] = {}
        for one in accepted:
            key = (one.envelope.source, one.envelope.incarnation)
            if key not in full:
                try:
                    put(one)
                except Overloaded as error:
                    full[key] = error
                    self.forget(key)
            if key in full:
                # What follows it would leave a gap. The sender repeats all of it.
                for ticket in one.tickets:
                    ticket.fail(full[key])
