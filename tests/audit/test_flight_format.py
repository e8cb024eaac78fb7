"""The bytes of a flight log: records that check themselves, sections that are dense, and what a reader refuses."""

import pytest
from msgspec import msgpack

from stigmergy.agents.codec import encode
from stigmergy.audit import flight_format as flight
from stigmergy.audit.flight_format import (
    AGENTS_MAX,
    FLIGHT_FORMAT,
    FLIGHT_MAGIC,
    FLIGHT_SHARDS_MAX,
    KEYED_FLIGHT_FORMAT,
    RECORD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    FlightCommit,
    FlightDigest,
    FlightDirectory,
    FlightManifest,
    FlightNames,
    FlightOpening,
    FlightSeal,
    FlightWriter,
    RecordKind,
    checksum_fits,
    commit_is_intact,
    flight_statement,
    frame,
    read_flight_commit,
    read_record,
    read_record_header,
    restore_directory,
)
from stigmergy.base.errors import Bug, JournalCorrupt, JournalForeign
from stigmergy.shard.commit import COMMIT_FORMAT, Commit, EventRun, HashAlgorithm, Head, Sealed, Signature, seal
from stigmergy.shard.draft import COLUMNS_REST_BYTES
from stigmergy.shard.state import COLUMNS_BYTES_BOUNDS, EnrolledSigner
from tests.formats.golden_columns import COMMIT, LAYOUT, RUN, TEMPLATES

OPENING = FlightOpening(FLIGHT_FORMAT, 1, "golden", 2, 7, 99, "", "", [EnrolledSigner(1, b"k" * 32)])


def commit(shard: int, position: int, time_ns: int = 5) -> Sealed:
    return seal(
        Commit(
            format=COMMIT_FORMAT,
            hash_algorithm=HashAlgorithm.BLAKE3_256,
            shard=shard,
            position=position,
            epoch=3,
            previous=bytes([position]) * 32,
            runs=[EventRun(1, time_ns, "radio")],
            events=[("Drone/D-1", b"\x80")],
        )
    )


def pieces(data: bytes) -> tuple[bytes, bytes, bytes]:
    return data[:RECORD_HEADER_BYTES], data[RECORD_HEADER_BYTES:-4], data[-4:]


def test_a_record_is_read_back_as_it_was() -> None:
    for kind, record in (
        (RecordKind.OPENING, OPENING),
        (RecordKind.COMMIT, FlightCommit(0, 1, b"d", None, b"body")),
        (RecordKind.MANIFEST, FlightWriter().manifest()),
        (RecordKind.SEAL, FlightSeal(1, b"key", b"value")),
        (RecordKind.DIRECTORY, FlightDirectory(0, [(b"layout", b"")], [FlightNames("Meter", 3, [1], ["M-2"])])),
    ):
        head, body, checksum = pieces(frame(kind, record))
        assert read_record_header(head) == (kind, len(body))
        assert checksum_fits(head, body, checksum)
        assert read_record(kind, body) == record


def test_every_flipped_bit_of_a_record_is_noticed() -> None:
    whole = frame(RecordKind.SEAL, FlightSeal(1, b"key", b"value"))
    for place in range(len(whole)):
        for bit in range(8):
            bad = bytearray(whole)
            bad[place] ^= 1 << bit
            assert not checksum_fits(*pieces(bytes(bad)))


@pytest.mark.parametrize(
    "head", [b"", b"\x01\x00\x00", b"\x00\x01\x00\x00\x00", b"\x09\x01\x00\x00\x00", b"\x02\xff\xff\xff\xff"]
)
def test_what_cannot_be_a_record_is_refused(head: bytes) -> None:
    with pytest.raises(JournalCorrupt, match="no record begins here"):
        read_record_header(head)
    assert read_record_header(bytes([2]) + RECORD_BYTES_MAX.to_bytes(4, "little")) == (2, RECORD_BYTES_MAX)
    with pytest.raises(JournalCorrupt):
        read_record_header(bytes([2]) + (RECORD_BYTES_MAX + 1).to_bytes(4, "little"))


def test_the_opening_of_a_fleet_with_a_function_for_homes_says_its_name() -> None:
    keyed = OPENING.keyed("zone_of")
    assert (keyed.format, keyed.shard_by, keyed.fleet) == (KEYED_FLIGHT_FORMAT, "zone_of", OPENING.fleet)
    _, body, _ = pieces(frame(RecordKind.OPENING, keyed))
    assert read_record(RecordKind.OPENING, body) == keyed
    with pytest.raises(JournalCorrupt, match="does not decode"):
        read_record(RecordKind.OPENING, msgpack.encode([2, 1, "f", 1, 1, 1, "", "", []]))
    for wrong in ([2, 9, "f", 1, 1, 1, "", "", [], "zone_of"], [2, 1, "f", 0, 1, 1, "", "", [], "zone_of"]):
        with pytest.raises((JournalForeign, JournalCorrupt)):
            read_record(RecordKind.OPENING, msgpack.encode(wrong))


