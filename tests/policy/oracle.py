"""OPA itself, as the oracle for our engine: `opa` on the path, or as OPA says. A missing one is a loud skip."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

BUILT = Path(__file__).parents[2] / "build" / "opa" / "opa"
"""Where .ci/opa puts it."""


def find_opa() -> str:
    """The program. Skips where there is none: `.ci/opa` builds it where Go is installed."""
    found = os.environ.get("OPA") or shutil.which("opa") or (str(BUILT) if BUILT.exists() else "")
    if not found:
        why = "no opa on this machine: run .ci/opa, or set OPA to the program"
        assert not os.environ.get("STIGMERGY_REQUIRE_BROKERS"), why
        pytest.skip(why)
    return found


def opa_rules(folder: Path, rego: str, data: str, documents: Sequence[bytes]) -> list[tuple[bool, str]]:
    """What OPA says of all documents: whether `data.stigmergy.allow` is true, and the reason of a denial."""
    (folder / "policy.rego").write_text(rego)
    (folder / "data.json").write_text(json.dumps({"cases": [json.loads(one) for one in documents], **json.loads(data)}))
    query = (
        '[{"allow": allow, "reason": reason} | some one in data.cases; '
        "allow := [x | x := data.stigmergy.allow with input as one]; "
        "reason := [x | x := data.stigmergy.reason with input as one]]"
    )
    files = [str(folder / "policy.rego"), str(folder / "data.json")]
    command = [find_opa(), "eval", "--format=json", *(part for file in files for part in ("--data", file)), query]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["result"][0]["expressions"][0]["value"]
    return [_ruling(one) for one in found]


def _ruling(one: dict[str, Any]) -> tuple[bool, str]:
    if one["allow"] == [True]:
        return True, ""
    reason = one["reason"][0] if one["reason"] else ""
    return False, reason if isinstance(reason, str) else ""
