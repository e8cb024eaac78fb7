"""One run of virtual time: its loop, its trace, its randomness and its disks.

    run = Run(seed=7)
    result = run.run(main())                  # once

Everything that happens in the run is reported to `record`; two runs of one seed have the same hash.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.shard.commit import HashAlgorithm
from stigmergy.sim.disk import SimDisk
from stigmergy.sim.loop import STEPS_MAX, VirtualLoop

# The events of a simulation, folded into one hash: two runs are the same if their hashes are.
#
# The hash covers the bytes of every record: when, where, what, with which details. Details are encoded by msgspec with
# sorted maps and sets, so neither PYTHONHASHSEED nor addresses, insertion order or locale reach it; what has no such
# encoding (an arbitrary object, whose representation would hold an address) raises TypeError.
#
# Memory is bounded: it keeps the last records, cut to a length, for people, and some checkpoints of the hash. When two
# runs differ, `first_difference` names the record, or the range to record again with `keep_from`. The program under
# simulation never reads a trace.

RECORDS_KEPT_MAX = 1_000
DETAIL_BYTES_KEPT_MAX = 512
CHECKPOINTS_MAX = 1_024

_CONTEXT = "stigmergy 2026 simulation trace"
_encoder = msgspec.msgpack.Encoder(order="deterministic")


class TraceRecord(Struct, frozen=True):
    """One thing that happened. Two records are equal if their bytes are."""

    number: int
    """From 1 upward."""
    time_ns: int
    node: str
    what: str
    detail: bytes
    """The detail's encoding, at most DETAIL_BYTES_KEPT_MAX of it."""
    detail_bytes: int
    digest: bytes
    """Of the whole encoding where `detail` is cut, else empty."""

    def __str__(self) -> str:
        seconds, rest = divmod(self.time_ns, 1_000_000_000)
        return f"#{self.number} {seconds}.{rest:09d} {self.node} {self.what} {self._detail_text()}"

    def _detail_text(self) -> str:
        if self.digest:
            return f"{self.detail_bytes} bytes, BLAKE3 {self.digest.hex()[:16]}, from {self.detail[:64].hex()}"
        detail = msgspec.msgpack.decode(self.detail)
        return "" if detail is None else repr(detail)


class Trace:
    """Takes records, keeps their hash. `keep_from` keeps the records from a number on instead of the last ones."""

    def __init__(self, *, records_max: int = RECORDS_KEPT_MAX, keep_from: int | None = None) -> None:
        self._hasher = blake3(derive_key_context=_CONTEXT)
        self._hasher.update(bytes([HashAlgorithm.BLAKE3_256]))
        self._count = 0
        self._records_max = records_max
        self._keep_from = keep_from
        self._kept: deque[TraceRecord] = deque(maxlen=records_max)
        self._checkpoints: list[bytes] = []
        self._stride = 1

    @property
    def count(self) -> int:
        """How many records were taken."""
        return self._count

    def record(self, time_ns: int, node: str, what: str, detail: Any = None) -> None:
        """Takes one record. `detail` is bytes, a number, text, a Struct, or a list, dict or set of such."""
        body = _encoder.encode(detail)
        self._hasher.update(_encoder.encode((time_ns, node, what, len(body))))
        self._hasher.update(body)
        self._count += 1
        if self._keep_from is None or self._keep_from <= self._count < self._keep_from + self._records_max:
            cut = len(body) > DETAIL_BYTES_KEPT_MAX
            digest = blake3(body).digest() if cut else b""
            self._kept.append(
                TraceRecord(self._count, time_ns, node, what, body[:DETAIL_BYTES_KEPT_MAX], len(body), digest)
            )
        if self._count % self._stride == 0:
            self._add_checkpoint()

    def records(self) -> list[TraceRecord]:
        """The records that are kept, oldest first."""
        return list(self._kept)

    def hexdigest(self) -> str:
        """The hash over all records so far."""
        return self._hasher.hexdigest()

    def checkpoints(self) -> dict[int, bytes]:
        """The hash after some of the records, by the record's number."""
        return {(index + 1) * self._stride: digest for index, digest in enumerate(self._checkpoints)}

    def __str__(self) -> str:
        lines = [f"{self._count} records, BLAKE3 {self.hexdigest()}", *map(str, self._kept)]
        return "\n".join(lines)

    def _add_checkpoint(self) -> None:
        """When there are too many, every second one goes: their number stays bounded, and they cover the whole run."""
        self._checkpoints.append(self._hasher.digest())
        if len(self._checkpoints) > CHECKPOINTS_MAX:
            self._checkpoints = self._checkpoints[1::2]
            self._stride *= 2


T = TypeVar("T")


class Run:
    """One run of virtual time, with one trace and one seed for all that is in it."""

    def __init__(
        self,
        seed: int,
        *,
        shuffle: bool = False,
        deadline_s: float = 3600.0,
        keep_from: int | None = None,
        steps_max: int = STEPS_MAX,
    ) -> None:
        self.seed = seed
        self.loop = VirtualLoop(seed=seed, shuffle=shuffle, deadline_s=deadline_s, steps_max=steps_max)
        self.trace = Trace(keep_from=keep_from)
        self._disks: list[SimDisk] = []

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

    def timeline(self, records: int = 60) -> str:
        """The last records, for people."""
        return "\n".join(str(record) for record in self.trace.records()[-records:])
