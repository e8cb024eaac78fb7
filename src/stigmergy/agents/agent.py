"""Agents: state as fields, behaviour as `decide`, `evolve` and `react` methods. The class definition checks them.

`decide` and `react` read the state and must not change it; only `evolve` changes it. All three are pure: time is
`self.now`, ids and random numbers come in as inputs, and no handler sees an event loop, a disk or a network.
"""

from __future__ import annotations

import dis
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, ClassVar, NoReturn, TypeVar, dataclass_transform

import msgspec
from msgspec import Struct, StructMeta, field

from stigmergy.agents.confirmations import Done, Failed
from stigmergy.agents.effects import Effects, Events, WindowClosed
from stigmergy.agents.messages import (
    SECOND_NS,
    Command,
    Event,
    FollowedFact,
    Keeping,
    Message,
    check_defaults,
    check_version,
    first_mutable,
    parameters_of,
    resolve_hints,
    spec_of,
    union_members,
)
from stigmergy.agents.now import step_time_ns
from stigmergy.agents.ordered import CLAIM_EVENTS, ORDERED, Claim, OrderedField, OrderedOf
from stigmergy.agents.shared import SHARED, SHARED_EVENTS, Merged, SharedBy, SharedField
from stigmergy.agents.supervision import FRAMEWORK_EVENTS
from stigmergy.base.errors import DefinitionError
from stigmergy.crdt.errors import CrdtError
from stigmergy.crdt.store import read_store
from stigmergy.crdt.value import SharedValue

_KIND = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_M = TypeVar("_M")
_D = TypeVar("_D", bound=Callable[[Any, Any], Events])
_E = TypeVar("_E", bound=Callable[[Any, Any], None])
_R = TypeVar("_R", bound=Callable[[Any, Any], Effects])

FACTS: tuple[type[Message], ...] = (*FRAMEWORK_EVENTS, WindowClosed, *SHARED_EVENTS, *CLAIM_EVENTS, FollowedFact)
"""What the framework says itself: nobody else may, and it is kept and folded whatever an agent's handlers do."""

FOLLOWED: tuple[type[Message], ...] = (Merged, *CLAIM_EVENTS, FollowedFact)
"""Facts that an agent may decide something about, once they are part of its state."""


def decide(method: _D) -> _D:
    """Marks the handler that turns an input into events, or rejects a command. It may not change the state."""
    return _marked(method, "decide")


def evolve(method: _E) -> _E:
    """Marks the handler that folds an event into the state. It does nothing else."""
    return _marked(method, "evolve")


def react(method: _R) -> _R:
    """Marks the handler that asks for effects once an event is part of the state. It may not change the state."""
    return _marked(method, "react")


def _marked(method: _M, role: str) -> _M:
    if not isinstance(method, FunctionType):
        raise DefinitionError(f"@{role} marks {method!r}: put it directly above a method that is written with def")
    method.__stigmergy_role__ = role  # type: ignore[attr-defined]
    return method


