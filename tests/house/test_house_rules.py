"""House rules as tests: each rule is one small function that reads a module and says what to do about it.

A rule gets a Module and returns sentences, one for each finding. The lower half feeds every rule a snippet that it
must refuse, because a check that cannot fail checks nothing.
"""

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "stigmergy"

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 80
MODULE_LINES_WITHOUT_DOCSTRING_MAX = 5
VAGUE_NAMES = frozenset({"helper", "helpers", "manager", "managers", "misc", "util", "utils"})
NONDETERMINISTIC_CALLS = frozenset({"TaskGroup", "run_in_executor", "to_thread"})
ADAPTERS = (
    "audit/archive_folder",
    "audit/flight_journal",
    "base/system",
    "bus/memory",
    "bus/mqtt",
    "capture/postgres",
    "claims/memory_ledger",
    "claims/sqlite_file",
    "claims/sqlite_ledger",
    "clients/grpc",
    "clients/http",
    "control/socket",
    "devices/fence",
    "devices/mavlink",
    "federated/vault",
    "journal/files",
    "journal/identity",
    "journal/memory",
    "journal/segments",
    "journal/sqlite",
    "keys",
    "membership/udp",
    "nats",
    "ring",
    "serve",
    "store/folder",
    "store/memory",
    "store/s3",
    "views/memory",
    "views/postgres",
    "views/sqlite",
)
# Written in parts, so that this file passes its own rules.
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME)\b")
CONFLICT = re.compile(r"(?:<{7}|>{7}) ")
MACHINE_PATH = re.compile(r"(?<![\w.~/-])/(?:ro" + r"ot|wo" + r"rk|ho" + r"me)(?![\w-])")


@dataclass(frozen=True)
class Module:
    """One source file; `path` is relative to src/stigmergy."""

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def is_adapter(self) -> bool:
        """Whether it touches the outside world: files, sockets, servers. The simulator has its own in their place."""
        return any(self.path.is_relative_to(place) or self.path == Path(f"{place}.py") for place in ADAPTERS)

    def at(self, line: int) -> str:
        return f"{self.path}:{line}"


Rule = Callable[[Module], Iterator[str]]


def opens_with_a_sentence(module: Module) -> Iterator[str]:
    """A module says what it is before anything else."""
    if len(module.text.splitlines()) <= MODULE_LINES_WITHOUT_DOCSTRING_MAX:
        return
    docstring = ast.get_docstring(module.tree)
    if docstring is None:
        yield f"{module.at(1)}: no docstring; say what the module is, what it never does, what its caller must do"
    elif not docstring.splitlines()[0].endswith("."):
        yield f"{module.at(1)}: the first line of the docstring must be a sentence of its own and end in a full stop"


def file_fits_on_a_few_screens(module: Module) -> Iterator[str]:
    """A file has one subject."""
    lines = len(module.text.splitlines())
    if lines > FILE_LINES_MAX:
        yield f"{module.at(lines)}: {lines} lines, at most {FILE_LINES_MAX}; split the file by subject"


def function_fits_on_a_screen(module: Module) -> Iterator[str]:
    """A function can be read without scrolling."""
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield (
                    f"{module.at(node.lineno)}: {node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}; "
                    "take a step out of it and give that step a name"
                )


def name_is_the_subject(module: Module) -> Iterator[str]:
    """A name that fits everything says nothing."""
    words = {word for part in module.path.with_suffix("").parts for word in part.lower().split("_")}
    for word in sorted(words & VAGUE_NAMES):
        yield f"{module.path}: '{word}' names no subject; name the file after the one thing in it"


def nothing_is_left_unfinished(module: Module) -> Iterator[str]:
    """What is left to do belongs in an issue, where it is seen."""
    for number, line in enumerate(module.text.splitlines(), start=1):
        if UNFINISHED.search(line):
            yield f"{module.at(number)}: do it now, or open an issue and take the note out"


def sets_are_not_iterated(module: Module) -> Iterator[str]:
    """The order of a set depends on addresses and hash seeds, and with it a replay."""
    if module.is_adapter:
        return
    for node in module.nodes:
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension) and is_set(node.iter):
            yield f"{module.at(node.iter.lineno)}: iterates over a set; wrap it in sorted(), or keep a dict or tuple"


