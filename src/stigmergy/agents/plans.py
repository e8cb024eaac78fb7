"""An agent class prepared to run: one plan for each message type, and the decoders for what it may receive.

Built once per class when a fleet is assembled. Mistakes that would show at run time fail here, with a name and a
remedy.
"""

from __future__ import annotations

import dataclasses
import dis
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args, get_origin

import msgspec
from blake3 import blake3
from msgspec import Struct, structs

from stigmergy.agents.agent import FACTS, Agent, Handlers, Rejection, loads
from stigmergy.agents.codec import canonical_bytes, encode, encode_state, explain_undecodable, state_decoder, tag_of
from stigmergy.agents.columns import Engine
from stigmergy.agents.confirmations import Done, Failed, woken_body, woken_tag
from stigmergy.agents.copies import copier, without_shared
from stigmergy.agents.effects import (
    ActionDone,
    ActionFailed,
    Effects,
    Events,
    Tell,
    TellFailed,
    WindowClosed,
    Woken,
    WorkFailed,
)
from stigmergy.agents.ledgers import Proposed
from stigmergy.agents.messages import (
    Command,
    Event,
    FollowedFact,
    Keeping,
    Message,
    newer_version,
    older_versions,
    parameters_of,
    plain_name,
    resolve_hints,
    spec_of,
    to_newest,
    union_members,
)
from stigmergy.agents.ordered import CLAIM_EVENTS, Claim, OrderedField
from stigmergy.agents.shared import SHARED_EVENTS, SharedField
from stigmergy.agents.steps import (
    ACCEPTED,
    OPEN_COUNT_MAX,
    OpenStep,
    StepAsked,
    StepHeard,
    StepRefused,
    Steps,
    StepsClosed,
    StepTaken,
    awaits,
    fits,
)
from stigmergy.agents.supervision import FRAMEWORK_EVENTS, GO_ON, SafeAction, Supervise, WhenStale
from stigmergy.agents.windows import Shape, Window
from stigmergy.base.errors import DefinitionError
from stigmergy.crdt.value import SharedValue

# Converts each plain value of a state to the type of its field: 0 to 0.0 in a float field, True to 1 in an int field.
#
# Otherwise `self.speed = 0` would be an int until a restart and a float afterwards, and the two calculate differently.
# A value of another type, such as a text in a number field, fails the input: a snapshot with it could not be read back.
# The code of a handler is examined once, when the agent is planned, so a handler that cannot go wrong pays nothing.

Classes = tuple[type, ...]
Evolve = Callable[[Any, Any], None]
_PLAIN: Classes = (int, float, str, bytes, bool, type(None))
"""Types whose values can be told from their class alone."""
_ALIKE: tuple[tuple[Classes, type, Callable[[Any], Any]], ...] = (
    ((int,), int, int),
    ((int, float), float, float),
    ((str,), str, str.__str__),
    ((bytes, bytearray, memoryview), bytes, bytes),
)
"""Values of which classes are read back as which plain type, and how it is made of them; the first that fits counts."""


def plain_fields(cls: type[Any]) -> dict[str, Classes]:
    """The fields of a class that hold plain values only: numbers, texts, bytes, booleans or nothing."""
    found: dict[str, Classes] = {}
    for name, hint in resolve_hints(cls, cls.__qualname__).items():
        members = union_members(hint)
        if name in cls.__struct_fields__ and all(member in _PLAIN for member in members):
            found[name] = members
    return found


def keep_types(evolve: Evolve, cls: type[Agent], message: type[Message]) -> Evolve:
    """The handler, followed by whatever it takes that each plain value it may have assigned has a type of its field."""
    doubtful = _doubtful_fields(evolve, cls, message)
    if not doubtful:
        return evolve
    fields = tuple(doubtful.items())

    def evolve_typed(agent: Any, event: Any) -> None:
        evolve(agent, event)
        for name, classes in fields:
            value = getattr(agent, name)
            if value.__class__ not in classes:
                setattr(agent, name, _fitting(cls, name, classes, value))

    return evolve_typed


