"""Key files: the written bytes stay readable, nothing but the stated errors comes out, and the secret stays inside."""

import copy
import os
import pickle
import random
import re
import stat
import traceback
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.base.errors import ConfigError, TrustError, WrongKey
from stigmergy.keys import keyfile
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.keys.keyfile import (
    KEY_FILE_BYTES_MAX,
    PrivateKey,
    PublicKey,
    decode_private_key,
    decode_public_key,
    encode_private_key,
    encode_public_key,
    fingerprint,
    new_private_key,
    read_private_key,
    read_public_key,
    write_private_key,
    write_public_key,
)
from stigmergy.shard.commit import SignatureAlgorithm
from stigmergy.sim.loop import SimEntropy

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "formats"
GOLDEN_PRIVATE = (FIXTURES / "private-key-1.txt").read_bytes()
GOLDEN_PUBLIC = (FIXTURES / "public-key-1.txt").read_text(encoding="ascii")

KEY = PrivateKey(bytes(range(32)), "drone 7, north field")
OTHER = PrivateKey(bytes(range(1, 33)), "another")
SECRET = KEY.seed.hex()

COMMENTS = st.from_regex(r"(?:[!-~](?:[ -~]{0,62}[!-~])?)?", fullmatch=True)


def same(left: PrivateKey, right: PrivateKey) -> bool:
    return (left.seed, left.comment, left.public) == (right.seed, right.comment, right.public)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "drone.key"


