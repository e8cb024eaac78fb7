"""Reads an agent class: its fields, messages and the source of its handlers become a Program, or a list of findings.

Nothing is compiled and nothing runs here. Code that cannot be compiled raises DefinitionError, with every finding of
the class: file, line, method, reason and remedy.
"""

from __future__ import annotations

import ast
import enum
from typing import Any

from stigmergy.agents.agent import FACTS, Agent, AgentMeta, Handlers
from stigmergy.agents.columns import (
    ACTION_HEAD_BYTES,
    FORMS_COUNT_MAX,
    LAYOUT_FORMAT,
    RECORD_BYTES_MAX,
    RECORD_HEAD_BYTES,
    ROW_BYTES_MAX,
    SLOT_BYTES,
    Column,
    Form,
    Layout,
    Templates,
    canonical_nan,
)
from stigmergy.agents.confirmations import Done, Failed
from stigmergy.agents.effects import CancelWake, WakeMe, WakeMeAt, Woken
from stigmergy.agents.messages import Command, Event, Keeping, Message, resolve_hints, spec_of
from stigmergy.agents.plans import AgentPlan, Plan, plan_agent
from stigmergy.agents.windows import Shape, Window, write_row
from stigmergy.base.errors import DefinitionError
from stigmergy.compiled.emitter import Emitter
from stigmergy.compiled.faults import Findings
from stigmergy.compiled.fields import CONFIRMATIONS, Field, Refusal, field_of, lay_out, names_field
from stigmergy.compiled.frames import FormInfo, Unit
from stigmergy.compiled.program import Program
from stigmergy.compiled.sources import Source, source_of
from stigmergy.compiled.values import FLOAT
from stigmergy.compiled.windows import lay_out_window
from stigmergy.compiled.yields import given_defaults, is_factory

_ROW_BYTES_MIN = 8
_ROLES = ("decide", "react")
_NO_BUCKETS = (
    "the buckets of a tumbling window are closed one agent at a time, which compiled agents are not; use Window.last "
    "or Window.sliding and a timer (WakeMe), or let an interpreted agent of the fleet have it"
)


def read_agent(cls: type[Agent]) -> Program:
    """What is needed to run this class over columns. Raises DefinitionError with all that keeps it from being so."""
    if not isinstance(cls, AgentMeta):
        raise DefinitionError(f"{cls!r} is no agent class; subclass Agent")
    plan = plan_agent(cls)
    program, adds = _read(cls, plan, {})
    if any(adds[name] > 1 for name in adds):  # known only when all has been read: how many slots a window needs
        program, _ = _read(cls, plan, adds)
    return program


def _read(cls: type[Agent], plan: AgentPlan, adds: dict[str, int]) -> tuple[Program, dict[str, int]]:
    """The program, where one input adds so many events to windows, 1 if not said; and how many it really adds."""
    findings = Findings()
    windows, state = _state_fields(cls, findings)
    columns, row_bytes = lay_out(list(state.values()), 0)
    row_bytes = max(row_bytes, _ROW_BYTES_MIN)
    unit = Unit(cls, findings, state, {column.name: column for column in columns})
    handlers = dict(cls.__agent_handlers__)
    _refuse_typed(cls, handlers, findings)
    inputs = [
        message for message, one in plan.plans.items() if message in handlers or one.watched or _taken(one, windows)
    ]
    yielded = [message for message in _made_messages(handlers, "decide") if _is_decided(message, inputs)]
    # Looked up here, near to the caller: what is defined inside a function is found only while that runs.
    unit.hints = {
        message: resolve_hints(message, message.__qualname__) for message in _made_messages(handlers, *_ROLES)
    }
    unit.timer_names = _timer_names(cls, handlers) if Woken in handlers else None
    record_bytes = _number_forms(unit, inputs, yielded)
    forms = [_form(info) for info in unit.forms.values()]
    _check_sizes(cls, findings, record_bytes, row_bytes, len(forms))
    for message, info in unit.forms.items():
        for name in _taken(plan.plans.get(message), windows):
            made, row_bytes = lay_out_window(unit, name, windows[name], info, row_bytes, adds.get(name, 1))
            unit.windows[name] = made
            columns.append(made.lies.column(name, made.offset))
    unit.record_words, unit.row_words = record_bytes // 8, row_bytes // 8
    plain = all(info.is_kept for info in unit.forms.values() if issubclass(info.message, Event)) and not any(
        issubclass(message, Event) and found.decide is not None for message, found in handlers.items()
    )
    emitter = Emitter(unit, handlers, plain=plain)
    source = emitter.module()
    findings.raise_any()
    kept = [info.message for info in unit.forms.values() if info.is_kept]
    program = Program(
        kind=cls.__agent_kind__,
        cls=cls,
        layout=Layout(LAYOUT_FORMAT, cls.__agent_kind__, record_bytes, forms, row_bytes, columns),
        templates=Templates(
            LAYOUT_FORMAT, cls.__agent_kind__, ACTION_HEAD_BYTES + SLOT_BYTES * unit.slots_count, unit.templates
        ),
        makings=unit.makings,
        sites=unit.sites,
        source=source,
        plain=plain,
        record_max=emitter.bounds.records,
        action_max=emitter.bounds.actions,
        first_row=_first_row(cls, columns, row_bytes),
        wait_ns=min((spec_of(message).keep.wait_ns for message in kept), default=0),
    )
    return program, emitter.adds


