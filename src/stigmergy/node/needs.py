"""What a fleet needs besides its journal (a bus, a ledger), and for which of its fields and agents. Pure.

Without a bus, nothing that agents publish leaves, nothing declared with `listen` or `device` arrives, and replicas of
shared fields in different hosts never meet. Without a ledger no claim is granted. Each of these fails silently, so
check here before you start a host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

from msgspec import Struct

from stigmergy.agents.agent import Agent
from stigmergy.agents.effects import Publish
from stigmergy.agents.plans import AgentPlan
from stigmergy.base.errors import ConfigError
from stigmergy.node.declaration import Declaration

BUS, LEDGER = "bus", "ledger"
NAMED_MAX = 5
"""A sentence names so many fields of one kind."""
FUNCTIONS_MAX = 10_000
"""So many functions of an agent class are read for what it publishes."""
_CORE = ("stigmergy.agents.", "stigmergy.shard.", "stigmergy.devices.")


class Needs(Struct, frozen=True):
    """What of a fleet needs others. Fields are written `Cart.dock`."""

    shares: tuple[str, ...] = ()
    """Shared fields: their replicas meet over a bus, or over a mesh."""
    publishes: tuple[str, ...] = ()
    """Agent classes that publish. Read from their code: see `publishes`."""
    listens: tuple[str, ...] = ()
    """What is declared to come from a bus or to go to devices on it: patterns, topics, agents that hear of members."""
    claims: tuple[str, ...] = ()
    """Ordered fields: the ledger grants them."""

    @property
    def why_bus(self) -> str:
        """Why a fleet whose shards move needs a bus; empty if it needs none."""
        return "; ".join(part for part in (_said(self.shares, "is shared", "are shared"), self.why_heard) if part)

    @property
    def why_heard(self) -> str:
        """What goes nowhere or never comes without a bus, also on a single node."""
        publish = _said(self.publishes, "publishes", "publish")
        listen = _said(self.listens, "comes by it or leaves by it", "come by it or leave by it")
        return "; ".join(part for part in (publish, listen) if part)

    @property
    def why_ledger(self) -> str:
        """Why it needs a ledger; empty if it needs none."""
        return _said(self.claims, "is claimed", "are claimed")

    def unmet(self, *, bus: bool, ledger: bool) -> dict[str, str]:
        """What a fleet whose shards move lacks, and why it needs that."""
        wanted = {BUS: "" if bus else self.why_bus, LEDGER: "" if ledger else self.why_ledger}
        return {what: why for what, why in wanted.items() if why}


def needs_of(fleet: Declaration, agents: Sequence[str] = ()) -> Needs:
    """What a fleet needs; of these `agents` alone, where a node runs no others ('Cart/c07', 'Cart/*')."""
    kinds = [agent.partition("/")[0] for agent in agents]
    here = [
        plan for kind, plan in fleet.plans.items() if not kinds or kind in kinds or any("*" in one for one in kinds)
    ]
    return Needs(
        shares=_fields(here, lambda plan: plan.shared),
        publishes=tuple(plan.cls.__name__ for plan in here if publishes(plan.cls)),
        listens=tuple(
            dict.fromkeys(
                (
                    *(one.what.text for one in fleet.listens),
                    *(one.what.text for one in fleet.collects),
                    *(one.topic.text for one in fleet.device_events),
                    *(one.topic.text for one in fleet.device_commands_taken),
                    *(one.topic.text for one in fleet.device_orders),
                    *(f"what {address} hears of members" for address in fleet.interested),
                )
            )
        ),
        claims=_fields(here, lambda plan: plan.ordered),
    )


def check_needs(fleet: Declaration, url: str, *, bus: bool, ledger: bool) -> None:
    """Refuses a fleet whose shards move, and that lacks what it needs; `url` is one that could be configured for it.
    Raises ConfigError."""
    if unmet := needs_of(fleet).unmet(bus=bus, ledger=ledger):
        lines = " and ".join(f'{what} = "{url}"' for what in unmet)
        options = " and ".join(f"--{what}" for what in unmet)
        raise ConfigError(
            f"fleet {fleet.name!r} needs {lacking(unmet)}, and this worker has none; write {lines} under [fleet] in "
            f"stigmergy.toml, or give {options}; the same for all its workers"
        )


def lacking(unmet: dict[str, str]) -> str:
    """As a text: a bus (Cart.board is shared) and a ledger (Cart.dock is claimed)."""
    return " and ".join(f"a {what} ({why})" for what, why in unmet.items())


def publishes(cls: type[Agent]) -> bool:
    """Whether the reactions of an agent class yield `Publish`, by their code and that of the functions they call.

    Code that finds `Publish` in another way, such as a table of classes, is not seen: then the first message that goes
    nowhere is told by the host that has no bus.
    """
    reactions = [handlers.react for handlers in cls.__agent_handlers__.values() if handlers.react is not None]
    ahead = [react for react in reactions if isinstance(react, FunctionType)]
    seen: set[CodeType] = set()
    while ahead and len(seen) < FUNCTIONS_MAX:
        function = ahead.pop()
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        for name, value in _mentioned(function, cls):
            if (isinstance(value, type) and issubclass(value, Publish)) or (value is None and name == Publish.__name__):
                return True
            if isinstance(value, FunctionType) and not value.__module__.startswith(_CORE):
                ahead.append(value)
    return False


def _mentioned(function: FunctionType, cls: type[Agent]) -> Iterator[tuple[str, Any]]:
    """All names in a function, with what they stand for; None for an attribute of something that is not known."""
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        for name in code.co_names:
            yield name, function.__globals__.get(name)
            yield "", _function(getattr(cls, name, None))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a cell that is still empty
            yield name, cell.cell_contents


def _function(attribute: Any) -> Any:
    """The function behind a method, a class method or a property."""
    if isinstance(attribute, property):
        return attribute.fget
    return getattr(attribute, "__func__", attribute)


def _fields(plans: Sequence[AgentPlan], of: Callable[[AgentPlan], dict[str, Any]]) -> tuple[str, ...]:
    return tuple(f"{plan.cls.__name__}.{name}" for plan in plans for name in of(plan))


def _said(names: Sequence[str], one: str, several: str) -> str:
    """Cart.dock is claimed; Cart.dock and Lift.door are claimed; the first few and 3 more are claimed."""
    if not names:
        return ""
    shown = [*names[:NAMED_MAX], *([f"{len(names) - NAMED_MAX} more"] if len(names) > NAMED_MAX else [])]
    if len(shown) == 1:
        return f"{shown[0]} {one}"
    return f"{', '.join(shown[:-1])} and {shown[-1]} {several}"
