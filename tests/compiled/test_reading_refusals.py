"""What does not compile is refused with file, line, reason and remedy; all findings of a class at once."""

from pathlib import Path

import pytest

from stigmergy.agents.agent import Agent
from stigmergy.base.errors import DefinitionError
from stigmergy.compiled.reader import read_agent
from tests.compiled.running import IMPORTS, module_of

SOURCE = """
LIMIT = 15.0
class Metres(float): ...
HIGH = Metres(3.5)
WORDS = ("a", "b")
MIXED = (1, 2.0)


class Mode(enum.Enum):
    OFF = 0
    ON = 1


class Colour(enum.Enum):
    RED = "red"


def endless(x: float) -> float:
    return endless(x)


def halting(x: float) -> float:
    if x > 0.0:
        return x


class Told(Event):
    x: float
    y: float
    i: int
    j: int
    p: bool
    mode: Mode
    key: Annotated[bytes, Meta(min_length=4, max_length=4)]


class Ask(Command):
    x: float


class Noted(Event):
    i: Annotated[int, Meta(ge=0, le=9)]
    p: bool = False


class Act(Action):
    text: str
    x: float = 0.0
    i: int = 0


class Calculator(Agent):
    x: float = 0.0
    i: int = 0
    p: bool = False
    mode: Mode = Mode.OFF

    @evolve
    def told(self, event: Told) -> None:
        {evolve}

    @react
    def act(self, event: Told) -> Effects:
        {react}
        yield Act(text="done")

    @decide
    def ask(self, command: Ask) -> Events:
        {decide}
        yield Noted(i=1)
"""

