"""A trial: a fleet of drones at work on one machine, everything going wrong that the seed says, a heal, and a verdict.

    result = run_trial(8123)
    assert not result.violations, result          # prints the seed, the findings and the end of the timeline

The workload, the settings, the faults and their moments all follow from the seed. After the faults everything works
again, and everything must come to its end: what was sent is acknowledged, what was asked is answered, what is owed is
settled. Then the checkers look at what is left.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
from msgspec import Struct

from rigs import drones
from rigs.drones import STALE_S, declare_drones
from rigs.gauges import Gauges, Horns
from rigs.recorded_trace import RecordedTrace
from rigs.senders import Caller, Sender
from rigs.trial_checkers import CHECKERS, HEALED, Checker, Evidence, Seen
from rigs.trial_faults import Faults
from stigmergy.agents.codec import canonical_bytes
from stigmergy.agents.messages import Command, Event, spec_of
from stigmergy.agents.plans import AgentPlan
from stigmergy.base.errors import StigmergyError
from stigmergy.control.live import Live
from stigmergy.node.mailbox import BLOCK, DROP_OLDEST, StreamPolicy, sample
from stigmergy.node.settings import Retention, Settings, Snapshots
from stigmergy.shard.commit_reader import walk
from stigmergy.shard.state import ShardReading
from stigmergy.sim.devices import Receiver
from stigmergy.sim.disk import AfterFailedSync
from stigmergy.sim.errors import SimulationError
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run

HEAL_S = 90.0
"""Virtual seconds in which everything must come to its end after the heal."""
TICK_S = 0.3
"""How late a safe action may be, seen from outside: the look-out's own interval and a turn of the host."""
FINDINGS_MAX = 20
BEATEN = spec_of(drones.Beaten).tag


class TrialResult(Struct, frozen=True):
    """What a trial found. It is well if there are no violations."""

    seed: int
    trace_hash: str
    counts: dict[str, int]
    violations: list[str]
    timeline: str

    def __str__(self) -> str:
        found = "\n  ".join(self.violations) or "none"
        return f"seed {self.seed}, trace {self.trace_hash}\nviolations:\n  {found}\n{self.counts}\n{self.timeline}"


def run_trial(
    seed: int,
    *,
    duration_s: float = 12.0,
    faults: bool = True,
    power_only: bool = False,
    sync_lies: bool = False,
    shards: int | None = None,
    in_segments: bool = False,
    gauges: AgentPlan | None = None,
) -> TrialResult:
    """Runs one trial. `power_only`: nothing but power losses; `sync_lies`: the disk only says that it has synced.

    `in_segments`: the journal is one in segments, and not on SQLite or, for some seeds, in memory. `gauges`: a plan of
    `sim.gauges.Gauge` with an engine; then there are compiled agents as well, fed with column batches.
    """
    chance = random.Random(f"stigmergy.sim.trial/{seed}")
    trace = RecordedTrace()
    world = Run(seed, shuffle=chance.random() < 0.5, deadline_s=duration_s + HEAL_S + 600, trace=trace)
    trial = Trial(
        world,
        chance,
        duration_s,
        shards=shards,
        sync_lies=sync_lies,
        power_only=power_only,
        in_segments=in_segments,
        gauges=gauges,
    )
    trial.faults.on = faults
    violations: list[str] = []
    try:
        world.run(trial.main())
    except SimulationError as error:
        violations.append(f"{type(error).__name__}: {error}")
    except StigmergyError as error:
        violations.append(f"the trial ended with {error!r}")
    violations += trial.violations()
    counts = trial.counts()
    return TrialResult(seed, trace.hexdigest(), counts, violations[:FINDINGS_MAX], trace.timeline())


