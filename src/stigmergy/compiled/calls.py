"""Calls inside expressions: Python's built-ins and `math`, with Python's own results; and pure functions.

A function of a module, or an unmarked method of the agent, is compiled in place: its arguments become locals, its
result a value.
"""

from __future__ import annotations

import ast
import inspect
import math
import types
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from stigmergy.agents.agent import reject
from stigmergy.agents.columns import Column
from stigmergy.agents.windows import empty
from stigmergy.compiled import faults
from stigmergy.compiled.expressions import Expressions, as_float
from stigmergy.compiled.frames import field_value, load, name_words
from stigmergy.compiled.sources import MISSING, Source, source_of
from stigmergy.compiled.values import BOOL, FLOAT, INT, REFUSED, TEXT, Value, ValueKind, constant_of, fits
from stigmergy.compiled.windows import WindowInfo

# What handlers ask of a window: its length, its counters, and fields of its entries, in one loop over them.

_REMEDY = 'write len(self.w), self.w.total("x"), mean, lowest, highest, oldest or newest'
_ENDS = ("oldest", "newest")
_EXTREMES = {"lowest": "<", "highest": ">"}
_ASKED = ("total", "mean", *_EXTREMES, *_ENDS)
_COUNTED = ("dropped", "ahead")


class WindowCalls(Expressions):
    """A frame that compiles what windows are asked for."""

    def window_at(self, node: ast.expr) -> WindowInfo | None:
        """The window that an expression is, if it is one."""
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=attr) if owner == self.self_name:
                info: WindowInfo | None = self.unit.windows.get(attr)
                return info
        return None

    def asked(self, node: ast.Call) -> Value | None:
        """What a window answers, where a call asks one."""
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr=what)) if (info := self.window_at(owner)) is not None:
                return self.ask(node, what, info)
            case ast.Call(func=ast.Name(id=name), args=[one], keywords=[]) if self.source.lookup(name) is len:
                info = self.window_at(one)
                return None if info is None else self.length(info)
        return None

    def attribute(self, node: ast.Attribute) -> Value:
        """Of a window what it has counted, of an entry a field; else what all expressions have."""
        info = self.window_at(node.value)
        if info is not None:
            return self.window_attribute(node, info)
        if self.window_at(node) is not None:
            return self.refuse(node, "a window itself is no number", _REMEDY)
        if isinstance(node.value, ast.Name) and node.value.id in self.entries:
            return self.of_message(node, self.entries[node.value.id])
        return super().attribute(node)

    def use_window(self, info: WindowInfo) -> None:
        """Has its head loaded."""
        self.body.windows.setdefault(info.name, info)

    def window_attribute(self, node: ast.Attribute, info: WindowInfo) -> Value:
        """What a window has counted."""
        if node.attr == "late":
            return self.constant(node, 0)  # only buckets close
        if node.attr not in _COUNTED:
            return self.refuse(node, "a window itself is no number", _REMEDY)
        self.use_window(info)
        return Value(INT, (info.local(node.attr),))

    def length(self, info: WindowInfo) -> Value:
        """`len(self.w)`."""
        self.use_window(info)
        return Value(INT, (info.length,), low=0, high=info.window.count_max)

    def ask(self, node: ast.Call, what: str, info: WindowInfo) -> Value:
        """`self.w.total("x")` and the like."""
        if what not in _ASKED:
            return self.refuse(node, "a window is not asked for that in compiled code", _REMEDY)
        given = _arguments(node)
        if given is None:
            return self.refuse(node, "is given other arguments than a field and what an empty one is", _REMEDY)
        name_node, default_node = given
        name = self._field_name(name_node)
        if name is None or name not in info.form.message.__struct_fields__:
            says = f"{info.form.message.__name__} has no such field"
            return self.refuse(node, says, f'name one of them: self.{info.name}.{what}("…")')
        if name not in info.form.fields:
            return REFUSED  # found where the field is declared
        value = field_value(info.form.fields[name], "")
        if what not in _ENDS and value.kind not in (INT, FLOAT):
            return self.refuse(node, f"the {what} of {value.kind}", "use numbers, or oldest and newest")
        kind = FLOAT if what == "mean" else value.kind
        default = None
        if default_node is not None:
            default = self.value(default_node)
            if not default.is_known:
                return REFUSED
            if default.kind != kind:
                return self.refuse(default_node, f"{default.kind}, and else it is {kind}", "give the same, like 0.0")
            default = self.spill(default)
        return self._answer(node, what, info, name, default)

    def _field_name(self, node: ast.expr) -> str | None:
        found = self.value(node)
        return found.constant if found.is_constant and isinstance(found.constant, str) else None

    def _answer(self, node: ast.Call, what: str, info: WindowInfo, name: str, default: Value | None) -> Value:
        self.use_window(info)
        field = info.form.fields[name]
        number = self.unit.number()
        entry = field_value(field, f"x{number}")
        kind = FLOAT if what == "mean" else field.kind
        answer = Value(kind, name_words(f"t{number}", kind), low=entry.low, high=entry.high)
        if kind != INT or what == "total":
            answer = Value(kind, answer.words)
        if default is None:
            self.fault_if(f"{info.length} == 0", node, faults.always(lambda: empty(what, name)))
            self._collect(node, what, info, info.form.columns[name], entry, answer)
            return answer
        with self.lines.block(f"if {info.length} == 0:"):
            for word, text in zip(answer.words, default.words, strict=True):
                self.lines.add(f"{word} = {text}")
        with self.lines.block("else:"):
            self._collect(node, what, info, info.form.columns[name], entry, answer)
        low, high = min(answer.low, default.low), max(answer.high, default.high)
        return Value(kind, answer.words, low=low, high=high)

    def _collect(
        self, node: ast.Call, what: str, info: WindowInfo, column: Column, entry: Value, answer: Value
    ) -> None:
        """Makes the answer of the entries, of which there is at least one."""
        number = self.unit.number()
        place = f"at{number}"
        if what in _ENDS:
            info.find(self.lines, place, "0" if what == "oldest" else f"{info.local('count')} - 1")
            load(self.lines, Value(answer.kind, answer.words), column, "row", place)
            return
        self.lines.add(f"n{number} = 0")
        sums = f"s{number}"
        self.lines.add(f"{sums} = {_zero(entry.kind)}")
        with self.lines.block(f"for k{number} in range({info.local('count')}):"):
            info.find(self.lines, place, f"k{number}")
            if info.by_event:
                with self.lines.block(f"if row_i8[{place}] > {info.local('limit')}:"):
                    self._take_in(node, what, entry, column, number)
            else:
                self._take_in(node, what, entry, column, number)
        if what != "mean":
            self.lines.add(f"{answer.code} = {sums}")
        elif entry.kind == FLOAT:
            self.lines.add(f"{answer.code} = {sums} / float(n{number})")
        else:
            self.lines.add(f"{answer.code} = float({sums}) / float(n{number})")

    def _take_in(self, node: ast.Call, what: str, entry: Value, column: Column, number: int) -> None:
        """One more entry."""
        sums = f"s{number}"
        load(self.lines, entry, column, "row", f"at{number}")
        if what in _EXTREMES:
            self.lines.add(f"if n{number} == 0 or {entry.code} {_EXTREMES[what]} {sums}:")
            self.lines.add(f"    {sums} = {entry.code}")
        else:
            with self.lines.block(f"if n{number} == 0:"):
                self.lines.add(f"{sums} = {entry.code}")
            with self.lines.block("else:"):
                if entry.kind == FLOAT:
                    self.lines.add(f"{sums} = {sums} + {entry.code}")
                else:
                    self.lines.add(f"{sums}, f{number} = add({sums}, {entry.code})")
                    self.fault_if(f"f{number}", node, faults.always(faults.int_outside))
        self.lines.add(f"n{number} += 1")


