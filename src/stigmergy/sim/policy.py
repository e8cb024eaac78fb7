"""The policy of a simulated node: the service of a real one, asked without a thread, with faults drawn from the seed.

A ruling must depend on its document alone: a policy that asks a clock or for randomness cannot be replayed.
"""

from __future__ import annotations

import random

from stigmergy.base.errors import PolicyFailed
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.node.device_tasks import Inline
from stigmergy.node.host import Connections, Host
from stigmergy.policy.bundle import PolicyBundle, PolicyRules
from stigmergy.policy.engine import Load, LoadedPolicy, PolicyAnswer
from stigmergy.policy.place import PolicyStore
from stigmergy.policy.service import NodePolicy
from stigmergy.sim.devices import Temper
from stigmergy.store.port import Objects

DIGEST = b"simulated" + bytes(23)


class SimPolicyEngine:
    """A PolicyEngine that answers at once, or is late or fails as the simulation wants."""

    def __init__(self, loaded: LoadedPolicy, temper: Temper, chance: random.Random) -> None:
        self._loaded = loaded
        self._temper = temper
        self._chance = chance

    def ask(self, document: bytes) -> PolicyAnswer:
        """Rules on a document. Raises PolicyFailed."""
        if self._temper.policy_fail > 0 and self._chance.random() < self._temper.policy_fail:
            raise PolicyFailed(self._chance.choice(("the engine gave no ruling in time", "the engine failed")))
        return self._loaded.ask(document)

    def close(self) -> None:
        """There is nothing to close."""


class SimPolicy:
    """What a host of a simulated machine is told to ask."""

    def __init__(self, host: Host, policy: LoadedPolicy, temper: Temper, chance: random.Random) -> None:
        def engine(loaded: LoadedPolicy, _load: Load, _within_s: float) -> SimPolicyEngine:
            return SimPolicyEngine(loaded, temper, chance)

        self._policy = NodePolicy(
            host.declaration.name,
            PolicyStore(_nowhere),
            (),
            Ed25519Verifier(),
            host.clock,
            Inline(),
            host.settings.policy,
            open_engine=engine,
        )
        rules = PolicyRules(host.declaration.name, 1, (("simulated.rego", ""),))
        self._policy.put_in_force(PolicyBundle(rules, DIGEST), policy)

    @property
    def connections(self) -> Connections:
        """What the host calls."""
        return Connections(judge=self._policy.judge)

    async def start(self) -> None:
        """It rules already: a host asks as soon as it starts."""

    async def stop(self) -> None:
        """Nothing of it has to end."""

    async def kill(self) -> None:
        """The same."""


async def _nowhere() -> Objects:
    raise PolicyFailed("a simulated policy has no place")
