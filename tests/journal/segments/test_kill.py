"""Scorecard row 1 at the journal in segments: a real process is killed while it appends and drops."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from stigmergy.journal.segments import inspect_journal
from stigmergy.shard.commit import digest_commit

WRITER = """
import asyncio, sys
from stigmergy.journal.segments import open_journal
from stigmergy.journal.port import JournalIdentity
from stigmergy.testing.journal_contract import CommitChain

async def main():
    journal = open_journal("segments:" + sys.argv[1], JournalIdentity("here", 3, 1), segment_bytes=20_000)
    chain = CommitChain()
    for head in journal.heads():
        for stored in journal.read(head.shard, head.position - 1):
            chain.continue_from(stored.sealed)
    if not journal.heads():
        await journal.append(chain.group([2], b"silent from now on"))
    while True:
        await journal.append(chain.group([0, 1, 0], bytes(500)))
        for shard in range(2):
            if chain.positions[0] % 20 == 0 and chain.positions[shard] > 40:
                await journal.drop(shard, chain.positions[shard] - 40)
        sys.stdout.write(f"{chain.positions[0]} {chain.positions[1]}\\n")
        sys.stdout.flush()

asyncio.run(main())
"""


@pytest.mark.parametrize("kills", [4, pytest.param(8, marks=pytest.mark.prove)])
def test_killed_process_loses_nothing_acknowledged(tmp_path: Path, kills: int) -> None:
    """One shard is silent, so that what is kept of old segments is at stake too."""
    path, chance = tmp_path / "fleet", random.Random(0)
    for number in range(kills):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            # It is killed after so many commits, and not after a time: a busy machine writes few in a second.
            heard = [writer.stdout.readline() for _ in range(chance.randint(30, 60))]
            writer.kill()
            lines = [*heard, *writer.stdout.read().splitlines(keepends=True)]
        said = [int(word) for word in next(line for line in reversed(lines) if line.endswith("\n")).split()]
        journal = inspect_journal(f"segments:{path}")
        kept = [list(journal.read(shard)) for shard in range(3)]
        journal._close()
        ends = [commits[-1].sealed.position for commits in kept]
        assert ends[0] == 2 * ends[1], f"kill {number}: half a group"
        assert all(end >= count for end, count in zip(ends, said, strict=False)), f"kill {number}: {said}, {ends}"
        assert ends[2] == 1, f"kill {number}: the silent shard is gone"
        for commits in kept:
            first = commits[0].sealed.position
            assert [one.sealed.position for one in commits] == list(range(first, first + len(commits)))
            assert all(digest_commit(one.sealed.body) == one.sealed.digest for one in commits)
    # Otherwise it was no test of dropping.
    assert len(list(path.glob("*.log"))) < 10 < int(max(path.glob("*.log")).stem)