def _refuse_typed(cls: type[Agent], handlers: dict[type[Message], Handlers], findings: Findings) -> None:
    """Refuses handlers for `Done[…]`, `Failed[…]` and `Woken[…]`, and nothing else then: all else follows from them."""
    for message, found in handlers.items():
        handler: Any = found.decide or found.evolve or found.react
        where = f"{cls.__name__} with {message.__name__}"
        code = handler.__code__
        if issubclass(message, Done | Failed):
            says = "a record does not hold the action; handle ActionDone or ActionFailed, and compare its action"
            findings.add(code.co_filename, code.co_firstlineno, where, says)
        elif issubclass(message, Woken) and message is not Woken:
            says = 'timers have names in compiled code; handle Woken, and compare its name: event.name == "…"'
            findings.add(code.co_filename, code.co_firstlineno, where, says)
    findings.raise_any()


def _taken(plan: Plan | None, windows: dict[str, Window[Any]]) -> list[str]:
    """The windows that a message goes into."""
    return [] if plan is None else [name for name in plan.windows if name in windows]


# ---- the state


def _state_fields(cls: type[Agent], findings: Findings) -> tuple[dict[str, Window[Any]], dict[str, Field]]:
    """The windows and the fields of a class."""
    hints = resolve_hints(cls, cls.__qualname__)
    first: Any = cls()
    fields: dict[str, Field] = {}
    windows: dict[str, Window[Any]] = {}
    for name in cls.__struct_fields__:
        if name == "id":
            continue
        default = getattr(first, name)
        if isinstance(default, Window):
            if default.shape is Shape.TUMBLING:
                findings.add_of(cls, f"{cls.__name__}.{name}", _NO_BUCKETS, name)
            else:
                windows[name] = default
            continue
        field = field_of(name, hints[name])
        if isinstance(field, Refusal):
            findings.add_of(cls, f"{cls.__name__}.{name}", str(field), name)
            continue
        fields[name] = field
        wrong = _wrong_default(field, default)
        if wrong:
            findings.add_of(cls, f"{cls.__name__}.{name}", wrong, name)
    return windows, fields


def _wrong_default(field: Field, default: Any) -> str:
    """What is wrong with the default of a field, if anything is."""
    if field.kind == FLOAT and type(default) is int:
        return f"its default {default} is an int, and Python leaves it one; write {float(default)!r}"
    wanted: Any = field.kind.enum or {"int": int, "float": float, "bool": bool, "bytes": bytes}[field.kind.name]
    if type(default) is not wanted and not (isinstance(default, enum.Enum) and isinstance(default, wanted)):
        return f"its default {default!r:.50} is no {field.kind}; give it one"
    return ""


def _first_row(cls: type[Agent], columns: list[Column], row_bytes: int) -> bytes:
    row = bytearray(row_bytes)
    first: Any = cls()
    values = {column.name: getattr(first, column.name) for column in columns}
    plain = {name: canonical_nan(value) if isinstance(value, float) else value for name, value in values.items()}
    write_row(columns, plain, row, cls.__name__)
    return bytes(row)


# ---- messages


def _number_forms(unit: Unit, inputs: list[type[Message]], yielded: list[type[Message]]) -> int:
    """Gives each message its number and its columns; returns the width of records."""
    fields_by_message: dict[type[Message], dict[str, Field]] = {}
    for message in (*inputs, *yielded):
        fields = _message_fields(unit, message)
        if fields is not None:
            fields_by_message[message] = fields
    record_bytes = RECORD_HEAD_BYTES
    for message, fields in fields_by_message.items():
        columns, end = lay_out(list(fields.values()), RECORD_HEAD_BYTES)
        record_bytes = max(record_bytes, end)
        unit.forms[message] = FormInfo(
            number=len(unit.forms),
            message=message,
            fields=fields,
            columns={column.name: column for column in columns},
            is_input=message in inputs,
            is_kept=issubclass(message, Event) and spec_of(message).keep.promise is not Keeping.TRANSIENT,
        )
    return record_bytes


def _message_fields(unit: Unit, message: type[Message]) -> dict[str, Field] | None:
    """The fields of a message; None where the message itself is refused."""
    findings, cls = unit.findings, unit.cls
    if message is Woken:
        return {"name": names_field("name", unit.timer_names or [])}
    if message in CONFIRMATIONS:
        name = CONFIRMATIONS[message]
        return {name: names_field(name, _mentioned(cls, cls.__agent_handlers__[message]), others=True)}
    refused = _refused_message(message)
    if refused:
        owner = (
            cls
            if message.__module__.startswith(("stigmergy.agents", "stigmergy.shard", "stigmergy.devices"))
            else message
        )
        findings.add_of(owner, f"{cls.__name__} with {message.__name__}", refused)
        if issubclass(message, FACTS):
            return None
    fields: dict[str, Field] = {}
    hints = resolve_hints(message, message.__qualname__)
    for name in message.__struct_fields__:
        field = field_of(name, hints[name])
        if isinstance(field, Refusal):
            findings.add_of(message, f"{message.__name__}.{name}", str(field), name)
        else:
            fields[name] = field
    for name, default in given_defaults(message):
        wrong = "a default that is made anew; give a plain one" if is_factory(default) else ""
        if not wrong and name in fields:
            wrong = _wrong_default(fields[name], default)
        if wrong:
            findings.add_of(message, f"{message.__name__}.{name}", wrong, name)
    return fields


