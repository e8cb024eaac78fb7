"""The mesh over UDP, beyond the contract: its URL, whom it believes, what it learns, and its bytes."""

import asyncio
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stigmergy.base.errors import ConfigError, Malformed
from stigmergy.base.system import SystemClock
from stigmergy.membership import udp as mesh
from stigmergy.membership.udp import (
    FORMAT,
    HEADER_BYTES_MAX,
    MAGIC,
    SEAL_BYTES,
    UdpMesh,
    UdpOptions,
    body_bytes,
    open_mesh,
    parse_url,
    read_datagram,
    seal_key,
    write_datagram,
)
from stigmergy.testing.bus_rig import wait_until

KEY = b"k" * 32
SECRET = b"s" * 40


class Node:
    """A mesh on a port of loopback that the system chose, and what it heard."""

    def __init__(self, name: str, *, peers: tuple[tuple[str, str, int], ...] = (), key: bytes = b"") -> None:
        self.clock = SteppedClock()
        self.mesh = UdpMesh(UdpOptions("127.0.0.1", 0, peers, key), name, self.clock)
        self.heard: list[tuple[str, bytes]] = []

    async def open(self) -> "Node":
        await self.mesh.open(lambda sender, body: self.heard.append((sender, body)))
        return self

    @property
    def port(self) -> int:
        return int(self.mesh.contact.rpartition(":")[2])

    def listed(self, name: str) -> tuple[str, str, int]:
        return name, "127.0.0.1", self.port


class SteppedClock(SystemClock):
    """The system's clock, with a monotonic one that can be put forward and a wall clock that can be set."""

    ahead_ns = 0
    wall: int | None = None

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.ahead_ns

    def wall_ns(self) -> int:
        return super().wall_ns() if self.wall is None else self.wall


# The URL.


def test_url_is_read(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(SECRET + b"\n")
    url = f"udp://0.0.0.0:700?peers=a@10.0.0.1:701,b-2@host,c@[::1]:9&bytes_max=8000&advertise=10.0.0.9:700&key_file={tmp_path}/key"
    assert parse_url(url) == UdpOptions(
        "0.0.0.0", 700, (("a", "10.0.0.1", 701), ("b-2", "host", 7946), ("c", "::1", 9)), SECRET, 8000, "10.0.0.9:700"
    )
    assert parse_url("udp://[::1]") == UdpOptions("::1")
    assert parse_url("udp://[::1]").place == "udp://[::1]:7946"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("tcp://a", "write udp://"),
        ("udp://", "write udp://"),
        ("udp://a:99999", "Port"),
        ("udp://u@a", "no user"),
        ("udp://a/b", "path"),
        ("udp://a?peers=b", "write name@host"),
        ("udp://a?peers=b@", "write name@host"),
        ("udp://a?peers=b/c@d", "write name@host"),
        ("udp://a?peers=b@c:0", "write name@host"),
        ("udp://a?peers=b@c/d", "write name@host"),
        ("udp://a?peers=b@c:70000", "Port"),
        ("udp://a?peers=b@c,b@d", "twice"),
        ("udp://a?peers=b@c&peers=b@d", "twice"),
        ("udp://a?bytes_max=10", "1000 to 60000"),
        ("udp://a?bytes_max=many", "1000 to 60000"),
        ("udp://a?advertise=host:1", "an address and a port"),
        ("udp://a?advertise=10.0.0.1", "an address and a port"),
        ("udp://a?key_file=no/such/file", "No such file"),
        ("udp://a?colour=red", "unknown option 'colour'"),
    ],
)
def test_url_that_is_wrong_says_what(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_url(url)


def test_short_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(ConfigError, match="5 bytes"):
        parse_url(f"udp://a?key_file={tmp_path / 'key'}")


def test_those_who_are_listed_are_the_seeds_of_membership() -> None:
    opened = open_mesh("udp://127.0.0.1:0?peers=a@10.0.0.1,me@10.0.0.2,b@host", "me", SystemClock())
    assert opened.seeds == ("a", "b")


def test_bad_name_of_a_node_is_refused() -> None:
    with pytest.raises(ConfigError, match="letters"):
        open_mesh("udp://127.0.0.1:0", "a b", SystemClock())


async def test_port_that_is_taken_or_address_that_is_not_ours_is_a_clear_error() -> None:
    first = await Node("a").open()
    for url in (f"udp://127.0.0.1:{first.port}", "udp://192.0.2.1:1", "udp://no-such-host.invalid:1"):
        with pytest.raises(ConfigError, match="mesh udp://"):
            await open_mesh(url, "b", SystemClock()).open(lambda *_: None)
    await first.mesh.close()


async def test_all_addresses_have_no_contact_unless_told() -> None:
    for more, contact in (("", ""), ("?advertise=127.0.0.1:77", "127.0.0.1:77")):
        opened = open_mesh(f"udp://0.0.0.0:0{more}", "a", SystemClock())
        await opened.open(lambda *_: None)
        assert opened.contact == contact
        await opened.close()


async def test_names_of_hosts_are_looked_up_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "RESOLVE_S", 0.01)
    other = await Node("b").open()
    node = await Node("a", peers=(("b", "localhost", other.port), ("c", "no-such-host.invalid", 1))).open()
    node.mesh.send_nowait("c", b"nowhere")
    assert node.mesh.counters.dropped_count == 1
    for _ in range(2):
        node.mesh._listed["b"] = None  # as if it had not been known
        await wait_until(lambda: node.mesh._listed["b"] is not None)
    for opened in (node, other):
        await opened.mesh.close()


