"""Agents that are there, and that a later version of `shared(by=…)` has no group for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stigmergy.agents.agent import Agent, decide
from stigmergy.agents.effects import Events
from stigmergy.agents.shared import Shared, shared
from stigmergy.crdt.orset import ORSet
from stigmergy.crdt.pncounter import PNCounter
from stigmergy.node.declaration import Declaration
from tests.network.replicas.town import QUICK, Count, See, Town


def light(by: Callable[[str], Any]) -> type[Agent]:
    class Light(Agent, kind="Light"):
        seen: Shared[ORSet[str]] = shared(by=by)
        passed: Shared[PNCounter] = shared(by="town")

        @decide
        def see(self, command: See) -> Events:
            yield self.seen.add(command.vehicle)

        @decide
        def count(self, command: Count) -> Events:
            yield self.passed.add(command.amount)

    return Light


def declared(by: Callable[[str], Any]) -> Declaration:
    return Declaration("town", agents=[light(by)], settings=QUICK)


def no_longer(name: str) -> str:
    return {"b": "town"}[name]


def nonsense(name: str) -> str:
    return "town" if name == "b" else "the whole town"


@pytest.mark.parametrize(("by", "said"), [(no_longer, "KeyError: 'a'"), (nonsense, "says 'the whole town' for 'a'")])
def test_they_go_on_alone_and_what_to_do_is_said(by: Callable[[str], str], said: str) -> None:
    town = Town("a b")
    for node in town.nodes.values():
        node.declaration = declared(lambda name: "town")

    async def main() -> None:
        await town.start()
        await town.send("a", See(vehicle="V-1"))
        await town.wait(lambda: [list(seen(name)) for name in town.names] == [["V-1"]] * 2)
        await town.crash("a")
        town.nodes["a"].declaration = declared(by)
        await town.nodes["a"].start()
        # The node runs, the agent writes to this field, and goes on sharing the other one.
        await town.send("a", See(vehicle="V-2"))
        await town.send("a", Count(amount=7))
        await town.wait(lambda: passed("b") == 7)
        await town.send("b", See(vehicle="V-3"))
        assert list(seen("a")) == ["V-1", "V-2"]
        assert list(seen("b")) == ["V-1", "V-3"]
        (trouble,) = town.replicators["a"].troubles()
        assert trouble.startswith("Light.seen is not shared by agents that belong to no group: Light/a, ")
        assert said in trouble
        assert "give shared(by=…) a function that answers for every agent there is" in trouble
        assert town.replicators["b"].troubles() == []
        assert town.nodes["a"].host.failure is None
        # With one that answers all is well again, and nothing was lost.
        await town.crash("a")
        town.nodes["a"].declaration = declared(lambda name: "town")
        await town.nodes["a"].start()
        await town.wait(lambda: [list(seen(name)) for name in town.names] == [["V-1", "V-2", "V-3"]] * 2)
        assert town.replicators["a"].troubles() == []
        await town.stop()

    def agent(name: str) -> Any:
        live = town.nodes[name].live
        assert live is not None
        return live.query(f"Light/{name}")

    def seen(name: str) -> ORSet[str]:
        held: ORSet[str] = agent(name).seen
        return held

    def passed(name: str) -> int:
        counted: int = agent(name).passed.value
        return counted

    town.run(main)
