"""Renders docs/reference/metrics.md."""

from __future__ import annotations

from pytriton._protocol.lanes.user_metrics import MAX_VALUES
from pytriton.dispatcher.telemetry.metrics.families import FAMILIES, DaemonMetric

_HEAD = """\
# Metrics

`scripts/generate` creates this page from `dispatcher/telemetry/metrics/families.py`.

The daemon serves `/metrics` on the address of the setting `management_address` (such as `127.0.0.1:9090`), on `management_unix_socket`, or on
both. Without these settings there are no metrics of the daemon. The page has the daemon's metrics, those of tritonserver
(`nv_…`, also on tritonserver's own port), of the [OpenAI frontend](../how-to/openai.md) (`gen_ai_…`, `pytriton_openai_…`), and
of your callables.

```yaml
scrape_configs:
  - job_name: pytriton
    static_configs: [{targets: ["127.0.0.1:9090"]}]
```

- **TLS and access**: set `management_certificate` and `management_key` for HTTPS. With `management_require_token = true`, scrapes need
  the access token (`Authorization: Bearer …`; see [security](../operations/security.md)).
- **Dashboards and alerts**: `deploy/monitoring/` has a Grafana dashboard, recording rules and alerts.
- **Formats**: Prometheus text, OpenMetrics, and protobuf.
- **Missing data**: a scrape never waits for a worker; a hanging worker shows its last values. Metrics of tritonserver are
  missing if it does not answer within 2 s, those of the OpenAI frontend after 1 s.
- **Counters** of a model continue across worker exits and replacements, until the model is unregistered. Those of the OpenAI
  frontend start at 0 with its process.
- **Labels**: `instance` is the scraped daemon, `model_instance` an instance of a model.
- **Cost**: 0.9 µs of worker time per batch and 0.3 µs per response of a stream.

## Histograms and quantiles

Durations have buckets from 0.12 ms to 256 s, each twice the previous; rows from 1 to 65,536. The 99th percentile across all
servers: `histogram_quantile(0.99, sum by (le, model) (rate(pytriton_call_duration_seconds_bucket[5m])))`.

Native histograms have four buckets per doubling, from 7.6 µs to 1,024 s, so that a quantile is off by 10 % at most. Enable them
in Prometheus with `scrape_native_histograms: true` or `--enable-feature=native-histograms`, and query
`histogram_quantile(0.99, sum by (model) (rate(pytriton_call_duration_seconds[5m])))`. The shipped dashboard and rules need the
classic buckets: also set `always_scrape_classic_histograms: true` (before version 3 `scrape_classic_histograms: true`).

OpenMetrics and protobuf have exemplars: each bucket of `pytriton_call_duration_seconds` carries the `trace_id` of its latest
[traced](../how-to/tracing.md) call, except for Triton Python models.

## GPU memory

`pytriton_worker_gpu_bytes` needs NVIDIA's driver and `nvidia-ml-py` (`pip install` the extra `gpu`) in the daemon's
environment. NVML reports process ids of the host: a container needs `--pid=host` or `hostPID`, otherwise the metric is missing.
This has only been tested with a stand-in for NVML.

## Export to OpenTelemetry (OTLP)

The daemon sends the same metrics to a collector if `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` is
set in its environment. This needs `opentelemetry-exporter-otlp-proto-http` (the extra `otlp`), but not `management_address`.

- The protocol is http/protobuf. Other variables: `OTEL_METRIC_EXPORT_INTERVAL` (60,000 ms), `OTEL_EXPORTER_OTLP_HEADERS`,
  `…_CERTIFICATE`, `…_TIMEOUT`, `…_COMPRESSION`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`. `OTEL_METRICS_EXPORTER=none`
  disables the export.
- Counters have no `_total` in their names. A summary is sent as a count, a sum and a gauge of its quantiles.
- `OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION=base2_exponential_bucket_histogram` sends durations with the fine
  buckets (scale 2). Prometheus stores them as native histograms (`--web.enable-otlp-receiver`).
- The start time of a counter is that of its process or, for models, of the registration. While tritonserver is being replaced,
  its metrics are not sent.
- Exports do not slow down requests. A snapshot that the collector does not accept within its timeout, or within a minute, is
  dropped and counted in `pytriton_otlp_exports_total{outcome="dropped"}`; the log has the reason. Counters are cumulative, so
  the next export makes up for it.

## Metrics of your own

Metrics that a callable creates with [`prometheus_client`](https://prometheus.github.io/client_python/) are exposed with the
labels of its instance, without any configuration:

```python
import numpy as np

from pytriton.daemon import connect
from pytriton.decorators import batch
from pytriton.model_config import Tensor


def counting():
    from prometheus_client import Counter

    long = Counter("long_texts", "Texts of more than 1,000 characters.", ["language"])

    @batch
    def infer_fn(text):
        long.labels("en").inc(sum(len(one) > 1000 for one in text.ravel()))
        return {"length": np.char.str_len(text.astype(bytes))}

    return infer_fn


connect().register(
    counting, "texts", factory=True,
    inputs=[Tensor(name="text", dtype=bytes, shape=(1,))],
    outputs=[Tensor(name="length", dtype=np.int64, shape=(1,))],
)
# long_texts_total{language="en",model="texts",model_instance="0",version="1"} 3.0
```

- Create metrics in the worker: in a factory, as above, or in a module that the worker imports. They cannot be pickled.
- Only the default registry (`prometheus_client.REGISTRY`) is read, without the library's metrics of its own process.
- A worker publishes its metrics once a second, and when it exits. This takes 0.5 ms for 20 counters and 5 histograms; if it
  takes longer, it happens less often (1 % of the time at most). A killed worker loses the counts since the last time.
- Counters, histograms and summaries continue across worker exits and replacements, until the model is unregistered. A histogram
  with changed buckets starts again. Quantiles and gauges are those of the current worker. `Info` and `Enum` become gauges.
- Labels called `model`, `version` or `model_instance` are renamed to `exported_model` and so on, as by Prometheus.
- A worker can have {most:,} values and 256 KiB; further ones are left out. A counter has one value per set of labels, a
  histogram one per bucket.
- Also left out: names that begin with `pytriton_` or `nv_`, invalid names and labels, names that another model uses for another
  type, counts that are negative, 2^63 or more, or not a number, and buckets that are not cumulative.
  `pytriton_omitted_user_values` counts the values that are left out; the daemon's log has the reasons.
- Workers without `prometheus_client`, and callables with `isolation="thread"`, have no custom metrics here.

## All metrics

| metric | type | labels | meaning |
|---|---|---|---|
"""
_TYPES = {"seconds": "histogram", "rows": "histogram"}


def _row(family: DaemonMetric) -> str:
    name = f"{family.full_name}_total" if family.kind == "counter" else family.full_name
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{name}` | {_TYPES.get(family.kind, family.kind)} | {labels} | {family.help} |\n"


def metrics_page() -> str:
    """Return the content of docs/reference/metrics.md."""
    return _HEAD.replace("{most:,}", f"{MAX_VALUES:,}") + "".join(map(_row, FAMILIES))
