"""Random expressions of the kinds that compile, for random agents. What they are made of is listed in docs/compiled.md.

Everything is drawn from one `Random`; one that hypothesis steers makes failures small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from msgspec import Struct

INT, FLOAT, BOOL = "int", "float", "bool"
INT_MIN, INT_MAX = -(2**63), 2**63 - 1
INTS = (
    *(0, 1, -1, 2, 3, -3, 7, 10, -10, 100, 127, 128, -128, -129, 255, 256, 32767, 32768, -32769, 65535, 65536),
    *(2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32 - 1, 2**32, 3037000499, 3037000500, -3037000500),
    *(2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**62, -(2**62), INT_MAX - 1, INT_MAX, INT_MIN, INT_MIN + 1),
)
"""Where widths, products and conversions have their ends."""
FLOATS = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.1, 3.0, 99.99, 100.0, 100.00000000000001, 1e-10, 1e10, -1e10),
    *(5e-324, -5e-324, 1e-320, 2.2250738585072014e-308, 1.7976931348623157e308, -1.7976931348623157e308, 1e200, 1e-200),
    *(2.0**31, 2.0**53 - 1.0, 2.0**53, 2.0**53 + 2.0, 2.0**63 - 1024.0, 2.0**63, -(2.0**63), -(2.0**63) - 2048.0, 1e19),
    *(math.inf, -math.inf, math.nan),
)
FORMATS = {
    INT: ("", "", "", ":d", ":05d", ":x", ":,", ":+d", ":>8", ":.1f"),
    FLOAT: ("", "", "", ":.2f", ":.0f", ":e", ":+.3g", ":>12.4f", ":g", ":,.1f", ":%"),
    BOOL: ("", "", ":d", ":>5"),
}


class EnumKind(Struct, frozen=True):
    """Members of one enum."""

    name: str
    members: tuple[str, ...]


class BytesKind(Struct, frozen=True):
    """Bytes of one length."""

    size: int


Kind = str | EnumKind | BytesKind


class Text(Struct, frozen=True):
    """A piece of source, and whether it is made of constants alone."""

    code: str
    constant: bool = False


class Function(Struct, frozen=True):
    """A function or method without a mark, that handlers may call."""

    called: str
    parameters: tuple[Kind, ...]
    result: Kind


class Names(Struct, frozen=True):
    """What a module has beside its classes: constants by kind, tables with their lengths, functions."""

    constants: tuple[tuple[str, Kind, Any], ...]
    tables: tuple[tuple[str, Kind, tuple[Any, ...]], ...]
    functions: tuple[Function, ...] = ()
    of_self: bool = True
    """Whether there is a self with a time."""


class Scope:
    """What can be read at some place: names with their kinds, inner ones forgotten at the end of their block."""

    def __init__(self, readable: Sequence[tuple[str, Kind]]) -> None:
        self.readable = list(readable)

    def of(self, kind: Kind) -> list[str]:
        """What can be read of this kind."""
        return [name for name, known in self.readable if known == kind]


class Expressions:
    """Draws expressions. Those that would fail for every value are not worth drawing, so some are guarded."""

    def __init__(self, chance: Random, names: Names, values: dict[str, Any]) -> None:
        self.chance = chance
        self.names = names
        self._values = values
        """The constants, to calculate with."""

    def any(self, kind: Kind, scope: Scope, depth: int) -> Text:
        """An expression of this kind, at most so deep."""
        if depth <= 0 or self.chance.random() < 0.15:
            return self.leaf(kind, scope)
        match kind:
            case "int":
                made = self.chance.choice(self._INT)(self, scope, depth - 1)
            case "float":
                made = self.chance.choice(self._FLOAT)(self, scope, depth - 1)
            case "bool":
                made = self.chance.choice(self._BOOL)(self, scope, depth - 1)
            case _:
                made = self._choice(kind, scope, 0)
        if made.constant and not self._is_sound(made):
            return self.leaf(kind, scope, constant=False)
        return made

    def leaf(self, kind: Kind, scope: Scope, *, constant: bool = True) -> Text:
        """Something that is simply there; where there is nothing to read, a constant."""
        readable = scope.of(kind)
        if kind == FLOAT and self.names.of_self:
            readable.append("self.now")
        if readable and (not constant or self.chance.random() < 0.75):
            return Text(self.chance.choice(readable))
        named = [name for name, known, _ in self.names.constants if known == kind]
        if named and self.chance.random() < 0.3:
            return Text(self.chance.choice(named), constant=True)
        return Text(self.literal(kind), constant=True)

    def literal(self, kind: Kind) -> str:
        """A constant, written out."""
        return written(self.value(kind))

    def value(self, kind: Kind) -> Any:
        """A value of this kind; small ones more often than not."""
        chance = self.chance
        match kind:
            case "int":
                return chance.randrange(-9, 10) if chance.random() < 0.6 else chance.choice(INTS)
            case "float":
                return chance.randrange(-40, 41) / 8 if chance.random() < 0.6 else chance.choice(FLOATS)
            case "bool":
                return chance.random() < 0.5
            case EnumKind():
                return Raw(f"{kind.name}.{chance.choice(kind.members)}")
            case BytesKind():
                return bytes(chance.choice((0, 1, 65, 127, 128, 255)) for _ in range(kind.size))
            case _:
                raise TypeError(kind)

    def text(self, scope: Scope, depth: int, *, plain: bool = False) -> str:
        """A text: a constant, or an f-string of what texts may hold. A plain one has what names have, mostly."""
        chance = self.chance
        if chance.random() < 0.3:
            return repr(chance.choice(("", "battery", "grün", "{braces}", "it's") if not plain else ("one", "two-2")))
        pieces: list[str] = []
        for _ in range(chance.randrange(1, 4)):
            kind = chance.choice((INT, INT, FLOAT, BOOL, "id", "address", "text"))
            if kind == "text" or (plain and kind == "address"):
                pieces.append(chance.choice((" of ", "%", "{{}}", "é")) if not plain else "x")
            elif kind in ("id", "address"):
                pieces.append("{self." + kind + "}")
            else:
                how = "" if plain else chance.choice(FORMATS[kind])
                # Before Python 3.12 an f-string has no backslash inside: no bytes, so booleans as they are.
                inner = self.any(kind, scope, 0 if kind == BOOL else min(depth, 1))
                pieces.append("{" + inner.code + how + "}")
        return 'f"' + "".join(pieces) + '"'

    def clamped(self, code: str, low: Any, high: Any) -> str:
        """The expression, kept within bounds; NaN stays NaN."""
        if low is not None:
            code = f"max({code}, {written(low)})"
        return code if high is None else f"min({code}, {written(high)})"

    def calculated(self, text: Text) -> Any:
        """The value of a constant expression."""
        return eval(text.code, dict(self._values))

    def _is_sound(self, text: Text) -> bool:
        """Whether a constant expression has a value that 64 bits hold: others are refused, and not what we look for."""
        try:
            value = self.calculated(text)
        except (ArithmeticError, ValueError, IndexError):
            return False
        return type(value) is not int or INT_MIN <= value <= INT_MAX

    # ---- any kind

    def _choice(self, kind: Kind, scope: Scope, depth: int) -> Text:
        then, condition, other = (
            self.any(kind, scope, depth),
            self.any(BOOL, scope, depth),
            self.any(kind, scope, depth),
        )
        return _join("({} if {} else {})", then, condition, other)

    def _call(self, kind: Kind, scope: Scope, depth: int) -> Text:
        found = [function for function in self.names.functions if function.result == kind]
        if not found:
            return self.leaf(kind, scope)
        function = self.chance.choice(found)
        given = [self.any(parameter, scope, depth).code for parameter in function.parameters]
        return Text(f"{function.called}({', '.join(given)})")

    def _look_up(self, kind: Kind, scope: Scope, depth: int) -> Text:
        found = [(name, len(rows)) for name, known, rows in self.names.tables if known == kind]
        if not found:
            return self.leaf(kind, scope)
        name, length = self.chance.choice(found)
        index = self.any(INT, scope, depth)
        if self.chance.random() < 0.93:
            index = _join("{} % " + str(length), self._operand(index))
        return Text(f"{name}[{index.code}]", index.constant)

    def _least(self, kind: Kind, scope: Scope, depth: int) -> Text:
        count = self.chance.choice((2, 2, 3))
        given = [self.any(kind, scope, depth) for _ in range(count)]
        return _join(self.chance.choice(("min", "max")) + f"({', '.join(['{}'] * count)})", *given)

    def _operand(self, text: Text) -> Text:
        return Text(f"({text.code})", text.constant)

    def _divisor(self, kind: Kind, scope: Scope, depth: int) -> Text:
        """Anything but a constant zero, which is refused."""
        text = self.any(kind, scope, depth)
        if text.constant and self.calculated(text) == 0:
            return Text("-1" if kind == INT else "0.5", constant=True)
        return text

    # ---- ints

    def _int_operation(self, scope: Scope, depth: int) -> Text:
        sign = self.chance.choice(("+", "-", "*", "+", "-", "*", "&", "|", "^"))
        left, right = self.any(INT, scope, depth), self.any(INT, scope, depth)
        return _join("{} " + sign + " {}", self._operand(left), self._operand(right))

    def _int_quotient(self, scope: Scope, depth: int) -> Text:
        left, right = self.any(INT, scope, depth), self._divisor(INT, scope, depth)
        guard = "max({}, 1)" if self.chance.random() < 0.8 else "({})"
        return _join("{} " + self.chance.choice(("//", "%")) + " " + guard, self._operand(left), right)

    def _int_unary(self, scope: Scope, depth: int) -> Text:
        form = self.chance.choice(("-({})", "+({})", "~({})", "abs({})", "({}) >> 3", "({}) >> 63"))
        return _join(form, self.any(INT, scope, depth))

    def _int_converted(self, scope: Scope, depth: int) -> Text:
        kind = self.chance.choice((FLOAT, FLOAT, FLOAT, INT, BOOL))
        inner = self.any(kind, scope, depth)
        convert = self.chance.choice(("int", "math.floor", "math.ceil", "math.trunc") if kind != BOOL else ("int",))
        if kind == FLOAT and self.chance.random() < 0.75:
            inner = Text(self.clamped(inner.code, -1000.0, 1000.0), inner.constant)
        return _join(convert + "({})", inner)

    # ---- floats

    def _float_operation(self, scope: Scope, depth: int) -> Text:
        kinds = self.chance.choice(((FLOAT, FLOAT), (FLOAT, FLOAT), (INT, FLOAT), (FLOAT, INT)))
        sign = self.chance.choice(("+", "-", "*"))
        left, right = (self.any(kind, scope, depth) for kind in kinds)
        return _join("{} " + sign + " {}", self._operand(left), self._operand(right))

    def _float_quotient(self, scope: Scope, depth: int) -> Text:
        kinds = self.chance.choice(((FLOAT, FLOAT), (FLOAT, FLOAT), (INT, FLOAT), (FLOAT, INT)))
        left, right = self.any(kinds[0], scope, depth), self._divisor(kinds[1], scope, depth)
        one = "1" if kinds[1] == INT else "1.0"
        guard = f"max({{}}, {one})" if self.chance.random() < 0.8 else "({})"
        return _join("{} / " + guard, self._operand(left), right)

    def _float_unary(self, scope: Scope, depth: int) -> Text:
        form = self.chance.choice(("-({})", "+({})", "abs({})", "math.fabs({})"))
        return _join(form, self.any(FLOAT, scope, depth))

    def _root(self, scope: Scope, depth: int) -> Text:
        form = "math.sqrt({})" if self.chance.random() < 0.12 else "math.sqrt(max({}, {}))"
        kind = self.chance.choice((FLOAT, FLOAT, INT))
        zero = Text("0" if kind == INT else "0.0", constant=True)
        inner = self.any(kind, scope, depth)
        return _join(form, inner, zero) if "max" in form else _join(form, inner)

    def _float_converted(self, scope: Scope, depth: int) -> Text:
        return _join("float({})", self.any(self.chance.choice((INT, INT, FLOAT, BOOL)), scope, depth))

    # ---- booleans

    def _comparison(self, scope: Scope, depth: int) -> Text:
        kind = self.chance.choice((INT, FLOAT, FLOAT))
        signs = [
            self.chance.choice(("<", "<=", ">", ">=", "==", "!=")) for _ in range(self.chance.choice((1, 1, 1, 2, 3)))
        ]
        parts = [self._operand(self.any(kind, scope, depth)) for _ in range(len(signs) + 1)]
        return _join("{}" + "".join(f" {sign} {{}}" for sign in signs), *parts)

    def _against_int(self, scope: Scope, depth: int) -> Text:
        number = str(self.chance.choice((0, 1, 2, 100, 2**53)))
        sign = self.chance.choice(("<", "<=", ">", ">=", "==", "!="))
        value = self._operand(self.any(FLOAT, scope, depth))
        if value.constant:
            value = self._operand(self.leaf(FLOAT, scope, constant=False))
        return _join(f"{{}} {sign} {number}" if self.chance.random() < 0.5 else f"{number} {sign} {{}}", value)

    def _equality(self, scope: Scope, depth: int) -> Text:
        kinds = [known for _, known in scope.readable if not isinstance(known, str) or known == BOOL]
        if not kinds:
            return self._comparison(scope, depth)
        kind = self.chance.choice(kinds)
        left, right = self._operand(self.any(kind, scope, depth)), self._operand(self.any(kind, scope, depth))
        signs = ("==", "!=", "is", "is not") if isinstance(kind, EnumKind) else ("==", "!=")
        return _join("{} " + self.chance.choice(signs) + " {}", left, right)

    def _membership(self, scope: Scope, depth: int) -> Text:
        kinds = [known for _, known in scope.readable if known not in (FLOAT, BOOL)] or [INT]
        kind = self.chance.choice(kinds)
        rest = ", ".join(self.literal(kind) for _ in range(self.chance.randrange(1, 4)))
        sign = self.chance.choice(("in", "not in"))
        return _join("{} " + sign + f" ({rest},)", self._operand(self.any(kind, scope, depth)))

    def _logic(self, scope: Scope, depth: int) -> Text:
        sign = self.chance.choice((" and ", " or "))
        parts = [self._operand(self.any(BOOL, scope, depth)) for _ in range(self.chance.choice((2, 2, 3)))]
        return _join(sign.join(["{}"] * len(parts)), *parts)

    def _not(self, scope: Scope, depth: int) -> Text:
        return _join("not {}", self._operand(self.any(BOOL, scope, depth)))

    def _question(self, scope: Scope, depth: int) -> Text:
        form = self.chance.choice(("math.isnan({})", "math.isinf({})", "math.isfinite({})", "bool({})"))
        return _join(form, self.any(FLOAT, scope, depth))

    def _bool_converted(self, scope: Scope, depth: int) -> Text:
        return _join("bool({})", self.any(self.chance.choice((INT, BOOL)), scope, depth))

    _INT: Sequence[Callable[[Expressions, Scope, int], Text]] = (
        *(_int_operation, _int_operation, _int_operation, _int_quotient, _int_unary, _int_converted),
        lambda self, scope, depth: self._least(INT, scope, depth),
        lambda self, scope, depth: self._choice(INT, scope, depth),
        lambda self, scope, depth: self._look_up(INT, scope, depth),
        lambda self, scope, depth: self._call(INT, scope, depth),
    )
    _FLOAT: Sequence[Callable[[Expressions, Scope, int], Text]] = (
        *(_float_operation, _float_operation, _float_operation, _float_quotient, _float_unary, _root, _float_converted),
        lambda self, scope, depth: self._least(FLOAT, scope, depth),
        lambda self, scope, depth: self._choice(FLOAT, scope, depth),
        lambda self, scope, depth: self._look_up(FLOAT, scope, depth),
        lambda self, scope, depth: self._call(FLOAT, scope, depth),
    )
    _BOOL: Sequence[Callable[[Expressions, Scope, int], Text]] = (
        *(_comparison, _comparison, _comparison, _against_int, _equality, _membership, _logic, _logic, _not, _question),
        _bool_converted,
        lambda self, scope, depth: self._choice(BOOL, scope, depth),
        lambda self, scope, depth: self._look_up(BOOL, scope, depth),
        lambda self, scope, depth: self._call(BOOL, scope, depth),
    )


class Raw(str):
    """Source, not a text."""


def written(value: Any) -> str:
    """A value as source."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "math.nan" if math.isnan(value) else "math.inf" if value > 0 else "-math.inf"
    return repr(value)


def _join(form: str, *parts: Text) -> Text:
    return Text(form.format(*(part.code for part in parts)), all(part.constant for part in parts))
