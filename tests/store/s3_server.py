"""A server of S3 for tests: moto's, in a process of its own, which checks signatures and policies."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import boto3

START_S_MAX = 240.0
CALLS_BEFORE_AUTH = 4
"""Those that make the user, its policy, its key and the bucket."""
POLICY = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}


@dataclass
class S3Server:
    """A running server with one bucket and one user."""

    port: int
    key_id: str = ""
    secret: str = ""
    bucket: str = "fleet-blobs"
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, prefix: str, *, secret: str | None = None, bucket: str | None = None, port: int = 0) -> str:
        """The URL of a store below this prefix."""
        pair = f"{quote(self.key_id, safe='')}:{quote(secret or self.secret, safe='')}"
        endpoint = f"http://127.0.0.1:{port or self.port}"
        return f"s3://{pair}@{bucket or self.bucket}/{prefix}?endpoint={endpoint}&region=us-east-1"

    def client(self, service: str) -> Any:
        """A client of boto3, the other side's own."""
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.key_id or "none",
            aws_secret_access_key=self.secret or "none",
        )


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Starts it on a free port, with a user and a bucket."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    environment = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": str(CALLS_BEFORE_AUTH)}
    arguments = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_port(port, process)
        server = S3Server(port)
        users = server.client("iam")
        users.create_user(UserName="fleet")
        users.put_user_policy(UserName="fleet", PolicyName="all", PolicyDocument=json.dumps(POLICY))
        pair = users.create_access_key(UserName="fleet")["AccessKey"]
        server.client("s3").create_bucket(Bucket=server.bucket)
        server.key_id, server.secret = pair["AccessKeyId"], pair["SecretAccessKey"]
        yield server
    finally:
        process.kill()
        process.wait()


def wait_port(port: int, process: "subprocess.Popen[bytes]") -> None:
    """Waits until somebody listens."""
    deadline = time.monotonic() + START_S_MAX
    while True:
        assert process.poll() is None, "the server of S3 has ended"
        assert time.monotonic() < deadline, "the server of S3 does not listen"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
