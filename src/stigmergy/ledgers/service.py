"""A node's side of the ledgers of users' own: enters what agents propose, and gives subscribers what was entered.

A proposal is an effect that is owed until its outcome is known, so it survives every crash; written twice it counts
once, because the fold knows ids and proposals. A subscriber has a mark for each ledger, which moves in the commit of
the entry: it gets each entry once, whatever dies. Without the ledger both wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import encode, printable, tag_of
from stigmergy.agents.effects import ENTRIES, ProposeEntry
from stigmergy.agents.ledgers import Entry, Ledger, entered_of, outcome_of, read_proposal
from stigmergy.agents.messages import SECOND_NS, older_versions, spec_of, to_newest
from stigmergy.agents.plans import AgentPlan
from stigmergy.base.errors import (
    LedgerCut,
    LedgerError,
    LedgerFailed,
    LedgerUnavailable,
    LedgerUnknown,
    NotRunning,
    StigmergyError,
)
from stigmergy.base.tasks import end_tasks
from stigmergy.base.trust import Signer
from stigmergy.claims.following import LOOK_S
from stigmergy.claims.port import LedgerCheckpoint, LedgerEntry, LedgerPort, SignedLedger
from stigmergy.claims.writer import Pauses
from stigmergy.diagnostics.codes import Trouble, coded
from stigmergy.ledgers.fold import LedgerItem, proposal_digest
from stigmergy.ledgers.follower import EntryFollower
from stigmergy.ledgers.records import (
    PROPOSER_CHARS_MAX,
    Body,
    EntriesStatus,
    EntriesStored,
    EntryBody,
    EntryWriters,
    write_records,
)
from stigmergy.metrics.catalogue import PROPOSALS
from stigmergy.metrics.histogram import Histogram
from stigmergy.metrics.samples import SampleSheet
from stigmergy.node.host import Host
from stigmergy.node.intake import Stream
from stigmergy.shard.inputs import EffectSettled, SequencesSkipped
from stigmergy.shard.outbox import Pending
from stigmergy.shard.state import addresses_of

BATCH_COUNT_MAX = 64
"""Entries that are written, or given to a subscriber, at once."""
CHECKPOINT_COUNT = 4_096
"""So many positions behind a checkpoint the next one is stored."""
CHECKPOINT_STAGGER_S = 2.0
SLOW_NS = SECOND_NS
"""A proposal that waits longer is worth a word: a link that was cut is noticed only seconds later."""
SOURCE = "ledger/"
"""The source of entries for a subscriber is this, the ledger's name and the subscriber's address."""
CUT = "cut off: the ledger keeps only the last entries"
Told = Callable[[int, bool, str], None]
"""Told what has become of a proposal: the position of its id, whether another was first, and why it was given up."""


class EntriesCounters(Struct):
    """What this node has done with a ledger."""

    proposals_entered: int = 0
    proposals_duplicate: int = 0
    proposals_refused: int = 0
    entry_appends: int = 0
    entry_appends_unknown: int = 0
    entries_given: int = 0
    """To subscribers, repetitions after errors included."""
    entries_cut: int = 0
    """Positions that a subscriber was told are gone."""


class _Waiting(Struct):
    """A proposal without an outcome."""

    body: EntryBody
    told: list[Told]
    since_ns: int
    until_ns: int | None


class _Subscriber(Struct):
    """An agent that gets the entries."""

    agent: str
    shard: int
    cursor: int
    """It was given everything up to here."""


class _RunTicket:
    """Says when a run of entries is durable, or why not. It is no future: when a host ends it fails all tickets, and
    `_give` looks at no more of them once one says so or it is cancelled."""

    __slots__ = ("error", "settled")

    def __init__(self) -> None:
        self.settled = asyncio.Event()
        self.error: Exception | None = None

    def resolve(self) -> None:
        self.settled.set()

    def fail(self, error: Exception) -> None:
        if not self.settled.is_set():
            self.error = error
            self.settled.set()


class EntryService:
    """One ledger. `signer` is None where a gateway enters for us."""

    def __init__(
        self,
        ledger: Ledger[Entry],
        log: LedgerPort,
        host: Host,
        signer: Signer | None,
        trusted: Sequence[bytes],
    ) -> None:
        self.ledger = ledger
        self._log = log
        self._host = host
        self._signer = signer
        self.counters = EntriesCounters()
        self._lags = Histogram()
        own = () if signer is None else (signer.public_key,)
        self._trusted = frozenset({*own, *trusted}) if trusted else frozenset()
        self.follower = EntryFollower(log, ledger.ids, host.verifier.verify, self._trusted, self._heard)
        self._waiting: dict[str, _Waiting] = {}
        """By proposal, oldest first."""
        self._notes: deque[EntriesStored] = deque()
        self._write_bell, self._give_bell = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._storing: asyncio.Task[None] | None = None
        self._subscribers: dict[str, _Subscriber] = {}
        self._agents_count = -1
        self._closed = ""
        """Why the ledger is of no use any more: it does not mend itself."""
        self._last_error: LedgerError | None = None
        self._unread = 0
        """What was written up to this position is not read back yet."""
        cls = entered_of(ledger.entry)
        self._tag = spec_of(cls).tag
        self._kinds = tuple(kind for kind, plan in host.declaration.plans.items() if plan.handles(cls))

    def start(self) -> None:
        """Begins to read, to write and to give. Waits for nobody."""
        self._tasks = [
            asyncio.ensure_future(self._guarded(run)) for run in (self.follower.run, self._write, self._give)
        ]

    async def stop(self) -> None:
        """Ends, and closes the ledger. What has no outcome stays owed."""
        await self.kill()
        with contextlib.suppress(StigmergyError):
            await self._log.close()

    async def kill(self) -> None:
        """Ends at once, like a crash."""
        tasks, self._tasks = self._tasks, []
        await end_tasks(*tasks, self._storing)

    async def _guarded(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a task; an error that ends it closes the ledger for this node, with the reason."""
        try:
            await run()
        except LedgerError as error:
            self._close(str(error))
        except NotRunning:
            pass  # the host ends

    def _close(self, why: str) -> None:
        self._closed = self._closed or why
        self._heard()

    def _heard(self) -> None:
        """The ledger has grown, or was read to its end."""
        self._write_bell.set()
        self._give_bell.set()
        fold = self.follower.fold
        due = self.follower.caught_up.is_set() and fold.position - fold.stored >= CHECKPOINT_COUNT
        if due and not self._closed and self._signer is not None and (self._storing is None or self._storing.done()):
            self._storing = asyncio.ensure_future(self._store(self._signer))

    def standing(self) -> EntriesStatus:
        """This node's view of it."""
        error, fold = self.follower.last_error or self._last_error, self.follower.fold
        behind = max((fold.position - one.cursor for one in self._subscribers.values()), default=0)
        why = self._closed or ("" if error is None else str(error)) or self._slow()
        return EntriesStatus(self.ledger.name, why, fold.position, fold.count, len(self._waiting), max(0, behind))

    def _slow(self) -> str:
        """Says that the ledger does not answer, while nobody knows yet why."""
        oldest = next(iter(self._waiting.values()), None)
        waited_ns = 0 if oldest is None else self._host.clock.monotonic_ns() - oldest.since_ns
        return f"no answer for {waited_ns / SECOND_NS:.0f} s" if waited_ns > SLOW_NS else ""

    def measure(self, sheet: SampleSheet) -> None:
        """What this node measures of it."""
        ledger, standing = self.ledger.name, self.standing()
        for counter, outcome in PROPOSALS.items():
            sheet.put("stigmergy_proposals_total", getattr(self.counters, counter), ledger=ledger, outcome=outcome)
        sheet.put("stigmergy_proposals_waiting", standing.waiting, ledger=ledger)
        sheet.observe("stigmergy_proposal_seconds", self._lags, ledger=ledger)
        sheet.put("stigmergy_entries_told_total", self.counters.entries_given, ledger=ledger)
        sheet.put("stigmergy_entries_behind", standing.behind, ledger=ledger)

    def troubles(self) -> list[Trouble]:
        """Problems that do not go away by themselves."""
        return coded("entries-refused", [self._closed])

    # ------------------------------------------------------------------ proposing

    def propose(self, body: EntryBody, told: Told, within_s: float | None = None) -> None:
        """Takes a proposal; the same one again joins the first."""
        waiting = self._waiting.get(body.proposal)
        if waiting is not None:
            waiting.told.append(told)
            return
        now_ns = self._host.clock.monotonic_ns()
        until_ns = None if within_s is None else now_ns + int(within_s * SECOND_NS)
        self._waiting[body.proposal] = _Waiting(body, [told], now_ns, until_ns)
        self._write_bell.set()

    async def _write(self) -> None:
        """Writes what waits, once everything was read."""
        pauses = Pauses()
        while True:
            self._write_bell.clear()
            self._settle_waiting()
            bodies = self._next_batch()
            if not bodies:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._write_bell.wait()
                continue
            try:
                await self._append(bodies)
            except LedgerFailed as error:
                self._close(str(error))
            except (LedgerUnavailable, LedgerUnknown) as error:
                self._last_error = error
                self.counters.entry_appends_unknown += isinstance(error, LedgerUnknown)
                await pauses.wait()
            except LedgerError as error:
                self._close(str(error))
            else:
                self._last_error = None
                pauses.reset()

    def _may_list(self) -> bool:
        """Whether the log itself has to say who may write: a ledger that knows its writers' keys says so."""
        return self._signer is not None and not isinstance(self._log, SignedLedger)

    def _next_batch(self) -> list[Body]:
        """What to write next; of several proposals of one id only the first. Nothing before all was read back: what was
        written without an answer earlier may come yet, and the fold says which of both counts."""
        fold = self.follower.fold
        if self._closed or not self.follower.caught_up.is_set() or fold.position < self._unread:
            return []
        notes: list[Body] = [*self._notes]
        if self._trusted and not fold.writers and self._may_list():
            notes.insert(0, EntryWriters(tuple(sorted(self._trusted))))
        first = {one.body.id: one.body for one in reversed(list(islice(self._waiting.values(), BATCH_COUNT_MAX)))}
        return [*notes, *reversed(first.values())]

    async def _append(self, bodies: list[Body]) -> None:
        self.counters.entry_appends += 1
        first = await self._log.append(self._encoded(bodies))
        self._unread = first + len(bodies) - 1
        self.follower.look()
        for note in bodies:
            if isinstance(note, EntriesStored):  # and never one that came meanwhile: first the log says what is cut off
                self._notes.popleft()
                if note.cut:
                    await self._log.cut(note.cut)

    def _encoded(self, bodies: Sequence[Body]) -> list[bytes]:
        signer = self._signer
        if signer is None:
            return [encode(body) for body in bodies]
        return write_records(self._log.name, signer.algorithm, signer.public_key, bodies, signer.sign)

    def _settle_waiting(self) -> None:
        """Tells the outcome of what is in the ledger, and gives up what took too long or may not be written."""
        now_ns, find, refusal = self._host.clock.monotonic_ns(), self.follower.fold.find, self._refusal()
        for proposal, waiting in list(self._waiting.items()):
            found = find(waiting.body.id)
            if found is not None:
                is_other = found.proposal != proposal_digest(proposal)
                self._settle(proposal, waiting, found.position, is_other, "")
            elif refusal:
                self._settle(proposal, waiting, 0, False, refusal)
            elif waiting.until_ns is not None and now_ns >= waiting.until_ns:
                why = self.standing().why or "the ledger has not answered"
                reason = f"given up: {why}; if it was on its way already, it may still be entered"
                self._settle(proposal, waiting, 0, False, reason)

    def _refusal(self) -> str:
        """Why this node may not write; empty if it may, or nothing says so."""
        writers = self.follower.fold.writers
        if self._signer is None or not writers or self._signer.public_key in writers:
            return ""
        return (
            f"ledger {self._log.name!r}: the key of this node is not among the {len(writers)} that may write; propose "
            "through a gateway, or give all nodes the same trusted keys"
        )

    def _settle(self, proposal: str, waiting: _Waiting, position: int, is_other: bool, reason: str) -> None:
        del self._waiting[proposal]
        self.counters.proposals_refused += not position
        self.counters.proposals_duplicate += is_other
        self.counters.proposals_entered += bool(position) and not is_other
        if position:
            self._lags.observe(self._host.clock.monotonic_ns() - waiting.since_ns)
        for told in waiting.told:
            told(position, is_other, reason)

    async def enter(self, bodies: Sequence[EntryBody]) -> int:
        """Enters proposals of a node without a key; returns up to where to read to see the outcome of all. Raises
        LedgerError."""
        if self._closed:
            raise LedgerUnavailable(self._closed)
        outcomes: list[asyncio.Future[int]] = []
        for body in bodies:
            outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            outcomes.append(outcome)

            def told(position: int, _: bool, why: str, to: asyncio.Future[int] = outcome) -> None:
                if not to.done() and position:
                    to.set_result(position)
                elif not to.done():
                    to.set_exception(LedgerUnavailable(why))

            self.propose(body, told)
        # All of them are looked at, also when one has failed or the caller is cancelled.
        return max(await asyncio.gather(*outcomes))

    # ------------------------------------------------------------------ giving

    async def _give(self) -> None:
        """Gives subscribers what is new, each in order, all side by side."""
        await self.follower.caught_up.wait()
        while not self._closed:
            self._give_bell.clear()
            self._look_for_subscribers()
            given = [await self._give_next(one) for one in list(self._subscribers.values())]
            for one, upto, runs in filter(None, given):
                for run in runs:
                    await run.settled.wait()
                errors = [run.error for run in runs if run.error is not None]
                if any(isinstance(error, NotRunning) for error in errors):
                    return
                one.cursor = self._mark_of(one.agent, one.shard) if errors else upto
                if errors:
                    await asyncio.sleep(LOOK_S)
            if not any(given):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._give_bell.wait()

    def _look_for_subscribers(self) -> None:
        """Agents that are there now, and those that their first entry is to make."""
        shards = self._host.shards
        count = sum(len(shard.state.agents) + len(shard.state.at_rest) for shard in shards)
        if count == self._agents_count:
            return
        self._agents_count = count
        assignment, plans = self._host.assignment, self._host.declaration.plans
        named = [to for to in self.ledger.to if assignment.runs(to) and self._host.intake.shard_of(to) in shards]
        there = (address for shard in shards for address in addresses_of(shard.state, self._subscribes))
        for address in (*named, *there):
            if address not in self._subscribers and plans[address.partition("/")[0]].engine is None:
                number = self._host.intake.shard_of(address)
                self._subscribers[address] = _Subscriber(address, number, self._mark_of(address, number))

    def _subscribes(self, plan: AgentPlan) -> bool:
        return plan.kind in self._kinds

    def _source(self, agent: str) -> str:
        return f"{SOURCE}{self.ledger.name}/{agent}"

    def _mark_of(self, agent: str, shard: int) -> int:
        return self._host.shards[shard].state.marks.consumed(self._source(agent), 0)

    async def _give_next(self, one: _Subscriber) -> tuple[_Subscriber, int, list[_RunTicket]] | None:
        """Puts the next entries for a subscriber into the mailbox; None if there are none."""
        fold = self.follower.fold
        if one.cursor == fold.position:
            return None
        try:
            if one.cursor < fold.first - 1:
                raise LedgerCut("the log says so")
            if one.cursor > fold.position:
                await self._log.read(one.cursor, 1)  # raises LedgerCorrupt if the log has lost its end
                return None
            items, upto = await self.follower.items(one.cursor, BATCH_COUNT_MAX)
        except LedgerCut:
            last, source = fold.first - 1, self._source(one.agent)
            if last > one.cursor:
                self.counters.entries_cut += last - one.cursor
                self._host.intake.put_inside(one.shard, SequencesSkipped(source, 0, 0, last, CUT))
                one.cursor = last
            return None
        except (LedgerUnavailable, LedgerUnknown):
            return None  # the follower says so
        if upto == one.cursor:
            return None
        self.counters.entries_given += len(items)
        return one, upto, [self._put(one, run) for run in _runs(items)]

    def _put(self, one: _Subscriber, items: list[LedgerItem]) -> _RunTicket:
        """Gives a subscriber entries at consecutive positions. Numbers before them are of no entry."""
        ticket = _RunTicket()
        bodies = [self.event_of(item) for item in items]
        stream, first = Stream(self._source(one.agent)), items[0].position
        passes = first > self._mark_of(one.agent, one.shard) + 1
        try:
            self._host.intake.take_told(stream, first, one.agent, bodies, ticket, passes=passes)
        except StigmergyError as error:
            ticket.fail(error)
        return ticket

    def event_of(self, item: LedgerItem) -> bytes:
        """The bytes of the event that subscribers get: the entry as it is in the ledger, or brought to its newest
        version."""
        entry, tag = item.body.entry, tag_of(item.body.entry)
        if tag != spec_of(self.ledger.entry).tag:
            old = next((cls for cls in older_versions(self.ledger.entry) if spec_of(cls).tag == tag), None)
            if old is not None:
                entry = encode(to_newest(msgspec.msgpack.decode(entry, type=old)))
        told = {"type": self._tag, "entry": msgspec.Raw(entry), "position": item.position}
        who = {"ledger": self.ledger.name, "proposer": item.body.proposer, "writer": item.key.hex()}
        return encode({**told, **who})

    # ------------------------------------------------------------------ reading

    async def read(self, after: int, count_max: int, *, fresh: bool = False) -> list[LedgerItem]:
        """Entries after a position, in order. With `fresh` everything counts that anybody had written before this call.
        Raises LedgerError."""
        if self._closed:
            raise LedgerUnavailable(self._closed)
        if fresh:
            await self.follower.wait_end()
        found: list[LedgerItem] = []
        after = max(after, self.follower.fold.first - 1)
        while len(found) < count_max and after < self.follower.fold.position:
            items, upto = await self.follower.items(after, count_max - len(found))
            if upto == after:
                break
            found, after = found + items, upto
        return found[:count_max]

    async def records(self, after: int, count_max: int, *, fresh: bool) -> list[LedgerEntry]:
        """The log itself, for nodes that read it through this one. Raises LedgerError."""
        return await self._log.read(after, count_max, fresh=fresh)

    async def stored(self) -> LedgerCheckpoint | None:
        """The newest checkpoint, for them. Raises LedgerError."""
        return await self._log.checkpoint()

    # ------------------------------------------------------------------ checkpoints

    async def _store(self, signer: Signer) -> None:
        """Stores a checkpoint unless another node was quicker, and has what is too old cut off. What fails is left to
        the next one: nobody depends on it."""
        await asyncio.sleep(signer.public_key[0] % 4 * CHECKPOINT_STAGGER_S)
        fold = self.follower.fold
        if fold.position - fold.stored < CHECKPOINT_COUNT or self._closed:
            return
        position = fold.position
        body = fold.checkpoint(signer.algorithm, signer.public_key, signer.sign)
        with contextlib.suppress(StigmergyError):
            await self._log.put_checkpoint(LedgerCheckpoint(position, body))
            keep = self.ledger.keep
            self._notes.append(EntriesStored(position, 0 if keep is None else max(0, position - keep)))
            self._write_bell.set()