def _arguments(node: ast.Call) -> tuple[ast.expr, ast.expr | None] | None:
    """The field and the default that a window is given; None where there is anything else."""
    names = {str(one.arg): one.value for one in node.keywords}
    given = dict(zip(("field", "default"), node.args, strict=False))
    if len(node.args) > 2 or any(isinstance(one, ast.Starred) for one in node.args) or given.keys() & names.keys():
        return None
    given |= names
    closed = given.pop("closed", None)
    if closed is not None and not (isinstance(closed, ast.Constant) and closed.value is False):
        return None
    if "field" not in given or not given.keys() <= {"field", "default"}:
        return None
    return given["field"], given.get("default")


def _zero(kind: ValueKind) -> str:
    return "0.0" if kind == FLOAT else "0"


CALLS_DEPTH_MAX = 8
_LAST_BIT = "differs in the last bit between compiled and plain Python"
_REFUSED: dict[Any, tuple[str, str]] = {
    round: (f"round {_LAST_BIT}", "use math.floor(x + 0.5)"),
    pow: (f"pow {_LAST_BIT}", "multiply"),
    divmod: ("gives two values", "use // and %"),
    sum: ("sums up what has no fixed length", "add with +"),
    len: ("nothing here has a length", "use a constant"),
    str: ("texts are made outside of compiled code", "use an f-string in an effect or reject"),
    print: ("handlers are pure", "yield an effect"),
    math.hypot: (f"hypot {_LAST_BIT}", "use math.sqrt(x * x + y * y)"),
    math.dist: (f"dist {_LAST_BIT}", "use math.sqrt(x * x + y * y)"),
    math.pow: (f"pow {_LAST_BIT}", "multiply"),
    reject: ("refuses a command, and is a statement of its own", "write it on a line of its own in @decide"),
}


