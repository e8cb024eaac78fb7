"""Makes flight logs from a journal, and verifies one: without the fleet's classes, and without the journal.

They are made in small pieces, so that a node can do it beside its work. Beyond `verification` this checks the bytes of
the file, that the manifest matches its contents, and who signed the manifest.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct

from stigmergy.agents.codec import encode
from stigmergy.agents.columns import ColumnRun
from stigmergy.agents.supervision import AgentsEnrolled, SignerEnrolled
from stigmergy.audit.archive_port import FlightLog
from stigmergy.audit.directories import Directories, LiveReading
from stigmergy.audit.flight_format import (
    FLIGHT_FORMAT,
    FlightDirectory,
    FlightNames,
    FlightOpening,
    FlightSeal,
    FlightWriter,
    RecordKind,
    flight_statement,
    frame,
)
from stigmergy.audit.verification import Problem, Verification, Verified
from stigmergy.base.errors import ConfigError, JournalCorrupt, WrongKey
from stigmergy.base.trust import Signer, Verifier
from stigmergy.journal.port import Journal, StoredCommit, last_before
from stigmergy.journal.signers import key_name, signer_changes
from stigmergy.shard.commit import Commit, HashAlgorithm, Head, open_commit
from stigmergy.shard.commit_reader import Reading, runs_of, said_in
from stigmergy.shard.snapshot import read_header
from stigmergy.shard.state import EnrolledSigner as KnownSigner

# What a cut of a log needs from before it, to be readable on its own: layouts, templates, names of agents. Only those
# that its commits use: a minute of a fleet of a million carries only the names in it.

GIVE_WAY_COMMITS = 64
"""After this many commits other tasks get a turn."""
NUMBER_BYTES = 4
NAMES_PER_RECORD = 5_000
"""A name has 128 characters at most: so a record of them is far below what one may have."""


class FlightNeeds:
    """Collects what commits need. Show it all of them, in order."""

    def __init__(self) -> None:
        self._layouts: dict[bytes, ColumnRun] = {}
        self._templates: dict[bytes, None] = {}
        self._agents: dict[str, dict[int, None]] = {}
        self._first: dict[str, int] = {}
        """Per kind how many were enrolled before the first enrolment in here."""
        self.runs_count = 0

    def take(self, commit: Commit) -> None:
        """Notes what a commit needs."""
        for said in said_in(commit):
            if isinstance(said, AgentsEnrolled):
                self._first.setdefault(said.kind, said.first)
        for run in commit.columns:
            self.runs_count += 1
            self._layouts.setdefault(run.layout, run)
            if run.templates:
                self._templates[run.templates] = None
            width = len(run.records) // max(run.count, 1)
            if width >= NUMBER_BYTES and width * run.count == len(run.records):
                numbers = struct.iter_unpack(f"<I{width - NUMBER_BYTES}x", run.records)
                self._agents.setdefault(run.kind, {}).update(dict.fromkeys(number for (number,) in numbers))

    def directories(self, shard: int, reading: Reading) -> Iterator[FlightDirectory]:
        """What `reading` knows of it, in records of bounded size. What it does not know is left out."""
        for run in self._layouts.values():
            try:
                yield FlightDirectory(shard, [(encode(reading.layout_of(run)), b"")], [])
            except JournalCorrupt:
                continue
        for digest in self._templates:
            try:
                yield FlightDirectory(shard, [(b"", encode(reading.templates_of(digest)))], [])
            except JournalCorrupt:
                continue
        for kind in sorted({**self._agents, **self._first}):
            numbers = sorted(self._agents.get(kind, {}))
            count = max(self._first.get(kind, 0), numbers[-1] + 1 if numbers else 0)
            for start in range(0, max(len(numbers), 1), NAMES_PER_RECORD):
                known = list(_named(reading, kind, numbers[start : start + NAMES_PER_RECORD]))
                roster = FlightNames(kind, count, [number for number, _ in known], [name for _, name in known])
                yield FlightDirectory(shard, [], [roster])


def _named(reading: Reading, kind: str, numbers: list[int]) -> Iterator[tuple[int, str]]:
    for number in numbers:
        try:
            yield number, reading.name(kind, number)
        except JournalCorrupt:
            continue


REASON_CHARS_MAX = 500
SIGNERS_SHARD = 0
"""Where signers are enrolled in a log that is not in parts."""


class FlightSelection(Struct, frozen=True):
    """Which part of a log goes into a flight log. With an agent: all of its shard, and of that of the signers."""

    agent: str = ""
    since_ns: int | None = None
    until_ns: int | None = None
    ranges: tuple[tuple[int, int, int], ...] | None = None
    """Shard, first and last position, where somebody knows exactly what is wanted."""
    reason: str = ""


class FlightVerified(Struct):
    """What the verification of a flight log found."""

    verified: Verified
    fleet: str
    agent: str
    reason: str
    made_ns: int
    first_ns: int
    last_ns: int
    agents: dict[str, int]
    """How many events of each agent are in it; at most AGENTS_MAX are listed."""
    agents_count: int
    sealed_by: bytes
    """The key that vouches for the file; empty if nobody does."""


AGENTS_MAX = 10_000


def make_flight(
    journal: Journal,
    signer: Signer,
    cut: FlightSelection,
    made_ns: int,
    *,
    signers: Sequence[KnownSigner] | None = None,
    live: LiveReading | None = None,
) -> Iterator[bytes]:
    """The bytes of a flight log, piece by piece: about one commit each, and now and then nothing. `signers` may sign
    where it begins; `live` are the shards of the node that runs this journal."""
    _check_whole(journal)
    ranges = _ranges(journal, cut)
    if not ranges:
        raise ConfigError("nothing of the log is like that, so there is no flight log to make; choose another range")
    identity = journal.identity
    if signers is None:
        signers = _signers_at(journal, ranges)
    writing = FlightWriter()
    opening = FlightOpening(
        format=FLIGHT_FORMAT,
        hash_algorithm=HashAlgorithm.BLAKE3_256,
        fleet=identity.fleet,
        shards=identity.shards,
        incarnation=identity.incarnation,
        made_ns=made_ns,
        agent=cut.agent,
        reason=cut.reason[:REASON_CHARS_MAX],
        signers=list(signers),
    )
    yield writing.open(opening.keyed(identity.shard_by) if identity.shard_by else opening)
    for shard, first, last in ranges:
        if first > 1:
            needs = FlightNeeds()
            for stored in _stored_in(journal, shard, first, last):
                needs.take(open_commit(stored.sealed.body))
                if not stored.sealed.position % GIVE_WAY_COMMITS:
                    yield b""
            if needs.runs_count:
                reading = Directories(journal, live).at(shard, first - 1)
                for directory in needs.directories(shard, reading):
                    yield writing.describe(directory)
    for shard, first, last in ranges:
        for stored in _stored_in(journal, shard, first, last):
            yield writing.add(stored.sealed, stored.signature)
    manifest = writing.manifest()
    value = signer.sign(flight_statement(encode(manifest)))
    yield frame(RecordKind.MANIFEST, manifest)
    yield frame(RecordKind.SEAL, FlightSeal(signer.algorithm, signer.public_key, value))


def _check_whole(journal: Journal) -> None:
    if journal.identity.part is not None:
        raise ConfigError(
            "a flight log of a journal in parts cannot be made yet; export it as lines or Parquet, or copy the parts"
        )


def check_sealing(journal: Journal, signer: Signer, cut: FlightSelection) -> None:
    """Refuses a key whose seal would not verify: this part of the log must say that it is enrolled, and not revoked."""
    _check_whole(journal)
    ranges = _ranges(journal, cut)
    signers = _signers_at(journal, ranges)
    if not signers:
        found = SignersOnly(())
        for shard, first, last in ranges:
            for stored in _stored_in(journal, shard, first, last) if shard == SIGNERS_SHARD else ():
                found.take(stored)
        signers = found.signers
    may_seal = [one for one in signers if one.revoked_after is None]
    if (signer.algorithm, signer.public_key) not in [(one.algorithm, one.public_key) for one in may_seal]:
        names = " or ".join(key_name(one.public_key) for one in may_seal)
        raise WrongKey(
            f"the key {key_name(signer.public_key)} is not enrolled in this part of the log, or is revoked: a flight "
            f"log that it seals would not verify; give {names} with --key, or export without --flight"
        )


def _stored_in(journal: Journal, shard: int, first: int, last: int) -> Iterator[StoredCommit]:
    for stored in journal.read(shard, after=first - 1):
        if stored.sealed.position > last:
            return
        yield stored


def commits_in(journal: Journal, cut: FlightSelection) -> int:
    """How many commits a flight log would have, to show progress."""
    return sum(last - first + 1 for _, first, last in _ranges(journal, cut))


def _ranges(journal: Journal, cut: FlightSelection) -> list[tuple[int, int, int]]:
    if cut.ranges is not None:
        return sorted(cut.ranges)
    wanted = None
    if cut.agent:
        wanted = (*journal.identity.shards_with(cut.agent), SIGNERS_SHARD)
    found: list[tuple[int, int, int]] = []
    for head in journal.heads():
        if wanted is not None and head.shard not in wanted:
            continue
        first, last = journal.first_position(head.shard), head.position
        if cut.since_ns is not None:
            first = last_before(journal, head.shard, first, last, cut.since_ns) + 1
        if cut.until_ns is not None:
            last = last_before(journal, head.shard, first, last, cut.until_ns + 1)
        if first <= last:
            found.append((head.shard, first, last))
    return found


def _signers_at(journal: Journal, ranges: Sequence[tuple[int, int, int]]) -> list[KnownSigner]:
    """Who is enrolled, for a file that does not begin where the log of the signers begins."""
    if any(shard == SIGNERS_SHARD and first == 1 for shard, first, _ in ranges):
        return []
    known: list[KnownSigner] = []
    for position in reversed(journal.snapshots(SIGNERS_SHARD)):
        for part in journal.read_snapshot(SIGNERS_SHARD, position):
            known = list(read_header(part.body).tables.signers)
            break
        break
    verification = SignersOnly(known)
    for stored in journal.read(SIGNERS_SHARD):
        verification.take(stored)
    return verification.signers


class SignersOnly:
    """Collects who was ever enrolled, from a log that somebody else verifies."""

    def __init__(self, known: Sequence[KnownSigner]) -> None:
        self.signers = list(known)

    def take(self, stored: StoredCommit) -> None:
        """Takes in the enrolments and revocations of a commit."""
        for change in signer_changes(open_commit(stored.sealed.body)):
            key = (change.algorithm, change.public_key)
            known = [(one.algorithm, one.public_key) for one in self.signers]
            if isinstance(change, SignerEnrolled):
                if key not in known:
                    self.signers.append(KnownSigner(*key))
                continue
            self.signers = [
                KnownSigner(*key, change.last_position) if (one.algorithm, one.public_key) == key else one
                for one in self.signers
            ]


# ---------------------------------------------------------------------- verifying


class FlightVerification:
    """One pass over one flight log, after its bytes were looked at when it was opened."""

    def __init__(self, flight: FlightLog, verifier: Verifier, *, trusted_key: tuple[int, bytes] | None = None) -> None:
        self._flight = flight
        self._verifier = verifier
        self._trusted_key = trusted_key
        manifest = flight.manifest
        sections = () if manifest is None else manifest.sections
        vouched = {one.shard: Head(one.shard, one.last, one.epoch, one.digest) for one in sections}
        begins = {one.shard: one.first for one in sections}
        self._verification = Verification(
            flight,
            verifier,
            trusted_key=None,
            vouched=vouched if manifest is not None else None,
            known_signers=None if begins.get(SIGNERS_SHARD) == 1 else flight.opening.signers,
        )
        self._agents: dict[str, int] = {}
        self._agents_count = 0
        self.found: FlightVerified | None = None

    @property
    def commits_expected(self) -> int:
        """How many commits there are to look at."""
        return self._flight.size().commits

    def run(self) -> FlightVerified:
        """Looks at everything and says what it found."""
        for _ in self.run_slowly():
            pass
        return self.result

    @property
    def result(self) -> FlightVerified:
        """What was found; only once it is done."""
        if self.found is None:
            raise ConfigError("the verification is not done yet; run it to its end")
        return self.found

    def run_slowly(self) -> Iterator[int]:
        """The same in small pieces, each with the number of commits so far."""
        flight, found = self._flight, self._verification.found
        found.problems.extend(Problem(flaw.shard, flaw.position, flaw.what) for flaw in flight.flaws)
        yield from self._verification.run_slowly()
        self._check_manifest()
        sealed_by = self._check_seal()
        if not flight.flaws:
            self._count_agents()
        opening, manifest = flight.opening, flight.manifest
        self.found = FlightVerified(
            verified=found,
            fleet=opening.fleet,
            agent=opening.agent,
            reason=opening.reason,
            made_ns=opening.made_ns,
            first_ns=manifest.first_ns if manifest else 0,
            last_ns=manifest.last_ns if manifest else 0,
            agents=self._agents,
            agents_count=self._agents_count,
            sealed_by=sealed_by,
        )

    def _check_manifest(self) -> None:
        """The manifest says what is in the file, no less and no more."""
        flight, manifest = self._flight, self._flight.manifest
        if manifest is None:
            return
        heads = {head.shard: head for head in flight.heads()}
        for section in manifest.sections:
            head = heads.pop(section.shard, None)
            if head is None:
                self._problem(section.shard, section.first, "the manifest names commits that are not in the file")
                continue
            if (flight.first_position(section.shard), head.position, head.digest) != (
                section.first,
                section.last,
                section.digest,
            ):
                self._problem(section.shard, head.position, "the commits are not those that the manifest names")
            first = next(flight.read(section.shard), None)
            if first is not None and open_commit(first.sealed.body).previous != section.previous:
                self._problem(section.shard, section.first, "cites another commit than the manifest says")
        for shard, head in sorted(heads.items()):
            self._problem(shard, head.position, "is in the file, although its manifest does not name it")
        found = self._verification.found
        if not flight.flaws and (found.commits, found.events) != (manifest.commits, manifest.events):
            self._problem(0, 0, f"the manifest promises {manifest.commits} commits and {manifest.events} events")

    def _check_seal(self) -> bytes:
        """Who vouches for the file: one of the log's own signers, or the key that the caller trusts."""
        flight, seal = self._flight, self._flight.seal
        if seal is None or flight.manifest is None:
            return b""
        statement = flight_statement(flight.manifest_bytes)
        if not self._verifier.verify(seal.algorithm, seal.key, statement, seal.value):
            self._problem(0, 0, "the seal does not verify: the manifest was changed after it was signed")
            return b""
        key = (seal.algorithm, seal.key)
        records = self._verification.found.signers
        if self._trusted_key is not None:
            began = next((one for one in records if one.enrolled_at == 1), None)
            if key != self._trusted_key and (began is None or (began.algorithm, began.public_key) != self._trusted_key):
                self._problem(0, 0, "the key given neither sealed this file nor began its log")
        signer = next((one for one in records if (one.algorithm, one.public_key) == key), None)
        if signer is None and key != self._trusted_key:
            self._problem(
                0, 0, f"sealed by {key_name(seal.key)}, which the log never enrolled; is it trusted? give --key"
            )
        if signer is not None and signer.revoked_after is not None and key != self._trusted_key:
            self._problem(0, 0, f"sealed by {key_name(seal.key)}, which the log has revoked")
        return seal.key

    def _count_agents(self) -> None:
        directories = Directories(self._flight)
        for head in self._flight.heads():
            for stored in self._flight.read(head.shard):
                commit = open_commit(stored.sealed.body)
                for address, _ in commit.events:
                    self._count_agent(address, 1)
                try:
                    self._count_records(commit, directories.of(commit))
                except JournalCorrupt:
                    continue  # The verification has said so.
        self._agents_count = len(self._agents)

    def _count_records(self, commit: Commit, reading: Reading) -> None:
        for records in runs_of(commit, reading):
            for agent, count in Counter(agent for agent, _ in records.heads()).items():
                self._count_agent(records.address(agent), count)

    def _count_agent(self, address: str, count: int) -> None:
        if address in self._agents:
            self._agents[address] += count
        elif address and len(self._agents) < AGENTS_MAX:
            self._agents[address] = count

    def _problem(self, shard: int, position: int, what: str) -> None:
        self._verification.found.problems.append(Problem(shard, position, what))
