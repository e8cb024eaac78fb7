"""What is known of the other nodes: what they hold, when they are due, and what they have not acknowledged. Bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from stigmergy.crdt.anti_entropy.authorship import OBJECT_BYTES
from stigmergy.crdt.anti_entropy.messages import SHORT_DIGEST_BYTES, Digests, body_digest
from stigmergy.crdt.anti_entropy.rules import PEERS_COUNT_MAX, Rules

Choose = Callable[[int, int], list[int]]
"""So many different numbers from 0 up to, and without, the second: by chance, which is the caller's."""
NOTHING_KNOWN = bytes(SHORT_DIGEST_BYTES)
UNHEARD_ROUNDS = 5
"""A peer that has sent nothing for so many rounds of digests is not heard."""


class Peer(Struct):
    """Another node, as long as it is a member."""

    name: str
    due_ns: int
    """When digests go to it next."""
    heard_ns: int
    """When it last said something; until it has, when it became a member."""
    key: bytes | None = None
    """Which it signs with, once it was heard."""
    objects: dict[bytes, None] = {}
    interests: bytes = NOTHING_KNOWN
    """The digest of those; zeros until they were told."""
    answered_ns: int = -(1 << 62)
    """When it was last told that its interests are not known here, or what ours are."""
    digests: bytes = b""
    """The last digests that it sent, which were looked at."""
    said: tuple[Digests, bytes] | None = None
    """The last digests that we sent, and the datagram."""
    caught: tuple[bytes, ...] = ()
    """Whose lies are proven to it, as it has told."""
    proved_ns: int = -(1 << 62)
    """When it was last answered to that."""
    turn: int = 0
    """Where in the objects of both the next digests begin."""


