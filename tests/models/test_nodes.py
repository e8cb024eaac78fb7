"""Models on real nodes: asked, answered in batches, replaced by their rules and back, over kills and restarts."""

from __future__ import annotations

import asyncio
import math
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import stigmergy as st
from stigmergy.app.fleet import Running
from stigmergy.base.errors import ConfigError
from stigmergy.cli.main import main
from stigmergy.control.metrics import NodeMetrics
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.models import runtimes
from stigmergy.models.bundle import Bundle, inspect_bundle, write_bundle
from stigmergy.models.model import digest_of_inputs
from stigmergy.models.runtime import pack_row
from tests.models import sensors
from tests.models.sensors import (
    HANG,
    KEY,
    NAN,
    PATIENT,
    RAISE,
    SHORT,
    SIGNER,
    WITHIN_S,
    Counter,
    GasAlarm,
    Sampled,
    bundle,
    fleet,
    forest_payload,
    judged,
    manifest,
    moody_bundle,
    put,
    sample,
    until,
)

OFTEN = st.Settings(models=st.ModelSettings(look_s=0.02, hung_s=3_600))


@pytest.fixture(autouse=True)
def _moody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(runtimes.OURS, "moody", "tests.models.sensors")
    sensors.let_go.clear()
    sensors.batches.clear()
    yield
    sensors.let_go.set()


def running(folder: Path, settings: st.Settings = OFTEN) -> Running:
    return fleet().running(journal="memory:", settings=settings, models=f"folder:{folder}", model_keys=[KEY])


def counted(live: st.Live) -> dict[tuple[str, str], float]:
    """Answers by version and outcome, as Prometheus is told."""
    found = [one for one in NodeMetrics(live).collect().samples if one.metric == "stigmergy_inferences_total"]
    return {(one.labels["version"], one.labels["outcome"]): one.value for one in found}


async def test_a_model_answers(tmp_path: Path) -> None:
    put(tmp_path, bundle())
    async with running(tmp_path) as live:
        await sample(live, 50, 60, 700, 800)
        await until(lambda: judged(live).judged == 3)
        assert (judged(live).co, judged(live).version, judged(live).fallback) == (0.75, "1.0.0", "")
        assert live.troubles() == []
        answers = judged(live).answers.values
        assert [one.answer for one in answers] == [GasAlarm(co, 0.0) for co in (0.5, 0.5, 0.75)]
        assert [one.confidence for one in answers] == [0.5, 0.5, 0.75]
        source = answers[-1].source
        assert source.digest == inspect_bundle(bundle()).digest
        assert source.inputs == digest_of_inputs(pack_row([700, 0, 800, 0]))
        assert source.latency_s > 0
        assert counted(live) == {("1.0.0", "model"): 3}


async def test_without_a_place_the_rule_answers_and_the_start_says_so() -> None:
    run = fleet().running(journal="memory:")
    said: list[str] = []
    run.say = said.append
    async with run as live:
        await sample(live, 2000, 1)
        await until(lambda: judged(live).judged == 1)
        assert (judged(live).co, judged(live).fallback) == (1.0, "missing")
        (trouble,) = live.troubles()
        assert trouble.code == "model-fallback"
    assert said == [
        "no bundle for gas-alarm (this node has no place for models): the rules in their classes answer; name a place, "
        'such as models = "folder:models" under [fleet] in stigmergy.toml, or give --models'
    ]


async def test_a_damaged_bundle_is_refused_and_taken_once_it_is_repaired(tmp_path: Path) -> None:
    whole = bundle()
    put(tmp_path, whole[:-200] + bytes([whole[-200] ^ 1]) + whole[-199:])
    async with running(tmp_path) as live:
        await sample(live, 1, 1)
        await until(lambda: judged(live).judged == 1)
        assert judged(live).fallback.startswith("refused: gas-alarm-1.0.0.model: damaged")
        assert [trouble.code for trouble in live.troubles()] == ["model-fallback"]
        put(tmp_path, whole)
        await until(lambda: live.models is not None and live.models.loaded("gas-alarm") == ["1.0.0"])
        await sample(live, 1)
        await until(lambda: judged(live).judged == 2)
        assert (judged(live).co, judged(live).fallback) == (0.5, "")
        assert live.troubles() == []


