"""What a fleet consists of: its agent classes and its actuator functions. Declared once, run anywhere.

A declaration does nothing by itself. The same one runs on a device, in a program, and in the simulator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import structs

from stigmergy.agents.agent import Agent
from stigmergy.agents.columns import Engine, Say
from stigmergy.agents.ledgers import Ledger, entered_of
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.view import View, plan_of
from stigmergy.base.errors import ConfigError, DefinitionError
from stigmergy.bus.subscriptions import Subscriptions
from stigmergy.devices.equipment import Equipment
from stigmergy.models.model import models_of
from stigmergy.node.mailbox import BLOCK, StreamPolicy
from stigmergy.node.map_layers import MapLayers
from stigmergy.node.settings import Settings
from stigmergy.shard.homes import Homes, ShardKey
from stigmergy.shard.state import plan_agents
from stigmergy.store.blobs import Blobs, current_blobs
from stigmergy.workflows.agent import agents_of, check_targets, events_waited_for
from stigmergy.workflows.definition import Workflow

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
SHARDS_MAX = 4096


def _check_declared(name: object, agents: object, shards: object) -> None:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise DefinitionError(f"fleet {name!r}: a name is 1 to 64 letters, digits, '_', '-' and '.'")
    if not isinstance(shards, int) or not 1 <= shards <= SHARDS_MAX:
        raise DefinitionError(f"fleet {name!r}: shards={shards}; give 1 to {SHARDS_MAX}, once and for all")
    given = agents if isinstance(agents, list | tuple) else ()
    if not given or not all(isinstance(cls, type) and issubclass(cls, Agent) for cls in given):
        raise DefinitionError(f"fleet {name!r}: give at least one agent class in agents=[…], and nothing else")


def _check_options(name: str, settings: object, streams: object) -> None:
    if settings is not None and not isinstance(settings, Settings):
        raise DefinitionError(f"fleet {name!r}: settings={settings!r}; give Settings(…)")
    policies = {} if streams is None else streams
    fit = isinstance(policies, Mapping) and all(
        isinstance(source, str) and isinstance(policy, StreamPolicy) for source, policy in policies.items()
    )
    if not fit:
        raise DefinitionError(
            f"fleet {name!r}: streams={streams!r}; give beginnings of source names with their policies"
        )


def _compiled_of(name: str, agents: Sequence[type[Agent]], compiled: object) -> Sequence[type[Agent]]:
    if isinstance(compiled, bool):
        return agents if compiled else ()
    given = compiled if isinstance(compiled, list | tuple) else (compiled,)
    for cls in given:
        if cls not in agents:
            raise DefinitionError(
                f"fleet {name!r}: compiled={compiled!r}; give True for all agents, or a list of some that agents= has"
            )
    return given


def _checked_views(name: str, views: object) -> tuple[type[View], ...]:
    given = views if isinstance(views, list | tuple) else (views,)
    names: set[str] = set()
    for view in given:
        lower = plan_of(view).name.lower()
        if lower in names:
            raise DefinitionError(f"fleet {name!r}: two views are called {plan_of(view).name}; rename one of them")
        names.add(lower)
    return tuple(given)


def _checked_ledgers(name: str, ledgers: object, plans: Mapping[str, AgentPlan]) -> dict[str, Ledger[Any]]:
    given = ledgers if isinstance(ledgers, list | tuple) else (ledgers,)
    found: dict[str, Ledger[Any]] = {}
    for ledger in given:
        if not isinstance(ledger, Ledger):
            raise DefinitionError(f"fleet {name!r}: ledgers={ledger!r}; give a list of Ledger(…)")
        if ledger.name in found:
            raise DefinitionError(f"fleet {name!r}: two ledgers are called {ledger.name!r}; rename one of them")
        found[ledger.name] = ledger
        for to in ledger.to:
            kind, slash, _ = to.partition("/")
            if not slash or kind not in plans or not plans[kind].handles(entered_of(ledger.entry)):
                handler = f"Entered[{ledger.entry.__name__}]"
                raise DefinitionError(
                    f"{ledger!r}: to={to!r} is no agent of fleet {name!r} with a handler for {handler}; write one, or "
                    "name another agent as Kind/name"
                )
    return found


class Declaration(Equipment, Subscriptions, MapLayers):
    """A fleet: a name, agent classes, and who carries out their actions and slow work."""

    def __init__(
        self,
        name: str,
        *,
        agents: Sequence[type[Agent]],
        shards: int = 1,
        settings: Settings | None = None,
        streams: Mapping[str, StreamPolicy] | None = None,
        compiled: bool | Sequence[type[Agent]] = False,
        shard_by: ShardKey | None = None,
        views: Sequence[type[View]] = (),
        workflows: Sequence[Workflow] = (),
        ledgers: Sequence[Ledger[Any]] = (),
    ) -> None:
        """Declares a fleet. `compiled` names the classes that run as compiled code, or True for all of them: see
        docs/compiled.md for what can be compiled. An agent's shard is a hash of its address, or of what `shard_by` says
        of the address, such as its zone. `name`, `shards` and `shard_by` are for good. `views` are the read models
        that follow its log: see docs/views.md. `workflows` are those whose runs are agents of it: see
        docs/workflows.md. `ledgers` are those of its own that agents propose entries to: see docs/ledger.md."""
        _check_declared(name, agents, shards)
        _check_options(name, settings, streams)
        Equipment.__init__(self)
        Subscriptions.__init__(self)
        MapLayers.__init__(self)
        self.name = name
        self.shards = shards
        self.homes = Homes(shards, shard_by)
        self.settings = settings or Settings()
        self.workflows = tuple(workflows)
        self.plans: dict[str, AgentPlan] = plan_agents(
            (*agents, *agents_of(self.workflows)), events_waited_for(self.workflows)
        )
        for cls in _compiled_of(name, agents, compiled):
            kind = cls.__agent_kind__
            self.plans[kind] = structs.replace(self.plans[kind], engine=self.engine_of(cls))
        self.models = models_of(self.plans.values())
        """By name, those that its agents ask: read from their handlers for the answers."""
        for workflow in self.workflows:
            check_targets(workflow, self.plans)
        self._streams = dict(streams or {})
        self.views = _checked_views(name, views)
        self.ledgers = _checked_ledgers(name, ledgers, self.plans)
        self.receivers: dict[str, Callable[[int], int]] = {}
        """Per sink, asked at start: the highest sequence of this shard's effects that the receiver has confirmed."""

    def engine_of(self, cls: type[Agent]) -> Engine:
        """Reads a class that is to be compiled. A bare declaration has no compiler; a `Fleet` has."""
        raise ConfigError(f"{cls.__qualname__} is to be compiled; declare it in a Fleet, or without compiled=")

    @property
    def blobs(self) -> Blobs:
        """The blobs of the node that runs the calling sensor, actuator or worker; elsewhere NotRunning is raised."""
        return current_blobs()

    @property
    def has_compiled(self) -> bool:
        """Whether some of its agents are compiled."""
        return any(plan.engine is not None for plan in self.plans.values())

    def prepare(self, say: Say) -> None:
        """Compiles what is to be compiled, or loads it from the cache. `say` is told what takes long."""
        for plan in self.plans.values():
            if plan.engine is not None:
                plan.engine.prepare(say)

    def policy_of(self, source: str) -> StreamPolicy:
        """What happens with a source's observed events when the node cannot keep up; the longest prefix decides."""
        if not self._streams:
            return BLOCK
        best = max((prefix for prefix in self._streams if source.startswith(prefix)), key=len, default=None)
        return BLOCK if best is None else self._streams[best]
