"""Trains the detector: `python -m apps.city.train AirQualityUCI.csv --key signer.key` writes a signed bundle.

The data: De Vito, Massera, Piga, Martinotto, Di Francia, *On field calibration of an electronic nose for benzene
estimation in an urban pollution monitoring scenario*, Sensors and Actuators B 129 (2008); UCI Machine Learning
Repository, Air Quality, dataset 360, CC BY 4.0. Hourly means of five metal-oxide sensors at road level in an Italian
city, beside reference analysers, March 2004 to April 2005. The file itself is not in this repository.

The question: from `STEPS` readings of the raw channels, temperature and humidity, is carbon monoxide over 4 mg/m3 (the
24-hour guideline of the WHO, 2021), or nitrogen dioxide over 200 ug/m3 (the hourly limit value of directive 2008/50/EC
and the 1-hour guideline of the WHO)? Time splits the hours in three: the first 56 % train, the next 14 % choose decay,
noise and weights (`GRID`), and the last 30 % judge, once: a random split would put neighbouring hours on both sides and
flatter the result, and so would a choice on the hours that judge. The net that is packed trains on the first 70 %.

The same seed, data and numpy give the same weights. Over-limit hours are few, so they weigh more (`WEIGHTS`): a
probability is that of a balanced city, not a frequency.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from apps.city.layouts import CHANNELS, READING, RULE, STEPS
from apps.city.plan import City, kind_of
from apps.city.readings import Readings, leak_factors, plan_leaks
from apps.city.rules import SUSPICIOUS

LIMITS = (4.0, 200.0)
"""CO in mg/m3, NO2 in ug/m3."""
OUTPUTS = ("co", "no2")
COLUMNS = ("PT08.S1(CO)", "PT08.S2(NMHC)", "PT08.S3(NOx)", "PT08.S4(NO2)", "PT08.S5(O3)", "T", "RH")
REFERENCE = ("CO(GT)", "NO2(GT)")
MISSING = -200.0
PARTS = (0.56, 0.70)
"""Hours before the first share of all train, those before the second validate, the others judge."""
JUDGES = len(PARTS)
HIDDEN = (32, 16)
EPOCHS, BATCH, RATE = 40, 64, 1e-3
SEEDS_COUNT = 3
"""So many nets are tried for each choice: one alone is lucky or not."""
OPSET = 17
LEAK_HOURS, LEAKS = 6, 200
VERSION = "1.1.0"
LICENCE = "Apache-2.0; trained on data under CC BY 4.0"
MODELS = Path(__file__).parent / "models"

Floats = NDArray[np.float64]


class Choice(Struct, frozen=True):
    """What the validation months choose."""

    decay: float
    noise: float
    """On the standardised inputs: stands for drift."""
    weights: tuple[float, ...]
    """Of hours over the limit, by output."""


GRID = [
    Choice(decay, noise, weights)
    for decay in (1e-3, 1e-2, 3e-2)
    for noise in (0.0, 0.1, 0.2)
    for weights in ((1.0, 1.0), (3.0, 8.0), (5.0, 15.0))
]


class Data(Struct, frozen=True):
    """Windows in the order of time, with what the reference analysers said at their end."""

    windows: Floats
    """[window][step * channel]"""
    over: Floats
    """[window][output]: 1 over the limit."""
    known: Floats
    """[window][output]: 1 where the analyser worked."""
    hours: NDArray[np.int64]
    """The row of the window's last hour."""
    part: NDArray[np.int64]
    """0 trains, 1 validates, 2 judges; -1 for a window with hours of two parts, which is left out."""
    digest: str


def read_data(path: Path) -> Data:
    """Reads the file as it is downloaded: `;` between fields, decimal commas, -200 for missing, empty lines."""
    raw = path.read_bytes()
    rows = list(csv.DictReader(raw.decode("ascii").splitlines(), delimiter=";"))
    wanted = [[row[name] for name in (*COLUMNS, *REFERENCE)] for row in rows if row["Date"]]
    table = np.array([[float(text.replace(",", ".")) for text in row] for row in wanted])
    table[table == MISSING] = np.nan
    channels, reference = table[:, : len(COLUMNS)], table[:, len(COLUMNS) :]
    ends = [end for end in range(STEPS - 1, len(table)) if not np.isnan(channels[end - STEPS + 1 : end + 1]).any()]
    windows = np.array([channels[end - STEPS + 1 : end + 1].ravel() for end in ends])
    hours = np.array(ends)
    known = (~np.isnan(reference[hours])).astype(float)
    over = (np.nan_to_num(reference[hours]) > np.array(LIMITS)).astype(float) * known
    digest = hashlib.sha256(raw).hexdigest()
    ends_of = [int(len(table) * share) for share in PARTS]
    first, last = (np.searchsorted(ends_of, hour, side="right") for hour in (hours - STEPS + 1, hours))
    return Data(windows, over, known, hours, np.where(first == last, last, -1), digest)


