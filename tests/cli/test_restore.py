"""A node that is killed and loses its disk comes back from its copies, on a real server and from a folder."""

import asyncio
import re
import shutil
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from stigmergy.app.copies import CopiesAt
from stigmergy.audit.copy_format import CopiedShard, CopyManifest
from stigmergy.audit.restore import CopyFound, find_copies
from stigmergy.cli.main import main
from stigmergy.cli.stores.restore import Listed, by_age
from stigmergy.shard.commit import Head
from stigmergy.testing.nats import NatsCluster, start_single
from tests.cli.conftest import Folder
from tests.formats.manual import DOCS, tables

COPIED_S_MAX = 240.0
CONFIG = """
[fleet]
module = "drone:fleet"
node = "n1"
site = "north"
copies = ["{nats}", "folder:peer"]

[settings.snapshots]
every_events = 4
tail_ratio = 0.0
[settings.copies]
every_s = 0.1
point_every_s = 0.5
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with start_single(tmp_path_factory.mktemp("server")) as single:
        yield single


def fly(folder: Folder, missions: range) -> None:
    for number in missions:
        fields = {"mission": f"M{number}"}
        folder.ask(do="send", agent=f"Drone/D-{number % 5}", command="StartMission", fields=fields)


def missions(folder: Folder) -> dict[str, str]:
    return {f"D-{number}": folder.ask(do="state", agent=f"Drone/D-{number}")["state"]["mission"] for number in range(5)}


def wait_copied(folder: Folder, store: str) -> CopyFound:
    """Until a copy has all commits of the node; returns it."""
    return asyncio.run(_wait_copied(folder, store))


async def _wait_copied(folder: Folder, store: str) -> CopyFound:
    deadline_s = time.monotonic() + COPIED_S_MAX
    while time.monotonic() < deadline_s:
        commits = folder.ask(do="status")["commits"]
        async with CopiesAt(store, "delivery") as objects:
            found = await find_copies(objects)
        if found and found[-1].manifest is not None and found[-1].manifest.commits >= commits:
            return found[-1]
        await asyncio.sleep(0.05)
    raise AssertionError(folder.ask(do="status")["troubles"])


def wait_told(folder: Folder, commits: int) -> dict[str, Any]:
    """Until the node says that every copy has so many commits: a store has a copy a moment before the node knows it."""
    deadline_s = time.monotonic() + COPIED_S_MAX
    while time.monotonic() < deadline_s:
        status: dict[str, Any] = folder.ask(do="status")
        if all(one["made"] and one["commits"] >= commits for one in status["copies"]):
            return status
        time.sleep(0.05)
    raise AssertionError(folder.ask(do="status")["copies"])


def lose_the_disk(folder: Folder) -> None:
    for path in folder.path.glob("delivery.db*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_a_killed_node_without_its_disk_comes_back(here: Folder, server: NatsCluster) -> None:
    (here.path / "peer").mkdir()
    (here.path / "stigmergy.toml").write_text(CONFIG.format(nats=server.url), encoding="utf-8")
    node = here.start("drone:fleet")
    fly(here, range(40))
    before = missions(here)
    peer = f"folder:{here.path / 'peer'}"
    on_nats = wait_copied(here, server.url).manifest
    assert on_nats is not None
    wait_copied(here, peer)
    status = wait_told(here, on_nats.commits)
    assert status["troubles"] == []
    assert [one["store"] for one in status["copies"]] == [server.url, peer]
    (sentence,) = re.findall(r"^- `copies`, of a node(.*)$", (DOCS / "control.md").read_text(), re.MULTILINE)
    assert set(re.findall(r"`([a-z_]+)`", sentence)) == set(status["copies"][0])
    node.end(signal.SIGKILL)
    lose_the_disk(here)

    listed = here.json("restore")
    assert {one["store"] for one in listed["copies"]} == {server.url, peer}
    public = here.path / "delivery.key"
    restored = here.json("restore", "--copies", server.url, "--to", "delivery.db", "--key", str(public))
    assert {*listed, *restored, *listed["copies"][0]} == documented_keys()
    assert (restored["node"], restored["commits"]) == ("north/n1", on_nats.commits)
    assert restored["incarnation"] != on_nats.incarnation
    assert "never overwrites" in here.error("restore", "--copies", peer, "--to", "delivery.db", code=2)

    here.start("drone:fleet")
    assert missions(here) == before
    fly(here, range(40, 45))
    assert missions(here)["D-0"] == "M40"


def test_a_second_key_takes_over_after_the_disk_took_the_first(here: Folder) -> None:
    """The key beside the journal is lost with it, and no other key could ever run what was restored."""
    (here.path / "peer").mkdir()
    (here.path / "stigmergy.toml").write_text(CONFIG.replace('"{nats}", ', ""), encoding="utf-8")
    here.json("keys", "new", "recovery.key")
    node = here.start("drone:fleet")
    (here.path / "delivery.pub").write_text(here.json("keys", "show", "delivery.key")["line"] + "\n")
    here.json("keys", "rotate", "--new", here.json("keys", "show", "recovery.key")["line"])
    fly(here, range(10))
    before = missions(here)
    wait_copied(here, f"folder:{here.path / 'peer'}")
    node.end(signal.SIGKILL)
    lose_the_disk(here)
    for path in here.path.glob("delivery.key*"):
        path.unlink()
    here.json("keys", "new", "stranger.key")

    assert "but of north/n1; say one" in here.error("restore", "--node", "n1", "--to", "delivery.db", code=2)
    restored = here.cli("restore", "--to", "delivery.db")
    recovery = here.json("keys", "show", "recovery.key")["fingerprint"]
    assert "to run the node, give the private key" in restored.stderr
    assert recovery in restored.stderr
    said = here.error("run", "--key", "stranger.key", "--trust", "delivery.pub", code=4)
    assert "not be continued: start a new journal" in said
    node = here.start("drone:fleet", "--key", "recovery.key", "--trust", "delivery.pub")
    assert missions(here) == before
    fly(here, range(10, 15))
    here.json("keys", "revoke", "delivery.pub")
    node.end()
    found = here.json("log", "verify", "--key", "delivery.pub")
    assert found["sound"] is True
    assert [one["revoked_after"] is None for one in found["signers"]] == [False, True]
    here.start("drone:fleet", "--key", "recovery.key")
    assert missions(here)["D-0"] == "M10"


def documented_keys() -> set[str]:
    """All keys of the command in the manual, those in brackets too."""
    (row,) = [row for row in tables("cli.md")["Output"] if row[0] == "`restore`"]
    return set(re.findall(r"`([a-z_]+)`", row[1]))


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> str:
    """What a command writes to stderr, run in this process."""
    assert main(arguments) == code
    return capsys.readouterr().err


def test_what_is_wrong_is_said(
    here: Folder, server: NatsCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here.path)
    nobody = ("restore", "--name", "nobody", "--copies")
    assert "where are the copies" in said(capsys, "restore", "--name", "nobody", code=2)
    assert "no adapter" in said(capsys, *nobody, "ftp://x", code=2)
    assert "of which fleet" in said(capsys, "restore", "--copies", server.url, code=2)
    assert "no copies of nobody" in said(capsys, *nobody, server.url, code=0)
    assert "no copy here" in said(capsys, *nobody, server.url, "--to", "x.db", code=2)
    assert not (here.path / "x.db").exists()
    assert "mounted" in said(capsys, *nobody, "folder:missing", code=3)
    both = said(capsys, *nobody, "folder:missing", "--copies", server.url, code=0)
    assert "mounted" in both
    assert "no copies of nobody" in both


def test_a_store_out_of_reach_is_among_the_troubles(here: Folder) -> None:
    (here.path / "stigmergy.toml").write_text(CONFIG.format(nats="folder:elsewhere"), encoding="utf-8")
    here.start("drone:fleet")
    fly(here, range(3))
    deadline_s = time.monotonic() + COPIED_S_MAX
    found: list[str] = []
    while len(found) < 2:
        assert time.monotonic() < deadline_s, found
        found = [one for one in here.ask(do="status")["troubles"] if "copies at" in one]
        time.sleep(0.05)
    assert all("mounted" in one for one in found)
    fly(here, range(3, 6))


def listed(url: str, version: int, made_ns: int, commits: int, incarnation: int = 1) -> Listed:
    copied = [CopiedShard(Head(0, 0, 0, b""), Head(0, commits, 0, b""), [], [])]
    manifest = CopyManifest(1, 1, "town", 1, incarnation, None, "", "local/n1", made_ns, copied)
    return Listed(url, CopyFound("local/n1", version, made_ns, manifest))


def test_the_newest_copy_is_not_told_by_a_clock_that_was_wrong() -> None:
    """A node that boots in 1970 writes its copies with times before all others."""
    before, booted = listed("a", 4, 1_800, 100), listed("a", 5, 70, 120)
    assert by_age([before, booted])[-1] is booted
    ahead = listed("b", 9, 60, 130)
    assert by_age([before, booted, ahead])[-1] is ahead
    assert by_age([ahead, before, booted])[-1] is ahead
    unreadable = Listed("c", CopyFound("local/n1", 1, 9_999, None, "damaged"))
    assert by_age([before, unreadable, booted])[-1] is booted
    another_life = listed("d", 1, 2_000, 3, incarnation=2)
    assert by_age([another_life, before, booted])[-1] is another_life
