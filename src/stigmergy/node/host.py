"""The host: inputs in, steps, one group commit at a time, then answers and effects. Journal before effect.

Work happens in *turns*, plain functions on the event loop: fire due timers, step waiting inputs, write what is ready.
While one group is being written, the next commit is stepped; a single input is written at once. A turn never waits;
only the write does. If a write fails, the host stops: safe actions go out, nothing is acknowledged, and the next start
reads the journal to learn what was kept.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct, structs

from stigmergy.agents.assignment import Assignment, shown
from stigmergy.agents.codec import Envelope
from stigmergy.agents.effects import MODELS, OrderClaim
from stigmergy.agents.messages import SECOND_NS, Claimed, Event
from stigmergy.agents.ordered import LEDGER
from stigmergy.agents.raw import RawGuard
from stigmergy.agents.shared import Merged, SharedChanged, replica_incarnation, replica_seed
from stigmergy.audit.retention import Safeguards
from stigmergy.base.clock import Clock
from stigmergy.base.errors import Bug, JournalConflict, NotOwned, NotRunning, StigmergyError
from stigmergy.base.trust import Signer, Verifier
from stigmergy.claims.permissions import ClaimRequester, losses_at_start, without_ledger
from stigmergy.devices.staleness import Staleness
from stigmergy.diagnostics.logger import Log
from stigmergy.journal.port import Guard, Journal
from stigmergy.journal.recovery import Recovered, Recovery, check_receivers
from stigmergy.journal.signers import check_ends, check_own_key
from stigmergy.node.column_actuators import BatchedActuators
from stigmergy.node.column_intake import ColumnIntake, catch_up, durable_agent, follow, join_queued
from stigmergy.node.committer import Committer, GroupInFlight
from stigmergy.node.declaration import Declaration
from stigmergy.node.effector import Effector, Safety
from stigmergy.node.failures import FailureReport
from stigmergy.node.feed import LogFeed
from stigmergy.node.housekeeping import Housekeeper
from stigmergy.node.ingress import BUS_SOURCES, Ingress
from stigmergy.node.intake import AwaitedTicket, Intake, Repeats
from stigmergy.node.mailbox import Mailbox, Queued, fail_untaken
from stigmergy.node.measures import HostMeasures
from stigmergy.node.settings import Settings
from stigmergy.node.tells import AskModels, RemoteAgents, RemoteShards, Tells
from stigmergy.node.tracer import SpanSink, Tracer
from stigmergy.node.wakeups import Alarms, OnUnserved, Waker
from stigmergy.shard.commit import Commit
from stigmergy.shard.draft import Stepped
from stigmergy.shard.forwarding import FORWARD
from stigmergy.shard.inputs import ColumnDelivery, CommitDurable, Delivery, EnrollSigner, Input, SequencesSkipped
from stigmergy.shard.judging import Judge
from stigmergy.shard.outbox import Pending
from stigmergy.shard.shard import Shard, Shards
from stigmergy.shard.state import ShardState, addresses_of
from stigmergy.shard.tracing import durable_notes
from stigmergy.store.blobs import Blobs
from stigmergy.workflows.stuck_runs import StuckRuns

log = Log("host")
DRAIN_LOOK_S = 0.002
SAY_DURABLE_NS = SECOND_NS // 20
"""How often a stop looks whether everything is done."""


class Connections(Struct, frozen=True):
    """What a host calls beyond itself. Without a part of it, the host goes on alone."""

    publish: Callable[[int, Pending], None] | None = None
    """Publishes a durable effect; without a bus it is unheard."""
    shared: Callable[[int, list[tuple[str, SharedChanged | Merged | None]]], None] | None = None
    """The replicas: told of durable changes of shared fields, and of agents with such fields that are new."""
    claims: ClaimRequester | None = None
    """Asks the ledger for agents; without one nothing is granted."""
    enter: Callable[[int, Pending], None] | None = None
    """Enters what agents propose into ledgers of users' own; without one it is refused."""
    peers: RemoteShards | None = None
    """The owners of the shards that are not ours."""
    remote: RemoteAgents | None = None
    """The agents that other nodes run; without a bus what is told to them is given up."""
    forward: Callable[[int, Pending], None] | None = None
    """Sends a durable command on to the node that runs its agent."""
    models: AskModels | None = None
    """Asks the node's models; without them what is asked of them is given up."""
    forwards: Callable[[str], bool] | None = None
    """Whether commands for an agent that does not run here can be sent on."""
    is_named: Callable[[str], bool] | None = None
    """Whether the configuration of another node names an agent."""
    locate: Callable[[str], str] | None = None
    """Says which other node runs an agent; see `Assignment`."""
    unreachable: Callable[[str], str] | None = None
    """Says why it is not known now which node runs an agent, or that the node is away; see `Assignment`."""
    safeguards: Safeguards | None = None
    """What retention has to respect: holds, and an archive."""
    blobs: Blobs | None = None
    """Where large payloads are: for sensors, actuators and workers, as `fleet.blobs`."""
    judge: Judge | None = None
    """Asked before agents decide what somebody else wants; without one nobody is."""


