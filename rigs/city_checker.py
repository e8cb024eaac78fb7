"""Checks a run of the city from what was witnessed and logged: `python -m rigs.city_checker FOLDER --json`.

It imports nothing of the application. It believes these files in the folder:

    world.jsonl     when and where gas really leaked, which sensors were broken, which gateways were cut off or died
    raw.bin         eight bytes of each raw reading that a gas sensor sent
    g*/city.db      the journals of the gateways; g*.lost-*/city.db those of disks that were lost
    g*.wire         all bytes that left a gateway
    webhook.jsonl   what the receiver was told, with marks; mail.jsonl likewise
    g*.sirens       when a district was warned

Every figure in `MUST_BE_ZERO` is a broken promise, and `violations` is their sum.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from stigmergy.agents.codec import tag_of
from stigmergy.app.fleet import inspect_all
from stigmergy.audit.export import Export, Selection

MUST_BE_ZERO = (
    "lost",
    "doubled",
    "false_incidents",
    "orders_differ",
    "out_of_order",
    "foreign_keys",
    "not_notified",
    "notified_twice",
    "mailed_twice",
    "district_not_warned",
    "exposure_diverged",
    "exposure_lost",
    "raw_bytes_left_device",
)
GASES = ("CO_leak", "NO2_leak")
KIND = {"co": GASES, "no2": GASES, "noise": ("noise",), "flow": ("jam",), "crowd": ("crowd",)}
AFTER_S = 20.0
"""A leak may be noticed so long after its end: sensors need some readings, and windows remember."""
LATE_S = 0.001
RAW_BYTES = 8
SHOWN_MAX = 10


class Leak(Struct, frozen=True):
    """What really happened."""

    name: str
    what: str
    district: str
    begin_s: float
    end_s: float


class Opened(Struct, frozen=True):
    """An incident in the ledger, as one gateway's log has it."""

    position: int
    incident: str
    stage: str
    kind: str
    sensor: str
    by: str
    since_s: float
    of: str
    severity: int
    at_s: float
    proposer: str = ""
    key: str = ""
    """That has signed it."""


class Journal(Struct):
    """What one gateway has kept on one disk."""

    name: str
    entered: list[Opened] = []
    raised: list[tuple[str, float]] = []
    exposed: Counter[str] = msgspec.field(default_factory=Counter)
    by_rule: int = 0
    by_model: int = 0
    doubted: int = 0


