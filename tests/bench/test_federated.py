"""`bench federated` trains all that it compares, on made-up rows; and reads the file as it is downloaded."""

import argparse
import sys
from pathlib import Path

import pytest

from bench.federated import charts, run
from bench.federated_runs import read
from stigmergy.base.errors import ConfigError

HEAD = (
    "Date;Time;CO(GT);PT08.S1(CO);NMHC(GT);C6H6(GT);PT08.S2(NMHC);NOx(GT);PT08.S3(NOx);NO2(GT);PT08.S4(NO2);"
    "PT08.S5(O3);T;RH;AH;;"
)


def test_all_is_trained_and_masks_change_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    figures = run(argparse.Namespace(quick=True, data=None, flower=None, rounds=20))
    assert figures["rounds_improved"] == 3
    assert figures["plain_differs_max"] < 1e-6
    assert figures["federated_auc"] > figures["site_mean_auc"]
    assert figures["poisoned_auc"] > figures["poisoned_unclipped_auc"]
    assert figures["great_liar_in_cohorts_refused"] == 3
    assert figures["flower_auc"] is None
    assert "NOT MEASURED: flower" in capsys.readouterr().err
    assert charts(figures)


def test_the_file_is_read_as_it_is_downloaded(tmp_path: Path) -> None:
    lines = [
        HEAD,
        "10/03/2004;18.00.00;4,6;1360;150;11,9;1046;166;1056;113;1692;1268;13,6;48,9;0,7578;;",
        "11/03/2004;19.00.00;2;1292;112;9,4;955;103;1174;92;1559;972;13,3;47,7;0,7255;;",
        "11/03/2004;20.00.00;-200;1292;112;9,4;955;103;1174;92;1559;972;13,3;47,7;0,7255;;",
        ";;;;;;;;;;;;;;;;",
    ]
    (tmp_path / "air.csv").write_text("\n".join(lines), encoding="utf-8")
    learned, kept_back, digest = read(tmp_path / "air.csv")
    assert (learned.labels.tolist(), kept_back.labels.tolist()) == ([0.0], [1.0])
    assert learned.inputs[0].tolist() == pytest.approx([0.9733, -0.15, 0.58, 0.1475, -0.07, -0.67, -0.115], abs=1e-4)
    assert len(digest) == 64
    with pytest.raises(ConfigError, match="there is no such file"):
        read(tmp_path / "other.csv")


def test_an_interpreter_without_flower_is_told(tmp_path: Path) -> None:
    from bench.federated_runs import by_road, made_up, with_flower

    with pytest.raises(ConfigError, match="No module named 'flwr'"):
        with_flower(Path(sys.executable), 1, by_road(made_up(200)[0]))
