"""Corners of the language where a translation goes wrong first: order of evaluation, names, loops, texts, timers.

Each is a few lines of a handler. Both engines agree on them for every pair of the values below, or they are refused.
"""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from proofs.engines_both import Input, plain_python
from proofs.engines_shrinking import try_source
from stigmergy.agents.messages import SECOND_NS
from stigmergy.base.errors import DefinitionError
from stigmergy.compiled.reader import read_agent
from tests.compiled.running import module_of

HEAD = """\
from __future__ import annotations
import enum, math
from math import floor, sqrt as root
from typing import Annotated
from msgspec import Meta
from stigmergy import *

class Seen(Event):
    a: int = 0
    b: int = 0
    x: float = 0.0
    t: bool = False

class Cmd(Command):
    a: int = 0
    x: float = 0.0

class Out(Event):
    n: Annotated[int, Meta(ge=0, le=100)] = 0
    z: float = 0.0
    m: Annotated[int, Meta(ge=0, le=100)] = 0

class Fleeting(Event, keep=transient):
    n: int

class Act(Action):
    text: str = ""
    n: int = 0
    f: float = 0.0
    k: Annotated[float, Meta(ge=-1.0, le=9007199254740992.0)] = 0.0

class Mode(enum.IntEnum):
    A = 1
    B = 2
    C = 1

K = 99
DEBUG = False
TABLE = (1, 2, 3)

def quotient(value):
    return 100 // value

def first(a, b=4):
    return a * 10 + b

def shadowing(value):
    K = value % 50 + 1
    value = K * 2
    return K + value

def square_above(value):
    for i in range(5):
        if i * i > value:
            return i
    return -1

class Base(Agent):
    LIMIT = 3
    n: int = 0
    f: float = 0.0
    g: bool = False
    mode: Mode = Mode.B

    def limited(self, a):
        return a

    @property
    def later(self):
        return self.now + 1.0

class Made(Base):
    LIMIT = 7

    def limited(self, a):
        return a % self.LIMIT
"""
DECIDED = """
    @evolve
    def out(self, event: Out) -> None:
        self.n += event.n

    @react
    def fleeting(self, event: Fleeting) -> Effects:
        yield Act(n=event.n + self.n)
"""
INTS = (0, 1, -1, 5, 2**53 + 1, 2**63 - 1, -(2**63))
FLOATS = (0.0, -2.5, 1e300, math.inf, math.nan)
EVOLVES = (
    "self.n = first(event.a % 9, b=3) + first(2) + first(b=event.b % 7, a=1)",
    "K = 3\nself.n = shadowing(event.a) + K",
    "self.n = square_above(event.a)",
    "self.n = first(quotient(event.a), quotient(event.b))",
    "self.n = first(1, 1 // event.b)",
    "self.g = event.t and quotient(event.b) > 3 or quotient(event.a) > 9",
    "self.g = 1 < quotient(event.b) < quotient(event.a)",
    "self.n = quotient(event.b) if event.t else quotient(event.a)",
    "self.n = min(quotient(event.b), quotient(event.a), 3)",
    "self.n = self.limited(event.a) + self.LIMIT\nself.f = self.later",
    "for i in range(3):\n    if event.a > i:\n        break\nself.n = i",
    "t = 0\nfor i in range(4):\n    t += i\n    i = i * 10 + event.a % 5\n    t += i\nself.n = t",
    "t = 0\nfor i in range(3):\n    for i in range(2):\n        t += i\n    t += i * 100\nself.n = t",
    "for i in range(0):\n    self.n = 1 // event.b\nfor j in range(5, -5, -3):\n    self.n = self.n * 7 % 1000 + j",
    "v = event.a\nv //= 3\nv %= 1000\nv >>= 1\nself.n = v",
    "self.f = event.a\nself.f = event.x",
    "self.f = 1 if event.t else 2",
    "self.n = event.a\nself.n += 1\nself.n = self.n - 1\nself.f = float(self.n)",
    "self.f = root(abs(event.x))\nself.n = floor(min(max(event.x, -5.5), 5.5))",
    "self.n = TABLE[event.a] + (4, 5, 6)[event.b % 3] + TABLE[-1]",
    "self.mode = Mode.C if event.t else Mode.B\nself.g = self.mode is Mode.A",
    "i = event.a\nagent = i ^ 3\nrow = agent\nhalt = 1\nnow = 5.0\nnp = 3\nadd = 2\nself.n = row\nself.f = now * add",
    "if DEBUG:\n    self.n = 1 // 0\nelse:\n    self.n = 2\nself.g = False and event.a // event.b > 0",
    "return\nself.n = 3 // event.a",
    "self.f = self.now * 1e9 - event.x\nself.n = int(self.now)",
)
REACTS = (
    "for i in range(5):\n    yield Act(n=i)\n    if i == event.a:\n        break\n    if event.b == i:\n        return"
    "\nyield Act(n=-1)",
    'yield WakeMe("a", event.x)\nyield WakeMeAt("b", event.x)\nyield CancelWake("a")',
    'yield WakeMe("a", event.a)\nyield WakeMeAt("b", at_s=event.b)',
    'yield Tell(f"Made/{event.x}", event)\nyield Tell(f"Made/a{event.a}", Cmd(a=event.b, x=event.a))',
    'yield Tell("nobody", event)',
    'yield Act(n=1)\nif event.a > 0:\n    yield Tell("Other/x", event)',
    'yield Publish(f"t/{event.a}", Seen(x=event.a))\nyield Publish("a", event)',
    "yield Act(k=event.a, f=event.b)",
    'yield Act(text=f"{event.a:05}{event.a:#x}{event.a:%}{event.x:z.1f}{event.x:.250f}{event.t:x}{event.t}")',
    'yield Act(text=f"{event.a}" "x{}" f"{{{event.b}}}{self.id}{self.address}{Mode.A}")',
    'v: float = event.a\nyield Act(text=f"{v}", f=v)',
)
DECIDES = (
    "yield Out(m=int(command.x), z=1.0 / command.x, n=command.a)",
    "yield Out(m=command.a, n=int(command.x))",
    "yield Out(z=command.x - command.x)\nyield Out(z=command.a)",
    "yield Out(n=1)\nif command.a > 3:\n    reject(f'{command.a} {command.x:.2f} {self.id}')\nyield Out(n=2)",
    f"reject(f'{'x' * 600}{{command.a}}')",
    "reject('no')\nyield Out()",
    "yield Fleeting(n=command.a)\nyield Out(n=command.a)\nyield Fleeting(n=3)",
)
REFUSED = (
    ("evolve", "v = 0.0\nif event.t:\n    v = 1\nself.f = v"),
    ("evolve", "self.f = event.a\nself.n = int(self.f)"),
    ("evolve", "self.f = 1 if event.t else 2.5"),
    ("evolve", "self.g = event.a in (1, True)"),
    ("evolve", "self.g = self.mode == 2"),
    ("evolve", "if event.t:\n    v = 1\nif event.t:\n    self.n = v"),
    ("react", 'yield Act(text=f"{event.a:c}")'),
    ("react", 'yield Act(text=f"{event.a:n}")'),
    ("react", 'yield Act(text=f"{event.x:.251f}")'),
    ("react", 'yield Act(text="\\ud800")'),
    ("react", 'yield Act(text=f"\\ud800{event.a}")'),
    ("react", 'yield Publish("\\ud800", event)'),
    ("react", 'yield WakeMe("window:x", 1.0)'),
)


