"""Who runs an agent, on a real Mosquitto: nodes as programs of their own that are killed, replaced and doubled."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stigmergy.base.errors import NotAssigned, NotRunning
from stigmergy.control.protocol import (
    AgentsRequest,
    EventsRequest,
    ExplainRequest,
    Request,
    SendRequest,
    StateRequest,
    StatusRequest,
    WhereRequest,
    answers_to,
)
from stigmergy.control.socket import ControlClient
from stigmergy.testing.brokers import Broker
from tests.warm import Warm

WAIT_S_MAX = 240.0
YARD = """
from stigmergy import Agent, Command, Effects, Event, Events, Fleet, Tell, decide, evolve, react


class Take(Command):
    number: int


class Taken(Event):
    number: int


class Announce(Command):
    to: str


class Announced(Event):
    to: str


class Cart(Agent):
    numbers: tuple[int, ...] = ()

    @decide
    def take(self, command: Take) -> Events:
        yield Taken(number=command.number)

    @evolve
    def taken(self, event: Taken) -> None:
        self.numbers = (*self.numbers, event.number)

    @decide
    def announce(self, command: Announce) -> Events:
        yield Announced(to=command.to)

    @react
    def tell(self, event: Announced) -> Effects:
        yield Tell(event.to, Taken(number=7))


fleet = Fleet("yard", agents=[Cart])
"""


class Node:
    """A node as a process of its own, with a folder of its own."""

    def __init__(self, folder: Path, bus: str, agents: list[str], name: str = "") -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "yard.py").write_text(YARD, encoding="utf-8")
        named = f"agents = {json.dumps(agents)}\n" if agents else ""
        every = "[settings.bus]\npresence_every_s = 2\npresence_gone_s = 8\n"
        (folder / "stigmergy.toml").write_text(f'[fleet]\nbus = "{bus}"\n{named}{every}', encoding="utf-8")
        self._arguments = ["--node", name or folder.name]
        self._process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str) -> "Node":
        """Starts it, and waits until it answers."""
        with (self.folder / "log").open("a") as log:
            command = ["run", "yard:fleet", "--json", *self._arguments, *arguments]
            self._process = Warm(*command, cwd=self.folder, stdout=subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None
        said = ""
        for line in self._process.stdout:
            said += line
            if json.loads(line).get("event") == "listening":
                return self
        self.end()
        raise AssertionError(said + (self.folder / "log").read_text())

    def refused(self, *arguments: str) -> str:
        """Starts it, which must fail; what it says."""
        with pytest.raises(AssertionError) as caught:
            self.start(*arguments)
        return str(caught.value)

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.communicate(timeout=WAIT_S_MAX)

    def ask(self, request: Request[Any]) -> Any:
        (socket,) = self.folder.glob("*.sock")
        client = ControlClient(socket)
        try:
            return answers_to(client.ask(request))
        finally:
            client.close()

    def send(self, agent: str, number: int, command_id: str, wait_s: float = 0.5) -> Any:
        request = SendRequest(
            agent=agent, command="Take", fields={"number": number}, command_id=command_id, wait_s=wait_s
        )
        return self.ask(request)[0]


@pytest.fixture
def nodes(tmp_path: Path, mosquitto: Broker) -> Iterator[Callable[..., Node]]:
    """Makes nodes on the broker, and ends those that are left."""
    made: list[Node] = []

    def make(name: str, *agents: str, node: str = "") -> Node:
        made.append(Node(tmp_path / name, mosquitto.url, list(agents), node))
        return made[-1]

    yield make
    for one in made:
        one.end()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def numbers(node: Node, agent: str, at: str | None = None) -> list[int]:
    found: list[int] = node.ask(StateRequest(agent=agent, at=at))[0].state["numbers"]
    return found


def troubles(node: Node) -> str:
    return "\n".join(node.ask(StatusRequest())[0].troubles)


FLEET = (AgentsRequest(), EventsRequest())


def missing(node: Node, request: Request[Any]) -> dict[str, str]:
    return {part.node: part.why for part in node.ask(request)[0].missing}


def test_a_node_that_has_not_heard_of_the_others_says_so(nodes: Callable[..., Node], mosquitto: Broker) -> None:
    a, b = nodes("a", "Cart/a*").start(), nodes("b", "Cart/b*").start()
    assert b.send("Cart/b1", 1, "first").accepted
    wait_until(lambda: not missing(a, AgentsRequest()) and len(a.ask(AgentsRequest())[0].agents) == 1)
    a.end()
    mosquitto.stop()
    a.start()
    for request in FLEET:
        assert "no link to the bus since the start" in missing(a, request)["*"]
    mosquitto.start()
    seen: list[dict[str, str]] = []

    def knows_b() -> bool:
        page = a.ask(AgentsRequest())[0]
        seen.append({part.node: part.why for part in page.missing})
        assert page.missing or len(page.agents) == 1
        return not page.missing

    wait_until(knows_b)
    assert any("the link to the bus is new" in one.get("*", "") for one in seen)
    assert list(missing(a, EventsRequest())) == ["b"]


def hold_second(node: Node, owner: Node, agent: str) -> None:
    """Has an agent's node decide a first command and end; a second one is held for it."""
    wait_until(lambda: node.ask(WhereRequest(agent=agent))[0].online is True)
    wait_until(lambda: node.send(agent, 1, "first").accepted)
    owner.end()
    wait_until(lambda: node.ask(WhereRequest(agent=agent))[0].online is False)
    assert node.send(agent, 2, "second").pending


