"""The policy of a node, or of all shards of a worker: which version is in force, and what it says.

    policy = NodePolicy("delivery", place, keys, Ed25519Verifier(), open_rego, clock, threads, settings, kept)
    await policy.start()            # reads what was kept, looks once, and goes on looking
    ruling = policy.judge(question) # the Judge of a shard: never raises, answers within the deadline

A bundle is taken if a trusted key has signed it for this fleet, it compiles, and its version is higher than any that
was in force. The one in force is kept in a file beside the journal: a start without a link goes on with it, and an
older one is never gone back to. What is refused changes nothing, and is a trouble until it is gone. Without any policy,
and where the engine fails or is late, everything is denied that a policy is asked about.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from stigmergy.agents.codec import REASON_CHARS_MAX, describe, printable
from stigmergy.agents.messages import SECOND_NS
from stigmergy.base.clock import Clock, Threads
from stigmergy.base.errors import ConfigError, PolicyFailed, PolicyRefused, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.base.trust import Verifier
from stigmergy.diagnostics.codes import Trouble, coded
from stigmergy.diagnostics.logger import Log
from stigmergy.policy.bundle import PolicyBundle, read_policy, version_of
from stigmergy.policy.document import document_of
from stigmergy.policy.engine import LoadedPolicy, OpenEngine, PolicyEngine, PolicyThread
from stigmergy.policy.place import PolicyPlace, read_bounded
from stigmergy.policy.rego import RegoPolicy
from stigmergy.shard.judging import PolicyQuestion, Ruling

DENIED = "denied by policy"
FAILED_S = 60.0
"""A failure of the engine is a trouble for so long."""
log = Log("policy")
Loader = Callable[[PolicyBundle], LoadedPolicy]


def load_rego(bundle: PolicyBundle) -> LoadedPolicy:
    """Compiles a policy. Raises PolicyRefused, and ConfigError without the engine."""
    return RegoPolicy(bundle.policy.modules, bundle.policy.data)


class PolicySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of a policy."""

    within_s: float = 0.05
    """A ruling that takes longer denies. A step waits for it: all agents of the node do."""
    look_s: float = 2.0
    """How often the place of policies is looked at."""

    def __post_init__(self) -> None:
        for name, value in (("within_s", self.within_s), ("look_s", self.look_s)):
            given: object = value
            if not isinstance(given, int | float) or not 0.001 <= given <= 3600:
                raise ConfigError(f"settings: policy.{name} = {value!r}; give 0.001 to 3600 seconds")


class PolicyCounters(Struct):
    """What became of questions."""

    policy_allowed: int = 0
    policy_denied: int = 0
    """By the rules of the policy."""
    policy_failed: int = 0
    """Denied because there was no policy, or the engine failed or was late."""


