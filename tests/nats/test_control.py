"""The control endpoint on a real server: lines there and back, large and many, refusals, owners that come and go."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from stigmergy.base.errors import LinkDown, NotRunning, StigmergyError
from stigmergy.control.protocol import REQUEST_BYTES_MAX
from stigmergy.nats.address import parse_address
from stigmergy.nats.control import ASKING_MAX, NatsControlClient, NatsControlServer
from stigmergy.nats.link import NatsLink
from stigmergy.testing.bus_rig import wait_until
from stigmergy.testing.nats import NatsCluster, start_single

Answers = Callable[[bytes], Iterator[bytes]]
WAIT_S = 240.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with start_single(tmp_path_factory.mktemp("server")) as single:
        yield single


@pytest.fixture
async def link(server: NatsCluster) -> AsyncIterator[NatsLink]:
    link = await NatsLink.open(parse_address(server.url), name="test")
    yield link
    await link.close()


class Desk:
    """Answers as the test says."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.asked: list[bytes] = []
        self.go_on: asyncio.Event | None = None

    async def answer(self, line: bytes) -> Any:
        self.asked.append(line)
        if self.go_on is not None:
            await self.go_on.wait()
        return self._answers(line)

    def refuse(self, error: StigmergyError) -> bytes:
        return f"refused: {error}\n".encode()


def echo(line: bytes) -> Iterator[bytes]:
    return iter((b"you said " + line,))


async def first(room: NatsControlClient, line: bytes, shard: int = 0) -> bytes:
    lines = room.branch(shard).ask(line)
    async with asyncio.timeout(WAIT_S):
        found = await anext(lines)
    await lines.aclose()  # type: ignore[attr-defined]
    return found


async def test_a_line_is_answered_by_the_owner_of_its_shard(link: NatsLink, request: pytest.FixtureRequest) -> None:
    fleet = request.node.name
    control_servers = [
        NatsControlServer(link, fleet, 0, Desk(lambda _: iter((b"0\n",)))),
        NatsControlServer(link, fleet, 1, Desk(lambda _: iter((b"1\n",)))),
    ]
    for control_server in control_servers:
        await control_server.start()
    room = NatsControlClient(link, fleet)
    assert [await first(room, b"who?\n", shard) for shard in (0, 1)] == [b"0\n", b"1\n"]
    with pytest.raises(NotRunning, match="nobody answers for shard 2 of the fleet"):
        await first(room, b"who?\n", 2)
    assert [await room.is_answered(shard) for shard in range(3)] == [True, True, False]
    for control_server in control_servers:
        await control_server.close()
    await room.close()
    room = NatsControlClient(link, fleet)
    with pytest.raises(NotRunning, match="nobody answers for shard 0"):
        await first(room, b"who?\n")
    await room.close()


async def test_long_streams_and_large_lines_arrive_whole_and_in_order(link: NatsLink) -> None:
    lines = [b"", b"x" * (16 * 1024 * 1024) + b"\n", *(b"%d\n" % number for number in range(3_000))]

    desk = Desk(lambda _: iter(lines))
    control_server, room = NatsControlServer(link, "streams", 0, desk), NatsControlClient(link, "streams")
    await control_server.start()
    got: list[bytes] = []
    async with asyncio.timeout(60):
        with pytest.raises(LinkDown):  # noqa: PT012
            async for line in room.branch(0).ask(b"all\n"):
                got.append(line)
    assert got == lines[1:]
    for one in (control_server, room):
        await one.close()


async def test_too_much_is_refused_and_harms_nobody(link: NatsLink) -> None:
    desk = Desk(echo)
    desk.go_on = asyncio.Event()
    control_server, room = NatsControlServer(link, "much", 0, desk), NatsControlClient(link, "much")
    await control_server.start()
    assert b"refused: a request of more than" in await first(room, b"x" * (REQUEST_BYTES_MAX + 1))
    waiting = [asyncio.ensure_future(first(room, b"%d" % number)) for number in range(ASKING_MAX)]
    await wait_until(lambda: len(desk.asked) == ASKING_MAX)
    assert b"refused: 64 requests are answered already" in await first(room, b"one more")
    desk.go_on.set()
    assert await asyncio.gather(*waiting) == [b"you said %d" % number for number in range(ASKING_MAX)]
    for one in (control_server, room):
        await one.close()


async def test_a_handler_that_takes_too_long_or_breaks_ends_its_own_request_only(link: NatsLink) -> None:
    def broken(line: bytes) -> Iterator[bytes]:
        if line == b"break":
            raise RuntimeError("broken")
        return echo(line)

    desk = Desk(broken)
    control_server, room = (
        NatsControlServer(link, "broken", 0, desk, request_s_max=0.3),
        NatsControlClient(link, "broken"),
    )
    await control_server.start()
    with pytest.raises(LinkDown):
        await first(room, b"break")
    assert await first(room, b"x") == b"you said x"
    desk.go_on = asyncio.Event()
    assert b"refused: no answer within 0.3 s" in await first(room, b"slow")
    assert control_server.failed_requests == 1
    for one in (control_server, room):
        await one.close()


async def test_the_newest_owner_answers(link: NatsLink) -> None:
    old = NatsControlServer(link, "owners", 0, Desk(lambda _: iter((b"old",))), lambda: 1)
    new = NatsControlServer(link, "owners", 0, Desk(lambda _: iter((b"new",))), lambda: 2)
    room = NatsControlClient(link, "owners")
    await old.start()
    assert await first(room, b"who?") == b"old"
    await new.start()
    for _ in range(10):
        assert await first(room, b"who?") == b"new"
    for one in (old, new, room):
        await one.close()


async def test_who_asks_and_leaves_is_let_go(link: NatsLink) -> None:
    desk = Desk(lambda _: iter([b"line\n"] * 100_000))
    control_server, room = NatsControlServer(link, "left", 0, desk), NatsControlClient(link, "left")
    await control_server.start()
    for _ in range(ASKING_MAX + 5):
        assert await first(room, b"all") == b"line\n"
    await wait_until(lambda: not control_server._asking)
    for one in (control_server, room):
        await one.close()
