"""The hybrid logical clock of registers: a stamp is the time, unless that is not after what the writer has seen.

So a later write of somebody who saw the earlier one always has the higher stamp, whatever the clocks say; and as long
as clocks are right, stamps are times. A clock far ahead would win every register until the others catch up: whoever
receives a stamp more than SKEW_NS_MAX ahead of its own clock does not take it yet.
"""

from __future__ import annotations

from stigmergy.crdt.bounds import COUNTER_MAX
from stigmergy.crdt.errors import LimitReached

SKEW_NS_MAX = 60 * 1_000_000_000
"""How far ahead of our clock a stamp of another replica may be."""


def next_stamp_ns(now_ns: int, after_ns: int) -> int:
    """The stamp of a write at this time by somebody who has seen the stamp `after_ns`."""
    stamp_ns = max(now_ns, after_ns + 1)
    if stamp_ns > COUNTER_MAX:
        raise LimitReached(f"a register was stamped {after_ns} ns, the last there is; set the clocks and remove it")
    return stamp_ns


def too_far_ahead(stamp_ns: int, now_ns: int, skew_ns_max: int = SKEW_NS_MAX) -> bool:
    """Whether a stamp is further ahead of our clock than is taken."""
    return stamp_ns > now_ns + skew_ns_max
