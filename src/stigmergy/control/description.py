"""What a node says about itself, for people and programs: plain values with documented keys.

docs/control.md lists the keys. Nothing here asks anything; the caller passes in what is described.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import structs

from stigmergy.agents.codec import tag_of
from stigmergy.agents.display import plain_state
from stigmergy.agents.messages import Command, Event, Message
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.text import messages_of
from stigmergy.audit.copier import CopyStanding
from stigmergy.audit.history import PastState
from stigmergy.audit.listing import readable_fields, readable_time
from stigmergy.audit.verification import Verified
from stigmergy.journal.recovery import Recovered
from stigmergy.network.bus_link import LinkStatus
from stigmergy.network.replication import ReplicationStatus
from stigmergy.shard.memory import DeadLetter


def described_sight(address: str, sight: PastState, stopped: str | None = None) -> dict[str, Any]:
    """The state of an agent as it is told to people and programs."""
    return {
        "agent": address,
        "known": sight.known,
        "shard": sight.shard,
        "position": sight.position,
        "time": readable_time(sight.time_ns) if sight.position else None,
        "stopped": stopped,
        "state": plain_state(sight.agent),
    }


def described_kind(plan: AgentPlan) -> dict[str, Any]:
    """What may be sent to agents of a kind, and told them: messages with the names of their fields."""
    return {
        "commands": {message.__name__: _fields_of(message) for message in messages_of(plan, Command)},
        "events": {message.__name__: _fields_of(message) for message in messages_of(plan, Event)},
    }


def described_head(head: Any) -> dict[str, Any]:
    """Where a shard stands."""
    return {"shard": head.shard, "position": head.position, "epoch": head.epoch, "digest": head.digest.hex()}


def described_link(link: LinkStatus) -> dict[str, Any]:
    """How a node stands with its bus."""
    found: dict[str, Any] = {"state": link.link, "why": link.why, "owed": link.owed, "members": link.members}
    return found if link.uplink is None else {**found, "uplink": msgspec.structs.asdict(link.uplink)}


def described_replication(company: ReplicationStatus) -> dict[str, Any]:
    """How a node stands with its peers and its ledger; nothing of what it does not have."""
    found: dict[str, Any] = {}
    if company.shared is not None:
        found["shared"] = msgspec.to_builtins(company.shared)
    if company.claims is not None:
        found["claims"] = msgspec.to_builtins(company.claims)
    return found


def described_recovery(recovered: Recovered) -> dict[str, Any]:
    """What a start found."""
    return {
        "commits": recovered.commits,
        "events": recovered.events,
        "signatures": recovered.signatures,
        "snapshots": {str(shard): position for shard, position in sorted(recovered.snapshots.items())},
        "passed_over": recovered.passed_over,
    }


def described_copies(copies: Sequence[CopyStanding]) -> dict[str, Any]:
    """How far copies of the journal are, where there are any."""
    if not copies:
        return {}
    found = [{**structs.asdict(one), "made": readable_time(one.made_ns) if one.made_ns else ""} for one in copies]
    return {"copies": [{name: value for name, value in one.items() if name != "made_ns"} for one in found]}


def described_verification(url: str, found: Verified) -> dict[str, Any]:
    """What a verification found."""
    return {
        "journal": url,
        "sound": found.sound,
        "commits": found.commits,
        "events": found.events,
        "signatures": found.signatures,
        "snapshots": found.snapshots,
        "snapshots_unfinished": found.snapshots_unfinished,
        "heads": [{**described_head(head), "first": found.firsts.get(head.shard, 1)} for head in found.heads],
        "signers": [
            {
                "algorithm": signer.algorithm,
                "public_key": signer.public_key.hex(),
                "enrolled_at": signer.enrolled_at,
                "revoked_after": signer.revoked_after,
                "signatures": signer.signatures,
            }
            for signer in found.signers
        ],
        "problems": [{"shard": one.shard, "position": one.position, "what": one.what} for one in found.problems],
    }


def described_letter(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter."""
    return {
        "letter": letter.letter,
        "agent": letter.agent,
        "source": letter.source,
        "type": tag_of(letter.input),
        "fields": readable_fields(letter.input),
        "error": letter.error,
    }


def _fields_of(message: type[Message]) -> list[str]:
    return [field.name for field in msgspec.structs.fields(message)]
