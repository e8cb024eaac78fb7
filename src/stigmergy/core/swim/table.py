"""Who is known, and what of each: for every name the update of the highest rank. Pure.

Since ranks are totally ordered and the highest one stays, it does not matter in which order, how often, or from whom
updates about a member come: tables that have taken the same ones say the same. Members that are gone stay for a while,
so that older news of them is known to be old, and so that somebody asks for them again when a partition may have
healed. Who was never known is not remembered as gone.
"""

from __future__ import annotations

from blake3 import blake3
from msgspec import structs

from stigmergy.core.swim.packets import BUCKETS_COUNT, DIGEST_BYTES, Status, SwimUpdate

MEMBERS_COUNT_MAX = 4_096
"""Members that are present, ourselves included. One more is not taken, and that is counted."""
GONE_COUNT_MAX = 4_096
"""Members that are gone and remembered. One more, and the one that went first is forgotten."""


class Table:
    """All that is known."""

    def __init__(self, *, members_count_max: int = MEMBERS_COUNT_MAX, gone_count_max: int = GONE_COUNT_MAX) -> None:
        self._members_count_max = members_count_max
        self._gone_count_max = gone_count_max
        self._present: dict[str, SwimUpdate] = {}
        self._gone: dict[str, tuple[SwimUpdate, int]] = {}
        """With when it went, oldest first."""
        self._buckets: list[dict[str, None]] = [{} for _ in range(BUCKETS_COUNT)]
        self._digests = [0] * BUCKETS_COUNT
        self.full_count = 0
        """Members that were not taken because there were too many."""

    def get(self, node: str) -> SwimUpdate | None:
        """What is known of a node, present or gone."""
        return self[node] if node in self._present or node in self._gone else None

    def __getitem__(self, node: str) -> SwimUpdate:
        """What is known of a node that is known; KeyError otherwise."""
        return self._present[node] if node in self._present else self._gone[node][0]

    def is_present(self, node: str) -> bool:
        """Whether a node is alive or suspected."""
        return node in self._present

    @property
    def present_count(self) -> int:
        """How many are alive or suspected."""
        return len(self._present)

    def present(self) -> list[str]:
        """The names of those who are, sorted."""
        return sorted(self._present)

    def lost(self) -> list[str]:
        """The names of those who are gone without having said so, sorted."""
        return sorted(node for node, (update, _) in self._gone.items() if update.status == Status.DEAD)

    def take(self, update: SwimUpdate, now_ns: int) -> bool:
        """Takes an update; says whether it was news. What is no member yet has to be alive to become one."""
        known = self.get(update.node)
        if known is None and update.status != Status.ALIVE:
            return False
        if known is not None and update.rank <= known.rank:
            return False
        is_here = update.status in (Status.ALIVE, Status.SUSPECT)
        if is_here and update.node not in self._present and len(self._present) >= self._members_count_max:
            self.full_count += 1
            return False
        if known is not None and update.status != Status.ALIVE:
            # Only the member itself says how it is reached and what it is.
            update = structs.replace(update, contact=known.contact, about=known.about)
        self._remove(update.node)
        bucket = _bucket_of(update.node)
        self._buckets[bucket][update.node] = None
        if is_here:
            self._present[update.node] = update
            self._digests[bucket] ^= _digest_of(update)
        else:
            self._gone[update.node] = (update, now_ns)
            if len(self._gone) > self._gone_count_max:
                self._remove(next(iter(self._gone)))
        return True

    def forget(self, before_ns: int) -> None:
        """Forgets those who went before this moment."""
        for node, (_, went_ns) in list(self._gone.items()):
            if went_ns >= before_ns:
                return
            self._remove(node)

    def digests(self) -> bytes:
        """Four bytes for each bucket: equal if, but for chance, the same runs are present in it. Suspicion aside."""
        return b"".join(digest.to_bytes(DIGEST_BYTES, "big") for digest in self._digests)

    def differing(self, digests: bytes) -> list[int]:
        """The buckets in which another table, with these digests, is different."""
        own = self.digests()
        places = range(0, len(own), DIGEST_BYTES)
        return [at // DIGEST_BYTES for at in places if own[at : at + DIGEST_BYTES] != digests[at : at + DIGEST_BYTES]]

    def in_bucket(self, number: int) -> list[SwimUpdate]:
        """All that is known of those in a bucket, also of those who are gone."""
        return [self[node] for node in sorted(self._buckets[number])]

    def _remove(self, node: str) -> None:
        bucket = _bucket_of(node)
        present = self._present.pop(node, None)
        if present is not None:
            self._digests[bucket] ^= _digest_of(present)
        self._gone.pop(node, None)
        self._buckets[bucket].pop(node, None)


def _bucket_of(node: str) -> int:
    return blake3(node.encode()).digest(1)[0] % BUCKETS_COUNT


def _digest_of(update: SwimUpdate) -> int:
    """Without the status: a suspicion comes and goes too quickly to be compared."""
    front = f"{update.node} {update.incarnation} ".encode()
    return int.from_bytes(blake3(front + update.run).digest(DIGEST_BYTES), "big")
