"""What `doctor` says of a mesh, of peers and of a ledger: each check is fed what it must complain about."""

import asyncio
import socket
import time
from pathlib import Path

import apsw
import pytest

from stigmergy.app.config import FleetConfig
from stigmergy.app.fleet import make_private_key
from stigmergy.app.journals import journals_in
from stigmergy.base.errors import ConfigError, LedgerCorrupt
from stigmergy.claims import sqlite_file as looking
from stigmergy.claims.port import LedgerCheckpoint
from stigmergy.claims.sqlite_file import inspect_ledger, is_ledger
from stigmergy.claims.sqlite_ledger import open_ledger
from stigmergy.cli import fleet_checks as company
from stigmergy.cli.fleet_checks import (
    check_binding,
    check_hosts,
    check_ledger,
    check_mesh,
    check_peers,
    check_replication,
)
from stigmergy.cli.machine_checks import Finding, Mount


def levels(findings: list[Finding]) -> dict[str, str]:
    assert all(bool(finding.remedy) == (finding.level != "ok") for finding in findings)
    return {finding.check: finding.level for finding in findings}


def make_ledger(path: Path, entries: int = 5, name: str = "town") -> str:
    async def fill() -> None:
        ledger = open_ledger(f"sqlite:{path}", name)
        if entries:
            await ledger.append([f"entry {number}".encode() for number in range(entries)])
            await ledger.put_checkpoint(LedgerCheckpoint(2, b"state"))
        await ledger.close()

    asyncio.run(fill())
    return f"sqlite:{path}"


def spoil(path: Path, sql: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(sql)
    connection.close()


def test_nothing_is_said_of_what_is_not_there() -> None:
    assert list(check_replication(FleetConfig(), None)) == []


def test_a_socket_that_is_free_and_one_that_is_taken() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        found = check_binding("127.0.0.1", port, runs=False)
        assert (found.level, found.facts) == ("fail", {"at": f"127.0.0.1:{port}"})
        assert "choose another port" in found.remedy
        assert check_binding("127.0.0.1", port, runs=True).level == "ok"
    assert check_binding("127.0.0.1", port, runs=False).level == "ok"
    assert "no address of this machine" in check_binding("192.0.2.7", port, runs=False).remedy
    assert check_binding("nowhere.invalid", port, runs=False).level == "fail"


def test_hosts_of_peers() -> None:
    assert levels(list(check_hosts([]))) == {"mesh.peers": "warn"}
    assert levels(list(check_hosts(["127.0.0.1", "localhost", "127.0.0.1"]))) == {"mesh.peers": "ok"}
    (lost,) = check_hosts(["127.0.0.1", *(f"{number}.invalid" for number in range(7))])
    assert lost.level == "fail"
    assert "0.invalid" in lost.what
    assert lost.what.endswith("and 2 more")


def test_nobody_waits_for_ever_for_a_name_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(company, "LOOK_UP_S_MAX", 0.05)
    monkeypatch.setattr(company, "_look_up", lambda name, found: time.sleep(0.5))
    assert levels(list(check_hosts(["slow.example"]))) == {"mesh.peers": "fail"}


def test_a_mesh_by_its_url(tmp_path: Path) -> None:
    assert levels(list(check_mesh("carrier:pigeon", runs=False))) == {"mesh.configured": "ok"}
    assert levels(list(check_mesh("udp://127.0.0.1:0?colour=red", runs=False))) == {"mesh.configured": "fail"}
    open_mesh = "udp://127.0.0.1:0?peers=n1@127.0.0.1:7946"
    wanted = {"mesh.sealed": "warn", "mesh.binds": "ok", "mesh.peers": "ok"}
    assert levels(list(check_mesh(open_mesh, runs=False))) == wanted
    secret = tmp_path / "mesh.secret"
    secret.write_bytes(bytes(range(32)))
    secret.chmod(0o600)
    assert "mesh.sealed" not in levels(list(check_mesh(f"{open_mesh}&key_file={secret}", runs=False)))


def test_keys_of_peers(tmp_path: Path) -> None:
    make_private_key(tmp_path / "north.key")
    assert levels(list(check_peers([str(tmp_path / "north.key"), "ab" * 32]))) == {"peers.keys": "ok"}
    (found,) = check_peers([str(tmp_path / "nobody.pub")])
    assert found.level == "fail"
    assert "neither a key file nor a public key" in found.what


def test_ledgers_that_are_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert levels(list(check_ledger("memory:", None))) == {"ledger.configured": "ok"}
    assert levels(list(check_ledger("raft://hub", None))) == {"ledger.configured": "ok"}
    path = tmp_path / "ledger.db"
    (found,) = check_ledger(f"sqlite:{path}", "town")
    assert "not there yet" in found.what
    assert not path.exists()
    url = make_ledger(path, 0)
    assert levels(list(check_ledger(url, "town"))) == {"ledger.opens": "ok", "ledger.whole": "ok"}
    make_ledger(path)
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    monkeypatch.setattr(looking, "STRETCH_ENTRIES", 2)
    _, whole = check_ledger(url, "town")
    assert whole.facts == {"checked": 5, "whole": True}
    monkeypatch.setattr(company, "LEDGER_S_MAX", -1.0)
    _, whole = check_ledger(url, None)
    assert whole.facts == {"checked": 2, "whole": False}
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before
    assert is_ledger(str(path))
    assert journals_in(tmp_path) == []


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("UPDATE entries SET body = x'00' WHERE position = 3", "entry 3 is not what was written"),
        ("DELETE FROM entries WHERE position = 5", "entry 5 is not what was written"),
        ("DELETE FROM entries WHERE position = 2", "entry 2 is not what was written"),
        ("UPDATE checkpoint SET body = x'00'", "the checkpoint is not what was written"),
        ("UPDATE ledger SET last = 4", "the record of where the log begins and ends is damaged"),
        ("PRAGMA application_id = 7", "a database of another program"),
        ("PRAGMA user_version = 9", "ledger format 9"),
    ],
)
def test_a_ledger_that_was_damaged(tmp_path: Path, sql: str, said: str) -> None:
    url = make_ledger(tmp_path / "ledger.db")
    spoil(tmp_path / "ledger.db", sql)
    (found,) = check_ledger(url, "town")
    assert (found.check, found.level) == ("ledger.opens", "fail")
    assert said in found.what


