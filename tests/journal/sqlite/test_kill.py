"""Scorecard row 1 at the journal: a real process is killed while it appends, and no acknowledged commit is lost."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from stigmergy.journal.sqlite import inspect_journal
from stigmergy.shard.commit import digest_commit

WRITER = """
import asyncio, sys
from stigmergy.journal.sqlite import open_journal
from stigmergy.journal.port import JournalIdentity
from stigmergy.testing.journal_contract import CommitChain

async def main():
    journal = open_journal("sqlite:" + sys.argv[1], JournalIdentity("here", 2, 1), wal_bytes_max=200_000)
    chain = CommitChain()
    for shard in range(2):
        for stored in journal.read(shard):
            chain.continue_from(stored.sealed)
    while True:
        await journal.append(chain.group([0, 1, 0], bytes(500)))
        sys.stdout.write(f"{chain.positions[0]} {chain.positions[1]}\\n")
        sys.stdout.flush()

asyncio.run(main())
"""


def kill_while_appending(path: Path, kills: int, seed: int = 0) -> None:
    """Starts a writer on the same file again and again, kills it at random moments, and compares with what it said."""
    chance = random.Random(seed)
    for number in range(kills):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            # It is killed after so many commits, and not after a time: a busy machine writes few in a second.
            heard = [writer.stdout.readline() for _ in range(chance.randint(1, 40))]
            writer.kill()
            lines = [*heard, *writer.stdout.read().splitlines(keepends=True)]
        said = [int(word) for word in next(line for line in reversed(lines) if line.endswith("\n")).split()]
        journal = inspect_journal(f"sqlite:{path}")
        kept = [list(journal.read(shard)) for shard in range(2)]
        journal._close()
        assert len(kept[0]) == 2 * len(kept[1]), f"kill {number}: half a group"
        assert all(len(commits) >= count for commits, count in zip(kept, said, strict=True)), f"kill {number}: {said}"
        assert all(digest_commit(stored.sealed.body) == stored.sealed.digest for stored in kept[0])


@pytest.mark.parametrize("kills", [4, pytest.param(12, marks=pytest.mark.prove)])
def test_killed_process_loses_nothing_acknowledged(tmp_path: Path, kills: int) -> None:
    kill_while_appending(tmp_path / "fleet.db", kills)
