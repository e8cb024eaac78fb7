"""Tells between shards: what one shard owes another becomes a letter, and is settled once it is durable there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from stigmergy.core.effects import shard_sink
from stigmergy.core.inputs import Delivery, EffectSettled, Input
from stigmergy.core.outbox import Pending
from stigmergy.runtime.mailbox import Letter, Ticket

SHARD_SINKS = "shard/"
_told = msgspec.msgpack.Decoder(tuple[str, bytes])


class Settles:
    """The ticket of a tell to another shard: once it is durable there, it is settled here."""

    __slots__ = ("_first", "_last", "_put", "_shard", "_sink")

    def __init__(self, put: Callable[[int, Input], None], shard: int, sink: str, first: int, last: int) -> None:
        self._put = put
        self._shard = shard
        self._sink = sink
        self._first = first
        self._last = last

    def resolve(self) -> None:
        for sequence in range(self._first, self._last + 1):
            self._put(self._shard, EffectSettled(self._sink, sequence))

    def fail(self, error: Exception) -> None:
        del error  # it stays owed, and is released again after the next start


def letter_of(
    shard: int, epoch: int, sink: str, pendings: Sequence[Pending], put: Callable[[int, Input], None]
) -> Letter:
    """The letter with these tells of a shard; the shard hears through `put` when they have arrived."""
    target = int(sink.removeprefix(SHARD_SINKS))
    items = [_told.decode(pending.body) for pending in pendings]
    first = pendings[0].sequence
    delivery = Delivery(shard_sink(shard), items, sequence=first, epoch=epoch)
    # What a shard tells itself is settled in the very step that takes it.
    tickets: tuple[Ticket, ...] = () if target == shard else (Settles(put, shard, sink, first, first + len(items) - 1),)
    return Letter(target, delivery, tickets, len(items))
