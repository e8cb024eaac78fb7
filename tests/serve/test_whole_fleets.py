"""Whole fleets that are driven over HTTP and gRPC alone: three nodes on a broker, and a cluster of workers.

Each client call goes to a node by chance, which may not run the agent; one process is killed on the way. At the end
every parcel was announced to the cart that it was handed to, once, and in the order in which it was handed over.
"""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stigmergy as st
from stigmergy.testing.brokers import Broker
from tests.cli.conftest import Folder
from tests.cli.test_up import Up
from tests.serve.rig import ServedProcess, SseClient, cli, wait_until

YARD = """
import stigmergy as st


class HandOver(st.Command):
    parcel: int
    to: str


class HandedOver(st.Event):
    parcel: int
    to: str


class ParcelComing(st.Event):
    parcel: int


class Cart(st.Agent):
    sent: int = 0
    expects: tuple[int, ...] = ()

    @st.decide
    def hand_over(self, command: HandOver) -> st.Events:
        yield HandedOver(parcel=command.parcel, to=command.to)

    @st.evolve
    def handed_over(self, event: HandedOver) -> None:
        self.sent += 1

    @st.react
    def announce(self, event: HandedOver) -> st.Effects:
        yield st.Tell(event.to, ParcelComing(parcel=event.parcel))

    @st.evolve
    def coming(self, event: ParcelComing) -> None:
        self.expects = (*self.expects, event.parcel)


class Arrivals(st.View):
    parcel: st.Key[int]
    count: int = 0

    @st.project
    def coming(self, event: ParcelComing) -> None:
        self.count += 1


fleet = st.Fleet("yard", agents=[Cart], views=[Arrivals], shards=4)
"""
NODES = ("north", "south", "east")
PARCELS = 36
KILLED_AT = 18


class HandOver(st.Command):
    """As the fleet has it: a client needs no more of it."""

    parcel: int
    to: str


