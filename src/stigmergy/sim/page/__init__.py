"""The timeline of a simulation as one self-contained HTML page: no network, no server.

The page is a template with its style and program in it; the events are inserted as JSON.
"""

from __future__ import annotations

from importlib import resources

import msgspec

from stigmergy.sim.simulation import Outcome

_PLACE = "@data@"


def write_page(outcome: Outcome, *, title: str, command: str) -> str:
    """The page of a run that was made with a chronicle."""
    chronicle = outcome.chronicle
    if chronicle is None:
        raise ValueError("this run kept no chronicle; run it again with one")
    places = {node: place for place, node in enumerate(chronicle.nodes)}
    data = {
        "title": title,
        "seed": outcome.seed,
        "trace": outcome.trace,
        "command": command,
        "violations": outcome.violations,
        "nodes": chronicle.nodes,
        "agents": chronicle.agents,
        "counts": outcome.counts,
        "simulated_us": outcome.simulated_ns // 1000,
        "left_out": chronicle.total - len(chronicle.entries),
        "plan": [
            [one.number, one.fault, one.at_ms * 1000, one.for_ms * 1000, one.node.split(","), str(one)]
            for one in outcome.plan
        ],
        "entries": [
            [
                one.time_ns // 1000,
                places.get(one.node, -1),
                one.kind,
                one.text,
                one.agent,
                places.get(one.peer, -1),
                one.since_ns // 1000,
            ]
            for one in chronicle.entries
        ],
    }
    template = (resources.files(__package__) / "timeline.html").read_text(encoding="utf-8")
    # Inside a script element only this sequence could end it.
    body = msgspec.json.encode(data).decode().replace("</", "<\\/")
    return template.replace(_PLACE, body)