def test_another_format_is_refused_and_not_guessed_at() -> None:
    with pytest.raises(JournalCorrupt, match="does not decode"):
        read_record(RecordKind.OPENING, b"\x90")
    for number, record in ((3, [3, 1, "f", 1, 1, 1, "", "", []]), (1, [1, 9, "f", 1, 1, 1, "", "", []])):
        with pytest.raises(JournalForeign, match="use" if number == 3 else "hash algorithm 9"):
            read_record(RecordKind.OPENING, msgpack.encode(record))
    for shards in (1, FLIGHT_SHARDS_MAX):
        fleet = read_record(RecordKind.OPENING, msgpack.encode([1, 1, "f", shards, 1, 1, "", "", []]))
        assert isinstance(fleet, FlightOpening)
        assert fleet.shards == shards
    for bad in ([0, 1, "f", 1, 1, 1, "", "", []], [1, 0, "f", 1, 1, 1, "", "", []]):
        with pytest.raises(JournalForeign):
            read_record(RecordKind.OPENING, msgpack.encode(bad))
    for shards in (0, FLIGHT_SHARDS_MAX + 1):
        with pytest.raises(JournalCorrupt, match=f"a fleet of {shards} shards"):
            read_record(RecordKind.OPENING, msgpack.encode([1, 1, "f", shards, 1, 1, "", "", []]))
    with pytest.raises(JournalForeign, match="flight log format 0"):
        read_record(RecordKind.MANIFEST, encode(FlightManifest(0, [], 0, 0, 0, 0, b"")))
    with pytest.raises(JournalForeign, match="flight log format 2"):
        read_record(RecordKind.MANIFEST, encode(FlightManifest(2, [], 0, 0, 0, 0, b"")))


def test_a_commit_comes_back_as_a_journal_gives_it() -> None:
    sealed = commit(1, 4)
    signature = Signature(1, b"k" * 32, [Head(1, 4, 3, sealed.digest)], b"v" * 64)
    record = FlightCommit(1, 4, sealed.digest, encode(signature), sealed.body)
    assert read_flight_commit(record) == (sealed, signature)
    assert read_flight_commit(FlightCommit(1, 4, sealed.digest, None, sealed.body)) == (sealed, None)
    assert commit_is_intact(record)
    assert not commit_is_intact(FlightCommit(1, 4, b"x" * 32, None, sealed.body))
    with pytest.raises(JournalCorrupt, match="position 4: its signature does not decode"):
        read_flight_commit(FlightCommit(1, 4, sealed.digest, b"\xc1", sealed.body))


def test_the_manifest_names_sections_counts_and_the_bytes_before_it() -> None:
    writing = FlightWriter()
    data = writing.open(OPENING)
    assert data.startswith(FLIGHT_MAGIC)
    first, second, other = commit(0, 3, 50), commit(0, 4, 60), commit(1, 1, 40)
    for sealed in (first, second, other):
        data += writing.add(sealed, None)
    manifest = writing.manifest()
    assert [(one.shard, one.first, one.last, one.epoch, one.digest) for one in manifest.sections] == [
        (0, 3, 4, 3, second.digest),
        (1, 1, 1, 3, other.digest),
    ]
    assert manifest.sections[0].previous == bytes([3]) * 32
    assert (manifest.commits, manifest.events, manifest.first_ns, manifest.last_ns) == (3, 3, 40, 60)
    assert writing.commits == 3
    digest = FlightDigest()
    digest.add(data)
    assert manifest.digest == digest.value()
    assert flight_statement(encode(manifest)).startswith(b"stigmergy.flight@1\x00")


def test_a_gap_or_a_shard_out_of_order_is_a_bug_of_the_writer() -> None:
    writing = FlightWriter()
    writing.add(commit(1, 3), None)
    with pytest.raises(Bug, match="position 5 does not follow 3"):
        writing.add(commit(1, 5), None)
    for position in (3, 2):
        with pytest.raises(Bug, match=f"position {position} does not follow 3"):
            writing.add(commit(1, position), None)
    with pytest.raises(Bug, match="shard by shard"):
        writing.add(commit(0, 1), None)


# ---- what it takes to read records


def test_directories_add_up_and_are_under_the_seal() -> None:
    parts = [
        FlightDirectory(0, [(encode(LAYOUT), b"")], [FlightNames("Meter", 3, [2], ["M-7"])]),
        FlightDirectory(0, [(b"", encode(TEMPLATES))], [FlightNames("Meter", 2, [0], ["M-1"])]),
    ]
    directory = restore_directory(parts)
    assert directory.names == {"Meter": ["M-1", "", "M-7"]}
    assert (directory.layout_of(RUN), directory.templates_of(TEMPLATES.digest())) == (LAYOUT, TEMPLATES)
    writing = FlightWriter()
    data = writing.open(OPENING) + writing.describe(parts[0])
    digest = FlightDigest()
    digest.add(data)
    assert writing.manifest().digest == digest.value()
    assert restore_directory([]).names == {}


def test_rosters_that_claim_too_much_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "AGENTS_MAX", 5)
    parts = [FlightDirectory(0, [], [FlightNames(kind, 3, [], [])]) for kind in ("Meter", "Gauge")]
    assert restore_directory(parts[:1]).names == {"Meter": [""] * 3}
    with pytest.raises(JournalCorrupt, match="rosters of more than 5 agents"):
        restore_directory(parts)


@pytest.mark.parametrize(
    "roster",
    [
        FlightNames("Meter", -1, [], []),
        FlightNames("Meter", AGENTS_MAX + 1, [], []),
        FlightNames("Meter", 3, [1], []),
        FlightNames("Meter", 3, [3], ["M-9"]),
        FlightNames("Meter", 3, [-1], ["M-9"]),
    ],
)
def test_a_roster_that_cannot_be_is_refused(roster: FlightNames) -> None:
    with pytest.raises(JournalCorrupt, match="of Meter"):
        restore_directory([FlightDirectory(0, [], [roster])])


def test_the_largest_commit_is_a_record() -> None:
    largest = COLUMNS_BYTES_BOUNDS[1] + COLUMNS_REST_BYTES
    assert largest + 1024 * 1024 <= RECORD_BYTES_MAX


def test_events_in_columns_are_counted() -> None:
    sealed = seal(COMMIT)
    assert read_flight_commit(FlightCommit(1, 301, sealed.digest, None, sealed.body))[0].events == 6
