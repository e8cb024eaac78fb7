"""Why a connection did not work, in our words."""

from __future__ import annotations

import socket

import pytest
from nats import errors as nats_errors

from stigmergy.base.errors import ConfigError, LinkDown
from stigmergy.nats.address import parse_address
from stigmergy.nats.client import explain

ADDRESS = parse_address("nats://worker:wrong@hub:4222")


def test_what_a_server_said_before_it_hung_up_is_kept() -> None:
    refused = explain(ADDRESS, nats_errors.AuthorizationError())
    assert isinstance(refused, ConfigError)
    for ended in (ConnectionResetError(104, "reset"), BrokenPipeError(), nats_errors.UnexpectedEOF()):
        assert explain(ADDRESS, ended, refused) is refused


def test_a_server_that_is_away_is_said_whatever_it_said_before() -> None:
    refused = explain(ADDRESS, nats_errors.AuthorizationError())
    assert isinstance(explain(ADDRESS, ConnectionRefusedError(111, "refused"), refused), LinkDown)


def test_a_connection_that_was_reset_without_a_word_is_down() -> None:
    assert isinstance(explain(ADDRESS, ConnectionResetError(104, "reset")), LinkDown)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(111, "Connect call failed ('127.0.0.1', 4222)"), "Connection refused"),
        (
            OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 4222), [Errno 111] …"),
            "Connection refused",
        ),
        (TimeoutError(), "no answer in time"),
        (nats_errors.TimeoutError(), "no answer in time"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
    ],
)
def test_a_server_that_is_away_is_said_without_the_call_that_failed(error: Exception, said: str) -> None:
    text = str(explain(ADDRESS, error))
    assert text.endswith(f": {said}; check the URL, and that the server runs"), text


def test_no_password_is_shown() -> None:
    assert "wrong" not in str(explain(ADDRESS, OSError("no route")))
