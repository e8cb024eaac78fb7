"""The clients of `bench serve`, in a process of their own: `python -m bench.serve_load commands|grpc|stream PORT …`.

They speak HTTP by hand, so that the server is measured and not a client library; gRPC they speak by its library. One
line of JSON says what they saw.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Awaitable, Callable

READ_BYTES = 1024 * 1024
MARK = b"\ndata: "


Sender = Callable[[], Awaitable[None]]


async def send_commands(
    connect: Callable[[int, int], Awaitable[Sender]], port: int, clients: int, seconds: float
) -> dict[str, float]:
    """Commands one after the other over each of these connections."""
    senders = [await connect(port, number) for number in range(clients)]
    until_s = time.perf_counter() + seconds

    async def repeat(send: Sender) -> list[float]:
        found: list[float] = []
        while (began_s := time.perf_counter()) < until_s:
            await send()
            found.append(time.perf_counter() - began_s)
        return found

    results = await asyncio.gather(*(repeat(send) for send in senders))
    latencies = sorted(latency for found in results for latency in found)
    count = len(latencies)
    return {
        "count": count,
        "per_s": count / seconds,
        "p50_ms": 1e3 * latencies[count // 2],
        "p99_ms": 1e3 * latencies[count * 99 // 100],
    }


async def connect_http(port: int, number: int) -> Sender:
    """A connection that sends a command and reads its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b'{"by":1}'
    head = f"POST /v1/agents/Meter/{number}/Add HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def send() -> None:
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer.decode())
        length = int(answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)

    return send


async def connect_grpc(port: int, number: int) -> Sender:
    """The same over gRPC, on a connection of its own."""
    from stigmergy.proto.grpc_library import grpc
    from stigmergy.proto.service import SERVICE, plain_service

    package, classes = plain_service("meters")
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", (("grpc.use_local_subchannel_pool", 1),))
    await channel.channel_ready()
    call = channel.unary_unary(
        f"/{package}.{SERVICE}/Send",
        request_serializer=classes["SendRequest"].SerializeToString,
        response_deserializer=classes["SendReply"].FromString,
    )
    request = classes["SendRequest"](agent=f"Meter/{number}", json={"name": "Add", "fields": '{"by":1}'})

    async def send() -> None:
        await call(request)

    return send


class Stream:
    """One client of the event stream, which counts."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.sendall(b"GET /v1/events?kind=Meter HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self._socket.setblocking(False)
        self._buffer = bytearray(READ_BYTES)
        self._tail = b""
        self.count = 0
        self.is_dropped = False
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._read)

    def _read(self) -> None:
        try:
            size = self._socket.recv_into(self._buffer)
        except BlockingIOError:
            return
        if size == 0:
            self.is_dropped = True
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            return
        data = self._buffer[:size]
        # A mark that is cut in two between reads is counted with the second.
        self.count += data.count(MARK) + (self._tail + data[: len(MARK) - 1]).count(MARK)
        self._tail = bytes(data[-(len(MARK) - 1) :])
        self.is_dropped = self.is_dropped or b"\nevent: dropped" in data[-2000:]

    def close(self) -> None:
        """Reads no more."""
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()


async def read_stream(port: int, clients: int, expected: int, within_s: float) -> dict[str, float]:
    """Reads until each client has so many events, or the time is over."""
    streams = [Stream(port) for _ in range(clients)]
    await asyncio.sleep(1.0)
    print(json.dumps({"ready": True}), flush=True)
    until_s = time.perf_counter() + within_s
    while min(one.count for one in streams) < expected and time.perf_counter() < until_s:
        await asyncio.sleep(0.05)
        if any(one.is_dropped for one in streams):
            break
    ended_s = time.time()
    for one in streams:
        one.close()
    least = min(one.count for one in streams)
    return {"least": least, "dropped": sum(one.is_dropped for one in streams), "ended_s": ended_s}


def main() -> None:
    """Runs what the command line says."""
    what, port, clients, *rest = sys.argv[1:]
    if what in ("commands", "grpc"):
        connect = connect_http if what == "commands" else connect_grpc
        found = asyncio.run(send_commands(connect, int(port), int(clients), float(rest[0])))
    else:
        found = asyncio.run(read_stream(int(port), int(clients), int(rest[0]), float(rest[1])))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