def _fitting(cls: type[Agent], name: str, classes: Classes, value: Any) -> Any:
    """The value as one of its field's types, as a restart would read it; raises TypeError if it does not fit."""
    if isinstance(value, float) and [wanted for wanted in classes if wanted is not type(None)] == [int]:
        return int(value)
    for alike, wanted, made in _ALIKE:
        if wanted in classes and isinstance(value, alike):
            return made(value)
    declared = " | ".join("None" if wanted is type(None) else wanted.__name__ for wanted in classes)
    raise TypeError(
        f"{cls.__qualname__}.{name} is declared as {declared} and was given a {type(value).__name__}; "
        "fix the @evolve handler that assigns it, or declare the field so"
    )


def _doubtful_fields(evolve: Evolve, cls: type[Agent], message: type[Message]) -> Mapping[str, Classes]:
    """The plain fields that this handler may assign with something of another type; all, if it cannot be told."""
    plain, given = plain_fields(cls), plain_fields(message)
    known = (*cls.__struct_fields__, "now", "address")
    own, event = parameters_of(evolve)
    code = list(dis.get_instructions(evolve))
    if any(instruction.opname.startswith("STORE_") and instruction.argval == event for instruction in code):
        given = {}  # what the name stands for from there on is not known
    doubtful: dict[str, Classes] = {}
    for index, instruction in enumerate(code):
        if not loads(instruction, own):
            if _mentions(instruction, own):
                return plain
            continue
        augmented = code[index + 1].opname == "COPY"
        after = code[index + 2] if augmented else code[index + 1]
        if after.opname not in ("LOAD_ATTR", "STORE_ATTR") or after.argval not in known:
            return plain
        name = after.argval
        if name not in plain or (after.opname == "LOAD_ATTR" and not augmented):
            continue
        if augmented or not _fits(code[: index + 1], event, given, plain[name]):
            doubtful[name] = plain[name]
    return doubtful


def _mentions(instruction: dis.Instruction, name: str) -> bool:
    """Whether the instruction has to do with a local variable in some other way, as when an inner function uses it."""
    named = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    return instruction.opname not in ("MAKE_CELL", "LOAD_ATTR", "LOAD_CONST", "LOAD_GLOBAL") and name in named


def _fits(code: list[dis.Instruction], event: str, given: Mapping[str, Classes], classes: Classes) -> bool:
    """Whether the value that was loaded last surely has one of these types: a constant, or a field of the event."""
    if len(code) < 3 or code[-1].is_jump_target:
        return False
    if code[-2].opname == "LOAD_CONST":
        return type(code[-2].argval) in classes
    taken = given.get(code[-2].argval, (object,)) if code[-2].opname == "LOAD_ATTR" else (object,)
    return loads(code[-3], event) and all(one in classes for one in taken)


CONFIRMATIONS = frozenset(spec_of(event).tag for event in (ActionDone, ActionFailed, TellFailed, WorkFailed))
"""What comes back from sinks by itself, so that an agent without a handler for it may ignore it."""
OUTCOMES = f"{spec_of(Proposed).name}."
"""So begin the tags of what has become of proposals, which comes back by itself, too."""


class Plan(Struct, frozen=True):
    """What happens with one message type in one agent class."""

    tag: str
    is_command: bool
    promise: Keeping
    wait_ns: int
    decide: Callable[[Any, Any], Events] | None
    evolve: Callable[[Any, Any], None] | None
    react: Callable[[Any, Any], Effects] | None
    yields: bool
    """Whether `react` is a generator, which is its own iterator."""
    windows: tuple[str, ...]
    watched: bool
    """A staleness rule of the agent waits for it: the host is told when one arrives."""
    fact: bool
    """Said by the framework alone. Asked of the plan, because to go through all that are takes as long as a handler."""
    shares: bool
    """A change of a shared field: peers get it, or have sent it."""
    plain: bool
    """An observed event that is kept as it is and touches no window: the shard's short path."""
    considered: bool
    """An observed event that the agent decides about, of an agent without windows that time closes."""
    silent: bool
    """A fact of a service of the node that changes nothing by itself: at most the agent decides what follows."""


