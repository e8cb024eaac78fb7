"""Row 4: one flipped bit anywhere in what a node has stored is detected, or makes no difference; never another state.

A real node writes a journal: a database, a write-ahead log that was not copied into it yet, snapshots in both, a mark
and a key; or segments, snapshots, an identity, a mark, a spare and a key. Of that, one bit at a sampled place is
flipped, and the files are opened and recovered as a node does it; also the whole log is replayed, because a snapshot
may hide damage that lies before it. The outcome must be an error of ours, or the very state that was left. A tail that
was cut off, or a whole older copy of the device, is seen by comparing with what the receiver of actions has confirmed.

    python -m proofs.flips --samples 5000 [--seed N] [--journal sqlite|segments]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter as Tally
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from proofs.kill_node import COUNTERS, Counted, Take, make_fleet
from proofs.kill_node import SETTINGS as KILLED
from proofs.report import Proof
from stigmergy.agents.codec import pack_envelope
from stigmergy.base.errors import DataLost, JournalError, RecoveryError, TrustError
from stigmergy.base.system import SystemClock, SystemEntropy
from stigmergy.journal import segments, sqlite
from stigmergy.journal.port import Journal, JournalIdentity
from stigmergy.journal.recovery import Recovery
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.keys.keyfile import new_private_key, read_private_key, write_private_key
from stigmergy.node.host import Host, open_host
from stigmergy.shard.snapshot import digest_of_state
from stigmergy.shard.state import Limits

SAMPLES = 5_000
SAMPLES_QUICK = 300
CUTS_SHARE = 0.1
"""Of the samples, so many cut the write-ahead log off instead of flipping a bit in it."""
DATABASE, WAL, MARK, KEY = "flipped.db", "flipped.db-wal", "flipped.db-mark", "flipped.key"
SNAPSHOT = "snapshot"
"""Not a file of its own: the places in database and write-ahead log where parts of snapshots lie."""
STRATA = ((DATABASE, 0.4), (WAL, 0.4), (SNAPSHOT, 0.15), (MARK, 0.03), (KEY, 0.02))
FOLDER, LAST, OTHERS = "flipped", "last segment", "other segments"
SEGMENT_BYTES = 1 << 16
"""Small, so that a run leaves several."""
SEGMENT_STRATA = (
    (LAST, 0.4),
    (OTHERS, 0.25),
    (SNAPSHOT, 0.15),
    (f"{FOLDER}/identity", 0.1),
    (f"{FOLDER}/spare", 0.05),
    (f"{FOLDER}-mark", 0.03),
    (KEY, 0.02),
)
JOURNALS = ("sqlite", "segments")
PIECE_BYTES = 128
ENVELOPES_MIN = (100, 30)
ENVELOPES_MAX = 2_000
"""Each life goes on until it has taken a snapshot. The second ends right after its first, so that one of the first
life is still there."""
SETTINGS = structs.replace(KILLED, snapshots=structs.replace(KILLED.snapshots, share_max=1_000.0))
"""Only the number of events says when a snapshot falls due, not how busy the machine is."""
REFUSALS = (JournalError, TrustError, RecoveryError)


class Copy(Struct, frozen=True):
    """The files of the node as they were at one moment, and how many actions it had asked for by then."""

    files: dict[str, bytes]
    actions: int

    @property
    def logs(self) -> list[str]:
        """The segments, if these are the files of such a journal."""
        return sorted(name for name in self.files if name.endswith(".log"))

    @property
    def tail(self) -> str:
        """The file to which the node has appended last."""
        return self.logs[-1] if self.logs else WAL

    @property
    def mark(self) -> str:
        """The witness of the last commit."""
        return f"{FOLDER}-mark" if self.logs else MARK


class Subject(Struct, frozen=True):
    """What a real run has left behind."""

    copy: Copy
    digest: bytes
    older: list[Copy]
    """Copies from before; each is whole, and knows of fewer actions."""
    snapshot_places: list[tuple[str, int, int]]
    """File, offset and length of each part of a snapshot that was found in it."""


def make_subject(folder: Path, journal: str = JOURNALS[0]) -> Subject:
    """Runs a node for two lives: the first is closed in order, the second leaves a write-ahead log."""
    if journal == "segments":
        (folder / FOLDER).mkdir()
    write_private_key(folder / KEY, new_private_key(SystemEntropy()))
    older: list[Copy] = []
    asyncio.run(_life(folder, 0, older, close=True))
    parts = asyncio.run(_life(folder, 1, older, close=False))
    copy = older.pop()
    if copy.logs:
        places = [(name, 0, len(data)) for name, data in copy.files.items() if SNAPSHOT in name]
        if len(copy.logs) < 2 or not places:
            raise RuntimeError("the run left no snapshot, or only one segment")
    else:
        names = (DATABASE, WAL)
        places = [place for name in names for part in parts for place in _places(name, copy.files[name], part)]
        if {name for name, _, _ in places} != set(names):
            raise RuntimeError("the run left no snapshot in the database or none in its write-ahead log")
    _write(folder, copy)
    digest = _recovered_digest(folder)
    return Subject(copy, digest, [one for one in older if one.actions < copy.actions], places)


def _places(name: str, data: bytes, part: bytes) -> list[tuple[str, int, int]]:
    """Where the pieces of a snapshot's part lie in a file; SQLite spreads a large one over pages."""
    pieces = [part[start : start + PIECE_BYTES] for start in range(0, len(part), PIECE_BYTES)]
    found = [(data.find(piece), len(piece)) for piece in pieces]
    return [(name, offset, length) for offset, length in found if offset >= 0]


