"""Rollouts on real nodes: a bad canary is taken back by itself, a shadow changes nothing, who was away catches up."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import stigmergy as st
from stigmergy.agents.codec import encode
from stigmergy.app.fleet import Running
from stigmergy.app.keyring import load_signer
from stigmergy.app.models import publish_bundle
from stigmergy.app.node_config import open_store
from stigmergy.base.system import SystemClock
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.models.rollout import CountsReport, VersionCounts, VersionRecord, write_counts, write_record
from stigmergy.models.rollout_agent import CountsHeard
from stigmergy.nats.naming import models_bucket
from stigmergy.testing.bus_rig import wait_until
from tests.models.gas import SIGNER, GasLevelSampled, GasSensor, Reinspected, bundle, gas_fleet, put_bundle

ROLLOUT = "ModelRollout/gas-level"
SENSORS = [f"GasSensor/s{number}" for number in range(24)]
# A machine that has no time for a thread must not make a model hang.
SETTINGS = st.Settings(models=st.ModelSettings(look_s=0.1, hung_s=3_600))
EASY: dict[str, Any] = {"asks_min": 20, "judged_min": 5, "report_s": 0.05, "latency_ratio_max": 1e9}
WAIT_S = 240.0


def running(folder: Path, name: str = "node", **options: Any) -> Running:
    """A node with its journal in the folder, and bundles in a folder unless told otherwise."""
    options = {"models": f"folder:{folder}/bundles", "model_keys": [SIGNER.public_key.hex()], **options}
    return gas_fleet(settings=SETTINGS).running(journal=f"sqlite:{folder}/{name}.db", node=name, **options)


async def measure(live: st.Live, co: float) -> None:
    """All sensors measure once, and deal with the answer."""
    before = {agent: live.query(agent, GasSensor).answers for agent in SENSORS}
    for agent in SENSORS:
        await live.observe(agent, GasLevelSampled(co=co))
    await wait_until(lambda: all(live.query(one, GasSensor).answers > before[one] for one in SENSORS), WAIT_S)


async def until(reached: Callable[[], bool], meanwhile: Callable[[], Awaitable[None]]) -> None:
    """Goes on with something until a condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not reached():
            await meanwhile()
            await asyncio.sleep(0.02)


def stage(live: st.Live) -> str:
    return live.query(ROLLOUT, st.ModelRollout).stage


async def test_a_canary_that_raises_false_positives_is_rolled_back_by_itself(tmp_path: Path) -> None:
    put_bundle(tmp_path / "bundles", "1.2.0", limit=10)
    async with running(tmp_path) as live:
        rule = st.RolloutRule(shadow_s=0, canary=0.5, canary_s=3_600, **EASY)
        await live.send(ROLLOUT, st.BeginRollout(version="1.3.0", stable="1.2.0", rule=rule))
        put_bundle(tmp_path / "bundles", "1.3.0", limit=5)  # alarms at 7, where 10 is too much
        await until(lambda: stage(live) == "rolled back", lambda: measure(live, 7.0))
        found = live.query(ROLLOUT, st.ModelRollout)
        assert "false positives" in found.reason
        record = found.record("gas")
        assert (record.stable, record.candidate, record.stage) == ("1.2.0", "", "rolled back")
        alarmed = {agent for agent in SENSORS if live.query(agent, GasSensor).alarms}
        assert alarmed, "the canary alarmed"
        assert len(alarmed) < len(SENSORS), "and nobody else"
        await until(
            lambda: {live.query(one, GasSensor).version for one in SENSORS} == {"1.2.0"}, lambda: measure(live, 7.0)
        )
        now = {agent: live.query(agent, GasSensor).alarms for agent in SENSORS}
        await measure(live, 7.0)
        assert {agent: live.query(agent, GasSensor).alarms for agent in SENSORS} == now
    async with running(tmp_path) as live:
        await measure(live, 7.0)
        assert {live.query(agent, GasSensor).version for agent in SENSORS} == {"1.2.0"}, "also after a restart"


