"""Each expression on the list, over numbers that are hard: what the module computes is what Python computes."""

import itertools
import math
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stigmergy.agents.columns import Halt
from stigmergy.compiled.reader import read_agent
from tests.compiled.running import module_of, run

FLOATS = (0.0, -0.0, 1.5, -2.5, 1e308, -1e308, 5e-324, 9.3e18, -9223372036854775808.0, math.inf, -math.inf, math.nan)
INTS = (0, 1, -1, 7, -7, 2**31, 2**62, -(2**62), 2**63 - 1, -(2**63))
BOOLS = (False, True)
TABLE = (2.5, -0.0, math.inf)
WHOLE = (10, 20, 30)
LIMIT = 3
KINDS = {"float": "0.0", "int": "0", "bool": "False"}

SOURCE = """
TABLE = (2.5, -0.0, math.inf)
WHOLE = (10, 20, 30)
LIMIT = 3


def half(x: float) -> float:
    if x < 0.0:
        return -x / 2.0
    return x / 2.0


class Told(Event):
    x: float
    y: float
    i: int
    j: int
    p: bool
    q: bool


class Calculator(Agent):
    out: {kind} = {default}

    @evolve
    def told(self, e: Told) -> None:
        self.out = {expression}
"""

EXPRESSIONS = [
    ("float", "e.x + e.y"),
    ("float", "e.x - e.y"),
    ("float", "e.x * e.y"),
    ("float", "e.x / e.y"),
    ("float", "e.x * e.i - e.j"),
    ("float", "e.i / e.x"),
    ("float", "-e.x"),
    ("float", "abs(e.x)"),
    ("float", "min(e.x, e.y)"),
    ("float", "max(e.x, e.y, 1.0)"),
    ("float", "min(0.0, e.x)"),
    ("float", "math.sqrt(e.x)"),
    ("float", "math.sqrt(e.i)"),
    ("float", "math.fabs(e.i)"),
    ("float", "float(e.i)"),
    ("float", "float(e.p)"),
    ("float", "e.x if e.p else e.y"),
    ("float", "1.0 / e.x if e.p else 2.0"),
    ("float", "TABLE[e.i]"),
    ("float", "half(e.x) + half(x=e.y)"),
    ("float", "self.now + e.x"),
    ("int", "e.i + e.j"),
    ("int", "e.i - e.j"),
    ("int", "e.i * e.j"),
    ("int", "e.i // e.j"),
    ("int", "e.i % e.j"),
    ("int", "e.i // 7 % 3"),
    ("int", "e.i % -5"),
    ("int", "-e.i"),
    ("int", "+e.i"),
    ("int", "abs(e.i)"),
    ("int", "~e.i & 255 | e.j ^ 5"),
    ("int", "(e.i >> 3) - (e.j >> 63)"),
    ("int", "int(e.x)"),
    ("int", "int(e.q) + int(e.i)"),
    ("int", "math.floor(e.x)"),
    ("int", "math.ceil(e.x)"),
    ("int", "math.trunc(e.x)"),
    ("int", "math.floor(e.i)"),
    ("int", "min(e.i, e.j, 5)"),
    ("int", "max(e.i, -3)"),
    ("int", "WHOLE[e.i] + (1, 2, 3)[e.j]"),
    ("int", "WHOLE[LIMIT - 1]"),
    ("int", "e.i + 1"),
    ("int", "-9223372036854775808 + e.i"),
    ("bool", "e.x < e.y"),
    ("bool", "e.x == e.y"),
    ("bool", "e.x != e.x"),
    ("bool", "e.x >= 15"),
    ("bool", "-5 < e.x <= LIMIT"),
    ("bool", "e.i < e.j != 3"),
    ("bool", "0 < 1 // e.i < 1 // e.j"),
    ("bool", "e.i in (0, 7) or e.j not in (1, -1)"),
    ("bool", "e.p and 1.0 / e.x > 0.5"),
    ("bool", "e.p or 1.0 / e.x > 0.5 or e.q"),
    ("bool", "not e.p"),
    ("bool", "e.p == e.q"),
    ("bool", "e.p is True"),
    ("bool", "bool(e.x)"),
    ("bool", "bool(e.i)"),
    ("bool", "math.isnan(e.x) or math.isinf(e.y)"),
    ("bool", "math.isfinite(e.x)"),
    ("bool", "(True, False, True)[e.i]"),
    ("bool", "math.pi < e.x < math.inf"),
]


def half(x: float) -> float:
    return -x / 2.0 if x < 0.0 else x / 2.0


def expected(expression: str, told: SimpleNamespace) -> Any:
    """What Python makes of it, with ints of 8 bytes; an exception is a value as well."""
    names = {"math": math, "TABLE": TABLE, "WHOLE": WHOLE, "LIMIT": LIMIT, "half": half}
    try:
        value = eval(expression, names, {"e": told, "self": SimpleNamespace(now=12.25)})
    except (ArithmeticError, ValueError, IndexError) as error:
        return type(error), str(error)
    if type(value) is int and not -(2**63) <= value < 2**63:
        return OverflowError, None
    return value


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or struct.pack("<d", one) == struct.pack("<d", other)
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize(("kind", "expression"), EXPRESSIONS, ids=[text for _, text in EXPRESSIONS])
def test_computes_what_python_computes(tmp_path: Path, kind: str, expression: str) -> None:
    written = module_of(tmp_path, SOURCE.format(kind=kind, default=KINDS[kind], expression=expression))
    program = read_agent(written.Calculator)
    given = [name for name in "xyijpq" if f"e.{name}" in expression]
    choices = [FLOATS if name in "xy" else INTS if name in "ij" else BOOLS for name in given]
    for values in itertools.product(*choices):
        fields = {"x": 0.0, "y": 0.0, "i": 0, "j": 0, "p": False, "q": False, **dict(zip(given, values, strict=True))}
        ran = run(program, written.Told(**fields), now=12.25)
        want = expected(expression, SimpleNamespace(**fields))
        if isinstance(want, tuple):
            assert ran.halt is Halt.FAULT, (fields, want)
            assert isinstance(ran.error, want[0]), (fields, want, ran.error)
            assert want[1] is None or str(ran.error) == want[1]
            assert ran.states == [{"out": eval(KINDS[kind])}]
        else:
            assert ran.halt is Halt.END, (fields, want, ran.error)
            assert alike(ran.states[0]["out"], want), (fields, want, ran.states)
