"""Fields that the framework fills: shared and ordered ones, as a class body declares them, and their initial values.

It also fills them where `upcast_state` converts a state. A replica that forgot its changes would reuse their numbers,
and peers treat that as a forgery.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from stigmergy.agents.messages import resolve_hints
from stigmergy.agents.ordered import ORDERED, Claim, OrderedField, OrderedOf
from stigmergy.agents.shared import SHARED, SharedBy, SharedField
from stigmergy.base.errors import DefinitionError
from stigmergy.crdt.errors import CrdtError
from stigmergy.crdt.store import read_store
from stigmergy.crdt.value import SharedValue

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
    for name, field in type(agent).__agent_filled__.items():
        given = getattr(agent, name)
        if isinstance(field, OrderedField):
            setattr(agent, name, _claim_before(field, agent.id, old.get(name)))
        elif isinstance(given, SharedBy):
            setattr(agent, name, field.initial)
        elif not isinstance(given, SharedValue):
            setattr(agent, name, _value_before(field, given))
        elif name in old:
            setattr(agent, name, _value_before(field, old[name]))
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