class Findings(Struct):
    """What was found."""

    leaks: int = 0
    incidents: int = 0
    lost: int = 0
    """Leaks without an incident, and incidents that a gateway decided on and that are not in the ledger."""
    doubled: int = 0
    """Leaks with two incidents, and incidents that are in the ledger twice."""
    false_incidents: int = 0
    """Incidents where nothing leaked."""
    orders_differ: int = 0
    """Gateways whose order of entries is another one."""
    out_of_order: int = 0
    """Incidents of one gateway that are in the ledger in another order than it decided them."""
    foreign_keys: int = 0
    """Keys beyond one for each gateway, also after a lost disk; and keys that have signed for two gateways."""
    rejoined: int = 0
    """Gateways that entered something in the ledger after they had begun again from an empty disk."""
    escalated: int = 0
    acknowledged: int = 0
    cleared: int = 0
    not_notified: int = 0
    notified_twice: int = 0
    """Marks that the receiver acted on twice."""
    repeated_notices: int = 0
    """Notices that came again, and changed nothing."""
    mailed_twice: int = 0
    mails: int = 0
    district_not_warned: int = 0
    detection_to_ledger_p50_s: float = 0.0
    detection_to_ledger_p99_s: float = 0.0
    detection_to_ledger_linked_p99_s: float = 0.0
    """Of incidents of gateways that were neither cut off nor dead between detection and entry."""
    leak_to_detection_p50_s: float = 0.0
    leak_to_siren_p50_s: float = 0.0
    leak_to_siren_p99_s: float = 0.0
    inferred_by_model: int = 0
    inferred_by_rule: int = 0
    sensors_broken: int = 0
    sensors_doubted: int = 0
    exposure_diverged: int = 0
    """Districts and pollutants that two gateways count differently at the end."""
    exposure_lost: int = 0
    """Counted on a disk that is there, and not in the sums."""
    raw_bytes_left_device: int = 0
    bytes_searched: int = 0
    violations: int = 0
    details: list[str] = []

    def note(self, what: str, found: Iterable[str]) -> None:
        """Counts it, and keeps the first few."""
        every = list(found)
        setattr(self, what, getattr(self, what) + len(every))
        self.details = [*self.details, *(f"{what}: {one}" for one in every[:SHOWN_MAX])]


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The facts in a file; the last line may be cut off by a crash."""
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            return


# ------------------------------------------------------------------ what the logs say


def read_journal(path: Path) -> Journal:
    """Reads one."""
    found = Journal(path.parent.name, [], [])
    journal = inspect_all(f"sqlite:{path}")
    try:
        for commit in Export(journal, Selection()).commits():
            index = 0
            for run in commit.runs:
                for agent, body in commit.events[index : index + run.events]:
                    _read_event(found, agent, tag_of(body), body, run.time_ns / 1e9)
                index += run.events
    finally:
        asyncio.run(journal.close())
    return found


def _read_event(found: Journal, agent: str, tag: str, body: bytes, at_s: float) -> None:
    match tag:
        case "stigmergy.Entered.city.Incident@1":
            fields = msgspec.msgpack.decode(body)
            entry = fields["entry"]
            found.entered.append(
                Opened(
                    fields["position"],
                    entry["incident_id"],
                    entry.get("stage", "opened"),
                    entry["kind"],
                    entry["source_node"],
                    entry.get("by", ""),
                    entry.get("since_s", 0.0),
                    entry.get("of", ""),
                    entry.get("severity", 0),
                    at_s,
                    fields["proposer"],
                    fields["writer"],
                )
            )
        case "Raised@1":
            found.raised.append((msgspec.msgpack.decode(body)["entry"]["incident_id"], at_s))
        case "Exposed@1":
            fields = msgspec.msgpack.decode(body)
            found.exposed[fields["place"]] += fields.get("readings", 1)
        case "SensorDoubted@1":
            found.doubted += 1
        case "stigmergy.Inferred.gas-alarm@1":
            if msgspec.msgpack.decode(body)["source"].get("fallback"):
                found.by_rule += 1
            else:
                found.by_model += 1
        case _:
            del agent


def read_exposure(path: Path) -> dict[str, int]:
    """The last state of the counters, as a gateway wrote it down when it stopped."""
    last: dict[str, int] = {}
    for line in read_lines(path):
        last = line["exposure"]
    return last


# ------------------------------------------------------------------ the judgement


def read_leaks(facts: list[dict[str, Any]]) -> list[Leak]:
    """From beginning to end."""
    began = {one["leak"]: one for one in facts if one["fact"] == "began"}
    ended = {one["leak"]: one["at_s"] for one in facts if one["fact"] == "ended"}
    return [
        Leak(name, one["what"], one["district"], one["at_s"], ended.get(name, float("inf")))
        for name, one in began.items()
    ]


def check_incidents(found: Findings, leaks: list[Leak], journals: list[Journal]) -> list[Opened]:
    """The entries in the order of the ledger, by whichever gateway has most of them."""
    longest = max((one.entered for one in journals), key=len, default=[])
    order = [one.incident for one in longest]
    found.note(
        "doubled", (f"{name} is {count} times in the ledger" for name, count in Counter(order).items() if count > 1)
    )
    for one in journals:
        own = [entry.incident for entry in one.entered]
        if own != order[: len(own)]:
            found.note("orders_differ", [one.name])
    opened = [one for one in longest if one.stage == "opened"]
    there = {one.incident for one in opened}
    for one in journals:
        # What was decided on a disk that is lost, and had not left it, is not promised; sensors say it again.
        if ".lost" not in one.name:
            found.note(
                "lost", (f"{name} of {one.name} is not in the ledger" for name, _ in one.raised if name not in there)
            )
        places = {entry.incident: number for number, entry in enumerate(opened)}
        decided = [places[name] for name, _ in one.raised if name in places]
        found.note("out_of_order", (f"{one.name}: {a} before {b}" for a, b in pairwise(decided) if a > b))
    by_leak: dict[str, list[Opened]] = defaultdict(list)
    for entry in opened:
        leak = _leak_of(entry, leaks)
        if leak is None:
            found.note("false_incidents", [f"{entry.kind} at {entry.sensor}, {entry.incident}"])
        else:
            by_leak[leak.name].append(entry)
    found.leaks, found.incidents = len(leaks), len(opened)
    found.note("lost", (f"nobody noticed {one}" for one in leaks if one.name not in by_leak))
    found.note("doubled", (f"{name} has {len(some)} incidents" for name, some in by_leak.items() if len(some) > 1))
    for stage in ("escalated", "acknowledged", "cleared"):
        setattr(found, stage, sum(one.stage == stage for one in longest))
    return longest


def check_keys(found: Findings, journals: list[Journal], facts: list[Any]) -> None:
    """Each gateway signs with its own key, and with that one only; one with an empty disk takes part again."""
    keys, gateways = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    last_s: dict[str, float] = {}
    read_s: dict[int, float] = {}
    entries = [entry for one in journals for entry in one.entered]
    for entry in entries:  # others have read it soon; who has lost its disk reads everything again
        read_s[entry.position] = min(read_s.get(entry.position, entry.at_s), entry.at_s)
    for entry in entries:
        gateway = entry.proposer.rpartition("/")[2]
        keys[gateway].add(entry.key)
        gateways[entry.key].add(gateway)
        last_s[gateway] = max(last_s.get(gateway, 0.0), read_s[entry.position])
    found.note("foreign_keys", (f"{name} signs with {len(some)} keys" for name, some in keys.items() if len(some) > 1))
    found.note(
        "foreign_keys", (f"{key[:8]} signs for {sorted(some)}" for key, some in gateways.items() if len(some) > 1)
    )
    emptied_s = {one["gateway"]: one["at_s"] for one in facts if one["fact"] == "emptied"}
    found.rejoined = sum(last_s.get(name, 0.0) > since_s for name, since_s in emptied_s.items())


def _leak_of(entry: Opened, leaks: list[Leak]) -> Leak | None:
    """The leak that a sensor of this place noticed at that time."""
    for one in leaks:
        is_then = one.begin_s - LATE_S <= entry.since_s <= one.end_s + AFTER_S
        if one.district == entry.sensor.partition("-")[0] and entry.kind in KIND[one.what] and is_then:
            return one
    return None


def check_times(
    found: Findings, leaks: list[Leak], entries: list[Opened], journals: list[Journal], facts: list[Any]
) -> None:
    """From the first sure sensor to the moment when another gateway had the entry in its log."""
    first_s: dict[str, float] = {}
    for one in journals:
        for entry in one.entered:
            if one.name != entry.by or len(journals) == 1:
                first_s[entry.incident] = min(first_s.get(entry.incident, entry.at_s), entry.at_s)
    away = _away(facts)
    took, linked, noticed = [], [], []
    for entry in entries:
        if entry.stage == "opened" and entry.incident in first_s:
            until_s = first_s[entry.incident]
            took.append(until_s - entry.since_s)
            if not any(a <= until_s and entry.since_s <= b for a, b in away.get(entry.by, ())):
                linked.append(took[-1])
            leak = _leak_of(entry, leaks)
            if leak is not None:
                noticed.append(entry.since_s - leak.begin_s)
    found.detection_to_ledger_p50_s, found.detection_to_ledger_p99_s = quantiles(took)
    found.detection_to_ledger_linked_p99_s = quantiles(linked)[1]
    found.leak_to_detection_p50_s = quantiles(noticed)[0]


def _away(facts: list[Any]) -> dict[str, list[tuple[float, float]]]:
    """When each gateway was cut off or dead."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    begins: dict[str, float] = {}
    for one in facts:
        if one["fact"] in ("cut", "died", "emptied"):
            begins[one["gateway"]] = one["at_s"]
        elif one["fact"] in ("joined", "started") and one["gateway"] in begins:
            found[one["gateway"]].append((begins.pop(one["gateway"]), one["at_s"]))
    for name, begin_s in begins.items():
        found[name].append((begin_s, float("inf")))
    return found


