"""The gRPC library, loaded without its handlers for forks: import `grpc` from here.

A process that serves or calls starts other programs: NATS servers, py-spy. A child is forked for that, and the handlers
of the library run in it first; while calls are under way they crash one child in thirty. The library reads the setting
when it is loaded. Nothing here uses gRPC in a fork.
"""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc

__all__ = ["grpc"]