class Trial:
    """One run: the machine, its peers, and what they do."""

    def __init__(
        self,
        world: Run,
        chance: random.Random,
        duration_s: float,
        *,
        shards: int | None = None,
        sync_lies: bool = False,
        power_only: bool = False,
        in_segments: bool = False,
        gauges: AgentPlan | None = None,
    ) -> None:
        self.world = world
        self._gauge_plan = gauges
        self._chance = chance
        self._duration_s = duration_s
        self._shards = chance.choice((1, 1, 4)) if shards is None else shards
        in_memory = not power_only and not sync_lies and chance.random() < 0.1
        self.receiver: Receiver
        self.node = SimNode(
            world,
            self._declare,
            in_memory=in_memory and not in_segments,
            in_segments=in_segments,
            sync_lies=sync_lies,
            after_failed_sync=chance.choice((AfterFailedSync.STALE_CACHE, AfterFailedSync.DROPPED_CACHE)),
        )
        self.faults = Faults(self.node, self.receiver, world.chance("faults"), power_only=power_only)
        self.gauges = None if gauges is None else Gauges(self.node, self.faults.network, self._horns)
        self.senders = [
            Sender(self.node, source, world.chance(source), self.faults.network)
            for source in ("block", "drop", "sample", "beat")
        ]
        self.callers = [Caller(self.node, f"caller{number}", world.chance(f"caller{number}")) for number in range(2)]
        self.evidence = Evidence(self.node, self.receiver, self.senders, self.callers, [], [])
        self._agents = [f"Drone/{number}" for number in range(chance.randint(2, 6))]
        self._background: list[asyncio.Task[None]] = []
        self._findings: list[str] = []
        self._known_since_ns: dict[str, int] = {}
        self._beats: dict[str, int] = {}
        self._read_upto: dict[int, int] = {}
        self._local = 0
        self._finished = False

    def _declare(self, node: SimNode) -> Any:
        self.receiver = Receiver(node, self.world.chance("receiver"))
        streams: dict[str, StreamPolicy] = {"block": BLOCK, "drop": DROP_OLDEST, "sample": sample(3)}
        settings = draw_settings(self._chance)
        fleet = declare_drones(self.receiver, shards=self._shards, settings=settings, streams=streams)
        self._horns = Horns(node, self.world.chance("horns"), self.receiver.temper)
        if self._gauge_plan is not None:
            self._horns.attach(fleet, self._gauge_plan)
        return fleet

    # ------------------------------------------------------------------ the run

    async def main(self) -> None:
        """Work and faults, then the heal, then the stop, then one more start to look at it all."""
        await self._start()
        for coroutine in (
            *(sender.run() for sender in self.senders),
            *(() if self.gauges is None else (self.gauges.radio.run(),)),
            self._guard(),
            self._look_out(),
            self.faults.run(self._duration_s, self._crash),
        ):
            self._background.append(asyncio.ensure_future(coroutine))
        await self._work()
        await self.faults.heal()
        await self._come_to_an_end()
        for task in self._background:
            task.cancel()
        if self.node.live is not None:
            await self.node.stop()
            await self._start()
            await self.node.stop()
        self._finished = True

    async def _start(self) -> None:
        """Starts the node, as often as faults of the disk keep it from starting."""
        for _ in range(30):
            try:
                await self.node.start()
                return
            except StigmergyError as error:
                if not self.faults.spoilt_the_start():
                    self._findings.append(f"the node does not start: {error!r}")
                    raise
            await asyncio.sleep(0.2)
        self._findings.append("the node did not start in 30 attempts")

    async def _crash(self, how: str) -> None:
        """Takes the machine down at once, for the faults."""
        if self.node.live is not None:
            await (self.node.lose_power() if how == "power" else self.node.kill())

    async def _guard(self) -> None:
        """What an init system does: when the node is down or has stopped by itself, it is started again."""
        while True:
            await asyncio.sleep(0.05)
            live = self.node.live
            if live is not None and live.failure is None:
                continue
            if live is not None:
                self.world.record("guard", "stopped by itself", type(live.failure).__name__)
                await self.node.kill()
            elif self.node.alive or self.node.disk.down:
                await self.node.kill()
            await asyncio.sleep(self._chance.choice((0.0, 0.1, 1.0)))
            self.faults.before_start()
            await self._start()

    async def _come_to_an_end(self) -> None:
        loop = self.world.loop
        deadline = loop.time() + HEAL_S
        while loop.time() < deadline:
            await asyncio.sleep(0.5)
            said = all(sender.done for sender in self.senders) and (self.gauges is None or self.gauges.radio.done)
            if said and not any(caller.open for caller in self.callers):
                live = self.node.live
                busy = live is None or live.host.mailbox.waiting or live.host.batched_actuators.busy
                if live is not None and not busy and not live.standing().owed and not _owes_blocks(live):
                    return
        waiting = [f"{sender.source} {len(sender.acknowledged)}/{len(sender.items)}" for sender in self.senders]
        live = self.node.live
        standing = None if live is None else (live.failure, live.standing().owed, live.host.mailbox.items)
        asked = sum(caller.open for caller in self.callers)
        self._findings.append(f"no end {HEAL_S:g} s after the heal: {waiting}, {asked} asked, {standing}")

    # ------------------------------------------------------------------ the work

    async def _work(self) -> None:
        end = self.world.loop.time() + self._duration_s
        weights = {
            self._say: 12,
            self._beat: 4,
            self._ask: 3,
            self._observe: 2,
            self._query: 4,
            self._operate: 1,
            self._take_over: 1,
        }
        while self.world.loop.time() < end:
            (action,) = self._chance.choices(list(weights), list(weights.values()))
            for _ in range(self._chance.choice((1, 1, 2, 8))):
                action()
            if self.gauges is not None:
                self.gauges.radio.say()
                self.gauges.radio.look()
            await asyncio.sleep(self._chance.expovariate(8.0))

    def _say(self) -> None:
        sender = self.senders[self._chance.randrange(3)]
        kinds: tuple[type[Any], ...] = (drones.Measured, drones.Spotted, drones.Glimpsed, drones.Garbled)
        if sender.source == "block":
            kinds = (*kinds[:3], drones.Positioned, drones.Positioned)
        (kind,) = self._chance.choices(kinds, [4, 6, 2, 1, 2][: len(kinds)])
        sender.say(self._chance.choice(self._agents), kind(source=sender.source, number=len(sender.items) + 1))

    def _beat(self) -> None:
        sender = self.senders[3]
        beaten = drones.Beaten(source=sender.source, number=len(sender.items) + 1)
        sender.say(self._chance.choice(self._agents), beaten)

    def _ask(self) -> None:
        self._local += 1
        kinds: tuple[type[Command], ...] = (drones.StartMission, drones.EndMission, drones.Explode)
        (kind,) = self._chance.choices(kinds, [6, 4, 1])
        command: Any = kind(mission=self._local)
        caller = self._chance.choice(self.callers)
        self._background.append(asyncio.ensure_future(caller.ask(self._chance.choice(self._agents), command)))

    def _observe(self) -> None:
        self._local += 1
        kind = self._chance.choice((drones.Spotted, drones.Spotted, drones.Garbled, drones.Measured))
        event = kind(source=f"local{self._local}", number=1)
        self._background.append(asyncio.ensure_future(self._tell(self._chance.choice(self._agents), event)))

    async def _tell(self, address: str, event: Event) -> None:
        live = self.node.live
        try:
            if live is not None:
                await live.observe(address, event)
                if not isinstance(event, drones.Measured):  # which may wait for the disk
                    self.evidence.observed.append((address, event))
        except StigmergyError as error:
            self.node.record("not observed", [address, type(error).__name__])

    def _query(self) -> None:
        live = self.node.live
        if live is None or live.failure is not None:
            return
        address = self._chance.choice(self._agents)
        image = live.host.durable_image(address)
        position = self.node.logbook.positions[live.host.intake.shard_of(address)]
        self.evidence.seen.append(Seen(address, None if image is None else canonical_bytes(image), position))

    def _take_over(self) -> None:
        sender = self._chance.choice(self.senders)
        sender.take_over()
        if self._chance.random() < 0.3:
            sender.give_up(self._chance.randint(1, 4))

    def _operate(self) -> None:
        """What an operator does: retries and drops dead letters, resumes who was stopped."""
        live = self.node.live
        if live is None or live.failure is not None:
            return
        for letter in live.dead_letters()[:2]:
            (live.retry if self._chance.random() < 0.3 else live.drop)(letter)
        for address in live.standing().stopped:
            live.resume(address, by="operator")

    # ------------------------------------------------------------------ the look-out

    async def _look_out(self) -> None:
        """Whoever has heard nothing for too long must have been made safe. Looked at from outside, all the time."""
        while True:
            await asyncio.sleep(0.1)
            live = self.node.live
            if live is None or live.failure is not None:
                continue
            now_ns = self.world.loop.time_ns()
            self._read_beats()
            for address in self._agents:
                self._look_at(address, now_ns)

    def _read_beats(self) -> None:
        """Which beat of each agent is the last in the log: it was not fresh before that one was first delivered."""
        for shard, commits in enumerate(self.node.logbook.commits):
            reading = ShardReading(self.node.logbook.states[shard])
            for commit in commits[self._read_upto.get(shard, 0) :]:
                for kept in walk(commit, reading):
                    if kept.tag == BEATEN:
                        self._beats[kept.address] = msgspec.msgpack.decode(kept.body, type=drones.Beaten).number
            self._read_upto[shard] = len(commits)

    def _look_at(self, address: str, now_ns: int) -> None:
        states = self.node.logbook.states
        if not any(address in state.agents for state in states):
            return
        if any(address in state.stopped for state in states):
            # It was made safe when it was stopped, and what is sent to it does not make it fresh.
            self.receiver.safe_tried_ns[address] = now_ns
            return
        known_ns = self._known_since_ns.setdefault(address, now_ns)
        beat = self.senders[3]
        if beat.on_its_way.get(address):
            return
        since_ns = max(known_ns, self.node.up_since_ns)
        fresh_ns = max(since_ns, beat.heard_ns.get(address, 0), self.faults.paused_until_ns)
        late_ns = now_ns - fresh_ns - int((STALE_S + TICK_S) * 1e9)
        low_ns = max(self.node.up_since_ns, beat.first_called_ns.get(self._beats.get(address, 0), 0))
        if late_ns > 0 and self.receiver.safe_tried_ns.get(address, -1) < low_ns:
            self._findings.append(f"{address}: silent since {fresh_ns / 1e9:g} s, not made safe at {now_ns / 1e9:g} s")
            self.receiver.safe_tried_ns[address] = now_ns

    # ------------------------------------------------------------------ the verdict

    def violations(self) -> list[str]:
        """What is wrong, as sentences."""
        checkers: tuple[Checker, ...] = CHECKERS + (HEALED if self._finished and not self._findings else ())
        found = self._findings + self.node.logbook.findings
        for checker in checkers if not self.node.logbook.findings else ():
            found += [f"{checker.__name__}: {finding}" for finding in checker(self.evidence)]
        if self.gauges is not None:
            found += self.gauges.violations(healed=self._finished and not self._findings)
        return found

    def counts(self) -> dict[str, int]:
        """What happened, in figures."""
        return {
            "lives": self.node.lives,
            "power losses": self.node.disk.power_losses,
            "groups": self.node.logbook.groups,
            "events": sum(state.events_count for state in self.node.logbook.states),
            "acknowledged": sum(len(sender.acknowledged) for sender in self.senders),
            "answered": sum(len(caller.answers) for caller in self.callers),
            "carried out": len(self.receiver.carried),
            "repeated": self.receiver.repeats,
            "safe": len(self.receiver.safe),
            "queried": len(self.evidence.seen),
            "records": self.world.trace.count,
            **({} if self.gauges is None else self.gauges.counts()),
            **self.faults.counts,
        }


