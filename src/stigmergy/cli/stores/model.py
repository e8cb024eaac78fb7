"""`stigmergy model`: packs a model as a signed bundle, checks one on this machine, shows it, makes it INT8, puts it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stigmergy.app.fleet import PublicKey, fingerprint, load_signer, read_key
from stigmergy.base.errors import ConfigError, ModelRefused
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import BAD, GOOD, NAME, Output, shown_bytes
from stigmergy.cli.stores.rollout import add_put, add_rollout, put
from stigmergy.keys.ed25519 import Ed25519Verifier
from stigmergy.models.bundle import (
    AcceptedMetric,
    Bundle,
    Manifest,
    ModelClass,
    Note,
    inspect_bundle,
    is_signed,
    version_key,
)
from stigmergy.models.checking import check_bundle
from stigmergy.models.examples import read_examples
from stigmergy.models.packing import RECORDED_COUNT, describe, pack, read_file, read_payload, smallest_class
from stigmergy.shard.commit import SignatureAlgorithm

if TYPE_CHECKING:
    from stigmergy.models.quantising import Quantised

LOSS_MAX = 0.01
ONNX = ".onnx"
EXAMPLES = """examples:
  stigmergy model pack gas.onnx --name gas-alarm --version 1.2.0 --inputs co,nox,temperature --outputs co,no2 \\
      --examples readings.csv --metric auc=0.966 --licence Apache-2.0 --key fleet.key
  stigmergy model check gas-alarm-1.2.0.model --trust fleet.key    exit code 1 with findings
  stigmergy model quantise gas-alarm-1.2.0.model --examples labelled.csv --key fleet.key
  stigmergy model show gas-alarm-1.2.1.model
  stigmergy model put gas-alarm-1.2.0.model --models nats://hub:4222
