"""Row 1 for compiled agents: a node on segments is killed again and again while it takes batches; nothing is lost.

This process is everything around the node: a producer that numbers its records and repeats what was not acknowledged,
senders of single messages, operators who enrol and ask, and the receiver of batched actions, which keeps marks. It
forks the node, lets it work for a random time, kills it, starts it on the same folder. After each start the node must
have consumed what was acknowledged; at the end the journal is read back and compared with a model in plain Python.

    python -m proofs.column_kill --kills 1000 [--seed N]

It forks, so it must run in a process without threads; tests start it as a program.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import select
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, assert_never

import msgspec

from proofs.column_agents import KIND, SHARDS, Model, Noted, Producer, ready_fleet
from proofs.column_node import (
    Answered,
    Ask,
    Enroll,
    Enrolled,
    FromNode,
    Ready,
    Release,
    Stopped,
    from_node,
    run_node,
    to_node,
)
from proofs.column_receiver import Receiver
from proofs.kill import ASK_AGAIN_WITHIN, BUILD, command_id_of
from proofs.report import Proof
from rigs.node_process import Broken, Channel, Confirm, Deliver, Delivered, Stop, socket_pair
from stigmergy import Fleet
from stigmergy.agents.codec import pack_envelope
from stigmergy.app.fleet import inspect_journal
from stigmergy.audit.verification import Verification
from stigmergy.journal.recovery import Recovery
from stigmergy.journal.segments.segment import LARGE_BYTES
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.shard.snapshot import digest_of_state
from stigmergy.shard.state import Limits

KILLS = 1_000
KILLS_QUICK = 100
LIFE_S_MAX = 0.2
HEARD_MAX = 40
HEARD_S_MAX = 5.0
BATCHES_IN_FLIGHT = 10
NOTES_IN_FLIGHT = 3
COMMANDS_IN_FLIGHT = 2
LIFE_BYTES_MAX = 1 << 20
"""So much is sent for the first time in one life: else a thousand lives would fill the disk."""
SIZES = (1, 3, 40, 300, 9_000)
"""Records that are added at once; 9,000 of them are several batches, and together a large frame."""
AGENTS_FIRST, AGENTS_MORE, AGENTS_MAX = 40, 7, 400
ENROL_SHARE = 0.3
"""In so many lives the fleet grows."""
FINISH_S_MAX = 60.0
NOTE_BASE = 1 << 40
"""Numbers of single messages and of commands begin here, so that they never meet those of records."""


class Siege:
    """Runs and kills nodes on one folder."""

    def __init__(self, path: Path, seed: int, fleet: Fleet) -> None:
        self._path = path
        self._fleet = fleet
        self._chance = random.Random(seed)
        self.model = Model()
        self.receiver = Receiver()
        self.producer: Producer | None = None
        self.violations: list[str] = []
        self.figures: dict[str, int] = dict.fromkeys(
            ("killed_while_starting", "killed_with_writes_under_way", "killed_with_large_writes_under_way"), 0
        )
        self.figures |= dict.fromkeys(("batches", "batches_sent_again", "records", "enrolments"), 0)
        self.figures |= dict.fromkeys(("snapshots_used", "snapshots_unfinished"), 0)
        self._unacknowledged: dict[int, tuple[int, int, bytes]] = {}
        """By ticket: shard (-1: an envelope), number of the last record, bytes."""
        self._acknowledged = [0] * SHARDS
        self._apart: list[dict[int, None]] = [{} for _ in range(SHARDS)]
        """Tickets of each shard, in the order in which they were made, until all before them are acknowledged."""
        self._lasts: dict[int, int] = {}
        self._tickets = 0
        self._notes = 0
        self.commands: dict[str, Ask] = {}
        self.asked: list[Ask] = []
        self._numbers: dict[str, int] = {}
        """Of all that was asked, by their ids."""
        self.answers: dict[str, Answered] = {}
        self._enrolling = False
        self._agents = 0
        self.stopped: Stopped | None = None
        self._begin_life()

    def _begin_life(self) -> None:
        self.ready: Ready | None = None
        self._sent_now: dict[int, None] = {}
        self._asked_now: dict[str, None] = {}
        self._enrolling = False
        self._heard = 0
        self._life_bytes = 0
        self._grows = self._chance.random() < ENROL_SHARE

    def live(self, life_s: float, *, heard: int = 0) -> None:
        """One life: a start, some work, a kill. It ends so long after the fork; or, so that a slow machine gets on as
        well, so long after the node has said so many things."""
        pid, channel = self._fork()
        deadline_s = time.monotonic() + (life_s if not heard else HEARD_S_MAX)
        counting = not heard
        try:
            while time.monotonic() < deadline_s:
                if not self._turn(channel, deadline_s):
                    self._note("the node ended by itself")
                    return
                if not counting and self._heard >= heard:
                    counting, deadline_s = True, time.monotonic() + life_s
        finally:
            _kill(pid)
            self._drain(channel)
        if self.ready is None:
            self.figures["killed_while_starting"] += 1
        elif self._sent_now or self._asked_now or self._enrolling:
            under_way = sum(len(self._unacknowledged[ticket][2]) for ticket in self._sent_now)
            self.figures["killed_with_writes_under_way"] += 1
            self.figures["killed_with_large_writes_under_way"] += under_way >= LARGE_BYTES

    def finish(self) -> None:
        """The last life: everything is sent until it is acknowledged, and the node stops in order."""
        pid, channel = self._fork()
        deadline_s = time.monotonic() + FINISH_S_MAX
        try:
            while self._unacknowledged or self.commands or self._actions_missing():
                if time.monotonic() > deadline_s or not self._turn(channel, time.monotonic() + 0.05, fresh=False):
                    left = f"{len(self._unacknowledged)} batches, {len(self.commands)} commands"
                    self._note(f"after the last kill the node did not get through what was left: {left}")
                    return
            channel.send(Stop())
            while self.stopped is None and time.monotonic() < deadline_s:
                if not self._turn(channel, time.monotonic() + 0.05, fresh=False):
                    break
            if self.stopped is None:
                self._note("the node did not stop when it was told to")
        finally:
            _kill(pid)
            channel.close()

    def _actions_missing(self) -> bool:
        return self.receiver.count < len(self.model.acts) + len(self.model.warned)

    def _fork(self) -> tuple[int, Channel[FromNode]]:
        ours, theirs = socket_pair()
        self._begin_life()
        pid = os.fork()
        if pid == 0:
            ours.close()
            run_node(Channel(theirs, to_node), self._path, self._fleet)
        theirs.close()
        return pid, Channel(ours, from_node)

    def _drain(self, channel: Channel[FromNode]) -> None:
        """What the node said before it died counts: somebody has heard it."""
        try:
            while (frame := channel.receive()) is not None:
                self._take(channel, frame)
        except EOFError:
            pass
        channel.close()

    def _turn(self, channel: Channel[FromNode], until_s: float, *, fresh: bool = True) -> bool:
        """Sends what there is room for and takes what has come; False when the node is gone."""
        try:
            if self.ready is not None:
                self._send(channel, fresh=fresh)
            select.select([channel], [], [], max(0.0, min(0.01, until_s - time.monotonic())))
            while (frame := channel.receive()) is not None:
                self._take(channel, frame)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return False
        return True

    # ---- what is sent

    def _send(self, channel: Channel[FromNode], *, fresh: bool) -> None:
        if self.producer is None or (fresh and self._grows):
            self._grows = False
            self._enrol(channel)
        if self.producer is None:
            return
        for ticket, (_, _, data) in self._unacknowledged.items():
            if len(self._sent_now) >= BATCHES_IN_FLIGHT:
                break
            if ticket not in self._sent_now:
                self.figures["batches_sent_again"] += 1
                self._deliver(channel, ticket, data)
        if fresh:
            self._send_fresh(channel, self.producer)
        self._send_commands(channel, fresh=fresh)

    def _send_fresh(self, channel: Channel[FromNode], producer: Producer) -> None:
        while len(self._sent_now) < BATCHES_IN_FLIGHT and self._life_bytes < LIFE_BYTES_MAX:
            if self._chance.random() < 0.2:
                self._notes += 1
                number = NOTE_BASE + self._notes
                name = self._chance.choice(producer.names)
                self.model.noted(name, number)
                # A note may be the first that an agent has: it is enrolled with it.
                data = pack_envelope("notes", [(f"{KIND}/{name}", Noted(number=number))], sequence=self._notes)
                self._send_new(channel, -1, 0, data)
                continue
            count = self._chance.choice(SIZES)
            first = self._chance.randrange(len(producer.names))
            self.figures["records"] += count
            for shard, last, data in producer.batches(producer.names[first : first + 50], count):
                self._send_new(channel, shard, last, data)

    def _send_new(self, channel: Channel[FromNode], shard: int, last: int, data: bytes) -> None:
        self._tickets += 1
        self.figures["batches"] += shard >= 0
        self._unacknowledged[self._tickets] = (shard, last, data)
        if shard >= 0:
            self._apart[shard][self._tickets] = None
            self._lasts[self._tickets] = last
        self._life_bytes += len(data)
        self._deliver(channel, self._tickets, data)

    def _deliver(self, channel: Channel[FromNode], ticket: int, data: bytes) -> None:
        self._sent_now[ticket] = None
        channel.send(Deliver(ticket, data))

    def _enrol(self, channel: Channel[FromNode]) -> None:
        if self._enrolling or self._agents >= AGENTS_MAX:
            return
        self._enrolling = True
        more = AGENTS_MORE if self._agents else AGENTS_FIRST
        channel.send(Enroll([f"g-{number}" for number in range(self._agents + more)]))

    def _send_commands(self, channel: Channel[FromNode], *, fresh: bool) -> None:
        for command_id, ask in list(self.commands.items()):
            if command_id not in self._asked_now:
                self._asked_now[command_id] = None
                channel.send(ask)
        while fresh and self.producer is not None and len(self._asked_now) < COMMANDS_IN_FLIGHT:
            if self.answers and self._chance.random() < 0.2:
                again = self._chance.choice(self.asked[-ASK_AGAIN_WITHIN:])
                if again.command_id in self.answers and again.command_id not in self._asked_now:
                    self._asked_now[again.command_id] = None
                    channel.send(again)
                return
            number = NOTE_BASE + len(self.asked)
            ask = Ask(command_id_of(len(self.asked)), self._chance.choice(self.producer.names), number)
            self.asked.append(ask)
            self.commands[ask.command_id] = ask
            self._numbers[ask.command_id] = number
            self.model.taken(ask.name, number)
            self._asked_now[ask.command_id] = None
            channel.send(ask)
            if len(self.asked) % 8 == 0:
                return

    # ---- what is heard

    def _take(self, channel: Channel[FromNode], frame: FromNode) -> None:
        self._heard += 1
        match frame:
            case Ready():
                self._hear_ready(frame)
            case Enrolled():
                self._hear_roster(frame)
            case Delivered():
                self._acknowledge(frame.last)
            case Answered():
                self._hear_answer(frame)
            case Release():
                self.violations += self.receiver.receive(frame)
                try:
                    channel.send(Confirm(frame.key))
                except OSError:
                    return
            case Stopped():
                self.stopped = frame
            case Broken():
                self._note(f"the node broke: {frame.why}")
            case _:
                assert_never(frame)

    def _hear_ready(self, ready: Ready) -> None:
        self.ready = ready
        self.figures["snapshots_used"] += ready.snapshots
        # A snapshot that a kill left unfinished is passed over.
        self.figures["snapshots_unfinished"] += ready.passed_over
        for shard, (consumed, acknowledged) in enumerate(zip(ready.consumed, self._acknowledged, strict=True)):
            if consumed < acknowledged:
                self._note(f"shard {shard}: record {acknowledged} was acknowledged, and only {consumed} are known")

    def _hear_roster(self, enrolled: Enrolled) -> None:
        self._enrolling = False
        self._agents = len(enrolled.roster.names)
        self.figures["enrolments"] += 1
        if self.producer is None:
            self.producer = Producer(enrolled.roster, self.model)
        else:
            self.producer.renew(enrolled.roster)

    def _acknowledge(self, ticket: int) -> None:
        self._sent_now.pop(ticket, None)
        sent = self._unacknowledged.pop(ticket, None)
        if sent is None or sent[0] < 0:
            return
        waiting = self._apart[sent[0]]
        for first in list(waiting):
            if first in self._unacknowledged:
                break
            del waiting[first]
            self._acknowledged[sent[0]] = self._lasts.pop(first)

    def _hear_answer(self, answer: Answered) -> None:
        self._asked_now.pop(answer.command_id, None)
        self.commands.pop(answer.command_id, None)
        before = self.answers.setdefault(answer.command_id, answer)
        if before != answer:
            self._note(f"{answer.command_id} was answered with {before} and then with {answer}")
        if bool(answer.reason) != (self._numbers[answer.command_id] % 5 == 0):
            self._note(f"{answer.command_id} was answered with {answer}")

    def _note(self, violation: str) -> None:
        if len(self.violations) < 20:
            self.violations.append(violation)


def check_folder(path: Path, siege: Siege, fleet: Fleet) -> dict[str, Any]:
    """Reads the journal back without the node's help; adds what is wrong to the violations."""
    journal = inspect_journal(f"segments:{path}")
    found = siege.violations
    try:
        verified = Verification(journal, Ed25519Verifier()).run()
        bodies = (len(stored.sealed.body) for shard in range(SHARDS) for stored in journal.read(shard))
        largest_bytes = max(bodies, default=0)
        recovered = Recovery(journal, fleet.plans, Ed25519Verifier(), Limits()).recover()
        if not recovered.snapshots:
            found.append("no snapshot was usable in the end")
        for state in recovered.states:
            replayed = Recovery(journal, fleet.plans, Ed25519Verifier(), Limits()).replay_from_start(state.shard)
            digests = {digest_of_state(state), digest_of_state(replayed)}
            if siege.stopped is not None:
                digests.add(siege.stopped.digests[state.shard])
            if len(digests) > 1:
                found.append(f"shard {state.shard}: snapshot and tail, the whole log and the node's own state differ")
    finally:
        asyncio.run(journal.close())
    found += [f"position {problem.position}: {problem.what}" for problem in verified.problems[:5]]
    found += siege.model.differences(recovered.states)[:5]
    found += siege.receiver.differences(siege.model)
    return {
        "commits": verified.commits,
        "signatures_verified": verified.signatures,
        "journal_bytes": sum(file.stat().st_size for file in path.iterdir()),
        "largest_commit_bytes": largest_bytes,
    }


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def prove(*, quick: bool = False) -> Proof:
    """The proof as `make prove` runs it."""
    return kill_often(KILLS_QUICK if quick else KILLS, seed=1)


