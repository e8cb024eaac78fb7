"""A flight log proves itself: every byte counts, parts of a log hold together, and nobody else can have made it."""

import asyncio
from pathlib import Path

import pytest
from msgspec import structs

from stigmergy import Agent, Command, Event, Events, Fleet, decide, evolve
from stigmergy.audit.archive_folder import NewFile
from stigmergy.audit.flight import (
    FlightSelection,
    FlightVerification,
    FlightVerified,
    check_sealing,
    commits_in,
    make_flight,
)
from stigmergy.audit.flight_format import FLIGHT_MAGIC, FlightCommit, RecordKind, frame
from stigmergy.audit.flight_journal import INDEX_EVERY, FlightFile, open_flight
from stigmergy.audit.rotation import Rotation
from stigmergy.base.errors import Bug, ConfigError, JournalCorrupt, JournalError, JournalForeign
from stigmergy.base.system import SystemClock, SystemEntropy
from stigmergy.control.live import Live
from stigmergy.journal.memory import MemoryJournal, MemoryJournalStore
from stigmergy.journal.port import JournalIdentity
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.node.host import open_host
from stigmergy.shard.commit import (
    Commit,
    EventRun,
    Group,
    HashAlgorithm,
    Head,
    Signature,
    digest_commit,
    genesis_of,
    head_of,
    seal,
    statement,
)
from stigmergy.shard.homes import shard_of

SIGNER = Ed25519Signer(bytes(range(32)))
STRANGER = Ed25519Signer(bytes(range(1, 33)))
VERIFIER = Ed25519Verifier()


class Note(Command):
    text: str


class Noted(Event):
    text: str


class Pad(Agent):
    text: str = ""

    @decide
    def note(self, command: Note) -> Events:
        yield Noted(text=command.text)

    @evolve
    def noted(self, event: Noted) -> None:
        self.text = event.text


def recorded(shards: int = 1, notes: int = 6) -> MemoryJournal:
    """The journal of a node that has stopped."""
    store = MemoryJournalStore(JournalIdentity("pads", shards, 7))

    async def live() -> MemoryJournal:
        fleet = Fleet("pads", agents=[Pad], shards=shards)
        host = open_host(fleet, MemoryJournal(store), SIGNER, VERIFIER, SystemClock())
        await host.start()
        live = Live(host, SystemEntropy())
        await asyncio.gather(*(live.send(f"Pad/{n % 4}", Note(text=f"note {n}")) for n in range(notes)))
        await live.send("Pad/0", Note(text="the last one"))
        await host.stop()
        return MemoryJournal(store)

    return asyncio.run(live())


def write(
    path: Path, journal: MemoryJournal, cut: FlightSelection | None = None, signer: Ed25519Signer = SIGNER
) -> FlightFile:
    with NewFile(path) as file:
        for piece in make_flight(journal, signer, cut or FlightSelection(), made_ns=99):
            file.write(piece)
    return open_flight(path)


def verified(flight: FlightFile, trusted: Ed25519Signer | None = None) -> FlightVerified:
    key = None if trusted is None else (trusted.algorithm, trusted.public_key)
    try:
        return FlightVerification(flight, VERIFIER, trusted_key=key).run()
    finally:
        asyncio.run(flight.close())


def problems(found: FlightVerified) -> list[str]:
    return [problem.what for problem in found.verified.problems]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_whole_log_is_sound_and_says_what_is_in_it(tmp_path: Path, shards: int) -> None:
    journal = recorded(shards)
    found = verified(write(tmp_path / "whole", journal), trusted=SIGNER)
    assert problems(found) == []
    assert found.verified.commits == journal.size().commits == commits_in(journal, FlightSelection())
    assert found.agents == {"Pad/0": 3, "Pad/1": 2, "Pad/2": 1, "Pad/3": 1}
    assert (found.fleet, found.made_ns, found.sealed_by) == ("pads", 99, SIGNER.public_key)
    assert 0 < found.first_ns <= found.last_ns


def test_every_changed_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "flight"
    asyncio.run(write(path, recorded(notes=0)).close())
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        try:
            found = verified(open_flight(path))
        except JournalError:
            continue  # so damaged that it cannot even be opened, which is said as well
        assert problems(found), f"byte {place} of {len(whole)}"
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        try:
            found = verified(open_flight(path))
        except JournalError:
            continue
        assert problems(found), f"cut to {length} bytes"
    path.write_bytes(whole + b"\0")
    assert problems(verified(open_flight(path))) == ["1 bytes follow behind its end; somebody has added to it"]
    path.write_bytes(whole)
    assert not problems(verified(open_flight(path)))


