"""Rego policies through regopy, the engine rego-cpp in this process. The extra [policy].

    loaded = RegoPolicy(modules=(("drones.rego", text),), data="{}")        # raises PolicyRefused
    loaded.ask(document).allowed

`data.stigmergy.allow` decides, `data.stigmergy.reason` says why not. Both are compiled once, as entry points of a
bundle: a plain query of `data.stigmergy.allow` takes ten times as long, and is undefined where OPA says false. The
input is given as JSON text: regopy's own `Input` does not escape quotes in texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stigmergy.base.errors import ConfigError, PolicyFailed, PolicyRefused
from stigmergy.policy.engine import PolicyAnswer

PACKAGE = "stigmergy"
ALLOW, REASON = f"{PACKAGE}/allow", f"{PACKAGE}/reason"
UNDEFINED = "undefined"
ERROR_CHARS_MAX = 500


class RegoPolicy:
    """A compiled policy (a LoadedPolicy)."""

    def __init__(self, modules: Sequence[tuple[str, str]], data: str = "") -> None:
        regopy = _regopy()
        self._rego = rego = regopy.Interpreter()
        rego.log_level = regopy.LogLevel.NONE
        try:
            for name, text in modules:
                rego.add_module(name, text)
            rego.add_data_json(checked_data(data))
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


def checked_data(data: str) -> str:
    """The data of a policy as JSON. Raises PolicyRefused for what is no object."""
    try:
        found = msgspec.json.decode(data or "{}")
    except msgspec.DecodeError as error:
        raise PolicyRefused(f"the data of the policy is no JSON ({error}); correct data.json") from None
    if not isinstance(found, dict):
        raise PolicyRefused("the data of a policy is a JSON object; correct data.json")
    if PACKAGE in found:
        raise PolicyRefused(f"{PACKAGE!r} in the data would hide the rules; give it another name in data.json")
    return data or "{}"


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