async def test_old_answers_judged_again_and_again_do_not_hide_a_bad_canary(tmp_path: Path) -> None:
    """The old version was wrong before the rollout began, and its agents say so as often as the new one's do."""
    put_bundle(tmp_path / "bundles", "1.2.0", limit=5)
    async with running(tmp_path) as live:
        await measure(live, 7.0)
        rule = st.RolloutRule(shadow_s=0, canary=0.5, canary_s=3_600, **EASY)
        await live.send(ROLLOUT, st.BeginRollout(version="1.3.0", stable="1.2.0", rule=rule))
        record = live.query(ROLLOUT, st.ModelRollout).record("gas")
        chosen = [agent for agent in SENSORS if record.arm_of(agent) == "canary"]
        assert 0 < len(chosen) < len(SENSORS)
        put_bundle(tmp_path / "bundles", "1.3.0", limit=5)

        async def judge_all() -> None:
            for agent in SENSORS:
                await live.observe(agent, GasLevelSampled(co=7.0) if agent in chosen else Reinspected())

        await until(lambda: stage(live) == "rolled back", judge_all)
        found = live.query(ROLLOUT, st.ModelRollout)
        assert "false positives" in found.reason
        assert found.stable_judged.judged <= len(chosen), "answers of before the beginning do not count"


async def test_a_shadow_changes_no_decision_and_is_recorded(tmp_path: Path) -> None:
    """The new version contradicts the old one in every answer, and disagreement is what ends it."""
    put_bundle(tmp_path / "bundles", "1.2.0", limit=10)
    async with running(tmp_path) as live:
        rule = st.RolloutRule(shadow_s=3_600, disagreement_max=0.5, **EASY)
        await live.send(ROLLOUT, st.BeginRollout(version="1.3.0", stable="1.2.0", rule=rule))
        put_bundle(tmp_path / "bundles", "1.3.0", limit=5)
        await until(lambda: stage(live) == "rolled back", lambda: measure(live, 7.0))
        found = live.query(ROLLOUT, st.ModelRollout)
        stable, candidate = found.counts
        assert "answers differ from the old version's" in found.reason
        assert candidate.differed == candidate.compared >= 20
        assert stable.failed == candidate.failed == 0
        assert [live.query(agent, GasSensor).alarms for agent in SENSORS] == [0] * len(SENSORS)
        assert {live.query(agent, GasSensor).version for agent in SENSORS} == {"1.2.0"}


async def test_what_agents_judge_in_the_shadow_takes_a_version_back_that_is_wrong(tmp_path: Path) -> None:
    """The new version does not see what the old one alarms for, and agents find that the alarms are right."""
    put_bundle(tmp_path / "bundles", "1.2.0", limit=10)
    async with running(tmp_path) as live:
        rule = st.RolloutRule(shadow_s=3_600, disagreement_max=1.0, **EASY)
        await live.send(ROLLOUT, st.BeginRollout(version="1.3.0", stable="1.2.0", rule=rule))
        put_bundle(tmp_path / "bundles", "1.3.0", limit=13)
        await until(lambda: stage(live) == "rolled back", lambda: measure(live, 12.0))
        found = live.query(ROLLOUT, st.ModelRollout)
        stable, candidate = found.counts
        assert "100.0% of its" in found.reason
        assert "judged answers are wrong" in found.reason, "it has missed something: no false positives"
        assert candidate.judged == candidate.wrong >= 5
        assert (stable.judged > 0, stable.wrong) == (True, 0)


async def test_a_good_version_goes_through_shadow_and_canary_to_everybody(tmp_path: Path) -> None:
    put_bundle(tmp_path / "bundles", "1.2.0", limit=10)
    steps: list[str] = []
    async with running(tmp_path) as live:
        rule = st.RolloutRule(shadow_s=0.1, canary=0.5, canary_s=0.1, **EASY)
        await live.send(ROLLOUT, st.BeginRollout(version="1.3.0", stable="1.2.0", rule=rule))
        put_bundle(tmp_path / "bundles", "1.3.0", limit=9)
        await until(lambda: stage(live) == "promoted", lambda: measure(live, 7.0))
        await until(
            lambda: {live.query(one, GasSensor).version for one in SENSORS} == {"1.3.0"}, lambda: measure(live, 7.0)
        )
        assert isinstance(await live.send(ROLLOUT, st.RollBackModel(by="ann")), st.Accepted)
        await until(
            lambda: {live.query(one, GasSensor).version for one in SENSORS} == {"1.2.0"}, lambda: measure(live, 7.0)
        )
        reader = live.host.feed.reader(live.host.feed.positions_at(0))
        while entries := await reader.read(1_000, 0.0):
            steps += [entry.type.removeprefix("stigmergy.") for entry in entries if entry.agent == ROLLOUT]
        await reader.close()
    kept = [step.partition("@")[0] for step in steps if not step.startswith(("CountsHeard", "AnswerJudged"))]
    assert [step for step in kept if step != "StageOver"] == [
        "RolloutBegan",
        "StageBegan",
        "VersionsCompared",
        "StageBegan",
        "VersionsCompared",
        "Promoted",
        "RolledBack",
    ]


