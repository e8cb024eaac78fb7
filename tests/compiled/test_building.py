"""Tests how programs become machine code: compiled once, loaded from then on, never from what is not ours."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stigmergy.base.errors import Bug, ConfigError
from stigmergy.compiled import builder as building
from stigmergy.compiled import builder as store
from stigmergy.compiled.builder import ProgramCache, build, cache_folder, processor
from tests.compiled.tiny import SOURCE, run, tiny_program

ROOT = Path(__file__).resolve().parents[2]
RESULT = [7, 6, 5]
NOBODY = 65534


def silent(text: str) -> None:
    raise AssertionError(f"said {text!r}")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny program in it. Not to be changed."""
    folder = tmp_path_factory.mktemp("compiled") / "cache"
    build(tiny_program(), lambda _: None, folder)
    return folder


@pytest.fixture
def cache(compiled: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(compiled, tmp_path / "cache"))


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that other users can reach too."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def files(cache: Path) -> list[Path]:
    """The compiled code."""
    return sorted(cache.glob("*/*.code"))


def start(folder: Path, *arguments: str, umask: int = -1, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.compiled.tiny", str(folder), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **environment},
        stdout=subprocess.PIPE,
        text=True,
        umask=umask,
    )


def outcome(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    told: dict[str, Any] = json.loads(output)
    assert told["result"] == RESULT
    return told


# ---- once


def test_compiles_once_and_says_so_and_loads_from_then_on(tmp_path: Path) -> None:
    said: list[str] = []
    built = build(tiny_program(), said.append, tmp_path / "cache")
    assert said[0] == "compiling Drone for this machine, once; takes some seconds"
    assert said[1].startswith("compiled in ")
    assert said[1].endswith(f"s, kept in {built.folder}")
    assert built.compiled
    assert built.folder is not None
    assert (built.folder / "program.py").read_text() == SOURCE
    again = build(tiny_program(), silent, tmp_path / "cache")
    assert (again.compiled, again.folder) == (False, built.folder)
    assert run(built) == run(again) == RESULT


def test_another_process_loads_without_a_compiler(cache: Path) -> None:
    told = outcome(start(cache))
    assert (told["said"], told["compiled"], told["whole_numba"]) == ([], False, False)


def test_other_source_is_other_code(cache: Path) -> None:
    said: list[str] = []
    other = build(tiny_program(SOURCE.replace("end - start", "end + start")), said.append, cache)
    assert run(other) == [11, 6, 5]
    assert other.compiled
    assert len(list(cache.iterdir())) == 2


def test_code_of_ours_that_the_source_imports_counts_as_source() -> None:
    source = "import stigmergy.agents.codec\nfrom stigmergy.agents import columns, messages\nimport numpy\n"
    assert building._imported(source) == ["stigmergy.agents", "stigmergy.agents.codec"]


@pytest.mark.prove
def test_two_at_once_do_each_other_no_harm(tmp_path: Path) -> None:
    both = [start(tmp_path / "cache") for _ in range(2)]
    assert [outcome(process)["folder"] for process in both] == [str(next((tmp_path / "cache").iterdir()))] * 2
    names = sorted(path.name for path in next((tmp_path / "cache").iterdir()).iterdir())
    assert len(names) == 3
    assert not build(tiny_program(), silent, tmp_path / "cache").compiled


def test_what_numba_does_not_take_is_a_bug_of_ours(tmp_path: Path) -> None:
    with pytest.raises(Bug, match=r"leave Tiny\.kind-1 out of compiled="):
        build(tiny_program(SOURCE.replace("end - start", "end.nothing")), lambda _: None, tmp_path)


def test_versions_that_nobody_uses_any_more_go(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FOLDERS_PER_KIND_MAX", 4)
    used = next(cache.iterdir())
    others = [cache / f"Tiny.kind-1-{number:x}" for number in range(4)]
    strangers = [cache / "Tiny.kind-12-abc", cache / "Tiny.kind-1-thing"]
    for age, path in enumerate([*others, *strangers], start=1):
        path.mkdir()
        (path / "file").write_text("")
        os.utime(path, (0, 1_000_000 - age))
    os.utime(used, (0, 0))
    build(tiny_program(), silent, cache)
    made = build(tiny_program(f"{SOURCE}# new\n"), lambda _: None, cache).folder
    assert made is not None
    assert sorted(cache.iterdir()) == sorted([used, made, *others[:2], *strangers])


def test_says_so_where_numba_may_not_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building._config, "DISABLE_JIT", 1)
    with pytest.raises(ConfigError, match="NUMBA_DISABLE_JIT is set"):
        build(tiny_program(), lambda _: None, tmp_path)


# ---- for which processor


def test_code_for_the_oldest_processor_runs_everywhere(tmp_path: Path) -> None:
    told = outcome(start(tmp_path / "cache", NUMBA_CPU_NAME="generic"))
    assert (told["processor"], told["compiled"]) == ("generic", True)
    built = build(tiny_program(), silent, tmp_path / "cache")
    assert not built.compiled
    assert run(built) == RESULT


def test_code_for_another_processor_is_not_taken(cache: Path) -> None:
    for path in files(cache):
        path.rename(path.with_name(path.name.replace(processor()[1], "pentium")))
    assert build(tiny_program(), lambda _: None, cache).compiled
    # Nor if somebody gives it the name of ours.
    generic = (processor()[0], building.GENERIC, "")
    kept = ProgramCache(next(cache.iterdir()))
    for name in ("step", "fold"):
        kept.write(building._file_name(name, processor()), b"")
        body = kept.read(next(path.name for path in files(cache) if path.name.startswith(f"{name}-pentium")))
        assert body is not None
        kept.write(building._file_name(name, generic), body)
    assert build(tiny_program(), lambda _: None, cache).compiled


# ---- damage


def cut(data: bytes) -> bytes:
    return data[:-100]


def flip(data: bytes) -> bytes:
    return data[:500] + bytes([data[500] ^ 1]) + data[501:]


def empty(data: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [cut, flip, empty])
def test_a_damaged_file_is_made_anew(cache: Path, damage: Any) -> None:
    for path in files(cache):
        path.write_bytes(damage(path.read_bytes()))
    built = build(tiny_program(), lambda _: None, cache)
    assert built.compiled
    assert run(built) == RESULT
    assert not build(tiny_program(), silent, cache).compiled


def test_what_this_numba_cannot_load_is_made_anew(cache: Path) -> None:
    kept = ProgramCache(next(cache.iterdir()))
    for path in files(cache):
        kept.write(path.name, b"whole, but no pickle")
    assert build(tiny_program(), lambda _: None, cache).compiled
    assert not build(tiny_program(), silent, cache).compiled


# ---- whose it is


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_what_others_can_write_is_refused(cache: Path, mode: int) -> None:
    for path in (cache, next(cache.iterdir()), files(cache)[0]):
        before = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode)
        with pytest.raises(ConfigError, match=rf"{path} can be written by others.*chmod go-w"):
            build(tiny_program(), silent, cache)
        path.chmod(before)
    assert not build(tiny_program(), silent, cache).compiled


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_others_is_refused(cache: Path) -> None:
    for path in (cache, next(cache.iterdir()), files(cache)[0]):
        os.chown(path, NOBODY, -1)
        with pytest.raises(ConfigError, match=rf"{path} belongs to another user \(number {NOBODY}\)"):
            build(tiny_program(), silent, cache)
        os.chown(path, 0, -1)