def is_set(node: ast.expr) -> bool:
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"set", "frozenset"}
    return called or isinstance(node, ast.Set | ast.SetComp)


def async_code_is_deterministic(module: Module) -> Iterator[str]:
    """What the simulator cannot replay stays at the rim."""
    if module.is_adapter or module.path.parts[0] == "cli":
        return
    for node in module.nodes:
        if named := nondeterministic_name(node):
            yield f"{module.at(getattr(node, 'lineno', 1))}: {named} runs in no fixed order; use plain tasks and queues"
        elif is_async_generator(node):
            yield (
                f"{module.at(getattr(node, 'lineno', 1))}: async generator, closed in no fixed order; write a class "
                "with __anext__, or with __aenter__ and __aexit__"
            )


def nondeterministic_name(node: ast.AST) -> str | None:
    match node:
        case ast.Attribute(value=ast.Name(id="asyncio"), attr="wait"):
            return "asyncio.wait"
        case ast.Attribute(attr=name) if name in NONDETERMINISTIC_CALLS:
            return name
        case ast.ImportFrom(module="asyncio", names=names):
            banned = sorted({alias.name for alias in names} & (NONDETERMINISTIC_CALLS | {"wait"}))
            return ", ".join(banned) or None
        case _:
            return None


def is_async_generator(node: ast.AST) -> bool:
    if isinstance(node, ast.GeneratorExp):
        return any(part.is_async for part in node.generators)
    return isinstance(node, ast.AsyncFunctionDef) and any(isinstance(inner, ast.Yield) for inner in own_nodes(node))


def own_nodes(function: ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function without those of the functions and classes inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))


def cancellations_are_not_lost(module: Module) -> Iterator[str]:
    """A task that was cancelled once may go on: a worker that had lost its lease waited for one, and hung for good."""
    if module.path == Path("base/tasks.py"):
        return
    for node in module.nodes:
        match node:
            case ast.Attribute(value=ast.Name(id="asyncio"), attr="wait_for"):
                what = "asyncio.wait_for can lose a cancellation; use asyncio.timeout"
            case ast.ImportFrom(module="asyncio", names=names) if any(alias.name == "wait_for" for alias in names):
                what = "asyncio.wait_for can lose a cancellation; use asyncio.timeout"
            case _ if awaits_what_it_cancelled(node):
                what = "awaits a task that it has cancelled once; use end_tasks of base/tasks.py"
            case _:
                continue
        yield f"{module.at(getattr(node, 'lineno', 1))}: {what}"


def awaits_what_it_cancelled(node: ast.AST) -> bool:
    """Whether statements here cancel something, and the next one only awaits with errors ignored."""
    for field in ("body", "orelse", "finalbody"):
        statements = getattr(node, field, None)
        if not isinstance(statements, list):
            continue
        for first, second in pairwise(statements):
            simple = isinstance(first, ast.Expr | ast.For) and isinstance(second, ast.Expr | ast.For | ast.With)
            if not simple or "cancel" not in words_in(first) or not {"gather", "suppress"} & words_in(second):
                continue
            if any(isinstance(inner, ast.Await) for inner in ast.walk(second)):
                return True
    return False


def words_in(statement: ast.AST) -> set[str]:
    """The names and attributes in a statement."""
    attributes = {inner.attr for inner in ast.walk(statement) if isinstance(inner, ast.Attribute)}
    return attributes | {inner.id for inner in ast.walk(statement) if isinstance(inner, ast.Name)}


def constants_have_one_value(module: Module) -> Iterator[str]:
    """The last of several wins, also in functions above it: two modules put into one file changed a back-off so."""
    seen: dict[str, int] = {}
    for node in module.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        for name in [inner.id for target in targets for inner in names_in(target)]:
            if name in seen and name.isupper():
                yield f"{module.at(node.lineno)}: {name} has another value in line {seen[name]}; rename one of them"
            seen[name] = node.lineno


def names_in(target: ast.expr) -> list[ast.Name]:
    """The names that an assignment sets."""
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return [part for part in parts if isinstance(part, ast.Name)]


