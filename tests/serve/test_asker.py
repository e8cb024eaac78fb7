"""Requests to a node beside: what is said when its answer does not come."""

import asyncio
from pathlib import Path

import pytest

from stigmergy.base.errors import NoAnswer, NotRunning, Overloaded
from stigmergy.control.protocol import ObserveRequest, SendRequest, StateRequest
from stigmergy.serve import asker as askers
from stigmergy.serve.asker import SocketAsker

SEND = SendRequest(agent="Drone/a", command="Start", command_id="order-1")


async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A node that takes a request and ends."""
    await reader.readline()
    writer.close()


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A node that takes a request and does not answer."""
    await reader.read()
    writer.close()


async def test_command_in_doubt_has_the_id_to_send_it_again_with(tmp_path: Path) -> None:
    server = await asyncio.start_unix_server(leave, tmp_path / "s")
    asker = SocketAsker(tmp_path / "s")
    with pytest.raises(NoAnswer, match="send it again with the same id") as doubt:
        await asker.ask(SEND)
    assert doubt.value.command_id == "order-1"
    with pytest.raises(NoAnswer, match="whether the observation was taken is not known"):
        await asker.ask(ObserveRequest(agent="Drone/a", event="Measured"))
    with pytest.raises(NotRunning, match="ask again"):
        await asker.ask(StateRequest(agent="Drone/a"))
    server.close()
    await asker.close()


async def test_nobody_there_took_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match="no node answers"):
        await SocketAsker(tmp_path / "s").ask(SEND)


async def test_requests_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(askers, "WAITING_MAX", 3)
    server = await asyncio.start_unix_server(hang, tmp_path / "s")
    asker = SocketAsker(tmp_path / "s")
    waiting = [asyncio.ensure_future(asker.ask(SEND)) for _ in range(askers.CONNECTIONS_MAX + 3)]
    async with asyncio.timeout(240):
        while asker._waiting < 3:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)
    with pytest.raises(Overloaded):
        await asker.ask(SEND)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    server.close()
    await asker.close()