async def test_an_older_bundle_answers_where_the_newest_is_refused(tmp_path: Path) -> None:
    put(tmp_path, bundle("1.9.0", co=0.25), "1.9.0")
    put(tmp_path, bundle("1.10.0", signer=Ed25519Signer(bytes(32))), "1.10.0")
    async with running(tmp_path) as live:
        await sample(live, 1, 1)
        await until(lambda: judged(live).judged == 1)
        assert (judged(live).co, judged(live).version) == (0.25, "1.9.0")
        (trouble,) = live.troubles()
        assert trouble.code == "model-refused"
        assert "gas-alarm-1.10.0.model: signed by" in trouble


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (bundle(signer=None), "nobody has signed"),
        (bundle("1.0.1"), "this is version 1.0.1"),
        (b"", "cut off"),
        (bundle() + b"more", "too long"),
        (write_bundle(msgspec.structs.replace(manifest(), outputs=("a", "b", "c")), b"", SIGNER), "has no output 'co'"),
        (write_bundle(manifest(runtime="abacus"), b"", SIGNER), "no runtime 'abacus'"),
        (write_bundle(manifest(co=0.9), forest_payload(), SIGNER), "not those that were recorded"),
    ],
)
async def test_what_is_no_fit_bundle_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    put(tmp_path, data)
    async with running(tmp_path) as live:
        await sample(live, 1, 1)
        await until(lambda: judged(live).judged == 1)
        assert judged(live).fallback.startswith("refused: gas-alarm-1.0.0.model: ")
        assert why in judged(live).fallback


async def test_models_that_take_too_much_memory_are_refused(tmp_path: Path) -> None:
    put(tmp_path, bundle())
    async with running(tmp_path, st.Settings(models=st.ModelSettings(memory_bytes_max=1))) as live:
        await sample(live, 1, 1)
        await until(lambda: judged(live).judged == 1)
        assert "all models together may take 1;" in judged(live).fallback


async def test_a_newer_bundle_takes_over_and_one_that_is_taken_away_answers_no_more(tmp_path: Path) -> None:
    old = put(tmp_path, bundle())
    async with running(tmp_path) as live:
        assert live.models is not None
        service = live.models
        new = put(tmp_path, bundle("1.1.0", co=0.25), "1.1.0")
        await until(lambda: service.loaded("gas-alarm") == ["1.1.0"])
        await sample(live, 1, 1)
        await until(lambda: judged(live).judged == 1)
        assert (judged(live).co, judged(live).version) == (0.25, "1.1.0")
        old.unlink()
        new.unlink()
        await until(lambda: service.loaded("gas-alarm") == [])
        await sample(live, 1)
        await until(lambda: judged(live).judged == 2)
        assert judged(live).fallback.startswith("missing")


async def test_a_bundle_that_is_written_over_answers_until_the_new_one_is_whole(tmp_path: Path) -> None:
    put(tmp_path, bundle())
    async with running(tmp_path) as live:
        put(tmp_path, bundle(co=0.25)[:-1])
        await until(lambda: [one.code for one in live.troubles()] == ["model-refused"])
        await sample(live, 1, 1)
        await until(lambda: judged(live).judged == 1)
        assert judged(live).co == 0.5
        put(tmp_path, bundle(co=0.25))
        await until(lambda: live.troubles() == [])
        await sample(live, 1)
        await until(lambda: judged(live).judged == 2)
        assert judged(live).co == 0.25


async def test_a_bad_row_spoils_no_other_of_its_batch(tmp_path: Path) -> None:
    put(tmp_path, moody_bundle())
    async with running(tmp_path) as live:
        readings = {"fine": 1.0, "raises": RAISE, "nan": NAN, "short": SHORT, "infinite": math.inf}
        for co in (1.0, 1.0):
            await asyncio.gather(
                *(live.observe(f"GasSensor/{name}", Sampled(readings[name] if co else co)) for name in readings)
            )
        await until(lambda: all(judged(live, f"GasSensor/{name}").judged for name in readings))
        reasons = {name: judged(live, f"GasSensor/{name}").fallback for name in readings}
        assert reasons == {
            "fine": "",
            "raises": "failed: ModelFailed: a bad mood",
            "nan": "not-finite",
            "short": "out-of-shape: 1 numbers, not 3",
            "infinite": "inputs: NaN or infinity",
        }


