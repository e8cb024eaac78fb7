"""`stigmergy new`: makes a folder with a working agent, its test and its settings. Overwrites nothing."""

from __future__ import annotations

import argparse
import contextlib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

from stigmergy.base.errors import ConfigError
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import GOOD, NAME, Output
from stigmergy.cli.scaffold import name_project, render

EXAMPLES = """examples:
  stigmergy new water_pump             in the new folder water_pump
  stigmergy new water_pump --dir .     in this folder, if there is nothing in it yet
"""


def add_commands(commands: Any) -> None:
    """Adds `new`."""
    parser = commands.add_parser(
        "new",
        run=run,
        help="start a project: an agent, its test, its settings",
        description="Makes a folder with a small agent that works, its test and its settings. Overwrites nothing.",
        epilog=EXAMPLES,
    )
    parser.add_argument("name", metavar="NAME", help="of the module and the fleet, such as water_pump")
    parser.add_argument("--dir", metavar="DIR", type=Path, help="the folder to make, or an empty one; else NAME here")


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Makes the project."""
    project = name_project(arguments.name, frozenset(packages_distributions()))
    folder: Path = arguments.dir or Path(project.module)
    files = render(project)
    _write(folder, files)
    output.document(
        {
            "name": project.module,
            "folder": str(folder),
            "files": sorted(files),
            "module": f"{project.module}:fleet",
            "agent": project.kind,
        }
    )
    output.line(("made", GOOD), " ", (str(folder), NAME), f": {', '.join(sorted(files))}")
    go = "" if folder.resolve() == Path.cwd() else f"cd {folder} && "
    output.note(f"next: {go}pytest && stigmergy run; README.md has the rest")
    return exits.OK


def _write(folder: Path, files: dict[str, str]) -> None:
    """Writes all files, or none."""
    written: list[Path] = []
    made = not folder.exists()
    try:
        _check_empty(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = folder / name
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        if made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        where = error.filename or folder
        raise ConfigError(
            f"{str(where)!a} cannot be written: {error.strerror}; name another folder with --dir"
        ) from None


def _check_empty(folder: Path) -> None:
    """Refuses a folder with something in it. What is hidden may be there: .git, .venv."""
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir():
        raise ConfigError(f"{str(folder)!a} is there and is no folder; choose another name, or a folder with --dir")
    found = sorted(path.name for path in folder.iterdir() if not path.name.startswith(".") or path.name == ".gitignore")
    if found:
        raise ConfigError(
            f"the folder {str(folder)!a} is there and has {found[0]!a} in it; nothing is overwritten: "
            "choose another name, or an empty folder with --dir"
        )
