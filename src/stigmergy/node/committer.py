"""The committer: seals drafts, signs their heads, makes one group at a time durable. Nothing leaves before that.

While a group is being written, steps go on in the next drafts. A group is due when something in it must not wait any
longer, or when it is large enough. Between groups, housekeeping gets its turn at the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from msgspec import Struct

from stigmergy.agents.messages import SECOND_NS
from stigmergy.base.clock import Clock
from stigmergy.base.errors import JournalFull, JournalUnknown, NotRunning
from stigmergy.base.trust import Signer
from stigmergy.journal.port import CHECK_EVERY_S, Journal, file_check, patience_s
from stigmergy.node.housekeeping import Housekeeper
from stigmergy.node.mailbox import Ticket
from stigmergy.node.measures import HostMeasures
from stigmergy.node.settings import Settings
from stigmergy.shard.commit import Group, Head, Signature, head_of, statement
from stigmergy.shard.draft import Ready
from stigmergy.shard.shard import Shard

NEVER_NS = 2**62
LINGER_NS = SECOND_NS // 500
"""So long after a write began, single inputs are left to wait for its end, when they are stepped in one go: cheaper,
and none of them could be written before. A disk that takes longer holds up no step."""
QUICKLY_TOLD_MAX = 64
"""For a group with at most this many events, its waiters are told before the next group begins; for a larger one after.
"""
CHECK_EVERY_NS = int(CHECK_EVERY_S * SECOND_NS)
HELD_UP_NS = SECOND_NS // 10
"""If we check this late, we were paused ourselves: a stopped process, a paused machine."""
HEARD_NS = SECOND_NS
"""Then the disk gets this much longer once, because its answer may be waiting in the event loop, and a machine that was
paused has more to do than to listen."""


class GroupInFlight(Struct):
    """A group being written, and its waiters."""

    readies: list[Ready]
    tickets: list[Ticket]
    group: Group | None = None
    """None for a chore of housekeeping, and once making room for it was tried."""
    effects: list[tuple[int, int]] = []
    """For metrics: when the oldest input of a turn was accepted, and how many effects followed."""


class Committer:
    """Makes commits durable. `durable` is called with each group that is; `failed` when that could not be made sure;
    `gather` when a write is over, so that what has lingered is stepped before the next one."""

    def __init__(
        self,
        shards: Iterable[Shard],
        journal: Journal,
        signer: Signer,
        clock: Clock,
        housekeeper: Housekeeper,
        settings: Settings,
        gather: Callable[[], None],
        durable: Callable[[GroupInFlight], None],
        failed: Callable[[BaseException], None],
        covers_all: bool,
    ) -> None:
        self._shards = shards
        self._journal = journal
        self._signer = signer
        self._clock = clock
        self._housekeeper = housekeeper
        self._batch_events_max = settings.batch_events_max
        self._write_within_ns = int(max(settings.write_within_s, patience_s(journal)) * SECOND_NS)
        self._write_until_ns = NEVER_NS
        self._begun_ns = 0
        """When the write of the group in flight was begun."""
        self._held_up = False
        self._gather = gather
        self._durable = durable
        self._failed = failed
        self._check_files = file_check(journal)
        self._check_ns = NEVER_NS if self._check_files is None else clock.monotonic_ns() + CHECK_EVERY_NS
        """When the journal's files are to be checked, if nothing is appended until then."""
        self._writing: asyncio.Future[None] | None = None
        self._housekeeping_next = False
        self._flush_ns = NEVER_NS
        self._tickets: list[Ticket] = []
        self._items = 0
        self.measures: HostMeasures | None = None
        self.on_write: Callable[[str], None] | None = None
        """While a profile runs, hears what a write is for before it begins, and with an empty text that it is over."""
        self._effects: list[tuple[int, int]] = []
        self._over = False
        self.flight: GroupInFlight | None = None
        """On its way to the disk."""
        self._sealed: GroupInFlight | None = None
        """Sealed while another was on its way, because the drafts were full: it goes next."""
        self.draining = False
        self._covers_all = covers_all
        """The next signature covers the heads of all shards: some end with that of another key that we now trust."""

    @property
    def room(self) -> int:
        """How many more items the open drafts take before they wait for the disk."""
        return max(0, self._batch_events_max - self._items)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to write and nothing being written."""
        return self._writing is None and self._sealed is None and self._flush_ns == NEVER_NS

    @property
    def in_doubt(self) -> list[Ready]:
        """Commits that are sealed and not durable yet, oldest first."""
        return [ready for flight in (self.flight, self._sealed) if flight is not None for ready in flight.readies]

    @property
    def next_ns(self) -> int | None:
        """When to look again: the open drafts must be written, or the files be checked, or the write under way must be
        over."""
        due_ns = min(self._flush_ns, self._check_ns) if self._writing is None else self._write_until_ns
        return due_ns if due_ns < NEVER_NS else None

    def lingers_until_ns(self, monotonic_ns: int) -> int | None:
        """Until when inputs that have come one by one may wait for the write under way; None if they should not."""
        if self.flight is None or self.draining:
            return None
        until_ns = self._write_until_ns - self._write_within_ns + LINGER_NS
        return until_ns if monotonic_ns < until_ns else None

    def took(self, items: int, *, full: bool) -> None:
        """So many items went into the open drafts; `full`: one of them takes no more."""
        self._items = self._batch_events_max if full else self._items + items

    def owes(self, since_ns: int, effects: int) -> None:
        """So many effects went into the open drafts, of inputs of which the oldest was accepted then."""
        self._effects.append((since_ns, effects))

    def may_wait(self, until_ns: int) -> None:
        """Something in the open drafts may wait for the disk until then."""
        self._flush_ns = min(self._flush_ns, until_ns)

    def notify(self, ticket: Ticket, *, written: bool) -> None:
        """Somebody waits for what was stepped last. Where it left nothing to write, what came before is enough."""
        if written:
            self._tickets.append(ticket)
        else:
            self._resolve_behind([ticket])

    def _resolve_behind(self, tickets: Sequence[Ticket]) -> None:
        """Tells these when what was sealed before them is durable; at once if it is."""
        last = self._sealed or self.flight
        if last is not None:
            last.tickets.extend(tickets)
            return
        for ticket in tickets:
            ticket.resolve()

    def write(self, monotonic_ns: int) -> None:
        """Starts the next write if the journal is free: a group that is due, or something of housekeeping."""
        if self._writing is not None:
            if monotonic_ns >= self._write_until_ns:
                self._check_answer(monotonic_ns)
            if self._items >= self._batch_events_max and self._sealed is None:
                # Full, so that nothing can join it any more: sealed now, it need not be when the disk is free.
                self._close_drafts(monotonic_ns)
            return
        due = self._sealed is not None or self._flush_ns <= monotonic_ns or self._items >= self._batch_events_max
        due = due or (self.draining and self._flush_ns < NEVER_NS)
        if not due or (self._housekeeping_next and self._housekeeper.has_work(monotonic_ns)):
            self._housekeeping_next = False
            if self._flush_ns == NEVER_NS:
                self._housekeeper.begin_if_due(monotonic_ns)
            chore = self._check_if_due(monotonic_ns)
            if chore is None:
                chore = self._housekeeper.next_write(self._clock.wall_ns(), monotonic_ns)
            if chore is not None:
                self._tell_write(self._housekeeper.doing)
                self._start(chore, monotonic_ns)
            if chore is not None or not due:
                return
        self._housekeeping_next = True
        if self._sealed is None:
            self._close_drafts(monotonic_ns)
        flight, self._sealed = self._sealed, None
        if flight is not None and flight.group is not None:
            self.flight = flight
            self._put_off_check(monotonic_ns)
            self._tell_write("commits")
            self._begun_ns = self._clock.monotonic_ns()
            self._start(self._journal.append(flight.group), monotonic_ns)

    def _tell_write(self, cause: str) -> None:
        if self.on_write is not None:
            self.on_write(cause)

    def _check_if_due(self, monotonic_ns: int) -> Awaitable[None] | None:
        """A look at the journal's files, where nothing was appended for a while: an append looks by itself."""
        if self._check_files is None or monotonic_ns < self._check_ns:
            return None
        self._put_off_check(monotonic_ns)
        return self._check_files()

    def _put_off_check(self, monotonic_ns: int) -> None:
        if self._check_files is not None:
            self._check_ns = monotonic_ns + CHECK_EVERY_NS

    def _check_answer(self, monotonic_ns: int) -> None:
        """The write under way should be over. If we were held up ourselves, its end may only not be heard yet."""
        if monotonic_ns - self._write_until_ns > HELD_UP_NS and not self._held_up:
            self._held_up = True
            self._write_until_ns = monotonic_ns + HEARD_NS
            return
        raise JournalUnknown(
            f"the disk has not answered for {self._write_within_ns / SECOND_NS:g} s; whether the last commit "
            "is kept is known after a restart"
        )

    def abandon(self, error: Exception) -> None:
        """The end: all waiters are told, and no write begins any more, whatever the result of the one in progress."""
        self._over = True
        waiting = [flight.tickets for flight in (self.flight, self._sealed) if flight is not None]
        for ticket in [ticket for tickets in (*waiting, self._tickets) for ticket in tickets]:
            ticket.fail(error)
        self._tickets = []

    def _close_drafts(self, monotonic_ns: int) -> None:
        """Seals what the drafts hold, if anything, and signs it: it is what is written next."""
        began_ns = 0 if self.measures is None else self._clock.monotonic_ns()
        # Sealed from here on, whatever may fail in between: what is sealed is not durable, and tickets are told.
        flight = self._sealed = GroupInFlight([], self._tickets, effects=self._effects)
        readies = flight.readies
        self._tickets, self._effects = [], []
        self._items = 0
        self._flush_ns = NEVER_NS
        readies.extend(ready for ready in (shard.seal() for shard in self._shards) if ready is not None)
        if not readies:
            self._sealed = None
            self._resolve_behind(flight.tickets)
            return
        for ready in readies:
            self._housekeeper.sealed(ready)
        self._housekeeper.begin_if_due(monotonic_ns)
        heads = self._heads(readies)
        value = self._signer.sign(statement(heads))
        signature = Signature(self._signer.algorithm, self._signer.public_key, heads, value)
        flight.group = Group(commits=tuple(ready.sealed for ready in readies), signature=signature)
        if self.measures is not None:
            self.measures.seal.observe(self._clock.monotonic_ns() - began_ns)

    def _heads(self, readies: Sequence[Ready]) -> list[Head]:
        """What the signature covers: the heads of the group's shards.

        With a snapshot's note it covers the heads of all shards. From then on that shard is read from the snapshot
        on, and a signature before it, which may be the only one over another shard's head, is not seen any more.
        """
        heads = {ready.sealed.shard: head_of(ready.sealed) for ready in readies}
        if self._covers_all or any(ready.commit.snapshots for ready in readies):
            self._covers_all = False
            others = [shard.state.head for shard in self._shards if shard.state.position]
            heads = {head.shard: head for head in others} | heads
        return [heads[shard] for shard in sorted(heads)]

    async def _append_with_room(self, group: Group) -> None:
        """Nothing of the group was kept, for want of room. Making some is the one thing that may help; once."""
        if not await self._housekeeper.make_room():
            raise JournalFull("the disk is full, and nothing may be dropped; make room, then start again")
        await self._journal.append(group)

    def _start(self, write: Awaitable[None], monotonic_ns: int) -> None:
        self._write_until_ns = monotonic_ns + self._write_within_ns
        self._held_up = False
        self._writing = asyncio.ensure_future(write)
        self._writing.add_done_callback(self._written)

    def _written(self, write: asyncio.Future[None]) -> None:
        self._writing = None
        self._tell_write("")
        error = NotRunning("the write was cancelled") if write.cancelled() else write.exception()
        if self._over:
            return
        flight = self.flight or GroupInFlight([], [])
        if isinstance(error, JournalFull) and flight.group is not None:
            group, flight.group = flight.group, None
            self._start(self._append_with_room(group), self._clock.monotonic_ns())
            return
        if error is not None and not isinstance(error, Exception):
            error = JournalUnknown(
                f"the write was ended by {type(error).__name__}; a restart tells whether it was kept"
            )
        if error is not None:
            self._failed(error)
            return
        self.flight = None
        if self.measures is not None and flight.readies:
            self.measures.commit.observe(self._clock.monotonic_ns() - self._begun_ns)
        if len(flight.tickets) + sum(ready.sealed.events for ready in flight.readies) <= QUICKLY_TOLD_MAX:
            # This is immediate, and a waiter for an effect waits for nothing else.
            self._durable(flight)
            flight = GroupInFlight([], [])
        failure: BaseException | None = None
        try:
            # The disk comes first: while it works on the next group, what is durable by now is told and released.
            self._gather()
            self.write(self._clock.monotonic_ns())
        except BaseException as raised:
            failure = raised
        if flight.readies or flight.tickets:
            self._durable(flight)
        if failure is not None:
            self._failed(failure)