def _runs(items: Iterable[LedgerItem]) -> list[list[LedgerItem]]:
    """Those at consecutive positions together."""
    runs: list[list[LedgerItem]] = []
    for item in items:
        if runs and runs[-1][-1].position + 1 == item.position:
            runs[-1].append(item)
        else:
            runs.append([item])
    return runs


def ledger_name(fleet: str, ledger: str) -> str:
    """The name of a ledger's log: a signature in one is not valid in another."""
    return f"{fleet}.{ledger}"


class EntryServices:
    """All ledgers of users' own of a node."""

    def __init__(
        self,
        host: Host,
        logs: Mapping[str, LedgerPort],
        signer: Signer | None,
        trusted: Sequence[bytes] = (),
    ) -> None:
        """`logs` are those of the ledgers that the fleet lists, by name."""
        self._host = host
        listed = host.declaration.ledgers
        if signer is not None:
            for log in logs.values():
                if isinstance(log, SignedLedger):
                    log.sign_with(signer, trusted)
        self.services = {name: EntryService(listed[name], log, host, signer, trusted) for name, log in logs.items()}
        self._is_open = False
        self._early: list[tuple[int, Pending]] = []

    def start(self) -> None:
        """Begins. Waits for nobody."""
        self._is_open = True
        for service in self.services.values():
            service.start()
        early, self._early = self._early, []
        for shard, pending in early:
            self.propose(shard, pending)

    async def stop(self) -> None:
        """Ends; what has no outcome stays owed."""
        self._is_open = False
        for service in self.services.values():
            await service.stop()

    async def kill(self) -> None:
        """Ends at once, like a crash."""
        self._is_open = False
        for service in self.services.values():
            await service.kill()

    def propose(self, shard: int, pending: Pending) -> None:
        """Accepts a durable effect of the sink "entries"; also before the start, for owed ones."""
        if not self._is_open:
            self._early.append((shard, pending))
            return
        asked = read_proposal(pending.body)
        service = self.services.get(asked.ledger)
        if service is None:
            self._told(shard, pending, asked, 0, False, f"no ledger {asked.ledger!r} here; list it in Fleet(ledgers=…)")
            return
        # Journals may be alike in all numbers, but no two that run have one agent.
        proposer = printable(pending.agent, PROPOSER_CHARS_MAX)
        proposal = f"{proposer} {pending.incarnation}.{shard}.{pending.position}.{pending.index}"
        body = EntryBody(proposal, proposer, asked.id, asked.entry)

        def told(position: int, is_other: bool, reason: str) -> None:
            self._told(shard, pending, asked, position, is_other, reason)

        service.propose(body, told, asked.within_s)

    def _told(self, shard: int, pending: Pending, asked: ProposeEntry, position: int, other: bool, reason: str) -> None:
        if self._is_open and self._host.failure is None:
            result = outcome_of(asked, position, duplicate=other, reason=reason)
            self._host.intake.put_inside(shard, EffectSettled(ENTRIES, pending.sequence, result, failed=reason))

    def standing(self) -> list[EntriesStatus]:
        """This node's view of each."""
        return [service.standing() for service in self.services.values()]

    def counters(self) -> dict[str, int]:
        """What this node has done with all of them."""
        counted = dict.fromkeys(EntriesCounters.__struct_fields__, 0)
        for service in self.services.values():
            counted = {name: count + getattr(service.counters, name) for name, count in counted.items()}
        return counted

    def measure(self, sheet: SampleSheet) -> None:
        """What this node measures of them."""
        for service in self.services.values():
            service.measure(sheet)

    def troubles(self) -> list[Trouble]:
        """Problems that do not go away by themselves."""
        return [trouble for service in self.services.values() for trouble in service.troubles()]
