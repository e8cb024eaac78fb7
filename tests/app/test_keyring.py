"""A node's key and its journal belong together: one that is missing is not made anew beside the other."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from stigmergy.app.fleet import Fleet
from stigmergy.app.keyring import SharedKey, make_private_key
from stigmergy.base.errors import ConfigError, JournalCorrupt, JournalForeign, JournalUnknown, TrustError
from stigmergy.keys.keyfile import SIGNED_JOURNALS_MAX, SignedJournal, add_signed, read_signed, signed_path
from tests.node.counting import Add, Counter, Land

URLS = ["sqlite:{}/fleet.db", "segments:{}/fleet"]


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


def fleet(name: str = "kept") -> Fleet:
    made = Fleet(name, agents=[Counter])
    made.no_actuator(Land, because="nothing moves here")
    return made


async def run_once(url: str, key: Path, number: int = 1) -> None:
    async with fleet().running(journal=url, key=key) as live:
        await live.send("Counter/1", Add(number=number))


def empty(folder: Path) -> None:
    """Everything goes that is not of the key."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif not path.name.startswith("fleet.key"):
            path.unlink()


def signed_mode(key: Path) -> int:
    return signed_path(key).stat().st_mode & 0o777


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def take_away(path: Path, *, renamed: bool) -> None:
    if renamed:
        path.rename(path.with_name("elsewhere"))
    elif path.is_dir():
        while path.exists():  # the journal may make its next segment ready at this very moment
            shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()


@pytest.mark.parametrize("renamed", [False, True])
@pytest.mark.parametrize("writing", [False, True])
async def test_a_running_node_misses_its_journal(url: str, tmp_path: Path, renamed: bool, writing: bool) -> None:
    path = Path(url.partition(":")[2])
    async with fleet().running(journal=url, key=tmp_path / "fleet.key") as live:
        await live.send("Counter/1", Add(number=1))
        take_away(path, renamed=renamed)
        if writing:
            with pytest.raises(JournalUnknown, match="while the journal was open"):
                await live.send("Counter/1", Add(number=2))
        failure = await asyncio.wait_for(live.wait_failure(), 240)
        assert "while the journal was open" in str(failure)
    with pytest.raises(JournalCorrupt, match="restore the journal from a copy"):
        await run_once(url, tmp_path / "fleet.key")
    assert path.name not in names_in(tmp_path)


async def test_an_emptied_place_is_missed_by_the_key_that_signed_it(url: str, tmp_path: Path) -> None:
    key = tmp_path / "fleet.key"
    await run_once(url, key)
    (signed,) = read_signed(key)
    assert (signed.journal, signed.fleet) == (url, "kept")
    assert signed_mode(key) == 0o600
    empty(tmp_path)
    for _ in range(2):
        with pytest.raises(JournalCorrupt, match=r"restore.*take its line out of .*fleet.key-journals"):
            await run_once(url, key)
    assert names_in(tmp_path) == ["fleet.key", "fleet.key-journals"]
    signed_path(key).unlink()
    await run_once(url, key)
    assert read_signed(key) != [signed]


async def test_what_is_left_beside_a_journal_is_named_with_it(url: str, tmp_path: Path) -> None:
    key = tmp_path / "fleet.key"
    await run_once(url, key)
    path = Path(url.partition(":")[2])
    take_away(path, renamed=True)
    with pytest.raises(JournalCorrupt, match=f"and remove {path}-mark"):
        await run_once(url, key)


async def test_a_journal_elsewhere_or_another_fleet_is_another_matter(url: str, tmp_path: Path) -> None:
    key = tmp_path / "fleet.key"
    await run_once(url, key)
    await run_once(url, key)
    await run_once(f"{url}-2", key)
    assert [signed.journal for signed in read_signed(key)] == [url, f"{url}-2"]


async def test_a_missing_key_is_not_made_anew_beside_its_journal(url: str, tmp_path: Path) -> None:
    key = tmp_path / "fleet.key"
    await run_once(url, key)
    os.rename(key, tmp_path / "kept.key")
    with pytest.raises(TrustError, match=r"fleet.key' is missing.*put the file back"):
        await run_once(url, key)
    assert "fleet.key" not in names_in(tmp_path)
    os.rename(tmp_path / "kept.key", key)
    await run_once(url, key, 2)


async def test_no_key_is_made_for_a_journal_that_is_refused(url: str, tmp_path: Path) -> None:
    await run_once(url, tmp_path / "fleet.key")
    with pytest.raises(JournalForeign, match="belongs to fleet 'kept'"):
        async with fleet("other").running(journal=url, key=tmp_path / "new.key"):
            pass
    assert not [name for name in names_in(tmp_path) if name.startswith("new.key")]


def test_a_list_of_signed_journals_is_bounded_and_a_damaged_one_refused(tmp_path: Path) -> None:
    key = tmp_path / "fleet.key"
    make_private_key(key)
    many = [SignedJournal(f"sqlite:/{number}", "kept", number) for number in range(SIGNED_JOURNALS_MAX)]
    lines = b"\n".join(
        [
            b"stigmergy-signed-journals-1",
            *(b'{"journal":"sqlite:/%d","fleet":"kept","incarnation":%d}' % (n, n) for n in range(SIGNED_JOURNALS_MAX)),
        ]
    )
    signed_path(key).write_bytes(lines + b"\n")
    assert read_signed(key) == many
    newest = SignedJournal("sqlite:/newest", "kept", 7)
    add_signed(key, newest)
    assert read_signed(key) == [*many[1:], newest]
    renewed = SignedJournal("sqlite:/newest", "kept", 8)
    add_signed(key, renewed)
    assert read_signed(key) == [*many[1:], renewed]
    signed_path(key).write_bytes(lines + b'\n{"journal": 7')
    with pytest.raises(ConfigError, match="a line that is damaged"):
        read_signed(key)
    signed_path(key).write_bytes(b"dear diary\n")
    with pytest.raises(ConfigError, match="no list of signed journals"):
        read_signed(key)


def test_a_shared_key_is_made_when_it_is_first_used_and_once_for_all(tmp_path: Path) -> None:
    path = tmp_path / "fleet.key"
    one, two = SharedKey(path), SharedKey(path)
    assert not path.exists(), "whoever is refused before has used it for nothing"
    made = one.public_key
    assert path.exists()
    assert two.public_key == SharedKey(path).public_key == made
    assert two.sign(b"said") == one.sign(b"said")
    path.write_bytes(b"damaged")
    with pytest.raises(TrustError):
        SharedKey(path)
    with pytest.raises(ConfigError, match="cannot write key file"):
        _ = SharedKey(tmp_path / "nowhere" / "fleet.key").public_key
