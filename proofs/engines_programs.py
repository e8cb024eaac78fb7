"""Random agent classes, as source. Everything that compiles occurs: see docs/compiled.md.

made = make_program(Random(7))     its source and the names in it
"""

from __future__ import annotations

import math
from random import Random
from types import SimpleNamespace
from typing import Any

from msgspec import Struct

from proofs.engines_expressions import (
    BOOL,
    FLOAT,
    INT,
    INT_MAX,
    BytesKind,
    EnumKind,
    Expressions,
    Function,
    Kind,
    Names,
    Scope,
    Text,
    written,
)

TIMERS = ("tick", "tock")
WEIGHT_MAX = 6
"""So many events or effects one handler may yield at most: 256 are allowed for one input, and reactions multiply."""
_HEAD = '''\
"""A random agent."""

from __future__ import annotations

import enum
import math
from typing import Annotated

from msgspec import Meta

from stigmergy import (
    Action, Agent, CancelWake, Command, Effects, Event, Events, Publish, Tell, WakeMe, WakeMeAt, Window, Woken,
    Work, decide, durable, evolve, react, reject, transient, within,
)
'''


class Field(Struct, frozen=True):
    """A field of the state or of a message."""

    name: str
    kind: Kind
    annotation: str
    low: Any = None
    high: Any = None
    text: bool = False
    default: str | None = None

    @property
    def bounded(self) -> bool:
        """Whether not every value of its kind may be in it."""
        return self.low is not None or self.high is not None


class Made(Struct, frozen=True):
    """A message type."""

    name: str
    fields: list[Field]
    base: str
    keep: str = ""


class Program(Struct, frozen=True):
    """A random module with an agent class called Made."""

    source: str
    inputs: list[Made]
    timers: list[str]
    """Names that it mentions; no others can go off."""


