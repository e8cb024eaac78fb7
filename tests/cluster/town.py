"""A stage for workers in virtual time: several of them on one store and the same logs, with clients, hands and faults.

Each worker is an actor of the loop, so that one can be held up alone (SIGSTOP), cut off from the store and the logs, or
killed. What was acknowledged and what was carried out is written down, and held against the logs at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any

from rigs.memory_peers import MemoryPeerHub, MemoryPeerNetwork
from stigmergy.agents.agent import Agent, decide, evolve, react
from stigmergy.agents.effects import Effects, Events, Order, Tell
from stigmergy.agents.messages import Action, Command, Event
from stigmergy.agents.supervision import SafeAction
from stigmergy.base.errors import ConfigError, JournalError, LinkDown, NotOwned, NotRunning
from stigmergy.cluster.owned_shard import ShardServices, WorkerContext
from stigmergy.cluster.records import WorkerRecord
from stigmergy.cluster.standby import Standby
from stigmergy.cluster.worker import Worker
from stigmergy.journal.memory import MemoryShard, MemoryShardLog
from stigmergy.journal.port import JournalIdentity, ShardLog
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.network.peer_port import Answer
from stigmergy.network.peers import PeerProcesses
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Host
from stigmergy.node.settings import Settings
from stigmergy.shard.homes import shard_of
from stigmergy.sim.loop import ACTOR, SimClock, SimEntropy
from stigmergy.sim.run import Run
from stigmergy.store.memory import MemoryStore, MemoryStoreServer

SHARDS = 6
KEY = bytes(range(32))


class Add(Command):
    number: int


class Added(Event):
    number: int


class Passed(Event):
    by: str
    number: int


class Ring(Action):
    number: int


class Land(Action):
    reason: str = "stopped"


class Meter(Agent):
    numbers: tuple[int, ...] = ()
    passed: tuple[tuple[str, int], ...] = ()

    safe = SafeAction(then=Land())

    @decide
    def add(self, command: Add) -> Events:
        yield Added(number=command.number)

    @evolve
    def added(self, event: Added) -> None:
        self.numbers = (*self.numbers, event.number)

    @react
    def tell(self, event: Added) -> Effects:
        yield Ring(number=event.number)
        if event.number % 3 == 0:
            yield Tell(f"Meter/t{event.number % 5}", Passed(by=self.address, number=event.number))

    @evolve
    def pass_on(self, event: Passed) -> None:
        self.passed = (*self.passed, (event.by, event.number))


class Fleet(Declaration):
    """The same fleet for every worker, with hands that write down who does what."""

    def __init__(self, name: str = "meters", shards: int = SHARDS) -> None:
        super().__init__(name, agents=[Meter], shards=shards)


class MovingNeighbourhood(MemoryPeerNetwork):
    """Who closes it after somebody else has moved in closes nothing."""

    def __init__(self, hub: MemoryPeerHub, process: int, cut: Callable[[], bool]) -> None:
        super().__init__(hub, process)
        self._answer: Answer | None = None
        self._cut = cut

    async def open(self, answer: Answer) -> None:
        # Who was here before may be held up, as may those who called it: nobody waits for them.
        self._hub.cut(self._process)
        self._answer = answer
        await super().open(answer)

    async def connect(self, process: int) -> Any:
        if self._cut():
            raise LinkDown("cut off")
        return await super().connect(process)

    async def close(self) -> None:
        if self._hub.answers.get(self._process) is self._answer:
            self._hub.answers.pop(self._process)
            self._hub.cut(self._process)


class Locked(ShardServices):
    """One that cannot be left in good order."""

    async def stop(self) -> None:
        raise LinkDown("the door is stuck")


class Estate:
    """What one worker needs for its shards."""

    def __init__(self, town: Town, person: Person) -> None:
        self._town = town
        self._person = person

    async def open_log(self, shard: int) -> ShardLog:
        await asyncio.sleep(self._person.slow_s)
        if self._person.is_cut:
            raise LinkDown("cut off")
        log = MemoryShardLog(self._town.shards[shard])
        self._person.logs.append(log)
        return log

    def make_services(self, host: Host, shard: int, claim: int) -> ShardServices:
        hub = MovingNeighbourhood(self._town.hub, shard + 1, lambda: self._person.is_cut)
        if self._person.cannot_make_services:
            raise ConfigError("no chairs")
        kind = Locked if self._person.cannot_leave else ShardServices
        return kind(peers=PeerProcesses(host, hub))


class Person:
    """One worker and its machine."""

    def __init__(self, town: Town, name: str, key: bytes = KEY, trusted: tuple[bytes, ...] = ()) -> None:
        self.town = town
        self.name = name
        self.clock = SimClock(town.run.loop)
        self.store = MemoryStore(town.shelf, self.clock)
        self.entropy = SimEntropy(town.run.seed, name)
        self.logs: list[MemoryShardLog] = []
        self.is_cut = False
        self.cannot_make_services = self.cannot_leave = False
        self.slow_s = 0.0
        """So long it takes this one to open a log."""
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.fleet: Declaration = Fleet(shards=len(town.shards))
        self.fleet.actuator(Ring)(self._ring)
        self.fleet.actuator(Land)(self._land)
        self.key, self.trusted = key, trusted
        self.agents: tuple[str, ...] = ()
        self.settings = Settings(drain_s=2.0)
        self.worker: Worker | None = None
        self.task: asyncio.Task[None] | None = None

    async def _ring(self, order: Order[Ring]) -> None:
        self.town.note(self, "ring", order.key, order.effect.number)

    def _land(self, order: Order[Land]) -> None:
        self.town.note(self, "land", order.key, 0)

    async def start(self, **options: bool) -> None:
        """Begins to work, as an actor of this name."""
        context = copy_context()
        context.run(ACTOR.set, self.name)
        self.task = asyncio.get_running_loop().create_task(self._run(options), context=context)
        await asyncio.sleep(0)

    async def _run(self, options: dict[str, bool]) -> None:
        keys = await self.store.key_value("town")
        means = WorkerContext(
            declaration=self.fleet,
            backend=Estate(self.town, self),
            signer=Ed25519Signer(self.key),
            verifier=Ed25519Verifier(),
            clock=self.clock,
            entropy=self.entropy,
            settings=self.settings,
            trusted=self.trusted,
            agents=self.agents,
        )
        upgrade = options.get("upgrade", False)
        self.worker = Worker(
            keys, means, WorkerRecord(self.name), lambda *said: self.said.append(said), upgrade=upgrade
        )
        await self.worker.run()

    async def stop(self, within_s: float = 60.0) -> None:
        """Hands everything over and ends."""
        assert self.worker is not None
        assert self.task is not None
        self.worker.stop()
        async with asyncio.timeout(within_s):
            await self.task
        self.town.people.pop(self.name)

    async def kill(self) -> None:
        """As kill -9: nothing of it runs any more, and nobody is told."""
        self.town.run.loop.hold(self.name)
        self.town.killed.append(self.town.people.pop(self.name))

    def cut(self, is_cut: bool = True) -> None:
        """Nothing comes through any more, to the store, the logs and the neighbours; or again."""
        self.town.may_land = True
        self.is_cut = self.store.line.cut_off = is_cut
        for log in self.logs:
            log.is_cut = is_cut

    @property
    def owned(self) -> list[int]:
        return [] if self.worker is None else self.worker.owned()

    def events(self, name: str) -> list[dict[str, Any]]:
        return [fields for event, fields in self.said if event == name]


class Town:
    """All of it."""

    def __init__(self, run: Run, shards: int = SHARDS) -> None:
        self.run = run
        self.shelf = MemoryStoreServer(SimClock(run.loop))
        self.hub = MemoryPeerHub()
        self.shards = [MemoryShard(JournalIdentity("meters", shards, 1, (shard, shard))) for shard in range(shards)]
        self.people: dict[str, Person] = {}
        self.killed: list[Person] = []
        self.done: list[tuple[str, str, str, int]] = []
        """Who carried out what, by which key."""
        self.wrong: list[str] = []
        self.acknowledged: dict[str, list[int]] = {}
        self.pauses_s: list[float] = []
        self.counting = True
        self.may_land = False
        """Who cannot write, and is a member still, makes its agents safe."""

    def note(self, person: Person, what: str, key: str, number: int) -> None:
        worker = person.worker
        if worker is None or worker.membership is None or not worker.membership.is_held:
            self.wrong.append(f"{person.name} carried out {what} {key} without a lease")
        self.done.append((person.name, what, key, number))

    async def start(self, *names: str, slow_s: float = 0.0, **options: Any) -> list[Person]:
        people = [Person(self, name, **options) for name in names]
        for person in people:
            person.slow_s = slow_s
            self.people[person.name] = person
            await person.start()
        return people

    def owner(self, shard: int) -> Person | None:
        return next((person for person in self.people.values() if shard in person.owned), None)

    def owners(self) -> list[str]:
        found = [self.owner(shard) for shard in range(len(self.shards))]
        return ["" if person is None else person.name for person in found]

    async def settled(self, within_s: float = 30.0) -> list[str]:
        """Waits until every shard has one owner, and all have the same number of them."""
        held: list[Person] = []
        for _ in range(int(within_s / 0.05)):
            await asyncio.sleep(0.05)
            held = [person for person in self.people.values() if person.worker is not None and person.worker.membership]
            owned = [person.owned for person in held]
            counts = [len(shards) for shards in owned]
            all_owned = sorted(shard for shards in owned for shard in shards) == list(range(len(self.shards)))
            if all_owned and len(held) == len(self.people) and max(counts) - min(counts) <= 1:
                return self.owners()
        raise AssertionError(f"not settled: {[(person.name, person.owned, person.said[-5:]) for person in held]}")

    async def send(self, address: str, number: int) -> None:
        """As a client does: asks whoever has it until there is an answer, with one command id."""
        shard = shard_of(address, len(self.shards))
        began_s = self.run.loop.time()
        while True:
            for person in list(self.people.values()):
                try:
                    assert person.worker is not None
                    live = person.worker.live(shard)
                    async with asyncio.timeout(3):
                        await live.send(address, Add(number=number), command_id=f"{address}-{number}")
                except (NotOwned, NotRunning, JournalError, LinkDown, TimeoutError, AssertionError):
                    continue
                self.acknowledged.setdefault(address, []).append(number)
                self.pauses_s.append(self.run.loop.time() - began_s)
                return
            await asyncio.sleep(0.01)

    async def load(self, address: str) -> None:
        """Sends numbers to one agent, one after the other, until told to stop."""
        number = 0
        while self.counting:
            await self.send(address, number)
            number += 1
            await asyncio.sleep(0.05)

    async def logged(self) -> dict[str, Meter]:
        """The agents as the logs have them."""
        found: dict[str, Meter] = {}
        for shard in self.shards:
            standby = Standby(MemoryShardLog(shard), self.fleet.plans, Ed25519Verifier(), self.fleet.settings.limits)
            await standby.warm()
            found |= standby._state.agents
        return found

    @property
    def fleet(self) -> Declaration:
        return Fleet(shards=len(self.shards))

    async def check(self) -> None:
        """Everything acknowledged is in the logs, once and in order; every effect came, and none without a lease."""
        assert not self.wrong, self.wrong
        agents = await self.logged()
        for address, numbers in self.acknowledged.items():
            assert list(agents[address].numbers) == numbers, address
        marks = dict.fromkeys((key, number) for _, what, key, number in self.done if what == "ring")
        wanted = sorted(number for numbers in self.acknowledged.values() for number in numbers)
        assert sorted(number for _, number in marks) == wanted, "each effect came, and had one key"
        for address, numbers in self.acknowledged.items():
            for target in range(5):
                told = [n for n in numbers if n % 3 == 0 and n % 5 == target]
                heard = agents[f"Meter/t{target}"].passed if f"Meter/t{target}" in agents else ()
                assert [number for by, number in heard if by == address] == told, (address, target)
        landed = [entry for entry in self.done if entry[1] == "land"]
        assert self.may_land or not landed, "nobody needed to be made safe"


def play(main: Callable[[Town], Awaitable[None]], *, seed: int = 1, shards: int = SHARDS, load: int = 6) -> Town:
    """Runs a scene under load, then checks what was acknowledged against the logs."""
    run = Run(seed, shuffle=True)
    town = Town(run, shards)

    async def scene() -> None:
        loads = [asyncio.ensure_future(town.load(f"Meter/{n}")) for n in range(load)]
        await main(town)
        town.counting = False
        await asyncio.gather(*loads)
        await asyncio.sleep(3)  # what was told arrives
        await town.check()
        for person in list(town.people.values()):
            await person.stop()
        for person in town.killed:
            assert person.task is not None
            person.task.cancel()
            run.loop.release(person.name)
            await asyncio.gather(person.task, return_exceptions=True)
        assert not town.wrong

    run.run(scene())
    return town
