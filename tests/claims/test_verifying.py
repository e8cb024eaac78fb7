"""Signatures that entries share are verified once, and only those."""

from stigmergy.claims.following import REMEMBERED_COUNT, CachingVerifier


def test_the_same_signature_is_verified_once_as_long_as_it_is_remembered() -> None:
    asked: list[bytes] = []

    def verify(algorithm: int, key: bytes, statement: bytes, signature: bytes) -> bool:
        asked.append(statement)
        return signature == b"good"

    remembering = CachingVerifier(verify)
    for _ in range(3):
        assert remembering(1, b"key", b"statement", b"good")
        assert not remembering(1, b"key", b"statement", b"bad")
        assert not remembering(1, b"key", b"another", b"bad")
    assert asked == [b"statement", b"statement", b"another"]
    for number in range(REMEMBERED_COUNT):
        remembering(1, b"key", b"%d" % number, b"good")
    assert remembering(1, b"key", b"statement", b"good")
    assert asked.count(b"statement") == 3
