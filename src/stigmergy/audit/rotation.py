"""Enrols and revokes signers on a stopped journal, without the users' classes.

It appends one commit to the log of the signers' shard, signed by a key that may sign there. It first verifies the whole
journal: a change of signer must not build on an inconsistent log.
"""

from __future__ import annotations

from stigmergy.agents.codec import encode
from stigmergy.agents.messages import Event
from stigmergy.agents.supervision import SHARD_ADDRESS, SignerEnrolled, SignerRevoked
from stigmergy.audit.verification import Verification
from stigmergy.base.clock import Clock
from stigmergy.base.errors import JournalCorrupt, WrongKey
from stigmergy.base.trust import Signer, Verifier
from stigmergy.journal.port import Journal
from stigmergy.journal.signers import Key, check_enrolment, check_revocation, key_name
from stigmergy.shard.commit import (
    COMMIT_FORMAT,
    Commit,
    EventRun,
    Group,
    HashAlgorithm,
    Head,
    Sealed,
    Signature,
    genesis_of,
    head_of,
    seal,
    statement,
)
from stigmergy.shard.state import EnrolledSigner as KnownSigner


class Rotation:
    """Changes the signers of one journal, which must be open for writing."""

    def __init__(self, journal: Journal, signer: Signer, verifier: Verifier, clock: Clock) -> None:
        self._journal = journal
        self._signer = signer
        self._verifier = verifier
        self._clock = clock
        self._signers = self._verified_signers()
        heads = {head.shard: head for head in journal.heads()}
        shard = journal.identity.signers_shard
        self._head = heads.get(shard, Head(shard, 0, 0, genesis_of(journal.identity.fleet, shard)))

    async def enrol(self, key: Key) -> int:
        """Lets another key sign from the next commit on; returns the position that says so."""
        check_enrolment(self._signers, self._verifier, key)
        return await self._append(
            SignerEnrolled(algorithm=key[0], public_key=key[1], cites=self._head.digest, epoch=self._head.epoch)
        )

    async def accept(self, signer: Signer) -> int:
        """The new key signs the ends of all shards, in a commit that says nothing: its node need trust no other."""
        return await self._append_signed(None, signer)

    async def revoke(self, key: Key, last_position: int | None = None) -> int:
        """A key's signatures count up to this position, or to the end of the log as it is; returns where it says so."""
        last = self._head.position if last_position is None else last_position
        signed_by = (self._signer.algorithm, self._signer.public_key)
        check_revocation(self._signers, key, signed_by, last, self._head.position)
        return await self._append(SignerRevoked(algorithm=key[0], public_key=key[1], last_position=last))

    def _verified_signers(self) -> list[KnownSigner]:
        found = Verification(self._journal, self._verifier).run()
        if not found.sound:
            first = found.problems[0]
            raise JournalCorrupt(
                f"shard {first.shard}, position {first.position}: {first.what}; nothing was changed: "
                "see all of it with stigmergy log verify, and restore a copy"
            )
        own = (self._signer.algorithm, self._signer.public_key)
        signers = [KnownSigner(one.algorithm, one.public_key, one.revoked_after) for one in found.signers]
        if KnownSigner(*own) not in signers:
            raise WrongKey(f"the key {key_name(own[1])} may not sign this journal; give one that is enrolled")
        return signers

    async def _append(self, event: Event) -> int:
        return await self._append_signed(event, self._signer)

    async def _append_signed(self, event: Event | None, signer: Signer) -> int:
        sealed = self._sealed(event)
        own = head_of(sealed)
        ends = {head.shard: head for head in self._journal.heads()} | {own.shard: own}
        heads = [ends[shard] for shard in sorted(ends)]
        value = signer.sign(statement(heads))
        signature = Signature(signer.algorithm, signer.public_key, heads, value)
        await self._journal.append(Group(commits=(sealed,), signature=signature))
        self._head = own
        return sealed.position

    def _sealed(self, event: Event | None) -> Sealed:
        last_ns = max((self._time_ns(head) for head in self._journal.heads()), default=0)
        time_ns = max(self._clock.wall_ns(), last_ns)
        return seal(
            Commit(
                format=COMMIT_FORMAT,
                hash_algorithm=HashAlgorithm.BLAKE3_256,
                shard=self._head.shard,
                position=self._head.position + 1,
                epoch=self._head.epoch,
                previous=self._head.digest,
                runs=[EventRun(events=int(event is not None), time_ns=time_ns, source=SHARD_ADDRESS)],
                events=[] if event is None else [(SHARD_ADDRESS, encode(event))],
                incarnation=self._journal.identity.incarnation,
            )
        )

    def _time_ns(self, head: Head) -> int:
        return max((stored.sealed.time_ns for stored in self._journal.read(head.shard, head.position - 1)), default=0)