def make_yard(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    (path / "yard.py").write_text(YARD, encoding="utf-8")
    assert cli(path, "proto", "yard:fleet", "--out", "yard.proto").returncode == 0
    return path


class Yard:
    """The nodes that serve, by name; `of` says which of them has an agent."""

    def __init__(self, of: Callable[[str], str]) -> None:
        self.of = of
        self.nodes: dict[str, ServedProcess] = {}

    def post(self, node: str, cart: str, parcel: int, to: str) -> None:
        """Hands a parcel over by HTTP, as often as needed, under one key."""

        def is_accepted() -> bool:
            try:
                answer = self.nodes[node].post(
                    f"/v1/agents/{cart}/HandOver", {"parcel": parcel, "to": to}, Idempotency_Key=f"parcel-{parcel}"
                )
            except OSError:
                return False
            assert answer.status in (200, 429, 503, 504), answer
            return answer.status == 200

        wait_until(is_accepted)

    async def call(self, node: str, cart: str, parcel: int, to: str) -> None:
        """The same by gRPC."""
        grpc = next(said["grpc"] for said in self.nodes[node].said if "grpc" in said)
        async with st.connect(grpc, fleet="yard") as far:
            answer = await far.send(cart, HandOver(parcel=parcel, to=to), command_id=f"parcel-{parcel}", within_s=240)
            assert isinstance(answer, st.Accepted)

    def state(self, cart: str) -> dict[str, Any]:
        answer = self.nodes[self.of(cart)].get(f"/v1/agents/{cart}")
        assert answer.status == 200, answer
        found: dict[str, Any] = answer.json["state"]
        return found


CARTS = tuple(f"Cart/{node[0]}{number}" for node in NODES for number in (1, 2))


def route(parcel: int) -> tuple[str, str, str]:
    """Which node is asked, which cart hands over, and to whom: all combinations come up, also to itself."""
    return (
        NODES[parcel % 3],
        CARTS[parcel * 5 % len(CARTS)],
        CARTS[(parcel * 5 + 1 + parcel // 7) % len(CARTS)],
    )


async def drive(yard: Yard, kill: Callable[[], None]) -> None:
    """Hands all parcels over, every other one by gRPC."""
    for parcel in range(PARCELS):
        if parcel == KILLED_AT:
            kill()
        node, cart, to = route(parcel)
        if parcel % 2:
            await yard.call(node, cart, parcel, to)
        else:
            yard.post(node, cart, parcel, to)


def check(yard: Yard) -> None:
    for cart in CARTS:
        expected = {parcel for parcel in range(PARCELS) if route(parcel)[2] == cart}
        wait_until(lambda cart=cart, expected=expected: set(yard.state(cart)["expects"]) >= expected)  # type: ignore[misc]
        found = yard.state(cart)["expects"]
        assert sorted(found) == sorted(expected)
        for sender in CARTS:
            of_sender = [parcel for parcel in found if route(parcel)[1] == sender]
            assert of_sender == sorted(of_sender)
    for cart in CARTS:
        assert yard.state(cart)["sent"] == sum(route(parcel)[1] == cart for parcel in range(PARCELS))


@pytest.mark.timeout(900)
async def test_three_nodes_on_a_broker(tmp_path: Path, mosquitto: Broker) -> None:
    yard = Yard(lambda cart: next(node for node in NODES if node[0] == cart[5]))

    def start(node: str) -> None:
        folder = tmp_path / node
        if not folder.exists():
            make_yard(folder)
            config = f'[fleet]\nbus = "{mosquitto.url}"\nnode = "{node}"\nagents = ["Cart/{node[0]}*"]\n'
            (folder / "stigmergy.toml").write_text(config, encoding="utf-8")
        served = ("--serve", "127.0.0.1:0", "--grpc", "127.0.0.1:0")
        yard.nodes[node] = ServedProcess(folder, "run", "yard:fleet", *served)

    def kill_south() -> None:
        yard.nodes["south"].end(signal.SIGKILL)
        start("south")

    try:
        for node in NODES:
            start(node)
        watched = SseClient(yard.nodes["north"], "?type=ParcelComing@1")
        await drive(yard, kill_south)
        check(yard)
        here = {parcel for parcel in range(PARCELS) if route(parcel)[2].startswith("Cart/n")}
        heard = [watched.next()[1] for _ in here]
        assert {one["fields"]["parcel"] for one in heard} == here
        rows = "/v1/views/Arrivals?limit=1000"
        wait_until(lambda: len(yard.nodes["north"].get(rows).json["rows"]) == len(here))
        counts = {row["parcel"]: row["count"] for row in yard.nodes["north"].get(rows).json["rows"]}
        assert counts == dict.fromkeys(here, 1)
        watched.close()
        # An agent that nobody runs is refused, not invented.
        lost = yard.nodes["north"].post("/v1/agents/Cart/lost/HandOver", {"parcel": 0, "to": CARTS[0]})
        assert lost.status in (404, 421, 504), lost
        for served_node in yard.nodes.values():
            assert "Cart/lost" not in [one["agent"] for one in served_node.get("/v1/agents").json["agents"]]
    finally:
        for served_node in yard.nodes.values():
            served_node.end()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    served = ("--serve", "127.0.0.1:0", "--grpc", "127.0.0.1:0")
    running = Up(Folder(make_yard(tmp_path)), "yard:fleet", "--nodes", "1", "--workers", "2", *served)
    try:
        yield running
    finally:
        running.process.terminate()
        running.process.wait(timeout=240)
        running.close()


@pytest.mark.timeout(900)
async def test_cluster_of_workers(tmp_path: Path, up: Up) -> None:
    url = up.wait_event("up")["nats"]
    yard = Yard(lambda _: "north")

    def kill_worker() -> None:
        up.heard()
        os.kill(up.pid_of("worker-1"), signal.SIGKILL)

    said = up.wait_said("api", "serving")["said"]
    yard.nodes["north"] = ServedProcess.at(said["url"])
    yard.nodes["north"].said = [said]
    try:
        # Any number of them may serve one fleet: they keep nothing.
        served = ("--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0")
        another = ServedProcess(tmp_path, "serve", "yard:fleet", "--nats", url, *served)
        yard.nodes |= dict.fromkeys(NODES[1:], another)
        await drive(yard, kill_worker)
        check(yard)
    finally:
        if NODES[1] in yard.nodes:
            yard.nodes[NODES[1]].end()
