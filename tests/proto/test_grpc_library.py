"""gRPC in a process that starts other programs."""

import os
import subprocess
import sys
from pathlib import Path

CHILDREN = 100
RUN_S_MAX = 240.0
"""A child may also hang."""
PROGRAM = f"""
import contextlib
import subprocess
import threading
from collections import Counter
from concurrent import futures

from stigmergy.proto.grpc_library import grpc

server = grpc.server(futures.ThreadPoolExecutor(2))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
done = threading.Event()


def call():
    with grpc.insecure_channel(f"127.0.0.1:{{port}}") as channel:
        ask = channel.unary_unary("/nobody/answers")
        while not done.is_set():
            with contextlib.suppress(grpc.RpcError):
                ask(b"")


callers = [threading.Thread(target=call) for _ in range(2)]
for caller in callers:
    caller.start()
codes = Counter(
    subprocess.run(["true"], preexec_fn=lambda: None, check=False).returncode for _ in range({CHILDREN})
)
done.set()
for caller in callers:
    caller.join()
server.stop(0).wait()
print(dict(codes))
"""


def test_children_live_while_calls_are_under_way(tmp_path: Path) -> None:
    """In a process of its own: a fork of the one that runs ten thousand tests takes long, and the setting is to be that
    of the library."""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert ran.stdout.strip() == str({0: CHILDREN}), ran
