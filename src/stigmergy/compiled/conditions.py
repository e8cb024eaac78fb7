"""Conditions: comparisons, `and`, `or`, `a if b else c`. What is not needed is not evaluated."""

from __future__ import annotations

import ast
from abc import abstractmethod
from typing import Any

from stigmergy.compiled.frames import Frame, name_words
from stigmergy.compiled.values import BOOL, FLOAT, INT, REFUSED, TEXT, Value, fits, float_text

_FLOAT_EXACT_MAX = 2**53
_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Is: "==",
    ast.IsNot: "!=",
}


class Conditions(Frame):
    """A frame that compiles conditions."""

    @abstractmethod
    def value(self, node: ast.expr) -> Value:
        """What an expression comes to."""

    def condition(self, node: ast.expr) -> Value:
        """What is to be true or false."""
        value = self.value(node)
        if value.is_known and value.kind != BOOL:
            return self.refuse(node, f"{value.kind} is no condition in compiled code", "write x != 0, or compare it")
        return value

    def logical(self, node: ast.BoolOp) -> Value:
        """`and`, `or`: what is not needed is not evaluated."""
        word = "and" if isinstance(node.op, ast.And) else "or"
        first, *others = node.values
        value = self.condition(first)
        for other in others:
            with self.aside() as lines:
                right = self.condition(other)
            if not (value.is_known and right.is_known):
                value = REFUSED
            elif not lines.lines:
                value = Value(BOOL, (f"({value.code} {word} {right.code})",))
            else:
                value = self.keep(value, f"t{self.unit.number()}")
                with self.lines.block(f"if {value.code}:" if word == "and" else f"if not {value.code}:"):
                    self.lines.extend(lines)
                    self.lines.add(f"{value.code} = {right.code}")
        return value

    def compare(self, node: ast.Compare) -> Value:
        """Comparisons and chains of them; each operand is evaluated once, and only if it is needed."""
        left = self.value(node.left)
        if len(node.ops) == 1:
            return self._compared(node, node.ops[0], left, node.comparators[0])[0]
        result, left = self._compared(node, node.ops[0], left, node.comparators[0])
        for op, comparator in zip(node.ops[1:], node.comparators[1:], strict=True):
            with self.aside() as lines:
                right, left = self._compared(node, op, left, comparator)
            if not (result.is_known and right.is_known):
                result = REFUSED
            elif not lines.lines:
                result = Value(BOOL, (f"({result.code} and {right.code})",))
            else:
                result = self.keep(result, f"t{self.unit.number()}")
                with self.lines.block(f"if {result.code}:"):
                    self.lines.extend(lines)
                    self.lines.add(f"{result.code} = {right.code}")
        return result

    def _compared(self, node: ast.Compare, op: ast.cmpop, a: Value, other: ast.expr) -> tuple[Value, Value]:
        """Whether two values compare so, and the right one to go on with."""
        if isinstance(op, ast.In | ast.NotIn):
            return self._among(node, op, a, other), REFUSED
        chained = len(node.ops) > 1
        b = self.value(other)
        b = self.spill(b) if chained and b.is_known else b
        if not (a.is_known and b.is_known):
            return REFUSED, b
        return self.comparison(node, op, a, b), b

    def comparison(self, node: ast.AST, op: ast.cmpop, a: Value, b: Value) -> Value:
        """Whether two values compare so."""
        sign = _COMPARED[type(op)]
        if a.kind.name == "name" or b.kind.name == "name":
            a, b = self._named(a, b), self._named(b, a)
        if {a.kind, b.kind} == {INT, FLOAT}:
            a, b = self._exact(a), self._exact(b)
            if a.kind != b.kind:
                return self.refuse(node, "Python compares an int with a float exactly", "write float(x)")
        if a.kind != b.kind:
            return self.refuse(node, f"compares {a.kind} with {b.kind}", "compare values of one kind")
        identity = isinstance(op, ast.Is | ast.IsNot)
        if identity and a.kind.name not in ("enum", "bool"):
            return self.refuse(node, "whether two numbers are one object is chance", "write == or !=")
        if a.kind == TEXT:
            return self.refuse(node, "compares texts", "use an enum")
        if sign not in ("==", "!=") and a.kind not in (INT, FLOAT):
            return self.refuse(node, f"{a.kind} has no order in compiled code", "compare numbers")
        if not (fits(a) and fits(b)):
            return self.refuse(node, "an int beyond 8 bytes", "stay within -2^63 to 2^63 - 1")
        joint = " and " if sign == "==" else " or "
        pairs = [f"{one} {sign} {another}" for one, another in zip(a.words, b.words, strict=True)]
        return Value(BOOL, (f"({joint.join(pairs)})",))

    def _named(self, value: Value, other: Value) -> Value:
        """A text constant, as one of the names that the other side may have."""
        if value.kind != TEXT or not value.is_constant or other.kind.name != "name":
            return value
        names = other.kind.names
        if other.kind.open and value.constant not in names[:-1]:
            return value  # which is no name that could be told from others
        place = names.index(value.constant) if value.constant in names else len(names)
        return Value(other.kind, (str(place),), value.constant)

    def _exact(self, value: Value) -> Value:
        """An int constant that a float holds exactly, as a float."""
        if value.kind == INT and value.is_constant and abs(value.constant) <= _FLOAT_EXACT_MAX:
            return Value(FLOAT, (float_text(float(value.constant)),), float(value.constant))
        return value

    def _among(self, node: ast.Compare, op: ast.cmpop, a: Value, other: ast.expr) -> Value:
        """`x in (A, B)`: one comparison after the other."""
        if not isinstance(other, ast.Tuple | ast.List | ast.Set) or not other.elts or len(node.ops) > 1:
            return self.refuse(
                node, "in looks into a tuple of constants only", "write x in (A, B), or x == A or x == B"
            )
        members = [self.value(element) for element in other.elts]
        if not (a.is_known and all(member.is_known for member in members)):
            return REFUSED
        a = self.spill(a)
        if a.kind.name not in ("int", "enum", "bytes", "name") or not all(one.is_constant for one in members):
            return self.refuse(node, "in is for ints, enums and bytes among constants", "write comparisons")
        found = [self.comparison(node, ast.Eq(), a, member) for member in members]
        if not all(one.is_known for one in found):
            return REFUSED
        text = f"({' or '.join(one.code for one in found)})"
        return Value(BOOL, (text if isinstance(op, ast.In) else f"(not {text})",))

    def conditional(self, node: ast.IfExp) -> Value:
        """`a if condition else b`."""
        test = self.condition(node.test)
        with self.aside() as lines_a:
            a = self.value(node.body)
        with self.aside() as lines_b:
            b = self.value(node.orelse)
        if not (test.is_known and a.is_known and b.is_known):
            return REFUSED
        if a.kind != b.kind:
            return self.refuse(node, f"either {a.kind} or {b.kind}", "make both of one kind, like 0.0 for 0")
        if a.kind == TEXT or not (fits(a) and fits(b)):
            return self.refuse(node, "chooses between texts, or ints beyond 8 bytes", "choose with if and else")
        return self.either(test, (a, lines_a), (b, lines_b))

    def either(self, test: Value, one: tuple[Value, Any], other: tuple[Value, Any]) -> Value:
        """One of two values of the same kind, of which each has lines of its own."""
        (a, lines_a), (b, lines_b) = one, other
        low, high = min(a.low, b.low), max(a.high, b.high)
        if not lines_a.lines and not lines_b.lines and len(a.words) == 1:
            return Value(a.kind, (f"({a.code} if {test.code} else {b.code})",), low=low, high=high)
        words = name_words(f"t{self.unit.number()}", a.kind)
        for head, value, lines in ((f"if {test.code}:", a, lines_a), ("else:", b, lines_b)):
            with self.lines.block(head):
                self.lines.extend(lines)
                for target, word in zip(words, value.words, strict=True):
                    self.lines.add(f"{target} = {word}")
        return Value(a.kind, words, low=low, high=high)
