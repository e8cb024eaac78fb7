"""`stigmergy ledger` on a real server: what is in one, who may write, and what is said when it cannot be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stigmergy.app.keyring import load_signer, make_private_key
from stigmergy.base.errors import LedgerUnavailable
from stigmergy.cli.display import exits
from stigmergy.cli.fleet_checks import check_ledger
from stigmergy.cli.main import main
from stigmergy.nats.address import parse_address
from stigmergy.nats.ledger import open_ledger
from stigmergy.nats.ledger.streams import find_place
from stigmergy.nats.link import NatsLink
from stigmergy.testing.nats import start_single
from tests.cli.test_documented import documented


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_single(Path(tmp_path_factory.mktemp("nats"))) as server:
        yield server.url


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object]]:
    code = main(["ledger", *arguments, "--json"])
    return code, msgspec.json.decode(capsys.readouterr().out or b"{}", type=dict[str, object])


async def write(url: str, name: str, key: Path, *entries: bytes) -> None:
    ledger = open_ledger(url, name, signer=load_signer(key, create=False))
    try:
        await ledger.append(entries)
    finally:
        await ledger.close()


def test_keys_are_enrolled_and_revoked(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    north, south = (make_private_key(tmp_path / f"{name}.key").public.key.hex() for name in ("north", "south"))
    place = ("--name", "town", "--ledger", url)
    signing = ("--with", str(tmp_path / "north.key"))
    asyncio.run(write(url, "town", tmp_path / "north.key", b"one", b"two"))
    code, shown = run(capsys, "show", *place)
    assert (code, shown["entries"], shown["first"], shown["writers"]) == (exits.OK, 2, 1, [north])
    assert documented("ledger show") == set(shown)
    with pytest.raises(LedgerUnavailable):
        asyncio.run(write(url, "town", tmp_path / "south.key", b"three"))
    code, shown = run(capsys, "enrol", south, *signing, *place)
    assert (code, shown["writers"]) == (exits.OK, sorted([north, south]))
    asyncio.run(write(url, "town", tmp_path / "south.key", b"three"))
    code, shown = run(capsys, "revoke", south, *signing, *place)
    assert (code, shown["writers"], shown["entries"]) == (exits.OK, [north], 3)
    code, shown = run(capsys, "revoke", north, *signing, *place)
    assert (code, shown["writers"]) == (exits.REFUSED, [north])
    assert main(["ledger", "show", *place]) == exits.OK
    said = capsys.readouterr().out
    assert "town  3 entries" in said
    assert f"may write: {north}" in said


def test_doctor_looks_at_a_ledger_on_nats(url: str, tmp_path: Path) -> None:
    make_private_key(tmp_path / "north.key")
    assert levels(url, None) == {"ledger.configured": "ok"}
    assert levels(url, "harbour") == {"ledger.opens": "warn"}
    asyncio.run(write(url, "harbour", tmp_path / "north.key", b"one"))
    assert levels(url, "harbour") == {"ledger.opens": "ok", "ledger.whole": "ok"}
    assert levels(f"{url}?replicas=3", "harbour") == {"ledger.opens": "fail"}
    asyncio.run(publish(url, "harbour", b"rubbish"))
    assert levels(url, "harbour") == {"ledger.opens": "ok", "ledger.whole": "ok", "ledger.strangers": "warn"}


def levels(url: str, fleet: str | None) -> dict[str, str]:
    return {finding.check: str(finding.level) for finding in check_ledger(url, fleet)}


async def publish(url: str, name: str, payload: bytes) -> None:
    link = await NatsLink.open(parse_address(url), name="stranger")
    await link.publish(find_place(url, name).log_subject, payload)
    await link.close()


def test_what_cannot_be_shown_is_said(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_private_key(tmp_path / "some.key")
    for arguments, code, why in (
        (("show", "--name", "x"), exits.USAGE, "which ledger?"),
        (("show", "--ledger", url), exits.USAGE, "of which fleet?"),
        (("show", "--name", "x", "--ledger", "sqlite:x.db"), exits.USAGE, "only one on NATS"),
        (("show", "--name", "nobodys", "--ledger", url), exits.NOT_RUNNING, "does not exist yet"),
        (
            ("enrol", "00" * 32, "--with", str(tmp_path / "some.key"), "--name", "nobodys", "--ledger", url),
            exits.NOT_RUNNING,
            "does not exist yet",
        ),
    ):
        empty = tmp_path / "empty.toml"
        empty.write_text("", encoding="utf-8")
        found, document = run(capsys, *arguments, "--config", str(empty))
        assert found == code, (arguments, document)
        assert why in str(document["error"])
