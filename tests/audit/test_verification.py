"""Verification finds what was changed and who did not sign it, and says where; real logs, of one shard and several."""

import asyncio
from collections.abc import Callable

import pytest
from msgspec import structs

from stigmergy import Agent, Command, Event, Events, Fleet, Settings, Snapshots, decide, evolve
from stigmergy.audit.rotation import Rotation
from stigmergy.audit.verification import PROBLEMS_MAX, Verification, Verified
from stigmergy.base.errors import BadSignature, JournalCorrupt, StigmergyError, WrongKey
from stigmergy.base.system import SystemClock, SystemEntropy
from stigmergy.control.live import Live
from stigmergy.journal.memory import MemoryJournal, MemoryJournalStore
from stigmergy.journal.port import JournalIdentity, StoredCommit
from stigmergy.journal.recovery import Recovery
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.node.host import Host, open_host
from stigmergy.shard.commit import Commit, Signature, digest_commit, head_of, open_commit, seal, statement

OLD, NEW, THIEF = (Ed25519Signer(bytes([number]) * 32) for number in (1, 2, 3))


class Count(Command):
    by: int


class Counted(Event):
    by: int


class Counter(Agent):
    total: int = 0

    @decide
    def count(self, command: Count) -> Events:
        yield Counted(by=command.by)

    @evolve
    def counted(self, event: Counted) -> None:
        self.total += event.by


def a_fleet(shards: int) -> Fleet:
    settings = Settings(snapshots=Snapshots(every_events=10, tail_ratio=0.0, share_max=1000.0))
    return Fleet("counting", agents=[Counter], shards=shards, settings=settings)


def a_store(shards: int) -> MemoryJournalStore:
    return MemoryJournalStore(JournalIdentity(fleet="counting", shards=shards, incarnation=1))


async def run(
    store: MemoryJournalStore, signer: Ed25519Signer, use: Callable[[Live, Host], object] | None = None
) -> None:
    """Starts a node, counts in all shards, and stops it."""
    store.owner = None
    trusted = (OLD.public_key, NEW.public_key)
    fleet = a_fleet(store.identity.shards)
    host = open_host(fleet, MemoryJournal(store), signer, Ed25519Verifier(), SystemClock(), trusted=trusted)
    await host.start()
    live = Live(host, SystemEntropy())
    for number in range(20):
        # Together, so that one group has commits of several shards, and one signature for all of them.
        await asyncio.gather(*(live.send(f"Counter/{name}", Count(by=number)) for name in range(number % 4 + 1)))
    if use is not None:
        use(live, host)
    await host.stop()


def verify(store: MemoryJournalStore, trusted: Ed25519Signer | None = None) -> Verified:
    store.owner = None
    key = None if trusted is None else (trusted.algorithm, trusted.public_key)
    return Verification(MemoryJournal(store), Ed25519Verifier(), trusted_key=key).run()


def recover(store: MemoryJournalStore) -> None:
    store.owner = None
    fleet = a_fleet(store.identity.shards)
    Recovery(MemoryJournal(store), fleet.plans, Ed25519Verifier(), fleet.settings.limits).recover()


def problems(store: MemoryJournalStore) -> list[tuple[int, int, str]]:
    return [(one.shard, one.position, one.what) for one in verify(store).problems]


@pytest.mark.parametrize("shards", [1, 2, 5])
async def test_a_log_as_it_was_written(shards: int) -> None:
    store = a_store(shards)
    await run(store, OLD)
    await run(store, OLD)
    found = verify(store, trusted=OLD)
    assert found.problems == []
    assert found.commits == sum(len(kept) for kept in store.commits.values())
    assert found.events == sum(stored.sealed.events for kept in store.commits.values() for stored in kept)
    assert found.snapshots > 0
    assert [(signer.enrolled_at, signer.public_key) for signer in found.signers] == [(1, OLD.public_key)]
    assert found.signers[0].signatures == found.signatures
    assert not verify(store, trusted=NEW).sound


def test_an_empty_journal_is_sound() -> None:
    assert verify(a_store(3)).sound


@pytest.mark.parametrize("shards", [1, 3])
async def test_rotated_and_revoked(shards: int) -> None:
    store = a_store(shards)
    await run(store, OLD)
    await run(store, OLD, lambda live, _: live.enroll_signer(NEW.algorithm, NEW.public_key))
    last = len(store.commits[0])
    await run(store, NEW, lambda live, _: live.revoke_signer(OLD.algorithm, OLD.public_key, last))
    await run(store, NEW)
    found = verify(store, trusted=NEW)
    assert found.problems == []
    assert verify(store, trusted=OLD).sound
    assert [(one.public_key, one.revoked_after) for one in found.signers] == [
        (OLD.public_key, last),
        (NEW.public_key, None),
    ]
    assert found.signers[1].enrolled_by == OLD.public_key