Short = tuple[Callable[[Any, Any], None] | None, Callable[[Any, Any], Effects] | None, bool, int, bool]
"""Of a plain plan what the shard's short path needs, taken apart in one go: evolve, react, yields, wait_ns, watched."""


class AgentPlan(Struct, frozen=True):
    """An agent class made ready to run."""

    kind: str
    version: int
    layout: bytes
    cls: type[Agent]
    plans: dict[type[Message], Plan]
    shorts: dict[type[Message], Short]
    """Only the plain ones."""
    decode: Callable[[bytes], Message]
    known_tags: frozenset[str]
    tumbling: tuple[str, ...]
    stale_rules: tuple[WhenStale, ...]
    safe_actions: tuple[SafeAction, ...]
    supervision: Supervise
    copy: Callable[[Any], Any]
    """Makes the image of an agent to go back to: shallow where all fields are immutable, deep otherwise."""
    restore: Callable[[bytes], Any]
    shared: dict[str, SharedField] = {}
    ordered: dict[str, OrderedField] = {}
    engine: Engine | None = None
    """Of a compiled kind: who makes its tables. Its agents are rows there, and no objects."""
    steps: str = ""
    """The field with the steps of workflows that the agent carries out; empty: it takes part in none."""
    check: Callable[[Any], None] | None = None
    """Raises DefinitionError if the code of today cannot go on with an agent that was recovered."""

    def plan_for(self, message: type[Message]) -> Plan:
        """The plan of a message type; one without handlers for an event that the agent only yields."""
        plan = self.plans.get(message)
        if plan is None:
            handlers = Handlers(react=following(self.steps)(None)) if self.steps else Handlers()
            plan = self.plans[message] = _plan(message, handlers, {}, (), tumbles=False)
        return plan

    def handles(self, message: type[Message]) -> bool:
        """Whether some handler of this agent is for this message type."""
        plan = self.plans.get(message)
        return plan is not None and (plan.decide or plan.evolve or plan.react) is not None

    def explain(self, body: bytes, error: Exception) -> Exception:
        """The error to report for a message that `decode` could not decode."""
        return explain_undecodable(self.kind, body, self.known_tags, error)

    def may_ignore(self, body: bytes) -> bool:
        """Whether this is a confirmation of the framework, or the outcome of a proposal, that the agent has no handler
        for."""
        tag = tag_of(body)
        if tag.startswith(OUTCOMES):
            name, _, _ = tag.partition("@")
            return not any(known.partition("@")[0] == name for known in self.known_tags)
        return tag in CONFIRMATIONS and tag not in self.known_tags

    def written(self, event: Message) -> tuple[Message, bytes]:
        """The event as a replay will see it, and its bytes. Raises TypeError if it does not survive them."""
        cls, body = type(event), encode(event)
        if spec_of(cls).tag not in self.known_tags:
            return event, body
        try:
            again = self.decode(body)
        except msgspec.ValidationError as error:
            raise TypeError(f"{cls.__name__} cannot be read back from its own bytes: {error}") from None
        if type(again) is not cls and newer_version(cls) is None:
            raise TypeError(
                f"{cls.__module__}.{cls.__qualname__} has the tag {spec_of(cls).tag} of another message that "
                f"{self.cls.__qualname__} handles; give one of them name=… or version=…"
            )
        return again, body

    def read_back(self, agent: Any) -> Any:
        """The agent as it will be once it was written and read. Raises for what cannot be read back.

        A shared value always can: that is not tried, because it may be large."""
        again = self.restore(canonical_bytes(without_shared(self.shared, agent)))
        for name in self.shared:
            value = getattr(agent, name)
            if not isinstance(value, SharedValue):
                raise TypeError(f"{type(value).__name__} in a shared field")
            setattr(again, name, value)
        return again

    def decode_kept(self, body: bytes) -> Message | None:
        """Decodes an event from our own log; None for a type that nothing of this agent is for any more.

        A `Woken` of the time before the class had `Woken[NextStep]` is one of those.
        """
        try:
            return self.decode(body)
        except msgspec.ValidationError:
            tag = tag_of(body)
            if tag in self.known_tags:
                raise
            if tag != spec_of(Woken).tag:
                return None
        name = msgspec.msgpack.decode(body, type=Woken).name
        return self.decode(woken_body(self.known_tags, name)) if woken_tag(name) in self.known_tags else None


