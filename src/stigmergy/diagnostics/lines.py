"""Lines of the log: which are written, what is taken out of them, and how they look as JSON and as text. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal
from urllib.parse import unquote

import msgspec
from msgspec import Meta, Struct

from stigmergy.diagnostics.codes import CODES, DEBUG, ERROR, INFO, LEVELS, WARN

MESSAGE_CHARS_MAX = 4_000
CLEANED_CHARS_MAX = 16_000
"""More of a text is not looked at: the longest secret that could be cut in two is shorter than the difference."""
TRACEBACK_CHARS_MAX = 8_000
"""The end of a longer one is kept: it says where."""
MINUTE_S = 60.0
HIDDEN = "***"
SECRET_CHARS_MIN = 4
"""A shorter password would be found in half of all words."""
LONG_SECRET_CHARS_MIN = 12
"""From this length on a secret is found within a word too, and in base64: no other text has it in it by chance."""
STYLES = {DEBUG: "2", INFO: "0", WARN: "33", ERROR: "31"}
OVER_STYLE = "32"
_URL = re.compile(r"(\w://)[^\s/?#\"']{1,512}@")
_USER = re.compile(r"(?<![\w/.-])[\w.%+-]{1,64}:[^\s/@,?\"']{1,256}@(?=[\w\[])")
_WORDS = r"pass(?:word|wd)?|pwd|secret|token|signature|credentials?|api[_-]?key|access[_-]?key|session[_-]?token"
_PATTERNS = [
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    (_URL, rf"\1{HIDDEN}@"),
    (_USER, f"{HIDDEN}@"),
    (re.compile(r"(?i)(authorization[\"']?\s*[:=]\s*[\"']?(?:\w+\s+)?)[^\s\"',]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]{20,}"), rf"\1{HIDDEN}"),
    (re.compile(rf"(?i)((?:{_WORDS})=[\"']?)[^\s\"'&,;]+"), rf"\1{HIDDEN}"),
    (re.compile(rf"(?i)((?:{_WORDS})[\"']:\s*[\"'])[^\"']+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)((?:pass(?:word|wd)|pwd|secret|(?:api|access)[_-]?key)\s?:\s{0,3})[^\s\"',;]+"), rf"\1{HIDDEN}"),
    (re.compile(rf"(?i)((?:{_WORDS})\s?:\s{{0,3}})[\w.~+/=-]{{16,}}"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)(\b(?:private|seed)[\"']?\s*[:=]\s*[\"']?)[0-9a-f]{64}"), rf"\1{HIDDEN}"),
    (re.compile(r"\bstg_[\w.-]{20,}"), f"stg_{HIDDEN}"),
    (re.compile(r"\bS[UAONCX][A-Z2-7]{56}\b"), HIDDEN),
    (re.compile(r"\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"), HIDDEN),
]
"""Tokens, keys and passwords that give themselves away. 64 hex digits alone do not: public keys and digests have them.
Repetitions are bounded: this runs on the event loop."""

Threshold = Literal["debug", "info", "warn", "error", "off"]


class CodeRule(Struct, frozen=True, forbid_unknown_fields=True):
    """What is written of one code."""

    level: Threshold | None = None
    """The lowest level that is written; that of the whole log without it."""
    sample: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """The share of its messages that is written, the first always: 0.1 is every tenth."""


class LogConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """`[log]` in stigmergy.toml."""

    format: Literal["auto", "text", "json"] = "auto"
    """`auto` is text on a terminal, else JSON."""
    level: Threshold = "info"
    rate: Annotated[int, Meta(ge=1, le=100_000)] = 300
    """Lines of one code in a minute; more are left out and counted."""
    codes: dict[str, CodeRule] = {}

    def unknown_codes(self) -> list[str]:
        """Codes that have a rule and do not exist."""
        return [code for code in self.codes if code not in CODES]


class LogLine(Struct, omit_defaults=True):
    """One line. What is not known is left out of it."""

    time: str
    level: str
    code: str
    message: str
    fleet: str = ""
    node: str = ""
    role: str = ""
    shard: int | None = None
    agent: str = ""
    trace: str = ""
    over: bool | None = None
    """Only of troubles: false when one begins or changes, true when it is over."""
    logger: str = ""
    error: str = ""
    """A traceback."""
    sample: float = 1.0
    fields: dict[str, Any] = {}


class LineFilter:
    """Which messages are written. Remembers how many it has left out."""

    def __init__(self, config: LogConfig) -> None:
        self._config = config
        self._seen: dict[str, int] = {}
        """By code that is sampled: messages so far."""
        self._written: dict[str, int] = {}
        self._left_out: dict[str, int] = {}
        self._minute_s = float("-inf")

    def admit(self, code: str, level: str, now_s: float) -> float:
        """The share of messages like this one that is written, if this one is; else 0."""
        rule = self._config.codes.get(code, CodeRule())
        least = rule.level or self._config.level
        if least == "off" or LEVELS.index(level) < LEVELS.index(least):
            return 0.0
        if rule.sample < 1.0:
            number = self._seen[code] = self._seen.get(code, 0) + 1
            if number > 1 and int((number - 1) * rule.sample) == int((number - 2) * rule.sample):
                return 0.0
        if now_s - self._minute_s >= MINUTE_S and not self._left_out:
            self._minute_s, self._written = now_s, {}
        written = self._written[code] = self._written.get(code, 0) + 1
        if written > self._config.rate:
            self._left_out[code] = self._left_out.get(code, 0) + 1
            return 0.0
        return rule.sample

    def take_left_out(self, now_s: float, *, ending: bool = False) -> dict[str, int]:
        """How many of each code were left out in the minute that is over; once. A next minute begins."""
        if not self._left_out or (now_s - self._minute_s < MINUTE_S and not ending):
            return {}
        found, self._left_out = self._left_out, {}
        self._minute_s, self._written = now_s, {}
        return found


class Redactor:
    """Takes secrets out of texts: those that it was given, and those that give themselves away."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {one for one in secrets if len(one) >= SECRET_CHARS_MIN}
        long = {one for one in known if len(one) >= LONG_SECRET_CHARS_MIN}
        within = _any_of({*long, *(text for one in long for text in _in_base64(one))})
        words = [rf"(?<!\w)(?:{_any_of(known - long)})(?!\w)"] if known - long else []
        self._known = re.compile("|".join([*([within] if long else []), *words])) if known else None

    def clean(self, text: str) -> str:
        """The beginning of the text without secrets, and without what cannot be written."""
        text = text[:CLEANED_CHARS_MAX].encode(errors="replace").decode()
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        return text

    def clean_value(self, value: Any) -> Any:
        """The same for all texts within a value of JSON."""
        match value:
            case str():
                return self.clean(value)
            case dict():
                return {name: self.clean_value(one) for name, one in value.items()}
            case list() | tuple():
                return [self.clean_value(one) for one in value]
            case _:
                return value


