"""Runs the module that was made of an agent class as plain Python, without compiling: slow, and ready at once.

Also makes agent classes from a few lines of source, in a file of their own, because what compiles is read from files.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import operator
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from stigmergy.agents.columns import ACTION_HEAD_BYTES, Halt, read_records, write_record
from stigmergy.agents.messages import SECOND_NS, Effect, Message, spec_of
from stigmergy.agents.windows import read_row
from stigmergy.compiled import arithmetic
from stigmergy.compiled import program as places
from stigmergy.compiled.program import Program

IMPORTS = """\
from __future__ import annotations
import enum, math
from typing import Annotated
from msgspec import Meta, field
from stigmergy import *
"""

_numbers = itertools.count()


def _in_64_bits(operation: Callable[[int, int], int]) -> Callable[[int, int], tuple[int, bool]]:
    def made(a: int, b: int) -> tuple[int, bool]:
        value = operation(int(a), int(b))
        return (value, False) if -(2**63) <= value < 2**63 else (0, True)

    return made


STAND_INS: dict[str, Callable[..., Any]] = {
    "add": _in_64_bits(operator.add),
    "subtract": _in_64_bits(operator.sub),
    "multiply": _in_64_bits(operator.mul),
    "remainder": lambda a, b: int(a) % int(b),
    "finish": arithmetic.finish.py_func,  # type: ignore[attr-defined]
}


def module_of(folder: Path, source: str) -> ModuleType:
    """A module with these lines below the usual imports, read from a file."""
    path = folder / f"written_{next(_numbers)}.py"
    path.write_text(IMPORTS + source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)  # annotations are looked up there
    spec.loader.exec_module(module)
    return module


@functools.cache
def functions_of(source: str) -> dict[str, Any]:
    """What a module defines."""
    names: dict[str, Any] = {}
    exec(compile(source, "program", "exec"), names)
    # To compile these takes longer than all the rest; test_arithmetic.py compares the two.
    names.update(STAND_INS)
    return names


class Ran:
    """What one call has made of records."""

    def __init__(self, program: Program, result: Any, rows: bytes, kept: bytes, actions: bytes, others: bytes) -> None:
        self.taken, self.kept_count, self.actions_count, self.others_count = (int(one) for one in result[:4])
        self.halt = Halt(int(result[places.HALT]))
        self.error: Exception | None = None
        self.line = 0
        if self.halt in (Halt.FAULT, Halt.BAD_VALUE, Halt.REFUSED):
            site = program.sites[int(result[places.SITE])]
            self.error = site.make(result[places.SLOTS :].tobytes(), 0, lambda agent: f"D-{agent}")
            self.line = site.line
        layout = program.layout
        self.kept = list(read_records(kept[: self.kept_count * layout.record_bytes], layout))
        self.states = [read_row(layout.columns, rows, start) for start in range(0, len(rows), layout.row_bytes)]
        self.effects = _effects(program, actions, self.actions_count) + _effects(program, others, self.others_count)


def _effects(program: Program, data: bytes, count: int) -> list[tuple[int, Effect]]:
    """The effects with their causes."""
    size = program.templates.action_bytes
    found: list[tuple[int, Effect]] = []
    for start in range(0, count * size, size):
        agent, template, spare, cause, zero = struct.unpack_from("<IHHII", data, start)
        assert (spare, zero) == (0, 0)
        slots = data[start + ACTION_HEAD_BYTES : start + size]
        found.append((cause, program.makings[template].make(slots, agent, lambda number: f"D-{number}")))
    return found


def record(program: Program, message: Message, agent: int = 0) -> bytes:
    """A message as a record."""
    tags = [form.tag for form in program.layout.forms]
    form = tags.index(spec_of(type(message)).tag)
    return write_record(
        program.layout, form, agent, {name: getattr(message, name) for name in message.__struct_fields__}
    )


def run(
    program: Program,
    *messages: Message | bytes,
    agents: int = 1,
    flags: int = 0,
    room: int = 300,
    batched: bool = False,
    now: float = 0.0,
    rows: bytes = b"",
    stopped: bytes = b"",
) -> Ran:
    """Takes messages for agent 0, or records as they are."""
    names = functions_of(program.source)
    data = b"".join(one if isinstance(one, bytes) else record(program, one) for one in messages)
    rows_array = np.frombuffer(rows or program.first_row * agents, dtype=np.uint8).copy()
    kept = np.zeros(room * program.layout.record_bytes, dtype=np.uint8)
    actions, others = (np.zeros(room * program.templates.action_bytes, dtype=np.uint8) for _ in range(2))
    result = np.zeros(places.RESULT_LENGTH, dtype=np.int64)
    result[places.NOW_NS] = int(now * SECOND_NS)
    with np.errstate(all="ignore"):
        names["step"](
            np.frombuffer(data, dtype=np.uint8),
            *(0, len(data) // program.layout.record_bytes, agents, flags),
            *(rows_array, np.frombuffer(stopped or bytes(agents), dtype=np.uint8), np.zeros(8, dtype=np.uint8)),
            *(kept, actions, others, np.frombuffer(bytes([batched]) * 1000, dtype=np.uint8)),
            *(now, result),
        )
    return Ran(program, result, rows_array.tobytes(), kept.tobytes(), actions.tobytes(), others.tobytes())


def fold(program: Program, *messages: Message | bytes, agents: int = 1, now: float = 0.0) -> Ran:
    """Folds kept events."""
    names = functions_of(program.source)
    data = b"".join(one if isinstance(one, bytes) else record(program, one) for one in messages)
    rows = np.frombuffer(program.first_row * agents, dtype=np.uint8).copy()
    result = np.zeros(places.RESULT_LENGTH, dtype=np.int64)
    result[places.NOW_NS] = int(now * SECOND_NS)
    count = len(data) // program.layout.record_bytes
    with np.errstate(all="ignore"):
        names["fold"](np.frombuffer(data, dtype=np.uint8), count, rows, np.zeros(8, dtype=np.uint8), now, result)
    return Ran(program, result, rows.tobytes(), b"", b"", b"")
