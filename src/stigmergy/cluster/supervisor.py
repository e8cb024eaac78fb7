"""Runs the lifecycle of one shard in one worker: compares the plan with the owners, and does what the table says.

It acts on the present state, not on messages: a missed change is seen at the next check. Every wait has an end.
Failures here are reported to the coordinator, so that another worker gets the shard.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from msgspec import Struct

from stigmergy.agents.codec import printable
from stigmergy.base.errors import (
    ConfigError,
    DataLost,
    DefinitionError,
    JournalConflict,
    JournalCorrupt,
    JournalForeign,
    NotOwned,
    NotRunning,
    RecoveryError,
    StaleEpoch,
    StigmergyError,
    StoreError,
    TrustError,
    UnknownKind,
    WrongKey,
)
from stigmergy.base.tasks import end_tasks, where
from stigmergy.cluster.lifecycle import LifecycleSignal, LifecycleState, LifecycleStep, ShardLifecycle
from stigmergy.cluster.membership import WorkerMembership
from stigmergy.cluster.owned_shard import OwnedShard, WorkerContext, key_of
from stigmergy.cluster.records import NOBODY
from stigmergy.cluster.standby import ClaimedShard, Standby
from stigmergy.control.live import Live
from stigmergy.diagnostics.logger import SHARD
from stigmergy.journal.port import ShardLog
from stigmergy.journal.signers import check_own_key
from stigmergy.store.port import NS

# What a worker remembers of its shards' logs, over all its memberships: their identity and their length.
#
# Servers that lost a log, or its end, have lost acknowledged commits, and only a worker that saw them can know. A shard
# that continued from the rest would answer as if they had never existed.


class _Seen(Struct):
    incarnation: int
    position: int = 0


class SeenLogs:
    """All logs that were opened in this process."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def check_same(self, shard: int, incarnation: int) -> None:
        """Refuses a log that was made anew since we saw it."""
        if self._seen.setdefault(shard, _Seen(incarnation)).incarnation != incarnation:
            raise JournalForeign(
                f"shard {shard}: its log is another one than it was: somebody has deleted it, and what it held is "
                "lost; restore it, or restart all workers to go on with what is there now"
            )

    def check_end(self, shard: int, position: int) -> None:
        """Refuses a log that ends before what we have had from it. Where it ends is certain once it is claimed."""
        seen = self._seen.get(shard)
        if seen is not None and position < seen.position:
            raise DataLost(
                f"shard {shard}: its log ends at position {position}, and had come to {seen.position}: the end of it "
                "is lost; restore it from a newer copy, or restart all workers to go on without"
            )
        self.reached(shard, position)

    def reached(self, shard: int, position: int) -> None:
        """So far the log has come, for certain."""
        seen = self._seen.get(shard)
        if seen is not None:
            seen.position = max(seen.position, position)


LOOK_EVERY_S = 0.5
"""So often it looks even if nobody says that something has changed."""
PAUSE_S = 0.1
PAUSE_S_MAX = 5.0
"""Before it is tried again; it doubles with each failure up to the larger."""
FAILURES_MAX = 5
STEADY_S = 30.0
"""After so many failures, each less than so long after the one before, somebody else is to try."""
UNFIT_S = 30.0
"""So long others are to have a shard that we cannot have; then it may be planned for us again."""
ENROLLED_S_MAX = 5.0
"""So long we wait for the owner to enrol our key."""
HOPELESS = (ConfigError, DefinitionError, JournalCorrupt, JournalForeign, RecoveryError, TrustError, UnknownKind)
"""Errors after which trying again here would only end in the same."""
REASON_CHARS_MAX = 300


class ShardEvent(Struct, frozen=True):
    """What became of a shard, for people and programs."""

    event: str
    shard: int
    fields: dict[str, Any] = {}


Tell = Callable[[ShardEvent], None]


