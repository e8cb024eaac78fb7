"""The stores that a journal is copied to: whether they can be reached, and what the newest copy there is.

Nothing is sent and nothing changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from stigmergy.bearings import shown
from stigmergy.cli.health.finding import Finding, ill, well, worry
from stigmergy.cli.output import counted
from stigmergy.copies import CopiesAt
from stigmergy.core.errors import StigmergyError
from stigmergy.runtime.audit.listing import readable_time
from stigmergy.runtime.copies.restoring import find_copies

COPIES_S_MAX = 10.0
"""So long one store may take to say what it has."""
OLD_S = 3600.0
NS = 1_000_000_000


def check_copies(stores: Sequence[str], fleet: str | None, node: str, now_ns: int) -> Iterator[Finding]:
    """Each store that the configuration names. Without a journal nobody knows the fleet, and what is there."""
    for url in stores:
        if fleet is None:
            yield well("copies.configured", f"{shown(url)}: the first start will copy there")
            continue
        try:
            yield asyncio.run(_look(url, fleet, node, now_ns))
        except (StigmergyError, TimeoutError) as error:
            what = f"{shown(url)}: {str(error) or 'no answer'}"
            yield ill("copies.reachable", what, "the node goes on, and copies when it is there; docs/copies.md")


async def _look(url: str, fleet: str, node: str, now_ns: int) -> Finding:
    async with asyncio.timeout(COPIES_S_MAX), CopiesAt(url, fleet) as objects:
        found = [one for one in await find_copies(objects, node) if one.manifest is not None]
    if not found or found[-1].manifest is None:
        what = f"{shown(url)} has no copy of {fleet} at {node} yet"
        return worry("copies.newest", what, "run the node with this configuration; `stigmergy status` has its troubles")
    newest = found[-1]
    facts = {"version": newest.version, "commits": found[-1].manifest.commits, "points": len(found)}
    what = f"{shown(url)}: {counted(facts['commits'], 'commit')} as of {readable_time(newest.made_ns)[:19]}"
    if now_ns - newest.made_ns > OLD_S * NS:
        return worry("copies.newest", what, "nothing new since, or the node cannot reach it: see its troubles", **facts)
    return well("copies.newest", what, **facts)
