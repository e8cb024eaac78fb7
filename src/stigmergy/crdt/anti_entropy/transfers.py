"""Bodies that are too long for a datagram: offered, fetched in parts, assembled and checked. Pure and bounded.

The receiver fetches: it requests some parts at a time, and again those that do not come. A part is covered by the
digest of the whole, which was offered under a signature. One wrong part spoils the whole body: it is discarded, and the
next digest starts again.
"""

from __future__ import annotations

from msgspec import Struct

from stigmergy.crdt.anti_entropy.messages import (
    DIGEST_BYTES,
    PARTS_COUNT_MAX,
    BodyOffer,
    BodyPart,
    FetchParts,
    body_digest,
)
from stigmergy.crdt.anti_entropy.rules import Rules

PART_OVERHEAD_BYTES = 1 + 1 + 2 + DIGEST_BYTES + 5 + 5
"""What a part's frame adds to its piece, at most."""
PIECE_BYTES_MIN = 256
PIECE_BYTES_MAX = 65_536
PER_PEER_COUNT_MAX = 2
FETCHED_COUNT_MAX = 64


class _Outgoing(Struct):
    body: bytes
    piece_bytes: int
    asked_ns: int


class Outgoing:
    """Bodies that others may fetch."""

    def __init__(self, rules: Rules, bytes_max: int) -> None:
        self._rules = rules
        self._piece_bytes = min(bytes_max - PART_OVERHEAD_BYTES, PIECE_BYTES_MAX)
        if self._piece_bytes < PIECE_BYTES_MIN:
            raise ValueError(f"datagrams of {bytes_max} bytes are too short for parts")
        self._bodies: dict[bytes, _Outgoing] = {}
        self.size_bytes = 0

    def offer(self, body: bytes, about: bytes, now_ns: int) -> BodyOffer | None:
        """Keeps a body to be fetched; None if it is too large for anybody."""
        if len(body) > self._rules.body_bytes_max or len(body) > self._piece_bytes * PARTS_COUNT_MAX:
            return None
        digest = body_digest(body)
        known = self._bodies.pop(digest, None)
        if known is None:
            self.size_bytes += len(body)
        self._bodies[digest] = _Outgoing(body, self._piece_bytes, now_ns)
        while self.size_bytes > self._rules.outgoing_bytes_max:
            self._drop(next(iter(self._bodies)))
        return BodyOffer(digest, len(body), self._piece_bytes, about)

    def parts(self, ask: FetchParts, now_ns: int) -> list[BodyPart]:
        """The parts that were asked for; none of what is not kept any more."""
        outgoing = self._bodies.get(ask.body)
        if outgoing is None:
            return []
        outgoing.asked_ns = now_ns
        size = outgoing.piece_bytes
        pieces = ((number, outgoing.body[number * size : (number + 1) * size]) for number in ask.parts)
        return [BodyPart(ask.body, number, piece) for number, piece in pieces if piece]

    def tick(self, now_ns: int) -> None:
        """Lets go what nobody has asked for for long."""
        for digest in [
            digest for digest, one in self._bodies.items() if now_ns - one.asked_ns >= self._rules.outgoing_ns
        ]:
            self._drop(digest)

    @property
    def next_ns(self) -> int | None:
        """When the next body is let go; None if there is none."""
        oldest_ns = min((one.asked_ns for one in self._bodies.values()), default=None)
        return None if oldest_ns is None else oldest_ns + self._rules.outgoing_ns

    def _drop(self, digest: bytes) -> None:
        self.size_bytes -= len(self._bodies.pop(digest).body)


