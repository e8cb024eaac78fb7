"""The models of a simulated node: functions of the test in the place of bundles, in virtual time, with faults.

The service is that of a real node, with its queue, deadlines and rules. Where a test gives no function for a model, its
rule answers. In a fleet with rollouts each machine follows them as a real one does: through a store that is cut off
with the machine, a file that a crash leaves, and versions that take a while to be fetched.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from stigmergy.app.models import HostRollouts, asker_of
from stigmergy.base.errors import ConfigError, ModelRefused
from stigmergy.models.bundle import version_key
from stigmergy.models.engine import Done, Explain, RowResult
from stigmergy.models.model import SIMULATED, Inputs, Model
from stigmergy.models.rollout_agent import KIND
from stigmergy.models.runtime import unpack_row
from stigmergy.models.service import LoadedVersion, ModelService
from stigmergy.models.trial import Asking, Trial
from stigmergy.models.versions import RecordTrust, RolloutVersions, ShadowVersions
from stigmergy.nats.naming import models_bucket
from stigmergy.node.declaration import Declaration
from stigmergy.node.device_tasks import Inline
from stigmergy.node.host import Connections, Host
from stigmergy.node.tells import AskModels
from stigmergy.shard.outbox import Pending
from stigmergy.sim.devices import Temper
from stigmergy.store.memory import MemoryStore

Answering = Callable[[Inputs], Model]
"""What a model answers to these inputs: a pure function."""
Answers = Mapping[Any, Answering | Mapping[str, Answering]]
"""By class, what models answer; with rollouts by version, the stable one first. Keys of a Mapping are invariant."""
VERSION = "simulated"
FETCH_S_MAX = 1.0
"""A version that is wanted answers after so long at most."""
RUN_S_MAX = 0.01
LATE_SHARE = 3.0
"""A run that is late takes so many times what the model's class allows."""


class SimEngine:
    """The ModelEngine of a simulated node: a run takes virtual time, and may be late, fail, or give NaN."""

    abandoned = 0

    def __init__(self, temper: Temper, chance: random.Random) -> None:
        self._temper = temper
        self._chance = chance
        self._run: asyncio.TimerHandle | None = None

    def run(self, loaded: Any, rows: Sequence[bytes], done: Done, explain: Explain | None = None) -> None:
        """Begins a batch."""
        within_s, answering = loaded
        took_s = self._chance.uniform(0, RUN_S_MAX)
        results = [self._result(answering, row) for row in rows]
        if self._goes_wrong():
            took_s += within_s * LATE_SHARE * self._chance.random()
        self._run = asyncio.get_running_loop().call_later(took_s, done, results)

    def _goes_wrong(self) -> bool:
        return self._temper.model_fail > 0 and self._chance.random() < self._temper.model_fail / 2

    def _result(self, answering: Answering, row: bytes) -> RowResult:
        if self._goes_wrong():
            return self._chance.choice((RowResult(failed="simulated"), RowResult((math.nan,)), RowResult()))
        try:
            return RowResult(tuple(structs.astuple(answering(unpack_row(row)))))
        except Exception as error:
            return RowResult(failed=f"{type(error).__name__}: {error}")

    def abandon(self, freed: Callable[[], None]) -> bool:
        """Leaves the batch under way behind."""
        self.close()
        return True

    def close_model(self, loaded: Any) -> None:
        """There is nothing to close."""

    def close(self) -> None:
        """Ends the batch under way."""
        if self._run is not None:
            self._run.cancel()


class SimRecords:
    """The file of the last records of versions: there after every crash, and gone with its disk."""

    name = "records"

    def __init__(self) -> None:
        self._data = b""

    def read(self) -> bytes:
        """What was written last."""
        return self._data

    def write(self, data: bytes) -> None:
        """Keeps it."""
        self._data = data


class SimRollouts(Struct, frozen=True):
    """What a machine needs to follow rollouts."""

    trust: RecordTrust
    store: MemoryStore
    records: SimRecords
    source: str


