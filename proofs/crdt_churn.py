"""Row 10: after 10^6 additions and removals by 1,000 replicas, a set costs what is alive in it and who wrote to it.

Replicas write to one set, each to the newest state; elements come and go, and all the time about as many are alive.
Metadata is what remains when the elements themselves are taken out of the store's bytes: dots, places and the context.
It must follow from live elements and replicas alone, not from how much has happened: so it is measured twice.

    python -m proofs.crdt_churn [--writes N] [--replicas N] [--live N]
"""

from __future__ import annotations

import argparse
import sys
import tracemalloc
from random import Random
from typing import NamedTuple, cast

from proofs.report import Proof
from stigmergy.crdt.orset import ORSet
from stigmergy.crdt.store import EMPTY, ReplicaStore, mint, read_store
from stigmergy.crdt.tree import entries_of
from stigmergy.crdt.value import SharedValue

WRITES, WRITES_QUICK = 1_000_000, 20_000
REPLICAS, REPLICAS_QUICK = 1_000, 100
LIVE, LIVE_QUICK = 10_000, 500
DOT_BYTES_MAX = 20
"""For each live element: its place among the others, who wrote it and as which change."""
REPLICA_BYTES_MAX = 20
"""For each replica: its id, its counter, its place in the frontier."""
FIXED_BYTES_MAX = 100
GROWTH_MAX = 1.15
"""How much more the second half of the writes may leave behind than the first, for the same number of live elements."""


class Churned(NamedTuple):
    """What was measured at one point."""

    writes: int
    live: int
    store_bytes: int
    metadata_bytes: int
    memory_bytes: int
    """What the store takes in memory: what Python frees when it goes."""


def churn(writes: int, replicas: int, live: int, seed: int = 1) -> tuple[list[Churned], ReplicaStore]:
    """Writes so often, and measures at the half and at the end."""
    random = Random(seed)
    ids = [random.randbytes(8) for _ in range(replicas)]
    view = cast("ORSet[int]", SharedValue.empty(ORSet[int], "field"))
    present: list[int] = []
    measured = []
    for number in range(writes):
        replica = ids[number % replicas] if number < replicas else random.choice(ids)
        if len(present) < live * 0.9 or (len(present) < live * 1.1 and random.random() < 0.5):
            present.append(number)
            edit = view.add(number)
        else:
            at = random.randrange(len(present))
            present[at], present[-1] = present[-1], present[at]
            edit = view.remove(present.pop())
        store = view.store
        view = view.with_store(store.apply(mint(edit, store, replica, 0)))
        if number + 1 in (writes // 2, writes):
            measured.append(measure(view.store, number + 1))
    assert sorted(present) == sorted(view), "the set does not hold what was added and not removed"
    return measured, view.store


def measure(store: ReplicaStore, writes: int) -> Churned:
    """What a store takes, in bytes and in memory."""
    body = store.to_bytes()
    elements = sum(len(path[0]) for path, _, _, _ in entries_of(store.root))
    tracemalloc.start()
    again = read_store(body)
    memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert again == store, "a store is not what its bytes say"
    return Churned(writes, store.live_count, len(body), len(body) - elements, memory)


def prove(*, quick: bool = False) -> Proof:
    """Row 10."""
    replicas = REPLICAS_QUICK if quick else REPLICAS
    wanted = WRITES_QUICK if quick else WRITES
    measured, store = churn(wanted, replicas, LIVE_QUICK if quick else LIVE)
    half, end = measured
    bound = FIXED_BYTES_MAX + DOT_BYTES_MAX * end.live + REPLICA_BYTES_MAX * replicas
    violations = []
    if end.metadata_bytes > bound:
        violations.append(f"{end.metadata_bytes} bytes of metadata, at most {bound} for {end.live} live elements")
    per_live = [one.metadata_bytes / (one.live + replicas) for one in measured]
    if per_live[1] > per_live[0] * GROWTH_MAX:
        violations.append(
            f"metadata grew with history: {per_live[0]:.1f} bytes per live element, then {per_live[1]:.1f}"
        )
    if len(store.context) != replicas or EMPTY.join(store) != store:
        violations.append(f"{len(store.context)} replicas in the context, expected {replicas}")
    return Proof(
        name="crdt_churn",
        promise="what additions and removals leave behind follows from live elements and replicas alone",
        cases=wanted,
        violations=violations,
        figures={
            "replicas": replicas,
            "live elements": end.live,
            "bytes of the store": end.store_bytes,
            "of them metadata": end.metadata_bytes,
            "metadata allowed": bound,
            "metadata per live element and replica": f"{per_live[0]:.2f} at the half, {per_live[1]:.2f} at the end",
            "memory": f"{end.memory_bytes / 1e6:.1f} MB, {end.memory_bytes / end.live:.0f} bytes per live element",
            "memory at the half": f"{half.memory_bytes / 1e6:.1f} MB",
        },
    )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writes", type=int, default=WRITES)
    parser.add_argument("--replicas", type=int, default=REPLICAS)
    parser.add_argument("--live", type=int, default=LIVE)
    arguments = parser.parse_args()
    for one in churn(arguments.writes, arguments.replicas, arguments.live)[0]:
        print(one, file=sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
