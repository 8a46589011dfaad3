"""Writes the page of metrics: `python -m pytriton.dispatcher.figures.metrics_page > docs/reference/metrics.md`."""

from __future__ import annotations

import sys

from pytriton.dispatcher.figures.families import FAMILIES, Family

_HEAD = """\
# Metrics

This page is made of the declarations in `dispatcher/figures/families.py` by
`python -m pytriton.dispatcher.figures.metrics_page > docs/reference/metrics.md`; a test fails when it is out of date.

With the setting `operations` (such as `127.0.0.1:8003`; port 0 takes a free one), or `operations_unix`, the daemon
serves `/metrics`: its own metrics and, behind them, those of tritonserver (`nv_…`), which also stay where they are. By
default it does not. The answer is Prometheus' text format, or OpenMetrics where the scraper asks for it. Native
histograms are not told: Python's `prometheus_client` cannot write them. What workers count would do for them.

```yaml
scrape_configs:
  - job_name: pytriton
    static_configs: [{targets: ["127.0.0.1:8003"]}]
```

`operations_certificate` and `operations_key` make it HTTPS. With `operations_token = true` a request has to carry the
access token (`Authorization: Bearer …`; see [security.md](../operations/security.md)). A scrape reads what workers have
written into shared memory, and asks none of them: one that hangs holds up nothing, and shows what it last did. If
tritonserver does not answer within two seconds, its metrics are left out of that scrape.

Counters belong to a model's name: they go on over ends of workers and replacements, and go when it is unregistered.
The labels `model`, `version` and `model_instance` have as many values as there are instances (`instance` is what
Prometheus calls the daemon that it scrapes). A dashboard for Grafana, recording rules and alerts are in
`deploy/monitoring/`.

Durations have buckets from 0.12 ms to 256 s, each twice as large as the one before, and rows from 1 to 65,536.
A 99th percentile of all servers together:
`histogram_quantile(0.99, sum by (le, model) (rate(pytriton_call_duration_seconds_bucket[5m])))`.

What is counted in workers costs 1 µs a batch (0.95 measured).

| metric | type | labels | what it says |
|---|---|---|---|
"""
_TYPES = {"seconds": "histogram", "rows": "histogram"}


def _row(family: Family) -> str:
    name = f"{family.full_name}_total" if family.kind == "counter" else family.full_name
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{name}` | {_TYPES.get(family.kind, family.kind)} | {labels} | {family.help} |\n"


def metrics_page() -> str:
    """Return docs/reference/metrics.md."""
    return _HEAD + "".join(map(_row, FAMILIES))


if __name__ == "__main__":
    sys.stdout.write(metrics_page())