def test_a_link_in_place_of_a_file_is_not_followed(cache: Path) -> None:
    path = files(cache)[0]
    elsewhere = cache.parent / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert build(tiny_program(), lambda _: None, cache).compiled
    assert not path.is_symlink()


def test_what_we_make_is_ours_also_with_an_open_umask(tmp_path: Path) -> None:
    assert outcome(start(tmp_path / "cache", umask=0))["compiled"]
    assert not build(tiny_program(), silent, tmp_path / "cache").compiled


# ---- where nothing can be written


def test_runs_without_a_folder_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    built = build(tiny_program(), said.append, tmp_path / "file" / "cache")
    assert run(built) == RESULT
    assert (built.compiled, built.folder) == (True, None)
    assert "could not be kept" in said[1]
    assert "stigmergy compile --to DIR" in said[1]


@pytest.mark.prove
def test_uses_what_is_in_a_folder_that_it_cannot_write(compiled: Path, open_to_all: Path) -> None:
    """As on a device with a read-only root: the code was compiled ahead."""
    cache = Path(shutil.copytree(compiled, open_to_all / "cache"))
    folder = next(cache.iterdir())
    for path in (folder, cache):
        path.chmod(0o555)
    try:
        user = [str(NOBODY)] if os.geteuid() == 0 else []
        whole = outcome(start(cache, *user))
        cache.chmod(0o755)
        folder.chmod(0o755)
        files(cache)[0].unlink()
        folder.chmod(0o555)
        cache.chmod(0o555)
        lacking = outcome(start(cache, *user))
    finally:
        for path in (cache, folder):
            path.chmod(0o755)
    assert (whole["said"], whole["compiled"], whole["folder"]) == ([], False, str(folder))
    assert (lacking["compiled"], lacking["folder"]) == (True, None)
    assert "could not be kept" in lacking["said"][1]


def test_where_it_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STIGMERGY_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("STIGMERGY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "stigmergy" / "compiled"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "stigmergy" / "compiled"
