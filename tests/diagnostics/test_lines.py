"""Which lines are written, and that no secret is in them."""

import base64
import json
import time

import pytest

from stigmergy.diagnostics.lines import (
    CLEANED_CHARS_MAX,
    CodeRule,
    LineFilter,
    LogConfig,
    LogLine,
    Redactor,
    as_json,
    as_text,
    passwords_in,
)

TOKEN = "stg_drill-rig_" + "k3JxP0" * 7
SECRETS = {
    "mqtt://me:hunter22@hub:1883: refused": "hunter22",
    "nats://S3cretT0ken@hub:4222: gone": "S3cretT0ken",
    "nats://a:pass-1@one:4222,b:pass-2@two:4222/x": "pass-2",
    "hub me:hunter22@hub.example:7422 refuses": "hunter22",
    "postgresql://stig:p%40ss@db/fleet?sslmode=require": "p%40ss",
    "GET /v1?token=abcdef123 failed": "abcdef123",
    "X-Amz-Signature=0a1b2c&x=1": "0a1b2c",
    "Authorization: Bearer abc.def": "abc.def",
    "{'authorization': 'Basic dXNlcjpwYXNz'}": "dXNlcjpwYXNz",
    f"sent {TOKEN} to it": TOKEN[14:],
    "bearer " + "a1" * 20: "a1" * 20,
    '{"password": "hunter 22"}': "hunter 22",
    "private: " + "0f" * 32: "0f" * 32,
    "-----BEGIN PRIVATE KEY-----\nMC4CAQ\n-----END PRIVATE KEY-----": "MC4CAQ",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNza": "b3BlbnNza",
    "password: hunter22 was refused": "hunter22",
    "Passwd : hunter22": "hunter22",
    "api-key: k3y": "k3y",
    "token: 0123456789abcdef0123": "0123456789abcdef0123",
    "token=k3y": "k3y",
    "Authorization: Bearer k3y": "k3y",
    "seed SUAM" + "A2B3" * 13 + "AB is wrong": "A2B3A2B3",
    "jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl": "eyJzdWIiOiIxMjM0In0",
}
HARMLESS = [
    "link local-only: mqtt://127.0.0.1:1: [Errno 111] Connection refused; trying again",
    "udp://0.0.0.0:7946?peers=north@10.0.0.7:7946 does not answer",
    "no valid token: make one with stigmergy token",
    "fencing token 41 of lift-1 at position 0@5f3a9c1e:41",
    "signed with the key " + "ab" * 32,
    "Drone/D-17 is stopped: battery at 12:30:05 was 3 %",
]


@pytest.mark.parametrize(("text", "secret"), SECRETS.items())
def test_secrets_that_give_themselves_away_are_hidden(text: str, secret: str) -> None:
    cleaned = Redactor().clean(text)
    assert secret not in cleaned
    assert "***" in cleaned


@pytest.mark.parametrize("text", HARMLESS)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert Redactor().clean(text) == text


@pytest.mark.parametrize("before", ["", "u", "me", "bob", "long.name"])
def test_long_secrets_are_hidden_within_words_and_in_base64(before: str) -> None:
    secret = "correct?horse>staple"
    redactor = Redactor([secret, "short"])
    assert secret not in redactor.clean(f"x{secret}y")
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        written = encode(f"{before}:{secret}".encode()).decode()
        cleaned = redactor.clean(f"said Basic {written} to it")
        assert "***" in cleaned
        left = cleaned.removeprefix("said Basic ").removesuffix(" to it")
        assert len(left.replace("***", "")) < len(written) / 2 + 4
        assert written[8:20] not in cleaned
    assert redactor.clean("shorter") == "shorter", "a short one only as a word: it is in half of all words"