def test_a_changed_commit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "flight"
    asyncio.run(write(path, recorded()).close())
    path.write_bytes(path.read_bytes().replace(b"the last one", b"the lost one"))
    flight = open_flight(path)
    position = flight.manifest.sections[0].last if flight.manifest else 0
    first = verified(flight).verified.problems[0]
    assert (first.shard, first.position) == (0, position)
    assert "a byte in it was changed" in first.what


@pytest.mark.parametrize("shards", [1, 3])
def test_one_agent_takes_its_shard_and_that_of_the_signers(tmp_path: Path, shards: int) -> None:
    journal = recorded(shards)
    flight = write(tmp_path / "one", journal, FlightSelection(agent="Pad/1", reason="incident 7"))
    assert {head.shard for head in flight.heads()} <= {0, shard_of("Pad/1", shards)}
    found = verified(flight, trusted=SIGNER)
    assert problems(found) == []
    assert found.agents["Pad/1"] == 2
    assert (found.agent, found.reason) == ("Pad/1", "incident 7")


def test_a_part_of_a_log_is_sound_by_itself(tmp_path: Path) -> None:
    """Also where the signature over a group is in a shard, or in a commit, that was left out."""
    journal = recorded(3)
    heads = {head.shard: head.position for head in journal.heads()}
    for shard, last in heads.items():
        ranges = ((shard, 2, last),) if last >= 2 else ((shard, 1, last),)
        assert problems(verified(write(tmp_path / "part", journal, FlightSelection(ranges=ranges)))) == []
    times = [stored.sealed.time_ns for stored in journal.read(0)]
    found = verified(write(tmp_path / "late", journal, FlightSelection(since_ns=times[1])))
    assert problems(found) == []
    assert found.first_ns >= times[1]
    early = verified(write(tmp_path / "early", journal, FlightSelection(until_ns=times[0])))
    assert problems(early) == []
    assert early.last_ns == times[0]
    with pytest.raises(ConfigError, match="nothing of the log is like that"):
        write(tmp_path / "none", journal, FlightSelection(until_ns=1))
    assert not (tmp_path / "none").exists()


def test_whose_log_it_is(tmp_path: Path) -> None:
    journal = recorded()
    by_stranger = problems(verified(write(tmp_path / "flight", journal, signer=STRANGER)))
    assert len(by_stranger) == 1
    assert "which the log never enrolled" in by_stranger[0]
    assert problems(verified(open_flight(tmp_path / "flight"), trusted=STRANGER)) == []
    ours = write(tmp_path / "flight", journal)
    assert problems(verified(ours, trusted=STRANGER)) == ["the key given neither sealed this file nor began its log"]


def test_after_a_rotation_the_newer_key_vouches_and_a_revoked_one_no_longer(tmp_path: Path) -> None:
    journal = recorded()

    async def rotate() -> None:
        by_old = Rotation(journal, SIGNER, VERIFIER, SystemClock())
        await by_old.enrol((STRANGER.algorithm, STRANGER.public_key))
        await by_old.accept(STRANGER)

    asyncio.run(rotate())
    for signer in (SIGNER, STRANGER):
        found = verified(write(tmp_path / "flight", journal, signer=signer), trusted=SIGNER)
        assert problems(found) == []
    tail = FlightSelection(ranges=((0, 2, journal.heads()[0].position),))
    assert problems(verified(write(tmp_path / "tail", journal, tail, signer=STRANGER))) == []

    async def revoke() -> None:
        by_new = Rotation(journal, STRANGER, VERIFIER, SystemClock())
        await by_new.revoke((SIGNER.algorithm, SIGNER.public_key))

    asyncio.run(revoke())
    assert problems(verified(write(tmp_path / "flight", journal, signer=STRANGER))) == []
    (wrong,) = problems(verified(write(tmp_path / "flight", journal, signer=SIGNER)))
    assert "which the log has revoked" in wrong


def test_a_log_that_was_rewritten_and_sealed_anew_does_not_pass(tmp_path: Path) -> None:
    """Somebody without the key changes a commit and makes everything else fit."""
    journal = recorded()
    kept = journal._store.commits[0]
    sealed = kept[-1].sealed
    body = sealed.body.replace(b"the last one", b"the lost one")
    assert body != sealed.body
    forged = structs.replace(sealed, body=body, digest=digest_commit(body))
    kept[-1] = structs.replace(kept[-1], sealed=forged)
    found = problems(verified(write(tmp_path / "flight", journal, signer=STRANGER), trusted=SIGNER))
    assert "the signature is over another digest than this commit has" in found
    assert any("which the log never enrolled" in what for what in found)


