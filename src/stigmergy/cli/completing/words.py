"""What may come next on a command line, read from the parser itself: a command that is added is completed by that.

Names that only a node knows come from `names.py`, by the metavar of the argument. Where files are wanted the shell is
told so, because it knows better how to complete them.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from stigmergy.cli.completing.names import Names

FILES = ":files"
FOLDERS = ":folders"
PROGRAM = "stigmergy"
WORDS_COUNT_MAX = 1_000
_FOLDERS = ("DIR",)
_ENDLESS = ("*", "+", argparse.REMAINDER)


class Word(Struct, frozen=True):
    """Something that may come next, and what it is."""

    text: str
    about: str = ""


class _Line(Struct):
    """How far the parser has come."""

    parser: argparse.ArgumentParser
    given: dict[str, list[str]] = {}
    """What was given for each argument, by its dest."""
    options: list[str] = []
    taken: int = 0
    """So many positional arguments are complete."""
    waiting: argparse.Action | None = None
    """An option whose value is next."""
    bare: bool = False
    """After `--` nothing is an option any more."""


def split_line(line: str) -> list[str]:
    """The words after the program's name, up to the cursor; the last one is being written, and may be empty."""
    for closing in ("", '"', "'"):
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        if not closing and (not line or line[-1].isspace()):
            words.append("")
        ours = (number for number, word in enumerate(words) if Path(word).name == PROGRAM)
        return words[next(ours, 0) + 1 :]
    return []


def complete(parser: argparse.ArgumentParser, words: list[str], names: Names) -> list[Word]:
    """What may stand in place of the last of these words."""
    line = _Line(parser)
    *before, current = words[-WORDS_COUNT_MAX:] or [""]
    for word in before:
        if not _take(line, word):
            return []
    option, sign, value = current.partition("=")
    if line.waiting is not None:
        found = _values(line, line.waiting, current, names)
    elif sign and not line.bare and (action := line.parser._option_string_actions.get(option)) is not None:
        found = (_behind(option, word) for word in _values(line, action, value, names))
    elif current.startswith("-") and not line.bare:
        found = _options(line)
    else:
        found = _positionals(line, current, names)
    kept = [word for word in found if word.text.startswith(current) or word.text in (FILES, FOLDERS)]
    return list({word.text: word for word in kept}.values())


def _behind(option: str, word: Word) -> Word:
    return word if word.text in (FILES, FOLDERS) else Word(f"{option}={word.text}", word.about)


def _take(line: _Line, word: str) -> bool:
    """Goes one word on; whether the line makes sense so far."""
    if line.waiting is not None:
        line.given.setdefault(line.waiting.dest, []).append(word)
        line.waiting = None
        return True
    if word == "--" and not line.bare:
        line.bare = True
        return True
    if word.startswith("-") and len(word) > 1 and not line.bare:
        option, sign, value = word.partition("=")
        action = line.parser._option_string_actions.get(option)
        if action is None:
            return True  # of a part that reads its own options, such as a benchmark
        line.options.append(option)
        if sign:
            line.given.setdefault(action.dest, []).append(value)
        elif action.nargs != 0:
            line.waiting = action
        return True
    return _take_positional(line, word)


def _take_positional(line: _Line, word: str) -> bool:
    action = _next_positional(line)
    if action is None:
        return False
    if isinstance(action, argparse._SubParsersAction):
        if word not in action.choices:
            return False
        line.parser, line.taken = action.choices[word], 0
        return True
    line.given.setdefault(action.dest, []).append(word)
    if action.nargs not in _ENDLESS:
        line.taken += 1
    return True


def _next_positional(line: _Line) -> argparse.Action | None:
    positionals = [action for action in line.parser._actions if not action.option_strings]
    return positionals[line.taken] if line.taken < len(positionals) else None


def _options(line: _Line) -> Iterator[Word]:
    for action in line.parser._actions:
        repeated = isinstance(action, argparse._AppendAction)
        if not action.option_strings or action.help == argparse.SUPPRESS:
            continue
        if repeated or not any(option in line.options for option in action.option_strings):
            yield Word(action.option_strings[-1], action.help or "")


def _positionals(line: _Line, current: str, names: Names) -> Iterable[Word]:
    action = _next_positional(line)
    if action is None:
        return ()
    if isinstance(action, argparse._SubParsersAction):
        return [Word(choice.dest, choice.help or "") for choice in action._choices_actions]
    return _values(line, action, current, names)


def _values(line: _Line, action: argparse.Action, current: str, names: Names) -> Iterable[Word]:
    """What an argument may be."""
    if action.choices is not None:
        return [Word(str(choice)) for choice in action.choices]
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    known = names.of(metavar, line.parser.prog.split()[-1], line.given, current)
    if known is not None:
        return [Word(text, about) for text, about in known]
    if metavar in _FOLDERS:
        return [Word(FOLDERS)]
    wants_file = action.type is Path or action.dest == "journal" or metavar in ("KEY", "PUBLIC")
    return [Word(FILES)] if wants_file else ()