async def test_socket_for_all_addresses_of_both_families_speaks_with_both() -> None:
    try:
        both = UdpMesh(UdpOptions("::", 0, key=SECRET), "both", SystemClock())
        await both.open(both.send_nowait)
    except ConfigError as error:
        pytest.skip(f"no IPv6 here: {error}")
    assert both._socket is not None
    port = both._socket.getsockname()[1]
    four = await Node("four", peers=(("both", "127.0.0.1", port),), key=SECRET).open()
    four.mesh.send_nowait("both", b"x")
    await wait_until(lambda: four.heard == [("both", b"x")])
    both._learned.clear()
    both.introduce("four", four.mesh.contact)
    both.send_nowait("four", b"introduced")
    await wait_until(lambda: ("both", b"introduced") in four.heard)
    listing = await Node("listing", peers=(("four", "127.0.0.1", four.port),)).open()
    assert listing.mesh._address_of("four") == ("127.0.0.1", four.port)
    for opened in (both, four.mesh, listing.mesh):
        await opened.close()


# Whom it believes.


async def test_without_a_key_only_the_listed_address_is_believed() -> None:
    stranger, friend = await Node("x").open(), await Node("b").open()
    node = await Node("a", peers=(friend.listed("b"),)).open()
    plain = write_datagram("b", "a", b"hello", 1, b"")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forger:
        forger.sendto(plain, ("127.0.0.1", node.port))  # the right name from another address
        forger.sendto(write_datagram("x", "a", b"hello", 1, b""), ("127.0.0.1", node.port))
        forger.sendto(write_datagram("b", "z", b"hello", 1, b""), ("127.0.0.1", node.port))
        forger.sendto(b"no datagram at all", ("127.0.0.1", node.port))
    await wait_until(lambda: node.mesh.counters.refused_count == 4)
    assert friend.mesh._socket is not None
    friend.mesh._socket.sendto(plain, ("127.0.0.1", node.port))
    await wait_until(lambda: node.heard == [("b", b"hello")])
    node.mesh.introduce("x", stranger.mesh.contact)  # without a key nobody is introduced
    node.mesh.send_nowait("x", b"?")
    assert node.mesh.counters.dropped_count == 1
    for opened in (node, friend, stranger):
        await opened.mesh.close()


async def test_with_a_key_whoever_has_it_is_believed_and_answered() -> None:
    seed = await Node("seed", key=SECRET).open()
    joiner = await Node("joiner", peers=(seed.listed("seed"),), key=SECRET).open()
    thief = await Node("thief", peers=(seed.listed("seed"),), key=b"another secret that is long enough").open()
    naked = await Node("naked", peers=(seed.listed("seed"),)).open()
    thief.mesh.send_nowait("seed", b"let me in")
    naked.mesh.send_nowait("seed", b"let me in")
    joiner.mesh.send_nowait("seed", b"hello")
    await wait_until(lambda: bool(seed.heard) and seed.mesh.counters.refused_count == 2)
    seed.mesh.send_nowait("joiner", b"welcome")
    await wait_until(lambda: joiner.heard == [("seed", b"welcome")])
    assert seed.heard == [("joiner", b"hello")]
    for opened in (seed, joiner, thief, naked):
        await opened.mesh.close()


async def test_introduced_nodes_reach_each_other() -> None:
    one, other = await Node("one", key=SECRET).open(), await Node("other", key=SECRET).open()
    one.mesh.introduce("other", other.mesh.contact)
    one.mesh.send_nowait("other", b"hello")
    await wait_until(lambda: other.heard == [("one", b"hello")])
    other.mesh.send_nowait("one", b"hello")
    await wait_until(lambda: one.heard == [("other", b"hello")])
    for opened in (one, other):
        await opened.mesh.close()