class ShardSupervisor:
    """One shard in one worker, from `start` until `end`."""

    def __init__(
        self,
        shard: int,
        context: WorkerContext,
        membership: WorkerMembership,
        places: asyncio.Semaphore,
        tell: Tell,
        logs: SeenLogs,
    ) -> None:
        """`places` are the replays that may be under way at once."""
        self.shard = shard
        self._context = context
        self._membership = membership
        self._places = places
        self._tell_all = tell
        self._logs = logs
        self._lifecycle = ShardLifecycle(shard)
        self._woken = asyncio.Event()
        self.life: asyncio.Task[None] | None = None
        """Ends only with `end`, or with a bug of ours."""
        self._following: asyncio.Task[None] | None = None
        self._log: ShardLog | None = None
        self._standby: Standby | None = None
        self._is_warm = False
        self._owned: OwnedShard | None = None
        self._abandoning: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        """What went wrong on the way to the present state."""
        self._failures = 0
        self._failed_ns = 0
        self._rests_until_ns = 0
        self._since_ns = 0
        """When the present step was begun."""
        self._served_s = 0.0
        """How long it took from free to served."""
        self.unfit = ""
        """Why we cannot have it; empty while we can."""
        self.must_go = False
        """Set it, and the shard is let go whether somebody is ready or not."""

    @property
    def state(self) -> LifecycleState:
        """Where it stands."""
        return self._lifecycle.state

    @property
    def live(self) -> Live | None:
        """The running shard, while it is ours."""
        return None if self._owned is None else self._owned.live

    def start(self) -> None:
        """Begins to look."""
        self.life = asyncio.get_running_loop().create_task(self._live(), name=f"life of shard {self.shard}")

    def wake(self) -> None:
        """Something has changed."""
        self._woken.set()

    async def end(self) -> None:
        """Ends whatever is left, as it is: for a worker that has lost its lease, or ends."""
        if self._owned is not None:
            self._owned.host.retire(NotOwned("this worker has given up the shard; another may have it: ask again"))
        await end_tasks(self.life)
        await self._abandon()
        await self._forget()
        self._lifecycle = ShardLifecycle(self.shard)

    def unended(self) -> list[str]:
        """Where each task that keeps `end` from returning is now."""
        tasks = (self.life, self._abandoning, self._following)
        return [where(task) for task in tasks if task is not None and not task.done()]

    # ------------------------------------------------------------------ looking

    async def _live(self) -> None:
        SHARD.set(self.shard)  # for what is logged in this task, and in those that it starts
        while True:
            self._woken.clear()
            signal = self._look()
            if signal is not None:
                await self._go(signal)
                continue
            rest_s = (self._rests_until_ns - self._now_ns()) / NS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(LOOK_EVERY_S, rest_s) if rest_s > 0 else LOOK_EVERY_S):
                    await self._woken.wait()

    async def _go(self, signal: LifecycleSignal) -> None:
        """Takes a step, and those that follow from it."""
        following: LifecycleSignal | None = signal
        while following is not None:
            step = self._lifecycle.take(following)
            self._since_ns = self._now_ns()
            following = await self._do(step)

    def _look(self) -> LifecycleSignal | None:
        """What the world says about the present state."""
        wanted = self._membership.register.planned(self.shard) == self._membership.me
        rested = self._now_ns() >= self._rests_until_ns
        if rested:
            self.unfit = ""
        match self.state:
            case LifecycleState.IDLE:
                return LifecycleSignal.WANTED if wanted and rested else None
            case LifecycleState.WARMING | LifecycleState.READY:
                return self._look_at_log(rested) if wanted else LifecycleSignal.UNWANTED
            case LifecycleState.OWNING if self._owned is not None:
                return self._look_at_host(self._owned, wanted)
            case _:
                return None

    def _look_at_log(self, rested: bool) -> LifecycleSignal | None:
        if self._following is not None and self._following.done():
            self._error = _error_of(self._following)
            return LifecycleSignal.FAILED
        if self._standby is None or not self._is_warm:
            return None
        if self.state is LifecycleState.WARMING:
            return self._look_at_keys(self._standby)
        owner = self._membership.register.owner(self.shard)
        return LifecycleSignal.FREE if rested and owner in (NOBODY, self._membership.me) else None

    def _look_at_keys(self, standby: Standby) -> LifecycleSignal | None:
        """Whether we may sign this log, and trust its signers. The present owner may have to enrol us first."""
        context, owner = self._context, self._membership.register.member(self._membership.register.owner(self.shard))
        try:
            if owner is not None and key_of(owner) not in (context.signer.public_key, *context.trusted):
                raise WrongKey(
                    f"worker {owner.id} signs with the key {owner.public_key[:16]}…, which this one does not trust; "
                    "give all workers one --key, or name it with --trust"
                )
            if standby.position:
                check_own_key(standby.signers, (context.signer.algorithm, context.signer.public_key))
        except TrustError as error:
            if owner is not None and (self._now_ns() - self._since_ns) / NS < ENROLLED_S_MAX:
                return None
            self._error = error
            return LifecycleSignal.FAILED
        return LifecycleSignal.WARM

    def _look_at_host(self, owned: OwnedShard, wanted: bool) -> LifecycleSignal | None:
        register = self._membership.register
        if owned.host.failure is not None or not self._membership.is_held:
            self._error = owned.host.failure
            return LifecycleSignal.FENCED if self._is_fenced() else LifecycleSignal.FAILED
        owned.enrol(register.members())
        successor = register.planned(self.shard)
        awaited = not wanted and successor != NOBODY and register.awaited_by(self.shard) == successor
        return LifecycleSignal.AWAITED if awaited or self.must_go else None

    def _is_fenced(self) -> bool:
        return not self._membership.is_held or isinstance(self._error, JournalConflict | NotOwned | StaleEpoch)

    # ------------------------------------------------------------------ steps

    async def _do(self, step: LifecycleStep) -> LifecycleSignal | None:
        """Does what a step says; returns what came of it, where that is known at once."""
        match step:
            case LifecycleStep.FOLLOW:
                self._following = asyncio.ensure_future(self._replay())
                return None
            case LifecycleStep.ANNOUNCE:
                return await self._announce()
            case LifecycleStep.CLAIM:
                return await self._claim()
            case LifecycleStep.SETTLE:
                return await self._settle()
            case LifecycleStep.RELEASE:
                return await self._release()
            case LifecycleStep.END:
                return await self._lose()
            case LifecycleStep.FORGET:
                return await self._give_up()
            case LifecycleStep.WAIT:
                return None

    async def _replay(self) -> None:
        self._is_warm = False
        context = self._context
        async with self._places:
            self._log = await context.backend.open_log(self.shard)
            self._logs.check_same(self.shard, self._log.identity.incarnation)
            self._standby = Standby(self._log, context.declaration.plans, context.verifier, context.settings.limits)
            await self._standby.warm()
        self._is_warm = True
        self.wake()
        await self._follow_on(self._standby)

    async def _follow_on(self, standby: Standby) -> None:
        try:
            await standby.follow()
        finally:
            self.wake()

    async def _announce(self) -> LifecycleSignal | None:
        position = 0 if self._standby is None else self._standby.position
        self._tell("ready", position=position, seconds=self._took_s())
        if not await self._try_again(partial(self._membership.say_ready, self.shard, position)):
            return LifecycleSignal.FAILED
        return None

    async def _claim(self) -> LifecycleSignal | None:
        """From free to served."""
        await self._stop_following()
        standby = self._standby
        if standby is None:
            return LifecycleSignal.FAILED
        try:
            claimed = await standby.claim(self._membership.me)
        except JournalConflict:
            self._rest()
            self._following = asyncio.ensure_future(self._follow_on(standby))
            return LifecycleSignal.BEATEN
        except StigmergyError as error:
            self._error = error
            return LifecycleSignal.FAILED
        return await self._begin(claimed)

    async def _begin(self, claimed: ClaimedShard) -> LifecycleSignal:
        try:
            self._logs.check_end(self.shard, claimed.recovered.states[0].position)
            owned = self._owned = OwnedShard(self.shard, self._context, claimed, lambda: self._membership.is_held)
            await owned.begin(self.wake)
            self._served_s = self._took_s()
            if not await self._try_again(partial(self._membership.say_owner, self.shard, claimed.number)):
                return LifecycleSignal.FENCED
        except StaleEpoch as error:
            self._error = error
            return LifecycleSignal.FENCED
        except StigmergyError as error:
            self._error = error
            if self._owned is None:
                await claimed.journal.close()
            return LifecycleSignal.FAILED
        return LifecycleSignal.CLAIMED

    async def _settle(self) -> LifecycleSignal | None:
        owned = self._owned
        if owned is not None:
            position = owned.host.durable_position(self.shard)
            self._tell("owns", claim=owned.claim, position=position, seconds=self._served_s)
        await self._forget()
        await self._try_again(partial(self._membership.take_back_ready, self.shard))
        return None

    async def _release(self) -> LifecycleSignal | None:
        """Lets go in good order: what was taken is finished and written first."""
        owned = self._owned
        if owned is None:
            return LifecycleSignal.OVER
        self._error = await owned.finish()
        if self._error is not None:
            return LifecycleSignal.FENCED
        self._logs.reached(self.shard, owned.host.durable_position(self.shard))
        self._owned = None
        if not await self._try_again(partial(self._membership.let_go, self.shard)):
            return LifecycleSignal.FENCED
        self._tell("released", to=self._membership.register.planned(self.shard), seconds=self._took_s())
        return LifecycleSignal.OVER

    async def _lose(self) -> LifecycleSignal | None:
        fenced, error = self._is_fenced(), self._error
        await self._abandon()
        await self._forget()
        if not fenced:
            self._fail()
        why = self._membership.why or "the lease of this worker is gone" if error is None else str(error)
        self._tell("lost", fenced=fenced, reason=printable(why, REASON_CHARS_MAX))
        self._error = None
        await self._try_again(partial(self._membership.let_go, self.shard))
        await self._try_again(partial(self._membership.take_back_ready, self.shard))
        return LifecycleSignal.OVER

    async def _give_up(self) -> LifecycleSignal | None:
        """Follows no more: it is not wanted here, or cannot be done here."""
        if self._error is not None:
            self._fail()
            self._tell("unfit" if self.unfit else "waits", reason=printable(self._error, REASON_CHARS_MAX))
            self._error = None
        await self._forget()
        await self._try_again(partial(self._membership.take_back_ready, self.shard))
        return None

    # ------------------------------------------------------------------ within

    def _fail(self) -> None:
        """Counts a failure: it rests for a while, and after too many of them others are to have the shard."""
        now_ns = self._now_ns()
        self._failures = 1 if now_ns - self._failed_ns > int(STEADY_S * NS) else self._failures + 1
        self._failed_ns = now_ns
        if isinstance(self._error, HOPELESS) or self._failures >= FAILURES_MAX:
            self._failures = 0
            self.unfit = printable(self._error, REASON_CHARS_MAX)
            self._rests_until_ns = now_ns + int(UNFIT_S * NS)
        else:
            self._rest()

    def _rest(self) -> None:
        pause_s = min(PAUSE_S_MAX, PAUSE_S * 2 ** max(0, self._failures - 1))
        self._rests_until_ns = self._now_ns() + int(pause_s * NS)

    async def _try_again(self, write: Callable[[], Awaitable[None]]) -> bool:
        """Writes until it is written, or our lease is gone: then it does not matter any more."""
        while self._membership.is_held:
            try:
                await write()
                return True
            except StoreError:
                await asyncio.sleep(PAUSE_S)
        return False

    async def _abandon(self) -> None:
        """Ends the host as it is; to the end, even if its caller is cancelled meanwhile: a worker that loses its lease
        cancels us while we do this, and half a stop would leave a bus, a server and tasks behind."""
        owned, self._owned = self._owned, None
        if owned is not None:
            if owned.live is not None:
                self._logs.reached(self.shard, owned.host.durable_position(self.shard))
            loop, name = asyncio.get_running_loop(), f"abandonment of shard {self.shard}"
            self._abandoning = loop.create_task(owned.abandon(), name=name)
        if self._abandoning is not None:
            await asyncio.shield(self._abandoning)
            self._abandoning = None

    async def _stop_following(self) -> None:
        following, self._following = self._following, None
        await end_tasks(following)

    async def _forget(self) -> None:
        await self._stop_following()
        log, self._log, self._standby = self._log, None, None
        if log is not None:
            with contextlib.suppress(StigmergyError):
                await log.close()

    def _now_ns(self) -> int:
        return self._context.clock.monotonic_ns()

    def _took_s(self) -> float:
        return round((self._now_ns() - self._since_ns) / NS, 6)

    def _tell(self, event: str, **fields: Any) -> None:
        self._tell_all(ShardEvent(event, self.shard, fields))


def _error_of(task: asyncio.Task[None]) -> Exception:
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, StigmergyError):
        raise error
    return error or NotRunning("what followed the log has ended")
