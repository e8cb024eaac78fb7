"""What cosmic-ray runs for each change: the tests of the changed module first, then all others, until one fails.

Started in a copy of the checkout by proofs/mutation.py, which has left the digests of the unchanged modules there.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

DIGESTS = "digests.json"
MODULES = Path("src/stigmergy/core")
TESTS = ("tests/core", "tests/testing")


def digests(root: Path) -> dict[str, str]:
    """The modules of the core and what is in them."""
    return {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((root / MODULES).glob("*.py"))}


def pytest_command(*first: str) -> list[str]:
    """The command that runs the tests, these first, and stops at the first failure."""
    return [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-n0",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        *first,
        *TESTS,
    ]


def main() -> int:
    """Ends as pytest does."""
    known: dict[str, str] = json.loads(Path(DIGESTS).read_text())
    changed = [name for name, digest in digests(Path()).items() if known.get(name) != digest]
    own = [f"tests/core/test_{name}.py" for name in changed]
    return subprocess.run(pytest_command(*[path for path in own if Path(path).exists()]), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
