"""Fills the replies that describe a node, an agent or a log. Nothing here asks anybody; values are handed in."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, structs

from stigmergy.agents.codec import tag_of
from stigmergy.agents.display import plain_state
from stigmergy.agents.messages import Command, Event, Message
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.text import messages_of
from stigmergy.audit.copier import CopyStanding
from stigmergy.audit.history import PastState
from stigmergy.audit.listing import readable_fields, readable_time
from stigmergy.audit.verification import Verified
from stigmergy.control.replies import (
    CopyReply,
    HeadReply,
    KindNames,
    LetterReply,
    LinkReply,
    RecoveryReply,
    StateReply,
    VerifiedHead,
    VerifiedSigner,
    VerifyReply,
)
from stigmergy.journal.recovery import Recovered
from stigmergy.network.bus_link import LinkStatus
from stigmergy.shard.commit import Head
from stigmergy.shard.memory import DeadLetter


def described_sight(address: str, sight: PastState, stopped: str | None = None) -> StateReply:
    """The state of an agent."""
    time = readable_time(sight.time_ns) if sight.position else None
    state = plain_state(sight.agent)
    return StateReply(address, sight.known, sight.shard, sight.position, time, stopped, state)


def described_kind(plan: AgentPlan) -> KindNames:
    """What may be sent to agents of a kind, and told them: messages with the names of their fields."""
    return KindNames(
        {message.__name__: _fields_of(message) for message in messages_of(plan, Command)},
        {message.__name__: _fields_of(message) for message in messages_of(plan, Event)},
    )


def described_head(head: Head) -> HeadReply:
    """Where a shard stands."""
    return HeadReply(head.shard, head.position, head.epoch, head.digest.hex())


def described_link(link: LinkStatus) -> LinkReply:
    """How a node stands with its bus."""
    return LinkReply(link.link, link.why, link.owed, link.members, UNSET if link.uplink is None else link.uplink)


def described_recovery(recovered: Recovered) -> RecoveryReply:
    """What a start found."""
    snapshots = {str(shard): position for shard, position in sorted(recovered.snapshots.items())}
    return RecoveryReply(recovered.commits, recovered.events, recovered.signatures, snapshots, recovered.passed_over)


def described_copy(copy: CopyStanding) -> CopyReply:
    """How far the copies in one store are."""
    told = {name: value for name, value in structs.asdict(copy).items() if name != "made_ns"}
    return CopyReply(**told, made=readable_time(copy.made_ns) if copy.made_ns else "")


def described_verification(url: str, found: Verified) -> VerifyReply:
    """What a verification found."""
    return VerifyReply(
        url,
        found.sound,
        found.commits,
        found.events,
        found.signatures,
        found.snapshots,
        found.snapshots_unfinished,
        heads=[
            VerifiedHead(head.shard, head.position, head.epoch, head.digest.hex(), found.firsts.get(head.shard, 1))
            for head in found.heads
        ],
        signers=[
            VerifiedSigner(one.algorithm, one.public_key.hex(), one.enrolled_at, one.revoked_after, one.signatures)
            for one in found.signers
        ],
        problems=found.problems,
    )


def described_letter(letter: DeadLetter) -> LetterReply:
    """A dead letter."""
    fields = readable_fields(letter.input)
    return LetterReply(letter.letter, letter.agent, letter.source, tag_of(letter.input), fields, letter.error)


def _fields_of(message: type[Message]) -> list[str]:
    return [field.name for field in msgspec.structs.fields(message)]
