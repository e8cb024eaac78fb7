"""What a fleet is made of: its agent classes, and the functions that are its hands. Declared once, run anywhere.

A declaration does nothing by itself. The same one runs on a device, in a program, and in the simulator.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from stigmergy.core.agent import Agent
from stigmergy.core.effects import Order
from stigmergy.core.errors import DefinitionError
from stigmergy.core.messages import Action, Event, Work, spec_of
from stigmergy.core.plans import AgentPlan
from stigmergy.core.state import plan_agents
from stigmergy.runtime.mailbox import BLOCK, StreamPolicy
from stigmergy.runtime.settings import Settings

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
SHARDS_MAX = 4096

ActionT = TypeVar("ActionT", bound=Action)
WorkT = TypeVar("WorkT", bound=Work)
Hand = Callable[[Order[Any]], Awaitable[Event | None] | Event | None]
"""An actuator or worker: given an order, it returns when it is done, or raises."""


class Hands(Struct, frozen=True):
    """Who carries out which effect, by the effect's tag."""

    by_tag: dict[str, tuple[type[Action] | type[Work], Hand]]


class Declaration:
    """A fleet: a name, agent classes, and who carries out their actions and slow work."""

    def __init__(
        self,
        name: str,
        *,
        agents: Sequence[type[Agent]],
        shards: int = 1,
        settings: Settings | None = None,
        streams: Mapping[str, StreamPolicy] | None = None,
    ) -> None:
        if _NAME.fullmatch(name) is None:
            raise DefinitionError(f"fleet {name!r}: a name is 1 to 64 letters, digits, '_', '-' and '.'")
        if not 1 <= shards <= SHARDS_MAX:
            raise DefinitionError(f"fleet {name!r}: shards={shards}; give 1 to {SHARDS_MAX}, once and for all")
        if not agents:
            raise DefinitionError(f"fleet {name!r}: give at least one agent class in agents=[…]")
        self.name = name
        self.shards = shards
        self.settings = settings or Settings()
        self.plans: dict[str, AgentPlan] = plan_agents(agents)
        self._streams = dict(streams or {})
        self._hands: dict[str, tuple[type[Action] | type[Work], Hand]] = {}
        self.receivers: dict[str, Callable[[int], int]] = {}
        """Per sink, asked at start: the highest sequence of this shard's effects that the receiver has confirmed."""

    @property
    def hands(self) -> Hands:
        """The registered actuators and workers."""
        return Hands(dict(self._hands))

    def policy_of(self, source: str) -> StreamPolicy:
        """What happens with a source's observed events when the node cannot keep up; the longest prefix decides."""
        best = max((prefix for prefix in self._streams if source.startswith(prefix)), key=len, default=None)
        return BLOCK if best is None else self._streams[best]

    def actuator(
        self, action: type[ActionT]
    ) -> Callable[[Callable[[Order[ActionT]], Awaitable[None] | None]], Callable[[Order[ActionT]], Any]]:
        """Registers who carries out an action. Returning confirms, raising reports; both come back as inputs."""

        def register(hand: Callable[[Order[ActionT]], Awaitable[None] | None]) -> Callable[[Order[ActionT]], Any]:
            self._register(action, hand)
            return hand

        return register

    def worker(
        self, work: type[WorkT]
    ) -> Callable[[Callable[[Order[WorkT]], Awaitable[Event] | Event]], Callable[[Order[WorkT]], Any]]:
        """Registers who does slow work. The event it returns comes back to the agent as an observed one."""

        def register(hand: Callable[[Order[WorkT]], Awaitable[Event] | Event]) -> Callable[[Order[WorkT]], Any]:
            self._register(work, hand)
            return hand

        return register

    def _register(self, effect: type[Action] | type[Work], hand: Hand) -> None:
        tag = spec_of(effect).tag
        if tag in self._hands:
            raise DefinitionError(f"fleet {self.name!r}: {effect.__name__} has somebody to carry it out already")
        self._hands[tag] = (effect, hand)
