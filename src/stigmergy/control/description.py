"""Fills the replies that describe a node, an agent or a log. Nothing here asks anybody; values are handed in."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET

from stigmergy.agents.codec import tag_of
from stigmergy.agents.display import plain_state
from stigmergy.agents.messages import Command, Event
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.text import messages_of
from stigmergy.audit.copier import CopyStanding
from stigmergy.audit.history import PastState
from stigmergy.audit.listing import LogEntry, Owing, readable_fields, readable_time
from stigmergy.audit.verification import Verified
from stigmergy.control.replies import (
    CommandReply,
    CopyReply,
    ExplainedEffect,
    ExplainedEntry,
    KindNames,
    LetterReply,
    LinkReply,
    RecoveryReply,
    StateReply,
    VerifiedHead,
    VerifiedSigner,
    VerifyReply,
    filled,
)
from stigmergy.journal.recovery import Recovered
from stigmergy.network.bus_link import LinkStatus
from stigmergy.network.forwarder import CommandOnItsWay
from stigmergy.shard.memory import DeadLetter, Remembered


def described_sight(address: str, sight: PastState, stopped: str | None = None) -> StateReply:
    """The state of an agent."""
    time = readable_time(sight.time_ns) if sight.position else None
    return filled(StateReply, sight, agent=address, time=time, stopped=stopped, state=plain_state(sight.agent))


def described_kind(plan: AgentPlan) -> KindNames:
    """What may be sent to agents of a kind, and told them: messages with the names of their fields."""
    return KindNames(
        {message.__name__: list(message.__struct_fields__) for message in messages_of(plan, Command)},
        {message.__name__: list(message.__struct_fields__) for message in messages_of(plan, Event)},
    )


def described_link(link: LinkStatus) -> LinkReply:
    """How a node stands with its bus."""
    return filled(LinkReply, link, state=link.link, uplink=UNSET if link.uplink is None else link.uplink)


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
