"""The search by coverage for one decoder: `python -m proofs.fuzz_guided TARGET CORPUS [libFuzzer options]`.

Started by proofs/fuzz.py in a process of its own, because libFuzzer ends the process when it is done.
"""

from __future__ import annotations

import contextlib
import sys

import atheris  # type: ignore[import-untyped, unused-ignore]

with atheris.instrument_imports(include=["stigmergy"], enable_loader_override=False):
    from proofs.fuzz_targets import targets


def main(arguments: list[str]) -> None:
    """Never returns."""
    name, *options = arguments
    (target,) = (one for one in targets() if one.name == name)

    def try_once(data: bytes) -> None:
        with contextlib.suppress(*target.may_raise):
            target.decode(data)

    atheris.Setup([sys.argv[0], *options], try_once)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
