"""What a commit says about agents is walked through in one order, whether they are interpreted or compiled."""

import zlib

import pytest
from msgspec import msgpack, structs

from stigmergy.agents.codec import encode, tag_of
from stigmergy.agents.columns import NOT_KEPT, ColumnRun
from stigmergy.agents.supervision import AgentsEnrolled
from stigmergy.base.errors import JournalCorrupt
from stigmergy.shard.commit import Commit, EventRun, Owed
from stigmergy.shard.commit_reader import BATCHED, Records, effects_of, index_of_cause, learn, said_in, walk
from stigmergy.shard.directory import Directory
from stigmergy.shard.snapshot import TABLE_PART, kind_of_part, names_in
from tests.formats.golden_columns import ACTIONS, COMMIT, LAYOUT, MEASURED, NAMES, RECORDS, RUN


def known() -> Directory:
    directory = Directory()
    learn(directory, COMMIT)
    return directory


def test_events_of_both_kinds_come_in_one_order_with_all_that_is_known_of_them() -> None:
    kept = list(walk(COMMIT, known()))
    assert [one.index for one in kept] == [0, 1, 2, 3, 4, 5]
    assert [one.address for one in kept] == ["", "", "Drone/D-1", "Meter/M-7", "Meter/M-1", "Meter/M-7"]
    assert [one.tag for one in kept[2:]] == ["BatteryMeasured@2", "Measured@1", "MeterReset@2", "Measured@1"]
    assert [one.tag for one in kept] == [tag_of(one.body) for one in kept]
    assert {name: value for name, value in msgpack.decode(kept[3].body).items() if name != "type"} == MEASURED
    assert msgpack.decode(kept[4].body) == {"type": "MeterReset@2", "by": -9, "low": -1, "port": 65_535}
    assert [(one.time_ns, one.source) for one in kept[4:]] == [
        (1_700_000_000_000_000_000, "radio/7"),
        (1_700_000_000_000_000_001, "local"),
    ]
    assert len(kept) == COMMIT.events_count


def test_an_effect_finds_its_event_wherever_that_lies() -> None:
    effects = effects_of(COMMIT, known())
    assert {index: [one.sink for one in some] for index, some in effects.items()} == {
        4: ["timers", f"{BATCHED}Meter"],
        3: ["actuators", f"{BATCHED}Meter"],
    }
    alarm, said = effects[3][1], effects[4][1]
    assert (alarm.agent, alarm.sequence, alarm.cause) == ("Meter/M-7", 41, 3)
    assert (said.agent, said.sequence, said.cause) == ("Meter/M-1", 42, 4)
    assert msgpack.decode(said.body)["text"] == "M-1 at 1.2 of Meter/M-1"


def test_an_action_of_an_event_that_is_not_kept_has_no_cause() -> None:
    loose = ACTIONS[:8] + NOT_KEPT.to_bytes(4, "little") + ACTIONS[12:]
    commit = structs.replace(COMMIT, owed=[], columns=[structs.replace(RUN, actions=loose)])
    effects = effects_of(commit, known())
    assert [(one.cause, tag_of(one.body)) for one in effects[-1]] == [(-1, "Alarm@1")]
    assert [tag_of(one.body) for one in effects[4]] == ["Say@1"]


def test_a_second_run_counts_on() -> None:
    commit = structs.replace(COMMIT, owed=[Owed("Meter/M-7", "actuators", 1, -4, b"")], columns=[RUN, RUN])
    effects = effects_of(commit, known())
    assert index_of_cause(commit, -4) == 5
    assert {index: len(some) for index, some in effects.items()} == {5: 2, 3: 1, 4: 1, 6: 1}
    assert [index_of_cause(commit, cause) for cause in (2, 0, -1)] == [2, 0, -1]


@pytest.mark.parametrize(
    ("run", "what"),
    [
        (structs.replace(RUN, layout=b"?" * 16), "does not declare"),
        (structs.replace(RUN, records=RECORDS[:-8]), "88 bytes for 2 records of 48"),
        (structs.replace(RUN, kind="Gauge"), "agent 2 of Gauge was never enrolled"),
        (structs.replace(RUN, records=RECORDS[:4] + b"\x03\x00" + RECORDS[6:]), "form 3, and Meter has 3"),
        (structs.replace(RUN, records=b"\x03" + RECORDS[1:]), "agent 3 of Meter was never enrolled"),
    ],
)
def test_what_cannot_be_read_is_said(run: ColumnRun, what: str) -> None:
    with pytest.raises(JournalCorrupt, match=what):
        list(walk(structs.replace(COMMIT, columns=[run]), known()))


@pytest.mark.parametrize(
    ("run", "what"),
    [
        (structs.replace(RUN, templates=b"?" * 16), "does not declare"),
        (structs.replace(RUN, actions=ACTIONS[:-8]), "88 bytes for 2 actions of 48"),
        (structs.replace(RUN, actions=ACTIONS[:8] + b"\x02" + ACTIONS[9:]), "an action of record 2"),
        (structs.replace(RUN, actions=ACTIONS[:4] + b"\x09" + ACTIONS[5:]), "an action of template 9"),
    ],
)
def test_actions_that_cannot_be_read_are_said(run: ColumnRun, what: str) -> None:
    with pytest.raises(JournalCorrupt, match=what):
        effects_of(structs.replace(COMMIT, columns=[run]), known())


