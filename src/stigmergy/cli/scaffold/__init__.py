"""A new project: checks its name and makes the text of its files. Writes nothing.

A template is the file itself with `@module@`, `@Kind@` and `@name@` in it, so you can read what a user gets.
"""

from __future__ import annotations

import keyword
import re
import sys
from importlib import resources

from msgspec import Struct

import stigmergy
from stigmergy.base.errors import ConfigError

NAME_CHARS_MAX = 32
_NAME = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*", re.ASCII)
_PLACE = re.compile(r"@(\w+)@")
_MESSAGES = ("Start", "Started", "Stopped", "SwitchOff", "TemperatureMeasured")
"""The messages in the template; the test imports them."""
_MORE = ("HOT_CELSIUS", "fleet")
"""What else it imports."""
_OURS = ("conftest", "stigmergy", "test", "tests")
_FILES = {
    "README.md": "README.md",
    "agent.py": "@module@.py",
    "gitignore": ".gitignore",
    "pyproject.toml": "pyproject.toml",
    "stigmergy.toml": "stigmergy.toml",
    "test_agent.py": "test_@module@.py",
}
"""Templates, and what they become."""


class Project(Struct, frozen=True):
    """The names of a project, all made from one."""

    module: str
    """Of the Python file, and of the fleet: `water_pump`."""
    kind: str
    """Of the agent: `WaterPump`."""

    @property
    def distribution(self) -> str:
        """Of the project: `water-pump`."""
        return self.module.replace("_", "-")


def name_project(name: str, installed: frozenset[str] = frozenset()) -> Project:
    """The project of this name. Raises ConfigError, with a name that would do, for one that would make trouble.

    `installed` are the modules that the new one must not hide.
    """
    if len(name) > NAME_CHARS_MAX:
        raise ConfigError(
            f"{name[:NAME_CHARS_MAX]!a}… has {len(name)} letters; give a name of at most {NAME_CHARS_MAX}"
        )
    if _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{name!a} cannot be the name of a Python module here; give lower-case letters, digits and single "
            f"underscores, beginning with a letter, such as {_tidied(name)}"
        )
    another = f"choose another name, such as {name}_agent"
    if keyword.iskeyword(name):
        raise ConfigError(f"{name!r} is a word of Python itself, no module can have that name; {another}")
    if name in sys.stdlib_module_names or name in _OURS or name in installed:
        raise ConfigError(f"{name}.py would hide the module {name!r} that is there already; {another}")
    kind = "".join(word.capitalize() for word in name.split("_"))
    if kind in stigmergy.__all__ or kind in _MESSAGES or keyword.iskeyword(kind):
        raise ConfigError(f"the agent would be called {kind}, which is the name of something else in it; {another}")
    return Project(module=name, kind=kind)


def render(project: Project) -> dict[str, str]:
    """The files of a project: their names and their text."""
    imported = sorted((project.kind, *_MESSAGES, *_MORE), key=_as_imports_sort)
    words = {
        "module": project.module,
        "Kind": project.kind,
        "name": project.distribution,
        "imports": "\n".join(f"    {name}," for name in imported),
    }
    folder = resources.files(__package__) / "template"
    return {
        _fill(becomes, words): _fill((folder / f"{source}.txt").read_text(encoding="utf-8"), words)
        for source, becomes in _FILES.items()
    }


def _fill(text: str, words: dict[str, str]) -> str:
    return _PLACE.sub(lambda found: words[found[1]], text)


def _as_imports_sort(name: str) -> tuple[bool, str]:
    """Sorted imports have what looks like a constant first."""
    return (not (len(name) > 1 and name.isupper()), name)


def _tidied(name: str) -> str:
    """The nearest name that would do."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    words = "_".join(re.findall(r"[a-z0-9]+", words.lower()))
    words = re.sub(r"^[0-9_]+", "", words)
    fits = _NAME.fullmatch(words) and not keyword.iskeyword(words) and words not in sys.stdlib_module_names
    return words if fits else "water_pump"
