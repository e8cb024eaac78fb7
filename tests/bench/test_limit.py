"""The records are the workload in fixed width, and the limit reads every one of them and writes the same bytes."""

from pathlib import Path

import numpy as np
import pytest

from bench.limit import Limit, best_batch
from bench.records import (
    ACKNOWLEDGED,
    FORMS,
    MEASURED,
    POSITIONED,
    RECORD,
    RECORD_BYTES,
    acting,
    from_reports,
    records,
    roll_call,
)
from bench.workload import DRONES, Drone, reports
from stigmergy.agents.messages import spec_of
from stigmergy.compiled.reader import read_agent


def test_same_seed_same_bytes() -> None:
    assert records(5, 2_000).tobytes() == records(5, 2_000).tobytes()
    assert records(5, 2_000).tobytes() != records(6, 2_000).tobytes()
    assert len(records(5, 2_000).tobytes()) == 2_000 * RECORD_BYTES


def test_shares_are_those_of_the_workload() -> None:
    made = records(1, 100_000)
    forms = np.bincount(made["form"], minlength=3) / len(made)
    assert forms == pytest.approx([0.70, 0.25, 0.05], abs=0.01)
    assert acting(made).mean() == pytest.approx(0.03, abs=0.003)
    assert made["agent"].max() < DRONES
    assert len(np.unique(made["agent"])) == DRONES
    positions = made[made["form"] == POSITIONED]
    assert positions["altitude_m"].min() >= 0.0
    assert positions["altitude_m"].max() < 120.0
    batteries = made[made["form"] == MEASURED]
    assert 1.0 <= batteries["percent"].min() < 15.0
    assert batteries["percent"].max() < 100.0
    assert made[made["form"] == ACKNOWLEDGED]["order"].max() < 1_000_000


def test_what_a_form_does_not_use_is_zero() -> None:
    made = records(1, 5_000)
    words = made.view("<u8").reshape(len(made), RECORD_BYTES // 8)
    assert not made["zero"].any()
    assert not words[made["form"] != POSITIONED][:, 2:].any()
    assert words[made["form"] == POSITIONED][:, 1:].all(axis=1).mean() > 0.99


def test_reports_become_the_same_events() -> None:
    events = reports(3, 2_000)
    made = from_reports(events)
    assert list(acting(made)) == [report.acts for report in events]
    assert [f"Drone/D-{agent}" for agent in made["agent"]] == [report.address for report in events]


def test_roll_call_names_every_drone_once() -> None:
    assert list(roll_call(1, 3, first=7)["agent"]) == [7, 8, 9]


def test_the_limit_folds_and_writes_every_record(tmp_path: Path) -> None:
    path = tmp_path / "limit.log"
    stock = records(1, 4_096)
    with Limit(path, file_bytes=stock.nbytes) as limit:
        assert path.read_bytes() == bytes(stock.nbytes)
        window = limit.run(stock, 1_024, 1.0)
        assert window.events % 1_024 == 0
        assert window.events >= 2 * len(stock), "a second is enough for more than the stock"
        assert path.read_bytes() == stock.tobytes()
        whole, rest = divmod(window.events, len(stock))
        acts = acting(stock)
        assert window.actions == whole * acts.sum() + acts[:rest].sum()
        assert 0 < window.loop_share < 1
        order = {int(row["agent"]): int(row["order"]) for row in stock if row["form"] == ACKNOWLEDGED}
        if not rest:
            assert {agent: int(limit.columns[4][agent]) for agent in order} == order
        for size in (8_192, 4_097):
            with pytest.raises(ValueError, match="larger than the stock"):
                limit.run(stock, size, 0.1)
        assert best_batch(limit, stock, seconds=0.005, rounds=1, sizes=(512, 1_024)) in {512, 1_024}


def test_the_records_are_those_of_the_compiled_drone() -> None:
    layout = read_agent(Drone).layout
    assert layout.record_bytes == RECORD_BYTES
    assert [form.tag for form in layout.forms] == [spec_of(message).tag for message in FORMS]
    for form in layout.forms:
        for column in form.columns:
            assert RECORD.fields is not None
            assert RECORD.fields[column.name][:2] == (np.dtype(f"<{column.code}"), column.offset)