def kill_often(kills: int, seed: int) -> Proof:
    """Kills a node so often; everything that was promised must hold."""
    begin_s = time.monotonic()
    chance = random.Random(seed)
    fleet = ready_fleet()
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stigmergy-kill-", dir=BUILD) as name:
        path = Path(name) / "killed"
        siege = Siege(path, seed, fleet)
        gc.collect()
        gc.freeze()  # a forked node then shares our memory instead of copying it at its first collection
        for number in range(kills):
            if number % 4:
                siege.live(chance.uniform(0.0, LIFE_S_MAX / 30), heard=chance.randint(1, HEARD_MAX))
            else:
                siege.live(chance.uniform(0.0, LIFE_S_MAX))
            if siege.violations:
                break
        if not siege.violations:
            siege.finish()
        figures: dict[str, Any] = {
            "kills": kills,
            **siege.figures,
            "commands_answered": len(siege.answers),
            "actions": siege.receiver.count,
            "actions_dropped_by_marks": siege.receiver.repeated,
        }
        if not siege.violations:
            figures |= check_folder(path, siege, fleet)
    return Proof(
        name="column_kill",
        promise="kill -9 while compiled agents take batches: nothing acknowledged lost, nothing done twice",
        cases=kills,
        violations=siege.violations,
        figures=figures,
        seconds=time.monotonic() - begin_s,
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs the proof as a program and prints its outcome as JSON."""
    parser = argparse.ArgumentParser(prog="python -m proofs.column_kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    proof = kill_often(options.kills, options.seed)
    print(msgspec.json.format(msgspec.json.encode(proof), indent=2).decode())
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
