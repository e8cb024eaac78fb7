"""The gRPC service of a real node: typed messages in and out, statuses with sentences, health, reflection, limits."""

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from stigmergy.base.errors import ConfigError
from stigmergy.proto.descriptors import message_classes
from stigmergy.proto.service import FleetProto
from stigmergy.serve.asker import NodeAsker
from stigmergy.serve.listener import read_address
from stigmergy.serve.server import ApiServer, Serving
from stigmergy.serve.tokens import Tokens
from tests.clients.rig import Urls, warehouse, warehouse_served

PROTO = FleetProto(warehouse, None)
CLASSES = message_classes(PROTO.describe())[1]


class Stub:
    """What a generated client would be."""

    def __init__(self, urls: Urls, *metadata: tuple[str, str]) -> None:
        self.channel = grpc.aio.insecure_channel(urls["grpc"].removeprefix("grpc://"))
        self._metadata = metadata

    async def __aenter__(self) -> "Stub":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.channel.close()

    async def call(self, method: str, **fields: Any) -> Any:
        made = CLASSES[f"{method}Request"](**fields)
        call = self.channel.unary_unary(
            f"/warehouse.Fleet/{method}",
            request_serializer=type(made).SerializeToString,
            response_deserializer=CLASSES[f"{method}Reply"].FromString,
        )
        return await call(made, metadata=self._metadata, timeout=240)

    def watch(self, **fields: Any) -> Any:
        made = CLASSES["WatchRequest"](**fields)
        watch = self.channel.unary_stream(
            "/warehouse.Fleet/Watch",
            request_serializer=type(made).SerializeToString,
            response_deserializer=CLASSES["WatchReply"].FromString,
        )
        return watch(made, metadata=self._metadata, timeout=240)

    async def refused(self, method: str, **fields: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await self.call(method, **fields)
        error = raised.value
        return error.code(), error.details(), dict(error.trailing_metadata())


async def test_typed_commands_events_and_states(tmp_path: Path) -> None:
    async with warehouse_served(tmp_path) as urls, Stub(urls) as stub:
        first = await stub.call("Send", agent="Cart/c01", command_id="id-1", drive={"to": "dock-1", "by": b"\x00"})
        assert first.position > 0
        again = await stub.call("Send", agent="Cart/c01", command_id="id-1", drive={"to": "dock-1", "by": b"\x00"})
        assert again == first
        await stub.call("Observe", agent="Cart/c01", seen={"by": "gate"})
        found = await stub.call("GetAgent", agent="Cart/c01")
        assert (found.cart.at, found.cart.drives, list(found.cart.seen)) == ("dock-1", 1, ["gate"])
        assert found.known
        assert found.time.seconds > 1_700_000_000
        past = await stub.call("GetAgent", agent="Cart/c01", at=str(first.position))
        assert not past.cart.seen
        asked = [stub.call("GetAgent", agent="Cart/c01", at=str(first.position)) for _ in range(8)]
        assert await asyncio.gather(*asked) == [past] * 8, "a node looks back for one at a time; the others wait"
        assert (await stub.call("GetAgent", agent="Cart/c01", as_json=True)).json.startswith('{"id":"c01"')
        for number in range(5):
            await stub.call("Send", agent=f"Cart/d{number}", drive={"to": "dock-2"})
        after = [f"Cart/d4:{(await stub.call('GetAgent', agent='Cart/d4')).position}"]
        docks = await stub.call(
            "QueryView", view="Dock", where=["drives>=1"], order=["-drives"], after=after, within_s=50
        )
        assert [(row.dock.to, row.dock.drives) for row in docks.rows] == [("dock-2", 5), ("dock-1", 1)]
        page = await stub.call("ListAgents", kind="Cart", where=["at=dock-2"], limit=3)
        assert [one.cart.id for one in page.agents] == ["d0", "d1", "d2"]
        page = await stub.call("ListAgents", kind="Cart", where=["at=dock-2"], limit=3, cursor=page.next)
        assert [one.agent for one in page.agents] == ["Cart/d3", "Cart/d4"]
        assert not page.next


async def test_problems_are_statuses_with_sentences(tmp_path: Path) -> None:
    async with warehouse_served(tmp_path) as urls, Stub(urls) as stub:
        code, said, trailers = await stub.refused("Send", agent="Cart/c01", command_id="m", drive={"to": "moon"})
        assert (code, said) == (grpc.StatusCode.FAILED_PRECONDITION, "no track leads there")
        assert trailers["stigmergy-type"] == "urn:stigmergy:refused"
        assert trailers["stigmergy-command-id"] == "m"
        for fields, wanted, sentence in (
            ({"agent": "Cart/c01", "drive": {}}, grpc.StatusCode.INVALID_ARGUMENT, "drive.to is missing; it is string"),
            ({"agent": "Cart/c01"}, grpc.StatusCode.INVALID_ARGUMENT, "command: give one of json, drive"),
            ({"agent": "Ship/s", "drive": {"to": "x"}}, grpc.StatusCode.NOT_FOUND, "'Ship/s' is no address"),
            ({"agent": "Board/b", "drive": {"to": "x"}}, grpc.StatusCode.NOT_FOUND, "Board has no command 'Drive@1'"),
            (
                {"agent": "Cart/c01", "json": {"name": "Drive", "fields": '{"to": 7}'}},
                grpc.StatusCode.INVALID_ARGUMENT,
                "/to: Expected `str`, got `int`",
            ),
            (
                {"agent": "Cart/c01", "json": {"name": "Drive", "fields": "{"}},
                grpc.StatusCode.INVALID_ARGUMENT,
                "json.fields: ",
            ),
        ):
            code, said, _ = await stub.refused("Send", **fields)
            assert code == wanted
            assert said.startswith(sentence)
        code, said, _ = await stub.refused("GetAgent", agent="Cart/c01", at="yesterday")
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        large = await stub.refused("Send", agent="Cart/c01", drive={"to": "x" * 2_000_000})
        assert large[0] == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_too_many_calls_are_told_when_to_come_back(tmp_path: Path) -> None:
    from stigmergy.serve.access import Policy

    async with warehouse_served(tmp_path, policy=Policy(rate_per_s=0.5)) as urls, Stub(urls) as stub:
        await stub.call("GetAgent", agent="Cart/c01")
        code, said, trailers = await stub.refused("GetAgent", agent="Cart/c01")
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "more than 0.5 times a second" in said
        assert trailers["grpc-retry-pushback-ms"] == "1000"


async def test_health_is_for_all_and_reflection_for_readers(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens")
    token = tokens.create("reader", ("read",), 10**9, 1.7e9)
    async with warehouse_served(tmp_path) as urls, Stub(urls, ("authorization", f"Bearer {token}")) as stub:
        health = health_pb2_grpc.HealthStub(stub.channel)
        found = await health.Check(health_pb2.HealthCheckRequest(service="warehouse.Fleet"), timeout=240)
        assert found.status == health_pb2.HealthCheckResponse.SERVING
        reflected = reflection_pb2_grpc.ServerReflectionStub(stub.channel)
        asked = [reflection_pb2.ServerReflectionRequest(file_containing_symbol="warehouse.Fleet")]
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for _ in reflected.ServerReflectionInfo(iter(asked), timeout=240):
                pass
        assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
        metadata = (("authorization", f"Bearer {token}"),)
        answers = [one async for one in reflected.ServerReflectionInfo(iter(asked), metadata=metadata, timeout=240)]
        (file,) = answers[0].file_descriptor_response.file_descriptor_proto[:1]
        assert descriptor_pb2.FileDescriptorProto.FromString(file).package == "warehouse"
        code, said, _ = await stub.refused("Observe", agent="Cart/c01", seen={"by": "gate"})
        assert (code, said.split(";")[0]) == (grpc.StatusCode.PERMISSION_DENIED, "reader has no scope 'observe'")


async def test_a_server_does_not_listen_where_it_must_not(tmp_path: Path) -> None:
    for address, numbers, said in (
        ("0.0.0.0:0", "numbers", "is reached by others, and there is no valid token"),
        ("127.0.0.1:0", "none", "there are no field numbers"),
    ):
        with pytest.raises(ConfigError, match=said):
            ApiServer(
                warehouse,
                NodeAsker(None),  # type: ignore[arg-type]
                Serving(None, tmp_path / "tokens", grpc=read_address(address), numbers=tmp_path / numbers),
            )
    async with warehouse_served(tmp_path) as urls:
        taken = int(urls["grpc"].rpartition(":")[2])
        with pytest.raises(ConfigError, match=f"cannot listen for gRPC at 127.0.0.1:{taken}"):
            async with warehouse_served(tmp_path, ports=(0, taken)):
                pass


async def test_a_stream_has_the_types_of_the_fleet(tmp_path: Path) -> None:
    async with warehouse_served(tmp_path) as urls, Stub(urls) as stub:
        stream = stub.watch(kinds=["Cart"])
        begin = await stream.read()
        assert not begin.agent
        await stub.call("Send", agent="Cart/c01", drive={"to": "dock-1"})
        await stub.call("Observe", agent="Cart/c01", seen={"by": "gate"})
        driven, seen = await stream.read(), await stream.read()
        assert (driven.agent, driven.type, driven.driven.to) == ("Cart/c01", "Driven@1", "dock-1")
        assert seen.WhichOneof("event") == "seen"
        assert seen.seen.by == "gate"
        assert abs(seen.time.seconds - time.time()) < 240
        stream.cancel()
        as_json = stub.watch(after=begin.after, types=["Seen"], as_json=True)
        assert not (await as_json.read()).agent
        assert (await as_json.read()).json.fields == '{"by":"gate"}'
        as_json.cancel()
        since = stub.watch(since={"seconds": 1})
        assert [(await since.read()).type for _ in range(3)] == ["", "Driven@1", "Seen@1"]
        since.cancel()
        for fields, code in (
            ({"kinds": ["Ship"]}, grpc.StatusCode.NOT_FOUND),
            ({"after": "here"}, grpc.StatusCode.INVALID_ARGUMENT),
            ({"after": "0:1", "since": {"seconds": 1}}, grpc.StatusCode.INVALID_ARGUMENT),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stub.watch(**fields).read()
            assert raised.value.code() == code


async def test_a_stream_ends_when_its_token_does(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens")
    token = tokens.create("reader", ("read",), 10**9, 1.7e9)
    async with warehouse_served(tmp_path) as urls, Stub(urls, ("authorization", f"Bearer {token}")) as stub:
        stream = stub.watch()
        assert (await stream.read()).after
        tokens.revoke("reader", 1.8e9)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stream.read()
        assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED


async def test_a_slow_reader_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stigmergy.serve.events.RING_EVENTS_MAX", 50)
    monkeypatch.setattr("stigmergy.serve.events.RING_BYTES_MAX", 500_000)
    async with warehouse_served(tmp_path) as urls, Stub(urls) as slow, Stub(urls) as stub:
        stream = slow.watch()
        begin = await stream.read()
        for number in range(200):
            await stub.call("Send", agent="Cart/c01", drive={"to": f"{number}" + "x" * 50_000})
        replies = [begin]

        async def read() -> None:
            while len(replies) <= 200:
                replies.append(await stream.read())

        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await read()
        assert raised.value.code() == grpc.StatusCode.ABORTED
        assert "watch again behind its last `after`" in raised.value.details()
        heard = [int(reply.driven.to.rstrip("x")) for reply in replies[1:]]
        last = replies[-1].after
        again = slow.watch(after=last)
        assert not (await again.read()).agent
        while len(heard) < 200:
            heard.append(int((await again.read()).driven.to.rstrip("x")))
        assert heard == list(range(200))
