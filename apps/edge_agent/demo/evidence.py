"""Holds the two journals against each other when everything has ended, and says what is proved. It reads files only."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from msgspec import Struct

from apps.edge_agent.demo.asking import Trouble, stigmergy
from apps.edge_agent.demo.field import DRONE, PILOT
from apps.edge_agent.drone import SILENCE_S

SLACK_S = 0.6
"""The ground says hello so often, and the machine may be busy."""
JUMP_PERCENT = 5.0
"""More than the aircraft can use while its program is away."""
ENTRIES_MAX = "100000"
Told = tuple[str, str]
"""The type of a report, and its fields as text."""


class Finding(Struct, frozen=True):
    """One statement about the run, and whether it is true."""

    holds: bool
    what: str


class Recovered(Struct, frozen=True):
    """The drone on the disk of the program that was killed a moment later, and what the next one made of it."""

    before: dict[str, Any]
    same_position: dict[str, Any]
    now: dict[str, Any]


async def prove(
    folder: Path, drone: list[dict[str, Any]], recovered: Recovered, refused: str, chance: random.Random
) -> list[Finding]:
    """Everything that can be said about this run; `drone` is the log of the drone's journal."""
    device = folder / "drone"
    # One after the other: whoever reads a journal has it for itself.
    ground = await read_log(folder / "ground")
    again = await replayed(device, "apps.edge_agent.drone:fleet")
    sound = await verified(device)
    flipped = await flip_found(device, chance)
    return [
        intact(recovered),
        arrived(published(drone), heard(ground)),
        done_once(drone, ground),
        safe_in_time(drone),
        said_no(ground, refused),
        again,
        sound,
        flipped,
    ]


async def read_log(folder: Path) -> list[dict[str, Any]]:
    """All entries of the journal in this folder."""
    code, entries = await stigmergy("log", "show", "--limit", ENTRIES_MAX, cwd=folder)
    if code:
        raise Trouble(f"the log of {folder.name} cannot be read: {entries}")
    return entries


def published(log: list[dict[str, Any]]) -> dict[str, list[Told]]:
    """What the drone's journal says it has published, by topic, in the order of its numbers."""
    numbered: dict[str, list[tuple[int, Told]]] = {}
    for entry in log:
        for effect in entry["effects"]:
            if effect["sink"] == "publish":
                told = (effect["type"], repr(effect["fields"]))
                numbered.setdefault(effect["to"], []).append((effect["sequence"], told))
    return {topic: [told for _, told in sorted(reports)] for topic, reports in sorted(numbered.items())}


def heard(log: list[dict[str, Any]]) -> dict[str, list[Told]]:
    """What the ground station's journal holds of it, by topic, as it was taken."""
    found: dict[str, list[Told]] = {}
    for entry in log:
        source = entry["cause"]["source"]
        if entry["kind"] == "event" and entry["agent"] == PILOT and "/events/" in source:
            topic = source.partition("/events/")[2].partition(" ")[0]
            found.setdefault(topic, []).append((entry["type"], repr(entry["fields"])))
    return found


def arrived(sent: dict[str, list[Told]], taken: dict[str, list[Told]]) -> Finding:
    """Each once, and in order: counted, not assumed."""
    lost = doubled = 0
    which = ""
    for topic in sorted({*sent, *taken}):
        one, other = Counter(sent.get(topic, [])), Counter(taken.get(topic, []))
        missing, more = one - other, other - one
        lost += missing.total()
        doubled += more.total()
        which += "".join(f"; on {topic}: {kind} {fields}" for kind, fields in (*missing, *more))
    count = sum(len(reports) for reports in sent.values())
    order = "in order" if sent == taken else "NOT in order"
    what = f"{count} reports in the drone's journal, held against the ground station's: lost {lost}, doubled {doubled}"
    return Finding(count > 0 and not lost and not doubled and sent == taken, f"{what}, {order}{which}")


def intact(recovered: Recovered) -> Finding:
    """What the killed program had on disk is what the next one has at that position, and it goes on from there."""
    before, after, now = recovered.before["state"], recovered.same_position["state"], recovered.now["state"]
    same = before == after and before["mission"] == now["mission"] is not None
    near = abs(before["battery"] - now["battery"]) < JUMP_PERCENT
    shown = f"mission {now['mission']}, battery {now['battery']:.1f} % after {before['battery']:.1f} %"
    return Finding(same and near, f"killed with -9 and recovered: {shown}, and the same state at the same position")


