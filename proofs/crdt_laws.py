"""Row 9: whatever the network does, replicas that know the same are the same, and are what the specification says.

One case is one random history: replicas write, deltas are lost, doubled, reordered and joined, whole stores are merged,
replicas crash and come back with what was durable. Deltas are refused as long as something is missing. Then all is
healed, and all replicas must be equal in what is read, in bytes and in digest, and equal to the specification, which is
also asked along the way; and three stores from along the way must merge in any order and repetition. In a part of the
cases all then go on from there, and must converge again.

    python -m proofs.crdt_laws --cases 1000000 [--type ORSet] [--seed N]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from proofs.crdt_specifications import SPECIFICATIONS, Operation, Specification
from proofs.report import Proof
from stigmergy.crdt.delta import Delta, join_deltas, read_delta
from stigmergy.crdt.errors import NotContiguous
from stigmergy.crdt.store import EMPTY, ReplicaStore, mint, read_store
from stigmergy.crdt.value import SharedValue

CASES, CASES_QUICK = 1_000_000, 2_000
CHUNK = 5_000
REPLICAS = tuple(bytes([number]) * 8 for number in range(1, 6))
STEPS_MIN, STEPS_MAX = 5, 14
GOING_ON_SHARE = 0.3
STEPS_AFTER = 5
VIOLATIONS_SHOWN = 5


class History:
    """One case."""

    def __init__(self, specification: Specification, random: Random) -> None:
        self.specification = specification
        self.random = random
        self.view: Any = SharedValue.empty(specification.hint, "field")
        self.count = random.randint(2, 4)
        self.stores = [EMPTY] * self.count
        self.durable = [EMPTY] * self.count
        """What a crash comes back to: own writes are durable before they go out, merges may be lost."""
        self.deltas: list[list[Delta]] = [[] for _ in range(self.count)]
        self.operations: list[Operation] = []
        self.along: list[ReplicaStore] = [EMPTY]
        self.refused = 0

    def run(self) -> None:
        """Raises AssertionError where something is wrong."""
        random = self.random
        self.go_on(random.randint(STEPS_MIN, STEPS_MAX))
        self.check(random.randrange(self.count))
        self.check_laws()
        self.heal()
        if random.random() < GOING_ON_SHARE:
            self.go_on(STEPS_AFTER)
            self.heal()

    def go_on(self, steps: int) -> None:
        """So many things happen."""
        random = self.random
        for _ in range(steps):
            at, choice = random.randrange(self.count), random.random()
            if choice < 0.55:
                self.write(at)
            elif choice < 0.85:
                self.deliver(at)
            elif choice < 0.93:
                self.stores[at] = self.stores[at].join(self.stores[random.randrange(self.count)])
            else:
                self.crash(at)

    def write(self, at: int) -> None:
        """A random write. What the network carries are bytes, now and then for real."""
        store = self.stores[at]
        edit, verb, what = self.specification.draw(self.random, self.view.with_store(store))
        now_ns = self.random.randrange(1, 20)
        delta = mint(edit, store, REPLICAS[at], now_ns)
        seen = tuple([self.known(store, number) for number in range(self.count)])
        self.operations.append(Operation(at, delta.first, verb, what, now_ns, seen))
        if self.random.random() < 0.2:
            body = delta.to_bytes()
            delta = read_delta(body)
            self.view.check(delta)
            assert delta.to_bytes() == body, "a delta is not what its bytes say"
        self.deltas[at].append(delta)
        self.stores[at] = self.durable[at] = store.apply(delta)
        self.along.append(self.stores[at])

    def deliver(self, at: int) -> None:
        """Any delta of anybody, old or new or several as one, to anybody: it is taken, or refused as too early."""
        sent = self.deltas[self.random.randrange(self.count)]
        if not sent:
            return
        first = self.random.randrange(len(sent))
        delta = sent[first]
        for later in sent[first + 1 : first + 1 + self.random.randrange(3)]:
            try:
                delta = join_deltas(delta, later)
            except NotContiguous:
                break
        try:
            self.stores[at] = self.stores[at].apply(delta)
        except NotContiguous:
            self.refused += 1
        self.along.append(self.stores[at])

    def crash(self, at: int) -> None:
        """Back to what was durable."""
        self.stores[at] = read_store(self.durable[at].to_bytes())

    def check(self, at: int) -> None:
        """What is read of a replica's store is what the specification says of the operations that it knows."""
        store = self.stores[at]
        known = [one for one in self.operations if self.known(store, one.replica) >= one.counter]
        read = self.specification.read(self.view.with_store(self.stores[at]))
        expected = self.specification.expected(known)
        assert read == expected, f"read {read!r}, expected {expected!r} of {known}"

    def known(self, store: ReplicaStore, number: int) -> int:
        """Up to which change a store knows a replica."""
        return store.context.counter(REPLICAS[number])

    def check_laws(self) -> None:
        """Three stores from along the way: any order, any grouping, any repetition."""
        one, two, three = (self.random.choice(self.along) for _ in range(3))
        both = one.join(two)
        assert both == two.join(one), "to merge depends on the order"
        assert both.join(three) == one.join(two.join(three)), "to merge depends on the grouping"
        assert both.join(two) == both == both.join(one) == both.join(both), "to merge again changes something"

    def heal(self) -> None:
        """Everything arrives, in several ways; then all must be equal to each other and to the specification."""
        first, *others = range(self.count)
        everything = self.stores[first]
        for at in others:
            everything = everything.join(self.stores[at])
        self.stores[first] = everything
        for at in others:
            if self.random.random() < 0.5:
                self.stores[at] = everything.join(self.stores[at])
            else:
                self.catch_up(at)
        self.check(first)
        body = everything.to_bytes()
        digest = everything.digest()
        for at in others:
            assert self.stores[at] == everything, "replicas know the same and are not the same"
            assert self.stores[at].to_bytes() == body, "equal stores have different bytes"
            assert self.stores[at].digest() == digest, "equal stores have different digests"
        assert read_store(body) == everything, "a store is not what its bytes say"

    def catch_up(self, at: int) -> None:
        """Applies all deltas in a random order, those that are too early again and again."""
        waiting = [delta for sent in self.deltas for delta in sent]
        self.random.shuffle(waiting)
        store = self.stores[at]
        while waiting:
            early = []
            for delta in waiting:
                try:
                    store = store.apply(delta)
                except NotContiguous:
                    early.append(delta)
            assert len(early) < len(waiting), f"{len(early)} deltas wait for each other for ever"
            self.refused += len(early)
            waiting = early
        self.stores[at] = store


