"""The options that benchmarks have in common."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_common(parser: argparse.ArgumentParser) -> None:
    """`--quick` and `--directory`."""
    parser.add_argument("--quick", action="store_true", help="small counts: shows that it runs, not what it reaches")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(),
        help="where the files go for the time being: on the disk that is to be measured (default: here)",
    )
