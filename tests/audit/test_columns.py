"""Records of compiled agents are events like any other, to whoever lists, exports, verifies or cuts a log."""

import asyncio
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from stigmergy.agents.codec import encode
from stigmergy.agents.supervision import AgentsEnrolled
from stigmergy.audit.directories import Directories, directory_at
from stigmergy.audit.export import Export, Selection
from stigmergy.audit.flight import NAMES_PER_RECORD, FlightNeeds, FlightSelection, FlightVerification, make_flight
from stigmergy.audit.flight_format import FLIGHT_MAGIC, FlightDirectory, RecordKind, frame
from stigmergy.audit.flight_journal import FlightFile, open_flight, open_whole_flight
from stigmergy.audit.listing import EntryFilter, LogEntry, list_log
from stigmergy.audit.verification import Verification, _distinct, distinct_plain
from stigmergy.base.errors import JournalCorrupt
from stigmergy.base.system import SystemClock, SystemEntropy
from stigmergy.control.live import Live
from stigmergy.journal.memory import MemoryJournal
from stigmergy.journal.port import JournalIdentity, SnapshotPart
from stigmergy.journal.sqlite import open_journal
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.node.host import open_host
from stigmergy.shard.commit import Commit, SnapshotNote, genesis_of, open_commit
from stigmergy.shard.commit_reader import KeptEvent, Records
from stigmergy.shard.snapshot import TABLE_PART, PartsDigest, SnapshotHeader, SnapshotTables, encode_header
from stigmergy.shard.state import EnrolledSigner
from tests.agents.meters import Counted, SetLimit
from tests.audit.column_log import FLEET, SECOND_NS, SIGNER, ColumnLog, a_log, a_run, alarm, measured
from tests.audit.meter_node import a_fleet, a_store, interpreted
from tests.formats.golden_columns import LAYOUT, TEMPLATES

VERIFIER = Ed25519Verifier()


def entries(journal: Any, **wanted: Any) -> list[LogEntry]:
    return [entry for entry in list_log(journal, EntryFilter(**wanted)) if entry is not None]


async def test_a_listing_shows_records_as_events_with_their_effects() -> None:
    log = await a_log()
    listed = entries(log.journal, first=3)
    assert [(one.position, one.index, one.agent, one.type) for one in listed] == [
        (3, 0, "Drone/D-1", "Seen@1"),
        (3, 1, "Meter/M-7", "Measured@1"),
        (4, 0, "", "stigmergy.AgentsEnrolled@1"),
        (4, 1, "Meter/M-1", "Measured@1"),
        (4, 2, "Meter/M-8", "Measured@1"),
        (4, 3, "Meter/M-1", "Measured@1"),
        (5, 0, "Meter/M-2", "Measured@1"),
    ]
    assert [one.fields["level"] for one in listed if one.agent.startswith("Meter")] == [1.5, 2.5, 3.5, 4.5, 5.5]
    assert listed[1].fields["code"] == "YWJj"
    assert [one.cause.source for one in listed[3:6]] == ["radio/7", "radio/7", "local"]
    (batched,), (ordinary,) = listed[4].effects, listed[5].effects
    assert (batched.sink, batched.sequence, batched.type) == ("batched/Meter", 1, "Alarm@1")
    assert batched.fields == {"loud": True, "level": 99.5, "mode": 7}
    assert (ordinary.sink, ordinary.sequence, ordinary.type) == ("actuators", 5, "Blink@1")


async def test_a_listing_of_one_agent_and_of_the_end() -> None:
    log = await a_log()
    assert [one.fields["level"] for one in entries(log.journal, agent="Meter/M-1")] == [2.5, 4.5]
    assert [one.fields["level"] for one in entries(log.journal, limit=2)] == [4.5, 5.5]
    assert [one.agent for one in entries(log.journal, type="Alarm")] == ["Meter/M-8"]
    assert [one.agent for one in entries(log.journal, agent="Drone/D-1")] == ["Drone/D-1"]