class Calls(WindowCalls):
    """A frame that compiles calls."""

    @abstractmethod
    def inline(self, node: ast.AST, source: Source, where: str, bound: list[tuple[str, Value]], method: bool) -> Value:
        """Compiles a function in place."""

    def call(self, node: ast.Call) -> Value:
        """What a call comes to."""
        answer = self.asked(node)
        if answer is not None:
            return answer
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            owner = node.func.value.id
            if owner == self.self_name:
                return self._method(node, node.func)
            if owner == self.message_name or owner in self.locals:
                return self.refuse(node, "methods of values do not compile", "name the field itself")
        if isinstance(node.func, ast.Name) and self.source.lookup(node.func.id) is isinstance:
            return self._is_instance(node)
        called = MISSING
        if not (isinstance(node.func, ast.Name) and node.func.id in self.locals):
            called = self.source.resolve(node.func)
        if called is MISSING:
            return self.refuse(node, "nothing is known of what it calls", "call a function of a module")
        if isinstance(called, types.FunctionType) and called is not reject:
            return self._function(node, called)
        return self._built_in(node, called)

    def _is_instance(self, node: ast.Call) -> Value:
        """isinstance(event, SomeEvent): known while compiling, because each message is compiled for itself."""
        match node.args:
            case [ast.Name(id=name), kind] if name == self.message_name and self.record is not None:
                kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
                classes = [self.source.resolve(one) for one in kinds]
                if all(isinstance(one, type) for one in classes) and not node.keywords:
                    return self.constant(node, issubclass(self.record.form.message, tuple(classes)))
        return self.refuse(node, "only the message is asked for its class", "write isinstance(event, SomeEvent)")

    def _built_in(self, node: ast.Call, called: Any) -> Value:
        try:
            one, many = _ONE.get(called), _MANY.get(called)
            refusal = _REFUSED.get(called)
        except TypeError:
            one = many = refusal = None
        if one is None and many is None:
            if refusal is not None:
                return self.refuse(node, *refusal)
            name = getattr(called, "__name__", "it")
            if getattr(called, "__module__", "") == "math":
                return self.refuse(node, f"{name} {_LAST_BIT}", "look it up in a constant tuple, or use Work")
            return self.refuse(node, f"{name} is not on the list of what compiles", "see docs/compiled.md")
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            return self.refuse(node, "is given names or *arguments", "give plain arguments")
        values = [self.value(argument) for argument in node.args]
        if not all(value.is_known for value in values):
            return REFUSED
        if one is not None and len(values) == 1:
            return self._of_one(node, called, one, values[0])
        if many is not None and len(values) >= 2:
            return self._extreme(node, many, values)
        return self.refuse(node, f"is given {len(values)} arguments", "see docs/compiled.md for what compiles")

    def _of_one(self, node: ast.Call, called: Any, one: Callable[..., Value], value: Value) -> Value:
        if value.is_constant and (value.kind in (INT, FLOAT, BOOL) or (called is float and value.kind == TEXT)):
            return self.fold(node, called, value.constant)
        if value.kind not in (INT, FLOAT, BOOL) or not fits(value):
            return self.refuse(node, f"is given {value.kind}", "give it a number")
        if value.kind == BOOL and called not in (int, float, bool):
            return self.refuse(node, "a bool is no number in compiled code", "write int(x)")
        return one(self, node, value)

    def _extreme(self, node: ast.Call, sign: str, values: list[Value]) -> Value:
        """Min and max: a later value counts only if it is less, or more, than the one before."""
        kinds = {value.kind for value in values}
        if len(kinds) > 1:
            return self.refuse(node, "values of several kinds", "make all of one kind, like 0.0 for 0")
        if values[0].kind not in (INT, FLOAT) or not all(fits(value) for value in values):
            return self.refuse(node, f"the least or greatest {values[0].kind}", "use numbers")
        if all(value.is_constant for value in values):
            return self.fold(node, min if sign == "<" else max, *(value.constant for value in values))
        best = self.spill(values[0])
        pick = min if sign == "<" else max
        for value in values[1:]:
            other = self.spill(value)
            text = f"({other.code} if {other.code} {sign} {best.code} else {best.code})"
            low, high = pick(best.low, other.low), pick(best.high, other.high)
            best = self.spill(Value(best.kind, (text,), low=low, high=high))
        return best

    # ---- one argument each

    def to_float(self, node: ast.AST, value: Value) -> Value:
        """float(x)."""
        if value.kind == BOOL:
            return Value(FLOAT, (f"(1.0 if {value.code} else 0.0)",))
        return as_float(value)

    def to_bool(self, node: ast.AST, value: Value) -> Value:
        """bool(x)."""
        zero = "0.0" if value.kind == FLOAT else "0"
        return value if value.kind == BOOL else Value(BOOL, (f"({value.code} != {zero})",))

    def to_int(self, node: ast.AST, value: Value) -> Value:
        """int(x), math.trunc(x)."""
        if value.kind == BOOL:
            return Value(INT, (f"(1 if {value.code} else 0)",), low=0, high=1)
        return value if value.kind == INT else self._whole(node, value)

    def floor(self, node: ast.AST, value: Value) -> Value:
        """math.floor(x)."""
        return value if value.kind == INT else self._whole(node, Value(FLOAT, (f"np.floor({value.code})",)))

    def ceil(self, node: ast.AST, value: Value) -> Value:
        """math.ceil(x)."""
        return value if value.kind == INT else self._whole(node, Value(FLOAT, (f"np.ceil({value.code})",)))

    def _whole(self, node: ast.AST, value: Value) -> Value:
        value = self.spill(value)
        with self.lines.block(f"if not (-9223372036854775808.0 <= {value.code} < 9223372036854775808.0):"):
            self.fault_if(f"{value.code} != {value.code}", node, faults.always(faults.int_of_nan))
            infinite = f"{value.code} == INFINITY or {value.code} == -INFINITY"
            self.fault_if(infinite, node, faults.always(faults.int_of_infinity))
            self.fault_if("True", node, faults.always(faults.float_outside))
        return self.spill(Value(INT, (f"np.int64({value.code})",)))

    def absolute(self, node: ast.AST, value: Value) -> Value:
        """abs(x)."""
        value = self.spill(value)
        if value.kind == FLOAT:
            return Value(FLOAT, (f"abs({value.code})",))
        if value.low == faults.INT_MIN:
            self.fault_if(f"{value.code} == {faults.INT_MIN}", node, faults.always(faults.int_outside))
        high = min(max(abs(value.low), abs(value.high)), faults.INT_MAX)
        return Value(INT, (f"abs({value.code})",), low=0, high=high)

    def absolute_float(self, node: ast.AST, value: Value) -> Value:
        """math.fabs(x)."""
        return Value(FLOAT, (f"abs({as_float(value).code})",))

    def root(self, node: ast.AST, value: Value) -> Value:
        """math.sqrt(x)."""
        value = self.spill(as_float(value))
        self.fault_if(f"{value.code} < 0.0", node, faults.always(faults.root_of_negative))
        return Value(FLOAT, (f"np.sqrt({value.code})",))

    def is_nan(self, node: ast.AST, value: Value) -> Value:
        """math.isnan(x)."""
        value = self.spill(as_float(value))
        return Value(BOOL, (f"({value.code} != {value.code})",))

    def is_infinite(self, node: ast.AST, value: Value) -> Value:
        """math.isinf(x)."""
        value = self.spill(as_float(value))
        return Value(BOOL, (f"({value.code} == INFINITY or {value.code} == -INFINITY)",))

    def is_finite(self, node: ast.AST, value: Value) -> Value:
        """math.isfinite(x)."""
        value = self.spill(as_float(value))
        return Value(BOOL, (f"(-INFINITY < {value.code} < INFINITY)",))

    # ---- functions and methods of the user

    def own(self, node: ast.Attribute) -> Value:
        """A constant or a property of the class."""
        if node.attr in ("id", "address"):
            return self.refuse(node, "a text", f"use self.{node.attr} in texts of effects, in reject and in Tell")
        if node.attr in self.unit.cls.__struct_fields__:
            return REFUSED  # found where the field is declared
        found = inspect.getattr_static(self.unit.cls, node.attr, MISSING)
        if isinstance(found, property) and isinstance(found.fget, types.FunctionType):
            return self._inlined(node, found.fget, [], {}, method=True)
        if found is MISSING or constant_of(found) is None:
            return self.refuse(node, f"{self.unit.cls.__name__} has no such field or constant", "declare it as a field")
        return self.constant(node, found)

    def _method(self, node: ast.Call, func: ast.Attribute) -> Value:
        found = inspect.getattr_static(self.unit.cls, func.attr, MISSING)
        if isinstance(found, staticmethod) and isinstance(found.__func__, types.FunctionType):
            return self._function(node, found.__func__)
        if not isinstance(found, types.FunctionType) or hasattr(found, "__stigmergy_role__"):
            return self.refuse(node, "calls what is no plain method of the agent", "use a method without a mark")
        return self._function(node, found, method=True)

    def _function(self, node: ast.Call, function: types.FunctionType, *, method: bool = False) -> Value:
        if any(isinstance(one, ast.Starred) for one in node.args) or any(one.arg is None for one in node.keywords):
            return self.refuse(node, "is given *arguments", "give plain arguments")
        values = [self.value(argument) for argument in node.args]
        named = {str(one.arg): self.value(one.value) for one in node.keywords}
        if not all(value.is_known for value in (*values, *named.values())):
            return REFUSED
        return self._inlined(node, function, values, named, method=method)

    def _inlined(
        self,
        node: ast.expr,
        function: types.FunctionType,
        values: list[Value],
        named: dict[str, Value],
        *,
        method: bool,
    ) -> Value:
        name = function.__qualname__
        if function.__module__.startswith(("stigmergy.agents", "stigmergy.shard", "stigmergy.devices")):
            return self.refuse(node, f"{name} is of the framework", "call functions of your own")
        if function in self.callers or len(self.callers) >= CALLS_DEPTH_MAX:
            return self.refuse(node, "calls itself, or is called too deep", f"call at most {CALLS_DEPTH_MAX} deep")
        try:
            source = source_of(function)
            arguments = inspect.signature(function).bind(*([REFUSED] if method else []), *values, **named)
        except (OSError, SyntaxError, TypeError) as error:
            return self.refuse(
                node, f"{name} cannot be read or called so ({error})", "call a function written with def"
            )
        arguments.apply_defaults()
        bound: list[tuple[str, Value]] = []
        for parameter, given in list(arguments.arguments.items())[1 if method else 0 :]:
            value = given if isinstance(given, Value) else constant_of(given)
            if value is None or value.kind == TEXT or not fits(value):
                return self.refuse(node, f"{parameter} is given no number", "give numbers, booleans, enums or bytes")
            bound.append((parameter, value))
        return self.inline(node, source, name, bound, method)


_ONE: dict[Any, Callable[..., Value]] = {
    float: Calls.to_float,
    bool: Calls.to_bool,
    int: Calls.to_int,
    abs: Calls.absolute,
    math.trunc: Calls.to_int,
    math.floor: Calls.floor,
    math.ceil: Calls.ceil,
    math.fabs: Calls.absolute_float,
    math.sqrt: Calls.root,
    math.isnan: Calls.is_nan,
    math.isinf: Calls.is_infinite,
    math.isfinite: Calls.is_finite,
}
_MANY = {min: "<", max: ">"}
