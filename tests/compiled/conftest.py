"""Engines of the handwritten programs, made ready once a process; their code is compiled once and kept in build/."""

from functools import cache

import pytest

from stigmergy.compiled.table import CompiledEngine
from tests.compiled.handwritten import drone_program
from tests.compiled.meter import meter_program


@cache
def _engine(name: str) -> CompiledEngine:
    engine = CompiledEngine({"drone": drone_program, "meter": meter_program}[name]())
    engine.prepare(lambda _: None)
    return engine


@pytest.fixture
def drones() -> CompiledEngine:
    """The drone of bench/workload.py: what comes is what is kept."""
    return _engine("drone")


@pytest.fixture
def meters() -> CompiledEngine:
    """The meter: decisions, commands, faults."""
    return _engine("meter")
