"""Compiles the source of a program to machine code, once, and keeps that on disk. The only place that compiles.

Everything is compiled for fixed types before the first record is read: nothing compiles in flight. Numba's output is
kept in one file per function and processor, and a start that finds it needs no compiler: it loads the code and calls
it. That takes a few milliseconds, and 50 MB less than numba itself.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import os
import pickle
import platform
import re
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numba.core.errors
import numpy as np
from blake3 import blake3
from msgspec import Struct
from numba.core import serialize
from numba.core.registry import cpu_target

from stigmergy.agents.codec import encode
from stigmergy.agents.columns import Say
from stigmergy.base.errors import Bug, ConfigError
from stigmergy.compiled.program import Program

# The folder of compiled code: complete files or none, and only our own files are trusted. No numba.
#
# Loading compiled code means running it. So a folder or file that belongs to somebody else, or that others can write,
# is refused; a truncated or changed file counts as absent; and a read-only folder is used as it is.

CACHE_VARIABLE = "STIGMERGY_CACHE"
FOLDERS_PER_KIND_MAX = 64
"""Each version of a class has a folder. When there are more of one kind, those go that were used longest ago."""
FILE_BYTES_MAX = 64 * 1024 * 1024
"""A longer file is not ours."""
_MAGIC = b"STGMCODE"
_DIGEST_BYTES = 32
_HEAD_BYTES = len(_MAGIC) + _DIGEST_BYTES
_CONTEXT = "stigmergy 2026 compiled code"
_WRITABLE_BY_OTHERS = 0o022


def cache_folder() -> Path:
    """Where compiled code is kept unless somebody says otherwise."""
    if given := os.environ.get(CACHE_VARIABLE):
        return Path(given).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "stigmergy" / "compiled"


class ProgramCache:
    """The folder of one program."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError if the folder, or the one it lies in, is not ours."""
        self.folder = folder
        self.trouble: str | None = None
        """Why nothing can be kept, once that is known."""
        for one in (folder.parent, folder):
            try:
                found = os.stat(one)
            except OSError:
                continue
            _check_ours(one, found)

    def read(self, name: str) -> bytes | None:
        """What was written under this name; None if it is not there or not whole. Raises ConfigError if not ours."""
        path = self.folder / name
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(file, "rb") as opened:
                _check_ours(path, os.fstat(file))
                data = opened.read(FILE_BYTES_MAX)
        except OSError:
            return None
        body = data[_HEAD_BYTES:]
        return body if data[:_HEAD_BYTES] == _head(body) else None

    def note_use(self) -> None:
        """Remembers that this one is in use, as far as the folder can be written."""
        with contextlib.suppress(OSError):
            os.utime(self.folder)

    def drop_others(self, kind: str) -> None:
        """Removes folders of this kind that nobody has used for long, if there are too many. Who loaded from one needs
        it no more; who would have to compiles again."""
        with contextlib.suppress(OSError):
            named = re.compile(rf"{re.escape(kind)}-[0-9a-f]+")
            found = [
                path for path in self.folder.parent.iterdir() if named.fullmatch(path.name) and path != self.folder
            ]
            found.sort(key=lambda path: (path.stat().st_mtime, path.name))
            for path in found[: max(len(found) + 1 - FOLDERS_PER_KIND_MAX, 0)]:
                shutil.rmtree(path, ignore_errors=True)

    def write(self, name: str, body: bytes) -> None:
        """Keeps this under a name, or notes the trouble."""
        self._put(name, _head(body) + body)

    def write_for_people(self, name: str, text: str) -> None:
        """The same for a text that is never read back."""
        self._put(name, text.encode())

    def _put(self, name: str, data: bytes) -> None:
        """In place at once or not at all, so that two who do it at the same time do each other no harm."""
        if self.trouble is not None:
            return
        try:
            self.folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o755, exist_ok=True)
            file, temporary = tempfile.mkstemp(dir=self.folder, prefix=f".{name}.")
            try:
                with os.fdopen(file, "wb") as opened:
                    opened.write(data)
                os.chmod(temporary, 0o644)
                os.replace(temporary, self.folder / name)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            self.trouble = error.strerror or str(error)


def _head(body: bytes) -> bytes:
    return _MAGIC + blake3(body, derive_key_context=_CONTEXT).digest()


def _check_ours(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"{path} belongs to another user (number {found.st_uid}), and to load compiled code is to run it; "
            f"make it yours, remove it, or set {CACHE_VARIABLE} to a folder of your own"
        )
    if found.st_mode & _WRITABLE_BY_OTHERS:
        raise ConfigError(
            f"{path} can be written by others, and to load compiled code is to run it; chmod go-w {path}, remove it, "
            f"or set {CACHE_VARIABLE} to a folder that only you can write"
        )