def quantiles(values: list[float]) -> tuple[float, float]:
    """The 50th and the 99th percentile."""
    if not values:
        return 0.0, 0.0
    return float(np.quantile(values, 0.5)), float(np.quantile(values, 0.99))


def check_sirens(found: Findings, folder: Path, leaks: list[Leak]) -> None:
    """Every district is warned of its leak, by its own gateway, whatever else is down."""
    rung = [line for path in sorted(folder.glob("g*.sirens")) for line in read_lines(path)]
    took: list[float] = []
    for one in leaks:
        at_s = min(
            (
                line["at_s"]
                for line in rung
                if line["district"] == one.district and line["at_s"] >= one.begin_s and _same(line["what"], one.what)
            ),
            default=None,
        )
        if at_s is None:
            found.note("district_not_warned", [f"{one.district} of {one.name}"])
        else:
            took.append(at_s - one.begin_s)
    found.leak_to_siren_p50_s, found.leak_to_siren_p99_s = quantiles(took)


def _same(one: str, two: str) -> bool:
    return KIND[one] == KIND[two]


def check_notices(found: Findings, folder: Path, entries: list[Opened]) -> None:
    """Each incident, and each of its escalations, is told once."""
    hooks, mails = list(read_lines(folder / "webhook.jsonl")), list(read_lines(folder / "mail.jsonl"))
    acted = Counter(line["mark"] for line in hooks if line["first"])
    found.note("notified_twice", (mark for mark, count in acted.items() if count > 1))
    found.repeated_notices = sum(not line["first"] for line in hooks)
    found.mails = sum(line["first"] for line in mails)
    mailed = Counter(line["mark"] for line in mails if line["first"])
    found.note("mailed_twice", (mark for mark, count in mailed.items() if count > 1))
    told = {mark.partition(":")[0] for mark in acted}
    found.note("not_notified", (one.incident for one in entries if one.stage == "opened" and one.incident not in told))


