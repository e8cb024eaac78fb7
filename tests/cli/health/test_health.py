"""The checks of `doctor`, each fed what it must complain about: a check that cannot fail checks nothing."""

import errno
import os
import socket
from pathlib import Path

import pytest

from stigmergy.app.fleet import make_private_key, read_private_key
from stigmergy.cli import machine_checks as disk
from stigmergy.cli import machine_checks as limits
from stigmergy.cli.fleet_checks import check_archive, check_bus, check_key
from stigmergy.cli.machine_checks import (
    Finding,
    Mount,
    check_clocks,
    check_file_system,
    check_files,
    check_libraries,
    check_room,
    check_syncs,
    check_versions,
    check_writing,
    is_synchronised,
    mount_of,
)

LINE = "36 35 98:0 /mnt1 /mnt/with\\040blank rw,noatime master:1 - ext4 /dev/root rw,errors=continue,nobarrier"


def levels(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.level for finding in findings}


def test_mounts_are_read_and_the_nearest_one_counts() -> None:
    mount = disk.parse_mount(LINE)
    assert mount == Mount("/mnt/with blank", "ext4", ("rw", "noatime", "errors=continue", "nobarrier"))
    assert disk.parse_mount("nonsense") is None
    mounts = [Mount("/", "ext4", ()), Mount("/data", "xfs", ()), Mount("/data", "tmpfs", ()), Mount("/dat", "nfs", ())]
    assert mount_of(Path("/data/fleet"), mounts) == mounts[2]
    assert mount_of(Path("/other"), mounts) == mounts[0]
    assert mount_of(Path("/x"), []) is None


@pytest.mark.parametrize(
    ("kind", "options", "level"),
    [
        ("ext4", ("rw",), "ok"),
        ("ext4", ("ro",), "fail"),
        ("ext4", ("rw", "nobarrier"), "fail"),
        ("ext3", ("rw", "barrier=0"), "fail"),
        ("tmpfs", ("rw",), "fail"),
        ("overlay", ("rw",), "warn"),
        ("nfs4", ("rw",), "warn"),
        ("fuse.sshfs", ("rw",), "warn"),
        ("vfat", ("rw",), "warn"),
    ],
)
def test_kinds_of_file_systems(kind: str, options: tuple[str, ...], level: str) -> None:
    finding = check_file_system(Mount("/data", kind, options))
    assert finding.level == level
    assert bool(finding.remedy) == (level != "ok")


@pytest.mark.parametrize(
    ("taken_s", "level"),
    [([2e-6] * 5, "warn"), ([1e-3] * 5, "ok"), ([0.2] * 5, "warn"), ([1e-3, 1e-3, 3.0], "fail")],
)
def test_syncs_that_are_too_quick_or_too_slow(taken_s: list[float], level: str) -> None:
    assert check_syncs(taken_s, 5.0).level == level


def test_a_folder_is_written_to_and_left_as_it_was(tmp_path: Path) -> None:
    found = list(check_writing(tmp_path, 5.0))
    assert levels(found)["disk.writable"] == "ok"
    assert list(tmp_path.iterdir()) == []
    missing = list(check_writing(tmp_path / "nothing", 5.0))
    assert levels(missing) == {"disk.writable": "fail"}
    assert levels(list(disk.check_disk(tmp_path / "nothing", 0, 5.0))) == {"disk.folder": "fail"}


@pytest.mark.parametrize(("number", "remedy"), [(errno.ENOSPC, "fix that first"), (errno.EACCES, "the right to")])
def test_the_remedy_fits_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def fail(path: Path) -> list[float]:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(disk, "measure_syncs", fail)
    (found,) = check_writing(tmp_path, 5.0)
    assert remedy in found.remedy


def test_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def room(free: int, names: int) -> dict[str, str]:
        values = (4096, 4096, 0, 0, free // 4096, 100, names, names, 0, 255)
        monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(values))
        return levels(list(check_room(tmp_path, 64 << 20)))

    assert room(1 << 30, 10**6) == {"disk.free": "ok", "disk.inodes": "ok"}
    assert room(32 << 20, 10) == {"disk.free": "warn", "disk.inodes": "warn"}
    assert room(1 << 20, 10**6)["disk.free"] == "fail"


