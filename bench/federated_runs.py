"""What `bench federated` trains: on everything, on each site alone, together with masks, without, and with Flower."""

from __future__ import annotations

import asyncio
import csv
import subprocess
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3
from msgspec import Struct
from msgspec.structs import replace

import stigmergy as st
import stigmergy.federated.net as net_module
from stigmergy.base.errors import ConfigError
from stigmergy.federated import (
    Learner,
    MemoryVault,
    Net,
    Participant,
    StartTraining,
    SumOpened,
    SumRound,
    TakePart,
    Trained,
    Training,
    Unmask,
    UpdateLimits,
    area_under_curve,
    training_seed,
    unmask,
)
from stigmergy.federated.messages import RoundAnswered
from stigmergy.federated.net import Floats
from stigmergy.federated.update import clipped

COLUMNS = ("PT08.S1(CO)", "PT08.S2(NMHC)", "PT08.S3(NOx)", "PT08.S4(NO2)", "PT08.S5(O3)", "T", "RH")
SHIFT = np.array([1000.0, 1000.0, 1000.0, 1500.0, 1000.0, 20.0, 50.0])
SCALE = np.array([300.0, 300.0, 300.0, 400.0, 400.0, 10.0, 20.0])
"""Agreed beforehand from the range of such sensors: sites must scale alike, and none may look at another's rows."""
LIMIT_MG_M3 = 4.0
MISSING = -200.0
BUSY = 1
"""The column that says how busy the road is; it goes with traffic most closely."""
SITES = 10
SHAPE = Net(inputs=len(COLUMNS), hidden=16)
EPOCHS = 2
"""Passes over its rows that a site makes in a round."""
LIMITS = UpdateLimits(clip_norm=1.0)
UNCLIPPED = UpdateLimits(clip_norm=1e5)
POISONED = "site-7"
POISON_FACTOR, LIE_FACTOR, GREAT_LIE_FACTOR = 100.0, 3.0, 50.0
STEP_S = 60.0
WITHIN_S = 1800.0


class Rows(Struct, frozen=True):
    """Scaled inputs, and whether the limit was passed."""

    inputs: Floats
    labels: Floats

    def of(self, chosen: Any) -> Rows:
        """Some of them."""
        return Rows(self.inputs[chosen], self.labels[chosen])


def read(path: Path) -> tuple[Rows, Rows, str]:
    """The rows to learn from in the order of time, those of every fifth day, and a digest of the file."""
    if not path.is_file():
        raise ConfigError(f"--data {path}: there is no such file; download AirQualityUCI.csv (UCI dataset 360)")
    inputs, labels, kept_back = [], [], []
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file, delimiter=";"):
            if not line["Date"]:
                continue
            told = [float(line[name].replace(",", ".")) for name in ("CO(GT)", *COLUMNS)]
            if MISSING in told:
                continue
            inputs.append(told[1:])
            labels.append(told[0] > LIMIT_MG_M3)
            kept_back.append(datetime.strptime(line["Date"], "%d/%m/%Y").timetuple().tm_yday % 5 == 0)  # noqa: DTZ007
    rows = Rows((np.array(inputs) - SHIFT) / SCALE, np.array(labels, float))
    last = np.array(kept_back)
    return rows.of(~last), rows.of(last), blake3(path.read_bytes()).hexdigest()


def made_up(count: int = 3_000) -> tuple[Rows, Rows, str]:
    """Rows with the same look: a level of gas that five sensors feel, each in its own way."""
    draw = np.random.default_rng(1)
    level = draw.normal(0, 1, count)
    felt = np.outer(level, [1.0, 1.2, -0.9, 0.7, 0.9]) + draw.normal(0, 0.4, (count, 5))
    rows = Rows(np.column_stack([felt, draw.normal(0, 1, (count, 2))]), (level > 1.2).astype(float))
    last = np.arange(count) % 5 == 0
    return rows.of(~last), rows.of(last), "made up"


def by_road(rows: Rows) -> dict[str, Rows]:
    """Sites from quiet to busy roads."""
    return _sites(rows, np.argsort(rows.inputs[:, BUSY], kind="stable"))


def by_time(rows: Rows) -> dict[str, Rows]:
    """Sites that have measured one after the other."""
    return _sites(rows, np.arange(len(rows.labels)))


