"""What shared state costs: local writes, deltas of others, bytes on the wire, and stores as they grow.

A write is all that happens to one in memory: the mutator, the dot, the store, the next value. What it costs to keep and
to send it is measured with the rest of a node. A delta of ten elements is applied to sets of several sizes, in turn, so
that a busy moment of the machine meets all of them. Bytes are held against the information in a change: what was
written, and every dot that the change names, eight bytes for the replica and as many as it takes for the counter.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from msgspec import Struct

from bench.charts import Bar, Bars, Chart, Lines, Series
from bench.options import add_common
from bench.shared_spread import measure_spread
from bench.targets import Target
from stigmergy.crdt.causality import Dot
from stigmergy.crdt.delta import Delta, Edit, join_deltas
from stigmergy.crdt.gcounter import GCounter
from stigmergy.crdt.lww_register import LWWRegister
from stigmergy.crdt.mv_register import MVRegister
from stigmergy.crdt.ormap import ORMap
from stigmergy.crdt.orset import ORSet
from stigmergy.crdt.store import ReplicaStore, mint, read_store
from stigmergy.crdt.value import SharedValue

V = TypeVar("V", bound=SharedValue)
OURS, THEIRS, THIRD = b"\x11" * 8, b"\x22" * 8, b"\x33" * 8
DELTA_ELEMENTS = 10
BATCH = 1_000
"""Writes between two looks at the clock."""
NODE_THRESHOLD = (20_000, 20, 50)
"""How often the garbage collector goes round, as a node sets it for itself."""
TARGETS = (
    Target("mutations_per_s", "local writes a second to a set of 10,000 elements", 100_000, at_least=True),
    Target("apply_ratio", "a delta of 10 elements applied to the largest set / to the smallest", 2.0),
    Target("bytes_ratio_max", "bytes of a change / information in it, at worst", 3.0),
)


class Sizes(Struct, frozen=True):
    """How much is measured."""

    elements: tuple[int, ...] = (100, 10_000, 100_000)
    mutated_elements: int = 10_000
    rounds: int = 30
    deltas: int = 200
    spread: tuple[tuple[int, int], ...] = ((1, 1), (1, 4), (6, 1), (6, 2), (6, 4))
    """Agents a node, and nodes, that share one map."""
    spread_s: float = 20.0


FULL = Sizes()
QUICK = Sizes(elements=(100, 1_000), mutated_elements=1_000, rounds=2, deltas=20, spread=((2, 2),), spread_s=5.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench shared`."""
    add_common(parser)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures everything and returns the figures by name."""
    before = gc.get_threshold()
    gc.set_threshold(*NODE_THRESHOLD)
    try:
        return measure_all(QUICK if arguments.quick else FULL)
    finally:
        gc.set_threshold(*before)


def measure_all(sizes: Sizes) -> dict[str, Any]:
    """All figures by name."""
    writes = measure_writes(sizes)
    stores = {count: set_of(count) for count in sizes.elements}
    applied = measure_applied(stores, sizes)
    changes = measure_changes()
    return {
        "mutations_per_s": writes[0]["per_s"],
        "apply_us": applied[0]["us_per_delta"],
        "apply_ratio": round(applied[-1]["us_per_delta"] / applied[0]["us_per_delta"], 2),
        "bytes_ratio_max": max(row["ratio"] for row in changes),
        "mutations": writes,
        "applied": applied,
        "changes": changes,
        "stores": [measure_store(count, store) for count, store in stores.items()],
        "spread": measure_spread(sizes.spread, sizes.spread_s),
    }


def charts(figures: dict[str, Any]) -> list[Chart]:
    """Writes by type, a delta by the size of the set, bytes by kind of change, merges by layout."""
    applied = [(row["elements"], row["us_per_delta"]) for row in figures["applied"]]
    return [
        Bars("local writes", "writes/s", [Bar(row["name"], row["per_s"]) for row in figures["mutations"]]),
        Lines("a delta of 10 elements", "elements", "µs per delta", [Series("ORSet", applied)], y_from_zero=True),
        Bars("bytes / information", "ratio", [Bar(row["name"], row["ratio"]) for row in figures["changes"]]),
        Bars(
            "events merged, in all journals, for one write",
            "events",
            [
                Bar(f"{row['agents_per_node']} x {row['nodes']} {row['layout']}", row["merged_per_write"])
                for row in figures["spread"]
            ],
        ),
    ]


def name_of(number: int) -> str:
    """An element as a fleet has them."""
    return f"vehicle-{number:06d}"


def set_of(count: int) -> ReplicaStore:
    """The store of a set with so many elements, written by one replica."""
    names = cast("ORSet[str]", SharedValue.empty(ORSet[str], "vehicles"))
    for number in range(count):
        names = written(names, names.add(name_of(number)), OURS)
    return names.store


def written(value: V, edit: Edit, replica: bytes, now_ns: int = 0) -> V:
    """The value after a write."""
    store = value.store
    return value.with_store(store.apply(mint(edit, store, replica, now_ns)))


def measure_writes(sizes: Sizes) -> list[dict[str, Any]]:
    """Local writes a second, by type; of each the median of many short rounds, which take turns."""
    count = sizes.mutated_elements
    subjects: dict[str, tuple[Any, Callable[[Any, int], Edit]]] = {
        "orset": (
            SharedValue.empty(ORSet[str], "vehicles").with_store(set_of(count)),
            lambda names, i: (names.remove if i & 1 else names.add)(name_of((i >> 1) * 7919 % count)),
        ),
        "gcounter": (SharedValue.empty(GCounter, "count"), lambda counter, _: counter.add(1)),
        "lww_register": (SharedValue.empty(LWWRegister[int], "phase"), lambda register, i: register.set(i)),
        "mv_register": (SharedValue.empty(MVRegister[int], "plan"), lambda register, i: register.set(i)),
        "ormap": (
            SharedValue.empty(ORMap[str, GCounter], "exposure"),
            lambda counts, i: counts[name_of(i % 100)].add(1),
        ),
    }
    values = {name: value for name, (value, _) in subjects.items()}
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for number in range(sizes.rounds):
        for name, (_, edit) in subjects.items():
            value, first = values[name], number * BATCH
            begin_s = time.perf_counter()
            for i in range(first, first + BATCH):
                value = written(value, edit(value, i), OURS, i)
            seconds[name].append(time.perf_counter() - begin_s)
            values[name] = value
    return [
        {
            "name": name,
            "per_s": round(BATCH / statistics.median(taken)),
            "us_per_write": round(statistics.median(taken) / BATCH * 1e6, 2),
        }
        for name, taken in seconds.items()
    ]


def measure_applied(stores: dict[int, ReplicaStore], sizes: Sizes) -> list[dict[str, Any]]:
    """What it takes to apply a delta of ten elements of somebody else, by the size of the set."""
    deltas = {
        count: [foreign_delta(store, number) for number in range(sizes.deltas)] for count, store in stores.items()
    }
    taken: dict[int, list[float]] = {count: [] for count in stores}
    for _ in range(sizes.rounds):
        for count, store in stores.items():
            begin_s = time.perf_counter()
            for delta in deltas[count]:
                store.apply(delta)
            taken[count].append((time.perf_counter() - begin_s) / sizes.deltas)
    return [{"elements": count, "us_per_delta": round(statistics.median(taken[count]) * 1e6, 2)} for count in stores]


def foreign_delta(store: ReplicaStore, number: int) -> Delta:
    """Ten additions by another replica as one delta: half of them are there already."""
    names = cast("ORSet[str]", SharedValue.empty(ORSet[str], "vehicles")).with_store(store)
    count = len(names)
    joined: Delta | None = None
    for place in range(DELTA_ELEMENTS):
        at = (number * DELTA_ELEMENTS + place) * 7919 % count
        delta = mint(names.add(name_of(at if place & 1 else count + at)), names.store, THEIRS, 0)
        names = names.with_store(names.store.apply(delta))
        joined = delta if joined is None else join_deltas(joined, delta)
    assert joined is not None
    return joined


def measure_changes() -> list[dict[str, Any]]:
    """Bytes of single changes, of a replica that has seen another, and the information in them."""
    names = cast("ORSet[str]", SharedValue.empty(ORSet[str], "vehicles"))
    names = names.with_store(set_of(1_000))
    register = cast("LWWRegister[str]", SharedValue.empty(LWWRegister[str], "phase"))
    register = written(register, register.set("green"), OURS, 1_700_000_000_000_000_000)
    counter = cast("GCounter", SharedValue.empty(GCounter, "count"))
    for _ in range(1_000):
        counter = written(counter, counter.add(1), THEIRS)
    later_ns = 1_700_000_001_000_000_000
    element, stamp = len(name_of(0)) + 1, 8
    several = foreign_delta(names.store, 0)
    return [
        _change("orset_add", mint(names.add(name_of(5_000)), names.store, OURS, 0), element),
        _change("orset_add_after_another", mint(names.add(name_of(5_000)), names.store, THEIRS, 0), element),
        _change("orset_remove", mint(names.remove(name_of(7)), names.store, THEIRS, 0), element),
        _change("orset_add_ten", several, element * DELTA_ELEMENTS),
        _change("gcounter_add", mint(counter.add(1), counter.store, THEIRS, 0), 2),
        _change("lww_register_set", mint(register.set("red"), register.store, OURS, later_ns), 4 + stamp),
        _change("lww_register_replace", mint(register.set("red"), register.store, THIRD, later_ns), 4 + stamp),
    ]


def information_bytes(delta: Delta, written_bytes: int) -> int:
    """What a change says at least: what was written, and the dots that it names."""
    dots = [Dot(delta.replica, delta.last), *delta.seen, *(dot for _, removed in delta.removed for dot in removed)]
    return written_bytes + sum(len(replica) + (counter.bit_length() + 7) // 8 for replica, counter in dots)


def _change(name: str, delta: Delta, written_bytes: int) -> dict[str, Any]:
    size, information = len(delta.to_bytes()), information_bytes(delta, written_bytes)
    return {"name": name, "bytes": size, "information_bytes": information, "ratio": round(size / information, 2)}


def measure_store(count: int, store: ReplicaStore) -> dict[str, Any]:
    """What a store takes as bytes, and how long it takes to write, read and merge it."""
    begin_s = time.perf_counter()
    body = store.to_bytes()
    wrote_s = time.perf_counter()
    again = read_store(body)
    read_s = time.perf_counter()
    again.join(store)
    joined_s = time.perf_counter()
    store.digest()
    digest_s = time.perf_counter()
    return {
        "elements": count,
        "bytes_per_element": round(len(body) / count, 1),
        "write_ms": round((wrote_s - begin_s) * 1e3, 2),
        "read_ms": round((read_s - wrote_s) * 1e3, 2),
        "join_ms": round((joined_s - read_s) * 1e3, 2),
        "digest_us": round((digest_s - joined_s) * 1e6, 1),
    }
