"""Real processes that claim through one file, and are killed while they hold: no two hold at one moment.

The monotonic clock is one for all processes of a machine, so what each says of itself can be compared.
"""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

KILLS = 3
WITHIN_S = 240.0
"""For what must come: a machine may be busy with something else for long."""

CLAIMANT = """
import asyncio, sys, time
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.claims.sqlite_ledger import open_ledger
from stigmergy.agents.ordered import LEDGER, ClaimAsked, ClaimReleased, Granted, Lost, Released, read_verdict
from stigmergy.agents.codec import encode
from stigmergy.shard.inputs import VerdictCame
from stigmergy.shard.outbox import Pending
from stigmergy.claims.service import ClaimService
from stigmergy.claims.service import life_of

path, name, life = sys.argv[1:4]
owed = {}

def say(*words):
    sys.stdout.write(" ".join(str(word) for word in words) + "\\n")
    sys.stdout.flush()

async def main():
    bell = asyncio.Event()
    claims = ClaimService(
        open_ledger("sqlite:" + path, "fleet"), Ed25519Signer(name.encode().ljust(32)), Ed25519Verifier(),
        time.monotonic_ns, incarnation=1, owes=lambda shard, sequence: sequence in owed, wake=bell.set,
    )
    await claims.start(life_of(int(life), b"abcd"))
    sequence, held = 0, None
    def propose(effect):
        nonlocal sequence
        sequence += 1
        owed[sequence] = True
        claims.propose(0, Pending(1, sequence, 0, "Drone/" + name, LEDGER, sequence, encode(effect)))
    propose(ClaimAsked(claim="cell", resource="cell/1", for_s=1.0, wait_s=30.0, renew=len(name) % 2 == 0))
    since = 0.0
    while True:
        # What is told is true at this moment. A busy machine may let it be said much later, when the lease is over.
        asked_ns = time.monotonic_ns()
        for shard, told in claims.due(asked_ns):
            if isinstance(told, VerdictCame):
                verdict = read_verdict(told.verdict)
            else:
                owed.pop(told.sequence, None)
                verdict = read_verdict(told.result)
            if isinstance(verdict, Granted):
                held, since = verdict.token, time.monotonic()
                say("holds", verdict.token, asked_ns)
            else:
                if isinstance(verdict, (Lost, Released)):
                    held = None
                    say("over", verdict.token, asked_ns)
                propose(ClaimAsked(claim="cell", resource="cell/1", for_s=1.0, wait_s=30.0, renew=True))
        if held is not None and time.monotonic() - since > 0.15:
            since = time.monotonic() + 60
            propose(ClaimReleased(claim="cell", resource="cell/1", token=held))
        if held is not None:
            now_ns = time.monotonic_ns()
            held_still = claims.believes("cell/1")
            if held_still:
                say("still", held_still[0][1], now_ns)
        try:
            async with asyncio.timeout(0.01):
                await bell.wait()
        except TimeoutError:
            pass
        bell.clear()

asyncio.run(main())
"""


class Hold(msgspec.Struct):
    """A stretch of time in which a process said that it held."""

    token: int
    first_ns: int
    last_ns: int


class Crowd:
    """Processes that claim, and what each has said, in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lives: dict[str, int] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Another life of this one."""
        self._lives[name] = self._lives.get(name, 0) + 1
        said = self._folder / f"{name}-{self._lives[name]}.said"
        command = [sys.executable, "-c", CLAIMANT, str(self._folder / "ledger.db"), name, str(self._lives[name])]
        with said.open("wb") as file:
            self._running[name] = subprocess.Popen(command, stdout=file)

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def kill_all(self) -> None:
        for name in list(self._running):
            self.kill(name)

    def holds(self) -> list[Hold]:
        """What all have held so far, in order."""
        found = [hold for said in sorted(self._folder.glob("*.said")) for hold in holds_of(said.read_text())]
        return sorted(found, key=lambda hold: hold.first_ns)

    def wait_holds(self, count: int) -> None:
        deadline_s = time.monotonic() + WITHIN_S
        while len(self.holds()) < count:
            assert time.monotonic() < deadline_s, f"{count} holds wanted, {self.holds()}"
            time.sleep(0.05)


def holds_of(output: str) -> list[Hold]:
    """From the grant to the last moment at which the process said that it still held."""
    holds: dict[int, Hold] = {}
    for line in output.splitlines(keepends=True):
        if not line.endswith("\n"):
            continue
        word, token, at_ns = line.split()[:3]
        if word == "holds":
            holds[int(token)] = Hold(int(token), int(at_ns), int(at_ns))
        elif word == "still" and int(token) in holds:
            holds[int(token)].last_ns = int(at_ns)
    return list(holds.values())


@pytest.mark.timeout(1200)
def test_killed_holders_are_followed_by_one_other(tmp_path: Path) -> None:
    crowd, chance = Crowd(tmp_path), random.Random(2)
    names = ("a", "bb", "ccc")
    try:
        for name in names:
            crowd.start(name)
        for number in range(KILLS):
            crowd.wait_holds(2 * number + 2)
            time.sleep(chance.random() * 0.2)
            name = chance.choice(names)
            crowd.kill(name)
            crowd.start(name)
        crowd.wait_holds(2 * KILLS + 2)
    finally:
        crowd.kill_all()
    for earlier, later in itertools.pairwise(crowd.holds()):
        assert earlier.last_ns < later.first_ns, f"{earlier} and {later} overlap"
        assert earlier.token < later.token
