"""Shared fields of agents: their declaration, their groups, and the events that change them.

    phase: Shared[LWWRegister[Phase]]                             # shared by this very agent, wherever it runs
    street: Shared[ORMap[str, LWWRegister[Phase]]] = shared(by=street_of)   # one for all agents of a street
    exposure: Shared[ORMap[str, GCounter]] = shared(by="city")    # one for all agents of this kind

A shared field is a replica of an *object*; all agents whose field has the same group hold replicas of the same object.
`decide` writes it by yielding what a mutator returns (`yield self.vehicles.add("V-7")`). The step gives the write its
dot, keeps it as `SharedChanged` and folds it at once; peers get it once it is durable. Writes of peers come as
`Merged`. Both are ordinary events of the agent: a replay ends in the same shared state without asking a peer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, TypeVar

from blake3 import blake3
from msgspec import Struct

from stigmergy.agents.messages import Event
from stigmergy.base.errors import DefinitionError, Malformed, PeerError, SequenceGap, TooLarge
from stigmergy.crdt.bounds import REPLICA_BYTES
from stigmergy.crdt.delta import Edit, read_delta
from stigmergy.crdt.errors import CrdtError, NotContiguous
from stigmergy.crdt.store import EMPTY, ReplicaStore, mint, read_store
from stigmergy.crdt.value import SharedValue

OBJECT_BYTES_MAX = 640 * 1024
"""So large an object may become by an agent's own writes, by the store's own estimate, which is on the safe side."""
STATE_BYTES_MAX = 768 * 1024
"""The state of an object as peers send it. Larger than what one alone may write, because several write at once. It must
fit into a commit, because a replica that was away for long takes it whole."""
DELTAS_BYTES_MAX = 64 * 1024
"""What a replica takes from peers at once, for one field."""
_SEED_CONTEXT = "stigmergy 2026 seed of replica ids"
_PLACE_CONTEXT = "stigmergy 2026 life of replicas"
_REPLICA_CONTEXT = "stigmergy 2026 replica id"
_GROUP = re.compile(r"[A-Za-z0-9_.:@=~-]{1,128}", re.ASCII)

T = TypeVar("T")
By = Callable[[str], str] | str | None
"""Who shares a field: the agents with this text, those for whose ids the function says the same, or the agent alone."""


class _SharedMark:
    """What tells a shared field from others."""

    def __repr__(self) -> str:
        return "shared"


SHARED = _SharedMark()
Shared = Annotated[T, SHARED]
"""A field that converges: every replica writes it locally, all end up with the same."""


class SharedBy(Struct, frozen=True):
    """What `shared` returns: the place of a default, with the group in it."""

    by: By


def shared(*, by: By = None) -> Any:
    """Declares who shares a field: a text for all agents of this kind, or a function of the agent's id."""
    if by is not None and not callable(by) and not _is_group(by):
        raise DefinitionError(
            f"shared(by={by!r}): give a text of 1 to 128 letters, digits and _.:@=~- or a function from the id of an "
            "agent to one"
        )
    return SharedBy(by)


class SharedField(Struct, frozen=True):
    """A shared field of an agent class."""

    name: str
    by: By
    initial: SharedValue

    def object_of(self, kind: str, agent_id: str) -> str:
        """The name of the object that this field of this agent is a replica of."""
        group = agent_id if self.by is None else self.by if isinstance(self.by, str) else self.by(agent_id)
        if not _is_group(group):
            raise DefinitionError(
                f"{kind}.{self.name}: the function given to shared(by=…) says {group!r} for {agent_id!r}; it must "
                "return a text of 1 to 128 letters, digits and _.:@=~-"
            )
        return f"{kind}.{self.name}/{group}"


def check_groups(fields: dict[str, SharedField], address: str) -> None:
    """Raises PeerError for a new agent that some `shared(by=…)` has no group for: a write to an arbitrary name must not
    create an agent that cannot be shared."""
    kind, _, agent_id = address.partition("/")
    for field in fields.values():
        try:
            field.object_of(kind, agent_id)
        except Exception as error:
            raise PeerError(f"{address} cannot be: who shares its field {field.name} is not known ({error})") from None


def _is_group(group: object) -> bool:
    """A user's function may say anything."""
    return isinstance(group, str) and _GROUP.fullmatch(group) is not None


class SharedChanged(Event, name="stigmergy.SharedChanged"):
    """The agent has written to a shared field; `delta` is what peers get."""

    field: str
    delta: bytes


class Merged(Event, name="stigmergy.Merged"):
    """Peers have written to a shared field: read it as `self.<field>`. Either changes, or the object's whole state."""

    field: str
    deltas: tuple[bytes, ...] = ()
    state: bytes = b""


SHARED_EVENTS = (SharedChanged, Merged)


