"""Field numbers stay: what adds is taken, what would break a client that was built before is refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import stigmergy as st
from stigmergy.base.errors import ConfigError
from stigmergy.proto.numbers import FieldNumbers, describe_changes, read_numbers, write_numbers
from stigmergy.proto.service import FleetProto, open_service
from tests.proto.fleet import fleet


def service(kept: FieldNumbers | None, reserve: Sequence[str] = (), **fields: Any) -> FleetProto:
    """The service of a fleet whose one command has these fields: a type, or a type with its default."""
    hints = {name: one[0] if isinstance(one, tuple) else one for name, one in fields.items()}
    defaults = {name: one[1] for name, one in fields.items() if isinstance(one, tuple)}
    command = type("Go", (st.Command,), {"__annotations__": hints, "__module__": __name__, **defaults})

    class Robot(st.Agent):
        @st.decide
        def go(self, command: command) -> st.Events:  # type: ignore[valid-type]
            yield from ()

    return FleetProto(st.Fleet("robots", agents=[Robot]), kept, reserve)


def numbers_of(proto: FleetProto) -> dict[str, int]:
    return {field.name: field.number for field in proto.book.shapes["Go"].fields}


def test_a_field_keeps_its_number_wherever_it_stands() -> None:
    before = service(None, to=str, speed=float)
    assert numbers_of(before) == {"to": 1, "speed": 2}
    after = service(before.numbers, speed=float, to=str, height=(int, 0))
    assert numbers_of(after) == {"speed": 2, "to": 1, "height": 3}
    assert describe_changes(before.numbers, after.numbers) == ["Go.height: new, number 3"]
    assert not describe_changes(after.numbers, after.numbers)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"to": int, "speed": float}, r"Go\.to was optional string and is now optional int64: old clients"),
        ({"to": tuple[str, ...], "speed": float}, r"Go\.to was optional string and is now repeated string"),
        ({"to": str}, r"Go\.speed is gone, and old clients still use its number 2; .* --reserve Go\.speed"),
        ({"to": str, "speed": float, "height": int}, r"Go\.height is new and has no default"),
    ],
)
def test_what_would_break_old_clients_is_refused(fields: dict[str, Any], said: str) -> None:
    before = service(None, to=str, speed=float)
    with pytest.raises(ConfigError, match=said):
        service(before.numbers, **fields)


def test_a_default_may_come_and_not_go() -> None:
    before = service(None, to=str)
    after = service(before.numbers, to=(str, ""))
    with pytest.raises(ConfigError, match=r"Go\.to had a default and has none now"):
        service(after.numbers, to=str)
    service(before.numbers, to=str)


def test_a_number_that_was_given_up_is_never_used_again() -> None:
    before = service(None, to=str, speed=float)
    without = service(before.numbers, ["Go.speed"], to=str)
    assert 'reserved 2;\n  reserved "speed";' in without.text("x")
    after = service(without.numbers, to=str, height=(int, 0))
    assert numbers_of(after) == {"to": 1, "height": 3}
    with pytest.raises(ConfigError, match=r"Go\.speed was given up before, and its name and number 2 stay unused"):
        service(after.numbers, to=str, height=(int, 0), speed=(float, 1.0))
    with pytest.raises(ConfigError, match=r"--reserve Go\.width: no field of that name has gone"):
        service(after.numbers, ["Go.width"], to=str, height=(int, 0))


def test_a_command_that_is_gone_is_refused_by_its_place_in_the_service() -> None:
    before = service(None, to=str)

    class Robot(st.Agent):
        x: int = 0

    with pytest.raises(ConfigError, match=r"SendRequest\.go is gone, .* --reserve SendRequest\.go"):
        FleetProto(st.Fleet("robots", agents=[Robot]), before.numbers)
    after = FleetProto(st.Fleet("robots", agents=[Robot]), before.numbers, ["SendRequest.go"])
    assert after.numbers.messages["SendRequest"].reserved == {"go": 16}


def test_the_file_is_read_as_it_was_written_and_refused_if_it_was_merged_wrong(tmp_path: Path) -> None:
    path = tmp_path / "robots.proto.lock"
    assert read_numbers(path, "robots") is None
    numbers = service(None, to=str, speed=float).numbers
    path.write_bytes(write_numbers(numbers))
    assert read_numbers(path, "robots") == numbers
    with pytest.raises(ConfigError, match="field numbers of the fleet 'robots', not of 'carts'"):
        read_numbers(path, "carts")
    numbers.messages["Go"].fields["speed"].number = 1
    path.write_bytes(write_numbers(numbers))
    with pytest.raises(ConfigError, match=r"Go\.to and Go\.speed both have number 1; give the newer one"):
        read_numbers(path, "robots")
    numbers.messages["Go"].fields["speed"].number = 19_500
    path.write_bytes(write_numbers(numbers))
    with pytest.raises(ConfigError, match=r"Go\.speed has number 19500, which protobuf does not allow"):
        read_numbers(path, "robots")
    path.write_bytes(b"{")
    with pytest.raises(ConfigError, match="restore the committed file"):
        read_numbers(path, "robots")
    path.write_bytes(write_numbers(FieldNumbers(2, "robots")))
    with pytest.raises(ConfigError, match="format 2"):
        read_numbers(path, "robots")


def test_a_server_invents_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "delivery.proto.lock"
    with pytest.raises(ConfigError, match=r"there are no field numbers at .*; run stigmergy proto"):
        open_service(fleet, path)
    made = FleetProto(fleet, None)
    path.write_bytes(write_numbers(made.numbers))
    assert open_service(fleet, path).text("x") == made.text("x")
    # A field of the service itself that is new in this version has its number in the code.
    del made.numbers.messages["WatchRequest"].fields["area"]
    path.write_bytes(write_numbers(made.numbers))
    assert open_service(fleet, path).numbers.messages["WatchRequest"].fields["area"].number == 8
    del made.numbers.messages["FlyTo"].fields["altitude_m"]
    path.write_bytes(write_numbers(made.numbers))
    with pytest.raises(ConfigError, match=r"is older than the classes of the fleet \(FlyTo\.altitude_m: new"):
        open_service(fleet, path)
