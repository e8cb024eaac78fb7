"""The values behind the fixtures of compiled agents, as in golden.py. Change nothing here, only add."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from stigmergy.agents.codec import encode
from stigmergy.agents.columns import (
    NO_CHECK,
    Column,
    ColumnRun,
    Constant,
    Form,
    Formatted,
    Layout,
    OwnName,
    Slot,
    Template,
    Templates,
    Text,
    roster_check,
    write_record,
)
from stigmergy.agents.messages import Message
from stigmergy.agents.supervision import AgentsEnrolled, ColumnsDeclared
from stigmergy.shard.batches import BatchHeader, pack_batch
from stigmergy.shard.commit import Commit, EventRun, Owed
from stigmergy.shard.outbox import Block
from stigmergy.shard.snapshot import TABLE_PART, KindVersion, SnapshotHeader
from stigmergy.shard.timers import TimerSet
from tests.formats import golden

MODES = [("CALM", encode("calm")), ("WILD", encode(7))]
LAYOUT = Layout(
    format=1,
    kind="Meter",
    record_bytes=48,
    forms=[
        Form(
            "Measured@1",
            [
                Column("level", "f8", 8),
                Column("count", "i8", 16),
                Column("mode", "e2", 24, MODES),
                Column("small", "i2", 26),
                Column("wide", "u4", 28),
                Column("ok", "b1", 32),
                Column("code", "S3", 33),
                Column("tiny", "u1", 36),
            ],
        ),
        Form("ResetMeter@2", [Column("by", "i4", 8)], is_command=True),
        Form("MeterReset@2", [Column("by", "i4", 8), Column("low", "i1", 12), Column("port", "u2", 14)]),
    ],
    row_bytes=24,
    columns=[Column("level", "f8", 0), Column("mode", "e2", 8, MODES), Column("count", "i8", 16)],
)
TEMPLATES = Templates(
    format=1,
    kind="Meter",
    action_bytes=48,
    templates=[
        Template(
            "Alarm@1", [("loud", Constant(encode(True))), ("level", Slot(0, "f8")), ("mode", Slot(1, "e2", MODES))]
        ),
        Template(
            "Say@1",
            [
                ("text", Text([OwnName(), " at ", Formatted(0, "f8", ".1f"), " of ", OwnName(with_kind=True)])),
                ("count", Slot(1, "i2")),
                ("ok", Slot(2, "b1")),
                ("code", Slot(3, "S3")),
            ],
        ),
        Template("stigmergy.WakeMe@1", []),
    ],
)
NAMES = ("M-1", "M-2", "M-7")
MEASURED = {
    "level": 99.5,
    "count": -3,
    "mode": 7,
    "small": -2,
    "wide": 4_000_000_000,
    "ok": True,
    "code": b"abc",
    "tiny": 255,
}
RECORDS = write_record(LAYOUT, 0, 2, MEASURED) + write_record(LAYOUT, 2, 0, {"by": -9, "low": -1, "port": 65_535})
ACTIONS = bytes.fromhex(
    "02000000"
    "0000"
    "0000"
    "00000000"
    "00000000"
    "0000000000e05840"
    "0100000000000000"
    "0000000000000000"
    "0000000000000000"
    "00000000"
    "0100"
    "0000"
    "01000000"
    "00000000"
    "000000000000f43f"
    "f7ffffffffffffff"
    "0100000000000000"
    "7879 7a0000000000"
)

MESSAGES: Sequence[Message] = (
    ColumnsDeclared(kind="Meter", layout=encode(LAYOUT), templates=encode(TEMPLATES)),
    AgentsEnrolled(kind="Meter", first=0, names=NAMES),
)

RUN = ColumnRun(
    kind="Meter",
    layout=LAYOUT.digest(),
    time_ns=1_700_000_000_000_000_000,
    source="radio/7",
    count=2,
    records=RECORDS,
    templates=TEMPLATES.digest(),
    first=41,
    actions_count=2,
    actions=ACTIONS,
)
COMMIT = Commit(
    format=2,
    hash_algorithm=1,
    shard=1,
    position=301,
    epoch=2,
    previous=bytes(range(32)),
    runs=[EventRun(events=3, time_ns=1_700_000_000_000_000_000, source="radio/7")],
    events=[("", encode(message)) for message in MESSAGES]
    + [("Drone/D-1", encode(golden.BatteryMeasured(fraction=0.5)))],
    owed=[
        Owed("Meter/M-1", "timers", 0, -3, encode(TimerSet("check", 1_700_000_060_000_000_000))),
        Owed("Meter/M-7", "actuators", 18, -2, encode(golden.Land(reason="level"))),
    ],
    incarnation=4242,
    columns=[RUN, ColumnRun("Meter", LAYOUT.digest(), 1_700_000_000_000_000_001, "local", 1, RECORDS[:48])],
    confirmed=[("Meter", 40)],
)

CHECKS = [NO_CHECK, roster_check(NO_CHECK, NAMES), roster_check(roster_check(NO_CHECK, NAMES), ("M-8",))]

BATCH_HEADER = BatchHeader(1, "radio/7", 3, 2, 1_000, 4, 1, "Meter", LAYOUT.digest(), 1, CHECKS[1], 2)
BATCH = pack_batch(BATCH_HEADER, RECORDS)

BLOCK = Block(4242, 301, 0, "Meter", TEMPLATES.digest(), 41, 2, ACTIONS)
TABLES = structs.replace(
    golden.TABLES,
    declared=[(encode(LAYOUT), encode(TEMPLATES)), (b"", encode(TEMPLATES))],
    blocks=[BLOCK],
    actions=[("Meter", 42, 40)],
    rosters={"Gauge": ["G-1", "G-2"]},
    unlisted={"Meter": ["M-8"]},
)
HEADER = SnapshotHeader(1, 1, 0, b"", 0, [KindVersion("Meter", 1, b"\x08" * 16)], TABLES, golden.FULL.genesis)
ROWS_PART = TABLE_PART + encode(("Meter", encode(LAYOUT), b"the rows"))
