"""A trace that keeps its last records, and where the traces of two simulated runs differ.

Memory is bounded: it keeps the last records, cut to a length, for people, and some checkpoints of the hash. When two
runs differ, `first_difference` names the record, or the range to record again with `keep_from`.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.sim.run import Trace, encode_detail

RECORDS_KEPT_MAX = 1_000
DETAIL_BYTES_KEPT_MAX = 512
CHECKPOINTS_MAX = 1_024


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


class RecordedTrace(Trace):
    """A trace with its records. `keep_from` keeps the records from a number on instead of the last ones."""

    def __init__(self, *, records_max: int = RECORDS_KEPT_MAX, keep_from: int | None = None) -> None:
        super().__init__()
        self._records_max = records_max
        self._keep_from = keep_from
        self._kept: deque[TraceRecord] = deque(maxlen=records_max)
        self._checkpoints: list[bytes] = []
        self._stride = 1

    def record(self, time_ns: int, node: str, what: str, detail: Any = None) -> None:
        """Takes one record, and keeps it."""
        super().record(time_ns, node, what, detail)
        body = encode_detail(detail)
        if self._keep_from is None or self._keep_from <= self.count < self._keep_from + self._records_max:
            cut = len(body) > DETAIL_BYTES_KEPT_MAX
            digest = blake3(body).digest() if cut else b""
            self._kept.append(
                TraceRecord(self.count, time_ns, node, what, body[:DETAIL_BYTES_KEPT_MAX], len(body), digest)
            )
        if self.count % self._stride == 0:
            self._add_checkpoint()

    def records(self) -> list[TraceRecord]:
        """The records that are kept, oldest first."""
        return list(self._kept)

    def timeline(self, records: int = 60) -> str:
        """The last records, for people."""
        return "\n".join(str(record) for record in self.records()[-records:])

    def checkpoints(self) -> dict[int, bytes]:
        """The hash after some of the records, by the record's number."""
        return {(index + 1) * self._stride: digest for index, digest in enumerate(self._checkpoints)}

    def __str__(self) -> str:
        lines = [f"{self.count} records, BLAKE3 {self.hexdigest()}", *map(str, self._kept)]
        return "\n".join(lines)

    def _add_checkpoint(self) -> None:
        """When there are too many, every second one goes: their number stays bounded, and they cover the whole run."""
        self._checkpoints.append(self._hasher.digest())
        if len(self._checkpoints) > CHECKPOINTS_MAX:
            self._checkpoints = self._checkpoints[1::2]
            self._stride *= 2


class TraceDifference(Struct, frozen=True):
    """Where two traces part. If `left` and `right` are both None, all that is known is the range of numbers."""

    after: int
    """Up to this number the traces are the same."""
    upto: int
    """The first different record has at most this number."""
    left: TraceRecord | None = None
    right: TraceRecord | None = None

    def __str__(self) -> str:
        if self.left is None and self.right is None:
            return (
                f"the traces part between records {self.after + 1} and {self.upto}, which are not kept; "
                f"run both again with RecordedTrace(keep_from={self.after + 1})"
            )
        return f"the traces part at record {self.upto}:\n  left:  {self.left}\n  right: {self.right}"


def first_difference(left: RecordedTrace, right: RecordedTrace) -> TraceDifference | None:
    """Where two traces part, as exactly as what they kept allows; None if they are the same."""
    if left.count == right.count and left.hexdigest() == right.hexdigest():
        return None
    after, upto = _range_of_difference(left, right)
    left_kept = {record.number: record for record in left.records()}
    right_kept = {record.number: record for record in right.records()}
    for number in range(after + 1, upto + 1):
        in_left = left_kept.get(number)
        in_right = right_kept.get(number)
        if (in_left is None and number <= left.count) or (in_right is None and number <= right.count):
            break
        if in_left != in_right:
            return TraceDifference(number - 1, number, in_left, in_right)
        after = number
    return TraceDifference(after, upto)


def _range_of_difference(left: RecordedTrace, right: RecordedTrace) -> tuple[int, int]:
    """Narrowed by the checkpoints that both have: the longer trace has fewer, at multiples of the other's."""
    theirs = right.checkpoints()
    after, upto = 0, min(left.count, right.count) + 1
    for number, digest in left.checkpoints().items():
        if number not in theirs:
            continue
        if theirs[number] != digest:
            return after, number
        after = number
    return after, upto