def _refused_message(message: type[Message]) -> str:
    """Why a message has no form, if so."""
    config = message.__struct_config__
    if issubclass(message, FACTS):
        return "facts of the framework have texts; let an interpreted agent of the fleet react to them"
    if spec_of(message).keep.promise is Keeping.LATEST:
        return "latest is not kept in columns; use within(seconds=…)"
    if message.__struct_encode_fields__ != message.__struct_fields__:
        return "fields that are renamed on the wire; take rename= out"
    if config.array_like or config.omit_defaults:
        return "array_like and omit_defaults; take them out"
    if hasattr(message, "__post_init__"):
        return "__post_init__ does not run in compiled code; take it out"
    return ""


def _is_decided(message: type[Message], inputs: list[type[Message]]) -> bool:
    """Whether this is an event that the agent itself says, and nobody else."""
    return issubclass(message, Event) and not issubclass(message, FACTS) and message not in inputs


def _made_messages(handlers: dict[type[Message], Handlers], *roles: str) -> list[type[Message]]:
    """All messages that handlers with these roles make, in the order of the source."""
    found: dict[type[Message], None] = {}
    for by_role in handlers.values():
        for role in roles:
            for source, call in _calls(getattr(by_role, role)):
                cls = source.resolve(call.func)
                if isinstance(cls, type) and issubclass(cls, Message):
                    found[cls] = None
    return list(found)


def _timer_names(cls: type[Agent], handlers: dict[type[Message], Handlers]) -> list[str]:
    """The names of timers that a class mentions, in the order of the source."""
    named: list[tuple[Source, ast.expr]] = []
    for found in handlers.values():
        for source, call in _calls(found.react):
            if source.resolve(call.func) in (WakeMe, WakeMeAt, CancelWake):
                nodes = [one.value for one in call.keywords if one.arg == "name"] or call.args[:1]
                named += [(source, node) for node in nodes]
    woken = handlers.get(Woken, Handlers())
    for handler in (woken.decide, woken.evolve, woken.react):
        named += _compared(handler)
    texts = [_text(cls, source, node) for source, node in named]
    return list(dict.fromkeys(text for text in texts if text is not None))


def _mentioned(cls: type[Agent], handlers: Handlers) -> list[str]:
    """The texts that handlers of a message compare with, in the order of the source."""
    nodes = [one for handler in (handlers.decide, handlers.evolve, handlers.react) for one in _compared(handler)]
    texts = [_text(cls, source, node) for source, node in nodes]
    return list(dict.fromkeys(text for text in texts if text))


def _text(cls: type[Agent], source: Source, node: ast.expr) -> str | None:
    """The text that a constant is: written there, of a module, or of the class."""
    match node:
        case ast.Constant():
            text: Any = node.value
        case ast.Attribute(value=ast.Name(id=owner)) if owner == source.parameters[0]:
            text = getattr(cls, node.attr, None)
        case _:
            text = source.resolve(node)
    return text if isinstance(text, str) else None


def _calls(handler: Any) -> list[tuple[Source, ast.Call]]:
    source = _source(handler)
    return [] if source is None else [(source, one) for one in ast.walk(source.tree) if isinstance(one, ast.Call)]


def _compared(handler: Any) -> list[tuple[Source, ast.expr]]:
    """What values are compared with, in a handler."""
    source = _source(handler)
    nodes = [] if source is None else [one for one in ast.walk(source.tree) if isinstance(one, ast.Compare)]
    found: list[tuple[Source, ast.expr]] = []
    for compare in nodes:
        for node in (compare.left, *compare.comparators):
            parts = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
            found += [(source, part) for part in parts if source is not None]
    return found


def _source(handler: Any) -> Source | None:
    """The source of a handler; what cannot be read is found later, with its name."""
    try:
        return None if handler is None else source_of(handler)
    except (OSError, SyntaxError):
        return None


def _form(info: FormInfo) -> Form:
    columns = [info.columns[name] for name in info.fields]
    return Form(spec_of(info.message).tag, columns, is_command=issubclass(info.message, Command))


def _check_sizes(cls: type[Agent], findings: Findings, record_bytes: int, row_bytes: int, forms: int) -> None:
    for count, most, what in (
        (record_bytes, RECORD_BYTES_MAX, "bytes in a record; split the largest message"),
        (row_bytes, ROW_BYTES_MAX, "bytes in a row; split the agent"),
        (forms, FORMS_COUNT_MAX, "messages; split the agent"),
    ):
        if count > most:
            findings.add_of(cls, cls.__name__, f"{count} {what}, at most {most}")
