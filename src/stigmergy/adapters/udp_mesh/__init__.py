"""The mesh over UDP: `mesh` has the socket and whom it believes, `datagrams` the bytes, `options` the URL."""

from stigmergy.adapters.udp_mesh.mesh import UdpMesh, open_mesh
from stigmergy.adapters.udp_mesh.options import UdpOptions, parse_url

__all__ = ["UdpMesh", "UdpOptions", "open_mesh", "parse_url"]
