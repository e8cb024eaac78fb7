"""Under which id an agent wrote to its shared fields, as a commit says: the key that it comes from is not here."""

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


def replica_in(commit: Commit, address: str, otherwise: Callable[[str], bytes]) -> bytes:
    """The id under which this agent wrote in this commit; what `otherwise` says where it wrote nothing."""
    for whose, body in commit.events:
        if whose == address and tag_of(body) == WRITTEN:
            return read_delta(_changed.decode(body).delta).replica
    return otherwise(address)