def test_a_replaced_node_that_returns_without_a_link_decides_nothing_more(
    nodes: Callable[..., Node], mosquitto: Broker
) -> None:
    a, s = nodes("a", "Cart/a*").start(), nodes("s", "Cart/s*").start()
    hold_second(s, a, "Cart/a1")
    b = nodes("b", "Cart/a*")
    assert "node 'a', which is away, runs Cart/a*" in b.refused()
    b.start("--take-over")
    wait_until(lambda: s.send("Cart/a1", 2, "second").accepted)
    mosquitto.stop()
    sent: list[Any] = []
    for number in (10, 11):  # each start has a higher epoch than the one before, and now than that of b
        a.end()
        sent.append(a.start().send("Cart/a1", number, f"offline {number}"))
        assert sent[-1].accepted
    mosquitto.start()
    wait_until(lambda: "so this node stays off the bus" in troubles(a))
    wait_until(lambda: s.send("Cart/a1", 3, "third").accepted)
    wait_until(lambda: "node 'b', here since" in troubles(a))
    with pytest.raises(NotAssigned, match=r"node 'b', here since .*; send it there"):
        a.send("Cart/a1", 4, "fourth")
    assert a.send("Cart/a1", 11, "offline 11") == sent[-1], "what it has accepted itself, it answers again"
    for question in (StateRequest(agent="Cart/a1"), ExplainRequest(agent="Cart/a1")):
        with pytest.raises(NotAssigned, match=r"node 'b', here since .*; ask there"):
            a.ask(question)
    for request in FLEET:
        assert list(missing(a, request)) == ["b", "*"]
        assert "not known: this node stays off the bus" in missing(a, request)["*"]
    with pytest.raises(NotRunning, match="node 's' cannot be asked: the other nodes of the fleet are not known"):
        a.ask(EventsRequest(node="s"))
    for node in (b, s):
        wait_until(lambda one=node: "node 'a' stays off the bus: node 'b'" in troubles(one))  # type: ignore[misc]
    for node in (a, b, s):
        why = node.ask(WhereRequest(agent="Cart/a1"))[0].why
        assert "node 'b'" in why or node is b
        assert "node 'a'" in why or node is a
    assert (numbers(a, "Cart/a1", str(sent[-1].position)), numbers(b, "Cart/a1")) == ([1, 10, 11], [2, 3])


def test_a_command_that_is_held_is_answered_as_held_after_a_crash_without_a_link(
    nodes: Callable[..., Node], mosquitto: Broker
) -> None:
    a, b = nodes("a", "Cart/a*").start(), nodes("b", "Cart/b*").start()
    hold_second(a, b, "Cart/b1")
    a.end()
    mosquitto.stop()
    a.start()
    assert a.send("Cart/b1", 2, "second").pending
    assert a.send("Cart/b1", 1, "first").accepted
    mosquitto.start()
    b.start()
    wait_until(lambda: a.send("Cart/b1", 2, "second").accepted)
    assert numbers(b, "Cart/b1") == [1, 2]
