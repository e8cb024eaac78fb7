"""Dashboards for Grafana and alert rules for Prometheus, made from the list of metrics: `make dashboards`."""
