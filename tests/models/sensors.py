"""A fleet that asks a model, bundles for it, and a runtime that fails as its inputs tell it to."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import stigmergy as st
from stigmergy.base.errors import ModelFailed
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.models.bundle import Bundle, Example, Manifest, ModelClass, write_bundle
from stigmergy.models.forest import Forest, Tree, write_forest
from stigmergy.models.runtime import pack_row, unpack_row

SIGNER = Ed25519Signer(bytes(range(32)))
KEY = SIGNER.public_key.hex()
WITHIN_S = 60.0
"""A machine that has no time for a thread must not make a model late, nor make it hang."""
PATIENT = st.Settings(models=st.ModelSettings(hung_s=3_600))


class GasAlarm(st.Model, name="gas-alarm", within_s=WITHIN_S):
    co: float
    no2: float

    @classmethod
    def fallback(cls, inputs: st.Inputs) -> GasAlarm:
        return cls(co=float(inputs[0] > 1500), no2=0.25)


class Sampled(st.Event):
    co: float
    nox: float = 0.0


class GasJudged(st.Event):
    co: float
    version: str
    fallback: str


class GasLost(st.Event):
    reason: str


class GasSensor(st.Agent):
    window: st.Window[Sampled] = st.Window.last(2)
    answers: st.Window[st.Inferred[GasAlarm]] = st.Window.last(16)
    judged: int = 0
    co: float = -1.0
    version: str = ""
    fallback: str = ""
    lost: str = ""

    @st.react
    def look(self, event: Sampled) -> st.Effects:
        if len(self.window) == 2:
            yield GasAlarm.ask(self.window, "co", "nox")

    @st.decide
    def judge(self, result: st.Inferred[GasAlarm]) -> st.Events:
        yield GasJudged(co=result.answer.co, version=result.source.version, fallback=result.source.fallback)

    @st.evolve
    def judge_seen(self, event: GasJudged) -> None:
        self.judged += 1
        self.co = event.co
        self.version = event.version
        self.fallback = event.fallback

    @st.decide
    def lose(self, event: st.WorkFailed) -> st.Events:
        yield GasLost(reason=event.reason)

    @st.evolve
    def lose_seen(self, event: GasLost) -> None:
        self.lost = event.reason


class HeadCount(st.Model, within_s=WITHIN_S):
    heads: float


class Counter(st.Agent):
    """Asks a model that has no rule."""

    heads: float = -1.0
    lost: str = ""

    @st.react
    def look(self, event: Sampled) -> st.Effects:
        yield HeadCount.ask([event.co, 0, 0, 0])

    @st.evolve
    def counted(self, result: st.Inferred[HeadCount]) -> None:
        self.heads = result.answer.heads

    @st.evolve
    def not_counted(self, event: st.WorkFailed) -> None:
        self.lost = event.reason


def manifest(version: str = "1.0.0", *, runtime: str = "forest", co: float = 0.5) -> Manifest:
    """Two steps of co and nox; the recorded answer to all zeros is `co`."""
    example = Example(pack_row([0.0] * 4), (0.125, co, 0.0))
    return Manifest(
        name="gas-alarm",
        version=version,
        runtime=runtime,
        model_class=ModelClass.TINY,
        inputs=("co", "nox"),
        steps=2,
        outputs=("nothing", "co", "no2"),
        examples=(example,),
    )


def forest_payload(co: float = 0.5) -> bytes:
    tree = Tree((0, -1, -1), (100.0, 0.0, 0.0), (1, 0, 0), (2, 0, 0), (0.0, 0.0, 0.25), output=1)
    return write_forest(Forest((tree,), (0.125, co, 0.0)))


def bundle(version: str = "1.0.0", *, co: float = 0.5, signer: Ed25519Signer | None = SIGNER) -> bytes:
    """A forest that answers `co` for an oldest reading up to 100, and 0.25 more above."""
    return write_bundle(manifest(version, co=co), forest_payload(co), signer)


def moody_bundle(version: str = "1.0.0") -> bytes:
    return write_bundle(manifest(version, runtime="moody"), b"moody", SIGNER)


def put(folder: Path, data: bytes, version: str = "1.0.0") -> Path:
    path = folder / f"gas-alarm-{version}.model"
    beside = folder / "coming"
    beside.write_bytes(data)
    beside.rename(path)
    return path


RAISE, NAN, SHORT, HANG = 901.0, 902.0, 903.0, 904.0
"""What the first input tells the runtime to do."""
let_go = threading.Event()
"""Set, and hanging threads come back."""
batches: list[int] = []
"""The sizes of the batches that were run."""


class MoodyModel:
    """Answers 0.5, or fails as its first input says."""

    memory_bytes = 1000

    def run(self, rows: Sequence[bytes]) -> list[tuple[float, ...]]:
        batches.append(len(rows))
        return [self._answer(unpack_row(row)[0]) for row in rows]

    def _answer(self, mood: float) -> tuple[float, ...]:
        if mood == RAISE:
            raise ModelFailed("a bad mood")
        if mood == HANG:
            let_go.wait(60)
        return (0.125, math.nan if mood == NAN else 0.5, 0.0)[: 1 if mood == SHORT else 3]

    def close(self) -> None:
        pass


class MoodyRuntime:
    name = "moody"

    def load(self, bundle: Bundle, threads: int = 1) -> MoodyModel:
        return MoodyModel()


def make_runtime() -> MoodyRuntime:
    return MoodyRuntime()


def fleet(**options: object) -> st.Fleet:
    return st.Fleet("gas", agents=[GasSensor], **{"settings": PATIENT, **options})  # type: ignore[arg-type]


replayed = fleet()


async def sample(live: st.Live, *readings: float, agent: str = "GasSensor/g1") -> None:
    for co in readings:
        await live.observe(agent, Sampled(co=co))


def judged(live: st.Live, agent: str = "GasSensor/g1") -> GasSensor:
    found = live.query(agent)
    assert isinstance(found, GasSensor)
    return found


async def until(holds: Callable[[], bool]) -> None:
    """Waits, as long as only a broken program takes."""
    async with asyncio.timeout(120):
        while not holds():  # noqa: ASYNC110 - it may be true of another process
            await asyncio.sleep(0.005)