def _sites(rows: Rows, order: Any) -> dict[str, Rows]:
    return {f"site-{at}": rows.of(chosen) for at, chosen in enumerate(np.array_split(order, SITES))}


class Trainers:
    """Trains for all sites; one may be poisoned."""

    def __init__(self, sites: Mapping[str, Rows], poisoned: bool = False) -> None:
        self._sites, self._poisoned = sites, poisoned

    def __call__(self, learner: str, model: Floats, seed: int) -> Trained:
        """As `Trainer` says."""
        rows, factor = self._sites[learner], 1.0
        if self._poisoned and learner == POISONED:
            rows, factor = replace(rows, labels=1.0 - rows.labels), POISON_FACTOR
        update = SHAPE.train(model, rows.inputs, rows.labels, seed=seed, epochs=EPOCHS) - model
        return Trained(update * factor, len(rows.labels))


class Liar(Participant):
    """Its code is its own: it does not clip."""

    factor = LIE_FACTOR

    def take_part(self, work: TakePart) -> RoundAnswered:
        """As `Participant` has it, with an update so many times as long as is allowed."""
        terms = work.ask.terms
        loose = replace(terms, limits=replace(terms.limits, clip_norm=self.factor * terms.limits.clip_norm))
        return super().take_part(replace(work, ask=replace(work.ask, terms=loose)))


class Outcome(Struct, frozen=True):
    """What a training of agents gave."""

    model: Floats
    improved: int
    seconds: float
    refused: int
    """Cohorts whose sum was refused."""
    sent_bytes: int
    """By one site in one round."""


