"""Opens ledgers by their URLs, through the adapters registered for them."""

from __future__ import annotations

from importlib.metadata import entry_points

from stigmergy.core.errors import ConfigError
from stigmergy.ports.ledger import Ledger

LEDGERS = "stigmergy.ledgers"
"""The entry point group where adapters register: the name is the scheme of the URL, the value opens it."""


def open_ledger(url: str, name: str) -> Ledger:
    """Opens the ledger of this name that a URL names, through the adapter registered for its scheme."""
    scheme, colon, _ = url.partition(":")
    found = {entry.name: entry for entry in entry_points(group=LEDGERS)}
    if not colon or scheme not in found:
        known = ", ".join(f"{one}:" for one in sorted(found))
        raise ConfigError(f"ledger {url!r}: no adapter for {scheme!r}; there are {known}, for example sqlite:ledger.db")
    ledger: Ledger = found[scheme].load()(url, name)
    return ledger
