"""Brokers that can be reached and those that cannot, one server or several."""

import socket

from stigmergy.cli.fleet_checks import check_bus


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_every_server_of_a_cluster_is_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here, nobody = listening.getsockname()[1], free_port()
        found = list(check_bus(f"nats://me:word@127.0.0.1:{here},127.0.0.1:{nobody}/delivery?replicas=3"))
    assert [one.check for one in found] == ["bus.reachable", "bus.reachable"]
    assert [one.level for one in found] == ["ok", "fail"]
    assert "word" not in "".join(one.what for one in found)
