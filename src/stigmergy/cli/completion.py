"""`stigmergy completion`: prints the script that lets a shell complete our command lines.

The script calls `stigmergy completion words` at each Tab. That command never fails, and it stops itself after a short
time.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from stigmergy.app.fleet import ControlClient
from stigmergy.base.errors import StigmergyError
from stigmergy.cli.bench import benchmarks
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import Output, printable
from stigmergy.cli.display.places import config_of, find_fleet, find_running
from stigmergy.control import protocol
from stigmergy.control.description import described_kind
from stigmergy.control.protocol import answers_to
from stigmergy.control.replies import KindNames, NamesReply

# Names that only a running node or the user's module knows: agents, commands, events, fields, dead letters. A
# completion must be quick: names that are not there within NAMES_S_MAX are not offered, and nothing is an error.

_given_s = os.environ.get("STIGMERGY_COMPLETING_S", "")
COMPLETING_S_MAX = float(_given_s) if _given_s.isdecimal() else 2.0
"""The longest wait at a Tab; on a slow machine, set whole seconds in STIGMERGY_COMPLETING_S."""
NAMES_S_MAX = COMPLETING_S_MAX / 2
AGENTS_COUNT_MAX = 200
MODULES_COUNT_MAX = 200
MODULE_BYTES_MAX = 256 * 1024
NO_NAMES = KindNames({}, {})
R = TypeVar("R")
_FLEET = re.compile(r"^(\w+)\s*(?::[^=\n]+)?=\s*(?:stigmergy\.)?Fleet\(", re.MULTILINE)

Given = Mapping[str, list[str]]
Pairs = Iterator[tuple[str, str]]
"""Names, and what they are."""


class CompletionNames:
    """Asks at most once for each kind of name."""

    def of(self, metavar: str, command: str, given: Given, current: str) -> Pairs | None:
        """The names that an argument of this metavar may be; None where it is no name."""
        match metavar:
            case "KIND/NAME":
                return self._agents(given, current)
            case "COMMAND" | "EVENT":
                return self._messages(given, "commands" if metavar == "COMMAND" else "events")
            case "TAG":
                return self._tags(given)
            case "FIELD=VALUE":
                return self._fields(given)
            case "ID":
                return self._letters(given) if command == "letters" else iter(())
            case "OBJECT|KEY":
                return self._shut_out(given) if given.get("action") == ["lift"] else self._objects(given)
            case "REPLICA":
                return self._replicas(given)
            case "RESOURCE":
                return self._resources(given)
            case "MODULE:FLEET":
                return _fleets()
            case "NAME" if command == "bench":
                return iter(benchmarks().items())
            case _:
                return None

    def _agents(self, given: Given, current: str) -> Pairs:
        known = self._known(given, current)
        yield from ((agent, "") for agent in known.agents)
        if not known.agents:
            yield from ((f"{kind}/", "agents of this kind") for kind in known.kinds)

    def _messages(self, given: Given, sort: str) -> Pairs:
        kind = given.get("agent", [""])[0].partition("/")[0]
        messages = self._known(given).kinds.get(kind, NO_NAMES)
        yield from ((name, " ".join(fields)) for name, fields in getattr(messages, sort).items())

    def _tags(self, given: Given) -> Pairs:
        for kind, messages in self._known(given).kinds.items():
            yield from ((name, f"command of {kind}") for name in messages.commands)
            yield from ((name, f"event of {kind}") for name in messages.events)

    def _fields(self, given: Given) -> Pairs:
        kind = given.get("agent", [""])[0].partition("/")[0]
        sort = "commands" if "command" in given else "events"
        message = given.get("command", given.get("event", [""]))[0]
        messages = self._known(given).kinds.get(kind, NO_NAMES)
        used = [field.partition("=")[0].removesuffix(":") for field in given.get("fields", ())]
        yield from ((f"{name}=", "") for name in getattr(messages, sort).get(message, ()) if name not in used)

    def _letters(self, given: Given) -> Pairs:
        yield from ((one.letter, f"{one.agent} {one.error}") for one in _listed(given, protocol.LettersRequest()))

    def _objects(self, given: Given) -> Pairs:
        if given.get("action", [""])[0] in ("show", "retire"):
            yield from ((one.object, ", ".join(one.agents)) for one in _listed(given, protocol.SharedRequest()))

    def _shut_out(self, given: Given) -> Pairs:
        yield from ((one.key, one.why) for one in _listed(given, protocol.QuarantineRequest()))

    def _replicas(self, given: Given) -> Pairs:
        """Those of the object that could be retired: not our own."""
        name = given.get("subject", [""])[0]
        if given.get("action") == ["retire"]:
            for one in _listed(given, protocol.SharedRequest(object=name)):
                yield from ((its.replica, "") for its in one.replicas if its.agent is None)

    def _resources(self, given: Given) -> Pairs:
        for one in _listed(given, protocol.ClaimsRequest()):
            holder = one.holder
            yield one.resource, "" if holder is None or not holder.agent else f"held by {holder.agent}"

    def _known(self, given: Given, prefix: str = "") -> NamesReply:
        """What the node says, or without one the module that the command line or the configuration names."""
        place = _place(given)
        with contextlib.suppress(StigmergyError):
            if (path := find_running(place)) is not None:
                (known,) = _asked(path, protocol.NamesRequest(prefix=prefix, limit=AGENTS_COUNT_MAX))
                return known
            if place.fleet or config_of(place).fleet.module:
                # What a module prints while it is imported is no completion.
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    plans = find_fleet(place).plans
                return NamesReply({kind: described_kind(plan) for kind, plan in plans.items()}, [])
        return NamesReply({}, [])


def _place(given: Given) -> argparse.Namespace:
    """The options that say which node is meant, as far as they are on the line already."""
    socket, journal, config, fleet = (given.get(name, [None])[-1] for name in ("socket", "journal", "config", "fleet"))
    return argparse.Namespace(
        socket=None if socket is None else Path(socket),
        journal=journal,
        config=None if config is None else Path(config),
        fleet=fleet,
    )


def _listed(given: Given, request: protocol.Request[R]) -> list[R]:
    """The items of a stream; none where nobody runs or answers."""
    with contextlib.suppress(StigmergyError):
        if (path := find_running(_place(given))) is not None:
            return _asked(path, request)
    return []


def _asked(path: Path, request: protocol.Request[R]) -> list[R]:
    with contextlib.closing(ControlClient(path, timeout_s=NAMES_S_MAX)) as client:
        return answers_to(client.ask(request))


def _fleets() -> Pairs:
    """Fleets in the modules of this folder, as their text says; nothing is imported for it."""
    for path in sorted(Path().glob("*.py"))[:MODULES_COUNT_MAX]:
        with contextlib.suppress(OSError):
            if path.stem.isidentifier() and path.stat().st_size <= MODULE_BYTES_MAX:
                text = path.read_text(encoding="utf-8", errors="replace")
                yield from ((f"{path.stem}:{name}", "") for name in _FLEET.findall(text))


# What may come next on a command line, read from the parser itself, so a new command is completed automatically.
#
# Names that only a node knows are found by the metavar of the argument. Where files are expected, the shell is told to
# complete them itself.

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


def complete(parser: argparse.ArgumentParser, words: list[str], names: CompletionNames) -> list[Word]:
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


def _positionals(line: _Line, current: str, names: CompletionNames) -> Iterable[Word]:
    action = _next_positional(line)
    if action is None:
        return ()
    if isinstance(action, argparse._SubParsersAction):
        return [Word(choice.dest, choice.help or "") for choice in action._choices_actions]
    return _values(line, action, current, names)


def _values(line: _Line, action: argparse.Action, current: str, names: CompletionNames) -> Iterable[Word]:
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


SHELLS = ("bash", "zsh", "fish")
EXAMPLES = """examples:
  eval "$(stigmergy completion bash)"          for this shell; into ~/.bashrc for every one
  source <(stigmergy completion zsh)           the same, into ~/.zshrc
  stigmergy completion fish > ~/.config/fish/completions/stigmergy.fish
