"""Rego policies through regopy, the engine rego-cpp in this process. The extra [policy].

    loaded = RegoPolicy(modules=(("drones.rego", text),), data="{}")        # raises PolicyRefused
    loaded.ask(document).allowed

`data.stigmergy.allow` decides, `data.stigmergy.reason` says why not. Both are compiled once, as entry points of a
bundle: a plain query of `data.stigmergy.allow` takes ten times as long, and is undefined where OPA says false. The
input is given as JSON text: regopy's own `Input` does not escape quotes in texts.

One kind of expression is refused, because this engine allows where OPA denies: a call, an index or `in` under `not`
with something in it that may be undefined, as `not startswith(input.fields.name, "x")`. OPA looks that up before it
negates, so the rule fails; rego-cpp negates an undefined call, which is true. Say `name := input.fields.name` before,
and negate the call with `name`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from stigmergy.base.errors import ConfigError, PolicyFailed, PolicyRefused
from stigmergy.policy.engine import PolicyAnswer

PACKAGE = "stigmergy"
ALLOW, REASON = f"{PACKAGE}/allow", f"{PACKAGE}/reason"
UNDEFINED = "undefined"
ERROR_CHARS_MAX = 500
_WORDLESS = re.compile(r'"(?:[^"\\\n]|\\.)*"|`[^`]*`|#[^\n]*')
_NOT = re.compile(r"\bnot\b")
_HEAD = re.compile(r"^(?:default\s+)?([A-Za-z_]\w*)", re.MULTILINE)
_REFERENCE = re.compile(r"(?<![\w.])(input|data|[A-Za-z_]\w*)((?:\.\w+)?)(?!\w|\s*\()")


class RegoPolicy:
    """A compiled policy (a LoadedPolicy)."""

    def __init__(self, modules: Sequence[tuple[str, str]], data: str = "") -> None:
        regopy = _regopy()
        self._rego = rego = regopy.Interpreter()
        rego.log_level = regopy.LogLevel.NONE
        try:
            found = checked_data(data)
            for name, text in modules:
                rego.add_module(name, text)
            check_negations(modules, found)
            rego.add_data_json(msgspec.json.encode(found).decode())
            self._bundle = rego.build(None, [ALLOW, REASON])
            is_built = self._bundle.ok()
            # A policy without the package compiles as well, and would deny everything without a word.
            is_there = any(_is_of_package(text) for _, text in modules)
        except (regopy.RegoError, ValueError) as error:
            raise PolicyRefused(f"the policy does not compile: {str(error)[:ERROR_CHARS_MAX]}") from None
        if not is_built:
            raise PolicyRefused("the policy does not compile; look at it with: opa check")
        if not is_there:
            raise PolicyRefused(f"no module has `package {PACKAGE}`, in which `allow` is looked for; write it there")

    def ask(self, document: bytes) -> PolicyAnswer:
        """Rules on a JSON document. Raises PolicyFailed if the engine cannot."""
        regopy = _regopy()
        try:
            self._rego.set_input_term(document.decode())
            if self._value(ALLOW) is True:
                return PolicyAnswer(True)
            reason = self._value(REASON)
        except (regopy.RegoError, ValueError, KeyError, IndexError) as error:
            raise PolicyFailed(f"the engine failed: {str(error)[:ERROR_CHARS_MAX]}") from None
        return PolicyAnswer(False, reason if isinstance(reason, str) else "")

    def _value(self, entry: str) -> Any:
        """What a rule says; None if it says nothing. Raises PolicyFailed for one in conflict with itself."""
        output = self._rego.query_bundle_entrypoint(self._bundle, entry)
        if not output.ok():
            raise PolicyFailed(f"{entry} contradicts itself, or a function in it failed")
        if str(output) == UNDEFINED:
            return None
        return output[0].expressions[0]


def check_negations(modules: Sequence[tuple[str, str]], data: dict[str, Any]) -> None:
    """Raises PolicyRefused for calls under `not` with something that may be undefined."""
    plain = {name: _WORDLESS.sub(lambda found: " " * len(found[0]), text) for name, text in modules}
    rules = {head: None for text in plain.values() for head in _HEAD.findall(text)}
    for name, text in plain.items():
        for place, negated in _negated(text):
            is_call = any(sign in negated for sign in "([") or re.search(r"\bin\b", negated)
            for root, field in _REFERENCE.findall(negated) if is_call else ():
                known = root == "data" and field[1:] in data
                if (root in ("input", "data") and not known) or root in rules:
                    line = text.count("\n", 0, place) + 1
                    raise PolicyRefused(
                        f"{name}, line {line}: `not` before a call with {root}{field}, which may be undefined; OPA "
                        f"denies then, and this engine allows: write `value := {root}{field}` before, and negate with "
                        "value"
                    )


def _negated(text: str) -> Iterator[tuple[int, str]]:
    """What each `not` negates, and where it stands."""
    for found in _NOT.finditer(text):
        depth, end = 0, found.end()
        while end < len(text) and (depth or text[end] not in ";\n}"):
            depth += (text[end] in "([{") - (text[end] in ")]}")
            end += 1
        yield found.start(), text[found.end() : end]


def checked_data(data: str) -> dict[str, Any]:
    """The data of a policy, from its JSON. Raises PolicyRefused for what is no object."""
    try:
        found = msgspec.json.decode(data or "{}")
    except msgspec.DecodeError as error:
        raise PolicyRefused(f"the data of the policy is no JSON ({error}); correct data.json") from None
    if not isinstance(found, dict):
        raise PolicyRefused("the data of a policy is a JSON object; correct data.json")
    if PACKAGE in found:
        raise PolicyRefused(f"{PACKAGE!r} in the data would hide the rules; give it another name in data.json")
    return found


def check_engine() -> None:
    """Raises ConfigError unless the engine is installed."""
    _regopy()


def _is_of_package(text: str) -> bool:
    return any(line.split("#")[0].split() == ["package", PACKAGE] for line in text.splitlines())


def _regopy() -> Any:
    try:
        import regopy
        import regopy.rego_shared
    except ModuleNotFoundError:
        raise ConfigError(
            'a policy needs its engine, and regopy is not installed; pip install "stigmergy[policy]"'
        ) from None
    except OSError as error:
        raise ConfigError(f"the engine of policies cannot be loaded on this machine: {error}") from None
    return regopy