def replica_seed(fleet: str, public_key: bytes, incarnation: int) -> bytes:
    """What the ids of a node's replicas are made from: nobody with another key can have the same, and a journal that
    was restored or copied, which has another incarnation, has others."""
    name = fleet.encode()
    body = len(name).to_bytes(2, "big") + name + incarnation.to_bytes(8, "big") + public_key
    return blake3(body, derive_key_context=_SEED_CONTEXT).digest()


def replica_incarnation(incarnation: int, place: bytes) -> int:
    """The life that replicas belong to: that of the journal in its place. A copy of it elsewhere is the same journal,
    whose effects keep their ids; but it must not write under the ids of the one that it was copied from.
    """
    if not place:
        return incarnation
    body = incarnation.to_bytes(8, "big") + place
    return int.from_bytes(blake3(body, derive_key_context=_PLACE_CONTEXT).digest(length=8), "big") >> 1


@lru_cache(maxsize=10_000)
def replica_id(seed: bytes, address: str) -> bytes:
    """Under which id an agent writes to its shared fields, on one journal in one place for ever."""
    return blake3(seed + address.encode(), derive_key_context=_REPLICA_CONTEXT).digest(length=REPLICA_BYTES)


class SharedWrites:
    """The writes of one decision: each gets its dot behind those before it, although none is folded yet."""

    def __init__(self, agent: Any, fields: dict[str, SharedField], replica: bytes, now_ns: int) -> None:
        self._agent = agent
        self._fields = fields
        self._replica = replica
        self._now_ns = now_ns
        self._stores: dict[str, ReplicaStore] = {}

    def event(self, edit: Edit) -> SharedChanged:
        """The event that a write becomes. Raises TypeError or TooLarge for one that cannot be."""
        name = edit.field
        if name not in self._fields:
            raise TypeError(f"a write to {name!r}, which is no shared field of {type(self._agent).__name__}")
        before = self._stores.get(name)
        store: ReplicaStore = getattr(self._agent, name).store if before is None else before
        try:
            delta = mint(edit, store, self._replica, self._now_ns)
            self._stores[name] = store.apply(delta)
        except CrdtError as error:
            raise TooLarge(f"{type(self._agent).__name__}.{name}: {error}") from None
        # Several that write at once may pass the bound together: what makes it smaller is always welcome.
        if store.size_bytes < self._stores[name].size_bytes > OBJECT_BYTES_MAX:
            # The exact size depends on the replica's id, which a replay of the log does not have.
            raise TooLarge(
                f"{type(self._agent).__name__}.{name}: an object of more than {OBJECT_BYTES_MAX} bytes; "
                "spread it over several groups with shared(by=…)"
            )
        return SharedChanged(field=name, delta=delta.to_bytes())


def fold_shared(agent: Any, event: SharedChanged | Merged) -> None:
    """Takes a change of a shared field into the agent. Only what was checked before it was kept comes here."""
    value = getattr(agent, event.field, None)
    if not isinstance(value, SharedValue):  # the field was taken out of the class since
        return
    store: ReplicaStore = value.store
    if isinstance(event, SharedChanged):
        store = store.apply(read_delta(event.delta))
    else:
        store = _merged(store, event)
    setattr(agent, event.field, value.with_store(store))


def check_merged(agent: Any, event: Merged) -> Merged | None:
    """The event without what the agent has already; None if nothing is left of it.

    Raises Malformed for bytes that are none of ours, SequenceGap where changes before these are missing.
    """
    value = getattr(agent, event.field, None)
    if not isinstance(value, SharedValue):
        raise Malformed(f"{type(agent).__name__} has no shared field {event.field!r}; peers run another version")
    store: ReplicaStore = value.store
    size_bytes = sum(len(delta) for delta in event.deltas)
    if size_bytes > DELTAS_BYTES_MAX or len(event.state) > STATE_BYTES_MAX:
        raise TooLarge(
            f"{event.field}: changes of {size_bytes} bytes and a state of {len(event.state)}; "
            f"{DELTAS_BYTES_MAX} and {STATE_BYTES_MAX} at most"
        )
    try:
        state = event.state
        whole = _whole(state) if state else EMPTY
        value.check_store(whole)
        if store.context.covers(whole.context):
            state = b""
        else:
            store = store.join(whole)
        kept: list[bytes] = []
        for body in event.deltas:
            delta = read_delta(body)
            value.check(delta)
            following = store.apply(delta)
            if following is not store:
                kept.append(body)
            store = following
    except NotContiguous as error:
        raise SequenceGap(f"{event.field}: {error}; ask for what is missing") from None
    except CrdtError as error:
        raise Malformed(f"{event.field}: {error}") from None
    if not (kept or state):
        return None
    return Merged(field=event.field, deltas=tuple(kept), state=state)


@lru_cache(maxsize=1)
def _whole(state: bytes) -> ReplicaStore:
    """The state of an object that a peer has sent. What is checked first is folded next, and read once for both."""
    return read_store(state)


def _merged(store: ReplicaStore, event: Merged) -> ReplicaStore:
    if event.state:
        store = store.join(_whole(event.state))
    for body in event.deltas:
        store = store.apply(read_delta(body))
    return store
