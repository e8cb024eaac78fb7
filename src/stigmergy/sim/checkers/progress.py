"""Progress after heal: once everything works again, everybody runs and everything comes to its end, in time."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct


class Settling(Struct, frozen=True):
    """Where one node stands some time after the heal."""

    node: str
    runs: bool
    untold: int = 0
    """Inputs from outside that are not acknowledged or answered."""
    waiting: int = 0
    """Inputs that it has and has not decided."""
    owed: int = 0
    """Effects that are not settled."""
    held: int = 0
    """Messages that the network still has for it."""
    why: str = ""


def everything_makes_progress(nodes: Iterable[Settling]) -> list[str]:
    """Every node runs, and nothing is open there."""
    findings: list[str] = []
    for one in nodes:
        if not one.runs:
            findings.append(f"{one.node} does not run{f': {one.why}' if one.why else ''}")
        open_ = [
            f"{count} {what}"
            for count, what in (
                (one.untold, "not acknowledged"),
                (one.waiting, "not decided"),
                (one.owed, "still owed"),
                (one.held, "held by the network"),
            )
            if count
        ]
        if open_:
            findings.append(f"{one.node} has not come to an end: {', '.join(open_)}")
    return findings
