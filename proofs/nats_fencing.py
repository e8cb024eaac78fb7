"""Logs on NATS move between owners while servers are killed, paused and made to hand over; no owner is told a lie.

Several owners want the same logs. Each follows a log, claims it, and writes to it as fast as it can until another has
it; nobody stops for that. Meanwhile the servers that lead are killed, stopped and resumed, or made to step down. At the
end each log is read: what was acknowledged is in it, once and in order; what was refused is not; and every owner's
commits lie between its claim and the next.

    python -m proofs.nats_fencing --trouble 60 [--seed N]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from proofs.report import Proof
from stigmergy.base.errors import JournalConflict, JournalUnknown, LinkDown
from stigmergy.journal.port import Journal, JournalIdentity, StoredCommit
from stigmergy.nats.address import parse_address
from stigmergy.nats.errors import JetStreamRefused
from stigmergy.nats.journal.shard_log import NatsShardLog, open_shard_log
from stigmergy.nats.journal.stream import LogPlace
from stigmergy.nats.link import NatsLink
from stigmergy.shard.commit import Group
from stigmergy.testing.journal_contract import CommitChain
from stigmergy.testing.nats import NatsCluster

BUILD = Path(__file__).resolve().parent.parent / "build"
"""On the disk of the checkout: the folder for temporary files may be memory."""
TROUBLE = 60
TROUBLE_QUICK = 2
FLEET = "fencing"
SHARDS = 3
OWNERS = 3
TENURE_S_MAX = 1.5
"""An owner has a log for up to this long before another wants it."""
WRITE_PAUSE_S = 0.002
DOWN_S_MAX = 6.0
CALM_S = 1.0
KINDS = ("kill", "pause", "hand over")
WAIT_S_MAX = 60.0


class Tally(Struct):
    """What happened."""

    trouble: dict[str, int] = {}
    claims: int = 0
    claims_refused: int = 0
    claims_unknown: int = 0
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    longest_write_s: float = 0.0


class Books(Struct):
    """What the owners of one log were told."""

    acknowledged: dict[bytes, tuple[int, int]] = {}
    """Digest of a commit, to its position and the number of the claim it was written under."""
    refused: dict[bytes, int] = {}
    unknown: dict[bytes, int] = {}
    claims: list[int] = []


class Fencing:
    """All owners, and the trouble."""

    def __init__(self, cluster: NatsCluster, seed: int) -> None:
        self._cluster = cluster
        self._chance = random.Random(seed)
        self.tally = Tally()
        self.books = [Books() for _ in range(SHARDS)]
        self.violations: list[str] = []
        self._is_over = False
        self._tasks: list[asyncio.Future[None]] = []

    async def run(self, trouble: int) -> list[list[StoredCommit]]:
        """Makes trouble so often; returns what the logs hold in the end."""
        address = parse_address(f"{self._cluster.url}?replicas=3")
        links = [await NatsLink.open(address, name=f"owner {number}", within_s=30.0) for number in range(OWNERS)]
        logs = [[await self._open(link, shard) for shard in range(SHARDS)] for link in links]
        wanting = [
            asyncio.ensure_future(self._want(log, shard, f"owner {number}"))
            for number, owned in enumerate(logs)
            for shard, log in enumerate(owned)
        ]
        for _ in range(trouble):
            await self._trouble()
        self._is_over = True
        await asyncio.wait_for(asyncio.gather(*wanting), WAIT_S_MAX)
        await asyncio.wait_for(asyncio.gather(*self._tasks), WAIT_S_MAX)
        found = [await self._read_all(log) for log in logs[0]]
        for link in links:
            await link.close()
        return found

    async def _open(self, link: NatsLink, shard: int) -> NatsShardLog:
        identity = JournalIdentity(fleet=FLEET, shards=SHARDS, incarnation=1, part=(shard, shard))
        return await open_shard_log(link, identity)

    # ------------------------------------------------------------------ owners

    async def _want(self, log: NatsShardLog, shard: int, owner: str) -> None:
        """Takes a log over again and again."""
        chance = random.Random(f"{owner} {shard}")
        known: list[StoredCommit] = []
        while not self._is_over:
            await asyncio.sleep(chance.uniform(0.0, OWNERS * TENURE_S_MAX))
            with contextlib.suppress(LinkDown):
                while read := await log.read(known[-1].sealed.position if known else 0):
                    known += read
                try:
                    journal, number = await log.claim(known[-1].sealed.position if known else 0, owner)
                except JournalConflict:
                    self.tally.claims_refused += 1
                    continue
                except JournalUnknown:
                    self.tally.claims_unknown += 1
                    continue
                self.tally.claims += 1
                self.books[shard].claims.append(number)
                # Nobody tells it to stop: it finds out.
                writing = self._write(journal, number, shard, known[-1] if known else None)
                self._tasks.append(asyncio.ensure_future(writing))

    async def _write(self, journal: Journal, number: int, shard: int, last: StoredCommit | None) -> None:
        chain, books = CommitChain(), self.books[shard]
        if last is not None:
            chain.continue_from(last.sealed)
        count = 0
        while not self._is_over:
            count += 1
            group: Group = chain.group([shard], f"{number} {count}".encode())
            digest, began_s = group.commits[0].digest, time.monotonic()
            try:
                await journal.append(group)
            except JournalConflict:
                books.refused[digest] = number
                self.tally.refused += 1
                break
            except JournalUnknown:
                books.unknown[digest] = number
                self.tally.unknown += 1
                break
            self.tally.longest_write_s = max(self.tally.longest_write_s, time.monotonic() - began_s)
            books.acknowledged[digest] = (group.commits[0].position, number)
            self.tally.acknowledged += 1
            await asyncio.sleep(WRITE_PAUSE_S)
        await journal.close()

    # ------------------------------------------------------------------ trouble

    async def _trouble(self) -> None:
        kind, shard = self._chance.choice(KINDS), self._chance.randrange(SHARDS)
        stream = LogPlace(FLEET, shard, shard).stream
        leader = await self._leader_of(stream)
        self.tally.trouble[kind] = self.tally.trouble.get(kind, 0) + 1
        if kind == "hand over":
            with contextlib.suppress(LinkDown, JetStreamRefused):
                await self._cluster.step_down(stream)
        elif kind == "kill":
            self._cluster.kill(leader)
            await asyncio.sleep(self._chance.uniform(0.0, DOWN_S_MAX))
            self._cluster.start_again(leader, wait=False)
        else:
            self._cluster.pause(leader)
            await asyncio.sleep(self._chance.uniform(0.0, 2 * DOWN_S_MAX))
            self._cluster.resume(leader)
        await self._healthy(leader)
        await asyncio.sleep(CALM_S)

    async def _leader_of(self, stream: str) -> int:
        until_s = time.monotonic() + WAIT_S_MAX
        while time.monotonic() < until_s:
            with contextlib.suppress(LinkDown, JetStreamRefused):
                if (leader := await self._cluster.leader_of(stream)) is not None:
                    return leader
            await asyncio.sleep(0.05)
        raise LinkDown(f"nobody leads {stream}")

    async def _healthy(self, number: int) -> None:
        until_s = time.monotonic() + WAIT_S_MAX
        while time.monotonic() < until_s:
            if await asyncio.to_thread(self._cluster.servers[number].is_healthy):
                return
            await asyncio.sleep(0.1)
        self.violations.append(f"server {number} did not come back in {WAIT_S_MAX:g} s")

    # ------------------------------------------------------------------ comparing

    async def _read_all(self, log: NatsShardLog) -> list[StoredCommit]:
        journal, _ = await log.claim(await self._end_of(log), "the auditor")
        await journal.close()
        found: list[StoredCommit] = []
        while read := await log.read(found[-1].sealed.position if found else 0):
            found += read
        return found

    async def _end_of(self, log: NatsShardLog) -> int:
        after = 0
        while read := await log.read(after):
            after = read[-1].sealed.position
        return after


def compare(shard: int, books: Books, found: list[StoredCommit]) -> list[str]:
    """What is wrong with a log, held against what its owners were told."""
    wrong: list[str] = []
    places = {stored.sealed.digest: stored.sealed.position for stored in found}
    if [stored.sealed.position for stored in found] != list(range(1, len(found) + 1)) or len(places) != len(found):
        wrong.append("its positions are not one after the other")
    for digest, (position, number) in books.acknowledged.items():
        if places.get(digest) != position:
            wrong.append(f"position {position}, acknowledged to claim {number}, is not in it")
    for digest, number in books.refused.items():
        if digest in places:
            wrong.append(f"position {places[digest]}, refused to claim {number}, is in it")
    if len(books.claims) != len(set(books.claims)):
        wrong.append("two of its claims have the same number")
    writers = [
        books.acknowledged[stored.sealed.digest][1] for stored in found if stored.sealed.digest in books.acknowledged
    ]
    if writers != sorted(writers):
        wrong.append("an owner wrote behind the claim of the next")
    told = len(books.acknowledged) + sum(digest in places for digest in books.unknown)
    if told != len(found):
        wrong.append(f"it has {len(found)} commits, and its owners know of {told}")
    return [f"shard {shard}: {one}" for one in wrong[:5]]


def fence(trouble: int, seed: int) -> Proof:
    """The whole proof, on three servers of its own."""
    began_s = time.monotonic()
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="fencing-") as name, NatsCluster.start(Path(name)) as cluster:
        fencing = Fencing(cluster, seed)
        logs = asyncio.run(fencing.run(trouble))
    violations = fencing.violations
    for shard, found in enumerate(logs):
        violations += compare(shard, fencing.books[shard], found)
    tally = fencing.tally
    return Proof(
        name="nats_fencing",
        promise="a log on NATS has one writer at a time, and what an owner is told of its writes is so",
        cases=sum(tally.trouble.values()),
        violations=violations,
        figures={**msgspec.structs.asdict(tally), "commits": sum(len(found) for found in logs)},
        seconds=round(time.monotonic() - began_s, 1),
    )


def prove(*, quick: bool = False) -> Proof:
    """With leaders in trouble sixty times."""
    return fence(TROUBLE_QUICK if quick else TROUBLE, seed=1)


def main(arguments: list[str] | None = None) -> int:
    """Runs the proof as a program and prints its outcome as JSON."""
    parser = argparse.ArgumentParser(prog="python -m proofs.nats_fencing", description=__doc__)
    parser.add_argument("--trouble", type=int, default=TROUBLE)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    proof = fence(options.trouble, options.seed)
    print(msgspec.json.format(msgspec.json.encode(proof), indent=2).decode())
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
