"""Every metric that a process of a fleet tells, with its kind, labels and meaning. Pure.

What is told, docs/metrics.md, the dashboards and the alert rules are made from this list, so none of them can name a
metric that does not exist. Names follow Prometheus: base units, `_total` for what only grows. Labels have few values:
kinds, types, shards, reasons. The name of an agent is one only where the configuration asks for it.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from stigmergy.metrics.histogram import COUNTS, SECONDS, Scale


class MetricKind(StrEnum):
    """As Prometheus calls them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Merge(StrEnum):
    """How the values of several shards or nodes make one."""

    SUM = "sum"
    MAX = "max"


class Metric(Struct, frozen=True):
    """One metric."""

    name: str
    kind: MetricKind
    about: str
    labels: tuple[str, ...] = ()
    scale: Scale = SECONDS
    """Of a histogram."""
    merge: Merge = Merge.SUM


class Section(Struct, frozen=True):
    """Metrics that belong together, as a heading and a row of panels."""

    title: str
    metrics: tuple[Metric, ...]


def _counter(name: str, about: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.COUNTER, about, labels)


def _gauge(name: str, about: str, *labels: str, merge: Merge = Merge.SUM) -> Metric:
    return Metric(name, MetricKind.GAUGE, about, labels, merge=merge)


def _seconds(name: str, about: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.HISTOGRAM, about, labels)


def _counts(name: str, about: str) -> Metric:
    return Metric(name, MetricKind.HISTOGRAM, about, (), COUNTS)


