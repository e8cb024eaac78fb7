"""What nodes answer each other, and what a router says of nodes that do not answer. docs/http.md has it over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import stigmergy as st
from stigmergy.base.errors import ConfigError, Malformed, NotAssigned, NotRunning, UnknownKind
from stigmergy.bus.memory import memory_broker
from stigmergy.control import node_router, protocol
from stigmergy.control.replies import AgentsReply, MissingPart
from stigmergy.serve.asker import NodeAsker

WITHIN_S = 240.0


class Turn(st.Command):
    """Is to turn."""


class Jam(st.Command):
    """Fails."""


class Turned(st.Event):
    """It has turned."""


class Valve(st.Agent):
    """Counts."""

    turns: int = 0

    @st.decide
    def turn(self, command: Turn) -> st.Events:
        yield Turned()

    @st.decide
    def jam(self, command: Jam) -> st.Events:
        raise ValueError("it is stuck")

    @st.evolve
    def turned(self, event: Turned) -> None:
        self.turns += 1


class Turns(st.View):
    """How often each has turned."""

    agent: st.Key[str]
    count: int = 0

    @st.project
    def turned(self, event: Turned) -> None:
        self.count += 1


def node(path: Path, name: str, *, queries: bool = True, journal: str = "memory:") -> Any:
    fleet = st.Fleet("plant", agents=[Valve], views=[Turns])
    settings = structs.replace(st.Settings(), bus=structs.replace(st.Settings().bus, queries=queries))
    bus = f"memory:{path.name}"
    return fleet.running(journal=journal, bus=bus, node=name, agents=[f"Valve/{name}*"], settings=settings)


NO_LINK = "this node has no link to the bus, so it cannot tell whether 'b' is there"


async def wait_members(live: Any, count: int) -> None:
    async with asyncio.timeout(WITHIN_S):
        while len(live.link.members()) < count:  # noqa: ASYNC110 - what is looked at has no event
            await asyncio.sleep(0.02)


async def test_nodes_answer_each_other_what_reads_only(tmp_path: Path) -> None:
    a, b, shy = node(tmp_path, "a"), node(tmp_path, "b"), node(tmp_path, "shy", queries=False)
    async with a as live, b as far, shy as quiet:
        await far.observe("Valve/b1", Turned())
        await quiet.observe("Valve/shy1", Turned())
        await wait_members(live, 3)
        asker = NodeAsker(a.service(live, "", lambda: None))
        assert (await asker.ask(protocol.StateRequest(agent="Valve/b1"))).state["turns"] == 1
        page = await asker.ask(protocol.AgentsRequest())
        assert [one.agent for one in page.agents] == ["Valve/b1"]
        assert [(one.node, "queries = false" in one.why) for one in page.missing] == [("shy", True)]
        with pytest.raises(NotAssigned, match="ask it itself"):
            await asker.ask(protocol.StateRequest(agent="Valve/shy1"))
        assert await asker.ask(protocol.AgentsRequest(here=True)) == AgentsReply([], None)
        questions = a._questions
        for refused in (protocol.StopRequest(), protocol.SendRequest(agent="Valve/b1", command="X")):
            said = await questions.ask("b", protocol.write_request(refused), 10.0)
            assert b"is not answered to other nodes" in said
        assert b"not a request" in await questions.ask("b", b"nonsense\n", 10.0)


async def test_dead_letters_of_all_nodes_are_listed(tmp_path: Path) -> None:
    """Both nodes give theirs the same number: from here only our own is retried."""
    a, b, shy = node(tmp_path, "a"), node(tmp_path, "b"), node(tmp_path, "shy", queries=False)
    async with a as live, b as far, shy:
        await wait_members(live, 3)
        asker = NodeAsker(a.service(live, "", lambda: None))
        for agent in ("Valve/a1", "Valve/b1"):
            refused = await asker.ask(protocol.SendRequest(agent=agent, command="Jam"))
            assert (refused.accepted, "dead letters" in str(refused.reason)) == (False, True)
        missing: list[MissingPart] = []
        own, other = await asker.items(protocol.LettersRequest(everywhere=True), missing)
        assert [(one.node, "queries = false" in one.why) for one in missing] == [("shy", True)]
        (there,) = far.dead_letters()
        assert (own.agent, other.agent, other.letter) == ("Valve/a1", "Valve/b1", f"{there.letter}@b")
        assert await asker.items(protocol.LettersRequest()) == [own]
        for request in (protocol.RetryRequest(letter=other.letter), protocol.DropRequest(letter=other.letter)):
            with pytest.raises(NotAssigned, match="is of node 'b'; retry or drop it there, as"):
                await asker.ask(request)
        # There it may be named as it was listed here.
        assert (await NodeAsker(b.service(far, "", lambda: None)).ask(protocol.DropRequest(letter=other.letter))).letter
        assert (far.dead_letters(), len(live.dead_letters())) == ([], 1)


async def test_silent_node_is_missing_and_not_asked_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_router, "ASK_S", 2.0)
    a, b = node(tmp_path, "a"), node(tmp_path, "b")
    async with a as live, b:
        await wait_members(live, 2)
        await b._questions.stop()
        asker = NodeAsker(a.service(live, "", lambda: None))
        with pytest.raises(NotRunning, match="node 'b' has not answered within 2 s"):
            await asker.ask(protocol.StateRequest(agent="Valve/b1"))
        first, second = [await asker.ask(protocol.AgentsRequest()) for _ in range(2)]
        assert [one.node for one in (*first.missing, *second.missing)] == ["b", "b"]
        assert "has not answered within 2 s" in first.missing[0].why
        assert "has not answered lately" in second.missing[0].why


async def test_node_that_has_left_is_missing(tmp_path: Path) -> None:
    a, b = node(tmp_path, "a"), node(tmp_path, "b")
    async with a as live:
        async with b:
            await wait_members(live, 2)
        async with asyncio.timeout(WITHIN_S):
            while not live.link.presence.away():  # noqa: ASYNC110 - what is looked at has no event
                await asyncio.sleep(0.02)
        asker = NodeAsker(a.service(live, "", lambda: None))
        missing = (await asker.ask(protocol.AgentsRequest())).missing
        assert [(one.node, one.why) for one in missing] == [("b", "node 'b' runs Valve/b*, and is away")]
        with pytest.raises(NotRunning, match="Valve/b1: node 'b' runs it, and is away; ask again when it is back"):
            await asker.ask(protocol.StateRequest(agent="Valve/b1"))
        # Without a link of its own this node hears nobody, also not that the other is back.
        memory_broker(tmp_path.name).cut("plant:local:a")
        async with asyncio.timeout(WITHIN_S):
            while live.link.is_up:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.02)
        missing = (await asker.ask(protocol.AgentsRequest())).missing
        assert [one.why for one in missing] == [f"node 'b' runs Valve/b*, and {NO_LINK}"]
        with pytest.raises(NotRunning, match=f"node 'b' runs it, and {NO_LINK}; ask again when the link is back"):
            await asker.ask(protocol.StateRequest(agent="Valve/b1"))


async def test_events_are_of_one_log_and_name_the_others(tmp_path: Path) -> None:
    a, b = node(tmp_path, "a"), node(tmp_path, "b")
    async with a as live, b as far:
        await far.observe("Valve/b1", Turned())
        await wait_members(live, 2)
        asker = NodeAsker(a.service(live, "", lambda: None))
        here = await asker.ask(protocol.EventsRequest(since_ns=0))
        assert ([one.agent for one in here.events], [one.node for one in here.missing]) == ([], ["b"])
        there = await asker.ask(protocol.EventsRequest(since_ns=0, node="b"))
        assert ([one.agent for one in there.events], [one.node for one in there.missing]) == (["Valve/b1"], ["a"])
        own = await asker.ask(protocol.EventsRequest(after=here.positions, node="a"))
        assert own.positions == here.positions
        with pytest.raises(ConfigError, match="there is no node 'c' here; there are a, b"):
            await asker.ask(protocol.EventsRequest(node="c"))


async def test_gateway_that_collects_answers_with_its_own_log(tmp_path: Path) -> None:
    """Events of its devices are there; it asks none of them for a list, and lacks nobody."""
    fleet = st.Fleet("plant", agents=[Valve])
    bus = f"memory:{tmp_path.name}"
    gateway = fleet.running(journal="memory:", bus=bus, node="gateway", collect_from=f"{bus}-below")
    async with gateway as live, node(tmp_path, "b") as device:
        await device.observe("Valve/b1", Turned())
        await wait_members(live, 2)
        asker = NodeAsker(gateway.service(live, "", lambda: None))
        assert await asker.ask(protocol.AgentsRequest()) == AgentsReply([], None)
        assert (await asker.ask(protocol.EventsRequest())).missing == []
        # What is not here, and named by another node, is asked there.
        assert (await asker.ask(protocol.StateRequest(agent="Valve/b1"))).state["turns"] == 1


async def test_without_the_link_nobody_is_asked(tmp_path: Path) -> None:
    a, b = node(tmp_path, "a"), node(tmp_path, "b")
    async with a as live, b as far:
        await far.observe("Valve/b1", Turned())
        await wait_members(live, 2)
        asker = NodeAsker(a.service(live, "", lambda: None))
        memory_broker(tmp_path.name).cut("plant:local:a")
        async with asyncio.timeout(WITHIN_S):
            while live.link.is_up:  # noqa: ASYNC110 - what is looked at has no event
                await asyncio.sleep(0.02)
        asked: tuple[protocol.Request[Any], ...] = (
            protocol.StateRequest(agent="Valve/b1"),
            protocol.EventsRequest(node="b"),
        )
        for request in asked:
            with pytest.raises(NotRunning, match=f"'b'.*{NO_LINK}; ask again when the link is back"):
                await asker.ask(request)
        missing = (await asker.ask(protocol.AgentsRequest())).missing
        assert [one.why for one in missing] == [f"node 'b' cannot be asked: {NO_LINK}"]
        memory_broker(tmp_path.name).restore("plant:local:a")
        async with asyncio.timeout(WITHIN_S):
            while (await asker.ask(protocol.AgentsRequest())).missing:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.02)
        assert (await asker.ask(protocol.StateRequest(agent="Valve/b1"))).known


async def test_view_has_seen_a_command_that_was_sent_on(tmp_path: Path) -> None:
    """The answer has the position in the log of the node that has decided, and that node is asked for the rows."""
    journal = {name: f"sqlite:{tmp_path / name}.db" for name in "ab"}
    asked = protocol.SendRequest(agent="Valve/b1", command="Turn", command_id="once")
    async with node(tmp_path, "b", journal=journal["b"]) as far:
        a = node(tmp_path, "a", journal=journal["a"])
        async with a as live:
            await wait_members(live, 2)
            asker = NodeAsker(a.service(live, "", lambda: None))
            after = str((await asker.ask(asked)).after)
            assert after.startswith(f"0@{far.host.feed.log}:")
            for of_node in ("", "b"):
                seen = await asker.ask(protocol.ViewRequest(view="Turns", after=[after], node=of_node))
                assert (seen.rows, [one.node for one in seen.missing]) == ([{"agent": "Valve/b1", "count": 1}], ["a"])
            assert (await asker.ask(protocol.ViewRequest(view="Turns"))).rows == []
            assert (await asker.ask(asked)).after == after
            with pytest.raises(ConfigError, match="name it with of_node"):
                await live.view(Turns).after(after).all()
            own = await live.send("Valve/a1", Turn())
            assert [row.count for row in await live.view(Turns).after(own.after).all()] == [1]
            both = protocol.ViewRequest(view="Turns", after=[own.after, after])
            with pytest.raises(ConfigError, match="name it with of_node"):
                await asker.ask(both)
        # What the other node has said is not in this log, and an earlier version does not say it.
        again = node(tmp_path, "a", journal=journal["a"])
        async with again as live:
            await wait_members(live, 2)
            asker = NodeAsker(again.service(live, "", lambda: None))
            unsaid = await asker.ask(asked)
            assert (unsaid.accepted, unsaid.after) == (True, "Valve/b1:?")
            for of_node in ("", "b"):
                with pytest.raises(Malformed, match=r"has not told .* of an earlier version"):
                    await asker.ask(protocol.ViewRequest(view="Turns", after=[str(unsaid.after)], node=of_node))


async def test_position_of_a_node_with_a_journal_in_memory_needs_its_name(tmp_path: Path) -> None:
    """Such a node does not announce its journal."""
    a = node(tmp_path, "a")
    async with a as live, node(tmp_path, "b"):
        await wait_members(live, 2)
        asker = NodeAsker(a.service(live, "", lambda: None))
        after = str((await asker.ask(protocol.SendRequest(agent="Valve/b1", command="Turn"))).after)
        with pytest.raises(ConfigError, match="name it with of_node"):
            await asker.ask(protocol.ViewRequest(view="Turns", after=[after]))
        assert len((await asker.ask(protocol.ViewRequest(view="Turns", after=[after], node="b"))).rows) == 1


async def test_both_spellings_of_an_address_mean_the_same_agent(tmp_path: Path) -> None:
    a = node(tmp_path, "a")
    async with a as live, node(tmp_path, "b"):
        await wait_members(live, 2)
        for agent in ("plant/Valve/a1", "plant/Valve/b1"):
            assert await live.send(agent, Turn())
        await live.observe("plant/Valve/a1", Turned())
        assert (live.query("plant/Valve/a1", Valve).turns, live.agents()) == (2, ["Valve/a1"])
        asker = NodeAsker(a.service(live, "", lambda: None))
        state = await asker.ask(protocol.StateRequest(agent="plant/Valve/b1"))
        assert (state.agent, state.state["turns"]) == ("Valve/b1", 1)
        item = protocol.ObservedItem("plant/Valve/a1", "Turned", {})
        assert (await asker.ask(protocol.ObserveManyRequest(items=[item]))).outcomes[0].observed
        for ask in (live.send("ground/Pilot/p1", Turn()), live.observe("ground/Pilot/p1", Turned())):
            with pytest.raises(NotAssigned, match=r"of the fleet 'ground', and this node runs 'plant'.*`Tell` it"):
                await ask
        with pytest.raises(UnknownKind, match=r"of another fleet.*`Tell` it"):
            live.query("ground/Pilot/p1")
    async with st.Fleet("plant", agents=[Valve]).running(journal="memory:") as everything:
        assert await everything.send("plant/Valve/a1", Turn())
        refused = await everything.send("ground/Pilot/p1", Turn())
        assert isinstance(refused, st.Refused)
        assert "of another fleet" in refused.reason