def plan_agent(cls: type[Agent], also: Iterable[type[Message]] = ()) -> AgentPlan:
    """Makes an agent class ready to run. It takes the events in `also` without a handler: workflows wait for them."""
    _check_can_be_made(cls)
    windows = _window_fields(cls)
    handled = dict(cls.__agent_handlers__)
    for message in (*FRAMEWORK_EVENTS, *(event for event, _ in windows.values()), *_tumbling_events(cls, windows)):
        handled.setdefault(message, Handlers())
    shared = {name: field for name, field in cls.__agent_filled__.items() if isinstance(field, SharedField)}
    ordered = {name: field for name, field in cls.__agent_filled__.items() if isinstance(field, OrderedField)}
    for message in (*(SHARED_EVENTS if shared else ()), *(CLAIM_EVENTS if ordered else ())):
        handled.setdefault(message, Handlers())
    stale_rules = tuple(_declared(cls, WhenStale))
    for rule in stale_rules:
        handled.setdefault(rule.event, Handlers())
    for message in also:
        handled.setdefault(message, Handlers())
    for message in handled:
        _check_is_newest(cls, message)
    steps = field_of_steps(cls) or ""
    if steps:
        commands = commands_of(handled)
        handled = steps_handlers(cls, steps, handled, decoder_of(cls, commands)[0] if commands else _no_command)
    restore = _restorer(cls, ordered)
    watched = tuple(rule.event for rule in stale_rules)
    tumbling = tuple(name for name in windows if _default(cls, name).shape is Shape.TUMBLING)
    plans = {
        message: _plan(message, _with_types_kept(cls, message, handlers), windows, watched, tumbles=bool(tumbling))
        for message, handlers in handled.items()
    }
    decode, known_tags = decoder_of(cls, list(plans))
    return AgentPlan(
        kind=cls.__agent_kind__,
        version=cls.__agent_version__,
        layout=_layout(cls),
        cls=cls,
        plans=plans,
        shorts={message: short_of(plan) for message, plan in plans.items() if plan.plain},
        decode=decode,
        known_tags=known_tags,
        tumbling=tumbling,
        stale_rules=stale_rules,
        safe_actions=tuple(_declared(cls, SafeAction)),
        supervision=next(iter(_declared(cls, Supervise)), GO_ON),
        copy=copier(cls, shared),
        restore=restore,
        shared=shared,
        ordered=ordered,
        steps=steps,
        check=getattr(cls, "check_recovered", None),
    )


def _no_command(body: bytes) -> Message:
    raise msgspec.ValidationError(f"it has no command, so {tag_of(body)} is none of its own")


def _with_types_kept(cls: type[Agent], message: type[Message], handlers: Handlers) -> Handlers:
    if handlers.evolve is None:
        return handlers
    evolve = keep_types(handlers.evolve, cls, message)
    return Handlers(decide=handlers.decide, evolve=evolve, react=handlers.react)


def short_of(plan: Plan) -> Short:
    """What the shard's short path needs of a plain plan."""
    return (plan.evolve, plan.react, plan.yields, plan.wait_ns, plan.watched)


def _plan(
    message: type[Message],
    handlers: Handlers,
    windows: Mapping[str, tuple[type[Message], str]],
    watched: tuple[type[Message], ...],
    *,
    tumbles: bool,
) -> Plan:
    spec = spec_of(message)
    fed = tuple(name for name, (event, _) in windows.items() if event is message)
    is_command = issubclass(message, Command)
    if fed and spec.keep.promise is Keeping.TRANSIENT:
        raise DefinitionError(f"{fed[0]}: a window of {spec.tag}, which is transient; keep it, or window another event")
    return Plan(
        tag=spec.tag,
        is_command=is_command,
        promise=spec.keep.promise,
        wait_ns=spec.keep.wait_ns,
        decide=handlers.decide,
        evolve=handlers.evolve,
        react=handlers.react,
        yields=inspect.isgeneratorfunction(handlers.react),
        windows=fed,
        watched=message in watched,
        fact=issubclass(message, FACTS),
        shares=message in SHARED_EVENTS,
        plain=not is_command
        and handlers.decide is None
        and not fed
        and not issubclass(message, FACTS)
        and spec.keep.promise in (Keeping.DURABLE, Keeping.WITHIN),
        considered=not is_command and handlers.decide is not None and not tumbles and not issubclass(message, FACTS),
        silent=issubclass(message, FollowedFact)
        and handlers.evolve is None
        and handlers.react is None
        and not fed
        and spec.keep.promise is Keeping.DURABLE,
    )


