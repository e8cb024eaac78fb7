"""The engine of a compiled agent class: reads it, compiles it or loads what was compiled, and makes its tables."""

from __future__ import annotations

from stigmergy.compiled.building import Built, build
from stigmergy.compiled.carrying import Carrying
from stigmergy.compiled.program import Program
from stigmergy.compiled.reading import read_agent
from stigmergy.compiled.table import CompiledTable
from stigmergy.core.agent import Agent
from stigmergy.core.columns import Layout
from stigmergy.core.errors import Bug, DefinitionError
from stigmergy.core.tables import INPUT_BYTES_MAX, Say


def engine_of(cls: type[Agent]) -> CompiledEngine:
    """Reads a class. Raises DefinitionError, naming lines, reasons and remedies, if it cannot be compiled."""
    program = read_agent(cls)
    most = program.record_max * program.layout.record_bytes + program.action_max * program.templates.action_bytes
    if most > INPUT_BYTES_MAX:
        raise DefinitionError(
            f"{cls.__qualname__}: one input may cause {program.record_max} events and {program.action_max} effects, "
            f"which is {most} bytes, {INPUT_BYTES_MAX} at most; yield fewer, or leave it out of compiled="
        )
    return CompiledEngine(program)


class CompiledEngine:
    """A program, made ready once, and used by as many tables as there are shards. Implements core.tables.Engine."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.built: Built | None = None
        """The machine code, once `prepare` was called."""
        self._carrying = Carrying(program)

    @property
    def layout(self) -> Layout:
        """How records and rows lie in bytes."""
        return self.program.layout

    def prepare(self, say: Say) -> None:
        """Loads what was compiled before, or compiles and says so. Raises ConfigError for a cache that is not ours."""
        if self.built is None:
            self.built = build(self.program, say)

    def table(self) -> CompiledTable:
        """A new table without agents."""
        if self.built is None:
            raise Bug(f"{self.program.kind} is not prepared")
        return CompiledTable(self.program, self.built, self._carrying)
