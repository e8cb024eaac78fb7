"""`stigmergy model`: pack, check, show and quantise, on real models of a few kilobytes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import msgspec
import numpy
import pytest

from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.models.bundle import Manifest, inspect_bundle, write_bundle
from stigmergy.models.forest import Forest
from stigmergy.models.runtime import unpack_row
from stigmergy.models.runtimes import find_runtime
from tests.cli.in_process import Here
from tests.models.nets import forest, net

NAMES = ("co", "nox", "temperature")
HIDDEN = 512
"""Large enough for INT8 to be smaller."""


@pytest.fixture
def here(tmp_path: Path) -> Here:
    """A net, a key, and examples: the right answer is whether the net says more than a half."""
    folder = Here(tmp_path)
    payload, answer = net(hidden=HIDDEN)
    (tmp_path / "gas.onnx").write_bytes(payload)
    folder.json("keys", "new", "fleet.key")
    rows = numpy.random.default_rng(3).normal(size=(200, 3)).astype("f4")
    with (tmp_path / "readings.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow((*NAMES, "high", "low"))
        writer.writerows(
            [*map(float, row), *map(int, right)] for row, right in zip(rows, answer(rows) > 0.5, strict=True)
        )
    return folder


def pack(here: Here, *more: str, code: int = 0) -> None:
    words = ("model", "pack", "gas.onnx", "--name", "gas-alarm", "--version", "1.2.0", "--examples", "readings.csv")
    done = here.cli(*words, "--key", "fleet.key", *more)
    assert done.returncode == code, done.stderr


NAMED = ("--inputs", "co,nox,temperature", "--outputs", "high,low")
ROOMY = (*NAMED, "--class", "server")
"""A class whose latency a busy machine keeps too."""


def test_what_is_packed_is_well_and_shows_what_it_was_given(here: Here) -> None:
    pack(here, *ROOMY, "--metric", "auc=0.966", "--note", "seed=7", "--licence", "Apache-2.0", "--tolerance", "0.001")
    checked = here.json("model", "check", "gas-alarm-1.2.0.model", "--trust", "fleet.key")
    assert (checked["ok"], checked["findings"]) == (True, [])
    assert checked["p99_ms"] >= checked["p50_ms"] > 0
    assert checked["largest_difference"] <= 0.001
    shown = here.json("model", "show", "gas-alarm-1.2.0.model")
    assert (shown["name"], shown["version"], shown["runtime"], shown["class"]) == (
        "gas-alarm", "1.2.0", "onnx", "server",
    )  # fmt: skip
    assert (shown["inputs"], shown["outputs"], shown["steps"]) == (list(NAMES), ["high", "low"], 1)
    assert (shown["metrics"], shown["notes"], shown["examples"]) == ({"auc": 0.966}, {"seed": "7"}, 32)
    assert shown["is_signed"] is True
    assert shown["signer"] == here.json("keys", "show", "fleet.key")["public_key"]
    said = here.cli("model", "show", "gas-alarm-1.2.0.model").stdout
    assert here.json("keys", "show", "fleet.key")["fingerprint"] in said
    assert "well" in here.cli("model", "check", "gas-alarm-1.2.0.model").stdout


def test_names_are_read_from_the_file(here: Here) -> None:
    numpy.savez(here.path / "rows.npz", inputs=numpy.ones((4, 3)))
    pack(here, "--out", "a.model", "--examples", "rows.npz")
    shown = here.json("model", "show", "a.model")
    assert (shown["inputs"], shown["outputs"], shown["class"]) == (["x0", "x1", "x2"], ["y0", "y1"], "tiny")


def test_names_in_the_metadata_of_the_file_come_first(here: Here) -> None:
    import onnx

    model = onnx.load_from_string((here.path / "gas.onnx").read_bytes())
    onnx.helper.set_model_props(model, {"inputs": "co, nox,temperature", "outputs": "high,low"})
    (here.path / "gas.onnx").write_bytes(model.SerializeToString())
    pack(here, "--out", "a.model")
    shown = here.json("model", "show", "a.model")
    assert (shown["inputs"], shown["outputs"]) == (list(NAMES), ["high", "low"])


def test_what_does_not_fit_together_is_not_packed(here: Here) -> None:
    (here.path / "short.csv").write_text("co,nox\n1,2\n")
    for more, sentence in (
        (("--inputs", "co,nox", "--outputs", "high,low"), "rows of 2 numbers"),
        (("--inputs", "co,nox,temperature", "--outputs", "high"), "its manifest names 1"),
        ((*NAMED, "--examples", "short.csv"), "no column 'temperature'"),
        ((*NAMED, "--examples", "nowhere.csv"), "No such file"),
        ((*NAMED, "--metric", "auc"), "is not NAME=VALUE"),
        ((*NAMED, "--metric", "auc=high"), "a number as its value"),
        ((*NAMED, "--version", "1.2"), "three numbers"),
    ):
        said = here.cli("model", "pack", "gas.onnx", "--name", "gas-alarm", "--version", "1.2.0", "--examples",
                        "readings.csv", "--key", "fleet.key", *more)  # fmt: skip
        assert said.returncode in (1, 2)
        assert sentence in said.stderr, said.stderr
    assert not list(here.path.glob("*.model"))
    pack(here, *ROOMY)
    pack(here, *ROOMY, code=2)
    assert inspect_bundle((here.path / "gas-alarm-1.2.0.model").read_bytes()).manifest.outputs == ("high", "low")


def test_each_finding_is_a_sentence_and_the_exit_code_is_1(here: Here) -> None:
    pack(here, *ROOMY)
    path = here.path / "gas-alarm-1.2.0.model"
    data = path.read_bytes()
    here.json("keys", "new", "other.key")

    def findings(content: bytes, *more: str) -> list[str]:
        (here.path / "changed.model").write_bytes(content)
        done = here.cli("model", "check", "changed.model", "--json", *more)
        assert done.returncode == 1
        document = json.loads(done.stdout)
        assert document["ok"] is False
        found: list[str] = document["findings"]
        return found

    bundle = inspect_bundle(data)

    def changed(payload: bytes = bundle.payload, **fields: object) -> bytes:
        manifest: Manifest = msgspec.structs.replace(bundle.manifest, **fields)
        return write_bundle(manifest, payload, Ed25519Signer(bytes(32)))

    examples = bundle.manifest.examples
    wrong = msgspec.structs.replace(examples[3], outputs=(0.5, examples[3].outputs[1] + 0.25))
    for content, more, sentence in (
        (data, ("--trust", "other.key"), "not among the model_keys"),
        (data[:-1], (), "cut off"),
        (data[:-1] + bytes([data[-1] ^ 1]), (), "the signature does not cover"),
        (b"nothing", (), "cut off"),
        (changed(payload=b"no model at all"), (), "does not load it"),
        (changed(runtime="abacus"), (), "no runtime 'abacus'"),
        (changed(examples=()), (), "no recorded examples"),
        (changed(examples=(*examples[:3], wrong)), (), "1 of 4 answers differ"),
    ):
        (finding,) = findings(content, *more)
        assert sentence in finding
    assert "refused" in here.cli("model", "check", "changed.model").stdout


def test_a_forest_is_packed_from_json(here: Here) -> None:
    payload, _ = forest(sigmoid=True)
    (here.path / "trees.json").write_bytes(msgspec.json.encode(msgspec.msgpack.decode(payload, type=Forest)))
    here.json("model", "pack", "trees.json", "--name", "trees", "--version", "0.1.0", "--examples", "readings.csv",
              "--key", "fleet.key", "--class", "server", *NAMED)  # fmt: skip
    assert here.json("model", "check", "trees-0.1.0.model")["largest_difference"] == 0
    said = here.error(
        "model", "quantise", "trees-0.1.0.model", "--examples", "readings.csv", "--key", "fleet.key", code=1
    )
    assert "no INT8 form" in said


def test_a_quantised_bundle_is_a_new_version_that_says_what_it_lost(here: Here) -> None:
    pack(here, *ROOMY)
    words = ("model", "quantise", "gas-alarm-1.2.0.model", "--examples", "readings.csv")
    assert "--key FILE" in here.error(*words, code=2)
    made = here.json(*words, "--key", "fleet.key", "--loss-max", "0.2")
    assert made["file"] == "gas-alarm-1.2.1.model"
    was, *forms = made["forms"]
    assert (was["form"], was["loss"], was["accuracy"]) == ("float", 0, 1.0)
    assert [one["form"] for one in forms] == ["dynamic", "static"]
    assert all(one["largest_difference"] > 0 for one in forms)
    (chosen,) = [one for one in forms if one["form"] == made["chosen"]]
    assert chosen["size_bytes"] < was["size_bytes"]
    bundle = inspect_bundle((here.path / "gas-alarm-1.2.1.model").read_bytes())
    notes = {one.name: one.text for one in bundle.manifest.notes}
    assert notes["quantised"] == made["chosen"]
    assert notes["quantised-from"] == here.json("model", "show", "gas-alarm-1.2.0.model")["digest"]
    assert {one.name: one.value for one in bundle.manifest.metrics} == {"auc-int8": chosen["accuracy"]}
    assert here.json("model", "check", "gas-alarm-1.2.1.model", "--trust", "fleet.key")["ok"] is True
    _, answer = net(hidden=HIDDEN)
    loaded = find_runtime("onnx").load(bundle)
    rows = [one.inputs for one in bundle.manifest.examples]
    found = numpy.array(loaded.run(rows)) - answer([unpack_row(row) for row in rows])
    assert 0 < numpy.abs(found).max() <= chosen["largest_difference"] + 1e-3


def test_what_loses_too_much_is_not_made(here: Here) -> None:
    (here.path / "unlabelled.csv").write_text(
        "\n".join(line.rsplit(",", 2)[0] for line in (here.path / "readings.csv").read_text().splitlines())
    )
    words = ("model", "quantise", "gas.onnx", "--examples", "unlabelled.npz")
    rows = numpy.loadtxt(here.path / "unlabelled.csv", delimiter=",", skiprows=1)
    numpy.savez(here.path / "unlabelled.npz", inputs=rows)
    said = here.cli(*words, "--loss-max", "0")
    assert said.returncode == 1
    assert "each INT8 form loses more than 0" in said.stdout
    assert not list(here.path.glob("*int8*"))
    said = here.cli(*words, "--loss-max", "1", "--way", "dynamic")
    assert said.returncode == 0
    assert "an output differs by up to" in said.stdout
    assert (here.path / "gas-int8.onnx").exists()


def test_what_saves_nothing_is_not_made(here: Here) -> None:
    (here.path / "gas.onnx").write_bytes(net(hidden=4)[0])
    pack(here, *ROOMY)
    words = ("model", "quantise", "gas-alarm-1.2.0.model", "--examples", "readings.csv", "--key", "fleet.key")
    found = here.json(*words, "--loss-max", "1", code=1)
    assert found["refusal"].startswith("no INT8 form is smaller")
    assert (found["file"], found["chosen"], len(found["forms"])) == (None, None, 3)
    assert "no INT8 form is smaller" in here.cli(*words, "--loss-max", "1").stdout
    assert [one.name for one in here.path.glob("*.model")] == ["gas-alarm-1.2.0.model"]
