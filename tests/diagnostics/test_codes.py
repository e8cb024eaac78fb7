"""Every message in the log has a code, every code is in the manual, and nothing is said past the log."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stigmergy.diagnostics.codes import CODES, LEVELS, Trouble, code_table, coded

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "stigmergy"
LOGGERS = frozenset({"log", "_log", "LOG", "_LOG"})
OUTPUTS = frozenset({"output", "_output"})
PROCESSES = ("run", "worker", "gateway", "up", "children", "capture", "api/serve", "api/metrics", "display/troubles")
"""Modules of commands that run until they are stopped: what they say goes to the log, or to stdout."""
SAYS = re.compile(r"\b(say|tell|Trouble|coded|debug|info|warning|error|exception|critical)\s*\(|\blogging\b")
"""Without a match there is nothing to find in a module: most need not be parsed, which takes seconds for all."""


def calls(tree: ast.AST) -> Iterator[tuple[str, str, ast.Call]]:
    """Each call with the last names of what is called: `self._output.tell(…)` is ("_output", "tell")."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=of) | ast.Attribute(attr=of), attr=name)):
                yield of, name, node
            case ast.Call(func=ast.Name(id=name)):
                yield "", name, node
            case _:
                pass


def without_a_code(source: str) -> list[str]:
    """What is said in a module without one of the codes."""
    found: list[str] = []
    if not SAYS.search(source):
        return found
    tree = ast.parse(source)
    for of, name, call in calls(tree):
        says = (of in LOGGERS and name == "say") or (of in OUTPUTS and name == "tell") or name in {"Trouble", "coded"}
        match call.args[:1]:
            case [ast.Constant(value=str(code))] if says and code not in CODES:
                found.append(f"line {call.lineno}: {code} is no code of diagnostics/codes.py")
            case [_] if of in LOGGERS and name in {"debug", "info", "warning", "error", "exception", "critical"}:
                found.append(f"line {call.lineno}: {name}() writes a message without a code; use say()")
            case _:
                pass
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(alias.name == "logging" for alias in node.names):
            found.append(f"line {node.lineno}: messages of Python's logging have no code; use diagnostics/logger.py")
    return found


def past_the_log(source: str) -> list[str]:
    """What a module of a process writes to stderr by itself."""
    found = [
        f"line {call.lineno}: note()"
        for of, name, call in calls(ast.parse(source))
        if (of, name) != ("self", "note") and name == "note"
    ]
    found += [
        f"line {call.lineno}: print()" for of, name, call in calls(ast.parse(source)) if (of, name) == ("", "print")
    ]
    return found + [f"{line}" for line in source.splitlines() if "sys.stderr" in line]


def modules() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if path.parent.name != "diagnostics"]


def test_every_message_has_a_code() -> None:
    found = {str(path): without_a_code(path.read_text(encoding="utf-8")) for path in modules()}
    assert {path: what for path, what in found.items() if what} == {}


def test_a_message_without_a_code_is_found() -> None:
    assert without_a_code('log.say("no-such-code", "text")')
    assert without_a_code('self._output.tell("no-such-code", "text")')
    assert without_a_code('coded("no-such-code", [])')
    assert without_a_code('log.warning("text")')
    assert without_a_code("import logging")
    assert not without_a_code('log.say("bus-down", "text")')


def test_processes_write_nothing_past_the_log() -> None:
    found = {name: past_the_log((SOURCE / "cli" / f"{name}.py").read_text(encoding="utf-8")) for name in PROCESSES}
    assert {name: what for name, what in found.items() if what} == {}
    assert past_the_log('output.note("text")')
    assert past_the_log('print("text")')
    assert past_the_log("sys.stderr.write(text)")


def test_every_code_is_used() -> None:
    source = "\n".join(
        path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py")) if path.name != "codes.py"
    )
    assert [code for code in CODES if f'"{code}"' not in source] == []


@pytest.mark.parametrize("code", CODES)
def test_a_code_says_what_it_means_and_what_to_do(code: str) -> None:
    one = CODES[code]
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", code)
    assert one.level in LEVELS
    for sentence in (one.means, one.do):
        assert sentence[0].isupper() or sentence[0] == "`", sentence
        assert sentence.endswith("."), sentence
        assert "|" not in sentence


def test_the_manual_lists_all_codes() -> None:
    assert code_table() in (ROOT / "docs" / "logging.md").read_text(encoding="utf-8"), (
        "its table is old: run make dashboards"
    )


def test_a_trouble_is_its_sentence() -> None:
    trouble = Trouble("bus-down", "no link", "Drone/1", 3)
    assert (trouble, trouble.code, trouble.agent, trouble.shard) == ("no link", "bus-down", "Drone/1", 3)
    assert type(str(trouble)) is str
    assert coded("bus-down", ["", "no link"]) == ["no link"]