async def test_who_lacks_the_version_that_is_wanted_stays_and_says_so(tmp_path: Path) -> None:
    put_bundle(tmp_path / "bundles", "1.2.0", limit=10)
    async with running(tmp_path) as live:
        await live.send(ROLLOUT, st.BeginRollout(version="1.3.0", stable="1.2.0"))
        await live.send(ROLLOUT, st.PromoteModel(by="ann"))
        await wait_until(lambda: any("1.3.0 is wanted and not here" in one for one in live.standing().troubles), WAIT_S)
        await measure(live, 7.0)
        assert {live.query(agent, GasSensor).version for agent in SENSORS} == {"1.2.0"}
        put_bundle(tmp_path / "bundles", "1.3.0", limit=5, signer=None)
        await wait_until(lambda: any("nobody has signed" in one for one in live.standing().troubles), WAIT_S)
        assert len([one for one in live.standing().troubles if "1.3.0" in one]) == 1, "said once"
        await measure(live, 7.0)
        assert {live.query(agent, GasSensor).version for agent in SENSORS} == {"1.2.0"}
        put_bundle(tmp_path / "bundles", "1.3.0", limit=9)
        await until(
            lambda: {live.query(one, GasSensor).version for one in SENSORS} == {"1.3.0"}, lambda: measure(live, 7.0)
        )
        assert not any("1.3.0" in one for one in live.standing().troubles)


@pytest.mark.parametrize("shadow_s", [0, 3_600])
async def test_a_bundle_that_is_refused_is_listed_once_in_each_stage(tmp_path: Path, shadow_s: float) -> None:
    put_bundle(tmp_path / "bundles", "1.2.0", limit=10)
    async with running(tmp_path) as live:
        rule = st.RolloutRule(shadow_s=shadow_s, **EASY)
        await live.send(ROLLOUT, st.BeginRollout(version="1.3.0", stable="1.2.0", rule=rule))
        put_bundle(tmp_path / "bundles", "1.3.0", limit=5, signer=None)
        await wait_until(lambda: any("nobody has signed" in one for one in live.standing().troubles), WAIT_S)
        assert len([one for one in live.standing().troubles if "1.3.0" in one]) == 1
        await live.send(ROLLOUT, st.PromoteModel(by="ann"))
        (tmp_path / "bundles" / "gas-level-1.2.0.model").unlink()
        await wait_until(lambda: any("its rule answers" in one for one in live.standing().troubles), WAIT_S)
        assert len([one for one in live.standing().troubles if "1.3.0" in one]) == 1


