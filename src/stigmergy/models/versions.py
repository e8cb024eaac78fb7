"""The versions of a node's models: what the rollouts of its fleet say, from the store, and from a file when it is away.

    versions = RolloutVersions("city", ["gas-alarm"], trust, source="north/5f3a", cache=Path("city.db-models"))
    await versions.start(open_keys)         # `open_keys` opens the bucket of keys; None: this node is alone
    versions.wanted(…), versions.choose(…)  # the port of `models.service`

A record that a trusted key has signed is taken if its revision is higher than any that was here, and kept in a file
beside the journal: a start without a link goes on with it, and an older one is never gone back to. The node that runs
`ModelRollout/NAME` writes the record of that model whenever the agent has decided something; all nodes write what they
count, as signed sums under a name of their own, and that node gives those of trusted keys to the agent. Nothing here
waits for the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.agents.codec import describe
from stigmergy.agents.messages import SECOND_NS, Event
from stigmergy.base.clock import Clock, Threads
from stigmergy.base.errors import ModelRefused, StigmergyError, StoreConflict
from stigmergy.base.tasks import end_tasks
from stigmergy.base.trust import Signer, Verifier
from stigmergy.diagnostics.codes import Trouble, coded
from stigmergy.diagnostics.logger import Log
from stigmergy.models.rollout import (
    CANARY,
    STABLE,
    CountsReport,
    VersionCounts,
    VersionRecord,
    read_counts,
    read_record,
    write_counts,
    write_record,
)
from stigmergy.models.rollout_agent import CountsHeard, ModelRollout
from stigmergy.models.service import Choice
from stigmergy.store.port import Change, Complete, Gone, KeyValue, StoredEntry, Watch

LOOK_S = 0.25
"""How often it is looked whether a rollout here has decided something, and whether there are counts to tell."""
STORE_PAUSE_S = 2.0
"""Before a store that could not be reached is tried again."""
FIRST_HEARD_S = 5.0
"""So long a node that knows nothing yet waits for the store before it answers with the newest version it has."""
COUNTS_WAITING_MAX = 4_096
VERSIONS, COUNTS = "versions.", "counts."
"""What keys begin with; the name of the model follows, and for counts a digest of their source."""
log = Log("models")
OpenKeys = Callable[[], Awaitable[KeyValue]]


class RecordTrust(Struct, frozen=True):
    """Whose records are believed, and with what this node signs its own."""

    keys: Sequence[bytes]
    verifier: Verifier
    signer: Signer


class RolloutsHere(Protocol):
    """The agents of rollouts that this node runs."""

    def find(self, model: str) -> ModelRollout | None:
        """The durable state of one; None if it is elsewhere, or nothing was ever begun."""
        ...

    async def observe(self, model: str, event: Event) -> None:
        """Tells it something."""
        ...


class RecordsKept(Protocol):
    """The last records, for a start without a link. Called on a thread."""

    name: str

    def read(self) -> bytes:
        """What was written last; empty if nothing was. Raises OSError."""
        ...

    def write(self, data: bytes) -> None:
        """Keeps this, whole or not at all. Raises OSError."""
        ...


class RolloutVersions:
    """Which version answers whom on this node (the Versions port)."""

    def __init__(
        self,
        fleet: str,
        models: Iterable[str],
        trust: RecordTrust,
        clock: Clock,
        threads: Threads,
        *,
        source: str,
        cache: RecordsKept | None = None,
    ) -> None:
        """`source` names this run of this node among all that count. `cache` keeps the last records."""
        self.records: dict[str, VersionRecord] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Called when another version may be wanted."""
        self.here: RolloutsHere | None = None
        self._fleet = fleet
        self._models = tuple(models)
        self._trust = trust
        self._clock = clock
        self._threads = threads
        self._source = source
        self._cache = cache
        self._signed: dict[str, bytes] = {}
        self._keys: KeyValue | None = None
        self._watches: list[Watch] = []
        self._task: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()
        self._stored: dict[str, int] = {}
        """The revisions that the store is known to have."""
        self._told: dict[tuple[str, str], bytes] = {}
        """By model and key: counts of all nodes that were not looked at yet, the newest of each."""
        self._disbelieved: dict[tuple[str, str], str] = {}
        """By model and key: counts in the store that the rollouts here are not given, and why."""
        self._counts: dict[str, tuple[int, VersionCounts, VersionCounts]] = {}
        """By model: the revision, and what this node has counted since, of the stable version and of the new one."""
        self._reported: dict[str, tuple[int, VersionCounts, VersionCounts]] = {}
        self._due_ns: dict[str, int] = {}
        self._first: dict[str, str] = {}
        """What answers while no rollout has said anything."""
        self._missing: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self._unreachable = ""
        self._is_unwritten = False
        self._writing: asyncio.Future[None] | None = None

    # ------------------------------------------------------------------ which version (the port of the service)

    def wanted(self, model: str, usable: Sequence[str], refused: Sequence[str]) -> Sequence[str]:
        """The stable version, and in a canary the new one; where the stable one is not there, what was before."""
        record = self.records.get(model)
        if record is None:
            # The newest at the start, and no other by itself: one that has just come may be about to be rolled out.
            if self._first.get(model) not in usable:
                self._first[model] = usable[-1] if usable else ""
            return [self._first[model]] if usable else []
        found = [record.stable] if record.stable in usable else [one for one in (record.before,) if one in usable]
        lacking = [one for one in (record.stable, record.candidate) if one and one not in (*usable, *refused)]
        answers = f"version {found[0]} answers" if found else "its rule answers"
        self._missing[model] = (
            f"model {model}: version {' and '.join(lacking)} is wanted and not here; {answers}" if lacking else ""
        )
        if record.stage == CANARY and record.candidate in usable:
            found.append(record.candidate)
        return found

    def choose(self, model: str, agent: str, loaded: Sequence[str]) -> Choice:
        """The version of the agent's arm. The new one answers nobody else, whatever is missing."""
        record = self.records.get(model)
        if record is None:
            return Choice(loaded[-1])
        arm = record.arm_of(agent)
        revision = record.revision if arm else 0
        if arm == CANARY and record.candidate in loaded:
            return Choice(record.candidate, CANARY, revision)
        version = record.before if record.stable not in loaded and record.before in loaded else record.stable
        return Choice(version, STABLE if arm else "", revision, record.candidate if record.stage == "shadow" else "")

    # ------------------------------------------------------------------ counting

    def count(self, model: str, revision: int, stable: VersionCounts, candidate: VersionCounts) -> None:
        """Adds what was seen of an answer, if it belongs to the present stage."""
        record = self.records.get(model)
        if record is not None and record.revision == revision:
            held = self._counts.get(model)
            if held is None or held[0] != revision:
                held = (revision, VersionCounts(), VersionCounts())
            self._counts[model] = (revision, held[1].plus(stable), held[2].plus(candidate))

    # ------------------------------------------------------------------ life

    async def start(self, open_keys: OpenKeys | None) -> None:
        """Reads the file, and begins to follow the store. Without a file it waits a moment for the store."""
        if self._cache is not None:
            await self._read_cache(self._cache)
        self._task = asyncio.ensure_future(self._live(open_keys))
        if open_keys is not None and not self.records:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_HEARD_S):
                    await self._heard.wait()

    async def kill(self) -> None:
        """Follows nothing more, and keeps nothing: a crash."""
        task, self._task = self._task, None
        await end_tasks(task)
        for watch in self._watches:
            watch.stop()

    async def stop(self) -> None:
        """Follows nothing more. The last counts are told by the next stage, or not at all."""
        await self.kill()
        with contextlib.suppress(OSError):  # the store says it anew
            await self._write_cache()  # the next start must not go back behind what agents were answered by

    def troubles(self) -> list[Trouble]:
        """Versions that are wanted and missing, records that are refused, a store that cannot be reached."""
        return [
            *coded("model-missing", self._missing.values()),
            *coded("rollout-refused", [*self._refused.values(), *self._disbelieved_said()]),
            *coded("models-unseen", [self._unreachable]),
        ]

    async def _live(self, open_keys: OpenKeys | None) -> None:
        while True:
            pause_s = LOOK_S
            try:
                if self._keys is None and open_keys is not None:
                    await self._connect(await open_keys())
                await self._step()
                self._unreachable = ""
            except StoreConflict:
                pass  # somebody else has written: look again
            except Exception as error:  # a store's driver may raise anything; agents must not miss their versions
                said = str(error) if isinstance(error, StigmergyError) else describe(error)
                self._unreachable = f"the store of versions of models: {said}; what was known last goes on"
                pause_s = STORE_PAUSE_S
                with contextlib.suppress(StigmergyError):
                    await self._step_here()
            await asyncio.sleep(pause_s)

    async def _connect(self, keys: KeyValue) -> None:
        self._keys = keys
        self._watches = [keys.watch(VERSIONS, self._hear), keys.watch(COUNTS, self._hear)]

    def _hear(self, change: Change) -> None:
        """What the store says. It repeats everything when something may have been missed."""
        if isinstance(change, Complete):
            self._heard.set()
        if not isinstance(change, StoredEntry | Gone):
            return
        kind, _, rest = change.key.partition(".")
        model = rest.partition(".")[0]
        self._disbelieved.pop((model, change.key), None)
        if isinstance(change, Gone):
            return
        if f"{kind}." == VERSIONS and model in self._models:
            self._take(model, change.value)
        elif f"{kind}." == COUNTS and self.here is not None and len(self._told) < COUNTS_WAITING_MAX:
            self._told[model, change.key] = change.value

    def _take(self, model: str, data: bytes) -> None:
        """Takes a record that is newer than what is known. One that is refused changes nothing."""
        known = self.records.get(model)
        revision = 0 if known is None else known.revision
        try:
            record = read_record(data, self._fleet, model, self._trust.keys, self._trust.verifier, revision)
        except ModelRefused as error:
            self._refused[model] = str(error)
            return
        self._refused.pop(model, None)
        self._stored[model] = max(record.revision, self._stored.get(model, 0))
        if known is not None and record.revision == known.revision:
            return
        self.records[model], self._signed[model] = record, data
        about = f"model {model}: version {record.stable} is stable" + (
            f", {record.candidate} in the {record.stage}" if record.candidate else f" ({record.stage})"
        )
        log.say("rollout-step", about)
        self._is_unwritten = self._cache is not None
        self.on_change()

    # ------------------------------------------------------------------ the rollouts that run here, and the counts

    async def _step(self) -> None:
        await self._step_here()
        for model in self._models:
            rollout = None if self.here is None else self.here.find(model)
            if rollout is not None and rollout.revision and self._keys is not None:
                await self._store(model, rollout, self._keys)
        await self._report()

    async def _step_here(self) -> None:
        """What needs no store: the file, our own rollouts, and the counts that were heard."""
        await self._write_cache()
        here = self.here
        if here is None:
            return
        for model in self._models:
            rollout = here.find(model)
            known = self.records.get(model)
            if rollout is not None and rollout.revision > (0 if known is None else known.revision):
                stored = self._stored.get(model, 0)
                self._take(model, write_record(rollout.record(self._fleet), self._trust.signer))
                self._stored[model] = stored
        while self._told:
            (model, key), data = next(iter(self._told.items()))
            if here.find(model) is not None and (told := self._believed(model, key, data)) is not None:
                await here.observe(model, told)
            if self._told.get((model, key)) is data:
                del self._told[model, key]

    def _believed(self, model: str, key: str, data: bytes) -> CountsHeard | None:
        """Counts of a node whose key is trusted."""
        try:
            told = read_counts(data, self._fleet, model, self._trust.keys, self._trust.verifier)
        except ModelRefused as error:
            if len(self._disbelieved) < COUNTS_WAITING_MAX:
                self._disbelieved[model, key] = str(error)
            return None
        return CountsHeard(source=told.source, revision=told.revision, stable=told.stable, candidate=told.candidate)

    def _disbelieved_said(self) -> list[str]:
        said = []
        for model in self._models:
            found = [why for (name, _), why in self._disbelieved.items() if name == model]
            if found:
                said.append(f"{found[-1]} (counts that are not taken: {len(found)})")
        return said

    async def _store(self, model: str, rollout: ModelRollout, keys: KeyValue) -> None:
        """Writes the record of a rollout that has moved on. A store that knows more is left as it is, and that shows:
        then this agent was restored from an old copy, or there are two of it."""
        if self._stored.get(model, 0) >= rollout.revision:
            return
        entry = await keys.get(VERSIONS + model)
        stored = 0
        if entry is not None:
            with contextlib.suppress(ModelRefused):
                trust = self._trust
                stored = read_record(entry.value, self._fleet, model, trust.keys, trust.verifier).revision
        if stored < rollout.revision:
            data = write_record(rollout.record(self._fleet), self._trust.signer)
            await keys.put(VERSIONS + model, data, revision=0 if entry is None else entry.revision)
            stored = rollout.revision
        self._stored[model] = stored
        if not rollout.is_open:
            for key in await keys.keys(f"{COUNTS}{model}."):
                await keys.delete(key)

    async def _report(self) -> None:
        """Tells what was counted, now and then. What is told again adds nothing."""
        now_ns = self._clock.monotonic_ns()
        for model, counted in list(self._counts.items()):
            record = self.records[model]
            if counted[0] != record.revision or self._reported.get(model) == counted:
                continue
            if now_ns < self._due_ns.get(model, 0):
                continue
            self._due_ns[model] = now_ns + int(record.report_s * SECOND_NS)
            revision, stable, candidate = counted
            if self._keys is not None:
                name = blake3(self._source.encode()).hexdigest(length=16)
                report = CountsReport(self._fleet, model, self._source, revision, stable, candidate)
                await self._keys.put(f"{COUNTS}{model}.{name}", write_counts(report, self._trust.signer))
            elif self.here is not None and self.here.find(model) is not None:
                told = CountsHeard(source=self._source, revision=revision, stable=stable, candidate=candidate)
                await self.here.observe(model, told)
            else:
                continue
            self._reported[model] = counted

    # ------------------------------------------------------------------ the file

    async def _write_cache(self) -> None:
        if self._writing is not None:
            with contextlib.suppress(OSError):  # whoever began it has heard of it
                await asyncio.shield(self._writing)  # it goes on although the task that began it was ended
        if self._is_unwritten and self._cache is not None:
            self._is_unwritten, cache, data = False, self._cache, msgspec.msgpack.encode(self._signed)
            self._writing = asyncio.ensure_future(self._threads.run(lambda: cache.write(data)))
            await asyncio.shield(self._writing)

    async def _read_cache(self, cache: RecordsKept) -> None:
        try:
            data = await self._threads.run(cache.read)
            for model, signed in (msgspec.msgpack.decode(data, type=dict[str, bytes]) if data else {}).items():
                if model in self._models:
                    self._take(model, signed)
        except (OSError, msgspec.DecodeError) as error:
            self._refused[""] = (
                f"{cache.name}: what was known of versions cannot be read ({error}); the store says it anew"
            )
        self._stored.clear()
        self._is_unwritten = False


class ShadowVersions:
    """Which version is asked beside the stable one (the Versions port, of the service of shadows)."""

    def __init__(self, versions: RolloutVersions) -> None:
        self._versions = versions

    def wanted(self, model: str, usable: Sequence[str], refused: Sequence[str]) -> Sequence[str]:
        """The new version, while it is in the shadow."""
        record = self._versions.records.get(model)
        is_shadow = record is not None and record.stage == "shadow" and record.candidate in usable
        return [record.candidate] if record is not None and is_shadow else []

    def choose(self, model: str, agent: str, loaded: Sequence[str]) -> Choice:
        """The new version."""
        record = self._versions.records.get(model)
        return Choice(loaded[-1] if record is None else record.candidate)


class RecordsFile:
    """Records in a file, by model."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path

    def read(self) -> bytes:
        """The file."""
        return self._path.read_bytes() if self._path.exists() else b""

    def write(self, data: bytes) -> None:
        """Replaces the file."""
        fresh = self._path.with_name(f"{self._path.name}.new")
        with fresh.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