EVOLVE = [
    ("self.x = round(event.x)", "round differs in the last bit", "math.floor(x + 0.5)"),
    ("self.x = event.x ** 2.0", "** differs in the last bit", "multiply"),
    ("self.x = math.hypot(event.x, event.y)", "hypot differs in the last bit", "math.sqrt(x * x + y * y)"),
    ("self.x = math.sin(event.x)", "sin differs in the last bit", "Work"),
    ("self.x = event.i / event.j", "rounded in another way beyond 2^53", "float(a) / b"),
    ("self.x = event.x // event.y", "// of floats", "math.floor"),
    ("self.x = event.x % 2.0", "% of floats", "ints"),
    ("self.i = event.i << 1", "only >> of an int by a constant", "multiply"),
    ("self.i = event.i >> event.j", "only >> of an int by a constant", "multiply"),
    ("self.i = event.i >> 64", "only >> of an int by a constant", "multiply"),
    ("self.i = event.i @ event.j", "MatMult", "docs/compiled.md"),
    ("self.p = isinstance(event.x, float)", "only the message is asked for its class", "isinstance(event"),
    ("self.i = event.x", "float for i, which is int", "int(x)"),
    ("self.i = event.p", "bool for i, which is int", "int(x)"),
    ("self.p = event.i", "int for p, which is bool", "x != 0"),
    ("self.i = event.p + 1", "a bool is no number", "int(x)"),
    ("self.i = -event.p", "a bool is no number", "int(x)"),
    ("self.p = event.i < event.x", "compares an int with a float exactly", "float(x)"),
    ("self.p = event.p < event.p", "has no order", "compare numbers"),
    ("self.p = event.i == event.p", "compares int with bool", "one kind"),
    ("self.p = event.mode == Colour.RED", "compares Mode with Colour", "one kind"),
    ("self.p = event.x is event.y", "chance", "== or !="),
    ("self.p = event.key == b'abc'", "compares 4 bytes with 3 bytes", "one kind"),
    ("self.p = event.i in WORDS", "in looks into a tuple of constants only", "x == A or x == B"),
    ("self.p = event.x in (1.0, 2.0)", "in is for ints, enums and bytes", "comparisons"),
    ("self.p = not event.i", "is no condition", "x != 0"),
    ("self.p = event.p and event.i", "is no condition", "x != 0"),
    ("self.x = event.x if event.p else 0", "either float or int", "0.0 for 0"),
    ("self.x = min(event.x, 0)", "several kinds", "0.0 for 0"),
    ("self.x = WORDS[event.i]", "only constant tuples", "TABLE[i]"),
    ("self.x = MIXED[event.i]", "only constant tuples", "TABLE[i]"),
    ("self.i = (1, 2)[7]", "always fails", "mend it"),
    ("self.x = event.x / 0", "always divides by zero", "mend it"),
    ("self.i = 1 // 0", "always fails", "mend it"),
    ("self.i = 9223372036854775807 + 1", "beyond 8 bytes", "2^63"),
    ("self.i = 9223372036854775808", "beyond 8 bytes", "2^63"),
    ("self.x = endless(event.x)", "calls itself", "deep"),
    ("self.x = halting(event.x)", "may end without a value", "return one"),
    ("self.x = event.missing", "Told has no field missing", "one of its fields"),
    ("self.x = self.missing", "Calculator has no such field", "declare it"),
    ("self.missing = 1.0", "Calculator has no field missing", "declare it"),
    ("self.x = missing", "is not defined", "define it"),
    ("self.x = event.x.real", "is no constant of a module or class", "name a field"),
    ("self.x = event", "event itself is no number", "name a field"),
    ("self.x = HIGH", "a Metres is no constant of fixed width", "numbers"),
    ("self.x = None", "None has no place", "flag"),
    ("self.x = len(WORDS)", "nothing here has a length", "constant"),
    ("x: float = self.id", "a text", "texts of effects"),
    ("x = 'text'", "a text", "effects and reject"),
    ("x = f'{event.x}'", "texts are made outside", "effect or reject"),
    ("x = [1.0]", "List is not on the list", "docs/compiled.md"),
    ("x = (y := 1.0)", "NamedExpr is not on the list", "docs/compiled.md"),
    ("x, y = 1.0, 2.0", "only locals and fields of self", "name one"),
    ("x = y = 1.0", "assigns several at once", "one after the other"),
    ("if event.p:\n            x = 1.0\n        self.x = x", "may have no value yet", "before the if"),
    ("x = 1\n        x = 1.0", "x is int, and here float", "0.0 for 0"),
    ("event = 1.0", "is what it is", "another name"),
    ("assert event.p", "an assertion is no answer", "reject"),
    ("while event.p: pass", "without a fixed end", "range"),
    ("raise ValueError('x')", "do not raise", "reject"),
    ("for x in (1, 2): pass", "no range of constants", "range(8)"),
    ("for i in range(event.i): pass", "no range of constants", "range(8)"),
    ("for i in range(257): pass", "too many rounds", "256"),
    ("for i in range(20):\n            for j in range(20): pass", "too many rounds", "256"),
    ("for i in range(2): pass\n        else: pass", "without else", "range(8)"),
    ("print(event.x)", "does nothing", "docs/compiled.md"),
    ("self.x = print(event.x)", "handlers are pure", "yield an effect"),
    ("self.x = float(event.mode)", "is given Mode", "a number"),
    ("self.x = float()", "is given 0 arguments", "docs/compiled.md"),
    ("self.x = 0\n        self.p = self.x < 1.0", "given an int in this method", "write 0.0"),
    ("self.x = 0\n        self.x += 1.0", "given an int in this method", "write 0.0"),
    ("import os", "Import is not on the list", "docs/compiled.md"),
]

REACT = [
    ("yield Act(text=event.x)", "float for Act.text, which is a text", 'f"{x}"'),
    ("yield Act(text=f'{event.mode}')", "Mode inside a text", "fields of their own"),
    ("yield Act(text=f'{event.x!r}')", "!r", "leave it out"),
    ("yield Act(text=f'{event.x:d}')", "fails", "another"),
    ("yield Act(text=f'{event.i:99999}')", "too wide", "another"),
    ("yield Act(text=f'{self.id:>8}')", "a name is not formatted", "leave"),
    ("yield Act(text=1)", "Act.text cannot be 1", "of its type"),
    ("yield Act(text='x', i=event.x)", "float for i", "int(x)"),
    ("yield Act(wrong='x')", "does not fit Act", "fields"),
    ("yield Act(valid_while=1)", "is bound to a claim, and compiled agents have none", "interpreted"),
    ("yield Act('a', text='b')", "does not fit Act(text, x, i)", "once"),
    ("yield Act('a', 1.0, 2, 3)", "does not fit Act(text, x, i)", "once"),
    ("yield Act(x=1.0)", "does not fit Act(text, x, i)", "once"),
    ("yield Act(**{})", "is given *arguments", "name the fields"),
    ("yield Noted(i=1)", "is no effect", "SomeAction"),
    ("yield event", "is no effect", "SomeAction"),
    ("yield", "a yield of nothing", "@react"),
    ("yield from ()", "no fixed number", "one by one"),
    ("return [Act(text='x')]", "returns what it should yield", "one by one"),
    ("yield WakeMe('x', -1.0)", "always fails", "another time"),
    ("yield WakeMe('window:x', 1.0)", "always fails", "another name"),
    ("yield Tell('A/1', 5)", "is no message", "SomeEvent"),
    ("yield Tell(event.i, event)", "int where a text is wanted", 'f"'),
    ("yield Publish('t', Ask(x=1.0))", "is no message", "SomeEvent"),
    ("reject('no')", "only commands are refused", "yield nothing"),
]

