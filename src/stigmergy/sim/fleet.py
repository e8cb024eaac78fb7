"""A simulated fleet: several machines of one user's Fleet on one broker and one mesh, all from one seed.

    run = Run(seed)
    fleet = SimFleet(run, Setup(my_fleet, agents=16, faults=ALL))
    await fleet.start(); …; fleet.heal(); …; await fleet.stop()

Agents are placed on machines; each machine has its own journal, clock and key. It watches and records; the checkers
decide what is right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from stigmergy.agents.agent import Agent
from stigmergy.agents.assignment import Assignment
from stigmergy.agents.codec import tag_of
from stigmergy.agents.effects import Order
from stigmergy.agents.supervision import SHARD_ADDRESS
from stigmergy.base.errors import ConfigError
from stigmergy.bus.memory import MemoryBroker
from stigmergy.bus.port import BusMessage
from stigmergy.bus.topics import AGENTS, check_level_name
from stigmergy.claims.memory_ledger import MemoryLedgerStore
from stigmergy.crdt.anti_entropy.context import SharedStatus
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.models.rollout_agent import KIND
from stigmergy.models.versions import RecordTrust
from stigmergy.network.bus_link import describe_this_node
from stigmergy.network.replication import Replication
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Host
from stigmergy.node.settings import Settings, Snapshots
from stigmergy.policy.engine import LoadedPolicy
from stigmergy.shard.commit import Group
from stigmergy.shard.commit_reader import walk
from stigmergy.shard.state import ShardReading
from stigmergy.sim.checkers import HoldRecorder, replicas_converge
from stigmergy.sim.disk import DiskFault
from stigmergy.sim.errors import SimulationError
from stigmergy.sim.faults import (
    ALL,
    BIT_FLIP,
    CLOCK_DRIFT,
    CLOCK_JUMP,
    CRASH,
    DELAY,
    DEVICES,
    DISK_FULL,
    DUPLICATION,
    IO_ERROR,
    LIAR,
    LOSS,
    MODEL_FAULTS,
    ONE_WAY,
    PARTITION,
    PAUSE,
    POLICY_FAULTS,
    POWER,
    REORDERING,
    SLOW_DISK,
    VERSIONS,
    Fault,
    Planned,
    draw_plan,
)
from stigmergy.sim.liar import Lies, begin_to_lie, tell_the_truth
from stigmergy.sim.links import Links, SimBroker, SimBus, SimLedger
from stigmergy.sim.models import Answers, SimModels, SimRecords, SimRollouts, check_answers
from stigmergy.sim.network import Network
from stigmergy.sim.node import WRITE_S, Machine, NodeService, draw_journal
from stigmergy.sim.policy import SimPolicy
from stigmergy.sim.run import Run
from stigmergy.sim.timeline import Chronicle, TimelineEntry, shown
from stigmergy.store.memory import MemoryStore

# The agents of a simulated fleet, and the machine of each.

NODES_DEFAULT_MAX = 4
NODES_MAX = 1_000
AGENTS_MAX = 100_000
Agents = int | Sequence[str] | Mapping[type[Agent], int]
"""A number of agents of the fleet's first class; addresses; or how many of each class."""
Nodes = int | Mapping[str, Sequence[str]]
"""A number of machines; or by the name of each machine its agents, as `agents` of a node's configuration has them."""


def name_agents(fleet: Declaration, agents: Agents) -> list[str]:
    """The addresses of all agents: given, or `Drone/1` to `Drone/16`."""
    if isinstance(agents, bool) or (isinstance(agents, int) and not 1 <= agents <= AGENTS_MAX):
        raise ConfigError(f"agents={agents!r}: give 1 to {AGENTS_MAX}, a list of addresses, or how many of each class")
    if isinstance(agents, int):
        kind = next(iter(fleet.plans))
        return [f"{kind}/{number}" for number in range(1, agents + 1)]
    if isinstance(agents, Mapping):
        named = [f"{kind.__agent_kind__}/{number}" for kind, count in agents.items() for number in range(1, count + 1)]
    else:
        named = list(dict.fromkeys(agents))
    for address in named:
        kind, _, name = address.partition("/")
        if kind not in fleet.plans or not name:
            raise ConfigError(f"agents has {address!r}; give addresses like 'Drone/1', of {', '.join(fleet.plans)}")
    if not named:
        raise ConfigError("agents=…: give at least one")
    return named


