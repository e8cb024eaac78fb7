"""What reading makes of classes that inherit, close over names, come in versions, and branch or loop."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

from stigmergy import (
    Action,
    Agent,
    Effects,
    Event,
    Supervise,
    WhenStale,
    evolve,
    react,
    upcast,
)
from stigmergy.agents.columns import Halt
from stigmergy.compiled.reader import read_agent
from tests.compiled.running import module_of, run


class Reported(Event):
    level: float


class Raised(Event):
    level: float
    by: float = 0.5


class Light(Action):
    level: float


class Stepped(Event):
    by: int
    of: int


class Weighed(Event):
    whole: int


class Base(Agent):
    STEP = 2
    total: int = 0

    @evolve
    def add(self, event: Stepped) -> None:
        self.total += event.by * self.STEP + self.offset + self.twice(event.of)

    @property
    def offset(self) -> int:
        return 1000 if self.total > 10_000 else 100

    def twice(self, value: int) -> int:
        return value * 2


class Derived(Base, kind="derived"):
    STEP = 3
    seen: int = 0

    def twice(self, value: int) -> int:
        return value * 20

    @react
    def both(self, happened: Stepped | Weighed) -> Effects:
        """A docstring
        that is indented less than its method."""
        if isinstance(happened, Weighed):
            yield Light(level=float(happened.whole))
        elif isinstance(happened, (Raised, Base)):
            yield Light(level=happened.not_there)  # type: ignore[attr-defined]
        elif self.total > 0 and not isinstance(happened, Flow):
            yield Light(level=float(self.total + happened.by))

    @evolve
    def weighed(this, what: Weighed) -> None:
        this.seen = what.whole


def test_inherited_handlers_methods_and_constants_are_those_of_the_class() -> None:
    ran = run(read_agent(Derived), Stepped(by=5, of=1), Weighed(whole=9))
    assert ran.states == [{"total": 15 + 100 + 20, "seen": 9}]
    assert [effect for _, effect in ran.effects] == [Light(level=140.0), Light(level=9.0)]
    assert read_agent(Derived).kind == "derived"
    assert len(read_agent(Derived).templates.templates) == 2


def made_in_a_function(limit: float) -> list[Any]:
    factor = 2.0

    def scaled(x: float, by: float = factor) -> float:
        return x * by

    class Colour(enum.Enum):
        RED = "red"
        BLUE = "blue"

    class Gauge(Event):
        x: float

    class Paint(Action):
        colour: Colour

    class Gauging(Agent):
        over: bool = False
        x: float = 0.0

        @evolve
        def gauge(self, event: Gauge) -> None:
            self.over = scaled(event.x) > limit
            self.x = scaled(by=0.5, x=event.x)

        @react
        def paint(self, event: Gauge) -> Effects:
            for _ in range(2):
                if self.over:
                    yield Paint(colour=Colour.BLUE)
                    return

    return [read_agent(Gauging), Gauge]


def test_a_class_inside_a_function_sees_what_is_around_it() -> None:
    program, build = made_in_a_function(limit=10.0)
    ran = run(program, build(x=5.5))
    assert ran.states == [{"over": True, "x": 2.75}]
    assert len(ran.effects) == 1
    assert run(program, build(x=5.0)).states == [{"over": False, "x": 2.5}]


class GaugedV1(Event, name="Gauged"):
    x: int


class Gauged(Event, version=2):
    x: float


@upcast
def gauged_1_to_2(old: GaugedV1) -> Gauged:
    return Gauged(x=float(old.x))


class Careful(Agent):
    safe = WhenStale(Reported, after_s=1.0, then=Light(level=0.0))
    supervision = Supervise(stop_after=3)
    x: float = 0.0

    @evolve
    def gauged(self, event: Gauged) -> None:
        self.x = event.x


def test_the_newest_version_and_what_a_staleness_rule_waits_for_have_forms() -> None:
    program = read_agent(Careful)
    assert [form.tag for form in program.layout.forms] == ["Gauged@2", "Reported@1"]
    ran = run(program, Reported(level=1.0), Gauged(x=2.0))
    assert (ran.halt, ran.kept_count, ran.states) == (Halt.END, 2, [{"x": 2.0}])


def test_the_text_depends_on_what_is_written_and_not_on_where(tmp_path: Path) -> None:
    source = """
class Told(Event):
    x: float
class Listener(Agent):
    x: float = 0.0
    @evolve
    def told(self, event: Told) -> None:
        self.x = event.x
"""
    first = read_agent(module_of(tmp_path, source).Listener)
    moved = read_agent(module_of(tmp_path, "\n\n# moved\n" + source).Listener)
    assert first.source == moved.source
    assert first.layout == moved.layout
    assert read_agent(module_of(tmp_path, source.replace("= event.x", "= -event.x")).Listener).source != first.source
    assert str(tmp_path) not in first.source


# ---- flow


class Flow(Event):
    a: int
    b: int


class Flowing(Agent):
    path: int = 0
    rounds: int = 0

    @evolve
    def flow(self, event: Flow) -> None:
        if event.a == 0:
            self.path = 1
            return
        for i in range(1, 6, 2):
            for j in range(3):
                self.rounds += 1
                if j > event.b:
                    break
                if i * j == event.a:
                    self.path = 100 * i + j
                    return
                if i == event.b:
                    continue
                self.rounds += 10
        if event.b > 5:
            if event.a > 5:
                self.path = 2
            elif event.a > 3:
                self.path = 3
                return
            else:
                pass
            self.path += 10
        self.path += 1000


def flowed(a: int, b: int) -> dict[str, int]:
    agent, event = Flowing(), Flow(a=a, b=b)
    Flowing.flow(agent, event)
    return {"path": agent.path, "rounds": agent.rounds}


def test_returns_breaks_and_loops_go_where_pythons_go() -> None:
    program = read_agent(Flowing)
    for a in range(-1, 12):
        for b in range(-2, 9):
            assert run(program, Flow(a=a, b=b)).states == [flowed(a, b)], (a, b)


def test_any_number_of_early_returns_and_branches_is_taken(tmp_path: Path) -> None:
    returns = "\n".join(
        f"        if event.x == {n}:\n            self.x = {n + 1}\n            return" for n in range(150)
    )
    branches = "\n".join(f"        elif event.x == {n}:\n            self.x = {n + 2}" for n in range(150, 300))
    written = module_of(
        tmp_path,
        f"""
class Told(Event):
    x: int
class Listener(Agent):
    x: int = 0
    @evolve
    def told(self, event: Told) -> None:
{returns}
        if event.x < 0:
            self.x = -1
{branches}
        else:
            self.x = -2
""",
    )
    program = read_agent(written.Listener)
    for x, want in ((0, 1), (149, 150), (150, 152), (299, 301), (300, -2), (-5, -1)):
        assert run(program, written.Told(x=x)).states == [{"x": want}]


def test_a_loop_that_may_not_run_gives_no_value(tmp_path: Path) -> None:
    written = module_of(
        tmp_path,
        """
class Told(Event):
    x: int
class Listener(Agent):
    x: int = 0
    last: int = 0
    @evolve
    def told(self, event: Told) -> None:
        total = 0
        for i in range(3):
            twice = i * 2
            total += twice + event.x
        for j in range(0):
            total += 1000
        self.x = total + i
        self.last = twice
""",
    )
    assert run(read_agent(written.Listener), written.Told(x=5)).states == [{"x": 23, "last": 4}]
