"""The policy of a node: who is asked, what is kept of it, and that nothing passes without one."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stigmergy as st
from stigmergy.app.fleet import Running, inspect_journal
from stigmergy.audit.listing import EntryFilter, list_log
from stigmergy.audit.replay import JournalReplay
from stigmergy.base.errors import ConfigError
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.policy.bundle import inspect_policy
from stigmergy.shard.commit import Commit, Ruled, open_commit
from stigmergy.testing.bus_rig import wait_until
from tests.models.gas import SIGNER as GAS_SIGNER
from tests.models.gas import GasLevelSampled, GasSensor, put_bundle
from tests.policy.drones import (
    KEYS,
    OTHER,
    Charge,
    Drone,
    Erase,
    Land,
    StartMission,
    drone_fleet,
    policy_bytes,
    put_policy,
)

WAIT_S = 120.0
ONE = "Drone/one"


def running(folder: Path, **options: Any) -> Running:
    """A node with its journal in the folder, and its policy in a folder beside."""
    options = {"policy": f"folder:{folder}/policy", "policy_keys": KEYS, **options}
    return drone_fleet().running(journal=f"sqlite:{folder}/node.db", **options)


async def commits(folder: Path) -> list[Commit]:
    journal = inspect_journal(f"sqlite:{folder}/node.db")
    try:
        return [open_commit(stored.sealed.body) for stored in journal.read(0)]
    finally:
        await journal.close()


async def test_what_no_rule_allows_is_refused_with_the_reason_and_kept(tmp_path: Path) -> None:
    put_policy(tmp_path / "policy", 1)
    async with running(tmp_path) as live:
        assert await live.send(ONE, StartMission(mission="M1"), command_id="a")
        refused = await live.send(ONE, Erase(), command_id="b")
        assert refused == st.Refused("denied by policy delivery 1: no rule allows it")
        assert await live.send(ONE, Charge(percent=10.0))
        low = await live.send(ONE, StartMission(mission="M2"), command_id="c")
        assert low == st.Refused("denied by policy delivery 1: battery at 10 %, 20 % needed")
        assert live.query(ONE, Drone).missions == 1
    # A repeated command gets the same answer, also after a restart and under a policy that would say something else.
    put_policy(tmp_path / "policy", 2, policy_bytes(2, "package stigmergy\nimport rego.v1\nallow := true\n"))
    async with running(tmp_path) as live:
        assert await live.send(ONE, StartMission(mission="M2"), command_id="c") == low
        assert await live.send(ONE, StartMission(mission="M2"), command_id="d")


async def test_each_answer_carries_version_and_digest_and_a_replay_does_not_ask(tmp_path: Path) -> None:
    put_policy(tmp_path / "policy", 7)
    async with running(tmp_path) as live:
        policy = live.policy
        await live.send(ONE, StartMission(mission="M1"))
        await live.send(ONE, StartMission(mission="M13"))
        await live.send(ONE, StartMission(mission="M99"))
        await live.send(ONE, Land())
    assert policy is not None
    found: list[tuple[str | None, Ruled]] = []
    for commit in await commits(tmp_path):
        found += [(commit.answers[one.place].refused, one) for one in commit.ruled]
    digests = {one.digest for _, one in found}
    assert len(digests) == 1
    assert len(next(iter(digests))) == 32
    assert [(refused, one.allowed, one.policy, one.version) for refused, one in found] == [
        (None, True, "delivery", 7),
        ("denied by policy delivery 7: no rule allows it", False, "delivery", 7),
        ("no such mission", True, "delivery", 7),
    ]
    journal = inspect_journal(f"sqlite:{tmp_path}/node.db")
    try:
        fleet = drone_fleet()
        compared = JournalReplay(journal, fleet.plans, fleet.settings.limits, Ed25519Verifier()).run()
    finally:
        await journal.close()
    assert not compared.differences, compared.differences
    assert compared.commands == 3
    assert "commands that a policy has denied, which is not asked again" in compared.not_compared


async def test_without_a_policy_everything_is_denied_but_what_leads_towards_safety(tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    async with running(tmp_path) as live:
        refused = await live.send(ONE, Charge(percent=50.0))
        assert refused == st.Refused("denied by policy: this node has no policy that it believes; see stigmergy status")
        assert await live.send(ONE, Land())
        assert live.query(ONE, Drone).landed == 1
        assert [one.code for one in live.troubles()] == ["policy-missing"]
        put_policy(tmp_path / "policy", 1)
        await wait_until(lambda: not live.troubles(), WAIT_S)
        assert await live.send(ONE, Charge(percent=50.0))


async def test_a_policy_needs_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without policy_keys"):
        async with running(tmp_path, policy_keys=[]):
            pass


@pytest.mark.parametrize("what", ["older", "unsigned", "of another key", "truncated", "flipped", "renamed", "foreign"])
async def test_22_a_bundle_that_is_wrong_is_refused_and_the_last_good_one_stays(tmp_path: Path, what: str) -> None:
    put_policy(tmp_path / "policy", 3)
    folder, good = tmp_path / "policy", policy_bytes(4)
    async with running(tmp_path) as live:
        assert not live.troubles()
        match what:
            case "older":
                (folder / "delivery-3.policy").unlink()
                put_policy(folder, 2)
            case "unsigned":
                put_policy(folder, 4, policy_bytes(4, signer=None))
            case "of another key":
                put_policy(folder, 4, policy_bytes(4, signer=OTHER))
            case "truncated":
                put_policy(folder, 4, good[: len(good) // 2])
            case "flipped":
                put_policy(folder, 4, good[:100] + bytes([good[100] ^ 1]) + good[101:])
            case "renamed":
                put_policy(folder, 4, policy_bytes(5))
            case _:
                put_policy(folder, 4, policy_bytes(4, fleet="other"))
        await wait_until(lambda: [one.code for one in live.troubles()] == ["policy-refused"], WAIT_S)
        assert "3 stays in force" in live.troubles()[0]
        assert not await live.send(ONE, Erase())
        assert await live.send(ONE, StartMission(mission="M1"))
    # Nor does a restart go back, wherever the older one comes from.
    async with running(tmp_path) as live:
        refused = await live.send(ONE, Erase())
        assert refused == st.Refused("denied by policy delivery 3: no rule allows it")


async def test_22_a_restart_does_not_go_back_behind_what_was_in_force(tmp_path: Path) -> None:
    put_policy(tmp_path / "policy", 3)
    async with running(tmp_path):
        pass
    (tmp_path / "policy" / "delivery-3.policy").unlink()
    put_policy(tmp_path / "policy", 2, policy_bytes(2, "package stigmergy\nimport rego.v1\nallow := true\n"))
    async with running(tmp_path) as live:
        assert not await live.send(ONE, Erase())
        assert [one.code for one in live.troubles()] == ["policy-refused"]


GAS = """package stigmergy

