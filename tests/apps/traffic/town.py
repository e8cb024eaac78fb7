"""A town of intersections in one thread and no time at all: real steps of real shards, cabinets, and a net to cut.

Everything happens in steps of 0.1 s. What one intersection writes is at its neighbours in the next step, unless one of
the two is cut off; then it waits, in order, as anti-entropy would bring it later.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from apps.traffic.cabinet import Cabinet
from apps.traffic.grid import AXES, grid
from apps.traffic.intersection import COMING, HERE, SILENCE_S, Intersection, vehicles_of
from apps.traffic.messages import ClearMonitor, ShowPhase
from apps.traffic.phases import Geometry
from apps.traffic.traffic import Rates, Traffic
from stigmergy import ActionFailed, Command, DeviceRefused, Event, Order, SharedChanged, StaleOrder
from stigmergy.agents.codec import encode
from stigmergy.agents.effects import ACTUATORS
from stigmergy.agents.shared import replica_seed
from stigmergy.shard.inputs import Ask, Delivery, EffectSettled, Input, SafeActionOut, SharedReceived, TimerDue
from stigmergy.shard.shard import Shard
from stigmergy.shard.state import ShardState, plan_agents

STEP_S = 0.1
HEARTBEAT_STEPS = 5
START_S = 1_000.0


class Corner:
    """One intersection: a shard of its own, its cabinet, what it hears."""

    def __init__(self, town: Town, name: str) -> None:
        self.town = town
        self.name = name
        self.address = f"Intersection/{name}"
        self._plans = plan_agents([Intersection])
        self._state = ShardState(0, self._plans)
        self._state.replica_seed = replica_seed("town", name.encode().ljust(32), 1)
        self._shard = Shard(self._state)
        self.cabinet = Cabinet(name, lambda: town.now_s)
        self.fresh_s: dict[type, float] = {}
        self.cut = False
        self.waiting: list[tuple[Corner, SharedReceived]] = []
        self.orders: list[tuple[float, ShowPhase]] = []

    @property
    def agent(self) -> Intersection:
        agent = self._state.agents.get(self.address)
        if agent is None:
            agent = self._state.new_agent(self.address, self._plans["Intersection"])
        assert isinstance(agent, Intersection)
        return agent

    def observe(self, event: Event) -> None:
        self.take(Delivery(source="devices", items=[(self.address, encode(event))]))

    def ask(self, command: Command) -> None:
        self.take(Ask(agent=self.address, command_id=f"{self.town.now_s}", command=encode(command)))

    def take(self, *inputs: Input) -> None:
        stepped = self._shard.step(list(inputs), int(self.town.now_s * 1e9))
        assert not stepped.untaken, stepped.untaken
        for _, event in stepped.fresh:
            if event is not None:
                self.fresh_s[event] = self.town.now_s
        ready = self._shard.seal()
        if ready is None:
            return
        assert len(self._state.letters.all()) == 0, self._state.letters.all()[0].error
        for address, change in ready.shared:
            if isinstance(change, SharedChanged):
                self.town.pass_on(self, address, change)
        for pending in ready.owed:
            if pending.sink == ACTUATORS:
                self._carry_out(pending)

    def step(self) -> None:
        """What time brings."""
        if self.town.steps % HEARTBEAT_STEPS == 0:
            self.cabinet.alive()
            for said in (self.cabinet.heard(), self.cabinet.seen()):
                if said is not None:
                    self.observe(said)
        while self.cabinet.detections:
            self.observe(self.cabinet.detections.popleft())
        now_ns = int(self.town.now_s * 1e9)
        due = [timer for timer in self._state.timers.all() if timer.due_ns <= now_ns]
        for timer in due:
            self.take(TimerDue(agent=timer.agent, name=timer.name, due_ns=timer.due_ns))
        for rule in (Intersection.blind, Intersection.dark, Intersection.stuck):
            since_s = self.fresh_s.get(rule.event)
            if since_s is not None and self.town.now_s - since_s >= SILENCE_S:
                del self.fresh_s[rule.event]
                self.cabinet.make_safe()
                self.take(SafeActionOut(self.address, "AllRed", f"no {rule.event.__name__} for {SILENCE_S:g} s"))
        self.cabinet.tick()

    def hear(self) -> None:
        if self.address not in self._state.agents:
            return
        waiting, self.waiting = self.waiting, []
        for source, told in waiting:
            if self.cut or source.cut:
                self.waiting.append((source, told))
            else:
                self.take(told)

    def _carry_out(self, pending: Any) -> None:
        effect: Any = self.town.read(pending.body)
        order: Order[Any] = Order(
            agent=self.address, effect=effect, key=str(pending.sequence), token=pending.position, sequence=1
        )
        result: Event | None = None
        try:
            if isinstance(effect, ShowPhase):
                self.orders.append((self.town.now_s, effect))
                self.cabinet.show(order)
            else:
                self.cabinet.clear()
        except (DeviceRefused, StaleOrder) as error:
            result = ActionFailed(action=type(effect).__name__, reason=str(error))
        seen = self.cabinet.seen()
        body = None if result is None else encode(result)
        self.town.later.append((self, EffectSettled(ACTUATORS, pending.sequence, body)))
        if seen is not None:
            self.town.later.append((self, Delivery(source="devices", items=[(self.address, encode(seen))])))


class Town:
    """All of them."""

    def __init__(self, rows: int, columns: int, *, seed: int = 1, rates: Rates | None = None) -> None:
        self.now_s = START_S
        self.steps = 0
        self.corners = {name: Corner(self, name) for name in grid(rows, columns)}
        self.later: list[tuple[Corner, Input]] = []
        self.traffic = Traffic(
            rows,
            columns,
            seed,
            lambda name: self.corners[name].cabinet.lamps,
            lambda name, event: self.corners[name].cabinet.detect(event),
            rates or Rates(),
            Geometry(),
        )
        for name, corner in self.corners.items():
            corner.cabinet.standing = partial(self.traffic.standing_at, name)

    def __getitem__(self, name: str) -> Corner:
        return self.corners[name]

    def read(self, body: bytes) -> Any:
        return msgspec.msgpack.decode(body, type=ShowPhase | ClearMonitor)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            self.steps += 1
            self.traffic.step(self.now_s)
            for corner in self.corners.values():
                corner.step()
            later, self.later = self.later, []
            for corner, told in later:
                corner.take(told)
            for corner in self.corners.values():
                corner.hear()

    def pass_on(self, source: Corner, address: str, change: SharedChanged) -> None:
        field = source._plans["Intersection"].shared[change.field]
        name = field.object_of("Intersection", source.name)
        for corner in self.corners.values():
            if corner is not source and field.object_of("Intersection", corner.name) == name:
                told = SharedReceived(agent=corner.address, field=change.field, deltas=(change.delta,))
                corner.waiting.append((source, told))

    def cut(self, *names: str) -> None:
        for name in names:
            self[name].cut = True

    def heal(self) -> None:
        for corner in self.corners.values():
            corner.cut = False

    def recorded(self) -> dict[str, list[str]]:
        """Where each vehicle is by what intersections say of themselves: every place, so that two are two."""
        found: dict[str, list[str]] = {}
        for name, corner in self.corners.items():
            for axis in AXES:
                mine = vehicles_of(corner.agent, axis)[name]
                for place in (HERE, COMING):
                    for vehicle in mine[place]:
                        found.setdefault(vehicle, []).append(name)
        return found