class Rejection(Exception):
    """How a `decide` handler refuses a command. Raised by `reject`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def reject(reason: str) -> NoReturn:
    """Refuses the command: nothing of it is kept but the refusal itself, and the sender is told the reason."""
    raise Rejection(reason)


# Fields that the framework fills: shared and ordered ones, as a class body declares them, and their initial values.
#
# It also fills them where `upcast_state` converts a state. A replica that forgot its changes would reuse their numbers,
# and peers treat that as a forgery.

Filled = SharedField | OrderedField
_WORDS = ("Shared", "Ordered", "Annotated", "Claim", "Counter", "Register", "Flag", "ORSet", "ORMap")
"""One of them is in the annotation of a field that is filled, or would be by mistake."""
NOTHING = object()
"""Stands for the default that a field does not have."""


def fill_in(class_name: str, namespace: dict[str, Any]) -> dict[str, Filled]:
    """Gives the shared and ordered fields of a class body their first values; returns how each was declared."""
    annotations = {
        name: hint
        for name, hint in namespace.get("__annotations__", {}).items()
        if _may_be_filled(hint, namespace.get(name, NOTHING))
    }
    # Only those: others may name what is defined further down.
    declared = type(class_name, (), {"__annotations__": annotations, "__module__": namespace.get("__module__")})
    found: dict[str, Filled] = {}
    for name, hint in resolve_hints(declared, class_name).items():
        marks = getattr(hint, "__metadata__", ())
        if SHARED in marks:
            shared = found[name] = _shared(class_name, name, typing.get_args(hint)[0], namespace)
            namespace[name] = shared.initial
        elif ORDERED in marks:
            found[name] = _ordered(class_name, name, typing.get_args(hint)[0], namespace)
            namespace[name] = Claim(field=name)
        else:
            _check_has_no_filled(class_name, name, hint)
    _check_declared_by(class_name, namespace)
    return found


def with_inherited(cls: type, filled: dict[str, Filled], namespace: Mapping[str, Any]) -> dict[str, Filled]:
    """The filled fields of a class and of those it inherits from; its own declaration of a field is the one."""
    found: dict[str, Filled] = {}
    for base in reversed(cls.__mro__[1:]):
        own = vars(base).get("__annotations__", {})
        found |= {name: field for name, field in getattr(base, "__agent_filled__", {}).items() if name in own}
    for name in found:
        if name in namespace and name not in filled:
            raise DefinitionError(
                f"{cls.__qualname__}.{name}: a base class has it as a shared or ordered field; choose another name"
            )
    return found | filled


def _may_be_filled(hint: Any, default: Any) -> bool:
    """Whether it is worth a look. A text may be an alias of anything; but a field that is filled has no default."""
    if default is NOTHING or isinstance(default, SharedBy | OrderedOf):
        return "ClassVar" not in str(hint)
    return not isinstance(hint, str) or any(word in hint for word in _WORDS)


def _check_has_no_filled(class_name: str, name: str, hint: Any) -> None:
    """A shared or ordered field without its annotation, or nested in another one, would stay unfilled."""
    cls = typing.get_origin(hint) or hint
    if SHARED in getattr(hint, "__metadata__", ()) or (isinstance(cls, type) and issubclass(cls, SharedValue)):
        raise DefinitionError(
            f"{class_name}.{name}: write {name}: Shared[…], alone, with shared(by=…) or nothing behind"
        )
    if cls is Claim:
        raise DefinitionError(
            f"{class_name}.{name}: write {name}: Ordered[Claim], alone, with ordered(of=…) or nothing"
        )
    for argument in typing.get_args(hint):
        _check_has_no_filled(class_name, name, argument)


def _shared(class_name: str, name: str, hint: Any, namespace: Mapping[str, Any]) -> SharedField:
    by = namespace.get(name, SharedBy(None))
    if not isinstance(by, SharedBy):
        raise DefinitionError(
            f"{class_name}.{name}: a shared field begins empty, everywhere; write shared(by=…) or nothing at all"
        )
    cls = typing.get_origin(hint) or hint
    if not (isinstance(cls, type) and issubclass(cls, SharedValue)):
        raise DefinitionError(
            f"{class_name}.{name}: {getattr(cls, '__name__', cls)} does not converge; share GCounter, PNCounter, "
            "LWWRegister, MVRegister, EnableWinsFlag, DisableWinsFlag, ORSet or ORMap"
        )
    try:
        return SharedField(name=name, by=by.by, initial=cls.empty(hint, name))
    except CrdtError as error:
        raise DefinitionError(f"{class_name}.{name}: {error}") from None


def _ordered(class_name: str, name: str, hint: Any, namespace: Mapping[str, Any]) -> OrderedField:
    of = namespace.get(name, OrderedOf(None))
    if not isinstance(of, OrderedOf) or hint is not Claim:
        raise DefinitionError(
            f"{class_name}.{name}: write {name}: Ordered[Claim], with ordered(of=…) or nothing behind it"
        )
    return OrderedField(name=name, of=of.of)


def _check_declared_by(class_name: str, namespace: Mapping[str, Any]) -> None:
    """`shared` and `ordered` without the annotation would be values like any other, and shared with nobody."""
    for name, value in namespace.items():
        if isinstance(value, SharedBy | OrderedOf):
            kind = "Shared[…]" if isinstance(value, SharedBy) else "Ordered[Claim]"
            raise DefinitionError(f"{class_name}.{name}: annotate it with {kind}")


def carry_filled(agent: Any, old: Mapping[str, Any]) -> None:
    """Puts what the filled fields held before into an agent that `upcast_state` has made from these old fields.

    A shared field of the same name is taken over by itself; one that was renamed, where the upcaster gives it the old
    one as it found it. One that was not there begins empty only where the upcaster says that it is new, by `shared()`:
    it may have been there earlier, been taken out and be back, and what its agent wrote then is only in the log. Raises
    ValueError for that, and for what does not fit the types of today.
    """
    for name, filled in type(agent).__agent_filled__.items():
        given = getattr(agent, name)
        if isinstance(filled, OrderedField):
            setattr(agent, name, _claim_before(filled, agent.id, old.get(name)))
        elif isinstance(given, SharedBy):
            setattr(agent, name, filled.initial)
        elif not isinstance(given, SharedValue):
            setattr(agent, name, _value_before(filled, given))
        elif name in old:
            setattr(agent, name, _value_before(filled, old[name]))
        else:
            raise ValueError(
                f"{name} is shared and was not there; if {type(agent).__agent_kind__} never had a shared field of this "
                f"name, let upcast_state say so with {name}=shared(), and otherwise take another name"
            )


def _value_before(field: SharedField, plain: Any) -> SharedValue:
    try:
        _, body = plain
        store = read_store(body)
        field.initial.check_store(store)
    except (CrdtError, TypeError, ValueError) as error:
        raise ValueError(
            f"{field.name} is not what was shared before ({error}); give a field of another type another name"
        ) from None
    return field.initial.with_store(store)


def _claim_before(field: OrderedField, agent_id: str, plain: Any) -> Claim:
    """What does not fit is as good as not held, and nothing is held after a start in any case."""
    try:
        claim = msgspec.convert(plain, Claim)
    except msgspec.ValidationError:
        claim = Claim()
    return msgspec.structs.replace(claim, field=field.name, of=field.resource_of(agent_id))


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class AgentMeta(StructMeta):
    """Makes each agent class a struct and checks its fields and handlers while it is defined."""

    def __new__(
        mcls,
        class_name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        kind: str | None = None,
        version: int = 1,
        **config: Any,
    ) -> Any:
        _check_kind(class_name, kind or class_name)
        check_version(class_name, version)
        check_defaults(class_name, namespace)
        filled = fill_in(class_name, namespace)
        _check_fields(class_name, bases, namespace)
        # An agent of immutable values is in no cycle, so the garbage collector need not know of it.
        collected = _has_mutable_annotations(namespace) or any(_may_be_in_cycles(base) for base in bases)
        cls: Any = super().__new__(mcls, class_name, bases, namespace, kw_only=True, gc=collected, **config)
        cls.__agent_kind__ = kind or class_name
        cls.__agent_version__ = version
        cls.__agent_filled__ = with_inherited(cls, filled, namespace)
        cls.__agent_handlers__ = collect_handlers(cls)
        return cls


class Handlers(Struct, frozen=True):
    """The methods of an agent class that concern one message type."""

    decide: Callable[[Any, Any], Events] | None = None
    evolve: Callable[[Any, Any], None] | None = None
    react: Callable[[Any, Any], Effects] | None = None


def has_mutable_fields(cls: type) -> bool:
    """Whether a shallow copy of such an agent shares something that can be changed in place."""
    return any(first_mutable(hint) is not None for hint in resolve_hints(cls, cls.__qualname__).values())


def _may_be_in_cycles(base: Any) -> bool:
    return base is not Struct and (not isinstance(base, AgentMeta) or base.__struct_config__.gc)


def _has_mutable_annotations(namespace: Mapping[str, Any]) -> bool:
    """Whether a class body declares a field that can be changed in place; read before there is a class."""
    declared = {"__annotations__": namespace.get("__annotations__", {}), "__module__": namespace.get("__module__")}
    try:
        return has_mutable_fields(type("Declared", (), declared))
    except DefinitionError:
        return True  # said properly, with its place, once the class is there


def _check_kind(class_name: str, kind: object) -> None:
    """The kind is the first half of every address, so it is made of what addresses are made of."""
    if not isinstance(kind, str) or _KIND.fullmatch(kind) is None:
        raise DefinitionError(
            f"{class_name}: {kind!r} is no kind of agent; give kind=… of 1 to 64 letters, digits, '_', '-' and '.'"
        )


def _check_fields(class_name: str, bases: tuple[type, ...], namespace: Mapping[str, Any]) -> None:
    if not any(isinstance(base, AgentMeta) for base in bases):
        return
    for name, hint in namespace.get("__annotations__", {}).items():
        if name in ("id", "now", "address"):
            raise DefinitionError(f"{class_name}.{name}: every agent has {name} already; choose another name")
        if "ClassVar" not in str(hint) and name not in namespace:
            raise DefinitionError(
                f"{class_name}.{name}: a state field needs a default, because an agent exists from its first input; "
                f"write {name}: … = …"
            )


def collect_handlers(cls: Any) -> dict[type[Message], Handlers]:
    """Finds the marked methods of a class, also inherited ones, by the type of message they are annotated with."""
    found: dict[tuple[str, type[Message]], str] = {}
    handlers: dict[type[Message], dict[str, Callable[..., Any]]] = {}
    for method_name in _method_names(cls):
        method = getattr(cls, method_name)
        where = f"{cls.__qualname__}.{method_name}"
        role = getattr(method, "__stigmergy_role__", None)
        if role is None:
            _check_overrides_no_handler(cls, method_name, where)
            continue
        for message in _handled_types(method, role, where, cls.__agent_filled__):
            other = found.get((role, message))
            if other is not None:
                raise DefinitionError(
                    f"{where}: {cls.__qualname__}.{other} handles {message.__name__} with @{role} already; "
                    "merge the two methods, or give them different messages"
                )
            found[role, message] = method_name
            handlers.setdefault(message, {})[role] = method
    return {message: Handlers(**by_role) for message, by_role in handlers.items()}


def _check_overrides_no_handler(cls: type, name: str, where: str) -> None:
    """An override without its mark would silently take the handler away."""
    for base in cls.__mro__:
        role = getattr(vars(base).get(name), "__stigmergy_role__", None)
        if role is not None:
            raise DefinitionError(f"{where}: overrides a handler of {base.__qualname__}; mark it with @{role} as well")


def _method_names(cls: type) -> list[str]:
    """The names of everything defined in the class and its bases, base first, in the order of their definition."""
    names: dict[str, None] = {}
    for base in reversed(cls.__mro__):
        names.update(dict.fromkeys(vars(base)))
    return list(names)


def _handled_types(
    method: Callable[..., Any], role: str, where: str, filled: Mapping[str, Any]
) -> tuple[type[Message], ...]:
    parameters = parameters_of(method)
    if len(parameters) != 2 or method.__code__.co_kwonlyargcount:
        count = len(parameters) + method.__code__.co_kwonlyargcount
        raise DefinitionError(f"{where}: a @{role} handler takes self and one message, not {count} arguments")
    _check_flow(method, role, where)
    hint = resolve_hints(method, where).get(parameters[1])
    if hint is None:
        raise DefinitionError(f"{where}: annotate {parameters[1]!r} with the message that this handler is for")
    members = union_members(hint)
    for member in members:
        _check_handled(member, role, where)
    changed = assigned_attributes(method, parameters[0])
    for name in changed:
        if name in filled:
            raise DefinitionError(
                f"{where}: assigns self.{name}, which the framework fills; yield what its methods return instead"
            )
    if role != "evolve":
        for name in changed:
            raise DefinitionError(
                f"{where}: assigns self.{name}, but a @{role} handler may not change the state; "
                "yield an event and assign in its @evolve handler"
            )
    return members


def _check_flow(method: Callable[..., Any], role: str, where: str) -> None:
    """Handlers are plain functions or generators; one that would never run is refused."""
    flags = method.__code__.co_flags
    if flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise DefinitionError(
            f"{where}: a @{role} handler waits for nothing; take the async away, and yield Work for what is slow"
        )
    if role == "evolve" and flags & inspect.CO_GENERATOR:
        raise DefinitionError(f"{where}: an @evolve handler only assigns; yield effects from a @react handler")


def _check_handled(message: Any, role: str, where: str) -> None:
    wanted = (Command, Event) if role == "decide" else (Event,)
    if not (isinstance(message, type) and issubclass(message, wanted)):
        shown = getattr(message, "__name__", str(message))
        handled = "commands and events: subclass Command or Event" if role == "decide" else "events: subclass Event"
        raise DefinitionError(f"{where}: {shown} is not a message class; @{role} handles {handled}")
    if message in (Done, Failed):
        every = "ActionDone" if message is Done else "ActionFailed"
        raise DefinitionError(
            f"{where}: say of which action: {message.__name__}[Plug], for example; {every} is for all that have none"
        )
    if role == "decide" and issubclass(message, FACTS) and not issubclass(message, FOLLOWED):
        raise DefinitionError(
            f"{where}: {message.__name__} is a fact of the framework and kept in any case; @evolve or @react to it, "
            "and tell yourself what follows from it"
        )
    if role == "evolve" and spec_of(message).keep.promise is Keeping.TRANSIENT:
        raise DefinitionError(
            f"{where}: {message.__name__} is transient, and state made from it would be lost on restart; "
            "yield a kept event from a @decide handler and evolve that"
        )


def assigned_attributes(method: Callable[..., Any], self_name: str) -> list[str]:
    """The attributes of self that this function's code stores or deletes."""
    found: list[str] = []
    code = list(dis.get_instructions(method))
    augmented: list[str] = []
    """Attributes that were read for an assignment like `self.count += 1`."""
    for index, instruction in enumerate(code[1:], start=1):
        before = code[index - 1]
        if instruction.opname == "COPY" and loads(before, self_name):
            augmented.append(code[index + 1].argval)
        if instruction.opname in ("STORE_ATTR", "DELETE_ATTR"):
            swapped = before.opname == "SWAP" and instruction.argval in augmented
            if swapped or loads(before, self_name):
                found.append(str(instruction.argval))
    return found


