"""Asks other nodes on the bus, and answers theirs. Question and answer are lines; what they say is not known here.

Each question has an id of its own and is an object of an exchange: asked for again until its answer is here, within
bounds, and answered once. Whoever may publish on the topics of the mesh may ask: the broker decides who does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from stigmergy.base.clock import Entropy
from stigmergy.base.errors import NotRunning, StoreUnavailable, TooLarge
from stigmergy.membership.mesh import Mesh
from stigmergy.network.exchange import AGAIN_S, Exchange

QUESTION = "question/"
QUESTION_BYTES_MAX = 32 * 1024
"""It is in each datagram that asks for a part of its answer."""
ID_BYTES = 8
ANSWER_BYTES_MAX = 17 * 1024 * 1024


class Questions:
    """A node's side. `start` it before the bus opens; `answer` answers the others."""

    def __init__(self, mesh: Mesh, entropy: Entropy) -> None:
        self._exchange = Exchange(mesh, self._find, ANSWER_BYTES_MAX)
        self._entropy = entropy
        self.answer: Callable[[bytes], Awaitable[bytes]] | None = None
        """Raises nothing: a refusal is an answer."""

    async def start(self) -> None:
        """Can be asked from now on."""
        await self._exchange.start()

    async def stop(self) -> None:
        """Answers nobody any more."""
        await self._exchange.stop()

    async def ask(self, node: str, line: bytes, within_s: float) -> bytes:
        """The answer of a node. Raises NotRunning if none came within about this time, and TooLarge."""
        if len(line) > QUESTION_BYTES_MAX:
            raise TooLarge(
                f"a question of {len(line)} bytes to node {node!r}, {QUESTION_BYTES_MAX} at most; ask it there"
            )
        name = f"{QUESTION}{self._entropy.token(ID_BYTES).hex()}/{line.decode()}"
        try:
            found = await self._exchange.get(name, [node], max(1, round(within_s / AGAIN_S)))
        except StoreUnavailable:
            found = None
        if found is None:
            raise NotRunning(f"node {node!r} has not answered within {within_s:g} s; ask again, or ask it there")
        return found

    async def _find(self, name: str) -> bytes | None:
        _, _, line = name.removeprefix(QUESTION).partition("/")
        if self.answer is None or not name.startswith(QUESTION) or not line:
            return None
        return await self.answer(line.encode())