def class_with(role: str, body: str) -> str:
    """The agent with one handler, and those that its messages need."""
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    match role:
        case "evolve":
            return f"{HEAD}\n    @evolve\n    def handler(self, event: Seen) -> None:\n{lines}"
        case "react":
            return f"{HEAD}\n    @react\n    def handler(self, event: Seen) -> Effects:\n{lines}"
        case _:
            return f"{HEAD}\n    @decide\n    def handler(self, command: Cmd) -> Events:\n{lines}{DECIDED}"


def inputs_of(role: str, module: Any) -> list[Input]:
    told = (
        [module.Cmd(a=a, x=x) for a, x in product(INTS, FLOATS)]
        if role == "decide"
        else [
            module.Seen(a=a, b=b, x=FLOATS[(n + m) % 5], t=a > b)
            for n, a in enumerate(INTS)
            for m, b in enumerate(INTS)
        ]
    )
    return [("one", message, (1_000 + number // 9) * SECOND_NS) for number, message in enumerate(told)]


@pytest.mark.parametrize(
    ("role", "body"),
    [
        *(("evolve", body) for body in EVOLVES),
        *(("react", body) for body in REACTS),
        *(("decide", body) for body in DECIDES),
    ],
)
def test_both_engines_agree_in_this_corner(role: str, body: str, tmp_path: Path) -> None:
    tried = try_source(class_with(role, body), lambda module: inputs_of(role, module), tmp_path, plain_python)
    assert tried.inputs == len(INTS) * (len(FLOATS) if role == "decide" else len(INTS))


@pytest.mark.parametrize(("role", "body"), REFUSED)
def test_what_they_could_not_agree_on_is_refused(role: str, body: str, tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"line \d+: Made\.handler"):
        read_agent(
            module_of(tmp_path, class_with(role, body).removeprefix("from __future__ import annotations\n")).Made
        )
