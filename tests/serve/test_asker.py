"""Requests to a node beside: what is said when its answer does not come."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from stigmergy.base.errors import NoAnswer, NotRunning, Overloaded
from stigmergy.control.protocol import VERSION, ObserveRequest, SendRequest, StateRequest, StatusRequest
from stigmergy.control.replies import LinkReply, RecoveryReply, StatusReply
from stigmergy.serve import asker as askers
from stigmergy.serve.asker import OtherFleet, SocketAsker
from stigmergy.serve.problems import problem_of
from tests.serve.rig import ServedProcess, cli

SEND = SendRequest(agent="Drone/a", command="Start", command_id="order-1")


async def say_fleet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fleet: str = "yard") -> None:
    """Which fleet it runs, as a node is asked first."""
    assert b'"status"' in await reader.readline()
    found = StatusReply(
        fleet=fleet, version="1", pid=1, up_s=0.0, cpu_s=0.0, memory_peak_bytes=0, journal="", agents=0, events=0,
        commits=0, owed=0, waiting=0, dead_letters=0, stopped={}, journal_bytes=0, heads=[], signers=[],
        recovered=RecoveryReply(0, 0, 0, {}, []), counters={}, troubles=[], link=LinkReply(),
    )  # fmt: skip
    writer.write(msgspec.json.encode({"v": VERSION, "ok": found}) + b"\n")


async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A node that takes a request and ends."""
    await say_fleet(reader, writer)
    await reader.readline()
    writer.close()


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A node that takes a request and does not answer."""
    await reader.read()
    writer.close()


async def test_command_in_doubt_has_the_id_to_send_it_again_with(tmp_path: Path) -> None:
    server = await asyncio.start_unix_server(leave, tmp_path / "s")
    asker = SocketAsker(tmp_path / "s", "yard")
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
        await SocketAsker(tmp_path / "s", "yard").ask(SEND)


async def test_requests_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(askers, "WAITING_MAX", 3)
    server = await asyncio.start_unix_server(hang, tmp_path / "s")
    asker = SocketAsker(tmp_path / "s", "yard")
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


async def test_a_node_of_another_fleet_is_not_asked(tmp_path: Path) -> None:
    async def node(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await say_fleet(reader, writer, runs)
        if runs == "yard":
            await say_fleet(reader, writer, runs)
        writer.close()

    asker = SocketAsker(tmp_path / "s", "yard")
    for runs in ("other", "yard", "other"):
        server = await asyncio.start_unix_server(node, tmp_path / "s")
        if runs == "yard":
            assert (await asker.ask(StatusRequest())).fleet == "yard"
        else:
            with pytest.raises(OtherFleet, match="runs the fleet 'other', not 'yard'; give its own MODULE:FLEET") as no:
                await asker.ask(SEND)
            assert problem_of(no.value).status == 503
        server.close()
        (tmp_path / "s").unlink(missing_ok=True)
    await asker.close()


def test_serving_beside_a_node_of_another_fleet_is_refused(served: ServedProcess, tmp_path: Path) -> None:
    source = (served.folder / "drone.py").read_text(encoding="utf-8")
    (tmp_path / "other.py").write_text(source.replace('"delivery"', '"other"'), encoding="utf-8")
    path = served.folder / "delivery.db.sock"
    refused = cli(tmp_path, "serve", "other:fleet", "--socket", str(path), "--listen", "127.0.0.1:0")
    assert refused.returncode == 2
    assert f"the node at {path} runs the fleet 'delivery', not 'other'" in refused.stderr
