"""Whom a certificate names."""

import pytest

from stigmergy.base.errors import ConfigError
from stigmergy.pki.names import KINDS, check_hosts, read_subject, server_uri, subject_of


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["n", "north-1", "D_17", "a.b.c", "n" * 64])
def test_a_subject_is_read_as_it_was_written(kind: str, name: str) -> None:
    made = subject_of("town.west", kind, name)
    assert read_subject(made.uri) == made
    assert made.shown == f"{kind} {name}"


HOSTILE = [
    "",
    "a/b",
    "../ca",
    "a b",
    "a\n",
    "é",
    "a*",
    "#",
    "+",
    ".",
    "..",
    ".a",
    "a.",
    "a..b",
    "a%2fb",
    "n" * 65,
    "a\x00",
    "CN=x,O=y",
    '"',
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_would_mean_something_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="letters"):
        subject_of("town", "node", name)
    with pytest.raises(ConfigError, match="letters"):
        subject_of(name, "node", "north")


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "stigmergy://",
        "stigmergy://town",
        "stigmergy://town/node",
        "stigmergy://town/node/a/b",
        "stigmergy://town//a",
        "stigmergy://town/root/a",
        "https://town/node/a",
        "stigmergy://town/node/a?x",
        "stigmergy://town/node/a#x",
        "STIGMERGY://town/node/a",
    ],
)
def test_other_uris_name_nobody(uri: str) -> None:
    with pytest.raises(ConfigError):
        read_subject(uri)


def test_the_role_of_servers_is_nobodys_identity() -> None:
    with pytest.raises(ConfigError):
        read_subject(server_uri("town"))


def test_hosts() -> None:
    hosts = ("hub-1", "hub.example", "10.0.0.1", "[::1]", "hub-1", "localhost", "_srv")
    assert check_hosts(hosts) == ("hub-1", "hub.example", "10.0.0.1", "::1", "localhost", "_srv")
    for wrong in ("", "*.example", "a b", "a..b", "hub:4222", "https://hub", "a" * 300, "-a", "hub\n"):
        with pytest.raises(ConfigError, match="is no host"):
            check_hosts((wrong,))
    with pytest.raises(ConfigError, match="32 at most"):
        check_hosts(tuple(f"h{number}" for number in range(33)))