class _Incoming:
    __slots__ = ("count", "offer", "peer", "pieces", "since_ns", "tries")

    def __init__(self, peer: str, offer: BodyOffer, now_ns: int) -> None:
        self.peer = peer
        self.offer = offer
        self.count = -(-offer.size_bytes // offer.part_bytes)
        self.pieces: dict[int, bytes] = {}
        self.since_ns = now_ns
        """Since when nothing new has come."""
        self.tries = 0

    def missing(self, count_max: int) -> tuple[int, ...]:
        found: list[int] = []
        for number in range(self.count):
            if number not in self.pieces:
                found.append(number)
                if len(found) == count_max:
                    break
        return tuple(found)


class ReceivedBody(Struct, frozen=True):
    """A body that is whole."""

    peer: str
    body: bytes


class Incoming:
    """Bodies that are being fetched."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._bodies: dict[bytes, _Incoming] = {}
        self._fetched: dict[bytes, int] = {}
        """When bodies were whole, of the last ones: what is offered again at once is not fetched again."""
        self.spoilt_count = 0
        """Thrown away: parts that were wrong, or bodies that never became whole."""

    def __len__(self) -> int:
        return len(self._bodies)

    def offered(self, peer: str, offer: BodyOffer, now_ns: int) -> FetchParts | None:
        """Begins to fetch; None if that is under way, too large, or there is no room."""
        if offer.size_bytes > self._rules.body_bytes_max or offer.body in self._bodies:
            return None
        fetched_ns = self._fetched.get(offer.body)
        if fetched_ns is not None and now_ns - fetched_ns < self._rules.interval_ns:
            return None
        if -(-offer.size_bytes // offer.part_bytes) > PARTS_COUNT_MAX:
            return None
        if any(offer.about) and any(one.offer.about == offer.about for one in self._bodies.values()):
            return None
        of_peer = sum(one.peer == peer for one in self._bodies.values())
        if len(self._bodies) >= self._rules.incoming_count_max or of_peer >= PER_PEER_COUNT_MAX:
            return None
        incoming = self._bodies[offer.body] = _Incoming(peer, offer, now_ns)
        return FetchParts(offer.body, incoming.missing(self._rules.parts_asked_max))

    def take(self, part: BodyPart, now_ns: int) -> tuple[str, FetchParts] | ReceivedBody | None:
        """Takes a part: what to ask next, the whole body, or nothing to do. It may come from anybody."""
        incoming = self._bodies.get(part.body)
        if incoming is None or part.number in incoming.pieces:
            return None
        offer = incoming.offer
        size = min(offer.part_bytes, offer.size_bytes - part.number * offer.part_bytes)
        if len(part.piece) != size:
            self.spoilt_count += 1
            return None
        incoming.pieces[part.number] = part.piece
        incoming.since_ns, incoming.tries = now_ns, 0
        if len(incoming.pieces) < incoming.count:
            # All that was asked for has come: on to the next.
            if len(incoming.pieces) % self._rules.parts_asked_max == 0:
                return incoming.peer, FetchParts(part.body, incoming.missing(self._rules.parts_asked_max))
            return None
        del self._bodies[part.body]
        body = b"".join(incoming.pieces[number] for number in range(incoming.count))
        if body_digest(body) != part.body:
            self.spoilt_count += 1
            return None
        if len(self._fetched) >= FETCHED_COUNT_MAX:
            del self._fetched[next(iter(self._fetched))]
        self._fetched[part.body] = now_ns
        return ReceivedBody(incoming.peer, body)

    def tick(self, now_ns: int) -> list[tuple[str, FetchParts]]:
        """What to ask again."""
        asks: list[tuple[str, FetchParts]] = []
        for digest, incoming in list(self._bodies.items()):
            if now_ns - incoming.since_ns < self._rules.part_ns:
                continue
            incoming.since_ns = now_ns
            incoming.tries += 1
            if incoming.tries > self._rules.part_tries:
                del self._bodies[digest]
                self.spoilt_count += 1
            else:
                asks.append((incoming.peer, FetchParts(digest, incoming.missing(self._rules.parts_asked_max))))
        return asks

    def drop_peer(self, peer: str) -> None:
        """Fetches nothing more from this peer."""
        for digest in [digest for digest, one in self._bodies.items() if one.peer == peer]:
            del self._bodies[digest]

    @property
    def next_ns(self) -> int | None:
        """When something has to be asked again; None if nothing is fetched."""
        oldest_ns = min((one.since_ns for one in self._bodies.values()), default=None)
        return None if oldest_ns is None else oldest_ns + self._rules.part_ns
