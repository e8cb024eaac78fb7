"""Requests and certificates, of friends and of enemies."""

import base64
import random
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.base.errors import ConfigError, TrustError
from stigmergy.base.system import SystemEntropy
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.pki import certificates
from stigmergy.pki.certificates import Authority, make_authority, read_certificate, read_request, write_request
from stigmergy.pki.names import subject_of

NOW_S = 1_800_000_000
NORTH = subject_of("town", "node", "north")
SMALL_ORDER = [bytes(32), b"\x01" + bytes(31), (2**255 - 20).to_bytes(32, "little")]


@pytest.fixture(scope="module")
def made() -> tuple[bytes, bytes]:
    return make_authority("town", 3_650, NOW_S)


@pytest.fixture(scope="module")
def authority(made: tuple[bytes, bytes]) -> Authority:
    return Authority(*made)


def signer() -> Ed25519Signer:
    return Ed25519Signer(SystemEntropy().token(32))


def forged(*names: x509.GeneralName, key: Any = None, **extensions: x509.ExtensionType) -> bytes:
    """A request with whatever names, properly signed by its TLS key."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(names)), critical=False)
    for value in extensions.values():
        builder = builder.add_extension(value, critical=False)
    key = key or ec.generate_private_key(ec.SECP256R1())
    digest = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, digest).public_bytes(serialization.Encoding.PEM)


def uri(text: str) -> x509.UniformResourceIdentifier:
    return x509.UniformResourceIdentifier(text)


def test_a_certificate_says_who_it_is(authority: Authority, made: tuple[bytes, bytes]) -> None:
    key, signs = certificates.new_tls_key(), signer()
    request = read_request(write_request(key, NORTH, signs))
    assert (request.subject, request.signing_key) == (NORTH, signs.public_key)
    pem = authority.issue(request, ("hub-1", "10.0.0.1"), 90, NOW_S)
    found = read_certificate(pem, made[0])
    assert found.subject == NORTH
    assert found.signing_key == signs.public_key
    assert found.hosts == ("hub-1", "10.0.0.1")
    assert found.until_s == NOW_S + 90 * 86_400
    assert found.from_s < NOW_S, "a clock that is a little behind takes it"
    assert found.tls_key == certificates.public_half(key)


def test_only_who_has_a_host_is_connected_to(authority: Authority) -> None:
    """Whoever has stolen a device must not pass for a server."""
    for hosts, count in (((), 1), (("hub-1",), 2)):
        request = read_request(write_request(certificates.new_tls_key(), NORTH))
        pem = authority.issue(request, hosts, 90, NOW_S)
        usage = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert len(list(usage)) == count


def test_a_request_of_another_fleet_is_refused(authority: Authority) -> None:
    other = subject_of("village", "node", "north")
    with pytest.raises(TrustError, match="ask that of its own fleet"):
        authority.issue(read_request(write_request(certificates.new_tls_key(), other)), (), 90, NOW_S)


@pytest.mark.parametrize("days", [0, -1, 4_000, float("nan"), float("inf")])
def test_a_life_that_cannot_be(authority: Authority, days: float) -> None:
    request = read_request(write_request(certificates.new_tls_key(), NORTH))
    with pytest.raises(ConfigError, match="days"):
        authority.issue(request, (), days, NOW_S)


@pytest.mark.parametrize("key", SMALL_ORDER)
def test_a_key_of_small_order_is_refused(key: bytes) -> None:
    """Anybody can make signatures that fit it: the empty commitment is one for the neutral point."""
    proof = b"\x01" + bytes(63)
    with pytest.raises(TrustError, match="small order"):
        read_request(forged(uri(NORTH.uri), uri(f"urn:stigmergy:ed25519:{key.hex()}:{proof.hex()}")))


def test_anothers_ed25519_key_cannot_be_claimed() -> None:
    """The proof is for one TLS key and one name: neither a proof of somebody else's request nor none will do."""
    signs, key = signer(), ec.generate_private_key(ec.SECP256R1())
    seen = write_request(certificates.new_tls_key(), NORTH, signs)
    names = x509.load_pem_x509_csr(seen).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    with pytest.raises(TrustError, match="does not prove"):
        read_request(forged(*names, key=key))
    bound = f"urn:stigmergy:ed25519:{signs.public_key.hex()}"
    for proof in ("", ":", f":{bytes(64).hex()}", f":{signs.public_key.hex()}"):
        with pytest.raises(TrustError):
            read_request(forged(uri(NORTH.uri), uri(bound + proof)))
    renamed = [uri(subject_of("town", "node", "south").uri), *names][:1] + list(names)[1:]
    with pytest.raises(TrustError):
        read_request(forged(*renamed))


