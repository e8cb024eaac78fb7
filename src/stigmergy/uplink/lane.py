"""One shard of an uplink: reads its journal, cuts batches, knows what the receiver has confirmed.

It has no state that must survive: `resume` starts from the receiver's marks, as often as needed. It reads in small
portions; the caller yields to the node's own work between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from msgspec import Struct

from stigmergy.audit.directories import Directories, LiveReading
from stigmergy.base.errors import DataLost, JournalCorrupt
from stigmergy.journal.port import Journal, StoredCommit, last_before
from stigmergy.shard.commit import Commit, digest_commit, open_commit
from stigmergy.uplink.messages import DIGEST_BYTES, ITEM_OVERHEAD_BYTES, ITEMS_COUNT_MAX, Batch, UplinkMark
from stigmergy.uplink.rules import Item, Sieve, SieveCounters, UplinkRule, complete_position, number_of, position_of

GULP_COMMITS = 128
GULP_BYTES = 256 * 1024
"""Read in one go; a larger commit is read all the same."""
PASS_COMMITS = 10_000
"""After this many commits without events to send the receiver is told: a restart need not read them again."""
NOTES_MAX = 1_000
"""Places in the log that are remembered for `floor`; with more of them every second one is dropped."""
WANTED_NOTES = 64


class BatchInFlight(Struct, frozen=True):
    """A batch that the receiver has not confirmed yet."""

    incarnation: int
    upto: int
    sent_ns: int
    time_ns: int
    """Of the newest commit in it, by the journal."""


class _Queued(Struct, frozen=True):
    incarnation: int
    number: int
    address: str
    body: bytes
    digest: bytes


class _Covered(Struct, frozen=True):
    """How far was read, the journal's time there, and the beginning of the commit's digest."""

    incarnation: int = 0
    number: int = 0
    time_ns: int = 0
    digest: bytes = b""


class Lane:
    """The uplink of one shard."""

    def __init__(
        self,
        journal: Journal,
        shard: int,
        rule: UplinkRule,
        counters: SieveCounters,
        live: LiveReading | None = None,
        stays: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`live` are the shards of the node that runs this journal. Types that `stays` names are left out."""
        self._stays = stays
        self._journal = journal
        self._directories = Directories(journal, live)
        self.shard = shard
        self._rule = rule
        self._counters = counters
        self.flights: deque[BatchInFlight] = deque()
        self.trouble = ""
        """Why nothing is sent; empty if something is."""
        self.confirmed_position = 0
        self.confirmed_ns = 0
        """The journal's time up to which the receiver has everything."""
        self.lost_commits = 0
        self._counted_lost = 0
        """Lost commits up to here were counted: a repeated request finds the same gap again."""
        self._floor = 0
        self._reset()

    def _reset(self) -> None:
        self._sieve = Sieve(self._rule, SieveCounters(), self._stays)
        self._queue: deque[_Queued] = deque()
        self.queued_bytes = 0
        self._next = 1
        self._covered = _Covered()
        self._sent: dict[int, int] = {}
        """By incarnation: the last number that a batch covers."""
        self._epochs: dict[int, int] = {}
        self._lost: tuple[int, int, str] | None = None
        """Incarnation, last number, and why."""
        self._gap: tuple[int, int] | None = None
        self._notes: deque[tuple[int, int]] = deque()
        self._cut_ns = 0
        self.flights.clear()

    # ------------------------------------------------------------------ where to begin

    def resume(self, marks: Mapping[int, UplinkMark], head: int, epoch: int, now_ns: int) -> Iterator[None]:
        """Starts after the receiver's marks, one for each incarnation. Run it to its end, and yield in between.

        Raises DataLost if the receiver has more than this journal: then nothing is sent, because its numbers would
        differ from those that the receiver knows.
        """
        self._reset()
        self._cut_ns = now_ns
        self._sent = {incarnation: mark.number for incarnation, mark in marks.items()}
        self._epochs = {incarnation: mark.epoch for incarnation, mark in marks.items()}
        # Ignore a mark that one shard of the receiver has moved and another has not.
        marks = {incarnation: mark for incarnation, mark in marks.items() if mark.number}
        own = marks.get(self._journal.identity.incarnation)
        first = self._journal.first_position(self.shard)
        if own is not None:
            self._check_ours(own, first, head, epoch)
        start = self._start_of_copy(marks, first, head) if own is None else complete_position(own.number) + 1
        self._next = start
        self.confirmed_position = start - 1
        self._floor = min(start, first) - 1
        if first < start <= head + 1:
            yield from self._read_back(first, start - 1)
        self._sieve.counters = self._counters

    def _check_ours(self, own: UplinkMark, first: int, head: int, epoch: int) -> None:
        """Raises DataLost if the receiver knows more of this journal than there is."""
        position = position_of(own.number)
        if position > head or own.epoch > epoch:
            other = f"ends at {head} with epoch {epoch}"
        elif own.digest and position >= first and self._stored_at(position).sealed.digest[:DIGEST_BYTES] != own.digest:
            other = "has another commit there"
        else:
            return
        raise DataLost(
            f"shard {self.shard}: the receiver has confirmed position {position} of epoch {own.epoch}, and this "
            f"journal {other}: it has lost data, or is an older copy; replace it by the newest copy, or make the "
            "copy a separate journal; nothing is sent"
        )

    def _start_of_copy(self, marks: Mapping[int, UplinkMark], first: int, head: int) -> int:
        """For a journal that the receiver does not know: new, or a copy, whose first part it may know."""
        start = 1
        for incarnation, mark in marks.items():
            position = complete_position(mark.number)
            known = position < first or (position <= head and self._commit_at(position).incarnation == incarnation)
            # Marks of the original beyond the copy do not say where the copy's own part begins.
            start = max(start, position + 1 if known else first)
        return start

    def _read_back(self, first: int, last: int) -> Iterator[None]:
        """Feeds the sieve the commits up to `last` again that it must remember."""
        commit = self._commit_at(last)
        self.confirmed_ns = commit.runs[-1].time_ns
        begin = last_before(self._journal, self.shard, first, last, self._sieve.horizon(commit.runs[0].time_ns)) + 1
        self._floor = begin - 1
        position = begin
        while position <= last:
            for stored in self._gulp(position):
                position = stored.sealed.position + 1
                if position > last + 1:
                    break
                taken = self._opened(stored)
                self._sieve.take(taken, self._directories.of(taken))
                self._note(taken)
            yield

    # ------------------------------------------------------------------ reading and cutting

    def at_head(self, head: int) -> bool:
        """Whether everything up to the head of the log has been read."""
        return self._next > head

    def fill(self, head: int) -> bool:
        """Reads one more portion; returns whether there was anything."""
        if self._next > head or self._lost is not None:
            return False
        first = self._journal.first_position(self.shard)
        if self._next < first:
            if self._queue:
                return False
            # Retention had no room for it.
            self._gap = (self._next, first - 1)
            self.lost_commits += max(0, first - max(self._next, self._counted_lost + 1))
            self._counted_lost = max(first - 1, self._counted_lost)
            self._next = first
        for stored in self._gulp(self._next):
            commit = self._opened(stored)
            if self._gap is not None:
                why = f"the log from position {self._gap[0]} to {self._gap[1]} was dropped before it was sent"
                self._lost, self._gap = (commit.incarnation, number_of(self._gap[1]), why), None
            self._take(commit, stored.sealed.digest[:DIGEST_BYTES])
        return True

    def cut(self, epoch: int, bytes_max: int, now_ns: int, *, pass_due_ns: int) -> Batch | None:
        """The next batch, if there is something to send."""
        if self._lost is not None:
            incarnation, upto, why = self._lost
            self._lost = None
            if upto > self._sent.get(incarnation, 0):
                return self._batch(incarnation, epoch, upto, [], now_ns, lost=why)
        if not self._queue:
            return self._pass(epoch, now_ns, pass_due_ns)
        incarnation = self._queue[0].incarnation
        items: list[Item] = []
        size_bytes = 0
        one = self._queue[0]
        while self._queue and self._queue[0].incarnation == incarnation and len(items) < ITEMS_COUNT_MAX:
            item_bytes = _size(self._queue[0])
            if items and size_bytes + item_bytes > bytes_max:
                break
            one = self._queue.popleft()
            size_bytes += item_bytes
            items.append((one.number, one.address, one.body))
        self.queued_bytes -= size_bytes
        if not self._queue and self._covered.incarnation == incarnation:
            return self._batch(incarnation, epoch, self._covered.number, items, now_ns, digest=self._covered.digest)
        return self._batch(incarnation, epoch, one.number, items, now_ns, digest=one.digest)

    def _pass(self, epoch: int, now_ns: int, pass_due_ns: int) -> Batch | None:
        """Nothing that was read goes up: tells the receiver now and then."""
        incarnation, upto = self._covered.incarnation, self._covered.number
        if incarnation != self._journal.identity.incarnation or upto <= self._sent.get(incarnation, 0):
            return None
        far = position_of(upto) - position_of(self._sent.get(incarnation, 0)) >= PASS_COMMITS
        if self.flights or not (far or now_ns - self._cut_ns >= pass_due_ns):
            return None
        return self._batch(incarnation, epoch, upto, [], now_ns, digest=self._covered.digest)

    def _batch(
        self,
        incarnation: int,
        epoch: int,
        upto: int,
        items: list[Item],
        now_ns: int,
        *,
        lost: str = "",
        digest: bytes = b"",
    ) -> Batch:
        after = self._sent.get(incarnation, 0)
        self._sent[incarnation] = upto
        self._cut_ns = now_ns
        self.flights.append(BatchInFlight(incarnation, upto, now_ns, self._covered.time_ns))
        if incarnation != self._journal.identity.incarnation:
            # Of the journal that this one copies: its last owner may have a higher epoch than the copy knows.
            epoch = max(epoch, self._epochs.get(incarnation, 0))
        return Batch(self.shard, incarnation, epoch, after, upto, items, lost, digest)

    # ------------------------------------------------------------------ confirmations

    def confirm(self, incarnation: int, number: int) -> bool:
        """The receiver has everything of this incarnation up to here; returns whether that is new."""
        progress = False
        while self.flights and self.flights[0].incarnation == incarnation and self.flights[0].upto <= number:
            flight = self.flights.popleft()
            self.confirmed_position = max(self.confirmed_position, complete_position(flight.upto))
            self.confirmed_ns = flight.time_ns
            progress = True
        if progress:
            self._raise_floor()
        return progress

    @property
    def floor(self) -> int:
        """The position up to which neither the receiver nor, after a restart, the sieve needs the log."""
        return self._floor

    def _raise_floor(self) -> None:
        if not self._sieve.longest_ns:
            self._floor = max(self._floor, self.confirmed_position)
            return
        confirmed_ns = max((time_ns for place, time_ns in self._notes if place <= self.confirmed_position), default=0)
        # What the sieve remembers at the newest confirmed note began at its horizon, or later.
        horizon_ns = self._sieve.horizon(confirmed_ns)
        while len(self._notes) > 1 and self._notes[1][1] < horizon_ns:
            self._notes.popleft()
            self._floor = max(self._floor, self._notes[0][0] - 1)

    # ------------------------------------------------------------------ commits

    def _gulp(self, position: int) -> Iterator[StoredCommit]:
        size_bytes = 0
        for stored in islice(self._journal.read(self.shard, after=position - 1), GULP_COMMITS):
            yield stored
            size_bytes += len(stored.sealed.body)
            if size_bytes >= GULP_BYTES:
                return

    def _commit_at(self, position: int) -> Commit:
        return self._opened(self._stored_at(position))

    def _stored_at(self, position: int) -> StoredCommit:
        return next(iter(self._journal.read(self.shard, after=position - 1)))

    def _opened(self, stored: StoredCommit) -> Commit:
        """Opens a commit; raises instead of passing on a damaged one."""
        if digest_commit(stored.sealed.body) != stored.sealed.digest:
            raise JournalCorrupt(
                f"shard {self.shard}, position {stored.sealed.position}: its bytes are not those that were written; "
                "nothing after it is sent: restore from a copy"
            )
        return open_commit(stored.sealed.body)

    def _take(self, commit: Commit, digest: bytes) -> None:
        known = self._sent.get(commit.incarnation, 0)
        for number, address, body in self._sieve.take(commit, self._directories.of(commit)):
            if number > known:
                queued = _Queued(commit.incarnation, number, address, body, digest)
                self._queue.append(queued)
                self.queued_bytes += _size(queued)
        self._covered = _Covered(commit.incarnation, number_of(commit.position), commit.runs[-1].time_ns, digest)
        self._next = commit.position + 1
        self.confirmed_ns = self.confirmed_ns or commit.runs[0].time_ns
        self._note(commit)

    def _note(self, commit: Commit) -> None:
        """Remembers places in the log, close enough to each other."""
        time_ns = commit.runs[0].time_ns
        if self._notes and time_ns - self._notes[-1][1] < self._sieve.longest_ns // WANTED_NOTES:
            return
        self._notes.append((commit.position, time_ns))
        if len(self._notes) > NOTES_MAX:
            self._notes = deque(list(self._notes)[::2])


def _size(queued: _Queued) -> int:
    return len(queued.address) + len(queued.body) + ITEM_OVERHEAD_BYTES
