"""Nothing acknowledged is lost: what a sender was told is durable is in the log of whoever told it so."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

FINDINGS_MAX = 20


class Acknowledged(Struct, frozen=True):
    """One input that was acknowledged: by whom, for whom, and its bytes."""

    node: str
    source: str
    number: int
    address: str
    body: bytes


def nothing_acknowledged_is_lost(
    acknowledged: Iterable[Acknowledged],
    kept: Collection[tuple[str, str, bytes]],
    skipped: Sequence[tuple[str, str, int, int]] = (),
) -> list[str]:
    """`kept` has (node, address, body) of what is in a log, as it came or as an input that failed.

    `skipped` has (node, source, first, last) of what a log says was given up: shed, or declared lost by its sender.
    """
    findings: list[str] = []
    for one in acknowledged:
        if (one.node, one.address, one.body) in kept:
            continue
        if any(
            (node, source) == (one.node, one.source) and first <= one.number <= last
            for node, source, first, last in skipped
        ):
            continue
        findings.append(
            f"{one.node}: {one.source} {one.number} for {one.address} was acknowledged and is not in the log"
        )
        if len(findings) >= FINDINGS_MAX:
            break
    return findings
