"""Serves a fleet over HTTP: puts the API, its gate and the listener together, and starts and ends them in order."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from stigmergy.base.errors import ConfigError
from stigmergy.base.system import SystemClock, SystemEntropy
from stigmergy.node.declaration import Declaration
from stigmergy.serve.access import AccessGate, Policy, check_listening
from stigmergy.serve.api import Api
from stigmergy.serve.asker import Asker
from stigmergy.serve.listener import Address, HttpListener
from stigmergy.serve.tokens import Tokens


class Serving(Struct, frozen=True):
    """Where to listen, and for whom."""

    address: Address
    tokens: Path
    policy: Policy = Policy()
    insecure: bool = False
    """Whether others may be let in without tokens or TLS."""


class ApiServer:
    """The HTTP API of a fleet, from `start` to `close`."""

    def __init__(self, fleet: Declaration, asker: Asker, serving: Serving) -> None:
        """Raises ConfigError where it must not listen."""
        clock = SystemClock()
        tokens = Tokens(serving.tokens)
        address = serving.address
        why = check_listening(
            address.host,
            tokens,
            clock.wall_ns() / 1e9,
            tls=address.cert is not None,
            insecure=serving.insecure,
        )
        if why:
            raise ConfigError(why)
        gate = AccessGate(tokens, serving.policy, lambda: clock.wall_ns() / 1e9, lambda: clock.monotonic_ns() / 1e9)
        self._asker = asker
        self.api = Api(fleet, asker, gate, SystemEntropy())
        self._listener = HttpListener(self.api, address)

    async def start(self) -> Address:
        """Listens. Raises ConfigError if it cannot."""
        return await self._listener.start()

    async def close(self) -> None:
        """Ends streams, answers what is under way, and asks nobody any more."""
        await self._listener.close()
        await self._asker.close()
