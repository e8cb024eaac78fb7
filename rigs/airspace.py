"""Agents that contend for cells of airspace through a ledger, under everything that a network and clocks can do.

    outcome = fly(seed=7, Airspace(nodes=20, agents=1_000))
    assert not outcome.violations

Runs the shipping claims (`runtime/claims`) on virtual time. Nodes are cut off from the ledger, crash and come back with
a new life, are held up, have answers lost and entries land late; monotonic clocks run fast and slow by as much as they
may, wall clocks jump, stand still and begin in 1970. At every grant all nodes are asked who may act as the holder of
that cell at this true moment: there is never a second one, and no later grant has a lower token.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from functools import lru_cache

from msgspec import Struct

from rigs.ledger import LedgerFaults, SimLedger
from stigmergy.agents.codec import encode
from stigmergy.agents.ordered import LEDGER, ClaimAsked, ClaimReleased, Denied, Granted, Lost, Released, read_verdict
from stigmergy.claims.memory_ledger import MemoryLedgerStore
from stigmergy.claims.rules import digest, state_bytes
from stigmergy.claims.service import ClaimService, life_of
from stigmergy.claims.state import DRIFT_PPM_MAX
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.shard.inputs import EffectSettled, VerdictCame
from stigmergy.shard.outbox import Pending
from stigmergy.sim.loop import SimClock, SimEntropy, VirtualLoop

FIELD = "cell"
LANDINGS = 3
FAULTS = LedgerFaults(delay_s_max=0.05, refused_share=0.05, unknown_share=0.1, late_share=0.5, late_s_max=5.0)


class Airspace(Struct, frozen=True):
    """How large, how long, how bad."""

    nodes: int = 5
    agents: int = 60
    cells: int = 20
    for_s: float = 30.0
    calm_s: float = 15.0
    """At the end nothing fails any more, and everybody who asks must be answered."""
    faults: LedgerFaults = FAULTS
    cuts_per_node: int = 3
    crashes: int = 4
    holdups: int = 10
    drift_ppm: int = DRIFT_PPM_MAX


class Flight(Struct):
    """What a run has come to."""

    violations: list[str] = []
    grants: int = 0
    denials: int = 0
    losses: int = 0
    released: int = 0
    entries: int = 0
    expired: int = 0
    repeated: int = 0
    cuts: int = 0
    crashes: int = 0
    late_writes: int = 0
    grants_in_the_calm: int = 0
    unanswered: int = 0
    digests: int = 0
    """How many different states the nodes have come to at the end: one, if all is well."""


class _Memo:
    """A verifier for all nodes: the same bytes are the same bytes."""

    def __init__(self) -> None:
        self._inner = Ed25519Verifier()
        self.verify = lru_cache(maxsize=200_000)(self._inner.verify)

    def acceptable(self, algorithm: int, public_key: bytes) -> str | None:
        return self._inner.acceptable(algorithm, public_key)


def fly(seed: int, airspace: Airspace) -> Flight:
    """One run of virtual time."""
    loop = VirtualLoop(seed=seed, deadline_s=airspace.for_s + airspace.calm_s + 600)
    sky = _Sky(seed, airspace, loop)
    loop.run(sky.run())
    return sky.flight


class _Node:
    """A machine with agents: the host's part is played here, turn by turn."""

    def __init__(self, sky: _Sky, number: int, agents: list[str]) -> None:
        self.sky = sky
        self.name = f"node-{number}"
        self.agents = agents
        self.chance = sky.draw(self.name)
        self.clock = SimClock(sky.loop)
        self.clock.set_monotonic_drift(self.chance.choice((-1, 1)) * sky.airspace.drift_ppm)
        self.signer = Ed25519Signer(SimEntropy(sky.seed, self.name).token(32))
        self.epoch = 0
        self.sequence = 0
        self.owed: dict[int, str] = {}
        """Effects without an answer, and whose they are."""
        self.held: dict[tuple[str, str], int] = {}
        """What agents believe to hold: agent and cell, with the token."""
        self.is_held_up = False
        self._timer: asyncio.TimerHandle | None = None
        self._soon = False
        self.ledger: SimLedger
        self.claims: ClaimService

    async def start(self) -> None:
        self.epoch += 1
        faults = self.sky.airspace.faults
        self.ledger = SimLedger(self.sky.store, self.sky.draw(f"{self.name}/{self.epoch}/line"), faults)
        self.claims = ClaimService(
            self.ledger,
            self.signer,
            self.sky.verifier,
            self.clock.monotonic_ns,
            incarnation=1,
            owes=lambda _shard, sequence: sequence in self.owed,
            wake=self.wake,
            trusted=self.sky.keys,
        )
        await self.claims.start(life_of(self.epoch, self.chance.randbytes(4)))
        self.wake()

    async def crash(self) -> None:
        """Nothing survives but the key and the number of starts. Agents have lost what they held."""
        await self.claims.kill()
        await self.ledger.close()
        self.sky.flight.late_writes += self.ledger.late_writes
        self.held.clear()
        self.owed.clear()

    def ask(self, agent: str, cell: str) -> None:
        asked = ClaimAsked(
            claim=FIELD,
            resource=cell,
            for_s=self.chance.uniform(0.5, 4.0),
            wait_s=self.chance.choice((0.0, 0.0, 2.0, 5.0)),
            renew=self.chance.random() < 0.4,
        )
        self._propose(agent, encode(asked))

    def give_back(self, agent: str, cell: str) -> None:
        token = self.held.get((agent, cell), 0)
        if token:
            self._propose(agent, encode(ClaimReleased(claim=FIELD, resource=cell, token=token)))

    def _propose(self, agent: str, body: bytes) -> None:
        self.sequence += 1
        self.owed[self.sequence] = agent
        self.claims.propose(0, Pending(1, self.sequence, 0, agent, LEDGER, self.sequence, body))

    def wake(self) -> None:
        if not self._soon:
            self._soon = True
            self.sky.loop.call_soon(self.turn)

    def turn(self) -> None:
        """What the host does before it steps anything: it tells agents what the ledger and the clock have brought."""
        self._soon = False
        if self.is_held_up:
            return
        now_ns = self.clock.monotonic_ns()
        for _shard, told in self.claims.due(now_ns):
            self._take(told)
        self._check()
        next_ns = self.claims.next_ns
        if self._timer is not None:
            self._timer.cancel()
        if next_ns is not None:
            delay_s = max(0.0005, (next_ns - now_ns) / 1e9)
            self._timer = self.sky.loop.call_later(delay_s, self.wake)

    def _take(self, told: EffectSettled | VerdictCame) -> None:
        agent, body = "", b""
        if isinstance(told, VerdictCame):
            agent, body = told.agent, told.verdict
        else:
            agent = self.owed.pop(told.sequence, "")
            body = told.result or b""
        if not agent or not body:
            return
        flight = self.sky.flight
        match read_verdict(body):
            case Granted(resource=cell, token=token):
                flight.grants += 1
                flight.grants_in_the_calm += self.sky.is_calm
                self.held[agent, cell] = token
                self.sky.granted(self, agent, cell, token)
            case Denied():
                flight.denials += 1
            case Released(resource=cell, token=token):
                flight.released += 1
                if self.held.get((agent, cell)) == token:
                    del self.held[agent, cell]
            case Lost(resource=cell, token=token):
                flight.losses += 1
                if self.held.get((agent, cell)) == token:
                    del self.held[agent, cell]

    def _check(self) -> None:
        """Whoever acts now as a holder is one by the clock of its node."""
        for (agent, cell), token in self.held.items():
            if (agent, token) not in self.claims.believes(cell):
                self.sky.wrong(f"{agent} acts as the holder of {cell} under {token}, and its lease is over")


