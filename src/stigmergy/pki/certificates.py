"""X.509: makes an authority, requests, certificates and lists of revoked ones, and judges what others have made.

All keys are EC P-256, which every peer verifies. A certificate names one member of a fleet (`names`). If the member has
an Ed25519 key, which signs its log, the certificate names that key too. A request proves that both private keys are
where it was written: it is signed by the TLS key, and the Ed25519 key signs the TLS key and the name.

No clock, no files: times are arguments, in seconds since 1970. Everything that is read may come from an enemy.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from stigmergy.base.errors import ConfigError, TrustError
from stigmergy.base.trust import Signer
from stigmergy.keys.ed25519 import PUBLIC_KEY_BYTES, SIGNATURE_BYTES, Ed25519Verifier
from stigmergy.pki.names import SERVER, Subject, check_hosts, is_address, is_identity, read_subject, server_uri
from stigmergy.shard.commit import SignatureAlgorithm

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError as missing:
    raise ConfigError(f'certificates need {missing.name}: pip install "stigmergy[pki]"') from None

PEM_BYTES_MAX: Final = 64 * 1024
"""A request, a certificate or an authority is far smaller; what is larger is not read."""
BACKDATED_S: Final = 3_600
"""A new certificate is valid for clocks that are so far behind."""
DAY_S: Final = 86_400
_UNREADABLE: Final = (
    ValueError,
    TypeError,
    InvalidSignature,
    UnsupportedAlgorithm,
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""What the library raises for bytes that are not what they should be."""
_SIGNING_KEY: Final = "urn:stigmergy:ed25519:"
_SIGNED_CONTEXT: Final = b"stigmergy 2026 signed with a TLS key\0"
_PROOF_CONTEXT: Final = b"stigmergy 2026 certificate request\0"


class CertificateRequest(Struct, frozen=True):
    """A request whose proofs are good."""

    subject: Subject
    tls_key: bytes
    """The public key, in DER."""
    signing_key: bytes = b""
    """The Ed25519 key that signs the member's log; empty if it has none."""


class Certificate(Struct, frozen=True):
    """What a certificate says. That our authority has made it is checked before."""

    subject: Subject
    serial: str
    from_s: int
    until_s: int
    hosts: tuple[str, ...] = ()
    signing_key: bytes = b""
    tls_key: bytes = b""


