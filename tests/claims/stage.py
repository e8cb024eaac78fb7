"""Nodes with claims on one simulated ledger, in virtual time: the host's part is played turn by turn."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from rigs.ledger import LedgerFaults, SimLedger
from stigmergy.agents.codec import encode
from stigmergy.agents.ordered import LEDGER, ClaimAsked, ClaimReleased, Denied, Granted, Verdict, read_verdict
from stigmergy.claims.memory_ledger import MemoryLedgerStore
from stigmergy.claims.service import ClaimService
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.shard.inputs import VerdictCame
from stigmergy.shard.outbox import Pending
from stigmergy.sim.loop import SimClock, SimEntropy, VirtualLoop

CELL = "cell/1"
CALM = LedgerFaults(delay_s_max=0.002)


def simulate(main: Callable[[Stage], Awaitable[None]], seed: int = 1) -> None:
    """Runs a test in virtual time."""
    loop = VirtualLoop(seed=seed, deadline_s=4 * 3600)

    async def run() -> None:
        stage = Stage(loop)
        await main(stage)
        await stage.close()

    loop.run(run())


class Stage:
    """One ledger and whoever uses it."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.store = MemoryLedgerStore("fleet")
        self.nodes: list[Node] = []

    async def node(self, name: str, **options: Any) -> Node:
        node = Node(self, name, **options)
        self.nodes.append(node)
        await node.start()
        return node

    async def close(self) -> None:
        for node in self.nodes:
            await node.stop()


class Node:
    """A node whose agents only listen."""

    def __init__(
        self,
        stage: Stage,
        name: str,
        *,
        life: int = 1,
        key: str = "",
        trusted: tuple[bytes, ...] = (),
        drift_ppm: int = 0,
    ) -> None:
        self.stage = stage
        self.name = name
        self.life = life
        self.trusted = trusted
        self.clock = SimClock(stage.loop)
        self.clock.set_monotonic_drift(drift_ppm)
        self.signer = Ed25519Signer(SimEntropy(1, key or name).token(32))
        self.ledger = SimLedger(stage.store, random.Random(f"{stage.loop.seed}/{name}"), CALM)
        self.claims = self._make()
        self.sequence = 0
        self.owed: dict[int, str] = {}
        self.told: list[tuple[float, str, Verdict | None]] = []
        """When, whom, what; None where an effect was settled without a word."""
        self.steps = True
        """Whether the host has turns."""
        self.takes = True
        """Whether what is told is stepped."""
        self._timer: asyncio.TimerHandle | None = None
        self._soon = False
        self._running = False

    def _make(self) -> ClaimService:
        return ClaimService(
            self.ledger,
            self.signer,
            Ed25519Verifier(),
            self.clock.monotonic_ns,
            incarnation=1,
            owes=lambda _shard, sequence: sequence in self.owed,
            wake=self.wake,
            trusted=self.trusted,
        )

    async def start(self) -> None:
        self._running = True
        await self.claims.start(self.life)
        self.wake()

    async def stop(self) -> None:
        if self._running:
            self._running = False
            await self.claims.stop()
        if self._timer is not None:
            self._timer.cancel()

    async def restart(self) -> None:
        """As after a kill: a new life that knows nothing."""
        await self.claims.kill()
        self.life += 1
        self.owed.clear()
        self.claims = self._make()
        await self.start()

    def ask(
        self,
        agent: str = "Drone/1",
        resource: str = CELL,
        *,
        for_s: float = 5.0,
        wait_s: float = 0.0,
        renew: bool = False,
    ) -> int:
        asked = ClaimAsked(claim="cell", resource=resource, for_s=for_s, wait_s=wait_s, renew=renew)
        return self._propose(agent, encode(asked))

    def release(self, token: int, agent: str = "Drone/1", resource: str = CELL) -> int:
        return self._propose(agent, encode(ClaimReleased(claim="cell", resource=resource, token=token)))

    def _propose(self, agent: str, body: bytes) -> int:
        self.sequence += 1
        self.owed[self.sequence] = agent
        self.claims.propose(0, Pending(1, self.sequence, 0, agent, LEDGER, self.sequence, body))
        return self.sequence

    def wake(self) -> None:
        if not self._soon:
            self._soon = True
            self.stage.loop.call_soon(self.turn)

    def turn(self) -> None:
        self._soon = False
        if not self.steps or not self._running:
            return
        now_ns = self.clock.monotonic_ns()
        for _shard, told in self.claims.due(now_ns):
            if isinstance(told, VerdictCame):
                self.told.append((self.stage.loop.time(), told.agent, read_verdict(told.verdict)))
            elif told.sequence in self.owed:
                agent = self.owed.pop(told.sequence) if self.takes else self.owed[told.sequence]
                verdict = None if told.result is None else read_verdict(told.result)
                self.told.append((self.stage.loop.time(), agent, verdict))
        next_ns = self.claims.next_ns
        if self._timer is not None:
            self._timer.cancel()
        if next_ns is not None:
            self._timer = self.stage.loop.call_later(max(0.0005, (next_ns - now_ns) / 1e9), self.wake)

    async def wait_told(self, count: int = 1, within_s: float = 60.0) -> list[Verdict]:
        """Waits until so many verdicts were told, and returns all of them."""
        deadline_s = self.stage.loop.time() + within_s
        while len(self.verdicts) < count:
            assert self.stage.loop.time() < deadline_s, f"{self.name}: told only {self.told}"
            await asyncio.sleep(0.001)
        return self.verdicts

    async def wait_granted(self) -> Granted:
        """Waits for the next verdict, which must be a grant."""
        told = await self.wait_told(len(self.verdicts) + 1)
        assert isinstance(told[-1], Granted), told[-1]
        return told[-1]

    async def wait_denied(self) -> Denied:
        """Waits for the next verdict, which must be a refusal."""
        told = await self.wait_told(len(self.verdicts) + 1)
        assert isinstance(told[-1], Denied), told[-1]
        return told[-1]

    @property
    def verdicts(self) -> list[Verdict]:
        return [verdict for _, _, verdict in self.told if verdict is not None]
