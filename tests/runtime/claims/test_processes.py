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

KILLS = 3
LASTS_S = 5.0

CLAIMANT = """
import asyncio, sys, time
from stigmergy.adapters.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.adapters.sqlite_ledger import open_ledger
from stigmergy.core.claiming import LEDGER, ClaimAsked, ClaimReleased, Granted, Lost, Released, read_verdict
from stigmergy.core.codec import encode
from stigmergy.core.inputs import VerdictCame
from stigmergy.core.outbox import Pending
from stigmergy.runtime.claims import Claims
from stigmergy.runtime.claims.shell import life_of

path, name, life = sys.argv[1:4]
owed = {}

def say(*words):
    sys.stdout.write(" ".join(str(word) for word in words) + "\\n")
    sys.stdout.flush()

async def main():
    bell = asyncio.Event()
    claims = Claims(
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
    propose(ClaimAsked(claim="cell", resource="cell/1", for_s=0.4, wait_s=30.0, renew=len(name) % 2 == 0))
    since = 0.0
    while True:
        for shard, told in claims.due(time.monotonic_ns()):
            if isinstance(told, VerdictCame):
                verdict = read_verdict(told.verdict)
            else:
                owed.pop(told.sequence, None)
                verdict = read_verdict(told.result)
            now_ns = time.monotonic_ns()
            if isinstance(verdict, Granted):
                held, since = verdict.token, time.monotonic()
                say("holds", verdict.token, now_ns, now_ns + int(verdict.for_s * 1e9))
            else:
                if isinstance(verdict, (Lost, Released)):
                    held = None
                    say("over", verdict.token, now_ns)
                propose(ClaimAsked(claim="cell", resource="cell/1", for_s=0.4, wait_s=30.0, renew=True))
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


def start(path: Path, name: str, life: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CLAIMANT, str(path), name, str(life)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


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


def test_killed_holders_are_followed_by_one_other(tmp_path: Path) -> None:
    path, chance = tmp_path / "ledger.db", random.Random(2)
    lives = dict.fromkeys(("a", "bb", "ccc"), 1)
    running = {name: start(path, name, 1) for name in lives}
    holds: list[Hold] = []
    end_s = time.monotonic() + LASTS_S
    for _ in range(KILLS):
        time.sleep(LASTS_S / (KILLS + 1) * chance.uniform(0.7, 1.0))
        name = chance.choice(list(running))
        holds += collect(running.pop(name))
        lives[name] += 1
        running[name] = start(path, name, lives[name])
    time.sleep(max(0.0, end_s - time.monotonic()))
    for process in running.values():
        holds += collect(process)
    holds.sort(key=lambda hold: hold.first_ns)
    assert len(holds) >= 5, holds
    for earlier, later in itertools.pairwise(holds):
        assert earlier.last_ns < later.first_ns, f"{earlier} and {later} overlap"
        assert earlier.token < later.token


def collect(process: subprocess.Popen[str]) -> list[Hold]:
    with process:
        process.kill()
        assert process.stdout is not None
        return holds_of(process.stdout.read())
