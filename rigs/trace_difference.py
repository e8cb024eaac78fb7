"""Finds where the traces of two simulated runs part."""

from __future__ import annotations

from msgspec import Struct

from stigmergy.sim.run import Trace, TraceRecord


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
                f"run both again with Trace(keep_from={self.after + 1})"
            )
        return f"the traces part at record {self.upto}:\n  left:  {self.left}\n  right: {self.right}"


def first_difference(left: Trace, right: Trace) -> TraceDifference | None:
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


def _range_of_difference(left: Trace, right: Trace) -> tuple[int, int]:
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