def no_machine_paths(name: str, text: str) -> Iterator[str]:
    """A path of somebody's machine is wrong on every other one."""
    for number, line in enumerate(text.splitlines(), start=1):
        if found := MACHINE_PATH.search(line):
            yield f"{name}:{number}: '{found.group()}' belongs to one machine; make it relative or an argument"


def no_conflict_markers(name: str, text: str) -> Iterator[str]:
    """In a docstring or a page neither the linter nor a test notices what a merge has left."""
    for number, line in enumerate(text.splitlines(), start=1):
        if CONFLICT.match(line):
            yield f"{name}:{number}: what git wrote at a conflict; choose one side"


RULES: tuple[Rule, ...] = (
    opens_with_a_sentence,
    file_fits_on_a_few_screens,
    function_fits_on_a_screen,
    name_is_the_subject,
    nothing_is_left_unfinished,
    sets_are_not_iterated,
    async_code_is_deterministic,
    constants_have_one_value,
    cancellations_are_not_lost,
)


@cache
def source_modules() -> list[Module]:
    return [
        Module(path.relative_to(PACKAGE), path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))
    ]


def tracked_files() -> list[str]:
    """The files that git knows here, or none where this is not a checkout."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    return [name for name in listing.stdout.split("\0") if name]


def test_the_source_keeps_all_rules() -> None:
    # All in one, because to parse the source takes longer than to look at it.
    findings = [finding for module in source_modules() for rule in RULES for finding in rule(module)]
    assert not findings, "\n" + "\n".join(findings)
    assert len(names_used_twice()) <= NAMES_TWICE_MAX, names_used_twice()


def test_tracked_files_have_no_machine_paths_and_no_conflicts() -> None:
    names = tracked_files()
    if not names:
        pytest.skip("not a git checkout: tracked files are unknown")
    findings: list[str] = []
    for name in names:
        file = ROOT / name
        if file.is_file() and not file.is_symlink():
            text = file.read_text(encoding="utf-8", errors="replace")
            findings += [*no_machine_paths(name, text), *no_conflict_markers(name, text)]
    assert not findings, "\n" + "\n".join(findings)


def module(text: str, path: str = "shard/thing.py") -> Module:
    return Module(Path(path), text)


def code(text: str) -> Module:
    """A module with a docstring that is in order, then `text`."""
    return module(f'"""A thing."""\n\n{text}\n')


BAD: tuple[tuple[Rule, Module], ...] = (
    (opens_with_a_sentence, module("x = 1\n" * 6)),
    (opens_with_a_sentence, module('"""A thing without an end\n\nMore.\n"""\n' + "x = 1\n" * 6)),
    (file_fits_on_a_few_screens, module("x = 1\n" * (FILE_LINES_MAX + 1))),
    (function_fits_on_a_screen, module("def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX)),
    (function_fits_on_a_screen, module("class A:\n  async def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX)),
    (name_is_the_subject, module("", "shard/utils.py")),
    (name_is_the_subject, module("", "shard/journal_manager.py")),
    (name_is_the_subject, module("", "helpers/thing.py")),
    (nothing_is_left_unfinished, code("x = 1  # TO" + "DO: more")),
    (nothing_is_left_unfinished, code("# FIX" + "ME")),
    (sets_are_not_iterated, code("for x in {1, 2}: pass")),
    (sets_are_not_iterated, code("for x in set(y): pass")),
    (sets_are_not_iterated, code("z = [x for x in frozenset(y)]")),
    (sets_are_not_iterated, code("for x in {y for y in z}: pass")),
    (constants_have_one_value, code("PAUSE_S = 0.1\nx = PAUSE_S\nPAUSE_S = 2.0")),
    (constants_have_one_value, code("A, B = 1, 2\nB = 3")),
    (cancellations_are_not_lost, code("async def f():\n    await asyncio.wait_for(g(), 1)")),
    (cancellations_are_not_lost, code("from asyncio import wait_for")),
    (cancellations_are_not_lost, code("async def f():\n    t.cancel()\n    await asyncio.gather(t)")),
    (
        cancellations_are_not_lost,
        code(
            "async def f():\n    for t in a:\n        t.cancel()\n"
            "    for t in a:\n        with suppress(e):\n            await t"
        ),
    ),
    (
        cancellations_are_not_lost,
        code("async def f():\n    t.cancel()\n    with contextlib.suppress(asyncio.CancelledError):\n        await t"),
    ),
    (async_code_is_deterministic, code("asyncio.wait(tasks)")),
    (async_code_is_deterministic, code("asyncio.TaskGroup()")),
    (async_code_is_deterministic, code("from asyncio import wait")),
    (async_code_is_deterministic, code("loop.run_in_executor(None, f)")),
    (async_code_is_deterministic, code("asyncio.to_thread(f)")),
    (async_code_is_deterministic, code("async def f():\n    yield 1")),
    (async_code_is_deterministic, code("async def f():\n    async with a:\n        x = yield")),
    (async_code_is_deterministic, code("async def f():\n    return (x async for x in y)")),
)

GOOD: tuple[Module, ...] = (
    module(""),
    module("x = 1\n"),
    code("def f():\n    for x in sorted({1, 2}):\n        yield x"),
    code("async def f():\n    def g():\n        yield 1\n    await asyncio.shield(g())"),
    code("async def f():\n    timer.cancel()\n    await asyncio.sleep(1)"),
    module('"""A rim."""\nfor x in {1}:\n    asyncio.to_thread(x)\nx = 1\ny = 1\n', "nats/thing.py"),
)


@pytest.mark.parametrize(("rule", "bad"), BAD)
def test_rule_refuses(rule: Rule, bad: Module) -> None:
    assert list(rule(bad))


@pytest.mark.parametrize("good", GOOD)
def test_rules_accept(good: Module) -> None:
    assert [finding for rule in RULES for finding in rule(good)] == []


def test_every_rule_has_a_bad_example() -> None:
    assert {rule for rule, _ in BAD} == set(RULES)


@pytest.mark.parametrize("folder", ["ro" + "ot", "wo" + "rk", "ho" + "me"])
def test_machine_paths_are_found(folder: str) -> None:
    assert list(no_machine_paths("a.md", f"open /{folder}/x or `/{folder}`"))
    assert not list(no_machine_paths("a.md", f"src/{folder}/x ~/{folder} https://example.org/{folder} /{folder}shop"))


@pytest.mark.parametrize("sign", ["<", ">"])
def test_conflict_markers_are_found(sign: str) -> None:
    assert list(no_conflict_markers("a.md", f"text\n{sign * 7} main\n"))


# The plan of the package: what one file cannot show.

FOLDER_FILES_MAX = 26
LOOSE_MODULES_MAX = 4
NAMES_TWICE_MAX = 3
IMPORT_CHAIN_MAX = 28


def test_a_folder_can_be_taken_in() -> None:
    folders = Counter(module.path.parent for module in source_modules())
    assert {folder: count for folder, count in folders.items() if count > FOLDER_FILES_MAX} == {}


def test_few_modules_lie_beside_the_folders() -> None:
    loose = [
        module.path.name
        for module in source_modules()
        if len(module.path.parts) == 1 and module.path.stem != "__init__"
    ]
    assert len(loose) <= LOOSE_MODULES_MAX, loose


def longest_import_chain() -> list[str]:
    """Modules of which each imports the next: how far a reader may have to go. No cycles: import-linter holds that."""
    modules = {".".join(("stigmergy", *module.path.with_suffix("").parts)): module for module in source_modules()}
    modules = {name.removesuffix(".__init__"): module for name, module in modules.items()}

    @cache
    def chain(name: str) -> list[str]:
        wanted = set[str]()
        for node in ast.walk(modules[name].tree):
            if isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                wanted |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        found = sorted((wanted & modules.keys()) - {name, "stigmergy"})
        return [name, *max((chain(other) for other in found), key=len, default=[])]

    return max((chain(name) for name in modules if name != "stigmergy"), key=len)


def test_a_reader_need_not_go_through_more_modules() -> None:
    assert len(longest_import_chain()) <= IMPORT_CHAIN_MAX, longest_import_chain()


def names_used_twice() -> list[str]:
    """A public class name is one thing."""
    names = Counter(
        node.name
        for module in source_modules()
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, count in names.items() if count > 1)
