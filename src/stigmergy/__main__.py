"""`python -m stigmergy` is the same as `stigmergy`."""

from __future__ import annotations

import sys

from stigmergy.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