async def answered(*, compiled: bool) -> list[tuple[str, str, Any, str, str, str]]:
    """What a log says of commands and events that were taken at once."""
    fleet = a_fleet()
    if not compiled:
        fleet.plans.update(interpreted(fleet))
    store = a_store(fleet)
    host = open_host(fleet, MemoryJournal(store), SIGNER, VERIFIER, SystemClock())
    await host.start()
    live = Live(host, SystemEntropy())
    await live.send("Meter/a", SetLimit(limit=1.0), command_id="first")
    told = [("a", 5.0), ("a", -1.0), ("a", 7.0), ("b", 6.0)]
    sent = [live.send(f"Meter/{name}", SetLimit(limit=to), command_id=f"{name} {to}") for name, to in told]
    await asyncio.gather(*sent, live.observe("Meter/b", Counted(by=1)))
    found = entries(host.journal, first=1)
    await host.stop()
    return [
        (one.kind, one.agent, one.fields.get("limit"), one.type, one.cause.command_id, one.refused or "")
        for one in found
        if one.agent
    ]


async def test_answers_of_compiled_agents_stand_before_their_events_as_those_of_others() -> None:
    listed = await answered(compiled=True)
    plain = await answered(compiled=False)
    for agent in ("Meter/a", "Meter/b"):  # between agents, a commit has events of compiled ones last
        assert [one for one in listed if one[1] == agent] == [one for one in plain if one[1] == agent]
    assert [(one[3], one[4]) for one in listed if one[1] == "Meter/b"] == [
        ("SetLimit@1", "b 6.0"),
        ("LimitSet@1", "b 6.0"),
        ("Counted@1", ""),  # what was observed came from no command
    ]
    assert [(kind, limit) for kind, agent, limit, *_ in listed if agent == "Meter/a"] == [
        ("answer", 1.0),
        ("event", 1.0),
        ("answer", 5.0),
        ("event", 5.0),
        ("answer", -1.0),
        ("answer", 7.0),
        ("event", 7.0),
    ]


async def test_an_effect_of_an_event_that_was_not_kept_is_shown_on_its_own() -> None:
    log = ColumnLog()
    await log.begin()
    loose = a_run([], 0, templates=TEMPLATES.digest(), first=1, actions_count=1, actions=alarm(1, 0xFFFFFFFF))
    await log.add(columns=[loose])
    (entry,) = entries(log.journal, first=3)
    assert (entry.kind, entry.agent, entry.type) == ("effect", "Meter/M-2", "Alarm@1")
    assert [one.kind for one in entries(log.journal, first=3, agent="Meter/M-2")] == ["effect"]
    assert Verification(log.journal, VERIFIER).run().problems == []


async def test_an_export_takes_records_by_agent_type_and_time() -> None:
    log = await a_log()

    def levels(**selected: Any) -> list[float]:
        export = Export(log.journal, Selection(**selected))
        return [one.fields["level"] for one in export.entries() if one is not None and one.type == "Measured@1"]

    assert levels() == [1.5, 2.5, 3.5, 4.5, 5.5]
    assert levels(agent="Meter/M-1") == [2.5, 4.5]
    assert levels(type="Measured", since_ns=4 * SECOND_NS, until_ns=4 * SECOND_NS) == [2.5, 3.5, 4.5]
    assert levels(type="Seen") == []
    assert levels(first=5) == [5.5]


# ---- verifying


async def test_a_log_with_records_is_sound_and_its_events_are_counted() -> None:
    log = await a_log()
    found = Verification(log.journal, VERIFIER).run()
    assert found.problems == []
    assert (found.commits, found.events) == (5, 3 + 2 + 4 + 1)


