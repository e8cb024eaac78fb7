"""The checkers of the trials: each looks at what a trial of drones left behind and says which promise was broken.

They read the logbook (all that was ever durable) and what the peers remember; they ask the host nothing, so that a
mistake of the host cannot hide itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from rigs.drones import Beaten, Garbled, Measured, Passed, Photograph, Positioned, Spotted
from rigs.senders import Caller, Sender
from stigmergy.agents.codec import canonical_bytes, encode, tag_of
from stigmergy.agents.effects import ACTUATORS, WORK, ActionFailed, WorkFailed
from stigmergy.agents.messages import spec_of
from stigmergy.agents.supervision import SHARD_ADDRESS, InputFailed, InputsSkipped
from stigmergy.journal.recovery import new_state
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.shard.commit import Commit, statement
from stigmergy.shard.commit_reader import walk
from stigmergy.shard.replay import apply
from stigmergy.shard.state import ShardReading
from stigmergy.sim.devices import Receiver
from stigmergy.sim.node import SimNode

KEPT = (Measured, Spotted, Beaten, Garbled)
"""What is in the log if it was consumed: as it came, or as an input that failed."""


class Seen(Struct, frozen=True):
    """What a query showed: an agent's bytes, and how far its shard was durable then."""

    address: str
    body: bytes | None
    position: int


class Evidence(Struct):
    """What a trial left behind."""

    node: SimNode
    receiver: Receiver
    senders: list[Sender]
    callers: list[Caller]
    observed: list[tuple[str, Any]]
    """Events that the embedding program was told are durable."""
    seen: list[Seen]

    def commits(self, shard: int) -> list[Commit]:
        """All commits of a shard."""
        return self.node.logbook.commits[shard]

    def events(self, shard: int) -> Iterator[tuple[int, str, bytes]]:
        """All events of a shard in order, with their positions, those of compiled agents among them."""
        reading = ShardReading(self.node.logbook.states[shard])
        for commit in self.commits(shard):
            for kept in walk(commit, reading):
                yield commit.position, kept.address, kept.body

    @property
    def shards(self) -> int:
        """How many there are."""
        return len(self.node.logbook.commits)

    def home_of(self, address: str) -> int:
        """The shard of an agent."""
        return self.node.declaration.homes.of(address)


Checker = Callable[[Evidence], list[str]]


def nothing_acknowledged_is_lost(evidence: Evidence) -> list[str]:
    """What a sender was told is durable is in the log, once: kept, failed, or declared as skipped."""
    findings = [finding for sender in evidence.senders for finding in sender.findings]
    for shard in range(evidence.shards):
        kept, failed, skipped = _consumed(evidence, shard)
        for sender in evidence.senders:
            mark = evidence.node.logbook.states[shard].marks.consumed(sender.source, 0)
            if sender.acknowledged and max(sender.acknowledged) > mark:
                findings.append(f"{sender.source}: {max(sender.acknowledged)} acknowledged, shard {shard} is at {mark}")
            for number in sender.acknowledged:
                address, message = sender.items[number - 1]
                if evidence.home_of(address) != shard or not isinstance(message, KEPT):
                    continue
                body = encode(message)
                found = kept.get((address, body), 0) + failed.get((address, body), 0)
                if not found and not any(first <= number <= last for first, last in skipped.get(sender.source, ())):
                    findings.append(f"{sender.source} {number} ({message}) was acknowledged and is not in the log")
        for address, event in evidence.observed:
            if evidence.home_of(address) == shard:
                body = encode(event)
                if not kept.get((address, body)) and not failed.get((address, body)):
                    findings.append(f"{event} of {address} was said to be durable and is not in the log")
    return findings


def nothing_is_consumed_twice(evidence: Evidence) -> list[str]:
    """However often a source repeats itself, each input is in the log once, and in the order of its numbers."""
    findings: list[str] = []
    for shard in range(evidence.shards):
        _, failed, _ = _consumed(evidence, shard)
        last: dict[str, int] = {}
        for position, address, body in evidence.events(shard):
            if tag_of(body) not in _NUMBERED or (address, body) in failed:  # which an operator may have retried
                continue
            event = msgspec.msgpack.decode(body)
            source, number = str(event["source"]), int(event["number"])
            if last.get(source, 0) >= number:
                findings.append(f"shard {shard}, position {position}: {source} {number} comes again or late")
            last[source] = number
    return findings


