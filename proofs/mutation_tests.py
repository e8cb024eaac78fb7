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
CORE = ("tests/agents", "tests/shard", "tests/testing")
CLAIMS = tuple(
    f"tests/claims/test_{name}.py"
    for name in ("entries", "fold", "laws", "lease", "old_tokens", "pool_rules", "rules", "acquisition")
)
UPLINK = tuple(f"tests/uplink/test_{name}.py" for name in ("rules", "bounds", "laws", "messages"))
MEMBERSHIP = tuple(f"tests/membership/test_{name}.py" for name in ("packets", "swim", "table"))
TESTS = {
    "agents": CORE,
    "audit/copy_format.py": CORE,
    "audit/flight_format.py": CORE,
    "bus/cloudevents.py": ("tests/bus/test_cloudevents.py", "tests/bus/test_strict_json.py", *CORE),
    "claims/acquisition.py": CLAIMS,
    "claims/entries.py": CLAIMS,
    "claims/rules.py": CLAIMS,
    "claims/state.py": CLAIMS,
    "crdt": ("tests/crdt", "tests/shard/test_sharing.py"),
    "membership/packets.py": MEMBERSHIP,
    "membership/swim.py": MEMBERSHIP,
    "shard": CORE,
    "uplink/messages.py": (*UPLINK, *CORE),
    "uplink/rules.py": (*UPLINK, *CORE),
}
"""What is changed, packages and single modules, and where its tests are. Those of a module are there by its name."""


def digests(root: Path) -> dict[str, str]:
    """The modules of these packages, as `shard/marks`, and what is in them."""
    found = {}
    for package in TESTS:
        place = root / SOURCE / package
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place] * place.exists():
            name = path.relative_to(root / SOURCE).with_suffix("").as_posix()
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def own_tests(module: str) -> str:
    """The file with the tests of a module, if it has one of its own."""
    folder, _, name = module.rpartition("/")
    return f"tests/{folder}/test_{name}.py"


def tests_of(module: str) -> tuple[str, ...]:
    """Where the tests of a module are, its own among them."""
    return TESTS.get(f"{module}.py") or TESTS[module.partition("/")[0]]


def pytest_command(*tests: str) -> list[str]:
    """The command that runs these tests, in this order, and stops at the first failure."""
    return [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]


def what_to_run(changed: Sequence[str], root: Path) -> list[str]:
    """What to run for these modules: their own tests, then those of their packages."""
    own = [path for path in map(own_tests, changed) if (root / path).exists()]
    return own + list(dict.fromkeys(path for module in changed for path in tests_of(module)))


def main() -> int:
    """Ends as pytest does."""
    known: dict[str, str] = json.loads(Path(DIGESTS).read_text())
    changed = [name for name, digest in digests(Path()).items() if known.get(name) != digest]
    return subprocess.run(pytest_command(*what_to_run(changed, Path())), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