async def test_rotated_while_nobody_ran() -> None:
    store = a_store(2)
    await run(store, OLD)
    store.owner = None
    rotation = Rotation(MemoryJournal(store), OLD, Ed25519Verifier(), SystemClock())
    assert await rotation.enrol((NEW.algorithm, NEW.public_key)) == len(store.commits[0])
    await run(store, NEW)
    store.owner = None
    rotation = Rotation(MemoryJournal(store), NEW, Ed25519Verifier(), SystemClock())
    await rotation.revoke((OLD.algorithm, OLD.public_key))
    assert verify(store, trusted=NEW).sound
    with pytest.raises(WrongKey, match="was revoked"):
        await run(store, OLD)
    store.owner = None
    with pytest.raises(WrongKey, match="may not sign"):
        Rotation(MemoryJournal(store), THIEF, Ed25519Verifier(), SystemClock())


# What somebody may do to a log. `altered` rewrites one commit; `forged` rewrites everything behind it as well.


def altered(store: MemoryJournalStore, shard: int, at: int, **changes: object) -> None:
    stored = store.commits[shard][at - 1]
    sealed = structs.replace(stored.sealed, **changes)
    store.commits[shard][at - 1] = StoredCommit(sealed, stored.signature)


def rewritten(
    store: MemoryJournalStore, position: int, change: Callable[[Commit], Commit], signer: Ed25519Signer
) -> None:
    """A forger with a key of their own: changes a commit and signs it and all behind it anew."""
    kept = store.commits[0]
    previous = kept[position - 2].sealed.digest if position > 1 else bytes(32)
    for index in range(position - 1, len(kept)):
        commit = open_commit(kept[index].sealed.body)
        commit = change(commit) if index == position - 1 else commit
        sealed = seal(structs.replace(commit, previous=previous))
        heads = [head_of(sealed)]
        signature = Signature(signer.algorithm, signer.public_key, heads, signer.sign(statement(heads)))
        kept[index] = StoredCommit(sealed, signature)
        previous = sealed.digest


def without_events(commit: Commit) -> Commit:
    return structs.replace(commit, events=[], runs=[structs.replace(run, events=0) for run in commit.runs])


async def test_a_changed_body() -> None:
    store = a_store(1)
    await run(store, OLD)
    body = store.commits[0][6].sealed.body
    altered(store, 0, 7, body=body.replace(b"by", b"bx"))
    assert problems(store) == [(0, 7, "the bytes do not have the digest they were stored with")]
    store.snapshots.clear()
    with pytest.raises(JournalCorrupt):
        recover(store)


async def test_a_changed_body_with_its_digest_made_to_fit() -> None:
    store = a_store(1)
    await run(store, OLD)
    body = store.commits[0][6].sealed.body.replace(b"by", b"bx")
    altered(store, 0, 7, body=body, digest=digest_commit(body))
    found = problems(store)
    assert (0, 7, "the signature is over another digest than this commit has") in found
    assert (0, 8, "does not cite the commit before it: the chain is broken") in found


@pytest.mark.parametrize("changes", [{"epoch": 9}, {"time_ns": 5}, {"events": 7}, {"position": 99}])
async def test_changed_columns(changes: dict[str, int]) -> None:
    store = a_store(1)
    await run(store, OLD)
    altered(store, 0, 4, **changes)
    assert any("is stored as" in what for _, _, what in problems(store))


async def test_a_forger_without_an_enrolled_key() -> None:
    store = a_store(1)
    await run(store, OLD)
    rewritten(store, 9, without_events, THIEF)
    found = problems(store)
    assert found[0][1] == 9
    assert "which was not enrolled by then" in found[0][2]
    store.snapshots.clear()
    with pytest.raises(WrongKey, match="never enrolled"):
        recover(store)


async def test_a_forger_who_enrols_their_own_key() -> None:
    store = a_store(1)
    await run(store, OLD)
    await run(store, OLD, lambda live, _: live.enroll_signer(THIEF.algorithm, THIEF.public_key))
    enrolled_at = verify(store).signers[1].enrolled_at
    # The commit that enrols it must itself be signed by somebody else.
    rewritten(store, enrolled_at, lambda commit: commit, THIEF)
    assert problems(store)[0][1] == enrolled_at


async def test_a_forger_who_rewrites_everything_is_found_by_the_key() -> None:
    store = a_store(1)
    await run(store, THIEF)
    assert verify(store).sound
    found = verify(store, trusted=OLD)
    assert [one.what for one in found.problems] == ["the key given neither began this log nor signed its end"]


