"""The events of a simulation, node by node, for people: entries, and a text with a column for each node.

A chronicle is kept only when somebody will read it: the run is repeated for that. It never influences the run. Memory
is bounded: the last ENTRIES_MAX entries.
"""

from __future__ import annotations

import re
import textwrap
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Literal

import msgspec
from msgspec import Struct

from stigmergy.agents.codec import tag_of
from stigmergy.agents.display import fields_in_words

ENTRIES_MAX = 50_000
COLUMN_CHARS_MIN = 18
COLUMN_CHARS_MAX = 44
AFTER_FINDING_COUNT = 8
COLUMNS_MAX = 6
"""More nodes than this are written below each other, not beside each other."""

AGENTS_SHOWN_MAX = 3
AGENT_ENTRIES_MAX = 20
"""Of each agent that a violation names so many earlier entries are written."""
_ADDRESS = re.compile(r"[\w.-]+/[\w.@-]*\w")
_OF_NODES = ("fault", "life")

TimelineKind = Literal["fault", "life", "input", "kept", "order", "message", "finding", "phase"]


class TimelineEntry(Struct, frozen=True):
    """One thing that happened."""

    time_ns: int
    node: str
    """Where; empty for the world."""
    kind: TimelineKind
    text: str
    agent: str = ""
    peer: str = ""
    """From whom a message came."""
    since_ns: int = 0
    """When that message was sent; for a fault, how long it will last."""


class Chronicle:
    """Takes entries in the order of time."""

    def __init__(self, agents: Mapping[str, Sequence[str]], *, entries_max: int = ENTRIES_MAX) -> None:
        """`agents` says who lives on each node."""
        self.nodes = list(agents)
        self.agents = {node: list(here) for node, here in agents.items()}
        self.entries: deque[TimelineEntry] = deque(maxlen=entries_max)
        self.total = 0

    def add(self, entry: TimelineEntry) -> None:
        """Keeps an entry; the oldest goes when there is no more room."""
        self.total += 1
        self.entries.append(entry)


_SIGNS: dict[str, str] = {
    "fault": "!",
    "life": "*",
    "input": ">",
    "kept": "=",
    "order": "#",
    "message": "<",
    "finding": "X",
    "phase": "-",
}


def render(chronicle: Chronicle, *, last: int = 40, width: int = 120, about: Sequence[str] = ()) -> str:
    """The last entries as text: a column for each node, the time in front, faults and phases across all of them.

    Where something was found to be wrong on the way, they end a little behind it. `about` are the violations: of the
    agents that they name, the last entries follow that are further back.
    """
    entries = list(chronicle.entries)
    found = next((place for place, entry in enumerate(entries) if entry.kind == "finding"), None)
    behind = 0 if found is None else max(0, len(entries) - found - AFTER_FINDING_COUNT)
    entries = entries[: len(entries) - behind][-last:]
    nodes = chronicle.nodes
    legend = "! fault   * life   > told   = kept   # order   < message   X finding"
    if not entries:
        return "nothing happened"
    left_out = chronicle.total - len(entries) - behind
    head = [f"… {left_out} entries before", legend] if left_out else [legend]
    lines = _beside(entries, nodes, width) if len(nodes) <= COLUMNS_MAX else _below(entries, nodes)
    lines += [f"… {behind} entries after"] if behind else []
    return "\n".join([*head, *lines, *_of_agents(chronicle, entries[0], about)])


def _of_agents(chronicle: Chronicle, first: TimelineEntry, about: Sequence[str]) -> list[str]:
    """What happened to the agents that the violations name, and to their nodes, before the entries that are shown."""
    words = dict.fromkeys(word for text in about for word in _ADDRESS.findall(text))
    homes = {agent: node for node, agents in chronicle.agents.items() for agent in agents}
    lines: list[str] = []
    for agent in [word for word in words if word in homes][:AGENTS_SHOWN_MAX]:
        earlier = list(takewhile(lambda entry: entry is not first, chronicle.entries))
        mine = [one for one in earlier if one.agent == agent or (one.node == homes[agent] and one.kind in _OF_NODES)]
        if mine:
            lines += [f"before that, of {agent}:", *_below(mine[-AGENT_ENTRIES_MAX:], [homes[agent]])]
    return lines


def _beside(entries: Sequence[TimelineEntry], nodes: Sequence[str], width: int) -> list[str]:
    room = (width - 11) // max(1, len(nodes)) - 2
    column = max(COLUMN_CHARS_MIN, min(COLUMN_CHARS_MAX, room))
    lines = ["seconds    " + "  ".join(node[:column].ljust(column) for node in nodes)]
    for entry in entries:
        text = f"{_SIGNS[entry.kind]} {_told(entry)}"
        if entry.node not in nodes:
            lines.append(f"{_seconds(entry.time_ns)} {text}")
            continue
        place = list(nodes).index(entry.node)
        spaced = text.replace("(", "( ").replace(", ", ",  ") if len(text) > column else text
        wrapped = textwrap.wrap(spaced, column, subsequent_indent="  ", max_lines=3, placeholder="…") or [""]
        for number, line in enumerate(wrapped):
            start = _seconds(entry.time_ns) if number == 0 else " " * 10
            lines.append(f"{start} {' ' * (place * (column + 2))}{line}".rstrip())
    return lines


def _below(entries: Sequence[TimelineEntry], nodes: Sequence[str]) -> list[str]:
    wide = max(len(node) for node in nodes)
    return [
        f"{_seconds(entry.time_ns)} {entry.node.ljust(wide)} {_SIGNS[entry.kind]} {_told(entry)}" for entry in entries
    ]


def _told(entry: TimelineEntry) -> str:
    sender = f"from {entry.peer}: " if entry.peer else ""
    agent = f"{entry.agent} " if entry.agent else ""
    return f"{sender}{agent}{entry.text}"


def _seconds(time_ns: int) -> str:
    """Seconds with milliseconds, by whole numbers: a float would round."""
    milliseconds = time_ns // 1_000_000
    return f"{milliseconds // 1000:>6}.{milliseconds % 1000:03d}"


# Formats messages for the timeline: a name and its fields, and the changes of shared fields.

SHOWN_CHARS_MAX = 160
TAG_FIELDS = ("type",)
FRAMEWORK = "stigmergy."


def shown(body: bytes) -> str:
    """A message: its name and its fields, cut to a length."""
    tag = tag_of(body)
    name = tag.partition("@")[0].removeprefix(FRAMEWORK)
    shared = fields_in_words(tag, body)
    if shared is not None:
        return f"{name}({_change(shared)})"[:SHOWN_CHARS_MAX]
    fields = msgspec.msgpack.decode(body)
    if not isinstance(fields, dict):
        return name
    told = ", ".join(f"{key}={value!r}" for key, value in fields.items() if key not in TAG_FIELDS)
    return f"{name}({told})"[:SHOWN_CHARS_MAX]


def _change(shared: dict[str, Any]) -> str:
    """`vehicles +V-7 -V-9`: the field, what was added with its value, what was removed."""
    words = [shared["field"]]
    for change in shared.get("changes", [shared]):
        for added in change["added"]:
            place = _place(added["at"])
            values = [f"={added[key]}" for key in ("total", "value") if key in added]
            words.append("".join([*(["+", place] if place else []), *values]))
        words += [f"-{_place(path)}" for path in change["removed"]]
    if "state_bytes" in shared:
        words.append(f"and a state of {shared['state_bytes']} bytes")
    return " ".join(words)


def _place(path: list[Any]) -> str:
    return "/".join(map(str, path))