BAD: dict[str, dict[str, Any]] = {
    "a layout that the log does not declare": {"columns": [a_run([measured(0, 1)], 0, layout=b"?" * 16)]},
    "in the layout of Meter": {"columns": [a_run([measured(0, 1)], 0, kind="Gauge")]},
    "40 bytes for 1 records of 48": {"columns": [a_run([measured(0, 1)[:-8]], 0)]},
    "agent 4 of Meter, of which 4 are enrolled": {"columns": [a_run([measured(4, 1)], 0)]},
    "a record of Meter that is no event": {
        "columns": [a_run([measured(0, 1)[:4] + b"\x01\x00" + measured(0, 1)[6:]], 0)]
    },
    "the times at which its records were taken": {"columns": [a_run([measured(0, 1)], 99 * SECOND_NS)]},
    "templates that the log does not declare": {
        "columns": [a_run([measured(0, 1)], 0, templates=b"?", first=2, actions_count=1, actions=alarm(0, 0))]
    },
    "from number 3 on, where 2 is the next": {
        "columns": [
            a_run([measured(0, 1)], 0, templates=TEMPLATES.digest(), first=3, actions_count=1, actions=alarm(0, 0))
        ]
    },
    "48 bytes for 2 actions of Meter, of 48 each": {
        "columns": [
            a_run([measured(0, 1)], 0, templates=TEMPLATES.digest(), first=2, actions_count=2, actions=alarm(0, 0))
        ]
    },
    "an action of Meter of no template": {
        "columns": [
            a_run(
                [measured(0, 1)],
                0,
                templates=TEMPLATES.digest(),
                first=2,
                actions_count=1,
                actions=alarm(0, 0)[:4] + b"\x09" + alarm(0, 0)[5:],
            )
        ]
    },
    "an action of Meter without the event": {
        "columns": [
            a_run([measured(0, 1)], 0, templates=TEMPLATES.digest(), first=2, actions_count=1, actions=alarm(0, 1))
        ]
    },
    "agent 9 of Meter, of which 4 are enrolled": {
        "columns": [
            a_run([measured(0, 1)], 0, templates=TEMPLATES.digest(), first=2, actions_count=1, actions=alarm(9, 0))
        ]
    },
    "confirms actions of Meter up to 2, which nobody has asked for": {"confirmed": [("Meter", 2)]},
}


@pytest.mark.parametrize("what", BAD)
async def test_records_that_nobody_could_read_are_found(what: str) -> None:
    log = await a_log()
    await log.add(**BAD[what])
    problems = Verification(log.journal, VERIFIER).run().problems
    assert [(one.position, what in one.what) for one in problems][:1] == [(6, True)], problems


async def test_effects_and_enrolments_that_do_not_fit_are_found() -> None:
    log = await a_log()
    log_of = log.journal
    last = open_commit([stored.sealed.body for stored in log_of.read(0)][3])
    await log.add(columns=[a_run([measured(0, 1)], 0)], owed=[structs.replace(last.owed[0], cause=-3)])
    await log.add(("", encode(AgentsEnrolled(kind="Meter", first=9, names=("M-9",)))))
    await log.add(("", encode({"type": "stigmergy.AgentsEnrolled@1"})))
    problems = [(one.position, one.what) for one in Verification(log_of, VERIFIER).run().problems]
    assert [position for position, _ in problems] == [6, 7, 7, 8]
    assert "an effect of Meter/M-1 without the event" in problems[0][1]
    assert "enrols agents of Meter from 9 on, and 4 were enrolled before" in problems[1][1]
    assert "does not decode" in problems[3][1]


# ---- from the middle of a log


def a_snapshot(log: ColumnLog, position: int, names: list[str], **changes: Any) -> tuple[list[bytes], SnapshotNote]:
    """A snapshot as a table writes it, with names and rows."""
    commit: Commit = open_commit([one.sealed.body for one in log.journal.read(0)][position - 1])
    digest = [one.sealed.digest for one in log.journal.read(0)][position - 1]
    time_ns = commit.runs[-1].time_ns
    signers = [EnrolledSigner(1, SIGNER.public_key)]
    declared = [(encode(LAYOUT), encode(TEMPLATES))]
    tables = SnapshotTables(0, position, digest, 1, time_ns, 9, [], {}, [], [], [], [], [], [], signers, declared)
    header = SnapshotHeader(1, 1, 0, b"", 0, [], tables, genesis_of(FLEET, 0))
    header = structs.replace(header, **changes)
    body = "".join(f"{name}\0" for name in names).encode()
    part = encode(("names", 1, 0, len(names), zlib.compress(body), 0, b"", b""))
    rows = encode(("rows", 1, 1, b"", b"", [], b"", b"", b""))
    parts = [zlib.compress(encode_header(header)), *(TABLE_PART + encode(("Meter", b"", one)) for one in (part, rows))]
    parts_digest = PartsDigest()
    for one in parts:
        parts_digest.add(one)
    return parts, SnapshotNote(position, parts_digest.value(), digest, b"")


