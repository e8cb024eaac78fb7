"""Holds the journal against the world's memory, and says what is proved. It reads files only: the node is gone."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from pathlib import Path

import msgspec
from msgspec import Struct

from examples.demonstration.patrol import SILENCE_S, Blink, DropParcel, Land, describe, make_fleet
from examples.demonstration.world import SILENT_DRONE, World
from stigmergy import StigmergyError
from stigmergy.adapters.ed25519 import Ed25519Verifier
from stigmergy.adapters.sqlite import SqliteJournal, inspect_journal
from stigmergy.core.codec import tag_of
from stigmergy.core.commit import open_commit
from stigmergy.core.snapshot import digest_of_state
from stigmergy.core.state import Limits
from stigmergy.runtime.audit.verification import Verification
from stigmergy.runtime.recovery import Recovery

SLACK_S = 0.5
"""This process and the node share a machine with others: so much later we may hear of something."""
END_BYTES = 40
OBSERVED = ("ProgressMeasured@1", "BatteryMeasured@1")


class Finding(Struct, frozen=True):
    """One statement about the run, and whether it is true."""

    holds: bool
    what: str


def prove(path: Path, world: World, chance: random.Random) -> list[Finding]:
    """Everything that can be said about this run."""
    journal = inspect_journal(f"sqlite:{path}")
    try:
        findings = [
            _acknowledged_are_kept(journal, world),
            _nothing_twice(journal, world),
            _answers_alike(world),
            _safe_in_time(world),
            _chain_verifies(journal),
            _replay_agrees(journal, world),
        ]
    finally:
        asyncio.run(journal.close())
    findings.append(_flip_is_seen(path, chance))
    return findings


def _acknowledged_are_kept(journal: SqliteJournal, world: World) -> Finding:
    """The gauges are one source: its mark says how far they were consumed, and the log holds every event once."""
    kept = 0
    mark = 0
    for stored in journal.read(0):
        commit = open_commit(stored.sealed.body)
        kept += sum(1 for _, body in commit.events if tag_of(body) in OBSERVED)
        mark = max([mark, *(moved.sequence for moved in commit.marks if moved.source == "gauges")])
    acknowledged = world.events_acknowledged
    last = max(world.acknowledged, default=0)
    holds = kept == acknowledged and mark == last and not world.in_flight
    return Finding(holds, f"{acknowledged} events were acknowledged, and the log holds {kept}, each once")


def _nothing_twice(journal: SqliteJournal, world: World) -> Finding:
    owed: Counter[tuple[str, str, str]] = Counter()
    decoder: msgspec.msgpack.Decoder[DropParcel | Land | Blink] = msgspec.msgpack.Decoder(DropParcel | Land | Blink)
    for stored in journal.read(0):
        for one in open_commit(stored.sealed.body).owed:
            if one.sink == "actuators":
                action = decoder.decode(one.body)
                owed[one.agent, type(action).__name__, describe(action)] += 1
    done = Counter((f"Drone/{order.drone}", order.action, order.detail) for order in world.done.values())
    keys = {order.key for order in world.done.values()}
    holds = bool(done) and done == owed and len(keys) == len(world.done) and max(done.values()) == 1
    dropped = f"{world.repeats_dropped} repeated after the kill and dropped by the receiver's marks"
    return Finding(holds, f"{len(world.done)} actions carried out, each once; {dropped}")


def _answers_alike(world: World) -> Finding:
    holds = not world.answers_differ and len(world.answers) == len(world.asked)
    return Finding(holds, f"{len(world.answers)} commands asked again after the kill got the answers of before")


def _safe_in_time(world: World) -> Finding:
    taken_s = [after_s for after_s, order in world.safe if order.drone == SILENT_DRONE]
    holds = bool(taken_s) and SILENCE_S - SLACK_S <= taken_s[0] <= SILENCE_S + SLACK_S
    after = f"after {taken_s[0]:.2f} s" if taken_s else "never"
    return Finding(holds, f"{SILENT_DRONE} fell silent and was made safe {after} (due after {SILENCE_S:g} s)")


def _chain_verifies(journal: SqliteJournal) -> Finding:
    verified = Verification(journal, Ed25519Verifier()).run()
    problems = "; ".join(problem.what for problem in verified.problems[:3])
    what = f"hash chain of {verified.commits} commits and {verified.signatures} signatures verify"
    return Finding(verified.sound and verified.signatures > 0, what + (f": {problems}" if problems else ""))


def _replay_agrees(journal: SqliteJournal, world: World) -> Finding:
    plans = make_fleet(lambda _: None).plans
    recovered = Recovery(journal, plans, Ed25519Verifier(), Limits()).recover()
    replayed = Recovery(journal, plans, Ed25519Verifier(), Limits()).replay_from_start(0)
    digests = {digest_of_state(recovered.states[0]), digest_of_state(replayed)}
    if world.stopped is not None:
        digests.add(world.stopped.digest)
    digest = min(digests).hex()[:16]
    way = "snapshot and tail" if recovered.snapshots else "recovery"
    return Finding(
        len(digests) == 1 and world.stopped is not None,
        f"the node's last state, {way}, and a replay of {replayed.events_count} events agree: {digest}…",
    )


def _flip_is_seen(path: Path, chance: random.Random) -> Finding:
    """One bit of one commit's bytes, in a copy of the journal."""
    copy = path.with_name("flipped.db")
    shutil.copyfile(path, copy)
    journal = inspect_journal(f"sqlite:{copy}")
    bodies = [stored.sealed.body for stored in journal.read(0)]
    asyncio.run(journal.close())
    data = bytearray(copy.read_bytes())
    # The end of a commit's bytes, where the file holds them just once: a free page may hold an old copy of them.
    ends = [body[-END_BYTES:] for body in bodies if data.count(body[-END_BYTES:]) == 1]
    offset = data.index(chance.choice(ends)) + chance.randrange(END_BYTES)
    data[offset] ^= 1 << chance.randrange(8)
    copy.write_bytes(bytes(data))
    try:
        journal = inspect_journal(f"sqlite:{copy}")
        try:
            problems = [problem.what for problem in Verification(journal, Ed25519Verifier()).run().problems]
        finally:
            asyncio.run(journal.close())
    except StigmergyError as error:
        problems = [str(error)]
    said = problems[0] if problems else "nothing was noticed"
    return Finding(bool(problems), f"one bit flipped in byte {offset} of a copy is seen: {said}")
