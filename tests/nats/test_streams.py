"""Streams that are made, found, and compared with what they must be; real servers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stigmergy.base.errors import ConfigError, LinkDown
from stigmergy.nats.address import parse_address
from stigmergy.nats.errors import JetStreamRefused
from stigmergy.nats.link import NatsLink
from stigmergy.nats.streams import ensure_stream, find_stream
from stigmergy.testing.nats import NatsCluster, start_single

MINUTE_NS = 60_000_000_000


async def test_made_once_and_found_again(link: NatsLink) -> None:
    settings = {"subjects": ["a.>"], "num_replicas": 1, "metadata": {"fleet": "delivery"}}
    assert await find_stream(link, "A") is None
    made = await ensure_stream(link, "A", settings)
    assert (made.is_new, made.first_sequence, made.last_sequence) == (True, 0, 0)
    await link.publish("a.b", b"1")
    found = await ensure_stream(link, "A", settings)
    assert (found.is_new, found.first_sequence, found.last_sequence) == (False, 1, 1)
    assert found.metadata["fleet"] == "delivery"


async def test_one_with_another_configuration_is_refused_and_left(link: NatsLink) -> None:
    await ensure_stream(link, "B", {"subjects": ["b.>"], "max_age": MINUTE_NS, "metadata": {"fleet": "one"}})
    with pytest.raises(ConfigError) as refused:
        await ensure_stream(
            link,
            "B",
            {"subjects": ["b.>", "c.>"], "max_age": 0, "discard": "new", "metadata": {"fleet": "two"}},
        )
    said = str(refused.value)
    assert "subjects is ['b.>'], not ['b.>', 'c.>']" in said
    assert f"max_age is {MINUTE_NS}, not 0" in said
    assert "discard is 'old', not 'new'" in said
    assert "'fleet': 'one'" in said
    assert "Nothing was changed" in said
    found = await find_stream(link, "B")
    assert found is not None
    assert found.config["subjects"] == ["b.>"]


async def test_what_jetstream_leaves_out_is_its_zero(link: NatsLink) -> None:
    wanted = {"subjects": ["z.>"], "allow_rollup_hdrs": False, "allow_atomic": False, "description": "", "sources": []}
    await ensure_stream(link, "Z", wanted)
    assert not (await ensure_stream(link, "Z", wanted)).is_new
    with pytest.raises(ConfigError, match="allow_atomic is None, not True"):
        await ensure_stream(link, "Z", {"allow_atomic": True})


async def test_many_who_make_the_same_at_once(server: NatsCluster) -> None:
    links = [await NatsLink.open(parse_address(server.url), name=f"test {n}") for n in range(4)]
    try:
        found = await asyncio.gather(*(ensure_stream(link, "RACE", {"subjects": ["race.>"]}) for link in links))
        assert {one.config["name"] for one in found} == {"RACE"}
    finally:
        for link in links:
            await link.close()


async def test_more_replicas_than_servers(link: NatsLink) -> None:
    with pytest.raises(ConfigError, match="start that many servers with JetStream, or ask for fewer replicas"):
        await ensure_stream(link, "R3", {"subjects": ["r3"], "num_replicas": 3}, within_s=0.5)


async def test_a_server_that_is_away_is_waited_for(link: NatsLink, monkeypatch: pytest.MonkeyPatch) -> None:
    real = link.api

    async def api(subject: str, *arguments: Any, **named: Any) -> Any:
        if subject.startswith("STREAM.CREATE."):  # what a cluster of three says in the moments after a power cut
            raise JetStreamRefused(10005, "no suitable peers for placement, peer offline")
        return await real(subject, *arguments, **named)

    monkeypatch.setattr(link, "api", api)
    with pytest.raises(LinkDown, match=r"needs 3 servers .* start the others"):
        await ensure_stream(link, "AWAY", {"subjects": ["away"], "num_replicas": 3}, within_s=0.2)


async def test_subjects_that_another_stream_has(link: NatsLink) -> None:
    await ensure_stream(link, "FIRST", {"subjects": ["taken.>"]})
    with pytest.raises(ConfigError, match="overlap"):
        await ensure_stream(link, "SECOND", {"subjects": ["taken.a"]}, within_s=0.5)


async def test_a_setting_that_there_is_not(link: NatsLink) -> None:
    with pytest.raises(ConfigError, match="unknown field"):
        await ensure_stream(link, "UNKNOWN", {"subjects": ["u"], "colour": "red"}, within_s=0.5)


async def test_no_room_for_it(tmp_path: Path) -> None:
    with start_single(tmp_path, file_bytes=1_000_000) as server:
        link = await NatsLink.open(parse_address(server.url), name="test")
        with pytest.raises(ConfigError, match=r"no room for it.*raise max_file"):
            await ensure_stream(link, "LARGE", {"subjects": ["l"], "max_bytes": 10_000_000}, within_s=0.5)
        await link.close()


async def test_nobody_there(own_server: NatsCluster) -> None:
    link = await NatsLink.open(parse_address(own_server.url), name="test")
    own_server.kill(0)
    with pytest.raises(LinkDown):
        await ensure_stream(link, "NEVER", {"subjects": ["never"]}, within_s=0.5)
    await link.close()


async def test_a_server_that_comes_back_in_time(own_server: NatsCluster) -> None:
    link = await NatsLink.open(parse_address(own_server.url), name="test")
    own_server.kill(0)
    making = asyncio.ensure_future(ensure_stream(link, "LATE", {"subjects": ["late"]}, within_s=30.0))
    await asyncio.sleep(0.3)
    assert not making.done()
    own_server.start_again(0)
    assert (await making).is_new
    await link.close()
