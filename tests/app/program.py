"""A node, or a worker, as a program of its own, which can be killed."""

import subprocess
import sys
from pathlib import Path


class Program:
    """Runs `stigmergy` with these arguments in a folder, beside a module with a fleet."""

    def __init__(self, folder: Path, module: str, source: str, *arguments: str) -> None:
        self._folder, self._arguments = folder, arguments
        (folder / f"{module}.py").write_text(source, encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "stigmergy", *self._arguments]
        self._process = subprocess.Popen(
            command, cwd=self._folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()
