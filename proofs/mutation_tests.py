"""What cosmic-ray runs for each change: the tests of the changed module, then those of its package, until one fails.

Started in a copy of the checkout by proofs/mutation.py, which has left the digests of the unchanged modules there.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

DIGESTS = "digests.json"
SOURCE = Path("src/stigmergy")
TESTS = {
    "core": ("tests/core", "tests/testing"),
    "crdt": ("tests/crdt", "tests/core/test_sharing.py"),
}
"""Per package that is changed, where its tests are. Those of a module are beside them, under its name."""


def digests(root: Path) -> dict[str, str]:
    """The modules of these packages, as `core/claims/rules`, and what is in them."""
    found = {}
    for package in TESTS:
        for path in sorted((root / SOURCE / package).rglob("*.py")):
            name = path.relative_to(root / SOURCE).with_suffix("").as_posix()
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def own_tests(module: str) -> str:
    """The file with the tests of a module, if it has one of its own."""
    folder, _, name = module.rpartition("/")
    return f"tests/{folder}/test_{name}.py"


def pytest_command(*tests: str) -> list[str]:
    """The command that runs these tests, in this order, and stops at the first failure."""
    return [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]


def what_to_run(changed: Sequence[str], root: Path) -> list[str]:
    """What to run for these modules: their own tests, then those of their packages."""
    own = [path for path in map(own_tests, changed) if (root / path).exists()]
    packages = dict.fromkeys(module.partition("/")[0] for module in changed)
    return own + [path for package in packages for path in TESTS[package]]


def main() -> int:
    """Ends as pytest does."""
    known: dict[str, str] = json.loads(Path(DIGESTS).read_text())
    changed = [name for name, digest in digests(Path()).items() if known.get(name) != digest]
    return subprocess.run(pytest_command(*what_to_run(changed, Path())), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
