"""A simulated fleet as a test sees it: what must always hold, what must hold in the end, and what happens meanwhile.

    @simulate(fleet, agents=16, seeds=200, faults=ALL)
    def test_never_two_greens(world: World) -> None:
        world.each(every_s=1.0, do=lambda light: world.observe(light, CarSeen()))
        world.always(lambda: world.count("phase", GREEN, per="crossing") <= 1)
        world.eventually(world.converged, within_s=30)

Conditions see durable state, folded by the simulator from each node's disk. No node is asked, so that a bug of the
runtime cannot hide itself, and a node that is down has a state too.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Literal, TypeVar, overload

from msgspec import Struct

from stigmergy.agents.agent import Agent
from stigmergy.agents.assignment import home_of
from stigmergy.agents.effects import REMOTE_SINKS, Order
from stigmergy.agents.messages import Action, Command, Event, spec_of
from stigmergy.agents.ordered import LEDGER
from stigmergy.base.errors import ConfigError, UnknownKind
from stigmergy.claims.permissions import read_asked
from stigmergy.control.live import Live
from stigmergy.node.intake import check_address, written
from stigmergy.shard.inputs import Verdict
from stigmergy.shard.outbox import read_told
from stigmergy.sim.checkers import Settling
from stigmergy.sim.fleet import SimFleet
from stigmergy.sim.node import Machine, Replaced

LOOK_S = 0.37
"""How often it is looked whether what must come has come. Odd, so that no workload hides between two looks."""
AgentT = TypeVar("AgentT", bound=Agent)
ActionT = TypeVar("ActionT", bound=Action)
Check = Callable[[], object]
"""Something holds if its check returns a true value; or None, as a function of assertions does, and raises no
AssertionError. An empty list, 0 and "" mean that it does not hold, as False does."""
Script = Callable[[], Coroutine[Any, Any, None]]
Until = Literal["heal", "end"] | float
"""How long work goes on: until faults are over; until everything that must come has come; or a virtual second."""


class Eventually(Struct):
    """Something that must hold in the end."""

    name: str
    check: Check
    within_s: float
    since_s: float | None = None
    is_met: bool = False


class _Beat(Struct):
    """Something that is done again and again."""

    seconds: float
    do: Callable[[], object]
    until: Until


class Node:
    """One node of the fleet, for tests that do something to it on purpose."""

    def __init__(self, fleet: SimFleet, machine: Machine) -> None:
        self._fleet = fleet
        self._machine = machine

    @property
    def name(self) -> str:
        """Its name: `node-1`."""
        return self._machine.name

    @property
    def agents(self) -> tuple[str, ...]:
        """The addresses of the agents of the run that live on it."""
        return self._fleet.placement[self._machine.name]

    @property
    def is_up(self) -> bool:
        """Whether it runs."""
        return self._machine.running is not None

    @property
    def incarnation(self) -> int:
        """1, and one more each time its journal was replaced by a fresh one; `World.replaced` says when and why."""
        return self._machine.incarnation

    async def crash(self) -> None:
        """Its process ends at once. It is started again by itself."""
        await self._machine.crash("kill")

    async def lose_power(self) -> None:
        """The machine stops; what was not synced may be gone. It is started again by itself."""
        await self._machine.crash("power")

    def cut(self) -> None:
        """It hears and is heard by nobody, until `restore`."""
        self._fleet.links.change(self.name, is_cut=True)

    def restore(self) -> None:
        """Its links work again."""
        self._fleet.links.change(self.name, is_cut=False)

    def pause(self, seconds: float) -> None:
        """Its process does not run for so long; its clocks go on."""
        self._machine.hold()
        asyncio.get_running_loop().call_later(seconds, self._machine.resume)

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self.agents)} agents, {'up' if self.is_up else 'down'}>"


class World:
    """One run of a simulated fleet, for the test that is run in it."""

    def __init__(self, fleet: SimFleet) -> None:
        self._fleet = fleet
        self.seed = fleet.run.seed
        self.chance = fleet.run.chance("test")
        """Randomness for the test itself, from the seed."""
        self.agents: tuple[str, ...] = tuple(fleet.addresses)
        self.nodes: tuple[Node, ...] = tuple(Node(fleet, machine) for machine in fleet.machines.values())
        self.violations: list[str] = []
        self._always: list[tuple[str, Check]] = []
        self._eventually: list[Eventually] = []
        self._tasks: list[asyncio.Task[None]] = []
        """Work that ends when faults are over."""
        self._later_tasks: list[asyncio.Task[None]] = []
        """Work that ends later."""
        self._scripts: list[asyncio.Task[None]] = []
        self._looking = False
        self._healed = False
        self._resting = False
        """Nothing that must come is missing any more: work that goes on until the end is over."""
        self._works_on = False
        """Whether there is such work."""
        self._orders: list[tuple[str, Order[Any], float]] = []
        fleet.on_kept.append(lambda machine, group: self._changed())  # noqa: ARG005
        fleet.on_carried.append(lambda machine, order: self.carried(machine.name, order))

    # ------------------------------------------------------------------ what must hold

    def always(self, check: Check, *, name: str | None = None) -> None:
        """This must hold at every moment. It is looked at whenever something became durable anywhere."""
        self._always.append((name or _name_of(check), check))

    def eventually(self, check: Check, within_s: float, *, name: str | None = None) -> None:
        """Once faults are over, this must hold within so many seconds. Called later than that, from then on."""
        self._eventually.append(Eventually(name or _name_of(check), check, within_s, self.now_s))

    def converged(self) -> bool:
        """Whether every node runs, nothing is under way, and all replicas of what is shared are equal."""
        return all(_is_settled(one) for one in self.settling()) and not self._fleet_apart()

    # ------------------------------------------------------------------ what happens

    @property
    def now_s(self) -> float:
        """Virtual seconds since the beginning of the run."""
        return self._fleet.run.loop.time()

    def observe(self, address: str, event: Event) -> None:
        """Tells an agent what was observed, over a link as bad as it is, again and again until it is acknowledged."""
        check_address(address)
        self._machine(address).feed.say(address, written(event, Event))

    async def wait_observed(self, address: str, event: Event) -> None:
        """The same, and returns when the event is durable: that may be long after the faults."""
        await self._machine(address).feed.observe(address, event)

    async def send(self, address: str, command: Command) -> Verdict:
        """Asks an agent until it answers: Accepted or Refused."""
        return await self._machine(address).feed.send(address, command)

    def ask(self, address: str, command: Command) -> None:
        """The same for those who do not wait for the answer."""
        self._tasks.append(asyncio.ensure_future(self._ask(address, command)))

    def every(self, seconds: float, do: Callable[[], object], *, after_s: float = 0.0, until: Until = "heal") -> None:
        """Does something again and again. `do` may be a plain function, or an async one.

        It ends when faults are over. With `until="end"` it goes on until every `eventually` has come true, or is late;
        then the fleet must come to rest. With a number it ends at that virtual second, or before with the run.
        """
        if not seconds > 0:
            raise ConfigError(f"every({seconds}): give more than 0 seconds")
        if isinstance(until, str) and until not in ("heal", "end"):
            raise ConfigError(f'until={until!r}: give "heal", "end" or a number of virtual seconds')
        self._works_on = self._works_on or until != "heal"
        asyncio.get_running_loop().call_later(after_s, self._beat, _Beat(seconds, do, until))

    def each(
        self, every_s: float, do: Callable[[str], object], *, together: bool = False, until: Until = "heal"
    ) -> None:
        """Does something for each agent, by its address, each on a beat of its own. `until`: as for `every`.

        With `together`, those of one node have one beat, as where a device reads its sensors in one go.
        """
        groups = [node.agents for node in self.nodes] if together else [(address,) for address in self.agents]
        for group in groups:
            after_s = self.chance.randrange(1_000) * every_s / 1_000

            def beat(group: tuple[str, ...] = group) -> None:
                for address in group:
                    do(address)

            self.every(every_s, beat, after_s=after_s, until=until)

    def script(self, run: Script) -> None:
        """Runs an async function beside everything else. It must end before the run does."""
        self._scripts.append(asyncio.ensure_future(run()))

    # ------------------------------------------------------------------ what is so

    @overload
    def state(self, address: str) -> Any: ...

    @overload
    def state(self, address: str, kind: type[AgentT], *, node: str | None = None) -> AgentT: ...

    def state(self, address: str, kind: type[Agent] | None = None, *, node: str | None = None) -> Any:
        """The durable state of an agent, on the node where it lives or on another. Given the class, or a base of it
        such as `WorkflowRun`, it is typed.

        One that has had no input is in its first state. Do not change it.
        """
        machine = self._machine(address) if node is None else self._fleet.machines[node]
        plan = machine.fleet.plans.get(address.partition("/")[0])
        if plan is None or (kind is not None and kind not in plan.cls.__mro__):
            raise UnknownKind(f"{address} is no {kind.__name__ if kind else 'agent of this fleet'}")
        states = machine.logbook.states
        state = states[machine.fleet.homes.of(address)]
        if plan.engine is not None:
            table = state.tables[plan.kind]
            number = table.find(address.partition("/")[2])
            return state.new_agent(address, plan) if number < 0 else table.agent(number, ahead=True)
        agent = state.agents.get(address)
        return state.new_agent(address, plan) if agent is None else agent

    def states(self, kind: type[AgentT]) -> Iterator[AgentT]:
        """The durable states of all agents of a class or of its subclasses, those on nodes that are down included; of
        `WorkflowRun` all runs, also those of parts. Raises UnknownKind if the fleet has no such class."""
        machines = self._fleet.machines
        plans = [plan for machine in machines.values() for plan in machine.fleet.plans.values()]
        kinds = {plan.kind for plan in plans if kind in plan.cls.__mro__}
        if not kinds:
            raise UnknownKind(f"{kind.__name__} is no class of agents of this fleet, nor a base of one")
        begun = {
            address
            for name, machine in machines.items()
            for state in machine.logbook.states
            for address in state.agents
            if address.partition("/")[0] in kinds and home_of(self._fleet.assigned, address) == name
        }
        for address in (*self.agents, *sorted(begun.difference(self.agents))):
            if address.partition("/")[0] in kinds:
                yield self.state(address, kind)

    def count(self, field: str, value: object, *, per: str | Callable[[Any], object] | None = None) -> int:
        """How many agents have this value in this field; a shared field counts by what it reads.

        With `per`, the name of another field or a function of the agent, they are counted apart for each value of that,
        and the largest count is returned.
        """
        counts: dict[object, int] = {}
        found = False
        for address in self.agents:
            agent = self.state(address)
            if not hasattr(agent, field):
                continue
            found = True
            if _read(getattr(agent, field)) == value:
                group = None if per is None else per(agent) if callable(per) else _read(getattr(agent, per))
                counts[group] = counts.get(group, 0) + 1
        if not found:
            raise ConfigError(f"count({field!r}, …): no agent of this run has such a field")
        return max(counts.values(), default=0)

    def orders(self, action: type[ActionT]) -> list[Order[ActionT]]:
        """What the simulated devices have carried out of this action, each once, in the order of the first time."""
        tag = spec_of(action).tag
        return [order for _, order, _ in self._orders if spec_of(type(order.effect)).tag == tag]

    def replaced(self, where: str | None = None) -> tuple[Replaced, ...]:
        """Which journals were replaced by fresh ones so far, oldest first: of a node, of the node of an agent, or all.

        A machine whose journal is refused, after a bit of its disk was flipped, gets a fresh one. What was only in the
        old one is gone, what was acknowledged may be asked or done again: an invariant over all history counts so many
        journals more.
        """
        machines = list(self._fleet.machines.values())
        if where is not None:
            machines = [self._fleet.machines[where] if where in self._fleet.machines else self._machine(where)]
        found = [one for machine in machines for one in machine.replaced]
        return tuple(sorted(found, key=lambda one: one.at_s))

    def settling(self) -> list[Settling]:
        """What is still open on each node."""
        held = self._fleet.broker
        found: list[Settling] = []
        for name, machine in self._fleet.machines.items():
            live = machine.running
            waiting = owed = 0
            if live is not None:
                host = live.host
                # What waits for company on its way to the disk is decided; agents that never rest always have some.
                entries = None if live.replication is None else live.replication.entries
                waiting = host.mailbox.items + sum(one.behind for one in (entries.standing() if entries else ()))
                owed = sum(shard.state.outbox.count + shard.state.blocks.count for shard in host.shards)
                owed -= _in_line(live) + self._unclaimed(live)
            at_broker = held.held_count(name) if machine.broker is not None else 0
            found.append(Settling(name, live is not None, machine.feed.open_count, waiting, owed, at_broker))
        return found

    def _unclaimed(self, live: Live) -> int:
        """How many tells are kept for agents that no machine runs: nobody will ever take them."""
        owed = (pending for shard in live.host.shards for pending in shard.state.outbox.owed())
        told = (read_told(pending.body).to for pending in owed if pending.sink.startswith(REMOTE_SINKS))
        return sum(home_of(self._fleet.assigned, to) is None for to in told)

    # ------------------------------------------------------------------ for the caller

    def heal(self) -> None:
        """Faults and work are over."""
        self._healed = True
        for task in self._tasks:
            task.cancel()
        for one in self._eventually:
            one.since_s = self.now_s

    async def wait_met(self, heal_s: float) -> None:
        """Waits for everything that must come; what has not come in time is a violation. Then for the fleet to come to
        rest, for so many seconds: since the heal, or since work ended that went on until now."""
        begin_s = settling_s = self.now_s
        while True:
            self._look()
            waits = [one for one in self._eventually if not one.is_met]
            if not waits and not self._resting:
                self._rest()
                settling_s = self.now_s if self._works_on else begin_s
            settled = all(_is_settled(one) for one in self.settling()) and not self._fleet_apart()
            if not waits and settled and all(script.done() for script in self._scripts):
                return
            for one in waits:
                since_s = begin_s if one.since_s is None else max(begin_s, one.since_s)
                if self.now_s > since_s + one.within_s:
                    one.is_met = True
                    self._violate(f"eventually {one.name}: not within {one.within_s:g} s after the faults were over")
            if self._resting and not waits and self.now_s > settling_s + heal_s:
                return
            await asyncio.sleep(LOOK_S)

    def _rest(self) -> None:
        self._resting = True
        for task in self._later_tasks:
            task.cancel()

    async def finish(self) -> None:
        """Ends what is left of scripts; one that has failed says so."""
        self._rest()
        for task in [*self._tasks, *self._scripts]:
            if not task.done():
                if task in self._scripts:
                    self._violate(f"the script {task.get_name()} has not ended")
                task.cancel()
        for task in self._scripts:
            if task.done() and not task.cancelled():
                error = task.exception()
                if isinstance(error, AssertionError):
                    self._violate(f"the script failed: {error}")
                elif error is not None:
                    raise error
        for task in [*self._tasks, *self._later_tasks]:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    def carried(self, node: str, order: Order[Any]) -> None:
        """A device has carried out an order, for the first time."""
        self._orders.append((node, order, self.now_s))

    def _fleet_apart(self) -> bool:
        return bool(self._fleet.services.shares and self._fleet.apart())

    def _machine(self, address: str) -> Machine:
        home = home_of(self._fleet.assigned, address)
        if home is None:
            some = ", ".join(self.agents[:3])
            raise UnknownKind(f"{address!r} is no agent of this run; there are {len(self.agents)}: {some} …")
        return self._fleet.machines[home]

    def _changed(self) -> None:
        """Something became durable: the checks are made once everything of this moment has happened."""
        if not self._looking and (self._always or self._healed):
            self._looking = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._looking = False
        for place, (name, check) in enumerate(self._always):
            wrong = _wrong(check)
            if wrong is not None:
                self._always.pop(place)
                self._violate(f"always {name}: {wrong}")
                break
        if self._healed:
            for one in self._eventually:
                if not one.is_met and _wrong(one.check) is None:
                    one.is_met = True

    def _violate(self, sentence: str) -> None:
        milliseconds = self._fleet.run.loop.time_ns() // 1_000_000
        self._fleet.note("", "finding", sentence)
        self._fleet.run.record("world", "violation", sentence)
        self.violations.append(f"at {milliseconds / 1000:.3f} s: {sentence}")

    async def _ask(self, address: str, command: Command) -> None:
        _ = await self.send(address, command)

    def _beat(self, beat: _Beat) -> None:
        """By timers and not by tasks: a large fleet has thousands of beats."""
        if self._is_over(beat.until):
            return
        done = beat.do()
        if inspect.iscoroutine(done):
            tasks = self._tasks if beat.until == "heal" else self._later_tasks
            tasks.append(asyncio.ensure_future(self._beat_slowly(done, beat)))
        else:
            asyncio.get_running_loop().call_later(beat.seconds, self._beat, beat)

    async def _beat_slowly(self, done: Coroutine[Any, Any, object], beat: _Beat) -> None:
        _ = await done
        asyncio.get_running_loop().call_later(beat.seconds, self._beat, beat)

    def _is_over(self, until: Until) -> bool:
        if until == "heal":
            return self._healed
        return self._resting or (not isinstance(until, str) and self.now_s >= until)


def _wrong(check: Check) -> str | None:
    """What is wrong, or None."""
    try:
        found = check()
        return None if found is None or found else "it does not hold"
    except AssertionError as error:
        return str(error).partition("\n")[0] or "it does not hold"


def _in_line(live: Live) -> int:
    """How many questions of its agents stand in line at the ledger behind a holder who need not ever go.

    A fleet may live on so: each is denied when its time is over, and only then it is late.
    """
    claims = None if live.replication is None else live.replication.claims
    if claims is None:
        return 0
    waits = {
        (belief.agent, belief.claim): None
        for belief in claims.beliefs()
        if belief.asking and not belief.holds and belief.left_s > 0 and claims.folded.resource(belief.resource).queue
    }
    owed = (pending for shard in live.host.shards for pending in shard.state.outbox.owed() if pending.sink == LEDGER)
    return sum((pending.agent, read_asked(pending).claim) in waits for pending in owed)


def _is_settled(one: Settling) -> bool:
    return one.runs and not (one.untold or one.waiting or one.owed or one.held)


def _read(field: Any) -> object:
    """What a field says: a shared one has a `value`; an enum, which has one too, is what it is."""
    value = getattr(type(field), "value", None)
    return field.value if isinstance(value, property) else field


def _name_of(check: Any) -> str:
    name = getattr(check, "__name__", type(check).__name__)
    if name != "<lambda>":
        return str(name)
    try:
        lines = inspect.getsource(check).strip().splitlines()
    except (OSError, TypeError):
        return "the check"
    return " ".join(line.strip() for line in lines)[:120]