def loads(instruction: dis.Instruction, name: str) -> bool:
    """Whether the instruction puts this local variable on top of the stack."""
    if not instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
        return False  # what a constant has as its value is no name, and may be an empty tuple
    loaded = instruction.argval[-1] if isinstance(instruction.argval, tuple) else instruction.argval
    return bool(loaded == name)


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class Agent(Struct, metaclass=AgentMeta):
    """The base of all agents. Every field is state and needs a default: an agent exists from its first input."""

    id: str = ""
    """The agent's name: `D-17` of `Drone/D-17`."""

    __agent_kind__: ClassVar[str]
    __agent_version__: ClassVar[int]
    __agent_handlers__: ClassVar[dict[type[Message], Handlers]]
    __agent_filled__: ClassVar[dict[str, Filled]]

    @property
    def now(self) -> float:
        """The time of this step in seconds since 1970. It never goes back, and a replay sees the same."""
        return step_time_ns.get() / SECOND_NS

    @property
    def address(self) -> str:
        """Where others reach this agent: `Drone/D-17`."""
        return f"{self.__agent_kind__}/{self.id}"

    @classmethod
    def upcast_state(cls, version: int, fields: Mapping[str, Any]) -> Any:
        """Carries a snapshot's state of an older `version` over; return None to have the log replayed instead."""
        del version, fields
        return None
