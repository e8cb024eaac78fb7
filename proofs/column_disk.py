"""Rows 2 to 4 for compiled agents on segments: power losses, failing calls and flipped bits, with large frames.

The counterproof of row 2: on a disk that only says that it has synced, the same trials must find losses. Row 4: one bit
is flipped in each part of what a run has left: headers, indexes, bodies and fillings of large frames, small frames,
heads of segments, snapshots with the rows of tables. The outcome must be a refusal or the very state that was left.

    python -m proofs.column_disk [--losses N] [--every N] [--flips N]
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter as Tally
from typing import Any

import msgspec

from proofs.column_agents import SHARDS, ready_fleet
from proofs.column_trial import ROUNDS_IO, ColumnTrial, run_column_trial
from proofs.report import Proof
from stigmergy import Fleet
from stigmergy.base.errors import JournalError, RecoveryError, TrustError
from stigmergy.journal import segments
from stigmergy.journal.port import JournalIdentity
from stigmergy.journal.recovery import Recovery
from stigmergy.journal.segments.frames import HEADER_BYTES, INDEX_LENGTH_BYTES, SegmentFrameKind, read_frame, size_ahead
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.shard.snapshot import digest_of_state
from stigmergy.shard.state import Limits
from stigmergy.sim.disk import AfterFailedSync, DiskFault, SimDisk, SimFolder

LOSSES, LOSSES_QUICK = 400, 20
LYING, LYING_QUICK = 20, 3
FLIPS, FLIPS_QUICK = 3_000, 200
EVERY_QUICK = 9
REFUSALS = (JournalError, TrustError, RecoveryError)
Image = dict[str, bytes]
Place = tuple[str, int, int]
"""A file, and from where to where."""


def lose_power(fleet: Fleet, count: int, lying: int, seed: int = 0) -> tuple[dict[str, Any], list[str]]:
    """Loses power so many times; returns figures and what was found."""
    figures: Tally[str] = Tally()
    violations: list[str] = []
    while figures["power losses"] < count and not violations:
        result = run_column_trial(seed + figures["trials"], fleet, losses=5)
        figures["trials"] += 1
        figures["power losses"] += result.power_losses
        figures["in the middle of a large frame"] += result.torn
        figures["records"] += result.records
        figures["actions"] += result.actions
        violations += result.violations
    for number in range(lying):
        figures["lies found"] += bool(run_column_trial(seed + number, fleet, losses=5, sync_lies=True).violations)
    if figures["lies found"] < lying:
        violations.append(f"with fsync switched off, only {figures['lies found']} of {lying} trials found a loss")
    return dict(figures), violations


def fail_calls(fleet: Fleet, every: int, first: int = 1) -> tuple[dict[str, Any], list[str]]:
    """Lets every n-th call of a fixed piece of work fail in every way."""
    figures: Tally[str] = Tally()
    violations: list[str] = []
    for number, fault in enumerate(DiskFault):
        call = first + number
        while True:
            result = run_column_trial(7, fleet, rounds=ROUNDS_IO, call=call, fault=fault)
            if not result.reached:
                break
            figures["failed calls"] += 1
            figures["after which it was started again"] += result.lives > 2
            violations += result.violations
            call += every
    return dict(figures), violations


class Subject:
    """What a run has left on its disk, and where the parts of it are."""

    def __init__(self, fleet: Fleet, seed: int = 5) -> None:
        self._fleet = fleet
        trial = ColumnTrial(seed, fleet, after=AfterFailedSync.STALE_CACHE, keep_all=True)
        trial.world.run(trial.main(12, 0))
        if found := trial.violations():
            raise RuntimeError(f"the run that was to be damaged went wrong: {found[0]}")
        disk = trial.node.disk
        self.image: Image = {path: disk.content(path) for path in disk.paths()}
        self.key = trial.node.journal_key
        self.places = self._find()
        self.digests = self.recovered(self.image)

    def _find(self) -> dict[str, list[Place]]:
        places: dict[str, list[Place]] = {}
        for path, data in self.image.items():
            offset = 0
            while (frame := read_frame(self.key, data, offset)) is not None:
                end = offset + HEADER_BYTES + len(frame.payload)
                body = offset + HEADER_BYTES
                name = {SegmentFrameKind.SEGMENT: "head of a segment", SegmentFrameKind.PART: "snapshot"}.get(
                    frame.kind, "small frame"
                )
                if frame.kind is SegmentFrameKind.BLOCKS:
                    index = body + INDEX_LENGTH_BYTES + int.from_bytes(frame.payload[:INDEX_LENGTH_BYTES], "little")
                    places.setdefault("large frame, header", []).append((path, offset, body))
                    places.setdefault("large frame, index", []).append((path, body, index))
                    places.setdefault("large frame, bodies", []).append((path, index, end))
                    if end < offset + frame.size_bytes:
                        places.setdefault("large frame, filling", []).append((path, end, offset + frame.size_bytes))
                else:
                    places.setdefault(name, []).append((path, offset, end))
                offset += size_ahead(self.key, data, offset)
            if offset < len(data):
                places.setdefault("not written yet" if offset else "other files", []).append((path, offset, len(data)))
        return places

    def recovered(self, image: Image) -> list[bytes]:
        """Opens and recovers as a node does, and replays the whole log; both must say the same."""
        disk = SimDisk(random.Random(0))
        for path, content in image.items():
            disk.put(path, content)
        try:
            identity = JournalIdentity(fleet=self._fleet.name, shards=SHARDS, incarnation=1)
            journal = segments.open_journal("segments:fleet", identity, inline=True, folder=SimFolder(disk, "fleet"))
            plans = self._fleet.plans
            states = Recovery(journal, plans, Ed25519Verifier(), Limits()).recover().states
            digests = [digest_of_state(state) for state in states]
            for state, digest in zip(states, digests, strict=True):
                replayed = Recovery(journal, plans, Ed25519Verifier(), Limits()).replay_from_start(state.shard)
                if digest_of_state(replayed) != digest:
                    raise AssertionError("the state from a snapshot and the one from the whole log differ")
            return digests
        finally:
            disk.kill()
            disk.close()

    def outcome(self, image: Image) -> str:
        """How opening and recovering ends: `refused`, `same`, or what is wrong."""
        try:
            digests = self.recovered(image)
        except REFUSALS:
            return "refused"
        except Exception as error:
            return f"violation: {type(error).__name__} passed through: {error}"
        return "same" if digests == self.digests else "violation: recovered silently to another state"


def flip_bits(fleet: Fleet, count: int, seed: int = 1) -> tuple[dict[str, Any], list[str]]:
    """Flips so many bits, one at a time, in each kind of place alike."""
    subject = Subject(fleet)
    chance = random.Random(seed)
    figures: Tally[str] = Tally()
    violations: list[str] = []
    names = sorted(subject.places)
    for number in range(count):
        name = names[number % len(names)]
        path, begin, end = chance.choice(subject.places[name])
        offset, bit = chance.randrange(begin, end), chance.randrange(8)
        data = bytearray(subject.image[path])
        data[offset] ^= 1 << bit
        outcome = subject.outcome({**subject.image, path: bytes(data)})
        figures[f"{name}: {outcome if outcome in ('same', 'refused') else 'violation'}"] += 1
        if outcome.startswith("violation"):
            violations.append(f"{path}, {name}, byte {offset}, bit {bit}: {outcome}")
    return dict(sorted(figures.items())), violations[:20]


def prove(*, quick: bool = False) -> Proof:
    """The proof as `make prove` runs it."""
    return run(*((LOSSES_QUICK, LYING_QUICK, EVERY_QUICK, FLIPS_QUICK) if quick else (LOSSES, LYING, 1, FLIPS)))


def run(losses: int, lying: int, every: int, flips: int) -> Proof:
    """All three."""
    begin_s = time.monotonic()
    fleet = ready_fleet()
    figures: dict[str, Any] = {}
    violations: list[str] = []
    for more, found in (lose_power(fleet, losses, lying), fail_calls(fleet, every), flip_bits(fleet, flips)):
        figures |= more
        violations += found
    return Proof(
        name="column_disk",
        promise="compiled agents on a failing disk: nothing acknowledged lost or done twice, damage never silent",
        cases=figures["power losses"] + figures["failed calls"] + flips,
        violations=violations[:20],
        figures=figures,
        seconds=time.monotonic() - begin_s,
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs the proof as a program and prints its outcome as JSON."""
    parser = argparse.ArgumentParser(prog="python -m proofs.column_disk", description=__doc__)
    parser.add_argument("--losses", type=int, default=LOSSES)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--flips", type=int, default=FLIPS)
    options = parser.parse_args(arguments)
    proof = run(options.losses, LYING, options.every, options.flips)
    print(msgspec.json.format(msgspec.json.encode(proof), indent=2).decode())
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
