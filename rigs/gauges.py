"""Compiled agents in a trial: gauges beside the drones, a radio that sends them batches, horns that act in bulk.

The engine comes from whoever runs the trial: one in plain Python, or the real one. The radio counts for each shard,
overtakes and repeats itself, and has agents enrolled as it goes; the horns carry out each order once. At the end both
are compared with the log, record by record and order by order.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
from msgspec import Struct

from stigmergy.agents.agent import Agent, evolve, react
from stigmergy.agents.codec import tag_of
from stigmergy.agents.columns import read_actions, write_record
from stigmergy.agents.effects import Effects
from stigmergy.agents.messages import Action, Event, spec_of
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.supervision import SHARD_ADDRESS, InputFailed, InputsSkipped, Supervise
from stigmergy.base.errors import StigmergyError
from stigmergy.control.live import Live
from stigmergy.node.column_actuators import Orders
from stigmergy.node.column_roster import Place, Roster
from stigmergy.node.declaration import Declaration
from stigmergy.shard.batches import BATCH_FORMAT, BatchHeader, pack_batch
from stigmergy.shard.commit_reader import walk
from stigmergy.shard.state import ShardReading
from stigmergy.sim.devices import Temper
from stigmergy.sim.node import SimNode

KIND = "Gauge"
SOURCE = "gauges"
AGENTS_MAX = 12


class Read(Event):
    """A reading. It has the number of its record: one in 17 fails."""

    number: int


class Sound(Action):
    number: int


class Gauge(Agent):
    count: int = 0
    total: int = 0
    last: int = 0

    supervision = Supervise(stop_after=4, within_s=5.0)

    @evolve
    def read(self, event: Read) -> None:
        self.count += 1
        self.total += 1_000 // (event.number % 17)
        self.last = event.number

    @react
    def sound(self, event: Read) -> Effects:
        if event.number % 3 == 0:
            yield Sound(number=event.number)


class Sounded(Struct, frozen=True):
    """An order as the horns got it."""

    agent: str
    number: int
    key: str


class Horns:
    """Carry out each order once, whatever is repeated. `temper` is that of all devices of the trial."""

    def __init__(self, node: SimNode, chance: random.Random, temper: Temper) -> None:
        self._node = node
        self._chance = chance
        self._temper = temper
        self.carried: dict[tuple[int, int], Sounded] = {}
        """By shard and sequence, in the order of the first time."""
        self.failed: dict[tuple[int, int], None] = {}
        """Orders that were in a call that raised."""
        self.findings: list[str] = []
        self.calls = 0

    def attach(self, fleet: Declaration, plan: AgentPlan) -> None:
        """Makes gauges part of the fleet, and these horns their hands."""
        fleet.plans[KIND] = plan
        if self._chance.random() < 0.5:
            fleet.batch_actuator(Sound)(self._act)
        else:
            fleet.batch_actuator(Sound)(self._act_slowly)

    async def _act_slowly(self, orders: Orders[Sound]) -> None:
        if self._temper.delay_s:
            await asyncio.sleep(self._chance.uniform(0, self._temper.delay_s))
        if not self._node.alive:
            await asyncio.get_running_loop().create_future()
        self._act(orders)

    def _act(self, orders: Orders[Sound]) -> None:
        if not self._node.alive:
            return
        self.calls += 1
        keys = [(orders.shard, order.sequence) for order in orders]
        fails = self._chance.random() < self._temper.fail
        if fails:
            self.failed.update(dict.fromkeys(keys))
        if fails and self._chance.random() < 0.5:
            raise OSError("the horns do not answer")
        durable = len(self._node.logbook.commits[orders.shard])
        for where, order in zip(keys, orders, strict=True):
            sounded = Sounded(order.agent, order.effect.number, order.key)
            if int(order.key.split(".")[2]) > durable:
                self.findings.append(f"order {order.key} went out, and {durable} commits are durable")
            if self.carried.setdefault(where, sounded) != sounded:
                self.findings.append(f"order {where}: was {self.carried[where]}, is {sounded}")
        self._node.record("sounded", [orders.shard, keys[0][1], len(keys)])
        if fails:
            raise OSError("the horns have sounded, but their answer is lost")


class Radio:
    """Sends readings to gauges, in batches for each shard, until each of them is acknowledged."""

    def __init__(self, node: SimNode, chance: random.Random, temper: Temper) -> None:
        self._node = node
        self._chance = chance
        self._temper = temper
        self._names: list[str] = []
        self._places: dict[str, Place] = {}
        self._rosters: list[Roster] = []
        """All that it was ever given; each is good for the agents that it knows."""
        self.items: dict[int, list[str]] = {}
        """Per shard who is meant by the n-th record."""
        self.acknowledged: dict[int, dict[int, None]] = {}
        self._sent: list[asyncio.Future[None]] = []
        self._under_way = 0
        self.findings: list[str] = []
        self.batches = 0

    def say(self) -> None:
        """Some readings more, now and then of a gauge that is new."""
        if not self._names or (len(self._names) < AGENTS_MAX and self._chance.random() < 0.05):
            self._names.append(f"g-{len(self._names)}")
        for _ in range(self._chance.choice((1, 3, 20))):
            name = self._chance.choice(self._names)
            self.items.setdefault(self._node.declaration.homes.of(f"{KIND}/{name}"), []).append(name)

    @property
    def done(self) -> bool:
        """Whether everything that was said is acknowledged."""
        return all(self._first_open(shard) > len(items) for shard, items in self.items.items())

    async def run(self) -> None:
        """Sends for ever. Batches overtake each other; their limits shift from repetition to repetition."""
        while True:
            self._sent = [sent for sent in self._sent if not sent.done()]
            for shard in sorted(self.items):
                first = self._first_open(shard)
                for _ in range(self._chance.choice((1, 1, 2, 3))):
                    last = min(len(self.items[shard]), first + self._chance.choice((0, 5, 60)))
                    if last < first or self._under_way >= 8:
                        break
                    for _ in range(2 if self._chance.random() < self._temper.repeat else 1):
                        self._sent.append(asyncio.ensure_future(self._transmit(shard, first, last)))
                    first = last + 1
            await asyncio.sleep(self._chance.uniform(0.01, 0.4))

    def look(self) -> None:
        """What a query shows is never ahead of the disk, nor behind what was acknowledged."""
        live = self._node.live
        if live is None or live.failure is not None or not self._names:
            return
        name = self._chance.choice(self._names)
        shard = self._node.declaration.homes.of(f"{KIND}/{name}")
        table = self._node.logbook.states[shard].tables[KIND]
        number = table.find(name)
        shown = live.host.durable_image(f"{KIND}/{name}")
        on_disk = None if number < 0 else table.agent(number, ahead=True)
        if shown is not None and (on_disk is None or shown.count > on_disk.count):
            self.findings.append(f"{name}: a query shows {shown}, on disk is {on_disk}")

    def _first_open(self, shard: int) -> int:
        known, number = self.acknowledged.setdefault(shard, {}), 1
        while number in known:
            number += 1
        return number

    async def _transmit(self, shard: int, first: int, last: int) -> None:
        self._under_way += 1
        try:
            if self._temper.delay_s:
                await asyncio.sleep(self._chance.uniform(0, self._temper.delay_s))
            live = self._node.live
            if live is None or self._chance.random() < self._temper.loss:
                return
            try:
                await live.deliver(await self._batch(live, shard, first, last))
            except StigmergyError as error:
                self._node.record("refused", [SOURCE, shard, first, last, type(error).__name__])
                return
            if self._chance.random() >= self._temper.loss:
                self._acknowledge(shard, first, last)
        finally:
            self._under_way -= 1

    async def _batch(self, live: Live, shard: int, first: int, last: int) -> bytes:
        names = self.items[shard][first - 1 : last]
        new = [name for name in dict.fromkeys(names) if name not in self._places]
        if new or not self._rosters:
            roster = await live.enroll(KIND, new)
            self._places.update(zip(new, roster.places, strict=True))
            self._rosters.append(roster)
        most = max(self._places[name].number for name in names)
        here = self._chance.choice([one.shards[shard] for one in self._rosters if one.shards[shard].agents > most])
        layout = self._rosters[-1].layout
        form = next(number for number, form in enumerate(layout.forms) if form.tag == spec_of(Read).tag)
        records = [
            write_record(layout, form, self._places[name].number, {"number": number})
            for number, name in enumerate(names, start=first)
        ]
        self.batches += 1
        return pack_batch(
            BatchHeader(
                format=BATCH_FORMAT,
                source=SOURCE,
                incarnation=0,
                epoch=0,
                sequence=first,
                lost=0,
                shard=shard,
                kind=KIND,
                layout=here.layout,
                generation=here.generation,
                check=here.check,
                count=len(names),
            ),
            b"".join(records),
        )

    def _acknowledge(self, shard: int, first: int, last: int) -> None:
        consumed = self._node.logbook.states[shard].marks.consumed(SOURCE, 0)
        if consumed < last:
            self.findings.append(f"{SOURCE} {last} is acknowledged, shard {shard} is at {consumed}")
        self.acknowledged.setdefault(shard, {}).update(dict.fromkeys(range(first, last + 1)))
        self._node.record("acknowledged", [SOURCE, shard, first, last])


class Gauges:
    """All of it, for a trial."""

    def __init__(self, node: SimNode, network: Temper, horns: Horns) -> None:
        self._node = node
        self.horns = horns
        self.radio = Radio(node, node.world.chance("radio"), network)

    def violations(self, *, healed: bool) -> list[str]:
        """What the log, the radio and the horns do not agree on."""
        found = self.radio.findings + self.horns.findings
        for shard in range(len(self._node.logbook.commits)):
            found += self._check_records(shard) + self._check_orders(shard, healed=healed)
        return found

    def counts(self) -> dict[str, int]:
        """What happened, in figures."""
        acknowledged = sum(len(one) for one in self.radio.acknowledged.values())
        return {"batches": self.radio.batches, "records read": acknowledged, "sounded": len(self.horns.carried)}

    def _check_records(self, shard: int) -> list[str]:
        """Each record is in the log once, in order; what was acknowledged is there, has failed, or was given up."""
        kept, failed, skipped = self._in_log(shard)
        findings: list[str] = []
        items = self.radio.items.get(shard, [])
        for number, names in kept.items():
            if len(names) > 1 or names[0] != f"{KIND}/{items[number - 1]}":
                findings.append(f"shard {shard}: record {number} is kept by {names}, and is for {items[number - 1]}")
        in_order = [number for number in kept if number not in failed]
        if in_order != sorted(in_order):
            findings.append(f"shard {shard}: records are kept out of order: {in_order[:50]}")
        for number in self.radio.acknowledged.get(shard, {}):
            given_up = any(first <= number <= last for first, last in skipped)
            if number not in kept and number not in failed and not given_up:
                findings.append(f"shard {shard}: record {number} was acknowledged and is not in the log")
            if number % 17 == 0 and number in kept:
                findings.append(f"shard {shard}: record {number} is kept, and should have failed")
        return findings

    def _in_log(self, shard: int) -> tuple[dict[int, list[str]], dict[int, str], list[tuple[int, int]]]:
        kept: dict[int, list[str]] = {}
        failed: dict[int, str] = {}
        skipped: list[tuple[int, int]] = []
        read, fails, skips = (spec_of(event).tag for event in (Read, InputFailed, InputsSkipped))
        reading = ShardReading(self._node.logbook.states[shard])
        for commit in self._node.logbook.commits[shard]:
            for one in walk(commit, reading):
                if one.tag == read:
                    number = msgspec.msgpack.decode(one.body, type=Read).number
                    kept.setdefault(number, []).append(one.address)
                elif one.tag == fails:
                    failure = msgspec.msgpack.decode(one.body, type=InputFailed)
                    if tag_of(failure.input) == read:
                        failed[msgspec.msgpack.decode(failure.input, type=Read).number] = failure.to
                elif one.tag == skips and one.address == SHARD_ADDRESS:
                    skip = msgspec.msgpack.decode(one.body, type=InputsSkipped)
                    skipped += [(skip.first, skip.last)] if skip.source == SOURCE else []
        return kept, failed, skipped

    def _check_orders(self, shard: int, *, healed: bool) -> list[str]:
        """The orders of the log are those that were carried out, in order, each once; but for those that failed."""
        findings: list[str] = []
        state = self._node.logbook.states[shard]
        wanted: dict[int, tuple[str, int]] = {}
        for commit in self._node.logbook.commits[shard]:
            for run in commit.columns:
                templates = state.directory.templates_of(run.templates) if run.actions_count else None
                made: list[Any] = [] if templates is None else list(read_actions(run.actions, templates, str))
                for place, one in enumerate(made):
                    number = msgspec.msgpack.decode(one.body, type=Sound).number
                    wanted[run.first + place] = (f"{KIND}/{state.tables[KIND].name(one.agent)}", number)
        if list(wanted) != list(range(1, len(wanted) + 1)):
            findings.append(f"shard {shard}: orders are not numbered from 1 without a gap: {list(wanted)[:50]}")
        highest = 0
        for (where, sequence), sounded in self.horns.carried.items():
            if where != shard:
                continue
            if wanted.get(sequence) != (sounded.agent, sounded.number):
                findings.append(f"shard {shard}: order {sequence} was {sounded}, the log says {wanted.get(sequence)}")
            if sequence < highest and (shard, sequence) not in self.horns.failed:
                findings.append(f"shard {shard}: order {sequence} was carried out after {highest}")
            highest = max(highest, sequence)
        for sequence in wanted if healed else ():
            if (shard, sequence) not in self.horns.carried and (shard, sequence) not in self.horns.failed:
                findings.append(f"shard {shard}: order {sequence} was neither carried out nor given up")
        return findings


__all__ = ["KIND", "Gauge", "Gauges", "Horns", "Radio", "Read", "Sound"]
