"""Identities renewed over a link."""

import asyncio
import time
from pathlib import Path

import msgspec
import pytest

from stigmergy.base.errors import LinkDown, TrustError
from stigmergy.nats.address import parse_address
from stigmergy.nats.link import NatsLink
from stigmergy.nats.renewals import answer_renewals, renew_over
from stigmergy.nats.servers.configuration import ServerTlsFiles
from stigmergy.pki import certificates, renewal
from stigmergy.pki.enrolment import install, read_identity, request_for
from stigmergy.pki.identity import with_identity
from stigmergy.pki.names import subject_of
from stigmergy.pki.renewal import RenewalAnswer, RenewalRequest
from stigmergy.testing.nats import start_single
from tests.pki.members import Members

NORTH = subject_of("town", "node", "north")


@pytest.fixture
def town(tmp_path: Path) -> Members:
    """With the member north, whose certificate has a sixth of its life left."""
    made = Members(tmp_path / "town")
    place = made.folder / "north"
    install(place, made.authority.issue(request_for(place, NORTH), days=0.01), made.authority.certificate)
    return made


def refusal(town: Members, payload: bytes) -> str:
    answer = msgspec.json.decode(renewal.answer(town.authority, payload), type=RenewalAnswer)
    assert not answer.certificate
    return answer.refused


def changed(payload: bytes, **fields: bytes) -> bytes:
    asked = msgspec.json.decode(payload, type=RenewalRequest)
    return msgspec.json.encode(msgspec.structs.replace(asked, **fields))


def test_a_member_renews_itself(town: Members) -> None:
    north = town.folder / "north"
    before = read_identity(north)
    assert renewal.is_due(north, before.until_s - 800)
    after = renewal.take(north, renewal.answer(town.authority, renewal.ask(north)))
    assert (after.subject, after.signing_key) == (before.subject, before.signing_key)
    assert after.tls_key != before.tls_key
    assert not renewal.is_due(north, before.until_s)
    with pytest.raises(TrustError, match="ask later"):
        renewal.take(north, renewal.answer(town.authority, renewal.ask(north)))
    assert read_identity(north) == after, "a refusal changes nothing"


def test_nobody_renews_what_is_not_his(town: Members, tmp_path: Path) -> None:
    north, south = town.folder / "north", town.issue("node", "south")
    asked, of_south = renewal.ask(north), renewal.ask(south)
    other = msgspec.json.decode(of_south, type=RenewalRequest)
    # A thief has the certificate, which everybody sees, and no key.
    thief = request_for(tmp_path / "thief", NORTH)
    proof = certificates.sign(certificates.new_tls_key(), thief)
    assert "not signed by the key" in refusal(town, changed(asked, request=thief, proof=proof))
    assert "not signed by the key" in refusal(town, changed(asked, proof=b""))
    # South proves its own key, and asks for north.
    signed = certificates.sign((south / "identity.pem").read_bytes().partition(b"-----BEGIN CERT")[0], thief)
    assert "cannot ask for" in refusal(town, changed(of_south, request=thief, proof=signed))
    assert "not signed by the key" in refusal(town, changed(asked, certificate=other.certificate))
    village = Members(tmp_path / "village")
    assert "another authority" in refusal(town, renewal.ask(village.issue("node", "north")))
    for damaged in (b"", b"{}", b"[]", asked[:-10], asked + b"x", bytes(renewal.MESSAGE_BYTES_MAX + 1)):
        assert "no request" in refusal(town, damaged)
    assert refusal(town, changed(asked, request=b"x", proof=b"y"))
    assert len(town.authority.holders.members["north"].certificates) == 1


def test_a_revoked_or_ended_one_renews_nothing(town: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    north = town.folder / "north"
    asked = renewal.ask(north)
    with monkeypatch.context() as later:
        end_s = read_identity(north).until_s
        later.setattr(time, "time", lambda: end_s + 1.0)
        assert "is over" in refusal(town, asked)
    town.authority.revoke("north")
    assert "for good" in refusal(town, asked)


async def test_over_the_servers(town: Members) -> None:
    north, files = town.folder / "north", town.server()
    tls, desk = ServerTlsFiles(files.cert, files.key, files.ca), town.issue("node", "desk")
    with start_single(town.folder / "server", tls=tls) as cluster:
        url = cluster.url.replace("nats:", "tls:")
        mine = await NatsLink.open(parse_address(with_identity(url, north)), name="north")
        theirs = await NatsLink.open(parse_address(with_identity(url, desk)), name="desk")
        try:
            ready = asyncio.Event()
            with pytest.raises(LinkDown):  # nobody has the authority there
                await renew_over(mine, north)
            answering = asyncio.ensure_future(answer_renewals(theirs, town.authority, ready=ready.set))
            async with asyncio.timeout(240):
                await ready.wait()
            after = await renew_over(mine, north)
            assert mine.is_up, "by the link that it has, which stays"
            assert read_identity(north).serial == after.serial
            with pytest.raises(TrustError, match="ask later"):
                await renew_over(mine, north)
            answering.cancel()
        finally:
            await mine.close()
            await theirs.close()
