"""`stigmergy model rollout`, `explain EVENT` and sealed blobs on the command line, as their users type them."""

import json
from pathlib import Path
from typing import Any

from stigmergy.app.fleet import encode_public_key, make_private_key
from tests.cli.in_process import Here
from tests.models.gas import SIGNER, bundle

PROGRAM = """
import stigmergy as st
from tests.models.gas import gas_fleet

fleet = gas_fleet(settings=st.Settings(models=st.ModelSettings(look_s=0.1, hung_s=3_600)))
"""


def make(folder: Path) -> None:
    (folder / "gas.py").write_text(PROGRAM)
    (folder / "bundles").mkdir()
    (folder / "bundles" / "gas-level-1.2.0.model").write_bytes(bundle("1.2.0", 10))
    (folder / "gas-level-1.3.0.model").write_bytes(bundle("1.3.0", 9))
    toml = f'[fleet]\nmodule = "gas:fleet"\nmodels = "folder:bundles"\nmodel_keys = ["{SIGNER.public_key.hex()}"]\n'
    (folder / "stigmergy.toml").write_text(toml)


def test_a_rollout_from_the_command_line(tmp_path: Path) -> None:
    make(tmp_path)
    here = Here(tmp_path)
    try:
        here.start("gas:fleet")
        here.cli("observe", "GasSensor/a", "GasLevelSampled", "co=17.0", "--socket", "gas.db.sock")
        begin = ("model", "rollout", "begin", "gas-level", "1.3.0", "--bundle", "gas-level-1.3.0.model")
        assert "--from 1.2.0" in here.cli(*begin).stdout
        begun = here.json(*begin, "--from", "1.2.0", "--rule", "shadow_s=60")
        assert begun["accepted"]
        assert (tmp_path / "bundles" / "gas-level-1.3.0.model").exists(), "put there once it was begun"
        (shown,) = here.lines("model", "rollout", "status")
        assert (shown["stage"], shown["stable"], shown["candidate"], shown["rule"]["shadow_s"]) == (
            "shadow",
            "1.2.0",
            "1.3.0",
            60.0,
        )
        here.json("model", "rollout", "pause", "gas-level")
        assert "shadow (paused)" in here.cli("model", "rollout", "status").stdout
        assert here.json("model", "rollout", "rollback", "gas-level", "--by", "ann")["accepted"]
        assert here.cli("model", "rollout", "promote", "gas-level").returncode == 1
        table = here.cli("model", "rollout", "status", "gas-level").stdout
        assert "rolled back" in table
        assert "by ann" in table
        wrong = here.error("model", "rollout", "begin", "gas-level", "1.3.0", "--rule", "moon=1", code=2)
        assert "canary" in wrong, "it says which fields there are"
        _explain(here)
    finally:
        here.close()


def test_the_first_bundle_of_a_store(tmp_path: Path, nats_server: Any) -> None:
    """The start says how to put it there, and a node that runs takes it."""
    make(tmp_path)
    toml = (tmp_path / "stigmergy.toml").read_text().replace("folder:bundles", nats_server.url)
    (tmp_path / "stigmergy.toml").write_text(toml)
    renamed = tmp_path / "newest.model"
    renamed.write_bytes(bundle("1.2.0", 10))
    (tmp_path / "unsigned.model").write_bytes(bundle("1.2.0", 10, signer=None))
    here = Here(tmp_path)
    try:
        here.start("gas:fleet")
        said = f"stigmergy model put BUNDLE --models {nats_server.url}"
        refused = here.cli("model", "rollout", "begin", "gas-level", "1.2.0", "--bundle", "newest.model")
        assert "stigmergy model put BUNDLE" in refused.stdout
        assert "nobody has signed it" in here.error("model", "put", "unsigned.model", code=1)
        put = here.json(*said.replace("BUNDLE", "newest.model").split()[1:])
        assert (put["file"], put["version"]) == ("gas-level-1.2.0.model", "1.2.0"), "under the name nodes look for"
        version = ""
        while version != "1.2.0":
            here.cli("observe", "GasSensor/a", "GasLevelSampled", "co=17.0", "--socket", "gas.db.sock")
            version = here.json("state", "GasSensor/a")["state"]["version"]
    finally:
        here.close()


def _explain(here: Here) -> None:
    """From the node that runs: the chain behind each event of the sensor."""
    entries = here.lines("log", "show", "GasSensor/a")
    (alarm,) = [one for one in entries if one["type"] == "GasLevelHigh@1"]
    place = f"{alarm['shard']}:{alarm['position']}.{alarm['index']}"
    chain = here.json("explain", place)
    assert chain["sensed"]["type"] == "GasLevelSampled@1"
    assert chain["asked"]["model"] == "gas-level"
    assert chain["source"]["version"] == "1.2.0"
    assert next(one["type"] for one in chain["decided"]) == "GasLevelHigh@1"
    lines = here.cli("explain", place).stdout
    assert [line.split()[0] for line in lines.splitlines()][:3] == ["sensed", "asked", "inferred"]
    assert "there is no event" in here.error("explain", "0:999999.9", code=2)


def test_evidence_for_a_reader(tmp_path: Path) -> None:
    here = Here(tmp_path)
    key, photo = make_private_key(tmp_path / "inspector.key"), b"the plate was B-GH 4711 " * 100_000
    (tmp_path / "inspector.pub").write_text(encode_public_key(key.public) + "\n")
    (tmp_path / "plate.jpg").write_bytes(photo)
    put = here.json("blob", "put", "plate.jpg", "--type", "image/jpeg", "--reader", "inspector.pub", "--name", "gas")
    stored = b"".join(path.read_bytes() for path in (tmp_path / "gas.db-blobs").rglob("*") if path.is_file())
    assert b"plate was" not in stored
    got = here.json("blob", "get", put["digest"][:8], "--to", "out.jpg", "--with", "inspector.key", "--name", "gas")
    assert json.loads(json.dumps(got))["file"] == "out.jpg"
    assert (tmp_path / "out.jpg").read_bytes() == photo
    without = here.cli("blob", "get", put["digest"][:8], "--to", "sealed.bin", "--name", "gas")
    assert "verified, and still sealed: its reader opens it, with --with KEY" in without.stdout + without.stderr
    make_private_key(tmp_path / "other.key")
    wrong = here.cli("blob", "get", put["digest"][:8], "--to", "no.jpg", "--with", "other.key", "--name", "gas")
    assert wrong.returncode == 2
    assert "another reader" in wrong.stderr
    assert not list(tmp_path.glob("no.jpg*"))