"""


def add_commands(commands: Any) -> None:
    """Adds `model` and what is under it."""
    group = commands.add_parser(
        "model",
        help="pack, check, show and quantise models",
        description="Makes a model a signed bundle that nodes take, and checks bundles on this machine.",
        epilog=EXAMPLES,
    )
    actions = group.add_subparsers(metavar="ACTION", required=True)
    add_rollout(actions)
    _add_pack(actions.add_parser("pack", run=pack_model, help="make a signed bundle of an ONNX model or a forest"))
    parser = actions.add_parser("check", run=check, help="check a bundle on this machine; exit code 1 with findings")
    parser.add_argument("bundle", metavar="BUNDLE", type=Path)
    parser.add_argument(
        "--trust", metavar="KEY", action="append", help="a key that may have signed it; without, any key may"
    )
    add_put(actions.add_parser("put", run=put, help="put a bundle where a fleet's models are, such as its first one"))
    parser = actions.add_parser("show", run=show, help="show what a bundle says about its model")
    parser.add_argument("bundle", metavar="BUNDLE", type=Path)
    parser = actions.add_parser(
        "quantise", run=quantise_model, help="make a model INT8, and say what it costs and saves"
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="a bundle, or an .onnx file")
    parser.add_argument(
        "--examples", metavar="FILE", type=Path, required=True, help="CSV or npz, best with right answers"
    )
    parser.add_argument("--way", choices=("best", "dynamic", "static"), default="best")
    parser.add_argument(
        "--loss-max",
        metavar="X",
        type=float,
        default=LOSS_MAX,
        help="how much AUC, or without right answers of an output, may be lost (default: %(default)s)",
    )
    parser.add_argument("--version", metavar="X.Y.Z", help="of the new bundle; else the next one")
    parser.add_argument("--key", metavar="FILE", type=Path, help="signs the new bundle")
    parser.add_argument("--out", metavar="FILE", type=Path, help="the new file; else beside the old one")


def _add_pack(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="an .onnx file, or a forest as .json")
    parser.add_argument("--name", metavar="NAME", required=True, help="small letters, digits and dashes")
    parser.add_argument("--version", metavar="X.Y.Z", required=True)
    parser.add_argument("--inputs", metavar="NAMES", default="", help="a,b,c; else as the file names them")
    parser.add_argument("--outputs", metavar="NAMES", default="", help="likewise")
    parser.add_argument("--steps", metavar="N", type=int, default=1, help="a row is so many times the inputs")
    parser.add_argument(
        "--class",
        dest="model_class",
        choices=[str(one) for one in ModelClass],
        help="what it may take on a device; else the smallest that has room for it",
    )
    parser.add_argument("--licence", metavar="TEXT", default="")
    parser.add_argument(
        "--metric", metavar="NAME=VALUE", action="append", default=[], help="a figure it was accepted with"
    )
    parser.add_argument("--note", metavar="NAME=TEXT", action="append", default=[], help="such as seed=7")
    parser.add_argument(
        "--examples",
        metavar="FILE",
        type=Path,
        required=True,
        help=f"CSV or npz; answers to {RECORDED_COUNT} of them are recorded",
    )
    parser.add_argument("--tolerance", metavar="X", type=float, default=1e-4, help="of answers on other machines")
    parser.add_argument("--key", metavar="FILE", type=Path, required=True, help="the private key that signs it")
    parser.add_argument("--out", metavar="FILE", type=Path, help="else NAME-VERSION.model here")


def pack_model(arguments: argparse.Namespace, output: Output) -> int:
    """Makes a bundle."""
    signer = load_signer(arguments.key, create=False)
    runtime, payload = read_payload(arguments.file)
    inputs, outputs = describe(
        runtime, payload, _names(arguments.inputs), _names(arguments.outputs), max(1, arguments.steps)
    )
    manifest = Manifest(
        name=arguments.name,
        version=arguments.version,
        runtime=runtime,
        model_class=ModelClass(arguments.model_class or smallest_class(len(payload))),
        inputs=inputs,
        outputs=outputs,
        steps=arguments.steps,
        licence=arguments.licence,
        metrics=tuple(AcceptedMetric(name, _number(value)) for name, value in map(_pair, arguments.metric)),
        notes=tuple(Note(name, text) for name, text in map(_pair, arguments.note)),
        tolerance=arguments.tolerance,
    )
    data = pack(manifest, payload, read_examples(arguments.examples, manifest).rows, signer)
    bundle = inspect_bundle(data)
    path = arguments.out or Path(bundle.file_name)
    _write_new(path, data)
    output.document({"file": str(path), **_described(bundle)})
    output.line(("packed", GOOD), f" {path}  ", (shown_bytes(len(data)), NAME), f"  {_digest(bundle)}")
    output.note(f"check it where it will run: stigmergy model check {path} --trust {arguments.key}")
    return exits.OK


def check(arguments: argparse.Namespace, output: Output) -> int:
    """Says what is wrong with a bundle here."""
    trusted = None if arguments.trust is None else [read_key(key).key for key in arguments.trust]
    try:
        found = check_bundle(read_file(arguments.bundle), trusted, Ed25519Verifier())
    except ModelRefused as error:
        output.document({"ok": False, "findings": [str(error)]})
        output.line(("refused", BAD), f"  {error}")
        return exits.REFUSED
    timing, bundle = found.timing, found.bundle
    output.document(
        {
            "ok": not found.findings,
            "findings": found.findings,
            "memory_bytes": found.memory_bytes,
            "p50_ms": timing and timing.p50_s * 1000,
            "p99_ms": timing and timing.p99_s * 1000,
            "runs": timing and timing.runs_count,
            "largest_difference": found.largest_difference,
            **(_described(bundle) if bundle else {}),
        }
    )
    if bundle and timing:
        output.line(
            (bundle.file_name, NAME),
            f"  {shown_bytes(bundle.size_bytes)}, {shown_bytes(found.memory_bytes or 0)} of memory, p99 "
            f"{timing.p99_s * 1000:.3g} ms (p50 {timing.p50_s * 1000:.3g} ms), "
            f"answers differ by {found.largest_difference or 0:.3g} at most",
        )
    for finding in found.findings:
        output.line(("refused", BAD), f"  {finding}")
    if not found.findings:
        output.line(
            ("well", GOOD), "  " + ("" if trusted else "whoever signed it: name the keys to trust with --trust")
        )
    return exits.REFUSED if found.findings else exits.OK


def show(arguments: argparse.Namespace, output: Output) -> int:
    """Shows what a bundle says."""
    data = read_file(arguments.bundle)
    bundle = inspect_bundle(data)
    manifest = bundle.manifest
    signed = is_signed(data, Ed25519Verifier())
    output.document(
        {
            **_described(bundle),
            "is_signed": signed,
            "inputs": list(manifest.inputs),
            "outputs": list(manifest.outputs),
            "steps": manifest.steps,
            "licence": manifest.licence,
            "metrics": {one.name: one.value for one in manifest.metrics},
            "notes": {one.name: one.text for one in manifest.notes},
            "examples": len(manifest.examples),
            "tolerance": manifest.tolerance,
        }
    )
    by = fingerprint(PublicKey(SignatureAlgorithm.ED25519, bundle.signer)) if signed else "nobody"
    limits = manifest.class_limits
    output.line(
        (f"{manifest.name} {manifest.version}", NAME), f"  {manifest.runtime}, {shown_bytes(bundle.size_bytes)}"
    )
    output.fields(
        [
            (
                "class",
                f"{manifest.model_class}: {limits.latency_s_max * 1000:g} ms, {shown_bytes(limits.bundle_bytes_max)}",
            ),
            ("inputs", f"{manifest.steps} × " * (manifest.steps > 1) + ", ".join(manifest.inputs)),
            ("outputs", ", ".join(manifest.outputs)),
            ("signed by", by if signed else (by, BAD)),
            ("digest", bundle.digest.hex()),
            ("licence", manifest.licence or "none given"),
            ("examples", f"{len(manifest.examples)} recorded, tolerance {manifest.tolerance:g}"),
            *((one.name, f"{one.value:g}") for one in manifest.metrics),
            *((one.name, one.text) for one in manifest.notes),
        ]
    )
    return exits.OK


def quantise_model(arguments: argparse.Namespace, output: Output) -> int:
    """Makes an INT8 form, if one loses little enough."""
    from stigmergy.models.quantising import WAYS, choose, quantise

    bundle = _bundle_or_onnx(arguments)
    is_bundle = arguments.file.suffix != ONNX
    if is_bundle and arguments.key is None:
        raise ConfigError("the new bundle must be signed; give the private key with --key FILE")
    signer = load_signer(arguments.key, create=False) if is_bundle else None
    examples = read_examples(arguments.examples, bundle.manifest)
    found = quantise(bundle, examples, WAYS if arguments.way == "best" else (arguments.way,))
    refusal, chosen, path = "", None, None
    try:
        chosen = choose(found, arguments.loss_max)
    except ModelRefused as error:  # with what was measured it can be understood
        refusal = str(error)
    else:
        name, data = _quantised_file(bundle, chosen, examples.rows, signer, arguments)
        path = arguments.out or arguments.file.with_name(name)
        _write_new(path, data)
    output.document(
        {
            "file": path and str(path),
            "chosen": chosen and chosen.way,
            "refusal": refusal,
            "forms": [_form(one) for one in found],
        }
    )
    output.table(
        ("form", "size", "p50", "largest difference", "AUC"),
        [
            (
                (one.way, GOOD if one is chosen else ""),
                shown_bytes(len(one.payload)),
                f"{one.p50_s * 1e6:.0f} µs",
                f"{one.largest_difference:.3g}",
                "" if one.accuracy is None else f"{one.accuracy:.4f}",
            )
            for one in found
        ],
    )
    if chosen is None:
        output.line(("refused", BAD), f"  {refusal}")
        return exits.REFUSED
    was = found[0]
    cost = "an output differs by up to" if chosen.accuracy is None else "of AUC it costs"
    output.line(
        ("made", GOOD),
        f" {path}: {cost} {chosen.loss:.3g}; {1 - len(chosen.payload) / len(was.payload):.0%} smaller, "
        f"{was.p50_s / chosen.p50_s:.2f} times as fast",
    )
    return exits.OK


def _bundle_or_onnx(arguments: argparse.Namespace) -> Bundle:
    if arguments.file.suffix != ONNX:
        return inspect_bundle(read_file(arguments.file))
    runtime, payload = read_payload(arguments.file)
    inputs, outputs = describe(runtime, payload, (), (), 1)
    size = smallest_class(len(payload))
    manifest = Manifest(
        name="model", version="0.0.0", runtime=runtime, model_class=size, inputs=inputs, outputs=outputs
    )
    return Bundle(manifest, payload, b"")


def _quantised_file(
    bundle: Bundle, chosen: Quantised, rows: Sequence[bytes], signer: Any, arguments: argparse.Namespace
) -> tuple[str, bytes]:
    """The name and the content of the new file."""
    from stigmergy.models.quantising import QUANTISED_TOLERANCE

    if signer is None:
        return f"{arguments.file.stem}-int8{ONNX}", chosen.payload
    manifest = bundle.manifest
    first, second, third = version_key(manifest.version)
    notes = {one.name: one for one in manifest.notes} | {
        one.name: one for one in (Note("quantised", chosen.way), Note("quantised-from", bundle.digest.hex()))
    }
    metrics = {one.name: one for one in manifest.metrics}
    if chosen.accuracy is not None:
        metrics["auc-int8"] = AcceptedMetric("auc-int8", chosen.accuracy)
    manifest = msgspec.structs.replace(
        manifest,
        version=arguments.version or f"{first}.{second}.{third + 1}",
        notes=tuple(notes.values()),
        metrics=tuple(metrics.values()),
        tolerance=max(manifest.tolerance, QUANTISED_TOLERANCE),
    )
    data = pack(manifest, chosen.payload, rows, signer)
    return inspect_bundle(data).file_name, data


def _form(one: Quantised) -> dict[str, Any]:
    return {
        "form": one.way,
        "size_bytes": len(one.payload),
        "p50_ms": one.p50_s * 1000,
        "largest_difference": one.largest_difference,
        "accuracy": one.accuracy,
        "loss": one.loss,
    }


def _described(bundle: Bundle) -> dict[str, Any]:
    manifest = bundle.manifest
    return {
        "name": manifest.name,
        "version": manifest.version,
        "runtime": manifest.runtime,
        "class": str(manifest.model_class),
        "digest": bundle.digest.hex(),
        "signer": bundle.signer.hex(),
        "size_bytes": bundle.size_bytes,
    }


def _digest(bundle: Bundle) -> str:
    return f"digest {bundle.digest.hex()[:16]}…"


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigError(f"{text!a} is not NAME=VALUE")
    return name, value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"a metric has a number as its value, not {text!a}") from None


def _write_new(path: Path, data: bytes) -> None:
    try:
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError:
        raise ConfigError(f"{str(path)!a} exists; a bundle is never replaced: give a new version, or --out") from None
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!a}: {error.strerror}") from None
