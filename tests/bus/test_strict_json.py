"""JSON from strangers: what could be read in two ways is refused."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.base.errors import Malformed, StigmergyError, TooLarge
from stigmergy.bus.cloudevents import NESTING_MAX, read_json

BYTES_MAX = 10_000

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(plain)
def test_everything_that_is_plain_is_read(value: object) -> None:
    data = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        data.decode()
    except UnicodeDecodeError:
        return
    assert read_json(data, 10**6) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1, "a": 2}', "twice"),
        ('{"b": {"a": 1, "a": 1}}', "twice"),
        ("NaN", "NaN"),
        ("[-Infinity]", "Infinity"),
        ("1e999", "too large"),
        ("18446744073709551616", "64 bits"),
        ("-9223372036854775809", "64 bits"),
        ("1" * 5000, "64 bits"),
        ('"\\ud800"', "surrogates"),
        ('{"\\ud800": 1}', "surrogates"),
        ("[1", "delimiter"),
        ("", "Expecting"),
        ('"a\nb"', "control"),
        ("[1] [2]", "Extra"),
        ("[" * (NESTING_MAX + 1) + "]" * (NESTING_MAX + 1), "deeper"),
        ('{"a":' * (NESTING_MAX + 1) + "1" + "}" * (NESTING_MAX + 1), "deeper"),
        ("[" * 5000 + "]" * 5000, "deeper"),
    ],
)
def test_what_is_refused_says_why(text: str, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        read_json(text.encode(), BYTES_MAX)


def test_bytes_that_are_no_text_and_too_many_bytes_are_refused() -> None:
    with pytest.raises(Malformed, match="utf-8"):
        read_json(b'"\xff"', BYTES_MAX)
    with pytest.raises(TooLarge, match="10001 bytes"):
        read_json(b" " * (BYTES_MAX + 1), BYTES_MAX)


def test_the_deepest_that_is_allowed_is_read() -> None:
    assert read_json(b"[" * NESTING_MAX + b"]" * NESTING_MAX, BYTES_MAX)
    assert read_json(b'{"a":' * NESTING_MAX + b"1" + b"}" * NESTING_MAX, BYTES_MAX)
    assert read_json(b"18446744073709551615", BYTES_MAX) == 2**64 - 1
    assert read_json(b"-9223372036854775808", BYTES_MAX) == -(2**63)
    assert read_json(b"[1]" + b" " * (BYTES_MAX - 3), BYTES_MAX) == [1]


def test_a_long_key_is_not_repeated_at_length() -> None:
    key = b'"' + b"k" * 150 + b'":1'
    with pytest.raises(Malformed, match=f"the key '{'k' * 100}' occurs twice"):
        read_json(b"{" + key + b"," + key + b"}", BYTES_MAX)
    with pytest.raises(Malformed, match="the key 'b' occurs twice"):
        read_json(b'{"a":1,"b":1,"b":1}', BYTES_MAX)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_ours(data: bytes) -> None:
    with contextlib.suppress(StigmergyError):
        read_json(data, BYTES_MAX)
