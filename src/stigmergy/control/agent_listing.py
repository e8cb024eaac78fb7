"""Lists the agents of a node or of a log, page by page, by conditions on the fields of their durable states.

A condition is a field, an operator and a value: `battery<20`, `mission=M1`, `place.zone!=7`. The value is JSON, or else
a text. Numbers compare with numbers and texts with texts; a value of another type fulfils no condition but `!=`. A
listing looks at all agents, in small pieces, so that the agents go on.
"""

from __future__ import annotations

import asyncio
import heapq
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from stigmergy.agents.display import plain_state
from stigmergy.agents.plans import AgentPlan
from stigmergy.audit.history import agent_in
from stigmergy.base.errors import ConfigError, UnknownKind
from stigmergy.control.protocol import AgentsRequest
from stigmergy.control.replies import AgentsReply, ListedAgent
from stigmergy.node.column_intake import durable_addresses
from stigmergy.node.host import Host
from stigmergy.shard.state import ShardState

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


class AgentSource(Protocol):
    """Where agents are listed from."""

    @property
    def plans(self) -> Mapping[str, AgentPlan]:
        """The kinds of the fleet."""
        ...

    def addresses(self, kind: str | None) -> Iterator[str]:
        """All addresses of a kind, or of all, in no order."""
        ...

    def image(self, address: str) -> Any:
        """An agent as it is on disk; None for one that is not there yet."""
        ...

    def shard_of(self, address: str) -> int:
        """Where it lives."""
        ...

    def stopped(self) -> Mapping[str, str]:
        """Agents that are stopped, and why."""
        ...


async def list_agents(source: AgentSource, request: AgentsRequest) -> AgentsReply:
    """The page that is asked for. Raises ConfigError and UnknownKind."""
    if not 1 <= request.limit <= AGENTS_COUNT_MAX:
        raise ConfigError(f"limit {request.limit}: give 1 to {AGENTS_COUNT_MAX}")
    if request.after and not all(request.after.partition("/")):
        raise ConfigError(f"cursor {request.after[:50]!r}: give the `next` of the page before")
    if len(request.where) > CONDITIONS_MAX:
        raise ConfigError(f"{len(request.where)} conditions, {CONDITIONS_MAX} at most; ask for less")
    conditions = [read_condition(text) for text in request.where]
    _check_fields(_plans(source.plans, request.kind), conditions)
    first: list[_Backwards] = []
    """The smallest addresses so far, as a heap with the largest of them on top; one more than asked for."""
    for seen, address in enumerate(source.addresses(request.kind), start=1):
        if seen % GIVE_WAY_AGENTS == 0:
            await asyncio.sleep(0)
        if address <= request.after or (len(first) > request.limit and address >= first[0].address):
            continue
        agent = source.image(address)
        if agent is None or not all(condition.holds(agent) for condition in conditions):
            continue
        heapq.heappush(first, _Backwards(address))
        if len(first) > request.limit + 1:
            heapq.heappop(first)
    found = sorted(one.address for one in first)
    stopped = source.stopped()
    listed = [
        ListedAgent(address, source.shard_of(address), stopped.get(address), plain_state(source.image(address)))
        for address in found[: request.limit]
    ]
    return AgentsReply(listed, listed[-1].agent if len(found) > request.limit else None)


class _Backwards(Struct, frozen=True):
    """An address that is smaller than those before it in the alphabet, for a heap with the last one on top."""

    address: str

    def __lt__(self, other: _Backwards) -> bool:
        return self.address > other.address


def _plans(plans: Mapping[str, AgentPlan], kind: str | None) -> list[AgentPlan]:
    if kind is not None and kind not in plans:
        raise UnknownKind(f"{kind!r} is no agent kind here; there are {', '.join(plans)}")
    return list(plans.values()) if kind is None else [plans[kind]]


def _check_fields(plans: list[AgentPlan], conditions: list[Condition]) -> None:
    """A field that is misspelt would find nothing, and nobody would know why."""
    known = dict.fromkeys(name for plan in plans for name in plan.cls.__struct_fields__)
    for condition in conditions:
        if condition.path[0] not in known:
            raise ConfigError(f"where: no agent here has a field {condition.path[0]!r}; there are {', '.join(known)}")


class FoldedAgents:
    """The agents of shards that were folded to some moment."""

    def __init__(
        self, plans: Mapping[str, AgentPlan], states: Mapping[int, ShardState], shard_of: Callable[[str], int]
    ) -> None:
        self.plans = plans
        self._states = states
        self.shard_of = shard_of

    def addresses(self, kind: str | None) -> Iterator[str]:
        """All addresses of a kind, or of all."""
        for state in self._states.values():
            for compiled, table in state.tables.items():
                if kind in (None, compiled):
                    yield from (f"{compiled}/{table.name(row)}" for row in range(len(table)))
            yield from (one for one in state.agents if kind is None or one.partition("/")[0] == kind)

    def image(self, address: str) -> Any:
        """An agent; None for one that is not there."""
        return agent_in(self._states[self.shard_of(address)], address)

    def stopped(self) -> Mapping[str, str]:
        """Agents that are stopped, and why."""
        return {address: why for state in self._states.values() for address, why in state.stopped.items()}


class LiveAgents:
    """The agents of a running node."""

    def __init__(self, host: Host, stopped: Callable[[], Mapping[str, str]]) -> None:
        """`stopped` says which agents are stopped, and why."""
        self._host = host
        self.plans = host.declaration.plans
        self.image = host.durable_image
        self.shard_of = host.intake.shard_of
        self.stopped = stopped

    def addresses(self, kind: str | None) -> Iterator[str]:
        """All addresses of a kind. Lists are made first: between two of them the node goes on."""
        for shard in self._host.shards:
            for compiled in shard.state.tables:
                if kind in (None, compiled):
                    yield from durable_addresses(shard.state, compiled)
            for address in list(shard.state.agents):
                if kind is None or address.partition("/")[0] == kind:
                    yield address


def _typed(value: Any) -> tuple[type, Any]:
    """In Python True equals 1; in JSON it does not."""
    return (bool if isinstance(value, bool) else float if isinstance(value, int | float) else type(value), value)


def _is_comparable(found: Any, value: Any) -> bool:
    if isinstance(found, bool) or isinstance(value, bool):
        return False
    both = (found, value)
    return all(isinstance(one, int | float) for one in both) or all(isinstance(one, str) for one in both)
