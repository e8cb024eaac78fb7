"""Fills the replies that describe a node, an agent or a log. Nothing here asks anybody; values are handed in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from msgspec import UNSET

from stigmergy.agents.codec import tag_of
from stigmergy.agents.display import plain_state, shown_entries
from stigmergy.agents.messages import Command, Event
from stigmergy.agents.ordered import RENEWED_NS, Claim
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.text import messages_of
from stigmergy.audit.copier import CopyStanding
from stigmergy.audit.history import PastState
from stigmergy.audit.listing import LogEntry, Owing, readable_fields, readable_time
from stigmergy.audit.verification import Verified
from stigmergy.bus.presence import Member
from stigmergy.control.agent_fields import ClaimFieldReply, SharedFieldReply, WriterReply, WrittenReply
from stigmergy.control.replies import (
    CommandReply,
    CopyReply,
    ExplainedEffect,
    ExplainedEntry,
    KindNames,
    LetterReply,
    LinkReply,
    MemberReply,
    RecoveryReply,
    SpanReply,
    StateReply,
    VerifiedHead,
    VerifiedSigner,
    VerifyReply,
    filled,
)
from stigmergy.crdt.store import ReplicaStore
from stigmergy.journal.port import Journal
from stigmergy.journal.recovery import Recovered
from stigmergy.network.bus_link import BusLink, LinkStatus
from stigmergy.network.forwarder import CommandOnItsWay
from stigmergy.shard.memory import DeadLetter, Remembered

WRITERS_MAX = 100
ENTRIES_MAX = 100
"""So many writers of a field, and entries in it, are told; the counts say how many there are."""

WriterName = Callable[[str, bytes], tuple[str, str]]
"""The agent and the node that write to an object under an id; empty where they are not known."""


def unnamed(_object: str, _replica: bytes) -> tuple[str, str]:
    """Where nobody knows who writes under an id."""
    return "", ""


def shared_fields_of(address: str, agent: Any, plan: AgentPlan, name_of: WriterName) -> list[SharedFieldReply]:
    """The shared fields of an agent."""
    kind, _, agent_id = address.partition("/")
    found: list[SharedFieldReply] = []
    for name, field in plan.shared.items():
        try:
            of = field.object_of(kind, agent_id)
        except Exception:  # A function of the user's may raise anything; status says which field is not shared.
            of = ""
        store: ReplicaStore = getattr(agent, name).store
        vector = store.context.vector()
        writers = [
            WriterReply(replica.hex(), counter, *name_of(of, replica)) for replica, counter in vector[:WRITERS_MAX]
        ]
        entries = [WrittenReply(**one) for one in islice(shown_entries(store), ENTRIES_MAX)]
        found.append(SharedFieldReply(name, of, len(vector), writers, store.live_count, entries))
    return found


def claims_of(agent: Any, plan: AgentPlan, now_ns: int) -> list[ClaimFieldReply]:
    """The claims of an agent at this time. Nothing is held that was not granted, or whose lease is over."""
    found: list[ClaimFieldReply] = []
    for name in plan.ordered:
        claim: Claim = getattr(agent, name)
        held = now_ns < claim.until_ns
        until = readable_time(claim.until_ns) if held and claim.until_ns < RENEWED_NS else None
        found.append(ClaimFieldReply(name, claim.resource or claim.of, held, claim.token, until))
    return found


def described_sight(
    address: str, sight: PastState, plan: AgentPlan, name_of: WriterName = unnamed, now_ns: int | None = None
) -> StateReply:
    """The state of an agent, now or at the moment that was looked at."""
    time = readable_time(sight.time_ns) if sight.position else None
    shared = shared_fields_of(address, sight.agent, plan, name_of) if plan.shared else UNSET
    claims = claims_of(sight.agent, plan, now_ns or sight.time_ns) if plan.ordered else UNSET
    state = plain_state(sight.agent)
    return filled(StateReply, sight, agent=address, time=time, state=state, shared=shared, claims=claims)


def described_kind(plan: AgentPlan) -> KindNames:
    """What may be sent to agents of a kind, and told them: messages with the names of their fields."""
    return KindNames(
        {message.__name__: list(message.__struct_fields__) for message in messages_of(plan, Command)},
        {message.__name__: list(message.__struct_fields__) for message in messages_of(plan, Event)},
    )


def described_link(link: LinkStatus) -> LinkReply:
    """How a node stands with its bus."""
    return filled(LinkReply, link, state=link.link, uplink=UNSET if link.uplink is None else link.uplink)


def described_members(members: Sequence[Member], link: BusLink | None) -> Iterator[MemberReply]:
    """The nodes of the fleet, with those that are away."""
    for member in members:
        is_heard = link is None or link.is_on_bus or member.node == link.node
        state = ("alive" if is_heard else "unheard") if member.online else "away"
        yield MemberReply(member.node, state, member.since or None, member.version, list(member.kinds))
    for node, since in ({} if link is None else link.away()).items():
        yield MemberReply(node, "away" if link is None or link.is_on_bus else "unheard", since)


def described_recovery(recovered: Recovered) -> RecoveryReply:
    """What a start found."""
    snapshots = {str(shard): position for shard, position in sorted(recovered.snapshots.items())}
    return filled(RecoveryReply, recovered, snapshots=snapshots)


def described_copy(copy: CopyStanding) -> CopyReply:
    """How far the copies in one store are."""
    return filled(CopyReply, copy, made=readable_time(copy.made_ns) if copy.made_ns else "")


def described_verification(url: str, found: Verified) -> VerifyReply:
    """What a verification found."""
    heads = [filled(VerifiedHead, head, first=found.firsts.get(head.shard, 1)) for head in found.heads]
    signers = [filled(VerifiedSigner, signer) for signer in found.signers]
    return filled(VerifyReply, found, journal=url, heads=heads, signers=signers)


def described_entry(entry: LogEntry, is_settled: Callable[[Owing], bool]) -> ExplainedEntry:
    """An entry of an agent's log; of each of its effects, whether it is settled."""
    effects = [filled(ExplainedEffect, one, settled=is_settled(one)) for one in entry.effects]
    return filled(ExplainedEntry, entry, effects=effects)


def described_letter(letter: DeadLetter) -> LetterReply:
    """A dead letter."""
    return filled(LetterReply, letter, type=tag_of(letter.input), fields=readable_fields(letter.input))


def described_command(one: CommandOnItsWay | Remembered) -> CommandReply:
    """A command for an agent elsewhere that is on its way, or the answer to one."""
    if isinstance(one, CommandOnItsWay):
        asked, expires = readable_time(one.asked_ns), readable_time(one.expires_ns)
        return filled(CommandReply, one, type=tag_of(one.command), asked=asked, expires=expires)
    answered, accepted = readable_time(one.time_ns), one.refused is None
    return filled(CommandReply, one, answered=answered, accepted=accepted, standing=one.refused or "")


def span_of(journal: Journal, mode: str, node: str = "") -> SpanReply:
    """From when to when a log goes. Reads one commit at each end of each shard."""
    times: list[int] = []
    for head in journal.heads():
        first = journal.first_position(head.shard)
        ends = (next(iter(journal.read(head.shard, after=after)), None) for after in (first - 1, head.position - 1))
        times += [stored.sealed.time_ns for stored in ends if stored is not None]
    return SpanReply(mode, min(times, default=None), max(times, default=None), node)