class Authority:
    """The key and the certificate that sign others. Deliberately no Struct: msgspec would encode the secret."""

    __slots__ = ("_certificate", "_key", "fleet", "until_s")

    def __init__(self, certificate: bytes, key: bytes) -> None:
        """Raises TrustError if the two do not belong together, or are none."""
        self._certificate = _load(certificate)
        self._key = _load_key(key)
        if self._certificate.public_key() != self._key.public_key():
            raise TrustError("the key of the authority does not belong to its certificate; restore both from one copy")
        self.fleet = fleet_of(certificate)
        self.until_s = int(self._certificate.not_valid_after_utc.timestamp())

    def issue(self, request: CertificateRequest, hosts: Sequence[str], days: float, now_s: float) -> bytes:
        """The certificate for a request, as PEM. Only servers, and nodes with `hosts`, may be connected to by TLS.
        Raises ConfigError, TrustError."""
        if request.subject.fleet != self.fleet:
            raise TrustError(
                f"{request.subject.shown} is of fleet {request.subject.fleet!r}, and this authority is that of "
                f"{self.fleet!r}; ask that of its own fleet"
            )
        until_s = now_s + days * DAY_S
        if not 0 < days <= 36_500 or until_s > self.until_s:
            raise ConfigError(
                f"{days:g} days: the authority itself ends on {_date(self.until_s)}; give fewer, or make a new one"
            )
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(request.subject.uri)]
        if request.subject.kind == SERVER:
            names.append(x509.UniformResourceIdentifier(server_uri(self.fleet)))
        if request.signing_key:
            names.append(x509.UniformResourceIdentifier(_SIGNING_KEY + request.signing_key.hex()))
        for host in check_hosts(tuple(hosts)):
            names.append(x509.IPAddress(ipaddress.ip_address(host)) if is_address(host) else x509.DNSName(host))
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        built = (
            _builder(_name(request.subject), self._certificate.subject, now_s, until_s)
            .public_key(_load_public(request.tls_key))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        return built.public_bytes(serialization.Encoding.PEM)

    def revocation_list(self, revoked: Sequence[tuple[str, int]], now_s: float) -> bytes:
        """The list of revoked serials, each with its time, as PEM. It holds until the authority ends: a broker would
        refuse everybody once its list is out of date."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate.subject)
            .last_update(_time(now_s - BACKDATED_S))
            .next_update(_time(self.until_s))
        )
        for serial, at_s in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(int(serial, 16)).revocation_date(_time(at_s))
            builder = builder.add_revoked_certificate(entry.build())
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def make_authority(fleet: str, days: float, now_s: float) -> tuple[bytes, bytes]:
    """A new authority: its certificate and its private key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, fleet),
            x509.NameAttribute(NameOID.COMMON_NAME, "stigmergy authority"),
        ]
    )
    built = (
        _builder(name, name, now_s, now_s + days * DAY_S)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return built.public_bytes(serialization.Encoding.PEM), _key_pem(key)


def new_tls_key() -> bytes:
    """A fresh private key, as PEM."""
    return _key_pem(ec.generate_private_key(ec.SECP256R1()))


def write_request(tls_key: bytes, subject: Subject, signer: Signer | None = None) -> bytes:
    """A request for a certificate, as PEM. `signer` has the Ed25519 key that it is to name."""
    key = _load_key(tls_key)
    uris = [subject.uri]
    if signer is not None:
        proof = signer.sign(_proven(_der(key.public_key()), subject))
        uris.append(f"{_SIGNING_KEY}{signer.public_key.hex()}:{proof.hex()}")
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris])
    request = x509.CertificateSigningRequestBuilder().subject_name(_name(subject)).add_extension(names, critical=False)
    return request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def read_request(pem: bytes) -> CertificateRequest:
    """Reads a request and checks what it proves. Raises TrustError for everything that is wrong with it."""
    try:
        _check_size(pem, "a request")
        request = x509.load_pem_x509_csr(pem)
        is_signed = request.is_signature_valid
        asked = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        found = [extension for extension in request.extensions if extension.value != asked]
        tls_key = _der(request.public_key())
    except _UNREADABLE as error:
        raise TrustError(f"this is no request that `stigmergy ca request` has written: {_said(error)}") from None
    if not is_signed:
        raise TrustError("the request is not signed by the key in it; write a new one with `stigmergy ca request`")
    if found or any(not isinstance(name, x509.UniformResourceIdentifier) for name in asked):
        raise TrustError("the request asks for more than a name; hosts are given to `ca issue`, not asked for")
    subject, bound = _read_uris([str(name.value) for name in asked])
    signing_key, _, proof = bound.partition(":")
    key, signature = _from_hex(signing_key, PUBLIC_KEY_BYTES), _from_hex(proof, SIGNATURE_BYTES)
    if bound:
        verifier = Ed25519Verifier()
        if objection := verifier.acceptable(SignatureAlgorithm.ED25519, key):
            raise TrustError(f"the Ed25519 key in the request: {objection}")
        if not verifier.verify(SignatureAlgorithm.ED25519, key, _proven(tls_key, subject), signature):
            raise TrustError("the request does not prove that its writer has the Ed25519 key; write a new one")
    return CertificateRequest(subject, tls_key, key)


def read_certificate(pem: bytes, authorities: bytes) -> Certificate:
    """Reads a certificate, the first in `pem`, that one of these authorities has made. Raises TrustError."""
    try:
        certificate = _load(pem)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except _UNREADABLE as error:
        raise TrustError(f"this is no certificate of a fleet: {_said(error)}") from None
    for authority in _load_all(authorities):
        try:
            certificate.verify_directly_issued_by(authority)
        except _UNREADABLE:
            continue
        break
    else:
        raise TrustError("the certificate is of another authority; ask the one of this fleet for a new one")
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    subject, bound = _read_uris([uri for uri in uris if not _is_server_role(uri)])
    hosts = names.get_values_for_type(x509.DNSName) + [str(one) for one in names.get_values_for_type(x509.IPAddress)]
    return Certificate(
        subject,
        f"{certificate.serial_number:x}",
        int(certificate.not_valid_before_utc.timestamp()),
        int(certificate.not_valid_after_utc.timestamp()),
        tuple(hosts),
        _from_hex(bound, PUBLIC_KEY_BYTES),
        _der(certificate.public_key()),
    )


