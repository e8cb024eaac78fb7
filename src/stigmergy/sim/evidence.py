"""What a run of a simulated fleet left behind, as input of the checkers. Everything in it was seen from outside."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stigmergy.agents.codec import tag_of
from stigmergy.agents.messages import Event, Keeping, spec_of
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.supervision import SHARD_ADDRESS, InputFailed, InputsSkipped
from stigmergy.audit.directories import ShardReading
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.shard.commit_reader import KeptEvent, walk
from stigmergy.sim.checkers import (
    AcknowledgedInput,
    SignedLog,
    TakenMessage,
    Watched,
    chain_is_valid,
    nothing_acknowledged_is_lost,
    nothing_is_doubled,
    one_holder_at_a_time,
    safe_action_in_time,
)
from stigmergy.sim.fleet import SimFleet
from stigmergy.sim.machine import Machine
from stigmergy.sim.node import SimNode

SECOND_NS = 1_000_000_000
SIGNATURES_MAX = 50
"""So many signatures of a shard are checked, at equal distances, the last one among them."""
DOUBT_NS = 6 * SECOND_NS
"""What came by another way than from outside was heard at most so long before it was durable: a write that takes longer
is given up."""


def check_fleet(fleet: SimFleet) -> list[str]:
    """All that can be said about a run once it is over."""
    found: list[str] = []
    for machine in fleet.machines.values():
        found += machine.findings
        for node in (*machine.past, machine.node):
            found += [f"{node.name}: {finding}" for finding in node.logbook.findings]
            found += [f"chain_is_valid: {finding}" for finding in _check_chain(node)]
        found += [f"{machine.name}: {finding}" for receiver in machine.receivers for finding in receiver.findings]
    if any(machine.node.logbook.findings for machine in fleet.machines.values()):
        return found  # the rest would say the same in other words
    for machine in fleet.machines.values():
        found += [f"nothing_acknowledged_is_lost: {finding}" for finding in _check_acknowledged(machine)]
        found += [f"nothing_is_doubled: {finding}" for finding in _check_doubled(machine)]
    holds = fleet.holding.finish(fleet.run.loop.time_ns())
    found += [f"one_holder_at_a_time: {finding}" for finding in one_holder_at_a_time(holds)]
    found += [f"safe_action_in_time: {finding}" for finding in safe_action_in_time(_watched(fleet))]
    return found


def check_replication(fleet: SimFleet) -> list[str]:
    """While nodes still run: replicas are equal; nobody is shut out but liars, and nothing has diverged but by them."""
    found = [f"replicas_converge: {finding}" for finding in fleet.apart()]
    liars, lies = fleet.keys_of_liars(), fleet.lies.objects
    for name, shared in fleet.honest_standings():
        diverged = [one for one in shared.diverged if one not in lies]
        found += [f"replicas_converge: {name} says that {one} has diverged" for one in diverged]
        shut_out = [key for key in shared.quarantined if key not in liars]
        found += [f"only_liars_are_shut_out: {name} has quarantined {key[:16]}…, which never lied" for key in shut_out]
    return found


def count_shut_out(fleet: SimFleet) -> int:
    """How many keys honest nodes take nothing from any more."""
    return sum(len(shared.quarantined) for _, shared in fleet.honest_standings())


def events_of(node: SimNode, shard: int) -> Iterator[tuple[int, KeptEvent]]:
    """All events in the log of one shard, with their positions."""
    reading = ShardReading(node.logbook.states[shard])
    for commit in node.logbook.commits[shard]:
        for kept in walk(commit, reading):
            yield commit.position, kept


def _check_chain(node: SimNode) -> list[str]:
    logbook, found = node.logbook, list[str]()
    verify = Ed25519Verifier().verify
    for shard in range(len(logbook.commits)):
        digests = [logbook.digest(shard, position) for position in range(1, len(logbook.commits[shard]) + 1)]
        signatures = [one for one in logbook.signatures if any(head.shard == shard for head in one.heads)]
        # The heads of a later one stand for all before it; to check each of very many takes longer than the run did.
        step = max(1, len(signatures) // SIGNATURES_MAX)
        signatures = signatures[::-1][::step][::-1]
        log = SignedLog(
            node.name,
            logbook.identity.fleet,
            shard,
            logbook.commits[shard],
            digests,
            signatures,
            node.signer.public_key,
        )
        found += chain_is_valid(log, verify)
    return found


def _is_kept(plan: AgentPlan, tag: str) -> bool:
    """Whether an observed event of this type is in the log as it came, once it was consumed."""
    for message, handled in plan.plans.items():
        if issubclass(message, Event) and handled.tag == tag:
            return handled.decide is None and handled.promise in (Keeping.DURABLE, Keeping.WITHIN)
    return False


def _check_acknowledged(machine: Machine) -> list[str]:
    """Only of the present incarnation: what a lost disk had acknowledged is lost, and an operator knows it."""
    node = machine.node
    kept: dict[tuple[str, str, bytes], None] = {}
    skipped: list[tuple[str, str, int, int]] = []
    failed_tag, skipped_tag = spec_of(InputFailed).tag, spec_of(InputsSkipped).tag
    for shard in range(len(node.logbook.commits)):
        for _, event in events_of(node, shard):
            kept[machine.name, event.address, event.body] = None
            if event.tag == failed_tag:
                failure = msgspec.msgpack.decode(event.body, type=InputFailed)
                kept[machine.name, failure.to, failure.input] = None
            elif event.tag == skipped_tag and event.address == SHARD_ADDRESS:
                skip = msgspec.msgpack.decode(event.body, type=InputsSkipped)
                skipped.append((machine.name, skip.source, skip.first, skip.last))
    plans, source = machine.fleet.plans, machine.feed.source
    known: dict[tuple[str, str], bool] = {}
    told: list[AcknowledgedInput] = []
    for one in machine.feed.told:
        kind = one.address.partition("/")[0]
        key = (kind, tag_of(one.body))
        if key not in known:
            known[key] = _is_kept(plans[kind], key[1])
        if one.source == source and known[key]:
            told.append(AcknowledgedInput(machine.name, one.source, one.number, one.address, one.body))
    return nothing_acknowledged_is_lost(told, kept, skipped)


def _check_doubled(machine: Machine) -> list[str]:
    """What came from outside is in the log as often as it was said, and not once more."""
    source, node = machine.feed.source, machine.node
    said = machine.feed.said()
    seen: dict[tuple[str, bytes], int] = {}
    taken: list[TakenMessage] = []
    for shard in range(len(node.logbook.commits)):
        for position, event in events_of(node, shard):
            if event.source != source:
                continue
            key = (event.address, event.body)
            seen[key] = seen.get(key, 0) + 1
            what = f"{event.tag} at position {position}"
            number = min(seen[key], said.get(key, 0))
            taken.append(TakenMessage(event.address, f"{source} {event.body.hex()}", number, what))
    return nothing_is_doubled(one for one in taken if one.number)


def _watched(fleet: SimFleet) -> Iterator[Watched]:
    """Every agent that has a rule about silence, with all that was heard of it."""
    for machine in fleet.machines.values():
        rules = {
            kind: {spec_of(rule.event).tag: int(rule.after_s * SECOND_NS) for rule in plan.stale_rules}
            for kind, plan in machine.fleet.plans.items()
            if plan.stale_rules
        }
        if not rules or machine.past or fleet.setup.devices or fleet.setup.versions:
            continue  # of a machine that was replaced the times of several lives would be mixed
        known: dict[str, int] = {}
        for one in fleet.freshness.get(machine.name, ()):
            known.setdefault(one.agent, one.time_ns)
        for address, known_ns in known.items():
            state = machine.node.logbook.states[machine.fleet.homes.of(address)]
            if address in state.stopped:
                continue
            for tag, after_ns in rules.get(address.partition("/")[0], {}).items():
                yield _watch(fleet, machine, address, tag, after_ns, known_ns)


def _watch(fleet: SimFleet, machine: Machine, address: str, tag: str, after_ns: int, known_ns: int) -> Watched:
    told = [one for one in fleet.maybe_fresh.get(machine.name, ()) if (one.agent, one.tag) == (address, tag)]
    first_told: dict[bytes, list[int]] = {}
    for one in told:
        first_told.setdefault(one.body, []).append(one.time_ns)
    fresh = [start for start in fleet.starts[machine.name] if start[0] > known_ns]
    for one in fleet.freshness.get(machine.name, ()):
        if (one.agent, one.tag) == (address, tag):
            before = [time_ns for time_ns in first_told.pop(one.body, []) if time_ns <= one.time_ns]
            fresh.append((before[0] if before else one.time_ns - DOUBT_NS, one.time_ns))
    tries = sorted(machine.receiver.safe_tries.get(address, ()))
    maybe = [one.time_ns for one in told]
    return Watched(address, after_ns, sorted(fresh), maybe, tries, fleet.up_of(machine.name))
