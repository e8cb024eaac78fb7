"""URLs of NATS: what they say, and what is refused with a sentence that tells how to write it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.base.errors import ConfigError
from stigmergy.nats.address import NatsAddress, parse_address


def test_a_host_is_enough() -> None:
    assert parse_address("nats://hub") == NatsAddress(servers=("nats://hub:4222",))


def test_everything_that_a_url_can_say() -> None:
    address = parse_address(
        "tls://worker:p%40ss%2F@hub-1:4001,hub_2,[::1]:4003/ledger%201?replicas=3&ca=ca.pem&cert=c.pem&key=k.pem&domain=hub"
    )
    assert address.servers == ("tls://hub-1:4001", "tls://hub_2:4222", "tls://[::1]:4003")
    assert (address.user, address.password) == ("worker", "p@ss/")
    assert (address.ca, address.cert, address.key, address.domain) == ("ca.pem", "c.pem", "k.pem", "hub")
    assert address.path == "ledger 1"
    assert address.replicas == 3
    assert address.option("replicas") == "3"
    assert address.option("other", "none") == "none"


def test_people_never_see_the_password() -> None:
    address = parse_address("nats://worker:secret@hub:4222")
    assert address.shown == "nats://hub:4222"
    for url in ("nats://worker:secret@hub:99999", "nats://w:secret@hub?x=1", "nats://w:secret@hub?cert=a"):
        with pytest.raises(ConfigError) as refused:
            parse_address(url)
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("hub:4222", "give a URL like nats://hub:4222"),
        ("worker:secret@hub:4222", "give a URL like nats://hub:4222"),
        ("http://hub:4222", "give a URL like nats://hub:4222"),
        ("nats://", "name 1 to 16 servers"),
        ("nats://" + ",".join(f"h{n}" for n in range(17)), "name 1 to 16 servers"),
        ("nats://hub:0", "is not a server; give host:port"),
        ("nats://hub:65536", "is not a server; give host:port"),
        ("nats://hub:port", "is not a server; give host:port"),
        ("nats://a b", "is not a server; give host:port"),
        ("nats://hub?", ""),
        ("nats://hub?replicas", "name=value"),
        ("nats://hub?replica=3", "unknown option 'replica'; the options are replicas, ca"),
        ("nats://hub?ca=a&ca=b", "'ca' is given twice"),
        ("nats://hub?cert=c.pem", "cert and key belong together"),
        ("nats://hub?domain=a.b", "a name is 1 to 32 letters"),
    ],
)
def test_what_is_wrong_is_named(url: str, says: str) -> None:
    if not says:
        parse_address(url)
        return
    with pytest.raises(ConfigError, match=says.replace("?", r"\?")) as refused:
        parse_address(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("text", ["0", "2", "4", "7", "three", "", "-1"])
def test_an_even_number_of_replicas_is_refused(text: str) -> None:
    address = parse_address(f"nats://hub?replicas={text}")
    with pytest.raises(ConfigError, match="give 1, 3 or 5"):
        _ = address.replicas


def test_options_of_an_adapter() -> None:
    assert parse_address("nats://hub?partition=1", options=("partition",)).option("partition") == "1"
    assert parse_address("nats://hub").replicas == 1


@given(st.text(max_size=60))
def test_nothing_else_than_a_config_error_comes_out(text: str) -> None:
    for url in (text, f"nats://{text}", f"nats://hub?{text}"):
        try:
            address = parse_address(url)
        except ConfigError:
            continue
        assert 1 <= len(address.servers) <= 16
