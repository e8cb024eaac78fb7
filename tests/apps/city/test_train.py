"""The training script, on a file of the data's layout that is made here."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from apps.city import train
from apps.city.readings import channels_of

HEAD = "Date;Time;CO(GT);PT08.S1(CO);NMHC(GT);C6H6(GT);PT08.S2(NMHC);NOx(GT);PT08.S3(NOx);NO2(GT);PT08.S4(NO2);"
HEAD += "PT08.S5(O3);T;RH;AH;;"
CHOICE = train.Choice(1e-2, 0.1, (3.0, 8.0))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Hours with peaks of CO and of NO2, with gaps, commas and empty lines as in the real file."""
    chance, lines = np.random.default_rng(3), [HEAD]
    for hour in range(1200):
        co = 1.5 + 4.5 * max(0.0, math.sin(hour / 6)) * (hour % 97 < 60)
        no2 = 100 + 220 * max(0.0, math.sin(hour / 9 + 1)) * (hour % 89 < 60)
        warm, wet = 20 + 5 * math.sin(hour / 24), 50 + 9 * math.cos(hour / 31)
        s1, s2, s3, s4, s5 = channels_of(co, no2, warm, wet) * np.exp(chance.normal(0, 0.01, 5))
        values = [
            "-200" if hour % 50 == 7 else f"{co:.1f}",
            f"{s1:.0f}",
            "-200",
            "1,0",
            f"{s2:.0f}",
            "100",
            f"{s3:.0f}",
            f"{no2:.0f}",
            f"{s4:.0f}",
        ]
        values += [f"{-200 if hour % 60 == 9 else s5:.0f}", f"{warm:.1f}", f"{wet:.1f}", "0,7"]
        said = [value.replace(".", ",") for value in values]
        lines.append(";".join(["10/03/2004", "18.00.00", *said]) + ";;")
    made = tmp_path / "AirQualityUCI.csv"
    made.write_text("\n".join([*lines, ";" * 16, ";" * 16]), encoding="ascii")
    return made


def test_missing_values_are_left_out_and_time_splits(path: Path) -> None:
    data = train.read_data(path)
    assert len(data.windows) == 1200 - 3 - 4 * 20
    ends = [data.hours[data.part == part].max() for part in range(3)]
    begins = [data.hours[data.part == part].min() for part in range(3)]
    assert ends[0] < 672 <= begins[1] - 3, "no window has hours of two parts"
    assert ends[1] < 840 <= begins[2] - 3
    assert (data.part == -1).sum() <= 2 * 3
    assert data.known[:, 0].sum() < len(data.known)
    assert np.isfinite(data.windows).all()


def test_the_same_seed_gives_the_same_net_and_it_learns(path: Path) -> None:
    data = train.read_data(path)
    use = data.part == 0
    first, second = (train.fit(data, use, CHOICE, 18, epochs=12) for _ in range(2))
    assert train.onnx_of(first) == train.onnx_of(second)
    assert train.onnx_of(train.fit(data, use, CHOICE, 19, epochs=1)) != train.onnx_of(first)
    figures = train.judge(data, first.answer(data.windows))
    assert figures["co_auc"] > 0.95
    assert figures["no2_auc"] > 0.95


def test_what_is_chosen_does_not_depend_on_the_months_that_judge(path: Path) -> None:
    data = train.read_data(path)
    grid = [train.Choice(0.0, 0.0, (1.0, 1.0)), train.Choice(1.0, 0.0, (3.0, 8.0)), CHOICE]
    choice, scores = train.choose(data, 18, grid, epochs=4)
    assert choice == grid[scores.index(max(scores))] != grid[1], "so much decay leaves nothing to be sure of"
    judges = data.part == train.JUDGES
    turned = structs.replace(data, over=np.where(judges[:, None], 1.0 - data.over, data.over))
    assert train.choose(turned, 18, grid, epochs=4) == (choice, scores)
    validates = data.part == 1
    turned = structs.replace(data, over=np.where(validates[:, None], 1.0 - data.over, data.over))
    assert train.choose(turned, 18, grid, epochs=4)[1] != scores


def test_onnx_answers_as_the_net_does(path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    data = train.read_data(path)
    net = train.fit(data, data.part == 0, CHOICE, 18, epochs=1)
    session = onnxruntime.InferenceSession(train.onnx_of(net))
    rows = data.windows[:50]
    answers = session.run(None, {"readings": rows.astype(np.float32)})[0]
    assert np.allclose(answers, net.answer(rows), atol=1e-4)


def test_ties_count_half() -> None:
    truth = np.array([True, False, True, False])
    assert train.auc_of(np.array([1.0, 0.0, 1.0, 0.0]), truth) == 1.0
    assert train.auc_of(np.array([1.0, 1.0, 1.0, 1.0]), truth) == 0.5
    assert train.auc_of(np.array([0.0, 1.0, 0.0, 1.0]), truth) == 0.0


def test_the_command_prints_the_figures(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "GRID", [CHOICE])
    assert train.main([str(path), "--epochs", "1"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["seed"] == "18"
    assert len(found["data-sha256"]) == 64
    assert {"co_auc", "no2_precision", "co_leaks_noticed", "no2_lead_steps", "validated_f1"} <= set(found)