def put(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


# The bytes.


def test_the_fixtures_are_replayed() -> None:
    assert same(decode_private_key(GOLDEN_PRIVATE), KEY)
    assert encode_private_key(KEY) == GOLDEN_PRIVATE
    assert decode_public_key(GOLDEN_PUBLIC) == KEY.public
    assert encode_public_key(KEY.public) + "\n" == GOLDEN_PUBLIC
    assert fingerprint(KEY.public) == "36be-wwq4-ugpo-wahr"


def test_the_document_shows_the_fixtures() -> None:
    document = (ROOT / "docs" / "formats" / "keys.md").read_text(encoding="utf-8")
    shown = re.findall(r"(?:^    .*\n)+", document, flags=re.MULTILINE)
    texts = [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in shown]
    assert GOLDEN_PRIVATE.decode() in texts
    assert GOLDEN_PUBLIC in texts
    assert fingerprint(KEY.public) in document


@given(st.binary(min_size=32, max_size=32), COMMENTS)
def test_what_is_written_can_be_read(seed: bytes, comment: str) -> None:
    key = PrivateKey(seed, comment)
    assert same(decode_private_key(encode_private_key(key)), key)
    assert decode_public_key(encode_public_key(key.public)) == key.public
    assert len(encode_private_key(key)) < KEY_FILE_BYTES_MAX


def test_the_key_is_the_signer_s() -> None:
    assert Ed25519Signer(KEY.seed).public_key == KEY.public.key
    assert Ed25519Verifier().acceptable(KEY.public.algorithm, KEY.public.key) is None


def test_new_keys_come_from_the_entropy() -> None:
    entropy = SimEntropy(1)
    first, second = new_private_key(entropy, "one"), new_private_key(entropy)
    assert first.seed != second.seed
    assert same(new_private_key(SimEntropy(1), "one"), first)


def test_fingerprints_differ() -> None:
    keys = [new_private_key(SimEntropy(seed)).public for seed in range(200)]
    assert len({fingerprint(key) for key in keys}) == 200
    assert fingerprint(PublicKey(1, KEY.public.key)) != fingerprint(PublicKey(2, KEY.public.key))
    assert re.fullmatch(r"[a-z2-7]{4}(-[a-z2-7]{4}){3}", fingerprint(keys[0]))


@pytest.mark.parametrize("comment", [" x", "x ", "a\nb", "x" * 65, "naïve", "\x1b[31m", "a\x7f", "\u202e"])
def test_comments_that_could_mislead_are_refused(comment: str) -> None:
    with pytest.raises(ConfigError, match="printable ASCII"):
        PrivateKey(bytes(32), comment)
    with pytest.raises(ConfigError, match="printable ASCII"):
        encode_public_key(PublicKey(SignatureAlgorithm.ED25519, KEY.public.key, comment))


def test_only_known_keys_are_written() -> None:
    with pytest.raises(TrustError, match="32 bytes"):
        PrivateKey(bytes(31))
    for public in (PublicKey(2, bytes(32)), PublicKey(SignatureAlgorithm.ED25519, bytes(31))):
        with pytest.raises(TrustError, match="cannot be written"):
            encode_public_key(public)


# Damage and wrong keys.


def test_every_flipped_bit_is_seen() -> None:
    for bit in range(len(GOLDEN_PRIVATE) * 8):
        flipped = bytearray(GOLDEN_PRIVATE)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(TrustError) as caught:
            decode_private_key(bytes(flipped))
        assert not isinstance(caught.value, WrongKey), "damage is not a wrong key"


def test_every_flipped_bit_of_a_public_key_is_seen() -> None:
    for position in range(len("stigmergy-ed25519-1 ") + 72):
        for bit in range(7):
            flipped = list(GOLDEN_PUBLIC)
            flipped[position] = chr(ord(flipped[position]) ^ 1 << bit)
            with pytest.raises(TrustError):
                decode_public_key("".join(flipped))


def test_every_cut_and_every_doubled_byte_is_seen() -> None:
    for size in range(len(GOLDEN_PRIVATE)):
        with pytest.raises(TrustError):
            decode_private_key(GOLDEN_PRIVATE[:size])
        with pytest.raises(TrustError):
            decode_private_key(GOLDEN_PRIVATE[: size + 1] + GOLDEN_PRIVATE[size:])


def checked(content: str) -> bytes:
    """Content with a check value that fits: what somebody makes on purpose."""
    check = blake3(content.encode(), derive_key_context="stigmergy 2026 private key file").hexdigest()[:32]
    return f"{content}check: {check}\n".encode()


def body(**changes: str) -> str:
    fields = {"algorithm": "ed25519", "comment": "x", "public": KEY.public.key.hex(), "private": SECRET} | changes
    return "stigmergy-private-key-1\n" + "".join(f"{name}: {value}\n" for name, value in fields.items())


def test_halves_of_two_keys_are_a_wrong_key() -> None:
    assert decode_private_key(checked(body())).seed == KEY.seed
    with pytest.raises(WrongKey, match="different keys"):
        decode_private_key(checked(body(public=OTHER.public.key.hex())))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "not a private key file"),
        (b"secret " + SECRET.encode(), "not a private key file"),
        (b"stigmergy-private-key-2\nrest", "format 2; this version reads format 1"),
        (b"stigmergy-private-key-1\n" + SECRET.encode(), "edited by hand"),
        (GOLDEN_PRIVATE.replace(b"\n", b"\r\n"), "not a private key file"),
        (GOLDEN_PRIVATE + b"\n", "edited by hand"),
        (GOLDEN_PRIVATE.replace(b"drone 7", b"drone 8"), "does not fit its check value"),
        (GOLDEN_PUBLIC.encode(), "this is a public key"),
        (checked(body(algorithm="mldsa65")), "a key for mldsa65"),
        (checked(body(private="00" * 31)), "32 bytes"),
        (checked(body(private="0" * 63)), "edited by hand"),
        (checked(body(private=SECRET.upper())), "edited by hand"),
    ],
)
def test_what_else_it_is_is_said_without_quoting_it(content: bytes, sentence: str) -> None:
    with pytest.raises(TrustError, match=re.escape(sentence)) as caught:
        decode_private_key(content)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "paste it again"),
        ("stigmergy-ed25519-2 " + "0" * 72, "paste it again"),
        (GOLDEN_PUBLIC.replace("03a1", "03a2"), "check value"),
        (GOLDEN_PUBLIC.upper(), "paste it again"),
        (GOLDEN_PUBLIC + GOLDEN_PUBLIC, "paste it again"),
        (GOLDEN_PUBLIC.replace(" drone", "\u00a0drone"), "paste it again"),
        (GOLDEN_PRIVATE.decode(), "this is a private key"),
        ("x" * 5_000, "over 4096"),
    ],
)
def test_public_lines_that_are_none(line: str, sentence: str) -> None:
    with pytest.raises(TrustError, match=sentence) as caught:
        decode_public_key(line)
    assert SECRET not in str(caught.value)