async def test_a_thread_that_hangs_is_replaced_and_others_are_answered(tmp_path: Path) -> None:
    put(tmp_path, moody_bundle())
    async with running(tmp_path, st.Settings(models=st.ModelSettings(hung_s=0.1, look_s=0.02))) as live:
        await sample(live, HANG, 1)
        await until(lambda: judged(live).judged == 1)
        assert judged(live).fallback == "hung"
        assert live.models is not None
        assert live.models.abandoned == 1
        await until(lambda: live.models is not None and live.models.loaded("gas-alarm") == ["1.0.0"])
        await sample(live, 1, agent="GasSensor/g2")
        # On a machine without time a run that does not hang may take 0.1 s all the same.
        count, by = 0, "nobody"
        while by:
            count += 1
            await sample(live, 1, agent="GasSensor/g2")
            await until(lambda count=count: judged(live, "GasSensor/g2").judged == count)  # type: ignore[misc]
            by = judged(live, "GasSensor/g2").fallback
            assert by in ("", "hung", "hung: a run took over 0.1 s"), by
        sensors.let_go.set()
        await until(lambda: live.models is not None and live.models.abandoned == 0)


async def test_a_node_that_ends_waits_for_the_bundle_that_is_being_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, over = threading.Event(), threading.Event()

    def load(runtime: sensors.MoodyRuntime, bundle: Bundle, threads: int = 1) -> sensors.MoodyModel:
        begun.set()
        sensors.let_go.wait(60)
        over.set()
        return sensors.MoodyModel()

    monkeypatch.setattr(sensors.MoodyRuntime, "load", load)
    later = threading.Timer(0.2, sensors.let_go.set)
    async with running(tmp_path, st.Settings(models=st.ModelSettings(look_s=0.02, drain_s=60))):
        put(tmp_path, moody_bundle())
        await until(begun.is_set)
        later.start()
    assert over.is_set()
    later.join()


async def test_a_model_without_a_rule_needs_its_bundle_at_the_start(tmp_path: Path) -> None:
    run = st.Fleet("counts", agents=[Counter], settings=PATIENT).running(
        journal="memory:", models=f"folder:{tmp_path}", model_keys=[KEY]
    )
    with pytest.raises(ConfigError, match=r"asks the model 'head-count', which has no fallback.*put one into folder:"):
        await run.__aenter__()


async def test_where_neither_model_nor_rule_answers_the_agent_is_told(tmp_path: Path) -> None:
    named = msgspec.structs.replace(manifest(runtime="moody"), name="head-count", outputs=("a", "heads", "b"))
    (tmp_path / "head-count-1.0.0.model").write_bytes(write_bundle(named, b"", SIGNER))
    run = st.Fleet("counts", agents=[Counter], settings=PATIENT).running(
        journal="memory:", models=f"folder:{tmp_path}", model_keys=[KEY]
    )
    async with run as live:
        await live.observe("Counter/c1", Sampled(NAN))
        await until(lambda: bool(live.query("Counter/c1", Counter).lost))
        assert live.query("Counter/c1", Counter).lost == "not-finite, and head-count has no rule"
        await live.observe("Counter/c1", Sampled(1))
        await until(lambda: live.query("Counter/c1", Counter).heads == 0.5)


async def test_places_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without model_keys: nobody's bundles would be believed"):
        await fleet().running(journal="memory:", models=f"folder:{tmp_path}").__aenter__()
    with pytest.raises(ConfigError, match="give a folder of bundles, as folder:models"):
        await fleet().running(journal="memory:", models="folder:", model_keys=[KEY]).__aenter__()
    with pytest.raises(ConfigError, match="no adapter for 'ftp'"):
        await fleet().running(journal="memory:", models="ftp://x", model_keys=[KEY]).__aenter__()