def test_a_record_is_taken_apart_only_when_somebody_asks() -> None:
    records = Records(RUN, 3, known())
    assert list(records.heads()) == [(2, 0), (0, 2)]
    assert records.address(2) is records.address(2)
    assert msgpack.decode(records.body(1, 2))["port"] == 65_535
    assert records.kept(1, 0, 2).index == 4


@pytest.mark.parametrize("agent", [0, 1, 2, 7, 0x01010101, 0x63626103])
def test_the_records_of_one_agent_are_found_among_all_others(agent: int) -> None:
    """Also where its number lies in the middle of the records of others, as zeros do."""
    numbers = [0, 1, 2, 0, 0x01010101, 7, 2, 0, 0, 1]
    records = b"".join(number.to_bytes(4, "little") + RECORDS[4:48] for number in numbers)
    run = structs.replace(RUN, count=len(numbers), records=records)
    found = list(Records(run, 0, known()).of(agent))
    assert found == [(place, 0) for place, number in enumerate(numbers) if number == agent]


def test_a_record_of_one_agent_must_have_a_form() -> None:
    run = structs.replace(RUN, records=RECORDS[:4] + b"\x03\x00" + RECORDS[6:])
    with pytest.raises(JournalCorrupt, match="form 3, and Meter has 3"):
        list(Records(run, 0, known()).of(2))
    assert [known().find("Meter", name) for name in ("M-7", "M-9")] == [2, -1]
    assert known().find("Gauge", "M-7") == -1


# ---- what the log says of numbers


def enrolling(*events: tuple[str, bytes]) -> Commit:
    return structs.replace(COMMIT, runs=[EventRun(len(events), 1, "")], events=list(events), columns=[], owed=[])


def test_only_what_the_shard_itself_says_counts() -> None:
    body = encode(AgentsEnrolled(kind="Meter", first=0, names=NAMES))
    assert len(list(said_in(enrolling(("", body), ("Meter/M-1", body), ("", encode({"type": "Else@1"})))))) == 1
    with pytest.raises(JournalCorrupt, match=r"shard 1, position 301: stigmergy\.AgentsEnrolled@1 does not decode"):
        learn(Directory(), enrolling(("", encode({"type": "stigmergy.AgentsEnrolled@1", "kind": 7}))))


def test_names_may_be_said_twice_but_not_differently() -> None:
    directory = Directory()
    directory.enroll("Meter", 0, ("a", "b"))
    directory.enroll("Meter", 1, ("b", "c"))
    assert directory.names == {"Meter": ["a", "b", "c"]}
    for first, names in ((1, ("x",)), (4, ("d",))):
        with pytest.raises(JournalCorrupt, match=f"Meter has 3 agents, and others are enrolled from {first} on"):
            directory.enroll("Meter", first, names)
    assert directory.names == {"Meter": ["a", "b", "c"]}


def test_a_name_that_is_not_known_here_is_filled_in_later() -> None:
    directory = Directory()
    directory.enroll("Meter", 0, ("", "b"))
    with pytest.raises(JournalCorrupt, match="agent 0 of Meter"):
        directory.name("Meter", 0)
    directory.enroll("Meter", 0, ("a",))
    assert [directory.name("Meter", number) for number in (0, 1)] == ["a", "b"]
    for number in (-1, 2):
        with pytest.raises(JournalCorrupt, match="was never enrolled"):
            directory.name("Meter", number)


# ---- names in snapshots


def part(*fields: object) -> bytes:
    return TABLE_PART + encode(("Meter", encode(LAYOUT), encode(fields)))


NAMED = zlib.compress(b"a\0b\0")


def test_names_are_read_out_of_a_snapshot_without_its_table() -> None:
    assert names_in(part("names", 1, 3, 2, NAMED, 1, b"", b"12345678")) == ("Meter", 3, ["a", "b"])
    assert names_in(part("names", 1, 0, 0, zlib.compress(b""), 1, b"", b"")) == ("Meter", 0, [])
    assert names_in(part("rows", 1, 2, b"columns")) is None
    assert names_in(zlib.compress(encode([]))) is None
    assert kind_of_part(part("rows", 1)) == "Meter"
    assert kind_of_part(zlib.compress(encode([]))) == ""


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (TABLE_PART + b"\xc1", "a part of a snapshot does not decode"),
        (part("names", 1, "x"), "a part of a snapshot does not decode"),
        (part("names", 2, 0, 2, NAMED), "names of format 2"),
        (part("names", 1, 0, 2, b"no"), "do not decompress"),
        (part("names", 1, 0, 1, zlib.compress(b"\xff\0")), "do not decompress"),
        (part("names", 1, 0, 2, NAMED[:-2]), "not as many as it says"),
        (part("names", 1, 0, 3, NAMED), "not as many as it says"),
        (part("names", 1, 0, 1, zlib.compress(b"a\0b")), "not as many as it says"),
        (part("names", 1, 0, 2, zlib.compress(b"\0a\0")), "not as many as it says"),
        (part("names", 1, 0, 3, zlib.compress(b"a\0\0b\0")), "not as many as it says"),
    ],
)
def test_names_that_are_none_are_refused(body: bytes, what: str) -> None:
    with pytest.raises(JournalCorrupt, match=what):
        names_in(body)
