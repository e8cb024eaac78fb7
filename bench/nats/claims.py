"""How many claims a second a node gets through a ledger, by the way that ships: desk, signatures, log, fold, verdict.

Agents ask, are granted, give back and ask for the next: two moves for each claim. The host's part is played here, so
that it is the ledger that is measured, and neither the node's journal nor its agents.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from msgspec import Struct

from stigmergy.agents.codec import encode
from stigmergy.agents.ordered import LEDGER, ClaimAsked, ClaimReleased, Granted, Released, read_verdict
from stigmergy.base.errors import StigmergyError
from stigmergy.claims.port import LedgerPort, SignedLedger
from stigmergy.claims.service import ClaimService
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.shard.inputs import EffectSettled
from stigmergy.shard.outbox import Pending

AGENTS = 512
SECONDS = 5.0
WARM_UP_S = 1.0
LEASE_S = 60.0
START_S_MAX = 30.0
SEED = bytes(range(32))


class Figures(Struct, frozen=True):
    """What was measured. Times are from an agent's question to its verdict."""

    claims_per_s: float
    moves_per_s: float
    appends_per_s: float
    moves_per_append: float
    p50_ms: float
    p99_ms: float
    seconds: float
    agents: int


class Claimants:
    """Agents that claim one cell after the other, and the part of their host."""

    def __init__(self, ledger: LedgerPort, agents: int, seed: bytes = SEED) -> None:
        signer, verifier = Ed25519Signer(seed), Ed25519Verifier()
        if isinstance(ledger, SignedLedger):
            ledger.sign_with(signer)
        self._bell = asyncio.Event()
        self._owed: dict[int, tuple[int, int]] = {}
        """By sequence: the agent, and when it asked; 0 for what it gives back."""
        self._sequence = 0
        self._agents = agents
        self._rounds = [0] * agents
        self.granted = 0
        self.waits_ns: list[int] = []
        self.claims = ClaimService(
            ledger,
            signer,
            verifier,
            time.monotonic_ns,
            incarnation=1,
            owes=lambda _shard, sequence: sequence in self._owed,
            wake=self._bell.set,
        )

    async def run(self, until: Callable[[], bool]) -> None:
        """Plays the host until this says that it is enough."""
        while not until():
            for _, told in self.claims.due(time.monotonic_ns()):
                if isinstance(told, EffectSettled) and told.sequence in self._owed:
                    self._settled(told)
            due_ns = self.claims.next_ns
            wait_s = 0.05 if due_ns is None else min(0.05, max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
            try:
                async with asyncio.timeout(wait_s):
                    await self._bell.wait()
            except TimeoutError:
                pass
            self._bell.clear()

    def begin(self) -> None:
        """Every agent asks for the first time."""
        for agent in range(self._agents):
            self._ask(agent)

    def _settled(self, told: EffectSettled) -> None:
        agent, asked_ns = self._owed.pop(told.sequence)
        verdict = read_verdict(told.result) if told.result else None
        if isinstance(verdict, Granted):
            self.granted += 1
            self.waits_ns.append(time.monotonic_ns() - asked_ns)
            self._propose(agent, ClaimReleased(claim="cell", resource=verdict.resource, token=verdict.token), 0)
        elif isinstance(verdict, Released) or verdict is not None:
            self._rounds[agent] += 1
            self._ask(agent)

    def _ask(self, agent: int) -> None:
        cell = f"cell/{agent}/{self._rounds[agent] % 4}"
        self._propose(agent, ClaimAsked(claim="cell", resource=cell, for_s=LEASE_S), time.monotonic_ns())

    def _propose(self, agent: int, effect: ClaimAsked | ClaimReleased, asked_ns: int) -> None:
        self._sequence += 1
        self._owed[self._sequence] = (agent, asked_ns)
        self.claims.propose(0, Pending(1, 1, 0, f"Drone/{agent}", LEDGER, self._sequence, encode(effect)))


async def measure_claims(ledger: LedgerPort, agents: int = AGENTS, seconds: float = SECONDS) -> Figures:
    """Claims through one ledger for so long, by one node."""
    claimants = Claimants(ledger, agents)
    await claimants.claims.start(life=time.time_ns())
    try:
        deadline_s = time.monotonic() + START_S_MAX
        claimants.begin()
        await claimants.run(lambda: claimants.granted >= agents or time.monotonic() > deadline_s)
        if claimants.granted < agents:
            raise StigmergyError(f"the ledger grants nothing: {claimants.claims.standing().why}")
        warm_s = time.monotonic() + WARM_UP_S
        await claimants.run(lambda: time.monotonic() > warm_s)
        claimants.waits_ns.clear()
        granted, before, began_s = claimants.granted, claimants.claims.counters(), time.monotonic()
        await claimants.run(lambda: time.monotonic() - began_s > seconds)
        took_s, after = time.monotonic() - began_s, claimants.claims.counters()
    finally:
        await claimants.claims.stop()
    moves, appends = (after[name] - before[name] for name in ("moves_written", "appends"))
    waits_ns = sorted(claimants.waits_ns) or [0]
    return Figures(
        claims_per_s=(claimants.granted - granted) / took_s,
        moves_per_s=moves / took_s,
        appends_per_s=appends / took_s,
        moves_per_append=moves / max(1, appends),
        p50_ms=waits_ns[len(waits_ns) // 2] / 1e6,
        p99_ms=waits_ns[len(waits_ns) * 99 // 100] / 1e6,
        seconds=took_s,
        agents=agents,
    )


def measure(url: str, *, agents: int = AGENTS, seconds: float = SECONDS, name: str = "bench-claims") -> Figures:
    """Claims through the ledger at a URL, such as `nats://…?replicas=3`, for so long."""
    from stigmergy.nats.ledger import open_ledger

    async def run() -> Figures:
        return await measure_claims(open_ledger(url, name), agents, seconds)

    return asyncio.run(run())


__all__ = ["Figures", "measure", "measure_claims"]
