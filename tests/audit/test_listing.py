"""A listing shows what commits say, of one shard and of several, whole or only its end."""

import base64

import pytest
from msgspec import msgpack

from stigmergy.agents.codec import encode
from stigmergy.agents.effects import ProposeEntry
from stigmergy.audit.listing import EntryFilter, LogEntry, list_commit, list_log, owing, readable_fields, readable_time
from stigmergy.base.errors import ConfigError
from stigmergy.journal.memory import MemoryJournal, MemoryJournalStore
from stigmergy.journal.port import JournalIdentity
from stigmergy.shard.commit import (
    COMMIT_FORMAT,
    GENESIS,
    Answer,
    Commit,
    EventRun,
    Group,
    HashAlgorithm,
    Owed,
    head_of,
    seal,
)
from stigmergy.testing.journal_contract import make_group
from tests.ledgers.incident_desk import Incident, incidents


def a_commit(**changes: object) -> Commit:
    given: dict[str, object] = {
        "format": COMMIT_FORMAT,
        "hash_algorithm": HashAlgorithm.BLAKE3_256,
        "shard": 0,
        "position": 1,
        "epoch": 0,
        "previous": GENESIS,
        "runs": [EventRun(events=0, time_ns=1_000_000_000, source="local")],
        "events": [],
    }
    return Commit(**{**given, **changes})  # type: ignore[arg-type]


def message(tag: str, **fields: object) -> bytes:
    return msgpack.encode({"type": tag, **fields})


def test_events_answers_effects_and_their_causes() -> None:
    commit = a_commit(
        runs=[EventRun(2, 1_000_000_000, "local"), EventRun(1, 2_000_000_000, "gps")],
        events=[("A/1", message("Began@1", n=1)), ("A/2", message("Began@1", n=2)), ("A/1", message("Moved@1"))],
        answers=[
            Answer("A/1", "id-1", message("Begin@1"), None, 0, 1_000_000_000),
            Answer("A/2", "id-2", message("Begin@1"), "no", 3, 2_000_000_000),
        ],
        owed=[
            Owed("A/1", "actuators", 7, 0, message("Land@1", why="x")),
            Owed("A/1", "shard/1", 3, 2, msgpack.encode(("B/1", message("Go@1")))),
            Owed("A/1", "timers", 0, 2, msgpack.encode(("tick", 5, False))),
            Owed("A/3", "actuators", 8, -1, message("Blink@1")),
        ],
    )
    entries = list(list_commit(commit))
    assert [(entry.kind, entry.agent, entry.type) for entry in entries] == [
        ("answer", "A/1", "Begin@1"),
        ("event", "A/1", "Began@1"),
        ("event", "A/2", "Began@1"),
        ("event", "A/1", "Moved@1"),
        ("answer", "A/2", "Begin@1"),
        ("effect", "A/3", "Blink@1"),
    ]
    assert (entries[1].cause.command, entries[1].cause.command_id) == ("Begin@1", "id-1")
    assert entries[2].cause.command == ""
    assert (entries[3].cause.source, entries[3].cause.command) == ("gps", "")
    assert [(effect.sink, effect.to, effect.type) for effect in entries[3].effects] == [
        ("shard/1", "B/1", "Go@1"),
        ("timers", "", "timer"),
    ]
    assert entries[4].refused == "no"
    assert entries[3].time == "1970-01-01T00:00:02.000000Z"


def test_a_timer_is_shown_by_its_name_and_the_moment_it_is_due() -> None:
    bodies = [("tick", 90_000_000_000, False), ("noon", 90_000_000_000, True), ("tick", None), "no timer"]
    owed = [Owed("A/1", "timers", number, 0, msgpack.encode(body)) for number, body in enumerate(bodies)]
    assert [owing(one).fields for one in owed] == [
        {"name": "tick", "due": "1970-01-01T00:01:30.000000Z"},
        {"name": "noon", "due": "1970-01-01T00:01:30.000000Z", "follows_wall": True},
        {"name": "tick", "cancelled": True},
        "no timer",
    ]


@pytest.fixture
async def journal() -> MemoryJournal:
    """Two shards that took turns, ten commits each, with two events in each."""
    journal = MemoryJournal(MemoryJournalStore(JournalIdentity(fleet="f", shards=2, incarnation=1)))
    previous = [GENESIS, GENESIS]
    for number in range(20):
        shard, position = number % 2, number // 2 + 1
        sealed = seal(
            a_commit(
                shard=shard,
                position=position,
                previous=previous[shard],
                runs=[EventRun(2, number * 1_000_000_000, "test")],
                events=[("A/1", message("Even@1", n=number)), ("A/2", message("Odd@1", n=number))],
            )
        )
        previous[shard] = head_of(sealed).digest
        group: Group = make_group(sealed)
        await journal.append(group)
    return journal


def numbers(journal: MemoryJournal, wanted: EntryFilter) -> list[int]:
    return [entry.fields["n"] for entry in entries(journal, wanted)]


def entries(journal: MemoryJournal, wanted: EntryFilter) -> list[LogEntry]:
    return [entry for entry in list_log(journal, wanted) if entry is not None]


async def test_shards_are_merged_by_time(journal: MemoryJournal) -> None:
    assert numbers(journal, EntryFilter(type="Even")) == list(range(20))
    assert numbers(journal, EntryFilter(type="Even", shard=1)) == list(range(1, 20, 2))
    assert numbers(journal, EntryFilter(type="Even", limit=3)) == [17, 18, 19]
    assert numbers(journal, EntryFilter(type="Even", limit=3, first=1)) == [0, 1, 2]
    assert numbers(journal, EntryFilter(type="Odd@1", first=9, last=9)) == [16, 17]
    assert numbers(journal, EntryFilter(type="Even", limit=2, last=5)) == [8, 9]
    assert entries(journal, EntryFilter(type="Never")) == []


async def test_wishes_that_cannot_be(journal: MemoryJournal) -> None:
    for wish in ({"limit": 0}, {"limit": 10**9}, {"first": 0}, {"first": 3, "last": 2}):
        with pytest.raises(ConfigError):
            EntryFilter(**wish)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="shards 0 to 1"):
        list(list_log(journal, EntryFilter(shard=2)))


def test_fields_that_do_not_decode() -> None:
    assert readable_fields(b"\xc1") == {"undecodable": "wQ=="}
    assert readable_fields(msgpack.encode({"type": "X@1", "data": b"hi"})) == {"data": "aGk="}
    assert readable_fields(msgpack.encode([1, 2])) == [1, 2]
    assert readable_fields(msgpack.encode({1: {2: 3}})) == {"1": {"2": 3}}


def test_a_proposed_entry_is_shown_with_its_fields() -> None:
    shown = readable_fields(encode(incidents.propose(Incident("I-1", "no2"))))
    assert shown == {
        "ledger": "incidents",
        "id": "I-1",
        "entry": {"type": "Incident@1", "incident": "I-1", "gas": "no2"},
    }
    broken = encode(ProposeEntry("incidents", "I-1", b"\xc1"))
    assert readable_fields(broken) == {"undecodable": base64.b64encode(broken).decode()}


def test_times() -> None:
    assert readable_time(1_794_729_600_123_456_789) == "2026-11-15T08:00:00.123456Z"