SECTIONS = (
    Section(
        "Work",
        (
            _gauge(
                "stigmergy_node_info", "1; the labels say what this is", "fleet", "version", "role", merge=Merge.MAX
            ),
            _gauge("stigmergy_agents", "agents that are on disk", "kind"),
            _counter("stigmergy_events_total", "events that were kept, since the log began", "shard"),
            _counter("stigmergy_commits_total", "commits, since the log began", "shard"),
            _counter(
                "stigmergy_events_by_type_total",
                "events that were kept since the start, by type; estimated from a sample above 200 in a second",
                "kind",
                "event",
            ),
            _counter(
                "stigmergy_inputs_total",
                "what became of inputs; duplicate: a command, event or result that was there before, by its id or mark",
                "outcome",
            ),
            _counter("stigmergy_dropped_total", "what was not taken, or given up, on its way in or out", "reason"),
            _counter("stigmergy_effects_total", "what became of effects", "outcome"),
            _counter(
                "stigmergy_inferences_total",
                "answers of models; outcome: model, or why the rule has answered or nobody",
                "model",
                "version",
                "outcome",
            ),
            _gauge("stigmergy_inferences_waiting", "questions that wait for a model", merge=Merge.MAX),
            _gauge("stigmergy_model_threads_hung", "threads that a model hangs in", merge=Merge.MAX),
            _gauge("stigmergy_effects_owed", "effects that no sink has settled yet"),
            _counter(
                "stigmergy_spans_total", "what became of the spans of traces on their way to a collector", "outcome"
            ),
            _gauge("stigmergy_dead_letters", "inputs that failed and wait for an operator"),
            _gauge("stigmergy_agents_stopped", "agents that their supervision has stopped"),
            _gauge("stigmergy_troubles", "things that do not work at present; stigmergy status says which"),
            _counter("stigmergy_internal_total", "all counters of stigmergy status, by their names there", "counter"),
        ),
    ),
    Section(
        "Latency",
        (
            _seconds(
                "stigmergy_event_to_action_seconds",
                "from the acceptance of an input to the release of an effect that followed; counted from the oldest "
                "input of its turn",
            ),
            _seconds("stigmergy_mailbox_wait_seconds", "how long inputs waited for their turn; from the oldest of it"),
            _gauge("stigmergy_mailbox_items", "observed events that wait for their turn"),
            _gauge(
                "stigmergy_shard_waiting_items",
                "observed events, commands and other inputs that wait for a shard; of 20,000 inputs at most",
                "shard",
            ),
            _gauge(
                "stigmergy_shard_lag_seconds",
                "how long the oldest input that waits for a shard has waited",
                "shard",
                merge=Merge.MAX,
            ),
            _seconds("stigmergy_step_seconds", "handlers of one turn"),
            _seconds("stigmergy_seal_seconds", "the commits of a group to bytes, hashes and a signature"),
            _seconds("stigmergy_commit_seconds", "a group from its write to being durable"),
            _seconds("stigmergy_sync_seconds", "waiting for the disk to have it: fdatasync, or a commit of SQLite"),
            _seconds("stigmergy_release_seconds", "answers, effects and timers of a group that is durable"),
            _counts("stigmergy_group_events", "events that were written together"),
            _seconds("stigmergy_effect_seconds", "effects that are awaited, with all tries", "sink"),
            _seconds("stigmergy_inference_seconds", "from a question to a model to its answer, or its rule's", "model"),
            _seconds("stigmergy_source_lag_seconds", "from the time in an event of the bus to its acceptance"),
        ),
    ),
    Section(
        "Journal",
        (
            _gauge("stigmergy_journal_bytes", "what the journal takes"),
            _gauge("stigmergy_journal_free_bytes", "what is left on its device", merge=Merge.MAX),
            _counter("stigmergy_journal_written_bytes_total", "bytes of commits that were written"),
            _seconds("stigmergy_snapshot_seconds", "a snapshot from its begin to its end"),
            _counter("stigmergy_snapshot_written_bytes_total", "bytes of snapshots that were written"),
            _gauge(
                "stigmergy_snapshot_age_seconds",
                "since the last snapshot of a shard was begun, or since the start",
                "shard",
                merge=Merge.MAX,
            ),
            _gauge("stigmergy_state_bytes", "states of a kind's agents; estimated from a sample", "kind"),
        ),
    ),
    Section(
        "Lag of others",
        (
            _gauge("stigmergy_uplink_lag_commits", "commits that the receiver of the uplink has not confirmed"),
            _gauge("stigmergy_uplink_lag_seconds", "how old the last confirmed commit is", merge=Merge.MAX),
            _gauge("stigmergy_view_lag_commits", "commits that are not in the rows of a view yet", "view"),
            _gauge(
                "stigmergy_view_lag_seconds",
                "how much older than the newest commit the last one is that is in the rows of a view",
                "view",
                merge=Merge.MAX,
            ),
            _gauge("stigmergy_link_up", "whether the link to the bus is up; absent without a bus", merge=Merge.MAX),
            _gauge("stigmergy_members", "members of the fleet that are heard", merge=Merge.MAX),
            _gauge("stigmergy_members_away", "members that have left or are not heard any more", merge=Merge.MAX),
            _gauge("stigmergy_publish_owed", "published messages that the broker has not taken yet"),
        ),
    ),
    Section(
        "Shared state",
        (
            _counter("stigmergy_changes_total", "what became of changes of shared fields", "outcome"),
            _counter("stigmergy_delta_bytes_total", "bytes of shared state to and from other nodes", "direction"),
            _seconds("stigmergy_merge_seconds", "from the receipt of changes of others to their being durable here"),
            _seconds("stigmergy_convergence_seconds", "how long a node lacked a change, or had one that we lacked"),
            _gauge("stigmergy_shared_objects", "shared objects that are held here"),
            _gauge("stigmergy_shared_behind", "pairs of an object and a node that are not known to be in step"),
            _gauge("stigmergy_shared_behind_seconds", "the longest of them", merge=Merge.MAX),
        ),
    ),
    Section(
        "Claims",
        (
            _counter("stigmergy_claims_total", "what became of claims", "outcome"),
            _gauge("stigmergy_claims_held", "claims that agents here hold"),
            _gauge("stigmergy_claims_asking", "claims that agents here wait for"),
            _seconds("stigmergy_claim_seconds", "from asking to the grant"),
            _gauge("stigmergy_ledger_up", "whether the ledger answers", merge=Merge.MAX),
            _gauge("stigmergy_ledger_queue", "moves that are not known to be in the ledger"),
            _seconds("stigmergy_ledger_append_seconds", "one append to the ledger"),
            _seconds("stigmergy_ledger_lag_seconds", "from an append to reading it back"),
            _counter("stigmergy_cache_total", "looks into caches: signatures of the ledger", "cache", "outcome"),
        ),
    ),
    Section(
        "Ledgers of one's own",
        (
            _counter("stigmergy_proposals_total", "what became of proposals of entries", "ledger", "outcome"),
            _gauge("stigmergy_proposals_waiting", "proposals whose outcome is not known", "ledger"),
            _seconds("stigmergy_proposal_seconds", "from a proposal to reading its id in the ledger", "ledger"),
            _counter("stigmergy_entries_told_total", "entries that were given to subscribers", "ledger"),
            _gauge(
                "stigmergy_entries_behind",
                "how many positions the last subscriber is behind what was read",
                "ledger",
                merge=Merge.MAX,
            ),
        ),
    ),
    Section(
        "Cluster",
        (
            _gauge("stigmergy_shards_owned", "shards that this worker owns"),
            _gauge("stigmergy_shards", "shards of the fleet", merge=Merge.MAX),
            _counter("stigmergy_shard_moves_total", "shards that were owned, released or lost here", "event"),
        ),
    ),
    Section(
        "Agents by name",
        (
            _gauge("stigmergy_agent_events_share", "of the busiest agents, their share of the events", "agent"),
            _gauge("stigmergy_agent_state_bytes", "of the agents with the largest states", "agent", merge=Merge.MAX),
        ),
    ),
    Section(
        "Process",
        (
            _counter("process_cpu_seconds_total", "processor time"),
            _gauge("process_resident_memory_bytes", "memory"),
            _gauge("process_open_fds", "open files and sockets"),
            _gauge("process_start_time_seconds", "when it was started, in seconds since 1970", merge=Merge.MAX),
            _counter("stigmergy_disk_bytes_total", "bytes to and from storage", "direction"),
            _counter("stigmergy_flash_bytes_total", "bytes to storage, by what they were written for", "cause"),
            _counter("stigmergy_network_bytes_total", "bytes of this machine, without its loopback", "direction"),
        ),
    ),
    Section(
        "HTTP",
        (
            _counter("stigmergy_http_requests_total", "requests that were answered", "status"),
            _seconds("stigmergy_http_request_seconds", "from a request to its answer; streams do not count"),
        ),
    ),
)
METRICS = {metric.name: metric for section in SECTIONS for metric in section.metrics}