def tells_arrive_once_and_in_order(evidence: Evidence) -> list[str]:
    """Each drone numbers what it tells each tower: none is missing between two, doubled or overtaken."""
    findings: list[str] = []
    tag = spec_of(Passed).tag
    arrived: dict[tuple[str, str], list[int]] = {}
    for shard in range(evidence.shards):
        for _, address, body in evidence.events(shard):
            if tag_of(body) == tag:
                passed = msgspec.msgpack.decode(body, type=Passed)
                arrived.setdefault((passed.by, address), []).append(passed.number)
    told: dict[tuple[str, str], list[int]] = {}
    for shard in range(evidence.shards):
        for commit in evidence.commits(shard):
            for owed in commit.owed:
                if owed.sink.startswith("shard/"):
                    address, body = msgspec.msgpack.decode(owed.body, type=tuple[str, bytes])
                    if tag_of(body) == tag:
                        number = msgspec.msgpack.decode(body, type=Passed).number
                        told.setdefault((owed.agent, address), []).append(number)
    for pair in sorted({**told, **arrived}):
        if told.get(pair, []) != arrived.get(pair, []):
            findings.append(f"{pair[0]} told {pair[1]} {told.get(pair, [])}, arrived is {arrived.get(pair, [])}")
    return findings


def effects_are_carried_out_once(evidence: Evidence) -> list[str]:
    """At a receiver with marks: every order of the log that was not given up, once, and in order for each agent."""
    findings = list(evidence.receiver.findings)
    last: dict[str, int] = {}
    numbers: dict[tuple[str, int], str] = {}
    photograph = spec_of(Photograph).tag
    for key, carried in evidence.receiver.carried.items():
        if carried.tag != photograph:
            continue
        number = msgspec.msgpack.decode(carried.body, type=Photograph).number
        if (carried.agent, number) in numbers:
            findings.append(f"{carried.agent}: photograph {number} under {key} and {numbers[carried.agent, number]}")
        # One that the device failed may have been given up before a crash, and be tried again after it.
        if last.get(carried.agent, 0) > number and key not in evidence.receiver.failed_keys:
            findings.append(f"{carried.agent}: photograph {number} after {last[carried.agent]}")
        last[carried.agent], numbers[carried.agent, number] = number, key
    return findings


def everything_owed_is_settled(evidence: Evidence) -> list[str]:
    """After the heal nothing is owed any more, and what was settled as done was carried out."""
    findings: list[str] = []
    for state in evidence.node.logbook.states:
        if state.outbox.count:
            waiting = [(pending.sink, pending.sequence) for pending in state.outbox.owed()]
            findings.append(f"shard {state.shard}: still owed after the heal: {waiting[:5]}")
        if state.blocks.count:
            blocks = [(block.kind, block.first, block.count) for block in state.blocks.owed()]
            findings.append(f"shard {state.shard}: blocks of actions still owed after the heal: {blocks[:5]}")
    for shard in range(evidence.shards):
        given_up = _given_up(evidence, shard)
        for commit in evidence.commits(shard):
            for index, owed in enumerate(commit.owed):
                key = f"1.{shard}.{commit.position}.{index}"
                if owed.sink in (ACTUATORS, WORK) and key not in evidence.receiver.carried and key not in given_up:
                    findings.append(f"{key} of {owed.agent} was settled without having been carried out or given up")
    return findings


def answers_are_stable(evidence: Evidence) -> list[str]:
    """A command has one answer, which is the one in the log, however often it is asked."""
    findings: list[str] = []
    in_log: dict[str, list[tuple[bool, str]]] = {}
    for shard in range(evidence.shards):
        for commit in evidence.commits(shard):
            for answer in commit.answers:
                told = str(commit.position) if answer.refused is None else answer.refused
                in_log.setdefault(answer.command_id, []).append((answer.refused is None, told))
    for caller in evidence.callers:
        for command_id, answers in caller.answers.items():
            if in_log.get(command_id) is None or answers != in_log[command_id] * len(answers):
                findings.append(f"command {command_id}: told {answers}, the log says {in_log.get(command_id)}")
    return findings


