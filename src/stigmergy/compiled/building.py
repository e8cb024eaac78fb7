"""Turns the source of a program into machine code, once, and keeps that on disk. The only place that compiles.

Everything is compiled for fixed types before the first record is read: nothing compiles in flight. What numba made is
kept in one file a function and processor (see `store`), and a start that finds it there needs no compiler: it puts the
code into memory and calls it. That takes a few milliseconds, and 50 MB less than numba with all that it knows.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import platform
import struct
import sys
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

from stigmergy.compiled.program import Program
from stigmergy.compiled.store import CACHE_VARIABLE, Store, cache_folder
from stigmergy.core.codec import encode
from stigmergy.core.errors import Bug, ConfigError
from stigmergy.core.tables import Say

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
    store = Store((root or cache_folder()) / f"{program.kind}-{digest}")
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


def _told(store: Store, seconds: float) -> str:
    if store.trouble is None:
        return f"compiled in {seconds:.1f} s, kept in {store.folder}"
    return (
        f"compiled in {seconds:.1f} s, but it could not be kept in {store.folder} ({store.trouble}), so that each "
        f"start compiles anew; compile ahead with `stigmergy compile --to DIR` and set {CACHE_VARIABLE}=DIR"
    )


# ---- compiling


def _compile_all(program: Program, module: ModuleType, store: Store, names: list[str]) -> dict[str, Function]:
    """Compiles what is missing; the source is what we have in hand, never what lies on disk."""
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


def _load(store: Store, name: str) -> Function | None:
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