async def test_a_revoked_key_that_signs_on() -> None:
    store = a_store(1)
    await run(store, OLD, lambda live, _: live.enroll_signer(NEW.algorithm, NEW.public_key))
    last = len(store.commits[0])
    await run(store, NEW, lambda live, _: live.revoke_signer(OLD.algorithm, OLD.public_key, last))
    await run(store, NEW)
    rewritten(store, len(store.commits[0]) - 1, lambda commit: commit, OLD)
    found = problems(store)
    assert len(found) == 2
    assert all(f"whose signatures count up to {last}" in what for _, _, what in found)
    with pytest.raises(WrongKey, match="revoked key"):
        recover(store)


async def test_a_signature_moved_away() -> None:
    store = a_store(1)
    await run(store, OLD)
    kept = store.commits[0]
    kept[4] = StoredCommit(kept[4].sealed, kept[5].signature)
    assert problems(store) == [(0, 5, "the signature stored here is for another commit")]
    kept[4] = StoredCommit(kept[4].sealed, None)
    assert problems(store) == [(0, 5, "no signature covers this commit")]


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_signature_missing_at_the_end(shards: int) -> None:
    store = a_store(shards)
    await run(store, OLD)
    shard = shards - 1
    kept = store.commits[shard]
    kept[-1] = StoredCommit(kept[-1].sealed, None)
    assert (shard, len(kept), "no signature covers the end of the log: it was cut or forged") in problems(store)
    with pytest.raises(StigmergyError):
        recover(store)


async def test_commits_missing_in_one_of_several_shards() -> None:
    store = a_store(3)
    await run(store, OLD)
    store.snapshots.clear()
    together = [stored.signature for stored in store.commits[2] if stored.signature and len(stored.signature.heads) > 1]
    head = together[-1].heads[0]
    del store.commits[head.shard][head.position - 1 :]
    what = "is missing, although a signature in shard 2 names it"
    assert (head.shard, head.position, what) in problems(store)
    with pytest.raises(BadSignature):
        recover(store)


async def test_a_snapshot_with_other_bytes() -> None:
    store = a_store(1)
    await run(store, OLD)
    (shard, position), parts = next(iter(store.snapshots.items()))
    store.snapshots[shard, position] = [structs.replace(parts[0], body=parts[0].body + b"x"), *parts[1:]]
    assert problems(store) == [(0, position, "the snapshot's bytes are not those that the log notes")]
    del store.snapshots[shard, position]
    assert verify(store).sound


async def test_an_unfinished_snapshot_is_harmless() -> None:
    store = a_store(1)
    await run(store, OLD)
    store.snapshots[0, 1] = next(iter(store.snapshots.values()))
    found = verify(store)
    assert found.sound
    assert found.snapshots_unfinished == 1


async def test_a_log_whose_beginning_was_dropped() -> None:
    store = a_store(1)
    await run(store, OLD, lambda live, _: live.enroll_signer(NEW.algorithm, NEW.public_key))
    await run(store, NEW)
    store.owner = None
    first = min(position for _, position in store.snapshots)
    await MemoryJournal(store).drop(0, first)
    found = verify(store, trusted=OLD)
    assert found.problems == []
    assert found.firsts == {0: first + 1}
    store.snapshots.clear()
    assert any("no snapshot says who may sign" in what for _, _, what in problems(store))


async def test_the_list_of_problems_ends() -> None:
    store = a_store(1)
    for _ in range(7):
        await run(store, OLD)
    for position in range(2, 130):
        altered(store, 0, position, epoch=7)
    assert len(verify(store).problems) == PROBLEMS_MAX


@pytest.mark.parametrize("shards", [2, 3])
async def test_recovery_finds_the_signature_of_a_shard_that_has_been_idle(shards: int) -> None:
    """The signature over an idle shard's head lies in another shard, maybe before the snapshot that one starts from."""
    store = a_store(shards)
    await run(store, OLD)
    store.owner = None
    host = open_host(a_fleet(shards), MemoryJournal(store), OLD, Ed25519Verifier(), SystemClock())
    await host.start()
    live = Live(host, SystemEntropy())
    names = [f"Counter/{number}" for number in range(50)]
    busy = next(name for name in names if host.intake.shard_of(name) == shards - 1)
    idle = next(name for name in names if host.intake.shard_of(name) == 0)
    await asyncio.gather(live.send(idle, Count(by=1)), live.send(busy, Count(by=1)))
    for number in range(60):
        await live.send(busy, Count(by=number))
    await host.stop()
    assert store.commits[0][-1].signature is None
    first_signed_at = min(
        stored.sealed.position
        for stored in store.commits[shards - 1]
        if stored.signature is not None and stored.signature.heads[0].shard == 0
    )
    assert max(position for shard, position in store.snapshots if shard == shards - 1) > first_signed_at
    assert verify(store).sound
    recover(store)