BUILDING_VERSION = 1
"""Part of what names a folder of the cache: raise it when the same source is to be compiled otherwise."""
GENERIC = "generic"
"""A processor of the oldest kind: code for it runs on all of the same architecture, somewhat slower."""
_llvm: Any = importlib.import_module("llvmlite.binding")
_runtime: Any = importlib.import_module("numba.core.runtime._nrt_python")
_dumps: Any = serialize.dumps
_config: Any = numba.config
_dispatcher: Any = importlib.import_module("numba.core.dispatcher").Dispatcher
_OURS = "stigmergy."
_SYMBOL = struct.Struct("<IBBHQQ")
"""A line in the table of symbols of an object file: name, info, other, section, value, size."""

_bytes_in = numba.types.Array(numba.uint8, 1, "C", readonly=True)
_bytes_out = numba.types.Array(numba.uint8, 1, "C")
_result = numba.types.Array(numba.int64, 1, "C")
_SIGNATURES: dict[str, Any] = {
    "step": numba.void(
        *(_bytes_in, numba.int64, numba.int64, numba.int64, numba.int64),  # records, start, end, known, flags_of_call
        *(_bytes_out, _bytes_out, _bytes_out),  # rows, stopped, dirty
        *(_bytes_out, _bytes_out, _bytes_out, _bytes_in),  # kept, actions, others, batched
        *(numba.float64, _result),  # now, result
    ),
    "fold": numba.void(
        *(_bytes_in, numba.int64, _bytes_out, _bytes_out, numba.float64, _result)  # records, count, rows, dirty, now
    ),
}
_TYPES: dict[str, Any] = {"int": numba.int64, "float": numba.float64, "bool": numba.boolean, "Any": _result}
"""What the annotations of the functions in `arithmetic` stand for."""

Function = Callable[..., None]
Processor = tuple[str, str, str]
"""What code is made for: the system, the processor's name, its features."""


class Built(Struct, frozen=True):
    """A program as machine code. The functions take exactly what they are declared for and check nothing of it."""

    step: Function
    fold: Function
    seconds: float
    compiled: bool
    """Made now; otherwise it was there."""
    folder: Path | None
    """Where it is kept; None if that was not possible."""


def build(program: Program, say: Say, root: Path | None = None) -> Built:
    """Loads a program from the folder `root`, or compiles it. Raises ConfigError for a folder that is not ours."""
    begin_s = time.perf_counter()
    digest = _digest(program)
    store = ProgramCache((root or cache_folder()) / f"{program.kind}-{digest}")
    module = _module(program, digest)
    made: dict[str, Function | None] = {name: _load(store, name) for name in _SIGNATURES}
    missing = [name for name, function in made.items() if function is None]
    if missing:
        say(f"compiling {program.cls.__name__} for this machine, once; takes some seconds")
        made.update(_compile_all(program, module, store, missing))
        say(_told(store, time.perf_counter() - begin_s))
        store.drop_others(program.kind)
    store.note_use()
    step, fold = made["step"], made["fold"]
    if step is None or fold is None:
        raise Bug(f"{program.kind}: a function is neither loaded nor compiled")
    folder = store.folder if store.trouble is None else None
    return Built(step, fold, time.perf_counter() - begin_s, bool(missing), folder)


def processor() -> Processor:
    """What code is made for here."""
    triple, name, features = _context().codegen().magic_tuple()
    return str(triple), str(name), str(features)


def _digest(program: Program) -> str:
    """Stands for all that the code depends on, but not for the processor."""
    parts = (
        BUILDING_VERSION,
        program.source,
        [(name, _source_of(name)) for name in _imported(program.source)],
        numba.__version__,
        np.__version__,
        (platform.python_implementation(), *sys.version_info[:2]),
    )
    return blake3(encode(parts)).hexdigest(length=12)


def _imported(source: str) -> list[str]:
    """The modules of ours that a program's source imports: their code becomes part of it."""
    names: dict[str, None] = {}
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=found):
                names.update(dict.fromkeys(alias.name for alias in found))
            case ast.ImportFrom(module=str(module)):
                names[module] = None
            case _:
                pass
    return sorted(name for name in names if name.startswith(_OURS))


def _source_of(name: str) -> str:
    return inspect.getsource(importlib.import_module(name))


def _module(program: Program, digest: str) -> ModuleType:
    """An empty module with the name of the program's: code that is loaded asks for it."""
    name = f"stigmergy_compiled_{program.kind.replace('.', '_').replace('-', '_')}_{digest}"
    module = sys.modules[name] = ModuleType(name)
    return module