class SimModels:
    """What runs beside the host of a machine whose agents ask models."""

    def __init__(
        self,
        host: Host,
        answers: Answers,
        temper: Temper,
        chance: random.Random,
        rollouts: SimRollouts | None = None,
    ) -> None:
        models = host.declaration.models
        clock, settings = host.clock, host.settings.models
        self._versions = {cls.__model__.name: _versions_of(answers[cls]) for cls in models.values() if cls in answers}
        self._units = {
            (name, version): _unit(models[name], version, answering)
            for name, versions in self._versions.items()
            for version, answering in versions.items()
        }
        self._chance = chance
        self._rollouts = rollouts
        self._rollouts_of = host.declaration.name
        self._following: RolloutVersions | None = None
        if rollouts is not None:
            name, about = host.declaration.name, (rollouts.trust, clock, Inline())
            self._following = following = RolloutVersions(
                name, models, *about, source=rollouts.source, cache=rollouts.records
            )
            following.here = HostRollouts(host.declaration, lambda: [host])
            following.on_change = self._fetch
        self.service = ModelService(models, clock, SimEngine(temper, chance), settings, self._following)
        self._services = [self.service]
        asked: Asking = self.service
        if self._following is not None:
            others = random.Random(chance.random())
            shadowing = ShadowVersions(self._following)
            self._services.append(ModelService(models, clock, SimEngine(temper, others), settings, shadowing))
            asked = Trial(self._following, *self._services)
        for service in self._services:
            service.lost = service.have
            service.unusable.update(dict.fromkeys(models, (SIMULATED, "")))
        self._asks = asker_of(host, asked)
        self._early: list[tuple[int, Pending]] | None = None if rollouts is None else []
        """What was asked before it is known which versions answer."""
        self._fetches: list[asyncio.TimerHandle] = []
        self._load()

    @property
    def connections(self) -> Connections:
        """What the host calls."""
        return Connections(models=AskModels(self._ask, self._asks.heard))

    def _ask(self, shard: int, pending: Pending) -> None:
        if self._early is None:
            self._asks.ask(shard, pending)
        else:
            self._early.append((shard, pending))

    async def start(self) -> None:
        """Follows the store, if there are rollouts."""
        if self._following is None or self._rollouts is None:
            return
        store, bucket = self._rollouts.store, models_bucket(self._rollouts_of)
        await self._following.start(lambda: store.key_value(bucket))
        self._load()
        early, self._early = self._early or [], None
        for shard, pending in early:
            self._asks.ask(shard, pending)

    def _fetch(self) -> None:
        """Other versions are wanted. A bundle takes its time."""
        delay_s = self._chance.uniform(0, FETCH_S_MAX)
        self._fetches = [one for one in self._fetches if one.when() > asyncio.get_running_loop().time()]
        self._fetches.append(asyncio.get_running_loop().call_later(delay_s, self._load))

    def _load(self) -> None:
        """Has loaded what is wanted, and nothing else."""
        for service in self._services:
            for name, versions in self._versions.items():
                # Before a rollout says something the first one answers: others are put there when it has begun.
                begun = self._following is not None and name in self._following.records
                usable = sorted(versions, key=version_key) if begun else list(versions)[:1]
                wanted = service.versions.wanted(name, usable, ())
                for version in versions:
                    is_loaded = version in service.loaded(name)
                    if version in wanted and not is_loaded:
                        service.have(self._units[name, version])
                    elif is_loaded and version not in wanted:
                        service.drop(self._units[name, version])

    async def stop(self) -> None:
        """Answers no more."""
        if self._following is not None:
            await self._following.stop()
        await self._end()

    async def kill(self) -> None:
        """The same, and nothing of it leaves the machine."""
        if self._following is not None:
            await self._following.kill()
        await self._end()

    async def _end(self) -> None:
        for fetch in self._fetches:
            fetch.cancel()
        for service in self._services:
            service.close()
        if self._rollouts is not None:
            await self._rollouts.store.close()


def check_answers(fleet: Declaration, answers: Answers, addresses: Iterable[str]) -> None:
    """Raises ConfigError for versions that are none, and for a rollout without versions."""
    rolled = {address.removeprefix(f"{KIND}/") for address in addresses if address.startswith(f"{KIND}/")}
    for name, cls in fleet.models.items():
        versions = answers.get(cls, {})
        if isinstance(versions, Mapping):
            try:
                _ = [version_key(version) for version in versions]
            except ModelRefused as error:
                raise ConfigError(f"models={{{cls.__name__}: …}}: {error}") from None
        if name in rolled and (not isinstance(versions, Mapping) or len(versions) < 2):
            raise ConfigError(
                f"{KIND}/{name} is simulated, and models has no versions of {cls.__name__}; give a function for each: "
                f'models={{{cls.__name__}: {{"1.0.0": …, "1.1.0": …}}}}, the stable one first'
            )


def _versions_of(answers: Answering | Mapping[str, Answering]) -> Mapping[str, Answering]:
    return answers if isinstance(answers, Mapping) else {VERSION: answers}


def _unit(cls: type[Model], version: str, answering: Answering) -> LoadedVersion:
    outputs = len(cls.__model__.outputs)
    loaded = (cls.__model__.within_s, answering)
    return LoadedVersion(cls.__model__.name, version, b"", loaded, 0, tuple(range(outputs)), outputs)