class Peers:
    """All members, and who of them holds what."""

    def __init__(self, rules: Rules, choose: Choose) -> None:
        self._rules = rules
        self._choose = choose
        self._peers: dict[str, Peer] = {}
        self._holders: dict[bytes, dict[str, None]] = {}
        self._round_ns = -(1 << 62)
        self._due_ns: int | None = None
        """When somebody is due, or earlier."""

    def __len__(self) -> int:
        return len(self._peers)

    def __contains__(self, name: str) -> bool:
        return name in self._peers

    def get(self, name: str) -> Peer | None:
        """The peer with this name, if it is a member."""
        return self._peers.get(name)

    def all(self) -> list[Peer]:
        """All of them."""
        return list(self._peers.values())

    def set(self, names: Iterable[str], now_ns: int) -> list[str]:
        """The members from now on; returns those that have gone."""
        wanted = dict.fromkeys(sorted(names)[:PEERS_COUNT_MAX])
        gone = [name for name in self._peers if name not in wanted]
        for name in gone:
            self._forget_interests(self._peers.pop(name))
        for name in wanted:
            if name not in self._peers:
                self._peers[name] = Peer(name, now_ns, now_ns)
                self._due_ns = now_ns
        if not self._peers:
            self._due_ns = None
        return gone

    def hurry(self, peer: Peer, now_ns: int) -> None:
        """There is news for this peer: it is due at once."""
        peer.due_ns = min(peer.due_ns, now_ns)
        self._due_ns = now_ns

    def told_interests(self, peer: Peer, objects: bytes) -> None:
        """The peer has said what it holds."""
        self._forget_interests(peer)
        peer.objects = {objects[at : at + OBJECT_BYTES]: None for at in range(0, len(objects), OBJECT_BYTES)}
        peer.interests = interests_digest(objects)
        for one in peer.objects:
            self._holders.setdefault(one, {})[peer.name] = None

    def holders(self, wanted: bytes) -> list[str]:
        """Who holds an object, in the order of their names."""
        return sorted(self._holders.get(wanted, ()))

    def unheard(self, wanted: bytes, now_ns: int) -> list[str]:
        """Members that have sent nothing for some rounds, if they hold an object or have not said what they hold."""
        rounds = UNHEARD_ROUNDS * max(1, -(-len(self._peers) // self._rules.fan_out))
        return [
            name
            for name, peer in sorted(self._peers.items())
            if now_ns - peer.heard_ns > rounds * self._rules.interval_ns_of(name)
            and (wanted in peer.objects or peer.interests == NOTHING_KNOWN)
        ]

    def some(self, names: list[str]) -> list[str]:
        """All of these if they are few, else as many as hear of a change at once, by chance."""
        if len(names) <= self._rules.fan_out:
            return names
        return [names[at] for at in self._choose(self._rules.fan_out, len(names))]

    def due(self, now_ns: int) -> list[Peer]:
        """The receivers of digests now: everybody whose interval is over, or, of many, some in each interval."""
        few = len(self._peers) <= self._rules.fan_out
        if self._due_ns is None or now_ns < self._due_ns or (not few and now_ns < self._round_ns):
            return []
        ready = [peer for peer in self._peers.values() if peer.due_ns <= now_ns]
        if not few and ready:
            self._round_ns = now_ns + self._rules.interval_ns
            if len(ready) > self._rules.fan_out:
                ready = [ready[at] for at in self._choose(self._rules.fan_out, len(ready))]
        for peer in ready:
            peer.due_ns = now_ns + self._rules.interval_ns_of(peer.name)
        self._due_ns = min(peer.due_ns for peer in self._peers.values())
        return ready

    @property
    def next_ns(self) -> int | None:
        """When somebody is due, or earlier; None without peers."""
        if self._due_ns is None or len(self._peers) <= self._rules.fan_out:
            return self._due_ns
        return max(self._due_ns, self._round_ns)

    def _forget_interests(self, peer: Peer) -> None:
        for one in peer.objects:
            holders = self._holders[one]
            del holders[peer.name]
            if not holders:
                del self._holders[one]
        peer.objects = {}
        peer.interests = NOTHING_KNOWN


class SentChange(Struct):
    """A change on its way to a peer that has not acknowledged it."""

    upto: int
    due_ns: int
    pause_ns: int
    tries: int = 0
    acknowledged: int = 0


Way = tuple[str, bytes, bytes]
"""Peer, object, replica."""


class Outstanding:
    """Own changes whose acknowledgement is waited for."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._sent: dict[Way, SentChange] = {}
        self._next_ns = 0
        """When something is due, or earlier; of no meaning without any."""

    def __len__(self) -> int:
        return len(self._sent)

    def sent(self, way: Way, first: int, last: int, now_ns: int) -> None:
        """A change went out. Beyond the bound it is not waited for."""
        found = self._sent.get(way)
        if found is not None:
            found.upto = max(found.upto, last)
        elif len(self._sent) < self._rules.outstanding_count_max:
            due_ns = now_ns + self._rules.resend_ns
            self._next_ns = min(due_ns, self._next_ns) if self._sent else due_ns
            self._sent[way] = SentChange(last, due_ns, self._rules.resend_ns, acknowledged=first - 1)

    def acknowledged(self, way: Way, counter: int) -> None:
        """The peer has everything up to this counter."""
        found = self._sent.get(way)
        if found is None:
            return
        found.acknowledged = max(found.acknowledged, counter)
        if found.acknowledged >= found.upto:
            del self._sent[way]

    def tick(self, now_ns: int) -> list[tuple[Way, SentChange]]:
        """What is to be sent again now; what was tried often enough is given up."""
        if not self._sent or now_ns < self._next_ns:
            return []
        due = [(way, sent) for way, sent in self._sent.items() if sent.due_ns <= now_ns]
        again: list[tuple[Way, SentChange]] = []
        for way, sent in due:
            sent.tries += 1
            if sent.tries > self._rules.resend_tries:
                del self._sent[way]
                continue
            sent.pause_ns *= 2
            sent.due_ns = now_ns + sent.pause_ns
            again.append((way, sent))
        self._next_ns = min((sent.due_ns for sent in self._sent.values()), default=0)
        return again

    def drop(self, way: Way) -> None:
        """Waits for this no longer."""
        self._sent.pop(way, None)

    def drop_peer(self, name: str) -> None:
        """Waits for nothing more from this peer."""
        for way in [way for way in self._sent if way[0] == name]:
            del self._sent[way]

    @property
    def next_ns(self) -> int | None:
        """When something is due, or earlier; None if nothing is."""
        return self._next_ns if self._sent else None


def interests_digest(objects: bytes) -> bytes:
    """The digest of a list of objects; never zeros, which mean unknown."""
    return body_digest(objects)[:SHORT_DIGEST_BYTES]