DECIDE = [
    ("yield command", "a command is no event", "what follows"),
    ("yield Act(text='x')", "is no event", "SomeEvent"),
    ("yield Noted(i=command.x)", "float for i", "int(x)"),
    ("yield Noted(i=1, p=1)", "int for p", "x != 0"),
    ("reject()", "is given no reason", "reject"),
    ("reject(command.x)", "float where a text is wanted", 'f"'),
    ("for i in range(200):\n            yield Noted(i=1)\n            yield Noted(i=2)", "401 events", "at most 256"),
]


def refusal(tmp_path: Path, **bodies: str) -> str:
    filled = {"evolve": "pass", "react": "pass", "decide": "pass", **bodies}
    written = module_of(tmp_path, SOURCE.format(**filled))
    with pytest.raises(DefinitionError) as raised:
        read_agent(written.Calculator)
    return str(raised.value)


@pytest.mark.parametrize(("body", "reason", "remedy"), EVOLVE, ids=[case[0] for case in EVOLVE])
def test_evolve_is_refused(tmp_path: Path, body: str, reason: str, remedy: str) -> None:
    text = refusal(tmp_path, evolve=body)
    assert reason in text
    assert remedy in text
    assert len(text.splitlines()) == 1, text


@pytest.mark.parametrize(("body", "reason", "remedy"), REACT, ids=[case[0] for case in REACT])
def test_react_is_refused(tmp_path: Path, body: str, reason: str, remedy: str) -> None:
    text = refusal(tmp_path, react=body)
    assert reason in text
    assert remedy in text
    assert len(text.splitlines()) == 1, text


@pytest.mark.parametrize(("body", "reason", "remedy"), DECIDE, ids=[case[0] for case in DECIDE])
def test_decide_is_refused(tmp_path: Path, body: str, reason: str, remedy: str) -> None:
    text = refusal(tmp_path, decide=body)
    assert reason in text
    assert remedy in text


def test_a_finding_has_file_line_method_source_reason_and_remedy(tmp_path: Path) -> None:
    text = refusal(tmp_path, evolve="self.x = round(event.x)")
    name, _, rest = text.partition(" line ")
    line, _, rest = rest.partition(": ")
    assert name.startswith("written_")
    assert (IMPORTS + SOURCE).splitlines()[int(line) - 1].strip() == "{evolve}"
    assert rest == (
        "Calculator.told: `round(event.x)`: round differs in the last bit between compiled and plain Python; "
        "use math.floor(x + 0.5)"
    )


def test_all_findings_come_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = refusal(
        tmp_path,
        evolve="self.x = round(event.x) + event.y ** 2.0\n        self.i = event.x",
        react="yield Act(text=f'{event.mode}')",
        decide="assert command.x > 0.0",
    )
    lines = text.splitlines()
    assert len(lines) == 5
    assert ["told" in one for one in lines] == [True, True, True, False, False]
    assert "act" in lines[3]
    assert "ask" in lines[4]


def test_what_was_refused_once_is_not_refused_again_where_it_is_used(tmp_path: Path) -> None:
    text = refusal(tmp_path, evolve="x = round(event.x)\n        self.x = x + 1.0\n        self.p = x > 0.0")
    assert len(text.splitlines()) == 1


