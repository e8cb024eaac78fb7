"""Which uplinks a node listens to, whom their events are for here, and which of them are not taken. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stigmergy.core.messages import spec_of
from stigmergy.core.uplink import OURS, Summary
from stigmergy.runtime.declaration import Declaration
from stigmergy.runtime.listening import Collect
from stigmergy.runtime.topics import fill_address
from stigmergy.runtime.uplink.names import uplinks_pattern

SUMMARY = spec_of(Summary).name


class Sorting:
    """What a fleet's declarations say about events from uplinks."""

    def __init__(
        self, declaration: Declaration, collects: Sequence[Collect], runs: Callable[[str], bool] = lambda _: True
    ) -> None:
        """`runs` says whether an agent runs here."""
        self._runs = runs
        self._fleet = declaration.name
        self._collects = tuple(collects)
        self._commands = {
            kind: {spec_of(message).name: None for message, plan in agent_plan.plans.items() if plan.is_command}
            for kind, agent_plan in declaration.plans.items()
        }

    def patterns(self, site: str) -> list[str]:
        """The topics to subscribe to, each once; `site` where a declaration names none."""
        wanted = (uplinks_pattern(one.fleet or self._fleet, one.site or site) for one in self._collects)
        return list(dict.fromkeys(wanted))

    def address(self, address: str) -> str:
        """Who gets it here: the first declaration that fits says so, else it is the same address."""
        for collect in self._collects:
            places = collect.match(address)
            if places is not None:
                return fill_address(collect.to, places)
        return address

    def unwanted(self, to: str, name: str) -> str:
        """Why a message of this name is not taken; empty if it is."""
        if not self._runs(to):
            return f"{to[:200]} does not run on this node; take its uplink where it does"
        if name in self._commands.get(to.partition("/")[0], ()):
            return f"{name[:100]} is a command; an uplink brings events only"
        if name.startswith(OURS) and name != SUMMARY:
            return f"{name[:100]} is said by this node's own framework alone"
        return ""
