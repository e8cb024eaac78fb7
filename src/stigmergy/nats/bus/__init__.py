"""The bus on NATS JetStream: `session` receives, `outlet` publishes, `retained` keeps the last messages and wills.

The client library belongs to the extra [nats]; without it opening such a URL is an error that says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stigmergy.base.clock import Entropy
from stigmergy.base.errors import ConfigError

if TYPE_CHECKING:
    from stigmergy.nats.bus.bus import NatsBus


def open_bus(url: str, client_id: str, entropy: Entropy) -> NatsBus:
    """Opens a bus at nats://host:port or tls://host:port; `options` describes the rest of the URL."""
    try:
        from stigmergy.nats.bus.bus import NatsBus
        from stigmergy.nats.bus.options import read_options
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != "nats":
            raise
        raise ConfigError('a bus on NATS needs its client; pip install "stigmergy[nats]"') from None
    return NatsBus(read_options(url, client_id), client_id, entropy)


__all__ = ["open_bus"]
