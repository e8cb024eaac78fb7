"""Replicas converge: once everything is healed, all replicas of an object are the same, and what they should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")
W = TypeVar("W")


def replicas_converge(replicas: Mapping[str, Mapping[str, bytes]]) -> list[str]:
    """Per object, per node a digest or the canonical bytes of what it holds: all of one object must be equal."""
    findings: list[str] = []
    for name in sorted(replicas):
        held = replicas[name]
        groups: dict[bytes, list[str]] = {}
        for node in sorted(held):
            groups.setdefault(held[node], []).append(node)
        if len(groups) > 1:
            parted = " | ".join(f"{', '.join(nodes)}: {body.hex()[:16]}" for body, nodes in groups.items())
            findings.append(f"{name} has not converged: {parted}")
    return findings


def replicas_equal_specification(
    name: str, values: Mapping[str, T], writes: Sequence[W], specify: Callable[[Sequence[W]], T]
) -> list[str]:
    """What each node reads must be what the writes give when one after the other is applied to one plain value.

    The writes are all that were acknowledged anywhere, in an order that the specification does not depend on.
    """
    expected = specify(writes)
    return [
        f"{name}: {node} reads {values[node]!r}, {len(writes)} writes in a row give {expected!r}"
        for node in sorted(values)
        if values[node] != expected
    ]