FIELDS = [
    ("name: str", "a text has no fixed width", "use an enum or fixed bytes"),
    ("height: float | None", "may be None", "use a flag field"),
    ("both: int | float", "several types", "one field for each"),
    ("body: bytes", "without a fixed length", "min_length=16"),
    ("body: Annotated[bytes, Meta(max_length=4)]", "without a fixed length", "min_length=16"),
    ("body: Annotated[bytes, Meta(min_length=600, max_length=600)]", "600 bytes", "digest"),
    ("pair: tuple[int, int]", "has no fixed width", "one field for each"),
    ("n: Annotated[int, Meta(multiple_of=2)]", "multiple_of", "check in decide"),
    ("n: Annotated[int, Meta(ge=5, le=4)]", "nothing is within", "mend"),
    ("flags: Flags", "is a Flag", "int with bounds"),
    ("odd: Odd", "in its own way", "__eq__"),
]


@pytest.mark.parametrize(("field", "reason", "remedy"), FIELDS, ids=[case[0] for case in FIELDS])
def test_a_field_is_refused(tmp_path: Path, field: str, reason: str, remedy: str) -> None:
    written = module_of(
        tmp_path,
        f"""
class Flags(enum.Flag):
    A = 1
class Odd(enum.Enum):
    A = 1
    def __eq__(self, other): return True
    __hash__ = enum.Enum.__hash__
class Told(Event):
    {field}
class Holder(Agent):
    count: int = 0
    @evolve
    def told(self, event: Told) -> None:
        self.count += 1
""",
    )
    with pytest.raises(DefinitionError) as raised:
        read_agent(written.Holder)
    assert f"Told.{field.partition(':')[0]}: " in str(raised.value)
    assert reason in str(raised.value)
    assert remedy in str(raised.value)
    line = next(
        number for number, text in enumerate(Path(written.__file__ or "").read_text().splitlines(), 1) if field in text
    )
    assert f" line {line}: " in str(raised.value)


CLASSES = [
    ("@evolve\n    def half(self, event: Half) -> None: self.count += 1", "Python leaves it one", "write 0.0"),
    (
        "x: float = 0.0\n    def positive(self) -> bool:\n        return self.x > 0.0\n"
        "    @evolve\n    def other(self, event: Other) -> None:\n        self.x = 0\n"
        "        self.count += int(self.positive())",
        "read by what this calls",
        "write 0.0",
    ),
    (
        "@evolve\n    @wrapped\n    def other(self, event: Other) -> None: self.count += 1",
        "Holder.around",
        "docs/compiled.md",
    ),
    (
        "@evolve\n    def other(self, event: Other) -> None:\n        LIMIT = event.i\n        abs = 5\n"
        "        self.count = LIMIT + abs(3)",
        "nothing is known of what it calls",
        "function of a module",
    ),
    ("speed: float = 0", "Python leaves it one", "write 0.0"),
    ("recent: Window[Told] = Window.tumbling(seconds=8)", "closed one agent at a time", "Window.sliding"),
    ("recent: Window[Told] = Window.sliding(seconds=8)", "4096 entries of 16 bytes", "count_max= 1020 at most"),
    ("recent: Window[Told] = Window.last(1021)", "1021 entries of 16 bytes", "Window.last(…) 1020 at most"),
    ("recent: Window[Told] = Window.sliding(seconds=1, by='on', count_max=8)", "by='on' is bool", "float or int"),
    (
        "recent: Window[Told] = Window(shape=Window.last(1).shape, span=8, count_max=8, by='i')",
        "of your own making",
        "Window.last(…)",
    ),
    ("recent: Window[Told] = Window(shape=2, span=8, count_max=8, late=1)", "of your own making", "Window.last(…)"),
    ("recent: Window[Woken] = Window.last(8)", "Woken is of the framework", "an event of your own"),
    ("mission: str = ''", "a text has no fixed width", "enum or fixed bytes"),
    ("seen: Shared[ORSet[int]]", "shared or ordered has no fixed width", "interpreted"),
    ("slot: Ordered[Claim]", "shared or ordered has no fixed width", "interpreted"),
    (
        "@evolve\n    def done(self, event: ActionFailed) -> None:\n        if event.reason == 'x':\n"
        "            self.count += 1",
        "reason is a text of any length",
        "compare action",
    ),
    (
        "@evolve\n    def done(self, event: ActionDone) -> None:\n        if event.action == '':\n"
        "            self.count += 1",
        "compares name with text",
        "of one kind",
    ),
    (
        "@react\n    def done(self, event: WorkFailed) -> Effects:\n        yield Publish('failed', event)",
        "texts of it are not kept",
        "an event of your own",
    ),
    (
        "@decide\n    def done(self, event: ActionDone) -> Events:\n        yield ActionDone(action='x', key='')",
        "no event that is made in place",
        "SomeEvent",
    ),
    (
        "@react\n    def done(self, event: ActionDone) -> Effects:\n"
        "        if event.action == 'Land':\n            yield WakeMe(f'{event.action}', 1.0)",
        "name inside a text",
        "numbers",
    ),
    ("@evolve\n    def stop(self, event: AgentStopped) -> None: self.count += 1", "facts of the", "interpreted"),
    ("@evolve\n    def newest(self, event: Newest) -> None: self.count += 1", "latest is not kept", "within"),
    ("@evolve\n    def renamed(self, event: Renamed) -> None: self.count += 1", "renamed", "rename="),
    ("@evolve\n    def checked(self, event: Checked) -> None: self.count += 1", "__post_init__", "take it out"),
    (
        "@react\n    def wake(self, event: Told) -> Effects:\n        yield WakeMe(f'a{event.i}', 1.0)\n"
        "    @evolve\n    def woken(self, event: Woken) -> None: self.count += 1",
        "the name of a timer that is calculated",
        "constant names",
    ),
]


