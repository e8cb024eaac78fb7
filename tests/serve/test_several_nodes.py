"""A fleet of two nodes on a broker, asked at one of them: the answer is for the fleet, or says what it lacks."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import stigmergy as st
from stigmergy.control.protocol import ViewRequest
from stigmergy.serve.asker import NodeAsker
from stigmergy.serve.events import EventHub, EventStreams, StreamFilter
from stigmergy.testing.brokers import Broker
from tests.control.test_node_router import node as valve_node
from tests.control.test_node_router import wait_members
from tests.serve.rig import ServedProcess, SseClient, cli, wait_until
from tests.serve.test_whole_fleets import make_yard

NODES = ("north", "south")


class ParcelSeen(st.Event):
    parcel: int


class Arrivals(st.View):
    """The rows of the yard's view of this name, as a program elsewhere declares them."""

    parcel: st.Key[int]
    count: int = 0

    @st.project
    def seen(self, event: ParcelSeen) -> None:
        self.count += 1


class TwoNodes:
    """Each has the carts that begin with its first letter."""

    def __init__(self, path: Path, url: str) -> None:
        self.nodes: dict[str, ServedProcess] = {}
        self.path = path
        for node in NODES:
            folder = make_yard(path / node)
            config = f'[fleet]\nbus = "{url}"\nnode = "{node}"\nagents = ["Cart/{node[0]}*"]\n'
            (folder / "stigmergy.toml").write_text(config, encoding="utf-8")
            self.start(node)
        wait_until(lambda: all(one.get("/v1/status").json["link"]["members"] == 2 for one in self.nodes.values()))

    def start(self, node: str) -> None:
        served = ("--serve", "127.0.0.1:0", "--grpc", "127.0.0.1:0")
        self.nodes[node] = ServedProcess(self.path / node, "run", "yard:fleet", *served)

    def urls(self, node: str) -> list[str]:
        """Of HTTP and gRPC."""
        said = next(one for one in self.nodes[node].said if "grpc" in one)
        return [said["url"], said["grpc"]]

    def hand_over(self, node: str, cart: str, parcel: int, to: str) -> str:
        """Sends the command to this node; its `after`."""
        answer = self.nodes[node].post(f"/v1/agents/{cart}/HandOver", {"parcel": parcel, "to": to})
        assert answer.status == 200, answer
        after: str = answer.json["after"]
        return after


@pytest.fixture
def yard(tmp_path: Path, mosquitto: Broker) -> Iterator[TwoNodes]:
    two = TwoNodes(tmp_path, mosquitto.url)
    yield two
    for node in two.nodes.values():
        node.end()


