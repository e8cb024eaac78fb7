"""The configuration file: what may be in it, and what is said of the rest."""

from pathlib import Path

import pytest

from stigmergy.config import CONFIG_FILE, Config, find_config, read_config
from stigmergy.core.errors import ConfigError
from stigmergy.runtime.settings import Settings

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
    "section", ["settings", "settings.snapshots", "settings.retention", "settings.limits", "settings.bus", "fleet"]
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
