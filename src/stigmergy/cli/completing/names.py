"""Names that only a running node knows, or else the user's module: agents, commands, events, fields, dead letters.

Nobody waits long for a completion: whatever is not there within NAMES_S_MAX is not offered, and nothing is an error.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stigmergy.cli.bench import benchmarks
from stigmergy.cli.places import config_of, find_fleet, find_running
from stigmergy.core.errors import StigmergyError
from stigmergy.runtime import protocol
from stigmergy.runtime.describing import described_kind
from stigmergy.runtime.protocol import read_reply, write_request
from stigmergy.wiring import ControlClient

_given_s = os.environ.get("STIGMERGY_COMPLETING_S", "")
COMPLETING_S_MAX = float(_given_s) if _given_s.isdecimal() else 2.0
"""Whoever presses Tab waits no longer; on a slow machine, whole seconds in STIGMERGY_COMPLETING_S say otherwise."""
NAMES_S_MAX = COMPLETING_S_MAX / 2
AGENTS_COUNT_MAX = 200
MODULES_COUNT_MAX = 200
MODULE_BYTES_MAX = 256 * 1024
_FLEET = re.compile(r"^(\w+)\s*(?::[^=\n]+)?=\s*(?:stigmergy\.)?Fleet\(", re.MULTILINE)

Given = Mapping[str, list[str]]
Pairs = Iterator[tuple[str, str]]
"""Names, and what they are."""


class Names:
    """Asks at most once for each kind of name."""

    def of(self, metavar: str, command: str, given: Given, current: str) -> Pairs | None:
        """The names that an argument of this metavar may be; None where it is no name."""
        match metavar:
            case "KIND/NAME":
                return self._agents(given, current)
            case "COMMAND" | "EVENT":
                return self._messages(given, "commands" if metavar == "COMMAND" else "events")
            case "TAG":
                return self._tags(given)
            case "FIELD=VALUE":
                return self._fields(given)
            case "ID":
                return self._letters(given) if command == "letters" else iter(())
            case "OBJECT|KEY":
                return self._shut_out(given) if given.get("action") == ["lift"] else self._objects(given)
            case "REPLICA":
                return self._replicas(given)
            case "RESOURCE":
                return self._resources(given)
            case "MODULE:FLEET":
                return _fleets()
            case "NAME" if command == "bench":
                return iter(benchmarks().items())
            case _:
                return None

    def _agents(self, given: Given, current: str) -> Pairs:
        known = self._known(given, current)
        yield from ((agent, "") for agent in known["agents"])
        if not known["agents"]:
            yield from ((f"{kind}/", "agents of this kind") for kind in known["kinds"])

    def _messages(self, given: Given, sort: str) -> Pairs:
        kind = given.get("agent", [""])[0].partition("/")[0]
        messages = self._known(given).get("kinds", {}).get(kind, {}).get(sort, {})
        yield from ((name, " ".join(fields)) for name, fields in messages.items())

    def _tags(self, given: Given) -> Pairs:
        for kind, messages in self._known(given)["kinds"].items():
            yield from ((name, f"command of {kind}") for name in messages["commands"])
            yield from ((name, f"event of {kind}") for name in messages["events"])

    def _fields(self, given: Given) -> Pairs:
        kind = given.get("agent", [""])[0].partition("/")[0]
        sort = "commands" if "command" in given else "events"
        message = given.get("command", given.get("event", [""]))[0]
        known = self._known(given)["kinds"].get(kind, {}).get(sort, {})
        used = [field.partition("=")[0].removesuffix(":") for field in given.get("fields", ())]
        yield from ((f"{name}=", "") for name in known.get(message, ()) if name not in used)

    def _letters(self, given: Given) -> Pairs:
        yield from ((one["letter"], f"{one['agent']} {one['error']}") for one in _listed(given, protocol.Letters()))

    def _objects(self, given: Given) -> Pairs:
        if given.get("action", [""])[0] in ("show", "retire"):
            yield from ((one["object"], ", ".join(one["agents"])) for one in _listed(given, protocol.Shared()))

    def _shut_out(self, given: Given) -> Pairs:
        yield from ((one["key"], one["why"]) for one in _listed(given, protocol.Quarantine()))

    def _replicas(self, given: Given) -> Pairs:
        """Those of the object that could be retired: not our own."""
        name = given.get("subject", [""])[0]
        if given.get("action") == ["retire"]:
            for one in _listed(given, protocol.Shared(object=name)):
                yield from ((its["replica"], "") for its in one["replicas"] if its["agent"] is None)

    def _resources(self, given: Given) -> Pairs:
        for one in _listed(given, protocol.Claims()):
            holder = one["holder"]
            yield one["resource"], "" if holder is None or not holder["agent"] else f"held by {holder['agent']}"

    def _known(self, given: Given, prefix: str = "") -> dict[str, Any]:
        """What the node says, or without one the module that the command line or the configuration names."""
        place = _place(given)
        with contextlib.suppress(StigmergyError):
            if (path := find_running(place)) is not None:
                (known,) = _asked(path, protocol.Names(prefix=prefix, limit=AGENTS_COUNT_MAX))
                return dict(known)
            if place.fleet or config_of(place).fleet.module:
                # What a module prints while it is imported is no completion.
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    plans = find_fleet(place).plans
                return {"agents": [], "kinds": {kind: described_kind(plan) for kind, plan in plans.items()}}
        return {"agents": [], "kinds": {}}


def _place(given: Given) -> argparse.Namespace:
    """The options that say which node is meant, as far as they are on the line already."""
    socket, journal, config, fleet = (given.get(name, [None])[-1] for name in ("socket", "journal", "config", "fleet"))
    return argparse.Namespace(
        socket=None if socket is None else Path(socket),
        journal=journal,
        config=None if config is None else Path(config),
        fleet=fleet,
    )


def _listed(given: Given, request: protocol.AnyRequest) -> list[Any]:
    """The items of a stream; none where nobody runs or answers."""
    with contextlib.suppress(StigmergyError):
        if (path := find_running(_place(given))) is not None:
            return _asked(path, request)
    return []


def _asked(path: Path, request: protocol.AnyRequest) -> list[Any]:
    client = ControlClient(path, timeout_s=NAMES_S_MAX)
    try:
        found: list[Any] = []
        for line in client.ask(write_request(request)):
            reply = read_reply(line)
            if reply.ok is not None:
                return [reply.ok]
            if reply.end is not None:
                break
            found.append(reply.item)
        return found
    finally:
        client.close()


def _fleets() -> Pairs:
    """Fleets in the modules of this folder, as their text says; nothing is imported for it."""
    for path in sorted(Path().glob("*.py"))[:MODULES_COUNT_MAX]:
        with contextlib.suppress(OSError):
            if path.stem.isidentifier() and path.stat().st_size <= MODULE_BYTES_MAX:
                text = path.read_text(encoding="utf-8", errors="replace")
                yield from ((f"{path.stem}:{name}", "") for name in _FLEET.findall(text))
