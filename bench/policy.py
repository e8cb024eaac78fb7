"""What a policy costs: rulings through the whole way of a node, and commands with a policy next to without.

`policy_*` is one question as a step asks it: the document is written, the thread asked, the answer taken. `engine_*` is
the engine alone, in this thread. `command_*` are commands on a node with a journal in memory, sent one after the other;
with a policy and without one they take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.charts import Bar, Bars, Chart
from bench.options import add_common
from bench.targets import Target
from stigmergy.agents.agent import Agent, decide, evolve
from stigmergy.agents.effects import Events
from stigmergy.agents.messages import Command, Event
from stigmergy.app.fleet import Fleet
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.node.settings import Settings
from stigmergy.policy.bundle import PolicyRules, write_policy
from stigmergy.policy.document import document_of
from stigmergy.policy.engine import PolicyThread
from stigmergy.policy.rego import RegoPolicy
from stigmergy.policy.service import PolicySettings
from stigmergy.shard.judging import PolicyQuestion, Sender

SEED = bytes(range(32))
WITHIN_S = 60.0
"""The deadline: here every ruling is waited for, so that a slow one shows."""
RULES = """package stigmergy

import rego.v1

default allow := false

allow if {
	input.message == "Fly"
	input.state.battery >= 20
	input.sender.how in data.ways
	mission := input.fields.mission
	not mission in data.forbidden
}

reason := "no" if input.message != "Fly"
"""
DATA = '{"ways": ["http", "bus", "program"], "forbidden": ["M13", "M14"]}'
TARGETS = (Target("policy_p99_ms", "a ruling as a step asks for it, at the 99th percentile, ms", 1.0),)


class Fly(Command):
    """What is asked about."""

    mission: str


class Flown(Event):
    """It was allowed."""

    mission: str


class Pilot(Agent):
    """Decides behind the policy."""

    battery: float = 80.0
    flown: int = 0
    place: tuple[float, float] = (52.5, 13.4)

    @decide
    def fly(self, command: Fly) -> Events:
        yield Flown(mission=command.mission)

    @evolve
    def count(self, event: Flown) -> None:
        self.flown += 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench policy`."""
    add_common(parser)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures."""
    rulings, commands = (500, 100) if arguments.quick else (20_000, 5_000)
    policy = RegoPolicy((("rules.rego", RULES),), DATA)
    sender = Sender(how="http", token="ops")
    question = PolicyQuestion("command", "Fly", Fly(mission="M1"), "Pilot/p", Pilot(), sender)
    thread = PolicyThread(policy, lambda: policy, WITHIN_S)
    document = document_of(question, "bench")
    assert policy.ask(document).allowed
    asked = _each(lambda: thread.ask(document_of(question, "bench")), rulings)
    thread.close()
    figures = _percentiles("policy", asked) | _percentiles("engine", _each(lambda: policy.ask(document), rulings))
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="bench-") as folder:
        return figures | asyncio.run(_commands(Path(folder), commands))


def charts(figures: dict[str, Any]) -> list[Chart]:
    """The median times."""
    names = ("engine_p50_ms", "policy_p50_ms", "command_without_p50_ms", "command_with_p50_ms")
    return [Bars("A ruling, and a command", "ms", [Bar(name, figures[name]) for name in names])]


async def _commands(folder: Path, count: int) -> dict[str, Any]:
    signer = Ed25519Signer(SEED)
    rules = PolicyRules("bench", 1, (("rules.rego", RULES),), DATA)
    (folder / "bench-1.policy").write_bytes(write_policy(rules, signer))
    fleet = Fleet("bench", agents=[Pilot], settings=Settings(policy=PolicySettings(within_s=WITHIN_S)))
    with_policy: dict[str, Any] = {"policy": f"folder:{folder}", "policy_keys": [signer.public_key.hex()]}
    took: dict[str, list[float]] = {"without": [], "with": []}
    async with (
        fleet.running(journal="memory:", key=folder / "a.key") as without,
        fleet.running(journal="memory:", key=folder / "b.key", **with_policy) as asked,
    ):
        for number in range(count):
            for name, live in (("without", without), ("with", asked)):
                begun = time.perf_counter()
                assert await live.send(f"Pilot/{number % 100}", Fly(mission="M1"))
                took[name].append(time.perf_counter() - begun)
    return _percentiles("command_without", took["without"]) | _percentiles("command_with", took["with"])


def _each(do: Callable[[], object], count: int) -> list[float]:
    found: list[float] = []
    for _ in range(count):
        begun = time.perf_counter()
        do()
        found.append(time.perf_counter() - begun)
    return found


def _percentiles(name: str, took: list[float]) -> dict[str, float]:
    took = sorted(took)
    at = {"p50": len(took) // 2, "p99": len(took) * 99 // 100}
    return {f"{name}_{what}_ms": round(took[place] * 1000, 4) for what, place in at.items()}
