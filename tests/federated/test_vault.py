"""A seed is for one round, one vector and one opening, also after a restart; then it is gone."""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from stigmergy.base.errors import StoreCorrupt
from stigmergy.federated.secure_sum import SumRefused
from stigmergy.federated.vault import FolderVault, MemoryVault, Secrets, Vault


@pytest.fixture(params=["folder", "memory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Vault]:
    """The vault as it is after a restart."""
    if request.param == "folder":
        return lambda: FolderVault(tmp_path / "vault")
    kept = MemoryVault()
    return lambda: kept


def test_a_seed_is_kept_until_the_round_is_over(opened: Callable[[], Vault]) -> None:
    seed = Secrets(opened(), "t", "ann", 3).begin()
    assert len(seed) == 32
    assert Secrets(opened(), "t", "ann", 3).begin() == seed
    assert Secrets(opened(), "t", "bob", 3).begin() != seed
    Secrets(opened(), "t", "ann", 3).forget()
    for number in (3, 2):
        with pytest.raises(SumRefused, match="gone"):
            Secrets(opened(), "t", "ann", number).begin()
    assert Secrets(opened(), "t", "ann", 4).begin() != seed
    with pytest.raises(SumRefused, match="gone"):
        Secrets(opened(), "t", "ann", 3).use("mask", b"1")
    Secrets(opened(), "t", "ann", 3).forget()  # an older end of a round takes nothing from a newer one
    Secrets(opened(), "t", "ann", 4).use("mask", b"1")


def test_a_second_use_must_be_the_same(opened: Callable[[], Vault]) -> None:
    seed = Secrets(opened(), "t", "ann", 1).begin()
    assert Secrets(opened(), "t", "ann", 1).use("mask", b"1") == seed
    assert Secrets(opened(), "t", "ann", 1).use("mask", b"1") == seed
    assert Secrets(opened(), "t", "ann", 1).use("open", b"2") == seed
    with pytest.raises(SumRefused, match="used to mask something else"):
        Secrets(opened(), "t", "ann", 1).use("mask", b"2")


def test_files_are_for_their_owner_and_hold_no_old_seed(tmp_path: Path) -> None:
    one = Secrets(FolderVault(tmp_path / "vault"), "t", "ann", 1)
    seed = one.begin()
    (file,) = (tmp_path / "vault").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert seed in file.read_bytes()
    one.forget()
    (file,) = (tmp_path / "vault").iterdir()
    assert seed not in file.read_bytes()
    file.write_bytes(b"\xc1")
    with pytest.raises(StoreCorrupt, match="damaged"):
        one.begin()


def test_what_was_not_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vault = FolderVault(tmp_path / "vault")

    def fails(handle: int) -> None:
        raise OSError("no room")

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(OSError, match="no room"):
        Secrets(vault, "t", "ann", 1).begin()
    assert list((tmp_path / "vault").iterdir()) == []
