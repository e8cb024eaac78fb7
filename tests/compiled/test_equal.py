"""Random agents in both engines: states, events, effects, refusals and faults are the same, bit for bit.

The programs and the comparison are those of `make prove ARGS=engines`, with fewer seeds. A difference is shown with the
smallest program and inputs that still have it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proofs.engines import try_seed
from proofs.engines_both import Difference, compare, machine_code, plain_python
from proofs.engines_shrinking import try_source
from stigmergy.compiled.builder import Built
from stigmergy.compiled.program import Program
from tests.compiled.agents import Located, Telemetry

BLOCK = 5
"""Programs that one test tries."""


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.prove) for block in range(1, 8))])
def test_random_agents_agree(block: int, tmp_path: Path) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        try_seed(seed, tmp_path, inputs=60)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.prove) for seed in (3, 5, 11))])
def test_random_agents_agree_as_machine_code(seed: int, tmp_path: Path) -> None:
    assert try_seed(seed, tmp_path, inputs=400, code=machine_code).inputs == 400


SOURCE = """\
from stigmergy import Action, Agent, Command, Effects, Event, Events, decide, evolve, react, reject


class Seen(Event):
    value: int
    x: float = 0.0


class Ask(Command):
    value: int


class Act(Action):
    value: int


class Made(Agent):
    total: int = 0
    unrelated: float = 0.0

    @decide
    def ask(self, command: Ask) -> Events:
        if command.value > 5:
            reject(f"{command.value} is more than 5")
        yield Seen(value=command.value)

    @evolve
    def seen(self, event: Seen) -> None:
        self.unrelated = event.x
        self.total += event.value

    @react
    def act(self, event: Seen) -> Effects:
        if self.total > 7:
            yield Act(value=self.total)
"""


def broken(old: str, new: str) -> Callable[[Program], Built]:
    """Runs a program that was translated wrongly."""

    def make(program: Program) -> Built:
        assert old in program.source, program.source
        changed = program.source.replace(old, new)
        return plain_python(
            Program(**{**{n: getattr(program, n) for n in program.__struct_fields__}, "source": changed})
        )

    return make


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [("> 7", "> 8", "effects"), ("> 5", "> 4", "refused"), ("add(", "subtract(", "state")],
)
def test_a_wrong_translation_is_found_and_made_small(old: str, new: str, found: str, tmp_path: Path) -> None:
    def inputs(module: Any) -> list[Any]:
        told = [module.Seen(value=value) for value in (1, 2, 5)] + [module.Ask(value=5), module.Seen(value=2**62)]
        return [("one", message, 10**9) for message in told]

    with pytest.raises(Difference) as caught:
        try_source(SOURCE, inputs, tmp_path, broken(old, new))
    said = str(caught.value)
    assert f"{found}, interpreted:" in said
    assert "unrelated" not in said.partition("class Made")[2]


def test_the_right_translation_is_not(tmp_path: Path) -> None:
    def inputs(module: Any) -> list[Any]:
        return [("one", module.Seen(value=2**62), 10**9), ("one", module.Seen(value=2**62), 10**9)]

    assert try_source(SOURCE, inputs, tmp_path, plain_python).faults == {"OverflowError": 1}


def test_an_agent_that_was_not_told_anything_agrees_too() -> None:
    assert compare(Telemetry, [], plain_python).inputs == 0
    assert compare(Telemetry, [("one", Located(1.0, 2.0, 3.0), 10**9)], plain_python).events == 1
