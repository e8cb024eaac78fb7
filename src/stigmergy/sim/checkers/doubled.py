"""Nothing is doubled: a receiver that keeps marks takes each message of each source once, in their order."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct


class Taken(Struct, frozen=True):
    """What a receiver took: of whom, and as which of its messages."""

    receiver: str
    source: str
    number: int
    what: str = ""


def nothing_is_doubled(taken: Iterable[Taken]) -> list[str]:
    """Looks at what was taken in the order in which it was taken: per receiver and source the numbers must grow."""
    findings: list[str] = []
    last: dict[tuple[str, str], int] = {}
    for one in taken:
        before = last.get((one.receiver, one.source), 0)
        if one.number == before:
            findings.append(f"{one.receiver} took {one.source} {one.number} twice: {one.what}")
        elif one.number < before:
            findings.append(f"{one.receiver} took {one.source} {one.number} after {before}: {one.what}")
        last[one.receiver, one.source] = max(before, one.number)
    return findings
