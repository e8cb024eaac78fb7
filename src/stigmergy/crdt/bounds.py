"""Every bound of shared state, by name. The manual's page on shared state says what happens at each.

There are two kinds. A *writer's* bound refuses a change where it is made (`LimitReached`), before anybody else has seen
it. Concurrent writers can pass it together, so whoever merges takes twice as much: only what is far outside, which no
honest fleet writes, is refused there; that object then stops converging at this replica, and its memory is not eaten.
"""

from __future__ import annotations

REPLICA_BYTES = 8
"""Length of a replica's id."""
COUNTER_MAX = 2**63 - 1
"""Changes of one replica, totals of counters and stamps stay within 63 bits."""
PATH_DEPTH_MAX = 8
"""Keys on the way from the object to a place in it: that deep maps nest, what is in them included."""
ELEMENT_BYTES_MAX = 4_096
"""One element or key, encoded."""
PAYLOAD_BYTES_MAX = 48 * 1024
"""What one write puts into one place, encoded."""
CHANGE_BYTES_MAX = 60 * 1024
"""One change as a delta: it must fit into what peers take at once. For writers; joined changes may be larger."""
LIVE_COUNT_MAX = 262_144
"""Live dots of an object (elements of a set, entries of a map) that its writers go up to."""
LIVE_COUNT_HARD_MAX = 2 * LIVE_COUNT_MAX
REPLICAS_COUNT_MAX = 4_096
"""Replicas that have ever written to an object and were not retired."""
REPLICAS_COUNT_HARD_MAX = 2 * REPLICAS_COUNT_MAX
RANGES_COUNT_MAX = 1_024
"""Ranges of changes of one replica that a context remembers beyond a gap."""
PLACE_DOTS_COUNT_MAX = 4_096
"""Live dots in one place: concurrent writes that nobody has seen together yet, or one total for each replica."""
PLACE_DOTS_COUNT_HARD_MAX = 2 * PLACE_DOTS_COUNT_MAX
DELTA_ENTRIES_COUNT_MAX = 65_536
"""Places that one delta adds to, or removes from; also dots that it removes."""
DELTA_BYTES_MAX = 8 * 1024 * 1024
STORE_BYTES_MAX = 256 * 1024 * 1024
