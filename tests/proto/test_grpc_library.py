"""gRPC in a process that starts other programs."""

import contextlib
import subprocess
import threading
from collections import Counter
from concurrent import futures

from stigmergy.proto.grpc_library import grpc

CHILDREN = 100


def test_children_live_while_calls_are_under_way() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    done = threading.Event()

    def call() -> None:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask = channel.unary_unary("/nobody/answers")
            while not done.is_set():
                with contextlib.suppress(grpc.RpcError):
                    ask(b"")

    callers = [threading.Thread(target=call) for _ in range(2)]
    for caller in callers:
        caller.start()
    try:
        codes = Counter(
            subprocess.run(["true"], preexec_fn=lambda: None, check=False).returncode for _ in range(CHILDREN)
        )
    finally:
        done.set()
        for caller in callers:
            caller.join()
        server.stop(0).wait()
    assert codes == {0: CHILDREN}
