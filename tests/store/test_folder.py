"""Objects in a folder, beyond the contract: folders that are not there, damage, what a killed process leaves."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from stigmergy.base.errors import Bug, ConfigError, StoreConflict, StoreCorrupt, StoreUnavailable
from stigmergy.base.system import SystemClock
from stigmergy.store.folder import open_store

CLOCK = SystemClock()


def file_of(folder: Path, version: int) -> Path:
    """Where a version is."""
    return next(folder.rglob(f"*{version}.object"))


@pytest.mark.parametrize("url", ["folder:", "file:/tmp", "/tmp"])
async def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ConfigError):
        await open_store(url, CLOCK)


async def test_a_folder_has_no_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no keys"):
        await (await open_store(f"folder:{tmp_path}", CLOCK)).key_value("b")


async def test_a_folder_that_is_not_mounted_is_not_made(tmp_path: Path) -> None:
    objects = await (await open_store(f"folder:{tmp_path / 'peer'}", CLOCK)).objects("b")
    with pytest.raises(StoreUnavailable, match="mounted"):
        await objects.put("a", b"1")
    assert not (tmp_path / "peer").exists()
    (tmp_path / "peer").mkdir()
    await objects.put("a", b"1")
    assert await objects.get("a") == b"1"


async def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    objects = await (await open_store(f"folder:{tmp_path}", CLOCK)).objects("b")
    (tmp_path / "b").write_text("a file where a folder should be")
    with pytest.raises(StoreUnavailable):
        await objects.put("a", b"1")


async def test_damage_is_found_out(tmp_path: Path) -> None:
    store = await open_store(f"folder:{tmp_path}", CLOCK)
    objects = await store.objects("b")
    good = await objects.put("a", b"good", versions_kept=4)
    for content in (b"nothing", b'{"name": 1}\nabc', b"", None):
        put = await objects.put("a", b"damaged", versions_kept=4)
        path = file_of(tmp_path, put.version)
        path.write_bytes(path.read_bytes()[:-1] + b"x" if content is None else content)
        with pytest.raises(StoreCorrupt, match="take another"):
            await objects.get("a", put.version)
        await objects.delete("a", put.version)
    assert await objects.get("a", good.version) == b"good"
    path = file_of(tmp_path, good.version)
    path.rename(path.with_name(f"{7:020d}.object"))
    with pytest.raises(StoreCorrupt, match="another version"):
        await objects.versions("a")
    await store.close()
    with pytest.raises(Bug):
        await objects.get("a")


async def test_versions_that_others_delete_meanwhile_are_not_missed(tmp_path: Path) -> None:
    objects = await (await open_store(f"folder:{tmp_path}", CLOCK)).objects("b")
    other = await (await open_store(f"folder:{tmp_path}", CLOCK)).objects("b")

    async def put_many() -> None:
        for number in range(60):
            await other.put("a", b"%d" % number)

    putting = asyncio.ensure_future(put_many())
    seen: list[bytes] = []
    while not putting.done():
        assert len(await objects.versions("a")) <= 2
        assert await objects.names() in ([], ["a"])
        with contextlib.suppress(StoreConflict):
            seen.append(await objects.get("a") or b"")
    await putting
    assert await objects.get("a") == b"59"
    assert seen


async def test_what_a_killed_process_has_left_is_no_version(tmp_path: Path) -> None:
    objects = await (await open_store(f"folder:{tmp_path}", CLOCK)).objects("b")
    put = await objects.put("a", b"1")
    (file_of(tmp_path, put.version).parent / "0123456789abcdef.new").write_bytes(b"half of")
    assert await objects.versions("a") == [put]
    assert await objects.names() == ["a"]
