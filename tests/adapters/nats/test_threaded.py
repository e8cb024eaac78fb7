"""A link for what is synchronous: each call ends, whatever happens to the server."""

import threading
import time

import pytest

from stigmergy.adapters.nats.address import parse_address
from stigmergy.adapters.nats.errors import JetStreamRefused, Unanswered
from stigmergy.adapters.nats.link import NatsLink
from stigmergy.adapters.nats.server import free_ports
from stigmergy.adapters.nats.streams import ensure_stream
from stigmergy.adapters.nats.threaded import GRACE_S, BlockingLink
from stigmergy.core.errors import LinkDown
from stigmergy.testing.nats_rig import NatsCluster


def threads() -> int:
    return sum(thread.name.startswith("nats ") for thread in threading.enumerate())


def test_results_and_errors_come_back(server: NatsCluster) -> None:
    link = BlockingLink(parse_address(server.url), name="test")
    try:
        made = link.run(lambda one: ensure_stream(one, "T", {"subjects": ["t"]}), within_s=10.0)
        assert made.is_new
        with pytest.raises(JetStreamRefused):
            link.run(lambda one: one.api("STREAM.INFO.NOWHERE"), within_s=10.0)
    finally:
        link.close()
    link.close()


def test_nobody_there() -> None:
    (port,) = free_ports(1)
    before = threads()
    with pytest.raises(LinkDown):
        BlockingLink(parse_address(f"nats://127.0.0.1:{port}"), name="test", open_s=0.3)
    assert threads() == before


def test_a_call_has_its_limit(server: NatsCluster) -> None:
    link = BlockingLink(parse_address(server.url), name="test")

    async def for_ever(one: NatsLink) -> None:
        import asyncio

        await asyncio.Event().wait()

    began_s = time.monotonic()
    with pytest.raises(Unanswered, match=r"no answer in 0\.1 s"):
        link.run(for_ever, within_s=0.1)
    assert time.monotonic() - began_s < GRACE_S + 10.0
    link.run(lambda one: one.api("INFO"), within_s=10.0)
    link.close()


def test_several_threads_at_once(server: NatsCluster) -> None:
    link = BlockingLink(parse_address(server.url), name="test")
    link.run(lambda one: ensure_stream(one, "SHARED", {"subjects": ["shared"]}), within_s=10.0)
    sequences: list[int] = []

    def work() -> None:
        for _ in range(20):
            sequences.append(link.run(lambda one: one.publish("shared", b"x"), within_s=10.0).sequence)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    link.close()
    assert sorted(sequences) == list(range(1, 81))


def test_a_killed_server(own_server: NatsCluster) -> None:
    link = BlockingLink(parse_address(own_server.url), name="test")
    own_server.kill(0)
    with pytest.raises(LinkDown):
        link.run(lambda one: one.api("INFO", within_s=1.0), within_s=2.0)
    link.close()
    assert threads() == 0


def test_nothing_runs_on_a_closed_link(server: NatsCluster) -> None:
    link = BlockingLink(parse_address(server.url), name="test")
    link.close()
    with pytest.raises(LinkDown):
        link.run(lambda one: one.api("INFO"), within_s=1.0)