def decoder_of(
    cls: type[Agent], messages: Sequence[type[Message]]
) -> tuple[Callable[[bytes], Message], frozenset[str]]:
    """A decoder for these messages and their older versions."""
    old = [version for message in messages for version in older_versions(message)]
    members = [*messages, *(version for version in old if version not in messages)]
    by_tag: dict[str, type[Message]] = {}
    for member in members:
        other = by_tag.setdefault(spec_of(member).tag, member)
        if other is not member:
            raise DefinitionError(
                f"{cls.__qualname__}: {member.__module__}.{member.__qualname__} and {other.__module__}."
                f"{other.__qualname__} have the same tag {spec_of(member).tag}; give one of them name=… or version=…"
            )
    union: Any = members[0]
    for member in members[1:]:
        union = union | member
    try:
        decode = msgspec.msgpack.Decoder(union).decode
    except (NameError, TypeError) as error:
        raise DefinitionError(
            f"{cls.__qualname__}: its messages cannot be decoded ({error}); "
            "use types that msgspec knows, and define them at the top of a module"
        ) from None
    known = frozenset(by_tag)
    return (_upcasting(decode) if old else decode), known


def _upcasting(decode: Callable[[bytes], Message]) -> Callable[[bytes], Message]:
    """Decodes and carries to the newest version. An upcaster that fails makes the message one that does not decode."""

    def decode_newest(body: bytes) -> Message:
        message = decode(body)
        try:
            return to_newest(message)
        except Exception as error:
            raise msgspec.ValidationError(f"its upcaster failed with {type(error).__name__}: {error}") from error

    return decode_newest


def _check_is_newest(cls: type[Agent], message: type[Message]) -> None:
    """A handler for an old version would never see one: what arrives has been carried to the newest before."""
    newer = newer_version(message)
    if newer is not None:
        raise DefinitionError(
            f"{cls.__qualname__}: handles {spec_of(message).tag}, which an upcaster carries to {spec_of(newer).tag}; "
            f"handle {newer.__name__} instead"
        )


