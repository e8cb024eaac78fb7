"""Replays what earlier versions wrote. A failure here means that journals in the field can no longer be read.

Never make a fixture anew to get a test to pass: give the format a new number, keep the old reader, add a fixture.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blake3 import blake3
from msgspec import Struct, structs

from stigmergy.agents.codec import canonical_bytes, encode, open_envelope, pack_envelope, without_empty_end
from stigmergy.agents.effects import Publish
from stigmergy.agents.messages import Message, spec_of, to_newest
from stigmergy.agents.supervision import FRAMEWORK_EVENTS
from stigmergy.base.errors import JournalCorrupt
from stigmergy.journal import sqlite
from stigmergy.journal.identity import decode_mark, encode_mark
from stigmergy.journal.recovery import Recovery
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.keys.keyfile import decode_private_key
from stigmergy.shard.commit import Commit, Ruled, Signature, digest_commit, open_commit, seal, statement
from stigmergy.shard.replay import apply
from stigmergy.shard.snapshot import (
    SnapshotHeader,
    SnapshotTables,
    digest_of_parts,
    digest_of_state,
    encode_header,
    load_agents,
    load_tables,
    read_header,
    tables_of,
)
from stigmergy.shard.state import Limits, ShardState, plan_agents
from tests.formats import golden, messagepack
from tests.formats.golden import read_hex, read_lines
from tests.formats.manual import fields_of

PLANS = plan_agents([golden.Drone, golden.Tower])
LEFT_OUT_MAX = {"Commit": 7, "SnapshotTables": 9}
STRUCTURES = ("EventRun", "Answer", "Owed", "MarkMoved", "Settled", "SnapshotNote")


def plain(value: Any) -> Any:
    """A value of ours as MessagePack knows it: arrays, maps and their contents."""
    match value:
        case Struct() if value.__struct_config__.array_like:
            return [plain(getattr(value, name)) for name in value.__struct_fields__]
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case _:
            return value


def by_the_manual(structure: str, values: list[Any]) -> dict[str, Any]:
    """An array with the names that docs/formats.md gives to its places; fields at the end may be left out."""
    names = fields_of(structure)
    assert len(values) >= len(names) - LEFT_OUT_MAX.get(structure, 0)
    return dict(zip(names, values, strict=False))


# Messages.


@pytest.mark.parametrize("message", golden.MESSAGES, ids=lambda message: spec_of(type(message)).tag)
def test_messages_have_these_bytes(message: Message) -> None:
    stored = read_lines("messages-1.txt")[spec_of(type(message)).tag]
    assert encode(message) == stored
    if not isinstance(message, Publish):  # what is published is read by others
        assert msgspec.msgpack.decode(stored, type=type(message)) == message
    named = messagepack.decode(stored)
    assert list(named) == ["type", *type(message).__struct_fields__]
    assert named["type"] == spec_of(type(message)).tag


def test_every_event_of_the_framework_has_a_fixture() -> None:
    stored = {*read_lines("messages-1.txt"), *read_lines("messages-2.txt")}
    assert {spec_of(event).tag for event in FRAMEWORK_EVENTS} <= stored


def test_an_old_version_is_carried_to_the_newest() -> None:
    old = msgspec.msgpack.decode(read_lines("messages-1.txt")["BatteryMeasured@1"], type=golden.BatteryMeasuredV1)
    assert to_newest(old) == golden.BatteryMeasured(fraction=0.8)
    assert PLANS["Drone"].decode(encode(old)) == golden.BatteryMeasured(fraction=0.8)


# Envelope.


def test_envelope() -> None:
    stored = read_hex("envelope-1.hex")
    envelope = open_envelope(stored)
    assert envelope == golden.ENVELOPE
    assert encode(golden.ENVELOPE) == stored
    named = by_the_manual("Envelope", messagepack.decode(stored))
    assert (named["format"], named["source"], named["incarnation"], named["epoch"], named["sequence"]) == (
        1,
        "radio/7",
        3,
        2,
        1_000,
    )
    address, body = named["items"][1]
    assert (address, messagepack.decode(body)) == ("Drone/D-1", golden.FROM_THE_FUTURE)
    assert PLANS["Drone"].decode(envelope.items[1][1]) == golden.BatteryMeasured(fraction=0.5)


def test_packing_makes_such_an_envelope() -> None:
    items: list[tuple[str, Message]] = [("Drone/D-1", golden.BatteryMeasured(fraction=0.5))]
    packed = pack_envelope("radio/7", items, sequence=4, incarnation=3, epoch=2)
    *front, ((address, body),), lost = messagepack.decode(packed)
    assert front == [1, "radio/7", 3, 2, 4]
    assert lost == 0
    assert address == "Drone/D-1"
    assert messagepack.decode(body) == {"type": "BatteryMeasured@2", "fraction": 0.5}


# Commit.


def test_commit() -> None:
    stored = read_hex("commit-1.hex")
    assert open_commit(stored) == golden.COMMIT
    assert seal(golden.COMMIT).body == stored


def test_commit_read_by_the_manual_alone() -> None:
    named = by_the_manual("Commit", messagepack.decode(read_hex("commit-1.hex")))
    assert named == {name: plain(getattr(golden.COMMIT, name)) for name in Commit.__struct_fields__[:15]}
    places = {"EventRun": "runs", "Answer": "answers", "Owed": "owed", "MarkMoved": "marks", "Settled": "settled"}
    for structure in STRUCTURES:
        field = places.get(structure, "snapshots")
        expected = getattr(golden.COMMIT, field)
        assert expected, f"the commit has none of {field}"
        for array, value in zip(named[field], expected, strict=True):
            names = type(value).__struct_fields__
            assert by_the_manual(structure, array) == {name: plain(getattr(value, name)) for name in names}
    told_to, told = messagepack.decode(named["owed"][3][4])
    assert (told_to, messagepack.decode(told)) == ("Tower/T-1", {"type": "MissionStarted@1", "mission": "M1"})
    timers = [by_the_manual("TimerSet", messagepack.decode(owed[4])) for owed in named["owed"] if owed[1] == "timers"]
    assert [timer["name"] for timer in timers] == ["check", "noon", "old"]
    assert timers[2] == {"name": "old", "due_ns": None, "follows_wall": False}


def test_commit_with_clients() -> None:
    stored = read_hex("commit-clients-1.hex")
    assert open_commit(stored) == golden.COMMIT_WITH_CLIENTS
    assert seal(golden.COMMIT_WITH_CLIENTS).body == stored
    assert by_the_manual("Commit", messagepack.decode(stored))["clients"] == ["bus//delivery/dispatcher", ""]


def test_commit_that_a_policy_has_ruled_on() -> None:
    stored = read_hex("commit-ruled-1.hex")
    assert open_commit(stored) == golden.COMMIT_RULED
    assert seal(golden.COMMIT_RULED).body == stored
    found = [by_the_manual("Ruled", one) for one in by_the_manual("Commit", messagepack.decode(stored))["ruled"]]
    names = Ruled.__struct_fields__
    assert found == [{name: plain(getattr(one, name)) for name in names} for one in golden.COMMIT_RULED.ruled]


def test_a_commit_with_too_few_clients_is_damaged() -> None:
    body = seal(structs.replace(golden.COMMIT_WITH_CLIENTS, clients=["one"])).body
    with pytest.raises(JournalCorrupt, match="1 clients for 2 answers"):
        open_commit(body)


def test_snapshot_tables_with_clients_and_floors() -> None:
    stored = read_hex("tables-clients-1.hex")
    tables = golden.TABLES_WITH_CLIENTS
    assert encode(without_empty_end(tables, SnapshotTables.__struct_fields__.index("declared"))) == stored
    assert msgspec.msgpack.decode(stored, type=SnapshotTables) == tables
    named = by_the_manual("SnapshotTables", messagepack.decode(stored))
    assert (named["clients"], named["floors"]) == (plain(tables.clients), plain(tables.floors))
    state = ShardState(1, PLANS)
    load_tables(state, tables)
    assert tables_of(state) == tables
    with pytest.raises(JournalCorrupt, match="do not fit"):
        load_tables(state, structs.replace(tables, clients=["one"]))


def test_commit_digest_by_the_manual() -> None:
    stored = read_hex("commit-1.hex")
    digest = blake3(stored, derive_key_context="stigmergy 2026 commit chain").digest()
    assert digest_commit(stored) == digest
    assert digest.hex() == "8c18bea15ba2306a8d4f410da5fa4b81e3a6f45ff4d67296fc22abbd073e89c0"


def test_a_commit_without_its_last_fields_has_empty_ones() -> None:
    whole = messagepack.decode(read_hex("commit-1.hex"))
    short = open_commit(msgspec.msgpack.encode(whole[:8]))
    assert (short.events, short.answers, short.snapshots) == (golden.COMMIT.events, [], [])
    longer = open_commit(msgspec.msgpack.encode([*whole, [], [], [], [], [], "", [], ["of a later version"]]))
    assert longer == golden.COMMIT


# Group signature.


def test_signature() -> None:
    stored = read_hex("signature-1.hex")
    signature = msgspec.msgpack.decode(stored, type=Signature)
    assert signature == golden.SIGNATURE
    assert encode(golden.SIGNATURE) == stored
    assert statement(signature.heads) == read_hex("statement-1.hex")
    assert Ed25519Verifier().verify(signature.algorithm, signature.key, read_hex("statement-1.hex"), signature.value), (
        "the signature made then is good now"
    )


def test_statement_by_the_manual() -> None:
    stored = read_hex("statement-1.hex")
    assert stored.startswith(b"stigmergy.group@1\x00")
    algorithm, heads = messagepack.decode(stored[18:])
    assert algorithm == 1
    assert [by_the_manual("Head", head)["position"] for head in heads] == [12, 300]
    named = by_the_manual("Signature", messagepack.decode(read_hex("signature-1.hex")))
    assert (named["algorithm"], named["heads"], len(named["value"])) == (1, heads, 64)
    assert named["key"] == decode_private_key((golden.FOLDER / "private-key-1.txt").read_bytes()).public.key


# Snapshots.

SNAPSHOTS = [
    ("snapshot-full-1.txt", golden.FULL, golden.FULL_AGENTS),
    ("snapshot-incremental-1.txt", golden.INCREMENTAL, golden.INCREMENTAL_AGENTS),
]


@pytest.mark.parametrize(("name", "header", "agents"), SNAPSHOTS)
def test_snapshot(name: str, header: SnapshotHeader, agents: list[tuple[str, Any]]) -> None:
    stored = read_lines(name)
    parts = [stored["part 0"], stored["part 1"]]
    assert read_header(parts[0]) == header
    # How zlib compresses is not ours to promise, what it compresses is.
    assert encode_header(header) == zlib.decompress(parts[0])
    assert encode([(address, canonical_bytes(agent)) for address, agent in agents]) == zlib.decompress(parts[1])
    assert digest_of_parts(parts) == stored["digest"]
    kinds = [msgspec.structs.replace(kind, layout=PLANS[kind.kind].layout, version=1) for kind in header.kinds]
    state = ShardState(1, PLANS)
    load_agents(state, msgspec.structs.replace(header, kinds=kinds), parts[1])
    assert state.agents == dict(agents)


@pytest.mark.parametrize(("name", "header", "agents"), SNAPSHOTS)
def test_snapshot_by_the_manual(name: str, header: SnapshotHeader, agents: list[tuple[str, Any]]) -> None:
    stored = read_lines(name)
    named = by_the_manual("SnapshotHeader", messagepack.decode(zlib.decompress(stored["part 0"])))
    assert (named["format"], named["base"], named["agents_count"]) == (1, header.base, len(agents))
    assert [by_the_manual("KindVersion", kind)["kind"] for kind in named["kinds"]] == ["Drone", "Tower"]
    tables = by_the_manual("SnapshotTables", named["tables"])
    assert tables == {name: plain(getattr(header.tables, name)) for name in fields_of("SnapshotTables")[:15]}
    inside = {
        "marks": "MarkMoved",
        "owed": "Pending",
        "timers": "PendingTimer",
        "answers": "Remembered",
        "letters": "DeadLetter",
    }
    for field, structure in {**inside, "signers": "EnrolledSigner"}.items():
        for array, value in zip(tables[field], getattr(header.tables, field), strict=True):
            names = type(value).__struct_fields__
            assert by_the_manual(structure, array) == {name: plain(getattr(value, name)) for name in names}
    listed = messagepack.decode(zlib.decompress(stored["part 1"]))
    assert [address for address, _ in listed] == [address for address, _ in agents]
    for (_, body), (_, agent) in zip(listed, agents, strict=True):
        assert messagepack.decode(body) == plain(msgspec.structs.asdict(agent))
    hasher = blake3(derive_key_context="stigmergy 2026 snapshot parts")
    for part in (stored["part 0"], stored["part 1"]):
        hasher.update(len(part).to_bytes(8, "big") + part)
    assert hasher.digest() == stored["digest"]


def test_canonical_bytes() -> None:
    stored = read_hex("canonical-1.hex")
    assert canonical_bytes(golden.Corner()) == stored
    assert canonical_bytes(msgspec.msgpack.decode(stored, type=golden.Corner)) == stored
    assert stored.count(bytes.fromhex("cb7ff8000000000000")) == 2
    named = messagepack.decode(stored)
    assert list(named["by_name"]) == ["a", "b"]
    assert named["names"] == ["x", "y", "z"]


# An event log of version 1.


def test_a_log_of_old_events_is_folded_through_the_upcaster() -> None:
    lines = read_lines("event-log-1.txt")
    bodies = [body for name, body in lines.items() if name.startswith("commit")]
    state = ShardState(0, PLANS)
    for body in bodies:
        commit = open_commit(body)
        assert [messagepack.decode(event)["type"] for _, event in commit.events] == ["BatteryMeasured@1"]
        apply(state, commit, digest_commit(body))
    assert state.agents["Drone/D-1"].battery == 0.2
    assert digest_of_state(state) == lines["state"]
    tables = msgspec.msgpack.encode(
        plain(without_empty_end(tables_of(state), SnapshotTables.__struct_fields__.index("declared")))
    )
    drone = msgspec.msgpack.encode({"id": "D-1", "battery": 0.2, "mission": None, "legs": (), "done": 0})
    assert blake3(tables + msgspec.msgpack.encode(["Drone/D-1", drone])).digest() == lines["state"], "by the manual"


# The SQLite journal.


@pytest.fixture
def journal_path(tmp_path: Path) -> Path:
    path = tmp_path / "golden.db"
    shutil.copy(golden.FOLDER / "journal-1.sqlite3", path)
    return path


async def recovered_states(path: Path, *, snapshots: bool) -> tuple[dict[str, bytes], dict[int, int]]:
    journal = sqlite.open_journal(f"sqlite:{path}", golden.IDENTITY)
    if not snapshots:
        for shard in range(golden.IDENTITY.shards):
            for position in journal.snapshots(shard):
                await journal.drop_snapshot(shard, position)
    found = Recovery(journal, PLANS, Ed25519Verifier(), Limits(), every_signature=True).recover()
    await journal.close()
    states = {
        f"shard {number} position {state.position} state": digest_of_state(state)
        for number, state in enumerate(found.states)
    }
    return states, found.snapshots


@pytest.mark.parametrize("snapshots", [True, False], ids=["from snapshots", "from the whole log"])
async def test_journal_recovers_to_the_same_state(journal_path: Path, snapshots: bool) -> None:
    states, used = await recovered_states(journal_path, snapshots=snapshots)
    assert states == read_lines("journal-1.txt")
    assert bool(used) is snapshots


async def test_the_journal_has_an_incremental_snapshot_and_old_events(journal_path: Path) -> None:
    _, used = await recovered_states(journal_path, snapshots=True)
    with closing(sqlite3.connect(journal_path)) as database:
        rows = database.execute("SELECT shard, position, body FROM snapshots WHERE part = 0").fetchall()
        bases = {(shard, position): read_header(body).base for shard, position, body in rows}
        bodies = [body for (body,) in database.execute("SELECT body FROM commits ORDER BY id")]
    assert any(bases[shard, position] > 0 for shard, position in used.items())
    tags = {messagepack.decode(event)["type"] for body in bodies for _, event in open_commit(body).events}
    assert {"BatteryMeasured@1", "BatteryMeasured@2", "stigmergy.InputFailed@1", "stigmergy.SignerEnrolled@1"} <= tags


def test_journal_by_the_manual(journal_path: Path) -> None:
    """With nothing but the SQLite in Python, zlib and docs/formats.md."""
    with closing(sqlite3.connect(f"file:{journal_path}?immutable=1", uri=True)) as database:
        assert database.execute("PRAGMA application_id").fetchall() == [(0x5354474D,)]
        assert database.execute("PRAGMA user_version").fetchall() == [(1,)]
        identity = database.execute("SELECT fleet, shards, incarnation, checksum FROM identity").fetchone()
        assert identity == ("golden", 2, 4242, zlib.crc32(msgspec.msgpack.encode(["golden", 2, 4242])))
        first = "stigmergy 2026 first commit of a shard"
        previous = [
            blake3(msgspec.msgpack.encode(["golden", shard]), derive_key_context=first).digest() for shard in range(2)
        ]
        for row in database.execute("SELECT * FROM commits ORDER BY id").fetchall():
            key, epoch, time_ns, events, digest, signature, checksum, body = row
            assert checksum == zlib.crc32(msgspec.msgpack.encode([key, epoch, time_ns, events, digest, signature]))
            assert blake3(body, derive_key_context="stigmergy 2026 commit chain").digest() == digest
            commit = by_the_manual("Commit", messagepack.decode(body))
            assert (commit["shard"], commit["position"]) == (key >> 40, key & (1 << 40) - 1)
            assert (commit["epoch"], commit["runs"][-1][1], len(commit["events"])) == (epoch, time_ns, events)
            assert sum(run[0] for run in commit["runs"]) == events
            assert commit["previous"] == previous[commit["shard"]]
            previous[commit["shard"]] = digest
        for shard, position, part, checksum, body in database.execute("SELECT * FROM snapshots"):
            front = zlib.crc32(msgspec.msgpack.encode([shard, position, part]))
            assert checksum == zlib.crc32(body, front)
        for shard, first, head, digest, checksum in database.execute("SELECT * FROM shards"):
            assert checksum == zlib.crc32(msgspec.msgpack.encode([shard, first, head, digest]))
            assert digest == previous[shard]


def test_mark() -> None:
    stored = read_hex("mark-1.hex")
    assert decode_mark(stored) == golden.MARK
    assert encode_mark(golden.MARK) == stored
    assert (len(stored), stored[:8]) == (40, b"stgmark1")
    assert [int.from_bytes(stored[at : at + 8], "little") for at in (8, 16, 24)] == [4242, 1, 300]
    assert int.from_bytes(stored[32:36], "little") == 1234
    assert int.from_bytes(stored[36:], "little") == zlib.crc32(stored[:36])


# The script.


def fixtures() -> Iterator[tuple[str, bytes]]:
    for path in sorted(golden.FOLDER.iterdir()):
        yield path.name, path.read_bytes()


def test_the_script_replaces_nothing() -> None:
    before = dict(fixtures())
    root = golden.FOLDER.parents[2]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.formats.make_fixtures"], cwd=root, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "made" not in ran.stdout
    assert dict(fixtures()) == before
