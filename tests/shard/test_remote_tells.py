"""Tells to agents that other nodes run, as a shard owes them: sinks, their bound, and what a replay compares."""

import asyncio

import pytest

from stigmergy.agents.codec import encode
from stigmergy.agents.effects import remote_sink
from stigmergy.node import tells as node_tells
from stigmergy.shard import draft
from stigmergy.shard.commit import Owed
from stigmergy.shard.draft import compared
from stigmergy.shard.homes import Homes, is_remote_address
from stigmergy.shard.outbox import Outbox, TellBody, read_told
from tests.network.test_tell_router import Cart, Pass, Stage, heard, wait


def test_one_agent_elsewhere_too_many_is_given_up_and_those_known_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "REMOTE_ADDRESSES_MAX", 2)
    stage = Stage()

    async def scene() -> None:
        a, b = await stage.start("a", "b")
        for number, to in enumerate(("Cart/b1", "Cart/b2", "Cart/b3", "Cart/b1")):
            await a.send("Cart/a1", Pass(to=to, number=number))
        await wait(lambda: a.standing().owed == 0)
        await stage.nodes["a"].kill()
        a = await stage.nodes["a"].start()
        await a.send("Cart/a1", Pass(to="Cart/b4", number=4))
        await a.send("Cart/a1", Pass(to="Cart/b2", number=5))
        await wait(lambda: a.standing().owed == 0)
        lost = a.query("Cart/a1", Cart).lost
        assert [one.partition(" ")[0] for one in lost] == ["Cart/b3", "Cart/b4"]
        assert all(node_tells.TOO_MANY in one for one in lost)
        assert (heard(b, "Cart/b1"), heard(b, "Cart/b2")) == (["Cart/a1 0", "Cart/a1 3"], ["Cart/a1 1", "Cart/a1 5"])
        assert b.agents() == ["Cart/b1", "Cart/b2"]
        await stage.stop()
        await asyncio.sleep(0)

    stage.world.run(scene())


def test_an_outbox_that_a_snapshot_brings_back_knows_how_many_agents_elsewhere_were_told() -> None:
    outbox = Outbox()
    for number, sink in enumerate((remote_sink("Cart/b"), remote_sink("Cart/b"), remote_sink("g/Pilot/p"), "shard/0")):
        outbox.owe(1, 1, number, Owed("Cart/a", sink, outbox.next_sequence(sink), 0, b""))
    assert outbox.remote_count == 2
    again = Outbox()
    again.restore(outbox.sent(), list(outbox.owed()))
    assert (again.remote_count, again.next_sequence("to/Cart/b"), again.knows("to/Cart/c")) == (2, 3, False)


def test_a_replay_compares_receiver_and_message_and_not_where_it_ran() -> None:
    homes, message = Homes(4), b"\x80"
    here = Owed("Cart/a", f"shard/{homes.of('Cart/b')}", 1, 0, encode(("Cart/b", message)))
    there = Owed("Cart/a", "to/Cart/b", 7, 0, encode(TellBody("Cart/b", message, 1_000, 5)))
    other = Owed("Cart/a", "to/Cart/c", 7, 0, encode(TellBody("Cart/c", message, 1_000, 5)))
    assert compared(homes, here) == compared(homes, there) != compared(homes, other)
    foreign = Owed("Cart/a", "to/g/Pilot/p", 1, 0, encode(TellBody("g/Pilot/p", message, 1_000)))
    assert compared(homes, foreign)[1] == encode(("g/Pilot/p", message))
    assert read_told(here.body) == TellBody("Cart/b", message), "both kinds are read alike"


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("Cart/b", True),
        ("yard/Cart/b", True),
        ("Cart", False),
        ("a/b/c/d", False),
        ("/Cart/b", False),
        ("yard/Cart/", False),
        ("ya rd/Cart/b", False),
    ],
)
def test_addresses_have_two_parts_or_three(text: str, is_one: bool) -> None:
    assert is_remote_address(text) is is_one
