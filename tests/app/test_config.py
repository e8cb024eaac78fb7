"""The configuration file: what may be in it, and what is said of the rest."""

from pathlib import Path

import pytest

from stigmergy import Agent, Fleet
from stigmergy.app.config import CONFIG_FILE, Config, find_config, read_config
from stigmergy.app.fleet import NodeConfig, find_node_config
from stigmergy.base.errors import ConfigError
from stigmergy.node.settings import Settings
from stigmergy.uplink.rules import Aggregate, UplinkRule


class Thing(Agent):
    pass


WHOLE = """
[fleet]
module = "drone:fleet"
journal = "sqlite:fleet.db"
key = "fleet.key"
trust = ["old.key", "stigmergy-ed25519 AAAA", "abababababababababababababababababababababababababababababababab"]

[settings]
batch_events_max = 500

[settings.snapshots]
every_events = 100

[settings.retention]
keep_s = 60.0

[settings.limits]
agents_count_max = 10
"""


def write(folder: Path, text: str) -> Path:
    path = folder / CONFIG_FILE
    path.write_text(text)
    return path


def test_a_whole_file(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, WHOLE))
    assert config == find_config(tmp_path)
    assert config.fleet.module == "drone:fleet"
    assert config.fleet.journal == f"sqlite:{tmp_path / 'fleet.db'}"
    assert config.fleet.key == str(tmp_path / "fleet.key")
    assert config.fleet.trust == (str(tmp_path / "old.key"), "stigmergy-ed25519 AAAA", "ab" * 32)
    settings = config.settings
    assert settings is not None
    assert (settings.batch_events_max, settings.write_within_s) == (500, Settings().write_within_s)
    assert (settings.snapshots.every_events, settings.retention.keep_s) == (100, 60.0)
    assert settings.limits.agents_count_max == 10


def test_no_file_is_needed(tmp_path: Path) -> None:
    assert find_config(tmp_path) == Config()


@pytest.mark.parametrize(
    "section",
    [
        "settings",
        "settings.snapshots",
        "settings.retention",
        "settings.limits",
        "settings.bus",
        "settings.uplink",
        "fleet",
    ],
)
def test_a_key_that_does_not_exist_is_an_error_and_not_a_default(tmp_path: Path, section: str) -> None:
    path = write(tmp_path, f"[{section}]\nbatch_evnts_max = 3\n")
    with pytest.raises(ConfigError, match="batch_evnts_max") as refused:
        read_config(path)
    assert f"$.{section}" in str(refused.value)
    assert str(path) in str(refused.value)


def test_nor_is_a_section_that_does_not_exist(tmp_path: Path) -> None:
    for text in ("[setings]\n", "[settings.snapshot]\nevery_events = 3\n"):
        with pytest.raises(ConfigError, match=r"seting|snapshot`"):
            read_config(write(tmp_path, text))


@pytest.mark.parametrize("text", ["[settings", "[settings]\nbatch_events_max = 'x'\n", "\xff"])
def test_what_cannot_be_read_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / CONFIG_FILE
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=CONFIG_FILE):
        read_config(path)


def test_what_goes_up_as_people_write_it(tmp_path: Path) -> None:
    text = """
[fleet]
bus = "mqtt://gateway:1883"
uplink = { only = ["Done", "Alert"], sample = { Position = "1s" }, aggregate = { Battery = { every = "60s" } } }
collects = true

[settings.uplink]
linger_s = 0.5
"""
    config = read_config(write(tmp_path, text))
    wanted = UplinkRule(
        only=("Done", "Alert"), sample={"Position": "1s"}, aggregate={"Battery": Aggregate(every="60s")}
    )
    assert config.fleet.uplink == wanted
    found = find_node_config(NodeConfig(site="north"), config)
    assert (found.uplink, found.collects, found.site) == (wanted, True, "north")
    other = UplinkRule(only=())
    assert find_node_config(NodeConfig(uplink=other), config).uplink == other
    assert config.settings is not None
    assert config.settings.uplink.linger_s == 0.5


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("uplink = { sample = { Position = 'often' } }", "such as 500ms"),
        ("uplink = { samples = { Position = '1s' } }", "samples"),
        ("uplink = { when_full = 'stop' }", "stop"),
    ],
)
def test_rules_that_are_none(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_config(write(tmp_path, f"[fleet]\n{line}\n"))


@pytest.mark.parametrize("line", ["uplink = {}", "collects = true"])
def test_an_uplink_needs_a_bus(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match="need a bus"):
        find_node_config(NodeConfig(), read_config(write(tmp_path, f"[fleet]\n{line}\n")))


@pytest.mark.parametrize(
    "line", ["batches_max = 0", "batch_bytes_max = 1000000", "linger_s = 0.0", "ask_every_s = inf", "pause_s = -1.0"]
)
def test_bounds_of_an_uplink_that_are_none(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match=r"uplink\."):
        read_config(write(tmp_path, f"[settings.uplink]\n{line}\n"))


def test_a_program_that_gives_no_rule_is_told() -> None:
    with pytest.raises(ConfigError, match="give UplinkRule"):
        Fleet("delivery", agents=[Thing]).running(uplink={"only": []})  # type: ignore[arg-type]
