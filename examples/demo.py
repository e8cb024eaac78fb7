"""`make demo`: a small fleet, killed with -9 half way and recovered, with what was proved. See demonstration/."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parent.parent)
    os.execv(sys.executable, [sys.executable, "-m", "examples.demonstration", *sys.argv[1:]])
