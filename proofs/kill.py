"""Row 1: a node is killed with SIGKILL again and again while it appends, and nothing that it has promised is lost.

This process is everything around the node: sensors that number their events and repeat what was not acknowledged,
operators who ask again, and the receiver of actions, which keeps marks. It forks the node, lets it work for a
random time, kills it, starts it on the same file. At the end it reads the journal back by itself and compares.

    python -m proofs.kill --kills 1000 [--seed N] [--journal sqlite|segments]

It forks, so it must run in a process without threads; tests start it as a program.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import select
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import assert_never

import msgspec
from msgspec import Struct

from proofs.kill_check import check_journal
from proofs.kill_node import (
    COUNTERS,
    Answered,
    Ask,
    Counted,
    FromNode,
    Ready,
    Release,
    Stopped,
    from_node,
    run_node,
    to_node,
)
from proofs.report import Proof
from rigs.node_process import Broken, Channel, Confirm, Deliver, Delivered, Stop, socket_pair
from stigmergy.agents.codec import pack_envelope
from stigmergy.base.command_ids import new_command_id
from stigmergy.shard.memory import SHARE_COUNT_MAX

BUILD = Path(__file__).resolve().parent.parent / "build"
"""On the disk of the checkout: the folder for temporary files may be memory."""
JOURNALS = ("sqlite", "segments")
KILLS = 1_000
KILLS_QUICK = 25
LIFE_S_MAX = 0.06
ENVELOPES_IN_FLIGHT = 6
COMMANDS_IN_FLIGHT = 3
EVENTS_PER_ENVELOPE_MAX = 8
ASK_AGAIN_SHARE = 0.2
"""Of the commands, so many are asked once more although they were answered."""
ASK_AGAIN_WITHIN = SHARE_COUNT_MAX
"""Only the last commands are asked again: so many are remembered of each client and agent, whatever comes."""
FIRST_ID_NS = 1_700_000_000 * 10**9
LIFE_COMMANDS_MAX = 30
EVENTS_MIN = 400
"""With fewer there may be no snapshot. On a busy machine little is done in each life: then there are more lives."""
FINISH_S_MAX = 60.0


def command_id_of(number: int) -> str:
    """The id of the command with this number: with opaque ones a node would refuse the 2,501st."""
    return new_command_id(FIRST_ID_NS + number * 10**6, number.to_bytes(10, "big"))


class World(Struct):
    """All that the world around the node knows: what it sent, what was acknowledged, what was done."""

    envelopes: dict[int, tuple[int, bytes]] = {}
    """Not acknowledged yet: last sequence, and (first sequence, bytes)."""
    acknowledged: int = 0
    """The sensors' own mark: everything up to here was acknowledged."""
    acknowledged_apart: dict[int, int] = {}
    """Acknowledged beyond it: first sequence to last."""
    next_number: int = 1
    commands: dict[str, Ask] = {}
    """Not answered yet."""
    asked: dict[str, Ask] = {}
    answers: dict[str, Answered] = {}
    done: dict[int, tuple[str, int]] = {}
    """What the receiver has carried out: sequence, and (key, number)."""
    done_contiguous: int = 0
    effects_repeated: int = 0
    answers_repeated: int = 0
    violations: list[str] = []


