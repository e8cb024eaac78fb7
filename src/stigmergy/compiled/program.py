"""A program: the result of reading an agent class, and the shape of its code. No numpy, no numba.

`reader` turns a class into a `Program` or refuses it, naming the line; `builder` turns its source into machine code,
cached on disk; `table` runs it. The source is a Python module for numba that people can read, with two functions over
flat arrays of bytes.

    step(records, start, end, known, flags_of_call, rows, stopped, dirty, kept, actions, others, batched, now, result)

- `records`: u1[:], read only: the batch. Record i begins at i * record_bytes. Records `start` to `end` are to be taken.
- `known`: agents with a number of `known` or above are unknown. With NEWCOMER in `flags_of_call`, the one record may be
  for agent number `known`. With ALONE a command is taken; otherwise a command halts as UNKNOWN_FORM.
- `rows`: u1[:], row of agent a begins at a * row_bytes. Written only when all that a record causes has succeeded.
- `stopped`: u1[:], 1 for an agent whose records halt the stretch.
- `dirty`: u1[:], set to 1 at agent >> DIRTY_SHIFT for every row that is written.
- `kept`: u1[:]: where records that are kept are written. Where no form has a `decide` handler and none is transient
  (`Program.plain`), nothing is written: what is kept is what came, from `start` on.
- `actions`, `others`: u1[:]: action records (see agents/columns.py) of templates whose place in `batched` (u1[:]) is 1,
  and of all the others. Causes count the kept records of this call; a cause of an event that is not kept is NO_CAUSE.
- `now`: f8, the step's time in seconds.
- `result`: i8[RESULT_LENGTH]: see the places below; NOW_NS is given, the others are told. On a halt at a record nothing
  of it is in any output.
- The call halts with FULL before a record when `kept`, `actions` or `others` might not have room for what one input can
  cause: `Program.record_max`, `action_max` say how many records and actions that is at most.

    fold(records, count, rows, dirty, now, result)

folds kept records with `evolve` alone. A fault there halts it with FAULT.

The head of a record is checked before anything else: form, then agent, then stopped, then the values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from stigmergy.agents.columns import Layout, Templates
from stigmergy.agents.messages import Effect

NEWCOMER = 1
ALONE = 2
DIRTY_SHIFT = 8
"""Rows are noted as changed in chunks of 256."""
NO_CAUSE = 0xFFFFFFFF

# Places in `result`.
TAKEN = 0
KEPT = 1
ACTIONS = 2
OTHERS = 3
HALT = 4
"""A core.tables.Halt."""
SITE = 5
"""With FAULT, BAD_VALUE and REFUSED: which of the program's `sites` it was."""
NOW_NS = 6
"""Given to the call: the step's time in nanoseconds, which `now` has not room for."""
SLOTS = 8
"""With REFUSED: the slots of the site's text begin here, as bits: an f8 is stored with its own bits."""
RESULT_LENGTH = 64


class Site(Struct, frozen=True):
    """A place in the source where a record can come to a halt: what to report, and where in the user's file it is."""

    line: int
    make: Callable[[bytes, int, Callable[[int], str]], Exception]
    """Given the bytes of the slots, the agent's number and who tells names: the exception that the interpreted engine
    would have raised, or for a bad value the Malformed that says what is allowed."""


class Making(Struct, frozen=True):
    """How an effect that is no batched action becomes an object again."""

    effect: type[Effect]
    make: Callable[[bytes, int, Callable[[int], str]], Effect]
    """Given the slots, the agent's number and who tells names."""


class Program(Struct, frozen=True):
    """An agent class, read."""

    kind: str
    cls: type[Any]
    layout: Layout
    templates: Templates
    """By number. Each `yield` of an effect has one; those that are no actions have a tag and no fields."""
    makings: list[Making]
    """By template: how to make the effect itself."""
    sites: list[Site]
    source: str
    """The module, as text."""
    plain: bool
    """What came is what is kept: no `decide` on any event, nothing transient. Commands have `decide` and are taken
    alone, with `kept` written for them in any case."""
    record_max: int
    """The most records that one input can keep."""
    action_max: int
    """The most effects that one input can cause."""
    first_row: bytes
    """A row of an agent in its first state."""
    wait_ns: int
