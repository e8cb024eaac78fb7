"""Reads the log of a ledger on NATS: folds its messages in order, and knows where the log ends.

The server republishes each message when it stores it; a reader fetches lost messages from any replica. Stored messages
never change, so it does not matter who answers. Only the answer *nothing more is there* may be wrong, from a server
that is cut off from the others. To be sure, write an empty message: a majority stores it after everything that was
acknowledged before, and its sequence says how far to read.

A stream that was deleted and made again is another log, whatever its name: each fetch includes the last message read
before, and after a broken link nothing is accepted until that one was seen again.

A connection keeps the newest entries of the log, and the state at some places in between: older entries are fetched
and folded again from the nearest of these, and must give the same chain.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec
from nats.aio.msg import Msg

from stigmergy.base.errors import LedgerCorrupt, LedgerCut, LedgerError, LedgerForeign, LedgerUnavailable, LinkDown
from stigmergy.base.tasks import end_tasks
from stigmergy.claims.port import LedgerEntry
from stigmergy.nats.errors import NO_MESSAGE, JetStreamRefused
from stigmergy.nats.ledger.records import (
    Cut,
    LedgerState,
    MessageOutcome,
    Verify,
    read_base,
    read_record,
    state_of,
    statement,
    take,
)
from stigmergy.nats.ledger.streams import NOT_THERE, LedgerAddress, refused
from stigmergy.nats.link import NatsLink

# Finds where a ledger's log begins after a cut, from the valid messages about cuts.
#
# The last of them need not be the one that counts. Of two concurrent cuts the later message may cut less, and anybody
# who can reach the stream may have written something after it. So all are read, and the farthest cut counts.

CUTS_COUNT_MAX = 64
"""Messages about cuts that are read: each cut removes earlier ones, so that few are left."""
CUT_ASK_S = 1.0


async def find_cut(
    place: LedgerAddress, link: NatsLink, first: int, incarnation: bytes, trusted: frozenset[bytes], verify: Verify
) -> LedgerState:
    """The state where the log, whose first message is `first`, begins. `incarnation` is the ledger's as far as we know
    it; `trusted` are the keys that we accept, any writer's if empty.

    Raises LedgerCorrupt or LedgerForeign if no cut is accepted, LedgerUnavailable, and like the link.
    """
    best: LedgerState | None = None
    fault: LedgerCorrupt | LedgerForeign = LedgerCorrupt(
        f"{place.shown}: the first message is {first}, but there is no cut; restore it from a copy"
    )
    wanted = first
    for _ in range(CUTS_COUNT_MAX):
        found = await _next_cut(place, link, wanted)
        if found is None:
            break
        wanted = found[0] + 1
        read = _read_cut(place, *found, incarnation, trusted, verify)
        if not isinstance(read, LedgerState):
            fault = read
        elif best is None or read.sequence > best.sequence:
            best = read
    if best is None:
        raise fault
    return best


def another_ledger(place: LedgerAddress, name: str) -> str:
    """The error for a stream that holds a ledger of another name."""
    return f"{place.shown}: the stream {place.stream} holds the ledger {name!r}; name another place for it"


async def _next_cut(place: LedgerAddress, link: NatsLink, wanted: int) -> tuple[int, bytes] | None:
    """The next message about a cut, from this sequence on. From the leader: a replica may be behind."""
    asked = {"seq": wanted, "next_by_subj": place.cut_subject}
    try:
        found = await link.api(f"STREAM.MSG.GET.{place.stream}", asked, within_s=CUT_ASK_S)
    except JetStreamRefused as error:
        if error.code != NO_MESSAGE:
            raise refused(place, error) from None
        return None
    message = found["message"]
    return int(message["seq"]), base64.b64decode(message.get("data", ""))


def _read_cut(
    place: LedgerAddress, sequence: int, payload: bytes, incarnation: bytes, trusted: frozenset[bytes], verify: Verify
) -> LedgerState | LedgerCorrupt | LedgerForeign:
    """The state in a cut message, or why it is not accepted."""
    read = read_record(payload)
    if not isinstance(read, str) and isinstance(read[1].change, Cut):
        record, change = read[0], read[1].change
        base = read_base(change.base)
        if base is not None and base.sequence < sequence:
            if base.name != place.name:
                return LedgerForeign(another_ledger(place, base.name))
            if incarnation not in (b"", base.incarnation):
                return LedgerForeign(
                    f"{place.shown}: was deleted and made again; if that is intended, start this node again"
                )
            signed = statement(base.name, base.incarnation, record.algorithm, record.key, record.body)
            known = trusted or frozenset(base.writers)
            if record.key in known and verify(record.algorithm, record.key, signed, record.signature):
                return state_of(base, change.upto)
    return LedgerCorrupt(
        f"{place.shown}: the log was cut, but no key that this node trusts has signed the cut; have "
        "a trusted node cut it, or restore it from a copy"
    )


FETCH_COUNT = 256
OLDER_COUNT = 4
"""Half of the first request for older entries."""
FETCH_BYTES = 4 * 1024 * 1024
FETCH_S = 1.0
ASK_S = 1.5
READ_S = 4.0
"""How long a read tries before it reports that the ledger is unreachable."""
LOOK_S = 1.0
"""Republished messages may get lost: the longest time without a request."""
PAUSE_S = 0.02
AHEAD_COUNT_MAX = 1_024
TURN_COUNT = 64
"""Messages folded before other tasks get a turn: to verify one takes about 55 us."""
RECENT_COUNT = 8_192
RECENT_BYTES = 8 * 1024 * 1024
CHAINS_COUNT = 4_096
"""Messages before the newest whose chain is kept, to be compared with what writers have signed."""
STATES_EVERY = 64
STATES_COUNT_MAX = 512

_fetch_body = msgspec.json.Encoder().encode


class Reader:
    """A connection's view of the log. `start` it on the event loop; `end` it before the link is closed."""

    def __init__(self, place: LedgerAddress, link: NatsLink, verify: Verify, trusted: frozenset[bytes]) -> None:
        self._place = place
        self._link = link
        self._verify = verify
        self._trusted = trusted
        """Keys that may vouch for the state before a cut; any writer's if empty."""
        self.state = LedgerState()
        self.failed: LedgerError | None = None
        """Why the ledger is no longer accepted."""
        self.taken: Callable[[MessageOutcome], None] = lambda _taken: None
        """Called for every message, in order."""
        self.grown: Callable[[int], None] = lambda _position: None
        """Called with the position of the last entry when there are new ones."""
        self._recent: list[LedgerEntry] = []
        self._recent_bytes = 0
        self._chains: OrderedDict[int, bytes] = OrderedDict()
        self._states: list[LedgerState] = []
        self._states_every = STATES_EVERY
        self._base: LedgerState | None = None
        """The state where the log begins after the last cut."""
        self._older: LedgerState | None = None
        """The state where the last read of older entries ended."""
        self._last: bytes | None = None
        """The fingerprint of the last read message; None if unknown."""
        self._is_sure = True
        """Whether that message was seen again since the link came up."""
        self._ahead: dict[int, tuple[bytes, bytes]] = {}
        self._bell = asyncio.Event()
        self._fetching = asyncio.Lock()
        self._asking: asyncio.Task[int] | None = None
        self._asking_next: asyncio.Task[int] | None = None
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Any = None

    async def start(self) -> None:
        """Subscribes."""
        self._unsubscribe = await self._link.subscribe(self._place.told_subjects, self._told)
        self._link.on_link(self._link_changed)
        self._task = asyncio.get_running_loop().create_task(self._follow(), name=f"{self._place.shown}: reading")

    def _link_changed(self, _up: bool) -> None:
        self._is_sure = False
        self._bell.set()

    async def end(self) -> None:
        """Unsubscribes."""
        await end_tasks(self._task, self._asking, self._asking_next)
        if self._unsubscribe is not None:
            await self._unsubscribe()

    def check(self) -> None:
        """Raises if the ledger is no longer accepted."""
        if self.failed is not None:
            raise self.failed

    # ------------------------------------------------------------------ reading

    async def read(self, after: int, count_max: int) -> list[LedgerEntry]:
        """Entries after a position that this connection has read."""
        self.check()
        state = self.state
        if after > state.position:
            raise LedgerCorrupt(
                f"{self._place.shown}: ends at {state.position}, but {after} was read before; it has lost its end, "
                "restore it from a copy"
            )
        if after < state.cut:
            raise LedgerCut(f"{self._place.shown}: begins at {state.cut + 1}, {after + 1} is gone; take the checkpoint")
        if after == state.position or count_max <= 0:
            return []
        start = after - state.position + len(self._recent)
        if start >= 0:
            return self._recent[start : start + count_max]
        return await self._read_older(after, count_max)

    async def wait_end(self) -> None:
        """Waits until everything is read that was acknowledged before this call. Raises LedgerUnavailable."""
        deadline_s = asyncio.get_running_loop().time() + READ_S
        if self._asking_next is None:
            self._asking_next = asyncio.ensure_future(self._ask_behind(self._asking))
            # Mark it as retrieved: the waiter may have been cancelled.
            self._asking_next.add_done_callback(lambda done: done.cancelled() or done.exception())
        sequence = await asyncio.shield(self._asking_next)
        await self.wait_read(sequence, max(deadline_s, asyncio.get_running_loop().time() + ASK_S))

    async def wait_read(self, sequence: int, deadline_s: float) -> None:
        """Waits until everything up to a message is folded. Raises LedgerUnavailable at the deadline."""
        while True:
            self.check()
            if self.state.sequence >= sequence:
                return
            before = self.state.sequence
            with contextlib.suppress(*NOT_THERE):
                await self.fetch()
            if self.state.sequence > before:
                continue
            if asyncio.get_running_loop().time() > deadline_s:
                raise LedgerUnavailable(
                    f"{self._place.shown}: message {sequence} is stored, but no server returns it; try again"
                )
            await asyncio.sleep(PAUSE_S)

    async def fetch(self, count: int = FETCH_COUNT) -> int:
        """Fetches and folds the next messages; returns their number. Raises LinkDown."""
        async with self._fetching:
            self.check()
            known, last = self.state.sequence, self._last
            messages = await self._get(max(known, 1), count + (known > 0))
            if last is not None and messages and messages[0][0] == known:
                self._check_same(known, last, messages[0][2])
            self._is_sure = True
            if messages and messages[0][0] > self.state.sequence + 1:
                await self._begin_at_cut(messages[0][0])
            folded = 0
            for sequence, payload, sign in messages:
                if sequence == self.state.sequence + 1:
                    self._take(sequence, payload, sign)
                    folded += 1
                    if folded % TURN_COUNT == 0:
                        await asyncio.sleep(0)
            return folded

    async def _get(self, sequence: int, count: int) -> list[tuple[int, bytes, bytes]]:
        """Messages from a sequence on, each with its fingerprint."""
        body = {"seq": sequence, "batch": count, "max_bytes": FETCH_BYTES}
        found = await self._link.collect(self._place.direct_get, _fetch_body(body), count, within_s=FETCH_S)
        return [(_sequence_of(message), message.data, _sign_of(message)) for message in found]

    # ------------------------------------------------------------------ the end of the log

    async def _ask_behind(self, before: asyncio.Task[int] | None) -> int:
        """Callers that come while a request is under way share the next one: the one under way may have passed the
        majority before they asked."""
        if before is not None and not before.done():
            await asyncio.wait({before})
        self._asking, self._asking_next = self._asking_next, None
        return await self._ask()

    async def _ask(self) -> int:
        """Writes an empty message; returns its sequence."""
        deadline_s = asyncio.get_running_loop().time() + READ_S
        while True:
            self.check()
            known = self.state.sequence
            try:
                ack = await self._link.publish(self._place.log_subject, b"", within_s=ASK_S)
            except LinkDown as error:
                if asyncio.get_running_loop().time() > deadline_s:
                    raise LedgerUnavailable(f"{self._place.shown}: cannot be reached ({error}); try again") from None
                await asyncio.sleep(PAUSE_S)
                continue
            except JetStreamRefused as error:
                raise refused(self._place, error) from None
            if ack.sequence <= known:
                self._fail(
                    LedgerCorrupt(
                        f"{self._place.shown}: {known} messages were read, and the stream ends at {ack.sequence}; it "
                        "has lost its end, restore it from a copy"
                    )
                )
            return ack.sequence

    # ------------------------------------------------------------------ incoming messages

    async def _told(self, message: Msg) -> None:
        sequence = _sequence_of(message)
        if self.failed is not None or sequence < self.state.sequence:
            return
        if sequence == self.state.sequence:
            if self._last is not None:
                self._check_same(sequence, self._last, _sign_of(message), is_raised=False)
            return
        if sequence > self.state.sequence + 1 or not self._is_sure:
            if len(self._ahead) < AHEAD_COUNT_MAX:
                self._ahead[sequence] = (message.data, _sign_of(message))
            self._bell.set()
            return
        self._take(sequence, message.data, _sign_of(message))

    async def _follow(self) -> None:
        """Fetches messages that were lost between the server and us."""
        while self.failed is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._bell.wait()
            self._bell.clear()
            if self._is_sure:
                self._take_ahead()
            try:
                while await self.fetch() and not self._take_ahead():
                    pass
            except NOT_THERE:
                await asyncio.sleep(PAUSE_S)
            except LedgerError as error:
                if not isinstance(error, LedgerUnavailable):
                    self._fail(error, is_raised=False)

    def _take_ahead(self) -> bool:
        """Folds early messages as far as none is missing before them; returns whether all were folded."""
        while (early := self._ahead.pop(self.state.sequence + 1, None)) is not None:
            self._take(self.state.sequence + 1, *early)
        self._ahead = {number: one for number, one in self._ahead.items() if number > self.state.sequence}
        return not self._ahead

    def _take(self, sequence: int, payload: bytes, sign: bytes) -> None:
        try:
            found = take(self.state, sequence, payload, self._verify)
            self._compare(found)
        except LedgerError as error:
            self._fail(error, is_raised=False)
            return
        if sequence == 1 and (foreign := self._why_foreign(found.state)):
            self._fail(LedgerForeign(foreign), is_raised=False)
            return
        self.state, self._last = found.state, sign
        self._chains[sequence] = found.state.chain
        if len(self._chains) > CHAINS_COUNT:
            self._chains.popitem(last=False)
        if sequence % self._states_every == 0:
            self._states.append(found.state)
            if len(self._states) > STATES_COUNT_MAX:
                del self._states[1::2]
                self._states_every *= 2
        if found.entries:
            self._keep(found.entries)
        before = 0 if self._base is None else self._base.sequence
        if found.base and (base := read_base(found.base)) is not None and base.sequence > before:
            self._base = state_of(base, found.state.cut)
            # Messages before are gone, or may go: drop marks so that a log that is cut often keeps as many as before.
            self._states = [state for state in self._states if state.sequence >= base.sequence]
            self._states_every = STATES_EVERY
        self.taken(found)
        if found.entries:
            self.grown(found.state.position)

    def _check_same(self, sequence: int, read: bytes, found: bytes, *, is_raised: bool = True) -> None:
        """A message that was read before must not have changed."""
        if found != read:
            error = LedgerCorrupt(
                f"{self._place.shown}: message {sequence} is another one than was read; if the ledger was deleted "
                "and made again, start this node again, else restore it from a copy"
            )
            self._fail(error, is_raised=is_raised)

    def _why_foreign(self, born: LedgerState) -> str:
        """Why the stream's ledger is not the one that we want; empty if it is."""
        if born.name != self._place.name:
            return another_ledger(self._place, born.name)
        if not born.counts.records:
            return f"{self._place.shown}: no permitted writer has signed its first message; use another name"
        if self._trusted and not self._trusted & frozenset(born.writers):
            return (
                f"{self._place.shown}: was begun by keys that this node does not trust; give all nodes the same peers"
            )
        return ""

    def _compare(self, found: MessageOutcome) -> None:
        """A writer has signed its view of the chain: it must match ours."""
        for sequence, head in self._heads(found):
            ours = self._chains.get(sequence)
            if ours is not None and ours != head:
                raise LedgerCorrupt(
                    f"{self._place.shown}: a writer has signed another log up to message {sequence} than this node has "
                    "read; what was stored has changed, restore it from a copy"
                )

    def _heads(self, found: MessageOutcome) -> list[tuple[int, bytes]]:
        heads = [(found.head_sequence, found.head)] if found.head_sequence else []
        if found.base:
            base = read_base(found.base)
            heads += [(base.sequence, base.chain)] if base is not None else []
        return heads

    def _keep(self, entries: tuple[LedgerEntry, ...]) -> None:
        self._recent += entries
        self._recent_bytes += sum(len(entry.body) for entry in entries)
        if len(self._recent) > 2 * RECENT_COUNT or self._recent_bytes > 2 * RECENT_BYTES:
            kept, size_bytes = len(self._recent), 0
            while kept and len(self._recent) - kept < RECENT_COUNT and size_bytes < RECENT_BYTES:
                kept -= 1
                size_bytes += len(self._recent[kept].body)
            del self._recent[:kept]
            self._recent_bytes = size_bytes

    def _fail(self, error: LedgerError, *, is_raised: bool = True) -> None:
        self.failed = error
        self.grown(self.state.position)  # wakes readers, who get the error
        if is_raised:
            raise error

    # ------------------------------------------------------------------ a log that was cut

    async def _begin_at_cut(self, first: int) -> None:
        """The next message is gone: continues after the farthest cut. Raises LinkDown or LedgerError."""
        try:
            best = await find_cut(self._place, self._link, first, self.state.incarnation, self._trusted, self._verify)
        except (LedgerCorrupt, LedgerForeign) as error:
            self._fail(error)
            return
        if best.sequence + 1 < first:
            return  # an answer from before the last cut; the next one is newer
        if best.sequence > self.state.sequence:
            self.state, self._base, self._last = best, best, None
            self._recent, self._recent_bytes, self._older = [], 0, None
            self._chains.clear()
            self._chains[best.sequence] = best.chain
            self._states = [best]
            self.grown(best.position)

    def state_before(self, upto: int) -> LedgerState:
        """The newest remembered state without entries after a position and without a partial append; the empty state if
        there is none. A log that begins with a cut has at least that one."""
        index = bisect_right(self._states, upto, key=lambda state: state.position)
        blank = LedgerState(self.state.name, self.state.incarnation)
        return next((state for state in reversed(self._states[:index]) if not state.partial), self._base or blank)

    # ------------------------------------------------------------------ entries no longer in memory

    async def _read_older(self, after: int, count_max: int) -> list[LedgerEntry]:
        """Fetches and folds again from the nearest remembered state, and compares the chain on the way."""
        state = self._nearest(after)
        found: list[LedgerEntry] = []
        deadline_s = asyncio.get_running_loop().time() + READ_S
        count = OLDER_COUNT
        while len(found) < count_max and state.sequence < self.state.sequence:
            count = min(2 * count, FETCH_COUNT)  # messages may hold one entry or hundreds
            try:
                messages = await self._get(state.sequence + 1, count)
            except LinkDown as error:
                raise LedgerUnavailable(f"{self._place.shown}: cannot be reached ({error}); try again") from None
            if messages and messages[0][0] != state.sequence + 1:
                raise LedgerCut(f"{self._place.shown}: {after + 1} is gone; take the checkpoint")
            if not messages and asyncio.get_running_loop().time() > deadline_s:
                raise LedgerUnavailable(
                    f"{self._place.shown}: no server returns message {state.sequence + 1}; try again"
                )
            for sequence, payload, _ in messages:
                if sequence > self.state.sequence or len(found) >= count_max:
                    break
                taken = take(state, sequence, payload, self._verify)
                found += [entry for entry in taken.entries if entry.position > after]
                if len(found) > count_max:
                    break  # the next read begins with this message
                state = taken.state
                self._check_chain(state)
            await asyncio.sleep(0 if messages else PAUSE_S)
        self._older = state
        return found[:count_max]

    def _nearest(self, after: int) -> LedgerState:
        index = bisect_right(self._states, after, key=lambda state: state.position)
        nearest = self._states[index - 1] if index else LedgerState()
        older = self._older
        return older if older is not None and nearest.position < older.position <= after else nearest

    def _check_chain(self, state: LedgerState) -> None:
        known = self._chains.get(state.sequence)
        if known is None:
            index = bisect_right(self._states, state.sequence, key=lambda one: one.sequence)
            known = (
                self._states[index - 1].chain if index and self._states[index - 1].sequence == state.sequence else None
            )
        if known is not None and known != state.chain:
            self._fail(
                LedgerCorrupt(
                    f"{self._place.shown}: what was read before message {state.sequence} has changed since; restore it "
                    "from a copy"
                )
            )


def _sequence_of(message: Msg) -> int:
    return int((message.headers or {}).get("Nats-Sequence", "0"))


def _sign_of(message: Msg) -> bytes:
    """A message's fingerprint: its bytes; of an empty one, which has none of its own, the time it was stored."""
    return message.data or (message.headers or {}).get("Nats-Time-Stamp", "").encode()
