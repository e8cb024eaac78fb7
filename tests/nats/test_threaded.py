"""A link for what is synchronous: each call ends, whatever happens to the server."""

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Callable

import pytest

from stigmergy.base.errors import LinkDown
from stigmergy.nats import threaded
from stigmergy.nats.address import parse_address
from stigmergy.nats.errors import JetStreamRefused, Unanswered
from stigmergy.nats.link import NatsLink
from stigmergy.nats.servers.server import free_ports
from stigmergy.nats.streams import ensure_stream
from stigmergy.nats.threaded import GRACE_S, BlockingLink
from stigmergy.testing.nats import NatsCluster

OurThreads = Callable[[], list[threading.Thread]]


@pytest.fixture
def our_threads() -> OurThreads:
    """The links' threads that this test has started and that still run; another test's are in the same process."""
    before = set(threading.enumerate())
    return lambda: [one for one in threading.enumerate() if one.name.startswith("nats ") and one not in before]


def test_results_and_errors_come_back(server: NatsCluster) -> None:
    link = BlockingLink(parse_address(server.url), name="test")
    try:
        made = link.run(lambda one: ensure_stream(one, "T", {"subjects": ["t"]}), within_s=120.0)
        assert made.is_new
        with pytest.raises(JetStreamRefused):
            link.run(lambda one: one.api("STREAM.INFO.NOWHERE"), within_s=120.0)
    finally:
        link.close()
    link.close()


def test_nobody_there(our_threads: OurThreads) -> None:
    (port,) = free_ports(1)
    with pytest.raises(LinkDown):
        BlockingLink(parse_address(f"nats://127.0.0.1:{port}"), name="test", open_s=0.3)
    assert our_threads() == []


def test_a_call_has_its_limit(server: NatsCluster) -> None:
    link = BlockingLink(parse_address(server.url), name="test")

    async def for_ever(one: NatsLink) -> None:
        await asyncio.Event().wait()

    began_s = time.monotonic()
    with pytest.raises(Unanswered, match=r"no answer in 0\.1 s"):
        link.run(for_ever, within_s=0.1)
    assert time.monotonic() - began_s < GRACE_S + 10.0
    link.run(lambda one: one.api("INFO"), within_s=120.0)
    link.close()


def test_several_threads_at_once(server: NatsCluster) -> None:
    link = BlockingLink(parse_address(server.url), name="test")
    link.run(lambda one: ensure_stream(one, "SHARED", {"subjects": ["shared"]}), within_s=120.0)
    sequences: list[int] = []

    def work() -> None:
        for _ in range(20):
            sequences.append(link.run(lambda one: one.publish("shared", b"x"), within_s=120.0).sequence)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    link.close()
    assert sorted(sequences) == list(range(1, 81))


def test_a_killed_server(own_server: NatsCluster, our_threads: OurThreads) -> None:
    link = BlockingLink(parse_address(own_server.url), name="test")
    own_server.kill(0)
    with pytest.raises(LinkDown):
        link.run(lambda one: one.api("INFO", within_s=1.0), within_s=2.0)
    link.close()
    assert our_threads() == []


def test_nothing_runs_on_a_closed_link(server: NatsCluster) -> None:
    link = BlockingLink(parse_address(server.url), name="test")
    link.close()
    with pytest.raises(LinkDown):
        link.run(lambda one: one.api("INFO"), within_s=1.0)


def test_closing_waits_for_what_was_given_up(server: NatsCluster, caplog: pytest.LogCaptureFixture) -> None:
    """It is told to end and takes a while: a loop that closes meanwhile destroys it where it is."""
    link = BlockingLink(parse_address(server.url), name="test")
    begun, ended = list[str](), list[str]()

    async def slow_to_end(one: NatsLink) -> None:
        begun.append("now")
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(20):
                await asyncio.sleep(0.01)
            ended.append("in order")

    while not begun:
        with pytest.raises(Unanswered):
            link.run(slow_to_end, within_s=0.05 - GRACE_S)
    link.close()
    gc.collect()
    assert ended == ["in order"]
    assert "destroyed" not in caplog.text


def test_a_connection_that_is_given_up_leaves_nothing_behind(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, our_threads: OurThreads
) -> None:
    """A busy machine: the thread gets no time, and whoever waits gives up before the attempt itself does."""
    monkeypatch.setattr(threaded, "GRACE_S", -0.05)
    with socket.create_server(("127.0.0.1", 0)) as says_nothing:
        url = f"nats://127.0.0.1:{says_nothing.getsockname()[1]}"
        with pytest.raises(Unanswered):
            BlockingLink(parse_address(url), name="test", open_s=0.3)
    gc.collect()
    assert our_threads() == []
    assert "destroyed" not in caplog.text


def test_whoever_waits_in_another_thread_hears_that_it_was_closed(server: NatsCluster) -> None:
    link = BlockingLink(parse_address(server.url), name="test")
    begun, heard = threading.Event(), list[BaseException]()

    async def for_ever(one: NatsLink) -> None:
        begun.set()
        await asyncio.Event().wait()

    def work() -> None:
        try:
            link.run(for_ever, within_s=3600.0)
        except BaseException as error:
            heard.append(error)

    other = threading.Thread(target=work, daemon=True)
    other.start()
    assert begun.wait(60.0)
    link.close()
    other.join(30.0)
    assert not other.is_alive()
    (error,) = heard
    assert isinstance(error, Unanswered)
    assert "was closed" in str(error)
