"""The documented import paths of the last version still work, and say where to go."""

from __future__ import annotations

import importlib
import sys

import pytest

import stigmergy.base.errors
from stigmergy.app import moved


@pytest.mark.parametrize("old", sorted(moved.MOVED))
def test_an_old_path_warns_and_gives_the_same_objects(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"is now {moved.MOVED[old]}"):
        found = importlib.import_module(old)
    new = importlib.import_module(moved.MOVED[old])
    names = [name for name in vars(new) if not name.startswith("_")]
    assert names
    assert all(getattr(found, name) is getattr(new, name) for name in names)


def test_a_name_is_imported_from_an_old_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "stigmergy.core.errors", raising=False)
    with pytest.warns(DeprecationWarning, match="is now stigmergy.base.errors"):
        from stigmergy.core.errors import LinkDown  # type: ignore[import-not-found]
    assert LinkDown is stigmergy.base.errors.LinkDown


def test_what_never_existed_is_still_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("stigmergy.core.nothing")


def test_installing_twice_changes_nothing() -> None:
    before = list(sys.meta_path)
    moved.install()
    assert sys.meta_path == before
