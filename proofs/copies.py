"""Copies of a journal: a node and its store are killed at random, and every copy that is there must be restored whole.

A node in a process of its own writes as fast as it can, takes snapshots, drops log and copies all the while to a real
NATS server. Node, server or both are killed. Then the newest copy and some older one are restored, verified, held
against the original commit by commit, and started. Now and then the original is thrown away, and the node goes on from
the copy, as it would after losing its disk.

    python -m proofs.copies --node FOLDER URL NATS
"""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from msgspec import Struct

from proofs.report import Proof
from stigmergy import Agent, Event, Fleet, Settings, evolve
from stigmergy.app.copies import CopiesAt, restore
from stigmergy.app.fleet import verifier
from stigmergy.app.journals import inspect_journal
from stigmergy.audit.copy_format import CopySettings
from stigmergy.audit.restore import CopyFound, find_copies
from stigmergy.base.errors import StigmergyError
from stigmergy.node.settings import Retention, Snapshots
from stigmergy.testing.nats import NatsCluster, start_single

ROUNDS = 100
ROUNDS_QUICK = 4
AGENTS = 25
LIFE_S = (0.3, 1.5)
START_S_MAX = 60.0
LOSES_DISK_SHARE = 0.3
KILLS_SERVER_SHARE = 0.4


class Counted(Event):
    number: int


class Counter(Agent):
    count: int = 0

    @evolve
    def counted(self, event: Counted) -> None:
        self.count += 1


SETTINGS = Settings(
    snapshots=Snapshots(every_events=60, every_s=1e9, tail_ratio=0.0, share_max=1e9, incremental_max=2),
    retention=Retention(keep_s=0.2, reserve_bytes=0, check_every_s=0.1),
    copies=CopySettings(every_s=0.03, point_every_s=0.2, points_kept=4),
)
fleet = Fleet("copied", agents=[Counter], shards=4, settings=SETTINGS)


async def live(folder: Path, url: str, nats: str) -> None:
    """The node: writes until it is killed."""
    async with fleet.running(journal=url, key=folder / "key", node="n1", copies=[nats]) as running:
        print("up", flush=True)
        number = 0
        while True:
            await asyncio.gather(
                *(running.observe(f"Counter/{(number + one) % AGENTS}", Counted(number=number)) for one in range(5))
            )
            number += 5


class Figures(Struct):
    """What was tried."""

    nodes_killed: int = 0
    servers_killed: int = 0
    restored: int = 0
    commits_restored: int = 0
    commits_compared: int = 0
    disks_lost: int = 0
    behind_commits_max: int = 0
    """How many commits of the log the newest copy did not have, at most."""


class Trial:
    """Some rounds on one server."""

    def __init__(self, folder: Path, cluster: NatsCluster, seed: int) -> None:
        self._folder = folder
        self._cluster = cluster
        self._random = random.Random(seed)
        self._scheme = self._random.choice(("sqlite", "segments"))
        self._url = f"{self._scheme}:{folder / 'life-0'}"
        self.figures = Figures()
        self.violations: list[str] = []

    def run(self, rounds: int) -> None:
        """So many lives."""
        for number in range(1, rounds + 1):
            self._live_and_die()
            try:
                asyncio.run(self._check(number))
            except StigmergyError as error:
                self.violations.append(f"round {number}: {type(error).__name__}: {error}")

    def _live_and_die(self) -> None:
        command = [sys.executable, "-m", "proofs.copies", "--node", str(self._folder), self._url, self._cluster.url]
        node = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert node.stdout is not None
        if node.stdout.readline() != "up\n":
            node.kill()
            self.violations.append(f"{self._url}: the node did not start again")
            return
        time.sleep(self._random.uniform(*LIFE_S))
        if self._random.random() < KILLS_SERVER_SHARE:
            self._cluster.kill(0)
            self.figures.servers_killed += 1
            time.sleep(self._random.uniform(0, 0.3))
            if self._random.random() < 0.5:
                self._cluster.start_again(0)
                time.sleep(self._random.uniform(0, 0.5))
        node.kill()
        node.communicate()
        self.figures.nodes_killed += 1
        if not self._cluster.servers[0].is_running:
            self._cluster.start_again(0)

    async def _check(self, number: int) -> None:
        async with CopiesAt(self._cluster.url, "copied") as objects:
            found = await find_copies(objects)
            if not found:
                return
            chosen, url = [found[-1], self._random.choice(found)], ""
            for index, one in enumerate(chosen):
                if one.manifest is None:
                    self.violations.append(f"round {number}: version {one.version}: {one.trouble}")
                    continue
                url = f"{self._random.choice(('sqlite', 'segments'))}:{self._folder / f'copy-{number}-{index}'}"
                restored = await restore(objects, one.manifest, url, verifier())
                self.figures.restored += 1
                self.figures.commits_restored += restored.verified.commits
                await self._compare(number, url, one)
        if not url:
            return
        async with fleet.running(journal=url, key=self._folder / "key") as running:
            events = running.standing().events
            counted = sum(running.query(f"Counter/{one}", Counter).count for one in range(AGENTS))
            if counted > events:
                self.violations.append(f"round {number}: {counted} counted of {events} events")
        self._go_on(number)

    async def _compare(self, number: int, url: str, copy: CopyFound) -> None:
        """A copy of this life holds the very commits that the original has, as far as that still has them."""
        original, restored = inspect_journal(self._url), inspect_journal(url)
        try:
            assert copy.manifest is not None
            if copy.manifest.incarnation != original.identity.incarnation:
                return
            ends = {head.shard: head.position for head in original.heads()}
            behind = sum(ends.values()) - copy.manifest.commits
            self.figures.behind_commits_max = max(self.figures.behind_commits_max, behind)
            for head in restored.heads():
                if head.position > ends.get(head.shard, 0):
                    self.violations.append(f"round {number}: shard {head.shard}: more in the copy than in the log")
                theirs = {one.sealed.position: one for one in original.read(head.shard)}
                for one in restored.read(head.shard):
                    if (other := theirs.get(one.sealed.position)) is not None:
                        self.figures.commits_compared += 1
                        if other != one:
                            self.violations.append(f"round {number}: {head.shard}, {one.sealed.position}: not the same")
        finally:
            await original.close()
            await restored.close()

    def _go_on(self, number: int) -> None:
        """With the original, or after losing the disk with what was restored last."""
        newest = next(iter(sorted(self._folder.glob(f"copy-{number}-0"))), None)
        if newest is not None and self._random.random() < LOSES_DISK_SHARE:
            scheme = "segments" if newest.is_dir() else "sqlite"
            self._url = f"{scheme}:{newest}"
            self.figures.disks_lost += 1
        for path in self._folder.glob("copy-*"):
            if str(path).removesuffix("-mark").removesuffix("-wal") != self._url.partition(":")[2]:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def prove(*, quick: bool = False) -> Proof:
    """Kills and restores."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with start_single(folder / "server") as cluster:
            trial = Trial(folder, cluster, seed=1)
            trial.run(ROUNDS_QUICK if quick else ROUNDS)
    figures = {field: getattr(trial.figures, field) for field in Figures.__struct_fields__}
    return Proof(
        name="copies",
        promise="whatever is killed when: every copy that is there is restored whole, and is the original's own log",
        cases=trial.figures.nodes_killed,
        figures=figures,
        violations=trial.violations,
    )


if __name__ == "__main__":
    _, _, where, journal, store = sys.argv
    asyncio.run(live(Path(where), journal, store))