def test_passwords_of_urls_are_hidden_wherever_they_appear() -> None:
    known = [
        *passwords_in("mqtts://me:s%40lt@hub"),
        *passwords_in("u:one@h1:7422"),
        *passwords_in("nats://tokentoken@h"),
    ]
    assert {"s%40lt", "s@lt", "tokentoken"} <= set(known)
    redactor = Redactor([*known, "abc"])
    assert redactor.clean("bad login s@lt, s%40lt or tokentoken; abc") == "bad login ***, *** or ***; abc"
    assert redactor.clean("tokentokens are not it") == "tokentokens are not it"
    assert redactor.clean_value({"why": ["s@lt", 3, ("tokentoken",)]}) == {"why": ["***", 3, ["***"]]}


@pytest.mark.parametrize("text", ["a:" * 50_000, "a" * 100_000, "x://" * 30_000, "token" * 30_000, "eyJ-" * 30_000])
def test_no_text_takes_long_to_look_through(text: str) -> None:
    began_s = time.process_time()
    assert len(Redactor(["some password"]).clean(text)) <= CLEANED_CHARS_MAX
    assert time.process_time() - began_s < 1.0


def test_text_that_cannot_be_encoded_is_written_all_the_same() -> None:
    line = LogLine("t", "warn", "library", Redactor().clean("half \ud800 of a pair"), fields={"at": object()})
    assert json.loads(as_json(line))["message"] == "half ? of a pair"


def test_the_level_of_a_code_counts_before_that_of_the_log() -> None:
    rules = {
        "library": CodeRule(level="error"),
        "store-watch-lost": CodeRule(level="debug"),
        "left-out": CodeRule(level="off"),
    }
    lines = LineFilter(LogConfig(level="warn", codes=rules))
    assert not lines.admit("node-listening", "info", 0.0)
    assert lines.admit("bus-down", "warn", 0.0)
    assert not lines.admit("library", "warn", 0.0)
    assert lines.admit("library", "error", 0.0)
    assert lines.admit("store-watch-lost", "debug", 0.0)
    assert not lines.admit("left-out", "error", 0.0)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.25, 0.3, 0.9])
def test_a_sample_is_its_share_and_has_the_first(share: float) -> None:
    lines = LineFilter(LogConfig(rate=100_000, codes={"library": CodeRule(sample=share)}))
    admitted = [lines.admit("library", "warn", 0.0) for _ in range(1000)]
    assert admitted[0] == share
    assert sum(one > 0 for one in admitted) == pytest.approx(1000 * share, abs=1.1)
    assert lines.take_left_out(1e9) == {}


def test_lines_of_a_code_are_bounded_and_those_left_out_are_counted() -> None:
    lines = LineFilter(LogConfig(rate=10))
    assert sum(lines.admit("library", "warn", number / 10) > 0 for number in range(100)) == 10
    assert lines.admit("bus-down", "warn", 10.0)
    assert lines.take_left_out(59.0) == {}
    assert lines.take_left_out(60.1) == {"library": 90}
    assert lines.take_left_out(60.2) == {}
    assert lines.admit("library", "warn", 60.3)
    assert sum(lines.admit("library", "warn", 61.0) > 0 for _ in range(20)) == 9
    assert lines.take_left_out(62.0, ending=True) == {"library": 11}


def test_what_is_not_known_is_left_out_of_a_line() -> None:
    line = LogLine("2026-11-16T08:00:00.000Z", "warn", "bus-down", "no link", shard=0, over=False)
    assert json.loads(as_json(line)) == {
        "time": "2026-11-16T08:00:00.000Z",
        "level": "warn",
        "code": "bus-down",
        "message": "no link",
        "shard": 0,
        "over": False,
    }


def test_text_moves_no_cursor() -> None:
    line = LogLine(
        "2026-11-16T08:00:00.000Z", "warn", "device-failed", "bad \x1b[2J\u202e name", agent="Drone/1", over=True
    )
    plain = as_text(line, terminal=False, colours=True)
    assert plain == b"2026-11-16T08:00:00.000Z warn  device-failed over: Drone/1: bad \\x1b[2J\\u202e name\n"
    assert as_text(line, terminal=True, colours=False) == b"over: Drone/1: bad \\x1b[2J\\u202e name [device-failed]\n"
    assert as_text(line, terminal=True, colours=True).startswith(b"\x1b[32mover: Drone/1")
