"""Follows a tutorial as a reader does: writes the files it shows, runs the commands it shows, compares what they print.

A comment before a block says what a reader does with it; the words around it say the same.

    <!-- no-run: drone.py -->                       the block is the file
    <!-- no-run: drone.py, imports -->              it replaces the imports
    <!-- no-run: drone.py, before Drone -->         it goes before the class
    <!-- no-run: drone.py, fields of Drone -->      it goes before the first handler of the class
    <!-- no-run: drone.py, in Drone -->             it goes to the end of the class
    <!-- no-run: drone.py, instead of start -->     it replaces the handler or function of this name
    <!-- no-run: drone.py, at the end -->
    <!-- no-run: by hand: … -->                     a reader does it, a test does not
    <!-- terminal: node -->                         the commands run in a terminal of this name, side by side

In a `console` block a line with `$ ` is a command and the others are what it prints: each must come, in this order, and
`…` stands for anything. `^C` ends what runs in that terminal. A block that goes into a class begins with the class and
the comment `# …`, which a reader knows how to read.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

OPENING = re.compile(r"^```(\w+)$")
MARK = re.compile(r"^<!--\s*(no-run|terminal):\s*(.+?)\s*-->$")
HEADING = re.compile(r"^## (\d+)\. ")
PRINTED_S_MAX = 240.0
ENDED_S_MAX = 240.0
LOOKED_LATER = re.compile(r"sleep \d+; (stigmergy (?:state|status|view|workflows)\b[^;|]*)")
AGAIN_S = 0.3
QUICK = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""A reader's environment has none of our plugins."""
MQTT_PORT = "1883"
"""Of the reader; in a test it is a free one."""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    step: int
    language: str
    mark: tuple[str, str] | None
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str, markdown: str) -> Iterator[Block]:
    """The blocks of a page, each with the comment directly before it and the step it belongs to."""
    mark: tuple[str, str] | None = None
    language, began, step = "", 0, 0
    lines: list[str] = []
    for number, line in enumerate(markdown.splitlines(), start=1):
        if language:
            if line == "```":
                yield Block(page, began, step, language, mark, "\n".join(lines) + "\n")
                language, mark = "", None
            else:
                lines.append(line)
        elif opening := OPENING.match(line):
            language, began, lines = opening[1], number, []
        elif found := MARK.match(line):
            mark = (found[1], found[2])
        elif heading := HEADING.match(line):
            step, mark = int(heading[1]), None
        elif line.strip():
            mark = None


def edited(text: str, how: str, block: str) -> str:
    """A file after a reader has done with a block what the comment says."""
    block = re.sub(r"\Aclass \w+\([\w.]+\):\n    # …\n\n?", "", block)
    match how.split():
        case ["imports"]:
            head, rest = re.split(r"(?<=\n)(?=\n\n(?:class|def|@))", text, maxsplit=1)
            docstring = re.match(r'(?s)""".*?"""\n\n', head)
            return (docstring[0] if docstring else "") + block + rest
        case ["before", name]:
            at = text.index(f"class {name}(")
            return f"{text[:at]}{block}\n\n{text[at:]}"
        case ["fields", "of", name]:
            at = text.index("\n    @", text.index(f"class {name}("))
            return f"{text[:at]}{block}{text[at:]}"
        case ["in", name]:
            at = text.index("\n\n\n", text.index(f"class {name}("))
            return f"{text[:at]}\n\n{block.rstrip()}{text[at:]}"
        case ["instead", "of", name]:
            found = re.search(rf"(?s)(?:    @[\w.]+\n    )?(?:async )?def {name}\(.*?(?=\n\n|\n?\Z)", text)
            assert found is not None, f"no handler {name} to replace"
            return text[: found.start()] + block.rstrip() + text[found.end() :]
        case ["at", "the", "end"]:
            return f"{text.rstrip()}\n\n\n{block}"
        case _:
            raise AssertionError(f"{how!r} is not understood")


@dataclass
class Terminal:
    """A terminal with a program that goes on while the reader looks elsewhere."""

    process: subprocess.Popen[bytes]
    output: Path
    read: int = 0

    def new_lines(self) -> list[str]:
        return self.output.read_text(encoding="utf-8", errors="replace").splitlines()[self.read :]