async def two_nodes(folder: Path, url: str) -> None:
    """A gateway with the rollout, and a device that is away while it happens; one store, no bus between them."""
    options: dict[str, Any] = {"models": url, "bus": None}
    await publish_bundle(url, "gas", "gas-level-1.2.0.model", bundle("1.2.0", 10))
    counting = public_of(folder / "device.key")
    gateway = gas_fleet(settings=SETTINGS).running(
        journal=f"sqlite:{folder}/gateway.db",
        node="gateway",
        agents=["ModelRollout/*"],
        models=url,
        model_keys=[SIGNER.public_key.hex()],
        peers=[counting],
    )

    def device() -> Running:
        public = public_of(folder / "gateway.key")
        return running(folder, "device", **options, agents=["GasSensor/*"], peers=[public])

    async with gateway as hub:
        async with device() as live:
            await measure(live, 7.0)
            rule = st.RolloutRule(shadow_s=0.1, canary=0.5, canary_s=3_600, **EASY)
            await hub.send(ROLLOUT, st.BeginRollout(version="1.3.0", stable="1.2.0", rule=rule))
            await publish_bundle(url, "gas", "gas-level-1.3.0.model", bundle("1.3.0", 9))
            # What the device counts comes to the agent of the gateway through the store.
            await until(lambda: stage(hub) == "canary", lambda: measure(live, 7.0))
            await until(
                lambda: {live.query(one, GasSensor).version for one in SENSORS} == {"1.2.0", "1.3.0"},
                lambda: measure(live, 7.0),
            )
            await measure(live, 7.0)
            chosen = {one for one in SENSORS if live.query(one, GasSensor).version == "1.3.0"}
        async with device() as live:
            await measure(live, 7.0)
            assert {one for one in SENSORS if live.query(one, GasSensor).version == "1.3.0"} == chosen, "the same"
        await hub.send(ROLLOUT, st.PromoteModel(by="ann"))  # while the device is away
        async with device() as live:
            await until(
                lambda: {live.query(one, GasSensor).version for one in SENSORS} == {"1.3.0"}, lambda: measure(live, 7.0)
            )
    # A store that hands out an older record, with a good signature, is not believed.
    store = await open_store(url, SystemClock())
    keys = await store.key_value(models_bucket("gas"))
    old = VersionRecord("gas", "gas-level", 1, "1.2.0")
    await keys.put("versions.gas-level", write_record(old, load_signer(folder / "gateway.key", create=False)))
    async with device() as live:
        await wait_until(lambda: any("not gone back to" in one for one in live.standing().troubles), WAIT_S)
        await measure(live, 7.0)
        assert {live.query(one, GasSensor).version for one in SENSORS} == {"1.3.0"}
    await store.close()


@pytest.mark.parametrize("counted", ["asks", "wrong"])
async def test_counts_of_a_key_that_is_not_trusted_decide_nothing(tmp_path: Path, counted: str) -> None:
    """Whoever may write to the store could promote a version, or take one back."""
    url = f"memory:counts-{counted}"
    await publish_bundle(url, "gas", "gas-level-1.2.0.model", bundle("1.2.0", 10))
    store = await open_store(url, SystemClock())
    keys = await store.key_value(models_bucket("gas"))
    many = VersionCounts(asks=10_000, compared=10_000, judged=1_000, wrong=1_000 * (counted == "wrong"))
    thief = Ed25519Signer(bytes(range(7, 39)))
    device = load_signer(tmp_path / "device.key", create=True)
    options = {"models": url, "bus": None, "agents": ["ModelRollout/*"], "peers": [device.public_key.hex()]}
    async with running(tmp_path, "gateway", **options) as hub:
        rule = st.RolloutRule(shadow_s=0.1, canary=0.5, canary_s=3_600, **EASY)
        await hub.send(ROLLOUT, st.BeginRollout(version="1.3.0", stable="1.2.0", rule=rule))
        revision = hub.query(ROLLOUT, st.ModelRollout).revision
        report = CountsReport("gas", "gas-level", "x", revision, VersionCounts(asks=10_000, judged=1_000), many)
        unsigned = CountsHeard(source="y", revision=revision, stable=report.stable, candidate=many)
        await keys.put("counts.gas-level.thief", write_counts(report, thief))
        await keys.put("counts.gas-level.old", encode(unsigned))
        await wait_until(lambda: any("not taken: 2" in one for one in hub.standing().troubles), WAIT_S)
        found = hub.query(ROLLOUT, st.ModelRollout)
        assert (found.stage, found.counts) == ("shadow", (VersionCounts(), VersionCounts()))
        await keys.put("counts.gas-level.device", write_counts(report, device))
        after = "canary" if counted == "asks" else "rolled back"
        await wait_until(lambda: stage(hub) == after, WAIT_S)  # of a key that is trusted they do
        if after == "rolled back":  # a rollout that is over leaves no counts behind
            await wait_until(lambda: not any("counts" in one for one in hub.standing().troubles), WAIT_S)
    await store.close()