def test_a_ledger_that_is_not_ours_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.db"
    url = make_ledger(path)
    (found,) = check_ledger(url, "village")
    assert "the ledger 'town', not 'village'" in found.what
    path.unlink()
    with pytest.raises(LedgerCorrupt, match="the file is gone, but its -mark is there"):
        inspect_ledger(url, None, 1.0)
    path.write_bytes(b"something else" * 100)
    assert levels(list(check_ledger(url, None))) == {"ledger.opens": "fail"}
    with pytest.raises(ConfigError, match="expected sqlite:path"):
        inspect_ledger("sqlite:", None, 1.0)
    (folder, _) = check_ledger(f"sqlite:{tmp_path / 'no' / 'ledger.db'}", None)
    assert (folder.check, folder.level) == ("ledger.folder", "fail")
    assert not is_ledger(str(tmp_path / "no"))
    monkeypatch.setattr(company, "mount_of", lambda folder, mounts: Mount("/", "nfs4", ()))
    assert levels(list(check_ledger(f"sqlite:{tmp_path / 'new.db'}", None)))["ledger.filesystem"] == "fail"


def test_a_ledger_that_somebody_writes_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = make_ledger(tmp_path / "ledger.db")
    monkeypatch.setattr(looking, "BUSY_MS", 10)
    writer = apsw.Connection(str(tmp_path / "ledger.db"))
    writer.execute("BEGIN EXCLUSIVE")
    assert levels(list(check_ledger(url, "town"))) == {"ledger.opens": "warn"}
    writer.execute("ROLLBACK")
    writer.close()
    assert levels(list(check_ledger(url, "town"))) == {"ledger.opens": "ok", "ledger.whole": "ok"}