def _any_of(texts: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(texts, key=lambda one: (-len(one), one))))


def _in_base64(secret: str) -> Iterator[str]:
    """What base64 makes of a secret wherever it begins in a text, as in `USER:PASSWORD`; both alphabets."""
    body = secret.encode()
    for before in range(3):
        first, last = (0, 2, 3)[before], (before + len(body)) * 8 // 6
        text = base64.b64encode(bytes(before) + body).decode()[first:last]
        yield text
        yield text.translate(str.maketrans("+/", "-_"))


def passwords_in(text: str) -> list[str]:
    """The passwords, or tokens, in a URL or in USER:PASSWORD@HOST, as they are written and as they are sent."""
    found: list[str] = []
    for match in (*_URL.finditer(text), *_USER.finditer(text)):
        for login in match[0].rpartition("://")[2].removesuffix("@").split(","):
            user, _, password = login.partition(":")
            one = password or user
            found += [one, one.rpartition("@")[0]]  # an @ is in the password, or before the first of several hosts
    return [form for one in found if one for form in dict.fromkeys((one, unquote(one)))]


def as_json(line: LogLine) -> bytes:
    """One line of JSON. Values that JSON does not know are shown as Python does."""
    return msgspec.json.encode(line, enc_hook=repr) + b"\n"


def as_text(line: LogLine, *, terminal: bool, colours: bool) -> bytes:
    """One line for people: short on a terminal, with the time elsewhere. Nothing in it moves a terminal's cursor."""
    head = "" if line.over is None else "over: " if line.over else "trouble: "
    whom = line.agent or ("" if line.shard is None else f"shard {line.shard}")
    whom = f"{whom}: " if whom and whom not in line.message else ""
    text = _printable(f"{head}{whom}{line.message}")
    error = "".join(f"\n  {_printable(one)}" for one in line.error.splitlines())
    if not terminal:
        return f"{line.time} {line.level:5} {line.code} {text}{error}\n".encode()
    if not colours:
        return f"{text} [{line.code}]{error}\n".encode()
    return (
        f"\x1b[{OVER_STYLE if line.over else STYLES[line.level]}m{text}\x1b[0;2m [{line.code}]\x1b[0m{error}\n".encode()
    )


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
