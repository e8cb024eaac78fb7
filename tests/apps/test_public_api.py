"""Applications use what users have: `stigmergy` and the modules that `PUBLIC` lists, and `stigmergy.testing`."""

import ast
from pathlib import Path

import pytest

PUBLIC = (
    "stigmergy",
    "stigmergy.columns",
    "stigmergy.federated",
    "stigmergy.rings",
    "stigmergy.serve.embedded",
    "stigmergy.sim",
)
APPS = Path(__file__).resolve().parents[2] / "apps"


def imported(text: str) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
    return found


def private(text: str) -> list[str]:
    ours = [name for name in imported(text) if name.partition(".")[0] == "stigmergy"]
    return [name for name in ours if name not in PUBLIC and not f"{name}.".startswith("stigmergy.testing.")]


@pytest.mark.parametrize("path", sorted(APPS.rglob("*.py")), ids=lambda path: str(path.relative_to(APPS)))
def test_only_the_public_api_is_used(path: Path) -> None:
    assert private(path.read_text(encoding="utf-8")) == []


def test_other_imports_are_found() -> None:
    assert private("import stigmergy.agents.codec\nfrom stigmergy.node import host\n") == [
        "stigmergy.agents.codec",
        "stigmergy.node",
    ]
    assert private("from stigmergy.sim.world import World\n") == ["stigmergy.sim.world"]
    assert (
        private(
            "from stigmergy import Agent\nfrom stigmergy.sim import World\nfrom stigmergy.testing.proxy import Proxy\n"
        )
        == []
    )