def test_blanks_around_a_pasted_line_do_not_matter() -> None:
    assert decode_public_key(f" \t{GOLDEN_PUBLIC.strip()}\r\n\n") == KEY.public


# Fuzz.

MUTATIONS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3), st.binary(max_size=6)), max_size=6)


def mutate(content: bytes, mutations: list[tuple[int, int, bytes]]) -> bytes:
    for at, removed, inserted in mutations:
        content = content[:at] + inserted + content[at + removed :]
    return content


@given(st.one_of(st.binary(max_size=600), MUTATIONS.map(lambda changes: mutate(GOLDEN_PRIVATE, changes))))
def test_any_bytes_are_a_key_or_a_trust_error(content: bytes) -> None:
    try:
        key = decode_private_key(content)
    except TrustError:
        return
    assert encode_private_key(key) == content, "one key, one way to write it"


@given(
    st.one_of(
        st.text(max_size=200), MUTATIONS.map(lambda changes: mutate(GOLDEN_PUBLIC.encode(), changes).decode("latin-1"))
    )
)
def test_any_text_is_a_public_key_or_a_trust_error(line: str) -> None:
    try:
        public = decode_public_key(line)
    except TrustError:
        return
    assert encode_public_key(public) == line.strip(" \t\r\n")


FIELDS = st.fixed_dictionaries(
    {
        "algorithm": st.sampled_from(["ed25519", "ed448", "", "x" * 40]),
        "comment": st.text(max_size=70),
        "public": st.sampled_from([KEY.public.key.hex(), OTHER.public.key.hex(), "00", "", "0" * 2_000]),
        "private": st.one_of(st.sampled_from([SECRET, "", "0" * 65]), st.binary(max_size=40).map(bytes.hex)),
    }
)


@given(FIELDS)
def test_fields_with_a_fitting_check_value_are_a_key_or_a_trust_error(fields: dict[str, str]) -> None:
    content = checked(body(**fields))
    try:
        key = decode_private_key(content)
    except TrustError:
        return
    assert encode_private_key(key) == content


@given(st.binary(max_size=300), st.sampled_from([0o600, 0o400, 0o644, 0o620]))
def test_any_file_is_a_key_or_a_stated_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, mode: int
) -> None:
    path = put(tmp_path_factory.mktemp("fuzz") / "x.key", content, mode)
    for read in (read_private_key, read_public_key):
        with pytest.raises((ConfigError, TrustError)):
            read(path)


# Files.


def test_a_written_file_can_be_read_by_its_owner_only(path: Path) -> None:
    old = os.umask(0)
    try:
        write_private_key(path, KEY)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes() == GOLDEN_PRIVATE
    assert same(read_private_key(path), KEY)
    assert os.listdir(path.parent) == [path.name], "nothing is left aside"


def test_a_public_file_can_be_read_by_all(path: Path) -> None:
    write_public_key(path, KEY.public)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert path.read_text(encoding="ascii") == GOLDEN_PUBLIC
    assert read_public_key(path) == KEY.public


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o620, 0o602, 0o601, 0o644, 0o777])
def test_a_file_that_is_open_to_others_is_refused(path: Path, mode: int) -> None:
    put(path, GOLDEN_PRIVATE, mode)
    with pytest.raises(TrustError, match=rf"mode 0{mode:o}.*chmod 600"):
        read_private_key(path)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_stricter_modes_are_fine(path: Path, mode: int) -> None:
    assert same(read_private_key(put(path, GOLDEN_PRIVATE, mode)), KEY)


