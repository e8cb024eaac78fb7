"""`stigmergy compile`: what it makes, what it says, and that a start finds it."""

from pathlib import Path

import pytest

from tests.cli.conftest import Folder
from tests.cli.in_process import Here

COUNTER = """
from stigmergy import Agent, Event, Fleet, evolve


class Counted(Event):
    amount: float


class Counter(Agent):
    total: float = 0.0

    @evolve
    def counted(self, event: Counted) -> None:
        self.total = self.total + event.amount


class Plain(Agent):
    name: str = ""


fleet = Fleet("counting", agents=[Counter, Plain], compiled=[Counter])
slow = Fleet("counting", agents=[Plain])
"""


@pytest.fixture
def counting(tmp_path: Path) -> Folder:
    (tmp_path / "counter.py").write_text(COUNTER, encoding="utf-8")
    return Here(tmp_path)


def test_compiles_into_the_folder_where_a_start_looks(counting: Folder) -> None:
    counting.json("compile", "counter:fleet")
    again = counting.json("compile", "counter:fleet")
    (counter,) = again["agents"]
    where = Path(counter.pop("folder"))
    assert where.parent == Path(again["folder"])
    assert counter.pop("seconds") < 20
    assert counter == {"kind": "Counter", "forms": 1, "record_bytes": 16, "row_bytes": 8, "compiled": False}
    shown = counting.cli("compile", "counter:fleet")
    assert shown.returncode == 0
    assert shown.stdout.splitlines()[1].split() == [
        *("Counter", "1", "16", "B", "8", "B"),
        *(shown.stdout.splitlines()[1].split()[6], "was", "there", str(where)),
    ]
    assert shown.stderr.startswith("1 kind for ")


@pytest.mark.prove
def test_code_for_any_processor_is_found_on_the_device(tmp_path: Path, counting: Folder) -> None:
    counting = Folder(tmp_path)  # a process that has numba already cannot choose the processor
    made = counting.json("compile", "counter:fleet", "--to", "code", "--cpu", "generic")
    assert made["processor"] == "generic"
    assert made["folder"] == str(counting.path / "code")
    (counter,) = made["agents"]
    assert counter["compiled"]
    assert sorted(path.name.split("-")[0] for path in Path(counter["folder"]).iterdir()) == [
        "fold",
        "program.py",
        "step",
    ]
    device = counting.cli("compile", "counter:fleet", STIGMERGY_CACHE=made["folder"])
    assert "was there" in device.stdout
    assert "compiling" not in device.stderr


def test_says_what_is_wrong(counting: Folder) -> None:
    (counting.path / "file").write_text("")
    for arguments, said in (
        ((), "which fleet?"),
        (("counter:slow",), "has no compiled agents: declare it with compiled=True"),
        (("counter:fleet", "--to", "file/code"), "give a folder that can be written"),
        (("counter:nothing",), "it has fleet, slow"),
    ):
        done = counting.cli("compile", *arguments)
        assert done.returncode == 2
        assert said in done.stderr
    others = counting.path / "others"
    others.mkdir()
    others.chmod(0o777)
    done = counting.cli("compile", "counter:fleet", "--to", "others")
    assert done.returncode == 2
    assert "can be written by others" in done.stderr
