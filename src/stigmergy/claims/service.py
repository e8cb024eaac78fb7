"""A node's claims: the requests of its agents, a ledger, and the leases that the node may rely on.

    claims = Claims(ledger, signer, verifier, clock.monotonic_ns, incarnation=…, owes=…, wake=…)
    host.propose = claims.propose               # before the host starts, which releases what is still owed
    await claims.start(life)                    # after it: `life` grows with every start
    for shard, told in claims.due(now_ns): …    # before every step; what it returns is stepped first
    await claims.stop()                         # before the host stops

Without the ledger everything goes on: leases expire on our own clock, requests are refused when their time is over, and
safe actions need nobody. A stop or a crash releases nothing: the agent may still be where it was, and its lease says
for how long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec import Struct, structs

from stigmergy.agents.messages import Claimed
from stigmergy.base.errors import LedgerError, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.base.trust import Signer, Verifier
from stigmergy.claims.claimant import Belief, Claimant, Owes, Told
from stigmergy.claims.entries import Checkpointed, ClaimantName, Expire, WriterList
from stigmergy.claims.observer import LeaseObserver
from stigmergy.claims.port import LedgerPort
from stigmergy.claims.reader import LedgerFollower
from stigmergy.claims.rules import FoldStep
from stigmergy.claims.state import Claims as ClaimsState
from stigmergy.claims.writer import ClaimWriter
from stigmergy.diagnostics.codes import Trouble, coded
from stigmergy.metrics.samples import SampleSheet
from stigmergy.shard.outbox import Pending

LIFE_BITS = 32
"""The low bits of a life are random: two runs from the same journal are never mistaken for one."""
DRAIN_LOOK_S = 0.005
CONTACT = "up"
NO_CONTACT = "no contact"
CLOSED = "closed"


class ClaimsStatus(Struct, frozen=True):
    """A node's view of its ledger."""

    ledger: str
    """`up`, `no contact` while it is unreachable, `closed` if it is no longer trusted."""
    why: str
    position: int
    """How far the log was read."""
    held: int
    asking: int
    waiting: int
    """Moves that are not known to be in the log."""


