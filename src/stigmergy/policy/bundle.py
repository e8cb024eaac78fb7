"""Bundles: the Rego modules and the data of a policy, its fleet and version, and who vouches for it, as one file. Pure.

    delivery-3.policy = msgpack [magic, format, content (bytes), algorithm, public key, signature]

    data = write_policy(PolicyRules(fleet="delivery", version=3, modules=(("drones.rego", text),)), signer)
    bundle = read_policy(data, trusted=[public_key], verifier=Ed25519Verifier(), fleet="delivery")  # or PolicyRefused

The signature covers a domain and the digest of the content, and is checked before the content is decoded. A policy
belongs to one fleet: one that was signed for another is refused. Versions are whole numbers, and only grow: to go back,
sign the old text under a new number. `docs/formats.md`, "Bundles of policies", has every byte.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from blake3 import blake3
from msgspec import Meta, Struct

from stigmergy.base.errors import PolicyRefused
from stigmergy.base.trust import Signer, Verifier

FORMAT: Final = 1
SUFFIX: Final = ".policy"
BUNDLE_BYTES_MAX: Final = 512 * 1024
"""Of the whole file. A policy is text that people read; a store of small values has room for it."""
MODULES_COUNT_MAX: Final = 64
VERSION_MAX: Final = 2**31
_MAGIC: Final = b"stigmergy-policy"
_DIGEST_CONTEXT: Final = "stigmergy 2026 policy bundle"
_DOMAIN: Final = b"stigmergy.policy.bundle@1"
_FILE = re.compile(r"(.+)-([1-9]\d{0,9})\.policy", re.ASCII)
_Text = Annotated[str, Meta(max_length=BUNDLE_BYTES_MAX)]
_Name = Annotated[str, Meta(min_length=1, max_length=200)]


class PolicyRules(Struct, array_like=True, frozen=True):
    """What a policy consists of. A new field goes to the end and has a default."""

    fleet: _Name
    version: Annotated[int, Meta(ge=1, le=VERSION_MAX)]
    modules: Annotated[tuple[tuple[_Name, _Text], ...], Meta(min_length=1, max_length=MODULES_COUNT_MAX)]
    """Rego modules: file name and text, in the order of the names."""
    data: _Text = ""
    """A JSON object that the modules see as `data`; empty: none."""
    note: Annotated[str, Meta(max_length=500)] = ""


class PolicyBundle(Struct, frozen=True):
    """A policy that has been read."""

    policy: PolicyRules
    digest: bytes
    """BLAKE3 of the content: names these modules and this data, whoever signed them."""
    signer: bytes = b""
    """The public key; empty if nobody signed it."""

    @property
    def file_name(self) -> str:
        """What the file is called."""
        return f"{self.policy.fleet}-{self.policy.version}{SUFFIX}"


class _File(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    magic: bytes
    format: int
    content: bytes
    algorithm: int = 0
    key: bytes = b""
    signature: bytes = b""


_files = msgspec.msgpack.Decoder(_File)
_policies = msgspec.msgpack.Decoder(PolicyRules)
_encoder = msgspec.msgpack.Encoder()


def version_of(file: str, fleet: str) -> int | None:
    """The version that a file name says; None for one that is no policy of this fleet."""
    found = _FILE.fullmatch(file)
    return int(found[2]) if found is not None and found[1] == fleet else None


def write_policy(policy: PolicyRules, signer: Signer | None = None) -> bytes:
    """The file. Without a signer no node takes it. Raises PolicyRefused for what readers would refuse."""
    content = _encoder.encode(policy)
    _decoded(content)
    file = _File(_MAGIC, FORMAT, content)
    if signer is not None:
        signature = signer.sign(_statement(_digest(content)))
        file = _File(_MAGIC, FORMAT, content, signer.algorithm, signer.public_key, signature)
    data = _encoder.encode(file)
    if len(data) > BUNDLE_BYTES_MAX:
        raise PolicyRefused(f"{len(data)} bytes, at most {BUNDLE_BYTES_MAX}; take data out that no rule reads")
    return data


def read_policy(data: bytes, trusted: Sequence[bytes], verifier: Verifier, fleet: str) -> PolicyBundle:
    """The policy, if one of the trusted keys has signed it, for this fleet. Raises PolicyRefused."""
    file = _opened(data)
    if not file.algorithm:
        raise PolicyRefused("nobody has signed this policy; make it with: stigmergy policy sign --key FILE")
    if file.key not in trusted:
        raise PolicyRefused(
            f"signed by {file.key.hex()}, which is not among the policy_keys of this node; add it, or sign anew"
        )
    digest = _digest(file.content)
    if not verifier.verify(file.algorithm, file.key, _statement(digest), file.signature):
        raise PolicyRefused("damaged or forged: the signature does not cover these bytes; fetch the policy again")
    policy = _decoded(file.content)
    if policy.fleet != fleet:
        raise PolicyRefused(f"this is a policy for the fleet {policy.fleet!r}, not {fleet!r}; sign one for {fleet!r}")
    return PolicyBundle(policy, digest, file.key)


def inspect_policy(data: bytes, verifier: Verifier) -> PolicyBundle:
    """The policy as it says it is, with its signer if the signature is right. For people, never for a node."""
    file = _opened(data)
    digest = _digest(file.content)
    signed = bool(file.algorithm) and verifier.verify(file.algorithm, file.key, _statement(digest), file.signature)
    return PolicyBundle(_decoded(file.content), digest, file.key if signed else b"")


def _opened(data: bytes) -> _File:
    if len(data) > BUNDLE_BYTES_MAX:
        raise PolicyRefused(f"more than {BUNDLE_BYTES_MAX} bytes: this is no policy of ours")
    try:
        file = _files.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise PolicyRefused("cut off, damaged or no bundle of a policy; fetch it again") from None
    if file.magic != _MAGIC:
        raise PolicyRefused("not a bundle of a policy; make one with `stigmergy policy sign`")
    if file.format != FORMAT:
        raise PolicyRefused(f"a policy of format {file.format}; this version reads format {FORMAT}: update stigmergy")
    return file


def _decoded(content: bytes) -> PolicyRules:
    try:
        policy = _policies.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PolicyRefused(f"its content cannot be read ({error}); sign it again") from None
    names = [name for name, _ in policy.modules]
    if names != sorted(dict.fromkeys(names)):
        raise PolicyRefused("its modules are not in the order of their names, each once; sign it again")
    return policy


def _digest(content: bytes) -> bytes:
    return blake3(content, derive_key_context=_DIGEST_CONTEXT).digest()


def _statement(digest: bytes) -> bytes:
    """The signed bytes: with their domain, so that no signature of a node for anything else fits a policy."""
    return _encoder.encode((_DOMAIN, digest))