async def test_recorded_datagram_does_not_move_a_node_and_a_new_one_does() -> None:
    node = await Node("a", key=SECRET).open()
    derived = seal_key(SECRET)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there,
    ):
        for one in (here, there):
            one.bind(("127.0.0.1", 0))
        place = ("127.0.0.1", node.port)
        here.sendto(write_datagram("b", "a", b"1", 100, derived), place)
        await wait_until(lambda: len(node.heard) == 1)
        there.sendto(write_datagram("b", "a", b"1", 100, derived), place)
        await wait_until(lambda: len(node.heard) == 2)
        assert node.mesh._learned["b"].address == here.getsockname()
        node.mesh.introduce("b", "127.0.0.1:9")  # hearsay is worth less than what was heard
        assert node.mesh._learned["b"].address == here.getsockname()
        there.sendto(write_datagram("b", "a", b"2", 101, derived), place)
        await wait_until(lambda: len(node.heard) == 3)
        assert node.mesh._learned["b"].address == there.getsockname()
        node.clock.ahead_ns = 601 * 10**9  # silent for so long that its clock may have gone back meanwhile
        here.sendto(write_datagram("b", "a", b"3", 5, derived), place)
        await wait_until(lambda: len(node.heard) == 4)
        assert node.mesh._learned["b"].address == here.getsockname()
    await node.mesh.close()


async def test_listed_address_wins_over_what_is_learned() -> None:
    node = await Node("a", peers=(("b", "127.0.0.1", 9),), key=SECRET).open()
    other = await Node("b", peers=(node.listed("a"),), key=SECRET).open()
    other.mesh.send_nowait("a", b"x")
    await wait_until(lambda: bool(node.heard))
    node.mesh.introduce("b", other.mesh.contact)
    assert node.mesh._address_of("b") == ("127.0.0.1", 9)
    for opened in (node, other):
        await opened.mesh.close()


async def test_what_is_learned_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "LEARNED_COUNT_MAX", 3)
    node = await Node("a", key=SECRET).open()
    for number in range(5):
        node.mesh.introduce(f"n{number}", f"127.0.0.1:{number + 1}")
    assert list(node.mesh._learned) == ["n2", "n3", "n4"]
    await node.mesh.close()


async def test_while_the_system_takes_none_the_newest_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "WAITING_COUNT_MAX", 5)
    other = await Node("b").open()
    node = await Node("a", peers=(other.listed("b"),)).open()
    other.mesh._listed["a"] = ("127.0.0.1", node.port)
    real = UdpMesh._sent
    monkeypatch.setattr(UdpMesh, "_sent", lambda *_: False)
    for number in range(8):
        node.mesh.send_nowait("b", b"%d" % number)
    monkeypatch.setattr(UdpMesh, "_sent", real)
    await wait_until(lambda: len(other.heard) == 5)
    assert [body for _, body in other.heard] == [b"3", b"4", b"5", b"6", b"7"]
    assert (node.mesh.counters.overflowed_count, node.mesh.counters.sent_count) == (3, 5)
    assert node.mesh.counters.sent_bytes == 5
    await asyncio.sleep(0.05)
    for opened in (node, other):
        await opened.mesh.close()


# Bytes.

names = st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True)


@given(names, names, st.binary(max_size=2_000), st.integers(0, 2**64 - 1), st.sampled_from([b"", KEY]))
def test_datagram_is_read_as_it_was_written(sender: str, to: str, body: bytes, stamp: int, key: bytes) -> None:
    datagram = write_datagram(sender, to, body, stamp, key)
    assert read_datagram(datagram, key) == (sender, to, body, stamp)
    assert body_bytes(datagram) == len(body)
    assert len(datagram) <= len(body) + HEADER_BYTES_MAX


@given(st.integers(0, 60), st.integers(1, 255))
def test_any_changed_byte_breaks_the_seal(place: int, change: int) -> None:
    datagram = bytearray(write_datagram("a", "b", b"body of it", 7, KEY))
    datagram[place % len(datagram)] ^= change
    with pytest.raises(Malformed):
        read_datagram(bytes(datagram), KEY)


@given(st.binary(max_size=100), st.sampled_from([b"", KEY]), st.booleans())
def test_anything_else_is_malformed_and_nothing_worse(junk: bytes, key: bytes, front: bool) -> None:
    datagram = MAGIC + bytes([FORMAT, 1 if key else 0]) + junk if front else junk
    try:
        read_datagram(datagram, key)
    except Malformed:
        return
    assert not key  # without a key, what looks like one is one


def test_shortest_cut_is_malformed() -> None:
    datagram = write_datagram("a", "b", b"", 7, KEY)
    for length in range(len(datagram)):
        with pytest.raises(Malformed):
            read_datagram(datagram[:length], KEY)
    assert len(datagram) == 14 + 4 + SEAL_BYTES
