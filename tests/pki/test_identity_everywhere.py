"""One identity in stigmergy.toml, or on the command line, is shown by every link with TLS."""

import argparse
from pathlib import Path

import pytest

from stigmergy.app.config import Config, read_config, with_identity_in
from stigmergy.app.gateway import hub_tls
from stigmergy.app.node_config import NodeConfig, find_node_config
from stigmergy.base.errors import ConfigError
from stigmergy.cli.display.places import show_identity
from tests.pki.members import Members

TOML = """
[fleet]
identity = "north"
bus = "mqtts://gateway"
journal = "tls://hub:4222"
ledger = "tls://hub?ca=other.pem"
copies = ["tls://copies", "folder:x"]
uplink = { only = ["Alert"] }
uplink_to = "mqtt://plain"
"""


@pytest.fixture
def north(tmp_path: Path) -> Path:
    return Members(tmp_path).issue("node", "north")


def shows(url: str | None, folder: Path) -> bool:
    return url is not None and url.endswith(f"cert={folder}/identity.pem&key={folder}/identity.pem")


def test_of_a_configuration(north: Path) -> None:
    path = north.parent / "stigmergy.toml"
    path.write_text(TOML)
    config = read_config(path)
    place = config.fleet
    assert shows(place.bus, north)
    assert shows(place.journal, north)
    assert shows(place.copies[0], north)
    assert (place.ledger, place.copies[1]) == ("tls://hub?ca=other.pem", f"folder:{north.parent}/x")
    assert place.uplink_to == "mqtt://plain"
    assert place.key == str(north / "signing.key"), "the certificate names this key"
    given = find_node_config(NodeConfig(bus="tls://elsewhere", blobs="nats://plain"), config)
    assert shows(given.bus, north)
    assert given.blobs == "nats://plain"
    path.write_text(TOML + '\nkey = "mine.key"\n')
    assert read_config(path).fleet.key == str(north.parent / "mine.key")
    path.write_text(TOML.replace('"north"', '"south"'))
    with pytest.raises(ConfigError, match="ca issue"):
        read_config(path)


def test_of_a_command_line(north: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = argparse.Namespace(nats="tls://hub", bus=None, copies=["tls://a", "folder:b"], identity=str(north))
    show_identity(given)
    assert shows(given.nats, north)
    assert shows(given.copies[0], north)
    assert given.copies[1] == "folder:b"
    plain = argparse.Namespace(nats="nats://hub", identity="nowhere")
    show_identity(plain)
    assert plain.nats == "nats://hub"
    (tmp_path / "stigmergy.toml").write_text('[fleet]\nidentity = "north"\n')
    of_config = argparse.Namespace(nats="tls://hub")
    show_identity(of_config)
    assert shows(of_config.nats, north)


def test_of_a_gateway(north: Path) -> None:
    files = hub_tls(None, None, None, str(north))
    assert files is not None
    assert (files.cert, files.ca) == (f"{north}/identity.pem", f"{north}/ca.pem")
    named = hub_tls("ca.pem", None, None, str(north))
    assert named is not None
    assert (named.ca, named.cert) == ("ca.pem", "")
    assert with_identity_in(Config(), None) == Config()