def public_of(path: Path) -> str:
    """The public half of a node's key, which is made if the node has not run yet."""
    return load_signer(path, create=True).public_key.hex()


async def test_a_node_that_was_away_comes_back_to_the_version_of_today(tmp_path: Path) -> None:
    await two_nodes(tmp_path, "memory:rollouts")


async def test_two_nodes_and_one_store_on_a_broker(tmp_path: Path, nats_server: Any) -> None:
    """And a start without the store goes on with what was known last."""
    await two_nodes(tmp_path, nats_server.url)
    for server in nats_server.servers:
        server.kill()
    public = public_of(tmp_path / "gateway.key")
    async with running(tmp_path, "device", models=nats_server.url, agents=["GasSensor/*"], peers=[public]) as live:
        await measure(live, 7.0)
        assert {live.query(one, GasSensor).version for one in SENSORS} == {"1.3.0"}


PROGRAM = """
import asyncio, sys
from pathlib import Path
import stigmergy as st
from tests.app.test_rollouts import EASY, ROLLOUT, SENSORS, running
from tests.models.gas import GasLevelSampled

async def main(folder):
    async with running(folder) as live:
        if live.query(ROLLOUT).revision == 0:
            rule = st.RolloutRule(shadow_s=0, canary=0.5, canary_s=3600, **EASY)
            await live.send(ROLLOUT, st.BeginRollout(version="1.3.0", stable="1.2.0", rule=rule))
        while True:
            for agent in SENSORS:
                await live.observe(agent, GasLevelSampled(co=7.0))
            print(live.query(ROLLOUT).stage, flush=True)
            await asyncio.sleep(0.05)

asyncio.run(main(Path(sys.argv[1])))
"""


def kill_until_rolled_back(folder: Path, lines: int) -> None:
    """Starts the program, kills it after so many turns, and starts it again."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(40):
        command = [sys.executable, "-c", PROGRAM, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            said = [process.stdout.readline().strip() for _ in range(lines)]
            process.send_signal(signal.SIGKILL)
        assert said[-1], "it runs"
        if "rolled back" in said:
            return


@pytest.mark.parametrize("lines", [3, 30])
async def test_a_node_that_is_killed_goes_on_with_its_rollout(disk_path: Path, lines: int) -> None:
    """Killed at once, and again and again, until the canary has been taken back: the steps are in the log once."""
    put_bundle(disk_path / "bundles", "1.2.0", limit=10)
    put_bundle(disk_path / "bundles", "1.3.0", limit=5)
    kill_until_rolled_back(disk_path, lines)
    async with running(disk_path) as live:
        assert stage(live) == "rolled back"
        await measure(live, 7.0)
        assert {live.query(agent, GasSensor).version for agent in SENSORS} == {"1.2.0"}
        found = live.query(ROLLOUT, st.ModelRollout)
        assert found.revision == 3, "begun, canary, taken back: each once"


async def test_a_person_can_pause_and_resume(tmp_path: Path) -> None:
    put_bundle(tmp_path / "bundles", "1.2.0", limit=10)
    async with running(tmp_path) as live:
        rule = st.RolloutRule(shadow_s=0, canary=1.0, canary_s=3_600, **EASY)
        assert isinstance(await live.send(ROLLOUT, st.PromoteModel()), st.Refused)
        assert isinstance(await live.send(ROLLOUT, st.BeginRollout(version="1.3.0", rule=rule)), st.Refused), (
            "from what?"
        )
        await live.send(ROLLOUT, st.BeginRollout(version="1.3.0", stable="1.2.0", rule=rule))
        assert isinstance(await live.send(ROLLOUT, st.BeginRollout(version="1.4.0")), st.Refused)
        await live.send(ROLLOUT, st.PauseRollout(by="ann"))
        put_bundle(tmp_path / "bundles", "1.3.0", limit=5)
        await until(lambda: live.query(ROLLOUT, st.ModelRollout).counts[1].wrong >= 20, lambda: measure(live, 7.0))
        assert stage(live) == "canary", "bad enough, and paused"
        await live.send(ROLLOUT, st.ResumeRollout(by="ann"))
        assert stage(live) == "rolled back"
