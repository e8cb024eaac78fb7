"""Expressions: from a syntax tree to text that numba compiles, with every check that Python makes and numba does not.

Infallible parts become one long text; fallible ones are computed on their own lines, followed by their check, so that
operands are evaluated from left to right and unneeded ones are not evaluated at all.
"""

from __future__ import annotations

import ast
import operator
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from stigmergy.compiled import faults
from stigmergy.compiled.fields import CONFIRMATIONS
from stigmergy.compiled.frames import Frame, RecordView, name_words
from stigmergy.compiled.sources import MISSING
from stigmergy.compiled.values import BOOL, FLOAT, INT, REFUSED, TEXT, Value, ValueKind, constant_of, fits, float_text

# Conditions: comparisons, `and`, `or`, `a if b else c`. Unneeded parts are not evaluated.

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


TABLE_COUNT_MAX = 4_096
_INT_BITS_MAX = 4_096
"""Constants are calculated while compiling; none may grow beyond reason."""
_BINARY: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
    ast.BitAnd: ("&", operator.and_),
    ast.BitOr: ("|", operator.or_),
    ast.BitXor: ("^", operator.xor),
}
_DTYPES = {"int": "np.int64", "float": "np.float64", "bool": "np.bool_"}


class Expressions(Conditions):
    """A frame that compiles expressions."""

    @abstractmethod
    def call(self, node: ast.Call) -> Value:
        """What a call comes to."""

    @abstractmethod
    def own(self, node: ast.Attribute) -> Value:
        """What an attribute of self comes to that is no field."""

    def value(self, node: ast.expr) -> Value:
        """What an expression comes to; REFUSED, with a finding, where it does not compile."""
        match node:
            case ast.Constant():
                return self.constant(node, node.value)
            case ast.Name():
                return self.name(node)
            case ast.Attribute():
                return self.attribute(node)
            case ast.BinOp():
                return self.binary(node)
            case ast.UnaryOp():
                return self.unary(node)
            case ast.BoolOp():
                return self.logical(node)
            case ast.Compare():
                return self.compare(node)
            case ast.IfExp():
                return self.conditional(node)
            case ast.Subscript():
                return self.look_up(node)
            case ast.Call():
                return self.call(node)
            case ast.JoinedStr():
                return self.refuse(node, "texts are made outside of compiled code", "put it into an effect or reject")
            case _:
                what = type(node).__name__
                return self.refuse(node, f"{what} is not on the list of what compiles", "see docs/compiled.md")

    # ---- names and constants

    def constant(self, node: ast.expr, value: Any) -> Value:
        """A constant, if it has a fixed width."""
        found = constant_of(value)
        if found is None:
            if value is None:
                return self.refuse(node, "None has no place in compiled code", "use a flag field")
            return self.refuse(
                node, f"a {type(value).__name__} is no constant of fixed width", "use numbers, enums, booleans or bytes"
            )
        if found.kind == INT and not fits(found):
            return self.refuse(node, "an int beyond 8 bytes", "stay within -2^63 to 2^63 - 1")
        return found

    def name(self, node: ast.Name) -> Value:
        """A local, or a constant of the module."""
        if node.id in (self.self_name, self.message_name):
            return self.refuse(node, f"{node.id} itself is no number", "name a field of it")
        if node.id in self.locals:
            if self.assigned is not None and node.id not in self.assigned:
                return self.refuse(node, "may have no value yet", "give it one before the if or loop")
            return self.locals[node.id]
        if node.id in self.source.function.__code__.co_varnames:
            return self.refuse(node, "has no value yet", "give it one first")
        found = self.source.lookup(node.id)
        if found is MISSING:
            return self.refuse(node, "is not defined", "define it in the module")
        return self.constant(node, found)

    def attribute(self, node: ast.Attribute) -> Value:
        """A field, or a constant by its path."""
        if isinstance(node.value, ast.Name):
            if node.value.id == self.self_name:
                if node.attr in self.unit.state:
                    return self.state(node.attr)
                if node.attr == "now":
                    return Value(FLOAT, ("now",))
                return self.own(node)
            if node.value.id == self.message_name and self.record is not None:
                return self.of_message(node, self.record)
            if node.value.id in self.locals:
                return self.refuse(node, "values have no attributes in compiled code", "name the field itself")
        found = self.source.resolve(node)
        if found is MISSING:
            return self.refuse(node, "is no constant of a module or class", "name a field or a constant")
        return self.constant(node, found)

    def of_message(self, node: ast.Attribute, record: RecordView) -> Value:
        """A field of a message."""
        if node.attr in record.form.fields:
            return record.read(node.attr)
        message = record.form.message
        if message in CONFIRMATIONS and node.attr in message.__struct_fields__:
            says = f"{node.attr} is a text of any length"
            return self.refuse(node, says, f'compare {CONFIRMATIONS[message]} == "…", or let an interpreted agent ask')
        if node.attr in message.__struct_fields__:
            return REFUSED  # found where the field is declared
        return self.refuse(
            node, f"{message.__name__} has no field {node.attr}", "name one of its fields; methods do not compile"
        )

    # ---- arithmetic

    def binary(self, node: ast.BinOp) -> Value:
        """Two operands."""
        a, b = self.value(node.left), self.value(node.right)
        if not (a.is_known and b.is_known):
            return REFUSED
        return self.operate(node, type(node.op), a, b)

    def operate(self, node: ast.AST, op: type[ast.operator], a: Value, b: Value) -> Value:
        """An operation on two values."""
        if op is ast.Pow:
            return self.refuse(node, "** differs in the last bit between compiled and plain Python", "multiply")
        if op is ast.RShift and a.kind == INT and b.kind == INT and b.is_constant and 0 <= b.constant < 64:
            if a.is_constant:
                return self.fold(node, operator.rshift, a.constant, b.constant)
            return Value(INT, (f"({a.code} >> {b.constant})",), low=a.low >> b.constant, high=a.high >> b.constant)
        if op in (ast.LShift, ast.RShift):
            return self.refuse(node, "only >> of an int by a constant of 0 to 63", "multiply, or use a constant")
        if op not in _BINARY:
            return self.refuse(node, f"{op.__name__} is not on the list of what compiles", "see docs/compiled.md")
        sign, function = _BINARY[op]
        if BOOL in (a.kind, b.kind):
            return self.refuse(node, "a bool is no number in compiled code", "write int(x)")
        if a.kind not in (INT, FLOAT) or b.kind not in (INT, FLOAT):
            return self.refuse(node, f"{sign} of {a.kind} and {b.kind}", "calculate with ints and floats")
        if a.is_constant and b.is_constant:
            return self.fold(node, function, a.constant, b.constant)
        if a.kind == b.kind == INT:
            return self._ints(node, sign, a, b)
        if sign in "&|^":
            return self.refuse(node, f"{sign} of a float", "use ints")
        if sign in ("//", "%"):
            return self.refuse(node, f"{sign} of floats rounds in its own way", "use math.floor(a / b), or ints")
        a, b = as_float(a), as_float(b)
        if sign == "/":
            b = self.spill(b)
            if not b.is_constant:
                self.fault_if(f"{b.code} == 0.0", node, faults.always(faults.float_divided_by_zero))
            elif b.constant == 0:
                return self.refuse(node, "always divides by zero", "mend it")
        return Value(FLOAT, (f"({a.code} {sign} {b.code})",))

    def fold(self, node: ast.AST, function: Callable[..., Any], *operands: Any) -> Value:
        """Constants are calculated by Python itself."""
        bits = sum(value.bit_length() for value in operands if isinstance(value, int))
        if bits > _INT_BITS_MAX:
            return self.refuse(node, "constants beyond reason", "use smaller ones")
        try:
            return self.constant_result(node, function(*operands))
        except (ArithmeticError, LookupError, ValueError, TypeError) as error:
            return self.refuse(node, f"always fails ({error})", "mend it")

    def constant_result(self, node: ast.AST, value: Any) -> Value:
        """A constant that was calculated."""
        found = constant_of(value)
        if found is None or found.kind == TEXT:
            return self.refuse(node, "is no constant of fixed width", "use numbers")
        if not fits(found):
            return self.refuse(node, "always fails: an int beyond 8 bytes", "stay within -2^63 to 2^63 - 1")
        return found

    def _ints(self, node: ast.AST, sign: str, a: Value, b: Value) -> Value:
        if not (fits(a) and fits(b)):
            return self.refuse(node, "an int beyond 8 bytes", "stay within -2^63 to 2^63 - 1")
        if sign == "/":
            return self.refuse(
                node, "/ of two ints is rounded in another way beyond 2^53", "write float(a) / b, or a // b"
            )
        if sign in ("//", "%"):
            return self._divide(node, sign, a, b)
        if sign in "&|^":
            both_small = a.low >= 0 and b.low >= 0
            high = (1 << max(a.high.bit_length(), b.high.bit_length())) - 1
            bounds = (0, high) if both_small else (faults.INT_MIN, faults.INT_MAX)
            return Value(INT, (f"({a.code} {sign} {b.code})",), low=bounds[0], high=bounds[1])
        low, high = _range(sign, a, b)
        if low >= faults.INT_MIN and high <= faults.INT_MAX:
            return Value(INT, (f"({a.code} {sign} {b.code})",), low=low, high=high)
        function = {"+": "add", "-": "subtract", "*": "multiply"}[sign]
        word, failed = f"t{self.unit.number()}", f"f{self.unit.number()}"
        self.lines.add(f"{word}, {failed} = {function}({a.code}, {b.code})")
        self.fault_if(failed, node, faults.always(faults.int_outside))
        return Value(INT, (word,))

    def _divide(self, node: ast.AST, sign: str, a: Value, b: Value) -> Value:
        a, b = self.spill(a), self.spill(b)
        if b.is_constant and b.constant == 0:
            return self.refuse(node, "always divides by zero", "mend it")
        if b.low <= 0 <= b.high:
            fault = faults.divided_by_zero if sign == "//" else faults.remainder_by_zero
            self.fault_if(f"{b.code} == 0", node, faults.always(fault))
        may_be_minus_one = b.low <= -1 <= b.high
        if sign == "//":
            if may_be_minus_one and a.low == faults.INT_MIN:
                condition = f"{b.code} == -1 and {a.code} == {faults.INT_MIN}"
                self.fault_if(condition, node, faults.always(faults.int_outside))
            return self.spill(Value(INT, (f"{a.code} // {b.code}",)))
        if may_be_minus_one:
            return self.spill(Value(INT, (f"remainder({a.code}, {b.code})",)))
        low, high = (0, b.high - 1) if b.low > 0 else (faults.INT_MIN, faults.INT_MAX)
        return self.spill(Value(INT, (f"{a.code} % {b.code}",), low=low, high=high))

    def unary(self, node: ast.UnaryOp) -> Value:
        """One operand."""
        if isinstance(node.op, ast.Not):
            value = self.condition(node.operand)
            if not value.is_known:
                return REFUSED
            return (
                self.constant(node, not value.constant) if value.is_constant else Value(BOOL, (f"(not {value.code})",))
            )
        literal = node.operand.value if isinstance(node.operand, ast.Constant) else None
        if isinstance(node.op, ast.USub) and type(literal) is int:
            return self.constant(node, -literal)  # -2^63 has a place, 2^63 has none
        value = self.value(node.operand)
        if not value.is_known:
            return REFUSED
        if value.kind == BOOL:
            return self.refuse(node, "a bool is no number in compiled code", "write int(x)")
        if value.kind not in (INT, FLOAT) or (isinstance(node.op, ast.Invert) and value.kind == FLOAT):
            return self.refuse(node, f"no such operation on {value.kind}", "use numbers")
        if isinstance(node.op, ast.UAdd):
            return value
        if isinstance(node.op, ast.Invert):
            if value.is_constant:
                return self.fold(node, operator.invert, value.constant)
            return Value(INT, (f"(~{value.code})",), low=~value.high, high=~value.low)
        return self.negate(node, value)

    def negate(self, node: ast.AST, value: Value) -> Value:
        """Minus a value."""
        if value.is_constant:
            return self.fold(node, operator.neg, value.constant)
        if value.kind == FLOAT:
            return Value(FLOAT, (f"(-{value.code})",))
        if value.low == faults.INT_MIN:
            value = self.spill(value)
            self.fault_if(f"{value.code} == {faults.INT_MIN}", node, faults.always(faults.int_outside))
        return Value(INT, (f"(-{value.code})",), low=-value.high, high=min(-value.low, faults.INT_MAX))

    # ---- tables

    def look_up(self, node: ast.Subscript) -> Value:
        """`TABLE[i]`."""
        table = self._table(node.value)
        if table is None:
            return self.refuse(node, "only constant tuples of numbers or booleans are looked into", "write TABLE[i]")
        kind, items = table
        index = self.value(node.slice)
        if not index.is_known:
            return REFUSED
        if index.kind != INT:
            return self.refuse(node, f"{index.kind} is no index", "use an int")
        if index.is_constant:
            return self.fold(node, operator.getitem, items, index.constant)
        texts = [item.code for item in items_of(items)]
        name = self.unit.table(_DTYPES[kind.name], ", ".join(texts))
        count = len(items)
        index = self.spill(index)
        self.fault_if(f"not (-{count} <= {index.code} < {count})", node, faults.always(faults.index_outside))
        if index.low < 0:
            index = self.spill(Value(INT, (f"({index.code} if {index.code} >= 0 else {index.code} + {count})",)))
        if kind != INT:
            return Value(kind, (f"{name}[{index.code}]",))
        return Value(kind, (f"{name}[{index.code}]",), low=min(items), high=max(items))

    def _table(self, node: ast.expr) -> tuple[ValueKind, tuple[Any, ...]] | None:
        """A constant tuple of one kind."""
        items: Any = MISSING
        if isinstance(node, ast.Tuple):
            values = [self.value(element) for element in node.elts]
            items = tuple(value.constant for value in values) if all(one.is_constant for one in values) else MISSING
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == self.self_name:
            items = getattr(self.unit.cls, node.attr, MISSING)
        elif not (isinstance(node, ast.Name) and node.id in self.locals):
            items = self.source.resolve(node)
        if not isinstance(items, tuple) or not 0 < len(items) <= TABLE_COUNT_MAX:
            return None
        kinds = {type(item) for item in items}
        if len(kinds) != 1 or kinds.isdisjoint({int, float, bool}):
            return None
        found = items_of(items)
        return (found[0].kind, items) if all(fits(item) for item in found) else None


def items_of(items: tuple[Any, ...]) -> list[Value]:
    """The constants of a table."""
    return [value for value in (constant_of(item) for item in items) if value is not None]


def as_float(value: Value) -> Value:
    """An int made a float, as Python does it where the other operand is one."""
    if value.kind != INT:
        return value
    if value.is_constant:
        try:
            return Value(FLOAT, (float_text(float(value.constant)),), float(value.constant))
        except OverflowError:
            return value
    return Value(FLOAT, (f"float({value.code})",))


def _range(sign: str, a: Value, b: Value) -> tuple[int, int]:
    """Between which the result of an operation on ints surely is."""
    match sign:
        case "+":
            return a.low + b.low, a.high + b.high
        case "-":
            return a.low - b.high, a.high - b.low
        case _:
            products = [one * other for one in (a.low, a.high) for other in (b.low, b.high)]
            return min(products), max(products)
