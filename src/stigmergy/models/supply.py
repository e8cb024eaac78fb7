"""Where a node's models come from: a folder or a store of bundles, looked at again and again.

    supply = Supply(FolderPlace(Path("models"), threads), keys, verifier, threads, service, settings)
    await supply.look()         # loads what is wanted and fit; never raises for a bundle
    supply.start()              # goes on looking for new, changed and repaired ones

A bundle is read, verified, loaded and tried with its recorded examples before it answers anybody. One that is refused
is not looked at again before its file changes. A bundle that is written over answers until the new one is fit.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from blake3 import blake3
from msgspec import Struct, structs

from stigmergy.base.clock import Clock, Threads
from stigmergy.base.errors import ModelRefused, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.base.trust import Verifier
from stigmergy.diagnostics.codes import Trouble
from stigmergy.diagnostics.logger import Log
from stigmergy.models.bundle import (
    BUNDLE_BYTES_MAX,
    HEAD_BYTES,
    SUFFIX,
    Bundle,
    Manifest,
    bundle_bytes,
    read_bundle,
    version_key,
)
from stigmergy.models.checking import difference_of
from stigmergy.models.engine import Explain
from stigmergy.models.explanation import ExplanationMethod, explain
from stigmergy.models.model import MISSING, REFUSED, Model
from stigmergy.models.runtime import LoadedModel, unpack_row
from stigmergy.models.runtimes import find_runtime
from stigmergy.models.service import LoadedVersion, ModelService
from stigmergy.store.port import Objects

LOAD_S_MAX = 60.0
"""A bundle that is not ready after this time is refused."""
FILES_COUNT_MAX = 10_000
TRIED_COUNT_MAX = 8
"""So many of the recorded examples are run before a model answers anybody."""
EXPLAINED_COLUMNS_MAX = 64
"""A model with more inputs is not explained on the way: each takes a run."""
HUNG_PAUSE_S_MAX = 600.0
log = Log("models")
CheckBundle = Callable[[Bundle], str]
"""Asks a policy whether a bundle may answer, on the event loop; returns which one says so. Raises ModelRefused."""


class ModelPlace(Protocol):
    """Where bundles are. Raises StigmergyError or OSError if it cannot be looked at, now."""

    async def list(self) -> Mapping[str, str]:
        """The names of all files, each with a stamp that changes when the file does."""
        ...

    async def read(self, name: str) -> bytes:
        """A file. Raises ModelRefused for one that is larger than its class allows, before it is read."""
        ...


class FolderPlace:
    """A folder on this machine."""

    def __init__(self, folder: Path, threads: Threads) -> None:
        self._folder = folder
        self._threads = threads

    async def list(self) -> Mapping[str, str]:
        """The names of all bundles, with size and time of their last change."""
        return await self._threads.run(self._list)

    async def read(self, name: str) -> bytes:
        """A file of the folder."""
        return await self._threads.run(lambda: self._read(name))

    def _list(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for path in sorted(self._folder.iterdir())[:FILES_COUNT_MAX]:
            if path.name.endswith(SUFFIX):
                with contextlib.suppress(FileNotFoundError):  # it has just been taken away
                    status = path.stat()
                    found[path.name] = f"{status.st_size}.{status.st_mtime_ns}.{status.st_ino}"
        return found

    def _read(self, name: str) -> bytes:
        with (self._folder / name).open("rb") as file:
            head = file.read(HEAD_BYTES)
            # One byte more: a file that is longer than it says is refused for that.
            return head + file.read(min(bundle_bytes(head), BUNDLE_BYTES_MAX) - HEAD_BYTES + 1)


class StorePlace:
    """A bucket of objects, such as on NATS. What was fetched is kept in a folder here, for starts without a link."""

    def __init__(self, open_objects: Callable[[], Awaitable[Objects]], folder: Path | None, threads: Threads) -> None:
        self._open = open_objects
        self._folder = folder
        self._threads = threads
        self._digests: dict[str, str] = {}

    async def list(self) -> Mapping[str, str]:
        """The names of all bundles in the store, with their digests; while it is away, of those that are kept here."""
        try:
            objects = await self._open()
            for name in (await objects.names())[:FILES_COUNT_MAX]:
                versions = await objects.versions(name) if name.endswith(SUFFIX) else []
                self._digests |= {name: versions[-1].digest} if versions else {}
        except StigmergyError:
            if self._folder is None or not (kept := await self._threads.run(self._kept)):
                raise
            self._digests = kept | self._digests
        return dict(self._digests)

    async def read(self, name: str) -> bytes:
        """A bundle: the one kept here if it is still that of the store."""
        data = await self._threads.run(lambda: self._read(name))
        if data is not None and blake3(data).hexdigest() == self._digests.get(name):
            return data
        data = await (await self._open()).get(name)
        if data is None:
            raise ModelRefused("it was deleted from the store meanwhile; put it there again")
        fetched = data
        await self._threads.run(lambda: self._keep(name, fetched))
        return data

    def _kept(self) -> dict[str, str]:
        paths = [] if self._folder is None else sorted(self._folder.glob(f"*{SUFFIX}"))[:FILES_COUNT_MAX]
        return {path.name: blake3(path.read_bytes()).hexdigest() for path in paths}

    def _read(self, name: str) -> bytes | None:
        path = None if self._folder is None else self._folder / name
        return path.read_bytes() if path is not None and path.exists() else None

    def _keep(self, name: str, data: bytes) -> None:
        if self._folder is not None and "/" not in name:
            self._folder.mkdir(parents=True, exist_ok=True)
            fresh = self._folder / f"{name}.new"
            fresh.write_bytes(data)
            fresh.replace(self._folder / name)


class _Found(Struct):
    """A version of a model that a place has, or had."""

    file: str
    stamp: str
    unit: LoadedVersion | None = None
    memory_bytes: int = 0
    loaded_stamp: str = ""
    refused_stamp: str = ""
    why: str = ""
    """Why it is refused, also while what has come in its place is not loaded yet."""
    hangs: int = 0
    not_before_ns: int = 0


class Supply:
    """Loads bundles and gives them to a service."""

    def __init__(
        self,
        place: ModelPlace | None,
        keys: Sequence[bytes],
        verifier: Verifier,
        threads: Threads,
        clock: Clock,
        service: ModelService,
        check: CheckBundle | None = None,
    ) -> None:
        """`check` is the policy, if the node has one."""
        self._place = place
        self._keys = keys
        self._verifier = verifier
        self._threads = threads
        self._clock = clock
        self._service = service
        self._check = check
        self._settings = service.settings
        self._versions: dict[str, dict[str, _Found]] = {name: {} for name in service.models}
        self._task: asyncio.Task[None] | None = None
        self._loading: asyncio.Event | None = None
        """Set once the thread that loads a bundle, or has loaded the last one, is done with it."""
        self._unseen = ""
        self._woken = asyncio.Event()
        service.lost, service.refused = self._lost, self.troubles

    def start(self) -> None:
        """Begins to look for changes."""
        if self._place is not None and self._versions:
            self._task = asyncio.ensure_future(self._watch())

    async def stop(self) -> None:
        """Looks no more. What is loaded stays loaded."""
        task, self._task = self._task, None
        if task is not None:
            await end_tasks(task)

    async def ended(self, within_s: float) -> int:
        """Waits, so long at most, until no thread loads a bundle any more, after `stop`; how many do."""
        if self._loading is None:
            return 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._loading.wait()
        return int(not self._loading.is_set())

    def troubles(self) -> list[Trouble]:
        """A place that cannot be looked at, and bundles that are refused."""
        found = [Trouble("models-unseen", self._unseen)] if self._unseen else []
        refused = (one for versions in self._versions.values() for one in versions.values() if one.why)
        return [*found, *(Trouble("model-refused", f"{one.file}: {one.why}") for one in refused)]

    async def look(self) -> None:
        """Loads what is wanted and not loaded, and drops what is gone."""
        if self._place is None:
            return
        try:
            files = await self._place.list()
        except (StigmergyError, OSError) as error:
            self._unseen = f"the place of models cannot be looked at: {error}; what is loaded goes on"
            for name in self._versions:
                if not self._service.loaded(name):
                    self._service.unusable.setdefault(name, (MISSING, self._unseen))
            return
        self._unseen = ""
        for name, cls in self._service.models.items():
            await self._look_for(name, cls, files)

    def wake(self) -> None:
        """Looks again soon: other versions may be wanted."""
        self._woken.set()

    def check_again(self) -> None:
        """Looks again soon, at all bundles: another policy is in force."""
        for versions in self._versions.values():
            for one in versions.values():
                one.loaded_stamp = one.refused_stamp = ""
        self.wake()

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.look_s):
                    await self._woken.wait()
            self._woken.clear()
            await self.look()

    async def _look_for(self, name: str, cls: type[Model], files: Mapping[str, str]) -> None:
        versions = self._found(name, files)
        while True:
            refused = [version for version, one in versions.items() if not one.unit and one.refused_stamp == one.stamp]
            usable = [version for version in versions if version not in refused]
            wanted = self._service.versions.wanted(name, usable, refused)
            now_ns = self._clock.monotonic_ns()
            due = [
                (version, versions[version])
                for version in wanted
                if versions[version].stamp not in (versions[version].loaded_stamp, versions[version].refused_stamp)
                and now_ns >= versions[version].not_before_ns
            ]
            if not due:
                break
            await self._load(name, cls, *due[0])
        for version, one in versions.items():
            if one.unit is not None and version not in wanted:
                self._drop(one)
            if one.refused_stamp != one.stamp:
                one.why = ""
        if not self._service.loaded(name):
            bad = [one for one in versions.values() if one.refused_stamp == one.stamp]
            if bad:
                self._service.unusable[name] = (REFUSED, f"{bad[-1].file}: {bad[-1].why}")
            elif not any(one.hangs for one in versions.values()):
                self._service.unusable[name] = (MISSING, f"there is no {name}-VERSION{SUFFIX}")

    def _found(self, name: str, files: Mapping[str, str]) -> dict[str, _Found]:
        """The versions of a model, the newest last, with what is known of them."""
        before = self._versions[name]
        numbered: dict[str, tuple[str, str]] = {}
        for file, stamp in files.items():
            version = file.removesuffix(SUFFIX).removeprefix(f"{name}-")
            if file == f"{name}-{version}{SUFFIX}" and _is_version(version):
                numbered[version] = (file, stamp)
        for version, one in before.items():
            if version not in numbered and one.unit is not None:
                self._drop(one)
        found = self._versions[name] = {}
        for version in sorted(numbered, key=version_key):
            one = found[version] = before.get(version) or _Found(*numbered[version])
            one.file, one.stamp = numbered[version]
        return found

    def _drop(self, one: _Found) -> None:
        if one.unit is not None:
            log.say("model-dropped", f"model {one.unit.model}: version {one.unit.version} answers no more")
            self._service.drop(one.unit)
        one.unit, one.memory_bytes, one.loaded_stamp = None, 0, ""

    async def _load(self, name: str, cls: type[Model], version: str, one: _Found) -> None:
        assert self._place is not None
        stamp = one.stamp
        try:
            async with asyncio.timeout(LOAD_S_MAX):
                data = await self._place.read(one.file)
                unit, memory_bytes, bundle = await self._unit_on_thread(name, cls, version, data)
            unit = self._let_in(unit, bundle, one)
            others = sum(other.memory_bytes for found in self._versions.values() for other in found.values())
            others -= one.memory_bytes
            if others + memory_bytes > self._settings.memory_bytes_max:
                unit.loaded.close()
                raise ModelRefused(
                    f"takes {memory_bytes} bytes of memory, beside {others} of others, and all models together may "
                    f"take {self._settings.memory_bytes_max}; raise models.memory_bytes_max, or take a smaller one"
                )
        except TimeoutError:
            self._refuse(one, stamp, f"was not loaded within {LOAD_S_MAX:g} s; pack a smaller model")
        except (StigmergyError, OSError) as error:
            self._refuse(one, stamp, str(error))
        except Exception as error:  # of a runtime: this bundle is of no use, and that is all
            self._refuse(one, stamp, f"its runtime raised {type(error).__name__}: {error}")
        else:
            one.unit, one.memory_bytes, one.loaded_stamp, one.refused_stamp, one.why = unit, memory_bytes, stamp, "", ""
            self._service.have(unit)
            log.say("model-loaded", f"model {name}: version {version} answers, from {one.file}")

    def _refuse(self, one: _Found, stamp: str, why: str) -> None:
        one.refused_stamp, one.why = stamp, why
        log.say("model-refused", f"{one.file}: {why}")

    def _let_in(self, unit: LoadedVersion, bundle: Bundle, one: _Found) -> LoadedVersion:
        """Asks the policy. Raises ModelRefused, and then also what was loaded of this version answers no more."""
        if self._check is None:
            return unit
        try:
            return structs.replace(unit, policy=self._check(bundle))
        except ModelRefused:
            unit.loaded.close()
            self._drop(one)
            raise

    async def _unit_on_thread(
        self, name: str, cls: type[Model], version: str, data: bytes
    ) -> tuple[LoadedVersion, int, Bundle]:
        loading = asyncio.ensure_future(self._threads.run(lambda: self._unit(name, cls, version, data)))
        over = self._loading = asyncio.Event()

        def seen(done: asyncio.Future[Any]) -> None:
            done.exception()  # perhaps nobody waits for it
            over.set()

        loading.add_done_callback(seen)
        # Not cancelled with us: the thread goes on, and whoever ends must know for how long.
        await over.wait()
        return loading.result()

    def _unit(self, name: str, cls: type[Model], version: str, data: bytes) -> tuple[LoadedVersion, int, Bundle]:
        """Reads, verifies, loads and tries a bundle; on a thread. Raises ModelRefused."""
        bundle = read_bundle(data, self._keys, self._verifier, name=name)
        manifest = bundle.manifest
        if manifest.version != version:
            raise ModelRefused(f"this is version {manifest.version}; it was renamed, call it {bundle.file_name}")
        missing = [output for output in cls.__model__.outputs if output not in manifest.outputs]
        if missing:
            raise ModelRefused(
                f"it has no output {missing[0]!r}, which {cls.__name__} names; it has {', '.join(manifest.outputs)}"
            )
        loaded = find_runtime(manifest.runtime).load(bundle, self._settings.threads)
        try:
            _check_fits(bundle, loaded)
        except BaseException:
            loaded.close()
            raise
        columns = tuple(manifest.outputs.index(output) for output in cls.__model__.outputs)
        outputs_count = len(manifest.outputs)
        explained = _explainer(manifest, cls.__model__.outputs[0]) if cls.__model__.explain else None
        unit = LoadedVersion(
            name, version, bundle.digest, loaded, manifest.row_bytes, columns, outputs_count, explained
        )
        return unit, loaded.memory_bytes, bundle

    def _lost(self, unit: LoadedVersion) -> None:
        """A version hangs. It is loaded anew after a pause, which doubles."""
        one = self._versions[unit.model].get(unit.version)
        if one is None or one.unit is not unit:
            return
        one.unit, one.memory_bytes, one.loaded_stamp = None, 0, ""
        pause_s = min(HUNG_PAUSE_S_MAX, self._settings.hung_s * 2 ** min(one.hangs, 16))
        one.hangs += 1
        one.not_before_ns = self._clock.monotonic_ns() + int(pause_s * 1e9)
        log.say(
            "model-hung", f"model {unit.model}: version {unit.version} hangs; it is loaded anew after {pause_s:g} s"
        )


def _is_version(text: str) -> bool:
    try:
        version_key(text)
    except ModelRefused:
        return False
    return True


def _check_fits(bundle: Bundle, loaded: LoadedModel) -> None:
    """Its memory, and that it answers the recorded examples as it did when it was packed. Raises ModelRefused."""
    manifest = bundle.manifest
    limit = manifest.class_limits.memory_bytes_max
    if loaded.memory_bytes > limit:
        raise ModelRefused(
            f"takes {loaded.memory_bytes} bytes of memory, over the {limit} of class {manifest.model_class}"
        )
    examples = manifest.examples[:TRIED_COUNT_MAX]
    if not examples:
        return
    for example, outputs in zip(examples, loaded.run([one.inputs for one in examples]), strict=True):
        near = manifest.tolerance * max(1.0, *map(abs, example.outputs))
        if difference_of(outputs, example.outputs) > near:
            raise ModelRefused("its answers are not those that were recorded when it was packed; pack it anew")


def _explainer(manifest: Manifest, output: str) -> Explain | None:
    """Explains this output against the mean of the recorded examples; None where that takes too many runs, or there is
    nothing to compare with."""
    if not manifest.examples or len(manifest.inputs) > EXPLAINED_COLUMNS_MAX:
        return None
    rows = [unpack_row(one.inputs) for one in manifest.examples]
    usual = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]

    def explain_row(loaded: Any, row: bytes) -> tuple[tuple[str, float], ...]:
        found = explain(loaded, manifest, row, usual, output=output, method=ExplanationMethod.OCCLUSION)
        return tuple((one.name, one.value) for one in found.contributions)

    return explain_row
