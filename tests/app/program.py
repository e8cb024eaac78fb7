"""A node, or a worker, as a program of its own, which can be killed."""

import subprocess
from pathlib import Path

from tests.warm import Warm


class Program:
    """Runs `stigmergy` with these arguments in a folder, beside a module with a fleet."""

    def __init__(self, folder: Path, module: str, source: str, *arguments: str) -> None:
        self._folder, self._arguments = folder, arguments
        (folder / f"{module}.py").write_text(source, encoding="utf-8")
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        nowhere = subprocess.DEVNULL
        self._process = Warm(*self._arguments, cwd=self._folder, stdout=nowhere, stderr=nowhere)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()