def outcome_of(folder: Path, copy: Copy, digest: bytes) -> str:
    """How opening and recovering these files ends: the name of the error, `same`, or what is wrong."""
    _write(folder, copy)
    try:
        found = _recovered_digest(folder)
    except REFUSALS as error:
        return type(error).__name__
    except Exception as error:
        return f"violation: {type(error).__name__} passed through: {error}"
    return "same" if found == digest else "violation: recovered silently to another state"


def flipped(copy: Copy, name: str, offset: int, bit: int) -> Copy:
    """The files with one bit turned."""
    data = bytearray(copy.files[name])
    data[offset] ^= 1 << bit
    return Copy({**copy.files, name: bytes(data)}, copy.actions)


def cut(copy: Copy, length: int, *, with_mark: bool) -> Copy:
    """The files with the end of the log cut to a length; without the mark, as after a loss of power."""
    files = {**copy.files, copy.tail: copy.files[copy.tail][:length]}
    if not with_mark:
        del files[copy.mark]
    return Copy(files, copy.actions)


def start_against(folder: Path, copy: Copy, confirmed: int) -> str:
    """How a whole start ends when the receiver of actions has confirmed so many."""
    _write(folder, copy)
    try:
        asyncio.run(_start(folder, confirmed))
    except REFUSALS as error:
        return type(error).__name__
    return "started"


def prove(*, quick: bool = False) -> Proof:
    """The proof as `make prove` runs it: on each kind of journal."""
    samples = SAMPLES_QUICK if quick else SAMPLES
    first, second = (flip_on(journal, samples, seed=1) for journal in JOURNALS)
    return structs.replace(
        first,
        cases=first.cases + second.cases,
        violations=first.violations + second.violations,
        figures={**first.figures, **{f"segments, {name}": value for name, value in second.figures.items()}},
    )


def flip_on(journal: str, samples: int, seed: int) -> Proof:
    """Tries so many samples on one kind of journal."""
    begin_s = time.monotonic()
    chance = random.Random(seed)
    violations: list[str] = []
    tally: Tally[str] = Tally()
    with tempfile.TemporaryDirectory(prefix="stigmergy-flips-") as name:
        folder = Path(name)
        subject = make_subject(folder, journal)
        for _ in range(samples):
            kind, place, outcome = _sample(folder, subject, chance)
            tally[f"{kind}: {'refused' if outcome not in ('same', 'started') else outcome}"] += 1
            if outcome.startswith("violation") and len(violations) < 20:
                violations.append(f"{place}: {outcome}")
        for number, copy in enumerate(subject.older):
            outcome = start_against(folder, copy, subject.copy.actions)
            tally[f"older copy: {outcome}"] += 1
            if outcome != DataLost.__name__:
                violations.append(f"older copy {number}: the receiver knows more than it, and it {outcome}")
    return Proof(
        name="flips",
        promise="a flipped bit or a cut tail is detected or makes no difference; never silently another state",
        cases=samples + len(subject.older),
        violations=violations,
        figures={
            "bytes": sum(len(data) for data in subject.copy.files.values()),
            "tail_bytes": len(subject.copy.files[subject.copy.tail]),
            **dict(sorted(tally.items())),
        },
        seconds=time.monotonic() - begin_s,
    )


def _sample(folder: Path, subject: Subject, chance: random.Random) -> tuple[str, str, str]:
    """One flip or cut: what kind, where, and how it ended."""
    if chance.random() < CUTS_SHARE:
        length = chance.randrange(len(subject.copy.files[subject.copy.tail]))
        with_mark = chance.random() < 0.5
        copy = cut(subject.copy, length, with_mark=with_mark)
        place = f"log cut to {length} bytes, {'with' if with_mark else 'without'} its mark"
        if with_mark:
            return "cut with mark", place, outcome_of(folder, copy, subject.digest)
        outcome = start_against(folder, copy, subject.copy.actions)
        if outcome == "started" and _actions_of(folder, copy) < subject.copy.actions:
            outcome = "violation: started with fewer actions than the receiver has confirmed"
        return "cut without mark", place, outcome
    logs = subject.copy.logs
    strata = SEGMENT_STRATA if logs else STRATA
    (kind,) = chance.choices([name for name, _ in strata], [share for _, share in strata])
    if kind == SNAPSHOT:
        name, offset, length = chance.choice(subject.snapshot_places)
        offset += chance.randrange(length)
    else:
        name = logs[-1] if kind == LAST else chance.choice(logs[:-1]) if kind == OTHERS else kind
        offset = chance.randrange(len(subject.copy.files[name]))
    bit = chance.randrange(8)
    outcome = outcome_of(folder, flipped(subject.copy, name, offset, bit), subject.digest)
    return kind, f"{name} byte {offset} bit {bit}", outcome