async def by_agents(
    rounds: int, trainers: Trainers, limits: UpdateLimits = LIMITS, cohorts: int = 1, lie: float = 0.0
) -> Outcome:
    """A whole training on one node, in memory."""
    fleet = st.Fleet("federated", agents=[Training, SumRound, Learner])
    vault, sent_bytes, refused = MemoryVault(), 0, 0
    honest, lying = Participant(trainers, vault), Liar(trainers, vault)
    lying.factor = lie

    @fleet.worker(TakePart)
    async def take_part(order: st.Order[TakePart]) -> RoundAnswered:
        nonlocal sent_bytes
        participant = lying if lie and order.effect.learner == POISONED else honest
        answer = await asyncio.to_thread(participant.take_part, order.effect)
        sent_bytes += len(msgspec.msgpack.encode(answer)) if order.effect.learner == "site-0" else 0
        return answer

    @fleet.worker(Unmask)
    async def open_sum(order: st.Order[Unmask]) -> SumOpened:
        return await asyncio.to_thread(unmask, order.effect)

    learners = tuple(f"site-{at}" for at in range(SITES))
    start = StartTraining(
        learners=learners,
        model=SHAPE.begin(1).astype("<f8").tobytes(),
        rounds=rounds,
        cohorts=cohorts,
        limits=limits,
        step_s=STEP_S,
    )
    began_s = time.perf_counter()
    async with fleet.running(journal="memory:") as live:
        answer = await live.send("Training/t", start)
        if not answer:
            raise ConfigError(f"the training was refused: {answer}")
        async with asyncio.timeout(WITHIN_S):
            while (training := live.query("Training/t", Training)).status == "runs":  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.01)
        for number in range(training.number):
            for cohort in range(cohorts):
                refused += bool(live.query(f"Round/t.{number}.{cohort}", SumRound).reason)
    seconds = time.perf_counter() - began_s
    model = np.frombuffer(training.model, "<f8")
    return Outcome(model, training.improved, seconds, refused, sent_bytes // max(1, training.number))


def averaged(rounds: int, trainers: Trainers, sites: Mapping[str, Rows]) -> Floats:
    """The same rounds without masks: anybody who looks sees every update."""
    model = SHAPE.begin(1)
    for number in range(rounds):
        moved, weight = np.zeros_like(model), 0
        for name in sites:
            trained = trainers(name, model, training_seed(f"t.{number}.0", name))
            moved, weight = moved + trained.weight * clipped(trained.update, LIMITS.clip_norm), weight + trained.weight
        model = model + moved / weight
    return model


def with_flower(python: Path, rounds: int, sites: Mapping[str, Rows]) -> Floats:
    """What Flower's server makes of the same sites and seeds."""
    given: dict[str, Any] = {
        "inputs": SHAPE.inputs,
        "hidden": SHAPE.hidden,
        "sites": len(sites),
        "clip_norm": LIMITS.clip_norm,
        "epochs": EPOCHS,
        "model": SHAPE.begin(1),
    }
    for at, (name, rows) in enumerate(sites.items()):
        given[f"rows_{at}"], given[f"labels_{at}"] = rows.inputs, rows.labels
        seeds = [training_seed(f"t.{number}.0", name) for number in range(rounds)]
        given[f"seeds_{at}"] = np.array(seeds, np.uint64)
    script = Path(__file__).parent / "contestants" / "flower_average.py"
    with tempfile.TemporaryDirectory() as folder:
        told, result = Path(folder) / "told.npz", Path(folder) / "result.npy"
        np.savez(told, **given)
        command = [str(python), str(script), str(net_module.__file__), str(told), str(result)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ConfigError(f"--flower {python}: {done.stderr.strip()[-500:]}")
        found: Floats = np.load(result)
    return found


def measure(data: Path | None, flower: Path | None, rounds: int) -> dict[str, Any]:
    """The figures of the benchmark."""
    learned, kept_back, digest = read(data) if data else made_up()

    def area(model: Floats) -> float:
        return round(area_under_curve(kept_back.labels, SHAPE.predict(model, kept_back.inputs)), 4)

    def alone(rows: Rows) -> float:
        epochs = rounds * EPOCHS
        return area(SHAPE.train(SHAPE.begin(1), rows.inputs, rows.labels, seed=1, epochs=epochs))

    sites = by_road(learned)
    trainers, poisoned = Trainers(sites), Trainers(sites, poisoned=True)
    areas = [alone(rows) for rows in sites.values()]
    together = asyncio.run(by_agents(rounds, trainers))
    plain = averaged(rounds, trainers, sites)
    peer = with_flower(flower, rounds, sites) if flower else None
    unclipped = asyncio.run(by_agents(rounds, poisoned, UNCLIPPED))
    bounded = asyncio.run(by_agents(rounds, poisoned))
    lied = asyncio.run(by_agents(rounds, poisoned, lie=LIE_FACTOR))
    cohorts = asyncio.run(by_agents(rounds, poisoned, lie=GREAT_LIE_FACTOR, cohorts=2))
    blocks = by_time(learned)
    block_areas = [alone(rows) for rows in blocks.values()]
    return {
        "rows": len(learned.labels),
        "rows_kept_back": len(kept_back.labels),
        "data_digest": digest,
        "over_the_limit": round(float(learned.labels.mean()), 4),
        "rounds": rounds,
        "sites": SITES,
        "sites_without_a_positive": sum(not rows.labels.any() for rows in sites.values()),
        "weights": SHAPE.weights_count,
        "all_auc": (everything := alone(learned)),
        "site_mean_auc": round(float(np.mean(areas)), 4),
        "site_worst_auc": min(areas),
        "site_best_auc": max(areas),
        "federated_auc": area(together.model),
        "federated_behind_all": round(everything - area(together.model), 4),
        "rounds_improved": together.improved,
        "plain_auc": area(plain),
        "plain_differs_max": float(np.abs(plain - together.model).max()),
        "flower_auc": None if peer is None else area(peer),
        "flower_differs_max": None if peer is None else float(np.abs(peer - together.model).max()),
        "poisoned_unclipped_auc": area(unclipped.model),
        "poisoned_auc": area(bounded.model),
        "liar_auc": area(lied.model),
        "liar_rounds_refused": lied.refused,
        "great_liar_in_cohorts_auc": area(cohorts.model),
        "great_liar_in_cohorts_refused": cohorts.refused,
        "by_time_site_mean_auc": round(float(np.mean(block_areas)), 4),
        "by_time_site_worst_auc": min(block_areas),
        "by_time_federated_auc": area(asyncio.run(by_agents(rounds, Trainers(blocks))).model),
        "round_s": round(together.seconds / rounds, 4),
        "sent_bytes_per_site_and_round": together.sent_bytes,
    }
