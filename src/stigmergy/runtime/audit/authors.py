"""Under which ids an agent wrote to its shared fields, as a commit says: the key that they come from is not here."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stigmergy.core.codec import tag_of
from stigmergy.core.commit import Commit
from stigmergy.core.messages import spec_of
from stigmergy.core.sharing import SharedChanged
from stigmergy.crdt.delta import read_delta

WRITTEN = spec_of(SharedChanged).tag
"""What the framework says and an agent has decided all the same: a write to a shared field."""
_changed = msgspec.msgpack.Decoder(SharedChanged)


def replicas_in(
    commit: Commit, address: str, index: int, otherwise: Callable[[str], tuple[bytes, ...]]
) -> Callable[[str], tuple[bytes, ...]]:
    """For each field the id under which this agent wrote to it, from this event on: each may have begun anew alone."""

    def replicas_of(field: str) -> tuple[bytes, ...]:
        for whose, body in commit.events[index:]:
            if whose == address and tag_of(body) == WRITTEN:
                changed = _changed.decode(body)
                if changed.field == field:
                    return (read_delta(changed.delta).replica,)
        return otherwise(address)

    return replicas_of