class NodePolicy:
    """Which version is in force, and what it says."""

    def __init__(
        self,
        fleet: str,
        place: PolicyPlace,
        keys: Sequence[bytes],
        verifier: Verifier,
        clock: Clock,
        threads: Threads,
        settings: PolicySettings,
        kept: Path | None = None,
        *,
        load: Loader = load_rego,
        open_engine: OpenEngine = PolicyThread,
    ) -> None:
        """`kept` is the file for the policy in force; without one, the highest version is remembered in memory only."""
        self._fleet = fleet
        self._place = place
        self._keys = keys
        self._verifier = verifier
        self._clock = clock
        self._threads = threads
        self._settings = settings
        self._kept = kept
        self._load = load
        self._open_engine = open_engine
        self._engine: PolicyEngine | None = None
        self.bundle: PolicyBundle | None = None
        """The policy in force."""
        self.on_change: Callable[[], None] = lambda: None
        self._refused: dict[str, tuple[str, str]] = {}
        """By file: the stamp of what was refused, and why."""
        self._behind = ""
        self._unseen = ""
        self._unkept = ""
        self._failure = ""
        self._failed_ns = 0
        self._task: asyncio.Task[None] | None = None
        self._counters = PolicyCounters()

    # ------------------------------------------------------------------ the ruling (the Judge of a shard)

    def judge(self, question: PolicyQuestion) -> Ruling:
        """What the policy in force says. Denies whatever goes wrong."""
        bundle, engine = self.bundle, self._engine
        if bundle is None or engine is None:
            self._counters.policy_failed += 1
            return Ruling(f"{DENIED}: this node has no policy that it believes; see stigmergy status")
        ruling = Ruling(None, bundle.policy.fleet, bundle.policy.version, bundle.digest)
        try:
            answer = engine.ask(document_of(question, self._fleet))
        except Exception as error:  # whatever an engine raises, it has not allowed anything
            said = str(error) if isinstance(error, PolicyFailed) else describe(error)
            self._counters.policy_failed += 1
            if not self._failing():
                log.say("policy-failed", f"a question about {question.message} for {question.address}: {said}")
            self._failure, self._failed_ns = said, self._clock.monotonic_ns()
            return self._denial(ruling, said)
        if answer.allowed:
            self._counters.policy_allowed += 1
            return ruling
        self._counters.policy_denied += 1
        return self._denial(ruling, answer.reason or "no rule allows it")

    def _denial(self, ruling: Ruling, why: str) -> Ruling:
        text = printable(f"{DENIED} {ruling.policy} {ruling.version}: {why}", REASON_CHARS_MAX)
        return Ruling(text, ruling.policy, ruling.version, ruling.digest)

    def _failing(self) -> str:
        recent = self._clock.monotonic_ns() - self._failed_ns < FAILED_S * SECOND_NS
        return self._failure if recent else ""

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Takes what was kept, looks once, and goes on looking. Raises ConfigError without the engine."""
        if self._kept is not None:
            await self._take_kept(self._kept)
        await self.look()
        self._task = asyncio.ensure_future(self._watch())

    async def stop(self) -> None:
        """Looks no more. From now on everything is denied."""
        task, self._task = self._task, None
        await end_tasks(task)
        engine, self._engine = self._engine, None
        if engine is not None:
            await self._threads.run(engine.close)

    def counters(self) -> dict[str, int]:
        """What became of questions."""
        return {name: getattr(self._counters, name) for name in PolicyCounters.__struct_fields__}

    def troubles(self) -> list[Trouble]:
        """A missing policy, bundles that are refused, a place that cannot be looked at, an engine that fails."""
        goes_on = "" if self.bundle is None else f"; version {self.bundle.policy.version} stays in force"
        refused = [f"{file}: {why}{goes_on}" for file, (_, why) in self._refused.items()]
        missing = failed = ""
        if self.bundle is None:
            missing = (
                f"there is no policy for {self._fleet} that this node believes: everything that a policy is asked "
                "about is denied; put one with: stigmergy policy put BUNDLE"
            )
        if failing := self._failing():
            failed = f"the engine of the policy has failed: {failing}; what it was asked about was denied"
        return [
            *coded("policy-missing", [missing]),
            *coded("policy-refused", [*refused, self._behind]),
            *coded("policy-unseen", [self._unseen and f"{self._unseen}{goes_on}", self._unkept]),
            *coded("policy-failed", [failed]),
        ]

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._settings.look_s)
            await self.look()

    async def look(self) -> None:
        """Takes the highest version that there is and that can be believed."""
        try:
            files = await self._place.list()
        except (StigmergyError, OSError) as error:
            self._unseen = f"the place of policies cannot be looked at: {error}"
            return
        self._unseen = ""
        numbered = {file: version for file in files if (version := version_of(file, self._fleet)) is not None}
        self._refused = {file: said for file, said in self._refused.items() if files.get(file) == said[0]}
        for file in sorted(numbered, key=lambda one: -numbered[one]):
            known = 0 if self.bundle is None else self.bundle.policy.version
            if numbered[file] < known or file in self._refused:
                continue
            try:
                await self._take(await self._place.read(file), numbered[file])
            except ConfigError:
                raise
            except (StigmergyError, OSError) as error:
                self._refused[file] = (files[file], str(error))
                log.say("policy-refused", f"{file}: {error}")
        known, newest = 0 if self.bundle is None else self.bundle.policy.version, max(numbered.values(), default=0)
        self._behind = (
            f"the place of policies has version {newest or 'none'}, and {known} was in force here: an older one is "
            f"never gone back to; {known} stays in force until there is a higher one"
            if known > newest
            else ""
        )

    async def _take(self, data: bytes, version: int | None = None) -> None:
        """Takes a bundle that is newer than what is in force. Raises PolicyRefused and ConfigError."""
        bundle = read_policy(data, self._keys, self._verifier, self._fleet)
        found, known = bundle.policy.version, self.bundle
        if version is not None and found != version:
            raise PolicyRefused(f"this is version {found}; it was renamed, call it {bundle.file_name}")
        if known is not None and found < known.policy.version:
            raise PolicyRefused(f"version {found} is older than {known.policy.version}, which was in force")
        if known is not None and found == known.policy.version:
            if bundle.digest != known.digest:
                raise PolicyRefused(f"another policy of version {found} is in force; sign this one as {found + 1}")
            return
        loaded = await self._threads.run(lambda: self._load(bundle))
        before = self.put_in_force(bundle, loaded)
        said = f"version {found} of the policy of {self._fleet} is in force, {bundle.digest.hex()[:16]}"
        log.say("policy-in-force", said)
        if before is not None:
            await self._threads.run(before.close)
        if self._kept is not None and version is not None:
            path, self._unkept = self._kept, ""
            try:
                await self._threads.run(lambda: _write_file(path, data))
            except OSError as error:
                self._unkept = f"{path}: the policy cannot be kept ({error.strerror}); free the disk"

    def put_in_force(self, bundle: PolicyBundle, loaded: LoadedPolicy) -> PolicyEngine | None:
        """From now on this policy rules. Returns the engine of the one before, to be closed."""
        before, self.bundle = self._engine, bundle
        self._engine = self._open_engine(loaded, lambda: self._load(bundle), self._settings.within_s)
        self.on_change()
        return before

    async def _take_kept(self, path: Path) -> None:
        try:
            data = await self._threads.run(lambda: read_bounded(path) if path.exists() else b"")
            if data:
                await self._take(data)
        except ConfigError:
            raise
        except (StigmergyError, OSError) as error:
            self._refused[path.name] = ("", f"what was kept of the policy is not believed: {error}")
            log.say("policy-refused", f"{path}: {error}")


def _write_file(path: Path, data: bytes) -> None:
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
