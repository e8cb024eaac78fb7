"""Typed confirmations of effects: `Done[Plug]`, `Failed[Plug]`, `Woken[NextStep]`.

    @decide
    def plugged(self, done: Done[Plug]) -> Events:
        yield ChargingBegan(dock=done.action.dock)

`Done[Plug]` is an event class of its own, with the tag `stigmergy.Done.Plug@1` and the action in it: the log is
complete, and handlers are found by type as always. An agent with a handler for one gets it instead of `ActionDone`,
`ActionFailed` or `WorkFailed`, which cover all effects without a typed handler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stigmergy.agents.codec import encode
from stigmergy.agents.effects import Woken, event_of
from stigmergy.agents.messages import Action, Event, Work, spec_of
from stigmergy.base.errors import DefinitionError

if TYPE_CHECKING:
    from collections.abc import Container


ActionT = TypeVar("ActionT", bound=Action)
EffectT = TypeVar("EffectT", bound=Action | Work)

if TYPE_CHECKING:

    class _OfAction(Generic[ActionT]):
        """What type checkers see."""

    class _OfEffect(Generic[EffectT]):
        """What type checkers see."""

else:

    class _OfEffect:
        """`Done[Plug]` is a class of its own, made when it is first named."""

        __slots__ = ()

        def __class_getitem__(cls, effect: Any) -> type[Any]:
            return cls if isinstance(effect, TypeVar) else _confirmation_class(cls, effect)

    _OfAction = _OfEffect


class Done(_OfAction[ActionT], Event, name="stigmergy.Done"):
    """An actuator confirmed this action. Annotate a handler with `Done[Plug]`; in a test write `Done(Plug(...))`."""

    action: ActionT
    key: str = ""


class Failed(_OfEffect[EffectT], Event, name="stigmergy.Failed"):
    """An actuator gave up on this action, or a worker on this work, or there is none; `reason` says why."""

    action: EffectT
    key: str = ""
    reason: str = ""


def _confirmation_class(generic: type[Any], effect: Any) -> type[Event]:
    name = generic.__name__
    if generic not in (Done, Failed):
        raise DefinitionError(f"{name}[…]: it says already of what it is; name Done[…] or Failed[…] again")
    if not (isinstance(effect, type) and issubclass(effect, Action | Work)) or effect in (Action, Work):
        shown = getattr(effect, "__name__", repr(effect))
        raise DefinitionError(f"{name}[{shown}]: name the class of one action; ActionDone and ActionFailed are for all")
    if generic is Done and issubclass(effect, Work):
        raise DefinitionError(
            f"Done[{effect.__name__}]: work comes back as the event that its worker returns; write a handler for that"
        )
    spec = spec_of(effect)
    types = {"action": effect, **{field: str for field in generic.__struct_fields__ if field != "action"}}
    return event_of(generic, effect, f"{spec_of(generic).name}.{spec.name}", spec.version, types)


def woken_body(known_tags: Container[str], name: str) -> bytes:
    """What an agent that knows these tags hears of its timer."""
    tag = woken_tag(name)
    return encode({"type": tag, "name": name} if tag in known_tags else Woken(name=name))


def woken_tag(name: str) -> str:
    """The tag of `Woken[…]` for the timer of this name."""
    return f"{spec_of(Woken).name}.{name}@1"


def typed(message: Any) -> Any:
    """The same as an event of its own class: `Done(Plug())` as a `Done[Plug]`. Any other message as it is."""
    if type(message) in (Done, Failed):
        fields = {name: getattr(message, name) for name in message.__struct_fields__}
        return _confirmation_class(type(message), type(message.action))(**fields)
    return message
