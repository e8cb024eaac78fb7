"""The rings that feed a node: their paths, and a consumer for each."""

from __future__ import annotations

import os
from collections.abc import Sequence

from stigmergy.base.errors import ConfigError
from stigmergy.ring import Consumer, open_consumer

RINGS_COUNT_MAX = 256


def checked_rings(rings: object) -> tuple[str, ...]:
    """Paths of rings as texts; refuses what are none, before anything is opened."""
    if not isinstance(rings, list | tuple) or not all(isinstance(one, str | os.PathLike) for one in rings):
        raise ConfigError(f"rings={rings!r}: give a list of paths, also for one alone")
    paths = [os.path.abspath(one) for one in rings]
    if len(paths) > RINGS_COUNT_MAX:
        raise ConfigError(f"{len(paths)} rings; a node takes from {RINGS_COUNT_MAX} at most")
    for path in paths:
        if paths.count(path) > 1 or "\0" in path:
            raise ConfigError(f"ring {path!r}: named twice, or no path at all; name each ring once")
    return tuple(os.fspath(one) for one in rings)


def open_rings(paths: Sequence[str]) -> dict[str, Consumer]:
    """A consumer for each of these rings, which are made if they are missing; by their paths."""
    rings: dict[str, Consumer] = {}
    try:
        for path in checked_rings(tuple(paths)):
            rings[path] = open_consumer(path)
    except BaseException:
        for consumer in rings.values():
            consumer.close()
        raise
    return rings
