"""What `stigmergy shared` says of an object whose peers are not heard."""

from msgspec import structs

from stigmergy.cli.peers import _in_step, _peer, _state
from stigmergy.control.replies import ObjectReply

ALONE = ObjectReply(
    object="Board.used/district",
    agents=["Board/north"],
    live=1,
    live_bytes=10,
    digest="00",
    waiting=0,
    diverged=False,
    peers=[],
    in_step=[],
    replicas_count=1,
    replicas=[],
)


def text(cell: object) -> str:
    return cell if isinstance(cell, str) else cell[0]  # type: ignore[index]


def test_members_that_are_not_heard_are_not_called_no_peers() -> None:
    assert (text(_in_step(ALONE)), text(_state(ALONE))) == ("no peers", "well")
    one = structs.replace(ALONE, unheard=["shard-1", "shard-2"])
    assert (text(_in_step(one)), text(_state(one))) == ("2 peers not heard", "unknown: peers not heard")
    one = structs.replace(ALONE, peers=["shard-1", "shard-2"], in_step=["shard-1", "shard-2"], unheard=["shard-2"])
    assert text(_in_step(one)) == "2 of 2 peers, 1 peer not heard"
    assert text(_state(one)) == "unknown: peers not heard"
    assert (text(_peer("shard-1", one)), text(_peer("shard-2", one))) == ("shard-1", "shard-2, not heard for a while")
