"""Feeds the fleet in `telemetry.py` with what a radio would hear: `python producer.py`, while the node runs.

It needs no class of the fleet: the node says how a `Positioned` is written.
"""

import sys
import time

import numpy as np

from stigmergy.rings import open_blocking_feed

NAMES = [f"D-{number}" for number in range(1_000)]


def main(rounds: int, node: str = "telemetry.sock", ring: str = "telemetry.ring") -> None:
    """So many positions of each drone; returns when the node has all of them on its disk."""
    chance = np.random.default_rng(1)
    began_s = time.monotonic()
    with open_blocking_feed(node, ring, "Drone", source="radio") as feed:
        feed.enroll(NAMES)
        for _ in range(rounds):
            north_m, east_m = chance.normal(0.0, 100.0, (2, len(NAMES)))
            altitude_m = chance.uniform(0.0, 121.0, len(NAMES))
            feed.add("Positioned", NAMES, north_m=north_m, east_m=east_m, altitude_m=altitude_m)
            feed.send()  # waits while the ring is full
        feed.wait_durable()
    events = rounds * len(NAMES)
    print(f"{events:,} events durable, {events / (time.monotonic() - began_s):,.0f} a second")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000)
