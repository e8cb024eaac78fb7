"""Checks, while a log is read, that keys which the log has enrolled vouch for the heads of all shards.

Recovery asks for the last signature of each signer's run, `every_signature` for all. Whether each signer was enrolled
by one before it is for `verification`, which reads the log from its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence

from stigmergy.core.commit import Head, Signature, statement
from stigmergy.core.errors import BadSignature, WrongKey
from stigmergy.core.state import ShardState
from stigmergy.ports.journal import StoredCommit
from stigmergy.ports.trust import Verifier


def key_name(key: bytes) -> str:
    """How a message names a key: enough of it to find it in a list."""
    return f"{key.hex()[:16]}…"


def covers(verifier: Verifier, signature: Signature) -> bool:
    """Whether the key named in the signature signed exactly these heads."""
    bytes_signed = statement(signature.heads)
    return verifier.verify(signature.algorithm, signature.key, bytes_signed, signature.value)


class SignatureCheck:
    """Takes in the signatures of a log as it is replayed, shard by shard."""

    def __init__(self, verifier: Verifier, *, every_signature: bool) -> None:
        self._verifier = verifier
        self._every_signature = every_signature
        self._last: dict[int, Signature] = {}
        """Per shard the last signature of the current signer's run, not yet verified."""
        self._claims: dict[int, tuple[Head, dict[bytes, Signature]]] = {}
        """Per shard the highest head that signatures name, by key. They may be kept with commits of other shards."""
        self._verified: dict[bytes, None] = {}

    def take(self, state: ShardState, stored: StoredCommit) -> None:
        """Takes in the signature of a commit that was just applied, if it has one."""
        signature = stored.signature
        if signature is None:
            return
        shard = state.shard
        own = [head for head in signature.heads if head.shard == shard]
        if [(head.position, head.digest) for head in own] != [(state.position, state.digest)]:
            raise BadSignature(
                f"shard {shard}, position {state.position}: the signature stored here is for another commit"
            )
        for head in signature.heads:
            claim = self._claims.get(head.shard)
            if claim is None or head.position > claim[0].position:
                self._claims[head.shard] = (head, {signature.key: signature})
            elif head == claim[0]:
                # Several keys may vouch for one end: after a rotation the new one signs what the old one has signed.
                claim[1][signature.key] = signature
            elif head.position == claim[0].position:
                raise BadSignature(
                    f"shard {head.shard}, position {head.position}: two signatures name different commits there; "
                    "one of them is forged: compare with a copy"
                )
        before = self._last.get(shard)
        if before is not None and (before.algorithm, before.key) != (signature.algorithm, signature.key):
            self._verify(before)
        self._last[shard] = signature
        if self._every_signature:
            self._verify(signature)

    def forget(self, shard: int) -> None:
        """The shard is read again from elsewhere. What signatures claim stays: other shards hold some of them."""
        self._last.pop(shard, None)

    def finish(self, states: Sequence[ShardState]) -> int:
        """Verifies the last signature of each run, and that one covers every head; returns how many it verified.

        The first of the states is that of the shard in which signers are enrolled.
        """
        for shard in sorted(self._last):
            self._verify(self._last[shard])
        for state in states:
            if not state.position:
                continue
            claim = self._claims.get(state.shard)
            if claim is None or (claim[0].position, claim[0].digest) != (state.position, state.digest):
                raise BadSignature(
                    f"shard {state.shard}: no signature covers position {state.position}, the end of its log; "
                    "it was cut or forged: compare with a copy"
                )
            for signature in claim[1].values():
                self._verify(signature)
                self._check_signer(state.shard, signature, states[0])
        return len(self._verified)

    @property
    def last_signers(self) -> list[list[bytes]]:
        """For each shard that has a log, the keys whose signatures cover its end."""
        return [list(self._claims[shard][1]) for shard in sorted(self._claims)]

    def _check_signer(self, shard: int, signature: Signature, signers_state: ShardState) -> None:
        """Who signed a shard's end is enrolled, and has not signed past its revocation."""
        last_position = {
            (signer.algorithm, signer.public_key): signer.revoked_after for signer in signers_state.signers
        }
        key = (signature.algorithm, signature.key)
        if key not in last_position:
            raise WrongKey(
                f"shard {shard}: the log ends with a signature by {key_name(signature.key)}, which it never "
                "enrolled; somebody else has written it"
            )
        revoked_after = last_position[key]
        signed = max((head.position for head in signature.heads if head.shard == signers_state.shard), default=0)
        if revoked_after is not None and signed > revoked_after:
            raise WrongKey(
                f"shard {shard}: the log ends at {signed} with a signature by {key_name(signature.key)}, whose "
                f"signatures count up to {revoked_after}; somebody has written with a revoked key: restore a copy"
            )

    def _verify(self, signature: Signature) -> None:
        # By the signature's own bytes and what they are over: one that was verified need not be verified again.
        seen = signature.value + statement(signature.heads)
        if seen in self._verified:
            return
        self._verified[seen] = None
        if not covers(self._verifier, signature):
            raise BadSignature(
                f"the signature by {key_name(signature.key)} over {len(signature.heads)} heads does not verify; "
                "the log was changed after it was signed"
            )
