"""What a fleet needs besides its journal (a bus, a ledger), and for which of its fields and agents. Pure.

Without a bus, nothing that agents publish leaves, nothing declared with `listen` or `device` arrives, and replicas of
shared fields in different hosts never meet. Without a ledger no claim is granted. Each of these fails silently, so
check here before you start a host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from stigmergy.agents.agent import Agent
from stigmergy.agents.effects import Publish
from stigmergy.agents.mentions import reactions_mention
from stigmergy.agents.plans import AgentPlan
from stigmergy.base.errors import ConfigError
from stigmergy.node.declaration import Declaration

BUS, LEDGER = "bus", "ledger"
LEADERLESS_S_MAX = 8.0
"""So long the servers may take to elect another leader of a log. There is no setting for it."""
NAMED_MAX = 5
"""A sentence names so many fields of one kind."""


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
    ledgers: tuple[str, ...] = ()
    """Ledgers of its own."""

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
        claimed = _said(self.claims, "is claimed", "are claimed")
        listed = _said(self.ledgers, "is a ledger of it", "are ledgers of it")
        return "; ".join(part for part in (claimed, listed) if part)

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
        ledgers=tuple(fleet.ledgers),
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


def hasty_rules(fleet: Declaration) -> list[str]:
    """What is to be said of staleness rules that are shorter than a log on servers may take to get another leader: what
    sensors say is handled only then."""
    return [
        f"{kind} takes its safe action after {rule.after_s:g} s without {rule.event.__name__}: it will do so whenever "
        f"the server that leads its log dies, because that log then takes nothing for up to {LEADERLESS_S_MAX:g} s; "
        "give WhenStale more, or run these agents on their device or gateway"
        for kind, plan in fleet.plans.items()
        for rule in plan.stale_rules
        if rule.after_s <= LEADERLESS_S_MAX
    ]


def publishes(cls: type[Agent]) -> bool:
    """Whether the reactions of an agent class yield `Publish`, by their code and that of the functions they call.

    Code that finds `Publish` in another way, such as a table of classes, is not seen: then the first message that goes
    nowhere is told by the host that has no bus.
    """
    return any(
        (isinstance(value, type) and issubclass(value, Publish)) or (value is None and name == Publish.__name__)
        for _, name, value in reactions_mention(cls)
    )


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
