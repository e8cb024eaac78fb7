"""The authority of a fleet, from the command line."""

import json
import subprocess
import sys

from stigmergy.nats.servers.configuration import ServerTlsFiles
from stigmergy.pki.enrolment import install, read_identity, request_for
from stigmergy.pki.names import subject_of
from stigmergy.testing.nats import start_single
from tests.cli.conftest import Folder
from tests.cli.test_up import eventually
from tests.pki.members import Members

PROGRAM = [sys.executable, "-m", "stigmergy"]


def test_on_one_machine(here: Folder) -> None:
    assert here.json("ca", "init", "town")["fleet"] == "town"
    assert "never replaced" in here.error("ca", "init", "town", code=2)
    assert here.json("ca", "issue", "server", "hub", "--host", "hub-1")["identity"] == "stigmergy://town/server/hub"
    here.json("keys", "new", "north.key")
    here.json("ca", "issue", "node", "north", "--key", "north.key", "--days", "30")
    public = here.json("keys", "show", "north.key")["public_key"]
    assert read_identity(here.path / "north").signing_key.hex() == public
    assert not (here.path / "north" / "signing.key").exists(), "it is where it was"
    assert "use the key that it had" in here.error("ca", "renew", "north", code=4)
    here.json("ca", "renew", "north", "--key", "north.key")
    assert "has a certificate already" in here.error("ca", "issue", "node", "north", "--to", "again", code=4)
    assert here.json("ca", "revoke", "north")["revoked"] is True
    assert "for good" in here.error("ca", "renew", "north", "--key", "north.key", code=4)
    members = {one["name"]: one for one in here.json("ca", "list")["members"]}
    assert members["north"]["signing_key"] == public
    assert len(members["north"]["serials"]) == 2
    assert (members["hub"]["hosts"], members["hub"]["state"]) == (["hub-1"], "valid")
    shown = here.cli("ca", "list").stdout
    assert "revoked" in shown
    assert "PRIVATE" not in shown + here.cli("ca", "list", "--json").stdout


def test_on_two_machines(here: Folder) -> None:
    here.json("ca", "init", "town", "--ca", "far/ca", "--days", "400")
    asked = here.json("ca", "request", "device", "lamp", "--fleet", "town", "--to", "near")
    sent = (here.path / "near" / "request.pem").read_bytes()
    assert b"PRIVATE" not in sent
    (here.path / "far" / "request.pem").write_bytes(sent)
    answer = here.json("ca", "issue", "--request", "far/request.pem", "--ca", "far/ca")["answer"]
    assert here.json("ca", "install", "near", answer)["identity"] == asked["identity"] == "stigmergy://town/device/lamp"
    here.json("ca", "request", "--renew", "near")
    here.json("ca", "renew", "--request", "near/request.pem", "--ca", "far/ca")
    before = read_identity(here.path / "near").serial
    here.json("ca", "install", "near", "near/request.crt")
    assert read_identity(here.path / "near").serial != before
    assert [path.name for path in (here.path / "near").glob("*.key")] == []


def test_what_is_refused(here: Folder) -> None:
    here.json("ca", "init", "town")
    assert "stigmergy ca init" in here.error("ca", "list", "--ca", "nowhere", code=2)
    assert "letters" in here.error("ca", "issue", "node", "../ca", code=2)
    assert "--host" in here.error("ca", "issue", "server", "hub", code=2)
    assert "for whom" in here.error("ca", "issue", code=2)
    assert "--fleet town" in here.error("ca", "request", "node", "north", code=2)
    assert "whose" in here.error("ca", "renew", code=2)
    assert "ends on" in here.error("ca", "issue", "node", "north", "--days", "5000", code=2)
    assert "no request" in here.error("ca", "issue", "--request", "ca/ca.pem", code=4)
    here.json("ca", "request", "node", "north", "--fleet", "village", "--to", "v")
    assert "ask that of its own fleet" in here.error("ca", "issue", "--request", "v/request.pem", code=4)
    assert json.loads((here.path / "ca" / "ca.json").read_text())["members"] == {}


def test_the_doctor_judges_an_identity(here: Folder) -> None:
    here.json("ca", "init", "town")
    here.json("ca", "issue", "node", "north")
    (here.path / "stigmergy.toml").write_text('[fleet]\nidentity = "north"\n')

    def found() -> dict[str, str]:
        checks = json.loads(here.cli("doctor", "--json").stdout)["checks"]
        return {one["check"]: one["level"] for one in checks if one["check"].startswith("identity.")}

    assert found() == {"identity.valid": "ok", "identity.key": "ok"}
    here.json("keys", "new", "other.key")
    (here.path / "stigmergy.toml").write_text('[fleet]\nidentity = "north"\nkey = "other.key"\n')
    assert found() == {"identity.valid": "ok", "identity.key": "warn"}
    (here.path / "north" / "signing.key").chmod(0o644)
    assert found()["identity.files"] == "fail"
    (here.path / "north" / "signing.key").chmod(0o600)
    here.json("ca", "renew", "north", "--days", "0.01")  # less than a third is left: an hour of it is for slow clocks
    assert found()["identity.valid"] == "warn"
    (here.path / "north" / "identity.pem").chmod(0o640)
    assert found()["identity.valid"] == "fail"


def test_a_node_renews_its_own_certificate(folder: Folder) -> None:
    """Over the servers of its bus, where somebody has the authority."""
    town = Members(folder.path / "town")
    files, desk, north = town.server(), town.issue("node", "desk"), town.folder / "north"
    subject = subject_of("town", "node", "north")
    short = town.authority.issue(request_for(north, subject), days=0.01)
    before = install(north, short, town.authority.certificate)
    with start_single(town.folder / "server", tls=ServerTlsFiles(files.cert, files.key, files.ca)) as cluster:
        url = cluster.url.replace("nats:", "tls:")
        serving = subprocess.Popen(
            [*PROGRAM, "ca", "serve", "--nats", url, "--identity", str(desk), "--ca", "town/ca", "--json"],
            cwd=folder.path,
            stdout=subprocess.PIPE,
        )
        try:
            assert serving.stdout is not None
            assert json.loads(serving.stdout.readline())["event"] == "serving"
            options = ("drone:fleet", "--bus", url, "--node", "north", "--identity", str(north))
            node = folder.start(*options)
            eventually(lambda: read_identity(north).until_s > before.until_s + 80 * 86_400)
            assert node.end()[0] == 0
        finally:
            serving.terminate()
            serving.communicate()
