"""The page of one of two nodes with a broker and a ledger: whose figures it shows, what both share and claim, and what
it says when the others are late or lost."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stigmergy.testing.brokers import Broker
from tests.serve.rig import ServedProcess, wait_until
from tests.web.conftest import Screen

SOURCE = """
import stigmergy as st


class Arrived(st.Event):
    ship: str


class Ask(st.Command):
    pass


class Asked(st.Event):
    pass


class Depot(st.Agent):
    known: st.Shared[st.ORSet[str]] = st.shared(by="harbour")
    dock: st.Ordered[st.Claim] = st.ordered(of="dock-1")

    @st.decide
    def arrive(self, event: Arrived) -> st.Events:
        yield event
        yield self.known.add(event.ship)

    @st.evolve
    def arrived(self, event: Arrived) -> None:
        pass

    @st.decide
    def ask(self, command: Ask) -> st.Events:
        yield Asked()

    @st.evolve
    def asked(self, event: Asked) -> None:
        pass

    @st.react
    def want(self, event: Asked) -> st.Effects:
        yield self.dock.claim(for_s=600, wait_s=600)


fleet = st.Fleet("docks", agents=[Depot])
"""


class Docks:
    """Two nodes; each has the depots that begin with its first letter."""

    def __init__(self, path: Path, url: str) -> None:
        self.nodes: dict[str, ServedProcess] = {}
        for node in ("north", "south"):
            folder = path / node
            folder.mkdir()
            (folder / "docks.py").write_text(SOURCE, encoding="utf-8")
            config = f'[fleet]\nbus = "{url}"\nnode = "{node}"\nagents = ["Depot/{node[0]}*"]\n'
            config += f'ledger = "sqlite:{path / "ledger.db"}"\n'
            (folder / "stigmergy.toml").write_text(config, encoding="utf-8")
            self.nodes[node] = ServedProcess(folder, "run", "docks:fleet", "--serve", "127.0.0.1:0")
        wait_until(lambda: all(one.get("/v1/status").json["link"]["members"] == 2 for one in self.nodes.values()))

    def arrive(self, node: str, ship: str) -> None:
        body = {"agent": f"Depot/{node[0]}1", "event": "Arrived", "fields": {"ship": ship}}
        assert self.nodes[node].post("/v1/observations", body).status == 200


@pytest.fixture
def docks(tmp_path: Path, mosquitto: Broker) -> Iterator[Docks]:
    two = Docks(tmp_path, mosquitto.url)
    yield two
    for node in two.nodes.values():
        node.process.send_signal(signal.SIGCONT)
        node.end()


def test_two_nodes_that_share_and_claim(docks: Docks, mosquitto: Broker, show: Callable[..., Screen]) -> None:
    """One test, because two nodes and a broker take seconds to start."""
    north, south = docks.nodes["north"], docks.nodes["south"]
    for node, ship in (("north", "Ada"), ("south", "Bea")):
        docks.arrive(node, ship)
        assert docks.nodes[node].post(f"/v1/agents/Depot/{node[0]}1/Ask").status == 200
        wait_until(lambda: north.get("/v1/agents/Depot/n1").json["claims"][0]["held"])
    screen = show(north.url).open("#/fleet?agent=Depot/s1")
    check_an_agent_of_the_other_node(screen)
    page = screen.page
    page.get_by_role("heading", name="Node north").wait_for()
    page.get_by_role("row", name="south alive").wait_for()
    page.get_by_text("Nothing needs attention.").wait_for()
    claims = page.get_by_role("main").get_by_role("region", name="Claims")
    claims.get_by_role("row", name="dock-1 Depot/n1").filter(has_text="Depot/s1").wait_for()
    # Who lacks what, and for how long by the node's own clock.
    objects = page.get_by_role("region", name="Shared objects")
    objects.get_by_role("row", name="Depot.known/harbour nobody").wait_for()
    south.process.send_signal(signal.SIGSTOP)
    docks.arrive("north", "Cleo")
    objects.get_by_role("row", name="Depot.known/harbour south").filter(has_text=" s").wait_for()
    south.process.send_signal(signal.SIGCONT)
    objects.get_by_role("row", name="Depot.known/harbour nobody").wait_for()
    # Events are those of one log.
    page.keyboard.press("Escape")
    page.keyboard.press("2")
    page.get_by_text("Events of node north; not those of south").wait_for()
    page.keyboard.press("3")
    south.process.kill()
    incidents = page.get_by_role("list", name="Incidents")
    incidents.get_by_text("node 'south' is away, since ").wait_for()
    page.get_by_role("row", name="south away").wait_for()
    mosquitto.stop()
    incidents.get_by_text("link local-only: ").wait_for()


def check_an_agent_of_the_other_node(screen: Screen) -> None:
    """What it shares and claims is asked of its own node."""
    panel = screen.page.get_by_role("complementary", name="Agent Depot/s1")
    shared = panel.get_by_role("region", name="Shared fields")
    for agent, node in (("Depot/n1", "north"), ("Depot/s1", "south")):
        shared.get_by_role("listitem").filter(has_text=f"{agent} at {node} wrote 1 change").wait_for()
    shared.get_by_text("Who wrote what").click()
    shared.get_by_role("row", name="Ada Depot/n1 at north").wait_for()
    panel.get_by_role("region", name="Claims").get_by_text("waits, 1 of 1; Depot/n1 holds it").wait_for()
