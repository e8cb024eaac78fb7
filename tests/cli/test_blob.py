"""`stigmergy blob` beside a journal, without a running node."""

from pathlib import Path

from tests.cli.conftest import Folder
from tests.cli.test_documented import documented


def test_put_get_list(here: Folder) -> None:
    path: Path = here.path
    (path / "map.bin").write_bytes(bytes(3_000_000))
    put = here.json("blob", "put", "map.bin", "--type", "application/x-map", "--fleet", "drone:fleet")
    assert set(put) == documented("blob put") - {"file"}
    digest = put["digest"]
    assert put["blob"]["size_bytes"] == 3_000_000
    got = here.json("blob", "get", digest[:8], "--to", "copy.bin", "--name", "delivery")
    assert set(got) == documented("blob get") - {"store"}
    assert (path / "copy.bin").read_bytes() == bytes(3_000_000)
    listed = here.json("blob", "list", "--name", "delivery")
    assert set(listed) == documented("blob list")
    assert [(one["digest"], one["type"]) for one in listed["blobs"]] == [(digest, "application/x-map")]
    collected = here.json("blob", "gc", "--name", "delivery")
    assert set(collected) == documented("blob gc")
    assert (collected["blobs"], collected["deleted"], collected["owners"]) == (1, 0, 0)
    assert "no node has told" in here.cli("blob", "gc", "--dry-run", "--name", "delivery").stderr
    assert "there are: none" in here.cli("blob", "gc", "--forget", "a/b/1", "--name", "delivery").stderr
    assert "1 blob, 2.9 MiB of 8.0 GiB" in here.cli("blob", "list", "--name", "delivery").stderr


def test_mistakes_are_one_sentence(here: Folder) -> None:
    for arguments, said in (
        (("blob",), "say what to do"),
        (("blob", "list"), "of which fleet"),
        (("blob", "put", "none.bin", "--name", "delivery"), "cannot be read"),
        (("blob", "get", "zz", "--to", "x", "--name", "delivery"), "hexadecimal"),
        (("blob", "get", "ab", "--to", "x", "--name", "delivery"), "has no blob ab"),
        (("blob", "list", "--name", "delivery", "--store", "folder:nowhere"), "no such folder"),
    ):
        done = here.cli(*arguments)
        assert done.returncode != 0
        assert said in done.stderr.replace("\n", " "), done.stderr