def _told(store: ProgramCache, seconds: float) -> str:
    if store.trouble is None:
        return f"compiled in {seconds:.1f} s, kept in {store.folder}"
    return (
        f"compiled in {seconds:.1f} s, but it could not be kept in {store.folder} ({store.trouble}), so that each "
        f"start compiles again; compile ahead with `stigmergy compile --to DIR` and set {CACHE_VARIABLE}=DIR"
    )


# ---- compiling


def _compile_all(program: Program, module: ModuleType, store: ProgramCache, names: list[str]) -> dict[str, Function]:
    """Compiles what is missing; the source is the one in memory, never the one on disk."""
    if _config.DISABLE_JIT:
        raise ConfigError("NUMBA_DISABLE_JIT is set, and with it nothing can be compiled; unset it")
    path = store.folder / "program.py"
    store.write_for_people(path.name, program.source)
    module.__file__ = str(path)
    exec(compile(program.source, str(path), "exec"), module.__dict__)
    _fix_types(module, program.source)
    made: dict[str, Function] = {}
    for name in names:
        dispatcher: Any = numba.njit(nogil=True, error_model="numpy", fastmath=False)(getattr(module, name))
        try:
            dispatcher.compile(_SIGNATURES[name])
        except numba.core.errors.NumbaError as error:
            raise Bug(
                f"{program.kind}: numba does not take the code that was made of it; report it, and leave "
                f"{program.kind} out of compiled= until then ({str(error).strip()[-500:]})"
            ) from error
        (result,) = dispatcher.overloads.values()
        library, description, environment, *_, environments = result._reduce()
        kept = (processor(), library, description, environment, environments)
        store.write(_file_name(name, kept[0]), _dumps(kept))
        made[name] = result.entry_point
    return made


def _fix_types(module: ModuleType, source: str) -> None:
    """Compiles what the program calls, once, for the types that it is annotated with: numba would do so again for each
    constant that it is called with, which takes most of the time."""
    function: Any
    for name, function in vars(module).items():
        if isinstance(function, _dispatcher) and f"{name}(" in source and function._can_compile:
            annotations = dict(function.py_func.__annotations__)
            annotations.pop("return", None)
            function.compile(tuple(_TYPES[annotation] for annotation in annotations.values()))
            function.disable_compile()


def _file_name(name: str, made_for: Processor) -> str:
    return f"{name}-{made_for[1]}-{blake3(encode(made_for)).hexdigest(length=8)}.code"


# ---- loading


def _context() -> Any:
    return cpu_target.target_context


def _load(store: ProgramCache, name: str) -> Function | None:
    """A function as it was kept: for this processor, or for one of the oldest kind. None: there is none to be had."""
    own = processor()
    for made_for in (own, (own[0], GENERIC, "")):
        body = store.read(_file_name(name, made_for))
        if body is None:
            continue
        try:
            return _put_into_memory(body, made_for)
        except Exception:
            continue  # whole, but not what this numba can load: there is always the source
    return None


def _put_into_memory(body: bytes, made_for: Processor) -> Function:
    said, library, description, environment, environments = pickle.loads(body)
    if tuple(said) != made_for:
        raise ValueError(f"made for {said[1]}")
    context = _context()
    _, _, (object_code, _) = library
    _provide_symbols(context, object_code)
    loaded = context.codegen().unserialize_library(library)
    function: Function = context.get_executable(loaded, description, environment)
    for one in environments:
        loaded.codegen.set_env(one.env_name, one)
    return function


def _provide_symbols(context: Any, object_code: bytes) -> None:
    """Sees to it that all that the code calls is there: a symbol that is not ends the process.

    What our programs call is numba's runtime. To have numba know that and nothing else is what saves the memory.
    """
    for name, address in _runtime.c_helpers.items():
        _llvm.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)
    needed = _undefined_symbols(object_code)
    if any(_llvm.address_of_symbol(name) is None for name in needed):
        context.refresh()
        missing = [name for name in needed if _llvm.address_of_symbol(name) is None]
        if missing:
            raise ValueError(f"calls {missing[0]}, which is not there")


def _undefined_symbols(object_code: bytes) -> list[str]:
    """The names that an object file expects others to define."""
    found = _llvm.ObjectFileRef.from_data(object_code)
    sections = {section.name(): section.data() for section in found.sections()}
    symbols, names = sections[b".symtab"], sections[b".strtab"]
    undefined: list[str] = []
    for name, _, _, section, _, _ in _SYMBOL.iter_unpack(symbols):
        if name and not section:
            undefined.append(names[name : names.index(b"\0", name)].decode())
    return undefined