def test_it_is_read_like_a_journal_and_never_written(tmp_path: Path) -> None:
    journal = recorded()
    flight = write(tmp_path / "flight", journal)
    assert list(flight.read(0)) == list(journal.read(0))
    assert list(flight.read(0, after=3)) == list(journal.read(0, after=3))
    assert list(flight.read(0, after=10**6)) == list(flight.read(5)) == []
    assert (flight.heads(), flight.first_position(0), flight.first_position(9)) == (journal.heads(), 1, 1)
    assert flight.identity == journal.identity
    assert (flight.snapshots(0), list(flight.read_snapshot(0, 1))) == ([], [])

    async def writes() -> None:
        for write in (
            flight.append(Group((), Signature(1, b"", [], b""))),
            flight.put_snapshot(0, 1, []),
            flight.drop_snapshot(0, 1),
            flight.drop(0, 1),
        ):
            with pytest.raises(Bug, match="never written to"):
                await write
        await flight.close()

    asyncio.run(writes())


def test_a_long_section_is_read_from_anywhere(tmp_path: Path) -> None:
    store = MemoryJournalStore(JournalIdentity("long", 1, 1))
    journal = MemoryJournal(store)

    async def fill() -> None:
        previous = genesis_of("long", 0)
        for position in range(1, 2 * INDEX_EVERY + 10):
            sealed = seal(
                Commit(1, HashAlgorithm.BLAKE3_256, 0, position, 1, previous, [EventRun(0, position, "")], [])
            )
            heads: list[Head] = [head_of(sealed)]
            value = SIGNER.sign(statement(heads))
            await journal.append(Group((sealed,), Signature(SIGNER.algorithm, SIGNER.public_key, heads, value)))
            previous = sealed.digest

    asyncio.run(fill())
    flight = write(tmp_path / "flight", journal)
    for after in (0, 1, INDEX_EVERY - 1, INDEX_EVERY, INDEX_EVERY + 1, 2 * INDEX_EVERY + 8):
        assert [one.sealed.position for one in flight.read(0, after=after)][:2] == [after + 1, after + 2][
            : 2 * INDEX_EVERY + 9 - after
        ]
    asyncio.run(flight.close())


def test_records_that_cannot_be_are_refused(tmp_path: Path) -> None:
    """Somebody makes a file in which every checksum fits."""
    whole = b"".join(make_flight(recorded(), SIGNER, FlightSelection(), made_ns=99))
    opening = whole[8 : 8 + 9 + int.from_bytes(whole[9:13], "little")]
    commits = whole[8 + len(opening) :]
    strange = frame(RecordKind.COMMIT, FlightCommit(7, 1, b"", None, b""))
    for name, data in (
        ("none", commits),
        ("twice", opening + opening + commits),
        ("shard", opening + strange + commits),
    ):
        (tmp_path / name).write_bytes(FLIGHT_MAGIC + data)
        flight = open_flight(tmp_path / name)
        assert "the file cannot be read from byte" in flight.flaws[0].what
        asyncio.run(flight.close())


def test_files_that_are_no_flight_logs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        open_flight(tmp_path / "nothing")
    (tmp_path / "letter").write_text("Dear Sir or Madam")
    with pytest.raises(JournalForeign, match="not a flight log"):
        open_flight(tmp_path / "letter")


def test_damage_of_the_opening_is_said(tmp_path: Path) -> None:
    path = tmp_path / "flight"
    asyncio.run(write(path, recorded()).close())
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(bytes(data))
    flight = open_flight(path)
    assert not flight.readable
    with pytest.raises(JournalCorrupt, match="the record at byte 8"):
        _ = flight.identity
    asyncio.run(flight.close())


def test_a_journal_in_parts_is_refused_before_anything_of_it_is_read() -> None:
    part = MemoryJournal(MemoryJournalStore(JournalIdentity("pads", 4, 7, part=(2, 3))))
    with pytest.raises(ConfigError, match="in parts cannot be made yet"):
        check_sealing(part, SIGNER, FlightSelection())
    with pytest.raises(ConfigError, match="in parts cannot be made yet"):
        next(make_flight(part, SIGNER, FlightSelection(), made_ns=99))
