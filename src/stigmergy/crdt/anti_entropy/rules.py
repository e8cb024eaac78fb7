"""The bounds and times of anti-entropy. Every queue here has its limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from stigmergy.crdt.delta import SKEW_NS_MAX

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000 * MILLISECOND_NS
KIB = 1024
MIB = 1024 * KIB

OBJECTS_COUNT_MAX = 100_000
"""Objects that a node holds, and that a peer may say it holds."""
PEERS_COUNT_MAX = 10_000
KEYS_COUNT_MAX = 10_000
"""Keys that are remembered; those seen first go first."""


class ClockReading(NamedTuple):
    """Now, by both clocks: one for pauses, which never goes back, and one to compare stamps with."""

    monotonic_ns: int
    wall_ns: int


class Rules(Struct, frozen=True):
    """What one machine keeps to."""

    interval_ns: int = SECOND_NS
    """How often two nodes compare digests."""
    interval_ns_by_peer: Mapping[str, int] = {}
    """The same for single links."""
    fan_out: int = 4
    """So many hear of a change at once, and so many digests are sent in an interval, however many peers there are."""
    digests_count_max: int = 128
    """Objects in the digests for one peer in one interval; with more they take turns."""
    resend_ns: int = 200 * MILLISECOND_NS
    """The pause before a change that was not acknowledged is sent again. It doubles each time."""
    resend_tries: int = 4
    """After so many times it is left to the digests."""
    outstanding_count_max: int = 10_000
    """Changes whose acknowledgement is waited for, of all peers. Beyond it they are left to the digests."""
    buffer_bytes_max: int = MIB
    """Signed changes kept for one object, to send again and to pass on. The oldest go first; then states are sent."""
    buffer_count_max: int = 4_096
    waiting_count_max: int = 1_024
    """Changes of one object that wait for others or for our clock. The oldest goes, and digests bring it again."""
    batch_bytes_max: int = 32 * KIB
    """Own changes are joined up to this size before they are signed."""
    merge_bytes_max: int = 32 * KIB
    """What is handed to the host at once for one replica; a single change may be larger."""
    repair_bytes_max: int = 128 * KIB
    """Changes sent to one peer for one object in answer to its vector; the rest the next time."""
    ask_ns: int = 100 * MILLISECOND_NS
    """Not more often is one peer asked for what is missing of one object."""
    body_bytes_max: int = 16 * MIB
    """The largest body that is sent in parts: a state, or a long change."""
    parts_asked_max: int = 16
    """Parts asked for at once."""
    part_ns: int = 250 * MILLISECOND_NS
    """How long parts are waited for before they are asked for again."""
    part_tries: int = 20
    """After so many times without a new part a transfer is given up."""
    incoming_count_max: int = 8
    """Transfers to us at once, of all peers; two of one peer."""
    outgoing_bytes_max: int = 64 * MIB
    """Bodies kept for those who fetch them; the oldest go first."""
    outgoing_ns: int = 60 * SECOND_NS
    """How long such a body is kept after it was last asked for."""
    skew_ns_max: int = SKEW_NS_MAX
    """How far ahead of our clock the stamp of a change may be. One beyond it waits until our clock is there."""
    retire_ns: int = 24 * 3600 * SECOND_NS
    """A replica of which nothing new came for so long is retired: vectors name it only by a common digest."""

    def interval_ns_of(self, peer: str) -> int:
        """How often digests go to this peer."""
        return self.interval_ns_by_peer.get(peer, self.interval_ns)