async def with_snapshot(position: int = 4, names: tuple[str, ...] = ("M-1", "M-2", "M-7", "M-8")) -> ColumnLog:
    """The same log; what is before the snapshot is dropped."""
    log = await a_log()
    parts, note = a_snapshot(log, position, list(names))
    await log.journal.put_snapshot(0, position, [SnapshotPart(number, one) for number, one in enumerate(parts)])
    await log.add(snapshots=[note])
    await log.journal.drop(0, position - 1)
    return log


async def test_a_log_whose_beginning_was_dropped_is_read_with_the_names_of_a_snapshot() -> None:
    log = await with_snapshot()
    assert [(one.position, one.agent) for one in entries(log.journal)] == [
        (4, ""),
        (4, "Meter/M-1"),
        (4, "Meter/M-8"),
        (4, "Meter/M-1"),
        (5, "Meter/M-2"),
    ]
    found = Verification(log.journal, VERIFIER).run()
    assert found.problems == []
    assert directory_at(log.journal, 0, 5)[1] == 5


async def test_a_snapshot_that_nobody_notes_or_that_is_another_is_not_used() -> None:
    log = await a_log()
    parts, note = a_snapshot(log, 4, ["X-1", "X-2", "X-7", "X-8"])
    await log.journal.put_snapshot(0, 4, [SnapshotPart(number, one) for number, one in enumerate(parts)])
    await log.add(snapshots=[structs.replace(note, digest=b"?")])
    assert [one.agent for one in entries(log.journal, limit=1)] == ["Meter/M-2"]
    await log.journal.drop(0, 3)
    with pytest.raises(JournalCorrupt, match="Meter has 0 agents, and others are enrolled from 3 on"):
        entries(log.journal, limit=1)
    problems = Verification(log.journal, VERIFIER).run().problems
    assert any("does not declare" in one.what for one in problems)
    assert any("Meter has 0 agents" in one.what for one in problems)


async def test_a_later_snapshot_reads_what_was_before_it() -> None:
    log = await with_snapshot(5)
    directories = Directories(log.journal)
    last = [open_commit(one.sealed.body) for one in log.journal.read(0)]
    assert directories.of(last[0]).name("Meter", 3) == "M-8"
    assert directories.of(last[1]).name("Meter", 0) == "M-1"


# ---- a part of a log as a file


def cut(log: ColumnLog, folder: Path, **changes: Any) -> FlightFile:
    asked = FlightSelection(**{"since_ns": 4 * SECOND_NS, **changes})
    data = b"".join(make_flight(log.journal, SIGNER, asked, 9))
    (folder / "cut.flight").write_bytes(data)
    return open_flight(folder / "cut.flight")


@pytest.fixture
def closing() -> Iterator[list[FlightFile]]:
    opened: list[FlightFile] = []
    yield opened
    for flight in opened:
        flight.let_go()


async def test_a_part_of_a_log_can_be_read_and_verified_on_its_own(tmp_path: Path, closing: list[FlightFile]) -> None:
    log = await a_log()
    flight = cut(log, tmp_path)
    closing.append(flight)
    assert flight.flaws == []
    assert [(one.position, one.agent) for one in entries(flight)] == [
        (4, ""),
        (4, "Meter/M-1"),
        (4, "Meter/M-8"),
        (4, "Meter/M-1"),
        (5, "Meter/M-2"),
    ]
    assert flight.directory_before(0).names == {"Meter": ["M-1", "M-2", "", ""]}
    found = FlightVerification(flight, VERIFIER).run()
    assert found.verified.problems == []
    assert found.agents == {"Meter/M-1": 2, "Meter/M-8": 1, "Meter/M-2": 1}
    assert found.verified.events == 5


