"""Row 11: a replica comes back after any absence, longer than anything is kept for; nothing is revived, nothing lost.

Each history is a fleet of machines on a network that loses, doubles, delays and cuts. Replicas go away, crash and come
back long after the others have retired them and dropped every change from their buffers; two halves are cut apart, and
retire each other. Elements are added once and removed by those who see them, on both sides of every cut. In the end
every replica must hold exactly what was added and never removed. What is there although it was removed was revived;
what is missing although nobody removed it was lost.
"""

from __future__ import annotations

import random

from msgspec import Struct

from proofs.report import Proof
from stigmergy.crdt.anti_entropy.rules import MILLISECOND_NS, SECOND_NS, Rules
from tests.crdt.anti_entropy.fleet import Fleet, Member

HISTORIES = 3_000
HISTORIES_QUICK = 60
NAMES = ("a", "b", "c", "d", "e", "f")
RETIRE_S = 20
HEAL_S = 120.0


def connected(sender: str, to: str) -> bool:
    """Nothing is cut, between any two."""
    return sender == to


class Tally(Struct):
    """What the histories had in them, and what came of it."""

    histories: int = 0
    elements: int = 0
    removals: int = 0
    absences: int = 0
    """Longer than it takes to be retired."""
    cuts: int = 0
    crashes: int = 0
    states_sent: int = 0
    revived: int = 0
    lost: int = 0
    unequal: int = 0
    heal_s_max: float = 0.0


class History:
    """One of them, from one seed."""

    def __init__(self, seed: int, tally: Tally) -> None:
        self.chance = random.Random(f"returning/{seed}")
        self.tally = tally
        rules = Rules(retire_ns=RETIRE_S * SECOND_NS, buffer_count_max=self.chance.choice([2, 5, 50, 4096]))
        self.fleet = Fleet(list(NAMES[: self.chance.randint(3, 6)]), seed, rules)
        self.added: dict[str, None] = {}
        self.removed: dict[str, None] = {}

    def run(self) -> list[str]:
        """What went wrong in it."""
        fleet, chance = self.fleet, self.chance
        fleet.start()
        fleet.loss, fleet.doubling = chance.choice([0.0, 0.1, 0.3]), chance.choice([0.0, 0.1])
        fleet.delay_ns_max = chance.choice([5, 300]) * MILLISECOND_NS
        for _ in range(chance.randint(2, 5)):
            self._write(chance.randint(1, 10))
            chance.choice([self._absence, self._absence, self._cut, self._crash])()
        fleet.cut = connected
        return self._judge()

    def _write(self, count: int) -> None:
        for _ in range(count):
            member = self.fleet[self.chance.choice(self.fleet.names)]
            self._write_at(member)
            self.fleet.run(self.chance.random() * 0.5)

    def _write_at(self, member: Member) -> None:
        """Also at one that is down: its host runs before its machine, and others hear of it later."""
        seen = sorted(member.value())
        if seen and self.chance.random() < 0.4:
            element = self.chance.choice(seen)
            member.remove(element)
            self.removed[element] = None
        else:
            element = f"{member.name} {len(self.added)}"
            member.add(element)
            self.added[element] = None

    def _absence(self) -> None:
        """One is away for longer than anybody waits, writes meanwhile, and the others do, too."""
        fleet, chance = self.fleet, self.chance
        self.tally.absences += 1
        away = chance.choice(fleet.names)
        crashed = chance.random() < 0.5
        fleet.cut = lambda sender, to: away in {sender, to}
        self._write(chance.randint(1, 12))
        if crashed:
            fleet[away].crash()
        fleet.run(RETIRE_S * chance.uniform(1.1, 3))
        if chance.random() < 0.5:
            for name in fleet.names:
                if name != away and fleet[name].up:
                    fleet[name].machine.retire(fleet[away].replica().name, fleet[away].replica().id, fleet[name].moment)
        self._write(chance.randint(1, 12))
        if crashed:
            fleet[away].start()
        fleet.cut = connected
        fleet.run(chance.random() * 3)

    def _cut(self) -> None:
        """Two halves, long enough for each to retire the other."""
        fleet, chance = self.fleet, self.chance
        self.tally.cuts += 1
        side = chance.sample(fleet.names, len(fleet.names) // 2)
        fleet.cut = lambda sender, to: (sender in side) != (to in side)
        self._write(chance.randint(2, 12))
        fleet.run(RETIRE_S * chance.uniform(0.5, 3))
        self._write(chance.randint(2, 12))
        fleet.cut = connected
        fleet.run(chance.random() * 3)

    def _crash(self) -> None:
        """Some forget everything but what is on their disks."""
        fleet, chance = self.fleet, self.chance
        for name in chance.sample(fleet.names, chance.randint(1, len(fleet.names))):
            self.tally.crashes += 1
            fleet[name].crash()
            fleet.run(chance.random())
            fleet[name].start()

    def _judge(self) -> list[str]:
        fleet, tally = self.fleet, self.tally
        begin_ns = fleet.now_ns
        while not fleet.converged() and fleet.now_ns - begin_ns < HEAL_S * SECOND_NS:
            fleet.run(0.25)
        tally.heal_s_max = max(tally.heal_s_max, (fleet.now_ns - begin_ns) / SECOND_NS)
        tally.histories += 1
        tally.elements += len(self.added)
        tally.removals += len(self.removed)
        tally.states_sent += fleet.total("shared_states_sent")
        wrong: list[str] = []
        if not fleet.converged():
            tally.unequal += 1
            wrong.append(f"replicas still differ {HEAL_S:.0f} s after everything was healed")
        for name in fleet.names:
            held = dict.fromkeys(fleet[name].value())
            revived = [element for element in held if element in self.removed]
            lost = [element for element in self.added if element not in held and element not in self.removed]
            tally.revived += len(revived)
            tally.lost += len(lost)
            wrong += [f"{name}: {element!r} was removed and is there" for element in revived]
            wrong += [f"{name}: {element!r} was added and is not there" for element in lost]
            wrong += [f"{name} shut out {out.node}: {out.why}" for out in fleet[name].machine.quarantined()]
        return wrong


def run_histories(count: int, first: int = 0) -> tuple[Tally, list[str]]:
    """So many histories, and what went wrong, each with its seed."""
    tally, violations = Tally(), []
    for seed in range(first, first + count):
        violations += [f"seed {seed}: {wrong}" for wrong in History(seed, tally).run()]
    return tally, violations


def prove(*, quick: bool = False) -> Proof:
    """Row 11."""
    tally, violations = run_histories(HISTORIES_QUICK if quick else HISTORIES)
    figures = {name: getattr(tally, name) for name in tally.__struct_fields__}
    return Proof(
        name="returning",
        promise="who returns after any absence revives nothing and loses nothing of its own",
        cases=tally.histories,
        violations=violations[:20],
        figures=figures,
    )