class _Lines:
    """Source, line by line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line if line else "")


class _Handler(Struct):
    """What the method under way may do."""

    role: str
    message: Made | None
    """None where it is for several types."""
    budget: int = WEIGHT_MAX
    weight: int = 1
    """How often the current place is reached at most."""
    in_loop: bool = False
    counter: int = 0
    unread: list[Field] = []
    """Float fields of the state that this handler never reads, so that it may store ints in them."""


class Maker:
    """Draws one program."""

    def __init__(self, chance: Random, *, small: bool) -> None:
        self.chance = chance
        self.small = small
        self.out = _Lines()
        self.enums = [
            EnumKind(f"Enum{number}", tuple(f"M{member}" for member in range(chance.randrange(1, 5))))
            for number in range(chance.randrange(1, 3))
        ]
        self.kinds: list[Kind] = [
            INT,
            INT,
            FLOAT,
            FLOAT,
            BOOL,
            *self.enums,
            BytesKind(chance.choice((1, 3, 8, 12, 17))),
        ]
        self.shown: list[tuple[str, Kind]] = []
        """A property, if there is one."""
        self.windows: list[str] = []
        """The fields that are windows, as they are declared."""
        self.asked: list[tuple[str, Kind]] = []
        """What windows can be asked for."""
        self.handled: list[str] = []
        """Messages that a handler is for: others are no inputs."""
        self.names = Names(constants=(), tables=())
        self.expressions = Expressions(chance, self.names, {})

    def make(self) -> Program:
        """The whole module."""
        chance = self.chance
        self._draw_constants()
        state = [self.field(f"s{number}", needs_default=True) for number in range(chance.randrange(2, 8))]
        observed = [self.message(f"Seen{number}", "Event") for number in range(chance.randrange(1, self._some(4)))]
        commands = [self.message(f"Do{number}", "Command") for number in range(chance.randrange(0, self._some(3)))]
        decided = [self.message(f"Done{number}", "Event") for number in range(chance.randrange(0, self._some(3)))]
        silent = self.message("Noted", "Event")
        actions = [
            self.message(f"Act{number}", chance.choice(("Action", "Action", "Work")), texts=True) for number in range(2)
        ]
        self._write_module(state, [*observed, *commands, *decided, silent, *actions])
        self._draw_windows([*observed, *decided])
        woken = chance.random() < (0.1 if self.small else 0.4)
        self._write_agent(state, observed, commands, decided, silent, actions, woken)
        handled = [one for one in (*observed, *commands, *decided) if one.name in self.handled]
        inputs = [one for one in handled if one not in decided or chance.random() < 0.5]
        source = "\n".join([_HEAD, *self.out.lines, ""])
        timers = [name for name in TIMERS if repr(name) in source]
        if woken and timers:
            inputs.append(Made("Woken", [], "Event"))
        return Program(source, inputs, timers)

    # ---- declarations

    def _some(self, end: int) -> int:
        """The end of a range of how many there are."""
        return min(end, 2) if self.small else end

    def field(self, name: str, *, needs_default: bool = False, texts: bool = False) -> Field:
        """A field of any kind; with `texts` it may be one."""
        chance = self.chance
        if texts and chance.random() < 0.35:
            return Field(name, INT, "str", text=True, default=repr("") if needs_default else None)
        kind = chance.choice(self.kinds)
        low: Any = None
        high: Any = None
        match kind:
            case "int":
                bounds = (
                    None,
                    None,
                    None,
                    (0, 255),
                    (-128, 127),
                    (0, 65535),
                    (-32768, 32767),
                    (0, 2**32 - 1),
                    (-100, 100),
                )
                more = ((-(2**31), 2**31 - 1), (5, 5), (0, INT_MAX), (-(2**40), 2**40), (-1, 255))
                low, high = chance.choice((*bounds, *more)) or (None, None)
                annotation = "int" if low is None else f"Annotated[int, Meta(ge={low}, le={high})]"
                if low is not None and chance.random() < 0.2 and high < INT_MAX:
                    annotation = f"Annotated[int, Meta(gt={low - 1}, lt={high + 1})]"
            case "float":
                low, high = chance.choice(
                    ((None, None), (None, None), (0.0, 100.0), (-1.5, None), (None, 1e10), (-0.0, 0.0))
                )
                bounds_said = [f"{how}={bound}" for how, bound in (("ge", low), ("le", high)) if bound is not None]
                annotation = f"Annotated[float, Meta({', '.join(bounds_said)})]" if bounds_said else "float"
            case BytesKind():
                annotation = f"Annotated[bytes, Meta(min_length={kind.size}, max_length={kind.size})]"
            case EnumKind():
                annotation = kind.name
            case _:
                annotation = "bool"
        made = Field(name, kind, annotation, low, high)
        if not needs_default:
            return made
        value = self.expressions.value(kind)
        if made.bounded:
            value = clamp(value, low, high)
        return Field(name, kind, annotation, low, high, default=written(value))

    def message(self, name: str, base: str, *, texts: bool = False) -> Made:
        """A message type; fields with a default come last."""
        count = self.chance.randrange(0, 5)
        required = self.chance.randrange(0, count + 1)
        fields = [self.field(f"f{number}", needs_default=number >= required, texts=texts) for number in range(count)]
        keep = ""
        if base == "Event":
            keep = self.chance.choice(("", "", "", "within(seconds=0.5)", "durable", "transient"))
        return Made(name, fields, base, keep)

    def _draw_constants(self) -> None:
        chance = self.chance
        draw = self.expressions.value
        constants = [
            (f"K{number}", kind, draw(kind)) for number, kind in enumerate(self.kinds) if chance.random() < 0.7
        ]
        constants += [(f"self.C{number}", kind, draw(kind)) for number, kind in enumerate((INT, FLOAT, BOOL))]
        tables = [
            (f"T{number}", kind, tuple(draw(kind) for _ in range(chance.randrange(1, 6))))
            for number, kind in enumerate((INT, FLOAT, BOOL))
        ]
        values: dict[str, Any] = {name: value for name, _, value in constants if "." not in name}
        values.update({name: rows for name, _, rows in tables})
        # For calculating with constants a member is as good as its name.
        values.update(
            {kind.name: SimpleNamespace(**{one: f"{kind.name}.{one}" for one in kind.members}) for kind in self.enums}
        )
        self.names = Names(tuple(constants), tuple(tables))
        self.expressions = Expressions(chance, self.names, {**values, "math": math, "self": _Constants(constants)})

    def _write_module(self, state: list[Field], messages: list[Made]) -> None:
        add, names = self.out.add, self.names
        for kind in self.enums:
            texts = self.chance.random() < 0.5
            add(f"class {kind.name}(enum.Enum):")
            for number, member in enumerate(kind.members):
                add(f"    {member} = {member.lower()!r}" if texts else f"    {member} = {number * 3 - 1}")
            add("")
        for name, _, value in names.constants:
            if not name.startswith("self."):
                add(f"{name} = {written(value)}")
        for name, _, rows in names.tables:
            add(f"{name} = ({', '.join(map(written, rows))},)")
        for made in messages:
            add(f"class {made.name}({made.base}{f', keep={made.keep}' if made.keep else ''}):")
            for field in made.fields:
                add(f"    {field.name}: {field.annotation}" + ("" if field.default is None else f" = {field.default}"))
            if not made.fields:
                add("    pass")
            add("")
        self._write_functions()

    def _draw_windows(self, events: list[Made]) -> None:
        """Some windows of kept events. By a chance of their own, so that agents without any stay as they were."""
        chance = Random("\n".join(self.out.lines))
        kept = [event for event in events if event.keep != "transient" and event.fields]
        if not kept or chance.random() < 0.5:
            return
        for number in range(chance.randrange(1, self._some(3) + 1)):
            event, name = chance.choice(kept), f"w{number}"
            numbers = [one for one in event.fields if one.kind in (INT, FLOAT)]
            # As seconds since 1970 most numbers are none, and each such event would be a fault.
            times = [one for one in numbers if (one.low is not None and one.low >= 0) or chance.random() < 0.05]
            count, seconds = chance.randrange(1, 6), chance.choice((1, 3, 40))
            how = f"Window.sliding(seconds={seconds}, count_max={count})"
            if chance.random() < 0.4:
                how = f"Window.last({count})"
            elif times and chance.random() < 0.7:
                by, ahead_s = chance.choice(times).name, chance.choice((0, 300))
                how = f"Window.sliding(seconds={seconds}, count_max={count}, by={by!r}, ahead_s={ahead_s})"
            self.windows.append(f"{name}: Window[{event.name}] = {how}")
            self.handled.append(event.name)
            self.asked += [(f"len(self.{name})", INT), (f"self.{name}.{chance.choice(('dropped', 'ahead'))}", INT)]
            for one in event.fields:
                default = f", {written(self.expressions.value(one.kind))}" if one in numbers else ""
                for what in ("oldest", "newest", *(("total", "lowest", "highest") if one in numbers else ())):
                    given = default if chance.random() < 0.8 else ""
                    self.asked.append((f"self.{name}.{what}({one.name!r}{given})", one.kind))
                if one in numbers:
                    self.asked.append((f"self.{name}.mean({one.name!r}, 0.5)", FLOAT))

    def _write_functions(self) -> None:
        """Functions of the module; later ones may call earlier ones."""
        functions: list[Function] = []
        for number in range(self.chance.randrange(0, self._some(3))):
            kinds: tuple[Kind, ...] = tuple(
                self.chance.choice((INT, FLOAT, BOOL)) for _ in range(self.chance.randrange(1, 4))
            )
            result = self.chance.choice((INT, FLOAT, BOOL))
            constants = tuple(one for one in self.names.constants if not one[0].startswith("self."))
            inside = Names(constants, self.names.tables, tuple(functions), of_self=False)
            self._write_function(f"function{number}", kinds, result, inside, method=False)
            functions.append(Function(f"function{number}", kinds, result))
        self._take_functions(functions)

    def _take_functions(self, functions: list[Function]) -> None:
        self.names = Names(self.names.constants, self.names.tables, (*self.names.functions, *functions))
        self.expressions.names = self.names

    def _write_function(self, name: str, kinds: tuple[Kind, ...], result: Kind, names: Names, *, method: bool) -> None:
        parameters = [f"p{number}" for number in range(len(kinds))]
        outer, self.expressions.names = self.expressions.names, names
        scope = Scope(list(zip(parameters, kinds, strict=True)))
        shown = ", ".join((["self"] if method else []) + parameters)
        add = self.out.add
        add(f"def {name}({shown}):")
        self.out.depth += 1
        if self.chance.random() < 0.5:
            kind = self.chance.choice((INT, FLOAT))
            add(f"inner = {self.expressions.any(kind, scope, 2).code}")
            scope.readable.append(("inner", kind))
        if self.chance.random() < 0.5:
            add(f"if {self.expressions.any(BOOL, scope, 2).code}:")
            add(f"    return {self.expressions.any(result, scope, 2).code}")
        add(f"return {self.expressions.any(result, scope, 3).code}")
        self.out.depth -= 1
        add("")
        self.expressions.names = outer

    # ---- the agent

    def _write_agent(
        self,
        state: list[Field],
        observed: list[Made],
        commands: list[Made],
        decided: list[Made],
        silent: Made,
        actions: list[Made],
        woken: bool,
    ) -> None:
        chance, add = self.chance, self.out.add
        add("class Made(Agent):")
        self.out.depth += 1
        for name, _, value in self.names.constants:
            if name.startswith("self."):
                add(f"{name.removeprefix('self.')} = {written(value)}")
        for field in state:
            add(f"{field.name}: {field.annotation} = {field.default}")
        for window in self.windows:
            add(window)
        add("")
        self.state = state
        self.yields = [*decided, silent]
        self.actions = actions
        self.told = [*observed, *commands]
        if chance.random() < 0.5:
            result = chance.choice((INT, FLOAT, BOOL))
            self._write_function("method", (INT, FLOAT), result, self.names, method=True)
            self._take_functions([Function("self.method", (INT, FLOAT), result)])
        if chance.random() < 0.3:
            self.shown = [("self.shown", chance.choice((INT, FLOAT, BOOL)))]
            readable = [(f"self.{one.name}", one.kind) for one in state]
            add("@property")
            add("def shown(self):")
            add(f"    return {self.expressions.any(self.shown[0][1], Scope(readable), 2).code}")
            add("")
        for message in commands:
            self._write_handler("decide", message)
        for message in observed:
            if chance.random() < 0.4:
                self._write_handler("decide", message)
        both = [*observed, *decided]
        for message in both:
            if message.keep != "transient" and (chance.random() < 0.85 or message in decided):
                self._write_handler("evolve", message)
        together = chance.random() < 0.2 and len(both) > 1
        if together:
            self._write_handler("react", None, of=" | ".join(message.name for message in both[:2]))
        for message in both[2 * together :]:
            if chance.random() < 0.75 or message is observed[0]:
                self._write_handler("react", message)
        if woken:
            timer = Made("Woken", [], "Event")
            self._write_handler("evolve", timer)
            self._write_handler("react", timer)
        self.out.depth -= 1

    def _write_handler(self, role: str, message: Made | None, of: str = "") -> None:
        chance, add = self.chance, self.out.add
        unread = [field for field in self.state if field.kind == FLOAT and role == "evolve" and chance.random() < 0.15]
        handler = _Handler(role, message, unread=unread)
        readable: list[tuple[str, Kind]] = [(f"self.{one.name}", one.kind) for one in self.state if one not in unread]
        readable += self.asked
        if not unread:
            readable += self.shown
        if message is None:
            readable += [(f"isinstance(event, {name})", BOOL) for name in of.split(" | ")]
        else:
            readable += [(f"event.{one.name}", one.kind) for one in message.fields] * 2
        name = message.name if message is not None else of
        self.handled += name.split(" | ")
        result = {"decide": "Events", "evolve": "None", "react": "Effects"}[role]
        add(f"@{role}")
        add(f"def {role}_{name.replace(' | ', '_')}(self, event: {name}) -> {result}:")
        self.out.depth += 1
        scope = Scope(readable)
        if name == "Woken" and chance.random() < 0.8:
            add(f"if event.name {chance.choice(('==', '!='))} {chance.choice(TIMERS)!r}:")
            self._block(handler, scope, 2)
        # A method of unmarked helpers may read what an int was stored into, so those are not called there.
        functions = self.expressions.names
        if unread:
            without = tuple(one for one in functions.functions if not one.called.startswith("self."))
            self.expressions.names = Names(functions.constants, functions.tables, without)
        for _ in range(chance.randrange(1, self._some(6))):
            self._statement(handler, scope, 1 if self.small else 2)
        if role == "decide":
            self._yield_event(handler, scope)
        elif role == "react":
            self._yield_effect(handler, scope)
        else:
            self._store(handler, scope)
        self.expressions.names = functions
        self.out.depth -= 1
        add("")

    # ---- statements

    def _block(self, handler: _Handler, scope: Scope, nesting: int) -> None:
        """A nested block; what it assigns is not read after it."""
        inner = Scope(scope.readable)
        self.out.depth += 1
        for _ in range(self.chance.randrange(1, self._some(4))):
            self._statement(handler, inner, nesting - 1)
        self.out.depth -= 1

    def _statement(self, handler: _Handler, scope: Scope, nesting: int) -> None:
        chance = self.chance
        if nesting > 0 and chance.random() < 0.45:
            chance.choice((self._if, self._if, self._loop))(handler, scope, nesting)
        else:
            chance.choice((self._local, self._augment, self._both_ways, self._act, self._act))(handler, scope)

    def _act(self, handler: _Handler, scope: Scope) -> None:
        """What this kind of handler is for."""
        {"decide": self._yield_event, "evolve": self._store, "react": self._yield_effect}[handler.role](handler, scope)

    def _local(self, handler: _Handler, scope: Scope) -> None:
        kind = self.chance.choice(self.kinds)
        name = f"v{handler.counter}"
        handler.counter += 1
        note = f": {kind}" if isinstance(kind, str) and self.chance.random() < 0.2 else ""
        self.out.add(f"{name}{note} = {self.expressions.any(kind, scope, 3).code}")
        scope.readable += [(name, kind)] * 2

    def _both_ways(self, handler: _Handler, scope: Scope) -> None:
        """A local that gets its value one way or the other, and is read after it."""
        kind = self.chance.choice(self.kinds)
        name = f"v{handler.counter}"
        handler.counter += 1
        self.out.add(f"if {self.expressions.any(BOOL, scope, 2).code}:")
        self.out.add(f"    {name} = {self.expressions.any(kind, scope, 2).code}")
        self.out.add("else:")
        self.out.add(f"    {name} = {self.expressions.any(kind, scope, 2).code}")
        scope.readable += [(name, kind)] * 2

    def _augment(self, handler: _Handler, scope: Scope) -> None:
        """`v += …` of a local, or a new value for it."""
        found = sorted({(name, kind) for name, kind in scope.readable if name.startswith("v")}, key=str)
        if not found:
            self._local(handler, scope)
            return
        name, kind = self.chance.choice(found)
        if kind == INT:
            self.out.add(f"{name} {self.chance.choice(('+=', '-=', '*=', '&=', '|=', '^='))} {self._of(INT, scope)}")
        elif kind == FLOAT:
            other = self.chance.choice((FLOAT, FLOAT, INT))
            self.out.add(f"{name} {self.chance.choice(('+=', '-=', '*='))} {self._of(other, scope)}")
        else:
            self.out.add(f"{name} = {self._of(kind, scope)}")

    def _of(self, kind: Kind, scope: Scope, depth: int = 2) -> str:
        return self.expressions.any(kind, scope, depth).code

    def _if(self, handler: _Handler, scope: Scope, nesting: int) -> None:
        add, chance = self.out.add, self.chance
        add(f"if {self._of(BOOL, scope, 3)}:")
        self._block(handler, scope, nesting)
        if chance.random() < 0.25:
            add(f"elif {self._of(BOOL, scope)}:")
            self._block(handler, scope, nesting)
        if chance.random() < 0.4:
            add("else:")
            self._block(handler, scope, nesting)
        elif chance.random() < 0.15:
            add(f"if {self._of(BOOL, scope)}:")
            add("    return")

    def _loop(self, handler: _Handler, scope: Scope, nesting: int) -> None:
        rounds = self.chance.randrange(1, 4)
        if handler.in_loop:
            self._if(handler, scope, nesting)
            return
        given = self.chance.choice((f"{rounds}", f"1, {1 + rounds}", f"{rounds}, 0, -1"))
        name = f"i{handler.counter}"
        handler.counter += 1
        self.out.add(f"for {name} in range({given}):")
        handler.weight *= rounds
        handler.in_loop = True
        inner = Scope([*scope.readable, (name, INT), (name, INT)])
        self._block(handler, inner, nesting)
        if self.chance.random() < 0.4:
            self.out.add(f"    if {self._of(BOOL, inner)}:")
            self.out.add(f"        {self.chance.choice(('break', 'continue'))}")
            self._block(handler, inner, 0)
        handler.in_loop = False
        handler.weight //= rounds

    def _store(self, handler: _Handler, scope: Scope) -> None:
        field = self.chance.choice(self.state)
        if field in handler.unread:
            self.out.add(f"self.{field.name} = {self._fitting(field, INT, scope)}")
        elif field.kind in (INT, FLOAT) and self.chance.random() < 0.3:
            sign = self.chance.choice(("+=", "-=", "*="))
            other = self.chance.choice((FLOAT, INT)) if field.kind == FLOAT else INT
            self.out.add(f"self.{field.name} {sign} {self._of(other, scope)}")
        else:
            self.out.add(f"self.{field.name} = {self._fitting(field, field.kind, scope)}")

    def _fitting(self, field: Field, kind: Kind, scope: Scope) -> str:
        """A value for a field; mostly within its bounds."""
        text = self.expressions.any(kind, scope, 3)
        low, high = field.low, field.high
        if kind == INT and field.kind == FLOAT:
            low, high = None if low is None else math.ceil(low), None if high is None else math.floor(high)
        return self._within(text, low, high, wild=0.1)

    def _within(self, text: Text, low: Any, high: Any, wild: float) -> str:
        """An expression within bounds, but not always. A constant one always: what fails for good is refused."""
        if low is None and high is None:
            return text.code
        if text.constant:
            return written(clamp(self.expressions.calculated(text), low, high))
        return text.code if self.chance.random() < wild else self.expressions.clamped(text.code, low, high)

    def _made(self, made: Made, scope: Scope) -> str:
        """A message with its arguments, by place or by name, some left out."""
        given: list[str] = []
        by_name = self.chance.random() < 0.6
        for field in made.fields:
            if field.default is not None and self.chance.random() < 0.3:
                by_name = True
                continue
            if field.text:
                code = self.expressions.text(scope, 1)
            else:
                as_int = field.kind == FLOAT and self.chance.random() < 0.15
                code = self._fitting(field, INT if as_int else field.kind, scope)
            given.append(f"{field.name}={code}" if by_name else code)
        if all("=" in code.partition("(")[0] for code in given):
            self.chance.shuffle(given)
        return f"{made.name}({', '.join(given)})"

    def _room(self, handler: _Handler) -> bool:
        if handler.budget < handler.weight:
            return False
        handler.budget -= handler.weight
        return True

    def _yield_event(self, handler: _Handler, scope: Scope) -> None:
        is_command = handler.message is not None and handler.message.base == "Command"
        if is_command and self.chance.random() < 0.25:
            self.out.add(f"if {self._of(BOOL, scope)}:")
            self.out.add(f"    reject({self.expressions.text(scope, 1)})")
        elif not self._room(handler):
            self.out.add("pass")
        elif not is_command and self.chance.random() < 0.5:
            self.out.add("yield event")
        else:
            self.out.add(f"yield {self._made(self.chance.choice(self.yields), scope)}")

    def _yield_effect(self, handler: _Handler, scope: Scope) -> None:
        chance = self.chance
        if not self._room(handler):
            self.out.add("pass")
            return
        is_event = handler.message is not None and handler.message.name != "Woken" and chance.random() < 0.4
        match chance.randrange(9):
            case 0:
                told = "event" if is_event else self._made(chance.choice(self.told), scope)
                to = chance.choice(("'Made/next'", "self.address", 'f"Made/{self.id}"', None))
                if to is None:
                    to = (
                        'f"Made/'
                        + self.expressions.text(scope, 1, plain=True).strip("'").removeprefix('f"').strip('"')
                        + '"'
                    )
                yielded = f"Tell(to={to}, message={told})" if chance.random() < 0.5 else f"Tell({to}, {told})"
            case 1:
                events = [one for one in self.told if one.base == "Event"]
                event = "event" if is_event else self._made(chance.choice(events), scope)
                yielded = f"Publish({self.expressions.text(scope, 1)}, {event})"
            case 2:
                kind = chance.choice((FLOAT, FLOAT, FLOAT, INT))
                high = 1e6 if kind == FLOAT else 1_000_000
                after_s = self._within(self.expressions.any(kind, scope, 2), high * 0, high, wild=0.15)
                yielded = f"WakeMe({chance.choice(TIMERS)!r}, {after_s})"
            case 3:
                kind = chance.choice((FLOAT, FLOAT, INT))
                bound = 2.0**33 - 1.0 if kind == FLOAT else 2**33 - 1
                at_s = self._within(self.expressions.any(kind, scope, 2), -bound, bound, wild=0.3)
                yielded = chance.choice(
                    (f"WakeMeAt({TIMERS[0]!r}, at_s={at_s})", f"CancelWake({chance.choice(TIMERS)!r})")
                )
            case _:
                yielded = self._made(chance.choice(self.actions), scope)
        self.out.add(f"yield {yielded}")


class _Constants:
    """The constants of the class, for calculating what is constant."""

    def __init__(self, constants: list[tuple[str, Kind, Any]]) -> None:
        for name, _, value in constants:
            if name.startswith("self."):
                setattr(self, name.removeprefix("self."), value)


def clamp(value: Any, low: Any, high: Any) -> Any:
    """A value within bounds, if there are any."""
    if isinstance(value, float) and math.isnan(value) and not low is high is None:
        return low if low is not None else high
    if low is not None:
        value = max(value, low)
    return value if high is None else min(value, high)


def make_program(chance: Random, *, small: bool = False) -> Program:
    """A random agent class, as source; a small one takes numba about a second, another one a minute."""
    return Maker(chance, small=small).make()
