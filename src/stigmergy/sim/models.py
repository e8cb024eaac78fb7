"""The models of a simulated node: functions of the test in the place of bundles, in virtual time, with faults.

The service is that of a real node, with its queue, deadlines and rules. Where a test gives no function for a model, its
rule answers.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import structs

from stigmergy.app.models import asker_of
from stigmergy.models.engine import Done, Explain, RowResult
from stigmergy.models.model import SIMULATED, Inputs, Model
from stigmergy.models.runtime import unpack_row
from stigmergy.models.service import LoadedVersion, ModelService
from stigmergy.node.host import Connections, Host
from stigmergy.sim.devices import Temper

Answering = Callable[[Inputs], Model]
"""What a model answers to these inputs: a pure function."""
VERSION = "simulated"
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


class SimModels:
    """What runs beside the host of a machine whose agents ask models."""

    def __init__(
        self, host: Host, answers: Mapping[type[Model], Answering], temper: Temper, chance: random.Random
    ) -> None:
        models = host.declaration.models
        self.service = ModelService(models, host.clock, SimEngine(temper, chance), host.settings.models)
        self.service.lost = self.service.have
        for name, cls in models.items():
            outputs = len(cls.__model__.outputs)
            loaded = (cls.__model__.within_s, answers.get(cls))
            self.service.unusable[name] = (SIMULATED, "")
            if cls in answers:
                self.service.have(LoadedVersion(name, VERSION, b"", loaded, 0, tuple(range(outputs)), outputs))
        self._ask = asker_of(host, self.service)

    @property
    def connections(self) -> Connections:
        """What the host calls."""
        return Connections(models=self._ask)

    async def start(self) -> None:
        """Nothing is loaded."""

    async def stop(self) -> None:
        """Answers no more."""
        self.service.close()

    async def kill(self) -> None:
        """The same: nothing of it leaves the machine."""
        self.service.close()
