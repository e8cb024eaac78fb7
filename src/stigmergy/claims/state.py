"""The state of a ledger's fold: who holds what, who is offered it, who waits, and how far each writer is.

Values never change in place; equal histories give equal values with equal bytes. Only held, offered or awaited
resources use memory.
"""

from __future__ import annotations

from immutables import Map
from msgspec import Struct

QUEUE_COUNT_MAX = 32
"""Claimants that may wait for one resource. A further one is refused at once, with the reason."""
RESOURCES_COUNT_MAX = 100_000
"""Resources that are held or waited for. A claim on a further one is refused."""
WRITERS_COUNT_MAX = 10_000
"""Writers whose last number is remembered. Beyond it those that wrote longest ago are forgotten: a repetition of theirs
would count once more, which can block a resource until its lease is over, but no agent would believe to hold it."""


class Grant(Struct, array_like=True, frozen=True):
    """A holder and its lease."""

    claimant: bytes
    token: int
    """The position of the entry that granted it."""
    began: int
    """The position of the entry that began the lease: the same, or that of the last renewal."""
    for_ms: int
    life: int
    sequence: int
    """Of the entry that began the lease. The holder counts from before it sent exactly this one."""


class Offer(Struct, array_like=True, frozen=True):
    """The first in the queue may accept it."""

    claimant: bytes
    position: int
    """Of the entry that freed it."""


class Waiter(Struct, array_like=True, frozen=True):
    """A claimant in the queue."""

    claimant: bytes
    for_ms: int


class Resource(Struct, array_like=True, frozen=True):
    """A resource that somebody wants. If nobody holds it, somebody is offered it."""

    grant: Grant | None
    offer: Offer | None
    queue: tuple[Waiter, ...]
    """Who waits after the holder, or after the claimant that is offered it."""


class WriterMark(Struct, array_like=True, frozen=True):
    """How far a writer is."""

    life: int
    sequence: int
    position: int
    """Of its last entry that counted."""


class Counts(Struct, array_like=True, frozen=True):
    """Outcomes of the entries, the same for every reader."""

    folded: int = 0
    malformed: int = 0
    unknown: int = 0
    """Of a later format."""
    forged: int = 0
    """The signature is not by the key that it names."""
    strangers: int = 0
    """Signed by a key that may not write."""
    repeated: int = 0
    """Seen before, or sent by an earlier life of the node."""
    void: int = 0
    """Named a grant or an offer that was over."""
    granted: int = 0
    queued: int = 0
    refused: int = 0
    expired: int = 0


FREE = Resource(None, None, ())
"""A resource that nobody wants."""


class Claims(Struct, frozen=True):
    """The state of the fold: everything about a ledger up to a position."""

    position: int = 0
    resources: Map[str, Resource] = Map()
    writers: Map[bytes, WriterMark] = Map()
    roster: tuple[bytes, ...] = ()
    """The keys that may write, sorted; empty while anybody may."""
    counts: Counts = Counts()
    pools: Map[bytes, tuple[str, ...]] = Map()
    """Claimants that wait for any of several resources, and the queues they are in. None of them holds or is offered
    one of these."""

    def resource(self, name: str) -> Resource:
        return self.resources.get(name, FREE)

    def holds(self, name: str, claimant: bytes) -> Grant | None:
        """The grant, if this claimant has it."""
        grant = self.resource(name).grant
        return grant if grant is not None and grant.claimant == claimant else None

    def offered(self, name: str, claimant: bytes) -> Offer | None:
        """The offer, if it was made to this claimant."""
        offer = self.resource(name).offer
        return offer if offer is not None and offer.claimant == claimant else None

    def waits(self, name: str, claimant: bytes) -> bool:
        """Whether this claimant is in the queue."""
        return any(waiter.claimant == claimant for waiter in self.resource(name).queue)

    def place(self, name: str, claimant: bytes) -> int:
        """The place of this claimant in the queue of a resource, counted from 1; 0 if it is not in it."""
        waiting = [waiter.claimant for waiter in self.resource(name).queue]
        return waiting.index(claimant) + 1 if claimant in waiting else 0

    def has_seen(self, writer: bytes, life: int, sequence: int) -> bool:
        """Whether this entry of a writer, or a later one, was folded: then it cannot come any more."""
        mark = self.writers.get(writer)
        return mark is not None and (mark.life, mark.sequence) >= (life, sequence)


# How long a lease lasts for its holder, and when an observer may declare it over.
#
# The holder counts `for_ms` on its own monotonic clock from before it sent the granted move. An observer counts on its
# own clock from when it saw the grant, which is after the move was sent. Only their clocks differ, each of which may
# run fast or slow by DRIFT_PPM_MAX. The holder's lease ends, at the latest, after for / (1 - drift) of true time; so
# the observer waits until at least as much has passed on the fastest clock, plus a margin: for * (1 + drift) / (1 -
# drift) + MARGIN_MS.
#
# Only monotonic clocks count, and they must keep running while a machine sleeps. Wall clocks may be wrong by any
# amount.

MILLISECOND_NS = 1_000_000
DRIFT_PPM_MAX = 1_000
"""How far a monotonic clock may be from true time, in microseconds per second. Crystals stay below 100, rubidium far
below; a device with a worse clock must not claim."""
MARGIN_MS = 100
"""Added for the resolution of timers: a holder checks its clock before each step, and not during one."""
OFFER_MS = 2_000
"""How long an offer is valid before observers may pass it on to the next in the queue."""
_MILLION = 1_000_000


def lease_end_ns(sent_ns: int, for_ms: int) -> int:
    """When a lease ends for a holder that sent its move at this time of its clock."""
    return sent_ns + for_ms * MILLISECOND_NS


def expiry_ns(seen_ns: int, for_ms: int, drift_ppm: int = DRIFT_PPM_MAX, margin_ms: int = MARGIN_MS) -> int:
    """When an observer that saw a grant at this time of its own clock may report that it is over."""
    for_ns = for_ms * MILLISECOND_NS
    counted_ns = -(-for_ns * (_MILLION + drift_ppm) // (_MILLION - drift_ppm))
    return seen_ns + counted_ns + margin_ms * MILLISECOND_NS


def renewal_ns(sent_ns: int, for_ms: int) -> int:
    """When a holder renews: after a third of the lease, which leaves two thirds for retries."""
    return sent_ns + for_ms * MILLISECOND_NS // 3