class Connected(Protocol):
    """A service beside the host that it calls."""

    @property
    def connections(self) -> Connections:
        """What the host calls of it."""
        ...


def connections_of(*services: Connected | None) -> Connections:
    """What a host calls of all these services; where two have the same part, that of the later one."""
    found: dict[str, Any] = {}
    for service in services:
        if service is not None:
            parts = structs.asdict(service.connections)
            found |= {name: part for name, part in parts.items() if part is not None}
    return Connections(**found)


class Host:
    """Runs the shards of one owner, from what recovery has read of their journal. `start`, then send through `intake`,
    then `stop`.

    A `guard` is for shards that can move to another owner. It is checked before each turn, before anybody is told what
    became durable, before each order to an actuator and before safe actions. Without one nobody else can own the
    shards; with one, `claim` is the number under which they were claimed.
    """

    measures: HostMeasures | None = None
    """What it measures of itself; None if it is told not to."""
    spans: SpanSink | None = None
    """Who exports spans, if anybody does; see `trace_to`."""

    def __init__(
        self,
        recovered: Recovered,
        declaration: Declaration,
        journal: Journal,
        signer: Signer,
        verifier: Verifier,
        clock: Clock,
        settings: Settings | None = None,
        trusted: Sequence[bytes] = (),
        place: bytes = b"",
        agents: Sequence[str] = (),
        connect: Callable[[Host], Connections] = lambda _: Connections(),
        on_unserved: OnUnserved = lambda *_: None,
        guard: Guard | None = None,
        claim: int = 0,
    ) -> None:
        """`agents` are those that it is to run, as `agents` in the configuration names them; without any, all. Of
        `trusted` keys we believe the end of a log that they signed, as we believe our own.

        `connect` makes the services that need the host and are needed by it: bus, replicas, claims, peers. It is called
        once, when all that takes inputs is made: a service may keep the host, and call it later.

        Raises, with nothing changed and nothing connected, if the log is not ours to go on with.
        """
        self.recovered, self.declaration, self._guard = recovered, declaration, guard
        where = (self._locate, declaration.name, self._is_elsewhere, self._unreachable)
        self.assignment, self.key = Assignment(agents, declaration.plans, *where), (signer.algorithm, signer.public_key)
        self.settings = settings = settings or declaration.settings
        self.raw = RawGuard(declaration.plans, settings.raw_may_leave)
        self.journal, self.clock, self.verifier = journal, clock, verifier
        self.replica_incarnation = replica_incarnation(journal.identity.incarnation, place)
        self.replica_seed = replica_seed(declaration.name, signer.public_key, self.replica_incarnation)
        self.failure: Exception | None = None
        self._failed = asyncio.Event()
        self.shards = Shards(journal.identity.shards, journal.identity.signers_shard)
        for state in recovered.states:
            self.shards.take(self._shard_of(state, claim))
        covers_all = not self._is_signed_by_us(trusted)
        self.found_time_ns = max(shard.state.time_ns for shard in self.shards)
        """The time of the newest commit that was there at the start; 0: none was."""
        self._durable = {state.shard: state.position for state in recovered.states}
        self.mailbox = Mailbox(settings.commands_count_max, settings.telemetry_items_max, settings.telemetry_bytes_max)
        gap_wait_ns, gap_max = int(settings.gap_wait_s * SECOND_NS), settings.gap_deliveries_max
        self.ingress = Ingress[Envelope](self._consumed, gap_wait_ns=gap_wait_ns, gap_deliveries_max=gap_max)
        self.waker = Waker(self._turn, on_unserved)
        self._wake = self.wake = self.waker.wake
        now, mailbox = clock.monotonic_ns, self.mailbox
        self.intake = Intake(declaration, self.assignment, self.shards, mailbox, self.ingress, now, self._wake)
        self.columns = ColumnIntake(
            declaration, self.shards, mailbox, self.intake, now, gap_wait_ns=gap_wait_ns, gap_deliveries_max=gap_max
        )
        self._repeats = Repeats(self.durable_position, self.intake.answer)
        actuators = declaration.actuators if guard is None else declaration.actuators.guarded(guard)
        self.batched_actuators = BatchedActuators(
            actuators, lambda number: self.shards[number].state, settings, self._inform
        )
        self._alarms, self._staleness = Alarms(), Staleness(declaration.plans)
        self._check_every_ns = int(settings.retention.check_every_s * SECOND_NS)
        self._connections = to = connect(self)
        self._claims, self._shared = to.claims, to.shared
        self.intake.forward_to(to.forwards, self.shards.has_command, settings.commands.keep_s)
        states, rest = [shard.state for shard in self.shards], (recovered.bases, to.safeguards or Safeguards())
        self.stuck_runs = StuckRuns(states, declaration.plans)
        self.housekeeper = tidy = Housekeeper(
            states, lambda number: self.shards[number].open_images, journal, settings, clock, self._inform, *rest
        )
        calls = (self._gather, self._written, self._give_up)
        self.committer = Committer(self.shards, journal, signer, clock, tidy, settings, *calls, covers_all)
        self.tells = Tells(self.shards, mailbox, self.intake.put_inside, self.assignment, now, to.peers, to.remote)
        self.tells.heard = None if to.models is None else to.models.heard
        plans, incarnation, self.blobs = declaration.plans, journal.identity.incarnation, to.blobs
        self.effector = Effector(
            actuators, plans, settings, incarnation, self._inform, self._held_claim, to.publish, to.blobs, to.enter
        )
        self.safety = Safety(self.shards, self.effector, clock, self.intake.put_inside)
        self.feed = LogFeed(journal, self.shards, self.durable_position, self._is_busy)
        self._measure()

    def _measure(self) -> None:
        """Has all parts report what fails, and trace and measure what they do, as the settings say; answers name the
        log that they are of."""
        self.intake.name_position = self.feed.after
        failures = self.effector.failures = FailureReport(self.clock.monotonic_ns)
        self.intake.tracer = Tracer(self.settings.traces, self.declaration.plans, self.clock.wall_ns)
        self._unsaid = deque[Queued]()  # notes that commits of traces are durable, for the next turn: they take none
        self.effector.trace_of, self.effector.traced_ns = self._trace_of, self._traced_ns
        for shard in self.shards:
            shard.trace_failures(self.intake.tracer.traces_failures)
            shard.report_failures(failures.input_failed)
            shard.judge_by(self._connections.judge)
        if self.settings.metrics.record:
            self.measures = self.housekeeper.measures = self.committer.measures = HostMeasures(self._name_of)
            self.effector.measures = self.measures
            self.mailbox.measure(self.clock.monotonic_ns)

    def _name_of(self, shard: int, kind: str, number: int) -> str:
        return self.shards[shard].state.tables[kind].name(number)

    def _shard_of(self, state: ShardState, claim: int) -> Shard:
        """A recovered shard, as this owner goes on with it."""
        state.replica_seed = self.replica_seed
        state.assign(self.assignment)
        catch_up(state)
        for table in state.tables.values():
            table.batch(list(self.declaration.actuators.batched))
        shard = Shard(state, self.declaration.homes)
        shard.begin_epoch(claim)
        return shard

    def _is_signed_by_us(self, trusted: Sequence[bytes]) -> bool:
        """Whether all logs end with a signature of ours. Raises if one ends with that of somebody we do not trust, or
        if we may not sign."""
        state = self.shards.signers.state
        if state.position == 0:
            return True
        check_own_key(state.signers, self.key)
        return check_ends(self.recovered.last_signers, self.key, tuple(trusted))

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Releases what is owed since before, and begins to take turns.

        Raises, with nothing released, if a receiver has more than the log knows of.
        """
        try:
            check_receivers(self.declaration.receivers, self.recovered.states)
        except Exception as error:
            self.failure = error
            self.intake.close(str(error))
            raise
        if self.shards.signers.state.position == 0:
            self.intake.put_inside(self.shards.signers.state.shard, EnrollSigner(*self.key))
        self.waker.watches = {
            "alarms": self._alarms,
            "staleness": self._staleness,
            "ingress": self.ingress,
            "columns": self.columns,
            "committer": self.committer,
            **({} if self._claims is None else {"claims": self._claims}),
        }
        monotonic_ns, now_ns = self.clock.monotonic_ns(), self._now_ns()
        if at_rest := [address for shard in self.shards for address in shard.state.at_rest]:
            what = f"agents of this journal that the configuration does not name are at rest, {len(at_rest)} in all"
            log.say("agents-at-rest", f"{what}: {shown(at_rest)}{self.tells.said_at_rest()}")
        for shard in self.shards:
            for timer in shard.state.timers.all():
                if timer.agent not in shard.state.at_rest:
                    self._alarms.set(shard.state.shard, timer, now_ns, monotonic_ns)
            for address in addresses_of(shard.state, lambda plan: plan.stale_rules):
                self._staleness.refresh(address, None, monotonic_ns)
        for shard in self.shards:
            for loss in losses_at_start(shard.state):
                self.mailbox.put_inside(Queued(shard.state.shard, loss, first=True))
        self._ring(now_ns, monotonic_ns)
        for shard in self.shards:
            self._release(shard.state.shard, list(shard.state.outbox.owed()))
            self.batched_actuators.release(shard.state.shard, list(shard.state.blocks.owed()))
            for address in shard.state.stopped:
                # Whether its safe action went out before the node stopped is not known.
                self.safety.make_safe(shard, address, "stopped by its supervision before this start", journal=True)
        self._wake()

    async def stop(self) -> None:
        """Takes nothing more, finishes what was taken, waits for effects under way, writes it all, and closes."""
        self.intake.close("the node is stopping")
        self.committer.draining = True
        deadline_s = self._loop_time() + self.settings.drain_s
        while self.failure is None and self._loop_time() < deadline_s:
            busy = self.mailbox.waiting or self._unsaid or self.effector.busy or self.batched_actuators.busy
            if not busy and self.committer.idle:
                break
            self._wake()
            await asyncio.sleep(DRAIN_LOOK_S)
        await self.effector.wait_safe(self.settings.drain_s)
        await self.effector.close()
        await self.batched_actuators.close()
        # What the last effects have left to write; bounded as well, because a disk may stall.
        while self.failure is None and self._loop_time() < deadline_s + self.settings.drain_s:
            if not self.mailbox.pressing and not self._unsaid and self.committer.idle:
                break
            self._wake()
            await asyncio.sleep(DRAIN_LOOK_S)
        self._halt(NotRunning("the node has stopped; what it had not acknowledged is not kept"))
        # A disk that does not answer keeps nobody from ending; what is under way there is in doubt anyhow.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_s):
                await self.journal.close()

    async def kill(self) -> None:
        """Ends at once, as a crash would: nothing more is written, nobody is told. For simulations."""
        self._halt(NotRunning("the node was killed"))
        await self.effector.close()
        await self.batched_actuators.close()

    def durable_position(self, shard: int) -> int:
        """The position up to which a shard is on disk."""
        return self._durable[shard]

    def _is_busy(self) -> bool:
        """Whether there is something to do for agents, or to write."""
        return bool(self.mailbox.waiting) or not self.committer.idle

    def durable_image(self, address: str) -> Any:
        """An agent as it is on disk; None for one that is not there yet."""
        number = self.intake.shard_of(address)
        shard = self.shards[number]
        if address.partition("/")[0] in shard.state.tables:
            return durable_agent(shard.state, address)
        for ready in self.committer.in_doubt:
            if ready.sealed.shard == number and address in ready.touched:
                return ready.touched[address]
        if address in shard.open_images:
            return shard.open_images[address]
        return shard.state.agents.get(address)

    async def wait_failure(self) -> Exception:
        """Waits until the host has stopped by itself, and says why."""
        while self.failure is None:
            self._failed.clear()
            await self._failed.wait()
        return self.failure

    def _halt(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
        self._failed.set()
        self.feed.end(str(error))
        self.intake.close(str(error))
        self.waker.end()
        self.committer.abandon(error)
        self.intake.fail_all(error)
        self.columns.fail_all(error)

    def fail(self, error: Exception) -> None:
        """The journal or we have failed: agents are made safe without the disk, unless another may have the shards."""
        if not self.may_act() or (self._guard is not None and isinstance(error, JournalConflict)):
            self.retire(error)
        if self.failure is not None:
            return
        self.effector.halt()
        self.batched_actuators.halt()
        try:
            self.safety.make_all_safe()
        finally:
            self._halt(error)

    def retire(self, error: Exception) -> None:
        """Ends at once, because the shards are another owner's: nothing more is written, released or made safe. Only
        those who wait for answers are told."""
        if self.failure is None:
            self.effector.halt()
            self.batched_actuators.halt()
            self._halt(error)

    def may_act(self) -> bool:
        """Whether nobody else can own the shards at this moment."""
        return self._guard is None or self._guard()

    def _ended(self) -> Exception | None:
        """Why the host has ended; None if it goes on. It ends here if it may not act any more."""
        if self.failure is None and not self.may_act():
            lost = "this worker has lost its lease, and its shards go to others; what was under way may be kept"
            self.retire(NotOwned(f"{lost}: ask again, with the same command id"))
        return self.failure

    def _give_up(self, error: BaseException) -> None:
        """Fails with whatever was raised. What ends programs is passed on once agents are safe."""
        ends = f"a handler raised {type(error).__name__}, which ends programs; raise an Exception instead"
        self.fail(error if isinstance(error, Exception) else Bug(ends))
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise error

    # ------------------------------------------------------------------ turns

    def _turn(self) -> None:
        if self._ended() is not None:
            return
        try:
            now_ns, monotonic_ns = self._now_ns(), self.clock.monotonic_ns()
            self._ring(now_ns, monotonic_ns)
            linger_ns = self.committer.lingers_until_ns(monotonic_ns)
            told_ns = None if self._claims is None else self._claims.next_ns  # no verdict waits for company
            if linger_ns is not None and self.mailbox.trickles and (told_ns is None or told_ns > monotonic_ns):
                self.waker.plan(monotonic_ns, linger_ns, could_step=False)
                return
            full = not self.committer.room
            stepped = self._step(now_ns, monotonic_ns)
            self.committer.write(monotonic_ns)
            # Without room a write is under way, and its end wakes us.
            if self.committer.room and (full or (stepped and self.mailbox.waiting)):
                (self.waker.wake_behind if self.mailbox.is_slow else self._wake)()
            self.waker.plan(monotonic_ns, monotonic_ns + self._check_every_ns, could_step=not full)
        except BaseException as error:
            self._give_up(error)
        finally:
            self.mailbox.turned()

    def _ring(self, now_ns: int, monotonic_ns: int) -> None:
        """What time brings: stale agents are made safe, timers and gaps that ran out become inputs."""
        for stale in self._staleness.due(monotonic_ns):
            shard = self.shards[self.intake.shard_of(stale.agent)]
            self.safety.send(shard, stale.agent, stale.rule.then, stale.because, journal=True)
        for number, due in self._alarms.due(now_ns, monotonic_ns):
            self.intake.put_inside(number, due)
        self.intake.post(self.ingress.overdue(monotonic_ns))
        self.columns.overdue(monotonic_ns)
        while self._unsaid:
            self.mailbox.put_inside(self._unsaid.popleft())

    def _step(self, now_ns: int, monotonic_ns: int) -> bool:
        """Steps what waits, as far as there is room; whether there was anything."""
        room = self.committer.room
        if room and self._claims is not None:
            for number, told in self._claims.due(monotonic_ns):
                self.mailbox.put_inside(Queued(number, told, first=True))
        if not room or not self.mailbox.waiting:
            return False
        owed = sum(shard.state.outbox.count + shard.state.blocks.count for shard in self.shards)
        queued_inputs = join_queued(list(self.mailbox.take(room, telemetry=owed < self.settings.owed_count_max)))
        left: list[Queued] = []
        effects = 0
        for shard in self.shards:
            number = shard.state.shard
            mine = [queued for queued in queued_inputs if queued.shard == number or len(self.shards) == 1]
            if mine:
                effects -= shard.effects_count
                try:
                    stepped = shard.step([queued.input for queued in mine], now_ns)
                except BaseException as error:
                    fail_untaken(queued_inputs, error)
                    raise
                effects += shard.effects_count
                left += self._after_step(shard, stepped, mine, monotonic_ns)
        self.mailbox.put_back(left)
        items = sum(queued.items for queued in queued_inputs)
        self.committer.took(items, full=bool(left))
        took_ns = self.clock.monotonic_ns() - monotonic_ns
        self.mailbox.stepped(took_ns)
        if self.measures is not None:
            since_ns = min(self.mailbox.taken_since_ns, monotonic_ns)
            self.measures.mailbox_wait.observe(monotonic_ns - since_ns, items)
            self.measures.step.observe(took_ns)
            if effects:
                self.committer.owes(since_ns, effects)
        return bool(queued_inputs)

    def _gather(self) -> None:
        """Steps what has lingered while a write was under way."""
        self._step(self._now_ns(), self.clock.monotonic_ns())

    def _after_step(
        self, shard: Shard, stepped: Stepped, queued_inputs: Sequence[Queued], monotonic_ns: int
    ) -> list[Queued]:
        """Assigns the waiters; returns the queued inputs that found no room in this commit."""
        for address, event in stepped.fresh:
            self._staleness.refresh(address, event, monotonic_ns)
        number = shard.state.shard
        for asked, verdict, position in stepped.repeats:
            self._repeats.add(number, position, asked, verdict)
        taken = len(queued_inputs) - len(stepped.left)
        rest = zip(stepped.left, queued_inputs[taken:], strict=True)
        left = [structs.replace(queued, input=one) for one, queued in rest]
        self._refuse(number, stepped, queued_inputs)
        tickets = [ticket for queued in queued_inputs[:taken] for ticket in queued.tickets]
        if stepped.wait_ns is not None:
            self.committer.may_wait(monotonic_ns + stepped.wait_ns)
        for ticket in tickets:
            if stepped.wait_ns != 0 and isinstance(ticket, AwaitedTicket) and ticket.eager:
                ticket.resolve()
            else:
                self.committer.notify(ticket, written=stepped.wait_ns is not None)
        self._repeats.give()
        return left

    def _refuse(self, number: int, stepped: Stepped, queued_inputs: Sequence[Queued]) -> None:
        """What a shard did not consume is not acknowledged, and its source is measured against the marks again."""
        for untaken, error in stepped.untaken:
            for queued in queued_inputs:
                if queued.input is untaken:
                    tickets, queued.tickets = queued.tickets, ()
                    for ticket in tickets:
                        ticket.fail(error)
            # A note of skipped numbers came through the ingress of its source: that of this shard, or that of
            # envelopes.
            if isinstance(untaken, Delivery | ColumnDelivery | SequencesSkipped):
                source = (untaken.source, untaken.incarnation)
                if isinstance(untaken, Delivery) or not self.columns.forget(number, *source):
                    self.ingress.forget(source)

    def _written(self, flight: GroupInFlight) -> None:
        if (ended := self._ended()) is not None:
            # It is durable, and the next owner knows it: a repetition gets the same answer.
            for ticket in flight.tickets:
                ticket.fail(ended)
            return
        try:
            self._after_write(flight)
        except BaseException as error:
            ends = f"a hand raised {type(error).__name__}, which ends programs; raise an Exception instead"
            failure = error if isinstance(error, Exception) else Bug(ends)
            self.fail(failure)
            for ticket in flight.tickets:
                ticket.fail(failure)
            if not isinstance(error, Exception):
                raise
        self._wake()

    def _after_write(self, flight: GroupInFlight) -> None:
        """The group is durable: now, and not before, everybody is told and effects leave."""
        monotonic_ns = self.clock.monotonic_ns()
        for ready in flight.readies:
            number = ready.sealed.shard
            self._durable[number] = ready.sealed.position
            for asked, verdict in ready.verdicts:
                self.intake.answer(asked, verdict)
            for timer, set_at_ns in ready.timers:
                self._alarms.set(number, timer, set_at_ns, monotonic_ns)
            for address in ready.stopped:
                self.safety.make_safe(self.shards[number], address, "stopped by its supervision", journal=True)
            self._release(number, ready.owed)
            if ready.shared and self._shared is not None:
                self._shared(number, ready.shared)
            follow(self.shards[number].state, ready)
            self.batched_actuators.release(number, ready.blocks)
            self.stuck_runs.note(number, ready.touched)
            self.housekeeper.durable(ready)
            self.feed.durable(ready.commit, len(ready.sealed.body))
            if ready.commit.traces:
                self._note_traces(ready.commit)
        for ticket in flight.tickets:
            ticket.resolve()
        self._repeats.give()
        if self.measures is not None and flight.readies:
            self.measures.release.observe(self.clock.monotonic_ns() - monotonic_ns)
            for since_ns, effects in flight.effects:
                self.measures.event_to_action.observe(monotonic_ns - since_ns, effects)
            self.measures.group(flight.readies, monotonic_ns)

    def tell_interested(self, event: Event) -> None:
        """Tells agents who joined or left. Without room they are not told: presence is no fact to stop for."""
        for address in self.declaration.interested:
            if self.declaration.plans[address.partition("/")[0]].handles(type(event)):
                with contextlib.suppress(StigmergyError):
                    told = self.intake.observe(address, event, source=f"{BUS_SOURCES}presence")
                    told.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _release(self, number: int, owed: Sequence[Pending]) -> None:
        """Passes durable effects to their sinks; tells become deliveries of the target shard.

        What an agent at rest has owed since before stays owed: it may be carried out elsewhere by now.
        """
        at_rest = self.shards[number].state.at_rest
        for pending in self.tells.release(number, owed):
            if pending.sink == FORWARD:
                if self._connections.forward is not None:  # else it waits in the outbox for a start with a bus
                    self._connections.forward(number, pending)
                continue
            if at_rest and pending.agent in at_rest:
                continue
            if pending.sink == MODELS and self._connections.models is not None:
                self._connections.models.ask(number, pending)
            elif pending.sink != LEDGER:
                self.effector.release(number, pending)
            elif self._claims is not None:
                self._claims.propose(number, pending)
            else:
                self._inform(number, without_ledger(pending))

    def trace_to(self, spans: SpanSink | None, instance: str) -> None:
        """Says who exports spans, if anybody does, and as whose: the log keeps that name, for who rebuilds them."""
        self.spans = spans
        for shard in self.shards:
            shard.state.instance = instance

    def _note_traces(self, commit: Commit) -> None:
        """A commit with notes of traces is durable: the next one says when, and spans may be sent."""
        notes = durable_notes(commit.previous, commit.position, commit.traces, self.clock.wall_ns())
        if notes:
            self._unsaid.append(Queued(commit.shard, CommitDurable(notes)))
            now_ns = self.clock.monotonic_ns()
            self.waker.arm(now_ns, now_ns + SAY_DURABLE_NS)
        if self.spans is not None:
            self.spans.durable(commit)

    def _trace_of(self, number: int, pending: Pending) -> str:
        traced = self.shards[number].state.traces.of(pending)
        return "" if traced is None else traced.trace_id.hex()

    def _traced_ns(self, number: int, pending: Pending) -> int:
        traces = self.shards[number].state.traces
        return self.clock.wall_ns() if traces and traces.of(pending) is not None else 0

    def _held_claim(self, agent: str, claimed: Claimed) -> OrderClaim | None:
        """The claim that an order is bound to, if the agent holds it at this moment of our clock."""
        end_ns, now_ns = self._lease_end_ns(agent, claimed), self.clock.monotonic_ns()
        if now_ns >= end_ns:
            return None
        return OrderClaim(
            field=claimed.field,
            resource=claimed.resource,
            fencing_token=claimed.token,
            until_ns=end_ns,
            left_s=(end_ns - now_ns) / SECOND_NS,
            asked=lambda: self.clock.monotonic_ns() < self._lease_end_ns(agent, claimed),
        )

    def _lease_end_ns(self, agent: str, claimed: Claimed) -> int:
        return 0 if self._claims is None else self._claims.lease_end_ns(agent, claimed) or 0

    def _is_elsewhere(self, address: str) -> bool:
        """Whether another node names an agent that is not here: what is told to it must not create a second one."""
        is_named, number = self._connections.is_named, self.intake.shard_of(address)
        if is_named is None or not self.assignment.is_everything:
            return False
        if number in self.shards and self.shards[number].state.has_agent(address):
            return False
        return is_named(address)

    def _locate(self, address: str) -> str:
        return "" if (locate := self._connections.locate) is None else locate(address)

    def _unreachable(self, address: str) -> str:
        return "" if (unreachable := self._connections.unreachable) is None else unreachable(address)

    def _inform(self, number: int, told: Input) -> None:
        """Inputs from actuators, tables and the housekeeper for a shard."""
        if self.failure is None:
            self.intake.put_inside(number, told)

    def _now_ns(self) -> int:
        """Never behind what has been journaled."""
        return max([self.clock.wall_ns(), *(shard.state.time_ns for shard in self.shards)])

    def _consumed(self, source: str, incarnation: int) -> int:
        return min(shard.state.marks.consumed(source, incarnation) for shard in self.shards)

    def _loop_time(self) -> float:
        return asyncio.get_running_loop().time()


def open_host(
    declaration: Declaration,
    journal: Journal,
    signer: Signer,
    verifier: Verifier,
    clock: Clock,
    settings: Settings | None = None,
    trusted: Sequence[bytes] = (),
    place: bytes = b"",
    agents: Sequence[str] = (),
    connect: Callable[[Host], Connections] = lambda _: Connections(),
    on_unserved: OnUnserved = lambda *_: None,
    claim: int = 0,
) -> Host:
    """Recovers all shards of a journal, and makes the host that goes on with them. Raises as both do."""
    limits = (settings or declaration.settings).limits
    recovered = Recovery(journal, declaration.plans, verifier, limits).recover()
    how = (settings, trusted, place, agents, connect, on_unserved)
    return Host(recovered, declaration, journal, signer, verifier, clock, *how, claim=claim)
