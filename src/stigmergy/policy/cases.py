"""Reads a policy from its files, and tries it with cases: what `stigmergy policy test` does.

    policy/drones.rego  policy/data.json  policy/cases.json

    [{"name": "a mission needs power", "allow": false, "reason": "battery at 10 %, 20 % needed",
      "input": {"message": "StartMission", "fields": {"mission": "M1"}, "state": {"battery": 10}}}]

What a case leaves out of the input is empty there, as in the input of a sender of whom nothing is known. Files that end
in `_test.rego` are OPA's own tests, and no part of the policy.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from stigmergy.base.errors import PolicyFailed, PolicyRefused
from stigmergy.policy.document import AgentNamed, Document
from stigmergy.policy.engine import LoadedPolicy
from stigmergy.shard.judging import Sender

DATA, CASES = "data.json", "cases.json"


class Case(Struct, frozen=True, forbid_unknown_fields=True):
    """An input, and what the policy must say."""

    name: str
    input: dict[str, Any]
    allow: bool
    reason: str | None = None
    """What the denial must say; None: whatever."""


class CaseResult(Struct, frozen=True):
    """What became of a case."""

    name: str
    wrong: str
    """Empty if it went as it must."""
    took_s: float


def read_sources(path: Path) -> tuple[tuple[tuple[str, str], ...], str]:
    """The modules and the data of a policy: of a folder, or of one .rego file. Raises PolicyRefused."""
    folder = path if path.is_dir() else path.parent
    files = sorted(path.glob("*.rego")) if path.is_dir() else [path]
    files = [file for file in files if not file.name.endswith("_test.rego")]
    if not files:
        raise PolicyRefused(f"{path}: there is no .rego file; write one with `package stigmergy`")
    modules = tuple((file.name, _text(file)) for file in files)
    return modules, _text(folder / DATA) if (folder / DATA).exists() else ""


def read_cases(path: Path) -> list[Case]:
    """The cases beside a policy. Raises PolicyRefused."""
    file = (path if path.is_dir() else path.parent) / CASES
    if not file.exists():
        raise PolicyRefused(f"{file} is not there: write cases, so that it is known what the policy allows")
    try:
        return msgspec.json.decode(_text(file), type=list[Case])
    except msgspec.DecodeError as error:
        raise PolicyRefused(f"{file}: {error}; a case has name, input, allow, and perhaps reason") from None


def run_cases(policy: LoadedPolicy, cases: Sequence[Case], fleet: str = "") -> list[CaseResult]:
    """Tries all cases."""
    found: list[CaseResult] = []
    for case in cases:
        document = filled_document(case.input, fleet)
        begun = time.perf_counter()
        try:
            answer = policy.ask(document)
            wrong = _wrong(case, answer.allowed, answer.reason)
        except PolicyFailed as error:
            wrong = "" if not case.allow and case.reason is None else str(error)
        found.append(CaseResult(case.name, wrong, time.perf_counter() - begun))
    return found


def _wrong(case: Case, allowed: bool, reason: str) -> str:
    if allowed != case.allow:
        return "it is allowed" if allowed else f"it is denied: {reason or 'no rule allows it'}"
    if case.reason is not None and not allowed and reason != case.reason:
        return f"the reason is {reason!r}"
    return ""


def filled_document(given: dict[str, Any], fleet: str = "") -> bytes:
    """The JSON of an input, with all that it leaves out. Raises PolicyRefused for a field that no input has."""
    empty = msgspec.to_builtins(Document("command", "", {}, fleet, AgentNamed(), {}, Sender()))
    for name, value in given.items():
        if name not in empty:
            raise PolicyRefused(f"{name!r} is in no input; there are {', '.join(empty)}")
        empty[name] = empty[name] | value if isinstance(value, dict) and name in ("agent", "sender") else value
    return msgspec.json.encode(empty)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyRefused(f"{path}: cannot be read: {error}") from None