async def test_a_whole_log_and_one_without_records_need_no_directory(tmp_path: Path, closing: list[FlightFile]) -> None:
    log = await a_log()
    whole = cut(log, tmp_path, since_ns=None)
    closing.append(whole)
    assert whole.directory_before(0).names == {}
    assert [one.agent for one in entries(whole, limit=2)] == ["Meter/M-1", "Meter/M-2"]
    plain = ColumnLog()
    await plain.begin()
    await plain.add(("Drone/D-1", encode({"type": "Seen@1"})))
    bare = cut(plain, tmp_path, since_ns=3 * SECOND_NS)
    closing.append(bare)
    assert bare.directory_before(0).names == {}
    assert FlightVerification(bare, VERIFIER).run().verified.problems == []


async def test_a_file_without_what_it_needs_is_not_sound(tmp_path: Path, closing: list[FlightFile]) -> None:
    log = await a_log()
    await log.add(columns=[a_run([measured(2, 1)], 0, layout=b"?" * 16)])
    flight = cut(log, tmp_path)
    closing.append(flight)
    found = FlightVerification(flight, VERIFIER).run()
    assert any("does not declare" in one.what for one in found.verified.problems)
    assert found.agents["Meter/M-2"] == 1


async def test_many_names_are_several_records() -> None:
    names = tuple(f"M-{number}" for number in range(NAMES_PER_RECORD + 1))
    log = ColumnLog()
    await log.begin(())
    await log.add(("", encode(AgentsEnrolled(kind="Meter", first=0, names=names))))
    commit = await log.add(columns=[a_run([measured(number, 0) for number in range(len(names))], 0)])
    needs = FlightNeeds()
    needs.take(commit)
    made = list(needs.directories(0, Directories(log.journal).at(0, 3)))
    assert [len(roster.names) for one in made for roster in one.rosters] == [NAMES_PER_RECORD, 1]


def test_a_directory_in_the_wrong_place_is_a_flaw(tmp_path: Path) -> None:
    path = tmp_path / "bad.flight"
    path.write_bytes(FLIGHT_MAGIC + frame(RecordKind.DIRECTORY, FlightDirectory(0, [], [])))
    flight = open_flight(path)
    assert "a directory that is not between the opening and the commits" in flight.flaws[0].what
    flight.let_go()
    with pytest.raises(JournalCorrupt):
        open_whole_flight(path)


def test_the_same_on_disk(tmp_path: Path) -> None:
    async def work() -> None:
        journal = open_journal(f"sqlite:{tmp_path / 'columns.db'}", JournalIdentity(FLEET, 1, 7))
        await a_log(journal)
        assert Verification(journal, VERIFIER).run().problems == []
        await journal.close()

    asyncio.run(work())


def test_records_are_checked_alike_with_and_without_numpy() -> None:
    data = b"".join(measured(number, 0.0) for number in (2, 0, 70_000, 2))
    for offset, code in ((0, "I"), (4, "H"), (8, "I")):
        assert _distinct(data, 48, offset, code) == distinct_plain(data, 48, offset, code)
    assert distinct_plain(data, 48, 0, "I") == [0, 2, 70_000]


async def test_only_what_is_shown_of_a_large_commit_is_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    log = ColumnLog()
    await log.begin()
    await log.add(columns=[a_run([measured(number % 3, float(number)) for number in range(1000)], 0)])
    taken: list[int] = []
    kept = Records.kept

    def counted(records: Records, place: int, agent: int, form: int) -> KeptEvent:
        taken.append(place)
        return kept(records, place, agent, form)

    monkeypatch.setattr(Records, "kept", counted)
    assert [one.fields["level"] for one in entries(log.journal, limit=3)] == [997.0, 998.0, 999.0]
    assert [one.fields["level"] for one in entries(log.journal, limit=2, agent="Meter/M-2")] == [994.0, 997.0]
    assert entries(log.journal, type="MeterReset") == []
    assert [one.fields["level"] for one in entries(log.journal, first=3, limit=2)] == [0.0, 1.0]
    assert len(taken) == 7
