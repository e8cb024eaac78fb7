"""What JetStream says to a publish, read."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from stigmergy.adapters.nats.errors import JetStreamRefused, Unanswered


class Ack(Struct, frozen=True):
    """JetStream has a message."""

    stream: str
    sequence: int
    is_duplicate: bool


class _Problem(Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Answer(Struct):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: _Problem | None = None


_answers = msgspec.json.Decoder(_Answer)


def read_ack(subject: str, data: bytes) -> Ack:
    """Raises JetStreamRefused, or Unanswered if it is no answer of JetStream's."""
    try:
        answer = _answers.decode(data)
    except msgspec.DecodeError:
        raise Unanswered(f"{subject}: somebody else than JetStream has answered; is there a stream for it?") from None
    if answer.error is not None:
        raise JetStreamRefused(answer.error.err_code or answer.error.code, answer.error.description)
    if not answer.stream:
        raise Unanswered(f"{subject}: somebody else than JetStream has answered; is there a stream for it?")
    return Ack(answer.stream, answer.seq, answer.duplicate)
