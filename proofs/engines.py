"""The compiled engine does what the interpreted one does: states, events, effects, refusals and faults, bit for bit.

Random agent classes, made of all that compiles (docs/compiled.md), get random inputs with the numbers at which ints and
floats end. Every input goes through the core's shard on the checked class, and through a table of the compiled one:
alone, with its actions batched, in batches that do not fit, and folded from what was kept. Most programs run as the
plain Python that they also are, which shows the translation; some as machine code, which shows numba.

    python -m proofs.engines [--seed N] [--programs N] [--machine-code N]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from proofs.engines_both import NAMES, Difference, Input, Tried, machine_code, plain_python, times
from proofs.engines_inputs import draw_input
from proofs.engines_programs import Program, make_program
from proofs.engines_shrinking import Make, try_source
from proofs.report import Proof

PROGRAMS = 3_000
PROGRAMS_QUICK = 40
INPUTS = 120
COMPILED = 150
COMPILED_QUICK = 3
COMPILED_INPUTS = 600
"""Compiling takes seconds, and an input microseconds."""
SHOWN_CHARS_MAX = 4_000


def try_seed(seed: int, folder: Path, *, inputs: int, code: Make = plain_python) -> Tried:
    """One random program with so many inputs; one that is to be compiled is small. Raises Difference."""
    chance = Random(f"{seed} engines")
    program = make_program(chance, small=code is not plain_python or chance.random() < 0.3)
    draw = partial(_draw_inputs, program=program, seed=seed, count=inputs)
    return try_source(program.source, draw, folder, code)


def _draw_inputs(module: Any, program: Program, seed: int, count: int) -> list[Input]:
    chance = Random(f"{seed} inputs")
    return [(chance.choice(NAMES), draw_input(chance, program, module), now_ns) for now_ns in times(count)]


def try_seeds(seeds: range, violations: list[str], *, inputs: int, compiled: bool) -> Tried:
    """Random programs, one for each seed."""
    tried = Tried()
    with tempfile.TemporaryDirectory(prefix="stigmergy-engines-") as folder:
        code = partial(machine_code, folder=Path(folder) / "code") if compiled else plain_python
        for seed in seeds:
            try:
                tried.add(try_seed(seed, Path(folder), inputs=inputs, code=code))
            except Exception as error:
                said = str(error) if isinstance(error, Difference) else f"{type(error).__name__}: {error}"
                violations.append(f"seed {seed}{', machine code' if compiled else ''}: {said[:SHOWN_CHARS_MAX]}")
                if len(violations) >= 5:
                    break
    return tried


def prove(
    *, quick: bool = False, seed: int = 1, programs: int | None = None, machine_codes: int | None = None
) -> Proof:
    """Compares both engines on so many programs."""
    begin_s = time.monotonic()
    count = programs if programs is not None else PROGRAMS_QUICK if quick else PROGRAMS
    compiled_count = machine_codes if machine_codes is not None else COMPILED_QUICK if quick else COMPILED
    violations: list[str] = []
    plain = try_seeds(range(seed, seed + count), violations, inputs=INPUTS, compiled=False)
    compiled = try_seeds(range(seed, seed + compiled_count), violations, inputs=COMPILED_INPUTS, compiled=True)
    figures: dict[str, Any] = {}
    for name, tried in (("plain Python", plain), ("machine code", compiled)):
        for what in ("programs", "inputs", "events", "effects", "refusals"):
            figures[f"{what}, {name}"] = getattr(tried, what)
        figures[f"faults, {name}"] = ", ".join(f"{count:,} {kind}" for kind, count in sorted(tried.faults.items()))
    return Proof(
        name="engines",
        promise="a compiled agent does what it does interpreted, bit for bit, and fails where it fails",
        cases=plain.inputs + compiled.inputs,
        violations=violations,
        figures=figures,
        seconds=time.monotonic() - begin_s,
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs the proof as a program and prints its outcome as JSON."""
    parser = argparse.ArgumentParser(prog="python -m proofs.engines", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", type=int, default=PROGRAMS)
    parser.add_argument("--machine-code", type=int, default=COMPILED)
    options = parser.parse_args(arguments)
    proof = prove(seed=options.seed, programs=options.programs, machine_codes=options.machine_code)
    print(msgspec.json.format(msgspec.json.encode(proof), indent=2).decode())
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