async def test_a_folder_that_is_not_there_is_said_and_found_once_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    async with running(folder) as live:
        await sample(live, 1, 1)
        await until(lambda: judged(live).judged == 1)
        assert judged(live).fallback.startswith("missing: the place of models cannot be looked at: ")
        assert [trouble.code for trouble in live.troubles()] == ["model-fallback", "models-unseen"]
        folder.mkdir()
        put(folder, bundle())
        await until(lambda: live.models is not None and live.models.loaded("gas-alarm") == ["1.0.0"])
        await sample(live, 1)
        await until(lambda: judged(live).judged == 2 and live.troubles() == [])


CHILD = """
import asyncio, itertools, sys
import stigmergy as st
from stigmergy.models import runtimes
from tests.models.sensors import HANG, KEY, fleet, sample

runtimes.OURS["moody"] = "tests.models.sensors"

async def main() -> None:
    settings = st.Settings(models=st.ModelSettings(hung_s=600))
    where = {"journal": f"sqlite:{sys.argv[1]}/gas.db", "models": f"folder:{sys.argv[1]}", "model_keys": [KEY]}
    async with fleet().running(settings=settings, **where) as live:
        await sample(live, 1, 1, 1, HANG, 1, 1)
        print("asked", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def kill_after_asking(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD, str(folder)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = child.stdout.readline()
        child.send_signal(signal.SIGKILL)
    assert said == "asked\n"


async def test_what_was_not_answered_before_a_kill_is_asked_again_and_recorded_once(tmp_path: Path) -> None:
    put(tmp_path, moody_bundle())
    kill_after_asking(tmp_path)
    sensors.let_go.set()
    journal, models = f"sqlite:{tmp_path}/gas.db", f"folder:{tmp_path}"
    for _ in range(2):
        async with fleet().running(journal=journal, models=models, model_keys=[KEY]) as live:
            await until(lambda: judged(live).judged >= 5)
            await sample(live, 1, agent="GasSensor/other")  # whatever was owed besides is stepped before this
            assert judged(live).judged == 5
            rows = [[1.0, 0, 1, 0]] * 2 + [[1, 0, HANG, 0], [HANG, 0, 1, 0], [1, 0, 1, 0]]
            asked = [digest_of_inputs(pack_row(row)) for row in rows]
            assert sorted(one.source.inputs for one in judged(live).answers.values) == sorted(asked)
            assert not any(one.source.fallback for one in judged(live).answers.values)


async def test_a_replay_needs_no_model_and_finds_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, moody_bundle())
    journal, models = f"sqlite:{tmp_path}/gas.db", f"folder:{tmp_path}"
    async with fleet().running(journal=journal, models=models, model_keys=[KEY]) as live:
        await sample(live, 1, 1, NAN, 1)
        await until(lambda: judged(live).judged == 3)
    (tmp_path / "gas-alarm-1.0.0.model").unlink()
    sensors.batches.clear()
    code = await asyncio.to_thread(main, ["replay", "--journal", journal, "--fleet", "tests.models.sensors:replayed"])
    assert (code, sensors.batches) == (0, [])
    assert "the same" in capsys.readouterr().out


async def test_answers_are_explained_where_the_class_asks_for_it(tmp_path: Path) -> None:
    class Explained(st.Model, name="gas-alarm", within_s=WITHIN_S, explain=True):
        co: float

    class Sensor(st.Agent):
        because: tuple[tuple[str, float], ...] = ()

        @st.react
        def ask(self, event: Sampled) -> st.Effects:
            yield Explained.ask([event.co, 0, 0, 0])

        @st.evolve
        def answer(self, result: st.Inferred[Explained]) -> None:
            self.because = result.source.explanation

    put(tmp_path, bundle())
    run = st.Fleet("gas", agents=[Sensor], settings=PATIENT).running(
        journal="memory:", models=f"folder:{tmp_path}", model_keys=[KEY]
    )
    async with run as live:
        await live.observe("Sensor/s1", Sampled(500))
        await until(lambda: bool(live.query("Sensor/s1", Sensor).because))
        assert live.query("Sensor/s1", Sensor).because == (("co", 0.25), ("nox", 0.0))