class Part(NamedTuple):
    """Some cases of one type."""

    name: str
    first: int
    cases: int
    seed: int


class Outcome(NamedTuple):
    """What came of them."""

    name: str
    cases: int
    writes: int
    refused: int
    violations: list[str]


def check_part(part: Part) -> Outcome:
    """Runs these cases; a violation names the case, by which it can be repeated."""
    specification, writes, refused = SPECIFICATIONS[part.name], 0, 0
    violations = []
    for case in range(part.first, part.first + part.cases):
        history = History(specification, Random(part.seed * 1_000_000_007 + case))
        try:
            history.run()
        except Exception as error:
            violations.append(f"{part.name}, seed {part.seed}, case {case}: {type(error).__name__}: {error}")
        writes += len(history.operations)
        refused += history.refused
    return Outcome(part.name, part.cases, writes, refused, violations[:VIOLATIONS_SHOWN])


def check(names: Sequence[str], cases: int, seed: int, processes: int) -> list[Outcome]:
    """All cases of these types, one outcome for each type. The cases of maps are divided among what is in them."""
    parts = []
    for name in names:
        maps = sum(other.startswith("ORMap") for other in names)
        wanted = -(-cases // maps) if name.startswith("ORMap") else cases
        parts += [Part(name, first, min(CHUNK, wanted - first), seed) for first in range(0, wanted, CHUNK)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        done = pool.map(check_part, parts, chunksize=1)
    return [_together(name, [one for one in done if one.name == name]) for name in names]


def prove(*, quick: bool = False) -> Proof:
    """Row 9."""
    outcomes = check(
        tuple(SPECIFICATIONS), CASES_QUICK if quick else CASES, 1, 1 if quick else max(2, os.cpu_count() or 1)
    )
    return Proof(
        name="crdt_laws",
        promise="whatever is lost, doubled, reordered or crashes, replicas converge, to what the specification says",
        cases=sum(one.cases for one in outcomes),
        violations=[violation for one in outcomes for violation in one.violations],
        figures={
            one.name: f"{one.cases:,} histories, {one.writes:,} writes, {one.refused:,} deltas refused as too early"
            for one in outcomes
        },
    )


def _together(name: str, outcomes: list[Outcome]) -> Outcome:
    return Outcome(
        name,
        sum(one.cases for one in outcomes),
        sum(one.writes for one in outcomes),
        sum(one.refused for one in outcomes),
        [violation for one in outcomes for violation in one.violations][:VIOLATIONS_SHOWN],
    )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=CASES, help="for each type")
    parser.add_argument("--type", action="append", choices=tuple(SPECIFICATIONS), help="only this one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    outcomes = check(tuple(arguments.type or SPECIFICATIONS), arguments.cases, arguments.seed, arguments.processes)
    for one in outcomes:
        print(
            f"{one.name}: {one.cases:,} cases, {one.writes:,} writes, {one.refused:,} refused",
            *one.violations,
            sep="\n  ",
        )
    return int(any(one.violations for one in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
