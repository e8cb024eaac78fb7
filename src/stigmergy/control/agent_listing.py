"""Lists the agents of a node, page by page, by conditions on the fields of their durable states.

A condition is a field, an operator and a value: `battery<20`, `mission=M1`, `place.zone!=7`. The value is JSON, or else
a text. Numbers compare with numbers and texts with texts; a value of another type fulfils no condition but `!=`. A
listing looks at all agents, in small pieces, so that the agents go on.
"""

from __future__ import annotations

import asyncio
import heapq
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from stigmergy.agents.display import plain_state
from stigmergy.agents.plans import AgentPlan
from stigmergy.base.errors import ConfigError, UnknownKind
from stigmergy.control.live import Live
from stigmergy.control.protocol import AgentsRequest
from stigmergy.control.replies import AgentsReply, ListedAgent
from stigmergy.node.column_intake import durable_addresses

AGENTS_COUNT_MAX = 1_000
"""So many agents are on one page."""
CONDITIONS_MAX = 16
GIVE_WAY_AGENTS = 200
"""After so many agents the node's other tasks get a turn."""
CONDITION = re.compile(r"(?P<path>[^\W\d]\w*(?:\.\w+)*)(?P<sign><=|>=|!=|=|<|>)(?P<value>.*)", re.DOTALL)
SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
ABSENT = object()


class Condition(Struct, frozen=True):
    """A condition on a field of a state."""

    path: tuple[str, ...]
    sign: str
    value: Any

    def holds(self, agent: Any) -> bool:
        """Whether it holds for this agent."""
        found = getattr(agent, self.path[0], ABSENT)
        if found is not ABSENT:
            found = plain_state(found)
        for name in self.path[1:]:
            found = found.get(name, ABSENT) if isinstance(found, dict) else ABSENT
        if found is ABSENT:
            return False
        if self.sign in ("=", "!="):
            return SIGNS[self.sign](_typed(found), _typed(self.value))
        return _is_comparable(found, self.value) and SIGNS[self.sign](found, self.value)


def read_condition(text: str) -> Condition:
    """Reads `battery<20`. Raises ConfigError."""
    found = CONDITION.fullmatch(text)
    if found is None:
        raise ConfigError(f"where {text!r} is no condition; write FIELD=VALUE, or !=, <, <=, >, >= instead of =")
    try:
        value = msgspec.json.decode(found["value"])
    except msgspec.DecodeError:
        value = found["value"]
    return Condition(tuple(found["path"].split(".")), found["sign"], value)


async def list_agents(live: Live, request: AgentsRequest) -> AgentsReply:
    """The page that is asked for. Raises ConfigError and UnknownKind."""
    if not 1 <= request.limit <= AGENTS_COUNT_MAX:
        raise ConfigError(f"limit {request.limit}: give 1 to {AGENTS_COUNT_MAX}")
    if len(request.where) > CONDITIONS_MAX:
        raise ConfigError(f"{len(request.where)} conditions, {CONDITIONS_MAX} at most; ask for less")
    conditions = [read_condition(text) for text in request.where]
    _check_fields(_plans(live, request.kind), conditions)
    first: list[_Backwards] = []
    """The smallest addresses so far, as a heap with the largest of them on top; one more than asked for."""
    for seen, address in enumerate(_addresses(live, request.kind), start=1):
        if seen % GIVE_WAY_AGENTS == 0:
            await asyncio.sleep(0)
        if address <= request.after or (len(first) > request.limit and address >= first[0].address):
            continue
        agent = live.host.durable_image(address)
        if agent is None or not all(condition.holds(agent) for condition in conditions):
            continue
        heapq.heappush(first, _Backwards(address))
        if len(first) > request.limit + 1:
            heapq.heappop(first)
    found = sorted(one.address for one in first)
    stopped = live.stopped()
    listed = [_listed(live, address, stopped.get(address)) for address in found[: request.limit]]
    return AgentsReply(listed, listed[-1].agent if len(found) > request.limit else None)


class _Backwards(Struct, frozen=True):
    """An address that is smaller than those before it in the alphabet, for a heap with the last one on top."""

    address: str

    def __lt__(self, other: _Backwards) -> bool:
        return self.address > other.address


def _plans(live: Live, kind: str | None) -> list[AgentPlan]:
    plans = live.host.declaration.plans
    if kind is not None and kind not in plans:
        raise UnknownKind(f"{kind!r} is no agent kind here; there are {', '.join(plans)}")
    return list(plans.values()) if kind is None else [plans[kind]]


def _check_fields(plans: list[AgentPlan], conditions: list[Condition]) -> None:
    """A field that is misspelt would find nothing, and nobody would know why."""
    known = dict.fromkeys(name for plan in plans for name in plan.cls.__struct_fields__)
    for condition in conditions:
        if condition.path[0] not in known:
            raise ConfigError(f"where: no agent here has a field {condition.path[0]!r}; there are {', '.join(known)}")


def _addresses(live: Live, kind: str | None) -> Iterator[str]:
    """All addresses of a kind, in no order. Lists are made first: between two of them the node goes on."""
    for shard in live.host.shards:
        for compiled in shard.state.tables:
            if kind in (None, compiled):
                yield from durable_addresses(shard.state, compiled)
        for address in list(shard.state.agents):
            if kind is None or address.partition("/")[0] == kind:
                yield address


def _listed(live: Live, address: str, stopped: str | None) -> ListedAgent:
    return ListedAgent(address, live.host.intake.shard_of(address), stopped, plain_state(live.query(address)))


def _typed(value: Any) -> tuple[type, Any]:
    """In Python True equals 1; in JSON it does not."""
    return (bool if isinstance(value, bool) else float if isinstance(value, int | float) else type(value), value)


def _is_comparable(found: Any, value: Any) -> bool:
    if isinstance(found, bool) or isinstance(value, bool):
        return False
    both = (found, value)
    return all(isinstance(one, int | float) for one in both) or all(isinstance(one, str) for one in both)
