"""Loads a random program, and draws inputs for its agent: values at the ends of what its fields may hold."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from random import Random
from typing import Any

from proofs.engines_both import OTHER_NAN
from proofs.engines_expressions import FLOATS, INT_MAX, INT_MIN, INTS, BytesKind, EnumKind
from proofs.engines_programs import Field, Program, clamp

_modules = itertools.count()


def load(source: str, folder: Path) -> Any:
    """The module with this source, from a file of its own in this folder. Take it out of sys.modules when done."""
    name = f"made_agent_{next(_modules)}"
    file = folder / f"{name}.py"
    file.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def draw_input(chance: Random, program: Program, module: Any) -> Any:
    """A message for the agent: mostly ordinary values, often enough the last ones that its fields may hold."""
    made = chance.choice(program.inputs)
    if made.name == "Woken":
        return module.Woken(name=chance.choice(program.timers))
    calm = chance.random() < 0.6
    given = {field.name: draw_value(chance, field, module, calm) for field in made.fields}
    return getattr(module, made.name)(**given)


def draw_value(chance: Random, field: Field, module: Any, calm: bool) -> Any:
    """A value that this field may hold."""
    match field.kind:
        case "int":
            value: Any = (
                chance.randrange(-20, 21) if calm else chance.choice((*INTS, chance.randrange(INT_MIN, INT_MAX)))
            )
            ends = [end for end in (field.low, field.high) if end is not None]
            value = chance.choice(ends) if ends and not calm and chance.random() < 0.4 else value
        case "float":
            wild = (*FLOATS, chance.uniform(-1e6, 1e6), OTHER_NAN)
            value = chance.randrange(-800, 801) / 16 if calm else chance.choice(wild)
        case "bool":
            return chance.random() < 0.5
        case EnumKind(name=name, members=members):
            return getattr(module, name)[chance.choice(members)]
        case BytesKind(size=size):
            return bytes(chance.choice((0, 1, 65, 255)) for _ in range(size)) if chance.random() < 0.5 else bytes(size)
        case _:
            raise TypeError(field.kind)
    return clamp(value, field.low, field.high)
