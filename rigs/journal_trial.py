"""Tries a journal on a failing disk: does random work, lets something go wrong, opens again, and compares with a model.

The model knows what was acknowledged and what was under way. After a restart the journal must hold every acknowledged
group and nothing else but, all of it or nothing of it, the group that was under way. What it has shown once must then
survive another loss of power, because effects follow from it.

A trial returns what it found, as sentences; no sentence means that all is well. Each one names the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from msgspec import Struct

from stigmergy.base.errors import JournalFull, StigmergyError
from stigmergy.journal import segments, sqlite
from stigmergy.journal.port import Journal, JournalIdentity, SnapshotPart
from stigmergy.shard.commit import Group, Sealed, digest_commit
from stigmergy.sim.disk import AfterFailedSync, DiskFault, SimDisk, SimFolder
from stigmergy.sim.loop import run
from stigmergy.testing.journal_contract import CommitChain

SHARDS = 3
WAL_BYTES_MAX = 64 << 10
RESERVE_BYTES = 16 << 10
"""Small, so that a trial goes through many checkpoints."""
URL = "sqlite:fleet.db"
SEGMENT_BYTES = 16 << 10
"""Small, so that a trial begins many segments."""
SMALL = (20, 20, 200, 3_000, 9_000)
LARGE = (20, 3_000, 70_000, 120_000, 300_000)
"""How large what is appended may be: the small ones, and those that a journal writes in whole blocks."""
IDENTITY = JournalIdentity(fleet="trial", shards=SHARDS, incarnation=1)
Open = Callable[[SimDisk], Journal]


def open_sqlite(disk: SimDisk) -> Journal:
    """A journal on SQLite, inline on the disk."""
    return sqlite.open_journal(
        URL,
        IDENTITY,
        inline=True,
        wal_bytes_max=WAL_BYTES_MAX,
        reserve_bytes=RESERVE_BYTES,
        vfs=disk.vfs,
        files=disk,
    )


def open_segments(disk: SimDisk) -> Journal:
    """A journal in segments, inline on the disk."""
    return segments.open_journal(
        "segments:fleet",
        IDENTITY,
        inline=True,
        segment_bytes=SEGMENT_BYTES,
        reserve_bytes=RESERVE_BYTES,
        folder=SimFolder(disk, "fleet"),
        key=bytes(32),
    )


class Model:
    """What the journal must hold."""

    def __init__(self) -> None:
        self.chain = CommitChain()
        self.acknowledged: dict[int, list[Sealed]] = {shard: [] for shard in range(SHARDS)}
        self.firsts: dict[int, int] = dict.fromkeys(range(SHARDS), 1)
        self.group: Group | None = None
        """Under way: kept or not."""
        self.drop: tuple[int, int] | None = None
        """Under way: the shard, and the first position if it is carried out."""

    def acknowledge(self) -> None:
        """What was under way is done."""
        if self.group is not None:
            for sealed in self.group.commits:
                self.acknowledged[sealed.shard].append(sealed)
        if self.drop is not None:
            self.firsts[self.drop[0]] = max(self.firsts[self.drop[0]], self.drop[1])
        self.group = self.drop = None

    def refuse(self) -> None:
        """What was under way has left no trace: the chain goes on where it was before."""
        self.group = self.drop = None
        self.chain = CommitChain()
        for commits in self.acknowledged.values():
            if commits:
                self.chain.continue_from(commits[-1])

    def compare(self, journal: Journal) -> list[str]:
        """How the journal differs from the model; the model then takes over what was open."""
        found = {shard: [stored.sealed for stored in journal.read(shard)] for shard in range(SHARDS)}
        findings = self._compare_firsts({shard: journal.first_position(shard) for shard in range(SHARDS)})
        kept = self._group_is_kept(found)
        if kept:
            self.acknowledge()
        for shard, commits in found.items():
            expected = self.acknowledged[shard][self.firsts[shard] - 1 :]
            if commits != expected:
                ends = [[sealed.position for sealed in side[-1:]] for side in (expected, commits)]
                findings.append(f"shard {shard}: {len(expected)} commits expected, {len(commits)} found; ends {ends}")
            findings += [
                f"shard {shard}: a body is not its digest's" for s in commits if digest_commit(s.body) != s.digest
            ]
        self.refuse()
        return findings

    def _group_is_kept(self, found: dict[int, list[Sealed]]) -> bool:
        return self.group is not None and any(sealed in found[sealed.shard][-4:] for sealed in self.group.commits)

    def _compare_firsts(self, found: dict[int, int]) -> list[str]:
        findings = []
        for shard, first in found.items():
            possible = {self.firsts[shard]}
            if self.drop is not None and self.drop[0] == shard:
                possible.add(max(self.drop[1], self.firsts[shard]))
            if first not in possible:
                findings.append(f"shard {shard}: begins at {first}, expected one of {sorted(possible)}")
            self.firsts[shard] = first
        self.drop = None
        return findings


class Trial(Struct):
    """A disk, the journal on it, and what it must hold."""

    seed: int
    chance: random.Random
    disk: SimDisk
    model: Model
    open_on: Open = open_sqlite
    sizes: tuple[int, ...] = SMALL
    refused_full: int = 0

    def open(self) -> Journal:
        """Opens the journal, inline on the disk."""
        return self.open_on(self.disk)

    async def work(self, journal: Journal, steps: int) -> None:
        """Random writes until one fails or all are done. A full disk is no failure."""
        for _ in range(steps):
            try:
                await self._step(journal)
            except JournalFull:
                self.refused_full += 1
                self.model.refuse()
            else:
                self.model.acknowledge()

    async def _step(self, journal: Journal) -> None:
        choice, shard = self.chance.random(), self.chance.randrange(SHARDS)
        head = self.model.chain.positions.get(shard, 0)
        if choice < 0.05 and head > 1:
            upto = self.chance.randrange(1, head)
            self.model.drop = (shard, upto + 1)
            await journal.drop(shard, upto)
        elif choice < 0.08 and head:
            body = self.chance.randbytes(self.chance.choice((10, 9_000)))
            await journal.put_snapshot(shard, head, [SnapshotPart(0, body), SnapshotPart(1, body)])
        elif choice < 0.10:
            for position in journal.snapshots(shard):
                await journal.drop_snapshot(shard, position)
        else:
            shards = [self.chance.randrange(SHARDS) for _ in range(self.chance.choice((1, 1, 1, 2, 3)))]
            payload = self.chance.randbytes(self.chance.choice(self.sizes))
            self.model.group = self.model.chain.group(shards, payload)
            await journal.append(self.model.group)

    def check_reopened(self) -> list[str]:
        """Opens, compares, loses power at once, opens and compares again: what was shown must be durable."""
        findings: list[str] = []
        self.disk.forgive()
        for attempt in ("restart", "second restart"):
            self.disk.restart()
            try:
                journal = self.open()
                findings += [f"seed {self.seed}, {attempt}: {finding}" for finding in self.model.compare(journal)]
            except StigmergyError as error:
                findings.append(f"seed {self.seed}, {attempt}: {error!r}")
            self.disk.lose_power()
        self.disk.restart()
        return findings


def make_trial(
    seed: int,
    chance: random.Random,
    *,
    sync_lies: bool = False,
    capacity_bytes: int = 1 << 40,
    open_on: Open = open_sqlite,
    sizes: tuple[int, ...] = SMALL,
) -> Trial:
    """A fresh disk with an empty model."""
    after = chance.choice((AfterFailedSync.STALE_CACHE, AfterFailedSync.DROPPED_CACHE))
    disk = SimDisk(random.Random(seed + 1), sync_lies=sync_lies, after_failed_sync=after, capacity_bytes=capacity_bytes)
    return Trial(seed=seed, chance=chance, disk=disk, model=Model(), open_on=open_on, sizes=sizes)


def try_power_loss(
    seed: int,
    *,
    crashes: int = 4,
    calls_max: int = 150,
    sync_lies: bool = False,
    open_on: Open = open_sqlite,
    sizes: tuple[int, ...] = SMALL,
) -> list[str]:
    """Works, loses power at a random call, again and again, on one disk."""
    chance = random.Random(seed)
    fault = chance.choice((DiskFault.POWER_LOSS, DiskFault.POWER_LOSS, DiskFault.KILL))
    trial = make_trial(seed, chance, sync_lies=sync_lies, open_on=open_on, sizes=sizes)
    findings: list[str] = []
    try:
        for _ in range(crashes):
            trial.disk.fail(trial.disk.calls + chance.randint(1, calls_max), fault)
            _work_until_failure(trial)
            if not trial.disk.down:
                trial.disk.lose_power()
            findings += trial.check_reopened()
            if findings:
                break
    finally:
        trial.disk.close()
    return findings


def try_fault_at(
    call: int,
    fault: DiskFault,
    *,
    seed: int = 0,
    steps: int = 25,
    open_on: Open = open_sqlite,
    sizes: tuple[int, ...] = SMALL,
) -> tuple[list[str], bool]:
    """One fault at one call of a fixed piece of work. Also says whether the work got that far."""
    chance = random.Random(seed)
    trial = make_trial(seed, chance, open_on=open_on, sizes=sizes)
    trial.disk.fail(call, fault)
    try:
        _work_until_failure(trial, steps=steps)
        reached = trial.disk.calls >= call
        if not trial.disk.down:
            trial.disk.kill()
        findings = [f"call {call}: {finding}" for finding in trial.check_reopened()]
    finally:
        trial.disk.close()
    return findings, reached


def try_full_disk(seed: int, *, steps: int = 120, open_on: Open = open_sqlite) -> tuple[list[str], int]:
    """Fills a small disk, makes room, goes on. Also says how many writes were refused for want of room."""
    chance = random.Random(seed)
    trial = make_trial(seed, chance, capacity_bytes=chance.randint(150_000, 400_000), open_on=open_on)
    findings: list[str] = []
    try:
        for _ in range(3):
            _work_until_failure(trial, steps=steps)
            chance.choice((trial.disk.kill, trial.disk.lose_power))()
            findings += trial.check_reopened()
            trial.disk.capacity_bytes += chance.randint(0, 200_000)
    finally:
        trial.disk.close()
    return findings, trial.refused_full


def _work_until_failure(trial: Trial, *, steps: int = 1_000) -> None:
    async def main() -> None:
        journal = trial.open()
        try:
            await trial.work(journal, steps)
        finally:
            await journal.close()

    try:
        run(main(), seed=trial.seed)
    except StigmergyError:
        # A dying disk may be noticed while opening, writing or reading; what matters is what is there afterwards.
        return