def place_agents(addresses: Sequence[str], nodes: Nodes | None) -> dict[str, tuple[str, ...]]:
    """Deals the agents out to machines, one after the other. Without a number: one each, and at most four machines."""
    if isinstance(nodes, Mapping):
        return _place_by_name(addresses, nodes)
    count = min(len(addresses), NODES_DEFAULT_MAX) if nodes is None else nodes
    if not 1 <= count <= NODES_MAX:
        raise ConfigError(f"nodes={count}: give 1 to {NODES_MAX}")
    wide = len(str(count))
    names = [f"node-{number:0{wide}d}" for number in range(1, count + 1)]
    return {name: tuple(addresses[place::count]) for place, name in enumerate(names)}


def _place_by_name(addresses: Sequence[str], nodes: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Each agent on the one node that names it."""
    entries = {check_level_name("node", name): Assignment(named) for name, named in nodes.items() if named}
    homes = {address: [name for name in entries if entries[name].runs(address)] for address in addresses}
    for address, names in homes.items():
        if len(names) != 1:
            where = f"on {' and '.join(names)}" if names else "on no node"
            raise ConfigError(f"nodes={{…}}: {address} is {where}; name each agent on one node")
    placed = {name: tuple(address for address in addresses if homes[address] == [name]) for name in nodes}
    if empty := [name for name, here in placed.items() if not here]:
        raise ConfigError(
            f"nodes={{…}}: {', '.join(empty)} runs none of the agents; leave it out, or name some of them"
        )
    return placed


# Carries out the planned faults of a seed, one by one, and heals all of them at the end.

MS = 1_000
PER_MILLE = 1_000
DEVICE_DELAY_S = 0.5
Began = Callable[[Planned, bool], None]
"""Told when something planned begins (True) and when it ends."""
Lie = Callable[[str, bool], None]
"""Makes a node's replicas lie, or stop it."""


class FaultInjector:
    """One run's faults at work. `run` it beside everything else, then `heal`."""

    def __init__(
        self,
        plan: Sequence[Planned],
        machines: Mapping[str, Machine],
        links: Links,
        versions: Sequence[Declaration],
        began: Began,
        lie: Lie,
    ) -> None:
        self.plan = list(plan)
        self._machines = machines
        self._links = links
        self._versions = list(versions)
        self._began = began
        self._lie = lie
        self._active: list[Planned] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.counts: dict[str, int] = {}

    def start(self) -> None:
        """Sets the clocks for everything that is planned."""
        loop = asyncio.get_running_loop()
        for planned in self.plan:
            loop.call_later(planned.at_ms / MS, self._begin, planned)
            if planned.for_ms:
                loop.call_later((planned.at_ms + planned.for_ms) / MS, self._end, planned)

    def heal(self) -> None:
        """From now on everything works."""
        for planned in list(self._active):
            self._end(planned)
        self._links.calm()
        for machine in self._machines.values():
            machine.heal()

    async def wait_settled(self) -> None:
        """Waits until crashes and upgrades that had begun are over."""
        for task in self._tasks:
            await task

    def _begin(self, planned: Planned) -> None:
        self.counts[planned.fault] = self.counts.get(planned.fault, 0) + 1
        self._began(planned, True)
        if planned.for_ms:
            self._active.append(planned)
            self._adjust(planned)
        else:
            self._tasks.append(asyncio.ensure_future(self._happen(planned)))

    def _end(self, planned: Planned) -> None:
        if planned in self._active:
            self._active.remove(planned)
            self._began(planned, False)
            self._adjust(planned)

    # ------------------------------------------------------------------ what lasts

    def _adjust(self, planned: Planned) -> None:
        """A spell has begun or ended: the node gets the worst of those that are on."""
        for name in planned.node.split(","):
            amounts = [one.amount for one in self._active if one.fault == planned.fault and name in one.node.split(",")]
            self._set(planned.fault, self._machines[name], bool(amounts), max(amounts, key=abs, default=0))

    def _set(self, fault: str, machine: Machine, on: bool, amount: int) -> None:
        name, links = machine.name, self._links
        if fault == LOSS.name:
            links.change(name, loss=amount)
        elif fault == DUPLICATION.name:
            links.change(name, duplication=amount)
            (links.double if on else links.mend)(name)
        elif fault == REORDERING.name:
            links.change(name, reordering=amount)
            links.mend(name)
        elif fault == DELAY.name:
            links.change(name, delay_ms=amount)
        elif fault == PARTITION.name:
            links.change(name, is_cut=on)
        elif fault == ONE_WAY.name:
            links.change(name, is_unheard=on)
        elif fault == DISK_FULL.name:
            disk = machine.disk
            disk.capacity_bytes = disk.used_bytes() + amount if on else 1 << 40
        elif fault == SLOW_DISK.name:
            machine.latency.before_s = amount / MS if on else WRITE_S
        elif fault == PAUSE.name:
            (machine.hold if on else machine.resume)()
        elif fault == CLOCK_DRIFT.name:
            machine.clock.set_drift(amount)
            machine.clock.set_monotonic_drift(amount)
        elif fault == DEVICES.name:
            temper = machine.receiver.temper
            temper.fail = amount / PER_MILLE
            temper.delay_s = DEVICE_DELAY_S if on else 0.0
        elif fault == MODEL_FAULTS.name:
            machine.receiver.temper.model_fail = amount / PER_MILLE
        elif fault == POLICY_FAULTS.name:
            machine.receiver.temper.policy_fail = amount / PER_MILLE
        elif fault == LIAR.name:
            self._lie(name, on)
        else:
            raise AssertionError(fault)

    # ------------------------------------------------------------------ what happens in a moment

    async def _happen(self, planned: Planned) -> None:
        machine, amount = self._machines[planned.node], planned.amount
        on_disk = machine.store is None
        if planned.fault in (CRASH.name, POWER.name):
            power = planned.fault == POWER.name
            if amount and on_disk:
                machine.plan(DiskFault.POWER_LOSS if power else DiskFault.KILL, amount)
            else:
                await machine.crash("power" if power else "kill")
        elif planned.fault == IO_ERROR.name:
            machine.plan(DiskFault.EIO, amount)
        elif planned.fault == BIT_FLIP.name:
            await machine.crash("kill")
            if on_disk:
                machine.flip(amount)
        elif planned.fault == CLOCK_JUMP.name:
            if amount:
                machine.clock.jump(amount / MS)
            else:
                machine.clock.boot_in_1970()
        elif planned.fault == VERSIONS.name:
            if self._versions:
                await machine.upgrade(self._versions[amount % len(self._versions)])
        else:
            raise AssertionError(planned.fault)


# What runs beside the host of each machine.

SEEDS_COUNT = 3
"""So many nodes are known to everybody from the start; the others are heard of."""


class SimServices:
    """What runs on each machine beside its host, as the real wiring would put it there: replicas, claims, ledgers."""

    def __init__(self, run: Run, fleet: Declaration, network: Network, names: list[str], *, bus: bool) -> None:
        self._run = run
        self._network = network
        self._names = names
        self.shares = any(plan.shared for plan in fleet.plans.values())
        self.claims = any(plan.ordered for plan in fleet.plans.values())
        self.over_bus = bus and run.chance("company").randrange(3) == 0
        """Whether replicas gossip over the broker, instead of a mesh of their own."""
        self._store = MemoryLedgerStore(fleet.name)
        self.ledgers = {name: MemoryLedgerStore(f"{fleet.name}.{name}") for name in fleet.ledgers}

    def make(self, machine: Machine, host: Host) -> Replication | None:
        """The replication of a machine that is about to start; None if it needs none."""
        if not self.shares and not self.claims and not self.ledgers:
            return None
        name, link, who = machine.name, machine.link, (host, machine.signer, machine.entropy)
        chance = self._run.chance(f"{name}/ledger/{machine.incarnation}/{machine.lives}")
        how = (machine.quality, chance, machine.context)
        ledger = SimLedger(self._store, *how) if self.claims else None
        logs = {one: SimLedger(store, *how) for one, store in self.ledgers.items()}
        if self.over_bus and link is not None:
            return Replication(*who, link=link, ledger=ledger, ledgers=logs)
        self._network.crash(name)  # the node that had the name before
        return Replication(
            *who,
            mesh=self._network.mesh(name, machine.context),
            ledger=ledger,
            ledgers=logs,
            me=describe_this_node(host, name, machine.entropy, "simulated"),
            seeds=self._names[:SEEDS_COUNT],
        )


FOR_S = 30.0
HEAL_S = 120.0
DISKS_MAX = 5
"""So many machines have a simulated disk; the others keep their log in memory, which is a hundred times faster."""
HOLDERS_LOOK_S = 0.05


class Setup(Struct, frozen=True, kw_only=True):
    """What is simulated, apart from the seed and what the test does with it."""

    fleet: Declaration
    agents: Agents = 8
    nodes: Nodes | None = None
    faults: tuple[Fault, ...] = ALL
    keep: tuple[int, ...] | None = None
    """Of the faults that the seed draws only those with these numbers; None for all of them."""
    for_s: float = FOR_S
    """How long work and faults last."""
    until_s: float | None = None
    """Heals at this moment already, although faults were drawn for longer: a failure seen in a shorter run."""
    heal_s: float = HEAL_S
    """How long everything may take to come to its end afterwards."""
    versions: tuple[Declaration, ...] = ()
    """Other versions of the same fleet, which some nodes run."""
    devices: bool = False
    """Whether the fleet's own sensors, actuators and loops run; otherwise all actions are taken by simulated ones."""
    models: Answers = {}
    """What models answer, as functions of their inputs, in a rollout by version; without one, their rule does."""
    policy: LoadedPolicy | None = None
    """What is asked before agents decide; without one nobody is."""
    journal: str | None = None
    """`memory`, `sqlite` or `segments` for all machines; None draws it for each."""
    bus: bool = True
    remembers: bool = True
    """Whether feeds keep what was acknowledged: the evidence of some checkers."""


class Freshness(Struct, frozen=True):
    """That an agent was told something, or has kept it."""

    time_ns: int
    agent: str
    tag: str
    body: bytes


class SimFleet:
    """The machines of one run, the links between them, and what goes wrong."""

    def __init__(self, run: Run, setup: Setup, *, chronicle: bool = False) -> None:
        self.run = run
        self.setup = setup
        self.addresses = name_agents(setup.fleet, setup.agents)
        self.placement = place_agents(self.addresses, setup.nodes)
        named = setup.nodes if isinstance(setup.nodes, Mapping) else self.placement
        self.assigned = {name: Assignment(named[name]) for name in self.placement}  # with what comes later
        names = list(self.placement)
        check_answers(setup.fleet, setup.models, self.addresses)
        self._records: dict[tuple[str, int], SimRecords] = {}
        """What each disk keeps of rollouts, by machine and incarnation."""
        chance = run.chance("fleet")
        self.broker = SimBroker(redeliver_after_s=chance.choice((None, None, 0.5)))
        self.network = Network(run.seed)
        self.links = Links(names, self.broker, self.network)
        self.services = SimServices(run, setup.fleet, self.network, names, bus=setup.bus)
        self.holding = HoldRecorder()
        self.chronicle = Chronicle(self.placement) if chronicle else None
        if self.chronicle is not None:
            self.broker.passed = self._message_passed
        self.on_kept: list[Callable[[Machine, Group], None]] = []
        self.on_carried: list[Callable[[Machine, Order[Any]], None]] = []
        self.up_ns: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
        """Per machine when it ran and was not held up; the last one is open while it runs."""
        self._up_since: dict[str, int] = {}
        self.freshness: dict[str, list[Freshness]] = {}
        """Per machine when which agent had kept which event; only where silence matters."""
        self.maybe_fresh: dict[str, list[Freshness]] = {}
        """The same for what was delivered and is in no log yet."""
        self.starts: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
        """Per machine when it began to start, and when it ran."""
        self._starting: dict[str, int] = {}
        self._watches = any(plan.stale_rules for plan in setup.fleet.plans.values())
        self._follows = self._watches or chronicle
        wants_disk = any(fault.needs == "disk" or fault.name in ("crash", "power") for fault in setup.faults)
        self.machines: dict[str, Machine] = {}
        for place, (name, assigned) in enumerate(self.assigned.items()):
            drawn = run.chance(f"{name}/kind")
            journal = setup.journal or draw_journal(drawn, wants_disk and place < DISKS_MAX)
            version = drawn.choice((setup.fleet, *setup.versions)) if setup.versions else setup.fleet
            self.machines[name] = Machine(
                self,
                name,
                assigned.agents,
                version,
                journal=journal,
                settings=_settings(setup.fleet.settings, drawn.choice((None, 20, 200)) if setup.faults else None),
                broker=self.broker if setup.bus else None,
                quality=self.links.quality[name],
                devices=setup.devices,
                stormy=bool(setup.faults),
                remembers=setup.remembers,
            )
            if self._follows:
                machine = self.machines[name]
                machine.feed.heard = lambda *arrival, machine=machine: self._heard(machine, *arrival)
        self.liars: dict[str, None] = {}
        """Who has ever lied."""
        self._lying: dict[str, None] = {}
        self.lies = Lies()
        versions = (setup.fleet, *setup.versions)
        self.breaking = FaultInjector(
            self._plan(names), self.machines, self.links, versions, self._fault, self._set_lying
        )

    def _plan(self, names: list[str]) -> list[Planned]:
        setup = self.setup
        has = ["disk", *(("versions",) if setup.versions else ())]
        has += ["replicas", "liar"] if self.services.shares else []
        has += ["models"] if setup.models else []
        has += ["policy"] if setup.policy is not None else []
        chance = self.run.chance("plan")
        plan = draw_plan(setup.faults, chance, names, int(setup.for_s * MS), has=has)
        known = {one.number: None for one in plan}
        if unknown := [number for number in setup.keep or () if number not in known]:
            raise ConfigError(
                f"keep {', '.join(map(str, unknown))}: this seed draws {len(plan)} faults, with the numbers "
                f"{min(known, default=0)} to {max(known, default=0)}; take those that a timeline names"
            )
        disks = [machine.name for machine in self.machines.values() if machine.store is None]
        of_disks = {fault.name: None for fault in setup.faults if fault.needs == "disk"}
        plan = [one for one in plan if one.fault not in of_disks or one.node in disks]
        plan = [one for one in plan if one.at_ms < self.lasts_s * MS]
        return plan if setup.keep is None else [one for one in plan if one.number in setup.keep]

    @property
    def lasts_s(self) -> float:
        """How long work and faults last."""
        setup = self.setup
        return setup.for_s if setup.until_s is None else min(setup.for_s, setup.until_s)

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Starts all machines, one after the other."""
        for machine in self.machines.values():
            await machine.run_guarded()
        if self.services.claims:
            self._watch_holders()
        self.breaking.start()
        self.note("", "phase", "everything runs; faults begin")

    def heal(self) -> None:
        """From now on everything works."""
        self.breaking.heal()
        self.run.record("world", "healed")
        self.note("", "phase", "healed: from here on everything works")

    async def stop(self) -> None:
        """Stops all machines in good order."""
        for machine in self.machines.values():
            await machine.retire()
            self.changed(machine, "stopped")

    # ------------------------------------------------------------------ what machines need (Surroundings)

    def connect(self, machine: Machine, broker: MemoryBroker) -> SimBus:
        """The machine's connection to its broker, at a start."""
        if not isinstance(broker, SimBroker):
            raise SimulationError("a simulated fleet has a simulated broker")
        chance = self.run.chance(f"{machine.name}/bus/{machine.incarnation}")
        return SimBus(broker, machine.name, machine.quality, chance, machine.context, self.run.loop.time_ns)

    def make_services(self, machine: Machine, host: Host) -> Sequence[NodeService]:
        """What runs beside the host of a machine, at a start."""
        made = self.services.make(machine, host)
        if made is not None and made.replicas is not None and machine.name in self._lying:
            begin_to_lie(made.replicas, self.setup.fleet.name, machine.signer, self.lies)
        chance = self.run.chance(f"{machine.name}/models/{machine.incarnation}/{machine.lives}")
        models = SimModels(host, self.setup.models, machine.receiver.temper, chance, self._rollouts(machine, host))
        found: list[NodeService] = [] if made is None else [made]
        found += [models] if host.declaration.models else []
        if self.setup.policy is not None:
            chance = self.run.chance(f"{machine.name}/policy/{machine.incarnation}/{machine.lives}")
            found.append(SimPolicy(host, self.setup.policy, machine.receiver.temper, chance))
        return found

    def _rollouts(self, machine: Machine, host: Host) -> SimRollouts | None:
        if KIND not in host.declaration.plans or not host.declaration.models:
            return None
        store = MemoryStore(self.run.store_server, machine.clock)
        self.links.stores[machine.name] = store.line
        self.links.change(machine.name)
        trusted = [one.signer.public_key for one in self.machines.values()]
        records = self._records.setdefault((machine.name, machine.incarnation), SimRecords())
        source = f"{machine.name}/{machine.incarnation}.{machine.lives}"
        return SimRollouts(RecordTrust(trusted, Ed25519Verifier(), machine.signer), store, records, source)

    def kept(self, machine: Machine, group: Group) -> None:
        """A group of commits is durable on a machine."""
        if self._follows:
            self._follow(machine, group)
        if self.services.claims:
            self._look_at_holders()
        for hear in self.on_kept:
            hear(machine, group)

    def carried(self, machine: Machine, order: Order[Any]) -> None:
        """A device of a machine has carried out an order."""
        for hear in self.on_carried:
            hear(machine, order)
        if self.chronicle is not None:
            self.note(machine.name, "order", repr(order.effect), agent=order.agent)

    def changed(self, machine: Machine, what: str) -> None:
        """A machine has started, stopped, crashed or been replaced."""
        now_ns = self.run.loop.time_ns()
        if what == "starting":
            self._starting[machine.name] = now_ns
            return
        if what == "started":
            self._up_since[machine.name] = now_ns
            self.starts[machine.name].append((self._starting[machine.name], now_ns))
        elif machine.name in self._up_since:
            self.up_ns[machine.name].append((self._up_since.pop(machine.name), now_ns))
        elif what == "down":
            return
        if what == "down" and machine.expects_down:
            return
        self.note(machine.name, "life", what)

    def up_of(self, name: str) -> list[tuple[int, int]]:
        """When a machine ran, up to now."""
        since_ns = self._up_since.get(name)
        return [*self.up_ns[name], *([] if since_ns is None else [(since_ns, self.run.loop.time_ns())])]

    # ------------------------------------------------------------------ what is shared and claimed

    def _set_lying(self, name: str, begins: bool) -> None:
        if begins:
            self.liars[name] = self._lying[name] = None
        else:
            self._lying.pop(name, None)
        live = self.machines[name].running
        replicas = None if live is None or live.replication is None else live.replication.replicas
        if replicas is not None and begins:
            begin_to_lie(replicas, self.setup.fleet.name, self.machines[name].signer, self.lies)
        elif replicas is not None:
            tell_the_truth(replicas)

    def apart(self) -> list[str]:
        """Which shared objects are not the same on all honest nodes, although there is no excuse for it.

        What a liar has told two honest nodes stays different. Every honest node must see that, by a divergence or by
        shutting the liar out; and what nobody has lied about is the same.
        """
        replicas = self.replicas()
        honest = {name: held for name, held in replicas.items() if name not in self.lies.objects}
        found = replicas_converge(honest)
        for name in self.lies.objects:
            standings = self.honest_standings()
            unseen = [node for node, shared in standings if not shared.quarantined and name not in shared.diverged]
            apart = replicas_converge({name: replicas.get(name, {})})
            found += [
                f"{one}; a liar is behind it, and {', '.join(unseen)} have not seen it" for one in apart if unseen
            ]
        return found

    def honest_standings(self) -> list[tuple[str, SharedStatus]]:
        """What the nodes that run and never lied say about what they share."""
        found: list[tuple[str, SharedStatus]] = []
        for name, machine in self.machines.items():
            live = machine.running
            replicas = None if live is None or live.replication is None else live.replication.replicas
            if name not in self.liars and replicas is not None:
                found.append((name, replicas.standing()))
        return found

    def keys_of_liars(self) -> list[str]:
        """The keys that nodes which have lied ever signed with."""
        return [self.machines[name].signer.public_key.hex() for name in self.liars]

    def replicas(self) -> dict[str, dict[str, bytes]]:
        """Per shared object and place a digest of what is on disk there."""
        found: dict[str, dict[str, bytes]] = {}
        for name, machine in self.machines.items():
            if name in self.liars:
                continue
            plans = {kind: plan.shared for kind, plan in machine.fleet.plans.items() if plan.shared}
            for state in machine.logbook.states if plans else ():
                for address, agent in state.agents.items():
                    kind, _, agent_id = address.partition("/")
                    for field, shared in plans.get(kind, {}).items():
                        held = found.setdefault(shared.object_of(kind, agent_id), {})
                        held[f"{name} {address}"] = getattr(agent, field).store.digest()
        return found

    def _watch_holders(self) -> None:
        self._look_at_holders()
        self.run.loop.call_later(HOLDERS_LOOK_S, self._watch_holders)

    def _look_at_holders(self) -> None:
        """Asks every node that runs what it believes to hold at this very moment, by its own clock."""
        for name, machine in self.machines.items():
            live = machine.running
            claims = None if live is None or live.replication is None else live.replication.claims
            for belief in () if claims is None else claims.beliefs():
                if belief.holds:
                    self.holding.seen(belief.resource, f"{belief.agent} on {name}", belief.token)
        self.holding.looked(self.run.loop.time_ns())

    # ------------------------------------------------------------------ the timeline

    def note(self, node: str, kind: str, text: str, agent: str = "", peer: str = "", since_ns: int = 0) -> None:
        """Adds to the timeline, if one is kept."""
        if self.chronicle is not None:
            entry = TimelineEntry(self.run.loop.time_ns(), node, kind, text, agent, peer, since_ns)  # type: ignore[arg-type]
            self.chronicle.add(entry)

    def _heard(self, machine: Machine, source: str, first: int, items: list[tuple[str, bytes]]) -> None:
        """Something from outside has reached a machine; what its marks know is no news."""
        now_ns, states = self.run.loop.time_ns(), machine.logbook.states
        known = min(state.marks.consumed(source, 0) for state in states)
        for address, body in items[max(0, known + 1 - first) :]:
            if self._watches:
                self.maybe_fresh.setdefault(machine.name, []).append(Freshness(now_ns, address, tag_of(body), body))
            if self.chronicle is not None:
                self.note(machine.name, "input", shown(body), address)

    def _follow(self, machine: Machine, group: Group) -> None:
        """Goes through what was kept."""
        logbook, now_ns = machine.logbook, self.run.loop.time_ns()
        for sealed in group.commits:
            reading = ShardReading(logbook.states[sealed.shard])
            for kept in walk(logbook.commits[sealed.shard][sealed.position - 1], reading):
                if self._watches:
                    self.freshness.setdefault(machine.name, []).append(
                        Freshness(now_ns, kept.address, kept.tag, kept.body)
                    )
                if self.chronicle is not None and kept.address != SHARD_ADDRESS:
                    self.note(machine.name, "kept", shown(kept.body), kept.address)

    def _fault(self, planned: Planned, begins: bool) -> None:
        self.run.record(planned.node, "fault" if begins else "fault over", [planned.fault, planned.amount])
        for name in planned.node.split(","):
            if planned.fault == "pause" and begins == (name in self._up_since):
                self._pause(name, begins)
            text = f"{planned} (number {planned.number})" if begins else f"{planned.fault} is over"
            self.note(name, "fault", text, since_ns=planned.for_ms * 1_000_000 if begins else 0)

    def _pause(self, name: str, begins: bool) -> None:
        """A machine that is held up does not run, as far as promises go."""
        now_ns = self.run.loop.time_ns()
        if begins:
            self.up_ns[name].append((self._up_since.pop(name), now_ns))
        elif self.machines[name].running is not None:
            self._up_since[name] = now_ns

    def _message_passed(self, sender: str, to: str, sent_ns: int, message: BusMessage) -> None:
        if sender and sender != to:
            _, _, *levels = message.topic.split("/")
            agent = "/".join(levels[1:3]) if levels[0] == AGENTS else ""
            text = " ".join(levels[4:] if agent else levels[-1:])
            self.note(to, "message", text, agent=agent, peer=sender, since_ns=sent_ns)


def _settings(settings: Settings, snapshot_every: int | None) -> Settings:
    """Snapshots at other places than usual: a short run goes through some."""
    if snapshot_every is None:
        return settings
    often = Snapshots(every_events=snapshot_every, every_s=2.0, tail_ratio=0.0, share_max=1.0)
    return structs.replace(settings, snapshots=often)
