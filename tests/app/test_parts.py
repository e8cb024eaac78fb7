"""Journals on a disk, and those in parts that an earlier version wrote: how they are found, and what is refused."""

from pathlib import Path

import pytest

from stigmergy import Agent, Fleet
from stigmergy.app.fleet import journals_in
from stigmergy.app.parts import check_single, check_whole, is_in_parts, part_urls, processes_of, shown_url
from stigmergy.base.errors import ConfigError
from stigmergy.cli.display.places import url_of


class Idle(Agent):
    pass


@pytest.fixture(params=["sqlite", "segments"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:{tmp_path / ('fleet.db' if request.param == 'sqlite' else 'fleet')}"


def make_parts(url: str, processes: int, count: int | None = None) -> list[str]:
    scheme, _, folder = url.partition(":")
    ending = ".db" if scheme == "sqlite" else ""
    paths = [Path(folder) / f"{number}-of-{processes}{ending}" for number in range(1, processes + 1)]
    Path(folder).mkdir(exist_ok=True)
    for path in paths[:count]:
        if scheme == "sqlite":
            path.touch()
        else:
            path.mkdir()
            (path / "identity").touch()
    return [f"{scheme}:{path}" for path in paths]


def test_parts_are_found_and_read_in_order(url: str, tmp_path: Path) -> None:
    assert (processes_of(url), part_urls(url)) == (0, [])
    check_whole(url)
    check_single(url)
    urls = make_parts(url, 3)
    assert (processes_of(url), part_urls(url)) == (3, urls)
    path = Path(url.partition(":")[2])
    assert url_of(str(path)) == url
    assert is_in_parts(path) == url.partition(":")[0] + ":"
    assert journals_in(tmp_path) == [url]


def test_a_journal_in_parts_is_not_run_and_the_way_on_is_said(url: str) -> None:
    make_parts(url, 2)
    with pytest.raises(ConfigError, match=r"run --processes 2; .* name another --journal, .* up FLEET --workers 2"):
        check_whole(url)
    with pytest.raises(ConfigError, match=r"one part at a time; name each of them, beginning with .*1-of-2"):
        check_single(url)


def test_missing_part_is_named(url: str) -> None:
    make_parts(url, 3, count=2)
    with pytest.raises(ConfigError, match=r"3-of-3.* is not there"):
        part_urls(url)


def test_parts_of_two_folders_in_one_are_refused(url: str) -> None:
    make_parts(url, 2)
    make_parts(url, 3)
    with pytest.raises(ConfigError, match="parts for 2 and for 3 processes"):
        processes_of(url)


def test_an_embedded_fleet_is_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stigmergy.toml").write_text("[fleet]\nprocesses = 2\n")
    with pytest.raises(ConfigError, match=r"processes = 2 in stigmergy.toml: .* stigmergy up .* --workers 2"):
        Fleet("alone", agents=[Idle]).running()
    (tmp_path / "stigmergy.toml").write_text("[fleet]\nprocesses = 1\n")
    Fleet("alone", agents=[Idle]).running()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:a@b.db", "sqlite:a@b.db"),
        ("nats://hub:4222?replicas=3", "nats://hub:4222?replicas=3"),
        ("nats://me:p@ss@hub-1:4222,hub-2/fleet@home?replicas=3", "nats://hub-1:4222,hub-2/fleet@home?replicas=3"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown
