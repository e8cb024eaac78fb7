"""The dashboards: fleet, node, cluster, application."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from deploy.queries import highest, quantile, rate, total, value

COLUMNS = 24
PANEL_WIDTH, PANEL_HEIGHT = 8, 8


class Panel(Struct, frozen=True):
    """A diagram: its queries, each with the text of its legend, and the unit as Grafana names it."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"


class Dashboard(Struct, frozen=True):
    """A page of panels."""

    name: str
    title: str
    panels: tuple[Panel, ...]


def _latency(title: str, name: str) -> Panel:
    return Panel(title, ((quantile(0.5, name), "p50"), (quantile(0.99, name), "p99")), "s")


FLEET = Dashboard(
    "fleet",
    "Stigmergy / Fleet",
    (
        Panel("Events", ((rate("stigmergy_events_total", "instance"), "{{instance}}"),), "eps"),
        _latency("Event to action", "stigmergy_event_to_action_seconds"),
        Panel("Agents", ((total("stigmergy_agents", "kind"), "{{kind}}"),)),
        Panel("Inputs by outcome", ((rate("stigmergy_inputs_total", "outcome"), "{{outcome}}"),), "ops"),
        Panel("Not taken or given up", ((rate("stigmergy_dropped_total", "reason"), "{{reason}}"),), "ops"),
        Panel(
            "Needs an operator",
            (
                (total("stigmergy_dead_letters"), "dead letters"),
                (total("stigmergy_agents_stopped"), "stopped agents"),
                (total("stigmergy_troubles"), "troubles"),
            ),
        ),
        Panel(
            "Waiting",
            (
                (total("stigmergy_mailbox_items"), "in mailboxes"),
                (total("stigmergy_effects_owed"), "effects owed"),
                (total("stigmergy_publish_owed"), "to publish"),
            ),
        ),
        Panel("Lag of shards", ((highest("stigmergy_shard_lag_seconds", "instance"), "{{instance}}"),), "s"),
        Panel("Age of events from the bus", ((quantile(0.99, "stigmergy_source_lag_seconds"), "p99"),), "s"),
        Panel("Links", ((value("stigmergy_link_up"), "{{instance}}"),)),
        Panel(
            "Members",
            (
                (highest("stigmergy_members", "instance"), "{{instance}}"),
                (highest("stigmergy_members_away", "instance"), "{{instance}}: away"),
            ),
        ),
        Panel("Uplinks behind", ((highest("stigmergy_uplink_lag_seconds", "instance"), "{{instance}}"),), "s"),
        Panel("Uplinks behind, commits", ((total("stigmergy_uplink_lag_commits", "instance"), "{{instance}}"),)),
        Panel("Models", ((rate("stigmergy_inferences_total", "model", "outcome"), "{{model}} {{outcome}}"),), "ops"),
        _latency("Question to answer of models", "stigmergy_inference_seconds"),
        Panel(
            "Models behind",
            (
                (highest("stigmergy_inferences_waiting", "instance"), "{{instance}}: waiting"),
                (highest("stigmergy_model_threads_hung", "instance"), "{{instance}}: threads that hang"),
            ),
        ),
        Panel(
            "Versions", ((total("stigmergy_node_info", "fleet", "version", "role"), "{{fleet}} {{version}} {{role}}"),)
        ),
    ),
)
NODE = Dashboard(
    "node",
    "Stigmergy / Node",
    (
        _latency("Commit", "stigmergy_commit_seconds"),
        _latency("Sync of the disk", "stigmergy_sync_seconds"),
        _latency("Wait in the mailbox", "stigmergy_mailbox_wait_seconds"),
        _latency("Handlers of a turn", "stigmergy_step_seconds"),
        _latency("Sealing of a group", "stigmergy_seal_seconds"),
        _latency("Release of a group", "stigmergy_release_seconds"),
        Panel("Events in a group", ((quantile(0.5, "stigmergy_group_events"), "p50"),)),
        Panel(
            "Journal",
            (
                (total("stigmergy_journal_bytes", "instance"), "{{instance}}"),
                (highest("stigmergy_journal_free_bytes", "instance"), "{{instance}} free"),
            ),
            "bytes",
        ),
        Panel(
            "Written",
            (
                (rate("stigmergy_journal_written_bytes_total"), "commits"),
                (rate("stigmergy_snapshot_written_bytes_total"), "snapshots"),
                (rate("stigmergy_disk_bytes_total", "direction"), "process {{direction}}"),
            ),
            "Bps",
        ),
        Panel(
            "To flash, in an hour", ((rate("stigmergy_flash_bytes_total", "cause") + " * 3600", "{{cause}}"),), "bytes"
        ),
        Panel("Snapshot", ((quantile(0.99, "stigmergy_snapshot_seconds"), "p99"),), "s"),
        Panel("Age of snapshots", ((highest("stigmergy_snapshot_age_seconds", "instance"), "{{instance}}"),), "s"),
        Panel("States", ((total("stigmergy_state_bytes", "kind"), "{{kind}}"),), "bytes"),
        Panel("Processor", ((rate("process_cpu_seconds_total", "instance"), "{{instance}}"),), "percentunit"),
        Panel("Memory", ((total("process_resident_memory_bytes", "instance"), "{{instance}}"),), "bytes"),
        Panel("Open files", ((total("process_open_fds", "instance"), "{{instance}}"),)),
        Panel(
            "Network of the machine", ((rate("stigmergy_network_bytes_total", "direction"), "{{direction}}"),), "Bps"
        ),
        Panel(
            "Started",
            ((highest("process_start_time_seconds", "instance") + " * 1000", "{{instance}}"),),
            "dateTimeFromNow",
        ),
        Panel("All counters", ((rate("stigmergy_internal_total", "counter"), "{{counter}}"),), "ops"),
        Panel("HTTP requests", ((rate("stigmergy_http_requests_total", "status"), "{{status}}"),), "reqps"),
        _latency("HTTP", "stigmergy_http_request_seconds"),
    ),
)
CLUSTER = Dashboard(
    "cluster",
    "Stigmergy / Cluster",
    (
        Panel("Shards by worker", ((total("stigmergy_shards_owned", "instance"), "{{instance}}"),)),
        Panel(
            "Shards without an owner",
            ((f"{highest('stigmergy_shards')} - {total('stigmergy_shards_owned')}", "without an owner"),),
        ),
        Panel("Moves of shards", ((rate("stigmergy_shard_moves_total", "event"), "{{event}}"),), "ops"),
        Panel("Busiest shards", ((f"topk(10, {rate('stigmergy_events_total', 'shard')})", "shard {{shard}}"),), "eps"),
        Panel(
            "Lag of shards", ((f"topk(10, {highest('stigmergy_shard_lag_seconds', 'shard')})", "shard {{shard}}"),), "s"
        ),
        Panel(
            "Waiting for shards",
            ((f"topk(10, {total('stigmergy_shard_waiting_items', 'shard')})", "shard {{shard}}"),),
        ),
        Panel("Commits", ((rate("stigmergy_commits_total", "shard"), "shard {{shard}}"),), "ops"),
        Panel("Views behind", ((highest("stigmergy_view_lag_commits", "view"), "{{view}}"),)),
        Panel("Lag of views", ((highest("stigmergy_view_lag_seconds", "view"), "{{view}}"),), "s"),
    ),
)
APPLICATION = Dashboard(
    "application",
    "Stigmergy / Application",
    (
        Panel(
            "Events by type", ((rate("stigmergy_events_by_type_total", "kind", "event"), "{{kind}} {{event}}"),), "eps"
        ),
        Panel("Effects by outcome", ((rate("stigmergy_effects_total", "outcome"), "{{outcome}}"),), "ops"),
        Panel("Spans of traces", ((rate("stigmergy_spans_total", "outcome"), "{{outcome}}"),), "ops"),
        Panel("Effects take", ((quantile(0.99, "stigmergy_effect_seconds", "sink"), "{{sink}} p99"),), "s"),
        Panel("Claims by outcome", ((rate("stigmergy_claims_total", "outcome"), "{{outcome}}"),), "ops"),
        _latency("Claims take", "stigmergy_claim_seconds"),
        Panel(
            "Claims",
            (
                (total("stigmergy_claims_held"), "held"),
                (total("stigmergy_claims_asking"), "asked for"),
                (total("stigmergy_ledger_queue"), "waiting for the ledger"),
            ),
        ),
        Panel(
            "Ledger",
            (
                (quantile(0.99, "stigmergy_ledger_append_seconds"), "append p99"),
                (quantile(0.99, "stigmergy_ledger_lag_seconds"), "read back p99"),
            ),
            "s",
        ),
        Panel("Ledger answers", ((value("stigmergy_ledger_up"), "{{instance}}"),)),
        Panel(
            "Proposals",
            ((rate("stigmergy_proposals_total", "ledger", "outcome"), "{{ledger}} {{outcome}}"),),
            "ops",
        ),
        Panel("Proposals take", ((quantile(0.99, "stigmergy_proposal_seconds", "ledger"), "{{ledger}} p99"),), "s"),
        Panel("Proposals waiting", ((total("stigmergy_proposals_waiting", "ledger"), "{{ledger}}"),)),
        Panel("Entries told", ((rate("stigmergy_entries_told_total", "ledger"), "{{ledger}}"),), "ops"),
        Panel("Subscribers behind", ((highest("stigmergy_entries_behind", "ledger"), "{{ledger}}"),)),
        Panel("Signatures", ((rate("stigmergy_cache_total", "outcome"), "{{outcome}}"),), "ops"),
        Panel("Shared changes", ((rate("stigmergy_changes_total", "outcome"), "{{outcome}}"),), "ops"),
        Panel("Shared bytes", ((rate("stigmergy_delta_bytes_total", "direction"), "{{direction}}"),), "Bps"),
        _latency("Merge", "stigmergy_merge_seconds"),
        _latency("Convergence", "stigmergy_convergence_seconds"),
        Panel(
            "Not in step",
            (
                (total("stigmergy_shared_behind"), "nodes and objects"),
                (total("stigmergy_shared_objects"), "objects"),
            ),
        ),
        Panel("Longest not in step", ((highest("stigmergy_shared_behind_seconds", "instance"), "{{instance}}"),), "s"),
        Panel(
            "Busiest agents",
            ((f"topk(10, {highest('stigmergy_agent_events_share', 'agent')})", "{{agent}}"),),
            "percentunit",
        ),
        Panel(
            "Largest states", ((f"topk(10, {highest('stigmergy_agent_state_bytes', 'agent')})", "{{agent}}"),), "bytes"
        ),
    ),
)
DASHBOARDS = (FLEET, NODE, CLUSTER, APPLICATION)


def described(dashboard: Dashboard) -> dict[str, Any]:
    """A dashboard as Grafana imports it."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels = []
    for number, panel in enumerate(dashboard.panels):
        beside = COLUMNS // PANEL_WIDTH
        panels.append(
            {
                "id": number + 1,
                "type": "timeseries",
                "title": panel.title,
                "datasource": source,
                "gridPos": {
                    "x": number % beside * PANEL_WIDTH,
                    "y": number // beside * PANEL_HEIGHT,
                    "w": PANEL_WIDTH,
                    "h": PANEL_HEIGHT,
                },
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": [
                    {"refId": chr(ord("A") + index), "datasource": source, "expr": query, "legendFormat": legend}
                    for index, (query, legend) in enumerate(panel.queries)
                ],
            }
        )
    instance = {"query": "label_values(stigmergy_node_info, instance)", "refId": "instance"}
    return {
        "uid": f"stigmergy-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["stigmergy"],
        "schemaVersion": 38,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                {
                    "name": "instance",
                    "type": "query",
                    "datasource": source,
                    "query": instance,
                    "refresh": 2,
                    "includeAll": True,
                    "multi": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": panels,
    }
