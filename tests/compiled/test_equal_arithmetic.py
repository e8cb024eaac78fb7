"""Every operation on numbers, as machine code, for pairs of the values at which ints and floats end.

One agent has a branch for each operation. What it computes, and where it fails, is what Python computes and where the
checked class fails.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Annotated

import pytest
from msgspec import Meta

from proofs.engines_both import Input, compare, machine_code, plain_python
from proofs.engines_expressions import FLOATS, INTS
from stigmergy import Agent, Event, evolve
from stigmergy.agents.messages import SECOND_NS

Operation = Annotated[int, Meta(ge=0, le=31)]
INT_TABLE = (5, -(2**63), 2**63 - 1, 0)
FLOAT_TABLE = (-0.0, math.inf, 1.5, math.nan, 5e-324)


class Ints(Event):
    operation: Operation
    a: int
    b: int


class Floats(Event):
    operation: Operation
    x: float
    y: float


class Mixed(Event):
    operation: Operation
    a: int
    x: float


class Calculator(Agent):
    """Keeps the result of the last operation, whatever kind it is of."""

    number: int = 0
    value: float = 0.0
    truth: bool = False
    byte: Annotated[int, Meta(ge=0, le=255)] = 0
    short: Annotated[int, Meta(ge=-(2**15), le=2**15 - 1)] = 0
    half: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0
    positive: Annotated[float, Meta(gt=0.0)] = 1.0
    percent: Annotated[float, Meta(ge=0.0, le=100.0)] = 1.0

    @evolve
    def of_ints(self, event: Ints) -> None:
        a = event.a
        b = event.b
        if event.operation == 0:
            self.number = a + b
        elif event.operation == 1:
            self.number = a - b
        elif event.operation == 2:
            self.number = a * b
        elif event.operation == 3:
            self.number = a // b
        elif event.operation == 4:
            self.number = a % b
        elif event.operation == 5:
            self.number = (a & b) + (-1 if a < b else 0) * (a ^ b)
        elif event.operation == 6:
            self.number = a | ~b
        elif event.operation == 7:
            self.number = -a if a <= b else abs(a)
        elif event.operation == 8:
            self.number = min(a, b) if a > b else max(a, b, -a)
        elif event.operation == 9:
            self.number = INT_TABLE[a]
            self.value = FLOAT_TABLE[b]
        elif event.operation == 10:
            self.truth = a < b <= a + 1
        elif event.operation == 11:
            self.byte = a
            self.short = b
        elif event.operation == 12:
            self.half = a
        elif event.operation == 13:
            self.value = float(a) / b
        elif event.operation == 14:
            self.value = math.sqrt(a)
        elif event.operation == 15:
            self.number = math.floor(a) + (a >> 63) - (b >> 1)

    @evolve
    def of_floats(self, event: Floats) -> None:
        x = event.x
        y = event.y
        if event.operation == 0:
            self.value = x + y
        elif event.operation == 1:
            self.value = x - y
        elif event.operation == 2:
            self.value = x * y
        elif event.operation == 3:
            self.value = x / y
        elif event.operation == 4:
            self.value = min(x, y)
        elif event.operation == 5:
            self.value = max(x, y)
        elif event.operation == 6:
            self.value = min(x, y, -x) if x != y else abs(x)
        elif event.operation == 7:
            self.value = math.sqrt(x) * -y
        elif event.operation == 8:
            self.number = int(x)
        elif event.operation == 9:
            self.number = math.floor(x) - math.ceil(y)
        elif event.operation == 10:
            self.number = math.trunc(x * y)
        elif event.operation == 11:
            self.truth = x < y
        elif event.operation == 12:
            self.truth = x <= y or not (x >= y)
        elif event.operation == 13:
            self.truth = x == y or bool(x) or math.isnan(y) or (math.isinf(x) and math.isfinite(y))
        elif event.operation == 14:
            self.positive = x
            self.percent = y
        elif event.operation == 15:
            self.value = math.fabs(x) + 0.0 * y

    @evolve
    def of_both(self, event: Mixed) -> None:
        a = event.a
        x = event.x
        if event.operation == 0:
            self.value = a + x
        elif event.operation == 1:
            self.value = x - a
        elif event.operation == 2:
            self.value = a * x
        elif event.operation == 3:
            self.value = a / x
        elif event.operation == 4:
            self.value = x / a
        elif event.operation == 5:
            self.number = int(x) + a
        elif event.operation == 6:
            self.truth = float(a) < x
        elif event.operation == 7:
            self.truth = x < 9007199254740992 or x >= 3
        elif event.operation == 8:
            self.value = a


def all_inputs(ints: tuple[int, ...], floats: tuple[float, ...]) -> list[Input]:
    """All operations on all pairs."""
    told: list[Event] = [Ints(number, a, b) for number, a, b in product(range(16), ints, ints)]
    told += [Floats(number, x, y) for number, x, y in product(range(16), floats, floats)]
    told += [Mixed(number, a, x) for number, a, x in product(range(9), ints, floats)]
    return [("one", event, (1_000 + number // 500) * SECOND_NS) for number, event in enumerate(told)]


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_machine_code_calculates_as_python_does() -> None:
    ints, floats = (*INTS[::3], *INTS[-4:]), (*FLOATS[::3], *FLOATS[-9:])
    tried = compare(Calculator, all_inputs(ints, floats), machine_code)
    assert set(tried.faults) == {"OverflowError", "ValueError", "ZeroDivisionError", "IndexError"}
    assert tried.events > tried.inputs / 2


def test_the_same_source_does_as_plain_python() -> None:
    tried = compare(Calculator, all_inputs(INTS[::4], FLOATS[::4]), plain_python)
    assert tried.events > tried.inputs / 2