import rego.v1

default allow := false

allow if {
	input.kind == "model"
	input.fields.version in data.models
}
"""


async def test_a_bundle_of_a_model_passes_the_policy_again_when_that_changes(tmp_path: Path) -> None:
    def put(version: int, *models: str) -> None:
        data = policy_bytes(version, GAS, fleet="gas", data=json.dumps({"models": models}))
        put_policy(tmp_path / "policy", version, data, fleet="gas")

    put_bundle(tmp_path / "bundles", "1.2.0", limit=10)
    put(1, "1.2.0")
    settings = st.Settings(
        models=st.ModelSettings(look_s=0.1, hung_s=3_600), policy=st.PolicySettings(look_s=0.05, within_s=WAIT_S)
    )
    fleet = st.Fleet("gas", agents=[GasSensor], settings=settings)
    where: dict[str, Any] = {"models": f"folder:{tmp_path}/bundles", "policy": f"folder:{tmp_path}/policy"}
    keys = [GAS_SIGNER.public_key.hex()]
    async with fleet.running(journal="memory:", **where, model_keys=keys, policy_keys=KEYS) as live:

        async def measured() -> GasSensor:
            before = live.query("GasSensor/s", GasSensor).answers
            await live.observe("GasSensor/s", GasLevelSampled(co=20.0))
            await wait_until(lambda: live.query("GasSensor/s", GasSensor).answers > before, WAIT_S)
            return live.query("GasSensor/s", GasSensor)

        def loaded() -> list[str]:
            return [] if live.models is None else live.models.loaded("gas-level")

        first = (await measured()).suspected
        assert first is not None
        assert (first.version, first.policy.rpartition(" ")[0]) == ("1.2.0", "gas 1")
        put(2)
        await wait_until(lambda: not loaded(), WAIT_S)
        assert (await measured()).version == ""  # its rule has answered
        assert "denied by policy gas 2: no rule allows it" in str(live.troubles())
        put(3, "1.2.0")
        await wait_until(lambda: loaded() == ["1.2.0"], WAIT_S)
        again = (await measured()).suspected
        assert again is not None
        assert again.policy.rpartition(" ")[0] == "gas 3"


async def test_a_listing_says_which_policy_was_asked(tmp_path: Path) -> None:
    put_policy(tmp_path / "policy", 7)
    async with running(tmp_path) as live:
        assert await live.send(ONE, StartMission(mission="M1"))
        assert not await live.send(ONE, Erase())
        assert await live.send(ONE, Land())
    journal = inspect_journal(f"sqlite:{tmp_path}/node.db")
    try:
        entries = [one for one in list_log(journal, EntryFilter(agent=ONE)) if one is not None and one.kind == "answer"]
    finally:
        await journal.close()
    digest = inspect_policy(policy_bytes(7), Ed25519Verifier()).digest.hex()
    assert [one.policy for one in entries] == [f"delivery 7 {digest}", f"delivery 7 {digest}", msgspec.UNSET]