def check_exposure(found: Findings, folder: Path, journals: list[Journal]) -> None:
    """All gateways have the same sums at the end, and nothing that is on a disk is missing in them."""
    kept = [one for one in journals if ".lost" not in one.name]
    sums = {one.name: read_exposure(folder / f"{one.name}.exposure") for one in kept}
    least: Counter[str] = Counter()
    for one in kept:
        least.update(one.exposed)
    for place in sorted({place for one in sums.values() for place in one} | set(least)):
        values = {name: one.get(place, 0) for name, one in sums.items()}
        if len(set(values.values())) > 1:
            found.note("exposure_diverged", [f"{place}: {values}"])
        if min(values.values(), default=0) < least[place]:
            found.note("exposure_lost", [f"{place}: {values}, {least[place]} on disks"])


def check_wires(found: Findings, folder: Path) -> None:
    """Looks for raw readings at every place of what left a gateway: as they were sent, and as MessagePack would have
    them, doubles in network order."""
    raw = np.frombuffer((folder / "raw.bin").read_bytes(), np.uint8).reshape(-1, RAW_BYTES)
    sent = np.unique(raw.copy().view("<u8").ravel())
    doubles = np.unique(raw.copy().view("<f4").ravel().astype(">f8").view("<u8"))
    for path in sorted(folder.glob("g*.wire")):
        data = path.read_bytes()
        found.bytes_searched += len(data)
        for wanted in (sent, doubles):
            for start in range(RAW_BYTES):
                count = (len(data) - start) // RAW_BYTES
                if count > 0:
                    places = np.frombuffer(data, "<u8", count, start)
                    hits = int(np.isin(places, wanted).sum())
                    if hits:
                        found.raw_bytes_left_device += hits * RAW_BYTES
                        found.details = [*found.details, f"raw_bytes_left_device: {hits} readings left by {path.name}"]


def check(folder: Path) -> Findings:
    """All of it."""
    found = Findings()
    facts = list(read_lines(folder / "world.jsonl"))
    leaks = read_leaks(facts)
    paths = sorted(folder.glob("g*/city.db"))
    journals = [read_journal(path) for path in paths]
    entries = check_incidents(found, leaks, journals)
    check_times(found, leaks, entries, journals, facts)
    check_keys(found, journals, facts)
    check_sirens(found, folder, leaks)
    check_notices(found, folder, entries)
    check_exposure(found, folder, journals)
    check_wires(found, folder)
    found.inferred_by_model = sum(one.by_model for one in journals)
    found.inferred_by_rule = sum(one.by_rule for one in journals)
    found.sensors_broken = sum(one["fact"] == "broken" for one in facts)
    found.sensors_doubted = sum(one.doubted for one in journals)
    found.violations = sum(getattr(found, name) for name in MUST_BE_ZERO)
    return found


def main(arguments: list[str] | None = None) -> int:
    """The command. 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m rigs.city_checker", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    found = check(options.folder)
    if options.json:
        print(json.dumps(msgspec.to_builtins(found)))
    else:
        for key, value in msgspec.to_builtins(found).items():
            print(f"{key:32} {value}")
    return 1 if found.violations else 0


if __name__ == "__main__":
    sys.exit(main())