class Siege:
    """Runs and kills nodes on one file."""

    def __init__(self, path: Path, seed: int, scheme: str = JOURNALS[0]) -> None:
        self.world = World()
        self._scheme = scheme
        self._path = path
        self._chance = random.Random(seed)
        self._channel: Channel[FromNode] | None = None
        self._in_flight: dict[int, None] = {}
        self._asked_now: dict[str, None] = {}
        self._life_commands = 0
        self.ready: Ready | None = None
        self.stopped: Stopped | None = None
        self.killed_starting = 0
        self.killed_writing = 0
        self.repeated_envelopes = 0

    def live(self, life_s: float, *, count_from_ready: bool) -> None:
        """One life: a start, some work, a kill. The clock starts with the fork or when the node is ready."""
        pid, channel = self._fork()
        deadline_s = time.monotonic() + life_s
        counting = not count_from_ready
        try:
            while not counting or time.monotonic() < deadline_s:
                if not self._turn(channel, deadline_s if counting else time.monotonic() + 0.05):
                    self._note(f"the node ended by itself: {self._epitaph(pid)}")
                    return
                if not counting and self.ready is not None:
                    counting, deadline_s = True, time.monotonic() + life_s
        finally:
            self._kill(pid)
            self._drain(channel)
        if self.ready is None:
            self.killed_starting += 1
        elif self._in_flight or self._asked_now:
            self.killed_writing += 1

    def finish(self) -> None:
        """The last life: everything is sent until it is acknowledged, and the node stops in order."""
        pid, channel = self._fork()
        deadline_s = time.monotonic() + FINISH_S_MAX
        try:
            while self.world.envelopes or self.world.commands or self._actions_missing():
                if time.monotonic() > deadline_s or not self._turn(channel, time.monotonic() + 0.05, fresh=False):
                    self._note("after the last kill the node did not get through what was left")
                    return
            channel.send(Stop())
            while self.stopped is None and time.monotonic() < deadline_s:
                if not self._turn(channel, time.monotonic() + 0.05, fresh=False):
                    break
            if self.stopped is None:
                self._note("the node did not stop when it was told to")
        finally:
            self._kill(pid)
            channel.close()

    def _fork(self) -> tuple[int, Channel[FromNode]]:
        ours, theirs = socket_pair()
        self.ready = None
        self._in_flight.clear()
        self._asked_now.clear()
        self._life_commands = 0
        pid = os.fork()
        if pid == 0:
            ours.close()
            run_node(Channel(theirs, to_node), self._scheme, self._path, self.world.done_contiguous)
        theirs.close()
        return pid, Channel(ours, from_node)

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

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
                self._send_envelopes(channel, fresh)
                self._send_commands(channel, fresh)
            select.select([channel], [], [], max(0.0, min(0.01, until_s - time.monotonic())))
            while (frame := channel.receive()) is not None:
                self._take(channel, frame)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return False
        return True

    def _send_envelopes(self, channel: Channel[FromNode], fresh: bool) -> None:
        world = self.world
        for last, (_, data) in world.envelopes.items():
            if len(self._in_flight) >= ENVELOPES_IN_FLIGHT:
                return
            if last not in self._in_flight:
                self._in_flight[last] = None
                self.repeated_envelopes += 1
                channel.send(Deliver(last, data))
        while fresh and len(self._in_flight) < ENVELOPES_IN_FLIGHT:
            first = world.next_number
            count = self._chance.randint(1, EVENTS_PER_ENVELOPE_MAX)
            last = first + count - 1
            numbers = range(first, last + 1)
            data = pack_envelope(
                "sensors",
                [(f"Counter/{self._chance.randrange(COUNTERS)}", Counted(number=number)) for number in numbers],
                sequence=first,
            )
            world.next_number = last + 1
            world.envelopes[last] = (first, data)
            self._in_flight[last] = None
            channel.send(Deliver(last, data))

    def _send_commands(self, channel: Channel[FromNode], fresh: bool) -> None:
        world = self.world
        for command_id, ask in list(world.commands.items()):
            if command_id not in self._asked_now:
                self._asked_now[command_id] = None
                channel.send(ask)
        while fresh and len(self._asked_now) < COMMANDS_IN_FLIGHT and self._life_commands < LIFE_COMMANDS_MAX:
            self._life_commands += 1
            if world.answers and self._chance.random() < ASK_AGAIN_SHARE:
                oldest = max(0, len(world.asked) - ASK_AGAIN_WITHIN)
                command_id = command_id_of(self._chance.randrange(oldest, len(world.asked)))
                if command_id in world.answers and command_id not in self._asked_now:
                    self._asked_now[command_id] = None
                    channel.send(world.asked[command_id])
                continue
            command_id = command_id_of(len(world.asked))
            # Numbers of commands are negative, so that they never meet those of events.
            ask = Ask(command_id, f"Counter/{self._chance.randrange(COUNTERS)}", -len(world.asked) - 1)
            world.commands[command_id] = world.asked[command_id] = ask
            self._asked_now[command_id] = None
            channel.send(ask)

    def _take(self, channel: Channel[FromNode], frame: FromNode) -> None:
        match frame:
            case Ready():
                self.ready = frame
            case Delivered():
                self._acknowledge(frame.last)
            case Answered():
                self._hear_answer(frame)
            case Release():
                self._receive_action(frame)
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

    def _acknowledge(self, last: int) -> None:
        self._in_flight.pop(last, None)
        sent = self.world.envelopes.pop(last, None)
        if sent is not None:
            self.world.acknowledged_apart[sent[0]] = last
        while (upto := self.world.acknowledged_apart.pop(self.world.acknowledged + 1, None)) is not None:
            self.world.acknowledged = upto

    def _hear_answer(self, answer: Answered) -> None:
        world = self.world
        self._asked_now.pop(answer.command_id, None)
        world.commands.pop(answer.command_id, None)
        before = world.answers.setdefault(answer.command_id, answer)
        if before is not answer:
            world.answers_repeated += 1
            if before != answer:
                self._note(f"{answer.command_id} was answered with {before} and then with {answer}")

    def _receive_action(self, action: Release) -> None:
        """The receiver: by its marks it drops what it had, and it must be the very same."""
        world = self.world
        known = world.done.get(action.sequence)
        if known is not None:
            world.effects_repeated += 1
            if known != (action.key, action.number):
                self._note(f"effect {action.sequence} was {known}, and came again as {(action.key, action.number)}")
            return
        world.done[action.sequence] = (action.key, action.number)
        while world.done_contiguous + 1 in world.done:
            world.done_contiguous += 1

    def _actions_missing(self) -> bool:
        return len(self.world.done) < self.world.done_contiguous or self._expected_actions() > len(self.world.done)

    def _expected_actions(self) -> int:
        accepted = sum(1 for answer in self.world.answers.values() if not answer.reason)
        return (self.world.next_number - 1) // 3 + accepted

    def _epitaph(self, pid: int) -> str:
        return f"process {pid}; {self.world.violations[-1] if self.world.violations else 'it said nothing'}"

    def _note(self, violation: str) -> None:
        if len(self.world.violations) < 20:
            self.world.violations.append(violation)


