"""Things measured in turn, each in a process of its own that lives through all of its windows.

A window is asked for with a line of JSON and answered with one. So windows of several subjects follow each other, and
what else the machine does hits all of them alike, while nothing of one weighs on another's memory and caches. While
others have their turn, a subject waits for its next line and costs nothing.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Generic, Self, TypeVar

import msgspec
from msgspec import Struct

Request = TypeVar("Request", bound=Struct)
Answer = TypeVar("Answer", bound=Struct)
ANSWER_S_MAX = 300.0
"""A subject that takes longer over one window than this is given up."""
END_S_MAX = 60.0
READ_BYTES = 1 << 20


class Subject(Generic[Answer]):
    """Our end of one of them."""

    def __init__(self, answer: type[Answer], module: str, *arguments: object) -> None:
        self._named = " ".join((module, *(str(argument) for argument in arguments)))
        self._decode = msgspec.json.Decoder(answer).decode
        command = [sys.executable, "-m", module, *(str(argument) for argument in arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: Struct, within_s: float = ANSWER_S_MAX) -> Answer:
        """Has it do one thing and waits for the answer."""
        self.begin(request)
        return self.finish(within_s)

    def begin(self, request: Struct) -> None:
        """Has it do one thing, while we do another."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
        except BrokenPipeError:
            raise RuntimeError(f"{self._named} has ended before its time; what it said is above") from None

    def finish(self, within_s: float = ANSWER_S_MAX) -> Answer:
        """Waits for the answer to what was begun."""
        return self._decode(self._line(within_s))

    def close(self) -> None:
        """Lets it end by itself, which closes its files; a subject that does not is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _line(self, within_s: float) -> bytes:
        assert self._process.stdout is not None
        file = self._process.stdout.fileno()
        deadline_s = time.monotonic() + within_s
        parts: list[bytes] = []
        while not (parts and parts[-1].endswith(b"\n")):
            ready, _, _ = select.select([file], [], [], max(0.0, deadline_s - time.monotonic()))
            if not ready:
                self._process.kill()
                raise RuntimeError(f"{self._named} gave no answer within {within_s:g} s")
            part = os.read(file, READ_BYTES)
            if not part:
                code = self._process.wait()
                raise RuntimeError(f"{self._named} ended with {code} and without an answer; what it said is above")
            parts.append(part)
        return b"".join(parts)


def serve(request: type[Request], handle: Callable[[Request], Struct]) -> None:
    """The subject's end: answers each line until there are no more.

    Whatever a library prints in the meantime goes to stderr.
    """
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        decode = msgspec.json.Decoder(request).decode
        for line in sys.stdin.buffer:
            answers.write(msgspec.json.encode(handle(decode(line))) + b"\n")
            answers.flush()
