"""Every bound of shared state, by name. docs/shared-state.md says what happens at each.

There are two kinds. A *writer's* bound refuses a change where it is made (`LimitReached`), before anybody else has seen
it. Concurrent writers can pass it together, so a merge accepts twice as much. It refuses only what is far outside,
which no honest fleet writes; that object then stops converging at this replica, which protects its memory.
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
REPLICAS_COUNT_MAX = 16_384
"""Replicas that write to an object in its whole life: none is ever forgotten, see `anti_entropy/vectors.py`.
In a state so many take 197 KB, and 458 KB where each of them has added to one counter: the largest power of two that
the 768 KiB of an object's state (`STATE_BYTES_MAX` of agents/shared.py) hold with room for what is in it."""
REPLICAS_COUNT_HARD_MAX = 2 * REPLICAS_COUNT_MAX
RANGES_COUNT_MAX = 1_024
"""Ranges of changes of one replica that a context remembers beyond a gap."""
SEEN_COUNT_MAX = 1_024
"""Changes of others that one delta names as seen. Where more were written without knowing of each other, the next ones
are named by the delta after it: a change stays small, and so many writers do not keep each other from writing."""
PLACE_DOTS_COUNT_MAX = REPLICAS_COUNT_MAX
"""Live dots in one place: concurrent writes that nobody has seen together yet, or one total for each replica."""
PLACE_DOTS_COUNT_HARD_MAX = 2 * PLACE_DOTS_COUNT_MAX
DELTA_ENTRIES_COUNT_MAX = 65_536
"""Places that one delta adds to, or removes from; also dots that it removes."""
DELTA_BYTES_MAX = 8 * 1024 * 1024
STORE_BYTES_MAX = 256 * 1024 * 1024
