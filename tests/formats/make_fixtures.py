"""Makes the fixtures that do not exist yet: `.venv/bin/python -m tests.formats.make_fixtures`. Never replaces one.

A fixture is made once, by the version that publishes the format, and then read for ever. When a format gets a new
number, add a fixture beside the old one; both are replayed.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from blake3 import blake3

from stigmergy import Agent
from stigmergy.agents.codec import canonical_bytes, encode, without_empty_end
from stigmergy.agents.effects import ACTUATORS, WORK, ActionDone, shard_sink
from stigmergy.agents.messages import SECOND_NS, Message, spec_of
from stigmergy.audit.flight import FlightSelection, make_flight
from stigmergy.journal import segments, sqlite
from stigmergy.journal.identity import encode_mark
from stigmergy.journal.port import Journal, SnapshotPart
from stigmergy.journal.recovery import new_state
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.models.bundle import AcceptedMetric, Example, Manifest, ModelClass, Note, write_bundle
from stigmergy.models.rollout import CountsReport, VersionCounts, VersionRecord, write_counts, write_record
from stigmergy.models.runtime import pack_row
from stigmergy.nats import journal as nats_journal
from stigmergy.nats import naming
from stigmergy.nats.journal import messages as nats_messages
from stigmergy.nats.journal import snapshots as shelf
from stigmergy.shard.commit import Group, Signature, head_of, seal, statement
from stigmergy.shard.draft import Ready
from stigmergy.shard.homes import Homes, shard_of
from stigmergy.shard.inputs import (
    Ask,
    Delivery,
    EffectSettled,
    EnrollSigner,
    Input,
    LetterRetried,
    SafeActionOut,
    SequencesSkipped,
    SnapshotStored,
    TimerDue,
)
from stigmergy.shard.shard import Shard
from stigmergy.shard.snapshot import (
    SnapshotHeader,
    SnapshotTables,
    SnapshotWriter,
    digest_of_parts,
    digest_of_state,
    encode_header,
)
from stigmergy.shard.state import ShardState, plan_agents
from stigmergy.store.sealed import CHUNK_BYTES, SEED_BYTES, Sealer
from stigmergy.testing.nats import start_single
from tests.formats import golden, golden_columns
from tests.models.nets import ROWS, forest

NOON_NS = 1_700_000_000 * SECOND_NS


class Owner:
    """Steps the shards of the golden fleet by hand, so that every run gives the same commits."""

    def __init__(self, journal: Journal) -> None:
        plans = plan_agents([golden.Drone, golden.Tower])
        self.journal = journal
        self.shards = [Shard(new_state(journal.identity, number, plans), Homes(2)) for number in range(2)]
        self.now_ns = NOON_NS
        self.changed: list[dict[str, None]] = [{}, {}]
        self.digests: dict[int, bytes] = {}

    async def take(self, inputs: Mapping[int, Sequence[Input]]) -> None:
        """One step of each shard, one group."""
        self.now_ns += SECOND_NS
        readies: list[Ready] = []
        for number, shard in enumerate(self.shards):
            shard.step(inputs.get(number, []), self.now_ns)
            ready = shard.seal()
            if ready is not None:
                readies.append(ready)
                self.changed[number].update(dict.fromkeys(ready.touched))
        covered = {ready.sealed.shard: head_of(ready.sealed) for ready in readies}
        if any(ready.commit.snapshots for ready in readies):
            covered = {shard.state.shard: shard.state.head for shard in self.shards if shard.state.position}
        heads = [covered[number] for number in sorted(covered)]
        value = golden.SIGNER.sign(statement(heads))
        signature = Signature(golden.SIGNER.algorithm, golden.SIGNER.public_key, heads, value)
        await self.journal.append(Group(tuple(ready.sealed for ready in readies), signature))

    async def tell(self, source: str, sequence: int, *items: tuple[str, Message]) -> None:
        """Observed events and commands of one source, all to agents of one shard."""
        raw = [(address, encode(message)) for address, message in items]
        number = shard_of(items[0][0], 2)
        await self.take({number: [Delivery(source, raw, sequence=sequence, incarnation=1)]})

    async def snapshot(self, number: int, base: int = 0) -> int:
        """Stores a snapshot of a shard and lets the next commit note it."""
        shard = self.shards[number]
        taking = SnapshotWriter(
            shard.state,
            base=base,
            base_digest=self.digests[base] if base else b"",
            changed=self.changed[number] if base else None,
        )
        self.changed[number] = {}
        parts: list[SnapshotPart] = []
        while (body := taking.next_part(shard.open_images)) is not None:
            parts.append(SnapshotPart(len(parts), body))
        await self.journal.put_snapshot(number, taking.position, parts)
        self.digests[taking.position] = taking.note().digest
        await self.take({number: [SnapshotStored(taking.note())]})
        return taking.position

    async def pass_tells_on(self, number: int) -> None:
        """What a shard owes the other one arrives there, and is settled here."""
        other = 1 - number
        owed = [one for one in self.shards[number].state.outbox.owed() if one.sink == shard_sink(other)]
        if owed:
            items = [told(one.body) for one in owed]
            await self.take({other: [Delivery(shard_sink(number), items, sequence=owed[0].sequence)]})
            await self.take({number: [EffectSettled(one.sink, one.sequence) for one in owed]})


def told(body: bytes) -> tuple[str, bytes]:
    """A stored tell, opened."""
    return msgspec.msgpack.decode(body, type=tuple[str, bytes])


async def live(owner: Owner) -> None:
    """The life of the golden fleet: something of everything."""
    drone, other, tower = "Drone/D-1", "Drone/D-2", "Tower/T-1"
    home = shard_of(drone, 2)
    await owner.take({0: [EnrollSigner(golden.SIGNER.algorithm, golden.SIGNER.public_key)]})
    for number, percent in enumerate((80, 75, 70), start=1):
        await owner.tell("radio/7", number, (drone, golden.BatteryMeasuredV1(percent=percent)))
    await owner.tell("radio/8", 1, (other, golden.BatteryMeasured(fraction=0.9)))
    start = encode(golden.StartMission(mission="M1"))
    await owner.take({home: [Ask(drone, "c-1", start)]})
    await owner.pass_tells_on(home)
    planned = encode(golden.RoutePlanned(legs=(1.5, -0.0, 2.25)))
    await owner.take({home: [EffectSettled(WORK, 1, planned)]})
    full = [await owner.snapshot(number) for number in range(2)]
    due_ns = owner.shards[home].state.timers.all()[0].due_ns
    owner.now_ns = due_ns
    await owner.take({home: [TimerDue(drone, "check", due_ns)]})
    await owner.tell("radio/7", 4, (drone, golden.BatteryMeasured(fraction=0.1)))
    await owner.take({home: [Ask(drone, "c-2", start)]})
    done = encode(ActionDone(action="Land", key=f"{golden.IDENTITY.incarnation}.0.0.0"))
    await owner.take({home: [EffectSettled(ACTUATORS, 1, done)]})
    await owner.tell("radio/7", 5, (drone, golden.BatteryMeasured(fraction=-1.0)))
    letter = owner.shards[home].state.letters.all()[0].letter
    await owner.take({home: [LetterRetried(letter)]})
    skipped = SequencesSkipped("radio/7", 1, 0, 9, "missing: they did not come in time")
    await owner.take({home: [skipped, SafeActionOut(drone, "Land", "no BatteryMeasured for 5 s")]})
    await owner.snapshot(home, base=full[home])
    await owner.tell("radio/7", 10, (drone, golden.BatteryMeasured(fraction=0.12)))
    await owner.tell("radio/9", 1, (tower, golden.MissionStarted(mission="M3")))
    await owner.take({number: [Ask(f"{address}", f"c-3-{number}", start)] for number, address in last_words().items()})


def last_words() -> dict[int, str]:
    """An agent of each shard, so that the last group covers the heads of both."""
    addresses = [f"Drone/L-{number}" for number in range(10)]
    return {shard_of(address, 2): address for address in reversed(addresses)}


async def make_journal(path: Path) -> dict[str, bytes]:
    """Writes a journal; returns what must come out of it."""
    journal = sqlite.open_journal(f"sqlite:{path}", golden.IDENTITY)
    owner = Owner(journal)
    await live(owner)
    await journal.close()
    return {
        f"shard {number} position {shard.state.position} state": digest_of_state(shard.state)
        for number, shard in enumerate(owner.shards)
    }


async def make_segments(path: Path) -> None:
    """The same life in a journal in segments, of which the beginning was dropped."""
    journal = segments.open_journal(
        f"segments:{path}", golden.IDENTITY, segment_bytes=4096, filled=False, key=golden.SEGMENTS_KEY
    )
    await live(Owner(journal))
    for shard in range(golden.IDENTITY.shards):
        await journal.drop(shard, journal.snapshots(shard)[0] - 1)
    await journal.close()


async def make_nats(url: str) -> dict[str, bytes]:
    """The same life in a log on NATS, of which the beginning was dropped: its messages, and those of its snapshots."""
    journal = nats_journal.open_journal(url, golden.IDENTITY, owner="golden")
    await live(Owner(journal))
    await journal.close()
    journal = nats_journal.open_journal(url, golden.IDENTITY, owner="golden")
    for shard in range(golden.IDENTITY.shards):
        await journal.drop(shard, journal.snapshots(shard)[0] - 1)
    link = (await journal._log()).link
    found: dict[str, bytes] = {}
    for stream in (naming.log_stream("golden", 0, 1), naming.snapshots_bucket("golden")):
        asked = msgspec.json.encode({"seq": 1, "batch": 1_000})
        for message in await link.collect(f"$JS.API.DIRECT.GET.{stream}", asked, 1_000):
            headers = message.headers or {}
            found[f"{stream} {headers['Nats-Sequence']} {headers['Nats-Subject']}"] = message.data
    await journal.close()
    return found


async def make_event_log() -> dict[str, bytes]:
    """The commits of one drone, written when its events were version 1, and the state that they lead to."""
    plans = plan_agents([golden.Drone, golden.Tower])
    shard = Shard(ShardState(0, plans))
    lines: dict[str, bytes] = {}
    for position, percent in enumerate((90, 55, 20), start=1):
        body = encode(golden.BatteryMeasuredV1(percent=percent))
        shard.step([Delivery("radio/7", [("Drone/D-1", body)], sequence=position)], NOON_NS + position)
        ready = shard.seal()
        assert ready is not None
        lines[f"commit {position}"] = ready.sealed.body
    lines["state"] = digest_of_state(shard.state)
    return lines


def snapshot_parts(header: SnapshotHeader, agents: Sequence[tuple[str, Agent]]) -> dict[str, bytes]:
    """The parts of a snapshot as they are stored, and the digest that a commit would note."""
    listed = [(address, canonical_bytes(agent)) for address, agent in agents]
    parts = [zlib.compress(encode_header(header), 1), zlib.compress(encode(listed), 1)]
    return {"part 0": parts[0], "part 1": parts[1], "digest": digest_of_parts(parts)}


def columns_parts() -> dict[str, bytes]:
    """The parts of a snapshot with compiled agents, and its digest."""
    parts = [zlib.compress(encode_header(golden_columns.HEADER), 1), golden_columns.ROWS_PART]
    return {"part 0": parts[0], "part 1": parts[1], "digest": digest_of_parts(parts)}


def columns() -> dict[str, bytes]:
    """How a kind of compiled agents lies in bytes, and the digests of that."""
    layout, templates = golden_columns.LAYOUT, golden_columns.TEMPLATES
    lines = {"layout": encode(layout), "layout digest": layout.digest()}
    lines |= {"templates": encode(templates), "templates digest": templates.digest()}
    return lines | {f"check {generation}": check for generation, check in enumerate(golden_columns.CHECKS)}


def flight_bytes(journal: Path) -> bytes:
    """The flight log of a journal, made at noon."""
    opened = sqlite.inspect_journal(f"sqlite:{journal}")
    try:
        return b"".join(make_flight(opened, golden.SIGNER, FlightSelection(reason="golden"), made_ns=NOON_NS))
    finally:
        asyncio.run(opened.close())


def golden_bundle() -> bytes:
    payload, answer = forest()
    manifest = Manifest(
        name="gas-alarm",
        version="1.2.0",
        runtime="forest",
        model_class=ModelClass.TINY,
        inputs=("co", "nox", "temperature"),
        outputs=("co", "no2"),
        licence="Apache-2.0",
        metrics=(AcceptedMetric("auc", 0.966),),
        notes=(Note("seed", "7"),),
        examples=tuple(Example(pack_row(row), tuple(map(float, answer([row])[0]))) for row in ROWS),
    )
    return write_bundle(manifest, payload, golden.SIGNER)


def versions() -> dict[str, bytes]:
    """What nodes keep of a rollout."""
    record = VersionRecord("city", "gas-alarm", 7, "1.2.0", "1.3.0", "canary", "gas-alarm/5", 0.05, "1.1.0", 10.0)
    stable = VersionCounts(asks=950, failed=2, latency_s=1.5, judged=30, wrong=1)
    candidate = VersionCounts(asks=50, failed=1, compared=49, differed=3, latency_s=0.25, judged=4, wrong=2)
    report = CountsReport("city", "gas-alarm", "local/north/5f3a.1", 7, stable, candidate)
    signed = write_record(record, golden.SIGNER)
    return {
        "versions": signed,
        "counts": write_counts(report, golden.SIGNER),
        "file": msgspec.msgpack.encode({"gas-alarm": signed}),
    }


SEALED_TEXT = b"the plate was M-GA 123"
READER_SEED = bytes(range(100, 132))


def sealed_blobs() -> dict[str, bytes]:
    """A blob for the reader whose private key is READER_SEED, sealed with counted bytes in the place of random ones."""
    seeds = bytes(range(SEED_BYTES))
    reader = Ed25519Signer(READER_SEED).public_key
    small, large = Sealer(reader, seeds), Sealer(reader, seeds)
    plain = bytes(CHUNK_BYTES + 1)
    first, rest = large.seal(plain[:CHUNK_BYTES], is_last=False), large.seal(plain[CHUNK_BYTES:], is_last=True)
    return {
        "blob": small.head + small.seal(SEALED_TEXT, is_last=True),
        "large": blake3(large.head + first + rest).digest(),
        "last-chunk-of-large": rest,
    }


def hex_text(title: str, data: bytes) -> str:
    digits = data.hex()
    return f"# {title}\n" + "".join(f"{digits[at : at + 96]}\n" for at in range(0, len(digits), 96))


def lines_text(title: str, lines: Mapping[str, bytes]) -> str:
    return f"# {title}\n" + "".join(f"{name} {data.hex()}\n" for name, data in lines.items())


def write_new(name: str, content: bytes) -> None:
    try:
        with (golden.FOLDER / name).open("xb") as file:
            file.write(content)
        print(f"made {name}")
    except FileExistsError:
        print(f"kept {name}: a fixture is never replaced", file=sys.stderr)


def main() -> None:
    """Makes what is missing."""
    tagged = {spec_of(type(message)).tag: encode(message) for message in golden.MESSAGES}
    texts = {
        "messages-1.txt": lines_text("one message of each tag", tagged),
        "messages-2.txt": lines_text(
            "messages about compiled agents",
            {spec_of(type(message)).tag: encode(message) for message in golden_columns.MESSAGES},
        ),
        "envelope-1.hex": hex_text("an envelope", encode(golden.ENVELOPE)),
        "commit-1.hex": hex_text("a commit with something in every field", seal(golden.COMMIT).body),
        "commit-2.hex": hex_text("a commit with columns", seal(golden_columns.COMMIT).body),
        "commit-clients-1.hex": hex_text("a commit with clients", seal(golden.COMMIT_WITH_CLIENTS).body),
        "commit-ruled-1.hex": hex_text("a commit that a policy has ruled on", seal(golden.COMMIT_RULED).body),
        "tables-clients-1.hex": hex_text(
            "tables of a snapshot with clients and floors",
            encode(without_empty_end(golden.TABLES_WITH_CLIENTS, SnapshotTables.__struct_fields__.index("declared"))),
        ),
        "batch-1.hex": hex_text("a column batch", golden_columns.BATCH),
        "columns-1.txt": lines_text("a layout, templates and what stands for them", columns()),
        "statement-1.hex": hex_text("what a signer signs for a group", statement(golden.HEADS)),
        "signature-1.hex": hex_text("a group signature as it is stored", encode(golden.SIGNATURE)),
        "mark-1.hex": hex_text("the mark of a SQLite journal", encode_mark(golden.MARK)),
        "canonical-1.hex": hex_text("the canonical bytes of a value", canonical_bytes(golden.Corner())),
        "snapshot-full-1.txt": lines_text("a full snapshot", snapshot_parts(golden.FULL, golden.FULL_AGENTS)),
        "snapshot-incremental-1.txt": lines_text(
            "an incremental snapshot", snapshot_parts(golden.INCREMENTAL, golden.INCREMENTAL_AGENTS)
        ),
        "snapshot-columns-1.txt": lines_text("a snapshot with compiled agents", columns_parts()),
        "model-1.hex": hex_text("a bundle of a model", golden_bundle()),
        "model-versions-1.txt": lines_text("versions of a model and counts of them, as a store has them", versions()),
        "sealed-1.txt": lines_text("a sealed blob, and digests of one with two chunks", sealed_blobs()),
        "event-log-1.txt": lines_text("commits with events of version 1", asyncio.run(make_event_log())),
    }
    for name, text in texts.items():
        write_new(name, text.encode("ascii"))
    if not (golden.FOLDER / "journal-1.sqlite3").exists():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "golden.db"
            expected = asyncio.run(make_journal(path))
            write_new("journal-1.sqlite3", path.read_bytes())
            write_new("journal-1.txt", lines_text("the states that the journal leads to", expected).encode("ascii"))
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(make_segments(Path(folder) / "golden"))
        files = {found.name: found.read_bytes() for found in sorted((Path(folder) / "golden").iterdir())}
        write_new("journal-segments-1.txt", lines_text("the files of a journal in segments", files).encode("ascii"))
    with tempfile.TemporaryDirectory() as folder, start_single(Path(folder), max_payload_bytes=2_048) as server:
        # So that something is larger than a message.
        nats_messages.PIECE_ROOM_BYTES, shelf.CHUNK_ROOM_BYTES = 1_500, 1_800
        messages = asyncio.run(make_nats(server.url))
        write_new("journal-nats-1.txt", lines_text("stream, number, subject and payload", messages).encode("ascii"))
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(golden.FOLDER / "journal-1.sqlite3", Path(folder) / "golden.db")
        made = flight_bytes(Path(folder) / "golden.db")
        write_new("flight-1.hex", hex_text("the flight log of journal-1", made).encode("ascii"))


if __name__ == "__main__":
    main()