def done_once(drone: list[dict[str, Any]], ground: list[dict[str, Any]]) -> Finding:
    """An order that was sent again after the kill: one mission, and the same answer twice."""
    orders = [entry for entry in ground if entry["type"].startswith("OrderAnswered") and entry["agent"] == PILOT]
    answers: dict[str, list[bool]] = {}
    for entry in orders:
        answers.setdefault(entry["fields"]["order"], []).append(entry["fields"]["accepted"])
    repeated = {order: given for order, given in answers.items() if len(given) > 1}
    starts = Counter(
        entry["cause"]["command_id"] for entry in drone if entry["type"].startswith("MissionStarted") and entry["agent"]
    )
    alike = all(len(set(given)) == 1 for given in repeated.values())
    once = all(starts[order] == 1 for order in repeated)
    what = f"{len(repeated)} order sent again with its id: done once, answered as before"
    return Finding(bool(repeated) and alike and once, what)


def safe_in_time(log: list[dict[str, Any]]) -> Finding:
    """How long after the last word of the ground the safe action went out that ended the second mission."""
    heard_ns = 0
    after_s: float | None = None
    for entry in log:
        if entry["agent"] == DRONE and entry["type"].startswith("GroundHeard"):
            heard_ns = entry["time_ns"]
        elif entry["type"].startswith("stigmergy.SafeActionTaken") and "GroundHeard" in entry["fields"]["because"]:
            after_s = (entry["time_ns"] - heard_ns) / 1e9 if heard_ns else None
    if after_s is None:
        return Finding(False, "without the ground it should have landed by itself, and did not")
    holds = SILENCE_S - SLACK_S <= after_s <= SILENCE_S + SLACK_S
    return Finding(holds, f"without the ground it landed by itself, {after_s:.1f} s after the last word")


def said_no(log: list[dict[str, Any]], mission: str) -> Finding:
    """The refusal that came back over the broker."""
    reasons = [
        entry["fields"]["reason"]
        for entry in log
        if entry["type"].startswith("OrderAnswered") and not entry["fields"]["accepted"]
    ]
    return Finding(bool(reasons), f"{mission} was refused: {reasons[0] if reasons else 'never'}")


async def verified(folder: Path) -> Finding:
    """`stigmergy log verify`, with the key of the device."""
    code, documents = await stigmergy("log", "verify", "--key", f"{folder.name}.key", cwd=folder)
    found = documents[0] if documents else {}
    what = (
        f"log verify: {found.get('commits')} commits, {found.get('events')} events, "
        f"{found.get('signatures')} signatures of this device"
    )
    return Finding(code == 0 and found.get("sound") is True and bool(found.get("signatures")), what)


async def replayed(folder: Path, fleet: str) -> Finding:
    """`stigmergy replay`: everything decided once more."""
    code, documents = await stigmergy("replay", fleet, cwd=folder)
    found = documents[-1] if documents else {}
    what = f"replay: {found.get('events')} events folded and every command decided again"
    return Finding(code == 0, f"{what}, nothing differs" if code == 0 else f"{what}: {str(documents)[:300]}")


async def flip_found(folder: Path, chance: random.Random) -> Finding:
    """One bit of one byte in a copy of the journal; the verification must say where."""
    copy = folder / "flipped.db"
    shutil.copyfile(folder / "drone.db", copy)
    data = bytearray(copy.read_bytes())
    offset = find_event(data, chance)
    data[offset] ^= 1 << chance.randrange(8)
    copy.write_bytes(data)
    code, documents = await stigmergy("log", "verify", "--journal", str(copy), cwd=folder)
    found = documents[0] if documents else {}
    problems = found.get("problems") or []
    said = f"position {problems[0]['position']}: {problems[0]['what']}" if problems else str(found.get("error", ""))
    holds = code != 0 and bool(said)
    return Finding(holds, f"one bit flipped in byte {offset:,} of a copy, found: {said or 'nothing was noticed'}")


def find_event(data: bytearray, chance: random.Random) -> int:
    """The place of an event's bytes that the file holds just once: a free page may hold an old copy of others."""
    name = b"BatteryReported@1"
    places: list[int] = []
    at = data.find(name)
    while at >= 0:
        around = bytes(data[at : at + len(name) + 20])
        if data.count(around) == 1:
            places.append(at)
        at = data.find(name, at + 1)
    if not places:
        raise Trouble("the journal has no report in it")
    return chance.choice(places) + chance.randrange(len(name))
