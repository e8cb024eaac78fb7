"""Agents that do wrong whatever they are told to do wrong; for tests of the shard. Not a test."""

from __future__ import annotations

from msgspec import field

from stigmergy.agents.agent import Agent, decide, evolve, react
from stigmergy.agents.effects import ActionDone, Effects, Events, Tell
from stigmergy.agents.messages import Action, Command, Event, transient
from stigmergy.agents.supervision import AgentStopped, InputFailed, Supervise


class Do(Command):
    how: str
    pad: str = ""


class Did(Event):
    how: str
    pad: str = ""


class Saw(Event):
    how: str
    pad: str = ""


class Glimpsed(Event, keep=transient):
    pad: str


class Move(Action):
    pad: str = ""


class Robot(Agent):
    count: int = 0
    failures: int = 0
    trail: list[str] = field(default_factory=list)

    supervision = Supervise(stop_after=2, within_s=60)

    @decide
    def do(self, command: Do) -> Events:
        match command.how:
            case "none":
                return None  # type: ignore[return-value]
            case "list":
                return [Did(how="listed")]
            case "foreign":
                return ["text"]  # type: ignore[list-item]
            case "class":
                return [Did]  # type: ignore[list-item]
            case "framework":
                return [AgentStopped(reason="mine")]
            case "many":
                return (Did(how=str(number)) for number in range(10_000))
            case "mistyped":
                return [Did(how=3)]  # type: ignore[arg-type]
            case "large":
                return [Did(how="x" * 30_000), Did(how="y" * 30_000), Did(how="z" * 30_000)]
            case "interrupted":
                raise KeyboardInterrupt
            case _:
                return [Did(how=command.how, pad=command.pad)]

    @evolve
    def did(self, event: Did | Saw) -> None:
        self.count += 1
        self.trail = [*self.trail[-4:], event.how]
        if event.how == "crash":
            raise RuntimeError("crashed")
        if event.how == "exit":
            raise SystemExit(3)

    @react
    def on_did(self, event: Did | Saw) -> Effects:
        match event.how:
            case "unknown kind":
                yield Tell(to="Nobody/x", message=Saw(how="hello"))
            case "bad address":
                yield Tell(to="Robot/ü", message=Saw(how="hello"))
            case "no effect":
                yield "text"  # type: ignore[misc]
            case "none":
                return
            case "endless":
                while True:
                    yield Move()
            case "pads":
                yield Move(pad=event.pad)
            case "after a yield":
                yield Move()
                raise RuntimeError("after a yield")
            case _:
                return

    @react
    def on_glimpse(self, event: Glimpsed) -> Effects:
        return None  # type: ignore[return-value]

    @evolve
    def failed(self, event: InputFailed) -> None:
        self.failures += 1

    @react
    def on_failed(self, event: InputFailed) -> Effects:
        yield Move(pad="x" * 20_000 if self.failures == 5 else "")

    @evolve
    def done(self, event: ActionDone) -> None:
        self.trail = [event.key]


R = "Robot/r"
