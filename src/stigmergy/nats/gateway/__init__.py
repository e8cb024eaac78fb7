"""Gateways on NATS: a leaf server at a site, what it sends up to the hub, and what the hub's nodes collect.

    site:   node -> UplinkBus -> stream STIG_UPLINK_<site>  (domain <site>, on the leaf)
    hub:            stream STIG_UPLINK_<site>, which sources the leaf's -> SitesBus -> collector
    back:           marks, as plain messages over the leaf link

The ends make the transfer reliable: a node's uplink sends what the receiver's marks do not confirm. So streams and
sources may lose, repeat and stop, and nothing is lost, doubled or out of order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stigmergy.base.clock import Entropy
from stigmergy.base.errors import ConfigError

if TYPE_CHECKING:
    from stigmergy.nats.gateway.sites_bus import SitesBus
    from stigmergy.nats.gateway.uplink_bus import UplinkBus


def open_uplink_bus(url: str, client_id: str, entropy: Entropy) -> UplinkBus:
    """Opens a nats-hub:// URL, the bus of a gateway's uplink."""
    try:
        from stigmergy.nats.gateway.uplink_bus import open_bus
    except ModuleNotFoundError as error:
        raise _missing(url, error) from None
    return open_bus(url, client_id, entropy)


def open_sites_bus(url: str, client_id: str, entropy: Entropy) -> SitesBus:
    """Opens a nats-sites:// URL, the bus where uplinks of sites arrive."""
    try:
        from stigmergy.nats.gateway.sites_bus import open_bus
    except ModuleNotFoundError as error:
        raise _missing(url, error) from None
    return open_bus(url, client_id, entropy)


def _missing(url: str, error: ModuleNotFoundError) -> ConfigError:
    return ConfigError(f'bus {url.partition("?")[0]!r} needs {error.name}: pip install "stigmergy[nats]"')
