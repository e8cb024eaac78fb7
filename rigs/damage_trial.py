"""Damages the files of a journal whose process was killed, and says whether the journal notices.

The journal must be refused, at opening or while it is read, or hold every acknowledged commit bit for bit. Fewer,
other or more commits without an error are what must never happen. The readers check digests, as recovery does.
"""

from __future__ import annotations

import enum
import random

from msgspec import Struct

from rigs.journal_trial import IDENTITY, SHARDS, SMALL, Open, Trial, make_trial, open_sqlite
from stigmergy.base.errors import JournalCorrupt, StigmergyError
from stigmergy.shard.commit import Sealed, digest_commit
from stigmergy.sim.disk import SimDisk
from stigmergy.sim.loop import run

DATABASE, WAL, MARK = "fleet.db", "fleet.db-wal", "fleet.db-mark"

Image = dict[str, bytes]
"""All files of a disk, by name."""


class Outcome(enum.Enum):
    """What became of a damaged journal."""

    INTACT = "everything acknowledged is there"
    REFUSED = "the damage was noticed"
    SHORTENED = "the last acknowledged group is silently missing, and nothing else"
    WRONG = "something acknowledged is silently missing or altered"


class Victim(Struct, frozen=True):
    """A journal as a killed process left it, and what it had acknowledged."""

    image: Image
    acknowledged: dict[int, list[Sealed]]
    last_group: tuple[Sealed, ...]
    open_on: Open = open_sqlite


def make_victim(
    seed: int,
    *,
    steps: int = 60,
    groups_at_the_end: int = 3,
    open_on: Open = open_sqlite,
    sizes: tuple[int, ...] = SMALL,
    last_bytes: int = 3_000,
) -> Victim:
    """Random work with checkpoints, then some appends, so that the WAL holds acknowledged commits when the process
    dies."""
    trial = make_trial(seed, random.Random(seed), open_on=open_on, sizes=sizes)

    async def main() -> None:
        journal = trial.open()
        await trial.work(journal, steps)
        for _ in range(groups_at_the_end):
            group = trial.model.group = trial.model.chain.group([trial.chance.randrange(SHARDS)], bytes(last_bytes))
            await journal.append(group)
            trial.model.acknowledge()
            last_groups.append(group.commits)
        trial.disk.kill()

    last_groups: list[tuple[Sealed, ...]] = []
    run(main(), seed=seed)
    victim = Victim(
        image={path: trial.disk.content(path) for path in trial.disk.paths()},
        acknowledged=_kept(trial),
        last_group=last_groups[-1],
        open_on=open_on,
    )
    trial.disk.close()
    return victim


def flip(image: Image, path: str, offset: int, bit: int) -> Image:
    """The same files with one bit flipped."""
    content = bytearray(image[path])
    content[offset] ^= 1 << bit
    return {**image, path: bytes(content)}


def examine(victim: Victim, image: Image) -> Outcome:
    """Opens and reads a damaged image of the victim."""
    disk = SimDisk(random.Random(0))
    for path, content in image.items():
        disk.put(path, content)
    try:
        journal = victim.open_on(disk)
        if journal.identity != IDENTITY:
            return Outcome.WRONG
        found = {shard: [stored.sealed for stored in journal.read(shard)] for shard in range(SHARDS)}
        for commits in found.values():
            _check_digests(commits)
    except StigmergyError:
        return Outcome.REFUSED
    finally:
        disk.kill()
        disk.close()
    if found == victim.acknowledged:
        return Outcome.INTACT
    without_last = {
        shard: [sealed for sealed in commits if sealed not in victim.last_group]
        for shard, commits in victim.acknowledged.items()
    }
    return Outcome.SHORTENED if found == without_last else Outcome.WRONG


def _check_digests(commits: list[Sealed]) -> None:
    if any(digest_commit(sealed.body) != sealed.digest for sealed in commits):
        raise JournalCorrupt("a body is not its digest's; restore from a copy")


def _kept(trial: Trial) -> dict[int, list[Sealed]]:
    return {shard: commits[trial.model.firsts[shard] - 1 :] for shard, commits in trial.model.acknowledged.items()}
