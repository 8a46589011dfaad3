"""Renders docs/reference/metrics.md."""

from __future__ import annotations

from pytriton._protocol.lanes.user_metrics import MOST_VALUES
from pytriton.dispatcher.telemetry.metrics.families import FAMILIES, Family

_HEAD = """\
# Metrics

`scripts/generate` makes this page of the declarations in `dispatcher/telemetry/metrics/families.py`; a test fails when it is out
of date.

With the setting `operations` (such as `127.0.0.1:9090`; port 0 takes a free one), or `operations_unix`, the daemon
serves `/metrics`. It has its own metrics and, behind them, those of tritonserver (`nv_…`), which also stay where they
are. Without these settings it serves none. The metrics of the [OpenAI front](../how-to/openai.md) are there, too
(`gen_ai_…`, `pytriton_openai_…`). They start anew with the front's process. A scrape lacks them where the front does
not answer within a second. The answer is Prometheus' text format, OpenMetrics where the scraper asks for it, or
protobuf, in which Prometheus takes native histograms (see below).

```yaml
scrape_configs:
  - job_name: pytriton
    static_configs: [{targets: ["127.0.0.1:9090"]}]
```

`operations_certificate` and `operations_key` make it HTTPS. With `operations_token = true` a request has to carry the
access token (`Authorization: Bearer …`; see [security.md](../operations/security.md)). A scrape reads what workers have
written into shared memory, and asks none of them: one that hangs holds up nothing, and shows what it last did. If
tritonserver does not answer within two seconds, that scrape lacks its metrics.

Counters belong to a model's name: they go on over ends of workers and replacements, and go when it is unregistered.
The labels `model`, `version` and `model_instance` have as many values as there are instances (`instance` is what
Prometheus calls the daemon that it scrapes). A dashboard for Grafana, recording rules and alerts are in
`deploy/monitoring/`.

Durations have buckets from 0.12 ms to 256 s, each twice as large as the one before, and rows from 1 to 65,536.
A 99th percentile of all servers together:
`histogram_quantile(0.99, sum by (le, model) (rate(pytriton_call_duration_seconds_bucket[5m])))`.

A Prometheus that takes native histograms (`--enable-feature=native-histograms`, or `scrape_native_histograms: true`)
asks for protobuf, and gets the fine buckets that workers count: four for each doubling, from 7.6 µs to 1,024 s. Then
`histogram_quantile(0.99, sum by (model) (rate(pytriton_call_duration_seconds[5m])))` is off by a tenth at most. The
shipped dashboard and rules ask for the coarse buckets, which come with them. So have Prometheus keep both:
`always_scrape_classic_histograms: true`, before version 3 `scrape_classic_histograms: true`.

OpenMetrics and protobuf have exemplars: behind each bucket of `pytriton_call_duration_seconds`, the trace
(`trace_id`) of the last call in it that was traced (see [tracing.md](../how-to/tracing.md)). Calls of Triton Python
models have none.

`pytriton_worker_gpu_bytes` needs NVIDIA's driver, and `pip install nvidia-ml-py` (the extra `gpu`) where the daemon
is. NVML knows processes by the ids of the host. So a container has to share these (`--pid=host`, `hostPID`); in one
with ids of its own, the metric is missing. We tried it with a stand-in for NVML only, without a GPU.

All that a worker does for these figures takes 0.9 µs of each batch, and 0.3 µs of each response of a stream
(`scripts/bench --counting`).

## Sent by OTLP

Where `OTEL_EXPORTER_OTLP_ENDPOINT` (or `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT`) is set in the daemon's environment, the
daemon sends the same metrics to that collector, whether it also serves `/metrics` or not. It needs `pip install
opentelemetry-exporter-otlp-proto-http` (the extra `otlp`).

- OpenTelemetry's variables count: `OTEL_METRIC_EXPORT_INTERVAL` (60,000 ms), `OTEL_EXPORTER_OTLP_HEADERS`,
  `…_CERTIFICATE`, `…_TIMEOUT`, `…_COMPRESSION`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`.
  `OTEL_METRICS_EXPORTER=none` turns it off. The protocol is http/protobuf.
- Names are those below, counters without `_total`. Tritonserver's metrics and those of your own are among them; a
  summary becomes its count, its sum and a gauge of its quantiles.
- `OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION=base2_exponential_bucket_histogram` has durations sent with
  the fine buckets that workers count (scale 2: a quantile is off by a tenth at most). Prometheus makes native
  histograms of them (`--web.enable-otlp-receiver`).
- Counters begin with what counts: with the daemon, tritonserver's with its process. A model that is registered anew
  begins anew, too, so no receiver takes it for a counter that runs backwards. While another tritonserver takes the
  place of the one that runs, its metrics are not sent.
- A thread of its own sends; nobody waits for it. An export that a collector does not take within its time-out, or
  within a minute in all, is dropped, and counted in `pytriton_otlp_exports_total{outcome="dropped"}`. Counters are
  sums, so the next one makes up for it. The log says why, once until it works again.

## Metrics of your own

The metrics that a callable makes with [`prometheus_client`](https://prometheus.github.io/client_python/) appear here,
too, with the labels of its instance. There is nothing to set up:

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

- The metrics have to be made in the worker: by a factory, as above, or in a module that the worker imports. A metric
  cannot be pickled.
- Those of the default registry count (`prometheus_client.REGISTRY`). The daemon leaves out what the library says of its
  own process.
- A worker's thread looks at them once a second, and as it ends. That takes 0.5 ms for 20 counters and 5 histograms
  (measured); what takes longer is done less often, a hundredth of the time at most. A worker that is killed takes
  with it what was counted since. A worker that hangs shows what was known last.
- Counters, histograms and summaries go on over ends of workers and replacements, and go when the model is
  unregistered. A histogram with other buckets than before begins anew. Quantiles and gauges are those of the present
  worker. An `Info` and an `Enum` become gauges.
- The daemon renames a label called `model`, `version` or `model_instance` to `exported_model` and so on, as
  Prometheus does.
- A worker has room for {most:,} values and 256 KiB; those that came first stay. A counter has a value for each set of
  labels, a histogram one for each bucket. Names that begin with `pytriton_` or `nv_`, names and labels
  that Prometheus does not take, and a name that another model uses for another kind are left out. So is a series with
  a count that is negative, 2^63 or more, or no number, or with buckets that are not cumulative.
  `pytriton_left_out_user_values` counts what is left out; the daemon's log says why, once for each metric.
- Where the worker cannot import `prometheus_client`, nothing of this happens. Nor does it for
  `isolation="thread"`: that process is yours, with a registry for all that runs in it.

## All metrics

| metric | type | labels | what it says |
|---|---|---|---|
"""
_TYPES = {"seconds": "histogram", "rows": "histogram"}


def _row(family: Family) -> str:
    name = f"{family.full_name}_total" if family.kind == "counter" else family.full_name
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{name}` | {_TYPES.get(family.kind, family.kind)} | {labels} | {family.help} |\n"


def metrics_page() -> str:
    """Return the content of docs/reference/metrics.md."""
    return _HEAD.replace("{most:,}", f"{MOST_VALUES:,}") + "".join(map(_row, FAMILIES))
