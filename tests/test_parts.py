"""The folder of a journal of several processes: where its parts lie, and what is refused."""

from pathlib import Path

import pytest

from stigmergy.app.fleet import journals_in
from stigmergy.app.node_config import NodeConfig
from stigmergy.app.parts import (
    check_parts,
    check_single,
    check_whole,
    is_in_parts,
    make_folder,
    part_url,
    part_urls,
    processes_of,
    shown_url,
)
from stigmergy.base.errors import ConfigError
from stigmergy.cli.display.places import url_of
from stigmergy.cli.run import check_alone
from stigmergy.network.shares import Share


@pytest.fixture(params=["sqlite", "segments"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:{tmp_path / ('fleet.db' if request.param == 'sqlite' else 'fleet')}"


def make_parts(url: str, processes: int, count: int | None = None) -> list[str]:
    make_folder(url)
    urls = [part_url(url, Share(number, processes, 8)) for number in range(1, processes + 1)]
    for one in urls[:count]:
        scheme, _, path = one.partition(":")
        if scheme == "sqlite":
            Path(path).touch()
        else:
            Path(path).mkdir()
            (Path(path) / "identity").touch()
    return urls


def test_parts_are_found_and_read_in_order(url: str, tmp_path: Path) -> None:
    assert (processes_of(url), part_urls(url)) == (0, [])
    check_parts(url, 3)
    check_whole(url)
    check_single(url)
    urls = make_parts(url, 3)
    assert (processes_of(url), part_urls(url)) == (3, urls)
    check_parts(url, 3)
    path = Path(url.partition(":")[2])
    assert url_of(str(path)) == url
    assert is_in_parts(path) == url.partition(":")[0] + ":"
    assert journals_in(tmp_path) == [url]
    assert path.stat().st_mode & 0o777 == 0o700


def test_another_number_is_refused_with_the_way_out(url: str) -> None:
    make_parts(url, 2)
    with pytest.raises(ConfigError, match=r"made for 2 processes, not for 3; .* --processes 2"):
        check_parts(url, 3)
    with pytest.raises(ConfigError, match="the journal of 2 processes; run it with --processes 2"):
        check_whole(url)
    with pytest.raises(ConfigError, match=r"one part at a time; name each of them, beginning with .*1-of-2"):
        check_single(url)


def test_missing_part_is_named(url: str) -> None:
    make_parts(url, 3, count=2)
    with pytest.raises(ConfigError, match=r"3-of-3.* is not there"):
        part_urls(url)
    check_parts(url, 3)  # a start makes it


def test_parts_of_two_folders_in_one_are_refused(url: str) -> None:
    make_parts(url, 2)
    make_parts(url, 3)
    with pytest.raises(ConfigError, match="parts for 2 and for 3 processes"):
        processes_of(url)


def test_journal_of_one_process_is_not_shared(tmp_path: Path) -> None:
    (tmp_path / "alone.db").write_bytes(b"something")
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "identity").touch()
    for url in (f"sqlite:{tmp_path / 'alone.db'}", f"segments:{tmp_path / 'alone'}"):
        with pytest.raises(ConfigError, match=r"made by one process, .* --processes 1"):
            check_parts(url, 2)
    with pytest.raises(ConfigError, match="need a journal on a disk"):
        check_parts("memory:", 2)
    with pytest.raises(ConfigError, match="cannot be made"):
        make_folder(f"sqlite:{tmp_path / 'alone.db' / 'fleet.db'}")


def test_what_several_processes_cannot_do_yet_is_said(tmp_path: Path) -> None:
    check_alone(NodeConfig(), None)
    for node_config, said in (
        (NodeConfig(bus="mqtt://gateway:1883"), "cannot be on a bus yet"),
        (NodeConfig(mesh="udp://0.0.0.0:7946"), "cannot share fields with others yet .* run it with one process"),
        (NodeConfig(copies=("nats://me:word@hub",)), r"cannot copy its journal yet \(nats://hub\)"),
        (NodeConfig(ledger="sqlite:ledger.db"), "cannot claim from a ledger yet .* run it with one process"),
    ):
        with pytest.raises(ConfigError, match=said):
            check_alone(node_config, None)
    with pytest.raises(ConfigError, match="cannot archive flight logs yet"):
        check_alone(NodeConfig(), "archive")


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