"""


def add_commands(commands: Any) -> None:
    """Adds `completion`."""
    group = commands.add_parser(
        "completion",
        help="let your shell complete command lines",
        description="Prints a script for a shell. It completes commands, options, agents, messages and their fields.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = group.add_subparsers(metavar="SHELL", required=True)
    for shell in SHELLS:
        parser = actions.add_parser(shell, help=f"print the script for {shell}")
        parser.set_defaults(run=run, shell=shell)
    # Without a help text it is not listed: it is for the scripts.
    parser = actions.add_parser("words", run=run_words, description="What may come next; for the scripts above.")
    parser.add_argument("--line", metavar="LINE", help="all of the line up to the cursor, instead of its words")
    parser.add_argument("words", metavar="WORD", nargs="*", help="the words behind the program; the last is incomplete")


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Prints the script."""
    file = resources.files("stigmergy.cli") / "completions" / f"{arguments.shell}.txt"
    script = file.read_text(encoding="utf-8")
    output.document({"shell": arguments.shell, "script": script})
    if not output.json:
        sys.stdout.write(script)
    return exits.OK


def run_words(arguments: argparse.Namespace, _: Output) -> int:
    """Prints what may come next, one a line, each with what it is behind a tab."""
    # The user waits at the Tab; a module that is slow to import is not worth it.
    signal.signal(signal.SIGALRM, lambda *_: os._exit(exits.OK))
    signal.setitimer(signal.ITIMER_REAL, COMPLETING_S_MAX)
    try:
        with contextlib.suppress(Exception, SystemExit):
            words = split_line(arguments.line) if arguments.line is not None else arguments.words
            for word in complete(arguments.parser, words, CompletionNames()):
                if word.text.isprintable():
                    print(word.text, printable(word.about), sep="\t")
    finally:
        # At exit Python gives the signal its default back, which kills: the timer must not outlive our handler.
        signal.setitimer(signal.ITIMER_REAL, 0)
    return exits.OK
