"""Membership without a broker, with 100 nodes in the simulator: who finds whom, how soon, how surely, at what cost.

python -m proofs.membership

Without loss nobody is ever declared gone who is there, and a crash is known everywhere within the stated bound. With
loss, every false alarm is taken back. A partition and its heal leave everybody with everybody. What a node sends does
not grow with the fleet.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from statistics import median
from typing import Any

from proofs.report import Proof
from rigs.membership_trial import Load, MembershipFleet
from stigmergy.sim.loop import run
from stigmergy.sim.network import CALM, LinkFaults

NODES = 100
SEEDS = 3
SEEDS_QUICK = 1
LOSSES = (0.1, 0.2, 0.3)
LOSS_S = 200.0
LOSS_S_QUICK = 60.0
SIZES = (10, 30, 100, 300)
SIZES_QUICK = (10, 100)
SETTLED_S = 60.0
HEAL_S_MAX = 60.0
JOIN_S_MAX = 10.0
LOAD_GROWTH_MAX = 1.2
"""Thirty times the nodes may cost so many times the datagrams and bytes of each."""
STEPS_MAX = 100_000_000


class Findings:
    """What was measured, and what does not hold."""

    def __init__(self) -> None:
        self.cases = 0
        self.violations: list[str] = []
        self.joined_s: list[float] = []
        self.gone_s: list[float] = []
        self.healed_s: list[float] = []
        self.loads: dict[int, Load] = {}
        self.alarms: dict[str, tuple[int, int, int]] = {}
        """By loss: suspicions, false alarms, and simulated seconds of nodes."""

    def demand(self, holds: bool, what: str) -> None:
        """Notes what does not hold."""
        self.cases += 1
        if not holds:
            self.violations.append(what)


def trial(
    seed: int, count: int, play: Callable[[MembershipFleet], Coroutine[Any, Any, None]], faults: LinkFaults = CALM
) -> None:
    """Plays with a fleet in virtual time."""

    async def main() -> None:
        async with MembershipFleet(seed, count, faults=faults) as fleet:
            await play(fleet)

    run(main(), seed=seed, steps_max=STEPS_MAX)


def prove_calm(found: Findings, seed: int) -> None:
    """Without faults: all find all, a crash is noticed in time, a partition heals, nobody is accused."""

    async def play(fleet: MembershipFleet) -> None:
        found.joined_s.append(await fleet.wait_complete())
        found.demand(found.joined_s[-1] <= JOIN_S_MAX, f"seed {seed}: all knew all after {found.joined_s[-1]:.1f} s")
        await asyncio.sleep(20)
        for name in ("node-50", "node-0"):  # one of many, and a seed
            await fleet.crash(name)
            told_s = await fleet.wait_gone(name)
            found.gone_s += told_s
            bound_s = fleet.gone_bound_s()
            found.demand(told_s[-1] <= bound_s, f"seed {seed}: {name} was gone after {told_s[-1]:.1f} s, not {bound_s}")
            await fleet.start(name)
            await fleet.wait_complete()
        names = fleet.names
        fleet.network.partition(names[: NODES // 3])
        await asyncio.sleep(60)
        fleet.network.heal()
        found.healed_s.append(await fleet.wait_complete())
        found.demand(found.healed_s[-1] <= HEAL_S_MAX, f"seed {seed}: healed after {found.healed_s[-1]:.1f} s")
        found.demand(not fleet.false_alarms, f"seed {seed}: false alarms without loss: {fleet.false_alarms[:3]}")

    trial(seed, NODES, play)


def prove_loss(found: Findings, seed: int, loss: float, seconds: float) -> None:
    """With loss: false alarms are counted, and all of them are taken back."""

    async def play(fleet: MembershipFleet) -> None:
        await fleet.wait_complete()
        await asyncio.sleep(seconds)
        suspected = sum(node.swim.counters.suspected_count for node in fleet.nodes.values())
        before = found.alarms.get(f"{loss:.0%}", (0, 0, 0))
        falsely = len({(told.by, told.event) for told in fleet.false_alarms})
        spent_s = int(seconds) * NODES
        found.alarms[f"{loss:.0%}"] = (before[0] + suspected, before[1] + falsely, before[2] + spent_s)
        fleet.network.calm()
        try:
            await fleet.wait_complete(60)
        except TimeoutError as error:
            found.demand(False, f"seed {seed}, loss {loss}: {error}")
        found.demand(suspected > 0, f"seed {seed}, loss {loss}: nobody was suspected: it did not bite")

    trial(seed, NODES, play, LinkFaults(loss=loss, jitter_s=0.01))


def prove_load(found: Findings, count: int) -> None:
    """In a quiet fleet of so many nodes: what each sends."""

    async def play(fleet: MembershipFleet) -> None:
        await fleet.wait_complete()
        await asyncio.sleep(SETTLED_S)
        found.loads[count] = await fleet.measure_load(SETTLED_S)
        found.demand(not fleet.false_alarms, f"{count} nodes: false alarms without loss")

    trial(1, count, play)


def prove(*, quick: bool = False) -> Proof:
    """The proof as `make prove` runs it."""
    found = Findings()
    for seed in range(1, 1 + (SEEDS_QUICK if quick else SEEDS)):
        prove_calm(found, seed)
        for loss in LOSSES:
            prove_loss(found, seed, loss, LOSS_S_QUICK if quick else LOSS_S)
    for count in SIZES_QUICK if quick else SIZES:
        prove_load(found, count)
    least = found.loads[SIZES[0]]
    for count, load in found.loads.items():
        grown = max(load.datagrams / least.datagrams, load.bytes / least.bytes)
        found.demand(grown <= LOAD_GROWTH_MAX, f"{count} nodes cost each {grown:.2f} times what {SIZES[0]} do")
    figures: dict[str, Any] = {
        "nodes": NODES,
        "all know all, s (median, longest)": f"{median(found.joined_s):.1f}, {max(found.joined_s):.1f}",
        "crash known, s (first, median, last)": (
            f"{min(found.gone_s):.1f}, {median(found.gone_s):.1f}, {max(found.gone_s):.1f}"
        ),
        "healed, s (longest)": f"{max(found.healed_s):.1f}",
    }
    for share, (suspected, falsely, seconds) in found.alarms.items():
        figures[f"loss {share}: suspicions, false alarms, in node hours"] = (
            f"{suspected}, {falsely}, {seconds / 3600:.1f}"
        )
    for count, load in found.loads.items():
        figures[f"{count} nodes: datagrams/s, bytes/s of each (busiest)"] = (
            f"{load.datagrams:.2f}, {load.bytes:.0f} ({load.datagrams_max:.2f})"
        )
    return Proof(
        name="membership",
        promise="100 nodes find each other without a broker, notice who is gone, take back false alarms, heal",
        cases=found.cases,
        violations=found.violations,
        figures=figures,
    )


def main() -> int:
    """The command line."""
    proof = prove(quick="--quick" in sys.argv[1:])
    print(proof)
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