def _declared(cls: type, wanted: type[Any]) -> list[Any]:
    """The class attributes of this type, base classes first."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        found.update({name: value for name, value in vars(base).items() if isinstance(value, wanted) or name in found})
    return [value for value in found.values() if isinstance(value, wanted)]


def _window_fields(cls: type[Agent]) -> dict[str, tuple[type[Message], str]]:
    found: dict[str, tuple[type[Message], str]] = {}
    for name, hint in resolve_hints(cls, cls.__qualname__).items():
        if name in cls.__struct_fields__ and isinstance(_default(cls, name), Window):
            (event,) = get_args(hint) if get_origin(hint) is Window else (None,)
            if not (isinstance(event, type) and issubclass(event, Event)):
                raise DefinitionError(f"{cls.__qualname__}.{name}: annotate it with Window[…] of one event type")
            by = _default(cls, name).by
            if by and by not in event.__struct_fields__:
                raise DefinitionError(
                    f"{cls.__qualname__}.{name}: {event.__name__} has no field {by!r} to take the time from; "
                    f"it has {', '.join(event.__struct_fields__) or 'none'}"
                )
            found[name] = (event, by)
    return found


def _tumbling_events(cls: type[Agent], windows: Mapping[str, Any]) -> list[type[Message]]:
    return [WindowClosed] if any(_default(cls, name).shape is Shape.TUMBLING for name in windows) else []


def _default(cls: type[Agent], name: str) -> Any:
    """The default value of a field."""
    return getattr(cls(), name)


def _check_can_be_made(cls: type[Agent]) -> None:
    try:
        cls()
    except Exception as error:
        raise DefinitionError(
            f"{cls.__qualname__}() raises {type(error).__name__}: {error}; an agent exists from its first input, "
            "so give every field a default"
        ) from None


def _layout(cls: type[Agent]) -> bytes:
    """A digest of the names, types and defaults of the state: a snapshot of another layout is not taken as ours.

    What the fields are made of counts as well; where no class is inside another, nothing is added.
    """
    hints = resolve_hints(cls, cls.__qualname__)
    fields = [(name, plain_name(hints[name])) for name in cls.__struct_fields__]
    inside: dict[Any, bytes] = {}
    for name in cls.__struct_fields__:
        _describe_inside(hints[name], inside)
    described: tuple[Any, ...] = (cls.__agent_kind__, fields, canonical_bytes(cls()))
    if inside:
        described = (*described, sorted(inside.values()))
    return blake3(encode(described)).digest(length=16)


def _describe_inside(hint: Any, inside: dict[Any, bytes]) -> None:
    """Describes, once each, the structs, dataclasses and named tuples that an annotation is made of."""
    for argument in get_args(hint):
        _describe_inside(argument, inside)
    cls: Any = get_origin(hint) or hint
    if not isinstance(cls, type) or cls in inside:
        return
    if issubclass(cls, Struct):
        names, form = _fields_that_count(cls), (cls.__struct_config__.array_like, cls.__struct_config__.tag)
    elif dataclasses.is_dataclass(cls):
        names, form = tuple(field.name for field in dataclasses.fields(cls)), (False, None)
    elif issubclass(cls, tuple) and hasattr(cls, "_fields"):
        names, form = tuple(cls._fields), (True, None)
    else:
        return
    hints = resolve_hints(cls, cls.__qualname__)
    inside[cls] = encode((cls.__name__, form, [(name, plain_name(hints[name])) for name in names]))
    for name in names:
        _describe_inside(hints[name], inside)


def _fields_that_count(cls: type[Any]) -> tuple[str, ...]:
    """All fields of a struct; of a message or an open step those without a default: one with a default may be added."""
    names: tuple[str, ...] = cls.__struct_fields__
    if not issubclass(cls, Message | OpenStep):
        return names
    required = len(names) - len(cls.__struct_defaults__)
    given = (msgspec.NODEFAULT,) * required + cls.__struct_defaults__
    return tuple(name for name, default in zip(names, given, strict=True) if default is msgspec.NODEFAULT)


def _restorer(cls: type[Agent], ordered: Mapping[str, OrderedField]) -> Callable[[bytes], Any]:
    try:
        decode = state_decoder(cls).decode
        decode(encode_state(cls()))
    except (TypeError, NameError, msgspec.ValidationError, NotImplementedError) as error:
        raise DefinitionError(
            f"{cls.__qualname__}: its state cannot be written and read back ({error}); "
            "use numbers, strings, bytes, booleans, enums, datetimes, tuples and structs of these, "
            "and define them at the top of a module"
        ) from None
    return decode if not ordered else _claiming_anew(decode, ordered)


def _claiming_anew(decode: Callable[[bytes], Any], ordered: Mapping[str, OrderedField]) -> Callable[[bytes], Any]:
    """What a field claims is what today's class says, and not what it said when the state was written."""

    def restore(body: bytes) -> Any:
        agent = decode(body)
        for field in ordered.values():
            claim: Claim = getattr(agent, field.name)
            setattr(agent, field.name, structs.replace(claim, of=field.resource_of(agent.id)))
        return agent

    return restore


def confirmation(plan: AgentPlan, effect: bytes, said: ActionDone | ActionFailed | WorkFailed) -> bytes | None:
    """What an agent hears of an effect with these bytes; None for a confirmation that it has no handler for."""
    tag = f"{spec_of(Done if isinstance(said, ActionDone) else Failed).name}.{tag_of(effect)}"
    if tag in plan.known_tags:
        fields = {"type": tag, "action": msgspec.Raw(effect), "key": said.key}
        if not isinstance(said, ActionDone):
            fields["reason"] = said.reason
        return encode(fields)
    return encode(said) if not isinstance(said, ActionDone) or plan.handles(ActionDone) else None