def queries_show_durable_state(evidence: Evidence) -> list[str]:
    """What a query showed is what the log, as far as it was durable then, folds into."""
    findings: list[str] = []
    logbook = evidence.node.logbook
    for shard in range(evidence.shards):
        wanted = [seen for seen in evidence.seen if evidence.home_of(seen.address) == shard]
        wanted.sort(key=lambda seen: seen.position)
        known = logbook.states[shard]
        state = new_state(logbook.identity, shard, known.plans, known.limits)
        before: dict[str, bytes | None] = {}
        for seen in wanted:
            while state.position < seen.position:
                before = {address: canonical_bytes(agent) for address, agent in state.agents.items()}
                commit = logbook.commits[shard][state.position]
                apply(state, commit, logbook.digest(shard, commit.position))
            now = state.agents.get(seen.address)
            # Between the sync and the moment when the host hears of it, the state before is still shown.
            if seen.body not in (before.get(seen.address), None if now is None else canonical_bytes(now)):
                findings.append(f"{seen.address}: a query showed what position {seen.position} does not fold into")
    return findings


def signatures_verify(evidence: Evidence) -> list[str]:
    """Every group was signed by the node's key over the heads it made durable."""
    verifier = Ed25519Verifier()
    bad = [
        signature.heads
        for signature in evidence.node.logbook.signatures
        if not verifier.verify(signature.algorithm, signature.key, statement(signature.heads), signature.value)
    ]
    return [f"a signature over {heads} does not verify" for heads in bad]


def newest_positions_win(evidence: Evidence) -> list[str]:
    """Of events kept as `latest` the newest acknowledged one of each agent, or a later one, is in the state."""
    findings: list[str] = []
    agents = {address: agent for state in evidence.node.logbook.states for address, agent in state.agents.items()}
    for sender in evidence.senders:
        for number in sender.acknowledged:
            address, message = sender.items[number - 1]
            if not isinstance(message, Positioned) or address not in agents:
                continue
            shard = evidence.home_of(address)
            if agents[address].position >= message.number or _has_failed(evidence, shard, address):
                continue
            if not _is_skipped(evidence, shard, sender.source, number):
                kept = agents[address].position
                findings.append(f"{address}: position {message.number} was acknowledged, {kept} is kept")
    return findings


CHECKERS: tuple[Checker, ...] = (
    nothing_acknowledged_is_lost,
    nothing_is_consumed_twice,
    tells_arrive_once_and_in_order,
    effects_are_carried_out_once,
    answers_are_stable,
    queries_show_durable_state,
    signatures_verify,
    newest_positions_win,
)
"""What must hold whatever happened, whenever it is looked at."""

HEALED: tuple[Checker, ...] = (everything_owed_is_settled,)
"""What must hold once everything works again."""

_NUMBERED = {spec_of(event).tag: event for event in (Measured, Spotted, Beaten)}


def _consumed(
    evidence: Evidence, shard: int
) -> tuple[dict[tuple[str, bytes], int], dict[tuple[str, bytes], int], dict[str, list[tuple[int, int]]]]:
    kept: dict[tuple[str, bytes], int] = {}
    failed: dict[tuple[str, bytes], int] = {}
    skipped: dict[str, list[tuple[int, int]]] = {}
    for _, address, body in evidence.events(shard):
        kept[address, body] = kept.get((address, body), 0) + 1
        tag = tag_of(body)
        if tag == spec_of(InputFailed).tag:
            failure = msgspec.msgpack.decode(body, type=InputFailed)
            failed[failure.to, failure.input] = failed.get((failure.to, failure.input), 0) + 1
        elif tag == spec_of(InputsSkipped).tag and address == SHARD_ADDRESS:
            skip = msgspec.msgpack.decode(body, type=InputsSkipped)
            skipped.setdefault(skip.source, []).append((skip.first, skip.last))
    return kept, failed, skipped


def _is_skipped(evidence: Evidence, shard: int, source: str, number: int) -> bool:
    _, _, skipped = _consumed(evidence, shard)
    return any(first <= number <= last for first, last in skipped.get(source, ()))


def _has_failed(evidence: Evidence, shard: int, address: str) -> bool:
    """Whether some input of this agent is among the dead letters: it may be the one that is missing."""
    return any(letter.agent == address for letter in evidence.node.logbook.states[shard].letters.all())


def _given_up(evidence: Evidence, shard: int) -> dict[str, None]:
    """The keys of effects that were tried in vain, as the agents were told, or could not be told."""
    keys: dict[str, None] = {}
    _, failed, _ = _consumed(evidence, shard)
    bodies = [body for _, _, body in evidence.events(shard)] + [body for _, body in failed]
    for body in bodies:
        if tag_of(body) in (spec_of(ActionFailed).tag, spec_of(WorkFailed).tag):
            keys[msgspec.msgpack.decode(body)["key"]] = None
    return keys