def life_of(epoch: int, drawn: bytes) -> int:
    """The number of a run: from an epoch that grows with the journal, and four random bytes."""
    return epoch << LIFE_BITS | int.from_bytes(drawn[: LIFE_BITS // 8], "big")


def outlive(life: int, before: int) -> int:
    """This life, or one higher than an earlier one. The epoch of a node that writes nothing, such as an observer,
    does not grow; the random bits stay, because entries of the earlier run may still be on their way."""
    if life > before:
        return life
    return ((before >> LIFE_BITS) + 1) << LIFE_BITS | (life & ((1 << LIFE_BITS) - 1))


class ClaimService:
    """The node's side of a ledger."""

    def __init__(
        self,
        ledger: LedgerPort,
        signer: Signer,
        verifier: Verifier,
        monotonic_ns: Callable[[], int],
        *,
        incarnation: int,
        owes: Owes,
        wake: Callable[[], None],
        trusted: Sequence[bytes] = (),
    ) -> None:
        self._ledger = ledger
        self._key = signer.public_key
        self._monotonic_ns = monotonic_ns
        self._wake = wake
        self._trusted = tuple(sorted({signer.public_key, *trusted})) if trusted else ()
        """The keys that may write into the ledger, our own among them; empty: those that the ledger names."""
        self._writing = ClaimWriter(ledger, signer, incarnation, monotonic_ns, self._resent)
        self._claimant = Claimant(self._writing, incarnation, (signer.algorithm, signer.public_key), owes, self)
        self._observing = LeaseObserver(self._writing.writer, self._expire)
        self._following = LedgerFollower(
            ledger,
            signer,
            verifier.verify,
            self._heard,
            self._jumped,
            self._noted,
            frozenset(self._trusted),
            self._checkpoint_rank,
        )
        self._heard_claims = self._following.claims
        self._early: list[tuple[int, Pending]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._is_open = False
        self._writes = False
        """Whether it has read everything, and may write."""

    async def start(self, life: int) -> None:
        """Starts reading, and writing once it has read everything. Does not wait for the ledger."""
        self._writing.life = life
        self._tasks = [asyncio.ensure_future(self._guarded(run)) for run in (self._following.run, self._write)]
        self._is_open = True
        early, self._early = self._early, []
        for shard, pending in early:
            self.propose(shard, pending)

    async def stop(self, drain_s: float = 0.0) -> None:
        """Sends pending releases within `drain_s`, and closes the ledger. The host still has its turns meanwhile."""
        deadline_s = asyncio.get_running_loop().time() + drain_s
        while asyncio.get_running_loop().time() < deadline_s:
            if not self.is_up or not (self._writing.waiting or self._claimant.giving_back):
                break
            await asyncio.sleep(DRAIN_LOOK_S)
        await self.kill()
        with contextlib.suppress(StigmergyError):
            await self._ledger.close()

    async def kill(self) -> None:
        """Ends at once, like a crash. For simulations, which close the ledger themselves."""
        self._is_open = False
        tasks, self._tasks = self._tasks, []
        await end_tasks(*tasks)
        await self._following.close()

    # ------------------------------------------------------------------ for the host

    def propose(self, shard: int, pending: Pending) -> None:
        """Accepts a durable effect of the sink "ledger"."""
        if not self._is_open:
            self._early.append((shard, pending))
            return
        self._claimant.propose(shard, pending, self._monotonic_ns())
        self._wake()

    def due(self, monotonic_ns: int) -> list[Told]:
        """What agents must be told before anything else is stepped, in this order. Call it before every step."""
        self._observing.tick(monotonic_ns)
        return self._claimant.due(monotonic_ns)

    @property
    def next_ns(self) -> int | None:
        """When `due` has to be called even if nothing else happens."""
        times = [time for time in (self._claimant.next_ns, self._observing.next_ns) if time is not None]
        return min(times, default=None)

    def believes(self, resource: str) -> list[tuple[str, int]]:
        """Which agents of this node may act as holders of a resource right now, with their tokens."""
        return self._claimant.believes(resource, self._monotonic_ns())

    def lease_end_ns(self, agent: str, claimed: Claimed) -> int | None:
        """Until when an agent of this node may act under this claim, by our clock; None if it does not hold it."""
        return self._claimant.lease_end_ns(agent, claimed)

    def beliefs(self) -> list[Belief]:
        """All claims of agents of this node, as it sees them right now."""
        return self._claimant.beliefs(self._monotonic_ns())

    def name_of(self, claimant: bytes) -> ClaimantName | None:
        """The key, name ('Drone/1 cell') and journal of a claimant, if its entry was read since this node started."""
        return self._following.names.get(claimant)

    def queued(self, claimant: bytes) -> tuple[int, float] | None:
        """The position at which a claimant joined the queues it is in, and how many seconds ago this node read that;
        None if it read only a checkpoint of it."""
        found = self._observing.queued.get(claimant)
        return None if found is None else (found[0], (self._monotonic_ns() - found[1]) / 1e9)

    def over_ns(self, resource: str, began: int) -> int | None:
        """The latest end, by this node's clock, of the lease or offer that began at this position."""
        return self._observing.over_ns(resource, began)

    @property
    def folded(self) -> ClaimsState:
        """The folded log, as far as it was read."""
        return self._following.claims

    def standing(self) -> ClaimsStatus:
        """This node's view of its ledger."""
        error = self._following.last_error or self._writing.last_error
        return ClaimsStatus(
            ledger=CLOSED if self._claimant.refuses else CONTACT if error is None else NO_CONTACT,
            why=self._claimant.refuses or ("" if error is None else str(error)),
            position=self._following.claims.position,
            held=self._claimant.held,
            asking=self._claimant.asking,
            waiting=self._writing.waiting,
        )

    def measure(self, sheet: SampleSheet) -> None:
        """What this node measures of its claims and of the ledger."""
        sheet.observe("stigmergy_claim_seconds", self._claimant.grants)
        sheet.observe("stigmergy_ledger_append_seconds", self._writing.appends)
        sheet.observe("stigmergy_ledger_lag_seconds", self._writing.lags)
        verifier = self._following.verifier
        sheet.put("stigmergy_cache_total", verifier.looks - verifier.misses, cache="signatures", outcome="hit")
        sheet.put("stigmergy_cache_total", verifier.misses, cache="signatures", outcome="miss")

    def troubles(self) -> list[Trouble]:
        """Problems that do not go away by themselves."""
        return coded("claims-refused", [self._claimant.refuses or self._following.failed])

    def counters(self) -> dict[str, int]:
        """Counts of requests, grants, refusals and losses here, and those that every reader counts in the log."""
        parts = (self._claimant.counters, self._writing.counters, self._following.counters)
        counted = {name: int(value) for part in parts for name, value in structs.asdict(part).items()}
        counted["leases_expired"] = self._observing.expired
        folded = structs.asdict(self._following.claims.counts)
        return counted | {f"ledger_{name}": int(value) for name, value in folded.items()}

    # ------------------------------------------------------------------ internals

    @property
    def is_up(self) -> bool:
        """Whether the ledger answers, and is trusted."""
        return not self._claimant.refuses and self._following.last_error is None and self._writing.last_error is None

    async def _guarded(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a task; an error that ends it closes the ledger for this node, with the reason."""
        try:
            await run()
        except LedgerError as error:
            self._close(str(error))

    async def _write(self) -> None:
        """Writes, once everything was read: with a life higher than any of this node in the log."""
        await self._following.caught_up.wait()
        mark = self._following.claims.writers.get(self._writing.writer)
        self._writing.life = outlive(self._writing.life, 0 if mark is None else mark.life)
        self._writes = True
        self._check_roster()
        if self._trusted and not self._following.claims.roster:
            self._writing.put("", WriterList(self._trusted))
        await self._writing.run()

    def _heard(self, steps: Sequence[FoldStep]) -> None:
        """The log has advanced: updates observer, claimant and writer."""
        claims, now_ns = self._following.claims, self._monotonic_ns()
        self._observing.heard(steps, self._heard_claims, now_ns)
        self._heard_claims = claims
        for name in dict.fromkeys(name for step in steps for name in (step.resource, *step.others) if name):
            self._observing.changed(name, claims, now_ns)
        self._look(now_ns)
        if self._writes:  # before that, none of our entries can be in it
            self._claimant.heard(steps, claims, now_ns)
        self._wake()

    def _jumped(self) -> None:
        claims, now_ns = self._following.claims, self._monotonic_ns()
        self._heard_claims = claims
        self._observing.jumped(claims, now_ns)
        self._look(now_ns)
        if self._writes:
            self._claimant.jumped(claims, now_ns)
        self._wake()

    def _look(self, now_ns: int) -> None:
        """Checks the log for this node itself: how far its entries are, and whether to trust the rest."""
        mark = self._following.claims.writers.get(self._writing.writer) if self._writes else None
        if mark is not None and mark.life > self._writing.life:
            self._close(
                f"ledger {self._ledger.name!r}: another run of this node writes under the same key and journal; stop "
                "one of the two, and give a copied journal its own incarnation"
            )
        elif mark is not None:
            self._writing.seen(mark.life, mark.sequence)
        if self._following.trouble:
            self._close(self._following.trouble)
        elif self._following.caught_up.is_set():
            self._check_roster()

    def _check_roster(self) -> None:
        """Refuses a ledger that does not accept our entries, or accepts those of keys that we do not trust."""
        roster = self._following.claims.roster
        if roster and self._key not in roster:
            self._close(
                f"ledger {self._ledger.name!r}: the key of this node is not among the {len(roster)} that may write; "
                "have a node that may enrol it"
            )
        elif roster and self._trusted and not set(roster) <= set(self._trusted):
            self._close(
                f"ledger {self._ledger.name!r}: accepts entries of keys that this node does not trust; give all nodes "
                "the same trusted keys"
            )

    def _close(self, reason: str) -> None:
        if not self._claimant.refuses:
            self._claimant.give_up(reason)
            self._wake()

    def _resent(self, numbers: range, now_ns: int) -> None:
        self._claimant.resent(numbers, now_ns)

    def _expire(self, expire: Expire) -> bool:
        return not self._claimant.refuses and self._writing.put("", expire)

    def _noted(self, noted: Checkpointed) -> None:
        self._writing.put("", noted)

    def _checkpoint_rank(self) -> int:
        """How many writers come before this one, for work that one of them has to do; at most a few."""
        writers = sorted(self._following.claims.writers)
        return min(writers.index(self._writing.writer) if self._writing.writer in writers else len(writers), 7)
