"""What is printed never moves a cursor and never shows one text as another, and JSON still says what it said."""

import json

import pytest

from stigmergy.cli.display.frames import duration
from stigmergy.cli.display.output import aligned, json_line, printable, printable_json

NASTY = [
    "\x9b2J",
    "\x1b[2J",
    "\u202egnp.exe",
    "\u2066a\u2069",
    "\u200e\u200f\u061c",
    "\u2028",
    "\U000e0041",
    "\x85",
    "\x7f",
]


@pytest.mark.parametrize("text", NASTY)
def test_json_has_no_character_that_a_terminal_obeys(text: str) -> None:
    line = json_line({text: [text, f"ä {text} 𝄞"]})
    assert line.decode().removesuffix("\n").isprintable()
    assert json.loads(line) == {text: [text, f"ä {text} 𝄞"]}
    assert printable(text).isprintable()


def test_what_can_be_printed_stays_as_it_is() -> None:
    assert json_line({"name": "Ünïcode 𝄞"}) == '{"name":"Ünïcode 𝄞"}\n'.encode()
    assert printable_json(b'{"a":"\\u009b"}') == b'{"a":"\\u009b"}'


@pytest.mark.parametrize(
    ("seconds", "text"), [(119, "119 s"), (3_599, "59 min"), (3_780, "1 h 3 min"), (200_000, "2 d 7 h")]
)
def test_every_view_says_a_duration_in_the_same_way(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_columns_are_as_wide_as_they_need() -> None:
    lines = aligned(("NAME", "WHAT"), [["a", "b"], [("longer", "red"), "c"], []])
    plain = ["".join(cell if isinstance(cell, str) else cell[0] for cell in line) for line in lines]
    assert plain == ["NAME    WHAT", "a       b", "longer  c"]
