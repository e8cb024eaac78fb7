"""A fleet with a gas sensor, and bundles of its model whose answers can be worked out by hand."""

from __future__ import annotations

from pathlib import Path

import stigmergy as st
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.models.bundle import Manifest, ModelClass, write_bundle
from stigmergy.models.forest import Forest, Tree, write_forest

SIGNER = Ed25519Signer(bytes(range(32)))


class GasLevelSampled(st.Event, raw=True):
    """What a sensor of this fleet measures; it stays on its device."""

    co: float


class GasLevel(st.Model, name="gas-level", within_s=60.0):
    """How likely it is that there is too much."""

    risk: float

    @classmethod
    def fallback(cls, inputs: st.Inputs) -> GasLevel:
        return cls(risk=0.0)


class GasLevelHigh(st.Event):
    """Too much, says the model."""

    version: str
    because: st.ModelSource


class GasLevelHandled(st.Event):
    """An answer was dealt with."""

    version: str
    arm: str
    alarmed: bool
    fallback: str = ""


class Reinspected(st.Event):
    """Somebody has looked again: there was nothing."""


class GasSensor(st.Agent, kind="GasSensor"):
    """Alarms where the model says so, and knows that 10 is the limit in truth."""

    recent: st.Window[GasLevelSampled] = st.Window.last(4)
    answers: int = 0
    alarms: int = 0
    version: str = ""
    arm: str = ""
    suspected: st.ModelSource | None = None

    @st.react
    def look(self, event: GasLevelSampled) -> st.Effects:
        yield GasLevel.ask([event.co])

    @st.decide
    def alarm(self, result: st.Inferred[GasLevel]) -> st.Events:
        alarmed = result.answer.risk > 0.5
        source = result.source
        if alarmed:
            yield GasLevelHigh(version=source.version, because=source)
        yield GasLevelHandled(version=source.version, arm=source.arm, alarmed=alarmed, fallback=source.fallback)

    @st.evolve
    def handled(self, event: GasLevelHandled) -> None:
        self.answers += 1
        self.alarms += event.alarmed
        self.version, self.arm = event.version, event.arm

    @st.evolve
    def alarmed(self, event: GasLevelHigh) -> None:
        self.suspected = event.because

    @st.react
    def judge_again(self, event: Reinspected) -> st.Effects:
        if self.suspected is not None:
            yield GasLevel.judged(self.suspected, right=False)

    @st.react
    def judge(self, result: st.Inferred[GasLevel]) -> st.Effects:
        if result.answer.risk > 0.5:
            newest = self.recent.values[-1].co
            yield GasLevel.judged(result.source, right=newest > 10)


def gas_fleet(**options: object) -> st.Fleet:
    """The fleet."""
    return st.Fleet("gas", agents=[GasSensor, st.ModelRollout], **options)  # type: ignore[arg-type]


def bundle(version: str, limit: float, *, signer: Ed25519Signer | None = SIGNER, name: str = "gas-level") -> bytes:
    """A model that answers 1.0 above the limit, else 0.0."""
    tree = Tree(
        feature=(0, -1, -1), threshold=(limit, 0.0, 0.0), left=(1, 0, 0), right=(2, 0, 0), value=(0.0, 0.0, 1.0)
    )
    manifest = Manifest(
        name=name,
        version=version,
        runtime="forest",
        model_class=ModelClass.TINY,
        inputs=("co",),
        outputs=("risk",),
        licence="CC0-1.0",
    )
    return write_bundle(manifest, write_forest(Forest(trees=(tree,))), signer)


def put_bundle(folder: Path, version: str, limit: float, **options: object) -> Path:
    """The same as a file in a folder of bundles."""
    folder.mkdir(exist_ok=True)
    path = folder / f"gas-level-{version}.model"
    path.write_bytes(bundle(version, limit, **options))  # type: ignore[arg-type]
    return path
