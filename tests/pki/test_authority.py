"""The folder of an authority, and those of its members."""

import multiprocessing
from pathlib import Path

import pytest

from stigmergy.base.errors import ConfigError, StigmergyError, TrustError
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.keys.keyfile import read_private_key
from stigmergy.pki.authority import AuthorityFolder
from stigmergy.pki.enrolment import install, read_identity, request_for, split_answer
from stigmergy.pki.identity import with_identity
from stigmergy.pki.names import Subject, subject_of

NORTH = subject_of("town", "node", "north")


@pytest.fixture
def authority(tmp_path: Path) -> AuthorityFolder:
    return AuthorityFolder.create(tmp_path / "ca", "town")


def enrolled(authority: AuthorityFolder, folder: Path, subject: Subject = NORTH, *hosts: str) -> Path:
    install(folder, authority.issue(request_for(folder, subject), hosts), authority.certificate)
    return folder


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


def test_an_identity_is_made_where_it_is_used(authority: AuthorityFolder, tmp_path: Path) -> None:
    folder = enrolled(authority, tmp_path / "north")
    assert modes(folder) == {"identity.pem": 0o600, "ca.pem": 0o644, "signing.key": 0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
    found = read_identity(folder)
    assert found.subject == NORTH
    assert found.signing_key == Ed25519Signer(read_private_key(folder / "signing.key").seed).public_key
    told = authority.holders.members["north"]
    assert (told.kind, told.signing_key) == ("node", found.signing_key.hex())
    assert [one.serial for one in told.certificates] == [found.serial]
    assert b"PRIVATE" not in (authority.path / "ca.json").read_bytes()


def test_what_was_given_out_is_known_after_a_restart(authority: AuthorityFolder, tmp_path: Path) -> None:
    enrolled(authority, tmp_path / "north")
    again = AuthorityFolder(authority.path)
    assert again.holders == authority.holders
    with pytest.raises(TrustError, match="has a certificate already"):
        again.issue(request_for(tmp_path / "other", subject_of("town", "device", "north")))


def test_an_authority_is_never_replaced(authority: AuthorityFolder) -> None:
    before = {path.name: path.read_bytes() for path in authority.path.iterdir()}
    with pytest.raises(ConfigError, match="never replaced"):
        AuthorityFolder.create(authority.path, "town")
    assert {path.name: path.read_bytes() for path in authority.path.iterdir()} == before


def test_a_key_that_others_may_read_is_not_used(authority: AuthorityFolder, tmp_path: Path) -> None:
    (authority.path / "ca.key").chmod(0o640)
    with pytest.raises(TrustError, match="chmod 600"):
        AuthorityFolder(authority.path)
    (authority.path / "ca.key").chmod(0o600)
    folder = enrolled(authority, tmp_path / "north")
    (folder / "identity.pem").chmod(0o644)
    with pytest.raises(TrustError, match="chmod 600"):
        read_identity(folder)


def test_a_renewal_keeps_who_it_is(authority: AuthorityFolder, tmp_path: Path) -> None:
    hub = subject_of("town", "server", "hub")
    folder = enrolled(authority, tmp_path / "hub", hub, "hub-1", "10.0.0.1")
    before = read_identity(folder)
    after = install(folder, authority.renew(request_for(folder, hub)), authority.certificate)
    assert (after.subject, after.hosts) == (before.subject, before.hosts)
    assert after.serial != before.serial
    assert after.tls_key != before.tls_key, "a renewal is a new key"
    assert [one.serial for one in authority.holders.members["hub"].certificates] == [before.serial, after.serial]


def test_a_renewal_is_not_a_way_to_another_name_or_key(authority: AuthorityFolder, tmp_path: Path) -> None:
    enrolled(authority, tmp_path / "north")
    with pytest.raises(TrustError, match="another Ed25519 key"):
        authority.renew(request_for(tmp_path / "thief", NORTH))
    with pytest.raises(TrustError, match="is a node"):
        authority.renew(request_for(tmp_path / "admin", subject_of("town", "admin", "north")))
    with pytest.raises(ConfigError, match="has no certificate"):
        authority.renew(request_for(tmp_path / "south", subject_of("town", "node", "south")))


def test_a_revoked_name_never_comes_back(authority: AuthorityFolder, tmp_path: Path) -> None:
    folder = enrolled(authority, tmp_path / "north")
    install(folder, authority.renew(request_for(folder, NORTH)), authority.certificate)
    member = authority.revoke("north")
    assert len(member.certificates) == 2, "all that are still valid are revoked"
    assert authority.revoke("north").revoked_s == member.revoked_s
    again = AuthorityFolder(authority.path)
    with pytest.raises(TrustError, match="for good"):
        again.renew(request_for(folder, NORTH))
    with pytest.raises(TrustError, match="for good"):
        again.issue(request_for(tmp_path / "new", NORTH))
    with pytest.raises(ConfigError, match="ca list"):
        again.revoke("south")


def test_only_the_answer_to_the_request_is_put_in_place(authority: AuthorityFolder, tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    request_for(mine, NORTH)
    answer = authority.issue(request_for(theirs, subject_of("town", "node", "south")))
    with pytest.raises(TrustError, match="for another key"):
        install(mine, answer, authority.certificate)
    other = AuthorityFolder.create(tmp_path / "other-ca", "town")
    with pytest.raises(TrustError, match="another authority"):
        install(theirs, answer, other.certificate)
    with pytest.raises(TrustError, match="ended"):
        install(theirs, answer, authority.certificate, now_s=4e9)
    assert not (theirs / "identity.pem").exists()
    install(theirs, *split_answer(answer + authority.certificate))
    with pytest.raises(ConfigError, match="waits for no certificate"):
        install(theirs, answer, authority.certificate)
    with pytest.raises(TrustError, match="no answer"):
        split_answer(answer)
    with pytest.raises(ConfigError, match="another folder"):
        request_for(theirs, NORTH)


def test_a_server_says_how_it_is_reached(authority: AuthorityFolder, tmp_path: Path) -> None:
    request = request_for(tmp_path / "hub", subject_of("town", "server", "hub"))
    with pytest.raises(ConfigError, match="--host"):
        authority.issue(request)
    assert authority.issue(request, ("hub-1",))


def _issue(path: Path, name: str) -> None:
    authority = AuthorityFolder(path / "ca")
    authority.issue(request_for(path / name, subject_of("town", "device", name)))


def test_two_who_issue_at_once_forget_nothing(authority: AuthorityFolder, tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    several = [spawn.Process(target=_issue, args=(tmp_path, f"d{number}")) for number in range(3)]
    for one in several:
        one.start()
    for one in several:
        one.join()
    assert set(AuthorityFolder(authority.path).holders.members) == {"d0", "d1", "d2"}


@pytest.mark.parametrize("damage", [b"", b"{", b'{"fleet":"town","format":9}', b"[]"])
def test_a_damaged_list_is_not_begun_anew(authority: AuthorityFolder, damage: bytes) -> None:
    (authority.path / "ca.json").write_bytes(damage)
    with pytest.raises(StigmergyError, match=r"restore|update"):
        AuthorityFolder(authority.path)


def test_an_identity_is_used_where_the_url_names_no_files(authority: AuthorityFolder, tmp_path: Path) -> None:
    folder = enrolled(authority, tmp_path / "a folder")
    quoted = str(folder).replace(" ", "%20")
    files = f"ca={quoted}/ca.pem&cert={quoted}/identity.pem&key={quoted}/identity.pem"
    assert with_identity("tls://hub:4222", folder) == f"tls://hub:4222?{files}"
    assert with_identity("mqtts://hub?version=5", str(folder)) == f"mqtts://hub?version=5&{files}"
    for url in ("nats://hub:4222", "tls://hub?ca=x", "mqtt://hub", "sqlite:a.db", "memory:", "http://a"):
        assert with_identity(url, folder) == url
    assert with_identity("tls://hub", None) == "tls://hub"
    with pytest.raises(ConfigError, match="ca issue"):
        with_identity("tls://hub", tmp_path)