class Net(Struct):
    """Standardises, then dense layers with ReLU; the last one gives logits."""

    mean: Floats
    spread: Floats
    weights: list[Floats]
    biases: list[Floats]

    def layers(self, inputs: Floats) -> list[Floats]:
        """The standardised inputs, what each hidden layer says, and the probabilities."""
        found = [inputs]
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            found.append(np.maximum(found[-1] @ weight + bias, 0.0))
        return [*found, 1.0 / (1.0 + np.exp(-(found[-1] @ self.weights[-1] + self.biases[-1])))]

    def answer(self, windows: Floats) -> Floats:
        """Probabilities, [window][output]."""
        return self.layers((windows - self.mean) / self.spread)[-1]


def fit(data: Data, use: NDArray[np.bool_], choice: Choice, seed: int, epochs: int = EPOCHS) -> Net:
    """Adam on the weighted cross-entropy of some windows."""
    chance = np.random.default_rng(seed)
    windows, over, known = (one[use] for one in (data.windows, data.over, data.known))
    sizes = (windows.shape[1], *HIDDEN, len(OUTPUTS))
    pairs = list(itertools.pairwise(sizes))
    net = Net(
        windows.mean(axis=0),
        windows.std(axis=0),
        [chance.normal(0.0, np.sqrt(2.0 / one), (one, two)) for one, two in pairs],
        [np.zeros(two) for _, two in pairs],
    )
    standard = (windows - net.mean) / net.spread
    slopes = [np.zeros_like(one) for one in (*net.weights, *net.biases)]
    squares = [np.zeros_like(one) for one in slopes]
    step = 0
    for _ in range(epochs):
        order = chance.permutation(len(standard))
        for first in range(0, len(order), BATCH):
            some = order[first : first + BATCH]
            noisy = standard[some] + chance.normal(0.0, choice.noise, (len(some), sizes[0]))
            step += 1
            for place, slope in enumerate(_slopes(net, choice, noisy, over[some], known[some])):
                slopes[place] = 0.9 * slopes[place] + 0.1 * slope
                squares[place] = 0.999 * squares[place] + 0.001 * slope**2
                mean = slopes[place] / (1.0 - 0.9**step)
                change = RATE * mean / (np.sqrt(squares[place] / (1.0 - 0.999**step)) + 1e-8)
                (net.weights + net.biases)[place][...] -= change
    return net


def _slopes(net: Net, choice: Choice, inputs: Floats, over: Floats, known: Floats) -> list[Floats]:
    """Those of the weights, then those of the biases."""
    layers = net.layers(inputs)
    wrong = (layers[-1] - over) * known * np.where(over > 0, np.array(choice.weights), 1.0) / len(inputs)
    weights: list[Floats] = []
    biases: list[Floats] = []
    for place in range(len(net.weights) - 1, -1, -1):
        weights.insert(0, layers[place].T @ wrong + choice.decay * net.weights[place])
        biases.insert(0, wrong.sum(axis=0))
        wrong = (wrong @ net.weights[place].T) * (layers[place] > 0)
    return weights + biases


def choose(data: Data, seed: int, grid: Sequence[Choice], epochs: int = EPOCHS) -> tuple[Choice, list[float]]:
    """The choice with the best F1 of both gases on the validation months, trained on the months before; and all of
    them, in the order of the grid. Nothing here has seen the months that judge. F1 is that of alarms, over `SUSPICIOUS`
    as gateways have it: by AUC the best net may never be so sure."""
    scores = []
    for choice in grid:
        nets = [fit(data, data.part == 0, choice, seed + number, epochs) for number in range(SEEDS_COUNT)]
        scores.append(float(np.mean([_validated(data, net.answer(data.windows)) for net in nets])))
    return grid[int(np.argmax(scores))], scores


def _validated(data: Data, answers: Floats) -> float:
    found: list[float] = []
    for place in range(len(OUTPUTS)):
        use = (data.part == 1) & (data.known[:, place] > 0)
        truth, said = data.over[use, place] > 0, answers[use, place] > SUSPICIOUS
        found.append(2.0 * float((said & truth).sum()) / float(said.sum() + truth.sum()))
    return float(np.mean(found))


# ---------------------------------------------------------------------- how good it is