def prove(*, quick: bool = False) -> Proof:
    """The proof as `make prove` runs it: on each kind of journal."""
    kills = KILLS_QUICK if quick else KILLS
    first, *others = (kill_on(journal, kills, seed=1) for journal in JOURNALS)
    for journal, proof in zip(JOURNALS[1:], others, strict=True):
        first.violations += [f"{journal}: {violation}" for violation in proof.violations]
        first.figures |= {f"{journal}_{name}": value for name, value in proof.figures.items()}
    return msgspec.structs.replace(first, cases=kills * len(JOURNALS))


def kill_on(journal: str, kills: int, seed: int) -> Proof:
    """Kills a node so often; everything that was promised must hold."""
    begin_s = time.monotonic()
    chance = random.Random(seed)
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stigmergy-kill-", dir=BUILD) as name:
        path = Path(name) / ("killed.db" if journal == "sqlite" else "killed")
        siege = Siege(path, seed, journal)
        gc.collect()
        gc.freeze()  # a forked node then shares our memory instead of copying it at its first collection
        for number in range(kills):
            siege.live(chance.uniform(0.0, LIFE_S_MAX), count_from_ready=number % 4 != 0)
            if siege.world.violations:
                break
        while siege.world.acknowledged < EVENTS_MIN and not siege.world.violations:
            siege.live(LIFE_S_MAX, count_from_ready=True)
        if not siege.world.violations:
            siege.finish()
        world = siege.world
        figures = {
            "kills": kills,
            "killed_while_starting": siege.killed_starting,
            "killed_with_writes_under_way": siege.killed_writing,
            "events_acknowledged": world.acknowledged,
            "commands_answered": len(world.answers),
            "effects": len(world.done),
            "envelopes_sent_again": siege.repeated_envelopes,
            "effects_dropped_by_marks": world.effects_repeated,
            "answers_repeated": world.answers_repeated,
        }
        if not world.violations:
            figures |= check_journal(path, world, siege.stopped, journal)
    return Proof(
        name="kill",
        promise="kill -9 while it appends: nothing acknowledged lost, no effect twice at a receiver that keeps marks",
        cases=kills,
        violations=world.violations,
        figures=figures,
        seconds=time.monotonic() - begin_s,
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs the proof as a program and prints its outcome as JSON."""
    parser = argparse.ArgumentParser(prog="python -m proofs.kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--journal", choices=JOURNALS, default=JOURNALS[0])
    options = parser.parse_args(arguments)
    proof = kill_on(options.journal, options.kills, options.seed)
    print(msgspec.json.format(msgspec.json.encode(proof), indent=2).decode())
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
