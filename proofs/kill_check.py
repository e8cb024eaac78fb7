"""After the kills: reads the journal back without the node's help, and compares it with what the world remembers."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

import msgspec

from proofs.kill_node import Act, Counted, Echoed, Stopped, Taken, make_fleet
from stigmergy.app.fleet import inspect_journal
from stigmergy.audit.verification import Verification
from stigmergy.journal.port import Journal
from stigmergy.journal.recovery import Recovery
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.shard.commit import open_commit
from stigmergy.shard.snapshot import digest_of_state
from stigmergy.shard.state import Limits

if TYPE_CHECKING:
    from proofs.kill import World

_event_decoder: msgspec.msgpack.Decoder[Counted | Echoed | Taken] = msgspec.msgpack.Decoder(Counted | Echoed | Taken)
_action_decoder = msgspec.msgpack.Decoder(Act)


def check_journal(path: Path, world: World, stopped: Stopped | None, scheme: str = "sqlite") -> dict[str, Any]:
    """Adds what is wrong to the world's violations; returns what was counted."""
    journal = inspect_journal(f"{scheme}:{path}")
    try:
        found = _read(journal)
        _check_events(found, world)
        _check_actions(found, world)
        _check_states(journal, world, stopped)
        verified = Verification(journal, Ed25519Verifier()).run()
    finally:
        asyncio.run(journal.close())
    world.violations += [f"position {problem.position}: {problem.what}" for problem in verified.problems[:5]]
    return {
        "commits": found.commits,
        "events_in_the_log": sum(found.counted.values()) + sum(found.taken.values()) + sum(found.echoed.values()),
        "signatures_verified": verified.signatures,
        "snapshots_unfinished": verified.snapshots_unfinished,
    }


class _Found:
    """What the log says, number by number."""

    def __init__(self) -> None:
        self.commits = 0
        self.counted: Tally[int] = Tally()
        self.taken: Tally[int] = Tally()
        self.echoed: Tally[int] = Tally()
        self.owed: Tally[int] = Tally()


def _read(journal: Journal) -> _Found:
    found = _Found()
    for stored in journal.read(0):
        commit = open_commit(stored.sealed.body)
        found.commits += 1
        for address, body in commit.events:
            if not address.startswith("Counter/"):
                continue
            match _event_decoder.decode(body):
                case Counted() as event:
                    found.counted[event.number] += 1
                case Taken() as event:
                    found.taken[event.number] += 1
                case Echoed() as event:
                    found.echoed[event.number] += 1
                case unknown:
                    assert_never(unknown)
        for owed in commit.owed:
            if owed.sink == "actuators":
                found.owed[_action_decoder.decode(owed.body).number] += 1
    return found


def _check_events(found: _Found, world: World) -> None:
    lost = [number for number in range(1, world.acknowledged + 1) if number not in found.counted]
    if lost:
        world.violations.append(f"{len(lost)} acknowledged events are not in the log, the first is {lost[0]}")
    for what, tally in (("event", found.counted), ("command", found.taken), ("tell", found.echoed)):
        doubled = [number for number, count in tally.items() if count > 1]
        if doubled:
            world.violations.append(f"{len(doubled)} times one {what} is in the log twice, the first is {doubled[0]}")
    untold = [number for number in found.counted if number % 7 == 0 and number not in found.echoed]
    if untold:
        world.violations.append(f"{len(untold)} tells never arrived, the first is {untold[0]}")
    for answer in world.answers.values():
        number = world.asked[answer.command_id].number
        if (number in found.taken) == bool(answer.reason):
            world.violations.append(f"{answer.command_id}: answered {answer}, but the log says otherwise")
            return


def _check_actions(found: _Found, world: World) -> None:
    expected = {number for number in found.counted if number % 3 == 0} | set(found.taken)
    if set(found.owed) != expected or any(count > 1 for count in found.owed.values()):
        world.violations.append("the log does not owe exactly one action for each event that causes one")
    done = Tally(number for _, number in world.done.values())
    doubled = sorted(number for number, count in done.items() if count > 1)
    if doubled:
        world.violations.append(f"{len(doubled)} actions were carried out twice, the first is {doubled[0]}")
    if set(done) != expected:
        world.violations.append(f"{len(expected)} actions are due, {len(done)} were carried out")
    if len({key for key, _ in world.done.values()}) != len(world.done):
        world.violations.append("two actions had the same key")


def _check_states(journal: Journal, world: World, stopped: Stopped | None) -> None:
    """The state by snapshot, by replay of the whole log, and as the node left it are one."""
    plans = make_fleet(lambda _: None).plans
    recovered = Recovery(journal, plans, Ed25519Verifier(), Limits()).recover()
    by_snapshot = digest_of_state(recovered.states[0])
    if not recovered.snapshots:
        world.violations.append("no snapshot was usable in the end")
    by_replay = digest_of_state(Recovery(journal, plans, Ed25519Verifier(), Limits()).replay_from_start(0))
    if by_snapshot != by_replay:
        world.violations.append("the state from a snapshot and the one from the whole log differ")
    if stopped is not None and by_snapshot != stopped.digest:
        world.violations.append("the state that the node left and the recovered one differ")
