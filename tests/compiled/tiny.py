"""The smallest program there is, to be compiled quickly, and what a process of its own does with it.

`python -m tests.compiled.tiny FOLDER` builds it there and tells what happened, as JSON. With the number of a user
behind it, it does so as that user, once everything is imported.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stigmergy.compiled.builder import Built, build, processor
from stigmergy.compiled.program import Program
from tests.compiled.handwritten import drone_program

SOURCE = '''\
"""Adds up the bytes of its records."""


def step(records, start, end, known, flags_of_call, rows, stopped, dirty, kept, actions, others, batched, now, result):
    result[0] = end - start
    for i in range(records.size):
        result[1] += records[i]


def fold(records, count, rows, dirty, now, result):
    result[0] = count
'''


def tiny_program(source: str = SOURCE) -> Program:
    """It, with the layout of somebody else."""
    return msgspec.structs.replace(drone_program(), kind="Tiny.kind-1", source=source)


def run(built: Built) -> list[int]:
    """Calls both functions; what they say."""
    records = np.frombuffer(b"\x01\x02\x03", np.uint8)
    some, result = np.zeros(8, np.uint8), np.zeros(64, np.int64)
    built.step(records, 2, 9, 0, 0, some, some, some, some, some, some, records, 0.5, result)
    said = [int(result[0]), int(result[1])]
    built.fold(records, 5, some, some, 0.5, result)
    return [*said, int(result[0])]


def main(folder: Path) -> dict[str, Any]:
    """Builds and runs it."""
    said: list[str] = []
    built = build(tiny_program(), said.append, folder)
    return {
        "said": said,
        "compiled": built.compiled,
        "folder": None if built.folder is None else str(built.folder),
        "result": run(built),
        "processor": processor()[1],
        "whole_numba": "numba.np.arraymath" in sys.modules,
    }


if __name__ == "__main__":
    if len(sys.argv) > 2:
        with tempfile.TemporaryDirectory() as elsewhere:
            build(tiny_program(f"{SOURCE}# another one\n"), lambda _: None, Path(elsewhere))
        os.seteuid(int(sys.argv[2]))
    print(json.dumps(main(Path(sys.argv[1]))))
