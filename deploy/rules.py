"""The alert rules."""

from __future__ import annotations

from msgspec import Struct

from deploy.queries import highest, quantile, rate, total, value

EVERYWHERE = ""
"""Rules look at all instances."""
WINDOW = "5m"


class Alert(Struct, frozen=True):
    """Fires when `query` has been beyond a bound for so long."""

    name: str
    query: str
    beyond: str
    lasting: str
    severity: str
    about: str
    """One sentence: what is wrong, and what to do."""

    @property
    def expression(self) -> str:
        """As Prometheus evaluates it."""
        return f"{self.query} {self.beyond}"


def _rate(name: str, *by: str, **labels: str) -> str:
    return rate(name, *by, chosen=EVERYWHERE, window=WINDOW, **labels)


def _p99(name: str) -> str:
    return quantile(0.99, name, "instance", chosen=EVERYWHERE, window=WINDOW)


def _total(name: str) -> str:
    return total(name, "instance", chosen=EVERYWHERE)


def _highest(name: str, *by: str) -> str:
    return highest(name, *(by or ("instance",)), chosen=EVERYWHERE)


UNOWNED = f"{highest('stigmergy_shards', chosen=EVERYWHERE)} - {total('stigmergy_shards_owned', chosen=EVERYWHERE)}"
ALERTS = (
    Alert(
        "StigmergyDown",
        'up{job="stigmergy"}',
        "== 0",
        "1m",
        "critical",
        "A process does not answer; see its log, start it again.",
    ),
    Alert(
        "StigmergyAgentsStopped",
        _total("stigmergy_agents_stopped"),
        "> 0",
        "0m",
        "critical",
        "Supervision has stopped agents; stigmergy status says why, stigmergy resume lets them go on.",
    ),
    Alert(
        "StigmergyShardsWithoutOwner",
        UNOWNED,
        "> 0",
        "1m",
        "critical",
        "Shards have no owner, and their agents wait; start workers, see stigmergy status --nats.",
    ),
    Alert(
        "StigmergyJournalNearlyFull",
        _highest("stigmergy_journal_free_bytes"),
        "< 1e9",
        "5m",
        "critical",
        "Less than 1 GB is free for the journal; a node stops when it is full: make room, or shorten retention.",
    ),
    Alert(
        "StigmergyLedgerDown",
        value("stigmergy_ledger_up", EVERYWHERE),
        "== 0",
        "1m",
        "critical",
        "The ledger does not answer, and no claim is granted; see stigmergy status.",
    ),
    Alert(
        "StigmergyActionsSlow",
        _p99("stigmergy_event_to_action_seconds"),
        "> 1",
        "5m",
        "warning",
        "One action in a hundred leaves more than 1 s after its cause; look at commit, mailbox and step.",
    ),
    Alert(
        "StigmergyCommitsSlow",
        _p99("stigmergy_commit_seconds"),
        "> 0.5",
        "5m",
        "warning",
        "One commit in a hundred takes more than 0.5 s; look at the disk or the servers of the log.",
    ),
    Alert(
        "StigmergyInputsWait",
        _highest("stigmergy_shard_lag_seconds"),
        "> 5",
        "1m",
        "warning",
        "Inputs wait more than 5 s for their turn: more comes than can be taken; look for the busiest shard.",
    ),
    Alert(
        "StigmergyInputsDropped",
        _rate("stigmergy_dropped_total", "instance", "reason"),
        "> 0",
        "5m",
        "warning",
        "Inputs are shed, refused or given up; the reason says which.",
    ),
    Alert(
        "StigmergyInputsFail",
        _rate("stigmergy_inputs_total", "instance", outcome="failed"),
        "> 0",
        "5m",
        "warning",
        "Handlers raise exceptions; stigmergy letters lists the inputs.",
    ),
    Alert(
        "StigmergyDeadLetters",
        _total("stigmergy_dead_letters"),
        "> 0",
        "10m",
        "warning",
        "Inputs have failed; stigmergy letters lists them, retry or drop them.",
    ),
    Alert(
        "StigmergyEffectsFail",
        _rate("stigmergy_effects_total", "instance", outcome="failed"),
        "> 0",
        "5m",
        "warning",
        "Actuators or workers fail after all tries; see the log of their agents.",
    ),
    Alert(
        "StigmergyEffectsOwed",
        _total("stigmergy_effects_owed"),
        "> 10000",
        "5m",
        "warning",
        "Sinks do not keep up: above 100,000 owed effects no observed events are taken.",
    ),
    Alert(
        "StigmergyLinkDown",
        value("stigmergy_link_up", EVERYWHERE),
        "== 0",
        "2m",
        "warning",
        "A node has no link to its bus and works alone; stigmergy status says why.",
    ),
    Alert(
        "StigmergyNodeAway",
        _highest("stigmergy_members_away"),
        "> 0",
        "5m",
        "warning",
        "A node of the fleet has left or is not heard; stigmergy status names it: start it, or take its agents over.",
    ),
    Alert(
        "StigmergyUplinkBehind",
        _highest("stigmergy_uplink_lag_seconds"),
        "> 300",
        "5m",
        "warning",
        "The receiver of an uplink is more than five minutes behind; look at the link and the gateway.",
    ),
    Alert(
        "StigmergyViewBehind",
        _highest("stigmergy_view_lag_commits", "instance", "view"),
        "> 10000",
        "5m",
        "warning",
        "A view is more than 10,000 commits behind; its rows are old.",
    ),
    Alert(
        "StigmergyNotConverging",
        _highest("stigmergy_shared_behind_seconds"),
        "> 60",
        "1m",
        "warning",
        "A node has lacked changes of a shared object for more than a minute; stigmergy shared says which.",
    ),
    Alert(
        "StigmergyTroubles",
        _total("stigmergy_troubles"),
        "> 0",
        "5m",
        "warning",
        "Something does not work and does not mend itself; stigmergy status says what.",
    ),
)


def written() -> str:
    """The file of rules."""
    lines = ["# Made by make dashboards from the list of metrics; change deploy/rules.py instead.", "groups:"]
    lines += ["  - name: stigmergy", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {_quoted(alert.expression)}",
            f"        for: {alert.lasting}",
            f"        labels: {{severity: {alert.severity}}}",
            "        annotations:",
            f"          summary: {_quoted(alert.about)}",
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