def fleet_of(authority: bytes) -> str:
    """The fleet of an authority, by its certificate. Raises TrustError."""
    certificate = _load(authority)
    found = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    try:
        is_authority = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_authority = False
    if len(found) != 1 or not is_authority:
        raise TrustError("this is not the certificate of a fleet's authority; `stigmergy ca init` makes one")
    return str(found[0].value)


def sign(tls_key: bytes, data: bytes) -> bytes:
    """A signature by a private TLS key. Raises TrustError."""
    return _load_key(tls_key).sign(_SIGNED_CONTEXT + data, ec.ECDSA(hashes.SHA256()))


def is_signed(tls_key: bytes, data: bytes, signature: bytes) -> bool:
    """Whether `sign` made this with the private half of a key."""
    try:
        _load_public(tls_key).verify(signature, _SIGNED_CONTEXT + data, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def public_half(tls_key: bytes) -> bytes:
    """The public key of a private one, in DER. Raises TrustError."""
    return _der(_load_key(tls_key).public_key())


def _proven(tls_key: bytes, subject: Subject) -> bytes:
    return _PROOF_CONTEXT + len(tls_key).to_bytes(4, "big") + tls_key + subject.uri.encode()


def _read_uris(uris: list[str]) -> tuple[Subject, str]:
    """Who it is, and what is said of the Ed25519 key."""
    identities = [uri for uri in uris if is_identity(uri)]
    bound = [uri.removeprefix(_SIGNING_KEY) for uri in uris if uri.startswith(_SIGNING_KEY)]
    if len(identities) != 1 or len(bound) > 1 or len(identities) + len(bound) != len(uris):
        raise TrustError("it must name one member of a fleet, at most one Ed25519 key, and nothing else")
    try:
        return read_subject(identities[0]), bound[0] if bound else ""
    except ConfigError as error:
        raise TrustError(str(error)) from None


def _is_server_role(uri: str) -> bool:
    return is_identity(uri) and uri.count("/") == 3


def _from_hex(text: str, size_bytes: int) -> bytes:
    if not text:
        return b""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != size_bytes or found.hex() != text:
        raise TrustError("an Ed25519 key or signature is not written as it must be; write a new request")
    return found


def _builder(subject: x509.Name, issuer: x509.Name, now_s: float, until_s: float) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(now_s - BACKDATED_S))
        .not_valid_after(_time(until_s))
    )


def _name(subject: Subject) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, subject.fleet),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, subject.kind),
            x509.NameAttribute(NameOID.COMMON_NAME, subject.name),
        ]
    )


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _load(pem: bytes) -> x509.Certificate:
    return _load_all(pem)[0]


def _load_all(pem: bytes) -> list[x509.Certificate]:
    try:
        _check_size(pem, "a certificate")
        return x509.load_pem_x509_certificates(pem)
    except _UNREADABLE as error:
        raise TrustError(f"there is no certificate in it: {_said(error)}") from None


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        _check_size(pem, "a key")
        key = serialization.load_pem_private_key(pem, None)
    except _UNREADABLE:
        raise TrustError("there is no private key in it that can be read; restore it from a copy") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise TrustError("the private key is not of the curve P-256; `stigmergy ca request` makes one that is")
    return key


def _load_public(der: bytes) -> ec.EllipticCurvePublicKey:
    key = serialization.load_der_public_key(der)
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key


def _der(key: Any) -> bytes:
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise TrustError("the TLS key is not of the curve P-256; `stigmergy ca request` makes one that is")
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _check_size(pem: bytes, what: str) -> None:
    if len(pem) > PEM_BYTES_MAX:
        raise ValueError(f"{what} has {PEM_BYTES_MAX} bytes at most")


def _said(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def _time(at_s: float) -> datetime:
    return datetime.fromtimestamp(max(0, int(at_s)), UTC)


def _date(at_s: float) -> str:
    return _time(at_s).strftime("%Y-%m-%d")