def _owes_blocks(live: Live) -> bool:
    return any(shard.state.blocks.count for shard in live.host.shards)


def draw_settings(chance: random.Random) -> Settings:
    """Settings at which a short run goes through everything: batches, snapshots, retention, full lanes."""
    return Settings(
        batch_events_max=chance.choice((1, 4, 30, 1_000)),
        telemetry_items_max=chance.choice((8, 40, 1_000)),
        gap_wait_s=chance.choice((0.5, 2.0)),
        gap_deliveries_max=chance.choice((2, 100)),
        effects_in_flight_max=chance.choice((1, 3, 256)),
        owed_count_max=chance.choice((6, 1_000)),
        effect_tries=3,
        effect_within_s=1.0,
        effect_pause_s=0.05,
        drain_s=5.0,
        snapshots=Snapshots(
            every_events=chance.choice((5, 25, 200)),
            every_s=chance.choice((1.0, 300.0)),
            tail_ratio=chance.choice((0.0, 1.0)),
            share_max=1.0,
            incremental_max=chance.choice((0, 2, 8)),
        ),
        retention=Retention(
            keep_s=chance.choice((None, None, 1.0)),
            keep_bytes=chance.choice((None, None, 20_000)),
            reserve_bytes=chance.choice((0, 0, 1 << 50)),
            check_every_s=0.5,
        ),
    )
