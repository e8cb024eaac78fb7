"""One run of virtual time: its loop, its trace, its randomness and its disks.

    run = Run(seed=7)
    result = run.run(main())                  # once

Everything that happens in the run is reported to `record`; two runs of one seed have the same hash.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from blake3 import blake3

from stigmergy.shard.commit import HashAlgorithm
from stigmergy.sim.disk import SimDisk
from stigmergy.sim.loop import STEPS_MAX, SimClock, VirtualLoop
from stigmergy.store.memory import MemoryStoreServer

_CONTEXT = "stigmergy 2026 simulation trace"
encode_detail = msgspec.msgpack.Encoder(order="deterministic").encode
T = TypeVar("T")


class Trace:
    """All events of a run, folded into one hash: two runs are the same if their hashes are.

    The hash covers the bytes of every record: when, where, what, with which details. Details are encoded by msgspec
    with sorted maps and sets, so neither PYTHONHASHSEED nor addresses, insertion order or locale reach it; what has no
    such encoding (an arbitrary object, whose representation would hold an address) raises TypeError. The program under
    simulation never reads a trace.
    """

    def __init__(self) -> None:
        self._hasher = blake3(derive_key_context=_CONTEXT)
        self._hasher.update(bytes([HashAlgorithm.BLAKE3_256]))
        self.count = 0
        """How many records were taken."""

    def record(self, time_ns: int, node: str, what: str, detail: Any = None) -> None:
        """Takes one record. `detail` is bytes, a number, text, a Struct, or a list, dict or set of such."""
        body = encode_detail(detail)
        self._hasher.update(encode_detail((time_ns, node, what, len(body))))
        self._hasher.update(body)
        self.count += 1

    def hexdigest(self) -> str:
        """The hash over all records so far."""
        return self._hasher.hexdigest()


class Run:
    """One run of virtual time, with one trace and one seed for all that is in it."""

    def __init__(
        self,
        seed: int,
        *,
        shuffle: bool = False,
        deadline_s: float = 3600.0,
        steps_max: int = STEPS_MAX,
        trace: Trace | None = None,
    ) -> None:
        self.seed = seed
        self.loop = VirtualLoop(seed=seed, shuffle=shuffle, deadline_s=deadline_s, steps_max=steps_max)
        self.trace = trace or Trace()
        self._disks: list[SimDisk] = []
        self.store_server = MemoryStoreServer(SimClock(self.loop))
        """The store of blobs that all nodes share; it never fails."""

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Runs the main coroutine to its end, then takes the disks out of the process. Once."""
        try:
            return self.loop.run(main)
        finally:
            self.close()

    def close(self) -> None:
        """Ends a run, also one that was never begun."""
        self.loop.close()
        for disk in self._disks:
            disk.close()
        self._disks.clear()

    def chance(self, stream: str) -> random.Random:
        """Randomness of its own for each purpose, so that one more draw here changes nothing there."""
        return random.Random(f"stigmergy.sim/{self.seed}/{stream}")

    def record(self, node: str, what: str, detail: Any = None) -> None:
        """Notes what happened, at this virtual moment."""
        self.trace.record(self.loop.time_ns(), node, what, detail)

    def make_disk(self, stream: str, **options: Any) -> SimDisk:
        """A disk that is taken down with the world."""
        disk = SimDisk(self.chance(f"{stream}/disk"), **options)
        self._disks.append(disk)
        return disk