def auc_of(scores: Floats, truth: NDArray[np.bool_]) -> float:
    """The chance that an hour over the limit has a higher score than one that is not; ties count half."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[places]
    positive = int(truth.sum())
    return float((ranks[truth].sum() - positive * (positive + 1) / 2) / (positive * (len(truth) - positive)))


def judge(data: Data, answers: Floats) -> dict[str, float]:
    """On the later months: AUC, precision and recall of the net and of the threshold rule."""
    found: dict[str, float] = {}
    for place, output in enumerate(OUTPUTS):
        use = (data.part == JUDGES) & (data.known[:, place] > 0)
        truth, score = data.over[use, place] > 0, answers[use, place]
        channel, limit = RULE[output]
        rule = data.windows[use][:, (STEPS - 1) * len(CHANNELS) + CHANNELS.index(channel)]
        found |= {f"{output}_auc": auc_of(score, truth), f"{output}_rule_auc": auc_of(rule, truth)}
        for name, said in ((output, score > SUSPICIOUS), (f"{output}_rule", rule > limit)):
            hits = float((said & truth).sum())
            found |= {f"{name}_precision": hits / max(said.sum(), 1), f"{name}_recall": hits / truth.sum()}
    return found


def lead_of(data: Data, net: Net, seed: int) -> dict[str, float]:
    """Leaks are put into later hours that were under both limits, and grow over `LEAK_HOURS` steps: how many of them
    the net and the rule notice while they grow, and how many steps earlier the net does where both do."""
    chance, width = np.random.default_rng(seed), len(CHANNELS)
    calm = np.flatnonzero((data.part == JUDGES) & (data.known.min(axis=1) > 0) & (data.over.max(axis=1) == 0))
    quiet = calm[(net.answer(data.windows[calm]) < SUSPICIOUS).all(axis=1)]
    found: dict[str, float] = {}
    for place, output in enumerate(OUTPUTS):
        channel, limit = RULE[output]
        noticed: list[tuple[float, float]] = []
        for start in chance.choice(quiet, LEAKS):
            clean = data.windows[start].reshape(STEPS, width)[-1]
            steps = np.array([clean * leak_factors(output, min(n / LEAK_HOURS, 1.0)) for n in range(1 - STEPS, 10)])
            windows = np.array([steps[n : n + STEPS].ravel() for n in range(len(steps) - STEPS + 1)])
            by_net = net.answer(windows)[:, place] > SUSPICIOUS
            by_rule = windows[:, -width + CHANNELS.index(channel)] > limit
            noticed.append(tuple(float(np.argmax(one)) if one.any() else np.inf for one in (by_net, by_rule)))  # type: ignore[arg-type]
        both = [rule - own for own, rule in noticed if np.isfinite((own, rule)).all()]
        found |= {
            f"{output}_leaks_noticed": float(np.mean([np.isfinite(own) for own, _ in noticed])),
            f"{output}_leaks_noticed_by_rule": float(np.mean([np.isfinite(rule) for _, rule in noticed])),
            f"{output}_lead_steps": float(np.mean(both)) if both else 0.0,
        }
    return found


# ---------------------------------------------------------------------- the file


def onnx_of(net: Net) -> bytes:
    """The net as ONNX, with its standardisation: raw numbers in, probabilities out, in float32."""
    from onnx import TensorProto, checker, helper, numpy_helper

    def constant(name: str, value: Floats) -> Any:
        return numpy_helper.from_array(np.asarray(value, dtype=np.float32), name)

    constants = [constant("mean", net.mean), constant("spread", net.spread)]
    nodes = [helper.make_node("Sub", ["readings", "mean"], ["shifted"])]
    nodes.append(helper.make_node("Div", ["shifted", "spread"], ["layer0"]))
    last = len(net.weights) - 1
    for place, (weight, bias) in enumerate(zip(net.weights, net.biases, strict=True)):
        constants += [constant(f"weight{place}", weight), constant(f"bias{place}", bias)]
        nodes += [
            helper.make_node("MatMul", [f"layer{place}", f"weight{place}"], [f"product{place}"]),
            helper.make_node("Add", [f"product{place}", f"bias{place}"], [f"sum{place}"]),
            helper.make_node(
                "Sigmoid" if place == last else "Relu",
                [f"sum{place}"],
                ["probabilities" if place == last else f"layer{place + 1}"],
            ),
        ]
    graph = helper.make_graph(
        nodes,
        "gas-alarm",
        [helper.make_tensor_value_info("readings", TensorProto.FLOAT, ["rows", STEPS * len(CHANNELS)])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["rows", len(OUTPUTS)])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="apps.city.train")
    model.ir_version = 10
    checker.check_model(model)
    return bytes(model.SerializeToString())


def examples_of(seed: int) -> NDArray[np.float32]:
    """Synthetic windows to be recorded in the bundle: the data itself stays out of it."""
    city = City(sensors=40, gateways=1)
    leaks = plan_leaks(city, seed, count=2, steps=24, first=2)
    readings = Readings(city, city.districts(), seed, leaks)
    said: dict[str, list[list[float]]] = {}
    for step in range(24):
        for sensor, payload in readings.at(step):
            if kind_of(sensor) == "gas":
                values = READING.read(payload)
                said.setdefault(sensor, []).append([values[channel] for channel in CHANNELS])
    windows = [np.ravel(rows[end - STEPS : end]) for rows in said.values() for end in range(STEPS, 24, 3)]
    return np.array(windows, dtype=np.float32)


def bundle(folder: Path, figures: dict[str, float], notes: dict[str, str], options: argparse.Namespace) -> int:
    """Has the model packed and signed, checked, and quantised to see what that costs; the exit code. The public half of
    the key goes beside it, for gateways to trust."""
    packed = options.out / f"gas-alarm-{VERSION}.model"
    packed.unlink(missing_ok=True)
    told = [f"--metric={name}={value}" for name, value in figures.items()]
    told += [f"--note={name}={text}" for name, text in notes.items()]
    key = ("--key", str(options.key))
    commands = (
        ("pack", str(folder / "gas-alarm.onnx"), "--name", "gas-alarm", "--version", VERSION, "--out", str(packed)),
        ("check", str(packed)),
        ("quantise", str(packed), "--examples", str(folder / "judged.npz"), "--out", str(folder / "int8.model")),
    )
    more = (
        (
            *("--inputs", ",".join(CHANNELS), "--steps", str(STEPS), "--outputs", ",".join(OUTPUTS), *told, *key),
            *("--examples", str(folder / "synthetic.npz"), "--licence", LICENCE),
        ),
        (),
        key,
    )
    for command, rest in zip(commands, more, strict=True):
        (folder / "int8.model").unlink(missing_ok=True)
        ended = subprocess.run([sys.executable, "-m", "stigmergy", "model", *command, *rest], check=False)
        if ended.returncode:
            return ended.returncode
    shown = subprocess.run(
        [sys.executable, "-m", "stigmergy", "keys", "show", str(options.key)],
        check=True,
        capture_output=True,
        text=True,
    )
    (options.out / "signer.pub").write_text(shown.stdout, encoding="ascii")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Trains, judges, packs. Prints the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m apps.city.train", description=__doc__)
    parser.add_argument("data", type=Path, help="AirQualityUCI.csv, as it is downloaded")
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--key", type=Path, help="the private key that signs the bundle; without it nothing is packed")
    parser.add_argument("--out", type=Path, default=MODELS, help="the folder that gets the bundle")
    options = parser.parse_args(arguments)
    data = read_data(options.data)
    choice, scores = choose(data, options.seed, GRID, options.epochs)
    net = fit(data, (data.part >= 0) & (data.part < JUDGES), choice, options.seed, options.epochs)
    answers = net.answer(data.windows)
    found = judge(data, answers) | lead_of(data, net, options.seed)
    figures = {key: round(value, 4) for key, value in found.items()}
    notes = {"seed": str(options.seed), "data-sha256": data.digest, "limits": "CO 4 mg/m3, NO2 200 ug/m3"}
    notes["data"] = "UCI Air Quality (De Vito et al. 2008), CC BY 4.0; trained on the first 70 % of the hours"
    notes["chosen"] = f"decay {choice.decay:g}, noise {choice.noise:g}, weights {choice.weights}, on hours 56 to 70 %"
    figures |= {"validated_f1": round(max(scores), 4), "validated_f1_worst": round(min(scores), 4)}
    with tempfile.TemporaryDirectory(prefix="stigmergy-train-") as place:
        folder = Path(place)
        (folder / "gas-alarm.onnx").write_bytes(model := onnx_of(net))
        judged = (data.part == JUDGES) & (data.known.min(axis=1) > 0)
        np.savez(folder / "judged.npz", inputs=data.windows[judged].astype(np.float32), outputs=data.over[judged])
        np.savez(folder / "synthetic.npz", inputs=examples_of(options.seed))
        print(json.dumps({"onnx_bytes": len(model), **notes, **figures}, indent=1))
        return bundle(folder, figures, notes, options) if options.key else 0


if __name__ == "__main__":
    sys.exit(main())