@pytest.mark.timeout(900)
def test_one_node_is_asked_about_both(yard: TwoNodes, mosquitto: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """One test, because two nodes and a broker take seconds to start."""
    check_positions_of_another_log_are_refused(yard)
    check_view_has_seen_a_command_of_another_node(yard)
    check_blob_of_another_node_is_fetched(yard)
    check_questions_about_an_agent_of_another_node(yard)
    check_agents_of_all_nodes_are_listed(yard)
    check_events_of_another_node(yard)
    check_views_say_whose_they_are(yard)
    for url in yard.urls("north"):
        caplog.clear()
        asyncio.run(check_client(url))
        said = [one.getMessage() for one in caplog.records if one.name == "stigmergy.client"]
        assert said[0] == "watch(): the events of south are not in it; watch each with node="
        assert [one.startswith("view Arrivals: node 'south' has a log of its own") for one in said[1:]] == [True]
    check_command_line(yard)
    check_what_a_node_has_that_is_away_is_missing(yard)
    check_nodes_that_are_not_known_are_missing(yard, mosquitto)


def check_positions_of_another_log_are_refused(yard: TwoNodes) -> None:
    north, south = (yard.nodes[node] for node in NODES)
    after = yard.hand_over("north", "Cart/n1", 1, "Cart/n2")
    assert north.get(f"/v1/views/Arrivals?after={after}").status == 200
    told = SseClient(north, f"?after={after}")
    assert told.status == 200
    told.close()
    answer = south.get(f"/v1/events?after={after}")
    assert (answer.status, after.partition("@")[2].partition(":")[0] in answer.json["detail"]) == (400, True)
    plain = f"{after.partition('@')[0]}:{after.partition(':')[2]}"
    for path in ("/v1/views/Arrivals", "/v1/events"):
        answer = north.get(f"{path}?after={plain}")
        assert (answer.status, "does not say of which" in answer.json["detail"]) == (400, True)


def check_view_has_seen_a_command_of_another_node(yard: TwoNodes) -> None:
    """It was sent on. Its events are not in the log of the node that is asked, which asks the one that has them."""
    after = yard.hand_over("north", "Cart/s1", 2, "Cart/n1")
    for node in NODES:
        for of_node in ("", "&of_node=south"):
            answer = yard.nodes[node].get(f"/v1/views/Arrivals?after={after}{of_node}")
            assert (answer.status, [one["node"] for one in answer.json["missing"]]) == (200, ["north"])
    answer = yard.nodes["north"].get("/v1/views/Arrivals?after=Cart/s1:1")
    assert answer.status == 421
    assert "'south' runs it" in answer.json["detail"]


def check_blob_of_another_node_is_fetched(yard: TwoNodes) -> None:
    north, south = (yard.nodes[node] for node in NODES)
    data = "map " * 100_000
    put = north.ask("POST", "/v1/blobs", raw=data.encode(), headers={"Content-Type": "text/plain"})
    assert put.status == 200, put
    got = south.get(f"/v1/blobs/{put.json['digest']}")
    assert (got.status, got.text, got.headers["content-type"]) == (200, data, "text/plain")
    beside = ServedProcess(yard.path / "south", "serve", "yard:fleet", "--listen", "127.0.0.1:0")
    try:
        put = north.ask("POST", "/v1/blobs", raw=b"another", headers={"Content-Type": "text/plain"})
        got = beside.get(f"/v1/blobs/{put.json['digest']}")
        assert (got.status, got.text, got.headers["content-type"]) == (200, "another", "text/plain")
        assert beside.get("/v1/agents/Cart/n1").json == north.get("/v1/agents/Cart/n1").json
    finally:
        beside.end()
    nobody = south.get(f"/v1/blobs/{'0' * 64}")
    assert (nobody.status, "no node on the bus has it" in nobody.json["detail"]) == (404, True)


def check_questions_about_an_agent_of_another_node(yard: TwoNodes) -> None:
    north, south = (yard.nodes[node] for node in NODES)
    for path in ("/v1/agents/Cart/s1", "/v1/agents/Cart/s1/events", "/v1/agents/Cart/s1/explain"):
        assert north.get(path).status == 200
        wait_until(lambda path=path: north.get(path).json == south.get(path).json)  # type: ignore[misc]
    state = north.get("/v1/agents/Cart/s1").json
    assert (state["known"], state["state"]["sent"]) == (True, 1)
    entries = north.get("/v1/agents/Cart/s1/events?type=HandedOver@1").json["entries"]
    for at, sent in ((entries[0]["position"] - 1, 0), (entries[0]["position"], 1)):
        past = north.get(f"/v1/agents/Cart/s1?at={at}")
        assert (past.status, past.json["state"]["sent"]) == (200, sent)
    beyond = north.get("/v1/agents/Cart/s1?at=999")
    assert (beyond.status, beyond.json) == (404, south.get("/v1/agents/Cart/s1?at=999").json)
    assert north.get("/v1/agents/Cart/x1").status == 421


def check_agents_of_all_nodes_are_listed(yard: TwoNodes) -> None:
    for node in yard.nodes.values():
        wait_until(lambda node=node: len(node.get("/v1/agents").json["agents"]) == 3)  # type: ignore[misc]
        page = node.get("/v1/agents?limit=2").json
        rest = node.get(f"/v1/agents?limit=2&cursor={page['next']}").json
        assert [one["agent"] for one in (*page["agents"], *rest["agents"])] == ["Cart/n1", "Cart/n2", "Cart/s1"]
        assert (page["missing"], rest["next"]) == ([], None)
        assert [one["agent"] for one in node.get("/v1/agents?where=sent<1").json["agents"]] == ["Cart/n2"]


def check_events_of_another_node(yard: TwoNodes) -> None:
    north = yard.nodes["north"]
    plain = SseClient(north)
    assert (plain.status, plain.answer.headers["stigmergy-missing"]) == (200, "south")
    assert "events of south: see of_node" in plain.answer.readline().decode()
    plain.close()
    last = ""
    for query in ("?of_node=south&since=2020-01-01T00:00:00Z", "?agent=Cart/s1&since=2020-01-01T00:00:00Z"):
        told = SseClient(north, query)
        assert told.next()[1]["agent"] == "Cart/s1"
        last = told.last_id
        told.close()
        yard.hand_over("south", "Cart/s1", 7, "Cart/s2")
        behind = SseClient(north, f"{query.partition('&')[0]}&after={last}")
        assert behind.next()[1]["agent"] in ("Cart/s1", "Cart/s2")
        behind.close()
    wrong = north.get(f"/v1/events?after={last}")
    assert (wrong.status, "is of the log" in wrong.json["detail"]) == (400, True)
    apart = north.get("/v1/events?agent=Cart/s1&agent=Cart/n1")
    assert (apart.status, "run on different nodes" in apart.json["detail"]) == (400, True)
    nobody = north.get("/v1/events?of_node=west")
    assert (nobody.status, "there are north, south" in nobody.json["detail"]) == (400, True)


def check_views_say_whose_they_are(yard: TwoNodes) -> None:
    north, south = (yard.nodes[node] for node in NODES)
    wait_until(lambda: len(north.get("/v1/views/Arrivals").json["rows"]) == 2)
    wait_until(lambda: len(south.get("/v1/views/Arrivals").json["rows"]) == 1)
    here = north.get("/v1/views/Arrivals").json
    assert ([row["parcel"] for row in here["rows"]], [one["node"] for one in here["missing"]]) == ([1, 2], ["south"])
    far = north.get("/v1/views/Arrivals?of_node=south").json
    assert ([row["parcel"] for row in far["rows"]], [one["node"] for one in far["missing"]]) == ([7], ["north"])
    wrong = north.get("/v1/views/Arrivals?of_node=south&after=Cart/s1:1")
    assert (wrong.status, "that node 'south' itself has answered with" in wrong.json["detail"]) == (400, True)
    after = yard.hand_over("south", "Cart/s1", 7, "Cart/s2")
    assert north.get(f"/v1/views/Arrivals?of_node=south&after={after}").status == 200
    assert north.get("/v1/views?of_node=south").json["views"][0]["view"] == "Arrivals"


async def check_client(url: str) -> None:
    async with st.connect(url, fleet="yard", within_s=60) as far:
        assert await far.agents() == ["Cart/n1", "Cart/n2", "Cart/s1", "Cart/s2"]
        assert (await far.query("Cart/s1"))["sent"] == 4
        plain, named = far.watch(), far.watch(node="south", after="start")
        await plain.wait_ready()
        assert list(plain.missing) == ["south"]
        heard = await anext(named)
        assert (heard.agent, list(named.missing)) == ("Cart/s1", ["north"])
        for node, parcels, others in (("", [1, 2], "south"), ("south", [7], "north")):
            page = await far.ask_view(ViewRequest(view="Arrivals", node=node))
            assert [row["parcel"] for row in page.rows] == parcels
            assert [row.parcel for row in await far.view(Arrivals, node=node).all()] == parcels
            assert f"node '{others}' has a log of its own" in page.missing[0].why


def check_command_line(yard: TwoNodes) -> None:
    folder = yard.path / "north"
    state = cli(folder, "state", "Cart/s1", "--json")
    assert json.loads(state.stdout)["state"]["sent"] == 4, state
    rows = cli(folder, "view", "Arrivals", "--of", "south", "--json")
    assert [row["parcel"] for row in json.loads(rows.stdout)["rows"]] == [7], rows
    assert "not in these rows: node 'south' has a log of its own" in cli(folder, "view", "Arrivals").stderr


def check_what_a_node_has_that_is_away_is_missing(yard: TwoNodes) -> None:
    yard.nodes["south"].end()
    north = yard.nodes["north"]
    wait_until(lambda: bool(north.get("/v1/status").json["link"]["members"] == 1))
    blob = north.get(f"/v1/blobs/{'0' * 64}")
    assert (blob.status, "south may have it and is away" in blob.json["detail"]) == (503, True)
    state = north.get("/v1/agents/Cart/s1")
    assert (state.status, "node 'south' runs it, and is away" in state.json["detail"]) == (503, True)
    listed = north.get("/v1/agents").json
    assert [one["agent"] for one in listed["agents"]] == ["Cart/n1", "Cart/n2"]
    assert [one["node"] for one in listed["missing"]] == ["south"]
    assert any(one.startswith("node 'south' is away, since ") for one in north.get("/v1/status").json["troubles"])
    assert north.get("/v1/page").json["node"] == "north"
    assert north.get("/readyz").status == 200, "this node is ready"
    for path in ("/v1/views/Arrivals", "/v1/events"):
        far = north.get(f"{path}?of_node=south")
        assert (far.status, "node 'south' is away" in far.json["detail"]) == (503, True)
    assert [one["node"] for one in north.get("/v1/views/Arrivals").json["missing"]] == ["south"]
    asyncio.run(check_partial(yard.urls("north")[0]))


async def check_partial(url: str) -> None:
    async with st.connect(url, within_s=60) as far:
        with pytest.raises(st.NoAnswer, match=r"node 'south'.*is away.*partial=True"):
            await far.agents()
        assert await far.agents(partial=True) == ["Cart/n1", "Cart/n2"]


def check_nodes_that_are_not_known_are_missing(yard: TwoNodes, mosquitto: Broker) -> None:
    """A node that starts without a link has heard of nobody."""
    yard.nodes["north"].end()
    mosquitto.stop()
    yard.start("north")
    north = yard.nodes["north"]
    for path in ("/v1/agents", "/v1/views/Arrivals", "/v1/views"):
        (part,) = north.get(path).json["missing"]
        assert part["node"] == "*"
        assert part["why"].endswith("are not known: there was no link to the bus since the start")
    told = SseClient(north)
    assert (told.status, told.answer.headers["stigmergy-missing"]) == (200, "*")
    assert "events of nodes that are not known yet: see of_node" in told.answer.readline().decode()
    told.close()
    far = north.get("/v1/views/Arrivals?of_node=south")
    assert (far.status, "are not known" in far.json["detail"]) == (503, True)
    for url in yard.urls("north"):
        asyncio.run(check_not_known(url))


async def check_not_known(url: str) -> None:
    async with st.connect(url, fleet="yard", within_s=60) as far:
        with pytest.raises(st.NoAnswer, match=r"the other nodes of the fleet are not known.*partial=True"):
            await far.agents()
        assert await far.agents(partial=True) == ["Cart/n1", "Cart/n2"]


async def test_only_so_many_logs_of_other_nodes_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeAsker, "waits_max", 1)
    a, b, c = (valve_node(tmp_path, name) for name in "abc")
    async with asyncio.timeout(240), a as live, b, c:
        await wait_members(live, 3)
        hub = EventHub(NodeAsker(a.service(live, "", lambda: None)), (None,))
        streams = EventStreams(hub)
        async with streams.open(StreamFilter(), "", None, "b", as_sse=True):
            assert hub.of_node("b") is not hub, "for any number of clients"
            with pytest.raises(st.Overloaded, match="1 other nodes are followed here already"):
                hub.of_node("c")
        async with streams.open(StreamFilter(), "", None, "c", as_sse=True) as second:
            assert second.missing == ["a", "b"]
        await hub.close()
