"""How long a lease lasts for its holder, and from when on an observer may say that it is over.

The holder counts `for_ms` on its own monotonic clock from a moment before it sent the move that was granted. An
observer counts on its own, from when it has seen the grant, which is after that move was sent. Between the two stand
only their clocks, each of which may run fast or slow by DRIFT_PPM_MAX. The holder's lease ends, at the latest, after
for / (1 - drift) of true time; so the observer waits until at least as much has passed on the fastest clock, and a
little more: for * (1 + drift) / (1 - drift) + MARGIN_MS.

Only monotonic clocks count, and they must go on while a machine sleeps. Wall clocks may be wrong by any amount.
"""

from __future__ import annotations

MILLISECOND_NS = 1_000_000
DRIFT_PPM_MAX = 1_000
"""How far a monotonic clock may be from true time, in microseconds per second. Crystals stay below 100, rubidium far
below; a device whose clock is worse must not claim."""
MARGIN_MS = 100
"""On top, for the resolution of timers: a holder looks at its clock before each step, and not during one."""
OFFER_MS = 2_000
"""How long an offer stands before observers may pass it on to the next in the queue."""
_MILLION = 1_000_000


def lease_end_ns(sent_ns: int, for_ms: int) -> int:
    """When a holder that sent its move at this time of its clock holds no more."""
    return sent_ns + for_ms * MILLISECOND_NS


def expiry_ns(seen_ns: int, for_ms: int, drift_ppm: int = DRIFT_PPM_MAX, margin_ms: int = MARGIN_MS) -> int:
    """From when on an observer that saw a grant at this time of its own clock may say that it is over."""
    for_ns = for_ms * MILLISECOND_NS
    counted_ns = -(-for_ns * (_MILLION + drift_ppm) // (_MILLION - drift_ppm))
    return seen_ns + counted_ns + margin_ms * MILLISECOND_NS


def renewal_ns(sent_ns: int, for_ms: int) -> int:
    """When a holder that wants to keep it renews: a third of the lease has passed, two thirds are left for trying."""
    return sent_ns + for_ms * MILLISECOND_NS // 3
