"""Verifies a whole journal without the users' classes: digests, chains, signatures, signers, snapshots, records.

It visits the groups of all shards in the order in which they were written, so that it knows for each signature who was
enrolled by then. Problems are listed with their place, up to PROBLEMS_MAX, and reading goes on as far as it can.
Nothing is folded and nothing is written. If somebody who controls the device cut off the end of the log, only a
comparison with heads noted elsewhere shows it.

A running node can verify its own journal: what is there at the start is read, in small pieces.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from msgspec import Struct

from stigmergy.agents.columns import NOT_KEPT, ColumnRun, check_run
from stigmergy.agents.supervision import AgentsEnrolled
from stigmergy.audit.directories import begin_directory
from stigmergy.base.errors import JournalError
from stigmergy.base.trust import Verifier
from stigmergy.journal.port import Journal, StoredCommit
from stigmergy.journal.signers import SignerHistory, SignerRecord, covers
from stigmergy.shard.commit import (
    NO_CAUSE,
    Commit,
    Head,
    Signature,
    SnapshotNote,
    digest_commit,
    genesis_of,
    open_commit,
)
from stigmergy.shard.commit_reader import index_of_cause, learn, said_in
from stigmergy.shard.directory import Directory
from stigmergy.shard.snapshot import PartsDigest, read_header
from stigmergy.shard.state import EnrolledSigner

# Checks the column runs of one shard, commit by commit, so that a reader finds what was kept.
#
# Layouts and templates are declared before use, agents enrolled before they act; records and actions are complete,
# actions are numbered without a gap, and their causes are correct.

FORM_OFFSET = 4
CAUSE_OFFSET = 8


class ColumnCheck:
    """Sees the commits of a shard in order."""

    def __init__(self, journal: Journal, shard: int, first: int) -> None:
        self._journal = journal
        self._shard = shard
        self._from_start = first == 1
        self._directory: Directory | None = Directory() if self._from_start else None
        self._next: dict[str, int] = {}
        """Per kind the sequence of the next action; unknown before the first where the log does not begin."""

    def take(self, commit: Commit) -> Iterator[str]:
        """What is wrong with a commit, in sentences."""
        directory = self._known(commit)
        if directory is None:
            return
        try:
            for said in said_in(commit):
                enrolled = len(directory.names.get(said.kind, ()))
                if self._from_start and isinstance(said, AgentsEnrolled) and said.first != enrolled:
                    yield f"enrols agents of {said.kind} from {said.first} on, and {enrolled} were enrolled before"
            learn(directory, commit)
        except JournalError as error:
            yield f"what it says of compiled agents: {error}"
        for run in commit.columns:
            try:
                yield from self._check_run(run, directory)
            except JournalError as error:
                yield f"its events of {run.kind}: {error}"
        yield from self._check_times(commit)
        yield from self._check_effects(commit)

    def _known(self, commit: Commit) -> Directory | None:
        """What the log has said so far; where its beginning is gone, what a snapshot says. None: it is not needed."""
        if self._directory is None and (commit.columns or commit.confirmed):
            self._directory = begin_directory(self._journal, self._shard)[0]
        return self._directory

    def _check_run(self, run: ColumnRun, directory: Directory) -> Iterator[str]:
        layout = directory.layout_of(run)
        check_run(run, layout)
        if layout.kind != run.kind:
            yield f"events of {run.kind} in the layout of {layout.kind}"
        if run.count:
            events = [number for number, form in enumerate(layout.forms) if not form.is_command]
            if any(form not in events for form in _distinct(run.records, layout.record_bytes, FORM_OFFSET, "H")):
                yield f"a record of {run.kind} that is no event"
            yield from self._check_agents(run.kind, run.records, layout.record_bytes, directory)
        if run.actions_count or run.actions:
            yield from self._check_actions(run, directory)

    def _check_actions(self, run: ColumnRun, directory: Directory) -> Iterator[str]:
        templates = directory.templates_of(run.templates)
        width = templates.action_bytes
        expected = self._next.get(run.kind, 1 if self._from_start else run.first)
        self._next[run.kind] = run.first + run.actions_count
        if run.first != expected:
            yield f"actions of {run.kind} from number {run.first} on, where {expected} is the next"
        if len(run.actions) != run.actions_count * width or not run.actions_count:
            yield f"{len(run.actions)} bytes for {run.actions_count} actions of {run.kind}, of {width} each"
            return
        if max(_distinct(run.actions, width, FORM_OFFSET, "H")) >= len(templates.templates):
            yield f"an action of {run.kind} of no template"
        causes = _distinct(run.actions, width, CAUSE_OFFSET, "I")
        if any(cause >= run.count for cause in causes if cause != NOT_KEPT):
            yield f"an action of {run.kind} without the event that it says it is of"
        yield from self._check_agents(run.kind, run.actions, width, directory)

    def _check_agents(self, kind: str, data: bytes, width: int, directory: Directory) -> Iterator[str]:
        enrolled = directory.names.get(kind, [])
        numbers = _distinct(data, width, 0, "I")
        if max(numbers) >= len(enrolled):
            yield f"agent {max(numbers)} of {kind}, of which {len(enrolled)} are enrolled"
        elif "" in enrolled and any(not enrolled[number] for number in numbers):
            yield f"an agent of {kind} whose name is not known here"

    def _check_times(self, commit: Commit) -> Iterator[str]:
        times_ns = [run.time_ns for run in commit.columns]
        if times_ns != sorted(times_ns) or (times_ns and times_ns[-1] > commit.runs[-1].time_ns):
            yield "the times at which its records were taken do not fit"

    def _check_effects(self, commit: Commit) -> Iterator[str]:
        """What ordinary effects say of the events behind them, and confirmations of actions that were never owed."""
        for owed in commit.owed:
            if not NO_CAUSE <= index_of_cause(commit, owed.cause) < commit.events_count:
                yield f"an effect of {owed.agent} without the event that it says it is of"
                return
        for kind, upto in commit.confirmed:
            if self._from_start and upto >= self._next.get(kind, 1):
                yield f"confirms actions of {kind} up to {upto}, which nobody has asked for"


def _distinct(data: bytes, width: int, offset: int, code: str) -> Sequence[int]:
    """The numbers that lie at the same place in all records, each once. Fast where numpy is there; it need not be."""
    try:
        import numpy as np
    except ModuleNotFoundError:
        return distinct_plain(data, width, offset, code)
    kind = {"H": "<u2", "I": "<u4"}[code]
    dtype = np.dtype({"names": ["value"], "formats": [kind], "offsets": [offset], "itemsize": width})
    found: list[int] = np.unique(np.frombuffer(data, dtype)["value"]).tolist()
    return found


def distinct_plain(data: bytes, width: int, offset: int, code: str) -> Sequence[int]:
    """The same without numpy."""
    rest = width - offset - struct.calcsize(f"<{code}")
    return sorted(dict.fromkeys(number for (number,) in struct.iter_unpack(f"<{offset}x{code}{rest}x", data)))


def loose_actions(run: ColumnRun) -> int:
    """How many actions of a run are of events that are not kept."""
    if not run.actions_count:
        return 0
    width = len(run.actions) // run.actions_count
    causes = struct.iter_unpack(f"<8xI{width - 12}x", run.actions)
    return sum(1 for (cause,) in causes if cause == NOT_KEPT)


PROBLEMS_MAX = 100
"""So many problems are listed; then reading stops, for the journal is beyond being described one by one."""

NOT_BY_KEY = "the key given neither began this log nor signed its end"
"""The log may be as its signers wrote it; only the caller expected another one."""


class Problem(Struct, frozen=True):
    """Something that is not as it was written; position 0 where it concerns the shard or the journal as a whole."""

    shard: int
    position: int
    what: str


class Verified(Struct):
    """What a verification found."""

    commits: int = 0
    events: int = 0
    signatures: int = 0
    snapshots: int = 0
    snapshots_unfinished: int = 0
    """Stored, but noted by no commit: a snapshot that was being written when the node stopped. Harmless."""
    firsts: dict[int, int] = {}
    heads: list[Head] = []
    signers: list[SignerRecord] = []
    problems: list[Problem] = []

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


class _Enough(Exception):
    """PROBLEMS_MAX are listed."""


class _Lane:
    """One shard on its way through the log: the next commit, and what came before it."""

    def __init__(self, shard: int, commits: Iterator[StoredCommit], first: int, genesis: bytes) -> None:
        self.shard = shard
        self.first = first
        self.commits = commits
        self.next: tuple[StoredCommit, Commit] | None = None
        self.position = first - 1
        self.digest: bytes | None = genesis if first == 1 else None
        self.time_ns = 0
        self.head: Head | None = None
        self.signed_position = 0
        self.broken = False
        self.at_snapshot: dict[int, bytes] = {}
        """The chain digests at the positions of stored snapshots."""
        self.notes: dict[int, SnapshotNote] = {}
        self.columns: ColumnCheck | None = None


class Verification:
    """One pass over one journal."""

    def __init__(
        self,
        journal: Journal,
        verifier: Verifier,
        *,
        trusted_key: tuple[int, bytes] | None = None,
        vouched: Mapping[int, Head] | None = None,
        known_signers: Sequence[EnrolledSigner] | None = None,
    ) -> None:
        """Of a part of a log, `vouched` are the ends that somebody else vouches for, whose signature the caller checks,
        and `known_signers` those that may sign where it begins."""
        self._journal = journal
        self._vouched = vouched
        self._known_signers = known_signers
        self._verifier = verifier
        self._trusted_key = trusted_key
        self._found = Verified()
        self._lanes: list[_Lane] = []
        self._signers_shard = journal.identity.signers_shard
        self._signers = SignerHistory(self._signer_problem)
        self._last_signers: dict[int, tuple[int, bytes]] = {}
        self.commits_expected = 0
        """How many commits there are to verify; known from the first piece on."""

    def run(self) -> Verified:
        """Reads everything and says what it found."""
        for _ in self.run_slowly():
            pass
        return self._found

    def run_slowly(self) -> Iterator[int]:
        """The same in small pieces, each with the number of commits so far; `found` is complete behind the last."""
        found = self._found
        try:
            self._open_lanes()
            yield from self._walk()
            for lane in self._lanes:
                self._check_end(lane)
            yield from self._check_snapshots()
            self._check_trusted_key()
        except JournalError as error:
            self._found.problems.append(Problem(0, 0, f"the journal cannot be read on: {error}"))
        except _Enough:
            pass
        found.heads = [lane.head for lane in self._lanes if lane.head is not None]
        found.firsts = {lane.shard: lane.first for lane in self._lanes if lane.head is not None}
        found.signers = self._signers.records

    @property
    def found(self) -> Verified:
        """What was found so far."""
        return self._found

    # ------------------------------------------------------------------ walking

    def _open_lanes(self) -> None:
        journal = self._journal
        ends = {head.shard: head.position for head in journal.heads()}
        for shard in journal.identity.owned:
            first = journal.first_position(shard)
            # Not to its end as it will be by then: groups that are appended meanwhile would be seen in one shard only.
            count = max(0, ends.get(shard, 0) - first + 1)
            self.commits_expected += count
            lane = _Lane(shard, islice(journal.read(shard), count), first, genesis_of(journal.identity.fleet, shard))
            lane.at_snapshot = dict.fromkeys(journal.snapshots(shard), b"")
            lane.columns = ColumnCheck(journal, shard, first)
            self._lanes.append(lane)
        if self._known_signers is not None:
            self._signers.adopt(self._known_signers)
        elif self._lanes[0].first > 1:
            self._adopt_signers()
        for lane in self._lanes:
            self._advance(lane)

    def _adopt_signers(self) -> None:
        """The beginning of the log was dropped: who was enrolled in it is said by the oldest snapshot."""
        positions = self._journal.snapshots(self._signers_shard)
        for part in self._journal.read_snapshot(self._signers_shard, positions[0]) if positions else ():
            self._signers.adopt(read_header(part.body).tables.signers)
            return
        self._problem(
            self._signers_shard, 0, "the beginning of the log was dropped, and no snapshot says who may sign it"
        )

    def _walk(self) -> Iterator[int]:
        """Takes group after group. The signature of a group is with its last commit and names all the others."""
        while lanes := [lane for lane in self._lanes if lane.next is not None]:
            yield self._found.commits
            whole = [lane for lane in lanes if self._is_whole(lane)]
            if whole:
                self._take_group(min(whole, key=_written_at))
                continue
            # A commit whose group's signature is gone, because its place in another shard was dropped or is damaged.
            lane = min(lanes, key=_written_at)
            if self._vouched is None and not any(other.broken or other.first > 1 for other in self._lanes):
                self._problem(lane.shard, lane.position + 1, "no signature covers this commit")
            self._take_commit(lane)

    def _is_whole(self, lane: _Lane) -> bool:
        """Whether the next commit of this shard carries a signature, and all others it names are next as well."""
        if lane.next is None or (signature := lane.next[0].signature) is None:
            return False
        return not any(self._is_ahead(head) for head in signature.heads if head.shard != lane.shard)

    def _is_ahead(self, head: Head) -> bool:
        """Whether commits of that shard must be taken before the group that names this head."""
        other = self._lane_of(head.shard)
        if other is None:
            return False
        if other.next is None:
            return False
        before = head.position - (1 if other.next[0].signature is None else 0)
        return other.position < before

    def _lane_of(self, shard: int) -> _Lane | None:
        number = shard - self._signers_shard
        return self._lanes[number] if 0 <= number < len(self._lanes) else None

    def _take_group(self, lane: _Lane) -> None:
        if lane.next is None or (signature := lane.next[0].signature) is None:
            return
        self._found.signatures += 1
        heads = {head.shard: head for head in signature.heads}
        own = heads.get(lane.shard)
        position = lane.position + 1
        members = [one for one in self._lanes if self._belongs(one, lane, heads)]
        if not covers(self._verifier, signature):
            self._problem(lane.shard, position, "the signature does not verify: it was made over something else")
        elif own is None or own.position != position:
            self._problem(lane.shard, position, "the signature stored here is for another commit")
        else:
            self._signers.check(signature, heads.get(self._signers_shard), lane.shard, position)
            for head in signature.heads:
                self._check_head(lane, head, signature)
        for member in members:
            self._take_commit(member)

    def _check_head(self, lane: _Lane, head: Head, signature: Signature) -> None:
        """A signature names commits of its own group, and may name the last one of a shard that is not in it."""
        other = self._lane_of(head.shard)
        if other is None:
            self._problem(lane.shard, lane.position + 1, f"the signature names shard {head.shard}, which is not ours")
            return
        digest = other.digest if other.position == head.position else None
        if other.next is not None and other.position + 1 == head.position:
            digest = other.next[0].sealed.digest
        if digest is not None:
            other.signed_position = head.position
            self._last_signers[head.shard] = (signature.algorithm, signature.key)
            if digest != head.digest:
                self._problem(head.shard, head.position, "the signature is over another digest than this commit has")
        elif other.next is None and not other.broken and other.position < head.position and self._is_expected(head):
            what = f"is missing, although a signature in shard {lane.shard} names it"
            self._problem(head.shard, head.position, what)

    def _is_expected(self, head: Head) -> bool:
        """Whether this part of the log should have that commit; the whole log should have every one."""
        if self._vouched is None:
            return True
        end = self._vouched.get(head.shard)
        return end is not None and head.position <= end.position

    def _belongs(self, one: _Lane, lane: _Lane, heads: dict[int, Head]) -> bool:
        """Whether the next commit of `one` is in the group whose signature the next commit of `lane` carries."""
        if one is lane:
            return True
        if one.next is None or one.shard not in heads or one.next[0].signature is not None:
            return False
        return one.position + 1 == heads[one.shard].position

    def _take_commit(self, lane: _Lane) -> None:
        """Takes the next commit into the chain of its shard, and fetches the one behind it."""
        if lane.next is None:
            return
        stored, commit = lane.next
        sealed = stored.sealed
        position = sealed.position
        if lane.digest is not None and commit.previous != lane.digest:
            self._problem(lane.shard, position, "does not cite the commit before it: the chain is broken")
        if sealed.time_ns < lane.time_ns:
            self._problem(lane.shard, position, "is older than the commit before it")
        if lane.shard == self._signers_shard:
            self._signers.take(commit, self._last_signers.get(self._signers_shard))
        for note in commit.snapshots:
            self._check_note(lane, position, note)
        lane.position = position
        lane.digest = sealed.digest
        lane.time_ns = sealed.time_ns
        lane.head = Head(shard=lane.shard, position=position, epoch=sealed.epoch, digest=sealed.digest)
        if position in lane.at_snapshot:
            lane.at_snapshot[position] = sealed.digest
        self._found.commits += 1
        self._found.events += sealed.events
        self._advance(lane)

    def _advance(self, lane: _Lane) -> None:
        """Reads the next commit of a shard; one that cannot be read ends the shard."""
        lane.next = None
        try:
            stored = next(lane.commits, None)
            if stored is None:
                return
            self._check_bytes(lane.shard, stored)
            lane.next = (stored, open_commit(stored.sealed.body))
            self._check_columns(lane, *lane.next)
        except JournalError as error:
            lane.broken = True
            self._problem(lane.shard, lane.position + 1, f"cannot be read, nor what follows it: {error}")

    # ------------------------------------------------------------------ checks

    def _check_bytes(self, shard: int, stored: StoredCommit) -> None:
        if digest_commit(stored.sealed.body) != stored.sealed.digest:
            self._problem(shard, stored.sealed.position, "the bytes do not have the digest they were stored with")

    def _check_columns(self, lane: _Lane, stored: StoredCommit, commit: Commit) -> None:
        """What the journal says of a commit beside its bytes is what the bytes say."""
        sealed = stored.sealed
        said = (sealed.shard, sealed.position, sealed.epoch, sealed.events, sealed.time_ns)
        times_ns = [run.time_ns for run in commit.runs]
        time_ns = times_ns[-1] if times_ns else -1
        written = (commit.shard, commit.position, commit.epoch, commit.events_count, time_ns)
        if said != written:
            self._problem(lane.shard, sealed.position, f"is stored as {said}, its bytes say {written}")
        if sum(run.events for run in commit.runs) != len(commit.events) or times_ns != sorted(times_ns):
            self._problem(lane.shard, sealed.position, "its events and the times they were taken at do not fit")
        for what in lane.columns.take(commit) if lane.columns is not None else ():
            self._problem(lane.shard, sealed.position, what)

    def _check_note(self, lane: _Lane, position: int, note: SnapshotNote) -> None:
        lane.notes[note.position] = note
        chain = lane.at_snapshot.get(note.position)
        if chain and chain != note.chain:
            self._problem(lane.shard, position, f"notes a snapshot of {note.position} on another chain")

    def _check_end(self, lane: _Lane) -> None:
        if self._vouched is not None and lane.head == self._vouched.get(lane.shard):
            return
        if lane.head is not None and not lane.broken and lane.signed_position != lane.position:
            self._problem(lane.shard, lane.position, "no signature covers the end of the log: it was cut or forged")

    def _check_snapshots(self) -> Iterator[int]:
        for lane in self._lanes:
            for position in lane.at_snapshot:
                note = lane.notes.get(position)
                if note is None:
                    self._found.snapshots_unfinished += 1
                    continue
                try:
                    yield from self._check_snapshot(lane, position, note)
                except JournalError as error:
                    self._problem(lane.shard, position, f"the snapshot: {error}")

    def _check_snapshot(self, lane: _Lane, position: int, note: SnapshotNote) -> Iterator[int]:
        digest = PartsDigest()
        header_body = b""
        for part in self._journal.read_snapshot(lane.shard, position):
            header_body = header_body or part.body
            digest.add(part.body)
            yield self._found.commits
        if not header_body:
            return  # dropped meanwhile by the running node, which keeps the newest ones only
        self._found.snapshots += 1
        if digest.value() != note.digest:
            self._problem(lane.shard, position, "the snapshot's bytes are not those that the log notes")
            return
        header = read_header(header_body)
        if (header.tables.shard, header.tables.position) != (lane.shard, position):
            self._problem(lane.shard, position, f"the snapshot says that it is of {header.tables.position}")
        if header.genesis != genesis_of(self._journal.identity.fleet, lane.shard):
            self._problem(lane.shard, position, "the snapshot is of another fleet or shard")
        if header.tables.digest != note.chain:
            self._problem(lane.shard, position, "the snapshot is of another chain than the log notes")
        if header.base and header.base not in lane.at_snapshot:
            self._problem(lane.shard, position, f"the snapshot adds to one at {header.base}, which is not there")

    def _check_trusted_key(self) -> None:
        """A key that the caller trusts vouches for all if the log began with it, or if it signed every head."""
        if self._trusted_key is None:
            return
        began = self._signers.records[0] if self._signers.records else None
        if began is not None and (began.algorithm, began.public_key) == self._trusted_key:
            return
        ends = [self._last_signers.get(lane.shard) for lane in self._lanes if lane.head is not None]
        if not ends or any(end != self._trusted_key for end in ends):
            self._problem(self._signers_shard, 0, NOT_BY_KEY)

    def _signer_problem(self, position: int, what: str) -> None:
        self._problem(self._signers_shard, position, what)

    def _problem(self, shard: int, position: int, what: str) -> None:
        self._found.problems.append(Problem(shard=shard, position=position, what=what))
        if len(self._found.problems) >= PROBLEMS_MAX:
            raise _Enough


def _written_at(lane: _Lane) -> tuple[int, int]:
    """The order of groups: the time goes through all shards and never back."""
    return (lane.next[0].sealed.time_ns if lane.next is not None else 0, lane.shard)
