"""What handlers ask a window for: its length, what it has counted, and fields of its entries, in one loop over them."""

from __future__ import annotations

import ast

from stigmergy.compiled import faults
from stigmergy.compiled.expressions import Expressions
from stigmergy.compiled.frames import field_value, load, name_words
from stigmergy.compiled.values import FLOAT, INT, REFUSED, Kind, Value
from stigmergy.compiled.windows import WindowInfo
from stigmergy.core.columns import Column
from stigmergy.core.windows import empty

_REMEDY = 'write len(self.w), self.w.total("x"), mean, lowest, highest, oldest or newest'
_ENDS = ("oldest", "newest")
_EXTREMES = {"lowest": "<", "highest": ">"}
_ASKED = ("total", "mean", *_EXTREMES, *_ENDS)
_COUNTED = ("dropped", "ahead")


class Asking(Expressions):
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


def _zero(kind: Kind) -> str:
    return "0.0" if kind == FLOAT else "0"
