"""The history of a journal's signers: who was enrolled by whom, and until where their signatures count.

The first commit enrols the key that signs it. Every other key is enrolled, or revoked, in a commit that a key signed
which was valid then. Fed by `verification` in the order of the log; it decodes only the framework's own events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from stigmergy.core.codec import UNDECODABLE, tag_of
from stigmergy.core.commit import Commit, Head, Signature
from stigmergy.core.errors import ConfigError, TrustError, WrongKey
from stigmergy.core.messages import spec_of
from stigmergy.core.state import Signer
from stigmergy.core.supervision import SHARD_ADDRESS, SignerEnrolled, SignerRevoked
from stigmergy.ports.trust import Verifier
from stigmergy.runtime.audit.signatures import key_name

_ENROLLED_TAG = spec_of(SignerEnrolled).tag
_REVOKED_TAG = spec_of(SignerRevoked).tag
_change_decoder = msgspec.msgpack.Decoder(SignerEnrolled | SignerRevoked)

Key = tuple[int, bytes]
SignerChange = SignerEnrolled | SignerRevoked


class SignerRecord(Struct):
    """A signer as the log has it. `enrolled_at` is 0 where the log from before a snapshot was dropped."""

    algorithm: int
    public_key: bytes
    enrolled_at: int
    enrolled_by: bytes
    revoked_after: int | None = None
    signatures: int = 0


def check_enrolment(signers: Sequence[Signer], verifier: Verifier, key: Key) -> None:
    """Refuses a key that is no good, or that this log knows already."""
    if reason := verifier.acceptable(*key):
        raise TrustError(f"the key {key_name(key[1])} cannot be enrolled: {reason}; make another one")
    for signer in signers:
        if (signer.algorithm, signer.public_key) == key:
            what = "is enrolled already" if signer.revoked_after is None else "was revoked, and stays so: make another"
            raise WrongKey(f"the key {key_name(key[1])} {what}")


def check_own_key(signers: Sequence[Signer], key: Key) -> None:
    """Refuses to go on with a log in which our key may not sign."""
    known = {(signer.algorithm, signer.public_key): signer.revoked_after for signer in signers}
    if key not in known or known[key] is not None:
        what = "was revoked" if key in known else "is not enrolled"
        raise WrongKey(
            f"the key {key_name(key[1])} {what} in this journal; start with the key that signed it last, or "
            "let that one enrol this one: stigmergy keys rotate"
        )


def check_ends(ends: Sequence[Sequence[bytes]], key: Key, trusted: Sequence[bytes]) -> bool:
    """Refuses a log whose end neither we nor anybody we trust have signed; whether we have signed all ends ourselves.

    A log says of itself who may sign it. Only a signature of our own, or of a key that we were told to trust, says that
    this is the log which we know.
    """
    ours = True
    for keys in ends:
        if key[1] in keys:
            continue
        if not any(one in trusted for one in keys):
            raise WrongKey(
                f"the log ends with a signature by {key_name(keys[0])}, not by our key {key_name(key[1])}; "
                "whoever holds that one may have written all of it: start with it, or trust it with --trust"
            )
        ours = False
    return ours


def check_revocation(signers: Sequence[Signer], key: Key, signed_by: Key, last_position: int, head: int) -> None:
    """Refuses a revocation that would leave the log without a valid end."""
    known = {(signer.algorithm, signer.public_key): signer for signer in signers}
    if key not in known:
        raise WrongKey(f"the key {key_name(key[1])} is not enrolled in this journal; nothing to revoke")
    if (before := known[key].revoked_after) is not None:
        raise WrongKey(f"the key {key_name(key[1])} is revoked already, from position {before} on")
    if key == signed_by:
        raise WrongKey(
            f"the key {key_name(key[1])} signs this journal now; rotate to another key, start with that, then revoke"
        )
    if not 0 <= last_position <= head:
        raise ConfigError(f"last position {last_position}: the log has positions up to {head}; give one of them")


def signer_changes(commit: Commit) -> list[SignerChange]:
    """The enrolments and revocations in a commit; raises nothing for events of other kinds."""
    changes: list[SignerChange] = []
    for address, body in commit.events:
        if address == SHARD_ADDRESS and tag_of(body) in (_ENROLLED_TAG, _REVOKED_TAG):
            changes.append(_change_decoder.decode(body))
    return changes


class SignerHistory:
    """Knows at each point of the log who may sign. `problem` is told what does not hold, with its position."""

    def __init__(self, problem: Callable[[int, str], None]) -> None:
        self._problem = problem
        self.records: list[SignerRecord] = []
        self._by_key: dict[Key, SignerRecord] = {}

    def adopt(self, signers: Sequence[Signer]) -> None:
        """Takes over who is enrolled from a snapshot, where the log before it was dropped."""
        for signer in signers:
            record = SignerRecord(signer.algorithm, signer.public_key, 0, b"", signer.revoked_after)
            self._by_key[signer.algorithm, signer.public_key] = record
            self.records.append(record)

    def check(self, signature: Signature, head: Head | None, shard: int, position: int) -> None:
        """Whether this key may sign here. `head` is that of the signers' shard, where the group has one."""
        record = self._by_key.get((signature.algorithm, signature.key))
        if head is not None and head.position == 1:
            return  # the first commit brings its own key, and `take` sees whether it does
        where = f"shard {shard}, position {position}: " if shard else ""
        if record is None:
            self._problem(position, f"{where}signed by {key_name(signature.key)}, which was not enrolled by then")
            return
        record.signatures += 1
        if head is not None and record.revoked_after is not None and head.position > record.revoked_after:
            self._problem(
                position,
                f"{where}signed by {key_name(signature.key)}, whose signatures count up to {record.revoked_after}",
            )

    def take(self, commit: Commit, signed_by: Key | None) -> None:
        """Takes in the enrolments and revocations of a commit, after its own signature was checked."""
        try:
            changes = signer_changes(commit)
        except UNDECODABLE as error:
            self._problem(commit.position, f"an enrolment or revocation in it does not decode: {error}")
            return
        if commit.position == 1 and not any(_key_of(change) == signed_by for change in changes):
            self._problem(1, "the first commit does not enrol the key that signs it")
        for change in changes:
            if isinstance(change, SignerEnrolled):
                self._enrol(commit, change, signed_by)
            else:
                self._revoke(commit.position, change, signed_by)

    def _enrol(self, commit: Commit, change: SignerEnrolled, signed_by: Key | None) -> None:
        key = _key_of(change)
        if change.cites != commit.previous:
            self._problem(commit.position, f"the enrolment of {key_name(change.public_key)} cites another head")
        known = self._by_key.get(key)
        if known is not None and known.enrolled_at:
            self._problem(commit.position, f"enrols {key_name(change.public_key)} a second time")
            return
        record = SignerRecord(*key, commit.position, signed_by[1] if signed_by else b"")
        if known is not None:
            # The snapshot that says who is enrolled is younger than this commit: here is where it happened.
            known.enrolled_at, known.enrolled_by = record.enrolled_at, record.enrolled_by
            return
        record.signatures = 1 if commit.position == 1 else 0
        self._by_key[key] = record
        self.records.append(record)

    def _revoke(self, position: int, change: SignerRevoked, signed_by: Key | None) -> None:
        key = _key_of(change)
        record = self._by_key.get(key)
        if record is None:
            self._problem(position, f"revokes {key_name(change.public_key)}, which was never enrolled")
            return
        if key == signed_by and change.last_position < position:
            self._problem(position, f"{key_name(change.public_key)} revokes itself for this very commit")
        record.revoked_after = change.last_position
        for other in self.records:
            if other.enrolled_by == change.public_key and other.enrolled_at > change.last_position:
                self._problem(
                    position,
                    f"revokes {key_name(change.public_key)} from {change.last_position} on, which enrolled "
                    f"{key_name(other.public_key)} after that, at {other.enrolled_at}",
                )


def _key_of(change: SignerChange) -> Key:
    return (change.algorithm, change.public_key)