@pytest.mark.parametrize(
    "request_of",
    [
        forged,
        lambda: forged(uri("stigmergy://town/node/../../root")),
        lambda: forged(uri("stigmergy://town/node/a/b")),
        lambda: forged(uri(NORTH.uri), uri("stigmergy://town/server")),
        lambda: forged(uri(NORTH.uri), uri("stigmergy://town/admin/root")),
        lambda: forged(uri(NORTH.uri), x509.DNSName("hub-1")),
        lambda: forged(uri(NORTH.uri), uri("https://hub-1")),
        lambda: forged(x509.RFC822Name("root@town.example")),
        lambda: forged(uri(NORTH.uri), ca=x509.BasicConstraints(ca=True, path_length=None)),
        lambda: forged(uri(NORTH.uri), key=rsa.generate_private_key(65537, 2048)),
        lambda: forged(uri(NORTH.uri), key=ec.generate_private_key(ec.SECP384R1())),
        lambda: forged(uri(NORTH.uri), key=ed25519.Ed25519PrivateKey.generate()),
        lambda: b"",
        lambda: b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
        lambda: write_request(certificates.new_tls_key(), NORTH) + bytes(certificates.PEM_BYTES_MAX),
        lambda: make_authority("town", 1, NOW_S)[0],
    ],
)
def test_a_request_for_more_than_a_name_is_refused(request_of: Any) -> None:
    with pytest.raises(TrustError):
        read_request(request_of())


@given(seed=st.integers(0, 2**32), flips=st.integers(1, 4))
def test_a_damaged_request_is_refused(seed: int, flips: int) -> None:
    """Whatever bytes are wrong: one sentence, and never another exception."""
    draw = random.Random(seed)
    sound = x509.load_pem_x509_csr(SOUND).public_bytes(serialization.Encoding.DER)
    der = bytearray(sound)
    for _ in range(flips):
        der[draw.randrange(len(der))] ^= 1 << draw.randrange(8)
    if bytes(der) != sound:
        armour = "-----{} CERTIFICATE REQUEST-----"
        body = base64.encodebytes(bytes(der)).decode()
        with pytest.raises(TrustError):
            read_request(f"{armour.format('BEGIN')}\n{body}{armour.format('END')}\n".encode())


SOUND = write_request(certificates.new_tls_key(), NORTH, signer())


def test_a_certificate_of_another_authority_is_refused(authority: Authority, made: tuple[bytes, bytes]) -> None:
    """Also of one that calls itself the same."""
    other = make_authority("town", 3_650, NOW_S)
    pem = Authority(*other).issue(read_request(SOUND), (), 90, NOW_S)
    with pytest.raises(TrustError, match="another authority"):
        read_certificate(pem, made[0])
    assert read_certificate(pem, made[0] + other[0]).subject == NORTH, "while both are believed"


def test_keys_that_do_not_belong_together(made: tuple[bytes, bytes]) -> None:
    with pytest.raises(TrustError, match="does not belong"):
        Authority(made[0], certificates.new_tls_key())
    with pytest.raises(TrustError, match="no private key"):
        Authority(made[0], b"nothing")
    issued = Authority(*made).issue(read_request(SOUND), (), 90, NOW_S)
    with pytest.raises(TrustError, match="not the certificate of a fleet's authority"):
        certificates.fleet_of(issued)


def test_the_list_of_revoked_ones(authority: Authority, made: tuple[bytes, bytes]) -> None:
    pem = authority.issue(read_request(SOUND), (), 90, NOW_S)
    serial = read_certificate(pem, made[0]).serial
    listed = x509.load_pem_x509_crl(authority.revocation_list([(serial, NOW_S)], NOW_S))
    assert listed.get_revoked_certificate_by_serial_number(int(serial, 16)) is not None
    assert listed.get_revoked_certificate_by_serial_number(1) is None
    key = x509.load_pem_x509_certificate(made[0]).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert listed.is_signature_valid(key)
