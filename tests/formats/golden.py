"""The values behind the fixtures: what was encoded once, and must decode for ever. Change nothing here, only add.

The messages are those of a fleet that has been in the field for a while: its first battery events were in whole
percents (version 1), today's are fractions (version 2), and an upcaster carries one to the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field, structs

from stigmergy import (
    Action,
    Agent,
    Command,
    Effects,
    Event,
    Events,
    Work,
    decide,
    evolve,
    react,
    reject,
    upcast,
    within,
)
from stigmergy.agents.codec import Envelope, encode
from stigmergy.agents.effects import ActionDone, ActionFailed, Publish, Tell, WakeMe, WindowClosed, Woken, WorkFailed
from stigmergy.agents.messages import Message
from stigmergy.agents.supervision import (
    AgentResumed,
    AgentStopped,
    InputFailed,
    InputsSkipped,
    LetterTaken,
    SafeActionTaken,
    SignerEnrolled,
    SignerRevoked,
)
from stigmergy.journal.identity import AcknowledgedHead
from stigmergy.journal.port import JournalIdentity
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.shard.commit import (
    GENESIS,
    Answer,
    Commit,
    EventRun,
    Head,
    MarkMoved,
    Owed,
    Ruled,
    Settled,
    Signature,
    SnapshotNote,
    genesis_of,
    statement,
)
from stigmergy.shard.memory import DeadLetter, Remembered
from stigmergy.shard.outbox import Pending
from stigmergy.shard.snapshot import KindVersion, SnapshotHeader, SnapshotTables
from stigmergy.shard.state import EnrolledSigner
from stigmergy.shard.timers import PendingTimer, TimerSet

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "formats"
SIGNER = Ed25519Signer(bytes(range(32)))
"""The key of tests/fixtures/formats/private-key-1.txt, which everybody knows."""
SEGMENTS_KEY = bytes(range(32, 64))
IDENTITY = JournalIdentity(fleet="golden", shards=2, incarnation=4242)


class BatteryMeasuredV1(Event, name="BatteryMeasured", version=1):
    percent: int


class BatteryMeasured(Event, version=2, keep=within(seconds=1)):
    fraction: float


@upcast
def percent_to_fraction(old: BatteryMeasuredV1) -> BatteryMeasured:
    return BatteryMeasured(fraction=old.percent / 100)


class StartMission(Command):
    mission: str


class MissionStarted(Event):
    mission: str


class RoutePlanned(Event):
    legs: tuple[float, ...]


class Land(Action):
    reason: str


class PlanRoute(Work):
    mission: str


class Drone(Agent):
    battery: float = 1.0
    mission: str | None = None
    legs: tuple[float, ...] = ()
    done: int = 0

    @decide
    def start(self, command: StartMission) -> Events:
        if self.battery < 0.2:
            reject(f"battery at {self.battery:.0%}, 20% needed")
        yield MissionStarted(mission=command.mission)

    @evolve
    def started(self, event: MissionStarted) -> None:
        self.mission = event.mission

    @react
    def plan(self, event: MissionStarted) -> Effects:
        yield PlanRoute(mission=event.mission)
        yield WakeMe(name="check", after_s=60)
        yield Tell(to="Tower/T-1", message=event)

    @evolve
    def planned(self, event: RoutePlanned) -> None:
        self.legs = event.legs

    @evolve
    def measured(self, event: BatteryMeasured) -> None:
        if event.fraction < 0:
            raise ValueError(f"a battery at {event.fraction}")
        self.battery = event.fraction

    @react
    def land_when_low(self, event: BatteryMeasured) -> Effects:
        if self.battery < 0.15:
            yield Land(reason="battery")

    @evolve
    def landed(self, event: ActionDone) -> None:
        self.done += 1

    @react
    def checked(self, event: Woken) -> Effects:
        yield Publish(topic="checks", event=event)


class Tower(Agent):
    missions: tuple[str, ...] = ()

    @evolve
    def started(self, event: MissionStarted) -> None:
        self.missions = (*self.missions, event.mission)


class Corner(Struct, frozen=True):
    """A value with everything about which two machines could disagree."""

    nan: float = -math.nan
    zero: float = 0.0
    minus_zero: float = -0.0
    infinity: float = math.inf
    by_name: Mapping[str, float] = field(default_factory=lambda: {"b": 1.0, "a": -math.nan})
    names: frozenset[str] = frozenset({"z", "y", "x"})
    nothing: int | None = None


# Every message that the framework itself keeps or stores: once published, a version is read for ever.
MESSAGES: Sequence[Message] = (
    BatteryMeasuredV1(percent=80),
    BatteryMeasured(fraction=0.8),
    StartMission(mission="M1"),
    InputFailed(
        letter="0.7.2",
        to="Drone/D-1",
        source="radio/7",
        error="ValueError: a battery at -1.0",
        input=encode(BatteryMeasured(fraction=-1.0)),
    ),
    LetterTaken(letter="0.7.2", retried=True),
    AgentStopped(reason="3 failed inputs within 60 s"),
    AgentResumed(by="ada"),
    SafeActionTaken(action="Land", because="no BatteryMeasured for 5 s"),
    InputsSkipped(source="radio/7", first=11, last=14, because="missing: they did not come in time"),
    SignerEnrolled(algorithm=1, public_key=SIGNER.public_key, cites=GENESIS, epoch=1),
    SignerRevoked(algorithm=1, public_key=SIGNER.public_key, last_position=1_000_000),
    Woken(name="check"),
    WindowClosed(window="minute", start_s=1_700_000_040.0, end_s=1_700_000_100.0),
    ActionDone(action="Land", key="4242.0.7.0"),
    ActionFailed(action="Land", key="4242.0.7.0", reason="no answer within 30 s, after 5 tries"),
    WorkFailed(work="PlanRoute", key="4242.0.7.1", reason="ValueError: no way"),
    Publish(topic="checks", event=Woken(name="check")),
)

# What a later version of a source may send: fields that we do not know, and the tag not in front.
FROM_THE_FUTURE = {"altitude": 12.5, "type": "BatteryMeasured@2", "fraction": 0.5}

ENVELOPE = Envelope(
    format=1,
    source="radio/7",
    incarnation=3,
    epoch=2,
    sequence=1_000,
    items=[
        ("Drone/D-1", encode(BatteryMeasuredV1(percent=80))),
        ("Drone/D-1", encode(FROM_THE_FUTURE)),
        ("Drone/D-2", encode(StartMission(mission="M1"))),
    ],
)

COMMIT = Commit(
    format=1,
    hash_algorithm=1,
    shard=1,
    position=300,
    epoch=2,
    previous=bytes(range(32)),
    runs=[
        EventRun(events=2, time_ns=1_700_000_000_000_000_000, source="radio/7"),
        EventRun(events=1, time_ns=1_700_000_000_000_000_001, source=""),
        EventRun(events=0, time_ns=1_700_000_000_500_000_000, source="local"),
    ],
    events=[
        ("Drone/D-1", encode(BatteryMeasured(fraction=0.1))),
        ("Drone/D-1", encode(MissionStarted(mission="M1"))),
        ("", encode(InputsSkipped(source="radio/7", first=11, last=14, because="shed"))),
    ],
    answers=[
        Answer("Drone/D-1", "c-1", encode(StartMission(mission="M1")), None, 1, 1_700_000_000_000_000_000),
        Answer("Drone/D-2", "", encode(StartMission(mission="M2")), "battery at 10%", 2, 1_700_000_000_000_000_001),
    ],
    owed=[
        Owed("Drone/D-1", "actuators", 17, 0, encode(Land(reason="battery"))),
        Owed("Drone/D-1", "work", 4, 1, encode(PlanRoute(mission="M1"))),
        Owed("Drone/D-1", "publish", 9, -1, encode(("checks", encode(Woken(name="check"))))),
        Owed("Drone/D-1", "shard/0", 70_000, 1, encode(("Tower/T-1", encode(MissionStarted(mission="M1"))))),
        Owed("Drone/D-1", "timers", 0, 1, encode(TimerSet("check", 1_700_000_060_000_000_000))),
        Owed("Drone/D-1", "timers", 0, 1, encode(TimerSet("noon", 1_700_049_600_000_000_000, follows_wall=True))),
        Owed("Drone/D-1", "timers", 0, 1, encode(TimerSet("old", None))),
    ],
    marks=[MarkMoved("radio/7", 3, 2, 14), MarkMoved("shard/0", 0, 2, 70_001)],
    settled=[Settled("actuators", [14, 16]), Settled("shard/0", [69_998, 69_999])],
    fired=[("Drone/D-1", "check", 0), ("Drone/D-2", "window:minute", 4)],
    snapshots=[SnapshotNote(position=290, digest=b"\x01" * 32, chain=b"\x02" * 32, fold=b"\x03" * 16)],
    incarnation=4242,
)

COMMIT_WITH_CLIENTS = structs.replace(COMMIT, clients=["bus//delivery/dispatcher", ""])
_DIGEST = b"\xcc" * 32
_RULED = [Ruled(0, True, "delivery", 3, _DIGEST), Ruled(1, False), Ruled(-2, True, "delivery", 3, _DIGEST)]
COMMIT_RULED = structs.replace(COMMIT, ruled=_RULED)

HEADS = [Head(0, 12, 2, b"\xaa" * 32), Head(1, 300, 2, b"\xbb" * 32)]
SIGNATURE = Signature(algorithm=1, key=SIGNER.public_key, heads=HEADS, value=SIGNER.sign(statement(HEADS)))
MARK = AcknowledgedHead(incarnation=4242, shard=1, position=300, pid=1234)

TABLES = SnapshotTables(
    shard=1,
    position=290,
    digest=b"\x02" * 32,
    epoch=2,
    time_ns=1_700_000_000_000_000_000,
    events_count=123_456,
    marks=[MarkMoved("radio/7", 3, 2, 14)],
    sent={"actuators": 17, "shard/0": 70_000},
    owed=[Pending(9, 288, 0, "Drone/D-1", "actuators", 17, encode(Land(reason="battery")))],
    timers=[
        PendingTimer(1_700_000_060_000_000_000, "Drone/D-1", "check"),
        PendingTimer(2**62, "Drone/D-1", "noon", True),
    ],
    answers=[
        Remembered("Drone/D-1", "c-1", 1_700_000_000_000_000_000, 280, None),
        Remembered("Drone/D-2", "c-2", 2, 281, "no"),
    ],
    letters=[DeadLetter("1.270.3", "Drone/D-1", "radio/7", "ValueError: no", encode(BatteryMeasured(fraction=-1.0)))],
    failures=[("Drone/D-1", [1_699_999_990_000_000_000, 1_700_000_000_000_000_000])],
    stopped=[("Drone/D-2", "3 failed inputs within 60 s")],
    signers=[EnrolledSigner(1, b"\x04" * 32, 100), EnrolledSigner(1, SIGNER.public_key)],
)
TABLES_WITH_CLIENTS = structs.replace(
    TABLES,
    clients=["", "bus//delivery/dispatcher"],
    floors=[("", "", 1_699_000_000_000), ("Drone/D-2", "bus//delivery/dispatcher", 1_700_000_000_000)],
)
KINDS = [KindVersion("Drone", 1, b"\x05" * 16), KindVersion("Tower", 3, b"\x06" * 16)]
FULL = SnapshotHeader(1, 1, 0, b"", 2, KINDS, TABLES, genesis_of(IDENTITY.fleet, TABLES.shard))
FULL_AGENTS = [
    ("Drone/D-1", Drone(id="D-1", battery=0.12, mission="M1", legs=(1.5, -0.0), done=1)),
    ("Tower/T-1", Tower(id="T-1", missions=("M1", "M2"))),
]
INCREMENTAL = SnapshotHeader(1, 1, 250, b"\x07" * 32, 1, KINDS, TABLES, FULL.genesis)
INCREMENTAL_AGENTS = [("Drone/D-2", Drone(id="D-2"))]


def read_hex(name: str) -> bytes:
    """The bytes of a fixture in hex digits; lines that begin with # say what it is."""
    lines = (FOLDER / name).read_text(encoding="ascii").splitlines()
    return bytes.fromhex("".join(line for line in lines if not line.startswith("#")))


def read_lines(name: str) -> dict[str, bytes]:
    """The named byte strings of a fixture: on each line a name, a space, hex digits."""
    lines = (FOLDER / name).read_text(encoding="ascii").splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: bytes.fromhex(digits) for name, digits in pairs}