LAGS = {
    "stigmergy_shard_lag_seconds": "shards",
    "stigmergy_uplink_lag_seconds": "uplink",
    "stigmergy_view_lag_seconds": "views",
    "stigmergy_shared_behind_seconds": "shared state",
}
"""Gauges of how far something is behind, and what that is called for people."""
DROPPED = {
    "shed_items": "shed",
    "skipped": "skipped",
    "gaps": "gap",
    "malformed": "malformed",
    "stale_epochs": "stale_epoch",
    "stale_mappings": "stale_mapping",
    "overloads": "overload",
    "publish_shed": "publish_shed",
    "unpublishable": "unpublishable",
    "raw_withheld": "raw",
    "policy_denied": "policy_denied",
    "policy_failed": "policy_failed",
    "bus_refused": "bus_refused",
    "bus_shed": "bus_shed",
    "bus_gaps": "bus_gap",
    "bus_lost_by_senders": "lost_by_sender",
    "shared_refused": "shared_refused",
    "shared_misfits": "shared_misfit",
}
"""Counters of what was not taken, or given up, on its way in or out, and the reason as the label says it."""
INPUTS = {"accepted": "accepted", "refused": "refused", "failed": "failed", "duplicates": "duplicate"}
EFFECTS = {
    "released": "released",
    "done": "done",
    "failed": "failed",
    "retries": "retried",
    "safe": "safe",
    "safe_failed": "safe_failed",
    "unheard": "unheard",
    "lapsed": "lapsed",
}
SPANS = {"spans_exported": "exported", "spans_dropped": "dropped", "spans_refused": "refused"}
CHANGES = {
    "shared_written": "written",
    "shared_taken": "taken",
    "shared_known": "known",
    "shared_resent": "resent",
    "shared_repaired": "repaired",
    "shared_declined": "declined",
    "shared_dropped": "dropped",
}
CLAIMS = {f"claims_{outcome}": outcome for outcome in ("asked", "granted", "denied", "lost", "released")}
PROPOSALS = {f"proposals_{outcome}": outcome for outcome in ("entered", "duplicate", "refused")}