# Agents that carry out steps of workflows: see stigmergy.agents.steps.


def field_of_steps(cls: type[Any]) -> str | None:
    """The field of an agent class with its steps; None if it takes part in no workflow."""
    example = cls()
    return next((name for name in cls.__struct_fields__ if isinstance(getattr(example, name), Steps)), None)


def steps_handlers(
    cls: type[Any], field: str, handled: Mapping[type[Message], Handlers], decode: Callable[[bytes], Message]
) -> dict[type[Message], Handlers]:
    """The handlers of a class that takes part in workflows: its own, and those for steps."""

    def decide_asked(agent: Any, asked: StepAsked) -> Events:
        taken = StepTaken(
            run=asked.run,
            step=asked.step,
            attempt=asked.attempt,
            wants=asked.wants,
            others=asked.others,
            match=asked.match,
        )
        if len(getattr(agent, field).taken(taken).open) > OPEN_COUNT_MAX:
            return [_refusal(asked, f"{agent.address} carries out {OPEN_COUNT_MAX} steps already")]
        if not asked.body:
            return [taken]
        try:
            command = decode(asked.body)
        except msgspec.DecodeError as error:
            return [_refusal(asked, f"{cls.__name__} takes no {tag_of(asked.body) or 'such command'}: {error}")]
        decide = handled[type(command)].decide
        assert decide is not None  # only commands are decoded, and each has one
        try:
            decided = [*(decide(agent, command) or ())]
        except Rejection as rejection:
            return [_refusal(asked, rejection.reason)]
        waited_for = [event for event in decided if isinstance(event, Event) and awaits(asked, event)]
        if not all(fits(asked.match, event) for event in waited_for):
            taken = structs.replace(taken, match=())  # what comes of this very command is of this step
        return [taken, *decided]

    def evolve_taken(agent: Any, taken: StepTaken) -> None:
        setattr(agent, field, getattr(agent, field).taken(taken))

    def react_taken(_: Any, taken: StepTaken) -> Effects:
        if ACCEPTED in taken.wants:
            yield Tell(to=taken.run, message=StepHeard(step=taken.step, attempt=taken.attempt, body=b""))

    def react_refused(_: Any, refused: StepRefused) -> Effects:
        yield Tell(to=refused.run, message=refused)

    def evolve_closed(agent: Any, closed: StepsClosed) -> None:
        setattr(agent, field, getattr(agent, field).closed(closed.run))

    follow = following(field)
    found = {
        message: own if issubclass(message, Command) else Handlers(own.decide, own.evolve, follow(own.react))
        for message, own in handled.items()
    }
    return found | {
        StepAsked: Handlers(decide=decide_asked),
        StepTaken: Handlers(evolve=evolve_taken, react=react_taken),
        StepRefused: Handlers(react=react_refused),
        StepsClosed: Handlers(evolve=evolve_closed),
    }


def following(field: str) -> Callable[[Callable[[Any, Any], Effects] | None], Callable[[Any, Any], Effects]]:
    """Makes of a `react` handler, or of none, one that also tells the runs that wait for the event."""

    def follow(react: Callable[[Any, Any], Effects] | None) -> Callable[[Any, Any], Effects]:
        def react_followed(agent: Any, event: Any) -> Effects:
            if react is not None:
                yield from react(agent, event) or ()
            steps = getattr(agent, field)
            if steps.open:
                yield from steps.tells(event)

        return react_followed

    return follow


def _refusal(asked: StepAsked, reason: str) -> StepRefused:
    return StepRefused(run=asked.run, step=asked.step, attempt=asked.attempt, reason=reason)


def commands_of(handled: Mapping[type[Message], Handlers]) -> list[type[Message]]:
    """The commands that a class decides."""
    return [message for message, own in handled.items() if issubclass(message, Command) and own.decide is not None]