def test_a_link_counts_as_the_file_behind_it(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(put(path, GOLDEN_PRIVATE))
    assert same(read_private_key(link), KEY)
    path.chmod(0o640)
    with pytest.raises(TrustError, match="chmod 600"):
        read_private_key(link)


def test_the_expected_key_is_told_from_another(path: Path) -> None:
    write_private_key(path, KEY)
    assert same(read_private_key(path, expected=KEY.public.key), KEY)
    with pytest.raises(WrongKey) as caught:
        read_private_key(path, expected=OTHER.public.key)
    assert fingerprint(KEY.public) in str(caught.value)
    assert fingerprint(OTHER.public) in str(caught.value)


@pytest.mark.parametrize("size", [KEY_FILE_BYTES_MAX + 1, 1 << 40])
def test_a_file_that_is_too_large_is_not_read_on(path: Path, size: int) -> None:
    put(path, GOLDEN_PRIVATE)
    os.truncate(path, size)  # sparse: reading all of it would take a terabyte of memory
    for read in (read_private_key, read_public_key):
        with pytest.raises(ConfigError, match="over 4096 bytes"):
            read(path)


def test_a_file_of_just_the_limit_is_read(path: Path) -> None:
    put(path, GOLDEN_PUBLIC.encode().ljust(KEY_FILE_BYTES_MAX))
    assert read_public_key(path) == KEY.public


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for place in (pipe, tmp_path, Path("/dev/zero")):
        with pytest.raises(ConfigError, match="no regular file"):
            read_private_key(place)


@pytest.mark.parametrize("place", ["missing.key", "no/folder.key", "zero\0byte.key", "x" * 300])
def test_places_that_cannot_be(tmp_path: Path, place: str) -> None:
    with pytest.raises(ConfigError, match="cannot read key file"):
        read_private_key(tmp_path / place)
    if place != "missing.key":
        with pytest.raises(ConfigError, match="cannot write key file"):
            write_private_key(tmp_path / place, KEY)
        assert os.listdir(tmp_path) == []


def test_an_existing_file_is_never_replaced(path: Path) -> None:
    write_private_key(path, KEY)
    with pytest.raises(ConfigError, match="never replaced"):
        write_private_key(path, OTHER)
    with pytest.raises(ConfigError, match="never replaced"):
        write_public_key(path, OTHER.public)
    assert same(read_private_key(path), KEY)
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("failing", ["fsync", "link", "fchmod"])
def test_a_disk_that_fails_leaves_nothing_behind(path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(keyfile.os, failing, fail)  # type: ignore[attr-defined]
        with pytest.raises(ConfigError, match="No space left on device"):
            write_private_key(path, KEY)
    assert os.listdir(path.parent) == []
    write_private_key(path, KEY)


def test_file_and_folder_are_synced_before_and_after_the_name_appears(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, bool]] = []
    sync = os.fsync

    def watch(descriptor: int) -> None:
        seen.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), path.exists()))
        sync(descriptor)

    monkeypatch.setattr(keyfile.os, "fsync", watch)  # type: ignore[attr-defined]
    write_private_key(path, KEY)
    assert seen == [(False, False), (True, True)]


def test_a_failing_sync_of_the_folder_takes_the_name_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync

    def fail_for_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(5, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(keyfile.os, "fsync", fail_for_folders)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="Input/output error"):
        write_private_key(path, KEY)
    assert os.listdir(path.parent) == []


# The secret stays inside.


def test_the_secret_is_not_shown_copied_or_encoded() -> None:
    for text in (repr(KEY), str(KEY), f"{KEY}", repr([KEY])):
        assert SECRET not in text
        assert repr(KEY.seed) not in text
        assert fingerprint(KEY.public) in text
    leaks: list[Any] = [pickle.dumps, copy.deepcopy, copy.copy, msgspec.json.encode, msgspec.msgpack.encode]
    for leak in leaks:
        with pytest.raises(TypeError):
            leak(KEY)


def test_errors_and_their_chains_keep_the_secret(path: Path) -> None:
    chance = random.Random(3)
    for _ in range(300):
        damaged = bytearray(GOLDEN_PRIVATE)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        with pytest.raises(TrustError) as caught:
            read_private_key(put(path, bytes(damaged)))
        assert SECRET not in "".join(traceback.format_exception(caught.value))
