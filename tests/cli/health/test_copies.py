"""Stores of copies that answer and those that do not, with copies that are there, old or missing."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from stigmergy.agents.codec import encode
from stigmergy.audit.copy_format import CopyManifest
from stigmergy.base.system import SystemClock
from stigmergy.cli.fleet_checks import check_copies
from stigmergy.nats.naming import copies_bucket
from stigmergy.store.folder import open_store

MANIFEST = CopyManifest(1, 1, "town", 1, 7, None, "", "north/n1", 1, [])


def put(folder: Path) -> None:
    async def main() -> None:
        objects = await (await open_store(f"folder:{folder}", SystemClock())).objects(copies_bucket("town"))
        await objects.put("north/n1", encode(MANIFEST))

    asyncio.run(main())


def levels(folder: Path, fleet: str | None = "town", now_ns: int | None = None) -> list[tuple[str, str]]:
    now = time.time_ns() if now_ns is None else now_ns
    found = check_copies([f"folder:{folder}"], fleet, "north/n1", now)
    return [(one.check, one.level) for one in found]


def test_what_is_found(tmp_path: Path) -> None:
    assert levels(tmp_path / "missing") == [("copies.reachable", "fail")]
    assert levels(tmp_path, fleet=None) == [("copies.configured", "ok")]
    assert levels(tmp_path) == [("copies.newest", "warn")]
    assert list(tmp_path.iterdir()) == [], "who looks makes nothing"
    put(tmp_path)
    assert levels(tmp_path) == [("copies.newest", "ok")]
    assert levels(tmp_path, now_ns=time.time_ns() + 7_200 * 10**9) == [("copies.newest", "warn")]
    (unknown,) = check_copies(["ftp://me:word@x"], "town", "north/n1", time.time_ns())
    assert unknown.level == "fail"
    assert "word" not in unknown.what + unknown.remedy