def _write(folder: Path, copy: Copy) -> None:
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        path.unlink()
    for name, data in copy.files.items():
        (folder / name).write_bytes(data)
    (folder / KEY).chmod(0o600)


def _open(folder: Path) -> Journal:
    identity = JournalIdentity(fleet="killed", shards=1, incarnation=1)
    if (folder / FOLDER).is_dir():
        url = f"segments:{folder / FOLDER}"
        return segments.open_journal(url, identity, inline=True, segment_bytes=SEGMENT_BYTES)
    return sqlite.open_journal(f"sqlite:{folder / DATABASE}", identity, inline=True)


def _recovered_digest(folder: Path) -> bytes:
    """Opens and recovers as a node does, and replays the whole log; both must say the same."""
    read_private_key(folder / KEY)
    journal = _open(folder)
    try:
        plans = make_fleet(lambda _: None).plans
        state = Recovery(journal, plans, Ed25519Verifier(), Limits()).recover().states[0]
        replayed = Recovery(journal, plans, Ed25519Verifier(), Limits()).replay_from_start(0)
        digest = digest_of_state(state)
        if digest_of_state(replayed) != digest:
            raise AssertionError("the state from a snapshot and the one from the whole log differ")
        return digest
    finally:
        asyncio.run(journal.close())


def _actions_of(folder: Path, copy: Copy) -> int:
    """How many actions the log of these files knows of."""
    _write(folder, copy)
    journal = _open(folder)
    try:
        plans = make_fleet(lambda _: None).plans
        state = Recovery(journal, plans, Ed25519Verifier(), Limits()).recover().states[0]
        return state.outbox.sent().get("actuators", 0)
    finally:
        asyncio.run(journal.close())


async def _start(folder: Path, confirmed: int) -> None:
    fleet = make_fleet(lambda _: None)
    fleet.receivers["actuators"] = lambda _: confirmed
    journal = _open(folder)
    try:
        host = open_host(fleet, journal, _signer(folder), Ed25519Verifier(), SystemClock(), SETTINGS)
        await host.start()
        await host.kill()
    finally:
        await journal.close()


async def _life(folder: Path, life: int, copies: list[Copy], *, close: bool) -> list[bytes]:
    """One life of the node; notes copies of its files on the way, and returns the parts of its snapshots."""
    journal = _open(folder)
    host = open_host(make_fleet(lambda _: None), journal, _signer(folder), Ed25519Verifier(), SystemClock(), SETTINGS)
    await host.start()
    number = 1
    for envelope in range(ENVELOPES_MAX):
        if envelope >= ENVELOPES_MIN[life] and host.housekeeper.counters.snapshots:
            break
        events = [(f"Counter/{(number + more) % COUNTERS}", Counted(number=number + more)) for more in range(5)]
        data = pack_envelope(f"sensors-{life}", [*events], sequence=number)
        number += len(events)
        await host.intake.deliver(data)
        command_id = f"{life}-{envelope}"
        await host.intake.ask(f"Counter/{envelope % COUNTERS}", Take(number=-envelope - 1), command_id)
        if envelope % 10 == 0:
            copies.append(_copy(folder, host))
    parts = [part.body for position in journal.snapshots(0) for part in journal.read_snapshot(0, position) if part.body]
    copies.append(_copy(folder, host))
    if close:
        await host.stop()
    else:
        await host.kill()
        await journal.close()
    return parts


def _copy(folder: Path, host: Host) -> Copy:
    """The files now. Nothing is written meanwhile: the node writes only on this very thread."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = {str(path.relative_to(folder)): path.read_bytes() for path in found}
    return Copy(files, host.shards[0].state.outbox.sent().get("actuators", 0))


def _signer(folder: Path) -> Ed25519Signer:
    return Ed25519Signer(read_private_key(folder / KEY).seed)


def main(arguments: list[str] | None = None) -> int:
    """Runs the proof as a program and prints its outcome as JSON."""
    parser = argparse.ArgumentParser(prog="python -m proofs.flips", description=__doc__)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--journal", choices=JOURNALS, default=JOURNALS[0])
    options = parser.parse_args(arguments)
    proof = flip_on(options.journal, options.samples, options.seed)
    print(msgspec.json.format(msgspec.json.encode(proof), indent=2).decode())
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
