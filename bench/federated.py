"""Federated learning on the air of an Italian city: ten sites, of which each alone learns little.

The task is to say from five metal-oxide sensors, temperature and humidity whether carbon monoxide is over 4 mg/m3, as a
reference analyser beside them says. The rows of four days in five are divided among ten sites, by how busy the road is
(by one of the sensors); every fifth day is kept back, and each AUC is on those days. `--data` takes AirQualityUCI.csv
as it is downloaded: S. De Vito et al., Sensors and Actuators B 129 (2008), UCI dataset 360, CC BY 4.0. Without it rows
are made up, which shows that it runs.

Federated learning runs as agents on one node in memory. Plain averaging has the same rows, seeds and clipping and no
masks. `--flower PYTHON` names an interpreter that has `flwr`: its FedAvg averages in the same run. A poisoned site has
its labels turned around and an update 100 times too long; a liar sends one three times as long as
the clip on purpose, a great liar one fifty times as long, in one of two cohorts.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.charts import Bar, Bars, Chart
from bench.options import add_common
from bench.targets import Target
from stigmergy.base.errors import ConfigError

ROUNDS = 20
TARGETS = (Target("federated_behind_all", "AUC that federated learning is behind training on all rows", 0.01),)
SHOWN = ("all", "site_mean", "site_worst", "federated", "flower", "poisoned_unclipped", "poisoned", "liar")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench federated`."""
    add_common(parser)
    parser.add_argument("--data", metavar="FILE", type=Path, help="AirQualityUCI.csv; without it rows are made up")
    parser.add_argument("--flower", metavar="PYTHON", type=Path, help="an interpreter that has flwr, to compare with")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds of each training (default: {ROUNDS})")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """AUCs, differences and sizes by name."""
    if find_spec("numpy") is None:
        raise ConfigError('federated learning needs numpy: pip install "stigmergy[onnx]"')
    from bench.federated_runs import measure

    if arguments.flower is None:
        print("NOT MEASURED: flower; give --flower PYTHON of an environment with `pip install flwr`", file=sys.stderr)
    return measure(arguments.data, arguments.flower, 3 if arguments.quick else arguments.rounds)


def charts(figures: dict[str, Any]) -> list[Chart]:
    """How good each model is."""
    bars = [
        Bar(name.replace("_", " "), area, ours=name == "federated")
        for name in SHOWN
        if (area := figures[f"{name}_auc"]) is not None
    ]
    return [Bars("area under the curve on days kept back", "AUC", bars)]