def test_clocks() -> None:
    def found(year_s: int, ticks: list[int], kept: bool | None) -> dict[str, str]:
        steps = iter(ticks * 1_000)
        return levels(list(check_clocks(lambda: year_s * 10**9, lambda: next(steps), lambda: kept)))

    assert found(1_800_000_000, [5], True) == {
        "clock.wall": "ok",
        "clock.synchronised": "ok",
        "clock.monotonic": "ok",
    }
    assert found(0, [5], None)["clock.wall"] == "fail"
    assert found(1_800_000_000, [5], False)["clock.synchronised"] == "warn"
    assert found(1_800_000_000, [5, 4], None)["clock.monotonic"] == "fail"
    assert is_synchronised() in (True, False, None)


def test_versions() -> None:
    assert all(level in ("ok", "warn") for level in levels(list(check_versions())).values())
    found = levels(list(check_libraries(["msgspec>=999", "no-such-thing>=1", "rich>=1", "x>=1; extra == 'y'"])))
    assert found == {"versions.msgspec": "fail", "versions.no-such-thing": "fail", "versions.libraries": "ok"}


def test_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert check_files(64).level == "warn"
    assert check_files(4096).level == "ok"
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:    1000 kB\n")
    monkeypatch.setattr(limits, "MEMORY", tmp_path / "meminfo")
    assert levels(list(limits.check_limits()))["limits.memory"] == "warn"
    monkeypatch.setattr(limits, "MEMORY", tmp_path / "nothing")
    assert "limits.memory" not in levels(list(limits.check_limits()))


def test_a_broker_is_looked_for_and_no_secret_is_told() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        (found,) = check_bus(f"mqtt://user:hunter2@127.0.0.1:{port}")
        assert (found.check, found.level) == ("bus.reachable", "ok")
        assert "hunter2" not in str(found)
    (closed,) = check_bus(f"mqtt://user:hunter2@127.0.0.1:{port}")
    assert closed.level == "fail"
    assert "hunter2" not in str(closed)
    (nameless,) = check_bus("mqtt:")
    assert nameless.level == "fail"
    (unresolved,) = check_bus("mqtt://no-such-host.invalid")
    assert unresolved.level == "fail"
    secrecy, _ = check_bus("mqtt://user:hunter2@no-such-host.invalid")
    assert (secrecy.check, secrecy.level) == ("bus.secrecy", "warn")
    assert "hunter2" not in str(secrecy)
    for url in (None, "memory:fleet"):
        assert [finding.level for finding in check_bus(url)] == ["ok"]


def test_keys(tmp_path: Path) -> None:
    path = tmp_path / "fleet.key"
    assert levels(list(check_key(path, None))) == {"keys.file": "ok"}
    assert levels(list(check_key(path, {b"x": None}))) == {"keys.file": "fail"}
    make_private_key(path)
    public = read_private_key(path).public.key
    assert set(levels(list(check_key(path, {public: None}))).values()) == {"ok"}
    assert levels(list(check_key(path, {public: 7})))["keys.journal"] == "fail"
    assert levels(list(check_key(path, {b"other": None})))["keys.journal"] == "fail"
    path.chmod(0o644)
    assert levels(list(check_key(path, None))) == {"keys.mode": "fail"}
    path.chmod(0o600)
    path.write_text("scribble")
    assert levels(list(check_key(path, None)))["keys.file"] == "fail"


def test_an_archive_that_cannot_be_written(tmp_path: Path) -> None:
    assert check_archive(str(tmp_path / "made" / "later")).level == "ok"
    (tmp_path / "file").write_text("")
    assert check_archive(str(tmp_path / "file")).level == "fail"
    assert check_archive("s3://i:s@logs?endpoint=http://127.0.0.1:1").level == "fail"