class _Sky:
    """All nodes, the ledger, and what happens to them."""

    def __init__(self, seed: int, airspace: Airspace, loop: VirtualLoop) -> None:
        self.seed = seed
        self.airspace = airspace
        self.loop = loop
        self.flight = Flight(violations=[])
        self.store = MemoryLedgerStore("airspace")
        self.verifier = _Memo()
        self.keys: tuple[bytes, ...] = ()
        self.is_calm = False
        self._tokens: dict[str, int] = {}
        self.nodes: list[_Node] = []

    def draw(self, stream: str) -> random.Random:
        return random.Random(f"stigmergy.sim.airspace/{self.seed}/{stream}")

    def wrong(self, what: str) -> None:
        if len(self.flight.violations) < 20:
            self.flight.violations.append(f"seed {self.seed}, {self.loop.time():.3f} s: {what}")

    def granted(self, node: _Node, agent: str, cell: str, token: int) -> None:
        """An agent was told that it holds a cell: nobody else may believe so at this true moment."""
        for other in self.nodes:
            for holder, others_token in other.claims.believes(cell):
                if (other, holder) != (node, agent):
                    self.wrong(f"{agent} holds {cell} under {token}, and so does {holder} under {others_token}")
        if token < self._tokens.get(cell, 0):
            self.wrong(f"{cell}: token {token} after {self._tokens[cell]}")
        self._tokens[cell] = token

    async def run(self) -> None:
        airspace = self.airspace
        names = [f"Drone/{number}" for number in range(airspace.agents)]
        self.nodes = [_Node(self, number, names[number :: airspace.nodes]) for number in range(airspace.nodes)]
        self.keys = tuple(node.signer.public_key for node in self.nodes)
        for node in self.nodes:
            await node.start()
        tasks = [asyncio.ensure_future(self._fly(node, agent)) for node in self.nodes for agent in node.agents]
        tasks += [asyncio.ensure_future(self._trouble(node)) for node in self.nodes]
        tasks.append(asyncio.ensure_future(self._crash()))
        await asyncio.sleep(airspace.for_s)
        self.is_calm = True
        for node in self.nodes:
            node.ledger.cut_off, node.is_held_up = False, False
            node.ledger.faults = LedgerFaults()
            node.wake()
        await asyncio.sleep(airspace.calm_s)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for _ in range(LANDINGS):  # what is granted while others give back is given back in the next round
            for node in self.nodes:
                for agent, cell in list(node.held):
                    node.give_back(agent, cell)
            await asyncio.sleep(6.0)
        await self._land()

    async def _land(self) -> None:
        """Everybody has been answered, and everybody has come to the same state."""
        flight = self.flight
        states: dict[bytes, None] = {}
        for node in self.nodes:
            flight.unanswered += len(node.owed)
            counters = node.claims.counters()
            flight.expired = max(flight.expired, counters["ledger_expired"])
            flight.repeated = max(flight.repeated, counters["ledger_repeated"])
            if troubles := node.claims.troubles():
                self.wrong(f"{node.name}: {troubles[0]}")
            states[digest(state_bytes(node.claims.folded))] = None
            flight.late_writes += node.ledger.late_writes
            await node.claims.stop()
        flight.digests = len(states)
        flight.entries = self.store.end
        if flight.unanswered:
            self.wrong(f"{flight.unanswered} questions without an answer, long after everything was well")
        if flight.digests != 1:
            self.wrong(f"the nodes have come to {flight.digests} different states")

    async def _fly(self, node: _Node, agent: str) -> None:
        """Asks for a cell, stays a while, gives it back, or forgets to."""
        chance = self.draw(agent)
        while True:
            await asyncio.sleep(chance.uniform(0.1, 3.0))
            if node.is_held_up or any(holder == agent for holder, _ in node.held):
                continue
            cell = f"cell/{chance.randrange(self.airspace.cells)}"
            node.ask(agent, cell)
            await asyncio.sleep(chance.uniform(0.1, 6.0))
            if chance.random() < 0.6 and not node.is_held_up:
                node.give_back(agent, cell)

    async def _trouble(self, node: _Node) -> None:
        """Cuts, hold-ups, and wall clocks that are wrong in every way."""
        chance = self.draw(f"{node.name}/trouble")
        airspace = self.airspace
        for _ in range(airspace.cuts_per_node):
            await asyncio.sleep(chance.uniform(0.2, airspace.for_s / (airspace.cuts_per_node + 1)))
            if self.is_calm:
                return
            node.ledger.cut_off = True
            self.flight.cuts += 1
            _disturb(node.clock, chance)
            node.is_held_up = chance.random() < airspace.holdups / (airspace.nodes * airspace.cuts_per_node)
            await asyncio.sleep(chance.uniform(0.1, 6.0))
            node.is_held_up = False
            node.wake()
            if chance.random() < 0.5:
                await asyncio.sleep(chance.uniform(0.1, 3.0))
            node.ledger.cut_off = False

    async def _crash(self) -> None:
        chance = self.draw("crashes")
        for _ in range(self.airspace.crashes):
            await asyncio.sleep(chance.uniform(0.5, self.airspace.for_s / (self.airspace.crashes + 1)))
            if self.is_calm:
                return
            node = chance.choice(self.nodes)
            self.flight.crashes += 1
            await node.crash()
            await node.start()


def _disturb(clock: SimClock, chance: random.Random) -> None:
    """What may happen to a wall clock."""
    match chance.randrange(5):
        case 0:
            clock.jump(3600)
        case 1:
            clock.jump(-3600)
        case 2:
            clock.freeze()
        case 3:
            clock.boot_in_1970()
        case _:
            clock.thaw()
