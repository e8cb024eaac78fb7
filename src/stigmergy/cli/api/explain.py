"""`stigmergy explain EVENT`: the chain behind an event, from what was sensed to what was done."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from msgspec import structs

from stigmergy.app.journals import inspect_all
from stigmergy.audit.chain import ENTRIES_COUNT_MAX, Chain, chain_of
from stigmergy.audit.listing import EntryFilter, LogEntry, list_log
from stigmergy.base.errors import ConfigError
from stigmergy.cli.display import exits
from stigmergy.cli.display.output import GOOD, HEADING, NAME, WARN, Cell, Output, shown_fields
from stigmergy.cli.display.places import ask_list, closing_journal, find_journal, find_running
from stigmergy.control.protocol import LogRequest
from stigmergy.control.replies import filled

DIGEST_CHARS = 12


def explain_event(arguments: argparse.Namespace, shard: int, position: int, index: int, output: Output) -> int:
    """Shows the chain that the event at this place is part of."""
    here = EntryFilter(shard=shard, first=position, last=position, limit=ENTRIES_COUNT_MAX)
    found = [one for one in _entries(arguments, here) if one.index == index and one.kind == "event"]
    if not found:
        raise ConfigError(f"there is no event {shard}:{position}.{index}; `stigmergy log show` says what there is")
    target = found[0]
    mine = EntryFilter(agent=target.agent, shard=shard, limit=ENTRIES_COUNT_MAX)
    before = list(_entries(arguments, structs.replace(mine, last=position)))
    after = _entries(arguments, structs.replace(mine, first=position + 1))
    chain = chain_of([*before, *after], target)
    output.document(chain)
    for line in shown_chain(chain):
        output.line(*line)
    if chain.inferred is None:
        output.note("no model had to do with it; `stigmergy explain KIND/NAME` shows how its agent came to be as it is")
    return exits.OK


def _entries(arguments: argparse.Namespace, wanted: EntryFilter) -> Iterator[LogEntry]:
    path = find_running(arguments)
    if path is not None:
        yield from ask_list(path, filled(LogRequest, wanted)).items
        return
    with closing_journal(inspect_all(find_journal(arguments))) as journal:
        yield from (entry for entry in list_log(journal, wanted) if entry is not None)


def shown_chain(chain: Chain) -> Iterator[list[Cell]]:
    """The chain in lines."""
    if chain.sensed is None and chain.inferred is None:
        yield _event("event", chain.target)
    if chain.sensed is not None:
        yield _event("sensed", chain.sensed)
    if chain.asked is not None:
        asked = f"  {chain.asked.numbers} numbers, {chain.asked.inputs[:DIGEST_CHARS]}"
        yield [("asked     ", HEADING), (chain.asked.model, NAME), asked]
    if chain.inferred is not None and chain.source is not None:
        source = chain.source
        version = f"{source.version} ({source.digest.hex()[:DIGEST_CHARS]})" if source.version else "no bundle"
        arm = f", arm {source.arm}" if source.arm else ""
        said = f"  {shown_fields(chain.answer)}, confidence {chain.confidence:.3f}, in {source.latency_s * 1e3:.1f} ms"
        yield [("inferred  ", HEADING), (f"{source.model} {version}{arm}", NAME), said]
        if source.fallback:
            yield [f"{'':>10}", (f"the rule answered: {source.fallback}", WARN)]
        if source.policy:
            yield [f"{'':>10}policy: {source.policy}"]
        if source.shadow_version:
            alike = {None: "", True: " agrees", False: " differs"}[source.shadow_agrees]
            yield [f"{'':>10}in the shadow: {source.shadow_version}{alike}"]
        for name, moved in source.explanation:
            yield [f"{'':>10}{name:<24} {moved:+.4f}"]
    for entry in chain.decided:
        yield _event("decided", entry)
    for effect in chain.done:
        to = f" to {effect.to}" if effect.to else ""
        yield [("done      ", HEADING), (effect.type, GOOD), f" {shown_fields(effect.fields)}  by {effect.sink}{to}"]


def _event(word: str, entry: LogEntry) -> list[Cell]:
    place = f"{entry.shard}:{entry.position}.{entry.index}  {entry.time}  {entry.agent}  "
    rest = f" {shown_fields(entry.fields)}  from {entry.cause.command or entry.cause.source}"
    return [(f"{word:<10}", HEADING), place, (entry.type, NAME), rest]
