"""The history of a journal's signers: who enrolled whom, and until where their signatures count.

The first commit enrols the key that signs it. Every other key is enrolled, or revoked, in a commit signed by a key that
was valid then. `verification` feeds it in the order of the log; it decodes only the framework's own events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import UNDECODABLE, tag_of
from stigmergy.agents.messages import spec_of
from stigmergy.agents.supervision import SHARD_ADDRESS, SignerEnrolled, SignerRevoked
from stigmergy.base.errors import BadSignature, ConfigError, TrustError, WrongKey
from stigmergy.base.trust import Verifier
from stigmergy.journal.port import StoredCommit
from stigmergy.shard.commit import Commit, Head, Signature, statement
from stigmergy.shard.state import EnrolledSigner, ShardState

# Checks, while a log is read, that enrolled keys signed the heads of all shards.
#
# Recovery needs the last signature of each signer's run, `every_signature` checks all. `verification`, which reads the
# log from its beginning, checks that each signer was enrolled by an earlier one.


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


def check_enrolment(signers: Sequence[EnrolledSigner], verifier: Verifier, key: Key) -> None:
    """Refuses a key that is no good, or that this log knows already."""
    if reason := verifier.acceptable(*key):
        raise TrustError(f"the key {key_name(key[1])} cannot be enrolled: {reason}; make another one")
    for signer in signers:
        if (signer.algorithm, signer.public_key) == key:
            what = "is enrolled already" if signer.revoked_after is None else "was revoked, and stays so: make another"
            raise WrongKey(f"the key {key_name(key[1])} {what}")


def check_own_key(signers: Sequence[EnrolledSigner], key: Key) -> None:
    """Refuses to go on with a log in which our key may not sign."""
    known = {(signer.algorithm, signer.public_key): signer.revoked_after for signer in signers}
    if key not in known or known[key] is not None:
        what = "was revoked" if key in known else "is not enrolled"
        raise WrongKey(
            f"the key {key_name(key[1])} {what} in this journal; start with the key that signed it last, or "
            "let that one enrol this one: stigmergy keys rotate. If every enrolled key is lost, this log can still be "
            "read, verified and exported (stigmergy log), and not be continued: start a new journal"
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
                "the holder of that key may have written all of it: start with it, or trust it with --trust"
            )
        ours = False
    return ours


def check_revocation(
    signers: Sequence[EnrolledSigner], key: Key, signed_by: Key, last_position: int, head: int
) -> None:
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

    def adopt(self, signers: Sequence[EnrolledSigner]) -> None:
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