@dataclass
class Walk:
    """A reader in a folder."""

    folder: Path
    port: int
    cwd: Path = field(init=False)
    terminals: dict[str, Terminal] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cwd = self.folder

    def follow(self, block: Block) -> None:
        """Does what one block says."""
        kind, what = block.mark or ("", "")
        block = replace(block, text=block.text.replace(MQTT_PORT, str(self.port)))
        if kind == "no-run" and what.startswith("by hand"):
            return
        if kind == "no-run":
            name, _, how = what.partition(", ")
            path = self.cwd / name
            text = edited(path.read_text(encoding="utf-8"), how, block.text) if how else block.text
            path.write_text(text, encoding="utf-8")
        elif block.language == "console":
            for command, printed in conversations(block.text):
                self._run(block, what if kind == "terminal" else "", command, printed)

    def close(self) -> None:
        """Ends what still runs."""
        for terminal in self.terminals.values():
            if terminal.process.poll() is None:
                os.killpg(terminal.process.pid, signal.SIGKILL)
                terminal.process.wait()

    def _run(self, block: Block, terminal: str, command: str, printed: list[str]) -> None:
        if command == "^C":
            self._interrupt(block, terminal, printed)
        elif command.startswith("cd "):
            self.cwd = (self.cwd / command[3:]).resolve()
        elif terminal and command:
            self._start(block, terminal, command, printed)
        elif command:
            self._look(block, command, printed)
        else:
            self._hear(block, terminal, printed)

    def _look(self, block: Block, command: str, printed: list[str]) -> None:
        """Runs a command to its end. Where a reader first waits some seconds, a busy machine may need more."""
        again_until_s = time.monotonic()
        if waited := LOOKED_LATER.fullmatch(command):
            command, again_until_s = waited[1], again_until_s + PRINTED_S_MAX
        while True:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.cwd,
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=ENDED_S_MAX,
                check=False,
            )
            said = done.stdout.decode(errors="replace")
            missing = first_missing(printed, said.splitlines())
            if missing is None:
                return
            assert time.monotonic() < again_until_s, (
                f"{block.place}: $ {command}\nshould print\n  {missing}\nbut printed\n{said}"
            )
            time.sleep(AGAIN_S)

    def _start(self, block: Block, terminal: str, command: str, printed: list[str]) -> None:
        output = self.folder / f"terminal-{terminal}.txt"
        before = self.terminals.get(terminal)
        if before:
            before.process.wait(ENDED_S_MAX)
        read = len(before.output.read_text(encoding="utf-8", errors="replace").splitlines()) if before else 0
        with output.open("ab") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.cwd,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                preexec_fn=take_interrupts,  # noqa: PLW1509 - it makes one system call
            )
        self.terminals[terminal] = Terminal(process, output, read)
        self._hear(block, terminal, printed)

    def _hear(self, block: Block, terminal: str, printed: list[str]) -> None:
        """Waits until a terminal has printed these lines."""
        one = self.terminals[terminal]
        deadline_s = time.monotonic() + PRINTED_S_MAX
        while (missing := first_missing(printed, one.new_lines())) is not None:
            said = "\n".join(one.new_lines())
            assert time.monotonic() < deadline_s, (
                f"{block.place}: {terminal} should print\n  {missing}\nbut printed\n{said}"
            )
            time.sleep(0.05)

    def _interrupt(self, block: Block, terminal: str, printed: list[str]) -> None:
        one = self.terminals[terminal]
        os.killpg(one.process.pid, signal.SIGINT)
        one.process.wait(ENDED_S_MAX)
        self._hear(block, terminal, printed)


def take_interrupts() -> None:
    """A program that a shell runs in the background ignores ^C, and so does all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def conversations(text: str) -> Iterator[tuple[str, list[str]]]:
    """Commands, each with what it prints; what a terminal prints later, before any command, has an empty one."""
    command: str = ""
    printed: list[str] = []
    begun = False
    for line in text.splitlines():
        if line.startswith("$ ") or line == "^C":
            if begun:
                yield command, printed
            command, printed, begun = line.removeprefix("$ ").partition("  # ")[0].rstrip(), [], True
        else:
            printed.append(line)
            begun = True
    if begun:
        yield command, printed


def first_missing(wanted: list[str], lines: list[str]) -> str | None:
    """The first line that does not come, in order. How many spaces there are between words does not matter."""
    rest = iter(lines)
    for text in wanted:
        pattern = re.compile(".*".join(re.escape(part) for part in single_spaced(text).split("…")))
        if not any(pattern.fullmatch(single_spaced(line)) for line in rest):
            return text
    return None


def single_spaced(line: str) -> str:
    return " ".join(line.split())


def environment() -> dict[str, str]:
    """Finds `stigmergy` and `pytest` of this environment, as an activated one does."""
    folder = str(Path(sys.executable).parent)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_", "PYTHONPATH"))}
    return {**kept, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200", "NO_COLOR": "1", **QUICK}