@pytest.mark.parametrize(("line", "reason", "remedy"), CLASSES, ids=[case[1] + case[0][:40] for case in CLASSES])
def test_a_class_is_refused(tmp_path: Path, line: str, reason: str, remedy: str) -> None:
    written = module_of(
        tmp_path,
        f"""
def wrapped(function):
    def around(self, event: Other) -> None:
        function(self, event)
    return around
class Other(Event):
    i: int
class Half(Event):
    x: float = 0
class Told(Event):
    i: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
    on: bool = False
class Newest(Event, keep=latest):
    i: int
class Renamed(Event, rename="camel"):
    some_field: int
class Checked(Event):
    i: int
    def __post_init__(self) -> None: ...
class Holder(Agent):
    count: int = 0
    {line}
    @evolve
    def told(self, event: Told) -> None:
        self.count += event.i
""",
    )
    with pytest.raises(DefinitionError) as raised:
        read_agent(written.Holder)
    assert reason in str(raised.value)
    assert remedy in str(raised.value)


def test_a_class_without_source_is_refused() -> None:
    names: dict[str, type[Agent]] = {}
    exec(
        IMPORTS
        + "class Told(Event):\n    i: int\nclass Typed(Agent):\n    i: int = 0\n    @evolve\n"
        + "    def told(self, event: Told) -> None: self.i = event.i\n",
        names,
    )
    with pytest.raises(DefinitionError, match=r"Typed\.told: its source cannot be read .*define it in a file"):
        read_agent(names["Typed"])


def test_what_is_no_agent_is_refused() -> None:
    with pytest.raises(DefinitionError, match="subclass Agent"):
        read_agent(int)  # type: ignore[arg-type]


def test_confirmations_and_timers_by_type_are_refused_and_nothing_else_is_told(tmp_path: Path) -> None:
    module = module_of(
        tmp_path,
        """
class Plug(Action):
    dock: int

class Step(Timer): ...

class Cart(Agent):
    docks: int = 0

    @evolve
    def plugged(self, done: Done[Plug]) -> None:
        self.docks += done.action.dock

    @react
    def not_plugged(self, failed: Failed[Plug]) -> Effects:
        yield Step.wake(after_s=5)

    @evolve
    def stepped(self, woken: Woken[Step]) -> None:
        self.docks = 0
""",
    )
    with pytest.raises(DefinitionError) as refused:
        read_agent(module.Cart)
    first, second, third = str(refused.value).splitlines()
    record = "a record does not hold the action; handle ActionDone or ActionFailed, and compare its action"
    assert first.endswith(f"line 15: Cart with Done[Plug]: {record}")
    assert second.endswith(f"line 19: Cart with Failed[Plug]: {record}")
    assert third.endswith(
        "line 23: Cart with Woken[Step]: timers have names in compiled code; handle Woken, and "
        'compare its name: event.name == "…"'
    )
