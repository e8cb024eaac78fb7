"""JetStream's refusals, by their codes. Internal to the adapters: each translates them into its port's errors."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from stigmergy.base.errors import ConfigError, LinkDown

WRONG_LAST_SEQUENCE = 10071
WRONG_LAST_SEQUENCE_IN_FLIGHT = 10164
STREAM_NOT_FOUND = 10059
CONSUMER_NOT_FOUND = 10014
NO_MESSAGE = 10037
STREAM_NAME_IN_USE = 10058
STORAGE_EXCEEDED = 10047
MEMORY_EXCEEDED = 10028
NO_SUITABLE_PEERS = 10005
NOT_ENABLED = 10076
NOT_ENABLED_FOR_ACCOUNT = 10039
INSUFFICIENT_RESOURCES = 10023
CLUSTER_NOT_AVAILABLE = 10008
CLUSTER_NOT_LEADER = 10009

FENCED = (WRONG_LAST_SEQUENCE, WRONG_LAST_SEQUENCE_IN_FLIGHT)
FULL = (STORAGE_EXCEEDED, MEMORY_EXCEEDED, INSUFFICIENT_RESOURCES)
NOT_NOW = (CLUSTER_NOT_AVAILABLE, CLUSTER_NOT_LEADER, NO_SUITABLE_PEERS)
"""A cluster that has just started or is electing a leader refuses with these; try again later."""
WITHOUT_JETSTREAM = (NOT_ENABLED, NOT_ENABLED_FOR_ACCOUNT)


class JetStreamRefused(Exception):
    """JetStream answered with an error: nothing was done."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{description} ({code})")
        self.code = code
        self.description = description

    @property
    def is_fence(self) -> bool:
        """Another writer has written since we looked."""
        return self.code in FENCED

    @property
    def is_full(self) -> bool:
        """The stream, the account or the server has no room."""
        return self.code in FULL or "exceeded" in self.description

    @property
    def is_passing(self) -> bool:
        """A retry may succeed."""
        return self.code in NOT_NOW


class Unanswered(LinkDown):
    """The link broke, or no answer came in time: the message may have arrived, or may still arrive."""


class NoResponders(LinkDown):
    """Nobody subscribes there: the message was not delivered. A stream without a leader looks the same."""


def no_jetstream(where: str) -> ConfigError:
    """The error for a server without JetStream."""
    return ConfigError(
        f"{where}: this server runs without JetStream and stores nothing; start it with a jetstream {{ … }} block in "
        "its configuration: `stigmergy cluster config` writes one"
    )


# Reads JetStream's answer to a publish.


class Ack(Struct, frozen=True):
    """JetStream has stored a message."""

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
    """Raises JetStreamRefused, or Unanswered if the answer is not JetStream's."""
    try:
        answer = _answers.decode(data)
    except msgspec.DecodeError:
        raise Unanswered(f"{subject}: the answer is not JetStream's; is there a stream for this subject?") from None
    if answer.error is not None:
        raise JetStreamRefused(answer.error.err_code or answer.error.code, answer.error.description)
    if not answer.stream:
        raise Unanswered(f"{subject}: the answer is not JetStream's; is there a stream for this subject?")
    return Ack(answer.stream, answer.seq, answer.duplicate)
