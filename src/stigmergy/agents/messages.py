"""Messages: the frozen structs that come in, are kept, and go out. Pure declarations, no behaviour.

An **Input** comes in (a `Command`, or an observed `Event`), an **Event** is kept, an **Effect** goes out. A message
travels as a msgpack map whose first key, `type`, holds its tag: the name and the version of its layout,
`BatteryMeasured@1`. A new field gets a default and keeps the version; a new meaning gets a new version and an upcaster.
Fields have immutable types, so the log, the state and the wire can share a message.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform, get_args

from msgspec import UNSET, Struct, StructMeta, UnsetType, field

from stigmergy.base.errors import DefinitionError
from stigmergy.crdt.replicated import ReplicatedType

# Reads the annotations of classes and methods, and describes what is wrong with them. The first match names the type,
# so specific types come before general ones.

# The first that fits names the type, so what is special comes before what it is a kind of.
_MUTABLE: dict[type, str] = {
    bytearray: "bytearray",
    collections.deque: "deque",
    collections.defaultdict: "defaultdict",
    dict: "dict",
    list: "list",
    set: "set",
    collections.abc.MutableMapping: "dict",
    collections.abc.MutableSequence: "list",
    collections.abc.MutableSet: "set",
}


def first_mutable(hint: Any, _seen: tuple[Any, ...] = ()) -> str | None:
    """The name of the first type inside this annotation that can be changed in place, or None.

    `Any` counts as mutable, because a list decodes into it; so does a struct or dataclass that is not frozen.
    """
    if hint in _seen:
        return None
    _seen = (*_seen, hint)
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return first_mutable(typing.get_args(hint)[0], _seen)
    if origin is typing.ClassVar:
        return None
    if hint is typing.Any or hint is object:
        return "Any"
    cls = origin if isinstance(origin, type) else hint
    if isinstance(cls, type):
        if issubclass(cls, ReplicatedType):
            return None  # whatever is in it: it is read anew each time
        for mutable, name in _MUTABLE.items():
            if issubclass(cls, mutable):
                return name
        if issubclass(cls, Struct) or dataclasses.is_dataclass(cls) or hasattr(cls, "_fields"):
            return _first_mutable_field(cls, _seen)
    for argument in typing.get_args(hint):
        found = first_mutable(argument, _seen)
        if found is not None:
            return found
    return None


def _first_mutable_field(cls: Any, seen: tuple[Any, ...]) -> str | None:
    """What can be changed in a struct, a dataclass or a named tuple."""
    options = getattr(cls, "__struct_config__", None) or getattr(cls, "__dataclass_params__", None)
    if options is not None and not options.frozen:
        return str(cls.__name__)
    for field_hint in resolve_hints(cls, cls.__qualname__).values():
        found = first_mutable(field_hint, seen)
        if found is not None:
            return found
    return None


def is_flat(hint: Any) -> bool:
    """Whether a shallow copy of such a value shares nothing that can be changed in place: `dict[str, int]`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return is_flat(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return all(is_flat(one) for one in arguments)
    if origin in (dict, list, set):
        return all(first_mutable(one) is None for one in arguments)
    return first_mutable(hint) is None


def resolve_hints(thing: Any, name: str) -> dict[str, Any]:
    """The annotations of a class or function as types, also for classes that are defined inside a function."""
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except NameError:
        pass
    own = {thing.__name__: thing} if isinstance(thing, type) else {}
    try:
        return typing.get_type_hints(thing, localns={**_names_of_enclosing_functions(), **own}, include_extras=True)
    except NameError as error:
        raise DefinitionError(
            f"{name}: the annotation names {error.name!r}, which is not defined; define or import it above"
        ) from None


def _names_of_enclosing_functions(depth_max: int = 16) -> dict[str, Any]:
    """Local names that a class body inside a function (a test, a factory) can see; the nearest function wins."""
    names: dict[str, Any] = {}
    frame: types.FrameType | None = sys._getframe(1)
    for _ in range(depth_max):
        if frame is None:
            break
        ours = str(frame.f_globals.get("__name__", "")).startswith(("stigmergy.agents", "stigmergy.shard"))
        if not ours and frame.f_locals is not frame.f_globals:
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names


def plain_name(hint: Any) -> str:
    """An annotation as text without modules: the same whether a class was imported or run as a script."""
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(sorted(plain_name(member) for member in arguments))
    if origin is typing.Literal:
        return f"Literal[{', '.join(repr(value) for value in arguments)}]"
    name = getattr(origin or hint, "__name__", None) or str(hint)
    if not arguments:
        return str(name)
    return f"{name}[{', '.join('...' if one is Ellipsis else plain_name(one) for one in arguments)}]"


def union_members(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the type alone."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def parameters_of(function: Callable[..., Any]) -> list[str]:
    """The names of a function's positional parameters, in order."""
    code = function.__code__
    return list(code.co_varnames[: code.co_argcount])


SECOND_NS = 1_000_000_000


class Keeping(enum.IntEnum):
    """The four promises about what becomes of an event."""

    DURABLE = 0
    WITHIN = 1
    LATEST = 2
    TRANSIENT = 3


class Keep(Struct, frozen=True):
    """How an event type is kept: the promise, and how long its group commit may wait for more."""

    promise: Keeping
    wait_ns: int = 0


durable = Keep(Keeping.DURABLE)
"""On disk before anything is acknowledged or done because of it. The default."""

latest = Keep(Keeping.LATEST, wait_ns=SECOND_NS)
"""Of several in one commit only the newest per agent is kept, where dropping the others changes no state."""

transient = Keep(Keeping.TRANSIENT)
"""Decided and reacted to, never stored; so it may not be evolved."""


def is_number(value: object) -> bool:
    """Whether a program that was not type-checked gave a number."""
    return isinstance(value, int | float)


def within(*, seconds: float) -> Keep:
    """The group commit may wait this long for more events. Effects never wait: an event that causes one is committed at
    once."""
    if not is_number(seconds) or not 0 < seconds <= 3600:
        raise DefinitionError(f"within(seconds={seconds}): give more than 0 and at most 3600 seconds")
    return Keep(Keeping.WITHIN, wait_ns=int(seconds * SECOND_NS))


Category = Literal["sensor", "control", "state", "alert"]
"""The category of an event, for routers and filters outside: a reading, an order, a change, a warning."""
_categories: dict[str, Category] = {}
_raw: dict[str, None] = {}
"""The names of the kinds of events that are marked raw, of any version."""


def is_raw(tag: str) -> bool:
    """Whether events with this tag, or this name, are marked `raw`: they stay on their device unless a rule names
    them."""
    return bool(_raw) and tag.partition("@")[0] in _raw


def any_raw() -> bool:
    """Whether this process knows a raw kind at all."""
    return bool(_raw)


def first_raw(hint: Any) -> str:
    """The name of the first raw kind of event inside this annotation; empty if there is none."""
    if not _raw:
        return ""
    waiting, seen = [hint], list[Any]()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.append(one)
        if isinstance(one, MessageMeta) and (spec := _spec_of(one)) is not None and spec.raw:
            return spec.name
        if isinstance(one, type) and issubclass(one, Struct):
            waiting += resolve_hints(one, one.__qualname__).values()
        waiting += [*typing.get_args(one), *filter(None, (typing.get_origin(one),))]
    return ""


def _spec_of(cls: type) -> MessageSpec | None:
    return getattr(cls, "__message__", None)


def category_of(tag: str) -> Category | None:
    """The declared category of the messages with this tag."""
    return _categories.get(tag)


class MessageSpec(Struct, frozen=True):
    """What the class statement of a message said."""

    tag: str
    name: str
    version: int
    keep: Keep
    category: Category | None = None
    expires_s: float = 0.0
    """For commands: so long after it was sent it may be decided, where it has to travel; 0: see `commands.keep_s`."""
    supersedes: bool = False
    """For commands: a newer one from the same place cancels those to the same agent that are still on the way."""
    raw: bool = False
    """For events: they stay on their device; see `agents.raw`."""
    safety: bool = False
    """For commands: towards safety, as `Land`; no policy is asked about them, so none can stop them."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class MessageMeta(StructMeta):
    """Makes each message class a frozen, tagged struct and checks its fields while it is defined."""

    def __new__(
        mcls,
        class_name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        name: str | None = None,
        version: int = 1,
        keep: Keep | None = None,
        category: Category | None = None,
        expires_s: float | None = None,
        supersedes: bool = False,
        raw: bool = False,
        safety: bool = False,
        **config: Any,
    ) -> Any:
        stable_name = name or class_name
        check_version(class_name, version)
        if "@" in str(stable_name) or not is_text(stable_name):
            raise DefinitionError(f"{class_name}: name={stable_name!r}; a name has no '@', the version is added to it")
        if category is not None and category not in get_args(Category):
            raise DefinitionError(f"{class_name}: category={category!r}; give one of {', '.join(get_args(Category))}")
        if keep is not None and not _is_keep(keep):
            raise DefinitionError(f"{class_name}: keep={keep!r}; give durable, within(seconds=…), latest or transient")
        if expires_s is not None or supersedes:
            _check_travel(class_name, bases, expires_s, supersedes)
        _check_safety(class_name, bases, safety)
        raw = raw or any((spec := _spec_of(base)) is not None and spec.raw for base in bases)
        if raw and not any(issubclass(base, Event) for base in bases):
            raise DefinitionError(f"{class_name}: raw=True is for events; {class_name} is none")
        tag = f"{stable_name}@{version}"
        check_defaults(class_name, namespace)
        _check_binding(class_name, bases, namespace)
        # What holds only immutable values is in no cycle, so the garbage collector need not know of it.
        cls: Any = super().__new__(mcls, class_name, bases, namespace, tag=tag, frozen=True, gc=False, **config)
        cls.__message__ = MessageSpec(
            tag, stable_name, version, keep or durable, category, float(expires_s or 0), supersedes, raw, safety
        )
        if category is not None:
            _categories[tag] = category
        check_immutable_fields(cls)
        if raw:
            _raw[stable_name] = None
        elif inside := first_raw(cls):
            _check_holds_raw(cls, inside)
        else:
            _raw.pop(stable_name, None)
        return cls


def _check_holds_raw(cls: Any, inside: str) -> None:
    """What holds raw data is raw itself: an event has to say so, a command would travel, an effect stays."""
    if issubclass(cls, Command):
        raise DefinitionError(f"{cls.__name__} holds {inside}, which is raw, and commands travel; give it numbers")
    if issubclass(cls, Event):
        raise DefinitionError(
            f"{cls.__name__} holds {inside}, which is raw; mark it raw=True too, or take from {inside} what may leave"
        )
    _raw[spec_of(cls).name] = None


EXPIRES_S_MAX = 24 * 3600
"""Ids of commands are remembered for so long: a later repetition could not be told from a new command."""


def _check_travel(class_name: str, bases: tuple[type, ...], expires_s: object, supersedes: object) -> None:
    """The options for the way of a command to an agent on another node."""
    if not any(issubclass(base, Command) for base in bases):
        raise DefinitionError(f"{class_name}: expires_s and supersedes are for commands; {class_name} is none")
    if expires_s is not None and not (isinstance(expires_s, int | float) and 0 < expires_s <= EXPIRES_S_MAX):
        raise DefinitionError(
            f"{class_name}: expires_s={expires_s!r}; give more than 0 and at most {EXPIRES_S_MAX} seconds"
        )
    if not isinstance(supersedes, bool):
        raise DefinitionError(f"{class_name}: supersedes={supersedes!r}; give True or False")


def _check_safety(class_name: str, bases: tuple[type, ...], safety: object) -> None:
    """What no policy can stop is a command."""
    if not isinstance(safety, bool) or (safety and not any(issubclass(base, Command) for base in bases)):
        raise DefinitionError(f"{class_name}: safety={safety!r}; it is for commands, and True or False")


BINDING = "valid_while"
"""The field of an effect with the claim that it is bound to."""


def _check_binding(class_name: str, bases: tuple[type, ...], namespace: Mapping[str, Any]) -> None:
    inherited = any(BINDING in getattr(base, "__struct_fields__", ()) for base in bases)
    if inherited and BINDING in namespace.get("__annotations__", {}):
        raise DefinitionError(f"{class_name}.{BINDING}: every action has this field already; give yours another name")


def is_text(value: object) -> bool:
    """Whether a program that was not type-checked gave a text, with something in it."""
    return isinstance(value, str) and bool(value)


def _is_keep(value: object) -> bool:
    return isinstance(value, Keep)


def check_version(class_name: str, version: object) -> None:
    """Versions are whole numbers from 1 upward."""
    if not isinstance(version, int) or version < 1:
        raise DefinitionError(f"{class_name}: version={version!r}; versions count from 1")


def check_defaults(class_name: str, namespace: Mapping[str, Any]) -> None:
    """A mutable default would be shared by all instances."""
    for name in namespace.get("__annotations__", {}):
        default = namespace.get(name)
        if isinstance(default, list | dict | set | bytearray):
            kind = type(default).__name__
            raise DefinitionError(
                f"{class_name}.{name}: the default {default!r} is mutable and would be shared; "
                f"write field(default_factory={kind}), or use a tuple, frozenset or Mapping"
            )


_INSTEAD = {
    "list": "tuple[X, ...]",
    "deque": "tuple[X, ...]",
    "dict": "Mapping[K, V]",
    "defaultdict": "Mapping[K, V]",
    "set": "frozenset[X]",
    "bytearray": "bytes",
}


def check_immutable_fields(cls: type) -> None:
    """Refuses fields whose type can be changed in place."""
    for name, hint in resolve_hints(cls, cls.__qualname__).items():
        mutable = first_mutable(hint)
        if mutable is not None:
            instead = _INSTEAD.get(mutable, "a struct with frozen=True, or a type of its own")
            raise DefinitionError(
                f"{cls.__qualname__}.{name}: {mutable} can be changed in place, and messages are shared; use {instead}"
            )


class Message(Struct, metaclass=MessageMeta, tag_field="type"):
    """The root of everything with a tag. Subclass Command, Event, Action or Work instead."""

    __message__: ClassVar[MessageSpec]


class Command(Message):
    """An input in the imperative (`StartMission`). An agent may refuse it, with a reason.

    `class SetRoute(Command, expires_s=60, supersedes=True)`: on the way to an agent on another node it is refused if
    it was not decided within 60 s, and cancelled by a newer SetRoute from the same place.

    `class Land(Command, safety=True)`: it leads towards safety, so no policy is asked about it. Give this to commands
    that are harmless from whoever they come, and to no others.
    """


class Event(Message):
    """A fact in the past tense (`MissionStarted`). Observed or decided; once kept, never changed."""


def loaded_events(base: type[Event]) -> Iterator[type[Event]]:
    """All classes of a base that this process has loaded, those of the runtime included."""
    for cls in base.__subclasses__():
        yield cls
        yield from loaded_events(cls)


class FollowedFact(Event):
    """What a service of the node says to an agent, and nobody else may. It is kept whatever the agent's handlers do; a
    `decide` handler for it may add events, once it is part of the state."""


class Effect(Message):
    """What we ask of the world once the events behind it are durable. Subclass Action or Work."""

    __sink__: ClassVar[str] = ""
    """The sink of an effect that a service beside the host carries out; empty for those that the framework knows."""


class Claimed(Struct, frozen=True, kw_only=True):
    """What is known of an agent's claim; `core.claiming.Claim` is the field of an agent with it."""

    field: str = ""
    of: str = ""
    """The resource that is asked for unless a call says otherwise; empty: each call must."""
    resource: str = ""
    """What is held."""
    token: int = 0
    """The fencing token of what is held, or was held last."""
    until_ns: int = 0
    """When the lease ends at the latest, by the agent's own time; RENEWED_NS where it is prolonged by itself; 0:
    nothing is held."""

    @property
    def fencing_token(self) -> int:
        """`token` under the name that tells it from the token of an order."""
        return self.token


class Bindable(Effect, kw_only=True):
    """An effect that may be bound to a claim: it is carried out only while the agent holds that claim."""

    valid_while: Claimed | UnsetType = UNSET
    """`Plug(dock="d2", valid_while=self.dock)`: dropped, and its agent told, if the claim is not held any more when the
    effect is about to be carried out. Not in the bytes of an effect that is bound to nothing."""

    def __repr__(self) -> str:
        shown = [name for name in self.__struct_fields__ if getattr(self, name) is not UNSET]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


class Action(Bindable):
    """An effect that an actuator carries out, and confirms or reports as failed."""


class Work(Bindable):
    """Slow or blocking code that runs elsewhere; the event it returns comes back as an input."""


def own_fields(message: type[Message]) -> tuple[str, ...]:
    """The fields that the class of a message declares: without what it may be bound to."""
    return tuple(name for name in message.__struct_fields__ if name != BINDING)


class Blob(Struct, frozen=True):
    """A large payload by reference: the bytes live in a store under their digest, the event stays small.

    `put` returns it. Keep the Blob itself in events and states: garbage collection finds no other reference.
    """

    digest: bytes
    """BLAKE3 of the bytes."""
    size_bytes: int
    media_type: str = "application/octet-stream"

    @property
    def hex(self) -> str:
        """The digest in hexadecimal, as people and URLs write it."""
        return self.digest.hex()


def spec_of(message: type[Message]) -> MessageSpec:
    """Tag, name, version and keeping of a message class."""
    return message.__message__


Upcaster = Callable[[Any], Message]
_U = TypeVar("_U", bound=Callable[[Any], Message])
_upcasters: dict[type[Message], tuple[type[Message], Upcaster]] = {}


def upcast(convert: _U) -> _U:
    """Declares how an old version of a message becomes a newer one; both types are read off the annotations.

    @upcast
    def battery_1_to_2(old: BatteryMeasuredV1) -> BatteryMeasured: ...
    """
    name = getattr(convert, "__qualname__", repr(convert))
    hints = resolve_hints(convert, name)
    new = hints.pop("return", None)
    old = next(iter(hints.values())) if len(hints) == 1 else None
    if not (isinstance(old, type) and issubclass(old, Message) and isinstance(new, type) and issubclass(new, Message)):
        raise DefinitionError(f"upcast {name}: annotate one message argument and the message it returns")
    before, after = spec_of(old), spec_of(new)
    if before.name != after.name or before.version >= after.version:
        raise DefinitionError(
            f"upcast {name}: goes from {before.tag} to {after.tag}; an upcaster keeps the name and raises the version: "
            f'write class {old.__name__}(…, name="{after.name}", version=1) for the old one and version=2 for the new'
        )
    if old in _upcasters and _upcasters[old][1].__qualname__ != name:
        raise DefinitionError(f"upcast {name}: {before.tag} has an upcaster already, {_upcasters[old][1].__qualname__}")
    _upcasters[old] = (new, convert)
    return convert


def older_versions(message: type[Message]) -> list[type[Message]]:
    """The classes that upcasters carry, in one step or several, to this one; oldest last."""
    found: list[type[Message]] = []
    frontier = [message]
    while frontier:
        target = frontier.pop()
        for old, (new, _) in _upcasters.items():
            if new is target:
                found.append(old)
                frontier.append(old)
    return found


def newer_version(message: type[Message]) -> type[Message] | None:
    """The class that an upcaster carries this one to, if there is an upcaster."""
    step = _upcasters.get(message)
    return None if step is None else step[0]


def to_newest(message: Message) -> Message:
    """Carries a message through its upcasters until there is none. Raises what they raise."""
    while (step := _upcasters.get(type(message))) is not None:
        new, convert = step
        message = convert(message)
        if type(message) is not new:
            raise TypeError(f"{convert.__qualname__} returned {type(message).__name__}, not {new.__name__}")
    return message
