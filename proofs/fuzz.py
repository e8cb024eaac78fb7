"""Row 17: every decoder gets bytes that nobody would send in good faith, and stays within time, memory and its errors.

From valid examples and hand-made bombs, mutations are drawn: bits, bytes, runs, splices, numbers at their limits. Each
decoder gets its share of the time. It must return or raise one of its own errors, take at most CPU_S_MAX of processor
time, and (looked at for a share of the inputs, because looking is slow) stay within its memory.

Where atheris is installed, it then searches by coverage for what blind mutation does not find.

    python -m proofs.fuzz --minutes 5 [--seed N]
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import re
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import msgspec
from msgspec import Struct

from proofs.fuzz_targets import Target, targets
from proofs.report import Proof

MINUTES = 5.0
MINUTES_QUICK = 0.2
CPU_S_MAX = 0.5
"""For one input, on a busy machine; the largest inputs have a megabyte."""
MEMORY_LOOK_SHARE = 0.02
GUIDED_SHARE = 0.5
"""Of the time, so much goes to the search by coverage."""
STACK_MAX = 6
"""So many mutations are laid on top of each other at most."""
EDGES = (0, 1, 0x7F, 0x80, 0xC0, 0xC1, 0xC4, 0xC6, 0xCB, 0xCF, 0xD9, 0xDB, 0xDC, 0xDD, 0xDE, 0xDF, 0xFE, 0xFF)


class Crash(Struct, frozen=True):
    """An input that a decoder could not stand."""

    target: str
    why: str
    data: bytes

    def __str__(self) -> str:
        shown = self.data[:200].hex() + ("…" if len(self.data) > 200 else "")
        return f"{self.target}: {self.why}; {len(self.data)} bytes: {shown}"


class Mutator:
    """Makes bad bytes out of good ones."""

    def __init__(self, chance: random.Random, corpus: list[bytes], size_bytes_max: int) -> None:
        self._chance = chance
        self._corpus = corpus
        self._size_bytes_max = size_bytes_max

    def next(self) -> bytes:
        """One more input."""
        chance = self._chance
        data = bytearray(chance.choice(self._corpus))
        for _ in range(chance.randint(1, STACK_MAX)):
            self._mutate(data)
        return bytes(data[: self._size_bytes_max])

    def _mutate(self, data: bytearray) -> None:
        chance = self._chance
        at = chance.randrange(len(data)) if data else 0
        match chance.randrange(8):
            case 0 if data:
                data[at] ^= 1 << chance.randrange(8)
            case 1 if data:
                data[at] = chance.choice(EDGES)
            case 2 if data:
                del data[at : at + chance.randint(1, 16)]
            case 3:
                data[at:at] = chance.randbytes(chance.randint(1, 16))
            case 4 if data:
                run = data[at : at + chance.randint(1, 64)]
                data[at:at] = run * chance.randint(1, 8)
            case 5:
                other = chance.choice(self._corpus)
                start = chance.randrange(len(other)) if other else 0
                data[at:at] = other[start : start + chance.randint(1, 256)]
            case 6:
                size = chance.choice((1, 2, 4, 8))
                data[at : at + size] = chance.choice((0, 2 ** (8 * size) - 1, 2 ** (8 * size - 1))).to_bytes(
                    size, "big"
                )
            case _:
                del data[at:]


def try_once(target: Target, data: bytes, *, look_at_memory: bool = False) -> Crash | None:
    """Gives one input to a decoder."""
    if look_at_memory:
        tracemalloc.start()
    begin_s = time.process_time()
    crash: Crash | None = None
    try:
        target.decode(data)
    except target.may_raise:
        pass
    except Exception as error:
        crash = Crash(target.name, f"{type(error).__name__}: {error}"[:300], data)
    took_s = time.process_time() - begin_s
    if look_at_memory:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        if crash is None and peak_bytes > target.memory_bytes_max:
            crash = Crash(target.name, f"took {peak_bytes >> 20} MiB of memory", data)
    elif crash is None and took_s > CPU_S_MAX:
        crash = Crash(target.name, f"took {took_s:.2f} s of processor time", data)
    return crash


def fuzz(target: Target, seconds: float, seed: int) -> tuple[int, list[Crash]]:
    """Blind mutation for so long; how many inputs, and what went wrong."""
    chance = random.Random(f"{seed} {target.name}")
    mutator = Mutator(chance, target.seeds, target.size_bytes_max)
    first = [*target.seeds, *target.once]
    if target.prepare is not None:
        target.prepare()
    crashes = [crash for data in first if (crash := try_once(target, data, look_at_memory=True))]
    crashes += [crash for data in first if (crash := try_once(target, data))]
    count = 2 * len(first)
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s and len(crashes) < 5:
        look = chance.random() < MEMORY_LOOK_SHARE
        crash = try_once(target, mutator.next(), look_at_memory=look)
        count += 1
        if crash is not None:
            crashes.append(crash)
    return count, crashes


def fuzz_guided(name: str, seconds: float, seed: int) -> tuple[int, list[str]]:
    """A search by coverage, in a process of its own; how many inputs, and what went wrong."""
    with tempfile.TemporaryDirectory(prefix="stigmergy-fuzz-") as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        (target,) = (one for one in targets() if one.name == name)
        for number, data in enumerate(target.seeds):
            (corpus / str(number)).write_bytes(data)
        command = [sys.executable, "-m", "proofs.fuzz_guided", name, str(corpus)]
        limits = [f"-max_total_time={int(seconds)}", f"-seed={seed}", f"-max_len={target.size_bytes_max}"]
        more = ["-timeout=10", "-rss_limit_mb=2048", f"-artifact_prefix={folder}/crash-", "-print_final_stats=1"]
        done = subprocess.run([*command, *limits, *more], capture_output=True, text=True, check=False)
        counted = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
        crashes = [path.read_bytes() for path in sorted(Path(folder).glob("crash-*"))]
    if done.returncode == 0 and counted:
        return int(counted.group(1)), []
    reason = "\n".join(done.stderr.splitlines()[-15:])
    return 0, [f"{name}: {reason[-600:]}; {[data[:200].hex() for data in crashes]}"]


def prove(*, quick: bool = False, minutes: float | None = None, seed: int = 1) -> Proof:
    """Gives every decoder its share of the time."""
    minutes = minutes or (MINUTES_QUICK if quick else MINUTES)
    begin_s = time.monotonic()
    all_targets = targets()
    guided = not quick and importlib.util.find_spec("atheris") is not None
    share_s = minutes * 60 / len(all_targets)
    violations: list[str] = []
    counts: dict[str, int] = {}
    for target in all_targets:
        blind_s = share_s * (1 - GUIDED_SHARE) if guided else share_s
        count, crashes = fuzz(target, blind_s, seed)
        counts[target.name] = count
        violations += [str(crash) for crash in crashes]
        if guided:
            searched, found = fuzz_guided(target.name, share_s * GUIDED_SHARE, seed)
            counts[f"{target.name}, guided"] = searched
            violations += found
    return Proof(
        name="fuzz",
        promise="no bytes crash a decoder, or make it take more time or memory than it may",
        cases=sum(counts.values()),
        violations=violations[:20],
        figures={**counts, "guided_by_coverage": guided},
        seconds=time.monotonic() - begin_s,
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs the proof as a program and prints its outcome as JSON."""
    parser = argparse.ArgumentParser(prog="python -m proofs.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    proof = prove(minutes=options.minutes, seed=options.seed)
    print(msgspec.json.format(msgspec.json.encode(proof), indent=2).decode())
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
